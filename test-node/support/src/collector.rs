//! An OpenTelemetry collector for one request: keeps what it was sent.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// How an OTLP request ends.
const END: &[u8] = b"]}]}";

pub struct Collector {
    address: String,
    request: JoinHandle<String>,
    /// Dropped when it may end.
    wanted: Sender<()>,
}

impl Collector {
    /// Answers so as soon as it has the request, and closes the connection; without an answer it is silent
    /// until `request`.
    pub fn start(answer: Option<&'static str>) -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (wanted, is_wanted) = channel();
        let request = std::thread::spawn(move || {
            let (mut connection, _) = listener.accept().unwrap();
            let (mut bytes, mut part) = (Vec::new(), [0; 1024]);
            while !bytes.ends_with(END) {
                let read = connection.read(&mut part).unwrap();
                assert!(read > 0, "the request ends before its end");
                bytes.extend_from_slice(&part[..read]);
            }
            match answer {
                Some(answer) => connection.write_all(answer.as_bytes()).unwrap(),
                None => _ = is_wanted.recv(),
            }
            String::from_utf8(bytes).unwrap()
        });
        Collector {
            address,
            request,
            wanted,
        }
    }

    /// Such as `127.0.0.1:4318`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// The request, once it is there.
    pub fn request(self) -> String {
        drop(self.wanted);
        self.request.join().unwrap()
    }
}
