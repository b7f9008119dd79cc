//! What the agent reports: log lines, its current activity, how it failed and how its container ended.

pub mod activity;
pub mod ending;
pub mod failure;
pub mod log;
