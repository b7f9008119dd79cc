//! A follower that leaves while the instance stays up: its node is drained first, so that it gets no new jobs
//! and its running jobs may end. In a tree, the brokers below it are connected through it: their nodes are
//! drained with it.
//!
//! ```text
//! told to stop, and the lead stays ─ `resource.drain` ─► no new job ─► idle at 2 looks in a row ─► it may go
//!                                     (also the nodes below it)       (5 with nodes below it)
//! ```
//!
//! When it is back, the lead undrains it (`returned_nodes`).

use std::collections::BTreeSet;

use crate::flux_rpc::connection::Broker;
use crate::flux_rpc::message::AskError;
use crate::flux_rpc::usage::{self, Nodes};
use flux_shared::hostlist;
use serde_json::json;

/// Drain reason that marks a drain as the agent's.
pub(super) const REASON: &str = "flux-agent: its pod is being removed";
/// The same for a node below one that leaves; its own pod may stay.
pub(super) const REASON_BELOW: &str = "flux-agent: the pod of a broker above it is being removed";
/// Looks without a job before the node may leave: a job that was on its way when the node was drained shows
/// at the second.
const IDLE_LOOKS: u32 = 2;
/// The same for a node with others below it, which leave first: a broker whose parent exits during its shutdown
/// is cut off. With a look every 2 s (`broker_policy`) they have 10 s for it.
const IDLE_LOOKS_ABOVE: u32 = 5;

/// Progress of draining one node.
#[derive(Debug)]
pub struct Departure {
    rank: u32,
    /// Ranks below it in the tree, which leave with it.
    below: BTreeSet<u32>,
    drained: bool,
    idle_looks: u32,
    /// Ranks of `below` that jobs had resources of at the last look.
    busy_below: BTreeSet<u32>,
    told: bool,
}

impl Departure {
    pub fn of(rank: u32, below: BTreeSet<u32>) -> Departure {
        Departure {
            rank,
            below,
            drained: false,
            idle_looks: 0,
            busy_below: BTreeSet::new(),
            told: false,
        }
    }

    /// Whether the node is drained, so that no job comes to it any more.
    pub fn has_begun(&self) -> bool {
        self.drained
    }

    /// Whether jobs on nodes below would lose these with this one.
    pub fn takes_jobs_along(&self) -> bool {
        !self.busy_below.is_empty()
    }

    /// Takes the next step: drains the node, then looks for jobs. True once the node may go; to be called
    /// again until then.
    pub async fn advance(&mut self, broker: &Broker) -> bool {
        if !self.drained {
            return match drain(broker, &[self.rank].into(), REASON).await {
                Ok(()) => self.mark_drained(),
                Err(AskError::Answer(why)) if is_drained(&why) => self.mark_drained(),
                // The lead is slow to answer: ask again at the next look.
                Err(AskError::Slow) => false,
                // Flux cannot drain it (an older release, no resource module): the node goes at once.
                Err(_) => true,
            };
        }
        if let Some(nodes) = usage::nodes(broker).await {
            let open: BTreeSet<u32> = &self.below & &nodes.open;
            // At each look: a broker that has just joined takes jobs again.
            if !open.is_empty() {
                let _ = drain(broker, &open, REASON_BELOW).await;
            }
            self.note_look(&nodes, open.is_empty());
        }
        self.idle_looks
            >= if self.below.is_empty() {
                IDLE_LOOKS
            } else {
                IDLE_LOOKS_ABOVE
            }
    }

    fn mark_drained(&mut self) -> bool {
        self.drained = true;
        false
    }

    /// Notes a look at the nodes that jobs have. `closed`: no job comes to the nodes below any more.
    fn note_look(&mut self, nodes: &Nodes, closed: bool) {
        self.busy_below = &self.below & &nodes.allocated;
        let is_idle = !nodes.allocated.contains(&self.rank) && self.busy_below.is_empty();
        self.idle_looks = if is_idle && closed { self.idle_looks + 1 } else { 0 };
        if !self.told && !nodes.allocated.contains(&self.rank) && !self.busy_below.is_empty() {
            self.told = true;
            let busy = hostlist::to_idset(&self.busy_below);
            tracing::info!(
                stage = "stop",
                "this node is idle; waiting for jobs on rank {busy}, below it in the tree"
            );
        }
    }
}

async fn drain(broker: &Broker, ranks: &BTreeSet<u32>, reason: &str) -> Result<(), AskError> {
    let drain = json!({ "targets": hostlist::to_idset(ranks), "reason": reason });
    broker
        .ask(0, "resource.drain", &drain.to_string())
        .await
        .map(drop)
}

