//! Ends this pod when the operator requests it, because a snippet of another pod has failed. The request is an
//! annotation of this pod, which the kubelet writes into a file beside the spec. Deleting the pod would lose its
//! log.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::folder::watch_nearest;

/// Time between two looks at the file if inotify is not available.
const SLOW_POLL: Duration = Duration::from_secs(10);

/// Waits until `file` has a reason, and then sends this process SIGTERM.
pub async fn stop_when_requested(file: PathBuf) {
    loop {
        // The kubelet replaces a link in the folder of `file`. Watch before reading, so that no change is missed.
        let watch = watch_nearest(&file);
        if let Some(why) = reason(&file) {
            tracing::error!(stage = "end", "{why}: this pod ends");
            let _ = kill(Pid::this(), Signal::SIGTERM);
            return;
        }
        match watch {
            Some(watch) => drop(watch.readable().await),
            None => tokio::time::sleep(SLOW_POLL).await,
        }
    }
}

/// The reason why this pod must end. None: the operator has not requested it.
pub fn reason(file: &Path) -> Option<String> {
    after_time(&std::fs::read_to_string(file).ok()?).map(str::to_owned)
}

/// The reason in a text `TIME REASON`. The agent ignores the time. The operator reads it, to limit how long the pod may
/// take to end.
fn after_time(text: &str) -> Option<&str> {
    text.trim()
        .split_once(' ')
        .map(|(_, why)| why.trim())
        .filter(|why| !why.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_follows_the_time() {
        let annotation = "2026-11-26T10:00:00Z the snippet pre of the pod of index 1 ended with exit code 1";
        assert_eq!(
            after_time(annotation),
            Some("the snippet pre of the pod of index 1 ended with exit code 1")
        );
        for text in ["", "\n", "2026-11-26T10:00:00Z", "2026-11-26T10:00:00Z "] {
            assert_eq!(after_time(text), None, "{text:?}");
        }
    }
}
