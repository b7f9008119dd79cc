//! What the agent says of itself: log lines, what it is at, how it failed and how its container ended.

pub mod activity;
pub mod ending;
pub mod failure;
pub mod log;
