//! Faults of the API server: the operator recovers from all of them, and no MiniCluster waits for another.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::ResourceExt;
use kube::api::ListParams;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use test_support::api_server::{
    Call, Calls, Fault, Fixture, assert_message, condition, operator_kubeconfig, test, until,
};
use test_support::control_plane::kubeconfig_via;

/// Waits until everything of a MiniCluster of size 2 exists, and asserts that retries have made no pod twice.
async fn until_whole(fixture: &Fixture, name: &str) {
    fixture
        .when(name, "whole", |status| {
            status["size"] == 2 && status["maximumSize"] == 2
        })
        .await;
    assert_eq!(fixture.all_pods(name).await.len(), 2);
    fixture.secret(name, "curve").await.unwrap();
    until("it owns the Service", async || {
        let service = fixture.find::<Service>("flux-service").await?;
        service
            .owner_references()
            .iter()
            .any(|owner| owner.name == name)
            .then_some(())
    })
    .await;
}

#[test]
fn operator_recovers_from_any_answer_to_any_call() {
    test("answers", async |fixture| {
        const CODES: [u16; 7] = [429, 500, 503, 504, 409, 422, 400];
        // Each call of each MiniCluster fails once, and the codes take turns. Lists, watches and events do not fail:
        // the operator only logs that it could not write an event.
        let seen: Mutex<HashSet<(String, String, String)>> = Mutex::default();
        let number = AtomicUsize::new(0);
        let calls = Calls::with_faults(move |call: &Call| {
            let is_spared = matches!(call.verb.as_str(), "list" | "watch") || call.resource == "events";
            let key = (call.verb.clone(), call.resource.clone(), call.name.clone());
            let is_new = !is_spared && seen.lock().unwrap().insert(key);
            is_new.then(|| Fault::Answer(CODES[number.fetch_add(1, Ordering::SeqCst) % CODES.len()]))
        });
        let operator = fixture.operator_of(calls, |_| {}).await;
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        for name in names {
            fixture.create(name, json!({ "size": 2 })).await;
        }
        for name in names {
            until_whole(&fixture, name).await;
            fixture.when_is(name, "reason", Value::Null).await;
        }
        until(
            "every lead has its label, though each patch failed once",
            async || {
                let pods = fixture.all::<Pod>().await;
                (pods
                    .iter()
                    .filter(|pod| pod.labels().contains_key("job-index"))
                    .count()
                    == names.len())
                .then_some(())
            },
        )
        .await;
        operator.stop().await;
    });
}

#[test]
fn status_has_the_api_servers_error() {
    test("faults-refused", async |fixture| {
        let is_well = Arc::new(AtomicBool::new(false));
        let well = is_well.clone();
        let calls =
            Calls::with_faults(
                move |call: &Call| match (call.verb.as_str(), call.resource.as_str()) {
                    ("create", "jobs") if !well.load(Ordering::SeqCst) => Some(match call.name.as_str() {
                        "refused" => Fault::Answer(422),
                        "busy" => Fault::Answer(429),
                        "silent" => Fault::Late(Duration::from_secs(30), 504),
                        _ => Fault::Answer(500),
                    }),
                    _ => None,
                },
            );
        let operator = fixture.operator_of(calls, |_| {}).await;
        let begin = Instant::now();
        for name in ["refused", "failing", "busy", "silent"] {
            fixture.create(name, json!({ "size": 2 })).await;
        }
        let status = fixture.when_is("refused", "reason", "Refused").await;
        let message = "the API server refused to create Job refused: made up: 422";
        assert_eq!(status["message"], message, "{status:#}");
        assert_eq!(condition(&status, "JobRequested")["reason"], "Refused");
        for (name, words) in [
            ("failing", "made up: 500 (500)"),
            ("busy", "made up: 429 (429)"),
            ("silent", "answers slowly or not at all"),
        ] {
            let status = fixture.when_is(name, "reason", "ApiError").await;
            assert_message(&status, words);
            assert_eq!(condition(&status, "JobRequested")["reason"], "ApiError");
            assert!(
                condition(&status, "Stalled").is_null(),
                "it may pass by itself: {status:#}"
            );
        }
        assert!(
            begin.elapsed() < Duration::from_secs(10),
            "it took {:?}",
            begin.elapsed()
        );
        is_well.store(true, Ordering::SeqCst);
        for name in ["refused", "failing", "busy", "silent"] {
            until_whole(&fixture, name).await;
            fixture.when_is(name, "reason", Value::Null).await;
        }
        operator.stop().await;
    });
}

