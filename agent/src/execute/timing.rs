//! Records how long the stages of a container take, and formats FLUXTIME lines.
//!
//! Stages are not spans of `tracing`, since such a span begins when it is created. A stage is recorded when
//! it is over, with a start in the past. Examples are the stages of init containers (other processes), those
//! of the wait for the parent (one wait has two stages, for the name and for the connection), and the
//! program. If the operator sends traces, it makes spans of the stages.

use std::path::Path;
use std::time::{Duration, Instant};

use flux_agent_plan::owner::Mode;
use flux_shared::paths::{AGENT_DIR, PodPaths, timeline_note_in};
use flux_shared::timeline::{self, PodTimeline};

use crate::files::Files;
use crate::report::log::{self, LineFormat, since_epoch, timestamp};

/// The stages of one container, in order.
#[derive(Debug)]
pub struct ContainerTimeline {
    started: Instant,
    /// `started` as the time since 1970.
    started_at: Duration,
    stages: Vec<Stage>,
}

#[derive(Debug)]
struct Stage {
    name: &'static str,
    /// Seconds from the agent's start to the stage's; negative for a stage of an init container.
    start: f64,
    /// How long it took.
    seconds: f64,
}

/// Stages of the init containers. Each leaves a note ([`leave_note`]).
const INIT_STAGES: [&str; 2] = ["install", "view"];

/// Writes a note below `mount` on the stage `name` of an init container, which began at `begin` and ends now. The note
/// has its start in seconds since 1970, and its duration in seconds. Errors are ignored: it is only for information.
pub fn leave_note(mount: &str, name: &str, begin: Instant) {
    let seconds = begin.elapsed();
    let start = since_epoch().saturating_sub(seconds);
    let text = format!("{:.6} {:.6}\n", start.as_secs_f64(), seconds.as_secs_f64());
    let path = timeline_note_in(mount, name);
    let _ = Files::new(Path::new("/"), "stage").ensure_file(
        &path,
        Mode(0o644),
        super::process_owner(),
        text.as_bytes(),
    );
}

impl ContainerTimeline {
    pub fn start() -> ContainerTimeline {
        ContainerTimeline {
            started: Instant::now(),
            started_at: since_epoch(),
            stages: Vec::new(),
        }
    }

    /// Adds the stages of the init containers, from their notes below `root`. `mount`: where the pod's volume
    /// is mounted.
    pub fn add_earlier(&mut self, root: &Path, mount: &str) {
        let paths = PodPaths::new(mount);
        let files = Files::new(root, "stage");
        for name in INIT_STAGES {
            // The init container that installs the agent writes its note beside the agent's binary.
            let notes = [paths.timeline_note(name), timeline_note_in(AGENT_DIR, name)];
            let text = notes
                .iter()
                .find_map(|path| std::fs::read_to_string(files.at(path)).ok())
                .unwrap_or_default();
            let mut numbers = text.split_whitespace().map(str::parse::<f64>);
            if let (Some(Ok(start)), Some(Ok(seconds))) = (numbers.next(), numbers.next()) {
                self.stages.push(Stage {
                    name,
                    start: start - self.started_at.as_secs_f64(),
                    seconds,
                });
            }
        }
    }

    /// Records the stage `name`, from `since` until now. Several steps in a row may be one stage: if the last stage has
    /// this name, adds the time to it.
    pub fn record(&mut self, name: &'static str, since: Instant) {
        self.record_until(name, since, Instant::now());
    }

    /// Records the stage `name`, from `since` to `until`. If the last stage has this name, adds the time to it.
    pub fn record_until(&mut self, name: &'static str, since: Instant, until: Instant) {
        let seconds = until.saturating_duration_since(since).as_secs_f64();
        match self.stages.last_mut() {
            Some(last) if last.name == name => last.seconds += seconds,
            _ => {
                let start = since.saturating_duration_since(self.started).as_secs_f64();
                self.stages.push(Stage { name, start, seconds });
            }
        }
    }

    /// Prints the timeline: a JSON line, after a table if the log is text.
    pub fn report(&self, role: &str, exit_code: u8) {
        let total = self.started.elapsed();
        if log::format() == LineFormat::Text {
            log::plain("timeline", &self.table(total));
        }
        log::write_whole(format!("{}\n", self.json(role, total, exit_code)));
    }

    /// The timeline for the container's termination message.
    pub fn for_message(&self, host: &str, role: &str) -> PodTimeline {
        // In microseconds. A value beyond the integer's range becomes its limit.
        let stages = self.stages.iter().map(|stage| timeline::Stage {
            name: stage.name.to_owned(),
            start: (stage.start * 1e6).round() as i64,
            lasted: (stage.seconds * 1e6).round() as u64,
        });
        PodTimeline {
            version: timeline::VERSION,
            host: host.to_owned(),
            role: role.to_owned(),
            started: self.started_at.as_micros() as u64,
            lasted: self.started.elapsed().as_micros() as u64,
            stages: stages.collect(),
        }
    }

