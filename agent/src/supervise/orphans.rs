//! Finds processes in `/proc`: a broker below its wrapper, a job's shell below the broker, and the processes that a
//! broker leaves behind. Kills the last ones: they belong to jobs, or are the lead's program, and became the agent's
//! children when the broker ended.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use super::Supervisor;
use crate::system::raw;

/// How long to wait for killed processes to end. A process that waits for a disk may take longer, and is left.
const END_TIMEOUT: Duration = Duration::from_secs(5);
/// The same at the end of a grace period: the agent must end before the kubelet kills it (`kill_after` of the plan).
const LATE_TIMEOUT: Duration = Duration::from_millis(500);
/// Time between two looks at `/proc`.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The processes that ran before the broker started, with their process groups. They are not the broker's. Nor is a
/// process that starts later in one of these groups, even if its parent has ended.
#[derive(Debug)]
pub struct EarlierProcesses {
    pids: BTreeSet<i32>,
    groups: BTreeSet<i32>,
}

impl EarlierProcesses {
    /// The processes that run now.
    pub fn now() -> EarlierProcesses {
        let processes = processes(Path::new("/proc"));
        EarlierProcesses {
            pids: processes.keys().copied().collect(),
            groups: processes.values().map(|process| process.group).collect(),
        }
    }

    /// The pids of this process's children that the broker left behind.
    fn orphans(&self, processes: &BTreeMap<i32, ProcStat>) -> BTreeSet<i32> {
        let this = std::process::id().cast_signed();
        let is_orphan = |pid: &i32, process: &ProcStat| {
            process.parent == this && !self.pids.contains(pid) && !self.groups.contains(&process.group)
        };
        let orphans = processes.iter().filter(|(pid, process)| is_orphan(pid, process));
        orphans.map(|(pid, _)| *pid).collect()
    }
}

/// Kills the processes that the broker left behind, with their descendants, and waits for their end (`waits_until`). A
/// stop does not interrupt this. Returns the number of killed processes.
pub async fn kill(supervisor: &mut Supervisor, earlier: &EarlierProcesses) -> io::Result<usize> {
    let begin = Instant::now();
    let mut killed = BTreeSet::new();
    loop {
        let processes = processes(Path::new("/proc"));
        let left = with_descendants(&processes, earlier.orphans(&processes));
        if left.is_empty() || Instant::now() >= waits_until(begin, supervisor.kill_deadline()) {
            return Ok(killed.len());
        }
        for pid in left {
            // An error means that the process has ended meanwhile, or that it belongs to root (`sudo`).
            if raw::send(pid, libc::SIGKILL).is_ok() {
                killed.insert(pid);
            }
        }
        supervisor.even_if_stopped(tokio::time::sleep(LOOK_EVERY)).await?;
    }
}

/// Until when to wait for processes that were first killed at `begin`. `kill_deadline`: when a stop kills everything.
fn waits_until(begin: Instant, kill_deadline: Option<Instant>) -> Instant {
    let longest = begin + END_TIMEOUT;
    kill_deadline.map_or(longest, |deadline| {
        longest.min(deadline.max(begin + LATE_TIMEOUT))
    })
}

/// Whether the process `pid` or a descendant has this name (of at most 15 bytes, as in `/proc/PID/comm`).
pub fn has_descendant(pid: i32, name: &str) -> bool {
    nearest(pid, |other| other == name).is_some()
}

/// The broker: the process `pid`, or else its nearest descendant with a broker's name. Flux adds the rank to this name.
pub fn broker(pid: i32) -> Option<i32> {
    nearest(pid, |name| match name.strip_prefix("flux-broker") {
        Some("") => true,
        Some(rest) => rest
            .strip_prefix('-')
            .is_some_and(|rank| rank.bytes().all(|byte| byte.is_ascii_digit())),
        None => false,
    })
}

/// The process `pid`, or else its nearest descendant, whose name `is_wanted`.
fn nearest(pid: i32, is_wanted: impl Fn(&str) -> bool) -> Option<i32> {
    let mut rest = processes(Path::new("/proc"));
    let mut generation = BTreeSet::from([pid]);
    while !generation.is_empty() {
        let is_called = |pid: &&i32| name_of(**pid).is_some_and(|name| is_wanted(&name));
        if let Some(found) = generation.iter().find(is_called) {
            return Some(*found);
        }
        let (next, others) = rest
            .into_iter()
            .partition(|(_, process)| generation.contains(&process.parent));
        rest = others;
        generation = BTreeMap::into_keys(next).collect();
    }
    None
}

