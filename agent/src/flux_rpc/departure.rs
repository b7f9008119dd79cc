//! Drains a follower's node before the follower leaves an instance that stays up: the node gets no new jobs, and
//! its running jobs can finish. In a tree, the brokers below the follower are cut off when the follower leaves. So
//! their nodes are drained with its node. If the pod of a broker below is being removed, too, that broker leaves by
//! itself.
//!
//! ```text
//! drain this node ─► at each look: drain the nodes below that accept jobs ─► idle at 2 looks in a row ─► it may go
//!                                                                            (5 with nodes below)
//! ```
//!
//! When the node is back, the lead undrains it (`returned_nodes`).

use std::collections::BTreeSet;

use crate::flux_rpc::connection::Broker;
use crate::flux_rpc::message::AskError;
use crate::flux_rpc::usage::{self, Nodes};
use flux_shared::hostlist;
use serde_json::json;

/// Drain reason that marks a drain as the agent's.
pub(super) const REASON: &str = "flux-agent: its pod is being removed";
/// The same for a node below one that leaves.
pub(super) const REASON_BELOW: &str = "flux-agent: the pod of a broker above it is being removed";
/// Looks in a row without a job before the node may leave. One is not enough: a job that was being started when
/// the node was drained is visible only at the second.
const IDLE_LOOKS: u32 = 2;
/// The same for a node with brokers below it. Those whose pods are being removed, too, have to leave first: a broker
/// whose parent exits during its shutdown is cut off. With a look every 2 s (`broker_policy`) they have 10 s for it.
const IDLE_LOOKS_WITH_CHILDREN: u32 = 5;

/// Progress of draining one node.
#[derive(Debug)]
pub struct Departure {
    rank: u32,
    /// Ranks below it in the tree, which are cut off when it leaves.
    below: BTreeSet<u32>,
    is_drained: bool,
    idle_looks: u32,
    /// Ranks of `below` with resources allocated to jobs at the last look.
    busy_below: BTreeSet<u32>,
    has_logged_wait: bool,
}

/// Whether the node may leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrainProgress {
    /// Not yet: call `advance` again.
    Waiting,
    /// The node may leave.
    MayGo,
}

impl Departure {
    pub fn of(rank: u32, below: BTreeSet<u32>) -> Departure {
        Departure {
            rank,
            below,
            is_drained: false,
            idle_looks: 0,
            busy_below: BTreeSet::new(),
            has_logged_wait: false,
        }
    }

    /// Whether the node is drained, so that it gets no new jobs.
    pub fn has_begun(&self) -> bool {
        self.is_drained
    }

    /// Whether jobs run on nodes below, which would be lost with this node.
    pub fn takes_jobs_along(&self) -> bool {
        !self.busy_below.is_empty()
    }

    /// Takes the next step: drains the node, then looks for jobs.
    pub async fn advance(&mut self, broker: &Broker) -> DrainProgress {
        if !self.is_drained {
            match drain(broker, &[self.rank].into(), REASON).await {
                Ok(()) => self.is_drained = true,
                Err(AskError::Answer(why)) if takes_no_jobs(&why) => self.is_drained = true,
                // The lead is slow to answer: ask again at the next look.
                Err(AskError::Slow) => {}
                // Flux cannot drain it (an older release, no resource module, no broker): the node leaves at once.
                Err(_) => return DrainProgress::MayGo,
            }
            return DrainProgress::Waiting;
        }
        if let Some(nodes) = usage::nodes(broker).await {
            // The lead undrains a node whose broker had joined just before it was drained (`returned_nodes`).
            let accepts_jobs = nodes.accepting.contains(&self.rank);
            if accepts_jobs {
                let _ = drain(broker, &[self.rank].into(), REASON).await;
            }
            let accepting: BTreeSet<u32> = &self.below & &nodes.accepting;
            // At each look: if a broker below joins again, the lead undrains its node (`returned_nodes`).
            if !accepting.is_empty() {
                let _ = drain(broker, &accepting, REASON_BELOW).await;
            }
            self.note_look(&nodes, !accepts_jobs && accepting.is_empty());
        }
        let needed_looks = if self.below.is_empty() {
            IDLE_LOOKS
        } else {
            IDLE_LOOKS_WITH_CHILDREN
        };
        if self.idle_looks >= needed_looks {
            DrainProgress::MayGo
        } else {
            DrainProgress::Waiting
        }
    }

    /// Records which nodes have jobs. `none_accepts`: neither this node nor those below get new jobs.
    fn note_look(&mut self, nodes: &Nodes, none_accepts: bool) {
        self.busy_below = &self.below & &nodes.allocated;
        let is_busy = nodes.allocated.contains(&self.rank);
        let is_subtree_idle = !is_busy && self.busy_below.is_empty();
        self.idle_looks = if is_subtree_idle && none_accepts {
            self.idle_looks + 1
        } else {
            0
        };
        if !self.has_logged_wait && !is_busy && !self.busy_below.is_empty() {
            self.has_logged_wait = true;
            let busy = hostlist::to_idset(&self.busy_below);
            tracing::info!(
                stage = "stop",
                "this node is idle; waiting for jobs on rank {busy}, below it in the tree"
            );
        }
    }
}

