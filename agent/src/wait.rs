//! Waiting for others: the parent broker (name, route, port), Unix sockets, the operator's request to end (`end`).
//!
//! Each attempt to connect makes a new connection. It looks the name up, or uses addresses of an earlier look-up. The
//! pauses between attempts grow to a cap, with jitter. Waits have no deadline, unless the caller sets one.
//! `ParentProbe::wait` and `socket::wait_and_report` log what is missing, every ten seconds at most.

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
