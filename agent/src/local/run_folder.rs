//! The folder of a run, with the root folders and the files of its pods. Its path follows from the MiniCluster's name.
//!
//! ```text
//! $TMPDIR/flux-local-UID-NAME/lock
//!                            /curve.cert
//!                            /volumes/CLAIM
//!                            /pods/INDEX/{spec.toml,curve.cert,pid,flux,root,root.json,volumes/KEY}
//!                            /pods/INDEX/{sidecar-NAME,sidecar-NAME.json}
//! ```
//!
//! KEY is an emptyDir volume's name, its medium and its size limit. `flux` is mounted at the mount path. A JSON file
//! describes the container whose root folder has this name.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use flux_shared::exit::Category;
use nix::fcntl::{Flock, FlockArg};

use super::containers::{Arrangement, Bind, LocalContainer, run_folder_mounts};
use crate::report::failure::{Failure, plain};
use crate::system::mount_table;

/// The folder of a MiniCluster's run, which may not exist.
#[derive(Debug)]
pub struct RunFolder {
    folder: PathBuf,
}

/// The folder, locked by this run.
#[derive(Debug)]
pub struct LockedRunFolder {
    folder: PathBuf,
    /// Held during the whole run.
    _lock: Flock<File>,
}

impl RunFolder {
    pub fn of(name: &str) -> Result<RunFolder, Failure> {
        let base = std::env::temp_dir();
        let base = fs::canonicalize(&base).map_err(|error| Failure::write("find", &base, &error))?;
        Ok(RunFolder {
            folder: base.join(format!("flux-local-{}-{name}", nix::unistd::geteuid())),
        })
    }

    /// The folder, if a run is in progress in it.
    pub fn running(&self) -> Option<&Path> {
        let lock = OpenOptions::new()
            .read(true)
            .open(self.folder.join("lock"))
            .ok()?;
        // A lock that cannot be taken is held by the run.
        if self.is_private().ok()? && Flock::lock(lock, FlockArg::LockExclusiveNonblock).is_err() {
            Some(&self.folder)
        } else {
            None
        }
    }

    /// Creates the folder if it is missing, locks it, and removes the pods and volumes of an earlier run.
    pub fn take(self) -> Result<LockedRunFolder, Failure> {
        let failed = |error: io::Error| Failure::write("create the folder", &self.folder, &error);
        match DirBuilder::new().mode(0o700).create(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                if !self.is_private().map_err(failed)? {
                    return Err(self.not_private());
                }
            }
            result => result.map_err(failed)?,
        }
        let lock = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(self.folder.join("lock"));
        let lock = Flock::lock(lock.map_err(failed)?, FlockArg::LockExclusiveNonblock).map_err(|_| {
            let cause = format!(
                "failed to use {}: a run is in progress there",
                self.folder.display()
            );
            Failure::new(
                Category::Internal,
                cause,
                "end that run first, or give this MiniCluster another name",
            )
        })?;
        let run_folder = LockedRunFolder {
            folder: self.folder,
            _lock: lock,
        };
        run_folder.clear()?;
        Ok(run_folder)
    }

    /// Whether the folder belongs to this user and nobody else may use it: anybody may create it, since it is in the
    /// folder for temporary files.
    fn is_private(&self) -> io::Result<bool> {
        let data = fs::symlink_metadata(&self.folder)?;
        Ok(data.is_dir() && data.uid() == nix::unistd::geteuid().as_raw() && data.mode() & 0o077 == 0)
    }

    fn not_private(&self) -> Failure {
        let cause = format!(
            "failed to use {}: it is not a folder that only you may enter",
            self.folder.display()
        );
        Failure::new(
            Category::WriteFailed,
            cause,
            "remove it, or set TMPDIR to another folder",
        )
    }
}

/// The folder of a pod in the run's folder.
pub fn pod_folder(folder: &Path, index: u32) -> PathBuf {
    folder.join(format!("pods/{index}"))
}

/// The file with the pid of the first process of a pod's container that runs Flux, for `local --shell`. It exists only
/// while that process does: then the kernel may give the number to another one.
pub fn pid_file(folder: &Path, index: u32) -> PathBuf {
    pod_folder(folder, index).join("pid")
}

impl LockedRunFolder {
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// The path of the certificate, which may not exist yet.
    pub fn certificate(&self) -> PathBuf {
        self.folder.join("curve.cert")
    }

