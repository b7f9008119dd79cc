//! What to do with a MiniCluster. Pure: decided from what was seen, before anything is written.
//!
//! ```text
//! restart (does the whole start again?) ─► ending (or is this the end?) ─► next_action (what is missing, what may change)
//!     ─► silent_wait (does it wait without a status that says why?)
//! ```
//!
//! `remaining`: which pods have to be gone first.

pub mod ending;
pub mod next_action;
pub mod remaining;
pub mod restart;
pub mod silent_wait;
