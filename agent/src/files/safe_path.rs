//! Opens a folder step by step and follows a symbolic link only if root or the agent owns it: root must not be led
//! elsewhere by a link of another user.
//!
//! Root writes below folders that others may write to (a directory of Flux's user, a volume). By such a link it would write
//! to, or give away, what is somebody else's.
//!
//! Not cap-std: it asks where a link leads, not whose it is, and follows no absolute one, though images have such of
//! root's.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path};

use rustix::fs::{self, AtFlags, FileType, Mode, OFlags, ResolveFlags};

/// Links followed before it counts as a loop, as the kernel has it.
pub const MAX_LINKS: usize = 40;
const FOLDER: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Opens the folder `path`. `make`: creates what is missing of it, with mode 0755 whatever the umask.
pub fn open(path: &Path, make: bool) -> io::Result<OwnedFd> {
    // Without links one call is enough. (It fails at a link, and in a kernel or sandbox that does not know openat2.)
    let whole = fs::openat2(fs::CWD, path, FOLDER | OFlags::DIRECTORY, Mode::empty(), ResolveFlags::NO_SYMLINKS);
    if let Ok(folder) = whole {
        return Ok(folder);
    }
    let mut left = components(path);
    let mut here = fs::open(if path.is_absolute() { "/" } else { "." }, FOLDER, Mode::empty())?;
    let mut links = 0;
    while let Some(name) = left.pop() {
        let next = match fs::openat(&here, &name, FOLDER, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) if make => make_folder(&here, &name)?,
            next => next?,
        };
        let data = fs::fstat(&next)?;
        match FileType::from_raw_mode(data.st_mode) {
            FileType::Symlink => {
                links += 1;
                if links > MAX_LINKS {
                    return Err(io::Error::from_raw_os_error(libc::ELOOP));
                }
                if data.st_uid != 0 && data.st_uid != rustix_uid() {
                    let name = name.to_string_lossy();
                    return Err(io::Error::other(format!("the link {name} on the way belongs to uid {}", data.st_uid)));
                }
                let target = OsString::from_vec(fs::readlinkat(&here, &name, Vec::new())?.into_bytes());
                if Path::new(&target).is_absolute() {
                    here = fs::open("/", FOLDER, Mode::empty())?;
                }
                left.extend(components(Path::new(&target)));
            }
            FileType::Directory => here = next,
            _ => return Err(io::Error::from_raw_os_error(libc::ENOTDIR)),
        }
    }
    Ok(here)
}

fn rustix_uid() -> u32 {
    nix::unistd::geteuid().as_raw()
}

fn make_folder(here: &OwnedFd, name: &OsStr) -> io::Result<OwnedFd> {
    match fs::mkdirat(here, name, Mode::from_raw_mode(0o755)) {
        Err(rustix::io::Errno::EXIST) => Ok(fs::openat(here, name, FOLDER, Mode::empty())?),
        Err(error) => Err(error.into()),
        Ok(()) => {
            let made = fs::openat(here, name, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
            fs::fchmod(&made, Mode::from_raw_mode(0o755))?;
            Ok(made)
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
