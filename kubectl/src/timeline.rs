//! `timeline`: where the time of a start and of the job went, as bars. Pure, except for `run`.

use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use crate::failure::Failure;
use crate::output::Output;
use crate::screen;
use crate::target::Target;

/// Most and fewest columns for the bars.
const MAX_WIDTH: usize = 50;
const MIN_WIDTH: usize = 5;
/// Columns of the text before the bars: a step's name and duration, as `bars` writes them.
const TEXT_WIDTH: usize = 43;

/// Arguments of `timeline`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Name of the MiniCluster
    pub name: String,
}

/// A step of the timeline.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Step {
    pub name: &'static str,
    /// Seconds after the MiniCluster was created.
    pub begin: f64,
    /// Duration in seconds. None: the step has not ended.
    pub seconds: Option<f64>,
}

/// Prints the timeline.
pub async fn run(target: &Target, args: &Args, output: Output) -> Result<u8, Failure> {
    let cluster = target.cluster(&args.name).await?;
    let steps = steps(&cluster);
    let width = screen::width().map_or(MAX_WIDTH, |columns| {
        columns.saturating_sub(TEXT_WIDTH).clamp(MIN_WIDTH, MAX_WIDTH)
    });
    output.show(&steps, || bars(&steps, width)).map(|()| 0)
}

/// The timeline as text for a file, with the widest bars: a file has no width.
pub fn text(cluster: &MiniCluster) -> String {
    bars(&steps(cluster), MAX_WIDTH)
}

/// The steps. Each begins where the last step that was reached ended. Times have the precision of the API server,
/// one second.
fn steps(cluster: &MiniCluster) -> Vec<Step> {
    let Some(created) = cluster.metadata.creation_timestamp.as_ref().map(|time| time.0) else {
        return Vec::new();
    };
    let status = cluster.status.clone().unwrap_or_default();
    let timeline = status.timeline.unwrap_or_default();
    let failed_before_ready =
        timeline.ready.is_none() && status.completion_time.is_some() && status.exit_code != Some(0);
    // A job that ended before its brokers were connected may have run nothing.
    let last_step = if failed_before_ready {
        "it ends"
    } else {
        "the job runs"
    };
    // A restart changes no `start_time`, but the rest of the timeline is that of the last start.
    let restarted = status.restarts.last().map(|restart| restart.time.clone());
    let earlier = restarted.is_some().then_some(("earlier starts", &restarted));
    let points = [
        ("the Job is created", &status.start_time),
        ("pods are scheduled", &timeline.scheduled),
        ("images, Flux, the lead starts", &timeline.running),
        ("brokers connect", &timeline.ready),
        (last_step, &status.completion_time),
    ];
    let mut steps = Vec::new();
    let mut last = created;
    let is_over = status.completion_time.is_some();
    for (name, at) in earlier.into_iter().chain(points) {
        match at.as_deref().and_then(|at| at.parse::<Timestamp>().ok()) {
            Some(at) => {
                // The times are by the clocks of several machines, so one may be before the last.
                let at = at.max(last);
                steps.push(Step {
                    name,
                    begin: seconds(created, last),
                    seconds: Some(seconds(last, at)),
                });
                last = at;
            }
            // A step that was never reached is left out.
            None if is_over => {}
            None => {
                steps.push(Step {
                    name,
                    begin: seconds(created, last),
                    seconds: None,
                });
                break;
            }
        }
    }
    steps
}

fn seconds(from: Timestamp, to: Timestamp) -> f64 {
    to.duration_since(from).as_secs_f64()
}

/// One line for each step, with its name, duration and bar, and a line with the total. `width`: columns for the bars.
fn bars(steps: &[Step], width: usize) -> String {
    let total = steps
        .iter()
        .map(|step| step.begin + step.seconds.unwrap_or(0.0))
        .fold(0.0, f64::max);
    let columns = |seconds: f64| {
        if total > 0.0 {
            columns_of(seconds / total, width)
        } else {
            0
        }
    };
    let mut text = String::new();
    for step in steps {
        let (duration, length) = match step.seconds {
            Some(seconds) => (
                format!("{seconds:8.1} s"),
                columns(step.begin + seconds) - columns(step.begin),
            ),
            None => (format!("{:>8}  ", "now"), 1),
        };
        // A step that has just begun may begin in the last column.
        let before = " ".repeat(columns(step.begin).min(width.saturating_sub(length)));
        text += format!("{:<30} {duration}  {before}{}", step.name, "█".repeat(length)).trim_end();
        text.push('\n');
    }
    let is_open = steps.last().is_some_and(|step| step.seconds.is_none());
    let label = if is_open { "until the last step" } else { "in all" };
    text + &format!("{label:<30} {total:8.1} s\n")
}

