//! Directories, files and links below the root, each in one move: nobody sees half a file, a second run changes nothing.
//!
//! There is no fsync here: a pod's volumes are filled again by the next run after a crash of the node, and a file whose
//! bytes differ is written anew. (What outlives the pod, the archive, is synced.)
#![expect(clippy::disallowed_methods, reason = "act: writes files; with all below it")]

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Gid, Mode as FileMode, OFlags, Uid, chownat, fchmod, fchown, fstat, mkdirat, openat, readlinkat,
    renameat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use crate::report::failure::Failure;
use crate::system::mount_table;
use crate::system::owner::{Mode, Owner};

pub mod safe_path;

/// Stands for the part of a dump's name that differs between starts.
pub const ANY: char = '*';

/// Writes below a root directory.
#[derive(Debug, Clone)]
pub struct Files {
    root: PathBuf,
    /// Part of the names of temporary files: two containers of a pod may write to one volume.
    tag: String,
}

impl Files {
    pub fn new(root: &Path, tag: &str) -> Files {
        Files { root: root.to_owned(), tag: tag.to_owned() }
    }

    /// The absolute path `path` below the root.
    pub fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub fn ensure_directory(&self, path: &str, mode: Mode, owner: Owner) -> Result<(), Failure> {
        let real = self.at(path);
        let failed = |error: io::Error| Failure::write("set up the directory", &real, &error);
        let (folder, name) = open_parent(&real)?;
        let existed = safe_path::stat(&folder, &name).map_err(failed)?.is_some();
        let result = match existed {
            true => safe_path::open(&real, false).and_then(|real| set_directory(&real, mode, owner)),
            false => self.new_directory(&folder, &name, mode, owner),
        };
        match result {
            // It is somebody else's, such as a volume's own folder: its mode stays as long as it is writable.
            Err(error) if existed && is_not_permitted(&error) && is_writable(&real) => Ok(()),
            // Another container of the pod was faster.
            Err(_) if !existed && real.is_dir() => {
                safe_path::open(&real, false).and_then(|real| set_directory(&real, mode, owner)).map_err(failed)
            }
            result => result.map_err(failed),
        }
    }

    /// Creates a directory under a temporary name and renames it, so that it has the right owner from the beginning.
    fn new_directory(&self, folder: &OwnedFd, name: &OsStr, mode: Mode, owner: Owner) -> io::Result<()> {
        let beside = self.temporary_name(name);
        match mkdirat(folder, &beside, FileMode::from_raw_mode(0o700)) {
            Err(Errno::EXIST) => {}
            made => made?,
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = openat(folder, &beside, flags, FileMode::empty())
            .map_err(io::Error::from)
            .and_then(|made| set_directory(&made, mode, owner))
            .and_then(|()| Ok(renameat(folder, &beside, folder, name)?));
        if made.is_err() {
            let _ = unlinkat(folder, &beside, AtFlags::REMOVEDIR);
        }
        made
    }

    pub fn ensure_file(&self, path: &str, mode: Mode, owner: Owner, content: &[u8]) -> Result<(), Failure> {
        let real = self.at(path);
        let (folder, name) = open_parent(&real)?;
        if is_same(&folder, &name, mode, owner, content) {
            return Ok(());
        }
        let beside = self.temporary_name(&name);
        let written = write_new(&folder, &beside, mode, owner, content)
            .and_then(|()| Ok(renameat(&folder, &beside, &folder, &name)?));
        written.map_err(|error| {
            let _ = safe_path::remove(&folder, &beside);
            Failure::write("write", &real, &error)
        })
    }

    /// The bytes of a file that is mounted.
    pub fn read(&self, path: &str) -> Result<Vec<u8>, Failure> {
        let real = self.at(path);
        fs::read(&real).map_err(|error| Failure::write("read", &real, &error))
    }

    /// Gives a directory of the image to `owner`; what is in it stays as it is. False: it is on a volume, whose owner and
    /// group stay; or the agent is not root and cannot write to it.
    pub fn give_to(&self, path: &str, owner: Owner) -> Result<bool, Failure> {
        let real = self.at(path);
        let failed = |error: io::Error| Failure::write("give away", &real, &error);
        let whole = match fs::canonicalize(&real) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(true),
            whole => whole.map_err(failed)?,
        };
        let folder = safe_path::open(&whole, false).map_err(failed)?;
        let data = fstat(&folder).map_err(|error| failed(error.into()))?;
        if data.st_uid == owner.uid || data.st_mode & 0o002 != 0 {
            return Ok(true);
        }
        // Only root can change owners: any other agent leaves them.
        if !nix::unistd::geteuid().is_root() {
            return Ok(is_writable(&whole));
        }
        if is_on_volume(&fs::read_to_string(mount_table::FILE).unwrap_or_default(), &whole) {
            return Ok(false);
        }
        chownat(&folder, "", Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)), AtFlags::EMPTY_PATH)
            .map_err(|error| failed(error.into()))?;
        Ok(true)
    }

    pub fn ensure_link(&self, path: &str, target: &str) -> Result<(), Failure> {
        let real = self.at(path);
        let failed = |error: io::Error| Failure::write("link", &real, &error);
        let (folder, name) = open_parent(&real)?;
        if let Some(data) = safe_path::stat(&folder, &name).map_err(failed)? {
            let is_link = FileType::from_raw_mode(data.st_mode) == FileType::Symlink;
            let leads_there =
                || readlinkat(&folder, &name, Vec::new()).is_ok_and(|now| now.to_bytes() == target.as_bytes());
            if !is_link || leads_there() {
                return Ok(());
            }
        }
        let beside = self.temporary_name(&name);
        let made = safe_path::remove(&folder, &beside)
            .and_then(|()| Ok(symlinkat(target, &folder, &beside)?))
            .and_then(|()| Ok(renameat(&folder, &beside, &folder, &name)?));
        made.map_err(|error| {
            let _ = safe_path::remove(&folder, &beside);
            failed(error)
        })
    }

    fn temporary_name(&self, name: &OsStr) -> OsString {
        format!(".{}.{}.new", name.to_string_lossy(), self.tag).into()
    }
}

