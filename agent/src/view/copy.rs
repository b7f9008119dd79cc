//! Copies a listed tree with several threads. Written by hand: crates that copy trees copy one path after the other.
//!
//! Symbolic links and the files' modification times are kept (Python's compiled files depend on the times). Owners are
//! not, since only root could set them, so modes are kept only as far as `tree` says.

use std::collections::HashMap;
use std::collections::hash_map::Entry::{Occupied, Vacant};
use std::ffi::OsStr;
use std::fs::{self, File, Permissions};
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::symlinkat;
use rustix::fs::{Timespec, Timestamps, UTIME_OMIT, futimens, ioctl_ficlone};

use super::progress::Progress;
use super::tree::{EntryKind, Tree, TreeEntry, TreeError, reading, writing};

/// Below this memory limit (bytes), copied files are dropped from the page cache.
const SCARCE_MEMORY: u64 = 256 << 20;
/// Bytes that are read and written at once.
const BUFFER: usize = 256 << 10;
/// Bytes that are written before they are flushed to the disk, if memory is scarce.
const PIECE: usize = 4 << 20;

/// A timestamp that `futimens` leaves unchanged.
const KEPT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: UTIME_OMIT,
};

/// Whether this container has a small memory limit. `root`: the root of its file system.
pub fn is_memory_scarce(root: &Path) -> bool {
    // The files of version 2 and version 1 of cgroups. No limit (`max`) is not a number.
    let limits = [
        "sys/fs/cgroup/memory.max",
        "sys/fs/cgroup/memory/memory.limit_in_bytes",
    ];
    let limit = limits.iter().find_map(|path| {
        fs::read_to_string(root.join(path))
            .ok()?
            .trim()
            .parse::<u64>()
            .ok()
    });
    limit.is_some_and(|limit| limit < SCARCE_MEMORY)
}

/// Copies `tree` into the new folder `target`. `save_memory`: written files are flushed to the
/// disk and dropped from the page cache.
pub fn copy_tree(
    tree: &Tree,
    target: &Path,
    save_memory: bool,
    progress: &Progress,
) -> Result<(), TreeError> {
    fs::create_dir(target).map_err(writing(target))?;
    // One share for each folder, since the kernel locks a folder while something is created in it.
    let mut shares = Vec::new();
    let mut modes = Vec::new();
    // The first path of each file that has several (hard links).
    let mut first_of: HashMap<(u64, u64), PathBuf> = HashMap::new();
    let mut hard_links = Vec::new();
    for folder in &tree.folders {
        let mut to_copy = Vec::new();
        for entry in &folder.entries {
            let path = || folder.path.join(&entry.name);
            match &entry.kind {
                EntryKind::Directory { mode } => {
                    let path = target.join(path());
                    fs::create_dir(&path).map_err(writing(&path))?;
                    modes.push((path, *mode));
                }
                EntryKind::File {
                    hard_linked: Some(inode),
                    ..
                } => match first_of.entry(*inode) {
                    Occupied(first) => hard_links.push((first.get().clone(), path())),
                    Vacant(first) => {
                        first.insert(path());
                        to_copy.push(entry);
                    }
                },
                _ => to_copy.push(entry),
            }
        }
        if !to_copy.is_empty() {
            shares.push((&folder.path, to_copy));
        }
    }
    // The largest share first, so that no thread is left with one at the end.
    shares
        .sort_by_key(|(_, entries)| std::cmp::Reverse(entries.iter().map(|entry| entry.size()).sum::<u64>()));
    let umask = umask();
    in_parallel(&shares, |(folder, entries), buffer| {
        let (from, to) = (tree.top.join(folder), target.join(folder));
        let copier = Copier {
            source: File::open(&from).map_err(reading(&from))?,
            target: File::open(&to).map_err(writing(&to))?,
            from: &from,
            to: &to,
            umask,
            save_memory,
        };
        for entry in entries {
            copier.copy(entry, buffer)?;
            progress.add(entry.size());
        }
        Ok(())
    })?;
    for (first, second) in hard_links {
        let path = target.join(second);
        fs::hard_link(target.join(first), &path).map_err(writing(&path))?;
    }
    // The modes are set last, and each folder's before that of its parent: a folder may become read-only, or impossible
    // to enter.
    for (path, mode) in modes.into_iter().rev() {
        fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(writing(&path))?;
    }
    Ok(())
}

