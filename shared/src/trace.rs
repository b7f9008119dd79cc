//! Traces (OpenTelemetry): where a MiniCluster's time went, as spans of one trace. Pure.
//!
//! The trace is the MiniCluster's own: its id is the object's uid, so that operator and pods agree on it
//! without asking each other. Sources: W3C Trace Context 1 (`traceparent`), the OTLP specification 1 (JSON
//! over HTTP). By hand: OpenTelemetry's crates time what happens as it happens, and these times are
//! Kubernetes' and other pods'.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Path of OTLP over HTTP for spans.
const PATH: &str = "/v1/traces";
/// The port of OTLP over HTTP.
const PORT: u16 = 4318;
/// How many pods of a MiniCluster send spans, the first ones: nobody reads a trace of thousands.
pub const PODS: u32 = 64;

/// A parent span in the form of `traceparent`: `00-<trace id>-<span id>-01`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct TraceParent {
    pub trace: u128,
    pub span: u64,
}

/// A text that is no `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be a traceparent: 00-<32 hex digits>-<16 hex digits>-<2 hex digits>, neither of the first two all zero"
)]
pub struct NoTraceParent;

impl TraceParent {
    /// The root span of the MiniCluster with this uid. None: the uid is no UUID.
    pub fn of_uid(uid: &str) -> Option<TraceParent> {
        let trace = number(&uid.replace('-', ""), 32)?;
        let span = u64::try_from(trace & u128::from(u64::MAX)).ok()?;
        (span != 0).then_some(TraceParent { trace, span })
    }
}

/// A number other than 0 in exactly so many hexadecimal digits.
fn number(text: &str, digits: usize) -> Option<u128> {
    let is_hex = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    u128::from_str_radix(text, 16)
        .ok()
        .filter(|number| is_hex && *number != 0)
}

impl fmt::Display for TraceParent {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "00-{:032x}-{:016x}-01", self.trace, self.span)
    }
}

impl FromStr for TraceParent {
    type Err = NoTraceParent;

    fn from_str(text: &str) -> Result<TraceParent, NoTraceParent> {
        let ["00", trace, span, flags] = text.split('-').collect::<Vec<_>>()[..] else {
            return Err(NoTraceParent);
        };
        let (Some(trace), Some(span)) = (number(trace, 32), number(span, 16)) else {
            return Err(NoTraceParent);
        };
        let span = u64::try_from(span).map_err(|_| NoTraceParent)?;
        if flags.len() == 2 {
            Ok(TraceParent { trace, span })
        } else {
            Err(NoTraceParent)
        }
    }
}

impl TryFrom<String> for TraceParent {
    type Error = NoTraceParent;

    fn try_from(text: String) -> Result<TraceParent, NoTraceParent> {
        text.parse()
    }
}

impl From<TraceParent> for String {
    fn from(parent: TraceParent) -> String {
        parent.to_string()
    }
}

/// Where spans are sent: `http://HOST[:4318][/BASE]`, as `OTEL_EXPORTER_OTLP_ENDPOINT` is written.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Endpoint {
    pub host: String,
    pub port: u16,
    /// Path before `/v1/traces`.
    base: String,
}

/// Why a text is no endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoEndpoint {
    #[error(
        "must begin with http://: the agent in the pods has no TLS; an OpenTelemetry Collector in the cluster can forward with TLS"
    )]
    Scheme,
    #[error("must be http://HOST[:PORT][/PATH], such as http://collector.observability:4318")]
    Shape,
}

impl Endpoint {
    /// The request's path.
    pub fn path(&self) -> String {
        format!("{}{PATH}", self.base)
    }

    /// The value of the header `Host`.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "http://{}{}", self.authority(), self.base)
    }
}

impl FromStr for Endpoint {
    type Err = NoEndpoint;

