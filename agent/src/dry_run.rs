//! `flux-agent dry-run`: reads the files and facts for `flux_agent_plan::dry_run`, which explains the plan.

mod file;
mod here;

pub use file::{read, source};
pub use here::here;
