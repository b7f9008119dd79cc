//! What is measured, what alerts fire on, and what the dashboard shows: checked against the table of metric
//! families, by promtool, and by a real Prometheus, in which a fault must fire each alert once.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use flux_operator::api::lease::Candidate;
use flux_operator::health::families::{ALL, Kind};
use k8s_openapi::api::coordination::v1::Lease;
use rcgen::CertificateParams;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;

use crate::prometheus::{Prometheus, free_address, get, promtool, promtool_passes, rule_groups};
use crate::webhook::{Webhook, review};
use test_support::api_server::{
    Call, Calls, Fault, Fixture, Operator, apply, assert_message, operator_kubeconfig, runtime, test, until,
};
use test_support::installation::NAMESPACE;
use test_support::monitoring::{alerts, panels};
use test_support::repository::repository;

/// What the expressions use: metrics, and labels.
#[derive(Default)]
struct Words {
    metrics: BTreeSet<String>,
    labels: BTreeSet<String>,
}

/// The names in an expression. Names in braces and after `by`, `on` and `group_left` are labels; a name
/// before `(` is a function. Every other name with `_` is a metric: operators such as `and` have none.
fn words(expression: &str) -> Words {
    let mut words = Words::default();
    let outside: String = expression.split('"').step_by(2).collect::<Vec<_>>().join("\"\"");
    let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | '$');
    let (mut depth_of_labels, mut rest) = (0, outside.as_str());
    let mut last = "";
    while let Some(first) = rest.chars().next() {
        if is_name(first) {
            let end = rest.find(|c: char| !is_name(c)).unwrap_or(rest.len());
            let name = &rest[..end];
            rest = &rest[end..];
            let is_called = rest.trim_start().starts_with('(');
            if depth_of_labels > 0 {
                words.labels.insert(name.to_owned());
            } else if !is_called && first.is_ascii_alphabetic() && name.contains('_') {
                words.metrics.insert(name.to_owned());
            }
            last = name;
            continue;
        }
        match first {
            '{' => depth_of_labels += 1,
            '(' if matches!(last, "by" | "on" | "group_left") => depth_of_labels += 1,
            '}' => depth_of_labels -= 1,
            ')' if depth_of_labels > 0 => depth_of_labels -= 1,
            // Skips a range.
            '[' => rest = &rest[rest.find(']').unwrap()..],
            _ => {}
        }
        if first != ' ' {
            last = "";
        }
        rest = &rest[1..];
    }
    words
}

/// The metric family that a series belongs to.
fn family_of(series: &str) -> Option<&'static flux_operator::health::families::Family> {
    ALL.iter().find(|family| match family.kind {
        Kind::Histogram(_) => series
            .strip_prefix(family.name)
            .is_some_and(|part| matches!(part, "_bucket" | "_sum" | "_count")),
        _ => family.name == series,
    })
}

#[test]
fn metrics_and_labels_of_an_expression_are_found() {
    let found =
        words("sum by (le, job) (rate(a_b{c=\"d_e\",f=~\"g\"}[$__rate_interval])) / h_i and on (job) j_k");
    assert_eq!(Vec::from_iter(&found.metrics), ["a_b", "h_i", "j_k"]);
    assert_eq!(Vec::from_iter(&found.labels), ["c", "f", "job", "le"]);
}

/// An alert that no test has made fire may never fire. This searches the calls of `until_firing` in this file.
#[test]
fn every_alert_is_fired_by_a_fault() {
    // In two parts, so that the search does not find this line.
    let call = ["until_firing", "(&["].concat();
    let names = |rest: &'static str| rest.split(']').next().unwrap().split('"').skip(1).step_by(2);
    let fired: BTreeSet<&str> = include_str!("alerts.rs")
        .split(&call)
        .skip(1)
        .flat_map(names)
        .collect();
    let alerts = alerts();
    assert_eq!(fired, alerts.iter().map(|alert| alert.name.as_str()).collect());
}

/// Labels that Prometheus adds to every series.
const OF_TARGETS: [&str; 3] = ["instance", "job", "namespace"];
/// Metrics for people who query them. No panel and no alert uses them.
const LOOKED_AT_BY_NOBODY: [&str; 2] = [
    "process_virtual_memory_bytes",
    "workqueue_unfinished_work_seconds",
];