    fn from_str(text: &str) -> Result<Endpoint, NoEndpoint> {
        let rest = text.strip_prefix("http://").ok_or(NoEndpoint::Scheme)?;
        let (authority, base) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        // (The colons of an IPv6 address stand in brackets.)
        let (host, port) = match authority
            .rsplit_once(':')
            .filter(|(_, port)| !port.ends_with(']'))
        {
            Some((host, port)) => (host, port.parse().map_err(|_| NoEndpoint::Shape)?),
            None => (authority, PORT),
        };
        let is_host = |host: &str| {
            host.bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b".-_[]:".contains(&byte))
        };
        let is_path = |path: &str| {
            path.bytes()
                .all(|byte| byte.is_ascii_graphic() && !b"?#".contains(&byte))
        };
        if host.is_empty() || port == 0 || !is_host(host) || !is_path(base) {
            return Err(NoEndpoint::Shape);
        }
        Ok(Endpoint {
            host: host.to_owned(),
            port,
            base: base.trim_end_matches('/').to_owned(),
        })
    }
}

impl TryFrom<String> for Endpoint {
    type Error = NoEndpoint;

    fn try_from(text: String) -> Result<Endpoint, NoEndpoint> {
        text.parse()
    }
}

impl From<Endpoint> for String {
    fn from(endpoint: Endpoint) -> String {
        endpoint.to_string()
    }
}

/// A span. Times are since the epoch.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    pub id: u64,
    /// None: the root of the trace.
    pub parent: Option<u64>,
    pub name: String,
    pub begin: Duration,
    pub end: Duration,
    pub attributes: Vec<(&'static str, Attribute)>,
    /// Why it failed.
    pub error: Option<String>,
}

/// The value of an attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Attribute {
    Text(String),
    Number(i64),
}

impl From<&str> for Attribute {
    fn from(text: &str) -> Attribute {
        Attribute::Text(text.to_owned())
    }
}

impl From<i64> for Attribute {
    fn from(number: i64) -> Attribute {
        Attribute::Number(number)
    }
}

/// The body of a request with spans of one trace, from the program `service` in `version`.
pub fn request(trace: u128, service: &str, version: &str, spans: &[Span]) -> Value {
    let named = [
        ("service.name", Attribute::from(service)),
        ("service.version", Attribute::from(version)),
    ];
    json!({ "resourceSpans": [{
        "resource": { "attributes": attributes(&named) },
        "scopeSpans": [{
            "scope": { "name": service, "version": version },
            "spans": spans.iter().map(|span| one(trace, span)).collect::<Vec<_>>(),
        }],
    }] })
}

/// A span in OTLP's JSON, where ids are hexadecimal and 64-bit integers are strings.
fn one(trace: u128, span: &Span) -> Value {
    const INTERNAL: u8 = 1;
    const ERROR: u8 = 2;
    let mut value = json!({
        "traceId": format!("{trace:032x}"), "spanId": format!("{:016x}", span.id),
        "name": span.name, "kind": INTERNAL,
        "startTimeUnixNano": span.begin.as_nanos().to_string(),
        "endTimeUnixNano": span.end.max(span.begin).as_nanos().to_string(),
        "attributes": attributes(&span.attributes),
    });
    if let Some(parent) = span.parent {
        value["parentSpanId"] = format!("{parent:016x}").into();
    }
    if let Some(why) = &span.error {
        value["status"] = json!({ "code": ERROR, "message": why });
    }
    value
}

