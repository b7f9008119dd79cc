//! Counts the operator's calls to the API server, and makes some of them fail.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::{BodyExt, StreamBody};
use k8s_openapi::jiff::SignedDuration;
use k8s_openapi::jiff::fmt::rfc2822;
use kube::client::{Body, DynBody};
use serde_json::{Value, json};
use tokio::sync::watch;
use tower::BoxError;

use crate::call::Call;

/// A record of an operator's calls, and which of them fail.
#[derive(Clone, Default)]
pub struct Calls {
    pub(super) log: Arc<Mutex<Vec<Call>>>,
    /// Number of writes that are answered. The next write arrives, but gets no answer; later calls do not arrive. None:
    /// all calls are answered.
    pub(super) dies_after: Option<usize>,
    /// Number of writes so far, without those that have a fault.
    pub(super) writes: Arc<AtomicUsize>,
    /// The answers to about every fourth write are lost.
    pub(super) is_flaky: bool,
    /// The fault of a call, if it has one.
    pub(super) faults: Option<Arc<Faults>>,
    /// How far the API server's clock is ahead, by the header `Date` of its answers.
    pub(super) clock_ahead: SignedDuration,
}

type Faults = dyn Fn(&Call) -> Option<Fault> + Send + Sync;

/// A fault of a call. Only [`Fault::Held`] lets the call reach the API server.
#[derive(Debug, Clone)]
pub enum Fault {
    /// The answer has this HTTP status.
    Answer(u16),
    /// The answer has this HTTP status, and comes late.
    Late(Duration, u16),
    /// The connection breaks.
    Lost,
    /// The operator panics during the call.
    Panic,
    /// The answer is this object.
    Says(Value),
    /// The watch begins, and reports at once that its resourceVersion is too old.
    Expired,
    /// The watch brings nothing while this is true.
    Held(watch::Receiver<bool>),
}

impl Fault {
    async fn happen(self) -> Result<http::Response<Box<DynBody>>, BoxError> {
        let reason = |code: u16| match code {
            400 => "BadRequest",
            409 => "Conflict",
            410 => "Expired",
            422 => "Invalid",
            429 => "TooManyRequests",
            503 => "ServiceUnavailable",
            504 => "Timeout",
            _ => "InternalError",
        };
        let status = |code: u16| {
            json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
                "reason": reason(code), "message": format!("made up: {code}"),
            })
        };
        let (code, body) = match self {
            // A test checks that no status shows this text.
            Fault::Panic => panic!("over a word with a secret: hunter2"),
            Fault::Lost => return Err("the connection broke".into()),
            Fault::Answer(code) => (code, status(code)),
            Fault::Says(answer) => (200, answer),
            Fault::Late(time, code) => {
                tokio::time::sleep(time).await;
                (code, status(code))
            }
            Fault::Expired => (200, json!({ "type": "ERROR", "object": status(410) })),
            Fault::Held(_) => unreachable!("held calls reach the API server"),
        };
        let body = http_body_util::Full::new(hyper::body::Bytes::from(format!("{body}\n")));
        let body: Box<DynBody> = Box::new(body.map_err(|never| match never {}));
        Ok(http::Response::builder()
            .status(code)
            .header("content-type", "application/json")
            .body(body)
            .unwrap())
    }
}

impl Calls {
    pub fn with_faults(faults: impl Fn(&Call) -> Option<Fault> + Send + Sync + 'static) -> Calls {
        Calls {
            faults: Some(Arc::new(faults)),
            ..Calls::default()
        }
    }

    pub fn with_clock_ahead(clock_ahead: SignedDuration) -> Calls {
        Calls {
            clock_ahead,
            ..Calls::default()
        }
    }

    pub fn all(&self) -> Vec<Call> {
        self.log.lock().unwrap().clone()
    }

    /// All calls except lists, watches and patches of `pods/status`. Such a patch may change labels, too: by it the
    /// operator labels the lead's pod, since it has no permission to patch pods themselves. It does so in the background,
    /// at any time, so tests cannot count these patches.
    pub fn counted(&self) -> Vec<Call> {
        self.all()
            .into_iter()
            .filter(|call| !matches!(call.verb.as_str(), "list" | "watch") && !call.patches_pod_status())
            .collect()
    }

