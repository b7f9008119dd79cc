//! A failure of the agent itself: a category (of a closed set), a cause and a remedy. They are one line, which is the
//! same in the log and in the pod's status.

use std::error::Error;
use std::fmt;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::Path;

use flux_agent_plan::plan::PlanError;
use flux_shared::causes::causes_by;
use flux_shared::exit::Category;

/// The remedy for a full volume.
pub const MORE_ROOM: &str = "give the volume or the node more room (emptyDir sizeLimit, ephemeral-storage)";

/// Why the agent itself gives up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub category: Category,
    /// Lower case, "failed to <verb> <noun>: …", no full stop.
    pub cause: String,
    /// What a person can do about it; a sentence without its full stop, or empty.
    pub remedy: String,
    /// Whether the failure may be temporary (it may pass), and is worth another attempt.
    pub is_passing: bool,
}

impl Failure {
    /// A failure that is not temporary. "(os error N)" at the end of the cause is left out.
    pub fn new(category: Category, cause: impl Into<String>, remedy: impl Into<String>) -> Failure {
        let mut cause = cause.into();
        cause.truncate(without_number(&cause).len());
        Failure {
            category,
            cause,
            remedy: remedy.into(),
            is_passing: false,
        }
    }

    /// A defect of the agent or a host that lacks what every Linux has.
    pub fn internal(cause: impl Into<String>) -> Failure {
        Failure::new(Category::Internal, cause, "this is a bug, please report it")
    }

    /// The failure to do `what` ("write", "rename" …) to `path`, for which the system gave `error`.
    pub fn write(what: &str, path: &Path, error: &std::io::Error) -> Failure {
        let remedy = match error.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => MORE_ROOM,
            Some(libc::EROFS) => "mount a writable volume there",
            Some(libc::EACCES | libc::EPERM) => {
                "let init and application containers run as the same user, or set pod.securityContext.fsGroup"
            }
            _ => "check the volume that holds it",
        };
        let cause = format!("failed to {what} {}: {}", path.display(), plain(error));
        Failure::new(Category::WriteFailed, cause, remedy).passing_as(error)
    }

    /// This failure, which is temporary if `error` is.
    pub fn passing_as(self, error: &std::io::Error) -> Failure {
        Failure {
            is_passing: is_passing(error),
            ..self
        }
    }

    /// Writes this failure's line as the container's termination message, if the file `termination_log` exists. Never
    /// fails.
    pub fn report(&self, termination_log: &Path) {
        write_termination(termination_log, &self.to_string());
    }

    /// The cause and the remedy as two sentences.
    pub fn sentences(&self) -> String {
        let cause = self.cause.replace('\n', " ");
        let full_stop = |sentence: &str| if sentence.ends_with('?') { "" } else { "." };
        match self.remedy.as_str() {
            "" => format!("{cause}{}", full_stop(&cause)),
            remedy => format!(
                "{cause}{} {}{}",
                full_stop(&cause),
                capitalized(remedy),
                full_stop(remedy)
            ),
        }
    }
}

/// The sentence with a capital letter at its start.
pub fn capitalized(sentence: &str) -> String {
    let (first, rest) = sentence.split_at(sentence.chars().next().map_or(0, char::len_utf8));
    first.to_uppercase() + rest
}

/// Whether the same call may succeed a little later, for example when a volume has room or a file server answers again.
pub fn is_passing(error: &std::io::Error) -> bool {
    const PASSING: [i32; 14] = [
        libc::ENOSPC,
        libc::EDQUOT,
        libc::EIO,
        libc::ESTALE,
        libc::ENOTCONN,
        libc::ETIMEDOUT,
        libc::EHOSTDOWN,
        libc::EHOSTUNREACH,
        libc::EREMOTEIO,
        libc::EAGAIN,
        libc::EINTR,
        libc::ENOMEM,
        libc::EBUSY,
        libc::ENFILE,
    ];
    error
        .raw_os_error()
        .is_some_and(|number| PASSING.contains(&number))
}

/// Writes `line` as the termination message, if the file exists: only the kubelet creates it. An empty line clears it.
pub fn write_termination(path: &Path, line: &str) {
    if let Ok(mut file) = std::fs::OpenOptions::new().write(true).truncate(true).open(path)
        && !line.is_empty()
    {
        let _ = writeln!(file, "{line}");
    }
}

/// The failure of a spec for which no plan can be made.
pub fn refused(error: &PlanError) -> Failure {
    Failure::new(error.category(), chain(error), error.hint())
}

/// An error and its sources as one text, without "(os error N)".
pub fn chain(error: &(dyn Error + 'static)) -> String {
    causes_by(error, |error| {
        ControlFlow::Continue(without_number(&error.to_string()).to_owned())
    })
}

/// An I/O error without Rust's "(os error N)". A system's error is put in lower case, to stand within a sentence.
pub fn plain(error: &std::io::Error) -> String {
    let text = error.to_string();
    match without_number(&text) {
        shorter if shorter.len() < text.len() => shorter.to_lowercase(),
        _ => text,
    }
}

/// An error's text without Rust's "(os error N)" at its end.
fn without_number(text: &str) -> &str {
    match text.rfind(" (os error") {
        Some(end) if text.ends_with(')') => &text[..end],
        _ => text,
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "flux-agent: {}: {}", self.category.name(), self.sentences())
    }
}

impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line_with_category_cause_and_remedy() {
        let error = std::io::Error::from_raw_os_error(libc::ENOSPC);
        let failure = Failure::write("write", Path::new("/mnt/flux/R"), &error);
        let line = failure.to_string();
        assert!(line.starts_with(
            "flux-agent: write-failed: failed to write /mnt/flux/R: no space left on device. Give"
        ));
        assert!(!line.contains('\n') && line.ends_with('.'));
        let asked = Failure::new(Category::SpecInvalid, "kind: did you mean MiniCluster?", "");
        assert_eq!(asked.sentences(), "kind: did you mean MiniCluster?");
    }

    #[test]
    fn failure_has_no_number_of_the_systems_error() {
        let error = std::io::Error::from_raw_os_error(libc::EPIPE);
        let failure = Failure::internal(format!("failed to end the shell: {error}"));
        assert_eq!(failure.cause, "failed to end the shell: Broken pipe");
        assert_eq!(
            Failure::internal("no (os error 1) at the end").cause,
            "no (os error 1) at the end"
        );
    }

    #[test]
    fn the_termination_message_is_replaced_only_where_it_exists() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("termination-log");
        write_termination(&path, "nothing");
        assert!(!path.exists());
        std::fs::write(&path, "older and longer text").unwrap();
        write_termination(&path, "one line");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one line\n");
    }
}
