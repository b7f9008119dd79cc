//! Parses a request for the metrics and makes the response, with only the parts of HTTP/1.1 that this needs. Pure.
//! Written by hand, so that the agent needs no HTTP server library.

use std::fmt::Write as _;

use flux_shared::usage::{Metric, Usage};
use serde_json::{Map, Value};

/// A request for the metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    format: Format,
    /// HEAD: the response has no body.
    without_body: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Prometheus,
    Json,
}

/// A response, after which the server closes the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    status: &'static str,
    content_type: &'static str,
    body: String,
    without_body: bool,
}

/// Whether the head of a request is complete.
pub fn is_complete(head: &[u8]) -> bool {
    let contains = |end: &[u8]| head.windows(end.len()).any(|bytes| bytes == end);
    contains(b"\r\n\r\n") || contains(b"\n\n")
}

/// Parses the complete head of a request. The error is the response that rejects it.
pub fn parse_request(head: &[u8]) -> Result<Request, Response> {
    let line = head.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let words = std::str::from_utf8(line).unwrap_or_default().trim_end();
    let [method, target, version] = words.split(' ').collect::<Vec<_>>()[..] else {
        return Err(Response::refusal("400 Bad Request", "not an HTTP/1.1 request"));
    };
    if !version.starts_with("HTTP/1.") {
        return Err(Response::refusal(
            "505 HTTP Version Not Supported",
            "only HTTP/1.1 is supported",
        ));
    }
    let without_body = method == "HEAD";
    if method != "GET" && !without_body {
        return Err(Response::refusal("405 Method Not Allowed", "use GET"));
    }
    let format = match target.split('?').next() {
        Some("/metrics") => Format::Prometheus,
        Some("/metrics.json") => Format::Json,
        _ => {
            return Err(Response::refusal(
                "404 Not Found",
                "use /metrics or /metrics.json",
            ));
        }
    };
    Ok(Request { format, without_body })
}

impl Request {
    /// The response: the metrics, or status 503 if there are none.
    pub fn respond(self, cluster: &str, usage: Option<&Usage>) -> Response {
        let metrics = usage.map(Usage::metrics).unwrap_or_default();
        let without_body = self.without_body;
        if metrics.is_empty() {
            let why = "the broker did not report its metrics: it is starting, stopping or very busy";
            return Response {
                without_body,
                ..Response::refusal("503 Service Unavailable", why)
            };
        }
        let (content_type, body) = match self.format {
            Format::Prometheus => (
                "text/plain; version=0.0.4; charset=utf-8",
                text(cluster, &metrics),
            ),
            Format::Json => ("application/json", json(cluster, &metrics)),
        };
        Response {
            status: "200 OK",
            content_type,
            body,
            without_body,
        }
    }
}

impl Response {
    fn refusal(status: &'static str, why: &str) -> Response {
        Response {
            status,
            content_type: "text/plain; charset=utf-8",
            body: format!("{why}\n"),
            without_body: false,
        }
    }

    /// The response to a request whose head is too long.
    pub fn too_long() -> Response {
        Response::refusal("431 Request Header Fields Too Large", "the request is too long")
    }

    /// The bytes to send.
    pub fn bytes(&self) -> Vec<u8> {
        let Response {
            status,
            content_type,
            body,
            without_body,
        } = self;
        let allow = if status.starts_with("405") {
            "Allow: GET, HEAD\r\n"
        } else {
            ""
        };
        let length = body.len();
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {length}\r\n{allow}Connection: close\r\n\r\n"
        );
        (head + if *without_body { "" } else { body }).into_bytes()
    }
}

/// Prometheus' text format. A MiniCluster's name needs no escaping.
fn text(cluster: &str, metrics: &[Metric]) -> String {
    let mut text = String::new();
    for Metric { name, help, value } in metrics {
        let _ = writeln!(
            text,
            "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{{minicluster=\"{cluster}\"}} {value}"
        );
    }
    text
}

/// A JSON object: the MiniCluster's name, and each metric by its name.
fn json(cluster: &str, metrics: &[Metric]) -> String {
    let mut object = Map::from_iter([("minicluster".to_owned(), Value::from(cluster))]);
    object.extend(
        metrics
            .iter()
            .map(|metric| (metric.name.to_owned(), metric.value.into())),
    );
    format!("{}\n", Value::from(object))
}

#[cfg(test)]
mod tests {
    use flux_shared::usage::{Jobs, States};

    use super::*;

    fn usage() -> Usage {
        let states = States {
            sched: 20,
            run: 1,
            ..States::default()
        };
        Usage {
            jobs: Some(Jobs {
                states,
                ..Jobs::default()
            }),
            ..Usage::default()
        }
    }

    fn answer(request: &str) -> String {
        assert!(is_complete(request.as_bytes()), "{request:?}");
        let parsed = parse_request(request.as_bytes());
        let answer = parsed.map_or_else(|refusal| refusal, |request| request.respond("mc", Some(&usage())));
        String::from_utf8(answer.bytes()).unwrap()
    }

    #[test]
    fn metrics_are_served_as_prometheus_and_json_with_the_name() {
        let text = answer("GET /metrics HTTP/1.1\r\nHost: mc-0\r\n\r\n");
        assert!(
            text.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"),
            "{text}"
        );
        let of_sched = "# HELP job_queue_state_sched_count Jobs that wait for resources.\n\
                        # TYPE job_queue_state_sched_count gauge\njob_queue_state_sched_count{minicluster=\"mc\"} 20\n";
        assert!(text.contains(of_sched), "{text}");
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(
            head.contains(&format!("Content-Length: {}\r\n", body.len())),
            "{head}"
        );

        let json = answer("GET /metrics.json?x=y HTTP/1.0\n\n");
        let body: Value = serde_json::from_str(json.split_once("\r\n\r\n").unwrap().1).unwrap();
        assert_eq!(
            (&body["minicluster"], &body["job_queue_state_active_count"]),
            (&"mc".into(), &21.into())
        );
        assert_eq!(body.get("node_up_count"), None, "what is not known is left out");
    }

    #[test]
    fn metrics_server_rejects_other_requests_with_a_status() {
        for (request, status) in [
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("GET /metrics\r\n\r\n", "400"),
            ("GET /metrics HTTP/2\r\n\r\n", "505"),
            ("\n\n", "400"),
        ] {
            assert!(
                answer(request).starts_with(&format!("HTTP/1.1 {status} ")),
                "{request:?}: {}",
                answer(request)
            );
        }
        assert!(answer("HEAD /metrics HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
        assert!(!is_complete(b"GET /metrics HTTP/1.1\r\nHost: a\r\n"));
        let request = parse_request(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        for usage in [None, Some(&Usage::default())] {
            assert!(request.respond("mc", usage).bytes().starts_with(b"HTTP/1.1 503 "));
        }
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_answered_or_awaited(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..80), end in proptest::bool::ANY) {
            let mut bytes = bytes;
            if end {
                bytes.extend(b"\r\n\r\n");
            }
            let _ = parse_request(&bytes);
            proptest::prop_assert!(is_complete(&bytes) || !end);
        }
    }
}
