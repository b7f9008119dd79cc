//! Directories, files and links below the root, each in one move: nobody sees half a file, a second run changes nothing.
//!
//! There is no fsync here: a pod's volumes are filled again by the next run after a crash of the node, and a file whose
//! bytes differ is written anew. (What outlives the pod, the archive, is synced.)

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::plan::{Mode, Owner};

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

    /// Where the absolute path `path` really is.
    pub fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    pub fn directory(&self, path: &str, mode: Mode, owner: Owner) -> Result<(), Failure> {
        let real = self.at(path);
        let existed = real.is_dir();
        let result = match existed {
            true => set_directory(&real, mode, owner),
            false => self.new_directory(&real, mode, owner)?,
        };
        match result {
            // Somebody else's, such as a volume's own folder: its mode is theirs, if only one can work in it.
            Err(error) if existed && is_not_permitted(&error) && is_writable(&real) => Ok(()),
            result => result.map_err(|error| Failure::write("set up the directory", &real, &error)),
        }
    }

    /// Made beside and renamed, so that one which is there has the right owner.
    fn new_directory(&self, real: &Path, mode: Mode, owner: Owner) -> Result<io::Result<()>, Failure> {
        if let Some(parent) = real.parent() {
            make_parents(parent)?;
        }
        let beside = self.beside(real);
        let made = match DirBuilder::new().mode(0o700).create(&beside) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => set_directory(&beside, mode, owner).and_then(|()| fs::rename(&beside, real)),
        };
        if made.is_err() {
            let _ = fs::remove_dir(&beside);
        }
        match made {
            // Another container of the pod was faster.
            Err(_) if real.is_dir() => Ok(set_directory(real, mode, owner)),
            made => Ok(made),
        }
    }

    pub fn file(&self, path: &str, mode: Mode, owner: Owner, content: &[u8]) -> Result<(), Failure> {
        let real = self.at(path);
        if is_same(&real, mode, owner, content) {
            return Ok(());
        }
        if let Some(parent) = real.parent() {
            make_parents(parent)?;
        }
        let beside = self.beside(&real);
        let written = write_new(&beside, mode, owner, content).and_then(|()| fs::rename(&beside, &real));
        written.map_err(|error| {
            let _ = fs::remove_file(&beside);
            Failure::write("write", &real, &error)
        })
    }

    /// The bytes of a file that is mounted.
    pub fn read(&self, path: &str) -> Result<Vec<u8>, Failure> {
        let real = self.at(path);
        fs::read(&real).map_err(|error| Failure::write("read", &real, &error))
    }

    /// The directory becomes the owner's, unless everybody may write there; what is in it stays as it is.
    pub fn give(&self, path: &str, owner: Owner) -> Result<(), Failure> {
        let real = self.at(path);
        let failed = |error: io::Error| Failure::write("give away", &real, &error);
        let data = match fs::metadata(&real) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            data => data.map_err(failed)?,
        };
        if data.uid() == owner.uid || data.mode() & 0o002 != 0 {
            return Ok(());
        }
        std::os::unix::fs::chown(&real, Some(owner.uid), Some(owner.gid)).map_err(failed)
    }

    pub fn link(&self, path: &str, target: &str) -> Result<(), Failure> {
        let real = self.at(path);
        match fs::symlink_metadata(&real) {
            Ok(data) if !data.is_symlink() => return Ok(()),
            Ok(_) if fs::read_link(&real).is_ok_and(|now| now == Path::new(target)) => return Ok(()),
            _ => {}
        }
        if let Some(parent) = real.parent() {
            make_parents(parent)?;
        }
        let beside = self.beside(&real);
        let _ = fs::remove_file(&beside);
        let made = symlink(target, &beside).and_then(|()| fs::rename(&beside, &real));
        made.map_err(|error| {
            let _ = fs::remove_file(&beside);
            Failure::write("link", &real, &error)
        })
    }

    fn beside(&self, path: &Path) -> PathBuf {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        path.with_file_name(format!(".{name}.{}.new", self.tag))
    }
}