/// Opens the folder that is to hold `path`, created if it is missing; and the last name of the path.
fn open_parent(path: &Path) -> Result<(OwnedFd, OsString), Failure> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    match safe_path::open(folder, true) {
        Ok(open) => Ok((open, path.file_name().unwrap_or_default().to_owned())),
        Err(error) => Err(Failure::write("create the directory", folder, &error)),
    }
}

/// Creates the folder `path` and what is missing above it, with mode 0755 whatever the umask.
pub fn make_parents(path: &Path) -> Result<(), Failure> {
    safe_path::open(path, true).map(drop).map_err(|error| Failure::write("create the directory", path, &error))
}

fn set_directory(folder: &OwnedFd, mode: Mode, owner: Owner) -> io::Result<()> {
    let data = fstat(folder)?;
    if data.st_mode & 0o7777 != mode.0 {
        // fchmod does not work on a descriptor that was opened with O_PATH.
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        fchmod(openat(folder, ".", flags, FileMode::empty())?, FileMode::from_raw_mode(mode.0))?;
    }
    if (data.st_uid, data.st_gid) != (owner.uid, owner.gid) {
        chownat(folder, "", Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)), AtFlags::EMPTY_PATH)?;
    }
    Ok(())
}

/// Whether `path` is below a mount point that is not the root, by the table of mounts.
fn is_on_volume(mounts: &str, path: &Path) -> bool {
    let mut points = mount_table::entries(mounts).map(|entry| entry.point);
    points.any(|point| point != Path::new("/") && path.starts_with(point))
}