/// Asks the lead (rank 0) to drain `ranks`.
async fn drain(broker: &Broker, ranks: &BTreeSet<u32>, reason: &str) -> Result<(), AskError> {
    let drain = json!({ "targets": hostlist::to_idset(ranks), "reason": reason });
    broker
        .ask(0, "resource.drain", &drain.to_string())
        .await
        .map(drop)
}

/// Whether the error says that the node is drained already: by a person, or by an earlier call of ours whose
/// answer was lost.
fn takes_no_jobs(why: &str) -> bool {
    why.contains("drained") || why.contains("excluded")
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use serde_json::Value;

    use super::*;
    use crate::flux_rpc::connection::peer::{answer_of, questions_asked_by};

    /// The lead's answer about ranks 0 to 4 at one look, as idsets.
    #[derive(Debug, Clone, Copy)]
    struct Look {
        down: &'static str,
        allocated: &'static str,
    }

    /// An answer to `resource.sched-status`.
    fn nodes(look: Look) -> Vec<u8> {
        let set = |ranks: &str| match ranks {
            "" => Value::Null,
            ranks => json!({ "execution": { "R_lite": [{ "rank": ranks, "children": { "core": "0" } }] } }),
        };
        answer_of(
            &json!({ "all": set("0-4"), "down": set(look.down), "allocated": set(look.allocated) })
                .to_string(),
        )
    }

    /// A departure of rank 1.
    struct Departed {
        /// Its progress at each look.
        progress: Vec<DrainProgress>,
        /// The ranks of each drain.
        drains: Vec<String>,
    }

    /// Drains rank 1, with the ranks `below` it. `looks` are the lead's answers, one for each look.
    fn depart(below: &[u32], looks: &[Look]) -> Departed {
        let mut answers = VecDeque::from(looks.to_vec());
        let answer = move |question: &str| {
            if question.contains("resource.sched-status") {
                answers.pop_front().map(nodes)
            } else {
                Some(answer_of("{}"))
            }
        };
        let mut progress = Vec::new();
        let work = async |broker| {
            let mut departure = Departure::of(1, below.iter().copied().collect());
            assert!(
                departure.advance(&broker).await == DrainProgress::Waiting && departure.has_begun(),
                "it drains first"
            );
            for _ in looks {
                progress.push(departure.advance(&broker).await);
            }
        };
        let questions = questions_asked_by(work, answer);
        let drains = questions
            .iter()
            .filter(|question| question.contains("resource.drain"));
        let targets = drains.map(|question| question.split('"').nth(3).unwrap().to_owned());
        Departed {
            progress,
            drains: targets.collect(),
        }
    }

    #[test]
    fn node_may_leave_after_two_looks_in_a_row_without_jobs() {
        let looks = ["1,3", "3", "1", "3", ""].map(|allocated| Look { down: "1", allocated });
        let departed = depart(&[], &looks);
        let mut expected = [DrainProgress::Waiting; 5];
        expected[4] = DrainProgress::MayGo;
        assert_eq!(departed.progress, expected);
        assert_eq!(departed.drains, ["1"]);
    }

    #[test]
    fn node_that_the_lead_undrains_is_drained_again() {
        let looks = ["1", "", "1", "1"].map(|down| Look { down, allocated: "" });
        let departed = depart(&[], &looks);
        let mut expected = [DrainProgress::Waiting; 4];
        expected[3] = DrainProgress::MayGo;
        assert_eq!(departed.progress, expected);
        assert_eq!(departed.drains, ["1", "1"]);
    }

    #[test]
    fn departure_waits_for_jobs_below_and_drains_nodes_below() {
        // Rank 4 was drained by somebody else, and has a job. Rank 3 accepts jobs, and joins again once.
        let look = |down, allocated| Look { down, allocated };
        let mut looks = vec![look("1,4", "4"), look("1,3-4", "4"), look("1,4", "")];
        looks.extend([look("1,3-4", "2"); IDLE_LOOKS_WITH_CHILDREN as usize]);
        let Departed { progress, drains } = depart(&[3, 4], &looks);
        assert_eq!(
            progress.iter().position(|step| *step == DrainProgress::MayGo),
            Some(progress.len() - 1),
            "{progress:?}"
        );
        assert_eq!(drains, ["1", "3", "3"]);
    }

    #[test]
    fn departure_reports_jobs_on_nodes_below() {
        let mut departure = Departure::of(1, [3, 4].into());
        let look = |allocated: &[u32]| Nodes {
            accepting: BTreeSet::new(),
            allocated: allocated.iter().copied().collect(),
        };
        for (allocated, takes_jobs_along) in
            [(&[1, 2][..], false), (&[3], true), (&[1, 4], true), (&[], false)]
        {
            departure.note_look(&look(allocated), true);
            assert_eq!(departure.takes_jobs_along(), takes_jobs_along, "{allocated:?}");
        }
    }
}