    fn table(&self, total: Duration) -> String {
        let mut text = String::from("stage          start   seconds");
        for stage in &self.stages {
            text += &format!("\n{:<11}{:>9.3} {:>9.3}", stage.name, stage.start, stage.seconds);
        }
        text + &format!("\n{:<11}{:>9} {:>9.3}", "total", "", total.as_secs_f64())
    }

    fn json(&self, role: &str, total: Duration, exit_code: u8) -> serde_json::Value {
        // Rounded to microseconds.
        let rounded = |seconds: f64| (seconds * 1e6).round() / 1e6;
        let stages: Vec<_> = self
            .stages
            .iter()
            .map(|stage| {
                serde_json::json!({
                    "stage": stage.name, "start": rounded(stage.start), "seconds": rounded(stage.seconds),
                })
            })
            .collect();
        serde_json::json!({
            // The version of this line's format, which is not that of the termination message's `PodTimeline`.
            "timeline": 1, "role": role, "started": timestamp(self.started_at),
            "seconds": rounded(total.as_secs_f64()), "exit_code": exit_code, "stages": stages,
        })
    }
}

/// `FLUXTIME fluxstart wall time 0:04.73`: the documented line, as `/usr/bin/time -f %E` writes the duration.
pub fn flux_time(label: &str, elapsed: Duration) -> String {
    format!("FLUXTIME {label} wall time {}", elapsed_text(elapsed))
}

fn elapsed_text(elapsed: Duration) -> String {
    let seconds = elapsed.as_secs();
    if seconds >= 3_600 {
        return format!("{}:{:02}:{:02}", seconds / 3_600, seconds / 60 % 60, seconds % 60);
    }
    format!(
        "{}:{:02}.{:02}",
        seconds / 60,
        seconds % 60,
        elapsed.subsec_millis() / 10
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flux_time_is_written_as_documented() {
        let line = |millis| flux_time("fluxstart", Duration::from_millis(millis));
        assert_eq!(line(4_739), "FLUXTIME fluxstart wall time 0:04.73");
        assert_eq!(line(0), "FLUXTIME fluxstart wall time 0:00.00");
        assert_eq!(line(754_050), "FLUXTIME fluxstart wall time 12:34.05");
        assert_eq!(line(3_723_999), "FLUXTIME fluxstart wall time 1:02:03");
    }

    #[test]
    fn timeline_places_init_containers_before_the_start() {
        let pod = tempfile::tempdir().unwrap();
        let mount = pod.path().to_str().unwrap();
        leave_note(
            mount,
            "install",
            Instant::now().checked_sub(Duration::from_secs(2)).unwrap(),
        );
        std::fs::write(pod.path().join(".flux-stage.view"), "no number").unwrap();
        let mut timeline = ContainerTimeline::start();
        timeline.add_earlier(Path::new("/"), mount);
        let [stage] = timeline.stages.as_slice() else {
            panic!("{timeline:?}")
        };
        assert_eq!(stage.name, "install");
        assert!(
            (2.0..3.0).contains(&stage.seconds) && (-3.0..=-2.0).contains(&stage.start),
            "{stage:?}"
        );
    }

    #[test]
    fn message_has_the_stages_in_microseconds() {
        let mut timeline = ContainerTimeline::start();
        for (name, start, seconds) in [("view", -2.0, 1.5), ("plan", 0.0, 0.25)] {
            timeline.stages.push(Stage { name, start, seconds });
        }
        let message = timeline.for_message("mc-0", "lead");
        assert_eq!((message.host.as_str(), message.role.as_str()), ("mc-0", "lead"));
        assert_eq!(u128::from(message.started), timeline.started_at.as_micros());
        let line = message.encode(usize::MAX).unwrap();
        assert!(
            line.ends_with(r#""stages":[["view",-2000000,1500000],["plan",0,250000]]}"#),
            "{line}"
        );
    }

    #[test]
    fn timeline_joins_repeated_stages_and_lists_each() {
        let mut timeline = ContainerTimeline::start();
        let begin = timeline.started;
        timeline.record_until("config", begin, begin + Duration::from_millis(2));
        timeline.record_until("config", begin, begin + Duration::from_millis(3));
        timeline.record_until(
            "connect",
            begin + Duration::from_millis(5),
            begin + Duration::from_millis(105),
        );
        assert_eq!(timeline.stages.len(), 2);
        let json = timeline.json("lead", Duration::from_millis(200), 7);
        assert_eq!(json["stages"][0]["seconds"], 0.005);
        assert_eq!(
            (&json["stages"][1]["stage"], &json["exit_code"]),
            (&"connect".into(), &7.into())
        );
        assert!(
            timeline
                .table(Duration::from_millis(200))
                .contains("connect        0.005     0.100")
        );
    }
}