/// The umask of this process: the permissions that a new file does not get. If it is not known, all of them:
/// `Copier::copy` then sets the modes itself.
fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok())
        .unwrap_or(0o777)
}

/// Does `work` for each share, with a buffer for each thread. Returns the first error; after it, no share is begun. At a
/// limit of threads, there are fewer of them, or only this one.
fn in_parallel<T: Sync>(
    shares: &[T],
    work: impl Fn(&T, &mut [u8]) -> Result<(), TreeError> + Sync,
) -> Result<(), TreeError> {
    let threads = std::thread::available_parallelism()
        .map_or(2, usize::from)
        .clamp(2, 4);
    let (next, failed, first_error) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(None));
    let do_shares = || {
        let mut buffer = vec![0; BUFFER];
        while !failed.load(Ordering::Relaxed) {
            let Some(share) = shares.get(next.fetch_add(1, Ordering::Relaxed)) else {
                return;
            };
            if let Err(error) = work(share, &mut buffer) {
                failed.store(true, Ordering::Relaxed);
                if let Ok(mut first) = first_error.lock() {
                    first.get_or_insert(error);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            let _ = std::thread::Builder::new().spawn_scoped(scope, do_shares);
        }
        do_shares();
    });
    first_error.into_inner().ok().flatten().map_or(Ok(()), Err)
}

/// Copies entries from the folder at `from` to the one at `to`.
struct Copier<'a> {
    source: File,
    target: File,
    from: &'a Path,
    to: &'a Path,
    umask: u32,
    save_memory: bool,
}

impl Copier<'_> {
    fn copy(&self, entry: &TreeEntry, buffer: &mut [u8]) -> Result<(), TreeError> {
        let name = entry.name.as_os_str();
        let (read_failed, write_failed) = (self.reading(name), self.writing(name));
        let (mode, size, modified) = match &entry.kind {
            EntryKind::Directory { .. } => return Ok(()),
            EntryKind::Link { target } => {
                return symlinkat(target.as_path(), &self.target, name)
                    .map_err(|error| write_failed(error.into()));
            }
            EntryKind::File {
                mode, size, modified, ..
            } => (*mode, *size, *modified),
        };
        let open = |folder: &File, flags, mode| -> io::Result<File> {
            Ok(openat(folder.as_fd(), name, flags | OFlag::O_CLOEXEC, mode)?.into())
        };
        let mut source = open(&self.source, OFlag::O_RDONLY, Mode::empty()).map_err(read_failed)?;
        let new = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL;
        let mut copy =
            open(&self.target, new, Mode::from_bits_truncate(mode & 0o777)).map_err(write_failed)?;
        // A large file is cloned if the file system can do this. Else it is copied: copy_file_range would take longer,
        // since it moves 64 KiB at a time.
        let is_cloned = size > buffer.len() as u64 && ioctl_ficlone(&copy, &source).is_ok();
        if !is_cloned {
            self.copy_content(name, &mut source, &mut copy, size, buffer)?;
        }
        let times = Timestamps {
            last_access: KEPT,
            last_modification: modified,
        };
        futimens(&copy, &times).map_err(|error| write_failed(error.into()))?;
        // The mode is right already, unless the umask has removed a part of it or it has special bits.
        if mode & 0o777 & !self.umask != mode {
            copy.set_permissions(Permissions::from_mode(mode))
                .map_err(write_failed)?;
        }
        Ok(())
    }

    /// Copies the content of a file of `size` bytes.
    fn copy_content(
        &self,
        name: &OsStr,
        source: &mut File,
        copy: &mut File,
        size: u64,
        buffer: &mut [u8],
    ) -> Result<(), TreeError> {
        let (read_failed, write_failed) = (self.reading(name), self.writing(name));
        let (mut remaining, mut unflushed) = (size, 0);
        while remaining > 0 {
            let read = source.read(buffer).map_err(read_failed)?;
            if read == 0 {
                return Err(read_failed(io::ErrorKind::UnexpectedEof.into()));
            }
            copy.write_all(&buffer[..read]).map_err(write_failed)?;
            remaining = remaining.saturating_sub(read as u64);
            unflushed += read;
            if self.save_memory && (remaining == 0 || unflushed > PIECE) {
                flush_and_drop_cache(copy).map_err(write_failed)?;
                unflushed = 0;
            }
        }
        Ok(())
    }

    /// Turns an error at reading the entry `name` into a `TreeError`.
    fn reading(&self, name: &OsStr) -> impl Fn(io::Error) -> TreeError + Copy {
        move |error| reading(&self.from.join(name))(error)
    }

    /// Turns an error at writing the entry `name` into a `TreeError`.
    fn writing(&self, name: &OsStr) -> impl Fn(io::Error) -> TreeError + Copy {
        move |error| writing(&self.to.join(name))(error)
    }
}

