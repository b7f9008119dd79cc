//! Opens a folder step by step. Root follows a symbolic link only if the link and its folder belong to root
//! and nobody else may write to that folder: another user must not be able to lead root elsewhere.
//!
//! Root writes below folders that others may write to (a directory of Flux's user, a volume). By another user's link,
//! it would write to somebody else's files, or give them away. An agent that is not root follows its own links and
//! root's.
//!
//! cap-std is not used: it checks where a link leads and not who owns it, and it follows no absolute links, which
//! root's links in images may be.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags};

/// Most links of one path, as in the kernel. More than these count as a loop.
pub const MAX_LINKS: usize = 40;
/// Flags that open a file of any kind, without following a link.
const OPEN_FLAGS: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens the folder `path`. `create`: missing folders are created, with mode 0755 regardless of the umask.
pub fn open(path: &Path, create: bool) -> io::Result<OwnedFd> {
    // Without links one call is enough. (It fails at a link, and in a kernel or sandbox that does not know
    // openat2.)
    let whole = fs::openat2(
        fs::CWD,
        path,
        OPEN_FLAGS | OFlags::DIRECTORY,
        Mode::empty(),
        ResolveFlags::NO_SYMLINKS,
    );
    match whole {
        Ok(folder) => Ok(folder),
        Err(_) => walk(path, create).map(|walked| walked.folder),
    }
}

/// A folder that was reached step by step.
#[derive(Debug)]
pub struct Walked {
    pub folder: OwnedFd,
    /// Its path without links.
    pub path: PathBuf,
    /// Whether nobody but root (and the agent) can put another folder in its place.
    pub is_fixed: bool,
}

/// Opens the folder `path` step by step. `create`: as for [`open`].
pub fn walk(path: &Path, create: bool) -> io::Result<Walked> {
    let mut remaining = components(path);
    let start = if path.is_absolute() { "/" } else { "." };
    let mut here = Walked {
        folder: fs::open(start, OPEN_FLAGS, Mode::empty())?,
        path: start.into(),
        is_fixed: true,
    };
    let mut links = 0;
    while let Some(name) = remaining.pop() {
        let next = match fs::openat(&here.folder, &name, OPEN_FLAGS, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) if create => make_folder(&here.folder, &name)?,
            next => next?,
        };
        let data = fs::fstat(&next)?;
        match FileType::from_raw_mode(data.st_mode) {
            FileType::Symlink => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(io::Error::from_raw_os_error(libc::ELOOP));
                }
                // For root, this checks that nobody else can replace the link. So `is_fixed` stays.
                check_link(&here.folder, &name, &data)?;
                let target =
                    OsString::from_vec(fs::readlinkat(&here.folder, &name, Vec::new())?.into_bytes());
                if Path::new(&target).is_absolute() {
                    here.folder = fs::open("/", OPEN_FLAGS, Mode::empty())?;
                    here.path = "/".into();
                }
                remaining.extend(components(Path::new(&target)));
            }
            FileType::Directory => {
                let above = fs::fstat(&here.folder)?;
                // In a sticky folder of root's, such as /tmp, others cannot replace what belongs to root.
                let is_sticky = above.st_mode & 0o1000 != 0 && above.st_uid == 0 && data.st_uid == 0;
                here.is_fixed &= is_safe_folder(&above) || is_sticky;
                here.folder = next;
                if name == ".." {
                    here.path.pop();
                } else {
                    here.path.push(&name);
                }
            }
            _ => return Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
        }
    }
    Ok(here)
}

/// Fails unless the link `name` in `folder` may be followed.
fn check_link(folder: &OwnedFd, name: &OsStr, link: &fs::Stat) -> io::Result<()> {
    let name = name.to_string_lossy();
    if link.st_uid != 0 && link.st_uid != effective_uid() {
        return Err(io::Error::other(format!(
            "the link {name} on the way belongs to uid {}",
            link.st_uid
        )));
    }
    if effective_uid() == 0 && !is_safe_folder(&fs::fstat(folder)?) {
        return Err(io::Error::other(format!(
            "others than root may write to the folder of the link {name} on the way"
        )));
    }
    Ok(())
}

/// Whether the folder belongs to root or the agent's user, and nobody else may write to it.
fn is_safe_folder(folder: &fs::Stat) -> bool {
    (folder.st_uid == 0 || folder.st_uid == effective_uid()) && folder.st_mode & 0o022 == 0
}

fn effective_uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

/// Creates the folder `name` in `here` with mode 0755 regardless of the umask, if it is missing, and opens it.
fn make_folder(here: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    match fs::mkdirat(here, name, Mode::from_raw_mode(0o755)) {
        Err(rustix::io::Errno::EXIST) => Ok(fs::openat(here, name, OPEN_FLAGS, Mode::empty())?),
        Err(error) => Err(error.into()),
        Ok(()) => {
            // fchmod refuses a descriptor with O_PATH.
            let created = fs::openat(
                here,
                name,
                OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC,
                Mode::empty(),
            )?;
            fs::fchmod(&created, Mode::from_raw_mode(0o755))?;
            Ok(created)
        }
    }
}

/// The status of `name` in `folder`, of a link itself rather than its target; none if there is no such entry.
pub fn stat(folder: &OwnedFd, name: &OsStr) -> io::Result<Option<fs::Stat>> {
    match fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW) {
        Err(rustix::io::Errno::NOENT) => Ok(None),
        data => Ok(Some(data?)),
    }
}

/// Removes the file `name`, if there is one.
pub fn remove(folder: &OwnedFd, name: &OsStr) -> io::Result<()> {
    match fs::unlinkat(folder, name, AtFlags::empty()) {
        Err(rustix::io::Errno::NOENT) => Ok(()),
        removed => Ok(removed?),
    }
}

/// The components of a path, last first; `.` and the root left out.
pub fn components(path: &Path) -> Vec<OsString> {
    let names = path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        _ => None,
    });
    names.collect::<Vec<_>>().into_iter().rev().collect()
}
