//! The watches: they keep `flux_operator_core::observe::Index` current, and say which MiniCluster to
//! reconcile.

mod list_watch;
pub mod watch;