/// Writes the file to the disk and drops it from the page cache, which counts as the container's memory.
fn flush_and_drop_cache(file: &File) -> io::Result<()> {
    file.sync_data()?;
    // `0, 0`: the whole file.
    let _ = nix::fcntl::posix_fadvise(file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::tree::remove;
    use super::*;
    use std::os::unix::fs::{MetadataExt, symlink};
    use std::time::SystemTime;

    #[test]
    fn a_copy_has_links_modes_times_and_hard_links_of_the_original() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(from.join("bin/deep")).unwrap();
        fs::write(from.join("bin/flux"), "program").unwrap();
        fs::set_permissions(from.join("bin/flux"), Permissions::from_mode(0o555)).unwrap();
        let old = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        File::open(from.join("bin/flux"))
            .unwrap()
            .set_modified(old)
            .unwrap();
        fs::hard_link(from.join("bin/flux"), from.join("bin/deep/flux")).unwrap();
        symlink("/opt/software/nowhere", from.join("bin/dangling")).unwrap();
        fs::write(from.join("large"), vec![3; 9 << 20]).unwrap();
        fs::set_permissions(from.join("bin"), Permissions::from_mode(0o555)).unwrap();
        for save_memory in [false, true] {
            let tree = Tree::list(&from).unwrap();
            assert_eq!((tree.files, tree.folders.len()), (2, 3));
            copy_tree(&tree, &to, save_memory, &Progress::new(0)).unwrap();
            assert_eq!(Tree::list(&to).unwrap().digest(), tree.digest());
            let data = fs::metadata(to.join("bin/flux")).unwrap();
            assert_eq!(
                (data.mode() & 0o7777, data.nlink(), data.modified().unwrap()),
                (0o555, 2, old)
            );
            assert_eq!(
                fs::read_link(to.join("bin/dangling")).unwrap(),
                Path::new("/opt/software/nowhere")
            );
            assert!(fs::read(to.join("large")).unwrap() == vec![3; 9 << 20]);
            remove(&to).unwrap();
        }
        remove(&from).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    /// The group of a pod's volumes is also one of the job's.
    #[test]
    fn copy_gives_nobody_more_rights_than_the_original() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(from.join("bin")).unwrap();
        let is_root = nix::unistd::geteuid().is_root();
        for (name, mode) in [("bin/own", 0o4775), ("bin/foreign", 0o6777), ("bin", 0o3777)] {
            let path = from.join(name);
            if name != "bin" {
                fs::write(&path, "program").unwrap();
            }
            if is_root && name != "bin/own" {
                std::os::unix::fs::chown(&path, Some(1234), Some(1234)).unwrap();
            }
            fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        }
        copy_tree(&Tree::list(&from).unwrap(), &to, false, &Progress::new(0)).unwrap();
        let mode = |name: &str| fs::metadata(to.join(name)).unwrap().mode() & 0o7777;
        assert_eq!((mode("bin/own"), mode("bin")), (0o4755, 0o1757));
        let setuid = if is_root { 0 } else { 0o4000 };
        assert_eq!(mode("bin/foreign"), setuid | 0o757);
    }

    #[test]
    fn copy_that_cannot_read_a_file_blames_the_source() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        let file = from.join("file");
        let shorten = || fs::write(&file, "").unwrap();
        // A folder can be opened, but not read.
        let replace = || {
            fs::remove_file(&file).unwrap();
            fs::create_dir(&file).unwrap();
        };
        for damage in [&shorten as &dyn Fn(), &replace] {
            fs::create_dir_all(&from).unwrap();
            fs::write(&file, "text").unwrap();
            let tree = Tree::list(&from).unwrap();
            damage();
            let error = copy_tree(&tree, &to, false, &Progress::new(0)).unwrap_err();
            assert!(error.is_read_error && error.path == file, "{error:?}");
            remove(&to).unwrap();
        }
    }
}
