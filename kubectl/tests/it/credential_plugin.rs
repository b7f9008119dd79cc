//! A kubeconfig with a credential plugin that fails, as `aws eks get-token` does after the end of the SSO session.

use http::Method;
use serde_json::json;

use crate::no_answer::Silent;
use crate::user_account::read_until;

const SECRETS: [&str; 2] = ["secret-of-the-arguments", "secret-of-the-environment"];

/// The token that it prints has already expired, so that each call needs another one. It fails or hangs if there is
/// a file of this name.
const PLUGIN: &str = r#"
[ ! -e "$0.hangs" ] || exec sleep 30
[ ! -e "$0.fails" ] || { echo 'the SSO session has expired' >&2; exit 3; }
echo '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
    "status": {"token": "t", "expirationTimestamp": "2020-01-01T00:00:00Z"}}'
"#;

/// Has the user of `silent` log in with a program.
fn log_in_by(silent: &Silent, command: &str) {
    let path = &silent.person.kubeconfig;
    let mut kubeconfig: serde_json::Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let script = path.with_file_name("plugin");
    std::fs::write(&script, PLUGIN).unwrap();
    kubeconfig["users"][0]["user"] = json!({ "exec": {
        "apiVersion": "client.authentication.k8s.io/v1", "command": command, "args": [script, SECRETS[0]],
        "env": [{ "name": "CLIENT_SECRET", "value": SECRETS[1] }], "installHint": "Install it from there",
        "interactiveMode": "Never",
    } });
    std::fs::write(path, kubeconfig.to_string()).unwrap();
}

/// Makes the plugin fail or hang.
fn make(silent: &Silent, outcome: &str) {
    std::fs::write(
        silent
            .person
            .kubeconfig
            .with_file_name(format!("plugin.{outcome}")),
        "",
    )
    .unwrap();
}

fn assert_no_secrets(text: &str) {
    for secret in SECRETS {
        assert!(!text.contains(secret), "{text}");
    }
}

#[tokio::test]
async fn failed_login_is_reported_without_secrets() {
    let silent = Silent::start(&[]).await;
    make(&silent, "fails");
    for (command, expected) in [
        (
            "sh",
            "failed to log in: the credential plugin sh failed (exit status: 3): the SSO session has expired. Log in \
             again\n",
        ),
        (
            "/missing/plugin",
            "failed to log in: failed to run the credential plugin /missing/plugin: No such file or directory (os \
             error 2). Install it from there\n",
        ),
    ] {
        log_in_by(&silent, command);
        let output = silent.person.run(&["list"]).await;
        assert_no_secrets(&output.err);
        assert_eq!((output.code, output.err.as_str()), (1, expected));
    }
}

#[tokio::test]
async fn failed_refresh_is_reported_without_secrets() {
    let silent = Silent::start(&[Method::POST, Method::GET]).await;
    log_in_by(&silent, "sh");
    let (mut run, mut err) = silent.run();
    let mut text = read_until(&mut err, "no events from the API server").await;
    make(&silent, "fails");
    text += &read_until(&mut err, "the credential plugin sh failed (exit status: 3)").await;
    assert!(
        text.contains("the SSO session has expired. Log in again"),
        "{text}"
    );
    assert_no_secrets(&text);
    run.kill().await.unwrap();
}

#[tokio::test]
async fn wait_times_out_while_the_credential_plugin_hangs() {
    let silent = Silent::start(&[]).await;
    log_in_by(&silent, "sh");
    make(&silent, "hangs");
    let begin = std::time::Instant::now();
    let output = silent.person.run(&["wait", "mc", "--timeout", "1"]).await;
    assert_eq!(output.code, 124, "{output:?}");
    assert!(begin.elapsed().as_secs() < 15, "{:?}", begin.elapsed());
}
