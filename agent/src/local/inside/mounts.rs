//! The mounts of one mount namespace.

use std::io;
use std::path::{Path, PathBuf};

use nix::mount::{MsFlags, mount};

use crate::system::mount_table;

/// A missing argument of `mount`.
const NONE: Option<&str> = None;

/// Makes all mounts private, so that later mounts are seen in no other namespace.
pub fn make_private() -> io::Result<()> {
    Ok(mount(
        NONE,
        "/",
        NONE,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        NONE,
    )?)
}

/// Mounts a folder (with all that is mounted in it) or a file at another path.
pub fn bind(from: &Path, to: &Path) -> io::Result<()> {
    Ok(mount(
        Some(from),
        to,
        NONE,
        MsFlags::MS_BIND | MsFlags::MS_REC,
        NONE,
    )?)
}

const PROC_FLAGS: MsFlags = MsFlags::MS_NOSUID
    .union(MsFlags::MS_NODEV)
    .union(MsFlags::MS_NOEXEC);

pub fn mount_proc(to: &Path) -> io::Result<()> {
    Ok(mount(Some("proc"), to, Some("proc"), PROC_FLAGS, NONE)?)
}

pub fn mount_devpts(to: &Path) -> io::Result<()> {
    let options = Some("newinstance,ptmxmode=0666,mode=0620");
    Ok(mount(
        Some("devpts"),
        to,
        Some("devpts"),
        MsFlags::MS_NOSUID | MsFlags::MS_NOEXEC,
        options,
    )?)
}

pub fn mount_shm(to: &Path) -> io::Result<()> {
    Ok(mount(
        Some("shm"),
        to,
        Some("tmpfs"),
        MsFlags::MS_NOSUID | MsFlags::MS_NODEV,
        Some("mode=1777"),
    )?)
}

/// A mount, and the flags that it has.
#[derive(Debug)]
pub struct Mounted {
    pub point: PathBuf,
    flags: MsFlags,
}

impl Mounted {
    /// Remounts the mount read-only. Its flags are kept, since only the machine's root may remove one.
    pub fn make_read_only(&self) -> io::Result<()> {
        let flags = self.flags | MsFlags::MS_RDONLY | MsFlags::MS_REMOUNT | MsFlags::MS_BIND;
        Ok(mount(NONE, &self.point, NONE, flags, NONE)?)
    }
}

/// The mounts at `top` and below it.
pub fn below(top: &Path) -> io::Result<Vec<Mounted>> {
    let table = mount_table::read()?;
    Ok(mount_table::below(&table, top)
        .map(|entry| Mounted {
            flags: flags(entry.options),
            point: entry.point,
        })
        .collect())
}

/// The flags for the options of a mount, such as `rw,nosuid`: those that only the machine's root may remove. `ro` is
/// left out, since `make_read_only` sets that flag anyway.
fn flags(options: &str) -> MsFlags {
    let known = [
        ("nosuid", MsFlags::MS_NOSUID),
        ("nodev", MsFlags::MS_NODEV),
        ("noexec", MsFlags::MS_NOEXEC),
        ("noatime", MsFlags::MS_NOATIME),
        ("nodiratime", MsFlags::MS_NODIRATIME),
        ("relatime", MsFlags::MS_RELATIME),
    ];
    let given: Vec<&str> = options.split(',').collect();
    known
        .into_iter()
        .filter(|(name, _)| given.contains(name))
        .map(|(_, flag)| flag)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_that_a_mount_has_are_kept() {
        assert_eq!(
            flags("ro,nosuid,relatime"),
            MsFlags::MS_NOSUID | MsFlags::MS_RELATIME
        );
    }
}
