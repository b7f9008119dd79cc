//! How the operator talks to the API server: one client for all calls, a Lease, the version of Kubernetes, another try.

pub mod client;
pub mod lease;
pub mod retry;
pub mod version;
