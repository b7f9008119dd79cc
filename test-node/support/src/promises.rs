//! The documented promises about the starts and the end of a MiniCluster, checked against the history that its
//! program recorded. Written from docs/concepts.md ("Restarts"), not from the operator's code.

use serde_json::Value;

use crate::history::{History, Run};

/// A result that was written less than this before a pod was lost may not have reached the cluster.
const SECONDS_TO_REPORT: f64 = 20.0;

/// With more retries than this, a program that always fails does not reach its final status within a test.
const MANY_RETRIES: u64 = 10;

/// The limit from the end of a program to the final status.
const SECONDS_TO_FINISH: f64 = 60.0;

/// What the manifest asked for.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// The exit code of the program, or of the batch of which it is a line.
    pub code: i32,
    /// Number of tasks that must end.
    pub tasks: usize,
    /// It has no program: it completes when somebody stops its instance.
    pub is_interactive: bool,
    pub backoff_limit: u64,
    pub max_restarts: u64,
    /// `pod.restartPolicy: OnFailure`.
    pub is_retried: bool,
    /// How often it was suspended. A suspension may stop the program, which starts again on resume.
    pub suspensions: u64,
}

/// A fault that may have removed a pod of this MiniCluster.
#[derive(Debug, Clone)]
pub struct Disturbance {
    /// When the fault began, in seconds since 1970.
    pub from: f64,
    /// When all should have settled again: the kubelet may report a lost pod only after its node is back.
    pub to: f64,
    /// The pod was force-deleted: Kubernetes then does not know whether it still runs.
    pub is_forced: bool,
}

impl Disturbance {
    pub fn interval(&self) -> Interval {
        Interval {
            from: self.from,
            to: self.to,
        }
    }
}

/// From when to when something lasted, in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Interval {
    pub from: f64,
    pub to: f64,
}

/// Every promise that was broken, as a sentence.
pub fn broken(
    wanted: &Wanted,
    history: &History,
    status: &Value,
    disturbances: &[Disturbance],
) -> Vec<String> {
    let mut broken = Vec::new();
    let runs = history.runs();
    let number = |field: &str| status[field].as_u64().unwrap_or(0);
    let is_forced = disturbances.iter().any(|disturbance| disturbance.is_forced);

    for overlap in history.overlaps() {
        if !is_forced {
            broken.push(format!("two starts ran at once for {:.1} s", overlap.seconds));
        }
    }
    let succeeded = |run: &Run| wanted.code == 0 && run.ended >= wanted.tasks;
    if let Some(first) = runs.iter().position(succeeded)
        && first + 1 < runs.len()
        && !is_disturbed_at_end(&runs[first], disturbances)
    {
        broken.push("the program started again after a success".into());
    }
    if wanted.code != 0 && !wanted.is_retried {
        let failed = runs.iter().position(|run| run.ended > 0);
        if failed
            .is_some_and(|first| first + 1 < runs.len() && !is_disturbed_at_end(&runs[first], disturbances))
        {
            broken.push("a failed program started again with restartPolicy Never".into());
        }
    }
    // Not checked with OnFailure: the operator may miss restarts of a lead that was lost. A suspension counts as a restart
    // only if the operator has seen the lead's container start.
    let counted = 1 + number("restartCount") + wanted.suspensions;
    if !wanted.is_retried && runs.len() as u64 > counted {
        broken.push(format!("{} starts, and the status counts {counted}", runs.len()));
    }
    if number("backoffLimitUsed") > wanted.backoff_limit {
        broken.push(format!(
            "backoffLimit is {}, and {} were used",
            wanted.backoff_limit,
            number("backoffLimitUsed")
        ));
    }
    if number("maxRestartsUsed") > wanted.max_restarts {
        broken.push(format!(
            "maxRestarts is {}, and {} were used",
            wanted.max_restarts,
            number("maxRestartsUsed")
        ));
    }
    // `restartCount` includes the kubelet's restarts. A program that ends with 0 needs none.
    let after_failures = if wanted.code == 0 {
        0
    } else {
        starts_in_place(wanted, status)
    };
    if disturbances.is_empty() && number("restartCount") > after_failures {
        broken.push("it restarted though none of its pods was removed".into());
    }
    broken.extend(wrong_end(wanted, runs.last(), status, disturbances));
    broken
}

