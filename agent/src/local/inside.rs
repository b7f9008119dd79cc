//! Inside the namespaces: process 1 sets up the container's root folder and becomes its entrypoint.
//!
//! ```text
//! ROOT.json ─► folders, mounts below ROOT ─► the machine's read-only ─► ROOT becomes / ─► exec of the agent
//! ```

mod mounts;

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use flux_agent_plan::plan::Owner;
use flux_shared::paths::{AGENT_FILE, TERMINATION_LOG, VIEW_IMAGE_MOUNT};
use nix::mount::{MntFlags, umount2};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;

use super::containers::{Bind, LocalContainer};
use super::run_folder::failed;
use crate::report::failure::{Failure, plain};
use crate::report::log;
use crate::system::below;
use crate::system::identity::Credentials;

/// Reads the container that `file` describes.
pub fn read(file: &Path) -> Result<LocalContainer, Failure> {
    let text = fs::read_to_string(file).map_err(|error| {
        Failure::internal(format!("failed to read {}: {}", file.display(), plain(&error)))
    })?;
    serde_json::from_str(&text)
        .map_err(|error| Failure::internal(format!("failed to understand {}: {error}", file.display())))
}

/// Becomes the container that `file` describes. Returns only if that fails.
pub fn become_container(file: &Path) -> Result<u8, Failure> {
    let container = read(file)?;
    let namespaces = CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS | CloneFlags::CLONE_NEWIPC;
    unshare(namespaces).map_err(|error| {
        failed(
            "create namespaces for",
            Path::new(&container.name()),
            &error.into(),
        )
    })?;
    nix::unistd::sethostname(&container.hostname)
        .map_err(|error| failed("name", Path::new("the host"), &error.into()))?;
    let root = Root {
        path: PathBuf::from(&container.root),
    };
    root.build(&container)?;
    root.enter()?;
    let owner = container.owner.map(|(uid, gid)| Owner { uid, gid });
    // `Credentials::of` gives none if this process has that uid and gid already.
    if let Some(identity) = owner
        .map(|owner| Credentials::of(owner, Path::new("/")))
        .transpose()?
        .flatten()
    {
        identity
            .assume()
            .map_err(|error| failed("run as another user", Path::new(&container.name()), &error))?;
        // With the change of user, the kernel has forgotten that this process dies with `flux-agent local`.
        nix::sys::prctl::set_pdeathsig(Signal::SIGKILL)
            .map_err(|error| failed("set up", Path::new(&container.name()), &error.into()))?;
    }
    // Only now, so that the folder `config`, in which the agent writes files, belongs to the container's user.
    lay_out(&container)?;
    let directory = Path::new(&container.directory);
    let mut command = Command::new(&container.words[0]);
    command
        .args(&container.words[1..])
        .env_clear()
        .envs(&container.environment)
        .current_dir(directory);
    let error = command.exec();
    Err(failed_on_named_path(
        "start in",
        directory,
        &error,
        "create it, or leave workingDir out",
    ))
}

/// Lays out the mount path, as the init containers do in a pod. Only for the container that runs Flux: the pod's
/// sidecars have the same folder at this path.
fn lay_out(container: &LocalContainer) -> Result<(), Failure> {
    if container.sidecar.is_some() {
        return Ok(());
    }
    let (mount, image) = (Path::new(&container.mount_path), Path::new(VIEW_IMAGE_MOUNT));
    // Leaves out the lines of the init containers, but none of the agent that this process becomes.
    log::set_quiet(true);
    if container.view {
        crate::view::link_view(image, mount)?
    } else {
        crate::view::lay_out(mount)?
    }
    crate::install::link(mount, Path::new(AGENT_FILE))
}

/// The folder that becomes the container's root.
struct Root {
    path: PathBuf,
}

impl Root {
    fn at(&self, path: &str) -> PathBuf {
        below(&self.path, path)
    }

