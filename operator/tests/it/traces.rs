//! Traces, by a collector that keeps what it is sent.

use flux_shared::agent_spec::AgentSpec;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::json;
use test_support::api_server::{Calls, test};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// What it costs without an endpoint: nothing. (`quiet.rs` counts the calls.)
#[test]
fn the_end_of_a_traced_cluster_is_the_root_of_its_trace() {
    test("traced", async |fixture| {
        let collector = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let endpoint = format!("http://{}", collector.local_addr().unwrap());
        let operator = fixture.operator_of(Calls::default(), |settings| {
            settings.options.traces = Some(endpoint.parse().unwrap())
        });
        let _operator = operator.await;
        fixture.create("mc", json!({ "size": 1 })).await.unwrap();
        let pods = fixture.pods("mc", 1).await;
        let config: ConfigMap = fixture.api().get("mc-agent").await.unwrap();
        let spec = AgentSpec::from_toml(&config.data.unwrap()["agent.toml"]).unwrap();
        let trace = spec.trace.unwrap();
        assert_eq!(trace.endpoint.to_string(), endpoint);

        fixture.run_pod(&pods[&0]).await;
        fixture.when_condition("mc", "Ready", "True").await;
        fixture.end_pod(&pods[&0], 7, "Error", "").await;
        let mut request = String::new();
        let (mut connection, _) = collector.accept().await.unwrap();
        while !request.ends_with("]}]}") {
            let mut part = vec![0; 1 << 14];
            let read = connection.read(&mut part).await.unwrap();
            request += std::str::from_utf8(&part[..read]).unwrap();
        }
        connection
            .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
            .await
            .unwrap();
        let body: serde_json::Value =
            serde_json::from_str(request.split_once("\r\n\r\n").unwrap().1).unwrap();
        let spans = body["resourceSpans"][0]["scopeSpans"][0]["spans"]
            .as_array()
            .unwrap();
        let root = &spans[0];
        assert_eq!(root["name"], format!("MiniCluster {}/mc", fixture.namespace));
        let id = |field: &str| root[field].as_str().unwrap().to_owned();
        assert_eq!(
            format!("00-{}-{}-01", id("traceId"), id("spanId")),
            trace.parent.to_string(),
            "the pods' spans are below it"
        );
        let names: Vec<_> = spans[1..]
            .iter()
            .map(|span| span["name"].as_str().unwrap())
            .collect();
        assert_eq!(
            names,
            [
                "create the Job",
                "schedule the pods",
                "start the lead",
                "connect the brokers",
                "job"
            ]
        );
    });
}
