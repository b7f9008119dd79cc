//! `validate --server`: the API server checks a file with the rights of the caller.

use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::batch::v1::Job;
use serde_json::{Value, json};

use crate::user_account::{PluginOutput, RIGHTS, UserAccount};
use crate::user_with;
use test_support::api_server::{Fixture, test};

/// A MiniCluster with these fields in its spec.
fn document(more: Value) -> String {
    let mut spec =
        json!({ "size": 2, "containers": [{ "name": "app", "image": "app:1", "command": "hostname" }] });
    spec.as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    json!({ "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": { "name": "mc" }, "spec": spec })
        .to_string()
        + "\n"
}

async fn validate_on_server(person: &UserAccount, text: &str, more: &[&str]) -> PluginOutput {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mc.yaml");
    std::fs::write(&file, text).unwrap();
    person
        .run(&[&["validate", "--server", file.to_str().unwrap()], more].concat())
        .await
}

fn author(fixture: &Fixture) -> UserAccount {
    let rights = [RIGHTS, &[("jobs.batch", "create")]].concat();
    user_with(fixture, "author", &rights)
}

#[test]
fn server_validation_tries_minicluster_and_job_without_creating() {
    test("server", async |fixture| {
        let person = author(&fixture);
        let output = validate_on_server(&person, &document(json!({})), &[]).await;
        assert_eq!((output.code, output.err.as_str()), (0, ""), "{output:?}");
        assert!(
            output.out.ends_with(
                "MiniCluster mc is valid\nthe API server would accept MiniCluster mc: MiniCluster, Job\n"
            ),
            "{output:?}"
        );
        // The API server leaves out empty values, such as this class name. That is no problem of the overlay.
        let overlay = json!({ "podTemplate": { "spec": { "hostNetwork": true, "priorityClassName": "" } } });
        let output = validate_on_server(&person, &document(overlay), &[]).await;
        assert_eq!(output.code, 0, "{output:?}");
        assert!(fixture.all::<MiniCluster>().await.is_empty());
        assert!(fixture.all::<Job>().await.is_empty());
    });
}

/// No pod of the Job could be created: the MiniCluster would wait for its pods.
#[test]
fn server_validation_prints_the_api_servers_warnings() {
    test("server-warns", async |fixture| {
        let person = author(&fixture);
        let namespace = &fixture.namespace;
        let level = "pod-security.kubernetes.io/enforce=restricted";
        fixture
            .kubectl(&["label", "namespace", namespace, level])
            .unwrap();
        let wanted =
            "the API server's warning about the Job: would violate PodSecurity \"restricted:latest\": ";
        let output = validate_on_server(&person, &document(json!({})), &[]).await;
        assert_eq!((output.code, output.err.as_str()), (0, ""), "{output:?}");
        assert!(output.out.contains(&format!("note: {wanted}")), "{output:?}");
        let json = validate_on_server(&person, &document(json!({})), &["-o", "json"]).await;
        let found: Value = serde_json::from_str(&json.out).unwrap();
        let notes = found["miniclusters"][0]["notes"].as_array().unwrap();
        let is_wanted = |note: &Value| note["message"].as_str().unwrap().starts_with(wanted);
        assert_eq!(notes.iter().filter(|note| is_wanted(note)).count(), 1, "{json:?}");
    });
}

