//! Follows the states of a broker, from its start until it shuts down.
//!
//! ```text
//! its socket ─► `state-machine.monitor`, a stream ─► at every change `state-machine.get`: the state's name
//!                                                       └─ it shuts down ─► the same for rank 0: does the lead stay?
//! ```
//!
//! Requests are sent only at a change. If the broker refuses (it is another user's), its states are unknown.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::task::JoinSet;

use super::connection::{Broker, Conversation};
use super::lead_presence::LeadPresence;
use super::returned_nodes;
use crate::flux_rpc::message::{ANY, BrokerReply, request, stream_request};
use crate::wait::{Backoff, LONGEST_PAUSE, socket};

/// States in which the broker waits for its clients to disconnect.
const LAST: [&str; 5] = ["shutdown", "finalize", "goodbye", "unload-builtins", "exit"];
/// The state before these: the broker has begun to shut down, and still serves its clients.
const CLEANUP: &str = "cleanup";

/// Actions at changes of a broker's state.
#[derive(Debug, Default)]
pub struct StateActions {
    /// For the lead: shows the followers that it stays up, until the broker shuts down. Meanwhile, the watcher
    /// also undrains nodes that come back. None: this broker is not the lead's.
    pub presence: Option<LeadPresence>,
    /// Whether to ask the lead, when this broker shuts down, whether the whole instance ends.
    pub asks_lead: bool,
}

/// The states that a broker was seen in.
#[derive(Debug, Default)]
pub struct StateLog {
    /// Each with the time when it was first seen.
    pub states: Vec<(String, Instant)>,
    /// Whether the lead stayed up when this broker shut down. None: it was not asked, or did not answer.
    pub lead_goes_on: Option<bool>,
}

/// A task that watches a broker's states.
#[derive(Debug)]
pub struct StateWatcher {
    log: Arc<Mutex<StateLog>>,
    task: tokio::task::JoinHandle<()>,
}

impl StateWatcher {
    /// Watches the broker once its socket is there.
    pub fn watch(broker: Broker, actions: StateActions) -> StateWatcher {
        let log = Arc::new(Mutex::new(StateLog::default()));
        let shared = Arc::clone(&log);
        let task = tokio::spawn(async move {
            socket::wait(&broker.socket).await;
            // On the lead, a task undrains nodes that come back. It ends when the lead's broker shuts down.
            let mut undrain_task = JoinSet::new();
            if let Some(presence) = &actions.presence {
                presence.join(&broker).await;
                let broker = broker.clone();
                undrain_task.spawn(async move { returned_nodes::undrain(&broker).await });
            }
            // If the broker ends, refuses, or speaks another protocol, no more states are known.
            if let Ok(conversation) = Conversation::open(&broker).await
                && follow(conversation, &shared).await.is_ok()
            {
                // Both steps close a connection, since the broker waits for its clients to disconnect.
                undrain_task.abort_all();
                if let Some(presence) = &actions.presence {
                    presence.leave();
                }
                if actions.asks_lead {
                    let goes_on = lead_goes_on(&broker).await;
                    lock(&shared).lead_goes_on = goes_on;
                }
            }
            // If the broker's states are unknown, the undraining goes on until the broker ends.
            while undrain_task.join_next().await.is_some() {}
        });
        StateWatcher { log, task }
    }

    /// Whether the broker is known to shut down. It then stays in such a state until it ends.
    pub fn is_ending(&self) -> bool {
        let last = lock(&self.log).states.last().map(|(state, _)| is_ending(state));
        last == Some(true)
    }

    /// Ends the watch; returns the states that it saw.
    pub fn end(self) -> StateLog {
        self.task.abort();
        std::mem::take(&mut *lock(&self.log))
    }
}

fn lock(log: &Mutex<StateLog>) -> MutexGuard<'_, StateLog> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether the lead stays up, asked through a broker that is shutting down. Its parent forwards requests until this
/// broker has ended. When an instance ends, a broker shuts down only after its parent has begun to: so if the lead
/// stays up, only this broker and perhaps some above it end. None: no answer.
async fn lead_goes_on(broker: &Broker) -> Option<bool> {
    let answer = broker.ask(0, "state-machine.get", "{}").await.ok()?;
    answer["state"].as_str().map(|state| !is_ending(state))
}

/// Whether a broker in this state shuts down.
pub fn is_ending(state: &str) -> bool {
    state == CLEANUP || LAST.contains(&state)
}

