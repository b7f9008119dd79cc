//! An OpenTelemetry collector: keeps the bodies of the requests that it gets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

/// An answer that ends the connection, as servers may.
pub const CLOSING: &str = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
pub const REFUSING: &str = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";

/// A collector on a free port of 127.0.0.1. Its threads end with the process.
pub struct Collector {
    address: String,
    bodies: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Collector {
    /// Gives this answer to each request. None: it never answers.
    pub fn start(answer: Option<&'static str>) -> Collector {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let bodies = Arc::new(Mutex::new(Vec::new()));
        let kept = bodies.clone();
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let kept = kept.clone();
                std::thread::spawn(move || serve(connection.unwrap(), answer, &kept));
            }
        });
        Collector { address, bodies }
    }

    /// The URL, such as `http://127.0.0.1:4318`.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The bodies of all requests so far.
    pub fn bodies(&self) -> Vec<Vec<u8>> {
        self.bodies.lock().unwrap().clone()
    }
}

/// Serves a connection until its client or an answer closes it.
fn serve(mut connection: TcpStream, answer: Option<&str>, kept: &Mutex<Vec<Vec<u8>>>) {
    let mut reader = BufReader::new(connection.try_clone().unwrap());
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if line == "\r\n" {
                break;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        kept.lock().unwrap().push(body);
        if let Some(answer) = answer {
            connection.write_all(answer.as_bytes()).unwrap();
            if answer.contains("Connection: close") {
                return;
            }
        }
    }
}
