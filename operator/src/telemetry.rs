//! The log: one line of JSON an event, to standard error.

use tracing_subscriber::EnvFilter;

/// Sets the log up, once. `filter` is in tracing's syntax, such as `info,flux_operator=debug`.
pub fn start(filter: &str) {
    // The client logs a response that it cannot read, and a response may hold a Secret.
    let filter = EnvFilter::builder().parse_lossy(format!("{filter},kube_client=off"));
    let _ = tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .try_init();
}
