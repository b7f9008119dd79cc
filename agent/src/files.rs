//! Creates directories, files and links below the root: no reader sees half a file. A second run of an `ensure_…`
//! changes nothing.
//!
//! There is no fsync here: after a crash of the node, the next run fills the pod's volumes again and rewrites each file
//! whose bytes differ. (The archive, which outlives the pod, is synced.)

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use flux_agent_plan::owner::{Mode, Owner};
use flux_shared::exit::Category;
use rustix::fs::{
    AtFlags, Dir, FileType, Mode as FileMode, OFlags, fchmod, fstat, mkdirat, openat, readlinkat, renameat,
    symlinkat, unlinkat,
};
use rustix::io::Errno;

use crate::report::failure::{Failure, plain};
use crate::system::below;
use crate::system::identity::{self, Capability, Credentials};
use crate::system::raw;
use ownership::Subject;

pub mod ownership;
pub mod safe_path;

/// Suffix of temporary names.
const TEMPORARY: &str = ".new";
/// Older temporary files are left over from an agent that was killed: nobody needs this long to write one.
const STALE_AFTER: Duration = Duration::from_secs(60);

/// Writes below a root directory.
#[derive(Debug, Clone)]
pub struct Files {
    root: PathBuf,
    /// Part of the names of temporary files: two containers of a pod may write to one volume, and neither removes the
    /// other's old files.
    tag: String,
}

impl Files {
    pub fn new(root: &Path, tag: &str) -> Files {
        Files {
            root: root.to_owned(),
            tag: tag.to_owned(),
        }
    }

    /// The absolute path `path` below the root.
    pub fn at(&self, path: &str) -> PathBuf {
        below(&self.root, path)
    }

    /// Creates the directory `path` with this mode and owner, or sets them on an existing one. Missing folders above
    /// it are created.
    pub fn ensure_directory(&self, path: &str, mode: Mode, owner: Owner) -> Result<(), Failure> {
        let real = self.at(path);
        let failed = |error: io::Error| failed("set up the directory", &real, &error);
        // With the owner's rights first: root may lack the capabilities to write there, and to give the folder away.
        if is_missing(&real)
            && self
                .as_owner(owner, || create_directory(&real, mode))
                .map_err(failed)?
        {
            return Ok(());
        }
        let (folder, name) = open_parent(&real)?;
        let existed = safe_path::stat(&folder, &name).map_err(failed)?.is_some();
        let result = if existed {
            adopt_directory(&real, mode, owner)
        } else {
            self.new_directory(&folder, &name, mode, owner)
        };
        match result {
            // The directory belongs to somebody else, as a volume's own folder may. That is no failure if `owner` can
            // write to it.
            Err(error) if existed && is_not_permitted(&error) => {
                let credentials = Credentials::of(owner, &self.root)?;
                can_write(&real, credentials.as_ref()).map_err(|_| failed(error))
            }
            // Another container of the pod was faster.
            Err(_) if !existed && real.is_dir() => adopt_directory(&real, mode, owner).map_err(failed),
            result => result.map_err(failed),
        }
    }

    /// Does `work`, system calls on a file system, with the rights of `owner`. False: it is not done, since the agent
    /// cannot or need not become `owner`, or `owner` lacks the permission. The agent must then do it itself.
    pub fn as_owner(&self, owner: Owner, work: impl FnOnce() -> io::Result<()>) -> io::Result<bool> {
        if !is_root() {
            return Ok(false);
        }
        let Some(identity) = Credentials::of(owner, &self.root).ok().flatten() else {
            return Ok(false);
        };
        match raw::with_identity(&identity, work) {
            Err(error) if is_not_permitted(&error) => Ok(false),
            done => done.map(|()| true),
        }
    }

    /// Creates a directory under a temporary name and renames it, so that it has the right owner from the
    /// beginning.
    fn new_directory(&self, folder: &OwnedFd, name: &OsStr, mode: Mode, owner: Owner) -> io::Result<()> {
        let temporary = self.temporary_name(folder, name);
        mkdirat(folder, &temporary, FileMode::from_raw_mode(0o700))?;
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let result = openat(folder, &temporary, flags, FileMode::empty())
            .map_err(io::Error::from)
            .and_then(|created| set_directory(&created, mode, Subject::Created, owner))
            .and_then(|()| Ok(renameat(folder, &temporary, folder, name)?));
        if result.is_err() {
            let _ = unlinkat(folder, &temporary, AtFlags::REMOVEDIR);
        }
        result
    }

