//! Sends spans to a collector, with the SDK of OpenTelemetry. A thread of the SDK sends them in batches, and retries
//! temporary failures for some seconds. The callers do not wait: what it cannot send is dropped, and the log says so.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use flux_operator_core::otlp_endpoint::Endpoint;
use flux_operator_core::spans::{Attribute, Program, Span, Traced};
use http::{Request, Response};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{ExporterBuildError, Protocol, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, SpanData, SpanEvents, SpanExporter, SpanLinks, SpanProcessor,
};
use parking_lot::Mutex;
use tokio::runtime::Handle;

/// Most spans that wait to be sent. A pod has about twelve, and thousands of pods may end together.
const QUEUE: usize = 16_384;
/// Longest time until a batch with a new span is sent, unless an earlier batch is still being sent.
const DELAY: Duration = Duration::from_secs(1);
/// Time limit of one request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Longest answer that is read, in bytes.
const LONGEST_ANSWER: usize = 1 << 16;
/// Shortest time between two log lines about spans that were lost.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// Sends spans in the background.
#[derive(Debug, Default)]
pub struct Traces(Option<Sender>);

#[derive(Debug)]
struct Sender {
    processor: BatchSpanProcessor,
    /// How many spans are in the processor's queue.
    waiting: Arc<AtomicUsize>,
    warnings: Arc<Warnings>,
}

impl Traces {
    /// Starts to send to the endpoint. Without an endpoint nothing is sent, and no thread is started. With one, this
    /// panics outside a tokio runtime: the requests run on the caller's runtime.
    pub fn new(endpoint: Option<&Endpoint>) -> Traces {
        let Some(endpoint) = endpoint else {
            return Traces::default();
        };
        match Sender::new(endpoint) {
            Ok(sender) => Traces(Some(sender)),
            Err(error) => {
                crate::health::log::warn("no spans are sent", &error);
                Traces::default()
            }
        }
    }

    /// Whether spans are sent: there is an endpoint, and the sender could be created.
    pub fn are_wanted(&self) -> bool {
        self.0.is_some()
    }

    /// Puts all spans into the queue, or drops all of them if it has no room.
    pub fn send(&self, traced: Traced) {
        let Some(sender) = &self.0 else { return };
        let count = traced.spans.len();
        if sender.waiting.fetch_add(count, Ordering::Relaxed) + count > QUEUE {
            sender.waiting.fetch_sub(count, Ordering::Relaxed);
            sender
                .warnings
                .warn("dropped spans: too many are waiting to be sent");
            return;
        }
        let scope = InstrumentationScope::builder(match traced.by {
            Program::Operator => "flux-operator",
            Program::Agent => "flux-agent",
        })
        .build();
        for span in traced.spans {
            sender.processor.on_end(span_data(traced.trace, &scope, span));
        }
    }
}

impl Sender {
    fn new(endpoint: &Endpoint) -> Result<Sender, ExporterBuildError> {
        let warnings = Arc::new(Warnings::default());
        let client = Client {
            http: hyper_util::client::legacy::Client::builder(TokioExecutor::new()).build_http(),
            runtime: Handle::current(),
            endpoint: endpoint.clone(),
            warnings: warnings.clone(),
        };
        let exporter = opentelemetry_otlp::SpanExporter::builder()
            .with_http()
            .with_endpoint(endpoint.traces())
            .with_protocol(Protocol::HttpBinary)
            .with_http_client(client)
            .build()?;
        // The processor drops single spans if its queue is full. `send` counts those that wait, to drop all of a call.
        let waiting = Arc::new(AtomicUsize::new(0));
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(QUEUE)
            .with_scheduled_delay(DELAY)
            .build();
        let counted = CountingExporter {
            exporter,
            waiting: waiting.clone(),
        };
        let mut processor = BatchSpanProcessor::new(counted, config);
        let attributes = [
            KeyValue::new("service.name", "flux-operator"),
            KeyValue::new("service.version", env!("CARGO_PKG_VERSION")),
        ];
        processor.set_resource(&Resource::builder().with_attributes(attributes).build());
        Ok(Sender {
            processor,
            waiting,
            warnings,
        })
    }
}

