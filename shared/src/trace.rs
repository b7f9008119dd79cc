//! The trace (OpenTelemetry) of a MiniCluster. Its id is the object's uid, so that the operator and programs in the
//! pods agree on it without asking each other. Format: W3C Trace Context 1 (`traceparent`).

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Number of pods of a MiniCluster that have spans: the first ones. Nobody reads a trace of thousands of pods.
pub const TRACED_PODS: u32 = 64;

/// A parent span in the form of `traceparent`: `00-<trace id>-<span id>-01`. `00` is the version of the format,
/// and `01` says that the trace is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct TraceParent {
    pub trace: u128,
    pub span: u64,
}

/// The error of parsing a text that is not a `traceparent`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "must be a traceparent: 00-<32 hex digits>-<16 hex digits>-<2 hex digits>, neither of the first two all zero"
)]
pub struct NoTraceParent;

impl TraceParent {
    /// The root span of the MiniCluster with this uid: the uid is the trace id, and its last 16 hexadecimal digits are
    /// the span id. None: the uid is not a UUID, or these digits are all 0.
    pub fn of_uid(uid: &str) -> Option<TraceParent> {
        let trace = number(&uid.replace('-', ""), 32)?;
        let span = u64::try_from(trace & u128::from(u64::MAX)).ok()?;
        (span != 0).then_some(TraceParent { trace, span })
    }
}

/// Parses a number other than 0 with exactly this many hexadecimal digits.
fn number(text: &str, digits: usize) -> Option<u128> {
    // `from_str_radix` accepts a sign as well.
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
        // The flags are not kept: `Display` always writes `01`.
        if flags.len() == 2 && flags.bytes().all(|byte| byte.is_ascii_hexdigit()) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn traceparent_is_made_from_uid_and_survives_its_text() {
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
            "00-0af7651916cd43dd8448eb211c80319c-8448eb211c80319c-zz",
            "00-0af7651916cd43dd8448eb211c80319c-+448eb211c80319c-01",
        ] {
            assert_eq!(wrong.parse::<TraceParent>(), Err(NoTraceParent), "{wrong}");
        }
    }
}
