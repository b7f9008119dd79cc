//! How the operator is: probes and figures over HTTP, the log, and what happens at a panic.

pub mod families;
pub mod log;
pub mod metrics;
pub mod panics;
mod process;
pub mod queue;
mod registry;
pub mod server;
pub mod traces;
pub mod webhook_metrics;
