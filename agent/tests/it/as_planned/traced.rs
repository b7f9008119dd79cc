//! The agent writes and starts only what its plan names, checked with strace.

use std::collections::{BTreeMap, BTreeSet};

use super::{facts, mini_cluster, planned, pod_image, spec_of};
use crate::image::{self, AGENT, Container, RECORD, need_strace};

/// One successful system call of a trace: `pid name(words) = result`.
pub(crate) struct Call {
    pub pid: String,
    pub name: String,
    pub words: String,
    pub result: String,
}

/// The calls of a trace, in the order in which they ended.
pub(crate) fn calls(trace: &str) -> Vec<Call> {
    let mut unfinished = BTreeMap::new();
    let mut calls = Vec::new();
    for line in trace.lines() {
        let Some((pid, rest)) = line.split_once(' ') else {
            continue;
        };
        let rest = rest.trim_start();
        if let Some(begin) = rest.strip_suffix("<unfinished ...>") {
            unfinished.insert(pid, begin.to_owned());
            continue;
        }
        let whole = match rest
            .strip_prefix("<... ")
            .and_then(|rest| rest.split_once("resumed>"))
        {
            Some((_, end)) => unfinished.remove(pid).unwrap_or_default() + end,
            None => rest.to_owned(),
        };
        let Some((name, words)) = whole.split_once('(') else {
            continue;
        };
        let Some((words, result)) = words
            .rsplit_once(" = ")
            .filter(|(_, result)| !result.starts_with('-'))
        else {
            continue;
        };
        let [pid, name, words, result] = [pid, name, words, result].map(|text| text.trim().to_owned());
        calls.push(Call {
            pid,
            name,
            words,
            result,
        });
    }
    calls
}

/// The paths in a call's arguments, as the pod at `top` sees them. A relative path belongs to the folder descriptor
/// before it, which strace prints with `-y` (`7</folder>, "name"`).
fn paths(words: &str, top: &str) -> Vec<String> {
    let parts: Vec<&str> = words.split('"').collect();
    let path = |index: usize| {
        let path = parts[index];
        let folder = parts[index - 1]
            .trim_end_matches([',', ' '])
            .strip_suffix('>')
            .and_then(|text| text.rsplit_once('<'));
        match folder {
            _ if path.starts_with('/') => Some(path.to_owned()),
            Some((_, folder)) => Some(
                format!("{}/{path}", folder.strip_prefix(top).unwrap_or(folder))
                    .trim_end_matches('/')
                    .to_owned(),
            ),
            // The relative target of a symbolic link.
            None => None,
        }
    };
    (1..parts.len()).step_by(2).filter_map(path).collect()
}

/// The quoted strings in a call's arguments.
fn quoted(words: &str) -> Vec<&str> {
    words.split('"').skip(1).step_by(2).collect()
}

/// The paths that the process of the first call and its threads write to.
fn written(calls: &[Call], top: &str) -> BTreeSet<String> {
    let mut threads = vec![calls[0].pid.as_str()];
    let mut written = BTreeSet::new();
    for call in calls {
        if !threads.contains(&call.pid.as_str()) {
            continue; // a child: it runs another program, or is about to
        }
        if call.name.starts_with("clone") && call.words.contains("CLONE_THREAD") {
            threads.push(&call.result);
        }
        if writes(call) {
            written.extend(paths(&call.words, top));
        }
    }
    written
}

fn writes(call: &Call) -> bool {
    let changes = [
        "mkdir", "rename", "unlink", "rmdir", "link", "chmod", "chown", "mknod", "truncate", "utime",
    ];
    match call.name.as_str() {
        "open" | "openat" => ["O_WRONLY", "O_RDWR", "O_CREAT", "O_TRUNC"]
            .iter()
            .any(|flag| call.words.contains(flag)),
        "readlink" | "readlinkat" => false,
        name => changes.iter().any(|part| name.contains(part)),
    }
}

