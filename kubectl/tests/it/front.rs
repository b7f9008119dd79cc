//! A proxy to the API server that plays pods without a kubelet. It forwards all requests, so that the API server itself
//! rejects users who may not exec or read logs. Otherwise the proxy answers requests to run a program or read a log.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::{SinkExt, StreamExt};
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::{Bytes, Frame, Incoming};
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use tokio::net::TcpListener;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{self, Message};

use crate::user_account::UserAccount;
use test_support::api_server;

type Answer = Response<UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>>>;
type Programs = dyn Fn(Session) -> BoxFuture<'static, ()> + Send + Sync;
/// The lines of a log, each with the pause before it. None: there is no such log.
type Logs = dyn Fn(&LogRequest) -> Option<Vec<(Duration, String)>> + Send + Sync;

/// A proxy to the API server that plays pods.
#[derive(Clone)]
pub struct Front {
    client: Client,
    programs: Arc<Programs>,
    logs: Arc<Logs>,
    started: Arc<Mutex<Vec<Started>>>,
}

/// A program that was started in a pod.
#[derive(Debug, Clone)]
pub struct Started {
    pub pod: String,
    pub words: Vec<String>,
}

/// A request for a pod's log.
#[derive(Debug, Clone)]
pub struct LogRequest {
    pub pod: String,
    pub follow: bool,
    pub previous: bool,
    pub since: Option<String>,
}

/// A program that runs in a pod.
pub struct Session {
    /// Arguments of the agent.
    pub words: Vec<String>,
    pub terminal: bool,
    socket: WebSocketStream<TokioIo<hyper::upgrade::Upgraded>>,
}

/// An event for a program in a pod.
#[derive(Debug, PartialEq)]
pub enum SessionEvent {
    Input(Vec<u8>),
    EndOfInput,
    Size(String),
}

impl Session {
    pub async fn say(&mut self, text: &str) {
        self.send(1, text).await;
    }

    pub async fn complain(&mut self, text: &str) {
        self.send(2, text).await;
    }

    /// The next event; None if the client is gone. Channels: 0 is standard input, 4 the size of the terminal. 255 means
    /// that a channel is closed.
    pub async fn hear(&mut self) -> Option<SessionEvent> {
        loop {
            match self.socket.next().await?.ok()? {
                Message::Binary(bytes) => match bytes.split_first()? {
                    (0, input) => return Some(SessionEvent::Input(input.to_vec())),
                    (4, size) => return Some(SessionEvent::Size(String::from_utf8_lossy(size).into_owned())),
                    (255, _) => return Some(SessionEvent::EndOfInput),
                    _ => {}
                },
                Message::Close(_) => return None,
                _ => {}
            }
        }
    }

    pub async fn end(mut self, code: u8) {
        let status = match code {
            0 => r#"{"metadata":{},"status":"Success"}"#.to_owned(),
            code => format!(
                r#"{{"metadata":{{}},"status":"Failure","reason":"NonZeroExitCode","message":"command terminated with exit code {code}","details":{{"causes":[{{"reason":"ExitCode","message":"{code}"}}]}}}}"#
            ),
        };
        self.send(3, &status).await;
        let _ = self.socket.close(None).await;
    }

    /// Channels: 1 is standard output, 2 standard error, 3 the status at the end.
    async fn send(&mut self, channel: u8, text: &str) {
        let bytes = [&[channel], text.as_bytes()].concat();
        let _: Result<(), tungstenite::Error> = self.socket.send(Message::binary(bytes)).await;
    }
}

