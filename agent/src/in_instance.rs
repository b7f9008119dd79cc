//! Programs that run inside an instance, on its lead. They replace what a shell would do.
//!
//! ```text
//! program (notes how all of the rest ended) ─► accounting ─► time ─► batch │ diagnostics │ restful │ the user's own
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
