//! Changes of ownership: all of them, in one function.
//!
//! ```text
//! a descriptor ─ made by the agent a moment ago ────────────────────────────────► fchown
//!              └ found ─ `/` or one of the system's directories ─► refused
//!                      └ elsewhere (an application's, a volume's) ─────────────► fchown; never what is in it
//! ```
//!
//! Whoever owns one of the system's directories is root in the pod sooner or later: they may replace what root runs.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use flux_agent_plan::owner::Owner;
use rustix::fs::{AtFlags, Gid, Uid, chownat, fstat};

/// Directories of the Filesystem Hierarchy Standard that hold users' and applications' data; all others are the system's.
const FOR_DATA: [&str; 6] = ["/home", "/opt", "/srv", "/tmp", "/var/tmp", "/mnt"];
/// The system's directories, with all that is in them.
const OF_THE_SYSTEM: [&str; 16] = [
    "/bin", "/boot", "/dev", "/etc", "/lib", "/lib32", "/lib64", "/libx32", "/media", "/proc", "/root", "/run",
    "/sbin", "/sys", "/usr", "/var",
];

/// What changes its owner.
#[derive(Debug, Clone, Copy)]
pub enum Subject<'a> {
    /// The agent has just created it.
    Created,
    /// It was there already, at this path, which has no links.
    Found(&'a Path),
}

/// Gives what `descriptor` stands for to `owner`, but nothing of what is in it.
pub fn give(descriptor: impl AsFd, subject: Subject, owner: Owner) -> io::Result<()> {
    let data = fstat(&descriptor)?;
    if (data.st_uid, data.st_gid) == (owner.uid, owner.gid) {
        return Ok(());
    }
    if let Subject::Found(path) = subject
        && owner.uid != 0
        && is_of_the_system(path)
    {
        return Err(io::Error::other(format!(
            "{} is one of the system's directories, which stay root's",
            path.display()
        )));
    }
    // This is fchown, for descriptors of O_PATH as well.
    chownat(descriptor, "", Some(Uid::from_raw(owner.uid)), Some(Gid::from_raw(owner.gid)), AtFlags::EMPTY_PATH)?;
    Ok(())
}

/// Whether the path, which has no links, is `/` or one of the system's directories.
pub fn is_of_the_system(path: &Path) -> bool {
    let is_in = |folders: &[&str]| folders.iter().any(|folder| path.starts_with(folder));
    path == Path::new("/") || (is_in(&OF_THE_SYSTEM) && !is_in(&FOR_DATA))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_directories_are_told_from_those_for_data() {
        for path in
            ["/", "/etc", "/etc/cron.d", "/usr/local/app", "/lib64", "/libx32/a", "/var", "/var/lib/x", "/root", "/run"]
        {
            assert!(is_of_the_system(Path::new(path)), "{path}");
        }
        for path in
            ["/home/flux", "/opt/app", "/srv", "/tmp/x", "/var/tmp/x", "/mnt/flux", "/data", "/work/run", "/etcetera"]
        {
            assert!(!is_of_the_system(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn found_system_directory_is_refused_and_created_one_is_given() {
        let folder = tempfile::tempdir().unwrap();
        let open = std::fs::File::open(folder.path()).unwrap();
        let owner = Owner { uid: 1002, gid: 1002 };
        let error = give(&open, Subject::Found(Path::new("/usr/src")), owner).unwrap_err();
        assert!(error.to_string().contains("/usr/src is one of the system's directories"), "{error}");
        give(&open, Subject::Created, owner).expect("this test runs as root");
        give(&open, Subject::Found(Path::new("/usr/src")), owner).expect("it is theirs already");
        give(&open, Subject::Found(Path::new("/usr/src")), Owner { uid: 0, gid: 0 }).expect("root takes it back");
    }
}
