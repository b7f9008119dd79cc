//! A follower that goes while the instance goes on: its node is drained first, so that no job comes to it any more, and those
//! that are on it may end.
//!
//! ```text
//! told to stop, and the lead stays ─ `resource.drain` ─► no new job ─ no job has anything of it, twice ─► it may go
//! a broker that has joined ─ `resource.status` ─► drained, for our reason ─ `resource.undrain` ─► jobs may come again
//! ```
//!
//! Who has drained a node before, for a reason of theirs, undrains it.

use crate::flux_rpc::connection::Broker;
use crate::flux_rpc::message::Silence;
use crate::flux_rpc::usage;
use flux_shared::hostlist;
use serde_json::{Value, json};

/// By it we know a drain for our own.
const REASON: &str = "flux-agent: its pod is to go";
/// A job may have been on its way when the node was drained: it is seen at the next look.
const IDLE_LOOKS: u32 = 2;

/// Of one node, as far as it has come.
#[derive(Debug)]
pub struct Departure {
    rank: u32,
    drained: bool,
    idle_looks: u32,
}

impl Departure {
    pub fn of(rank: u32) -> Departure {
        Departure { rank, drained: false, idle_looks: 0 }
    }

    /// No job comes to it any more.
    pub fn has_begun(&self) -> bool {
        self.drained
    }

    /// Whether the node may go now. To be asked now and then; each time it is one step further.
    pub async fn may_go(&mut self, broker: &Broker) -> bool {
        if !self.drained {
            let drain = json!({ "targets": self.rank.to_string(), "reason": REASON });
            return match broker.ask(0, "resource.drain", &drain.to_string()).await {
                Ok(_) => self.begin(),
                Err(Silence::Answer(why)) if is_drained(&why) => self.begin(),
                // It is busy.
                Err(Silence::Slow) => false,
                Err(_) => true,
            };
        }
        match usage::is_allocated(broker, self.rank).await {
            Some(false) => self.idle_looks += 1,
            Some(true) => self.idle_looks = 0,
            None => {}
        }
        self.idle_looks >= IDLE_LOOKS
    }

    fn begin(&mut self) -> bool {
        self.drained = true;
        false
    }
}

/// Somebody was before us.
fn is_drained(why: &str) -> bool {
    why.contains("drained")
}

/// A node that has come back takes jobs again, if it was us who have drained it.
pub async fn is_over(broker: &Broker, rank: u32) {
    let status = broker.ask(0, "resource.status", "{}").await.unwrap_or_default();
    if is_ours(&status["drain"], rank) {
        let undrain = json!({ "targets": rank.to_string() });
        match broker.ask(0, "resource.undrain", &undrain.to_string()).await {
            Ok(_) => tracing::info!(stage = "broker", "jobs may come to this node again"),
            Err(why) => tracing::error!(stage = "broker", "failed to undrain this node: {why}"),
        }
    }
}

fn is_ours(drained: &Value, rank: u32) -> bool {
    let nodes = drained.as_object().into_iter().flatten();
    let is_it = |ranks: &str| hostlist::idset(ranks).is_some_and(|ranks| ranks.contains(&rank));
    nodes.into_iter().any(|(ranks, why)| is_it(ranks) && why["reason"] == REASON)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_of_somebody_elses_is_not_undone() {
        let drained = json!({
            "1-2": { "timestamp": 1.0, "reason": REASON }, "3": { "timestamp": 1.0, "reason": "a disk is broken" },
        });
        let ours: Vec<u32> = (0..5).filter(|rank| is_ours(&drained, *rank)).collect();
        assert_eq!(ours, [1, 2]);
        assert!(!is_ours(&Value::Null, 1));
    }
}