    /// Writes the file `path`, unless it has this content, mode and owner already.
    pub fn ensure_file(&self, path: &str, mode: Mode, owner: Owner, content: &[u8]) -> Result<(), Failure> {
        let real = self.at(path);
        let (folder, name) = open_parent(&real)?;
        if is_same(&folder, &name, mode, owner, content) {
            return Ok(());
        }
        let failed = |error: io::Error| failed("write", &real, &error);
        let temporary = self.temporary_name(&folder, &name);
        let write = || {
            let written = write_new(&folder, &temporary, mode, owner, content)
                .and_then(|()| Ok(renameat(&folder, &temporary, &folder, &name)?));
            written.inspect_err(|_| _ = safe_path::remove(&folder, &temporary))
        };
        // In a folder of the owner's, the file is written with the owner's rights: root may lack the capability to.
        let is_owners_folder = fstat(&folder).is_ok_and(|data| data.st_uid == owner.uid);
        if is_owners_folder && self.as_owner(owner, write).map_err(failed)? {
            return Ok(());
        }
        write().map_err(failed)
    }

    /// The bytes of the file `path`, such as one of a mounted Secret.
    pub fn read(&self, path: &str) -> Result<Vec<u8>, Failure> {
        let real = self.at(path);
        fs::read(&real).map_err(|error| Failure::write("read", &real, &error))
    }

    /// Makes sure that `owner` can write to a folder, and gives it to them if they cannot. A missing folder is no
    /// error. Returns why they still cannot write to it.
    pub fn make_writable(&self, path: &str, owner: Owner) -> Result<Option<String>, Failure> {
        let real = self.at(path);
        let credentials = Credentials::of(owner, &self.root)?;
        let Err(error) = can_write(&real, credentials.as_ref()) else {
            return Ok(None);
        };
        match error.raw_os_error() {
            Some(libc::ENOENT) => return Ok(None),
            Some(libc::EACCES) if is_root() => {}
            _ => return Ok(Some(plain(&error))),
        }
        let given = give_folder(&real, owner).and_then(|()| can_write(&real, credentials.as_ref()));
        Ok(given.err().map(|error| plain(&error)))
    }

    /// Creates the empty file `path` for `owner`, and the missing folders above it: with the owner's rights or, if
    /// these do not suffice, the agent's. It is to replace the file `model`, and gets its mode and, if that file is the
    /// owner's, its group. `mode`: the mode if there is no such file. The owner can read and write it in any case.
    pub fn create_file_like(&self, model: &Path, path: &Path, mode: Mode, owner: Owner) -> io::Result<()> {
        let create = || {
            let model = fs::metadata(model).ok().filter(Metadata::is_file);
            let mode = Mode(model.as_ref().map_or(mode.0, |model| model.mode() & 0o777) | 0o600);
            let group = model
                .filter(|model| model.uid() == owner.uid)
                .map(|model| model.gid());
            let folder = safe_path::open(path.parent().unwrap_or(Path::new("/")), true)?;
            let write = |gid| {
                let owner = Owner { gid, ..owner };
                write_new(&folder, path.file_name().unwrap_or_default(), mode, owner, &[])
            };
            // Only members of a group may give it a file.
            match group {
                Some(gid) if write(gid).is_ok() => Ok(()),
                _ => write(owner.gid),
            }
        };
        if self.as_owner(owner, create)? {
            Ok(())
        } else {
            create()
        }
    }

    /// Makes `path` a symbolic link to `target`. A file or a folder that exists there stays, such as the agent's own
    /// binary (`install::link`).
    pub fn ensure_link(&self, path: &str, target: &str) -> Result<(), Failure> {
        let real = self.at(path);
        let failed = |error: io::Error| failed("link", &real, &error);
        let (folder, name) = open_parent(&real)?;
        if let Some(data) = safe_path::stat(&folder, &name).map_err(failed)? {
            let is_link = FileType::from_raw_mode(data.st_mode) == FileType::Symlink;
            let leads_there = || {
                readlinkat(&folder, &name, Vec::new())
                    .is_ok_and(|current| current.to_bytes() == target.as_bytes())
            };
            if !is_link || leads_there() {
                return Ok(());
            }
        }
        let temporary = self.temporary_name(&folder, &name);
        let result = symlinkat(target, &folder, &temporary)
            .map_err(io::Error::from)
            .and_then(|()| Ok(renameat(&folder, &temporary, &folder, &name)?));
        result.map_err(|error| {
            let _ = safe_path::remove(&folder, &temporary);
            failed(error)
        })
    }

