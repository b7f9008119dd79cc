//! How the operator talks to the API server: the client for all calls, the owner of the operator's own objects,
//! the Lease, lists in pages, the version of Kubernetes, the API server's clock, retries.

pub mod client;
pub mod installed;
pub mod lease;
pub mod pages;
pub mod retry;
pub mod server_clock;
pub mod version;
