//! The states that a broker goes through, as it tells them itself: when it was up, complete, and on its way down.
//!
//! ```text
//! its socket ─► `state-machine.monitor`, a stream ─► at every change `state-machine.get`: the state's name
//! ```
//!
//! Nothing is asked but at a change. Where the broker refuses (another user's), nothing is known.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use tokio::net::UnixStream;

use super::{Backoff, LONGEST_PAUSE, socket};
use crate::log::Log;
use crate::people::broker::{ANY, LONGEST, answer, request, stream_request};

/// From here on the broker waits for its clients to go.
const LAST: [&str; 5] = ["shutdown", "finalize", "goodbye", "unload-builtins", "exit"];

/// What is known of a broker, while it is watched.
#[derive(Debug)]
pub struct States {
    seen: Arc<Mutex<Vec<(String, Instant)>>>,
    task: tokio::task::JoinHandle<()>,
}

impl States {
    /// Watches the broker whose socket will be at `path`.
    pub fn watch(path: PathBuf, log: Log) -> States {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&seen);
        let task = tokio::spawn(async move {
            socket::wait(&path, Log { quiet: true, ..log }).await;
            if let Ok(stream) = UnixStream::connect(&path).await {
                // It ends, it refuses, or it speaks otherwise: then no more is known.
                let _ = follow(stream, &noted).await;
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

async fn follow(stream: UnixStream, seen: &Mutex<Vec<(String, Instant)>>) -> io::Result<()> {
    let mut verdict = [0];
    fill(&stream, &mut verdict).await?;
    if verdict != [0] {
        return Ok(());
    }
    let monitor = stream_request(ANY, "state-machine.monitor", "{}");
    let mut refused = Backoff::default();
    send(&stream, &monitor).await?;
    loop {
        let mut head = [0; 8];
        fill(&stream, &mut head).await?;
        let length = u32::from_be_bytes([head[4], head[5], head[6], head[7]]) as usize;
        let mut message = vec![0; length.min(LONGEST)];
        fill(&stream, &mut message).await?;
        let value = match answer(&message) {
            Some(Ok(value)) => value,
            // A broker that has not joined yet answers so.
            Some(Err(_)) => {
                tokio::time::sleep(refused.next(LONGEST_PAUSE)).await;
                send(&stream, &monitor).await?;
                continue;
            }
            None => return Ok(()),
        };
        match value["state"].as_str() {
            // A number, which differs between releases.
            None => send(&stream, &request(ANY, "state-machine.get", "{}")).await?,
            Some(name) => {
                let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
                if seen.last().is_none_or(|(last, _)| last != name) {
                    seen.push((name.to_owned(), Instant::now()));
                }
                if LAST.contains(&name) {
                    return Ok(());
                }
            }
        }
    }
}

async fn fill(stream: &UnixStream, mut buffer: &mut [u8]) -> io::Result<()> {
    while !buffer.is_empty() {
        stream.readable().await?;
        match stream.try_read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => buffer = &mut buffer[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

async fn send(stream: &UnixStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::Format;
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream as Peer};

    fn answer_of(payload: &str) -> Vec<u8> {
        answer_with(0, payload)
    }

    fn answer_with(errno: u32, payload: &str) -> Vec<u8> {
        let mut header = vec![0x8e, 1, 2, 0b1011];
        [0, 5, errno, 1].iter().for_each(|word: &u32| header.extend(word.to_be_bytes()));
        let payload = [payload.as_bytes(), b"\0"].concat();
        let mut message = Vec::new();
        for frame in [&b""[..], b"state-machine.get", &payload, &header] {
            message.push(frame.len() as u8);
            message.extend_from_slice(frame);
        }
        [&[0x12, 0, 0xee, 0xff][..], &(message.len() as u32).to_be_bytes(), &message].concat()
    }

    fn asked(peer: &mut Peer) -> String {
        let mut head = [0; 8];
        peer.read_exact(&mut head).unwrap();
        let mut message = vec![0; u32::from_be_bytes(head[4..].try_into().unwrap()) as usize];
        peer.read_exact(&mut message).unwrap();
        String::from_utf8_lossy(&message).into_owned()
    }

    /// What a broker says, and what is then known of it.
    fn watch(broker: impl FnOnce(Peer) + Send + 'static) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("local");
        let listener = UnixListener::bind(&path).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let states = runtime.block_on(async {
            let mut states = States::watch(path, Log::new(Format::Text, true));
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
