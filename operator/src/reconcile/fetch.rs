//! What a reconcile asks the API server: which gang APIs it serves, and the last event about what waits. All else comes from
//! the watches (`observe`).

pub mod gangs;
pub mod warning;
