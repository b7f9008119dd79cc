//! Kills the processes that a killed broker leaves behind: processes of jobs, which become the agent's children.
//! They are found in `/proc`.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::Supervisor;
use crate::system::raw;

/// How long killed processes may take to end. A process that waits for a disk ends only after that.
const END_TIMEOUT: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The processes that ran before the broker started, with their process groups. A later process in one of these
/// groups is theirs, not the broker's, even if its parent has ended.
#[derive(Debug)]
pub struct Others {
    pids: BTreeSet<i32>,
    groups: BTreeSet<i32>,
}

impl Others {
    pub fn now() -> Others {
        let processes = processes(Path::new("/proc"));
        Others {
            pids: processes.keys().copied().collect(),
            groups: processes.values().map(|process| process.group).collect(),
        }
    }

    /// The children of this process that are not among the others.
    fn orphans(&self, processes: &BTreeMap<i32, ProcStat>) -> BTreeSet<i32> {
        let this = std::process::id().cast_signed();
        let is_orphan = |pid: &i32, process: &ProcStat| {
            process.parent == this && !self.pids.contains(pid) && !self.groups.contains(&process.group)
        };
        let orphans = processes.iter().filter(|(pid, process)| is_orphan(pid, process));
        orphans.map(|(pid, _)| *pid).collect()
    }
}

/// Kills all children except `others`, with their descendants. Returns the number of killed processes.
pub async fn end(supervisor: &mut Supervisor, others: &Others) -> io::Result<usize> {
    let begin = Instant::now();
    let mut killed = BTreeSet::new();
    loop {
        let processes = processes(Path::new("/proc"));
        let left = with_descendants(&processes, others.orphans(&processes));
        if left.is_empty() || begin.elapsed() >= END_TIMEOUT {
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
    let processes = processes(Path::new("/proc"));
    let is_called = |pid: &i32| {
        std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim_end() == name)
    };
    with_descendants(&processes, [pid].into()).iter().any(is_called)
}

#[derive(Debug, PartialEq, Eq)]
struct ProcStat {
    parent: i32,
    group: i32,
}

/// Every process that has not ended.
fn processes(proc: &Path) -> BTreeMap<i32, ProcStat> {
    let entries = std::fs::read_dir(proc).into_iter().flatten().flatten();
    let process_at = |path: &Path| {
        // The name, in brackets, may hold anything.
        let bytes = std::fs::read(path.join("stat")).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let mut words = text.rsplit_once(") ")?.1.split(' ');
        let (state, parent, group) = (words.next()?, words.next()?, words.next()?);
        let (parent, group) = (parent.parse().ok()?, group.parse().ok()?);
        (!matches!(state, "Z" | "X")).then_some(ProcStat { parent, group })
    };
    let process = |entry: std::fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, process_at(&entry.path())?))
    };
    entries.filter_map(process).collect()
}

fn with_descendants(processes: &BTreeMap<i32, ProcStat>, mut all: BTreeSet<i32>) -> BTreeSet<i32> {
    loop {
        let more: Vec<i32> = processes
            .iter()
            .filter(|(pid, process)| all.contains(&process.parent) && !all.contains(pid))
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
        let this = std::process::id().cast_signed();
        let of = |parent: i32, group: i32| ProcStat { parent, group };
        let processes = BTreeMap::from([
            (-2, of(this, -2)),
            (-3, of(this, -3)),
            (-4, of(-2, -2)),
            (-5, of(-4, -5)),
            (-6, of(-3, -3)),
            (-7, of(this, -3)),
            (-9, of(-8, -9)),
        ]);
        let others = Others {
            pids: [-3].into(),
            groups: [-3].into(),
        };
        let orphans = others.orphans(&processes);
        assert_eq!(orphans, [-2].into());
        assert_eq!(with_descendants(&processes, orphans), [-2, -4, -5].into());
    }

    #[test]
    fn processes_with_odd_names_count_and_zombies_do_not() {
        let folder = tempfile::tempdir().unwrap();
        for (pid, text) in [
            ("7", &b"7 (a) Z (b) S 1 7"[..]),
            ("8", b"8 (gone) Z 1 8"),
            // The kernel cuts a name after 15 bytes, also in a letter.
            ("9", b"9 (\xd1\x80\xd0) S 1 9 7"),
            ("uptime", b"8 (x) S 1"),
        ] {
            std::fs::create_dir(folder.path().join(pid)).unwrap();
            std::fs::write(folder.path().join(pid).join("stat"), text).unwrap();
        }
        let of = |group| ProcStat { parent: 1, group };
        assert_eq!(processes(folder.path()), [(7, of(7)), (9, of(9))].into());
    }
}
