//! The agent's own lines: short, timestamped, whole, on standard error.
//!
//! Text: `04:22:56.123 flux-agent: waiting for mc-0`; JSON: one object a line. Quiet leaves only errors.
#![expect(clippy::disallowed_methods, reason = "act: writes lines, reads the clock")]

use std::io::Write;
use std::time::{Duration, SystemTime};

use flux_shared::agent_spec::LogFormat;

/// How lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Format {
    #[default]
    Text,
    Json,
}

impl From<LogFormat> for Format {
    fn from(format: LogFormat) -> Format {
        match format {
            LogFormat::Text => Format::Text,
            LogFormat::Json => Format::Json,
        }
    }
}

/// Where the agent's own lines go.
#[derive(Debug, Clone, Copy)]
pub struct Log {
    pub format: Format,
    pub quiet: bool,
}

impl Log {
    pub fn new(format: Format, quiet: bool) -> Log {
        Log { format, quiet }
    }

    /// What is going on; nothing when quiet.
    pub fn info(self, stage: &str, message: &str) {
        if !self.quiet {
            self.line("info", stage, message);
        }
    }

    /// What went wrong, also when quiet.
    pub fn error(self, stage: &str, message: &str) {
        self.line("error", stage, message);
    }

    /// A line that is not the agent's own (a failure, a FLUXTIME line, a table): as it is in text.
    pub fn plain(self, stage: &str, message: &str) {
        match self.format {
            Format::Text => write_whole(format!("{message}\n")),
            Format::Json => self.line("info", stage, message),
        }
    }

    /// Why the agent gives up: one line, also when quiet.
    pub fn failure(self, failure: &crate::report::failure::Failure) {
        match self.format {
            Format::Text => write_whole(format!("{failure}\n")),
            Format::Json => self.line("error", failure.category.name(), &failure.to_string()),
        }
    }

    fn line(self, level: &str, stage: &str, message: &str) {
        let now = since_epoch();
        write_whole(match self.format {
            Format::Text => format!("{} flux-agent: {message}\n", &timestamp(now)[11..23]),
            Format::Json => {
                let line = serde_json::json!({
                    "time": timestamp(now), "level": level, "stage": stage, "message": message,
                });
                format!("{line}\n")
            }
        });
    }
}

/// One write call, so that lines of several processes do not mix.
pub fn write_whole(text: String) {
    let _ = std::io::stderr().write_all(text.as_bytes());
}

pub fn since_epoch() -> Duration {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default()
}

/// `2026-11-21T04:22:56.123Z` (RFC 3339, UTC).
pub fn timestamp(since_epoch: Duration) -> String {
    let seconds = since_epoch.as_secs();
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years of 400 come in 146,097 days; counting them from 1 March puts the leap day last.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", since_epoch.subsec_millis())
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
}
