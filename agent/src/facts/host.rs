//! The files of a host, below a root directory.
//!
//! Absolute links are followed from this root. cap-std rejects such links. openat2 can follow them (RESOLVE_IN_ROOT),
//! but not every kernel or sandbox knows it.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::unistd::{AccessFlags, access};

use crate::files::safe_path::{MAX_LINKS, components};
use crate::system::identity::Credentials;

/// A host's files, below a root.
#[derive(Debug)]
pub struct HostFiles {
    root: PathBuf,
}

impl HostFiles {
    pub fn new(root: &Path) -> HostFiles {
        HostFiles {
            root: root.to_owned(),
        }
    }

    /// The path of the absolute `path` on this system, with its links followed inside the root. None: too many links.
    pub fn real(&self, path: &str) -> Option<PathBuf> {
        if self.root == Path::new("/") {
            // The kernel follows links itself. This saves two hundred system calls in a pod.
            return Some(self.root.join(path));
        }
        // The components that are left to follow, the next one at the end.
        let mut left = components(Path::new(path));
        let mut inside = PathBuf::new();
        let mut links = 0;
        while let Some(name) = left.pop() {
            if name == ".." {
                inside.pop();
                continue;
            }
            let next = inside.join(&name);
            match std::fs::read_link(self.root.join(&next)) {
                Ok(target) => {
                    links += 1;
                    if links > MAX_LINKS {
                        return None;
                    }
                    if target.is_absolute() {
                        inside = PathBuf::new();
                    }
                    left.extend(components(&target));
                }
                Err(_) => inside = next,
            }
        }
        Some(self.root.join(inside))
    }

    /// The absolute path of an existing file, as this host's processes see it, with all links followed.
    pub fn without_links(&self, path: &str) -> Option<String> {
        let real = std::fs::canonicalize(self.real(path)?).ok()?;
        let root = std::fs::canonicalize(&self.root).ok()?;
        Some(format!("/{}", real.strip_prefix(root).ok()?.to_str()?))
    }

    /// The target that is written in a link; none if there is no such link. The folders above it must not be links.
    pub fn link_target(&self, path: &str) -> Option<String> {
        let target = std::fs::read_link(self.root.join(path.trim_start_matches('/'))).ok()?;
        target.into_os_string().into_string().ok()
    }

    pub fn exists(&self, path: &str) -> bool {
        self.real(path).is_some_and(|path| path.exists())
    }

    /// Like [`HostFiles::exists`], but true if it is not known, as in a folder that this process may not search. (On
    /// NFS, root may be denied what the file's owner is not.)
    pub fn may_exist(&self, path: &str) -> bool {
        self.real(path)
            .is_some_and(|path| path.try_exists().unwrap_or(true))
    }

    pub fn is_executable(&self, path: &str) -> bool {
        self.real(path)
            .is_some_and(|path| path.is_file() && access(&path, AccessFlags::X_OK).is_ok())
    }

    /// Whether both paths lead to the same file.
    pub fn is_same(&self, one: &str, other: &str) -> bool {
        let file = |path: &str| {
            std::fs::metadata(self.real(path)?)
                .ok()
                .map(|data| (data.dev(), data.ino()))
        };
        file(one).is_some_and(|one| file(other) == Some(one))
    }

    pub fn is_writable(&self, path: &str) -> bool {
        self.real(path)
            .is_some_and(|path| access(&path, AccessFlags::W_OK).is_ok())
    }

    /// Whether Flux may create files in a folder; `user`: the user that it runs as, unless this is the agent's.
    pub fn is_writable_by(&self, user: Option<&Credentials>, path: &str) -> bool {
        let folder = || std::fs::metadata(self.real(path)?).ok();
        // The first condition also finds a read-only file system.
        self.is_writable(path)
            && user.is_none_or(|user| folder().is_some_and(|folder| user.may_create_in(&folder)))
    }

