//! A real Prometheus with the shipped rules, and promtool.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use test_support::api_server::{DEADLINE, until};
use test_support::helm::built;
use test_support::installation::{Installation, NAMESPACE};

/// promtool or prometheus, as the test node builds them.
fn program(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(|| built("prometheus/build", &[])).join(name)
}

/// Runs promtool.
pub fn promtool(arguments: &[&str], input: &str) -> Output {
    test_support::node::output(&program("promtool"), arguments, input)
}

/// What promtool prints; panics if it fails.
pub fn promtool_passes(arguments: &[&str], input: &str) -> String {
    let output = promtool(arguments, input);
    let text = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(output.status.success(), "promtool {arguments:?}:\n{text}");
    text
}

/// A free TCP port on loopback. (Another process may take it before it is used.)
pub fn free_address() -> SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
}

/// The body of the answer to GET. Empty if there was no answer, or one without a body.
pub async fn get(address: SocketAddr, path: &str) -> String {
    let mut answer = Vec::new();
    if let Ok(mut stream) = TcpStream::connect(address).await {
        let _ = stream
            .write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())
            .await;
        let _ = stream.read_to_end(&mut answer).await;
    }
    let answer = String::from_utf8_lossy(&answer).into_owned();
    answer
        .split_once("\r\n\r\n")
        .map(|(_, body)| body.to_owned())
        .unwrap_or_default()
}

/// The shipped rules, for an installation in the usual namespace.
pub fn rule_groups() -> Value {
    let installed = Installation::whole(&json!({ "prometheus": { "rules": { "enabled": true } } }));
    installed
        .objects
        .iter()
        .find(|object| object["kind"] == "PrometheusRule")
        .unwrap()["spec"]
        .clone()
}

/// A Prometheus that runs until it is dropped.
pub struct Prometheus {
    child: Child,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Prometheus {
    /// Collects every second from operator or webhook at `target`, with the shipped rules, whose `for` is shortened
    /// to one second.
    pub async fn start(target: SocketAddr) -> Prometheus {
        Prometheus::start_with_rules(target, |_| {}).await
    }

    /// The same, with other changes of the rules.
    pub async fn start_with_rules(target: SocketAddr, change: impl Fn(&mut Value)) -> Prometheus {
        let mut groups = rule_groups();
        for group in groups["groups"].as_array_mut().unwrap() {
            for rule in group["rules"].as_array_mut().unwrap() {
                // An alert with 0m fires at once, also as shipped.
                if rule["for"] != "0m" {
                    rule["for"] = json!("1s");
                }
                change(rule);
            }
        }
        let configuration = json!({
            "global": { "scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s" },
            "rule_files": ["rules.yml"],
            // As with the chart's ServiceMonitor, metrics have the label `namespace`, by which the rules select.
            "scrape_configs": [{
                "job_name": "flux-operator-metrics",
                "static_configs": [{ "targets": [target.to_string()], "labels": { "namespace": NAMESPACE } }],
            }],
        });
        let folder = tempfile::tempdir().unwrap();
        // JSON is valid YAML.
        std::fs::write(folder.path().join("rules.yml"), groups.to_string()).unwrap();
        std::fs::write(folder.path().join("prometheus.yml"), configuration.to_string()).unwrap();
        let address = free_address();
        let child = Command::new(program("prometheus"))
            .current_dir(folder.path())
            .args([
                "--config.file=prometheus.yml",
                "--storage.tsdb.path=data",
                "--log.level=error",
            ])
            .arg(format!("--web.listen-address={address}"))
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let prometheus = Prometheus {
            child,
            address,
            _folder: folder,
        };
        until("Prometheus is ready", async || {
            get(address, "/-/ready").await.contains("Ready").then_some(())
        })
        .await;
        prometheus
    }

    async fn ask(&self, path: &str) -> Value {
        let text = get(self.address, path).await;
        let answer: Value =
            serde_json::from_str(&text).unwrap_or_else(|error| panic!("{path}: {error}: {text}"));
        assert_eq!(answer["status"], "success", "{path}: {answer:#}");
        answer["data"].clone()
    }

    /// The series that an expression gives now.
    pub async fn query(&self, expression: &str) -> Vec<Value> {
        let quoted: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
        self.ask(&format!("/api/v1/query?query={quoted}")).await["result"]
            .as_array()
            .unwrap()
            .clone()
    }

    /// The names of the alerts that fire now.
    pub async fn firing(&self) -> Vec<String> {
        let alerts = self.ask("/api/v1/alerts").await["alerts"]
            .as_array()
            .unwrap()
            .clone();
        let firing = alerts.into_iter().filter(|alert| alert["state"] == "firing");
        firing
            .map(|alert| alert["labels"]["alertname"].as_str().unwrap().to_owned())
            .collect()
    }

    /// Waits until it has collected metrics and evaluated the rules, and asserts that no other alerts than these
    /// fire.
    pub async fn assert_calm(&self, expected: &[&str]) {
        until("it collects", async || {
            (!self.query("flux_operator_build_info").await.is_empty()).then_some(())
        })
        .await;
        tokio::time::sleep(Duration::from_secs(4)).await;
        let firing = self.firing().await;
        assert!(
            firing.iter().all(|name| expected.contains(&name.as_str())),
            "{firing:?}"
        );
    }

    /// Waits until all these alerts fire.
    pub async fn until_firing(&self, names: &[&str]) {
        let begin = Instant::now();
        loop {
            let firing = self.firing().await;
            if names.iter().all(|name| firing.iter().any(|alert| alert == name)) {
                return;
            }
            assert!(
                begin.elapsed() < DEADLINE,
                "not all of {names:?} fire, but {firing:?}"
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}