#[test]
fn broken_clusters_delay_no_other_and_are_retried_more_rarely() {
    test("broken", async |fixture| {
        // More than all slots for reconciles: 48, and 64 for slow ones (`controller/slots.rs`).
        const BROKEN: usize = 160;
        let attempts: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
        let log = attempts.clone();
        let calls = Calls::with_faults(move |call: &Call| {
            if call.resource != "configmaps" || !call.name.starts_with("bad") {
                return None;
            }
            *log.lock().unwrap().entry(call.name.clone()).or_default() += 1;
            if call.name.starts_with("bad-slow") {
                Some(Fault::Late(Duration::from_secs(30), 504))
            } else {
                Some(Fault::Answer(503))
            }
        });
        let operator = fixture.operator_of(calls, |_| {}).await;
        for number in 0..BROKEN {
            fixture
                .create(&format!("bad-slow-{number}"), json!({ "size": 2 }))
                .await;
        }
        fixture.create("bad-fast", json!({ "size": 2 })).await;
        // 128, too, is more than all slots.
        until("all slots are taken", async || {
            (attempts.lock().unwrap().len() >= 128).then_some(())
        })
        .await;
        let begin = Instant::now();
        fixture.create("good", json!({ "size": 2 })).await;
        until_whole(&fixture, "good").await;
        assert!(
            begin.elapsed() < Duration::from_secs(15),
            "it took {:?}",
            begin.elapsed()
        );
        // The pauses between attempts are at least 0.25 s, 0.5 s, 1 s, …, so the eighth attempt is not before 31 s.
        // `bad-fast` began before `begin`. 12 s after `begin`, it has had three at least.
        while begin.elapsed() < Duration::from_secs(12) {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let fast = attempts.lock().unwrap()["bad-fast-agent"];
        assert!((3..=7).contains(&fast), "{fast} attempts");
        operator.stop().await;
    });
}

#[test]
fn panic_is_reported_on_its_object_and_stops_no_other() {
    test("panics", async |fixture| {
        flux_operator::health::panics::install_hook();
        // The hook is for the whole process: other tests that fail must still print why.
        let operators_hook = std::panic::take_hook();
        #[expect(clippy::print_stderr, reason = "where the test's own harness prints it")]
        std::panic::set_hook(Box::new(move |panic| {
            eprintln!("{panic}");
            operators_hook(panic);
        }));
        let is_mended = Arc::new(AtomicBool::new(false));
        let mended = is_mended.clone();
        let calls = Calls::with_faults(move |call: &Call| {
            let panics =
                call.resource == "configmaps" && call.name == "bad-agent" && !mended.load(Ordering::SeqCst);
            panics.then_some(Fault::Panic)
        });
        let metrics = Arc::new(flux_operator::health::metrics::Metrics::new().unwrap());
        let counts = metrics.clone();
        let operator = fixture
            .operator_of(calls, |settings| settings.metrics = counts)
            .await;
        fixture.create("bad", json!({ "size": 2 })).await;
        let status = fixture.when_condition("bad", "OperatorPanicked", "True").await;
        let panicked = condition(&status, "OperatorPanicked");
        let message = panicked["message"].as_str().unwrap();
        // The line of the source, and not the panic's own text, which may have a secret in it.
        assert!(
            message.contains("api_server/calls.rs:") && !message.contains("hunter2"),
            "{message}"
        );
        until("an event tells", async || {
            let events = fixture
                .api::<k8s_openapi::api::core::v1::Event>()
                .list(&ListParams::default())
                .await
                .unwrap()
                .items;
            events
                .into_iter()
                .find(|event| event.reason.as_deref() == Some("OperatorPanicked"))
        })
        .await;
        fixture.create("good", json!({ "size": 2 })).await;
        until_whole(&fixture, "good").await;
        let text =
            metrics.text(flux_operator::health::metrics::LiveState::<std::iter::Empty<&str>>::default());
        let count = text.lines().find_map(|line| {
            line.strip_prefix("controller_runtime_reconcile_panics_total{controller=\"minicluster\"} ")
        });
        assert!(count.unwrap().parse::<u32>().unwrap() >= 1, "{text}");
        is_mended.store(true, Ordering::SeqCst);
        until_whole(&fixture, "bad").await;
        fixture
            .when("bad", "mended", |status| {
                condition(status, "OperatorPanicked").is_null()
            })
            .await;
        operator.stop().await;
    });
}

#[test]
fn watches_that_expire_or_break_miss_nothing() {
    test("expired", async |fixture| {
        // Counts the watches of each kind. The first five of each kind fail.
        let begun: Mutex<BTreeMap<String, usize>> = Mutex::default();
        let calls = Calls::with_faults(move |call: &Call| {
            if call.verb != "watch" {
                return None;
            }
            let mut begun = begun.lock().unwrap();
            let number = begun.entry(call.resource.clone()).or_default();
            *number += 1;
            [
                Fault::Expired,
                Fault::Lost,
                Fault::Answer(410),
                Fault::Expired,
                Fault::Answer(500),
            ]
            .get(*number - 1)
            .cloned()
        });
        let operator = fixture.operator_of(calls.clone(), |_| {}).await;
        for name in ["stays", "goes"] {
            fixture.create(name, json!({ "size": 2 })).await;
        }
        until_whole(&fixture, "stays").await;
        until_whole(&fixture, "goes").await;
        fixture.run_pods("stays", 2).await;
        fixture.delete::<MiniCluster>("goes").await;
        fixture.when_condition("stays", "Ready", "True").await;
        let pods = fixture.pods("stays", 2).await;
        fixture.end_pod(&pods[&0], 7, "Error", "").await;
        let status = fixture.when_finished("stays", "Failed").await;
        assert_eq!(status["exitCode"], 7);
        until("the other is gone", async || {
            fixture.reap("goes").await;
            fixture.find::<Job>("goes").await.is_none().then_some(())
        })
        .await;
        let lists = calls
            .all()
            .into_iter()
            .filter(|call| call.verb == "list" && call.resource == "pods")
            .count();
        assert!(lists >= 2, "an expired watch lists again: {lists}");
        operator.stop().await;
    });
}

/// As when an authorizer fails for a moment, or a role is applied after the operator starts.
#[test]
fn kinds_that_were_denied_are_watched_when_they_are_permitted() {
    test("denied", async |fixture| {
        const KINDS: [&str; 3] = ["nodes", "persistentvolumes", "storageclasses"];
        let denied: Mutex<BTreeMap<String, usize>> = Mutex::default();
        let calls = Calls::with_faults(move |call: &Call| {
            if call.verb != "list" || !KINDS.contains(&call.resource.as_str()) {
                return None;
            }
            let mut denied = denied.lock().unwrap();
            let number = denied.entry(call.resource.clone()).or_default();
            *number += 1;
            (*number <= 2).then_some(Fault::Answer(403))
        });
        let operator = fixture.operator_of(calls.clone(), |_| {}).await;
        // Nothing waits for these kinds.
        fixture.create("mc", json!({ "size": 2 })).await;
        until_whole(&fixture, "mc").await;
        until("all are watched", async || {
            let watches = calls.all().into_iter().filter(|call| call.verb == "watch");
            let watched: HashSet<String> = watches.map(|call| call.resource).collect();
            KINDS.iter().all(|kind| watched.contains(*kind)).then_some(())
        })
        .await;
        operator.stop().await;
    });
}

#[test]
fn changes_during_api_server_outage_are_seen_afterwards() {
    test("outage", async |fixture| {
        let is_gone = Arc::new(AtomicBool::new(false));
        let gone = is_gone.clone();
        let calls = Calls::with_faults(move |_: &Call| gone.load(Ordering::SeqCst).then_some(Fault::Lost));
        let operator = fixture.operator_of(calls, |_| {}).await;
        fixture.create("before", json!({ "size": 2 })).await;
        until_whole(&fixture, "before").await;
        is_gone.store(true, Ordering::SeqCst);
        fixture.run_pods("before", 2).await;
        fixture.create("meanwhile", json!({ "size": 2 })).await;
        tokio::time::sleep(Duration::from_secs(5)).await;
        let status = fixture.status("meanwhile").await;
        assert_eq!(status, Value::Null, "it really is out of reach");
        is_gone.store(false, Ordering::SeqCst);
        fixture.when_condition("before", "Ready", "True").await;
        until_whole(&fixture, "meanwhile").await;
        operator.stop().await;
    });
}

/// A proxy to the API server whose connections can die silently, as when a router forgets them. New connections
/// work.
struct Proxy {
    kubeconfig: PathBuf,
    /// The flag of the present connections. `break_connections` clears it, and gives later connections a new one.
    is_alive: Arc<Mutex<Arc<AtomicBool>>>,
}

impl Proxy {
    async fn to_server_of(kubeconfig: &Path) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (kubeconfig, server) = kubeconfig_via(kubeconfig, "proxy", address).unwrap();
        let is_alive = Arc::new(Mutex::new(Arc::new(AtomicBool::new(true))));
        let proxy = Proxy {
            kubeconfig,
            is_alive: is_alive.clone(),
        };
        tokio::spawn(async move {
            loop {
                let (from_client, to_client) = listener.accept().await.unwrap().0.into_split();
                let (from_server, to_server) = TcpStream::connect(&server).await.unwrap().into_split();
                let is_alive = is_alive.lock().unwrap().clone();
                tokio::spawn(carry(from_client, to_server, is_alive.clone()));
                tokio::spawn(carry(from_server, to_client, is_alive));
            }
        });
        proxy
    }

    fn break_connections(&self) {
        let mut is_alive = self.is_alive.lock().unwrap();
        is_alive.store(false, Ordering::SeqCst);
        *is_alive = Arc::new(AtomicBool::new(true));
    }
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, is_alive: Arc<AtomicBool>) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if is_alive.load(Ordering::SeqCst) && to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
    if !is_alive.load(Ordering::SeqCst) {
        // The other side does not learn that the connection has ended.
        std::future::pending::<()>().await;
    }
}

