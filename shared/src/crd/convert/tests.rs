use serde_json::{Value, json};

#[cfg(feature = "crd")]
mod properties;

use super::{ConvertError, Version, convert, convert_spec};

fn v1alpha2(mut spec: Value) -> Value {
    convert_spec(&mut spec, Version::V1alpha2);
    spec
}

fn v1alpha1(mut spec: Value) -> Value {
    convert_spec(&mut spec, Version::V1alpha1);
    spec
}

#[test]
fn v1alpha1_defaults_are_explicit_in_v1alpha2() {
    let spec = json!({ "size": 4, "cleanup": true, "containers": [{ "image": "app:1", "command": "work" }] });
    let newer = v1alpha2(spec.clone());
    let expected = json!({
        "size": 4,
        "cleanupPods": true,
        "flux": {
            "container": { "disable": true, "name": "flux-view", "mountPath": "/mnt/flux" },
            "submitCommand": "flux submit", "logLevel": 6, "connectTimeout": "5s",
        },
        "pod": { "automountServiceAccountToken": true },
        "containers": [{ "image": "app:1", "command": "work", "fluxUser": { "name": "flux" } }],
    });
    assert_eq!(newer, expected);
    assert_eq!(v1alpha1(newer), spec);
}

#[test]
fn without_a_command_v1alpha1_serves_the_restful_api() {
    let serves = |spec: Value| v1alpha2(spec).get("fluxRestful").cloned();
    // The default port is left out, so that conversion back recognises the block, and removes it.
    assert_eq!(
        serves(json!({ "containers": [{}] })),
        Some(json!({ "branch": "main" }))
    );
    assert_eq!(serves(json!({ "interactive": true, "containers": [{}] })), None);
    assert_eq!(serves(json!({ "containers": [{ "diagnostics": true }] })), None);
    assert_eq!(serves(json!({ "containers": [{ "command": "work" }] })), None);
    assert_eq!(
        serves(json!({ "containers": [{ "commands": { "script": "work" } }] })),
        None
    );
    let elsewhere = json!({ "leadBroker": { "address": "a" } });
    assert_eq!(
        serves(json!({ "flux": { "bursting": elsewhere }, "containers": [{}] })),
        None
    );
    assert_eq!(serves(json!({ "flux": elsewhere, "containers": [{}] })), None);
    let sidecar = json!({ "containers": [{ "name": "db" }, { "runFlux": true, "command": "work" }] });
    assert_eq!(serves(sidecar), None);
    let port = json!({ "fluxRestful": { "port": 80 }, "containers": [{}] });
    assert_eq!(serves(port), Some(json!({ "port": 80, "branch": "main" })));
}

#[test]
fn sidecars_of_v1alpha1_do_not_wait_for_the_broker() {
    let containers = json!([{ "runFlux": true, "command": "a" }, { "name": "b", "command": "c" }]);
    let waits = |spec: Value| v1alpha2(spec)["flux"].get("noWaitSocket") != Some(&json!(true));
    for (flux, is_awaited) in [
        (Value::Null, false),
        (json!({ "container": {} }), false),
        (json!({ "container": { "image": "view" } }), false),
        (json!({ "noWaitSocket": true }), false),
        (json!({ "noWaitSocket": false }), true),
    ] {
        let spec = json!({ "flux": flux, "containers": containers });
        assert_eq!(waits(spec.clone()), is_awaited, "{flux}");
        // What v1alpha2 has written is read in v1alpha1, and written back unchanged.
        let newer = v1alpha2(spec);
        assert_eq!(v1alpha2(v1alpha1(newer.clone())), newer, "{flux}");
    }
    for flux in [
        Value::Null,
        json!({ "noWaitSocket": true }),
        json!({ "container": { "image": "view" } }),
    ] {
        let spec = json!({ "flux": flux, "containers": containers });
        let awaits = flux.get("noWaitSocket").is_none();
        let older = v1alpha1(spec.clone());
        assert_eq!(older["flux"].get("noWaitSocket"), awaits.then_some(&json!(false)));
        assert_eq!(waits(older), awaits, "{flux}");
    }
}

#[test]
fn v1alpha2_defaults_are_explicit_in_v1alpha1() {
    let spec = json!({ "size": 1, "tasks": 1, "containers": [{ "image": "app:1" }] });
    let older = v1alpha1(spec.clone());
    assert_eq!(
        older["flux"]["container"],
        json!({ "name": "flux-view", "mountPath": "/mnt/flux" })
    );
    assert_eq!(older["pod"], json!({ "automountServiceAccountToken": false }));
    assert_eq!(older["fluxRestful"]["disable"], true);
    assert_eq!(older["containers"][0]["fluxUser"]["disable"], true);
    assert_eq!(older["cleanup"], false);
    assert_eq!(v1alpha2(older), spec);
}