#[test]
fn alerts_and_dashboard_use_exactly_the_listed_metrics() {
    let of_alerts = alerts().into_iter().map(|alert| (alert.name, alert.expression));
    let of_panels = panels().into_iter().flat_map(|panel| {
        let title = panel.title;
        panel
            .expressions
            .into_iter()
            .map(move |expression| (title.clone(), expression))
    });
    let mut used = BTreeSet::new();
    for (name, expression) in of_alerts.chain(of_panels) {
        let words = words(&expression);
        assert!(!words.metrics.is_empty(), "{name}: {expression}");
        let mut labels: BTreeSet<&str> = BTreeSet::from(OF_TARGETS);
        for metric in &words.metrics {
            let family = family_of(metric).unwrap_or_else(|| panic!("{name}: {metric} is not measured"));
            used.insert(family.name);
            labels.extend(family.labels);
            if let Kind::Histogram(_) = family.kind {
                labels.insert("le");
            }
        }
        let strange: Vec<_> = words
            .labels
            .iter()
            .filter(|label| !labels.contains(label.as_str()))
            .collect();
        assert!(strange.is_empty(), "{name}: none of its metrics has {strange:?}");
    }
    let idle: Vec<&str> = ALL
        .iter()
        .map(|family| family.name)
        .filter(|name| !used.contains(name))
        .collect();
    assert_eq!(idle, LOOKED_AT_BY_NOBODY);
    let names: BTreeSet<&str> = ALL.iter().map(|family| family.name).collect();
    assert_eq!(names.len(), ALL.len(), "one family a name");
}

/// The rules of an installation in the namespace `n`.
fn rules_of_n() -> String {
    rule_groups()
        .to_string()
        .replace(&format!("\\\"{NAMESPACE}\\\""), "\\\"n\\\"")
}

/// A folder with the rules. The caller adds their tests.
fn rules() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("rules.yml"), rules_of_n()).unwrap();
    folder
}

