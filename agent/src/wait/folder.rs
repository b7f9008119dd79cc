//! Notices by inotify that a file or a socket appears, gets its content, or can be opened by others.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;

/// Watches the nearest folder above `path` that exists. The watch is readable once something has changed in that
/// folder. None: it cannot be watched.
pub fn watch_nearest(path: &Path) -> Option<AsyncFd<OwnedFd>> {
    let folder: PathBuf = path
        .ancestors()
        .skip(1)
        .find(|folder| folder.is_dir())?
        .to_owned();
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC).ok()?;
    let events = AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_ATTRIB
        | AddWatchFlags::IN_DELETE_SELF;
    inotify.add_watch(&folder, events).ok()?;
    crate::system::raw::watch(inotify.into()).ok()
}
