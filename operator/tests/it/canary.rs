//! Where secrets may be seen: in their Secrets, and nowhere else. Every object that there is, the operator's
//! log at its most talkative, its figures, and what people are shown are searched for the curve key,
//! passwords and tokens.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, DynamicObject, ListParams};
use kube::discovery::{Discovery, verbs};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use test_support::api_server::{Fixture, condition, operator_kubeconfig, test, until};

/// The program itself, with a log that nothing is kept out of.
pub struct Program {
    child: Child,
    address: String,
}

impl Program {
    fn start(namespace: &str) -> Program {
        Program::with(namespace, "trace", Stdio::piped())
    }

    pub fn with(namespace: &str, log: &str, errors: Stdio) -> Program {
        let address = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .to_string();
        let child = Command::new(env!("CARGO_BIN_EXE_flux-operator"))
            .env("FLUX_AGENT_IMAGE", "agent:test")
            .args([
                "run",
                "--log",
                log,
                "--namespace",
                namespace,
                "--health",
                &address,
            ])
            .env("KUBECONFIG", operator_kubeconfig())
            .stdin(Stdio::null())
            .stderr(errors)
            .spawn()
            .unwrap();
        Program { child, address }
    }

    /// The most memory that it ever had, in bytes.
    pub fn memory(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text.lines().find(|line| line.starts_with("VmHWM")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }

    fn metrics(&self) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// All values of the Secrets of a cluster, but those that are no secret (names of users).
async fn secrets(fixture: &Fixture, cluster: &str) -> Vec<(String, String)> {
    let all = fixture
        .api::<Secret>()
        .list(&ListParams::default())
        .await
        .unwrap()
        .items;
    let mine = all
        .into_iter()
        .filter(|secret| secret.name_any().starts_with(&format!("{cluster}-")));
    let mut found = Vec::new();
    for secret in mine {
        for (key, value) in secret.data.iter().flatten() {
            let place = format!("{}/{key}", secret.name_any());
            let text = String::from_utf8(value.0.clone()).unwrap();
            match text
                .lines()
                .find_map(|line| line.trim().strip_prefix("secret-key = "))
            {
                Some(key) => found.push((place, key.trim_matches('"').to_owned())),
                None if text.len() >= 8 => found.push((place, text)),
                None => {}
            }
        }
    }
    found
}

/// Every object that an administrator can list, as text, but Secrets and the MiniClusters whose authors wrote
/// a secret.
async fn everything(fixture: &Fixture) -> Vec<(String, String)> {
    let discovery = Discovery::new(fixture.client.clone()).run().await.unwrap();
    let mut all = Vec::new();
    for (resource, capabilities) in discovery.groups().flat_map(|group| group.recommended_resources()) {
        if resource.kind == "Secret" || !capabilities.supports_operation(verbs::LIST) {
            continue;
        }
        let api: Api<DynamicObject> = Api::all_with(fixture.client.clone(), &resource);
        let Ok(list) = api.list(&ListParams::default()).await else {
            continue;
        };
        for mut object in list.items {
            if resource.kind == "MiniCluster" {
                object.data["spec"]["flux"]["curveCert"].take();
            }
            let place = format!("{} {}", resource.kind, object.name_any());
            all.push((place, serde_json::to_string(&object).unwrap()));
        }
    }
    all
}

#[test]
fn secrets_are_seen_in_their_secrets_only() {
    test("canary", async |fixture| {
        let mut program = Program::start(&fixture.namespace);
        let log = program.child.stderr.take().unwrap();
        let log = std::thread::spawn(move || std::io::read_to_string(log).unwrap());
        let containers = json!([
            { "image": "app:1", "runFlux": true },
            { "image": "db:1", "name": "db", "ports": [5432] },
        ]);
        let spec = json!({
            "size": 2, "maxSize": 3, "containers": containers, "users": [{ "name": "ada" }, { "name": "bob" }],
            "fluxRestful": {}, "services": [{ "image": "cache:1", "name": "cache" }],
        });
        fixture.create("made", spec).await.unwrap();
        let secret = "D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs";
        let cert = |key: &str| {
            format!(
                "metadata\n    name = \"mc\"\ncurve\n    public-key = \"Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{{hID\"\n    secret-key = \"{key}\"\n"
            )
        };
        fixture
            .create(
                "given",
                json!({ "size": 1, "flux": { "curveCert": cert(secret) } }),
            )
            .await
            .unwrap();
        let typo = &secret[1..];
        fixture
            .create("typo", json!({ "size": 1, "flux": { "curveCert": cert(typo) } }))
            .await
            .unwrap();
        fixture
            .when("typo", "invalid", |status| status["phase"] == "Invalid")
            .await;
        // A life with everything that is written about it.
        let pods = fixture.pods("made", 2).await;
        for pod in pods.values() {
            fixture.run_pod(pod).await;
        }
        fixture.when_condition("made", "Ready", "True").await;
        fixture
            .patch::<MiniCluster>("made", json!({ "spec": { "size": 3 } }))
            .await
            .unwrap();
        fixture.pods("made", 3).await;
        fixture
            .end_pod(&pods[&0], 7, "Error", "the job's own words")
            .await;
        let status = until("it has failed", async || {
            fixture.reap("made").await;
            let status = serde_json::to_value(fixture.get("made").await).unwrap()["status"].take();
            (condition(&status, "Failed")["status"] == "True").then_some(status)
        })
        .await;
        assert_eq!(status["exitCode"], 7);
        fixture.pods("given", 1).await;

        let mut needles = secrets(&fixture, "made").await;
        // The key, two passwords, and the API's key, user and token.
        assert!(
            needles.len() >= 5,
            "{:?}",
            needles.iter().map(|(place, _)| place).collect::<Vec<_>>()
        );
        needles.extend([
            ("given".to_owned(), secret.to_owned()),
            ("typo".to_owned(), typo.to_owned()),
        ]);
        let mut places = everything(&fixture).await;
        assert!(
            places.iter().any(|(place, _)| place.starts_with("Event ")),
            "events are searched"
        );
        assert!(
            places
                .iter()
                .any(|(place, _)| place.starts_with("ConfigMap made-agent")),
            "ConfigMaps are searched"
        );
        let metrics = program.metrics();
        assert!(metrics.contains("leader_election_master_status{name=\"flux-framework-flux-operator\"} 1"));
        places.push(("the figures".into(), metrics));
        places.push(("what is rendered".into(), render(&fixture, "given").await));
        fixture
            .api::<MiniCluster>()
            .delete("made", &DeleteParams::default())
            .await
            .unwrap();
        drop(program);
        let log = log.join().unwrap();
        assert!(
            log.contains("created the Job") && log.contains("TRACE"),
            "the log is searched"
        );
        places.push(("the log".into(), log));
        for (name, needle) in &needles {
            assert_eq!(seen(needle, &places), Vec::<&str>::new(), "{name} is seen");
        }
    });
}

/// Where a text stands, as it is or as JSON would have it.
fn seen<'a>(needle: &str, places: &'a [(String, String)]) -> Vec<&'a str> {
    let quoted = Value::from(needle).to_string();
    let seen = places
        .iter()
        .filter(|(_, text)| text.contains(needle) || text.contains(quoted.trim_matches('"')));
    seen.map(|(place, _)| place.as_str()).collect()
}

/// What `flux-operator render` prints of a MiniCluster.
async fn render(fixture: &Fixture, name: &str) -> String {
    let cluster = serde_json::to_string(&fixture.get(name).await).unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_flux-operator"))
        .args(["render", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(cluster.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("kind: Secret"), "{text}");
    text
}
