//! Programs of the agent that run inside an instance, on its lead, in place of shell scripts.
//!
//! ```text
//! program (records how the rest ended) ─► accounting ─► time ─► batch │ diagnostics │ restful │ the user's own
//! ```
//!
//! `flux_wrapper` is the `flux` command that the user's program calls.

pub mod accounting;
pub mod batch;
mod command_runner;
pub mod diagnostics;
pub mod flux_wrapper;
pub mod program;
pub mod restful;
pub mod time;