/// A span in the SDK's form.
fn span_data(trace: u128, scope: &InstrumentationScope, span: Span) -> SpanData {
    let time = |since_epoch| {
        SystemTime::UNIX_EPOCH
            .checked_add(since_epoch)
            .unwrap_or(SystemTime::UNIX_EPOCH)
    };
    let is_remote = false;
    let context = SpanContext::new(
        TraceId::from(trace),
        SpanId::from(span.id),
        TraceFlags::SAMPLED,
        is_remote,
        TraceState::NONE,
    );
    let attributes = span.attributes.into_iter().map(|(key, attribute)| {
        let value = match attribute {
            Attribute::Text(text) => Value::from(text),
            Attribute::Number(number) => Value::from(number),
        };
        KeyValue::new(key, value)
    });
    SpanData {
        span_context: context,
        parent_span_id: span.parent.map_or(SpanId::INVALID, SpanId::from),
        parent_span_is_remote: false,
        span_kind: SpanKind::Internal,
        name: span.name.into(),
        start_time: time(span.begin),
        // A span must not end before it begins.
        end_time: time(span.end.max(span.begin)),
        attributes: attributes.collect(),
        dropped_attributes_count: 0,
        events: SpanEvents::default(),
        links: SpanLinks::default(),
        status: span.error.map_or(Status::Unset, Status::error),
        instrumentation_scope: scope.clone(),
    }
}

/// Subtracts the spans that leave the queue from `waiting`.
#[derive(Debug)]
struct CountingExporter {
    exporter: opentelemetry_otlp::SpanExporter,
    waiting: Arc<AtomicUsize>,
}

