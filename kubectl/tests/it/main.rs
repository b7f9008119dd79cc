//! The plugin's tests, as a person would call it, on the control plane of the operator's tests. The operator is the real one; the
//! tests play the kubelet. Who calls has no more rights than a person who runs jobs, and may not even delete.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests look and act")]

mod documents;
mod front;
mod in_pods;
mod looks;
mod person;
mod runs;
mod server;
mod terminals;
mod wire;
mod wires;
mod words;

/// A person of the fixture's namespace.
fn person_of(fixture: &test_support::api_server::Fixture) -> person::Person {
    person_with(fixture, "person", person::RIGHTS)
}

/// … with these rights.
fn person_with(fixture: &test_support::api_server::Fixture, name: &str, rights: &[(&str, &str)]) -> person::Person {
    fixture.kubectl(&["create", "serviceaccount", name]).unwrap();
    let kubectl = |arguments: &[&str]| drop(fixture.kubectl(arguments).unwrap());
    person::Person::with(&fixture.namespace, name, rights, fixture.kubeconfig_of(name), kubectl)
}
