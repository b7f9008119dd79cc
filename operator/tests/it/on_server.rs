//! `flux-operator validate --server`. (The plugin's tests cover its output in each case:
//! kubectl/tests/it/server.rs.)

use std::process::Command;

use k8s_openapi::api::batch::v1::Job;
use serde_json::{Value, json};

use test_support::api_server::{kubeconfig, test};

#[test]
fn validate_asks_the_api_server_only_with_option_server() {
    test("overlay-validate", async |fixture| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mc.yaml");
        let validate = |overlay: Value, arguments: &[&str]| {
            let document = json!({
                "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
                "metadata": { "name": "mc", "namespace": fixture.namespace }, "spec": { "containers": [{ "image": "app:1", "command": "hostname" }], "podTemplate": overlay },
            });
            std::fs::write(&file, document.to_string()).unwrap();
            let mut command = Command::new(env!("CARGO_BIN_EXE_flux-operator"));
            command
                .arg("validate")
                .args(arguments)
                .arg(&file)
                .env("KUBECONFIG", kubeconfig());
            let output = command.output().unwrap();
            let text = |bytes| String::from_utf8(bytes).unwrap();
            (
                output.status.code().unwrap(),
                text(output.stdout),
                text(output.stderr),
            )
        };
        let wrong = json!({ "spec": { "hostNetwrok": true } });
        assert_eq!(
            validate(wrong.clone(), &[]).0,
            0,
            "nobody but the API server knows"
        );
        let (code, _, message) = validate(wrong, &["--server"]);
        let wanted = "spec.podTemplate: the API server rejects the pods with this overlay: strict decoding error: unknown field \"spec.podTemplate.spec.hostNetwrok\"\n";
        assert_eq!((code, message.as_str()), (1, wanted));
        let (code, message, _) = validate(json!({ "spec": { "hostNetwork": true } }), &["--server"]);
        assert!(
            code == 0 && message.ends_with("the API server would accept MiniCluster mc: MiniCluster, Job\n"),
            "{message}"
        );
        assert!(fixture.all::<Job>().await.is_empty(), "nothing is created");
    });
}
