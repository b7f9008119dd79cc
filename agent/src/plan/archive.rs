//! The archive of Flux's state: read at the start, dumped beside itself, put in its place when the instance has ended well.

use sha2::{Digest, Sha256};

use super::{Planned, Scene, Step};

/// What stands for the part of a dump's name that is this start's own.
pub const ANY: char = '*';

/// Before the broker: what an interrupted dump has left goes, and the file of this one is made.
pub fn prepare(scene: &Scene) -> Option<Planned> {
    let archive = scene.spec.archive.as_deref()?;
    let step = Step::PrepareArchive {
        dump: dump(scene, archive),
        leftovers: beside(scene, archive, &ANY.to_string()),
        owner: scene.identity.owner,
    };
    Some(Planned::with(&["attempt", "uid"], step))
}

/// After the broker: the dump takes the archive's place, if it is whole.
pub fn publish(scene: &Scene) -> Option<Planned> {
    let archive = scene.spec.archive.clone()?;
    Some(Planned::with(&["attempt"], Step::PublishArchive { from: dump(scene, &archive), to: archive }))
}

/// The broker's options for it.
pub fn options(scene: &Scene, facts: &mut Vec<&'static str>) -> Vec<String> {
    let Some(archive) = &scene.spec.archive else { return Vec::new() };
    facts.extend(["archive", "attempt"]);
    let restore = scene.facts.is_present(archive).then(|| format!("-Scontent.restore={archive}"));
    restore.into_iter().chain([format!("-Scontent.dump={}", dump(scene, archive))]).collect()
}

fn dump(scene: &Scene, archive: &str) -> String {
    beside(scene, archive, &scene.facts.attempt)
}

/// In the archive's folder, so that it can be renamed, and with its suffix, by which Flux knows the format. The name is
/// this MiniCluster's, and this start's: a pod that was lost may still be dumping when the next one begins.
fn beside(scene: &Scene, archive: &str, attempt: &str) -> String {
    let spec = scene.spec;
    let digest = Sha256::digest(format!("{}/{}:{archive}", spec.namespace, spec.name));
    let id: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let suffix = flux_shared::names::archive_suffix(archive).unwrap_or_default();
    let folder = archive.rsplit_once('/').map_or("", |(folder, _)| folder);
    format!("{folder}/.flux-dump-{id}-{attempt}{suffix}")
}
