//! Saves the dump of Flux's state: replaces the archive by the dump if the dump is whole and the broker has
//! not failed.
//!
//! ```text
//! before the broker: is there an archive? Then the broker restores it
//!                    remove unfinished dumps of earlier starts ─► create an empty file, which Flux may write to
//! after the broker: has it not failed, and is the dump whole?
//!     yes ─► sync the dump ─► rename it to the archive ─► sync the folder
//!                └─ an error that may be temporary: retry, as long as other steps are retried
//!                   (after a stop, at most until shortly before the pod is killed)
//!     no  ─► remove the dump, keep the archive
//! ```
//!
//! Flux's user looks for the archive, and creates, renames and removes the dump; if it lacks the right, the agent does
//! this. If the broker ended with 0, the dump is whole. After another exit code, such as the job's, the last bytes of
//! the dump are checked (`tail`).
//!
//! If the archive cannot be saved, the job does not fail. The termination message says why.

mod tail;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use flux_agent_plan::plan::{self, DUMP_WILDCARD, Owner, RESTORE};
use flux_shared::exit::Category;
use rustix::fs::{Mode, OFlags, fsync, openat, renameat};

use super::executor::{Executor, wait_failed};
use super::retry::AfterFailure;
use crate::files::{self, Files, safe_path};
use crate::report::activity::Awaited;
use crate::report::failure::{Failure, plain};
use crate::supervise::ChildEnd;

/// Number of hexadecimal digits in a dump's name that identify its start.
const START_DIGITS: usize = 16;
/// The pause between two attempts to save the dump after a stop.
const PAUSE_AFTER_STOP: Duration = Duration::from_millis(300);
/// After a stop, the last attempt begins at least this long before the pod is killed.
const RESERVE_BEFORE_KILL: Duration = Duration::from_secs(1);

