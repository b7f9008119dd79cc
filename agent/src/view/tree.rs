//! A tree of files, listed once and then copied by several threads.
//!
//! Kept: modes, symbolic links as they are, modification times (Python's compiled files depend on them).
//! Not insisted on: owners, which only root could set.
#![expect(clippy::disallowed_methods, reason = "act: copies files")]

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::SystemTime;

use super::progress::Progress;

/// Files up to this are read and written at once: two system calls where copy_file_range needs four.
const SMALL: u64 = 64 << 10;
/// Files larger than this are given back to the disk at once where memory is scarce.
const PIECE: u64 = 4 << 20;

/// One entry below the top.
#[derive(Debug, Clone)]
struct Entry {
    path: PathBuf,
    kind: Kind,
}

#[derive(Debug, Clone)]
enum Kind {
    Directory { mode: u32 },
    File { mode: u32, size: u64, modified: Option<SystemTime>, inode: (u64, u64, u64) },
    Link { target: PathBuf },
}

impl Entry {
    /// Bytes that have to be copied.
    fn size(&self) -> u64 {
        match self.kind {
            Kind::File { size, .. } => size,
            _ => 0,
        }
    }
}

/// A listed tree.
#[derive(Debug)]
pub struct Tree {
    top: PathBuf,
    entries: Vec<Entry>,
    pub files: usize,
    pub bytes: u64,
}

/// An entry that could not be read or written.
#[derive(Debug)]
pub struct TreeError {
    pub path: PathBuf,
    pub reading: bool,
    pub error: io::Error,
}

pub fn reading(path: &Path) -> impl FnOnce(io::Error) -> TreeError {
    move |error| TreeError { path: path.to_owned(), reading: true, error }
}

pub fn writing(path: &Path) -> impl FnOnce(io::Error) -> TreeError {
    move |error| TreeError { path: path.to_owned(), reading: false, error }
}

impl Tree {
    /// Everything below `top`, folders before what they hold. Devices, pipes and sockets are left out.
    pub fn list(top: &Path) -> Result<Tree, TreeError> {
        let mut tree = Tree { top: top.to_owned(), entries: Vec::new(), files: 0, bytes: 0 };
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            let real = top.join(&folder);
            let mut names: Vec<_> = fs::read_dir(&real)
                .and_then(|entries| {
                    entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<io::Result<_>>()
                })
                .map_err(reading(&real))?;
            names.sort();
            for name in names {
                let path = folder.join(name);
                let real = top.join(&path);
                let data = fs::symlink_metadata(&real).map_err(reading(&real))?;
                let mode = data.mode() & 0o7777;
                let kind = if data.is_dir() {
                    folders.push(path.clone());
                    Kind::Directory { mode }
                } else if data.is_symlink() {
                    Kind::Link { target: fs::read_link(&real).map_err(reading(&real))? }
                } else if data.is_file() {
                    tree.files += 1;
                    tree.bytes += data.len();
                    let inode = (data.dev(), data.ino(), data.nlink());
                    Kind::File { mode, size: data.len(), modified: data.modified().ok(), inode }
                } else {
                    continue;
                };
                tree.entries.push(Entry { path, kind });
            }
        }
        Ok(tree)
    }

    /// A digest of the listing: names, kinds, modes, sizes, times and targets.
    pub fn digest(&self) -> u64 {
        // The hasher may differ between releases of Rust; then a view is copied once more.
        let mut hasher = DefaultHasher::new();
        for entry in &self.entries {
            entry.path.hash(&mut hasher);
            match &entry.kind {
                Kind::Directory { mode } => (0, mode).hash(&mut hasher),
                Kind::File { mode, size, modified, .. } => (1, mode, size, modified).hash(&mut hasher),
                Kind::Link { target } => (2, target).hash(&mut hasher),
            }
        }
        hasher.finish()
    }

    /// Copies it into the new folder `target`. `spare_memory`: what is written goes to the disk at once.
    pub fn copy(&self, target: &Path, spare_memory: bool, progress: &Progress) -> Result<(), TreeError> {
        fs::create_dir(target).map_err(writing(target))?;
        let mut folders = Vec::new();
        let mut others = Vec::new();
        let mut first_of: HashMap<(u64, u64), &Path> = HashMap::new();
        let mut hard_links = Vec::new();
        for entry in &self.entries {
            match &entry.kind {
                Kind::Directory { mode } => {
                    let path = target.join(&entry.path);
                    fs::create_dir(&path).map_err(writing(&path))?;
                    folders.push((path, *mode));
                }
                Kind::File { inode: (device, number, links), .. } if *links > 1 => {
                    match first_of.get(&(*device, *number)) {
                        Some(first) => hard_links.push((*first, entry)),
                        None => {
                            first_of.insert((*device, *number), &entry.path);
                            others.push(entry);
                        }
                    }
                }
                _ => others.push(entry),
            }
        }
        // By folders, since a folder is locked while something is made in it; the largest first.
        let mut shares: Vec<&[&Entry]> = others.chunk_by(|one, next| one.path.parent() == next.path.parent()).collect();
        shares.sort_by_key(|share| std::cmp::Reverse(share.iter().map(|entry| entry.size()).sum::<u64>()));
        in_parallel(&shares, |share| {
            for entry in *share {
                copy_entry(&self.top, target, entry, spare_memory)?;
                progress.add(entry.size());
            }
            Ok(())
        })?;
        for (first, entry) in hard_links {
            let path = target.join(&entry.path);
            fs::hard_link(target.join(first), &path).map_err(writing(&path))?;
        }
        for (path, mode) in folders.into_iter().rev() {
            fs::set_permissions(&path, Permissions::from_mode(mode)).map_err(writing(&path))?;
        }
        Ok(())
    }

    /// Names at the top.
    pub fn top_names(&self) -> impl Iterator<Item = &Path> {
        self.entries.iter().map(|entry| entry.path.as_path()).filter(|path| path.components().count() == 1)
    }
}

