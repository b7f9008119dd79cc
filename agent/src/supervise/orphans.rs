//! What a broker that was killed leaves running: its job's processes, which become children of the agent's.
//! Read from `/proc` by hand: procfs would be one more crate in the pods for two files.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::Supervisor;
use crate::system::raw;

/// How long killed processes may take to go: one that waits for a disk cannot be killed until it has it.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// All processes below this one.
pub fn descendants() -> BTreeSet<i32> {
    let parents = processes(Path::new("/proc"));
    let children = children_in(&parents, std::process::id().cast_signed());
    with_descendants(&parents, children)
}

/// Kills all children but those in `others`, with all that they have started; how many processes that were.
pub async fn end(supervisor: &mut Supervisor, others: &BTreeSet<i32>) -> io::Result<usize> {
    let begin = Instant::now();
    let mut killed = BTreeSet::new();
    loop {
        let parents = processes(Path::new("/proc"));
        let orphans = children_in(&parents, std::process::id().cast_signed());
        let left = with_descendants(&parents, orphans.difference(others).copied().collect());
        if left.is_empty() || begin.elapsed() >= PATIENCE {
            return Ok(killed.len());
        }
        for pid in left {
            // It may have ended meanwhile.
            let _ = raw::send(pid, libc::SIGKILL);
            killed.insert(pid);
        }
        supervisor.even_if_stopped(tokio::time::sleep(LOOK_EVERY)).await?;
    }
}

/// Whether a process below `pid` has this name.
pub fn has_descendant(pid: i32, name: &str) -> bool {
    let parents = processes(Path::new("/proc"));
    let is_called = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    with_descendants(&parents, [pid].into()).iter().any(is_called)
}

/// Every process that has not ended, and its parent.
fn processes(proc: &Path) -> BTreeMap<i32, i32> {
    let entries = std::fs::read_dir(proc).into_iter().flatten().flatten();
    let parent_of = |path: &Path| {
        // The name, in brackets, may hold anything.
        let bytes = std::fs::read(path.join("stat")).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let mut words = text.rsplit_once(") ")?.1.split(' ');
        let (state, parent) = (words.next()?, words.next()?.parse().ok()?);
        (!matches!(state, "Z" | "X")).then_some(parent)
    };
    let process = |entry: std::fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, parent_of(&entry.path())?))
    };
    entries.filter_map(process).collect()
}

fn children_in(parents: &BTreeMap<i32, i32>, parent: i32) -> BTreeSet<i32> {
    parents
        .iter()
        .filter(|(_, its_parent)| **its_parent == parent)
        .map(|(pid, _)| *pid)
        .collect()
}

fn with_descendants(parents: &BTreeMap<i32, i32>, mut all: BTreeSet<i32>) -> BTreeSet<i32> {
    loop {
        let more: Vec<i32> = parents
            .iter()
            .filter(|(pid, parent)| all.contains(parent) && !all.contains(pid))
            .map(|(pid, _)| *pid)
            .collect();
        if more.is_empty() {
            return all;
        }
        all.extend(more);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descendants_of_orphans_go_along_and_those_of_others_stay() {
        let parents = BTreeMap::from([(2, 1), (3, 1), (4, 2), (5, 4), (6, 3), (9, 8)]);
        assert_eq!(children_in(&parents, 1), [2, 3].into());
        assert_eq!(with_descendants(&parents, [2].into()), [2, 4, 5].into());
    }

    #[test]
    fn processes_with_odd_names_count_and_zombies_do_not() {
        let folder = tempfile::tempdir().unwrap();
        for (pid, text) in [
            ("7", &b"7 (a) Z (b) S 1 7"[..]),
            ("8", b"8 (gone) Z 1 8"),
            // The kernel cuts a name after 15 bytes, also in a letter.
            ("9", b"9 (\xd1\x80\xd0) S 1 9"),
            ("uptime", b"8 (x) S 1"),
        ] {
            std::fs::create_dir(folder.path().join(pid)).unwrap();
            std::fs::write(folder.path().join(pid).join("stat"), text).unwrap();
        }
        assert_eq!(processes(folder.path()), [(7, 1), (9, 1)].into());
    }
}
