//! The log: one line of JSON an event, to standard error.
#![expect(clippy::disallowed_methods, reason = "the log goes to standard error")]

use tracing_subscriber::EnvFilter;

/// Sets the log up, once. `filter` is in tracing's syntax, such as `info,flux_operator=debug`.
pub fn start(filter: &str) {
    // The client logs a response that it cannot read, and a response may hold a Secret.
    let filter = EnvFilter::builder().parse_lossy(format!("{filter},kube_client=off"));
    let log = tracing_subscriber::fmt().json().flatten_event(true).with_env_filter(filter);
    let _ = log.with_writer(std::io::stderr).try_init();
}

/// Something went wrong that will be tried again.
pub fn warn(what: &str, error: &dyn std::error::Error) {
    let mut causes = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        let text = inner.to_string();
        // Some errors print their source as part of themselves.
        if !causes.ends_with(&text) {
            causes = format!("{causes}: {text}");
        }
        source = inner.source();
    }
    tracing::warn!(error = causes, "{what}");
}