/// The share `part` (0 to 1) of `width`, in whole columns.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "0 to width"
)]
fn columns_of(part: f64, width: usize) -> usize {
    (part * width as f64).round().clamp(0.0, width as f64) as usize
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn cluster(status: Value) -> MiniCluster {
        serde_json::from_value(json!({
            "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
            "metadata": { "name": "mc", "creationTimestamp": "2026-01-01T00:00:00Z" },
            "spec": { "containers": [{ "image": "a" }] }, "status": status,
        }))
        .unwrap()
    }

    #[test]
    fn each_step_is_a_bar_that_begins_where_the_one_before_ended() {
        let status = json!({
            "startTime": "2026-01-01T00:00:00Z", "completionTime": "2026-01-01T00:00:10Z",
            "timeline": { "scheduled": "2026-01-01T00:00:01Z", "running": "2026-01-01T00:00:04Z", "ready": "2026-01-01T00:00:05Z" },
        });
        let steps = steps(&cluster(status));
        assert_eq!(
            steps.iter().map(|step| step.seconds.unwrap()).collect::<Vec<_>>(),
            [0.0, 1.0, 3.0, 1.0, 5.0]
        );
        let text = bars(&steps, MAX_WIDTH);
        let last = text.lines().nth(4).unwrap();
        assert!(
            last.ends_with(&format!("5.0 s  {}{}", " ".repeat(25), "█".repeat(25))),
            "{text}"
        );
        assert!(text.lines().nth(5).unwrap().ends_with("10.0 s"), "{text}");
        let narrow = bars(&steps, 60 - TEXT_WIDTH);
        assert!(narrow.lines().all(|line| line.chars().count() <= 60), "{narrow}");

        let open = json!({
            "startTime": "2026-01-01T00:00:00Z", "timeline": { "scheduled": "2026-01-01T00:00:01Z" },
        });
        let narrow = bars(&super::steps(&cluster(open)), 60 - TEXT_WIDTH);
        let last = narrow.lines().rev().nth(1).unwrap();
        assert!(last.contains("     now  "), "{narrow}");
        assert_eq!(
            (last.chars().count(), last.chars().last()),
            (60, Some('█')),
            "{narrow}"
        );
    }

    /// The start time is that of the first start, and the timeline that of the last one.
    #[test]
    fn earlier_starts_are_a_step_of_their_own() {
        let restart = json!({ "time": "2026-01-01T01:00:00Z", "reason": "LeadLost", "message": "" });
        let status = json!({ "startTime": "2026-01-01T00:00:01Z", "restarts": [restart],
            "timeline": { "scheduled": "2026-01-01T01:00:02Z" } });
        let steps = steps(&cluster(status));
        let shown = |at: usize| (steps[at].name, steps[at].seconds);
        assert_eq!(shown(0), ("earlier starts", Some(3600.0)));
        assert_eq!(shown(2), ("pods are scheduled", Some(2.0)));
        let text = bars(&steps, MAX_WIDTH);
        assert!(text.contains("until the last step"), "{text}");
    }

    #[test]
    fn timeline_step_is_open_while_it_runs_and_absent_if_unreached() {
        let begun = steps(&cluster(json!({ "startTime": "2026-01-01T00:00:01Z" })));
        assert_eq!(
            (begun.len(), begun[1].name, begun[1].seconds),
            (2, "pods are scheduled", None)
        );
        let failed = json!({ "startTime": "2026-01-01T00:00:01Z", "completionTime": "2026-01-01T00:00:03Z" });
        let failed = steps(&cluster(failed));
        assert_eq!((failed.len(), failed[1].name), (2, "it ends"));
        assert!(bars(&[], MAX_WIDTH).contains("0.0 s"));
    }
}