    /// A name that nobody can guess, for an entry of `folder` that is to be renamed to `name`. Also removes the
    /// temporary files that earlier starts have left for this name.
    fn temporary_name(&self, folder: &OwnedFd, name: &OsStr) -> OsString {
        let prefix = format!(".{}.{}-", name.to_string_lossy(), self.tag);
        remove_stale(folder, &prefix);
        let random = RandomState::new().build_hasher().finish();
        format!("{prefix}{random:016x}{TEMPORARY}").into()
    }
}

/// Removes old temporary files and folders of `folder` whose names begin with `prefix`: an agent was killed before it
/// renamed them. A younger one may still be written: pods may share a volume, and their runners have the same tag.
fn remove_stale(folder: &OwnedFd, prefix: &str) {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(entries) = openat(folder, ".", flags, FileMode::empty()).and_then(Dir::new) else {
        return;
    };
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    for entry in entries.flatten() {
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        let is_temporary = name
            .to_str()
            .is_some_and(|name| name.starts_with(prefix) && name.ends_with(TEMPORARY));
        if is_temporary
            && let Ok(Some(data)) = safe_path::stat(folder, name)
            && now.saturating_sub(data.st_mtime.cast_unsigned()) > STALE_AFTER.as_secs()
        {
            let is_folder = FileType::from_raw_mode(data.st_mode) == FileType::Directory;
            let _ = unlinkat(
                folder,
                name,
                if is_folder {
                    AtFlags::REMOVEDIR
                } else {
                    AtFlags::empty()
                },
            );
        }
    }
}

/// Opens the folder above `path`, which is created if it is missing. Also returns the last part of the path.
fn open_parent(path: &Path) -> Result<(OwnedFd, OsString), Failure> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    match safe_path::open(folder, true) {
        Ok(open) => Ok((open, path.file_name().unwrap_or_default().to_owned())),
        Err(error) => Err(Failure::write("create the directory", folder, &error)),
    }
}

/// Creates the folder `path` and what is missing above it, with mode 0755 regardless of the umask.
pub fn create_folders(path: &Path) -> Result<(), Failure> {
    safe_path::open(path, true)
        .map(drop)
        .map_err(|error| Failure::write("create the directory", path, &error))
}

/// Creates a directory that belongs to the user of this process, and the missing folders above it.
fn create_directory(path: &Path, mode: Mode) -> io::Result<()> {
    let folder = safe_path::open(path.parent().unwrap_or(Path::new("/")), true)?;
    let name = path.file_name().unwrap_or_default();
    match mkdirat(&folder, name, FileMode::from_raw_mode(mode.0)) {
        // It exists after all: `ensure_directory` was not allowed to see it, or another container was faster.
        Err(Errno::EXIST) => {}
        result => result?,
    }
    // Sets the mode again, since mkdirat has applied the umask.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(fchmod(
        openat(&folder, name, flags, FileMode::empty())?,
        FileMode::from_raw_mode(mode.0),
    )?)
}

/// Sets mode and owner of a directory that existed already.
fn adopt_directory(path: &Path, mode: Mode, owner: Owner) -> io::Result<()> {
    // `false`: nothing is created.
    let walked = safe_path::walk(path, false)?;
    set_directory(&walked.folder, mode, Subject::Found(&walked), owner)
}

fn set_directory(folder: &OwnedFd, mode: Mode, subject: Subject, owner: Owner) -> io::Result<()> {
    // If the owner must not change, this fails, and the mode stays as well.
    ownership::needs_change(folder, subject, owner)?;
    let data = fstat(folder)?;
    if data.st_mode & 0o7777 != mode.0 {
        // fchmod does not work on a descriptor that was opened with O_PATH.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        fchmod(
            openat(folder, ".", flags, FileMode::empty())?,
            FileMode::from_raw_mode(mode.0),
        )?;
    }
    ownership::give(folder, subject, owner)
}

