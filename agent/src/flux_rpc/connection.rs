//! The broker's socket: one request ([`Broker::ask`]) or a conversation ([`Conversation`]), beside other
//! work. A request takes less than a millisecond, without any `flux` program or Python.

use std::io;
use std::path::PathBuf;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use crate::flux_rpc::message::{
    ANSWER_TIMEOUT, AskError, BrokerReply, HEAD_LENGTH, errno_text, length, parse_reply, request,
};
use crate::system::identity;
use crate::wait::socket::connect_at_once;

/// A broker that can be asked.
#[derive(Debug, Clone)]
pub struct Broker {
    pub socket: PathBuf,
    /// The uid that Flux runs as, the only one that it trusts, to connect as; none: this process's own.
    pub owner: Option<u32>,
}

impl Broker {
    /// The answer of broker `rank` (`ANY`: this one) to the request `topic`, which is sent through this
    /// broker.
    pub async fn ask(&self, rank: u32, topic: &str, payload: &str) -> Result<Value, AskError> {
        let asked = async {
            let mut conversation = Conversation::open(self).await?;
            conversation
                .send(&request(rank, topic, payload))
                .await
                .map_err(ask_error)?;
            match conversation.receive().await.map_err(ask_error)? {
                BrokerReply::Payload(value) => Ok(value),
                BrokerReply::Error(text) => Err(AskError::Answer(text)),
            }
        };
        tokio::time::timeout(ANSWER_TIMEOUT, asked)
            .await
            .unwrap_or(Err(AskError::Slow))
    }

    async fn connect(&self) -> io::Result<UnixStream> {
        let Some(owner) = self.owner else {
            return UnixStream::connect(&self.socket).await;
        };
        // The kernel notes a client's user when it connects. Connecting never waits: a full queue is an
        // error.
        let stream = identity::as_user(owner, || connect_at_once(&self.socket))??;
        UnixStream::from_std(stream)
    }
}

fn ask_error(error: io::Error) -> AskError {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => AskError::Slow,
        io::ErrorKind::UnexpectedEof => AskError::Ended,
        _ => AskError::Protocol(crate::report::failure::plain(&error)),
    }
}

/// A connection to a broker that has accepted this client.
#[derive(Debug)]
pub struct Conversation {
    stream: UnixStream,
}

impl Conversation {
    /// Connects. A broker that refuses this user is an error as well.
    pub async fn open(broker: &Broker) -> Result<Conversation, AskError> {
        let mut stream = broker.connect().await.map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => AskError::NoSocket(broker.socket.display().to_string()),
            io::ErrorKind::ConnectionRefused => AskError::Ended,
            io::ErrorKind::PermissionDenied => AskError::Refused(crate::report::failure::plain(&error)),
            _ => ask_error(error),
        })?;
        match stream.read_u8().await.map_err(ask_error)? {
            0 => Ok(Conversation { stream }),
            errno => Err(AskError::Refused(errno_text(errno.into()))),
        }
    }

    /// Sends a request.
    pub async fn send(&mut self, question: &[u8]) -> io::Result<()> {
        self.stream.write_all(question).await
    }

    /// Receives the next reply. An error ends the conversation: what came is no reply, or the connection is
    /// closed.
    pub async fn receive(&mut self) -> io::Result<BrokerReply> {
        let mut head = [0; HEAD_LENGTH];
        self.stream.read_exact(&mut head).await?;
        let length =
            length(head).ok_or_else(|| io::Error::other("unexpected message format (another version?)"))?;
        let mut message = vec![0; length];
        self.stream.read_exact(&mut message).await?;
        parse_reply(&message).ok_or_else(|| io::Error::other("its answer cannot be read"))
    }
}

/// The broker's side, for tests.
#[cfg(test)]
pub mod peer {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    pub use std::os::unix::net::UnixStream as Peer;
    use std::sync::{Arc, Mutex};

    use super::Broker;

    pub fn answer_of(payload: &str) -> Vec<u8> {
        answer_with(0, payload)
    }

    pub fn answer_with(errno: u32, payload: &str) -> Vec<u8> {
        let mut header = vec![0x8e, 1, 2, 0b1011];
        [0, 5, errno, 1]
            .iter()
            .for_each(|word: &u32| header.extend(word.to_be_bytes()));
        let payload = [payload.as_bytes(), b"\0"].concat();
        let mut message = Vec::new();
        for frame in [&b""[..], b"state-machine.get", &payload, &header] {
            message.push(frame.len() as u8);
            message.extend_from_slice(frame);
        }
        [
            &[0x12, 0, 0xee, 0xff][..],
            &(message.len() as u32).to_be_bytes(),
            &message,
        ]
        .concat()
    }

    pub fn asked(peer: &mut Peer) -> String {
        let mut head = [0; 8];
        peer.read_exact(&mut head).unwrap();
        let mut message = vec![0; u32::from_be_bytes(head[4..].try_into().unwrap()) as usize];
        peer.read_exact(&mut message).unwrap();
        String::from_utf8_lossy(&message).into_owned()
    }

    /// Runs `work` with a fake broker and returns the questions that the broker got. If `answer` has none for a
    /// question, the connection ends without one.
    pub fn questions_asked_by<F: Future<Output = ()>>(
        work: impl FnOnce(Broker) -> F,
        mut answer: impl FnMut(&str) -> Option<Vec<u8>> + Send + 'static,
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
                let bytes = answer(&question);
                noted.lock().unwrap().push(question);
                if let Some(bytes) = bytes {
                    peer.write_all(&bytes).unwrap();
                }
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
}