#[test]
fn silently_broken_connection_is_detected() {
    test("dead", async |fixture| {
        let proxy = Proxy::to_server_of(&operator_kubeconfig()).await;
        let operator = fixture
            .operator_as(&proxy.kubeconfig, Calls::default(), |_| {})
            .await;
        fixture.create("before", json!({ "size": 2 })).await;
        until_whole(&fixture, "before").await;
        proxy.break_connections();
        fixture.create("after", json!({ "size": 2 })).await;
        // After 90 s without a byte, the client drops the connection (`READ_TIMEOUT` in `api/client.rs`). The watch
        // alone would be silent for five minutes.
        let begin = Instant::now();
        while fixture.find::<Job>("after").await.is_none() {
            assert!(begin.elapsed() < Duration::from_secs(120), "nobody has noticed");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        until_whole(&fixture, "after").await;
        operator.stop().await;
    });
}

fn of_version(minor: &'static str) -> Calls {
    Calls::with_faults(move |call: &Call| says_version(minor, call))
}

pub(crate) fn says_version(minor: &str, call: &Call) -> Option<Fault> {
    let info = json!({
        "major": "1", "minor": minor, "gitVersion": format!("v1.{minor}.0"), "gitCommit": "", "gitTreeState": "",
        "buildDate": "", "goVersion": "", "compiler": "", "platform": "",
    });
    (call.resource == "version").then_some(Fault::Says(info))
}

#[test]
fn an_older_kubernetes_is_refused() {
    test("versions", async |fixture| {
        let error = fixture
            .operator_of(of_version("30"), |_| {})
            .await
            .end()
            .await
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "this is Kubernetes 1.30: 1.31 or newer is needed"
        );
        // Some providers append a `+` to the minor version.
        let operator = fixture.operator_of(of_version("31+"), |_| {}).await;
        fixture.create("mc", json!({ "size": 2 })).await;
        until_whole(&fixture, "mc").await;
        operator.stop().await;
    });
}