/// What is wrong with the end that the status reports.
fn wrong_end(
    wanted: &Wanted,
    last: Option<&Run>,
    status: &Value,
    disturbances: &[Disturbance],
) -> Option<String> {
    let has_ended = last.is_some_and(|run| run.ended >= wanted.tasks);
    let code = status["exitCode"].as_i64();
    let reason = status["reason"].as_str().unwrap_or_default();
    match status["phase"].as_str().unwrap_or_default() {
        "Completed" if wanted.is_interactive => {
            (code != Some(0)).then(|| format!("Completed with {code:?} after somebody stopped its instance"))
        }
        "Completed" if !has_ended => {
            Some("Completed, and the last start of the program has not ended".into())
        }
        "Completed" if wanted.code != 0 || code != Some(0) => Some(format!(
            "Completed with {code:?}, and the program ended with {}",
            wanted.code
        )),
        "Completed" => None,
        "Failed" if has_ended && !last.is_some_and(|run| is_disturbed_at_end(run, disturbances)) => {
            let is_the_programs = wanted.code != 0 && code == Some(i64::from(wanted.code));
            (!is_the_programs).then(|| {
                format!(
                    "Failed with {code:?} ({reason}), and the program ended with {}",
                    wanted.code
                )
            })
        }
        "Failed" if wanted.code != 0 && code == Some(i64::from(wanted.code)) => None,
        "Failed" => {
            let used = |field: &str| status[field].as_u64().unwrap_or(0);
            // A lost lead counts against backoffLimit, and a follower that was lost with its job against maxRestarts.
            let has_no_restart_left = used("backoffLimitUsed") + starts_in_place(wanted, status)
                >= wanted.backoff_limit
                || (reason == "PodLost" && used("maxRestartsUsed") >= wanted.max_restarts);
            if disturbances.is_empty() {
                Some(format!("Failed ({reason}) though none of its pods was removed"))
            } else if !has_no_restart_left {
                Some(format!("Failed ({reason}) though a restart was left"))
            } else {
                None
            }
        }
        // Kubernetes waits up to five minutes before each further start. So it may still be retrying.
        "Starting" | "Running"
            if wanted.is_retried && wanted.code != 0 && wanted.backoff_limit > MANY_RETRIES =>
        {
            None
        }
        // The size was lowered before the start. The status names the quorum and the remedy.
        "Starting" if reason == "SizeBelowQuorum" => None,
        phase => Some(format!("it is {phase} ({reason}) long after the last fault")),
    }
}

/// Complains if the final status came late after the program ended by itself. It must come within a minute without
/// faults.
pub fn late(ended_at: f64, finished_at: f64, faults: &[Interval]) -> Option<String> {
    let mut faults = faults.to_vec();
    faults.sort_by(|one, other| one.from.total_cmp(&other.from));
    let calm_since = faults.iter().fold(ended_at, |calm, fault| {
        if fault.from - SECONDS_TO_FINISH <= calm {
            calm.max(fault.to)
        } else {
            calm
        }
    });
    let seconds = finished_at - calm_since;
    (seconds > SECONDS_TO_FINISH)
        .then(|| format!("its final status came {seconds:.0} s after its program had ended and all was calm"))
}

/// Whether a fault was so near to the end of the run that the result may be lost.
fn is_disturbed_at_end(run: &Run, disturbances: &[Disturbance]) -> bool {
    disturbances
        .iter()
        .any(|fault| fault.from - SECONDS_TO_REPORT <= run.to && run.to <= fault.to + SECONDS_TO_REPORT)
}