    fn build(&self, container: &LocalContainer) -> Result<(), Failure> {
        mounts::make_private().map_err(|error| failed("make private", Path::new("/"), &error))?;
        // `pivot_root` needs a mount point.
        mounts::bind(&self.path, &self.path).map_err(|error| failed("mount", &self.path, &error))?;
        // A folder of the machine in which the container has something of its own cannot be mounted as a whole. Its
        // entries are mounted one by one, apart from such a folder inside it, whose entries are mounted in turn.
        let opened = container.opened();
        let mut separate_paths = container.replaced();
        separate_paths.extend(&opened);
        for folder in &opened {
            self.bind_entries(folder, &|path| separate_paths.contains(path))?;
        }
        for (path, mode) in &container.folders {
            self.make_folder(path, *mode)?;
        }
        for (path, text) in &container.files {
            let to = self.at(path);
            fs::write(&to, text).map_err(|error| Failure::write("write", &to, &error))?;
        }
        let termination_log = self.at(TERMINATION_LOG);
        // The container may run as any user.
        fs::set_permissions(&termination_log, PermissionsExt::from_mode(0o666))
            .map_err(|error| Failure::write("open up", &termination_log, &error))?;
        let mut binds: Vec<&Bind> = container.mounts.iter().collect();
        // Parents first: a later mount on a parent would hide the one in it.
        binds.sort_by_key(|bind| Path::new(&bind.to).components().count());
        for bind in &binds {
            self.bind(bind)?;
        }
        self.mount_kernel_file_systems()?;
        self.protect(container)
    }

    /// Mounts each entry of a folder of the machine at its own path, except those that are set up separately.
    fn bind_entries(&self, folder: &Path, is_separate: &dyn Fn(&Path) -> bool) -> Result<(), Failure> {
        let to = self.at(&folder.to_string_lossy());
        fs::create_dir_all(&to).map_err(|error| Failure::write("create the folder", &to, &error))?;
        // The machine may lack the folder, or not let it be read.
        let Ok(entries) = fs::read_dir(folder) else {
            return Ok(());
        };
        for entry in entries.flatten() {
            let (path, kind) = (entry.path(), entry.file_type());
            if is_separate(&path) {
                continue;
            }
            let to = to.join(entry.file_name());
            // Entries that cannot be mounted or copied (another user's mount, a file in /etc that only root reads) are
            // missing or empty.
            let _ = match kind {
                Ok(kind) if kind.is_symlink() => fs::read_link(&path).and_then(|target| symlink(target, &to)),
                // Copied, since programs replace these files: a mounted one cannot be replaced.
                Ok(kind) if kind.is_file() && folder == Path::new("/etc") => fs::copy(&path, &to).map(drop),
                Ok(kind) => make_mount_point(kind.is_dir(), &to).and_then(|()| mounts::bind(&path, &to)),
                Err(error) => Err(error),
            };
        }
        Ok(())
    }

    fn make_folder(&self, path: &str, mode: u32) -> Result<(), Failure> {
        let to = self.at(path);
        fs::create_dir_all(&to)
            .and_then(|()| fs::set_permissions(&to, PermissionsExt::from_mode(mode)))
            .map_err(|error| Failure::write("create the folder", &to, &error))
    }

    fn bind(&self, bind: &Bind) -> Result<(), Failure> {
        let (from, to) = (Path::new(&bind.from), self.at(&bind.to));
        let data = fs::metadata(from).map_err(|error| {
            failed_on_named_path("find", from, &error, "create it, or leave the volume out")
        })?;
        let parents = to.parent().map_or(Ok(()), fs::create_dir_all);
        parents
            .and_then(|()| {
                if to.exists() {
                    Ok(())
                } else {
                    make_mount_point(data.is_dir(), &to)
                }
            })
            .and_then(|()| mounts::bind(from, &to))
            .map_err(|error| failed("mount", Path::new(&bind.to), &error))
    }

