//! Tests of the plugin's commands, mostly on the control plane of the operator's tests. The tests play the kubelet, and
//! some the operator. Most users have the documented rights of a person who runs jobs, which do not include deleting.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod credential_plugin;
mod cut_connection;
mod documents;
mod front;
mod in_pods;
mod job_output;
mod no_answer;
mod proxy;
mod read_only;
mod reconnect;
mod runs;
mod server;
mod terminals;
mod user_account;

/// An account in the fixture's namespace with the documented rights.
fn user_of(fixture: &test_support::api_server::Fixture) -> user_account::UserAccount {
    user_with(fixture, "person", user_account::RIGHTS)
}

/// An account in the fixture's namespace with these rights.
fn user_with(
    fixture: &test_support::api_server::Fixture,
    name: &str,
    rights: &[(&str, &str)],
) -> user_account::UserAccount {
    fixture.kubectl(&["create", "serviceaccount", name]).unwrap();
    user_account::UserAccount::with(
        &fixture.namespace,
        name,
        rights,
        fixture.kubeconfig_of(name),
        |arguments| fixture.kubectl(arguments),
    )
}
