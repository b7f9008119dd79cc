//! Whether the lead stays up. A follower that gets a stop signal asks this, to know whether the whole instance ends
//! or only its own pod.
//!
//! ```text
//! the lead's agent ─ `groups.join` ─► its broker, until a stop signal (or until the broker goes down)
//! a follower's agent, at a stop signal ─ `groups.get` ─► the lead's broker: is it still a member?
//! ```
//!
//! Flux removes a client from its groups when the client's connection ends. Without an answer the follower asks again.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flux_shared::hostlist;

use super::connection::{Broker, Conversation};
use crate::flux_rpc::message::{ANY, BrokerReply, request};
use crate::wait::{Backoff, LONGEST_PAUSE};

/// Payload that names the group. The lead is a member as long as it stays up.
const GROUP: &str = r#"{"name":"flux-agent.staying"}"#;
/// Attempts to join the group. With their pauses, they last long enough for a broker that has just started.
const MAX_ATTEMPTS: u32 = 10;

/// The lead's membership in the group.
#[derive(Debug, Clone, Default)]
pub struct LeadPresence(Arc<Mutex<Membership>>);

#[derive(Debug, Default)]
struct Membership {
    /// The lead has left, perhaps before `join` got its answer. It does not join again.
    is_over: bool,
    /// The connection that keeps the lead in the group.
    connection: Option<Conversation>,
}

impl LeadPresence {
    /// Joins the group. A broker that has just started refuses, since it knows no groups yet: then this tries again,
    /// with `MAX_ATTEMPTS` attempts in all.
    pub async fn join(&self, broker: &Broker) {
        let Ok(mut conversation) = Conversation::open(broker).await else {
            return;
        };
        let mut backoff = Backoff::default();
        for _ in 0..MAX_ATTEMPTS {
            if conversation
                .send(&request(ANY, "groups.join", GROUP))
                .await
                .is_err()
            {
                return;
            }
            match conversation.receive().await {
                Ok(BrokerReply::Payload(_)) => {
                    let mut membership = self.lock();
                    membership.connection = (!membership.is_over).then_some(conversation);
                    return;
                }
                Ok(BrokerReply::Error(_)) => backoff.pause(LONGEST_PAUSE).await,
                Err(_) => return,
            }
        }
    }

    /// Leaves the group, and never joins it again.
    pub fn leave(&self) {
        *self.lock() = Membership {
            is_over: true,
            connection: None,
        };
    }

    fn lock(&self) -> MutexGuard<'_, Membership> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the lead (rank 0) stays up, asked through this pod's broker. None: there is no answer.
pub async fn lead_stays(broker: &Broker) -> Option<bool> {
    let answer = broker.ask(0, "groups.get", GROUP).await.ok()?;
    let members = answer["members"].as_str()?;
    Some(hostlist::idset(members).is_some_and(|ranks| ranks.contains(&0)))
}

#[cfg(test)]
mod tests {
    use super::super::connection::peer::{ACCEPTED, Peer, REFUSED, answer_of, answer_with, read_request};
    use super::*;
    use crate::testing::block_on;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    /// The result of `work` with a fake broker. `broker` serves its one connection.
    fn with_fake_broker<T, F: Future<Output = T>>(
        broker: impl FnOnce(Peer) + Send + 'static,
        work: impl FnOnce(Broker) -> F,
    ) -> T {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("local");
        let listener = UnixListener::bind(&path).unwrap();
        let peer = std::thread::spawn(move || broker(listener.accept().unwrap().0));
        let found = block_on(work(Broker {
            socket: path,
            owner: None,
        }));
        peer.join().unwrap();
        found
    }

    #[test]
    fn lead_stays_only_while_its_group_has_rank_0() {
        let stays = |answer: Vec<u8>| {
            let broker = move |mut peer: Peer| {
                peer.write_all(ACCEPTED).unwrap();
                assert!(read_request(&mut peer).contains("groups.get"));
                peer.write_all(&answer).unwrap();
            };
            with_fake_broker(broker, async |broker| lead_stays(&broker).await)
        };
        for (members, expected) in [
            ("0", true),
            ("0-3", true),
            ("0,7", true),
            ("", false),
            ("1", false),
            ("10", false),
        ] {
            assert_eq!(
                stays(answer_of(&format!("{{\"members\":\"{members}\"}}"))),
                Some(expected),
                "{members}"
            );
        }
        assert_eq!(stays(answer_with(113, "the lead cannot be reached")), None);
        assert_eq!(stays(b"no answer at all".to_vec()), None);
        let refused = with_fake_broker(
            |mut peer| peer.write_all(REFUSED).unwrap(),
            async |broker| lead_stays(&broker).await,
        );
        assert_eq!(refused, None);
    }

    #[test]
    fn membership_lasts_until_leave_and_is_not_renewed() {
        let (left, is_left) = std::sync::mpsc::channel();
        let broker = move |mut peer: Peer| {
            peer.write_all(ACCEPTED).unwrap();
            assert!(read_request(&mut peer).contains("groups.join"));
            peer.write_all(&answer_with(38, "no such service")).unwrap();
            assert!(read_request(&mut peer).contains("groups.join"), "it asks again");
            peer.write_all(&answer_of("{}")).unwrap();
            assert_eq!(peer.read(&mut [0]).unwrap(), 0, "the connection has ended");
            left.send(()).unwrap();
        };
        with_fake_broker(broker, async |broker| {
            let presence = LeadPresence::default();
            presence.join(&broker).await;
            assert!(presence.lock().connection.is_some() && is_left.try_recv().is_err());
            presence.leave();
            is_left.recv().unwrap();
        });
        let refusing = |mut peer: Peer| {
            peer.write_all(ACCEPTED).unwrap();
            (0..MAX_ATTEMPTS).for_each(|_| {
                read_request(&mut peer);
                peer.write_all(&answer_with(1, "only the owner may")).unwrap();
            });
            assert_eq!(peer.read(&mut [0]).unwrap(), 0, "it does not ask for ever");
        };
        with_fake_broker(refusing, async |broker| {
            LeadPresence::default().join(&broker).await
        });
        let accepting = |mut peer: Peer| {
            peer.write_all(ACCEPTED).unwrap();
            read_request(&mut peer);
            peer.write_all(&answer_of("{}")).unwrap();
            assert_eq!(peer.read(&mut [0]).unwrap(), 0);
        };
        with_fake_broker(accepting, async |broker| {
            let presence = LeadPresence::default();
            presence.leave();
            presence.join(&broker).await;
            assert!(presence.lock().connection.is_none());
        });
    }
}
