//! The health of the operator: probes and metrics over HTTP, the log, traces, panics, and unused memory.

pub mod families;
pub mod log;
pub mod memory;
pub mod metrics;
pub mod panics;
mod process;
pub mod queue;
mod registry;
pub mod server;
pub mod traces;
pub mod webhook_metrics;