impl Executor<'_> {
    /// Looks for the archive, removes unfinished dumps of earlier starts, and creates the file for this start's dump.
    /// `leftovers`: the path of the dumps, with `*` in place of the digits of a start. On a read-only volume, nothing
    /// is created, and this is no failure.
    pub(super) fn prepare_archive(
        &mut self,
        archive: &str,
        dump: &str,
        leftovers: &str,
        owner: Owner,
    ) -> Result<(), Failure> {
        let path = self.files.at(dump);
        self.archive_owner = Some(owner);
        self.dump = Some(path.clone());
        self.restore = self
            .has_archive(&self.files.at(archive))?
            .then(|| format!("{RESTORE}{archive}"));
        let remove = || match remove_leftovers(&self.files, leftovers, &path) {
            // Perhaps the owner lacks the right: then the agent removes them.
            0 => Err(io::Error::from_raw_os_error(libc::EACCES)),
            _ => Ok(()),
        };
        if self.as_archive_owner(remove).is_ok() {
            tracing::info!(stage = "archive", "removed unfinished dumps of earlier starts");
        }
        // A snippet's umask may keep the jobs' environment from other users.
        let mode = plan::Mode(0o644 & !self.session.umask);
        match self
            .files
            .create_file_like(&self.files.at(archive), &path, mode, owner)
        {
            // The user may want only to restore the state from a read-only volume, so this is no failure.
            Err(error) if is_for_read_only_volume(&error, &path) => {
                let why = "its volume is read-only";
                tracing::info!(stage = "archive", "the archive will not be saved: {why}");
                self.ending.archive_not_saved = Some(why.into());
                self.is_archive_read_only = true;
                Ok(())
            }
            result => result.map_err(|error| files::failed("create the dump's file", &path, &error)),
        }
    }

    /// Whether there is an archive. An error is no answer: without its archive, the broker would start with an empty
    /// state, and its dump would replace the archive.
    fn has_archive(&self, archive: &Path) -> Result<bool, Failure> {
        let look = || {
            let data = fs::metadata(archive)?;
            // Flux opens the archive: a pipe or a device there could block it forever.
            if data.is_file() || data.is_dir() {
                Ok(())
            } else {
                Err(io::Error::from_raw_os_error(libc::ENOENT))
            }
        };
        match self.as_archive_owner(look) {
            Ok(()) => Ok(true),
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENOTDIR)) => Ok(false),
            Err(error) => Err(files::failed("look for the archive", archive, &error)),
        }
    }

    /// Replaces the archive `to` by the dump `from`. If that is not possible, removes the dump, and keeps the reason
    /// for the termination message.
    pub(super) async fn publish_archive(&mut self, from: &str, to: &str) -> Result<(), Failure> {
        let dump = self.files.at(from);
        // `prepare_archive` has already noted the reason.
        if self.is_archive_read_only {
            return Ok(());
        }
        let trouble = match self.broker_end {
            Some(end) => end.trouble(),
            None => Some("the broker did not start".into()),
        };
        let is_known_whole = self
            .broker_end
            .is_some_and(|broker| broker.end == ChildEnd::Exited(0));
        let archive = self.files.at(to);
        let why = match trouble {
            Some(trouble) => Some(trouble),
            None => self.save_with_retries(&dump, &archive, is_known_whole).await?,
        };
        match why {
            None => {
                // Replaces the text that `run_plan` has set in case the pod ends earlier.
                self.ending.archive_not_saved = None;
                self.record_saved_archive();
                tracing::info!(stage = "archive", "archive saved to {to}");
            }
            Some(why) => {
                let _ = self.as_archive_owner(|| remove(&dump));
                let existed = self.restore.is_some();
                let kept = if existed { " and is unchanged" } else { "" };
                tracing::error!(stage = "archive", "the archive {to} was not saved{kept}: {why}");
                self.ending.archive_not_saved = Some(why);
            }
        }
        Ok(())
    }

    /// Saves the dump. Retries after an error that may be temporary, also after a stop, since the dump cannot be
    /// recreated. Returns why the dump was not saved; none: it was.
    async fn save_with_retries(
        &mut self,
        dump: &Path,
        archive: &Path,
        is_known_whole: bool,
    ) -> Result<Option<String>, Failure> {
        let mut attempts = self.attempts();
        loop {
            let Err(error) = self.as_archive_owner(|| save(dump, archive, is_known_whole)) else {
                return Ok(None);
            };
            let why = reason(&error);
            // Only `is_passing` and the cause of this failure are read.
            let failure = Failure::new(Category::WriteFailed, why.clone(), "").passing_as(&error);
            match attempts.after(failure, Awaited::Volume, self.supervisor).await? {
                AfterFailure::Retry => {}
                AfterFailure::Stop(_) if self.has_time_after_stop() => {
                    let pause = tokio::time::sleep(PAUSE_AFTER_STOP);
                    self.supervisor
                        .even_if_stopped(pause)
                        .await
                        .map_err(wait_failed)?;
                }
                AfterFailure::GiveUp(_) | AfterFailure::Stop(_) => return Ok(Some(why)),
            }
        }
    }

    /// Whether a stopped pod still has time for another attempt before it is killed.
    fn has_time_after_stop(&self) -> bool {
        let left = self
            .supervisor
            .kill_deadline()
            .map(|kill_at| kill_at.saturating_duration_since(Instant::now()));
        left.is_some_and(|left| left > RESERVE_BEFORE_KILL)
    }

    /// Whether this start should have dumped Flux's state, and there is no whole dump.
    pub(super) fn has_failed_dump(&self) -> bool {
        let Some(dump) = &self.dump else { return false };
        self.as_archive_owner(|| open_dump(dump, false).map(drop))
            .is_err()
    }

    /// Does `work` as Flux's user, or as the agent if that user lacks the right.
    fn as_archive_owner(&self, work: impl Fn() -> io::Result<()>) -> io::Result<()> {
        match self.archive_owner {
            Some(owner) if self.files.as_owner(owner, &work)? => Ok(()),
            _ => work(),
        }
    }
}

/// Syncs the dump and renames it to the archive, so that the archive is whole at every moment. Follows no link and
/// waits for no pipe in place of the dump. `is_known_whole`: the broker's exit code shows that the dump is whole, so
/// its last bytes are not checked.
///
/// This may run in another process, of which only the error's number comes back. So the errors of this function are
/// numbers, too; [`reason`] has their texts.
fn save(dump: &Path, archive: &Path, is_known_whole: bool) -> io::Result<()> {
    save_with(dump, archive, is_known_whole, File::sync_all)
}

