//! Programs that run inside an instance, on its lead. They replace what a shell would do.
//!
//! ```text
//! program (notes how all of the rest ended) ─► accounting ─► time ─► batch │ diagnostics │ restful │ the user's own
//! ```
//!
//! `deaf_flux` stands in for the `flux` command that those programs call.

pub mod accounting;
pub mod batch;
mod command_runner;
pub mod deaf_flux;
pub mod diagnostics;
pub mod program;
pub mod restful;
pub mod time;
