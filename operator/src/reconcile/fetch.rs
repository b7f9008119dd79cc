//! What a reconcile reads from the API server: the gang APIs that it serves, and the last event of an object that waits. All
//! else comes from the watches (`observe`).

pub mod gangs;
pub mod warning;
