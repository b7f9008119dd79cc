//! Changes the owners of files and folders. Every change is made by `give`.
//!
//! ```text
//! a descriptor ─ just created by the agent ────────────────────────────────────► fchown
//!              └ found ─ `/` or one of the system's directories ───► refused, except to root
//!                      ├ on a volume, and does not belong to root ─► refused, except to root
//!                      ├ perhaps moved there by another user ──────► refused, except to root
//!                      └ any other ────────────────────────────────────────────► fchown, without its contents
//! ```
//!
//! A user who owns one of the system's directories can become root in the pod: they can replace programs that root
//! runs.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use flux_agent_plan::owner::Owner;
use rustix::fs::{AtFlags, Gid, Stat, Uid, chownat, fstat};

use super::safe_path::Walked;
use crate::report::failure::plain;
use crate::system::mount_table;

/// The system's directories: these and everything below them, except `USERS_DIRECTORY`.
const SYSTEM_DIRECTORIES: [&str; 16] = [
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/media", "/proc", "/root",
    "/run", "/sbin", "/sys", "/usr", "/var",
];
/// The only directory below these that is not the system's.
const USERS_DIRECTORY: &str = "/var/tmp";

/// The file or folder that changes its owner.
#[derive(Debug, Clone, Copy)]
pub enum Subject<'a> {
    /// The agent has just created it.
    Created,
    /// A folder that existed already.
    Found(&'a Walked),
}

/// Gives the file or folder of `descriptor` to `owner`, but not the contents of the folder.
pub fn give(descriptor: impl AsFd, subject: Subject, owner: Owner) -> io::Result<()> {
    if needs_change(&descriptor, subject, owner)? {
        // With an empty path, this is an fchown that also works for descriptors opened with O_PATH.
        chownat(
            descriptor,
            "",
            Some(Uid::from_raw(owner.uid)),
            Some(Gid::from_raw(owner.gid)),
            AtFlags::EMPTY_PATH,
        )?;
    }
    Ok(())
}

/// Whether the owner has to change. Fails if it must not change: then the caller must not change the mode either.
pub fn needs_change(descriptor: impl AsFd, subject: Subject, owner: Owner) -> io::Result<bool> {
    let data = fstat(&descriptor)?;
    if (data.st_uid, data.st_gid) == (owner.uid, owner.gid) {
        return Ok(false);
    }
    // Root may get any folder: the rules only keep folders from other users.
    if let Subject::Found(walked) = subject
        && owner.uid != 0
        && let Some(why) = reason_to_keep(&data, walked)?
    {
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(true)
}

/// Why a folder that was found keeps its owner. It is one of the system's directories. Or it is on a volume and does
/// not belong to root: a new volume does, so somebody has chosen this owner. Or another user could have moved it to
/// this path: then it may be private, unless it is root's and everybody may read it.
fn reason_to_keep(data: &Stat, walked: &Walked) -> io::Result<Option<String>> {
    let path = &walked.path;
    if is_of_the_system(path) {
        return Ok(Some(format!(
            "{} is one of the system's directories, which stay root's",
            path.display()
        )));
    }
    let is_roots = (data.st_uid, data.st_gid) == (0, 0);
    if !is_roots {
        let mounts = mount_table::read().map_err(|error| {
            let why = format!("failed to read the table of mounts: {}", plain(&error));
            io::Error::new(error.kind(), why)
        })?;
        if is_on_volume(&mounts, path) {
            return Ok(Some(format!(
                "it is on a volume and belongs to uid {}, gid {}",
                data.st_uid, data.st_gid
            )));
        }
    }
    let is_open_to_all = is_roots && data.st_mode & 0o005 == 0o005;
    if !walked.is_fixed && !is_open_to_all {
        let why = "it is not open to all, and others may write to a folder on the way";
        return Ok(Some(why.into()));
    }
    Ok(None)
}

/// Whether `path` is in a mount that is not the root's, by the table of mounts.
fn is_on_volume(mounts: &[u8], path: &Path) -> bool {
    let mut points = mount_table::entries(mounts).map(|entry| entry.point);
    points.any(|point| point != Path::new("/") && path.starts_with(point))
}

/// Whether the path, which has no links, is `/` or one of the system's directories.
pub fn is_of_the_system(path: &Path) -> bool {
    let is_below_one = SYSTEM_DIRECTORIES.iter().any(|folder| path.starts_with(folder));
    path == Path::new("/") || (is_below_one && !path.starts_with(USERS_DIRECTORY))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::safe_path;

    #[test]
    fn system_directories_are_told_from_those_for_data() {
        for path in [
            "/",
            "/etc",
            "/etc/cron.d",
            "/usr/local/app",
            "/lib64",
            "/libx32/a",
            "/var",
            "/var/lib/x",
            "/root",
            "/run",
        ] {
            assert!(is_of_the_system(Path::new(path)), "{path}");
        }
        for path in [
            "/home/flux",
            "/opt/app",
            "/srv",
            "/tmp/x",
            "/var/tmp/x",
            "/mnt/flux",
            "/data",
            "/work/run",
            "/etcetera",
        ] {
            assert!(!is_of_the_system(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn found_system_directory_is_refused_and_created_one_is_given() {
        let folder = tempfile::tempdir().unwrap();
        let walked = safe_path::walk(folder.path(), false).unwrap();
        let open = std::fs::File::open(folder.path()).unwrap();
        let of_the_system = Walked {
            path: "/usr/src".into(),
            ..walked
        };
        let found = Subject::Found(&of_the_system);
        let owner = Owner { uid: 1002, gid: 1002 };
        let error = give(&open, found, owner).unwrap_err();
        assert!(
            error
                .to_string()
                .contains("/usr/src is one of the system's directories"),
            "{error}"
        );
        give(&open, Subject::Created, owner).expect("this test runs as root");
        give(&open, found, owner).expect("it is theirs already");
        give(&open, found, Owner { uid: 0, gid: 0 }).expect("root takes it back");
    }

    #[test]
    fn only_paths_below_a_mount_point_are_on_a_volume() {
        let mounts =
            b"22 1 0:21 / / rw - overlay overlay rw\n23 22 8:1 /x /data/my\\040files rw - ext4 /dev/sda rw\n";
        assert!(is_on_volume(mounts, Path::new("/data/my files/deep")));
        assert!(!is_on_volume(mounts, Path::new("/data/my")) && !is_on_volume(mounts, Path::new("/opt")));
    }
}
