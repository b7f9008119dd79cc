//! Jobs with a begin time. They start only at `flux queue drain`. The state's folder and the archive keep them for the
//! next instance with the same state.

use std::fs;
use std::io::Write;
use std::process::Command;

use super::broker;

/// The states of a job that has not started: DEPEND, PRIORITY, SCHED.
const STATES: u64 = 2 | 4 | 8;
/// Prefix of a job's line in the archive.
const JOB: &str = "waits ";

/// Keeps a job in the state's folder.
pub fn submit(command: &[&str]) -> u8 {
    let Some(file) = broker::ask("getattr statedir").map(|folder| path(&folder)) else {
        return 1;
    };
    let line = serde_json::json!(command);
    let file = fs::OpenOptions::new().append(true).create(true).open(file);
    u8::from(file.and_then(|mut file| writeln!(file, "{JOB}{line}")).is_err())
}

/// Runs these jobs.
pub fn drain() -> u8 {
    let file = path(&broker::ask("getattr statedir").unwrap_or_default());
    let lines = fs::read_to_string(&file).unwrap_or_default();
    let _ = fs::remove_file(file);
    for line in lines.lines().filter_map(|line| line.strip_prefix(JOB)) {
        let words: Vec<String> = serde_json::from_str(line).expect("these are the words of a command");
        let _ = Command::new(&words[0]).args(&words[1..]).status();
    }
    0
}

/// Cancels these jobs if `states` has theirs.
pub fn cancel(folder: &str, states: u64) {
    if states & STATES != 0 {
        let _ = fs::remove_file(path(folder));
    }
}

/// The lines of these jobs for the archive.
pub fn lines(folder: &str) -> String {
    fs::read_to_string(path(folder)).unwrap_or_default()
}

/// Replaces these jobs by those of an archive. Returns the archive's other lines.
pub fn restore(folder: &str, archive: &str) -> String {
    let (jobs, others): (Vec<&str>, Vec<&str>) = archive
        .split_inclusive('\n')
        .partition(|line| line.starts_with(JOB));
    let _ = if jobs.is_empty() {
        fs::remove_file(path(folder))
    } else {
        fs::write(path(folder), jobs.concat())
    };
    others.concat()
}

fn path(folder: &str) -> String {
    format!("{folder}/waiting")
}
