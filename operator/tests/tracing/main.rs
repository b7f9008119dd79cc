//! Traces on a node where pods really run, with an OpenTelemetry Collector (`make e2e-tracing`): what the
//! operator sends about itself and about the pods' agents is one trace.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::collections::BTreeMap;

use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::core::v1::Pod;
use kube::api::LogParams;
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use test_support::node::{Fixture, app_image, list, test};

const EXAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/tracing");
/// Spans of the operator, below the root. The operator sends one for each step that it saw: all of them if the job
/// takes seconds, fewer if the job ends immediately.
const STEPS: [&str; 5] = [
    "create the Job",
    "schedule the pods",
    "start the lead",
    "connect the brokers",
    "job",
];
/// Stages of any pod that its agent leaves in the termination message.
const STAGES: [&str; 4] = ["install", "plan", "config", "broker"];

/// A span, as the Collector writes it into its log: the values by their names.
type Span = BTreeMap<String, String>;

/// All spans that the Collector has received.
async fn spans(fixture: &Fixture) -> Vec<Span> {
    let pods: Api<Pod> = Api::namespaced(fixture.client.clone(), "observability");
    let collector = list(&pods, "app=collector").await.remove(0);
    let log = pods
        .logs(&collector.name_any(), &LogParams::default())
        .await
        .unwrap();
    let mut spans: Vec<Span> = Vec::new();
    for line in log.lines() {
        if line.starts_with("Span #") {
            spans.push(Span::new());
        } else if let (Some(span), Some((name, value))) = (spans.last_mut(), line.split_once(':')) {
            // After the last span of a resource, the lines of the next resource follow, with the same names. So only
            // the first line with a name is the span's.
            span.entry(name.trim().to_owned())
                .or_insert_with(|| value.trim().to_owned());
        }
    }
    spans
}

async fn create(fixture: &Fixture, name: &str, command: Option<&str>) -> MiniCluster {
    let text = std::fs::read_to_string(format!("{EXAMPLE}/minicluster.yaml")).unwrap();
    let mut example: Value = serde_saphyr::from_str(&text).unwrap();
    example["metadata"]["name"] = json!(name);
    example["spec"]["containers"][0]["image"] = json!(app_image());
    if let Some(command) = command {
        example["spec"]["containers"][0]["command"] = json!(command);
    }
    fixture.create_object::<MiniCluster>(example).await
}

/// The spans of a MiniCluster's trace, once its root and those of both pods have arrived.
async fn trace_of(fixture: &Fixture, cluster: &MiniCluster) -> Vec<Span> {
    // The ID of a MiniCluster's trace is made from its uid.
    let id = cluster.uid().unwrap().replace('-', "");
    let root = format!("MiniCluster {}/{}", fixture.namespace, cluster.name_any());
    fixture
        .until(&format!("the trace of {}", cluster.name_any()), async || {
            let spans: Vec<Span> = spans(fixture)
                .await
                .into_iter()
                .filter(|span| span.get("Trace ID") == Some(&id))
                .collect();
            let has = |name: &str| {
                spans
                    .iter()
                    .any(|span| span.get("Name").is_some_and(|value| value == name))
            };
            (has(&root) && has("pod 0") && has("pod 1")).then_some(spans)
        })
        .await
}

fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let mut all = spans.iter().filter(|span| span["Name"] == name);
    let first = all.next().unwrap_or_else(|| panic!("no span {name}: {spans:#?}"));
    assert!(all.next().is_none(), "two spans {name}: {spans:#?}");
    first
}

#[test]
fn spans_of_operator_and_pods_are_one_trace() {
    test("tracing", async |fixture| {
        let cluster = create(&fixture, "tracing", None).await;
        fixture.when_condition("tracing", "Complete").await;
        let spans = trace_of(&fixture, &cluster).await;
        let root = named(&spans, &format!("MiniCluster {}/tracing", fixture.namespace));
        assert_eq!(root["Parent ID"], "");
        // The example's program ends immediately, so the operator may not have seen the other steps.
        assert_eq!(named(&spans, STEPS[0])["Parent ID"], root["ID"]);
        for index in 0..2 {
            let pod = named(&spans, &format!("pod {index}"));
            assert_eq!(pod["Parent ID"], root["ID"]);
            let stages: Vec<&str> = spans
                .iter()
                .filter(|span| span["Parent ID"] == pod["ID"])
                .map(|span| span["Name"].as_str())
                .collect();
            for stage in STAGES {
                assert!(stages.contains(&stage), "pod {index} has no {stage}: {stages:?}");
            }
            // The operator's times are in whole seconds.
            assert!(
                pod["Start time"][..19] >= root["Start time"][..19],
                "{pod:#?} {root:#?}"
            );
        }
        // Every span but the root has its parent in the trace.
        for span in &spans {
            let parent = &span["Parent ID"];
            assert!(
                parent.is_empty() || spans.iter().any(|other| other["ID"] == *parent),
                "{span:#?}"
            );
        }

        // The example's program prints its TRACEPARENT, which names the root.
        let log = fixture.lead_log("tracing").await;
        let traceparent = format!("00-{}-{}-01", root["Trace ID"], root["ID"]);
        assert!(
            log.lines().any(|line| line == traceparent),
            "{traceparent}: {log}"
        );
        let readme = std::fs::read_to_string(format!("{EXAMPLE}/README.md")).unwrap();
        let shown = readme
            .lines()
            .filter_map(|line| line.trim().strip_prefix("Name           : "));
        assert!(shown.clone().next().is_some(), "the README shows no span");
        for name in shown.map(|name| name.replace("default/", &format!("{}/", fixture.namespace))) {
            assert!(
                spans.iter().any(|span| span["Name"] == name),
                "the README shows {name}: {spans:#?}"
            );
        }
    });
}

#[test]
fn trace_of_a_failed_run_has_every_step_and_the_exit_code() {
    test("tracing-fails", async |fixture| {
        let cluster = create(&fixture, "fails", Some("sh -c 'sleep 5; exit 7'")).await;
        fixture.when_condition("fails", "Failed").await;
        let spans = trace_of(&fixture, &cluster).await;
        let root = format!("MiniCluster {}/fails", fixture.namespace);
        for step in STEPS {
            // A pod's stage may have the same name, as `job` has.
            let below = spans
                .iter()
                .filter(|span| span["Name"] == step && span["Parent ID"] == named(&spans, &root)["ID"])
                .count();
            assert_eq!(below, 1, "{step}: {spans:#?}");
        }
        for name in [root, "pod 0".to_owned()] {
            let span = named(&spans, &name);
            assert_eq!(span["Status code"], "Error", "{span:#?}");
            assert_eq!(span["-> process.exit.code"], "Int(7)", "{span:#?}");
        }
    });
}