/// Whether the error says that the node is drained already, by somebody else.
fn is_drained(why: &str) -> bool {
    why.contains("drained")
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use std::sync::{Arc, Mutex};

    use serde_json::Value;

    use super::*;
    use crate::flux_rpc::connection::peer::{answer_of, asked};

    /// What `work` does beside a broker that answers each question with what `says` makes of it; and the
    /// questions. None: the connection ends without an answer.
    fn beside<F: Future<Output = ()>>(
        mut says: impl FnMut(&str) -> Option<Vec<u8>> + Send + 'static,
        work: impl FnOnce(Broker) -> F,
    ) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("local");
        let listener = UnixListener::bind(&socket).unwrap();
        let questions = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&questions);
        std::thread::spawn(move || {
            for mut peer in listener.incoming().map_while(Result::ok) {
                peer.write_all(&[0]).unwrap();
                let question = asked(&mut peer);
                let answer = says(&question);
                noted.lock().unwrap().push(question);
                answer
                    .into_iter()
                    .for_each(|answer| peer.write_all(&answer).unwrap());
            }
        });
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(work(Broker { socket, owner: None }));
        let questions = questions.lock().unwrap();
        questions.clone()
    }

    /// An answer to `resource.sched-status`, of five nodes.
    fn nodes(down: &str, allocated: &str) -> Vec<u8> {
        let set = |ranks: &str| match ranks {
            "" => Value::Null,
            ranks => json!({ "execution": { "R_lite": [{ "rank": ranks, "children": { "core": "0" } }] } }),
        };
        answer_of(&json!({ "all": set("0-4"), "down": set(down), "allocated": set(allocated) }).to_string())
    }

    /// Whether it may go, look by look, by what the lead says of the nodes at each; and the drains.
    fn departs(below: &[u32], looks: Vec<(&'static str, &'static str)>) -> (Vec<bool>, Vec<String>) {
        let count = looks.len();
        let mut answers = looks.into_iter();
        let says = move |question: &str| {
            if question.contains("resource.sched-status") {
                answers.next().map(|(down, allocated)| nodes(down, allocated))
            } else {
                Some(answer_of("{}"))
            }
        };
        let (mut steps, below) = (Vec::new(), below.iter().copied().collect());
        let questions = beside(says, async |broker| {
            let mut departure = Departure::of(1, below);
            assert!(
                !departure.advance(&broker).await && departure.has_begun(),
                "it drains first"
            );
            for _ in 0..count {
                steps.push(departure.advance(&broker).await);
            }
        });
        let drains = questions
            .iter()
            .filter(|question| question.contains("resource.drain"));
        let targets = drains.map(|question| question.split('"').nth(3).unwrap().to_owned());
        (steps, targets.collect())
    }

    #[test]
    fn a_node_goes_once_no_job_has_anything_of_it_twice() {
        let (goes, drains) = departs(
            &[],
            vec![("1", "1,3"), ("1", "3"), ("1", "1"), ("1", "3"), ("1", "")],
        );
        assert_eq!(
            (goes, drains),
            (vec![false, false, false, false, true], vec!["1".to_owned()])
        );
    }

    #[test]
    fn a_broker_waits_for_jobs_of_those_below_it_which_take_no_more() {
        // One below is drained by somebody else, and has a job; one takes jobs, and joins again once.
        let mut looks = vec![("1,4", "4"), ("1,3-4", "4"), ("1,4", "")];
        looks.extend([("1,3-4", "2"); IDLE_LOOKS_ABOVE as usize]);
        let (goes, drains) = departs(&[3, 4], looks);
        assert_eq!(
            goes.iter().position(|goes| *goes),
            Some(goes.len() - 1),
            "{goes:?}"
        );
        assert_eq!(drains, ["1", "3", "3"]);
    }

    #[test]
    fn departure_knows_whether_jobs_of_its_subtree_go_along() {
        let mut departure = Departure::of(1, [3, 4].into());
        let look = |allocated: &[u32]| Nodes {
            open: BTreeSet::new(),
            allocated: allocated.iter().copied().collect(),
        };
        for (allocated, along) in [(&[1, 2][..], false), (&[3], true), (&[1, 4], true), (&[], false)] {
            departure.note_look(&look(allocated), true);
            assert_eq!(departure.takes_jobs_along(), along, "{allocated:?}");
        }
    }
}
