use serde_json::json;

use super::*;
use crate::testing::{Log, server};

fn args() -> Args {
    Args {
        name: "mc".into(),
        index: 0,
        all: true,
        follow: false,
        previous: false,
        container: None,
    }
}

/// A pod whose only container has ended.
fn ended_pod() -> Pod {
    serde_json::from_value(json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "mc-0-x", "uid": "u" },
        "spec": { "containers": [{ "name": "flux" }] },
        "status": { "phase": "Failed", "containerStatuses": [{ "name": "flux", "image": "i", "imageID": "",
            "ready": false, "restartCount": 0, "state": { "terminated": { "exitCode": 1 } } }] },
    }))
    .unwrap()
}

const LINE: &[u8] = b"2026-01-01T00:00:00.1Z a\n";

fn whole(bytes: &'static [u8]) -> Log {
    Log { bytes, stalls: false }
}

fn stalled(bytes: &'static [u8]) -> Log {
    Log { bytes, stalls: true }
}

/// Follows the log of a container that has ended; the result, and how many of the logs were not read.
async fn followed(logs: Vec<Log>) -> (Result<(), Failure>, usize) {
    let pod = ended_pod();
    let (target, left) = server(&pod, logs);
    let start = ("u".to_owned(), 0);
    let result = follow(&target.pods(), &pod, &start, || ()).await;
    let left = left.lock().unwrap().len();
    (result, left)
}

#[tokio::test(start_paused = true)]
async fn follow_fails_when_the_last_read_stalls() {
    let stalls = (0..TRIES).map(|_| stalled(b""));
    let (result, left) = followed([whole(LINE)].into_iter().chain(stalls).collect()).await;
    let failure = result.unwrap_err().to_string();
    assert!(failure.contains("no data came for 120 s"), "{failure}");
    assert_eq!(left, 0);
}

#[tokio::test(start_paused = true)]
async fn follow_reads_again_when_the_last_read_stalls() {
    let logs = vec![whole(LINE), stalled(LINE), stalled(b""), whole(LINE), whole(LINE)];
    let (result, left) = followed(logs).await;
    result.unwrap();
    assert_eq!(left, 1, "the last read was complete");
}

#[tokio::test]
async fn logs_print_bytes_that_are_no_utf_8() {
    let (target, _) = server(&ended_pod(), [whole(b"a\xff\nb")]);
    let mut printed = Vec::new();
    let put = |line: &[u8]| {
        printed.push(line.to_vec());
        Ok(())
    };
    stream(&target.pods(), &ended_pod(), &args(), put).await.unwrap();
    assert_eq!(printed, [b"a\xff\n".to_vec(), b"b\n".to_vec()]);
}
