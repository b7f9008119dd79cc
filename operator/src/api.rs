//! How the operator talks to the API server: one client for all calls, what it owns itself, a Lease, lists
//! in pages, the version of Kubernetes, retries.

pub mod client;
pub mod installed;
pub mod lease;
pub mod pages;
pub mod retry;
pub mod version;
