//! The watches: they keep `flux_operator_core::observe::Index` up to date, and report which MiniClusters to
//! reconcile.

mod list_watch;
pub mod watch;