impl SpanExporter for CountingExporter {
    fn export(&self, batch: Vec<SpanData>) -> impl Future<Output = OTelSdkResult> + Send {
        self.waiting.fetch_sub(batch.len(), Ordering::Relaxed);
        self.exporter.export(batch)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// Sends the SDK's requests and logs those that fail. The SDK's thread has no tokio runtime, so they run on the
/// operator's.
#[derive(Debug)]
struct Client {
    http: hyper_util::client::legacy::Client<HttpConnector, Full<Bytes>>,
    runtime: Handle,
    endpoint: Endpoint,
    warnings: Arc<Warnings>,
}

impl Client {
    async fn send(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let answer = self.http.request(request.map(Full::new));
        let whole = async move {
            let (head, body) = answer.await?.into_parts();
            let body = Limited::new(body, LONGEST_ANSWER).collect().await?;
            Ok(Response::from_parts(head, body.to_bytes()))
        };
        let task = async { tokio::time::timeout(TIMEOUT, whole).await };
        let result = match self.runtime.spawn(task).await? {
            Ok(result) => result,
            Err(_) => Err(format!("no answer within {} s", TIMEOUT.as_secs()).into()),
        };
        let why = match &result {
            Ok(response) if response.status().is_success() => return result,
            Ok(response) => format!("it answered with status {}", response.status()),
            Err(error) => crate::health::log::causes(&**error),
        };
        self.warnings
            .warn(&format!("failed to send spans to {}: {why}", self.endpoint));
        result
    }
}

// The signature that `async_trait` generates for the trait.
impl HttpClient for Client {
    fn send_bytes<'client, 'future>(
        &'client self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Result<Response<Bytes>, HttpError>> + Send + 'future>>
    where
        'client: 'future,
        Self: 'future,
    {
        Box::pin(self.send(request))
    }
}

/// Logs warnings about lost spans, at most one in `WARNING_INTERVAL`. Holds the time of the last one.
#[derive(Debug, Default)]
struct Warnings(Mutex<Option<Instant>>);

impl Warnings {
    fn warn(&self, what: &str) {
        let mut last = self.0.lock();
        if last.is_none_or(|last| last.elapsed() >= WARNING_INTERVAL) {
            *last = Some(Instant::now());
            tracing::warn!("{what}");
        }
    }
}

#[cfg(test)]
mod tests {
    use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
    use opentelemetry_proto::tonic::trace::v1 as proto;
    use prost::Message;
    use test_support::collector::{CLOSING, Collector, REFUSING};

    use super::*;

    fn traced(by: Program, spans: usize) -> Traced {
        let span = |number| Span {
            id: 0xa1 + number,
            parent: (number > 0).then_some(0xa1),
            name: format!("span {number}"),
            begin: Duration::from_secs(5),
            end: Duration::from_secs(4),
            attributes: vec![("exit_code", 7.into())],
            error: (number > 0).then(|| "it ended with code 7".into()),
        };
        Traced {
            trace: 3,
            by,
            spans: (0..spans as u64).map(span).collect(),
        }
    }

    fn traces_to(collector: &Collector) -> Arc<Traces> {
        Arc::new(Traces::new(Some(&collector.endpoint().parse().unwrap())))
    }

    /// Sends what waits; the result of the last batch.
    async fn flush(traces: &Arc<Traces>) -> OTelSdkResult {
        let traces = traces.clone();
        let flush = move || traces.0.as_ref().unwrap().processor.force_flush();
        tokio::task::spawn_blocking(flush).await.unwrap()
    }

    fn waiting(traces: &Traces) -> usize {
        traces.0.as_ref().unwrap().waiting.load(Ordering::Relaxed)
    }

    #[tokio::test]
    async fn spans_are_sent_with_their_ids_times_and_errors() {
        let collector = Collector::start(Some(CLOSING));
        let traces = traces_to(&collector);
        traces.send(traced(Program::Agent, 2));
        flush(&traces).await.unwrap();
        let [body] = &collector.bodies()[..] else {
            panic!("one request")
        };
        let request = ExportTraceServiceRequest::decode(&body[..]).unwrap();
        let resource = &request.resource_spans[0];
        let attributes = format!("{:?}", resource.resource);
        assert!(
            attributes.contains("service.name") && attributes.contains("flux-operator"),
            "{attributes}"
        );
        let scope = &resource.scope_spans[0];
        assert_eq!(scope.scope.as_ref().unwrap().name, "flux-agent");
        let [root, child] = &scope.spans[..] else {
            panic!("two spans")
        };
        let error_of = |span: &proto::Span| {
            let status = span.status.clone().unwrap_or_default();
            (status.code == 2).then_some(status.message)
        };
        assert_eq!((root.parent_span_id.len(), error_of(root)), (0, None));
        assert_eq!(child.trace_id, 3_u128.to_be_bytes());
        assert_eq!(
            (&child.span_id[..], &child.parent_span_id[..]),
            (&0xa2_u64.to_be_bytes()[..], &0xa1_u64.to_be_bytes()[..])
        );
        // `traced` makes spans that end before they begin. Such an end is moved to the begin.
        assert_eq!(
            (child.start_time_unix_nano, child.end_time_unix_nano),
            (5_000_000_000, 5_000_000_000)
        );
        assert!(
            format!("{:?}", child.attributes).contains("IntValue(7)"),
            "{child:?}"
        );
        assert_eq!(error_of(child).as_deref(), Some("it ended with code 7"));
    }

    #[tokio::test]
    async fn answer_counts_even_if_the_connection_ends_with_it() {
        let collector = Collector::start(Some(CLOSING));
        let traces = traces_to(&collector);
        for count in 1..20 {
            traces.send(traced(Program::Operator, 1));
            flush(&traces).await.unwrap();
            assert_eq!(collector.bodies().len(), count, "each is sent once");
        }
    }

    #[tokio::test]
    async fn refused_spans_are_given_up() {
        let collector = Collector::start(Some(REFUSING));
        let traces = traces_to(&collector);
        traces.send(traced(Program::Operator, 1));
        assert!(flush(&traces).await.is_err());
        assert_eq!((waiting(&traces), collector.bodies().len()), (0, 1));
    }

    /// The sender does not wait, and the queue does not grow beyond its limit.
    #[tokio::test]
    async fn silent_collector_costs_a_bounded_queue_and_no_time() {
        let collector = Collector::start(None);
        let traces = traces_to(&collector);
        let all = (0..4 * QUEUE / 1024).map(|_| traced(Program::Agent, 1024));
        let all: Vec<_> = all.collect();
        let begin = Instant::now();
        all.into_iter().for_each(|traced| traces.send(traced));
        assert!(begin.elapsed() < TIMEOUT / 2, "{:?}", begin.elapsed());
        assert!(
            (QUEUE / 2..=QUEUE).contains(&waiting(&traces)),
            "{}",
            waiting(&traces)
        );
    }
}
