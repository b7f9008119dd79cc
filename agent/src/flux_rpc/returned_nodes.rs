//! Undrains nodes that return after an agent has drained them (`departure`), so that they accept jobs again. The agent
//! of the lead does this.
//!
//! ```text
//! the lead's broker runs ─ `groups.get broker.online`, a stream ─► ranks that were not there before
//!                         └─ a moment later, for all of them ─ `resource.status` ─► drained by an agent ─► undrained
//! ```
//!
//! A node that somebody else has drained, for another reason, stays drained. So does one that is drained while its
//! broker is connected: it is about to leave. (If it has just joined, it may be undrained once. Then its agent drains
//! it again.) Drains of an earlier instance, from an archive, are undone at the start.

use std::collections::BTreeSet;
use std::io;
use std::time::{Duration, Instant};

use flux_shared::hostlist;
use serde_json::{Value, json};

use super::connection::{Broker, Conversation};
use super::departure::{REASON, REASON_BELOW};
use crate::flux_rpc::message::{ANY, AskError, BrokerReply, stream_request};
use crate::wait::Backoff;

/// Payload that names the group of all brokers that have joined.
const ONLINE: &str = r#"{"name":"broker.online"}"#;
/// Brokers that join within this time are checked together.
const JOIN_WINDOW: Duration = Duration::from_secs(2);
/// Attempts to follow the group: a broker that has just started knows no groups yet.
const MAX_ATTEMPTS: u32 = 10;
/// Longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// Checks that fail for this long are logged, since drained nodes get no jobs meanwhile.
const LOG_FAILURES_AFTER: Duration = Duration::from_secs(10);

/// Undrains nodes that come back, until the broker ends, or has refused `MAX_ATTEMPTS` times. Drop the future when the
/// broker shuts down.
pub async fn undrain(broker: &Broker) {
    let (mut returned, mut backoff) = (Returned::default(), Backoff::default());
    for _ in 0..MAX_ATTEMPTS {
        let Ok(conversation) = Conversation::open(broker).await else {
            return;
        };
        if follow(broker, conversation, &mut returned).await.is_err() {
            return;
        }
        backoff.pause(LONGEST_PAUSE).await;
    }
}

/// Follows the group until the broker refuses. An error means that the broker has ended.
async fn follow(broker: &Broker, mut conversation: Conversation, returned: &mut Returned) -> io::Result<()> {
    conversation
        .send(&stream_request(ANY, "groups.get", ONLINE))
        .await?;
    loop {
        // This future is polled until it is done. If it were dropped, a part of the answer could be lost.
        let mut answer = std::pin::pin!(conversation.receive());
        let members = loop {
            tokio::select! {
                answer = &mut answer => match answer? {
                    BrokerReply::Payload(value) => break value,
                    BrokerReply::Error(_) => return Ok(()),
                },
                () = due(returned.check_at) => returned.check(broker).await,
            }
        };
        let ranks = members["members"]
            .as_str()
            .and_then(hostlist::idset)
            .unwrap_or_default();
        returned.note(ranks.into_iter().collect(), Instant::now());
    }
}

