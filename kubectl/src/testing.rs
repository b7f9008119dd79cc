//! A fake API server with scripted answers.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use flux_operator_client::credentials::CredentialPlugin;
use futures::stream::{self, BoxStream};
use futures::{FutureExt, StreamExt};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use k8s_openapi::api::core::v1::Pod;
use kube::client::{AuthError, Body, ClientBuilder};
use kube::config::{AuthInfo, ExecConfig};
use serde_json::{Value, json};
use tower::util::MapFutureLayer;
use tower::{BoxError, Layer};

use crate::login;
use crate::target::{Access, Target};

/// How a log ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum LogEnd {
    Whole,
    /// Nothing comes after the bytes, not even the end.
    Stalled,
    Broken,
}

/// A log as the API server sends it.
pub struct Log {
    pub bytes: &'static [u8],
    pub end: LogEnd,
}

/// An answer to a request.
pub enum Answer {
    Json(u16, Value),
    Log(Log),
    Never,
    /// A failure of the client.
    Failed(tower::BoxError),
}

/// The status of a request that failed.
pub fn failed(code: u16) -> Answer {
    failed_because(code, if code == 404 { "NotFound" } else { "Refused" })
}

/// As `failed`, with this reason.
pub fn failed_because(code: u16, reason: &str) -> Answer {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "refused", "reason": reason, "code": code });
    Answer::Json(code, status)
}

/// A client whose credential plugin fails: the answer to each request.
pub fn failing_plugin() -> impl Fn() -> Answer {
    let exec = ExecConfig {
        command: Some("aws".into()),
        ..ExecConfig::default()
    };
    let user = AuthInfo {
        exec: Some(exec),
        ..AuthInfo::default()
    };
    let named = login::naming_failures_of::<()>(CredentialPlugin::of(&user));
    move || Answer::Failed(named(Err(AuthError::ExecPluginFailed.into())).unwrap_err())
}

/// Method, path and query of the requests so far.
pub type Requests = Arc<Mutex<Vec<String>>>;

/// A fake API server that answers each request (`GET /path?query`) with the result of `answer`.
pub fn answering(mut answer: impl FnMut(&str) -> Answer + Send + 'static) -> (Target, Requests) {
    let requests: Requests = Arc::default();
    let received = requests.clone();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let request = format!("{} {}", request.method(), request.uri());
        received.lock().unwrap().push(request.clone());
        let (code, bytes, end) = match answer(&request) {
            Answer::Json(code, value) => (code, Bytes::from(value.to_string()), LogEnd::Whole),
            Answer::Log(log) => (200, Bytes::from_static(log.bytes), log.end),
            Answer::Never => return std::future::pending().boxed(),
            Answer::Failed(error) => return std::future::ready(Err(error)).boxed(),
        };
        let frames = stream::iter([Ok::<_, std::io::Error>(Frame::data(bytes))]);
        let frames: BoxStream<'static, _> = match end {
            LogEnd::Whole => frames.boxed(),
            LogEnd::Stalled => frames.chain(stream::pending()).boxed(),
            LogEnd::Broken => frames
                .chain(stream::iter([Err(std::io::Error::other("broken"))]))
                .boxed(),
        };
        let response = http::Response::builder()
            .status(code)
            .body(StreamBody::new(frames))
            .unwrap();
        std::future::ready(Ok::<_, tower::BoxError>(response)).boxed()
    });
    let target = Target {
        client: ClientBuilder::new(service, "default").build(),
        access: Access::default(),
        namespace: "default".into(),
        server: "http://server".into(),
    };
    (target, requests)
}

/// The same server, with the option `-n other`.
pub fn in_other((target, requests): (Target, Requests)) -> (Target, Requests) {
    let access = Access {
        namespace: Some("other".into()),
        ..Access::default()
    };
    let namespace = "other".into();
    let target = Target {
        access,
        namespace,
        ..target
    };
    (target, requests)
}

/// The same server, for a client that does not wait for an answer without a limit.
pub fn never_waiting((target, _): (Target, Requests)) -> Target {
    let client = target.client.clone();
    let server = tower::service_fn(move |request| {
        let client = client.clone();
        async move { client.send(request).await.map_err(BoxError::from) }
    });
    let limited = MapFutureLayer::new(login::limited(false));
    Target {
        client: ClientBuilder::new(limited.layer(server), target.namespace.clone()).build(),
        ..target
    }
}

/// The logs that were not requested yet.
pub type LogsLeft = Arc<Mutex<VecDeque<Log>>>;

/// A fake API server that sends these logs in turn. All other requests get the pods in turn, and the last pod again
/// and again. `None` means that there is no pod.
pub fn server(
    pods: impl IntoIterator<Item = Option<Pod>>,
    logs: impl IntoIterator<Item = Log>,
) -> (Target, LogsLeft, Requests) {
    let left: LogsLeft = Arc::new(Mutex::new(logs.into_iter().collect()));
    let (logs, mut pods) = (left.clone(), pods.into_iter().collect::<VecDeque<_>>());
    let (target, requests) = answering(move |request| {
        if request.contains("/log?") {
            return Answer::Log(logs.lock().unwrap().pop_front().expect("no more logs are read"));
        }
        let pod = if pods.len() > 1 {
            pods.pop_front().unwrap()
        } else {
            pods[0].clone()
        };
        match pod {
            Some(pod) => Answer::Json(200, serde_json::to_value(pod).unwrap()),
            None => failed(404),
        }
    });
    (target, left, requests)
}