fn attributes(all: &[(&'static str, Attribute)]) -> Vec<Value> {
    let value = |attribute: &Attribute| match attribute {
        Attribute::Text(text) => json!({ "stringValue": text }),
        Attribute::Number(number) => json!({ "intValue": number.to_string() }),
    };
    all.iter()
        .map(|(key, attribute)| json!({ "key": key, "value": value(attribute) }))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_that_of_the_uid_and_reads_as_it_is_written() {
        let parent = TraceParent::of_uid("0af76519-16cd-43dd-8448-eb211c80319c").unwrap();
        assert_eq!(
            parent.to_string(),
            "00-0af7651916cd43dd8448eb211c80319c-8448eb211c80319c-01"
        );
        assert_eq!(parent.to_string().parse(), Ok(parent));
        assert_eq!(TraceParent::of_uid("uid-1"), None);
        assert_eq!(TraceParent::of_uid("00000000-0000-0000-0000-000000000000"), None);
        for wrong in [
            "",
            "00-0af7651916cd43dd8448eb211c80319c-8448eb211c80319c",
            "01-0af7651916cd43dd8448eb211c80319c-8448eb211c80319c-01",
            "00-00000000000000000000000000000000-8448eb211c80319c-01",
            "00-0af7651916cd43dd8448eb211c80319c-+448eb211c80319c-01",
        ] {
            assert_eq!(wrong.parse::<TraceParent>(), Err(NoTraceParent), "{wrong}");
        }
    }

    #[test]
    fn an_endpoint_is_a_base_address_over_http() {
        let read = |text: &str| {
            text.parse::<Endpoint>()
                .map(|it| (it.to_string(), it.host.clone(), it.port, it.path()))
        };
        let of = |url: &str, host: &str, port, path: &str| {
            Ok((url.to_owned(), host.to_owned(), port, path.to_owned()))
        };
        assert_eq!(
            read("http://otel.mon:4318"),
            of("http://otel.mon:4318", "otel.mon", 4318, "/v1/traces")
        );
        assert_eq!(
            read("http://otel/a/"),
            of("http://otel:4318/a", "otel", 4318, "/a/v1/traces")
        );
        assert_eq!(
            read("http://[::1]:80"),
            of("http://[::1]:80", "[::1]", 80, "/v1/traces")
        );
        assert_eq!(
            read("http://[::1]"),
            of("http://[::1]:4318", "[::1]", 4318, "/v1/traces")
        );
        assert_eq!(read("https://otel"), Err(NoEndpoint::Scheme));
        assert_eq!(read("otel:4317"), Err(NoEndpoint::Scheme));
        for wrong in [
            "http://",
            "http://:80",
            "http://a:x",
            "http://a:0",
            "http://a b",
            "http://u@a",
            "http://a/?b",
            "http://a/\r\n",
        ] {
            assert_eq!(read(wrong), Err(NoEndpoint::Shape), "{wrong}");
        }
    }

    #[test]
    fn a_request_is_what_otlp_takes() {
        let span = Span {
            id: 0xa1,
            parent: Some(2),
            name: "job".into(),
            begin: Duration::from_secs(5),
            end: Duration::from_secs(4),
            attributes: vec![("exit_code", 7.into())],
            error: Some("it ended with code 7".into()),
        };
        let value = request(
            3,
            "flux-agent",
            "0.1.0",
            &[
                Span {
                    parent: None,
                    error: None,
                    ..span.clone()
                },
                span,
            ],
        );
        let resource = &value["resourceSpans"][0];
        assert_eq!(
            resource["resource"]["attributes"][0]["value"]["stringValue"],
            "flux-agent"
        );
        let spans = &resource["scopeSpans"][0]["spans"];
        assert_eq!(
            (spans[0].get("parentSpanId"), spans[0].get("status")),
            (None, None)
        );
        assert_eq!(spans[1]["traceId"], "00000000000000000000000000000003");
        assert_eq!(
            (&spans[1]["spanId"], &spans[1]["parentSpanId"]),
            (&"00000000000000a1".into(), &"0000000000000002".into())
        );
        // An end before its begin is none.
        assert_eq!(
            (&spans[1]["startTimeUnixNano"], &spans[1]["endTimeUnixNano"]),
            (&"5000000000".into(), &"5000000000".into())
        );
        assert_eq!(spans[1]["attributes"][0]["value"]["intValue"], "7");
        assert_eq!(spans[1]["status"]["code"], 2);
    }
}
