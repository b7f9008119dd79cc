//! How the operator is: probes and counters over HTTP, the log, and what happens at a panic.

pub mod log;
pub mod metrics;
pub mod panics;
pub mod server;