fn is_not_permitted(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

fn is_writable(path: &Path) -> bool {
    nix::unistd::access(path, nix::unistd::AccessFlags::W_OK | nix::unistd::AccessFlags::X_OK).is_ok()
}

fn is_same(folder: &OwnedFd, name: &OsStr, mode: Mode, owner: Owner, content: &[u8]) -> bool {
    let Ok(Some(data)) = safe_path::stat(folder, name) else { return false };
    let alike = FileType::from_raw_mode(data.st_mode) == FileType::RegularFile
        && data.st_size.cast_unsigned() == content.len() as u64
        && data.st_mode & 0o7777 == mode.0
        && (data.st_uid, data.st_gid) == (owner.uid, owner.gid);
    // A link that has taken its place since is not followed, and a pipe not waited for.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let mut now = Vec::new();
    alike
        && openat(folder, name, flags, FileMode::empty())
            .is_ok_and(|file| File::from(file).take(content.len() as u64 + 1).read_to_end(&mut now).is_ok())
        && now == content
}

/// Creates a file; its mode and owner are right before the first byte is in it.
fn write_new(folder: &OwnedFd, name: &OsStr, mode: Mode, owner: Owner, content: &[u8]) -> io::Result<()> {
    safe_path::remove(folder, name)?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(folder, name, flags, FileMode::from_raw_mode(0o600))?;
    let data = fstat(&file)?;
    if (data.st_uid, data.st_gid) != (owner.uid, owner.gid) {
        fchown(&file, Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)))?;
    }
    fchmod(&file, FileMode::from_raw_mode(mode.0))?;
    File::from(file).write_all(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    fn us() -> Owner {
        Owner { uid: nix::unistd::geteuid().as_raw(), gid: nix::unistd::getegid().as_raw() }
    }

    fn mode_of(path: &Path) -> u32 {
        fs::symlink_metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn a_file_is_whole_with_its_mode_and_a_second_run_leaves_it_alone() {
        let root = tempfile::tempdir().unwrap();
        let files = Files::new(root.path(), "lead");
        let at = root.path().join("mnt/flux/config/R");
        files.ensure_file("/mnt/flux/config/R", Mode(0o400), us(), b"one").unwrap();
        let first = fs::metadata(&at).unwrap().ino();
        files.ensure_file("/mnt/flux/config/R", Mode(0o400), us(), b"one").unwrap();
        assert_eq!((fs::metadata(&at).unwrap().ino(), mode_of(&at)), (first, 0o400));
        files.ensure_file("/mnt/flux/config/R", Mode(0o640), us(), b"two").unwrap();
        assert_eq!((fs::read(&at).unwrap().as_slice(), mode_of(&at)), (b"two".as_slice(), 0o640));
        assert_eq!(fs::read_dir(at.parent().unwrap()).unwrap().count(), 1, "no temporary file stays");
        assert_eq!(mode_of(at.parent().unwrap()), 0o755);
    }

    #[test]
    fn a_stale_temporary_file_is_not_in_the_way() {
        let root = tempfile::tempdir().unwrap();
        let files = Files::new(root.path(), "lead");
        fs::write(root.path().join(".x.lead.new"), "half").unwrap();
        files.ensure_file("/x", Mode(0o644), us(), b"whole").unwrap();
        assert_eq!(fs::read(root.path().join("x")).unwrap(), b"whole");
        assert!(!root.path().join(".x.lead.new").exists());
    }

    #[test]
    fn a_link_is_put_right_but_a_real_folder_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let files = Files::new(root.path(), "lead");
        files.ensure_link("/view/run", "../elsewhere").unwrap();
        files.ensure_link("/view/run", "../config/run").unwrap();
        assert_eq!(fs::read_link(root.path().join("view/run")).unwrap(), Path::new("../config/run"));
        fs::create_dir(root.path().join("view/var")).unwrap();
        files.ensure_link("/view/var", "../config/var").unwrap();
        assert!(root.path().join("view/var").symlink_metadata().unwrap().is_dir());
    }

    #[test]
    fn a_volume_is_told_from_the_image() {
        let mounts = "22 1 0:21 / / rw - overlay overlay rw\n23 22 8:1 /x /data/my\\040files rw - ext4 /dev/sda rw\n";
        assert!(is_on_volume(mounts, Path::new("/data/my files/deep")));
        assert!(!is_on_volume(mounts, Path::new("/data/my")) && !is_on_volume(mounts, Path::new("/opt")));
    }

    /// Another user's link where root writes: only root can make one.
    #[test]
    fn another_users_link_on_the_way_leads_nowhere() {
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
        files.ensure_directory("/theirs/here", Mode(0o700), owner).unwrap_err();
        files.ensure_directory("/theirs/here/new", Mode(0o700), owner).unwrap_err();
        files.ensure_file("/theirs/there/passwd", Mode(0o644), owner, b"x").unwrap_err();
        files.ensure_link("/theirs/there/passwd", "x").unwrap_err();
        let etc = fs::metadata(at("etc")).unwrap();
        assert_eq!((etc.uid(), etc.mode() & 0o777), (0, 0o755));
        assert_eq!(fs::read_dir(at("etc")).unwrap().count(), 0);
        // In place of a file it is replaced, not followed; our own is followed.
        files.ensure_file("/theirs/there", Mode(0o644), us(), b"x").unwrap();
        std::os::unix::fs::symlink("../etc", at("theirs/ours")).unwrap();
        files.ensure_file("/theirs/ours/new", Mode(0o644), us(), b"x").unwrap();
        assert!(at("etc/new").is_file() && at("theirs/there").symlink_metadata().unwrap().is_file());
    }

    #[test]
    fn what_stands_in_the_way_is_named_with_a_remedy() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("config"), "a file").unwrap();
        let failure = Files::new(root.path(), "lead").ensure_file("/config/R", Mode(0o644), us(), b"").unwrap_err();
        assert!(failure.to_string().contains("config"), "{failure}");
    }
}
