//! Requests to a Flux broker over its local socket, in Flux's own messages (RFC 3). This needs neither the `flux`
//! program nor Python.
//!
//! ```text
//! message (encodes requests, decodes replies) ─► connection (one request, or a conversation)
//!   ─► states, lead_presence, jobs, usage, departure, returned_nodes
//! ```

pub mod connection;
pub mod departure;
pub mod jobs;
pub mod lead_presence;
pub mod message;
mod returned_nodes;
pub mod states;
pub mod usage;
