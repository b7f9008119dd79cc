//! Decides what to do with a MiniCluster. Pure: it reads the observed objects and writes nothing.
//!
//! | module | question |
//! | --- | --- |
//! | `restart` | does the whole MiniCluster restart? |
//! | `ending` | has it ended, and how? |
//! | `next_action` | which objects are missing, or have to change? |
//! | `silent_wait` | does it wait for a cause that no status shows? |
//! | `remaining` | which pods have to end before new ones may start? |

pub mod ending;
pub mod next_action;
pub mod remaining;
pub mod restart;
pub mod silent_wait;
