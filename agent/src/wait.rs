//! Waiting for others: the parent broker (name, route, port) and Unix sockets.
//!
//! Attempts are fresh (a new connection every time, a new look-up at least every second), the pauses between
//! them grow to a cap, with jitter, and there is no deadline unless one is asked for. Lines in the log say
//! what is missing, every ten seconds at most.

mod backoff;
pub mod end;
mod folder;
mod parent;
mod presence;
mod reporter;
pub mod resolve;
pub mod socket;

pub use backoff::{Backoff, LONGEST_PAUSE};
pub use parent::{Missing, ParentProbe};
pub use presence::Presence;
pub use reporter::Reporter;
