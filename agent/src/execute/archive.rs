//! Saves what Flux has dumped: only a whole dump of a broker that ended well takes the archive's place.
//!
//! ```text
//! before the broker: leftovers go ─► an empty file of this start's own, which Flux may write to
//! after it: broker ended well? ─► synced ─► whole? ─► renamed ─► folder synced       else: removed, the archive stays
//! ```
//!
//! An archive that is not saved is no failure of the job: the termination message says why.

mod whole;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, fchown};
use std::path::Path;

use super::executor::Executor;
use crate::files::{Files, make_parents};
use crate::plan::{ANY, Owner};
use crate::report::failure::{Failure, plain};

/// Number of hexadecimal digits in a dump's name that identify its start.
const OWN: usize = 16;

impl Executor<'_> {
    /// Removes what interrupted dumps have left and makes this one's file.
    pub(super) fn prepare_archive(&mut self, dump: &str, leftovers: &str, owner: Owner) -> Result<(), Failure> {
        let path = self.files.at(dump);
        let removed = remove_leftovers(&self.files, leftovers, &path);
        if removed > 0 {
            tracing::info!(stage = "archive", "removed {removed} unfinished dumps of earlier starts");
        }
        let made = path
            .parent()
            .map_or(Ok(()), make_parents)
            .and_then(|()| make(&path, owner).map_err(|error| Failure::write("create the dump's file", &path, &error)));
        match made {
            // A volume mounted read-only: that the state is loaded from it may be all that is wanted.
            Err(_) if is_read_only(&path) => {
                let why = "its volume is mounted read-only";
                tracing::info!(stage = "archive", "the archive will not be saved: {why}");
                self.ending.archive_not_saved = Some(why.into());
                Ok(())
            }
            made => made,
        }
    }

    /// Puts the dump in the archive's place, or keeps the reason why not.
    pub(super) fn publish_archive(&mut self, from: &str, to: &str) {
        let dump = self.files.at(from);
        if self.ending.archive_not_saved.is_some() && is_read_only(&dump) {
            return;
        }
        let trouble = match self.broker_end {
            Some(end) => end.trouble(),
            None => Some("the broker did not start".into()),
        };
        let saved = trouble.map_or(Ok(()), Err).and_then(|()| save(&dump, &self.files.at(to)));
        match saved {
            Ok(()) => {
                self.ending.archive_not_saved = None;
                tracing::info!(stage = "archive", "archive saved to {to}");
            }
            Err(why) => {
                let _ = fs::remove_file(&dump);
                tracing::error!(stage = "archive", "the archive {to} was not saved and is unchanged: {why}");
                self.ending.archive_not_saved = Some(why);
            }
        }
    }
}

/// Syncs, verifies and renames the dump, in this order, so that the archive is whole at every moment.
fn save(dump: &Path, archive: &Path) -> Result<(), String> {
    let failed = |what: &str, error: &io::Error| format!("failed to {what} the dump: {}", plain(error));
    let file = File::open(dump).map_err(|error| failed("read", &error))?;
    file.sync_all().map_err(|error| failed("write", &error))?;
    whole::check(&file, dump).map_err(|error| format!("the dump is not whole: {}", plain(&error)))?;
    fs::rename(dump, archive).map_err(|error| failed("rename", &error))?;
    let folder = archive.parent().unwrap_or(Path::new("/"));
    File::open(folder).and_then(|folder| folder.sync_all()).map_err(|error| failed("sync the folder of", &error))
}

/// Creates the dump's file for Flux's user, who may not be able to create files in that folder.
fn make(path: &Path, owner: Owner) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(path)?;
    match nix::unistd::geteuid().as_raw() == owner.uid {
        true => Ok(()),
        false => fchown(&file, Some(owner.uid), Some(owner.gid)),
    }
}

/// Removes the files beside `dump` whose names are `pattern` with digits of a start in place of its `*`; how many.
fn remove_leftovers(files: &Files, pattern: &str, dump: &Path) -> usize {
    let pattern = files.at(pattern);
    let name = pattern.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let (Some((before, after)), Some(folder)) = (name.split_once(ANY), pattern.parent()) else { return 0 };
    let is_left = |name: &str| {
        let digits = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after)).unwrap_or_default();
        digits.len() == OWN && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
    };
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is_left) && entry.path() != dump)
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()) && fs::remove_file(entry.path()).is_ok())
        .count()
}

fn is_read_only(path: &Path) -> bool {
    let folder = path.ancestors().skip(1).find(|folder| folder.is_dir());
    folder
        .and_then(|folder| nix::sys::statvfs::statvfs(folder).ok())
        .is_some_and(|file_system| file_system.flags().contains(nix::sys::statvfs::FsFlags::ST_RDONLY))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUFFIX: &str = ".tgz";

    #[test]
    fn only_unfinished_dumps_of_this_mini_cluster_are_removed() {
        let root = tempfile::tempdir().unwrap();
        let files = Files::new(root.path(), "runner");
        let name = |digits: &str| format!(".flux-dump-0011223344556677-{digits}{SUFFIX}");
        let own = name("0123456789abcdef");
        let stay = [
            "archive.tgz".to_owned(),
            own.clone(),
            name("0123456789abcde"),
            name("0123456789ABCDEF"),
            name("0123456789abcdef0"),
            name("fedcba9876543210") + ".bak",
            ".flux-dump-ffffffffffffffff-fedcba9876543210.tgz".to_owned(),
        ];
        let go = [name("fedcba9876543210"), name("0000000000000000")];
        for name in stay.iter().chain(&go) {
            fs::write(root.path().join(name), "x").unwrap();
        }
        fs::create_dir(root.path().join(name("1111111111111111"))).unwrap();
        assert_eq!(remove_leftovers(&files, &format!("/{}", name("*")), &root.path().join(&own)), go.len());
        assert!(stay.iter().all(|name| root.path().join(name).exists()));
        assert!(!go.iter().any(|name| root.path().join(name).exists()));
    }
}