#[test]
fn explicit_defaults_and_unknown_fields_pass_through() {
    let spec = json!({
        "size": 1, "cleanup": true, "interactive": false, "unknown": { "a": [1, null] },
        "flux": { "installRoot": "/usr", "submitCommand": "flux submit", "logLevel": 6, "connectTimeout": "5s" },
        "fluxRestful": { "branch": "main", "port": 5000 },
        "containers": [{
            "image": "a", "fluxUser": { "name": "flux", "uid": 1000 },
            "resources": { "limits": { "cpu": 4 } }, "securityContext": { "addCapabilities": ["SYS_PTRACE"] },
        }],
    });
    assert_eq!(v1alpha1(v1alpha2(spec.clone())), spec);
}

fn object(version: Version, spec: Value) -> Value {
    let metadata = json!({ "name": "a", "annotations": { "b": "c" } });
    json!({ "kind": "MiniCluster", "apiVersion": version.api_version(), "metadata": metadata, "spec": spec })
}

#[test]
fn explicit_defaults_of_v1alpha2_survive_an_edit_as_v1alpha1() {
    let stored = object(
        Version::V1alpha2,
        json!({
            "size": 1, "cleanupPods": false, "pod": { "automountServiceAccountToken": false },
            "fluxRestful": { "port": 80 }, "containers": [{ "fluxUser": { "name": "me" } }],
        }),
    );
    let read = convert(stored.clone(), Version::V1alpha1).unwrap();
    assert_eq!(read["spec"]["fluxRestful"]["branch"], "main");
    assert_eq!(convert(read.clone(), Version::V1alpha2).unwrap(), stored);

    let mut edited = read.clone();
    edited["spec"]["size"] = json!(2);
    let mut expected = stored.clone();
    expected["spec"]["size"] = json!(2);
    assert_eq!(convert(edited, Version::V1alpha2).unwrap(), expected);

    let mut edited = read;
    edited["spec"]["fluxRestful"]["branch"] = json!("other");
    let written = convert(edited, Version::V1alpha2).unwrap();
    assert_eq!(
        written["spec"]["fluxRestful"],
        json!({ "port": 80, "branch": "other" })
    );
    assert_eq!(written["metadata"], stored["metadata"]);
}

#[test]
fn annotations_stay_within_the_api_servers_limit() {
    let mut stored = object(
        Version::V1alpha2,
        json!({ "cleanupPods": false, "containers": [{}] }),
    );
    // All annotations together may have 256 KiB: there is no room to record that `cleanupPods: false` was written.
    stored["metadata"]["annotations"]["b"] = json!("c".repeat((256 << 10) - 2));
    let read = convert(stored.clone(), Version::V1alpha1).unwrap();
    assert_eq!(read["metadata"], stored["metadata"]);
    let written = convert(read, Version::V1alpha2).unwrap();
    assert_eq!(written["spec"].get("cleanupPods"), None);
}

#[test]
fn only_a_minicluster_of_a_known_version_is_converted() {
    assert_eq!(convert(json!([]), Version::V1alpha1), Err(ConvertError::NoObject));
    assert_eq!(
        convert(json!({ "kind": "Pod" }), Version::V1alpha1),
        Err(ConvertError::Kind("Pod".into()))
    );
    let unknown = json!({ "kind": "MiniCluster", "apiVersion": "flux-framework.org/v1" });
    let version = ConvertError::Version("flux-framework.org/v1".into());
    assert_eq!(convert(unknown, Version::V1alpha1), Err(version));
}

#[test]
fn metadata_is_untouched_and_the_status_has_its_jobid() {
    let object = json!({
        "kind": "MiniCluster", "apiVersion": "flux-framework.org/v1alpha2",
        "metadata": { "name": "a", "annotations": { "b": "c" }, "generation": 3 },
        "status": { "size": 2, "phase": "Running" },
    });
    let older = convert(object.clone(), Version::V1alpha1).unwrap();
    assert_eq!(older["apiVersion"], "flux-framework.org/v1alpha1");
    assert_eq!(older["metadata"], object["metadata"]);
    assert_eq!(
        older["status"],
        json!({ "size": 2, "phase": "Running", "jobid": "" })
    );
    assert_eq!(convert(older, Version::V1alpha2).unwrap(), object);
}

proptest::proptest! {
    #[test]
    fn value_of_any_type_is_converted_without_panic(text in r#"\{"(flux|pod|containers|fluxRestful)": (null|1|"a"|\[\]|\[1\]|\{\}|\[\{"fluxUser": 1\}\])\}"#) {
        let value: Value = serde_json::from_str(&text).unwrap();
        let _ = v1alpha1(value.clone());
        let _ = v1alpha2(value);
    }
}
