//! Connects to a broker's socket, for one request ([`Broker::ask`]) or several ([`Conversation`]). A request is fast,
//! since it needs no `flux` program and no Python.

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

/// A broker that can be asked, by its socket.
#[derive(Debug, Clone)]
pub struct Broker {
    pub socket: PathBuf,
    /// The uid to connect as: the one that Flux runs as, since the broker rejects others. None: this process's own.
    pub owner: Option<u32>,
}

impl Broker {
    /// Sends the request `topic` through this broker to the broker `rank` (`ANY`: this one), and returns the answer.
    /// `payload` is JSON.
    pub async fn ask(&self, rank: u32, topic: &str, payload: &str) -> Result<Value, AskError> {
        let exchange = async {
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
        tokio::time::timeout(ANSWER_TIMEOUT, exchange)
            .await
            .unwrap_or(Err(AskError::Slow))
    }

    async fn connect(&self) -> io::Result<UnixStream> {
        let Some(owner) = self.owner else {
            return UnixStream::connect(&self.socket).await;
        };
        // The broker learns the client's user from the kernel, which records it at this moment. `connect_at_once`
        // does not block: a full queue is an error.
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
        // The broker's first byte is 0 or the errno of a refusal.
        match stream.read_u8().await.map_err(ask_error)? {
            0 => Ok(Conversation { stream }),
            errno => Err(AskError::Refused(errno_text(errno.into()))),
        }
    }

    /// Sends the bytes of a request (`message::request`).
    pub async fn send(&mut self, request: &[u8]) -> io::Result<()> {
        self.stream.write_all(request).await
    }

    /// Receives the next reply. After an error the conversation cannot be used: the connection is closed, or the bytes
    /// were no reply.
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
    use crate::testing::block_on;

    /// The broker's first byte: the client may ask.
    pub const ACCEPTED: &[u8] = &[0];
    /// The broker's first byte: the errno of its refusal (EPERM).
    pub const REFUSED: &[u8] = &[1];

    /// The bytes of an answer with this payload (JSON).
    pub fn answer_of(payload: &str) -> Vec<u8> {
        answer_with(0, payload)
    }

    /// The bytes of an answer: an error unless `errno` is 0.
    pub fn answer_with(errno: u32, payload: &str) -> Vec<u8> {
        // Magic byte and version of RFC 3, type (a response), flags (topic, payload, route). Then user, role, error
        // number, match tag.
        let mut header = vec![0x8e, 1, 2, 0b1011];
        [0, 5, errno, 1]
            .iter()
            .for_each(|word: &u32| header.extend(word.to_be_bytes()));
        let payload = [payload.as_bytes(), b"\0"].concat();
        let mut message = Vec::new();
        // End of the route, topic, payload, header. The topic is always the same, since the agent does not read it.
        for frame in [&b""[..], b"state-machine.get", &payload, &header] {
            message.push(frame.len() as u8);
            message.extend_from_slice(frame);
        }
        // The head: magic (`MAGIC` of a little-endian machine) and length.
        [
            &[0x12, 0, 0xee, 0xff][..],
            &(message.len() as u32).to_be_bytes(),
            &message,
        ]
        .concat()
    }

    /// Reads the next request, as text.
    pub fn read_request(peer: &mut Peer) -> String {
        let mut head = [0; 8];
        peer.read_exact(&mut head).unwrap();
        let mut message = vec![0; u32::from_be_bytes(head[4..].try_into().unwrap()) as usize];
        peer.read_exact(&mut message).unwrap();
        String::from_utf8_lossy(&message).into_owned()
    }

    /// Runs `work` with a fake broker and returns the requests that the broker got. If `answer` returns None
    /// for a request, the broker closes the connection.
    pub fn questions_asked_by<F: Future<Output = ()>>(
        work: impl FnOnce(Broker) -> F,
        mut answer: impl FnMut(&str) -> Option<Vec<u8>> + Send + 'static,
    ) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("local");
        let listener = UnixListener::bind(&socket).unwrap();
        let questions = Arc::new(Mutex::new(Vec::new()));
        let recorded = Arc::clone(&questions);
        std::thread::spawn(move || {
            for mut peer in listener.incoming().map_while(Result::ok) {
                peer.write_all(ACCEPTED).unwrap();
                let question = read_request(&mut peer);
                let bytes = answer(&question);
                recorded.lock().unwrap().push(question);
                if let Some(bytes) = bytes {
                    let _ = peer.write_all(&bytes);
                }
            }
        });
        block_on(work(Broker { socket, owner: None }));
        let questions = questions.lock().unwrap();
        questions.clone()
    }
}
