//! `flux-agent dry-run`: reads what `flux_agent_plan::dry_run` explains.

mod file;
mod here;

pub use file::{read, source};
pub use here::here;
