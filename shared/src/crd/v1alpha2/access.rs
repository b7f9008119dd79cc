//! Who may use the cluster: the users of its pods, and the Flux RESTful API.

use serde::{Deserialize, Serialize};

use super::is_false;

block! {
    /// A user of every pod.
    #[derive(Default)]
    pub struct User {
        /// User name.
        pub name: String,
        // Why 8: `PASSWORD_MAX` in validate/access.rs.
        /// Password, 8 characters at most. Default: generated. Stored in the Secret that status.usersSecret
        /// names.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub password: Option<String>,
    }
}

block! {
    /// The Flux RESTful API, to submit jobs over HTTP.
    #[derive(Default)]
    pub struct FluxRestful {
        /// Do not serve the API, as without this block.
        #[serde(default, skip_serializing_if = "is_false")]
        pub disable: bool,
        /// Branch or tag of the API's repository. Default: main.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub branch: Option<String>,
        /// Port that it listens on. Default: 5000.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub port: Option<i32>,
        /// Key that encodes the payloads. Default: generated. Stored in the Secret that
        /// status.fluxRestfulSecret names.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub secret_key: Option<String>,
        /// User name of its clients. Default: flux.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub username: Option<String>,
        /// Token (password) of the user `username`. Default: generated. Stored in the Secret that
        /// status.fluxRestfulSecret names.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub token: Option<String>,
    }
}