    /// Mounts the kernel's file systems for this container's namespaces.
    fn mount_kernel_file_systems(&self) -> Result<(), Failure> {
        let mount_failed = |path: &str, error: io::Error| failed("mount", Path::new(path), &error);
        mounts::mount_proc(&self.at("/proc")).map_err(|error| mount_failed("/proc", error))?;
        mounts::mount_devpts(&self.at("/dev/pts")).map_err(|error| mount_failed("/dev/pts", error))?;
        mounts::mount_shm(&self.at("/dev/shm")).map_err(|error| mount_failed("/dev/shm", error))?;
        let ptmx = self.at("/dev/ptmx");
        // /dev/ptmx becomes the container's own pts/ptmx: by a mount or, if that fails, by a link.
        let mounted = mounts::bind(&self.at("/dev/pts/ptmx"), &ptmx);
        mounted
            .or_else(|_| symlink("pts/ptmx", &ptmx))
            .map_err(|error| mount_failed("/dev/ptmx", error))
    }

    /// Makes every mount read-only, unless the innermost of the container's `mounts` around it is writable. A failure
    /// is an error only if this runs as the machine's root: a user can change here only what they may change anyway.
    fn protect(&self, container: &LocalContainer) -> Result<(), Failure> {
        let binds: Vec<(PathBuf, bool)> = container
            .mounts
            .iter()
            .map(|bind| (self.at(&bind.to), bind.writable))
            .collect();
        let is_writable = |point: &Path| {
            let around = binds.iter().filter(|(top, _)| point.starts_with(top));
            let innermost = around.max_by_key(|(top, _)| top.components().count());
            innermost.is_some_and(|(_, is_writable)| *is_writable)
        };
        let kernel_mounts = ["/proc", "/dev"].map(|path| self.at(path));
        for mount in
            mounts::below(&self.path).map_err(|error| failed("list", Path::new("the mounts"), &error))?
        {
            // The root folder is the pod's own, and what is below /proc and /dev is the kernel's.
            let stays_writable = mount.point == self.path
                || is_writable(&mount.point)
                || kernel_mounts.iter().any(|top| mount.point.starts_with(top));
            if stays_writable {
                continue;
            }
            if let Err(error) = mount.make_read_only()
                && !maps_one_user()
            {
                return Err(failed("make read-only", &mount.point, &error));
            }
        }
        Ok(())
    }

    /// Makes this folder the root of the file system.
    fn enter(&self) -> Result<(), Failure> {
        let enter = || {
            nix::unistd::chdir(&self.path)?;
            // The old root then lies on the new one, from where `umount2` removes it (pivot_root(2)).
            nix::unistd::pivot_root(".", ".")?;
            umount2(".", MntFlags::MNT_DETACH)?;
            nix::unistd::chdir("/")
        };
        enter().map_err(|error| failed("enter", &self.path, &error.into()))
    }
}

/// Whether the user namespace maps one user only: its root has no more rights than the caller.
fn maps_one_user() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    // The third field is the number of users.
    map.split_whitespace().nth(2) == Some("1")
}

/// The failure of `what` on `path`, which the MiniCluster may name. `remedy`: what to do if the path is missing.
fn failed_on_named_path(what: &str, path: &Path, error: &io::Error, remedy: &str) -> Failure {
    let failure = failed(what, path, error);
    match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Failure {
            remedy: remedy.to_owned(),
            ..failure
        },
        _ => failure,
    }
}

/// Creates an empty folder or file to mount on.
fn make_mount_point(is_folder: bool, at: &Path) -> io::Result<()> {
    if is_folder {
        fs::create_dir(at)
    } else {
        fs::File::create(at).map(drop)
    }
}

/// The failure of a container that did not start.
pub fn not_started(name: &str, error: &io::Error) -> Failure {
    Failure::internal(format!("failed to start {name}: {}", plain(error)))
}
