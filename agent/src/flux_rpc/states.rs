//! The states that a broker goes through, as it tells them itself: when it was up, complete, and on its way down.
//!
//! ```text
//! its socket ─► `state-machine.monitor`, a stream ─► at every change `state-machine.get`: the state's name
//! ```
//!
//! Nothing is asked but at a change. Where the broker refuses (another user's), nothing is known.
#![expect(clippy::disallowed_methods, reason = "act: waits, reads the clock")]

use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::connection::{Broker, Talk};
use super::departure;
use super::lead_presence::LeadPresence;
use crate::flux_rpc::message::{ANY, request, stream_request};
use crate::wait::{Backoff, LONGEST_PAUSE, socket};

/// From here on the broker waits for its clients to go.
const LAST: [&str; 5] = ["shutdown", "finalize", "goodbye", "unload-builtins", "exit"];

/// What is known of a broker, while it is watched.
#[derive(Debug)]
pub struct States {
    seen: Arc<Mutex<Vec<(String, Instant)>>>,
    task: tokio::task::JoinHandle<()>,
}

impl States {
    /// Watches the broker once its socket is there. As long as it is up, `staying` says so to the others. One that has joined
    /// as rank `back` takes jobs again.
    pub fn watch(broker: Broker, staying: Option<LeadPresence>, back: Option<u32>) -> States {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            socket::wait(&broker.socket).await;
            if let Some(staying) = &staying {
                staying.begin(&broker).await;
            }
            let joined = || {
                if let Some(rank) = back {
                    let broker = broker.clone();
                    tokio::spawn(async move { departure::is_over(&broker, rank).await });
                }
            };
            // It ends, it refuses, or it speaks otherwise: then no more is known.
            if let Ok(talk) = Talk::open(&broker).await
                && follow(talk, &noted, joined).await.is_ok()
                && let Some(staying) = &staying
            {
                staying.end();
            }
        });
        States { seen, task }
    }

    /// The states so far, each with the moment when it was first seen.
    pub fn end(self) -> Vec<(String, Instant)> {
        self.task.abort();
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Until the broker goes down.
async fn follow(mut talk: Talk, seen: &Mutex<Vec<(String, Instant)>>, joined: impl Fn()) -> io::Result<()> {
    let monitor = stream_request(ANY, "state-machine.monitor", "{}");
    let mut refused = Backoff::default();
    talk.say(&monitor).await?;
    loop {
        let Ok(value) = talk.hear().await? else {
            // A broker that has not joined yet answers so.
            tokio::time::sleep(refused.next(LONGEST_PAUSE)).await;
            talk.say(&monitor).await?;
            continue;
        };
        match value["state"].as_str() {
            // A number, which differs between releases.
            None => talk.say(&request(ANY, "state-machine.get", "{}")).await?,
            Some(name) => {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                if seen.last().is_none_or(|(last, _)| last != name) {
                    seen.push((name.to_owned(), Instant::now()));
                    if name == "run" {
                        joined();
                    }
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
    use super::super::connection::peer::{Peer, answer_of, answer_with, asked};
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    /// What a broker says, and what is then known of it.
    fn watch(broker: impl FnOnce(Peer) + Send + 'static) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("local");
        let listener = UnixListener::bind(&path).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let states = runtime.block_on(async {
            let mut states = States::watch(Broker { socket: path, owner: None }, None, None);
            let peer = std::thread::spawn(move || {
                drop(listener.accept().unwrap()); // the look whether it answers
                broker(listener.accept().unwrap().0);
            });
            (&mut states.task).await.unwrap();
            peer.join().unwrap();
            states.end()
        });
        states.into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn every_change_is_noted_once_by_its_name_until_the_broker_goes_down() {
        let seen = watch(|mut peer| {
            peer.write_all(&[0]).unwrap();
            assert!(asked(&mut peer).contains("state-machine.monitor"));
            peer.write_all(&answer_with(11, "Upstream Flux broker is offline. Try again later.")).unwrap();
            assert!(asked(&mut peer).contains("state-machine.monitor"), "it asks again");
            for (number, name) in [(4, "quorum"), (5, "run"), (5, "run"), (7, "shutdown")] {
                peer.write_all(&answer_of(&format!("{{\"state\":{number}}}"))).unwrap();
                assert!(asked(&mut peer).contains("state-machine.get"));
                peer.write_all(&answer_of(&format!("{{\"state\":\"{name}\",\"duration\":1.0}}"))).unwrap();
            }
        });
        assert_eq!(seen, ["quorum", "run", "shutdown"]);
    }

    #[test]
    fn a_broker_that_refuses_or_speaks_otherwise_tells_nothing() {
        assert_eq!(watch(|mut peer| peer.write_all(&[1]).unwrap()), [""; 0]);
        let seen = watch(|mut peer| {
            peer.write_all(&[0]).unwrap();
            asked(&mut peer);
            peer.write_all(b"whatever that means, it is no message").unwrap();
        });
        assert_eq!(seen, [""; 0]);
    }
}
