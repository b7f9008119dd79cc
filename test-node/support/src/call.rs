//! The operator's calls to the API server, and the permissions that they need.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::installation::Permission;

/// A call that the operator made.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    pub verb: String,
    pub group: String,
    pub resource: String,
    pub name: String,
    /// The HTTP status of the API server's answer. 0: it has not answered.
    pub status: u16,
}

impl Call {
    pub fn of(method: &str, uri: &http::Uri) -> Call {
        let parts: Vec<&str> = uri.path().trim_matches('/').split('/').collect();
        let (group, rest) = match parts.as_slice() {
            ["api", _, rest @ ..] => ("", rest),
            ["apis", group, _, rest @ ..] => (*group, rest),
            // Paths outside of the API groups, such as /version.
            other => ("?", other),
        };
        // Without the namespace; `namespaces/NAME` alone is a Namespace itself.
        let rest = if rest.first() == Some(&"namespaces") && rest.len() > 2 {
            &rest[2..]
        } else {
            rest
        };
        let name = rest.get(1).copied().unwrap_or_default();
        let resource = match rest {
            [resource, _, subresource] => format!("{resource}/{subresource}"),
            [resource, ..] => (*resource).to_owned(),
            [] => String::new(),
        };
        let is_watch = uri
            .query()
            .is_some_and(|query| query.contains("watch=true") || query.contains("watch=1"));
        let verb = match (method, name) {
            ("GET", "") if is_watch => "watch",
            ("GET", "") => "list",
            ("GET", _) => "get",
            ("POST", _) => "create",
            ("PATCH", _) => "patch",
            ("PUT", _) => "update",
            ("DELETE", "") => "deletecollection",
            ("DELETE", _) => "delete",
            _ => "?",
        };
        Call {
            verb: verb.into(),
            group: group.into(),
            resource,
            name: name.into(),
            status: 0,
        }
    }

    /// API group, resource and verb that a role has to allow.
    pub fn permission(&self) -> Permission {
        (self.group.clone(), self.resource.clone(), self.verb.clone())
    }

    pub fn is_read(&self) -> bool {
        matches!(self.verb.as_str(), "get" | "list" | "watch")
    }

    /// Whether it patches a pod's status, by which the operator sets the label on the lead's pod. It does so in the
    /// background, once it has seen the pod. `Calls::counted` leaves these calls out.
    pub fn patches_pod_status(&self) -> bool {
        self.verb == "patch" && self.resource == "pods/status"
    }
}

/// The spec of a MiniCluster with a sidecar and a service that may grow: for it, the operator needs most permissions.
pub fn of_all_parts() -> Value {
    json!({
        "size": 1, "maxSize": 2,
        "containers": [
            { "image": "app:1", "command": "hostname", "runFlux": true },
            { "image": "db:1", "name": "db", "ports": [5432] },
        ],
        "services": [{ "image": "cache:1", "name": "cache" }],
    })
}

/// Whether only an admission plugin requires this permission, so that no call shows the need for it.
pub fn is_for_admission((group, resource, verb): &Permission) -> bool {
    matches!(
        (group.as_str(), resource.as_str(), verb.as_str()),
        ("flux-framework.org", "miniclusters/finalizers", "update") | ("", "services", "delete")
    )
}

/// Asserts that no call was refused, and that each of the permissions was used.
pub fn assert_sufficient_and_all_used(calls: &[Call], permissions: &BTreeSet<Permission>) {
    let forbidden: Vec<&Call> = calls.iter().filter(|call| call.status == 403).collect();
    assert!(forbidden.is_empty(), "permissions are missing: {forbidden:#?}");
    let used: BTreeSet<_> = calls.iter().map(Call::permission).collect();
    let unused: Vec<_> = permissions
        .difference(&used)
        .filter(|permission| !is_for_admission(permission))
        .collect();
    assert!(unused.is_empty(), "permissions that nothing uses: {unused:#?}");
}