/// Restarts of the container by the kubelet with OnFailure, which Kubernetes counts against `backoffLimit`.
fn starts_in_place(wanted: &Wanted, status: &Value) -> u64 {
    let restarts = status["containerRestarts"].as_u64().unwrap_or(0);
    if wanted.is_retried { restarts } else { 0 }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn wanted(code: i32) -> Wanted {
        Wanted {
            code,
            tasks: 1,
            is_interactive: false,
            backoff_limit: 1,
            max_restarts: 0,
            is_retried: false,
            suspensions: 0,
        }
    }

    /// A run is (from, to, whether it ended by itself). Each has its own pod.
    fn history(runs: &[(f64, f64, bool)]) -> History {
        let lines = runs.iter().enumerate().map(|(pod, (from, to, has_ended))| {
            let last = if *has_ended { "END" } else { "tick" };
            format!("{from} START pod=p{pod} host=h rank=0\n{to} {last} pod=p{pod} host=h rank=0\n")
        });
        History::parse(&lines.collect::<String>())
    }

    fn disturbed(from: f64, to: f64) -> Vec<Disturbance> {
        vec![Disturbance {
            from,
            to,
            is_forced: false,
        }]
    }

    #[test]
    fn undisturbed_success_and_failure_break_nothing() {
        let completed = json!({ "phase": "Completed", "exitCode": 0 });
        assert_eq!(
            broken(&wanted(0), &history(&[(0.0, 9.0, true)]), &completed, &[]),
            [""; 0]
        );
        let failed = json!({ "phase": "Failed", "exitCode": 3, "reason": "NonZeroExitCode" });
        assert_eq!(
            broken(&wanted(3), &history(&[(0.0, 9.0, true)]), &failed, &[]),
            [""; 0]
        );
    }

    #[test]
    fn container_that_the_kubelet_restarts_breaks_nothing() {
        let twice = history(&[(0.0, 9.0, true), (12.0, 21.0, true)]);
        let status = json!({
            "phase": "Failed", "exitCode": 3, "reason": "NonZeroExitCode", "restartCount": 1, "containerRestarts": 1,
        });
        let retried = Wanted {
            is_retried: true,
            ..wanted(3)
        };
        assert_eq!(broken(&retried, &twice, &status, &[]), [""; 0]);
    }

    #[test]
    fn start_that_waits_below_the_quorum_breaks_nothing() {
        let below = json!({ "phase": "Starting", "reason": "SizeBelowQuorum" });
        assert_eq!(broken(&wanted(0), &history(&[]), &below, &[]), [""; 0]);
    }

    #[test]
    fn each_lie_of_the_status_is_found() {
        let once = history(&[(0.0, 9.0, true)]);
        for (code, status, finding) in [
            (
                0,
                json!({ "phase": "Failed", "exitCode": 255, "reason": "NonZeroExitCode" }),
                "and the program ended with 0",
            ),
            (
                3,
                json!({ "phase": "Completed", "exitCode": 0 }),
                "Completed with Some(0)",
            ),
            (
                3,
                json!({ "phase": "Failed", "exitCode": 137 }),
                "Failed with Some(137)",
            ),
            (
                0,
                json!({ "phase": "Running", "reason": "BrokersReady" }),
                "long after the last fault",
            ),
            (
                0,
                json!({ "phase": "Completed", "exitCode": 0, "restartCount": 1 }),
                "though none of its pods",
            ),
        ] {
            let broken = broken(&wanted(code), &once, &status, &[]);
            assert!(broken.len() == 1 && broken[0].contains(finding), "{broken:?}");
        }
        let unended = broken(
            &wanted(0),
            &history(&[(0.0, 9.0, false)]),
            &json!({ "phase": "Completed", "exitCode": 0 }),
            &[],
        );
        assert!(unended[0].contains("has not ended"), "{unended:?}");
    }

    #[test]
    fn start_after_success_is_excused_only_by_a_loss_at_that_time() {
        let twice = history(&[(0.0, 90.0, true), (200.0, 290.0, true)]);
        let status = json!({ "phase": "Completed", "exitCode": 0, "restartCount": 1, "backoffLimitUsed": 1 });
        assert_eq!(
            broken(&wanted(0), &twice, &status, &disturbed(85.0, 95.0)),
            [""; 0]
        );
        let early = broken(&wanted(0), &twice, &status, &disturbed(5.0, 10.0));
        assert_eq!(early, ["the program started again after a success"]);
    }

    #[test]
    fn starts_beyond_the_limits_and_at_once_are_found() {
        let overlapping = history(&[(0.0, 90.0, false), (80.0, 200.0, true)]);
        let status = json!({ "phase": "Completed", "exitCode": 0, "restartCount": 2, "backoffLimitUsed": 2 });
        let broken = broken(&wanted(0), &overlapping, &status, &disturbed(85.0, 95.0));
        assert_eq!(
            broken,
            [
                "two starts ran at once for 10.0 s",
                "backoffLimit is 1, and 2 were used"
            ]
        );
    }

    #[test]
    fn loss_fails_a_minicluster_only_without_a_restart_left() {
        let lost = history(&[(0.0, 50.0, false)]);
        let status = |used: u64| json!({ "phase": "Failed", "reason": "LeadLost", "backoffLimitUsed": used });
        assert_eq!(
            broken(&wanted(0), &lost, &status(1), &disturbed(49.0, 60.0)),
            [""; 0]
        );
        let early = broken(&wanted(0), &lost, &status(0), &disturbed(49.0, 60.0));
        assert_eq!(early, ["Failed (LeadLost) though a restart was left"]);
        let retried = Wanted {
            is_retried: true,
            ..wanted(3)
        };
        let mut in_place = status(0);
        in_place["containerRestarts"] = 1.into();
        in_place["restartCount"] = 1.into();
        assert_eq!(
            broken(&retried, &lost, &in_place, &disturbed(49.0, 60.0)),
            [""; 0]
        );
        let running = json!({ "phase": "Running" });
        assert_eq!(broken(&retried, &lost, &running, &[]).len(), 1);
        let retried_on = Wanted {
            backoff_limit: 100,
            ..retried
        };
        assert_eq!(broken(&retried_on, &lost, &running, &[]), [""; 0], "it goes on");
        let without_cause = broken(&wanted(0), &lost, &status(1), &[]);
        assert_eq!(
            without_cause,
            ["Failed (LeadLost) though none of its pods was removed"]
        );
    }

    #[test]
    fn final_status_is_late_after_a_calm_minute() {
        let fault = |from, to| Interval { from, to };
        assert_eq!(late(100.0, 150.0, &[]), None);
        assert!(late(100.0, 165.0, &[]).is_some());
        // A fault within the minute excuses the delay, and so does each that follows another within a minute.
        let faults = [fault(120.0, 180.0), fault(230.0, 240.0)];
        assert_eq!(late(100.0, 290.0, &faults), None);
        assert!(late(100.0, 310.0, &faults).is_some());
        let with_a_gap = [fault(0.0, 50.0), fault(170.0, 300.0)];
        assert!(late(100.0, 310.0, &with_a_gap).is_some());
    }

    #[test]
    fn interactive_cluster_completes_with_0_or_exhausts_restarts() {
        let wanted = Wanted {
            is_interactive: true,
            tasks: 0,
            ..wanted(0)
        };
        let ended = |code: i64| json!({ "phase": "Completed", "exitCode": code });
        let nothing = history(&[]);
        assert_eq!(broken(&wanted, &nothing, &ended(0), &[]), [""; 0]);
        assert_eq!(broken(&wanted, &nothing, &ended(143), &[]).len(), 1);
        let lost = json!({ "phase": "Failed", "reason": "LeadLost", "backoffLimitUsed": 0 });
        assert_eq!(
            broken(&wanted, &nothing, &lost, &disturbed(5.0, 9.0)),
            ["Failed (LeadLost) though a restart was left"]
        );
    }
}