impl Front {
    /// Starts a proxy to the API server of this user. Also returns the user whose requests go to the proxy.
    pub async fn before(
        person: &UserAccount,
        programs: impl Fn(Session) -> BoxFuture<'static, ()> + Send + Sync + 'static,
        logs: impl Fn(&LogRequest) -> Option<Vec<(Duration, String)>> + Send + Sync + 'static,
    ) -> (Front, UserAccount) {
        let kubeconfig = &person.kubeconfig;
        let client = Client::try_from(api_server::config(kubeconfig).await).unwrap();
        let front = Front {
            client,
            programs: Arc::new(programs),
            logs: Arc::new(logs),
            started: Arc::default(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let text = std::fs::read_to_string(kubeconfig).unwrap();
        let server = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("server: "))
            .unwrap();
        let path = kubeconfig.with_extension(format!("{}.front", address.port()));
        std::fs::write(&path, text.replace(server, &format!("http://{address}"))).unwrap();
        let serving = front.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let front = serving.clone();
                tokio::spawn(async move {
                    let service = hyper::service::service_fn(move |request| front.clone().answer(request));
                    let server = hyper::server::conn::http1::Builder::new();
                    let _ = server
                        .serve_connection(TokioIo::new(stream), service)
                        .with_upgrades()
                        .await;
                });
            }
        });
        let person = UserAccount {
            kubeconfig: path,
            namespace: person.namespace.clone(),
        };
        (front, person)
    }

    /// Waits until the agent of a pod gets this command.
    pub async fn when_told(&self, command: &[&str]) {
        api_server::until(&format!("the agent gets `{}`", command.join(" ")), async || {
            let programs = self.started();
            let is_told = programs.iter().any(|program| program.words == command);
            is_told.then_some(())
        })
        .await;
    }

    pub fn started(&self) -> Vec<Started> {
        self.started.lock().unwrap().clone()
    }

    async fn answer(self, request: Request<Incoming>) -> Result<Answer, kube::Error> {
        let path = request.uri().path().to_owned();
        let parts: Vec<&str> = path.split('/').collect();
        match parts.as_slice() {
            [.., "pods", pod, "exec"] => self.exec((*pod).to_owned(), request).await,
            [.., "pods", pod, "log"] => self.log((*pod).to_owned(), request).await,
            _ => self.hand_on(request).await,
        }
    }

    async fn hand_on(&self, request: Request<Incoming>) -> Result<Answer, kube::Error> {
        let (mut parts, body) = request.into_parts();
        // The client sets the first two itself. The other two may ask for a WebSocket, which only `exec` opens.
        [
            header::HOST,
            header::AUTHORIZATION,
            header::CONNECTION,
            header::UPGRADE,
        ]
        .iter()
        .for_each(|name| {
            parts.headers.remove(name);
        });
        let bytes = body.collect().await.unwrap().to_bytes();
        let answer = self
            .client
            .send(Request::from_parts(parts, Body::from(bytes.to_vec())))
            .await?;
        Ok(answer.map(|body| body.map_err(Into::into).boxed_unsync()))
    }

    async fn exec(self, pod: String, mut request: Request<Incoming>) -> Result<Answer, kube::Error> {
        let query = query(&request);
        let key = request
            .headers()
            .get(header::SEC_WEBSOCKET_KEY)
            .map(|key| derive_accept_key(key.as_bytes()));
        let upgrade = hyper::upgrade::on(&mut request);
        let forwarded = self.hand_on(request).await?;
        // The API server has checked the user's rights. Other errors are ignored: it has no kubelet to ask.
        let accept = match key {
            Some(key) if forwarded.status() != StatusCode::FORBIDDEN => key,
            _ => return Ok(forwarded),
        };
        let words: Vec<String> = query
            .iter()
            .filter(|(name, _)| name == "command")
            .map(|(_, value)| value.clone())
            .collect();
        assert!(words[0].ends_with("flux-agent"), "{words:?}");
        self.started.lock().unwrap().push(Started {
            pod,
            words: words[1..].to_vec(),
        });
        let terminal = query.iter().any(|(name, value)| name == "tty" && value == "true");
        tokio::spawn(async move {
            let stream = TokioIo::new(upgrade.await.unwrap());
            let socket = WebSocketStream::from_raw_socket(stream, Role::Server, None).await;
            (self.programs)(Session {
                words: words[1..].to_vec(),
                terminal,
                socket,
            })
            .await;
        });
        let answer = Response::builder().status(StatusCode::SWITCHING_PROTOCOLS);
        let answer = answer
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "websocket");
        let answer = answer.header(header::SEC_WEBSOCKET_ACCEPT, accept);
        Ok(answer
            .header(header::SEC_WEBSOCKET_PROTOCOL, "v5.channel.k8s.io")
            .body(chunks(Vec::new()))
            .unwrap())
    }

    async fn log(self, pod: String, request: Request<Incoming>) -> Result<Answer, kube::Error> {
        let query = query(&request);
        let parameter = |wanted: &str| {
            query
                .iter()
                .find(|(name, _)| name == wanted)
                .map(|(_, value)| value.clone())
        };
        let is_true = |wanted: &str| parameter(wanted).as_deref() == Some("true");
        let log_request = LogRequest {
            pod,
            follow: is_true("follow"),
            previous: is_true("previous"),
            since: parameter("sinceTime"),
        };
        let (timestamps, forwarded) = (is_true("timestamps"), self.hand_on(request).await?);
        if forwarded.status() == StatusCode::FORBIDDEN {
            return Ok(forwarded);
        }
        let Some(lines) = (self.logs)(&log_request) else {
            let status = r#"{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"BadRequest","code":400,"metadata":{},"message":"previous terminated container not found"}"#;
            let body = chunks(vec![(Duration::ZERO, status.into())]);
            return Ok(Response::builder()
                .status(400)
                .header("content-type", "application/json")
                .body(body)
                .unwrap());
        };
        let timed = |(number, (pause, line)): (usize, (Duration, String))| {
            let time = if timestamps {
                format!("2026-01-01T00:00:{number:02}.000000001Z ")
            } else {
                String::new()
            };
            (pause, format!("{time}{line}\n"))
        };
        // The seconds of a line's time are its number, below 60. A request with `sinceTime` gets the lines from there on.
        let since = log_request
            .since
            .as_deref()
            .and_then(|time| time.get(17..19)?.parse().ok())
            .unwrap_or(0);
        let lines = lines.into_iter().enumerate().skip(since).map(timed).collect();
        Ok(Response::new(chunks(lines)))
    }
}

fn chunks(lines: Vec<(Duration, String)>) -> UnsyncBoxBody<Bytes, Box<dyn std::error::Error + Send + Sync>> {
    let frames = futures::stream::iter(lines).then(|(pause, line)| async move {
        tokio::time::sleep(pause).await;
        Ok(Frame::data(Bytes::from(line)))
    });
    StreamBody::new(frames).boxed_unsync()
}

fn query(request: &Request<Incoming>) -> Vec<(String, String)> {
    let pairs = request.uri().query().unwrap_or_default().split('&');
    pairs
        .filter_map(|pair| pair.split_once('='))
        .map(|(name, value)| (name.to_owned(), decoded(value)))
        .collect()
}

/// Decodes a URL-encoded value.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digits: String = rest.by_ref().take(2).map(char::from).collect();
                u8::from_str_radix(&digits, 16).unwrap()
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).unwrap()
}
