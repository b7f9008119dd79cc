//! A tree of files, listed once.
//!
//! walkdir is not used: there are tens of thousands of entries, and for modes, sizes and targets of links, each would
//! be looked up by its whole path. Here it is looked up in its folder, which is open.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use flux_shared::exit::Category;
use rustix::fs::{AtFlags, FileType, RawDir, Stat, Timespec, readlinkat_raw, statat};

use crate::report::failure::{Failure, is_passing, plain};

/// A folder and its entries, sorted by name.
#[derive(Debug)]
pub struct Folder {
    /// The path below the tree's top.
    pub path: PathBuf,
    pub entries: Vec<TreeEntry>,
}

#[derive(Debug)]
pub struct TreeEntry {
    /// The entry's name: one part of a path.
    pub name: OsString,
    pub kind: EntryKind,
}

#[derive(Debug)]
pub enum EntryKind {
    Directory {
        mode: u32,
    },
    /// `hard_linked`: device and inode number, if the file has other names (hard links).
    File {
        mode: u32,
        size: u64,
        modified: Timespec,
        hard_linked: Option<(u64, u64)>,
    },
    Link {
        target: PathBuf,
    },
}

impl Folder {
    pub fn names(&self) -> impl Iterator<Item = &OsStr> {
        self.entries.iter().map(|entry| entry.name.as_os_str())
    }
}

impl TreeEntry {
    /// Bytes to copy.
    pub fn size(&self) -> u64 {
        match self.kind {
            EntryKind::File { size, .. } => size,
            _ => 0,
        }
    }
}

/// A listed tree.
#[derive(Debug)]
pub struct Tree {
    pub top: PathBuf,
    /// The top itself, then all folders below. Each comes before the folders in it.
    pub folders: Vec<Folder>,
    /// Number of files.
    pub files: usize,
    /// Bytes of all files.
    pub bytes: u64,
}

/// An entry that could not be read or written.
#[derive(Debug)]
pub struct TreeError {
    pub path: PathBuf,
    /// Whether it could not be read. False: it could not be written.
    pub is_read_error: bool,
    pub error: io::Error,
}

impl TreeError {
    /// Whether another attempt, perhaps on another node, may succeed, as after an error of the node's disk.
    pub fn may_pass(&self) -> bool {
        is_passing(&self.error) || self.error.kind() == io::ErrorKind::UnexpectedEof
    }
}

impl From<TreeError> for Failure {
    fn from(error: TreeError) -> Failure {
        if !error.is_read_error {
            return Failure::write("write", &error.path, &error.error);
        }
        let cause = format!("failed to read {}: {}", error.path.display(), plain(&error.error));
        if error.may_pass() {
            let remedy = "check the disk of the pod's node, which has the view's image";
            // The Job retries this category, but no missing view.
            return Failure::new(Category::WriteFailed, cause, remedy);
        }
        let remedy = match error.error.kind() {
            io::ErrorKind::PermissionDenied => {
                "let the view's container run as a user that may read its image (flux.container.securityContext)"
            }
            _ => "look at the view's image",
        };
        Failure::new(Category::ViewMissing, cause, remedy)
    }
}

/// Turns an error at reading `path` into a `TreeError`.
pub fn reading(path: &Path) -> impl FnOnce(io::Error) -> TreeError {
    move |error| TreeError {
        path: path.to_owned(),
        is_read_error: true,
        error,
    }
}

/// Turns an error at writing `path` into a `TreeError`.
pub fn writing(path: &Path) -> impl FnOnce(io::Error) -> TreeError {
    move |error| TreeError {
        path: path.to_owned(),
        is_read_error: false,
        error,
    }
}

impl Tree {
    /// Everything below `top`. Devices, pipes and sockets are left out.
    pub fn list(top: &Path) -> Result<Tree, TreeError> {
        let mut tree = Tree {
            folders: Vec::new(),
            ..Tree::empty(top)
        };
        let mut paths = vec![PathBuf::new()];
        let mut buffers = Buffers {
            entries: vec![MaybeUninit::uninit(); 32 << 10],
            target: vec![MaybeUninit::uninit(); 4096], // Linux has no longer paths (PATH_MAX)
        };
        while let Some(path) = paths.pop() {
            let entries = entries(top, &path, &mut buffers)?;
            let folders = entries
                .iter()
                .filter(|entry| matches!(entry.kind, EntryKind::Directory { .. }));
            paths.extend(folders.map(|entry| path.join(&entry.name)));
            tree.folders.push(Folder { path, entries });
        }
        tree.count();
        Ok(tree)
    }

    /// A tree that holds nothing but its top.
    pub fn empty(top: &Path) -> Tree {
        let folders = vec![Folder {
            path: PathBuf::new(),
            entries: Vec::new(),
        }];
        Tree {
            top: top.to_owned(),
            folders,
            files: 0,
            bytes: 0,
        }
    }

    /// Counts the files and their bytes. A file with several names counts once, since it is copied once.
    pub fn count(&mut self) {
        let mut inodes = HashSet::new();
        (self.files, self.bytes) = (0, 0);
        for entry in self.folders.iter().flat_map(|folder| &folder.entries) {
            let EntryKind::File {
                size, hard_linked, ..
            } = &entry.kind
            else {
                continue;
            };
            if hard_linked.is_none_or(|inode| inodes.insert(inode)) {
                self.files += 1;
                self.bytes += size;
            }
        }
    }

