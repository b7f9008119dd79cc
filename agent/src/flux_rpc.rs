//! Questions to a Flux broker over its local socket, in Flux's own messages (RFC 3): no `flux` program, no
//! Python.
//!
//! ```text
//! message (form of a request and an answer) ─► connection (one request, or a conversation)
//!   ─► states, lead_presence, jobs, usage, departure
//! ```

pub mod connection;
pub mod departure;
pub mod jobs;
pub mod lead_presence;
pub mod message;
mod returned_nodes;
pub mod states;
pub mod usage;
