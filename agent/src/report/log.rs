//! The agent's log on standard error. Code logs with `tracing`'s macros, with the field `stage`. This module formats
//! the lines: short, with a time, each written by one call.
//!
//! Text: `04:22:56.123 flux-agent: waiting for mc-0`; JSON: one object a line, with its level.
//!
//! | level | meaning |
//! | --- | --- |
//! | error | a task will not be completed |
//! | warn | something failed, and the agent goes on or tries again |
//! | info | everything else; left out when quiet |

use std::fmt::{self, Debug, Write as _};
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use flux_shared::agent_spec::LogFormat;
use jiff::Timestamp;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::{FormatEvent, Writer};
use tracing_subscriber::fmt::{FmtContext, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::report::failure::Failure;

/// How lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum LineFormat {
    #[default]
    Text,
    Json,
}

impl From<LogFormat> for LineFormat {
    fn from(format: LogFormat) -> LineFormat {
        match format {
            LogFormat::Text => LineFormat::Text,
            LogFormat::Json => LineFormat::Json,
        }
    }
}

/// Target of the messages of [`plain`] and [`fatal`]: the text format prints them unchanged, also when quiet.
const PLAIN: &str = "plain";

static JSON: AtomicBool = AtomicBool::new(false);
static QUIET: AtomicBool = AtomicBool::new(false);
static WITHOUT_SUPERVISION: AtomicBool = AtomicBool::new(false);
/// Target of the supervisor's lines: its module.
const SUPERVISION: &str = "flux_agent::supervise";

/// Starts the log, in text.
pub fn start() {
    // A pod's standard error may be closed: errors of the log itself are ignored.
    let lines = tracing_subscriber::fmt::fmt()
        .with_writer(std::io::stderr)
        .log_internal_errors(false);
    let _ = tracing::subscriber::set_global_default(lines.event_format(Lines).finish());
}

pub fn set_format(format: LineFormat) {
    JSON.store(format == LineFormat::Json, Ordering::Relaxed);
}

pub fn format() -> LineFormat {
    if JSON.load(Ordering::Relaxed) {
        LineFormat::Json
    } else {
        LineFormat::Text
    }
}

/// Sets whether only warnings, errors and plain messages are written.
pub fn set_quiet(quiet: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
}

pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Leaves out the supervisor's info lines. The pod's entrypoint logs how a stop proceeds; the agent's programs that run
/// below it do not.
pub fn leave_out_supervision() {
    WITHOUT_SUPERVISION.store(true, Ordering::Relaxed);
}

/// Logs a line, also when quiet. The text format prints it unchanged, since it is not the agent's own (a FLUXTIME line,
/// a table).
pub fn plain(stage: &str, message: &str) {
    tracing::info!(target: PLAIN, stage, "{message}");
}

/// Logs why the program or Flux cannot run, also when quiet. The text format prints it after the agent's name.
pub fn fatal(stage: &str, why: &str) {
    tracing::error!(target: PLAIN, stage, "flux-agent: {why}");
}

/// Logs why the agent gives up: one line, also when quiet.
pub fn failure(failure: &Failure) {
    let entry = LogEntry {
        stage: failure.category.name().into(),
        message: failure.to_string(),
    };
    let mut text = String::new();
    // Not through the subscriber: a panic in the subscriber is reported here, too. `true`: unchanged, since the message
    // has the agent's name already.
    if line(&mut text, format(), true, Level::ERROR, &entry).is_ok() {
        write_whole(text);
    }
}

/// The fields of an event that are logged.
#[derive(Default)]
struct LogEntry {
    stage: String,
    message: String,
}

impl Visit for LogEntry {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "stage" {
            value.clone_into(&mut self.stage);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            let _ = write!(self.message, "{value:?}");
        }
    }
}

/// One event, one line.
struct Lines;

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let (level, target) = (*event.metadata().level(), event.metadata().target());
        let is_plain = target == PLAIN;
        let is_left_out = is_quiet() || target == SUPERVISION && WITHOUT_SUPERVISION.load(Ordering::Relaxed);
        // tracing orders levels by how much they log: info is greater than warn.
        if is_left_out && !is_plain && level > Level::WARN {
            return Ok(());
        }
        let mut entry = LogEntry::default();
        event.record(&mut entry);
        line(&mut writer, format(), is_plain, level, &entry)
    }
}

/// Writes one line. `is_plain`: the text format prints the message unchanged.
fn line(
    to: &mut dyn fmt::Write,
    format: LineFormat,
    is_plain: bool,
    level: Level,
    entry: &LogEntry,
) -> fmt::Result {
    let LogEntry { stage, message } = entry;
    match format {
        LineFormat::Text if is_plain => writeln!(to, "{message}"),
        // The part of the timestamp from the hour to the millisecond.
        LineFormat::Text => writeln!(to, "{} flux-agent: {message}", &timestamp(since_epoch())[11..23]),
        LineFormat::Json => {
            let level = match level {
                Level::ERROR => "error",
                Level::WARN => "warn",
                _ => "info",
            };
            let time = timestamp(since_epoch());
            writeln!(
                to,
                "{}",
                serde_json::json!({ "time": time, "level": level, "stage": stage, "message": message })
            )
        }
    }
}

/// Writes to standard error by one call, so that lines of several processes do not mix.
pub fn write_whole(text: String) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Time since 1970.
pub fn since_epoch() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

/// `2026-11-21T04:22:56.123Z` (RFC 3339, UTC).
pub fn timestamp(since_epoch: Duration) -> String {
    let time = since_epoch
        .try_into()
        .ok()
        .and_then(|time| Timestamp::from_duration(time).ok());
    format!("{:.3}", time.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timestamps_are_those_of_the_calendar() {
        let at = |seconds: u64, millis: u64| timestamp(Duration::from_millis(seconds * 1000 + millis));
        assert_eq!(at(0, 0), "1970-01-01T00:00:00.000Z");
        assert_eq!(at(951_782_399, 999), "2000-02-28T23:59:59.999Z");
        assert_eq!(at(951_782_400, 1), "2000-02-29T00:00:00.001Z");
        assert_eq!(at(1_709_251_199, 0), "2024-02-29T23:59:59.000Z");
        assert_eq!(at(4_107_542_400, 0), "2100-03-01T00:00:00.000Z");
    }

    #[test]
    fn a_line_looks_as_its_format_says() {
        let text = |format, is_plain, level| {
            let mut text = String::new();
            let entry = LogEntry {
                stage: "stop".into(),
                message: "told \"so\"".into(),
            };
            line(&mut text, format, is_plain, level, &entry).unwrap();
            text
        };
        assert_eq!(
            text(LineFormat::Text, false, Level::INFO)[12..],
            *" flux-agent: told \"so\"\n"
        );
        assert_eq!(text(LineFormat::Text, true, Level::ERROR), "told \"so\"\n");
        for (level, name) in [
            (Level::ERROR, "error"),
            (Level::WARN, "warn"),
            (Level::INFO, "info"),
        ] {
            let line: serde_json::Value = serde_json::from_str(&text(LineFormat::Json, true, level)).unwrap();
            assert_eq!(
                (&line["level"], &line["stage"], &line["message"]),
                (&name.into(), &"stop".into(), &"told \"so\"".into())
            );
            assert!(line["time"].as_str().unwrap().ends_with('Z'));
        }
    }
}