/// The name of a process (at most 15 bytes).
fn name_of(pid: i32) -> Option<String> {
    let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(comm.trim_end().to_owned())
}

#[derive(Debug, PartialEq, Eq)]
struct ProcStat {
    parent: i32,
    group: i32,
}

/// Every process that has not ended, by pid.
fn processes(proc: &Path) -> BTreeMap<i32, ProcStat> {
    let entries = std::fs::read_dir(proc).into_iter().flatten().flatten();
    let process_at = |path: &Path| {
        // The second field is the name in brackets, which may itself contain brackets and spaces.
        let bytes = std::fs::read(path.join("stat")).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let mut words = text.rsplit_once(") ")?.1.split(' ');
        let (state, parent, group) = (words.next()?, words.next()?, words.next()?);
        let (parent, group) = (parent.parse().ok()?, group.parse().ok()?);
        // Z and X: the process has ended.
        (!matches!(state, "Z" | "X")).then_some(ProcStat { parent, group })
    };
    let process = |entry: std::fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        Some((pid, process_at(&entry.path())?))
    };
    entries.filter_map(process).collect()
}

/// `all`, and every descendant of these processes.
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
    fn orphans_descendants_are_killed_but_no_earlier_process() {
        let this = std::process::id().cast_signed();
        let process = |parent: i32, group: i32| ProcStat { parent, group };
        // Negative pids: none of them is this process's own.
        let processes = BTreeMap::from([
            (-2, process(this, -2)),
            (-3, process(this, -3)),
            (-4, process(-2, -2)),
            (-5, process(-4, -5)),
            (-6, process(-3, -3)),
            (-7, process(this, -3)),
            (-9, process(-8, -9)),
        ]);
        let earlier = EarlierProcesses {
            pids: [-3].into(),
            groups: [-3].into(),
        };
        let orphans = earlier.orphans(&processes);
        assert_eq!(orphans, [-2].into());
        assert_eq!(with_descendants(&processes, orphans), [-2, -4, -5].into());
    }

    #[test]
    fn broker_is_found_at_any_depth_below_its_wrapper() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["flux-broker-3", "flux-broker-run"] {
            std::os::unix::fs::symlink("/bin/sh", folder.path().join(name)).unwrap();
        }
        let at = folder.path().display();
        let wrapped =
            format!("{at}/flux-broker-run -c '{at}/flux-broker-3 -c \"read line; exit\"; exit'; exit");
        let mut wrapper = std::process::Command::new("sh")
            .args(["-c", &wrapped])
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let pid = wrapper.id().cast_signed();
        let found = test_support::waiting::eventually("the broker", || broker(pid));
        assert_eq!(name_of(found).as_deref(), Some("flux-broker-3"));
        assert_eq!(broker(found), Some(found));
        assert!(!has_descendant(pid, "no-such-name"));
        drop(wrapper.stdin.take());
        wrapper.wait().unwrap();
    }

    #[test]
    fn processes_that_stay_do_not_outlast_the_grace_period() {
        let begin = Instant::now();
        let after = |seconds: f64| begin + Duration::from_secs_f64(seconds);
        for (kill_deadline, until) in [
            (None, 5.0),
            (Some(after(60.0)), 5.0),
            (Some(after(2.0)), 2.0),
            (Some(begin), 0.5),
        ] {
            assert_eq!(waits_until(begin, kill_deadline), after(until));
        }
    }

    #[test]
    fn processes_with_odd_names_count_and_zombies_do_not() {
        let folder = tempfile::tempdir().unwrap();
        for (pid, text) in [
            ("7", &b"7 (a) Z (b) S 1 7"[..]),
            ("8", b"8 (gone) Z 1 8"),
            // The kernel cuts a name after 15 bytes, even inside a UTF-8 character.
            ("9", b"9 (\xd1\x80\xd0) S 1 9 7"),
            ("uptime", b"8 (x) S 1"),
        ] {
            std::fs::create_dir(folder.path().join(pid)).unwrap();
            std::fs::write(folder.path().join(pid).join("stat"), text).unwrap();
        }
        let process = |group| ProcStat { parent: 1, group };
        assert_eq!(
            processes(folder.path()),
            [(7, process(7)), (9, process(9))].into()
        );
    }
}