    /// Creates the folders and files of all containers, and notes their paths in the arrangement.
    pub fn prepare(&self, arrangement: &mut Arrangement) -> Result<(), Failure> {
        let spec = arrangement
            .spec
            .to_toml()
            .map_err(|error| Failure::internal(format!("failed to write the spec: {error}")))?;
        let has_certificate = arrangement.needs_certificate();
        for container in &mut arrangement.containers {
            let pod = pod_folder(&self.folder, container.index);
            let root = pod.join(
                container
                    .sidecar
                    .as_ref()
                    .map_or("root".into(), |name| format!("sidecar-{name}")),
            );
            for folder in [root.clone(), pod.join("flux")] {
                make(&folder, 0o755)?;
            }
            write(&pod.join("spec.toml"), &spec)?;
            container.root = text(&root);
            container.mounts.extend(run_folder_mounts(
                &text(&pod),
                &container.mount_path,
                has_certificate && container.sidecar.is_none(),
            ));
            for (path, folder) in std::mem::take(&mut container.volumes) {
                // The containers may run as any user.
                let volume = self.folder.join(folder);
                make(&volume, 0o777)?;
                container.mounts.push(Bind {
                    from: text(&volume),
                    to: path,
                    writable: true,
                });
            }
        }
        Ok(())
    }

    /// Copies the certificate for each pod.
    pub fn copy_certificate(&self, containers: &[LocalContainer]) -> Result<(), Failure> {
        for container in containers.iter().filter(|container| container.sidecar.is_none()) {
            let certificate = pod_folder(&self.folder, container.index).join("curve.cert");
            fs::copy(self.certificate(), &certificate)
                .and_then(|_| fs::set_permissions(&certificate, PermissionsExt::from_mode(0o400)))
                .map_err(|error| Failure::write("write", &certificate, &error))?;
        }
        Ok(())
    }

    /// Gives each pod's folder `flux`, and its certificate if it has one, to the user that the container runs as.
    pub fn hand_out(&self, containers: &[LocalContainer]) -> Result<(), Failure> {
        for container in containers.iter().filter(|container| container.sidecar.is_none()) {
            let Some((uid, gid)) = container.owner else {
                continue;
            };
            let pod = pod_folder(&self.folder, container.index);
            let paths = [pod.join("curve.cert"), pod.join("flux")];
            for path in paths.iter().filter(|path| path.exists()) {
                std::os::unix::fs::chown(path, Some(uid), Some(gid))
                    .map_err(|error| Failure::write("give away", path, &error))?;
            }
        }
        Ok(())
    }

    /// Removes the whole folder. Fails if something is mounted in it, since files of the machine would be removed.
    pub fn remove(self) -> Result<(), Failure> {
        self.clear()?;
        fs::remove_dir_all(&self.folder).map_err(|error| Failure::write("remove", &self.folder, &error))
    }

    /// Removes the pods and volumes in the folder.
    fn clear(&self) -> Result<(), Failure> {
        let table = mount_table::read().map_err(|error| failed("list", Path::new("the mounts"), &error))?;
        if mount_table::below(&table, &self.folder).next().is_some() {
            let cause = format!(
                "failed to clear {}: something is mounted in it",
                self.folder.display()
            );
            return Err(Failure::new(Category::WriteFailed, cause, "unmount it first"));
        }
        for name in ["pods", "volumes"] {
            let folder = self.folder.join(name);
            grant_owner_access(&folder);
            match fs::remove_dir_all(&folder) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(Failure::write("remove", &folder, &error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Gives the owner access to all folders: without it they cannot be removed.
fn grant_owner_access(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let _ = fs::set_permissions(entry.path(), PermissionsExt::from_mode(0o700));
            grant_owner_access(&entry.path());
        }
    }
}

fn make(folder: &Path, mode: u32) -> Result<(), Failure> {
    fs::create_dir_all(folder)
        .and_then(|()| fs::set_permissions(folder, PermissionsExt::from_mode(mode)))
        .map_err(|error| Failure::write("create the folder", folder, &error))
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    fs::write(path, text).map_err(|error| Failure::write("write", path, &error))
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The failure of `what` (such as "mount") on `path`, probably because the kernel does not let this user do it.
pub fn failed(what: &str, path: &Path, error: &io::Error) -> Failure {
    let cause = format!("failed to {what} {}: {}", path.display(), plain(error));
    Failure::new(
        Category::Internal,
        cause,
        "run it as root, or on a kernel that lets users create namespaces",
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn run_folder_that_others_may_enter_is_refused_with_a_remedy() {
        let base = tempfile::tempdir().unwrap();
        let at = |name: &str| base.path().join(name);
        make(&at("private"), 0o700).unwrap();
        make(&at("open"), 0o755).unwrap();
        write(&at("file"), "").unwrap();
        symlink(at("private"), at("link")).unwrap();
        for name in ["open", "file", "link"] {
            let failure = RunFolder { folder: at(name) }.take().unwrap_err();
            assert_eq!(
                failure.sentences(),
                format!(
                    "failed to use {}: it is not a folder that only you may enter. \
                     Remove it, or set TMPDIR to another folder.",
                    at(name).display()
                )
            );
        }
        for name in ["private", "new"] {
            RunFolder { folder: at(name) }.take().unwrap();
        }
    }
}
