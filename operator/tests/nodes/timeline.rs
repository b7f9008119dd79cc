//! What the statuses of a namespace's MiniClusters said, and when.

use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use flux_shared::crd::v1alpha2::MiniCluster;
use futures::StreamExt;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use serde_json::Value;
use tokio::task::JoinHandle;

/// Seconds since 1970, as in the lines that programs record (`test_support::history`).
pub fn now() -> f64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap()
        .as_secs_f64()
}

struct Seen {
    /// When the watch delivered it.
    at: f64,
    name: String,
    status: Value,
}

/// The statuses so far. The watch ends when this is dropped.
pub struct Timeline {
    seen: Arc<Mutex<Vec<Seen>>>,
    watch: JoinHandle<()>,
}

impl Timeline {
    pub fn of(clusters: Api<MiniCluster>) -> Timeline {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let to = seen.clone();
        let watch = tokio::spawn(async move {
            let events = watcher(clusters, watcher::Config::default())
                .default_backoff()
                .applied_objects();
            // After an error, the watcher retries.
            events
                .for_each(async |event| {
                    let Ok(cluster) = event else { return };
                    let status = serde_json::to_value(&cluster.status).unwrap();
                    to.lock().unwrap().push(Seen {
                        at: now(),
                        name: cluster.name_any(),
                        status,
                    });
                })
                .await;
        });
        Timeline { seen, watch }
    }

    /// The first time, from `from` on, at which the status of `name` was like this.
    pub fn first(&self, name: &str, from: f64, is_so: impl Fn(&Value) -> bool) -> Option<f64> {
        let seen = self.seen.lock().unwrap();
        seen.iter()
            .find(|seen| seen.name == name && seen.at >= from && is_so(&seen.status))
            .map(|seen| seen.at)
    }

    /// A line for each change of phase, reason or message.
    pub fn story(&self, name: &str) -> String {
        let seen = self.seen.lock().unwrap();
        let mut lines: Vec<(f64, String)> = Vec::new();
        for Seen { at, status, .. } in seen.iter().filter(|seen| seen.name == name) {
            let field = |field: &str| status[field].as_str().unwrap_or("-").to_owned();
            let line = format!("{}, {}: {}", field("phase"), field("reason"), field("message"));
            if lines.last().is_none_or(|(_, last)| *last != line) {
                lines.push((*at, line));
            }
        }
        lines
            .iter()
            .map(|(at, line)| format!("{at:.1} {name} {line}\n"))
            .collect()
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        self.watch.abort();
    }
}
