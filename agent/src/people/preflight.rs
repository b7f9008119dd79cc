//! Judges what Flux needs of a pod. Pure.

use super::inspect::Findings;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Pass,
    Warn,
    Fail,
}

/// One judgement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub level: Level,
    pub topic: &'static str,
    /// What is so, and what to do about it.
    pub text: String,
}

pub fn judge(findings: &Findings) -> Vec<Check> {
    findings.notice.iter().map(|text| Check { level: Level::Warn, topic: "user", text: text.clone() }).collect()
}

pub fn text(checks: &[Check]) -> String {
    let word = |level| match level {
        Level::Pass => "pass",
        Level::Warn => "warn",
        Level::Fail => "FAIL",
    };
    checks.iter().map(|check| format!("{} {:<8} {}\n", word(check.level), check.topic, check.text)).collect()
}