fn in_parallel<T: Sync>(shares: &[T], work: impl Fn(&T) -> Result<(), TreeError> + Sync) -> Result<(), TreeError> {
    let threads = std::thread::available_parallelism().map_or(2, usize::from).clamp(2, 4);
    let (next, failed, first_error) = (AtomicUsize::new(0), AtomicBool::new(false), Mutex::new(None));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !failed.load(Ordering::Relaxed) {
                    let Some(share) = shares.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
                    if let Err(error) = work(share) {
                        failed.store(true, Ordering::Relaxed);
                        if let Ok(mut first) = first_error.lock() {
                            first.get_or_insert(error);
                        }
                    }
                }
            });
        }
    });
    first_error.into_inner().ok().flatten().map_or(Ok(()), Err)
}

fn copy_entry(top: &Path, target: &Path, entry: &Entry, spare_memory: bool) -> Result<(), TreeError> {
    let (from, to) = (top.join(&entry.path), target.join(&entry.path));
    match &entry.kind {
        Kind::Directory { .. } => Ok(()),
        Kind::Link { target } => symlink(target, &to).map_err(writing(&to)),
        Kind::File { mode, size, modified, .. } => {
            let mut source = File::open(&from).map_err(reading(&from))?;
            let mut copy =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&to).map_err(writing(&to))?;
            let copied = match *size {
                ..=SMALL => copy_whole(&mut source, &mut copy, *size as usize),
                _ if spare_memory && *size > PIECE => copy_in_pieces(&mut source, &mut copy),
                // copy_file_range where the kernel can (and so a reflink where the file system can), else sendfile.
                _ => io::copy(&mut source, &mut copy).map(|_| ()),
            };
            copied
                .and_then(|()| if spare_memory { forget(&copy) } else { Ok(()) })
                .and_then(|()| modified.map_or(Ok(()), |time| copy.set_modified(time)))
                .and_then(|()| copy.set_permissions(Permissions::from_mode(*mode)))
                .map_err(writing(&to))
        }
    }
}

fn copy_whole(source: &mut File, copy: &mut File, size: usize) -> io::Result<()> {
    let mut content = vec![0; size];
    source.read_exact(&mut content)?;
    copy.write_all(&content)
}

fn copy_in_pieces(source: &mut File, copy: &mut File) -> io::Result<()> {
    while io::copy(&mut Read::by_ref(source).take(PIECE), copy)? > 0 {
        forget(copy)?;
    }
    Ok(())
}

/// What was written goes to the disk and out of the page cache, which counts as the container's memory.
fn forget(file: &File) -> io::Result<()> {
    file.sync_data()?;
    let _ = nix::fcntl::posix_fadvise(file, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED);
    Ok(())
}

/// Removes a folder, also where folders in it may not be written to.
pub fn remove(path: &Path) -> Result<(), TreeError> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(reading(path)(error)),
        Ok(data) if !data.is_dir() => return fs::remove_file(path).map_err(writing(path)),
        Ok(_) => {}
    }
    if fs::remove_dir_all(path).is_ok() {
        return Ok(());
    }
    make_writable(path);
    fs::remove_dir_all(path).map_err(writing(path))
}

fn make_writable(folder: &Path) {
    let _ = fs::set_permissions(folder, Permissions::from_mode(0o700));
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        make_writable(&entry.path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::{Format, Log};

    #[test]
    fn a_copy_has_links_modes_times_and_hard_links_of_the_original() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("from"), folder.path().join("to"));
        fs::create_dir_all(from.join("bin/deep")).unwrap();
        fs::write(from.join("bin/flux"), "program").unwrap();
        fs::set_permissions(from.join("bin/flux"), Permissions::from_mode(0o555)).unwrap();
        let old = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000);
        File::open(from.join("bin/flux")).unwrap().set_modified(old).unwrap();
        fs::hard_link(from.join("bin/flux"), from.join("bin/deep/flux")).unwrap();
        symlink("/opt/software/nowhere", from.join("bin/dangling")).unwrap();
        fs::write(from.join("large"), vec![3; 9 << 20]).unwrap();
        fs::set_permissions(from.join("bin"), Permissions::from_mode(0o555)).unwrap();
        for spare_memory in [false, true] {
            let tree = Tree::list(&from).unwrap();
            assert_eq!((tree.files, tree.entries.len()), (3, 6));
            tree.copy(&to, spare_memory, &Progress::new(0, Log::new(Format::Text, true))).unwrap();
            assert_eq!(Tree::list(&to).unwrap().digest(), tree.digest());
            let data = fs::metadata(to.join("bin/flux")).unwrap();
            assert_eq!((data.mode() & 0o7777, data.nlink(), data.modified().unwrap()), (0o555, 2, old));
            assert_eq!(fs::read_link(to.join("bin/dangling")).unwrap(), Path::new("/opt/software/nowhere"));
            assert!(fs::read(to.join("large")).unwrap() == vec![3; 9 << 20]);
            remove(&to).unwrap();
        }
        remove(&from).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn the_digest_sees_a_change_of_size_mode_and_target() {
        let folder = tempfile::tempdir().unwrap();
        let digest = || Tree::list(folder.path()).unwrap().digest();
        fs::write(folder.path().join("a"), "1").unwrap();
        let first = digest();
        fs::set_permissions(folder.path().join("a"), Permissions::from_mode(0o700)).unwrap();
        let second = digest();
        symlink("a", folder.path().join("b")).unwrap();
        assert!(first != second && second != digest());
    }
}
