//! Waits until a Unix socket exists and answers: by inotify, with a slow poll as a fallback.
//!
//! Root connects with the rights of the socket's owner, since another user may have put anything at the path. Root
//! without the capability SETUID cannot do that, and connects as itself: Flux's socket accepts every user.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net;
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, socket};
use tokio::io::unix::AsyncFd;

use super::backoff::Backoff;
use super::folder::watch_nearest;
use super::reporter::Reporter;
use crate::system::identity::{self, Capability};

/// Longest pause while something refuses connections at the path.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// Time between two attempts if inotify reports nothing.
const SLOW_POLL: Duration = Duration::from_secs(2);

/// Waits until something answers at `path`, and logs what is missing at intervals.
pub async fn wait_and_report(path: &Path) {
    let mut report = Reporter::new(Instant::now());
    until_answered(path, |missing| report.tick(&path.display().to_string(), missing)).await;
}

/// Waits until something answers at `path`.
pub async fn wait(path: &Path) {
    until_answered(path, |_| {}).await;
}

/// Waits until something answers at `path`. After each failed attempt, `report` gets the error.
async fn until_answered(path: &Path, mut report: impl FnMut(&str)) {
    let mut refused = Backoff::default();
    loop {
        // The watch begins before the attempt, so that no change between the two is missed.
        let watch = watch_nearest(path);
        let missing = match connect(path) {
            Ok(()) => return,
            Err(error) => error,
        };
        report(&crate::report::failure::plain(&missing));
        if missing.kind() == std::io::ErrorKind::ConnectionRefused {
            // A left-over socket, or one that does not listen yet. inotify does not notice when it begins to listen.
            refused.pause(LONGEST_PAUSE).await;
        } else {
            changed_or_late(watch).await;
        }
    }
}

/// Connects to check that something answers, and closes the connection.
fn connect(path: &Path) -> io::Result<()> {
    if !nix::unistd::geteuid().is_root() {
        return connect_at_once(path).map(drop);
    }
    let data = std::fs::symlink_metadata(path)?;
    if !data.file_type().is_socket() {
        return Err(io::Error::other("it is no socket"));
    }
    // Root without SETUID cannot connect as the owner. It may connect as itself: it sends nothing here.
    if !identity::has(Capability::SetUid) {
        return connect_at_once(path).map(drop);
    }
    identity::as_user(data.uid(), || connect_at_once(path))?.map(drop)
}

/// Connects without waiting. A full queue of connections is an error.
pub fn connect_at_once(path: &Path) -> io::Result<net::UnixStream> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let stream = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    nix::sys::socket::connect(stream.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(stream.into())
}

/// Waits until the watch reports a change, or `SLOW_POLL` is over.
async fn changed_or_late(watch: Option<AsyncFd<OwnedFd>>) {
    let Some(watch) = watch else {
        return tokio::time::sleep(SLOW_POLL).await;
    };
    let _ = tokio::time::timeout(SLOW_POLL, watch.readable()).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::block_on;

    #[test]
    fn socket_is_noticed_at_once_when_its_folder_appears_later() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("run/flux/local");
        let socket_path = path.clone();
        let maker = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(100));
            std::fs::create_dir_all(socket_path.parent().unwrap()).unwrap();
            std::thread::sleep(Duration::from_millis(100));
            let listener = std::os::unix::net::UnixListener::bind(&socket_path).unwrap();
            let bound = Instant::now();
            listener.accept().unwrap();
            bound
        });
        block_on(wait(&path));
        assert!(maker.join().unwrap().elapsed() < Duration::from_millis(1000));
    }

    #[test]
    fn root_connects_as_the_sockets_owner_and_follows_no_link() {
        let root = tempfile::tempdir_in("/tmp").unwrap();
        std::fs::set_permissions(root.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let path = root.path().join("local");
        let listener = net::UnixListener::bind(&path).unwrap();
        std::os::unix::fs::chown(&path, Some(1002), Some(1002)).expect("this test runs as root");
        connect(&path).unwrap();
        let (peer, _) = listener.accept().unwrap();
        let peer = nix::sys::socket::getsockopt(&peer, nix::sys::socket::sockopt::PeerCredentials).unwrap();
        assert_eq!(peer.uid(), 1002);
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(connect(&link).unwrap_err().to_string().contains("no socket"));
    }
}
