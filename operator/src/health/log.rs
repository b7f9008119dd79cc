//! The log: one line of JSON for each event, to standard error.

use std::ops::ControlFlow::{Break, Continue};

use clap::Args;
use flux_shared::causes::causes_by;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::{LevelFilter, filter_fn};
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The log's options.
#[derive(Debug, Clone, Args)]
pub struct Filter {
    /// Log filter, in the syntax of Rust's tracing: a level, or TARGET=LEVEL,…
    #[arg(long, env = "FLUX_OPERATOR_LOG", default_value = "info", value_parser = checked)]
    log: String,
}

/// Rejects a filter that `EnvFilter` rejects, and a word that is no level: to `EnvFilter` this is a target, and the
/// log would have nothing else.
fn checked(filter: &str) -> Result<String, Box<dyn std::error::Error + Send + Sync>> {
    for directive in filter
        .split(',')
        .filter(|directive| !directive.contains(['=', '[']))
    {
        directive.parse::<LevelFilter>()?;
    }
    EnvFilter::builder().parse(filter)?;
    Ok(filter.to_owned())
}

/// Sets up the log and the panic hook. If this process already has a log, it stays.
pub fn start(Filter { log: filter }: &Filter) {
    let _ = lines(filter, std::io::stderr).try_init();
    crate::health::panics::install_hook();
}

/// A subscriber that writes each event that passes the filter as a line of JSON, with the spans that it is in.
pub(crate) fn lines<W>(filter: &str, writer: W) -> impl tracing::Subscriber + Send + Sync + 'static
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // kube's client logs responses that it cannot parse, and a response may contain a Secret. So its lines are left
    // out, whatever `filter` says.
    let is_not_of_kube = filter_fn(|metadata| !metadata.target().starts_with("kube_client"));
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_env_filter(EnvFilter::builder().parse_lossy(filter))
        .with_writer(writer)
        .finish()
        .with(is_not_of_kube)
}

/// Logs a failure after which the program goes on.
pub fn warn(what: &str, error: &(dyn std::error::Error + 'static)) {
    tracing::warn!(error = causes(error), "{what}");
}

/// An error and its sources in one line. The API server's message appears once; in kube's own text it is repeated.
pub fn causes(error: &(dyn std::error::Error + 'static)) -> String {
    causes_by(error, |error| {
        // A `kube::Error` in the chain of sources may be in a `Box`.
        let boxed = error.downcast_ref::<Box<kube::Error>>().map(Box::as_ref);
        match boxed.or(error.downcast_ref()) {
            Some(kube::Error::Api(status)) => Break(format!("{} ({})", status.message, status.code)),
            _ => Continue(error.to_string()),
        }
    })
}

/// Captures log lines, for tests.
#[cfg(test)]
#[derive(Clone, Default)]
pub(crate) struct Logged(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);

#[cfg(test)]
impl Logged {
    /// Captures what this thread logs until the guard is dropped.
    pub(crate) fn start() -> (Logged, tracing::subscriber::DefaultGuard) {
        Logged::start_with("info")
    }

    /// As [`Logged::start`], with another filter.
    fn start_with(filter: &str) -> (Logged, tracing::subscriber::DefaultGuard) {
        // tracing remembers for each log statement whether anybody wants it. With only one subscriber, it asks
        // that of the thread that reaches the statement first. If this is another test's thread, which has no
        // subscriber, the statement is switched off for all threads. A second subscriber prevents this.
        static SECOND: std::sync::OnceLock<tracing::Dispatch> = std::sync::OnceLock::new();
        SECOND.get_or_init(|| tracing::Dispatch::new(lines("info", std::io::sink)));
        let logged = Logged::default();
        let written = logged.clone();
        let guard = tracing::subscriber::set_default(lines(filter, move || written.clone()));
        (logged, guard)
    }

    pub(crate) fn lines(&self) -> Vec<serde_json::Value> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

#[cfg(test)]
impl std::io::Write for Logged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_filter_shows_the_responses_that_kube_logs() {
        let (logged, _guard) = Logged::start_with("info,kube_client::client=trace");
        tracing::warn!(target: "kube_client::client", "a Secret");
        tracing::info!("ours");
        let messages: Vec<_> = logged
            .lines()
            .iter()
            .map(|line| line["message"].clone())
            .collect();
        assert_eq!(messages, ["ours"]);
    }

    #[test]
    fn filter_that_would_silence_the_log_is_rejected() {
        for filter in [
            "info",
            "off",
            "info,kube=debug",
            "flux_operator[reconcile]=debug,info",
            "",
        ] {
            assert_eq!(checked(filter).unwrap(), filter);
        }
        for filter in [
            "kube=verbose",
            "info,kube=verbose",
            "x=y=z",
            "=",
            "verbose",
            "info,kube",
            " debug",
            "info, debug",
        ] {
            let error = checked(filter).expect_err(filter).to_string();
            assert!(
                error.contains("error parsing level filter") || error.contains("invalid filter"),
                "{error}"
            );
        }
    }

    #[test]
    fn api_server_message_is_logged_once() {
        let status = kube::core::Status {
            code: 403,
            message: "no".into(),
            ..Default::default()
        };
        let source = Box::new(kube::Error::Api(Box::new(status)));
        let error = crate::reconcile::apply::ApplyError::Api {
            verb: "create",
            kind: "Job".into(),
            name: "mc".into(),
            source,
        };
        let error = crate::reconcile::error::ReconcileError::from(error);
        assert_eq!(causes(&error), "failed to create Job mc: no (403)");
    }
}
