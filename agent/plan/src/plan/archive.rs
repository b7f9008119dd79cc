//! The archive of Flux's state: read at the start, dumped beside itself, put in its place when the instance
//! has ended well.

use sha2::{Digest, Sha256};

use super::{Resolved, Step};

/// Stands for the part of a dump's name that differs between starts.
pub const ANY: char = '*';

/// The step before the broker: removes what interrupted dumps have left, and creates the file of this one.
pub fn prepare(resolved: &Resolved) -> Option<Step> {
    let archive = resolved.spec.archive.as_deref()?;
    let step = Step::PrepareArchive {
        dump: dump(resolved, archive),
        leftovers: dump_path(resolved, archive, &ANY.to_string()),
        owner: resolved.identity.owner,
    };
    Some(step)
}

/// The step after the broker: puts the dump in the archive's place, if it is whole.
pub fn publish(resolved: &Resolved) -> Option<Step> {
    let archive = resolved.spec.archive.clone()?;
    Some(Step::PublishArchive {
        from: dump(resolved, &archive),
        to: archive,
    })
}

/// The broker's options to restore the archive and to write a dump.
pub fn options(resolved: &Resolved) -> Vec<String> {
    let Some(archive) = &resolved.spec.archive else {
        return Vec::new();
    };
    let restore = resolved
        .facts
        .is_present(archive)
        .then(|| format!("-Scontent.restore={archive}"));
    restore
        .into_iter()
        .chain([format!("-Scontent.dump={}", dump(resolved, archive))])
        .collect()
}

fn dump(resolved: &Resolved, archive: &str) -> String {
    dump_path(resolved, archive, &resolved.facts.attempt)
}

/// Path of a dump: in the archive's folder, so that it can be renamed, and with its suffix, by which Flux
/// knows the format. The name belongs to this MiniCluster and this start: a lost pod may still be dumping
/// when the next one begins.
fn dump_path(resolved: &Resolved, archive: &str, attempt: &str) -> String {
    let spec = resolved.spec;
    let digest = Sha256::digest(format!("{}/{}:{archive}", spec.namespace, spec.name));
    let id: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let suffix = flux_shared::names::archive_suffix(archive).unwrap_or_default();
    let folder = archive.rsplit_once('/').map_or("", |(folder, _)| folder);
    format!("{folder}/.flux-dump-{id}-{attempt}{suffix}")
}
