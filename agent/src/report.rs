//! What the agent says of itself: log lines, the name of its process, the timeline, how it failed and how its container ended.

pub mod ending;
pub mod failure;
pub mod log;
pub mod stage;
pub mod timing;
