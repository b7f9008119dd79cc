//! The address to which the operator sends spans, by OTLP over HTTP.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;

/// The port of OTLP over HTTP, if the address has none.
const PORT: u16 = 4318;

/// The address to which spans are sent: `http://HOST:PORT[/BASE]`. It is parsed from a text in the form of
/// `OTEL_EXPORTER_OTLP_ENDPOINT`, where the port may be missing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Endpoint(String);

/// Why a text is not a valid endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoEndpoint {
    #[error(
        "must begin with http://: the operator sends spans without TLS; an OpenTelemetry Collector in the cluster can forward with TLS"
    )]
    Scheme,
    #[error("must be http://HOST[:PORT][/PATH], such as http://collector.observability:4318")]
    Shape,
}

impl Endpoint {
    /// The URL of requests with spans.
    pub fn traces(&self) -> String {
        format!("{}/v1/traces", self.0)
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl FromStr for Endpoint {
    type Err = NoEndpoint;

    fn from_str(text: &str) -> Result<Endpoint, NoEndpoint> {
        let rest = text.strip_prefix("http://").ok_or(NoEndpoint::Scheme)?;
        let (authority, base) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        // The last colon may belong to an IPv6 address in brackets: then there is no port.
        let (host, port) = match authority
            .rsplit_once(':')
            .filter(|(_, port)| !port.ends_with(']'))
        {
            Some((host, port)) => (host, port.parse().map_err(|_| NoEndpoint::Shape)?),
            None => (authority, PORT),
        };
        let is_name = || {
            !host.is_empty()
                && host
                    .bytes()
                    .all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
        };
        let is_host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
            Some(address) => address.parse::<Ipv6Addr>().is_ok(),
            None => is_name(),
        };
        let is_path = |path: &str| {
            path.bytes()
                .all(|byte| byte.is_ascii_graphic() && !b"?#".contains(&byte))
        };
        if port == 0 || !is_host || !is_path(base) {
            return Err(NoEndpoint::Shape);
        }
        Ok(Endpoint(format!(
            "http://{host}:{port}{}",
            base.trim_end_matches('/')
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoint_is_a_base_address_over_http() {
        let read = |text: &str| text.parse::<Endpoint>().map(|endpoint| endpoint.traces());
        let is = |url: &str| Ok(url.to_owned());
        assert_eq!(read("http://otel.mon:4318"), is("http://otel.mon:4318/v1/traces"));
        assert_eq!(read("http://otel/a/"), is("http://otel:4318/a/v1/traces"));
        assert_eq!(read("http://[::1]:80"), is("http://[::1]:80/v1/traces"));
        assert_eq!(read("http://[::1]"), is("http://[::1]:4318/v1/traces"));
        assert_eq!(read("https://otel"), Err(NoEndpoint::Scheme));
        assert_eq!(read("otel:4317"), Err(NoEndpoint::Scheme));
        for wrong in [
            "http://",
            "http://:80",
            "http://a:x",
            "http://a:0",
            "http://a b",
            "http://::1:4318",
            "http://[::x]:4318",
            "http://a]:4318",
            "http://u@a",
            "http://a/?b",
            "http://a/\r\n",
        ] {
            assert_eq!(read(wrong), Err(NoEndpoint::Shape), "{wrong}");
        }
    }
}
