//! The archive of Flux's state. The broker restores it at the start and writes a dump beside it at the end. The
//! dump replaces the archive if it is complete, even if the job has failed. If the broker itself has failed, the
//! archive stays as it was.
//!
//! The facts do not say whether there is an archive: a snippet may fetch it, and perhaps only Flux's user can see it.
//! The executor looks for it directly before the broker starts, and adds the option that restores it.

use sha2::{Digest, Sha256};

use super::{Resolved, Step};

/// Wildcard in [`Step::PrepareArchive`]'s `leftovers`, for the part of a dump's name that differs between starts.
pub const DUMP_WILDCARD: char = '*';

/// Beginning of the option that restores an archive: the path follows.
pub const RESTORE: &str = "-Scontent.restore=";

/// The step before the broker: looks for the archive, removes the files of interrupted dumps, and creates the file for
/// this dump.
pub fn prepare(resolved: &Resolved) -> Option<Step> {
    let archive = resolved.spec.archive.clone()?;
    Some(Step::PrepareArchive {
        dump: dump(resolved, &archive),
        leftovers: dump_path(resolved, &archive, &DUMP_WILDCARD.to_string()),
        owner: resolved.identity.owner,
        archive,
    })
}

/// The step after the broker: replaces the archive by the dump, if the dump can be trusted.
pub fn publish(resolved: &Resolved) -> Option<Step> {
    let archive = resolved.spec.archive.clone()?;
    Some(Step::PublishArchive {
        from: dump(resolved, &archive),
        to: archive,
    })
}

/// The broker's option to write a dump.
pub fn option(resolved: &Resolved) -> Option<String> {
    let archive = resolved.spec.archive.as_ref()?;
    Some(format!("-Scontent.dump={}", dump(resolved, archive)))
}

/// Path of the dump of this start.
fn dump(resolved: &Resolved, archive: &str) -> String {
    dump_path(resolved, archive, &resolved.facts.attempt)
}

/// Path of the dump of the start `attempt`. It is in the archive's folder, so that it can be renamed to the archive.
/// It has the archive's suffix, from which Flux infers the format. The name is unique for this MiniCluster and this
/// start, since a lost pod may still write its dump when the next pod begins. The next pod removes that dump.
fn dump_path(resolved: &Resolved, archive: &str, attempt: &str) -> String {
    let spec = resolved.spec;
    let digest = Sha256::digest(format!("{}/{}:{archive}", spec.namespace, spec.name));
    let id: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let suffix = flux_shared::names::archive_suffix(archive).unwrap_or_default();
    let folder = archive.rsplit_once('/').map_or("", |(folder, _)| folder);
    format!("{folder}/.flux-dump-{id}-{attempt}{suffix}")
}