    /// A file's text; none if it can't be read. Bytes that are no UTF-8 are replaced.
    pub fn text(&self, path: &str) -> Option<String> {
        let bytes = std::fs::read(self.real(path)?).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// A file's modification time in seconds since 1970, and its size in bytes.
    pub fn time_and_size(&self, path: &str) -> Option<(i64, u64)> {
        std::fs::metadata(self.real(path)?)
            .ok()
            .map(|data| (data.mtime(), data.size()))
    }

    /// The first 16 bytes of a file, the size of a .pyc file's header (`python.rs`); none if it has fewer.
    pub fn head(&self, path: &str) -> Option<[u8; 16]> {
        use std::io::Read;
        let mut head = [0; 16];
        std::fs::File::open(self.real(path)?)
            .ok()?
            .read_exact(&mut head)
            .ok()?;
        Some(head)
    }

    /// The names in a directory, sorted; empty if it can't be read.
    pub fn names(&self, path: &str) -> Vec<String> {
        let Some(entries) = self.real(path).and_then(|path| std::fs::read_dir(path).ok()) else {
            return Vec::new();
        };
        let mut names: Vec<String> = entries
            .flatten()
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// The uid that owns each folder in a directory, by the folder's path. Links are left out.
    pub fn folder_owners(&self, path: &str) -> BTreeMap<String, u32> {
        let Some(entries) = self.real(path).and_then(|path| std::fs::read_dir(path).ok()) else {
            return BTreeMap::new();
        };
        entries
            .flatten()
            .filter_map(|entry| {
                let data = entry.metadata().ok().filter(std::fs::Metadata::is_dir)?;
                let name = entry.file_name();
                Some((format!("{path}/{}", name.to_string_lossy()), data.uid()))
            })
            .collect()
    }

    /// The first executable file `program` in the absolute folders of `path`, a PATH. (The crate `which` looks below
    /// a root only with an own implementation of its trait `Sys`: eleven methods in place of these lines.)
    pub fn which(&self, program: &str, path: &str) -> Option<String> {
        path.split(':')
            .filter(|folder| folder.starts_with('/'))
            .map(|folder| format!("{}/{program}", folder.trim_end_matches('/')))
            .find(|candidate| self.is_executable(candidate))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn path_in_a_closed_folder_may_exist() {
        let test = "facts::host::tests::path_in_a_closed_folder_may_exist";
        crate::testing::alone(test, |folder| {
            let closed = folder.join("closed");
            std::fs::create_dir_all(closed.join("home")).unwrap();
            std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).unwrap();
            crate::testing::become_user(43_211, folder);
            let host = HostFiles::new(folder);
            assert!(!host.exists("/closed/home") && host.may_exist("/closed/home"));
            assert!(host.may_exist("/closed") && !host.may_exist("/gone/home"));
        });
    }

    #[test]
    fn absolute_links_stay_inside_the_root() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        std::fs::create_dir_all(at("opt/software/bin")).unwrap();
        std::fs::create_dir_all(at("mnt/view")).unwrap();
        std::fs::write(at("opt/software/bin/flux"), "#!").unwrap();
        std::fs::set_permissions(at("opt/software/bin/flux"), PermissionsExt::from_mode(0o755)).unwrap();
        symlink("/opt/software/bin", at("mnt/view/bin")).unwrap();
        symlink("loop", at("mnt/loop")).unwrap();
        symlink("../../opt/software/gone", at("mnt/view/gone")).unwrap();

        let host = HostFiles::new(root.path());
        assert!(host.is_executable("/mnt/view/bin/flux"));
        assert!(!host.exists("/mnt/loop") && !host.exists("/mnt/view/gone"));
        assert_eq!(
            host.which("flux", "relative:/bin:/mnt/view/bin/").as_deref(),
            Some("/mnt/view/bin/flux")
        );
        assert_eq!(host.names("/mnt/view/bin"), ["flux"]);
        assert_eq!(host.text("/mnt/view/bin/flux").as_deref(), Some("#!"));
    }
}