/// Notes the broker's states until it is in one of `LAST`, and then closes the connection.
async fn follow(mut conversation: Conversation, log: &Mutex<StateLog>) -> io::Result<()> {
    let monitor = stream_request(ANY, "state-machine.monitor", "{}");
    let mut backoff = Backoff::default();
    conversation.send(&monitor).await?;
    loop {
        let BrokerReply::Payload(value) = conversation.receive().await? else {
            // A broker that has not joined yet answers with an error.
            backoff.pause(LONGEST_PAUSE).await;
            conversation.send(&monitor).await?;
            continue;
        };
        match value["state"].as_str() {
            // The stream has only a number, which differs between releases: ask for the name.
            None => {
                conversation
                    .send(&request(ANY, "state-machine.get", "{}"))
                    .await?
            }
            Some(name) => {
                let states = &mut lock(log).states;
                if states.last().is_none_or(|(last, _)| last != name) {
                    states.push((name.to_owned(), Instant::now()));
                }
                if LAST.contains(&name) {
                    return Ok(());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::connection::peer::{ACCEPTED, Peer, REFUSED, answer_of, answer_with, read_request};
    use super::*;
    use crate::testing::block_on;
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    /// Watches a fake broker, whose side of the connection is `broker`. It first sends a byte: 0, or the errno of a
    /// refusal. Returns the log of its states, and whether it is known to shut down.
    fn watch(
        actions: StateActions,
        broker: impl FnOnce(Peer, &UnixListener) + Send + 'static,
    ) -> (StateLog, bool) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("local");
        let listener = UnixListener::bind(&path).unwrap();
        block_on(async {
            let mut states = StateWatcher::watch(
                Broker {
                    socket: path,
                    owner: None,
                },
                actions,
            );
            let peer = std::thread::spawn(move || {
                drop(listener.accept().unwrap()); // `socket::wait` only checks that the broker answers
                broker(listener.accept().unwrap().0, &listener);
            });
            (&mut states.task).await.unwrap();
            peer.join().unwrap();
            let is_ending = states.is_ending();
            (states.end(), is_ending)
        })
    }

    fn names(log: StateLog) -> Vec<String> {
        log.states.into_iter().map(|(name, _)| name).collect()
    }

    fn state(name: &str) -> Vec<u8> {
        answer_of(&format!("{{\"state\":\"{name}\",\"duration\":1.0}}"))
    }

    #[test]
    fn state_changes_are_noted_once_until_broker_shuts_down() {
        let (log, is_ending) = watch(StateActions::default(), |mut peer, _| {
            peer.write_all(ACCEPTED).unwrap();
            assert!(read_request(&mut peer).contains("state-machine.monitor"));
            peer.write_all(&answer_with(
                11,
                "Upstream Flux broker is offline. Try again later.",
            ))
            .unwrap();
            assert!(
                read_request(&mut peer).contains("state-machine.monitor"),
                "it asks again"
            );
            for (number, name) in [(4, "quorum"), (5, "run"), (5, "run"), (7, "shutdown")] {
                peer.write_all(&answer_of(&format!("{{\"state\":{number}}}")))
                    .unwrap();
                assert!(read_request(&mut peer).contains("state-machine.get"));
                peer.write_all(&state(name)).unwrap();
            }
        });
        assert_eq!(log.lead_goes_on, None, "nobody was asked");
        assert_eq!(names(log), ["quorum", "run", "shutdown"]);
        assert!(is_ending);
    }

    #[test]
    fn states_are_unknown_if_broker_refuses_or_sends_garbage() {
        let (refuses, is_ending) = watch(StateActions::default(), |mut peer, _| {
            peer.write_all(REFUSED).unwrap()
        });
        assert_eq!(names(refuses), [""; 0]);
        assert!(!is_ending);
        let (log, _) = watch(StateActions::default(), |mut peer, _| {
            peer.write_all(ACCEPTED).unwrap();
            read_request(&mut peer);
            peer.write_all(b"whatever that means, it is no message").unwrap();
        });
        assert_eq!(names(log), [""; 0]);
    }

    #[test]
    fn broker_that_shuts_down_is_asked_whether_lead_goes_on() {
        let goes_on = |answer: Option<Vec<u8>>| {
            let actions = StateActions {
                asks_lead: true,
                ..StateActions::default()
            };
            let (log, _) = watch(actions, |mut peer, listener| {
                peer.write_all(ACCEPTED).unwrap();
                read_request(&mut peer);
                peer.write_all(&state("shutdown")).unwrap();
                let mut peer = listener.accept().unwrap().0;
                peer.write_all(ACCEPTED).unwrap();
                let question = read_request(&mut peer);
                assert!(question.contains("state-machine.get"), "{question}");
                answer
                    .into_iter()
                    .for_each(|answer| peer.write_all(&answer).unwrap());
            });
            log.lead_goes_on
        };
        for (name, expected) in [
            ("run", true),
            ("quorum", true),
            ("cleanup", false),
            ("shutdown", false),
            ("exit", false),
        ] {
            assert_eq!(goes_on(Some(state(name))), Some(expected), "{name}");
        }
        assert_eq!(goes_on(Some(answer_with(113, "No route to host"))), None);
        assert_eq!(goes_on(None), None);
    }
}
