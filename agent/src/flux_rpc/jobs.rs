//! Stops or kills the jobs of an instance through its broker, in Flux's own messages.

use serde_json::Value;

use crate::flux_rpc::connection::Broker;
use crate::flux_rpc::message::ANY;

/// Jobs that have not begun: DEPEND, PRIORITY, SCHED (RFC 21).
const WAITING: u32 = 2 | 4 | 8;

/// Cancels jobs that wait, and sends SIGTERM to those that run. False: none runs, or that is not known.
pub async fn stop(broker: &Broker) -> bool {
    let cancel = format!(
        r#"{{"dry_run":false,"userid":-1,"states":{WAITING},"severity":0,"type":"cancel","note":"the pod is to stop"}}"#
    );
    // A broker that knows no such message ends its jobs as it always did.
    let _ = broker.ask(ANY, "job-manager.raiseall", &cancel).await;
    signal(broker, libc::SIGTERM).await
}

/// Kills the jobs that run; whether there are any.
pub async fn kill(broker: &Broker) -> bool {
    signal(broker, libc::SIGKILL).await
}

/// Sends a signal to all jobs that run; whether there are any.
async fn signal(broker: &Broker, signal: i32) -> bool {
    let all = format!(r#"{{"dry_run":false,"userid":-1,"signum":{signal}}}"#);
    let answer = broker
        .ask(ANY, "job-manager.killall", &all)
        .await
        .unwrap_or_default();
    answer["count"].as_u64().unwrap_or_default() > 0
}

/// Whether Flux has ended the newest job because a node of it was lost.
pub async fn node_was_lost(broker: &Broker) -> bool {
    let newest = r#"{"max_entries":1,"attrs":["exception_occurred","exception_type","exception_note"],"constraint":{}}"#;
    let answer = broker.ask(ANY, "job-list.list", newest).await.unwrap_or_default();
    answer["jobs"].as_array().into_iter().flatten().any(is_lost)
}

/// Whether a job lost a node: its exception is `node-failure` if it could go on without the node, else `exec`
/// with a note that says so (flux-core's `job-exec/bulkexec.c`).
fn is_lost(job: &Value) -> bool {
    let note = job["exception_note"].as_str().unwrap_or_default();
    job["exception_type"] == "node-failure"
        || (job["exception_type"] == "exec" && note.contains("node failure on "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_is_lost_only_by_a_node_failure() {
        for (job, lost) in [
            (
                r#"{"id":1,"exception_occurred":true,"exception_type":"node-failure","exception_note":"mc-1"}"#,
                true,
            ),
            (
                r#"{"id":1,"exception_type":"exec","exception_note":"node failure on mc-1 (rank 1)"}"#,
                true,
            ),
            (
                r#"{"id":1,"exception_type":"exec","exception_note":"task 0: start failed: x: No such file"}"#,
                false,
            ),
            (
                r#"{"id":1,"exception_type":"cancel","exception_note":"node failure on mc-1"}"#,
                false,
            ),
            (r#"{"id":1,"exception_occurred":false}"#, false),
        ] {
            assert_eq!(is_lost(&serde_json::from_str(job).unwrap()), lost, "{job}");
        }
    }
}
