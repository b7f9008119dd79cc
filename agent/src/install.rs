//! `flux-agent install`: the binary copies itself into a volume of the pod, from where the other containers
//! run it.
//!
//! ```text
//! /proc/self/exe ─► DIR/.flux-agent.new (written in pieces, synced) ─► compared ─► renamed to DIR/flux-agent
//! ```
//!
//! In the operator's pods, no other container may write to that volume. Below the mount path of the volume that the
//! pod's containers share there is a link to the binary (`link`). If the copy is killed at any moment, DIR/flux-agent
//! is the old binary, the whole new one, or missing, and never a part of one.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::files::{Files, create_folders};
use crate::report::failure::Failure;

/// The binary's name in the volume.
pub const NAME: &str = "flux-agent";
/// The binary's permissions: every container's user may run it.
const MODE: u32 = 0o755;
/// Bytes that are written before they are synced, so that dirty pages do not use up a small memory limit.
const PIECE: usize = 1 << 20;

/// What an installation did, with the path of the binary.
#[derive(Debug, PartialEq, Eq)]
pub enum Installed {
    Now(PathBuf),
    /// The same binary was already there.
    Already(PathBuf),
}

/// Copies the running binary to `folder`.
pub fn install(folder: &Path) -> Result<Installed, Failure> {
    copy_to(Path::new("/proc/self/exe"), folder)
}

/// Makes the agent's documented path, below `mount`, a link to `binary`. If one volume holds everything, the binary
/// itself is at this path, and stays.
pub fn link(mount: &Path, binary: &Path) -> Result<(), Failure> {
    Files::new(mount, "install").ensure_link(&format!("/{NAME}"), &binary.to_string_lossy())
}

/// Makes the agent's documented path a link to the binary that is running.
pub fn link_own(mount: &Path) -> Result<(), Failure> {
    match std::env::current_exe() {
        Ok(binary) => link(mount, &binary),
        Err(error) => Err(Failure::internal(format!(
            "failed to find the agent's own binary: {error}"
        ))),
    }
}

fn copy_to(source: &Path, folder: &Path) -> Result<Installed, Failure> {
    create_folders(folder)?;
    let target = folder.join(NAME);
    if is_same(source, &target).unwrap_or(false) && is_runnable(&target) {
        return Ok(Installed::Already(target));
    }
    let temporary = folder.join(format!(".{NAME}.new"));
    let copied = write_copy(source, &temporary)
        .and_then(|()| fs::rename(&temporary, &target))
        .and_then(|()| File::open(folder)?.sync_all());
    match copied {
        Ok(()) => Ok(Installed::Now(target)),
        Err(error) => {
            let _ = fs::remove_file(&temporary);
            Err(Failure::write("install the agent as", &target, &error))
        }
    }
}

fn write_copy(source: &Path, temporary: &Path) -> io::Result<()> {
    match fs::remove_file(temporary) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut from = File::open(source)?;
    let mut to = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600) // `MODE` follows when the copy is complete
        .open(temporary)?;
    let mut piece = vec![0; PIECE];
    loop {
        let count = from.read(&mut piece)?;
        if count == 0 {
            break;
        }
        to.write_all(&piece[..count])?;
        to.sync_data()?;
    }
    to.set_permissions(Permissions::from_mode(MODE))?;
    to.sync_all()?;
    if is_same(source, temporary)? {
        Ok(())
    } else {
        Err(io::Error::other("the copy differs from the original"))
    }
}

fn is_runnable(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o7777 == MODE)
}

fn is_same(one: &Path, other: &Path) -> io::Result<bool> {
    let (mut one, mut other) = (File::open(one)?, File::open(other)?);
    if one.metadata()?.len() != other.metadata()?.len() {
        return Ok(false);
    }
    let (mut one_piece, mut other_piece) = (vec![0; PIECE], vec![0; PIECE]);
    loop {
        let count = one.read(&mut one_piece)?;
        if count == 0 {
            return Ok(true);
        }
        other.read_exact(&mut other_piece[..count])?;
        if one_piece[..count] != other_piece[..count] {
            return Ok(false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_binary_is_copied_once_and_repaired_when_it_differs() {
        let folder = tempfile::tempdir().unwrap();
        let (source, to) = (folder.path().join("source"), folder.path().join("mnt/flux"));
        fs::write(&source, vec![7; 3 * PIECE + 5]).unwrap();
        let target = to.join(NAME);
        assert_eq!(copy_to(&source, &to).unwrap(), Installed::Now(target.clone()));
        assert_eq!(copy_to(&source, &to).unwrap(), Installed::Already(target.clone()));
        fs::write(&target, vec![7; 3 * PIECE + 4]).unwrap();
        fs::write(to.join(".flux-agent.new"), "left over").unwrap();
        assert_eq!(copy_to(&source, &to).unwrap(), Installed::Now(target.clone()));
        fs::set_permissions(&target, Permissions::from_mode(0o644)).unwrap();
        assert_eq!(copy_to(&source, &to).unwrap(), Installed::Now(target.clone()));
        assert!(is_same(&source, &target).unwrap() && is_runnable(&target));
        assert_eq!(fs::read_dir(&to).unwrap().count(), 1);
    }
}
