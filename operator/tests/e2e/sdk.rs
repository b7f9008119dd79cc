//! The Go operator's Python SDK from PyPI, in running pods: the part that needs a kubelet. The rest is in
//! `tests/it/sdk.rs`.

use flux_shared::crd::v1alpha2::MiniCluster;
use serde_json::{Value, json};
use test_support::node::test;
use test_support::sdk;

#[test]
fn python_sdk_of_the_go_operator_streams_executes_and_forwards() {
    test("sdk", async |fixture| {
        let speaks = "sh -c 'echo starts; sleep 2; echo ends'";
        let prints =
            json!({ "command": speaks, "commands": { "pre": "echo hello of $JOB_COMPLETION_INDEX" } });
        fixture.create("speaks", 2, prints).await;
        fixture.create("stays", 2, json!({})).await;
        fixture.when_condition("stays", "Ready").await;
        let namespace = fixture.namespace.clone();
        let kubeconfig = std::env::var_os("KUBECONFIG").expect("KUBECONFIG must name a cluster");
        let program = move || sdk::run("in_pods.py", &namespace, kubeconfig.as_ref());
        let steps = tokio::task::spawn_blocking(program).await.unwrap();

        let streamed = steps.object("streamed");
        let lines = texts(&streamed["lines"]);
        assert_eq!(lines, texts(&streamed["file"]), "the file has what is returned");
        let job: Vec<&&str> = lines
            .iter()
            .filter(|line| ["starts", "ends"].contains(*line))
            .collect();
        assert_eq!(job, [&"starts", &"ends"], "{lines:#?}");
        let follower = texts(steps.object("streamed of a follower"));
        let hello = follower.iter().find(|line| line.ends_with(" hello of 1"));
        let hello = hello.unwrap_or_else(|| panic!("{follower:#?}"));
        assert!(
            hello.starts_with("20") && hello.contains('T'),
            "each line has its time: {hello}"
        );

        // `in_pods.py` asks for the instance's size, runs a command that prints and then fails, and serves a page.
        assert_eq!(steps.object("executed").as_str().unwrap().trim(), "2");
        assert_eq!(steps.object("failed").as_str().unwrap().trim(), "before");
        assert_eq!(steps.object("forwarded").as_str().unwrap().trim(), "served");
        assert!(steps.object("deleted")["delete"].is_number());
        assert!(
            fixture
                .api::<MiniCluster>()
                .get_opt("stays")
                .await
                .unwrap()
                .is_none()
        );
    });
}

fn texts(lines: &Value) -> Vec<&str> {
    lines
        .as_array()
        .unwrap()
        .iter()
        .map(|line| line.as_str().unwrap())
        .collect()
}