/// Gives a folder to `owner`, who cannot write to it.
fn give_folder(path: &Path, owner: Owner) -> io::Result<()> {
    // `false`: nothing is created.
    let walked = safe_path::walk(path, false)?;
    ownership::give(&walked.folder, Subject::Found(&walked), owner)
}

/// The failure of `what` (such as "write") on `path`. If root lacks a capability for it, the failure names that.
pub fn failed(what: &str, path: &Path, error: &io::Error) -> Failure {
    let lacks = match error.raw_os_error() {
        _ if !is_root() => None,
        Some(libc::EPERM) => Some(Capability::Chown),
        Some(libc::EACCES) => Some(Capability::DacOverride),
        _ => None,
    };
    match lacks.filter(|capability| !identity::has(*capability)) {
        None => Failure::write(what, path, error),
        Some(capability) => {
            let name = capability.name();
            let cause = format!(
                "failed to {what} {}: the container lacks the capability {name}",
                path.display()
            );
            Failure::new(Category::UserFailed, cause, identity::REMEDY)
        }
    }
}

fn is_missing(path: &Path) -> bool {
    fs::symlink_metadata(path).is_err()
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn is_not_permitted(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

/// Fails unless a process with these credentials (none: this process) can write to a folder.
fn can_write(path: &Path, credentials: Option<&Credentials>) -> io::Result<()> {
    let access = || {
        let wanted = nix::unistd::AccessFlags::W_OK | nix::unistd::AccessFlags::X_OK;
        Ok(nix::unistd::access(path, wanted)?)
    };
    credentials.map_or_else(access, |credentials| raw::with_identity(credentials, access))
}

/// Whether the file has this mode, owner and content.
fn is_same(folder: &OwnedFd, name: &OsStr, mode: Mode, owner: Owner, content: &[u8]) -> bool {
    let Ok(Some(data)) = safe_path::stat(folder, name) else {
        return false;
    };
    let has_same_attributes = FileType::from_raw_mode(data.st_mode) == FileType::RegularFile
        && data.st_size.cast_unsigned() == content.len() as u64
        && data.st_mode & 0o7777 == mode.0
        && (data.st_uid, data.st_gid) == (owner.uid, owner.gid);
    // If something has replaced the file since: NOFOLLOW does not follow a link, and NONBLOCK does not wait for a pipe.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut current = Vec::new();
    has_same_attributes
        && openat(folder, name, flags, FileMode::empty()).is_ok_and(|file| {
            File::from(file)
                // One byte more shows that the file has grown.
                .take(content.len() as u64 + 1)
                .read_to_end(&mut current)
                .is_ok()
        })
        && current == content
}

/// Creates a file, in place of any file of this name. Its mode and owner are set before the first byte is written.
fn write_new(folder: &OwnedFd, name: &OsStr, mode: Mode, owner: Owner, content: &[u8]) -> io::Result<()> {
    safe_path::remove(folder, name)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(folder, name, flags, FileMode::from_raw_mode(0o600))?;
    // The mode first: only a file's owner may change it, and that is still the agent.
    fchmod(&file, FileMode::from_raw_mode(mode.0))?;
    ownership::give(&file, Subject::Created, owner)?;
    File::from(file).write_all(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us() -> Owner {
        Owner {
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
        }
    }

    fn mode_of(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn file_is_whole_with_mode_and_untouched_by_a_second_run() {
        let root = tempfile::tempdir().unwrap();
        let files = Files::new(root.path(), "lead");
        let at = root.path().join("mnt/flux/config/R");
        files
            .ensure_file("/mnt/flux/config/R", Mode(0o400), us(), b"one")
            .unwrap();
        let first = fs::metadata(&at).unwrap().ino();
        files
            .ensure_file("/mnt/flux/config/R", Mode(0o400), us(), b"one")
            .unwrap();
        assert_eq!((fs::metadata(&at).unwrap().ino(), mode_of(&at)), (first, 0o400));
        files
            .ensure_file("/mnt/flux/config/R", Mode(0o640), us(), b"two")
            .unwrap();
        assert_eq!(
            (fs::read(&at).unwrap().as_slice(), mode_of(&at)),
            (b"two".as_slice(), 0o640)
        );
        assert_eq!(
            fs::read_dir(at.parent().unwrap()).unwrap().count(),
            1,
            "no temporary file stays"
        );
        assert_eq!(mode_of(at.parent().unwrap()), 0o755);
    }

    #[test]
    fn old_temporary_file_is_removed_and_a_new_one_stays() {
        let root = tempfile::tempdir().unwrap();
        let files = Files::new(root.path(), "lead");
        let names = [
            ".x.lead-0123456789abcdef.new",
            ".x.lead-fedcba9876543210.new",
            ".x.other-0123456789abcdef.new",
        ];
        for name in names {
            fs::write(root.path().join(name), "half").unwrap();
        }
        let long_ago = SystemTime::now() - 2 * STALE_AFTER;
        for name in [names[0], names[2]] {
            File::options()
                .write(true)
                .open(root.path().join(name))
                .unwrap()
                .set_modified(long_ago)
                .unwrap();
        }
        files.ensure_file("/x", Mode(0o644), us(), b"whole").unwrap();
        assert_eq!(fs::read(root.path().join("x")).unwrap(), b"whole");
        let stays: Vec<bool> = names.iter().map(|name| root.path().join(name).exists()).collect();
        assert_eq!(stays, [false, true, true]);
    }

    #[test]
    fn temporary_names_differ_between_calls() {
        let root = tempfile::tempdir().unwrap();
        let (folder, name) = open_parent(&root.path().join("x")).unwrap();
        let files = Files::new(root.path(), "lead");
        assert_ne!(
            files.temporary_name(&folder, &name),
            files.temporary_name(&folder, &name)
        );
    }

    #[test]
    fn link_gets_its_new_target_and_a_real_folder_stays() {
        let root = tempfile::tempdir().unwrap();
        let files = Files::new(root.path(), "lead");
        files.ensure_link("/view/run", "../elsewhere").unwrap();
        files.ensure_link("/view/run", "../config/run").unwrap();
        assert_eq!(
            fs::read_link(root.path().join("view/run")).unwrap(),
            Path::new("../config/run")
        );
        fs::create_dir(root.path().join("view/var")).unwrap();
        files.ensure_link("/view/var", "../config/var").unwrap();
        assert!(root.path().join("view/var").symlink_metadata().unwrap().is_dir());
    }

    /// A link of another user, where root writes. (The test needs root, to give the link to that user.)
    #[test]
    fn symlink_of_another_user_is_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        fs::create_dir_all(at("etc")).unwrap();
        fs::create_dir(at("theirs")).unwrap();
        for name in ["theirs/here", "theirs/there"] {
            std::os::unix::fs::symlink("../etc", at(name)).unwrap();
            std::os::unix::fs::lchown(at(name), Some(1002), Some(1002)).expect("this test runs as root");
        }
        let files = Files::new(root.path(), "lead");
        let owner = Owner { uid: 1002, gid: 1002 };
        files
            .ensure_directory("/theirs/here", Mode(0o700), owner)
            .unwrap_err();
        files
            .ensure_directory("/theirs/here/new", Mode(0o700), owner)
            .unwrap_err();
        files
            .ensure_file("/theirs/there/passwd", Mode(0o644), owner, b"x")
            .unwrap_err();
        files.ensure_link("/theirs/there/passwd", "x").unwrap_err();
        let etc = fs::metadata(at("etc")).unwrap();
        assert_eq!((etc.uid(), etc.mode() & 0o777), (0, 0o755));
        assert_eq!(fs::read_dir(at("etc")).unwrap().count(), 0);
        // A link in place of the file itself is replaced, not followed. A link of our own is followed.
        files
            .ensure_file("/theirs/there", Mode(0o644), us(), b"x")
            .unwrap();
        std::os::unix::fs::symlink("../etc", at("theirs/ours")).unwrap();
        files
            .ensure_file("/theirs/ours/new", Mode(0o644), us(), b"x")
            .unwrap();
        assert!(at("etc/new").is_file() && at("theirs/there").symlink_metadata().unwrap().is_file());
    }

    #[test]
    fn file_in_the_way_of_a_directory_is_named() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("config"), "a file").unwrap();
        let failure = Files::new(root.path(), "lead")
            .ensure_file("/config/R", Mode(0o644), us(), b"")
            .unwrap_err();
        assert!(failure.to_string().contains("config"), "{failure}");
    }
}