    /// A digest of the listing: names, kinds, modes (of the copy), sizes, modification times and targets of links.
    /// `hard_linked` is left out: the same content may have other device and inode numbers.
    pub fn digest(&self) -> u64 {
        // The hasher may differ between releases of Rust: then a view is copied again.
        let mut hasher = DefaultHasher::new();
        for folder in &self.folders {
            folder.path.as_os_str().hash(&mut hasher);
            for entry in &folder.entries {
                entry.name.hash(&mut hasher);
                match &entry.kind {
                    // 0, 1 and 2 stand for the kinds.
                    EntryKind::Directory { mode } => (0, mode).hash(&mut hasher),
                    EntryKind::File {
                        mode, size, modified, ..
                    } => {
                        (1, mode, size, modified.tv_sec, modified.tv_nsec).hash(&mut hasher);
                    }
                    EntryKind::Link { target } => (2, target.as_os_str()).hash(&mut hasher),
                }
            }
        }
        hasher.finish()
    }

    /// The names of the entries of the top folder.
    pub fn top_names(&self) -> impl Iterator<Item = &OsStr> {
        self.folders.first().into_iter().flat_map(Folder::names)
    }
}

/// Buffers that the kernel writes into.
struct Buffers {
    entries: Vec<MaybeUninit<u8>>,
    target: Vec<MaybeUninit<u8>>,
}

/// The entries of the folder `path` of the tree, sorted by name.
fn entries(top: &Path, path: &Path, buffers: &mut Buffers) -> Result<Vec<TreeEntry>, TreeError> {
    let real = top.join(path);
    let folder = File::open(&real).map_err(reading(&real))?;
    let mut entries = Vec::new();
    let mut listed = RawDir::new(&folder, &mut buffers.entries);
    while let Some(entry) = listed.next() {
        let entry = entry.map_err(|error| reading(&real)(error.into()))?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        let kind = kind(&folder, name, entry.file_type(), &mut buffers.target);
        if let Some(kind) = kind.map_err(|error| reading(&real.join(name))(error))? {
            entries.push(TreeEntry {
                name: name.to_owned(),
                kind,
            });
        }
    }
    entries.sort_unstable_by(|one, other| one.name.cmp(&other.name));
    Ok(entries)
}

/// The mode of a copy of this file or folder. The copy belongs to this process's user, and to the group of its folder. So
/// it is not writable for that group, and gives neither that group's rights nor, unless they are those of the file's own
/// owner, this user's rights to those who run it.
fn mode_of_copy(data: &Stat) -> u32 {
    const SETUID: u32 = 0o4000;
    let mode = data.st_mode & 0o5757;
    if mode & SETUID != 0 && data.st_uid != nix::unistd::geteuid().as_raw() {
        return mode & !SETUID;
    }
    mode
}

/// The kind of the entry `name` in `folder`; `listed_type` is its type by the listing, which some file systems do
/// not give. `target` is a buffer. None: it is a device, a pipe or a socket.
fn kind(
    folder: &File,
    name: &OsStr,
    listed_type: FileType,
    target: &mut [MaybeUninit<u8>],
) -> io::Result<Option<EntryKind>> {
    let look = || -> io::Result<Stat> { Ok(statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?) };
    let kind = match listed_type {
        FileType::Unknown => FileType::from_raw_mode(look()?.st_mode),
        known => known,
    };
    Ok(match kind {
        FileType::Directory => Some(EntryKind::Directory {
            mode: mode_of_copy(&look()?),
        }),
        FileType::Symlink => {
            let (target, _) = readlinkat_raw(folder.as_fd(), name, target)?;
            Some(EntryKind::Link {
                target: OsStr::from_bytes(target).into(),
            })
        }
        FileType::RegularFile => {
            let data = look()?;
            let modified = Timespec {
                tv_sec: data.st_mtime,
                tv_nsec: data.st_mtime_nsec as _,
            };
            let hard_linked = (data.st_nlink > 1).then_some((data.st_dev, data.st_ino));
            Some(EntryKind::File {
                mode: mode_of_copy(&data),
                size: data.st_size as u64,
                modified,
                hard_linked,
            })
        }
        _ => None,
    })
}

/// Removes a file or a folder, even if folders in it are read-only. A missing one is no error.
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
    for entry in entries
        .flatten()
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
    {
        make_writable(&entry.path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn read_error_is_retried_only_if_it_may_pass() {
        for (error, is_retried) in [
            (io::Error::from_raw_os_error(libc::EIO), true),
            (io::ErrorKind::UnexpectedEof.into(), true),
            (io::Error::from_raw_os_error(libc::EACCES), false),
            (io::Error::from_raw_os_error(libc::ENOENT), false),
        ] {
            let failure = Failure::from(reading(Path::new("/opt/view/bin/flux"))(error));
            assert_eq!(failure.category.is_retriable(), is_retried, "{failure}");
            assert!(failure.cause.starts_with("failed to read /opt/view/bin/flux: "));
        }
    }

    #[test]
    fn the_digest_sees_a_change_of_size_mode_and_target() {
        let folder = tempfile::tempdir().unwrap();
        let digest = || Tree::list(folder.path()).unwrap().digest();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        // Always the same modification time, so that the digests differ by the size.
        let write = |text: &str| {
            fs::write(&file, text).unwrap();
            let written = File::open(&file).unwrap();
            written.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
        };
        write("1");
        symlink("file", &link).unwrap();
        let mut digests = HashSet::from([digest()]);
        write("22");
        assert!(digests.insert(digest()), "size");
        fs::set_permissions(&file, Permissions::from_mode(0o700)).unwrap();
        assert!(digests.insert(digest()), "mode");
        fs::remove_file(&link).unwrap();
        symlink("elsewhere", &link).unwrap();
        assert!(digests.insert(digest()), "target");
    }
}
