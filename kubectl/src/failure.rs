//! The errors of commands.

use std::error::Error;

use flux_agent_plan::dry_run::DryRunError;
use flux_operator_core::offline::OfflineError;
use flux_shared::causes::causes;
use kube::core::Status;

use crate::login::NoCredentials;

/// Exit code of the plugin's own failures.
pub const FAILED: u8 = 1;
/// Exit code if standard output is closed, as in shells: 128 + SIGPIPE.
pub const UNREAD: u8 = 141;

/// The remedy if the API server does not know MiniClusters.
const NOT_INSTALLED: &str = "this cluster has no MiniClusters. Install the operator (docs/getting-started.md), or choose another \
                             cluster with --context";

/// Why a call fails if the API server rejects the user's credentials, also the new ones of `login`.
pub const NOT_LOGGED_IN: &str =
    "the API server rejects your credentials, which may have expired. Log in again";

/// Why a command ends with an error.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("failed to read {path}")]
    Read { path: String, source: std::io::Error },
    #[error("failed to write {path}")]
    Write { path: String, source: std::io::Error },
    #[error(transparent)]
    Offline(#[from] OfflineError),
    #[error(transparent)]
    Check(#[from] flux_operator_client::on_server::CheckError),
    #[error("{}", plan_failure(.0))]
    Plans(#[from] DryRunError),
    #[error("failed to find the API server: {0}")]
    NoServer(String),
    #[error("failed to {doing}: {why}")]
    Call {
        doing: String,
        why: String,
        /// Whether a retry may help.
        passes: bool,
    },
    /// The API server has answered 401 or 403. One that has just started may do so for a moment.
    #[error("failed to {doing}: {why}")]
    Refused { doing: String, why: String },
    /// The API server did not answer.
    #[error("failed to {doing}: no answer from the API server: {why}")]
    Unanswered { doing: String, why: String },
    #[error("failed to {doing}")]
    OnThisMachine {
        doing: &'static str,
        source: std::io::Error,
    },
    #[error("{0}")]
    Message(String),
    /// The user may not run programs in pods.
    #[error("{0}")]
    NoExec(String),
    /// The lead's agent did not answer within this many seconds.
    #[error("the lead's agent did not answer within {0} s; is a volume of the pod stuck?")]
    SilentAgent(u64),
    /// The reader of standard output has closed it (`| head`).
    #[error("standard output is closed")]
    Unread,
}

impl Failure {
    /// Converts the error of a call to the API server; `doing` completes "failed to …".
    pub fn call(doing: impl Into<String>) -> impl FnOnce(kube::Error) -> Failure {
        let doing = doing.into();
        move |error| match error {
            kube::Error::Service(_) | kube::Error::HyperError(_) if NoCredentials::of(&error).is_none() => {
                Failure::Unanswered {
                    doing,
                    why: cause_of(&error),
                }
            }
            error if is_code(&error, 401) || is_code(&error, 403) => Failure::Refused {
                doing,
                why: cause_of(&error),
            },
            error => Failure::Call {
                doing,
                why: cause_of(&error),
                passes: may_pass(&error),
            },
        }
    }

    /// The failure to go on watching the MiniCluster `name`, since the user's credentials have expired.
    pub fn logged_out(name: &str, why: String) -> Failure {
        Failure::Call {
            doing: format!("watch MiniCluster {name}, which goes on"),
            why,
            passes: false,
        }
    }

    /// Adds the address of the API server, if it did not answer.
    pub fn with_server(self, server: &str) -> Failure {
        match self {
            Failure::Unanswered { doing, why } => Failure::Unanswered {
                doing,
                why: format!("{why} ({server})"),
            },
            other => other,
        }
    }

    /// The exit code of a command that ends with this failure.
    pub fn code(&self) -> u8 {
        match self {
            Failure::Unread => UNREAD,
            // The exit code of `flux-agent dry-run` and of the pods for this error.
            Failure::Plans(error) => error.category().code(),
            _ => FAILED,
        }
    }

    /// Whether a retry may help.
    pub fn may_pass(&self) -> bool {
        matches!(
            self,
            Failure::Unanswered { .. } | Failure::Call { passes: true, .. }
        )
    }

    /// Converts the error of an operation on this machine; `doing` completes "failed to …".
    pub fn on_this_machine(doing: &'static str) -> impl FnOnce(std::io::Error) -> Failure {
        move |source| Failure::OnThisMachine { doing, source }
    }
}

/// Every problem of a manifest on a line of its own, or the cause and what to do.
fn plan_failure(error: &DryRunError) -> String {
    let lines = error.listed_problems().unwrap_or_else(|| causes(error));
    error
        .hint()
        .map_or_else(|| lines.clone(), |hint| format!("{lines}; {hint}"))
}

/// What the API server said, or why there was no answer.
pub fn cause_of(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) => words_of(status),
        other => why_unanswered(other),
    }
}

