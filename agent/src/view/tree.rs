//! A tree of files, listed once.
#![expect(clippy::disallowed_methods, reason = "act: lists and removes files")]

use std::fs::{self, Permissions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// One entry below the top.
#[derive(Debug, Clone)]
pub struct Entry {
    pub path: PathBuf,
    pub kind: Kind,
}

#[derive(Debug, Clone)]
pub enum Kind {
    Directory { mode: u32 },
    File { mode: u32, size: u64, modified: Option<SystemTime>, inode: (u64, u64, u64) },
    Link { target: PathBuf },
}

impl Entry {
    /// Bytes that have to be copied.
    pub fn size(&self) -> u64 {
        match self.kind {
            Kind::File { size, .. } => size,
            _ => 0,
        }
    }
}

/// A listed tree.
#[derive(Debug)]
pub struct Tree {
    pub top: PathBuf,
    pub entries: Vec<Entry>,
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
            let entries = fs::read_dir(&real).and_then(Iterator::collect::<io::Result<Vec<_>>>);
            let mut entries = entries.map_err(reading(&real))?;
            entries.sort_by_cached_key(fs::DirEntry::file_name);
            for entry in entries {
                let path = folder.join(entry.file_name());
                let look = || entry.metadata().map_err(reading(&entry.path()));
                let kind = entry.file_type().map_err(reading(&entry.path()))?;
                let kind = if kind.is_dir() {
                    folders.push(path.clone());
                    Kind::Directory { mode: look()?.mode() & 0o7777 }
                } else if kind.is_symlink() {
                    let real = entry.path();
                    Kind::Link { target: fs::read_link(&real).map_err(reading(&real))? }
                } else if kind.is_file() {
                    let data = look()?;
                    tree.files += 1;
                    tree.bytes += data.len();
                    let inode = (data.dev(), data.ino(), data.nlink());
                    let mode = data.mode() & 0o7777;
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

    /// Each folder that holds something, with its entries by name; folders before what they hold.
    pub fn folders(&self) -> impl DoubleEndedIterator<Item = (&Path, &[Entry])> {
        let groups: Vec<&[Entry]> =
            self.entries.chunk_by(|one, next| one.path.parent() == next.path.parent()).collect();
        groups.into_iter().filter_map(|entries| Some((entries.first()?.path.parent()?, entries)))
    }

    /// Names at the top.
    pub fn top_names(&self) -> impl Iterator<Item = &Path> {
        self.entries.iter().map(|entry| entry.path.as_path()).filter(|path| path.components().count() == 1)
    }
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
    use std::os::unix::fs::symlink;

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
