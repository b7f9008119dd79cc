//! An operator that lost its connection lists again soon. It then learns what was deleted and created meanwhile.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flux_shared::crd::v1alpha2::MiniCluster;
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use crate::storage;
use test_support::api_server::{Call, Calls, Fault, Fixture, Operator, operator_kubeconfig, test, until};
use test_support::control_plane::kubeconfig_via;

/// A connection to the API server that can be cut: connections end, and no new one is served.
struct Line {
    kubeconfig: PathBuf,
    is_cut: watch::Sender<bool>,
    /// The next watch of MiniClusters finds that the API server has forgotten earlier versions.
    is_too_old: Arc<AtomicBool>,
}

impl Line {
    async fn to(kubeconfig: &Path) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (kubeconfig, server) =
            kubeconfig_via(kubeconfig, "line", listener.local_addr().unwrap()).unwrap();
        let is_cut = watch::Sender::new(false);
        let cut = is_cut.clone();
        tokio::spawn(async move {
            loop {
                let (mut client, _) = listener.accept().await.unwrap();
                let (mut cut, server) = (cut.subscribe(), server.clone());
                tokio::spawn(async move {
                    let carry = async {
                        let mut server = TcpStream::connect(&server).await.unwrap();
                        let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
                    };
                    tokio::select! {
                        biased;
                        _ = cut.wait_for(|is_cut| *is_cut) => {}
                        () = carry => {}
                    }
                });
            }
        });
        let is_too_old = Arc::default();
        Line {
            kubeconfig,
            is_cut,
            is_too_old,
        }
    }

    /// Serves connections again, as if so much time had passed that the next watch of MiniClusters fails.
    fn mend_too_late(&self) {
        self.is_too_old.store(true, Ordering::SeqCst);
        self.is_cut.send_replace(false);
    }
}

/// An operator whose connection can be cut.
async fn operator_behind_line(fixture: &Fixture) -> (Operator, Line) {
    let line = Line::to(&operator_kubeconfig()).await;
    let too_old = line.is_too_old.clone();
    let calls = Calls::with_faults(move |call: &Call| {
        let is_watch = call.verb == "watch" && call.resource == "miniclusters";
        (is_watch && too_old.swap(false, Ordering::SeqCst)).then_some(Fault::Answer(410))
    });
    (fixture.operator_as(&line.kubeconfig, calls, |_| {}).await, line)
}

#[test]
fn volume_of_cluster_deleted_unseen_goes_after_the_next_list() {
    test("relist", async |fixture| {
        let (operator, line) = operator_behind_line(&fixture).await;
        let volume = async |name: &str| storage::volume(&fixture, name).await;
        let spec = || storage::spec(json!({ "path": "/tmp/data" }));
        for name in ["goes", "comes-again"] {
            fixture.create(name, spec()).await;
            fixture.pods(name, 1).await;
            volume(name).await.expect("its volume");
        }
        line.is_cut.send_replace(true);
        for name in ["goes", "comes-again"] {
            fixture.delete::<MiniCluster>(name).await;
            until("it is gone", async || {
                fixture.reap(name).await;
                fixture.find::<MiniCluster>(name).await.is_none().then_some(())
            })
            .await;
        }
        // Meanwhile the pauses between the operator's attempts grow to their maximum.
        tokio::time::sleep(Duration::from_secs(30)).await;
        let begin = Instant::now();
        line.mend_too_late();
        fixture.create("comes-again", spec()).await;
        fixture.create("new", json!({ "size": 1 })).await;
        fixture
            .when("new", "seen", |status| status["phase"].is_string())
            .await;
        assert!(
            begin.elapsed() < Duration::from_secs(10),
            "the list was stale for {:?}",
            begin.elapsed()
        );
        until("the volume is gone", async || {
            fixture.reap("goes").await;
            volume("goes").await.is_none().then_some(())
        })
        .await;
        until("the one of the same name starts", async || {
            fixture.reap("comes-again").await;
            (fixture.all_pods("comes-again").await.len() == 1).then_some(())
        })
        .await;
        fixture
            .when("comes-again", "running", |status| {
                status["reason"].is_null() && status["size"] == 1
            })
            .await;
        operator.stop().await;
    });
}

/// A list comes in pages, and the operator stores none of it before the last page. The first page of a list of
/// MiniClusters has 10, so these 26 need several.
#[test]
fn clusters_created_unseen_start_whichever_page_lists_them() {
    test("relist-pages", async |fixture| {
        let (operator, line) = operator_behind_line(&fixture).await;
        fixture.create("seen", json!({ "size": 1 })).await;
        fixture.pods("seen", 1).await;
        line.is_cut.send_replace(true);
        let names: Vec<String> = (0..25).map(|number| format!("mc-{number}")).collect();
        for name in &names {
            fixture.create(name, json!({ "size": 1 })).await;
        }
        line.mend_too_late();
        for name in &names {
            fixture
                .when(name, "seen", |status| status["phase"].is_string())
                .await;
        }
        operator.stop().await;
    });
}