/// Why there was no answer: the credential plugin's failure alone, or all causes.
pub fn why_unanswered(error: &(dyn Error + 'static)) -> String {
    NoCredentials::of(error).map_or_else(|| causes(error), ToString::to_string)
}

/// What the API server said.
pub fn words_of(status: &Status) -> String {
    match status.code {
        // A missing object has details; a missing resource has none.
        404 if status.details.is_none() => NOT_INSTALLED.to_owned(),
        401 => NOT_LOGGED_IN.to_owned(),
        _ => status.message.clone(),
    }
}

/// Whether the API server answered with this code.
pub fn is_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

/// The message of a refusal (403), with the remedy if a permission is missing. A used-up quota, an admission policy and a
/// namespace that ends are refusals, too. `rights`: what the user needs, such as "`get` `pods`".
pub fn with_remedy(message: String, rights: &str) -> String {
    if !(message.contains("User \"") && message.contains(" cannot ")) {
        return message;
    }
    format!(
        "{message}. You need permission to {rights} in this namespace (docs/tasks/kubectl.md has a Role with all \
         permissions that this program uses): ask your administrator"
    )
}

/// Whether a retry may help: there was no answer, it has the code 429 or 5xx, or the credential plugin does not fail for
/// long.
pub fn may_pass(error: &kube::Error) -> bool {
    match error {
        kube::Error::Api(status) => status.code == 429 || status.code >= 500,
        kube::Error::Service(_) => NoCredentials::of(error).is_none_or(|missing| missing.passes),
        kube::Error::HyperError(_) | kube::Error::ReadEvents(_) => true,
        _ => false,
    }
}

/// Whether a call that failed may have been done: it was sent, and its answer was lost or is a 5xx, which leaves that
/// open. (A failed connection or login, and 429, change nothing.)
pub fn may_be_done(error: &kube::Error) -> bool {
    let was_not_sent = match error {
        kube::Error::Service(cause) => {
            let cause_in_client = cause.downcast_ref::<hyper_util::client::legacy::Error>();
            NoCredentials::of(error).is_some() || cause_in_client.is_some_and(|cause| cause.is_connect())
        }
        error => is_code(error, 429),
    };
    may_pass(error) && !was_not_sent
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::Pod;
    use kube::core::response::StatusDetails;

    use super::*;

    #[test]
    fn call_without_the_operator_s_resource_names_the_remedy() {
        let missing = Status {
            code: 404,
            message: "404 page not found".into(),
            ..Status::default()
        };
        let text = cause_of(&kube::Error::Api(missing.boxed()));
        assert!(
            text.contains("Install the operator") && text.contains("--context"),
            "{text}"
        );
        let details: StatusDetails = serde_json::from_str(r#"{ "name": "mc" }"#).unwrap();
        let message = "miniclusters \"mc\" not found".to_owned();
        let not_found = Status {
            code: 404,
            message: message.clone(),
            details: Some(details),
            ..Status::default()
        };
        assert_eq!(cause_of(&kube::Error::Api(not_found.boxed())), message);
    }

    #[tokio::test]
    async fn call_may_be_done_if_it_was_sent() {
        let closing = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = closing.local_addr().unwrap().port();
        let url = format!("http://127.0.0.1:{port}").parse().unwrap();
        let client = kube::Client::try_from(kube::Config::new(url)).unwrap();
        let pods: kube::Api<Pod> = kube::Api::default_namespaced(client);
        let thread = std::thread::spawn(move || drop(closing.accept().unwrap()));
        let lost = pods.get("mc-0").await.unwrap_err();
        assert!(may_pass(&lost) && may_be_done(&lost), "{lost:?}");
        // Nobody listens any more.
        thread.join().unwrap();
        let refused = pods.get("mc-0").await.unwrap_err();
        assert!(may_pass(&refused) && !may_be_done(&refused), "{refused:?}");
    }

    #[test]
    fn unanswered_call_names_the_server() {
        let failure = Failure::Unanswered {
            doing: "list MiniClusters".into(),
            why: "refused".into(),
        };
        let text = failure.with_server("https://a:6443/").to_string();
        assert_eq!(
            text,
            "failed to list MiniClusters: no answer from the API server: refused (https://a:6443/)"
        );
    }
}