/// Does the work of [`save`]. `sync` syncs the dump; a test passes one that fails.
fn save_with(
    dump: &Path,
    archive: &Path,
    is_known_whole: bool,
    sync: impl Fn(&File) -> io::Result<()>,
) -> io::Result<()> {
    let (folder, file) = open_dump(dump, is_known_whole)?;
    // `folder` is open with O_PATH only, with which fsync fails.
    let to_sync = openat(
        &folder,
        ".",
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    // A second sync would succeed, although the kernel has dropped the data that it could not write. So after this
    // error, the sync must not be repeated: neither by a retry nor as another user.
    sync(&file).map_err(|_| io::Error::from_raw_os_error(libc::ENOTRECOVERABLE))?;
    renameat(&folder, file_name(dump), &folder, file_name(archive))?;
    // An error is ignored, since the rename has succeeded. At worst, a crash of the node brings back the old archive.
    let _ = fsync(to_sync);
    Ok(())
}

/// Opens the dump and its folder, and checks the dump: the errors are those of [`save`].
fn open_dump(dump: &Path, is_known_whole: bool) -> io::Result<(OwnedFd, File)> {
    // `false`: a missing folder is not created.
    let folder = safe_path::open(dump.parent().unwrap_or(Path::new("/")), false)?;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(openat(&folder, file_name(dump), flags, Mode::empty())?);
    let data = file.metadata()?;
    if !data.is_file() {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    if data.len() == 0 {
        return Err(io::Error::from_raw_os_error(libc::ENODATA));
    }
    if !is_known_whole && !tail::is_whole(&file, dump)? {
        return Err(io::Error::from_raw_os_error(libc::EBADMSG));
    }
    Ok((folder, file))
}

fn file_name(path: &Path) -> &OsStr {
    path.file_name().unwrap_or_default()
}

/// Removes the dump. `false`: a missing folder is not created.
fn remove(dump: &Path) -> io::Result<()> {
    let folder = safe_path::open(dump.parent().unwrap_or(Path::new("/")), false)?;
    safe_path::remove(&folder, file_name(dump))
}

/// Why a dump was not saved.
fn reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EINVAL) => "the dump is no regular file".into(),
        Some(libc::ENODATA) => "the dump is empty".into(),
        Some(libc::EBADMSG) => "the dump is not whole: its end is missing".into(),
        Some(libc::ENOTRECOVERABLE) => {
            "the volume did not store the dump: it may be full or broken (fsync failed)".into()
        }
        _ => format!("failed to put the dump in its place: {}", plain(error)),
    }
}

/// Removes the dumps of earlier starts, but not `dump`. Their path is `pattern`, with the digits of a start
/// in place of `*`. Returns how many were removed.
fn remove_leftovers(files: &Files, pattern: &str, dump: &Path) -> usize {
    let pattern = files.at(pattern);
    let name = pattern
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let (Some((before, after)), Some(folder)) = (name.split_once(DUMP_WILDCARD), pattern.parent()) else {
        return 0;
    };
    let is_dump_name = |name: &str| {
        let digits = name
            .strip_prefix(before)
            .and_then(|rest| rest.strip_suffix(after))
            .unwrap_or_default();
        digits.len() == START_DIGITS
            && digits
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    // `false`: a missing folder is not created.
    let Ok(opened) = safe_path::open(folder, false) else {
        return 0;
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_dump_name) && entry.path() != dump)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()))
        .filter(|entry| safe_path::remove(&opened, &entry.file_name()).is_ok())
        .count()
}

/// Whether `path` could not be created because its volume is read-only. EROFS says so, whether the mount or only its
/// server is read-only. On a read-only mount, the agent may also fail before it tries to write: at a link that it does
/// not follow (`safe_path`), or at a folder that it may not search.
fn is_for_read_only_volume(error: &io::Error, path: &Path) -> bool {
    error.raw_os_error() == Some(libc::EROFS) || is_mounted_read_only(path)
}

