//! An API server that knows one pod and its logs.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use futures::StreamExt;
use futures::stream::{self, BoxStream};
use http_body_util::StreamBody;
use hyper::body::{Bytes, Frame};
use k8s_openapi::api::core::v1::Pod;
use kube::client::{Body, ClientBuilder};

use crate::target::Target;

/// A log as the API server sends it.
pub struct Log {
    pub bytes: &'static [u8],
    /// Whether nothing comes after the bytes, not even the end.
    pub stalls: bool,
}

/// The logs that have not been asked for.
pub type LogsLeft = Arc<Mutex<VecDeque<Log>>>;

/// An API server that sends these logs in turn, and `pod` for any other request.
pub fn server(pod: &Pod, logs: impl IntoIterator<Item = Log>) -> (Target, LogsLeft) {
    let left: LogsLeft = Arc::new(Mutex::new(logs.into_iter().collect()));
    let (logs, pod) = (left.clone(), serde_json::to_vec(pod).unwrap());
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let (bytes, stalls) = if request.uri().path().ends_with("/log") {
            let log = logs.lock().unwrap().pop_front().expect("no more logs are read");
            (Bytes::from_static(log.bytes), log.stalls)
        } else {
            (Bytes::from(pod.clone()), false)
        };
        let frames = stream::iter([Ok::<_, Infallible>(Frame::data(bytes))]);
        let frames: BoxStream<'static, _> = if stalls {
            frames.chain(stream::pending()).boxed()
        } else {
            frames.boxed()
        };
        std::future::ready(Ok::<_, tower::BoxError>(http::Response::new(StreamBody::new(
            frames,
        ))))
    });
    let target = Target {
        client: ClientBuilder::new(service, "default").build(),
        namespace: "default".into(),
        server: "http://server".into(),
    };
    (target, left)
}
