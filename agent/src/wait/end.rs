//! The operator's word that this pod is to end, because a snippet of another pod's has failed: an annotation
//! of the pod, as the kubelet writes it into a file beside the spec. The pod's log stays, as it would not if
//! the pod were deleted.

use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::folder::watch_nearest;

/// Time between two looks where inotify is not to be had.
const SLOW_POLL: Duration = Duration::from_secs(10);

/// Sends this process SIGTERM once `file` says why; never returns before.
pub async fn stop_when_told(file: PathBuf) {
    loop {
        // The kubelet replaces a link in this folder. The watch begins before the look, so that no change is
        // missed.
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

/// Why this pod is to end, if it is.
pub fn reason(file: &Path) -> Option<String> {
    after_time(&std::fs::read_to_string(file).ok()?).map(str::to_owned)
}

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
        let told = "2026-11-26T10:00:00Z the snippet pre of the pod of index 1 ended with exit code 1";
        assert_eq!(
            after_time(told),
            Some("the snippet pre of the pod of index 1 ended with exit code 1")
        );
        for text in ["", "\n", "2026-11-26T10:00:00Z", "2026-11-26T10:00:00Z "] {
            assert_eq!(after_time(text), None, "{text:?}");
        }
    }
}