#[test]
fn image_volumes_behind_a_gate_are_found_by_a_dry_run() {
    test("by-hand", async |fixture| {
        let spec = json!({ "size": 1, "flux": { "container": { "source": "imageVolume" } } });
        let operator = fixture.operator_of(of_version("34"), |_| {}).await;
        fixture.create("kept", spec.clone()).await;
        // To the operator this is 1.34, where a feature gate decides. So it asks the API server by a dry-run creation of
        // the Job. The test's real API server answers: it keeps the volumes if it is 1.35 or newer.
        if fixture.minor().await >= 35 {
            let volumes = fixture
                .job("kept")
                .await
                .spec
                .unwrap()
                .template
                .spec
                .unwrap()
                .volumes
                .unwrap();
            assert!(volumes.iter().any(|volume| volume.image.is_some()), "{volumes:?}");
        } else {
            fixture.when_is("kept", "reason", "Unsupported").await;
        }
        operator.stop().await;

        // A server without the feature drops the volumes without an error.
        let dropped = json!({
            "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": "dropped" },
            "spec": { "template": { "spec": { "containers": [{ "name": "a" }] } } },
        });
        let calls = Calls::with_faults(move |call: &Call| {
            let is_job = call.resource == "jobs" && call.verb == "create";
            says_version("34", call).or_else(|| is_job.then(|| Fault::Says(dropped.clone())))
        });
        let operator = fixture.operator_of(calls, |_| {}).await;
        fixture.create("dropped", spec).await;
        let status = fixture.when_is("dropped", "reason", "Unsupported").await;
        for words in [
            "spec.flux.container.source",
            "this is 1.34",
            "set copy, or auto",
            "feature gate ImageVolume",
        ] {
            assert_message(&status, words);
        }
        assert!(fixture.find::<Job>("dropped").await.is_none());
        operator.stop().await;
    });
}