/// The path that an entry gets once it is complete. The temporary name of `NAME` is `.NAME.runner-RANDOM.new`
/// (`agent/src/files.rs`), and for the record of starts `NAME.new`.
fn final_path(path: &str) -> String {
    let Some(temporary) = path.strip_suffix(".new") else {
        return path.to_owned();
    };
    temporary
        .rsplit_once(".runner-")
        .and_then(|(path, _)| path.rsplit_once("/."))
        .map_or(temporary.to_owned(), |(folder, name)| format!("{folder}/{name}"))
}

/// Whether the path is in the plan, is a folder above such a path, or is the temporary name of one of these. The step
/// that adds a user has no `path`. A program's output comes through a pseudo-terminal.
fn is_planned(path: &str, planned_paths: &[&str]) -> bool {
    let whole = final_path(path);
    planned_paths
        .iter()
        .any(|planned| *planned == whole || planned.starts_with(&format!("{whole}/")))
        || ["/etc/passwd", "/etc/group", "/dev/null", "/dev/ptmx"].contains(&path)
        || path.starts_with("/dev/pts/")
        || path.starts_with("/proc/self/fd/")
}

#[test]
fn agent_writes_and_starts_only_what_its_plan_names() {
    need_strace();
    let case = mini_cluster(
        "
size: 1
containers:
- image: debian:12
  fluxUser: {name: flux, uid: 1002}
  command: /usr/bin/true
  commands:
    init: export A=1
    post: export B=2",
    );
    let spec = spec_of(&case.input);
    let image = pod_image(&case, &spec, 1);
    let mut container = Container::new(&image, "mc-0", &[AGENT, "run"]);
    let log = image.at(RECORD).join("trace").display().to_string();
    let strace = [
        "strace",
        "-f",
        "-y",
        "-s",
        "4096",
        "-o",
        &log,
        "-e",
        "trace=file,process",
        "-e",
        "signal=none",
    ];
    container.outside = strace.map(str::to_owned).into();
    let plan = planned(&case.input, 0, &facts(&image, &spec, 0, &container));
    let ended = image::run(&[container]);
    assert_eq!(ended[0].code, 0, "{ended:?}");

    let steps = plan[0]["steps"].as_array().unwrap();
    let planned_paths: Vec<&str> = steps
        .iter()
        .filter_map(|step| step["path"].as_str().or(step["record"].as_str()))
        .collect();
    let calls = calls(&std::fs::read_to_string(log).unwrap());
    let is_agent = |call: &Call| call.name == "execve" && call.words.starts_with(&format!("\"{AGENT}\""));
    // strace's own child, env and chroot run before the agent.
    let begin = calls.iter().position(is_agent).unwrap();
    let written = written(&calls[begin..], &image.top().display().to_string());
    let unplanned: Vec<&String> = written
        .iter()
        .filter(|path| !is_planned(path, &planned_paths))
        .collect();
    assert!(unplanned.is_empty(), "{unplanned:?}");
    let missed: Vec<&&str> = planned_paths
        .iter()
        .filter(|path| !image.at(path).exists())
        .collect();
    assert!(missed.is_empty() && written.len() > 10, "{missed:?} {written:?}");

    let started = calls[begin..].iter().filter(|call| call.name == "execve");
    let programs: Vec<&str> = started.map(|call| quoted(&call.words)[0]).collect();
    let flux = "/mnt/flux/view/bin/flux";
    let is_report = |path: &str| path.starts_with("/proc/") && path.contains("/fd/");
    let programs: Vec<&str> = programs
        .into_iter()
        .map(|path| if is_report(path) { "report" } else { path })
        .collect();
    let want = [
        AGENT,
        "/bin/bash",
        "report",
        flux,
        "/mnt/flux/flux-agent",
        flux,
        "/usr/bin/true",
        "report",
    ];
    assert_eq!(
        programs, want,
        "the programs are the agent, one shell, its report after each snippet, Flux and what Flux runs"
    );
}