/// The files with unit tests of the rules: text, and parsed.
fn unit_tests() -> Vec<(String, Value)> {
    let mut files: Vec<_> = std::fs::read_dir(repository().join("operator/tests/alerts"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    let read = |path: &Path| std::fs::read_to_string(path).unwrap();
    files
        .iter()
        .map(|path| (read(path), serde_saphyr::from_str(&read(path)).unwrap()))
        .collect()
}

#[test]
fn alert_rules_pass_promtool_lint_and_their_unit_tests() {
    let folder = rules();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let output = promtool_passes(
        &["check", "rules", "--lint=all", "--lint-fatal", &path("rules.yml")],
        "",
    );
    assert!(
        output.contains(&format!("{} rules found", alerts().len())),
        "{output}"
    );
    let (mut fires, mut is_silent) = (BTreeSet::new(), BTreeSet::new());
    for (number, (text, parsed)) in unit_tests().into_iter().enumerate() {
        let file = path(&format!("test-{number}.yml"));
        std::fs::write(&file, text).unwrap();
        promtool_passes(&["test", "rules", &file], "");
        for test in parsed["tests"].as_array().unwrap() {
            for case in test["alert_rule_test"].as_array().unwrap() {
                let name = case["alertname"].as_str().unwrap().to_owned();
                let is_expected = case["exp_alerts"]
                    .as_array()
                    .is_some_and(|alerts| !alerts.is_empty());
                if is_expected {
                    fires.insert(name)
                } else {
                    is_silent.insert(name)
                };
            }
        }
    }
    let all: BTreeSet<String> = alerts().into_iter().map(|alert| alert.name).collect();
    assert_eq!(fires, all, "each is seen to fire");
    assert_eq!(is_silent, all, "and to be silent");
    // The unit tests do test the rules: with another rule, one of them fails.
    let broken = rules_of_n().replace("> 60", "> 600");
    std::fs::write(path("rules.yml"), broken).unwrap();
    let outcomes = (0..unit_tests().len()).map(|number| {
        promtool(&["test", "rules", &path(&format!("test-{number}.yml"))], "")
            .status
            .success()
    });
    assert!(outcomes.collect::<Vec<_>>().contains(&false));
}

/// A process of the program `flux-operator`. It is killed when this is dropped.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn run(arguments: &[&str], health: SocketAddr, kubeconfig: &Path) -> Program {
    let child = Command::new(env!("CARGO_BIN_EXE_flux-operator"))
        .args(arguments)
        .args(["--health", &health.to_string()])
        .env("KUBECONFIG", kubeconfig)
        .env("FLUX_AGENT_IMAGE", "agent:test")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Program(child)
}

async fn until_ready(health: SocketAddr) {
    until("it is ready", async || {
        (get(health, "/readyz").await == "ok\n").then_some(())
    })
    .await;
}

#[test]
fn promtool_accepts_metrics_and_every_panel_can_be_drawn() {
    test("figures", async |fixture| {
        let health = free_address();
        let _operator = run(
            &["run", "--namespace", &fixture.namespace],
            health,
            &operator_kubeconfig(),
        );
        until_ready(health).await;
        fixture.create("mc", json!({ "size": 1 })).await;
        fixture.run_pods("mc", 1).await;
        fixture.when_condition("mc", "Ready", "True").await;
        let webhook = Webhook::start().await;
        for text in [
            get(health, "/metrics").await,
            get(webhook.health, "/metrics").await,
        ] {
            let output = promtool_passes(&["check", "metrics", "--lint=all"], &text);
            assert_eq!(output, "", "{text}");
        }
        let prometheus = Prometheus::start(health).await;
        // This Prometheus collects from the operator only, so for it the webhook is down.
        prometheus.assert_calm(&["FluxOperatorWebhookDown"]).await;
        let drawn = |expression: &str| {
            expression
                .replace("$namespace", ".*")
                .replace("$__rate_interval", "1m")
        };
        for expression in panels().iter().flat_map(|panel| &panel.expressions) {
            // The expression is valid. Those about the webhook have no series here.
            let series = prometheus.query(&drawn(expression)).await;
            assert!(
                !series.is_empty() || expression.contains("webhook"),
                "{expression}"
            );
        }
        let ready = prometheus
            .query("flux_operator_miniclusters{phase=\"Running\"}")
            .await;
        assert_eq!(ready[0]["value"][1], "1");
    });
}

#[test]
fn alert_fires_when_operator_restarts_often_or_is_gone() {
    test("alerts-down", async |fixture| {
        let health = free_address();
        let start = || {
            run(
                &["run", "--namespace", &fixture.namespace],
                health,
                &operator_kubeconfig(),
            )
        };
        let mut operator = start();
        until_ready(health).await;
        let prometheus = Prometheus::start(health).await;
        prometheus.assert_calm(&["FluxOperatorWebhookDown"]).await;
        for times in 1..=3u32 {
            drop(operator);
            operator = start();
            until_ready(health).await;
            until("Prometheus has seen it", async || {
                let changes = prometheus.query("changes(process_start_time_seconds[30m])").await;
                (changes.first()?["value"][1].as_str()?.parse() == Ok(times)).then_some(())
            })
            .await;
        }
        prometheus.until_firing(&["FluxOperatorRestarting"]).await;
        assert!(!prometheus.firing().await.contains(&"FluxOperatorDown".to_owned()));
        drop(operator);
        // In a crash loop it is down most of the time, and that must not end the alert.
        prometheus
            .until_firing(&["FluxOperatorDown", "FluxOperatorRestarting"])
            .await;
    });
}

#[test]
fn alert_fires_when_no_operator_leads() {
    test("alerts-lead", async |fixture| {
        let lease = json!({
            "metadata": { "name": "flux-operator" },
            "spec": { "holderIdentity": "nobody that runs", "leaseDurationSeconds": 3600 },
        });
        fixture.add::<Lease>(lease).await;
        // The usual account may not use a Lease of this namespace: its Role for Leases is in `NAMESPACE`.
        let (namespace, identity) = (fixture.namespace.clone(), "one".to_owned());
        fixture.kubectl(&["create", "serviceaccount", "leader"]).unwrap();
        let account = format!("--serviceaccount={}:leader", fixture.namespace);
        fixture
            .kubectl(&["create", "rolebinding", "leader", "--clusterrole=admin", &account])
            .unwrap();
        fixture
            .kubectl(&[
                "create",
                "role",
                "leader",
                "--verb=*",
                "--resource=leases.coordination.k8s.io",
            ])
            .unwrap();
        fixture
            .kubectl(&["create", "rolebinding", "leases", "--role=leader", &account])
            .unwrap();
        let health = free_address();
        let operator = fixture
            .operator_as(&fixture.kubeconfig_of("leader"), Calls::default(), |settings| {
                settings.candidate = Some(Candidate {
                    namespace,
                    identity,
                    duration: Duration::from_secs(3),
                });
                settings.health = Some(health);
            })
            .await;
        let prometheus = Prometheus::start(health).await;
        prometheus.until_firing(&["FluxOperatorNotLeading"]).await;
        // Waiting for the Lease does not count as another problem.
        assert!(
            !prometheus
                .firing()
                .await
                .contains(&"FluxOperatorNotReady".to_owned())
        );
        operator.stop().await;
    });
}

/// An operator as the namespace's account `default`, and the address of its metrics.
async fn operator_of_default_account(fixture: &Fixture) -> (Operator, SocketAddr) {
    let health = free_address();
    let kubeconfig = fixture.kubeconfig_of("default");
    let operator = fixture
        .operator_as(&kubeconfig, Calls::default(), |settings| {
            settings.health = Some(health)
        })
        .await;
    (operator, health)
}

#[test]
fn alert_fires_when_operator_lacks_permission() {
    test("alerts-ready", async |fixture| {
        let (operator, health) = operator_of_default_account(&fixture).await;
        let prometheus = Prometheus::start(health).await;
        prometheus.until_firing(&["FluxOperatorNotReady"]).await;
        // An operator that may list nothing can still be stopped.
        operator.stop().await;
    });
}

/// The operator may list and watch, so it becomes ready.
#[test]
fn alert_fires_when_operator_may_not_create_objects() {
    test("alerts-create", async |fixture| {
        let account = format!("--serviceaccount={}:default", fixture.namespace);
        fixture
            .kubectl(&[
                "create",
                "role",
                "reader",
                "--verb=get,list,watch,patch,update",
                "--resource=*.*",
            ])
            .unwrap();
        fixture
            .kubectl(&["create", "rolebinding", "reader", "--role=reader", &account])
            .unwrap();
        let (operator, health) = operator_of_default_account(&fixture).await;
        until_ready(health).await;
        let prometheus = Prometheus::start(health).await;
        prometheus.assert_calm(&["FluxOperatorWebhookDown"]).await;
        fixture.create("mc", json!({ "size": 1 })).await;
        let status = fixture.when_is("mc", "reason", "Forbidden").await;
        assert_message(&status, "cannot create resource");
        prometheus.until_firing(&["FluxOperatorReconcileErrors"]).await;
        operator.stop().await;
    });
}

#[test]
fn alert_fires_when_an_admission_webhook_is_gone() {
    test("alerts-admission", async |fixture| {
        let health = free_address();
        let _operator = run(
            &["run", "--namespace", &fixture.namespace],
            health,
            &operator_kubeconfig(),
        );
        until_ready(health).await;
        let prometheus = Prometheus::start(health).await;
        prometheus.assert_calm(&["FluxOperatorWebhookDown"]).await;
        let name = format!("{}.example.org", fixture.namespace);
        let webhook = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": { "name": name },
            "webhooks": [{
                "name": name, "clientConfig": { "url": "https://127.0.0.1:1/" }, "timeoutSeconds": 1,
                "rules": [{ "apiGroups": ["", "batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["*"] }],
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": fixture.namespace } },
                "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            }],
        });
        apply(&webhook.to_string());
        fixture.create("mc", json!({ "size": 1 })).await;
        prometheus
            .until_firing(&["FluxOperatorReconcileErrors", "FluxOperatorAPIErrors"])
            .await;
        fixture
            .kubectl(&["delete", "validatingwebhookconfiguration", &name])
            .unwrap();
    });
}

/// No known input makes the operator panic, so the test does.
#[test]
fn alert_fires_when_the_operator_panics() {
    test("alerts-panic", async |fixture| {
        let calls = Calls::with_faults(|call: &Call| {
            (call.resource == "configmaps" && call.name == "bad-agent").then_some(Fault::Panic)
        });
        let health = free_address();
        let operator = fixture
            .operator_of(calls, |settings| settings.health = Some(health))
            .await;
        until_ready(health).await;
        let prometheus = Prometheus::start(health).await;
        prometheus.assert_calm(&["FluxOperatorWebhookDown"]).await;
        fixture.create("bad", json!({ "size": 1 })).await;
        prometheus.until_firing(&["FluxOperatorPanics"]).await;
        operator.stop().await;
    });
}

/// While the API server does not answer, large MiniClusters take up the capacity, and the next ones wait for
/// it. In this test 5 s of waiting fire the alert, not 60 s.
#[test]
fn alert_fires_when_miniclusters_wait_for_a_reconcile() {
    test("alerts-queue", async |fixture| {
        // The operator's cache leaves out long texts, so it reads a large MiniCluster again before it reconciles it.
        let calls = Calls::with_faults(|call: &Call| {
            let is_read = call.verb == "get" && call.resource == "miniclusters";
            is_read.then_some(Fault::Late(Duration::from_secs(60), 504))
        });
        let health = free_address();
        let operator = fixture
            .operator_of(calls, |settings| settings.health = Some(health))
            .await;
        until_ready(health).await;
        let prometheus = Prometheus::start_with_rules(health, |rule| {
            let expression = rule["expr"].as_str().unwrap().replace("} > 60", "} > 5");
            rule["expr"] = json!(expression);
        })
        .await;
        prometheus.assert_calm(&["FluxOperatorWebhookDown"]).await;
        // The memory is enough for four of this size (`reconcile/context/room.rs`), so two wait.
        for number in 0..6 {
            let commands = json!({ "pre": "x".repeat(950_000) });
            let containers = json!([{ "image": "app:1", "commands": commands }]);
            fixture
                .create(
                    &format!("large-{number}"),
                    json!({ "size": 1, "containers": containers }),
                )
                .await;
        }
        prometheus.until_firing(&["FluxOperatorQueueBacklog"]).await;
        drop(operator);
    });
}

#[test]
fn alerts_fire_when_the_webhook_fails_rejects_or_is_down() {
    runtime().block_on(async {
        let webhook = Webhook::start().await;
        let prometheus = Prometheus::start(webhook.health).await;
        prometheus.assert_calm(&["FluxOperatorDown"]).await;
        // The webhook cannot convert this version. The argument 1 is the peer 127.0.0.1, and 2 is 127.0.0.2.
        let strange =
            json!({ "apiVersion": "flux-framework.org/v9", "kind": "MiniCluster", "metadata": { "name": "a" } });
        let (status, text) = webhook.post(1, &review(&[strange.to_string()])).await.unwrap();
        assert!(status == 200 && text.contains("Failure"), "{text}");
        prometheus.until_firing(&["FluxOperatorConversionErrors"]).await;
        // Requests that make no progress take all 32 slots of one peer. Then at most 8 of its connections may wait, and
        // the webhook rejects the others (`webhook/limits.rs`).
        let (mut slow, mut more) = (Vec::new(), Vec::new());
        for _ in 0..32 {
            let mut stream = webhook.connect(2).await.unwrap();
            let head = "POST /convert HTTP/1.1\r\nHost: webhook\r\nContent-Length: 100\r\n\r\n";
            stream.write_all(head.as_bytes()).await.unwrap();
            slow.push(stream);
        }
        for _ in 0..20 {
            more.push(webhook.tcp(2).await.unwrap());
        }
        prometheus.until_firing(&["FluxOperatorWebhookRejectingConnections"]).await;
        drop(webhook);
        prometheus.until_firing(&["FluxOperatorWebhookDown"]).await;
    });
}

#[test]
fn alert_fires_when_the_webhook_certificate_expires_soon() {
    runtime().block_on(async {
        let mut params = CertificateParams::new(["webhook".to_owned()]).unwrap();
        let soon = k8s_openapi::jiff::Timestamp::now()
            .to_zoned(k8s_openapi::jiff::tz::TimeZone::UTC)
            .date();
        let soon = soon.saturating_add(k8s_openapi::jiff::SignedDuration::from_hours(24 * 10));
        let (month, day) = (soon.month().unsigned_abs(), soon.day().unsigned_abs());
        params.not_after = rcgen::date_time_ymd(soon.year().into(), month, day);
        let webhook = Webhook::with(params).await;
        let prometheus = Prometheus::start(webhook.health).await;
        prometheus
            .until_firing(&["FluxOperatorCertificateExpiring"])
            .await;
        let left = prometheus
            .query("flux_operator_webhook_certificate_expiry_timestamp_seconds - time()")
            .await;
        let days: f64 = left[0]["value"][1].as_str().unwrap().parse::<f64>().unwrap() / 86400.0;
        // The certificate ends at midnight (UTC), when its last day begins.
        assert!((8.9..=10.0).contains(&days), "{days}");
    });
}

#[test]
fn alert_fires_when_webhook_may_not_write_its_certificate() {
    test("alerts-certificate", async |fixture| {
        let (listen, health) = (free_address().to_string(), free_address());
        let kubeconfig = fixture.kubeconfig_of("default");
        let arguments = ["webhook", "--listen", &listen, "--namespace", &fixture.namespace];
        let _webhook = run(&arguments, health, &kubeconfig);
        let prometheus = Prometheus::start(health).await;
        prometheus
            .until_firing(&["FluxOperatorCertificateRenewalFailing", "FluxOperatorNotReady"])
            .await;
    });
}