    /// The resources that were watched.
    pub fn watched(&self) -> BTreeSet<String> {
        let calls = self.all().into_iter();
        calls
            .filter(|call| call.verb == "watch")
            .map(|call| call.resource)
            .collect()
    }

    pub fn clear(&self) {
        self.log.lock().unwrap().clear();
    }
}

/// True for about a quarter of all numbers, irregularly, so that a reconcile's calls do not match the pattern.
fn is_unlucky(number: usize) -> bool {
    // The multiplier is 2^64 divided by the golden ratio: it scatters the numbers over all values of 64 bits. The two
    // highest bits are 0 in a quarter of them.
    (number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62 == 0
}

/// Moves the time in the header `Date`.
fn move_date(headers: &mut http::HeaderMap, ahead: SignedDuration) {
    if ahead.is_zero() {
        return;
    }
    let date = headers.get_mut("date").expect("the API server sends its time");
    let time = rfc2822::DateTimeParser::new().parse_timestamp(&date).unwrap() + ahead;
    let moved = rfc2822::DateTimePrinter::new().timestamp_to_rfc9110_string(&time);
    *date = moved.unwrap().parse().unwrap();
}

/// A body that sends nothing while `is_held` is true.
fn hold_back(body: Box<DynBody>, is_held: watch::Receiver<bool>) -> Box<DynBody> {
    let frames = futures::stream::unfold((body, is_held), |(mut body, mut is_held)| async move {
        let frame = body.frame().await?;
        // An error means that the sender is gone. Then nothing is held back.
        let _ = is_held.wait_for(|is_held| !is_held).await;
        Some((frame, (body, is_held)))
    });
    Box::new(StreamBody::new(Box::pin(frames)))
}

/// The service between an operator and the API server: records each call in `calls`, and makes some fail.
#[derive(Clone)]
pub(super) struct Counting<S> {
    pub(super) inner: S,
    pub(super) calls: Calls,
}

/// The name of the object in the body of a call, for paths without a name.
async fn name_in(body: &Body) -> Option<String> {
    let bytes = body.try_clone()?.collect_bytes().await.ok()?;
    let object: Value = serde_json::from_slice(&bytes).ok()?;
    object["metadata"]["name"].as_str().map(str::to_owned)
}

impl<S> tower::Service<http::Request<Body>> for Counting<S>
where
    S: tower::Service<http::Request<Body>, Response = http::Response<Box<DynBody>>, Error = BoxError>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, task: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), S::Error>> {
        self.inner.poll_ready(task)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let mut call = Call::of(request.method().as_str(), request.uri());
        let calls = self.calls.clone();
        let mut held = None;
        if let Some(faults) = &calls.faults {
            // The path of a creation has no name, so the faults get it from the body. A body in memory can be read at
            // once.
            call.name = futures::FutureExt::now_or_never(name_in(request.body()))
                .flatten()
                .unwrap_or(call.name);
            match faults(&call) {
                Some(Fault::Held(is_held)) => held = Some(is_held),
                Some(fault) => {
                    calls.log.lock().unwrap().push(call);
                    return Box::pin(fault.happen());
                }
                None => {}
            }
        }
        // Writes are numbered from 0. A read gets the number of the next write.
        let number = calls
            .writes
            .fetch_add(usize::from(!call.is_read()), Ordering::SeqCst);
        let is_alive = calls.dies_after.is_none_or(|last| number <= last);
        let answer = is_alive.then(|| self.inner.call(request));
        Box::pin(async move {
            let Some(answer) = answer else {
                return std::future::pending().await;
            };
            let answer = answer.await.map(|mut answer| {
                move_date(answer.headers_mut(), calls.clock_ahead);
                answer
            });
            call.status = answer.as_ref().map_or(0, |answer| answer.status().as_u16());
            calls.log.lock().unwrap().push(call.clone());
            if !call.is_read() && calls.dies_after.is_some_and(|last| number >= last) {
                return std::future::pending().await;
            }
            if calls.is_flaky && !call.is_read() && is_unlucky(number) {
                return Err("the connection broke".into());
            }
            match held {
                Some(is_held) => answer.map(|answer| answer.map(|body| hold_back(body, is_held))),
                None => answer,
            }
        })
    }
}