/// Waits until `at`; for ever if that is None.
async fn due(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Brokers that have joined, and whose nodes were not checked yet.
#[derive(Debug, Default)]
struct Returned {
    /// Ranks in the group at the last change.
    online: BTreeSet<u32>,
    /// Ranks to check.
    unchecked: BTreeSet<u32>,
    /// When to check them.
    check_at: Option<Instant>,
    failing_since: Option<Instant>,
    /// Whether the failures were logged.
    was_logged: bool,
}

impl Returned {
    /// Compares the group's members with those before.
    fn note(&mut self, online: BTreeSet<u32>, now: Instant) {
        self.unchecked.extend(&online - &self.online);
        self.online = online;
        if !self.unchecked.is_empty() {
            self.check_at.get_or_insert(now + JOIN_WINDOW);
        }
    }

    /// Undrains those of the unchecked nodes that an agent has drained. After a failure, sets the time to try again.
    async fn check(&mut self, broker: &Broker) {
        match undrain_of(broker, &self.unchecked).await {
            Ok(()) => {
                *self = Returned {
                    online: std::mem::take(&mut self.online),
                    ..Returned::default()
                }
            }
            Err(why) => {
                let since = *self.failing_since.get_or_insert_with(Instant::now);
                // While brokers are missing, Flux knows no nodes yet.
                if !self.was_logged && since.elapsed() >= LOG_FAILURES_AFTER && runs(broker).await {
                    self.was_logged = true;
                    tracing::warn!(
                        stage = "broker",
                        "failed to check which nodes are drained: {why}; retrying"
                    );
                }
                // The longer the checks have failed, the longer is the pause.
                self.check_at = Some(Instant::now() + (JOIN_WINDOW + since.elapsed()).min(LONGEST_PAUSE));
            }
        }
    }
}

/// Whether the instance runs: enough brokers have joined.
async fn runs(broker: &Broker) -> bool {
    broker
        .ask(ANY, "state-machine.get", "{}")
        .await
        .is_ok_and(|answer| answer["state"] == "run")
}

/// Undrains those of `ranks` that an agent has drained.
async fn undrain_of(broker: &Broker, ranks: &BTreeSet<u32>) -> Result<(), AskError> {
    let status = broker.ask(ANY, "resource.status", "{}").await?;
    let returned = &drained_by_agents(&status["drain"]) & ranks;
    if !returned.is_empty() {
        let targets = hostlist::to_idset(&returned);
        broker
            .ask(
                ANY,
                "resource.undrain",
                &json!({ "targets": targets }).to_string(),
            )
            .await?;
        tracing::info!(stage = "broker", "undrained rank {targets}, which is back");
    }
    Ok(())
}

/// The ranks that an agent has drained. `drained` is `drain` of `resource.status`.
fn drained_by_agents(drained: &Value) -> BTreeSet<u32> {
    let is_by_agent = |why: &Value| {
        why["reason"]
            .as_str()
            .is_some_and(|why| [REASON, REASON_BELOW].contains(&why))
    };
    let nodes = drained
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, why)| is_by_agent(why));
    nodes
        .filter_map(|(ranks, _)| hostlist::idset(ranks))
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::net::UnixListener;
    use std::sync::mpsc::{Sender, channel};

    use super::super::connection::peer::{ACCEPTED, Peer, answer_of, answer_with, read_request};
    use super::*;
    use crate::testing::block_on;

    /// Runs a fake broker of the lead. `members` gets the connection that asks for the stream of members, and
    /// `requests` the text of every other request. `answer_to` answers these, by their number and text.
    fn serve(
        listener: UnixListener,
        members: Sender<Peer>,
        requests: Sender<String>,
        answer_to: fn(usize, &str) -> Option<Vec<u8>>,
    ) {
        std::thread::spawn(move || {
            let mut count = 0;
            for mut peer in listener.incoming().map_while(Result::ok) {
                peer.write_all(ACCEPTED).unwrap();
                let question = read_request(&mut peer);
                if question.contains("groups.get") {
                    members.send(peer).unwrap();
                    continue;
                }
                if let Some(answer) = answer_to(count, &question) {
                    peer.write_all(&answer).unwrap();
                }
                count += 1;
                let _ = requests.send(question);
            }
        });
    }

    fn members(ranks: &str) -> Vec<u8> {
        answer_of(&json!({ "members": ranks }).to_string())
    }

    fn targets(question: &str) -> Option<&str> {
        question
            .contains("resource.undrain")
            .then(|| question.split('"').nth(3).unwrap())
    }

    #[test]
    fn lead_checks_joins_together_and_undrains_returned_nodes() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("local");
        let ((to_members, streams), (to_requests, requests)) = (channel(), channel());
        serve(
            UnixListener::bind(&socket).unwrap(),
            to_members,
            to_requests,
            |count, question| {
                let drain = json!({ "1-2": { "reason": REASON }, "3": { "reason": "a disk is broken" } });
                match count {
                    // The first check fails, and is repeated.
                    0 => Some(answer_with(113, "No route to host")),
                    _ if question.contains("resource.status") => {
                        Some(answer_of(&json!({ "drain": drain }).to_string()))
                    }
                    _ => Some(answer_of("{}")),
                }
            },
        );
        let lead = std::thread::spawn(move || {
            block_on(undrain(&Broker { socket, owner: None }));
        });
        let mut stream: Peer = streams.recv().unwrap();
        for ranks in ["0", "0,2", "0,2-500"] {
            stream.write_all(&members(ranks)).unwrap();
        }
        let questions: Vec<String> = (0..3).map(|_| requests.recv().unwrap()).collect();
        assert_eq!(
            questions
                .iter()
                .map(|question| targets(question))
                .collect::<Vec<_>>(),
            [None, None, Some("2")]
        );
        // Rank 1 joins, leaves and joins again within `JOIN_WINDOW`: it is checked once, and undrained.
        for ranks in ["0-500", "0,2-500", "0-500"] {
            stream.write_all(&members(ranks)).unwrap();
        }
        let questions: Vec<String> = (0..2).map(|_| requests.recv().unwrap()).collect();
        assert_eq!(
            questions
                .iter()
                .map(|question| targets(question))
                .collect::<Vec<_>>(),
            [None, Some("1")]
        );
        assert!(
            requests.recv_timeout(2 * JOIN_WINDOW).is_err(),
            "nothing has changed since"
        );
        drop(stream);
        lead.join().unwrap();
    }

    #[test]
    fn drain_of_somebody_elses_is_not_undone() {
        let drained = json!({
            "1-2": { "timestamp": 1.0, "reason": REASON }, "3": { "timestamp": 1.0, "reason": "a disk is broken" },
            "4": { "timestamp": 1.0, "reason": REASON_BELOW }, "5": { "timestamp": 1.0 },
        });
        assert_eq!(drained_by_agents(&drained), [1, 2, 4].into());
        assert_eq!(drained_by_agents(&Value::Null), [].into());
    }
}