/// Whether the file system of the nearest existing folder above `path` is mounted read-only.
fn is_mounted_read_only(path: &Path) -> bool {
    let folder = path.ancestors().skip(1).find(|folder| folder.is_dir());
    folder
        .and_then(|folder| nix::sys::statvfs::statvfs(folder).ok())
        .is_some_and(|file_system| {
            file_system
                .flags()
                .contains(nix::sys::statvfs::FsFlags::ST_RDONLY)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUFFIX: &str = ".tgz";

    #[test]
    fn archive_stays_when_the_dump_is_unusable() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        type Put = fn(&Path);
        let put: [(&str, Put); 4] = [
            ("no regular file", |dump| {
                nix::unistd::mkfifo(dump, nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
            }),
            ("failed to put the dump", |dump| {
                std::os::unix::fs::symlink("/etc/passwd", dump).unwrap()
            }),
            ("no regular file", |dump| fs::create_dir(dump).unwrap()),
            ("the dump is empty", |dump| fs::write(dump, "").unwrap()),
        ];
        for (reason_part, put) in put {
            fs::write(at("archive.tgz"), "old").unwrap();
            put(&at("dump.tgz"));
            let why = reason(&save(&at("dump.tgz"), &at("archive.tgz"), true).unwrap_err());
            assert!(why.contains(reason_part), "{why}");
            assert_eq!(fs::read(at("archive.tgz")).unwrap(), b"old");
            let _ = fs::remove_file(at("dump.tgz")).or_else(|_| fs::remove_dir(at("dump.tgz")));
        }
        fs::write(at("dump.tgz"), "half").unwrap();
        let why = reason(&save(&at("dump.tgz"), &at("archive.tgz"), false).unwrap_err());
        assert!(
            why.contains("its end is missing"),
            "it is not known to be whole: {why}"
        );
        save(&at("dump.tgz"), &at("archive.tgz"), true).unwrap();
        assert_eq!(fs::read(at("archive.tgz")).unwrap(), b"half");
    }

    #[test]
    fn failed_sync_is_neither_retried_nor_repeated_as_root() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        fs::write(at("archive.tgz"), "old").unwrap();
        fs::write(at("dump.tgz"), "new").unwrap();
        for number in [libc::EIO, libc::ENOSPC, libc::EDQUOT] {
            let sync = |_: &File| Err(io::Error::from_raw_os_error(number));
            let error = save_with(&at("dump.tgz"), &at("archive.tgz"), true, sync).unwrap_err();
            // The number is all that comes back from another process.
            let error = io::Error::from_raw_os_error(error.raw_os_error().unwrap());
            assert!(!crate::report::failure::is_passing(&error), "{error}");
            assert_ne!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
            assert!(reason(&error).contains("fsync failed"), "{error}");
        }
        assert_eq!(fs::read(at("archive.tgz")).unwrap(), b"old");
    }

    #[test]
    fn volume_that_is_read_only_on_its_server_is_recognized() {
        let root = tempfile::tempdir().unwrap();
        let is_read_only = |number| {
            is_for_read_only_volume(&io::Error::from_raw_os_error(number), &root.path().join("a.tgz"))
        };
        // The mount itself is writable.
        assert!(is_read_only(libc::EROFS));
        assert!(!is_read_only(libc::EACCES) && !is_read_only(libc::ENOSPC));
    }

    #[test]
    fn only_unfinished_dumps_of_this_mini_cluster_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let files = Files::new(root.path(), "runner");
        let name = |digits: &str| format!(".flux-dump-0011223344556677-{digits}{SUFFIX}");
        let own = name("0123456789abcdef");
        let stay = [
            "archive.tgz".to_owned(),
            own.clone(),
            name("0123456789abcde"),
            name("0123456789ABCDEF"),
            name("0123456789abcdef0"),
            name("fedcba9876543210") + ".bak",
            ".flux-dump-ffffffffffffffff-fedcba9876543210.tgz".to_owned(),
        ];
        let go = [name("fedcba9876543210"), name("0000000000000000")];
        for name in stay.iter().chain(&go) {
            fs::write(root.path().join(name), "x").unwrap();
        }
        fs::create_dir(root.path().join(name("1111111111111111"))).unwrap();
        assert_eq!(
            remove_leftovers(&files, &format!("/{}", name("*")), &root.path().join(&own)),
            go.len()
        );
        assert!(stay.iter().all(|name| root.path().join(name).exists()));
        assert!(!go.iter().any(|name| root.path().join(name).exists()));
    }
}