#[test]
fn overlay_error_has_the_api_servers_words_and_field() {
    test("server-wrong", async |fixture| {
        let person = author(&fixture);
        for (overlay, wanted) in [
            (
                json!({ "spec": { "hostNetwrok": true } }),
                "unknown field \"spec.podTemplate.spec.hostNetwrok\"",
            ),
            (
                json!({ "spec": { "containers": [{ "name": "app", "env": [{ "name": "A", "vaule": "1" }] }] } }),
                "unknown field \"spec.podTemplate.spec.containers[0].env[0].vaule\"",
            ),
            (
                json!({ "spec": { "nodeSelector": { "a b": "c" } } }),
                "spec.podTemplate.spec.nodeSelector",
            ),
        ] {
            let text = document(json!({ "podTemplate": overlay }));
            let output = validate_on_server(&person, &text, &[]).await;
            assert_eq!((output.code, output.out.as_str()), (1, ""), "{output:?}");
            assert!(
                output
                    .err
                    .contains("spec.podTemplate: the API server rejects the pods with this overlay: "),
                "{output:?}"
            );
            assert!(output.err.contains(wanted), "{wanted}: {output:?}");
            let json = validate_on_server(&person, &text, &["-o", "json"]).await;
            let found: Value = serde_json::from_str(&json.out).unwrap();
            assert_eq!(
                (json.code, &found["problems"][0]["field"]),
                (1, &json!("spec.podTemplate")),
                "{json:?}"
            );
            assert_eq!(found["miniclusters"][0]["checked"], json!(["MiniCluster", "Job"]));
        }
        // `validate` without the API server does not find this error.
        let text = document(json!({ "podTemplate": { "spec": { "hostNetwrok": true } } }));
        assert!(flux_operator_core::offline::judge(&text).text().is_ok());
    });
}

#[test]
fn server_validation_reports_forbidden_checks_as_unchecked() {
    test("server-rights", async |fixture| {
        // This user may not create Jobs, so no dry run of the Job finds the misspelled field.
        let person = crate::user_of(&fixture);
        let text = document(json!({ "podTemplate": { "spec": { "hostNetwrok": true } } }));
        let output = validate_on_server(&person, &text, &[]).await;
        assert_eq!(output.code, 0, "{output:?}");
        assert!(
            output
                .out
                .contains("the API server would accept MiniCluster mc: MiniCluster\n"),
            "{output:?}"
        );
        assert!(
            output
                .out
                .contains("\nnot checked: its Job: jobs.batch is forbidden: "),
            "{output:?}"
        );
        let json = validate_on_server(&person, &text, &["-o", "json"]).await;
        let found: Value = serde_json::from_str(&json.out).unwrap();
        assert_eq!(
            found["miniclusters"][0]["unchecked"].as_array().unwrap().len(),
            1,
            "{json:?}"
        );
    });
}

#[test]
fn the_minicluster_itself_is_judged_as_on_creation() {
    test("server-itself", async |fixture| {
        let person = author(&fixture);
        let finalizers =
            document(json!({})).replace("\"name\":\"mc\"}", "\"name\":\"mc\",\"finalizers\":[\"a b\"]}");
        let output = validate_on_server(&person, &finalizers, &[]).await;
        assert!(
            output.code == 1 && output.err.contains("metadata.finalizers") && output.err.contains("a b"),
            "{output:?}"
        );
        // Errors that `validate` finds itself need no API server.
        let output = validate_on_server(&person, &document(json!({ "size": 0 })), &[]).await;
        assert!(
            output.code == 1 && output.err == "spec.size: must be 1 to 10000\n",
            "{output:?}"
        );
        fixture.create("mc", json!({})).await;
        let output = validate_on_server(&person, &document(json!({})), &[]).await;
        assert!(
            output.code == 0 && output.out.contains("a MiniCluster of this name exists"),
            "{output:?}"
        );
        let nowhere = document(json!({})).replace("\"name\":\"mc\"}", "\"name\":\"mc\",\"namespace\":\"\"}");
        let output = validate_on_server(&person, &nowhere, &[]).await;
        assert_eq!(output.code, 0, "{output:?}");
        let elsewhere =
            document(json!({})).replace("\"name\":\"mc\"}", "\"name\":\"mc\",\"namespace\":\"elsewhere\"}");
        let output = validate_on_server(&person, &elsewhere, &[]).await;
        assert!(
            output.code == 1
                && output
                    .err
                    .contains("metadata.namespace: is elsewhere, and --namespace is"),
            "{output:?}"
        );
    });
}