/// `path` and what is missing above it, 0755 whatever the umask.
pub fn make_parents(path: &Path) -> Result<(), Failure> {
    let missing: Vec<&Path> = path.ancestors().take_while(|folder| !folder.is_dir()).collect();
    for folder in missing.into_iter().rev() {
        let made = DirBuilder::new().mode(0o755).create(folder);
        let made = match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && folder.is_dir() => continue,
            made => made.and_then(|()| fs::set_permissions(folder, Permissions::from_mode(0o755))),
        };
        made.map_err(|error| Failure::write("make the directory", folder, &error))?;
    }
    Ok(())
}

fn set_directory(path: &Path, mode: Mode, owner: Owner) -> io::Result<()> {
    let data = fs::metadata(path)?;
    if (data.uid(), data.gid()) != (owner.uid, owner.gid) {
        std::os::unix::fs::chown(path, Some(owner.uid), Some(owner.gid))?;
    }
    match data.mode() & 0o7777 == mode.0 {
        true => Ok(()),
        false => fs::set_permissions(path, Permissions::from_mode(mode.0)),
    }
}

fn is_not_permitted(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::PermissionDenied
}

fn is_writable(path: &Path) -> bool {
    nix::unistd::access(path, nix::unistd::AccessFlags::W_OK | nix::unistd::AccessFlags::X_OK).is_ok()
}

fn is_same(path: &Path, mode: Mode, owner: Owner, content: &[u8]) -> bool {
    let Ok(data) = fs::symlink_metadata(path) else { return false };
    let alike = data.is_file()
        && data.len() == content.len() as u64
        && data.mode() & 0o7777 == mode.0
        && (data.uid(), data.gid()) == (owner.uid, owner.gid);
    let mut now = Vec::new();
    alike && File::open(path).and_then(|mut file| file.read_to_end(&mut now)).is_ok() && now == content
}

/// Mode and owner are right before the first byte is in it.
fn write_new(path: &Path, mode: Mode, owner: Owner, content: &[u8]) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    let data = file.metadata()?;
    if (data.uid(), data.gid()) != (owner.uid, owner.gid) {
        std::os::unix::fs::fchown(&file, Some(owner.uid), Some(owner.gid))?;
    }
    file.set_permissions(Permissions::from_mode(mode.0))?;
    file.write_all(content)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        files.file("/mnt/flux/config/R", Mode(0o400), us(), b"one").unwrap();
        let first = fs::metadata(&at).unwrap().ino();
        files.file("/mnt/flux/config/R", Mode(0o400), us(), b"one").unwrap();
        assert_eq!((fs::metadata(&at).unwrap().ino(), mode_of(&at)), (first, 0o400));
        files.file("/mnt/flux/config/R", Mode(0o640), us(), b"two").unwrap();
        assert_eq!((fs::read(&at).unwrap().as_slice(), mode_of(&at)), (b"two".as_slice(), 0o640));
        assert_eq!(fs::read_dir(at.parent().unwrap()).unwrap().count(), 1, "no temporary file stays");
        assert_eq!(mode_of(at.parent().unwrap()), 0o755);
    }

    #[test]
    fn a_stale_temporary_file_is_not_in_the_way() {
        let root = tempfile::tempdir().unwrap();
        let files = Files::new(root.path(), "lead");
        fs::write(root.path().join(".x.lead.new"), "half").unwrap();
        files.file("/x", Mode(0o644), us(), b"whole").unwrap();
        assert_eq!(fs::read(root.path().join("x")).unwrap(), b"whole");
        assert!(!root.path().join(".x.lead.new").exists());
    }

    #[test]
    fn a_link_is_put_right_but_a_real_folder_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        let files = Files::new(root.path(), "lead");
        files.link("/view/run", "../elsewhere").unwrap();
        files.link("/view/run", "../config/run").unwrap();
        assert_eq!(fs::read_link(root.path().join("view/run")).unwrap(), Path::new("../config/run"));
        fs::create_dir(root.path().join("view/var")).unwrap();
        files.link("/view/var", "../config/var").unwrap();
        assert!(root.path().join("view/var").symlink_metadata().unwrap().is_dir());
    }

    #[test]
    fn what_stands_in_the_way_is_named_with_a_remedy() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("config"), "a file").unwrap();
        let failure = Files::new(root.path(), "lead").file("/config/R", Mode(0o644), us(), b"").unwrap_err();
        assert!(failure.to_string().contains("config"), "{failure}");
    }
}
