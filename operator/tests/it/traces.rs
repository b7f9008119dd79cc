//! Traces, with a collector that keeps what it receives.

use std::collections::BTreeMap;

use flux_operator_core::labels;
use flux_shared::agent_spec::AgentSpec;
use flux_shared::termination::{Ender, Termination};
use flux_shared::timeline::{self, PodTimeline, Stage};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message;
use serde_json::json;
use test_support::api_server::{Calls, test, until};
use test_support::collector::{CLOSING, Collector};

/// All spans that the collector has received.
fn spans(collector: &Collector) -> Vec<Span> {
    let mut spans = Vec::new();
    for body in collector.bodies() {
        let request = ExportTraceServiceRequest::decode(&body[..]).unwrap();
        let resources = request.resource_spans.into_iter();
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        spans.extend(scopes.flat_map(|scope| scope.spans));
    }
    spans
}

/// The termination message of an agent that ran for three seconds. Its times are in microseconds.
fn message(host: &str, role: &str, code: u8) -> String {
    let timeline = PodTimeline {
        version: timeline::VERSION,
        host: host.to_owned(),
        role: role.to_owned(),
        started: 1_764_176_988_123_456,
        lasted: 3_000_000,
        stages: vec![Stage {
            name: "plan".into(),
            start: 0,
            lasted: 250_000,
        }],
    };
    Termination::new(Ender::Program, code).encode_with(&timeline)
}

/// Here the operator has an endpoint. The tests in `quiet.rs` count the calls of an operator without one.
#[test]
fn traced_cluster_and_its_pods_are_one_trace_when_they_end() {
    test("traced", async |fixture| {
        // Each of its answers closes the connection, as answers of servers may.
        let collector = Collector::start(Some(CLOSING));
        let operator = fixture.operator_of(Calls::default(), |settings| {
            settings.options.traces = Some(collector.endpoint().parse().unwrap())
        });
        let _operator = operator.await;
        fixture.create("mc", json!({ "size": 2 })).await;
        let pods = fixture.pods("mc", 2).await;
        let config: ConfigMap = fixture.api().get("mc-agent").await.unwrap();
        let spec = AgentSpec::from_toml(&config.data.unwrap()["agent.toml"]).unwrap();
        let parent = spec.trace.unwrap().parent.to_string();
        assert_eq!(pods[&1].annotations()[labels::TRACE], parent);

        for pod in pods.values() {
            fixture.run_pod(pod).await;
        }
        fixture.when_condition("mc", "Ready", "True").await;
        fixture
            .end_pod(&pods[&1], 0, "Completed", &message("mc-1", "follower", 0))
            .await;
        fixture
            .end_pod(&pods[&0], 7, "Error", &message("mc-0", "lead", 7))
            .await;
        fixture.when_condition("mc", "Failed", "True").await;
        let root = format!("MiniCluster {}/mc", fixture.namespace);
        let all = until("the spans of all", async || {
            let spans = spans(&collector);
            let names = [root.as_str(), "pod 0", "pod 1"];
            names
                .iter()
                .all(|name| spans.iter().any(|span| span.name == *name))
                .then_some(spans)
        })
        .await;
        // Nothing is sent twice. The pause is longer than the second for which spans wait for their batch.
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        assert_eq!(spans(&collector), all);

        let named = |name: &str| all.iter().find(|span| span.name == name).unwrap();
        let root = named(&root);
        let hex = |id: &[u8]| id.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        assert_eq!(
            format!("00-{}-{}-01", hex(&root.trace_id), hex(&root.span_id)),
            parent
        );
        assert!(all.iter().all(|span| span.trace_id == root.trace_id), "{all:#?}");
        let mut below: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for span in &all {
            below
                .entry(hex(&span.parent_span_id))
                .or_default()
                .push(&span.name);
        }
        let mut steps = below[&hex(&root.span_id)].clone();
        steps.sort_unstable();
        assert_eq!(
            steps,
            [
                "connect the brokers",
                "create the Job",
                "job",
                "pod 0",
                "pod 1",
                "schedule the pods",
                "start the lead",
            ]
        );
        for name in ["pod 0", "pod 1"] {
            let pod = named(name);
            assert_eq!(below[&hex(&pod.span_id)], ["plan"], "{name}");
            assert_eq!(pod.end_time_unix_nano - pod.start_time_unix_nano, 3_000_000_000);
        }
    });
}
