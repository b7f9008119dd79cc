//! The agent is killed at a sample of its system calls that write, and run again. The result is that of an undisturbed
//! run.
//!
//! ```text
//! one run under strace ─► the calls that write, counted by name and thread
//! for a sample: fresh folder ─► run, killed just before that call ─► whole files, no readable key ─► run ─► same tree
//! ```
//!
//! Also: full disks of many sizes, a container with 16 MiB, and what a killed broker leaves.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

mod full_disk;

use crate::image::{
    self, AGENT, Container, Image, KEY, Node, Tree, What, agent, assert_same, folder, need_strace, tree,
};

/// The system calls that change files and folders, or flush them.
const WRITING: [&str; 29] = [
    "write",
    "pwrite64",
    "writev",
    "openat",
    "mkdir",
    "mkdirat",
    "rename",
    "renameat",
    "renameat2",
    "link",
    "linkat",
    "symlink",
    "symlinkat",
    "unlink",
    "unlinkat",
    "rmdir",
    "chmod",
    "fchmod",
    "fchmodat",
    "chown",
    "fchown",
    "fchownat",
    "ftruncate",
    "utimensat",
    "fsync",
    "fdatasync",
    // The commands of these tests do not use these three today.
    "copy_file_range",
    "sendfile",
    "splice",
];

/// When to die: before the `number`th call of this name in one thread.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Moment {
    call: String,
    number: usize,
}

/// The moments of a trace, in order: each call that writes, with its number within its thread. `threads`: strace
/// followed all threads and children (`-f`), so each line begins with a pid.
fn moments(trace: &str, threads: bool) -> Vec<Moment> {
    let mut counts: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut moments = Vec::new();
    let mut running = false;
    for line in trace.lines() {
        let (pid, rest) = if threads {
            line.split_once(' ').unwrap()
        } else {
            ("", line)
        };
        let Some((name, words)) = rest.trim_start().split_once('(') else {
            continue;
        };
        // strace's `when=` counts all calls of the name. So calls that are skipped below count too, as do those of
        // `env` and `chroot` before the agent.
        let count = counts.entry((pid.to_owned(), name.to_owned())).or_default();
        *count += 1;
        running |= name == "execve" && words.contains("flux-agent");
        let only_reads = name == "openat"
            && !["O_WRONLY", "O_RDWR", "O_CREAT"]
                .iter()
                .any(|flag| words.contains(flag));
        let only_prints = name == "write" && ["1, ", "2, "].iter().any(|fd| words.starts_with(fd));
        if running && WRITING.contains(&name) && !only_reads && !only_prints {
            moments.push(Moment {
                call: name.to_owned(),
                number: *count,
            });
        }
    }
    // Several threads may reach the same moment. The first one dies, and the process with it.
    let mut seen = std::collections::BTreeSet::new();
    moments.retain(|moment| seen.insert(moment.clone()));
    moments
}

fn traced() -> String {
    // `?`: an architecture such as arm64 lacks some of them.
    format!("trace=execve,?{}", WRITING.join(",?"))
}

/// The strace command that kills a program at `moment`. `threads`: in any thread or child. Otherwise strace sees only
/// the first thread.
fn death(moment: &Moment, threads: bool) -> Vec<String> {
    let inject = format!("inject={}:signal=KILL:when={}", moment.call, moment.number);
    let mut words: Vec<String> = ["strace", "-o", "/dev/null", "-e"].map(str::to_owned).into();
    words.extend([format!("trace={}", moment.call), "-e".into(), inject]);
    words.extend(threads.then(|| "-f".to_owned()));
    words
}

/// An even selection of at most `limit` moments.
fn sample(moments: Vec<Moment>, limit: usize) -> Vec<Moment> {
    let step = moments.len().div_ceil(limit).max(1);
    moments.into_iter().step_by(step).collect()
}

/// Runs `work` for all moments, several at once: with `run`, most of the time is spent waiting for namespaces.
fn each(moments: &[Moment], work: impl Fn(&Moment) + Sync) {
    let next = AtomicUsize::new(0);
    let workers = 3 * std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(|| {
                while let Some(moment) = moments.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(moment);
                }
            });
        }
    });
}

/// Runs a program, and kills it at `moment` if given. Returns whether it was killed.
fn run_and_die(words: &[String], moment: Option<&Moment>) -> bool {
    let mut all = moment.map(|moment| death(moment, true)).unwrap_or_default();
    all.extend_from_slice(words);
    let output = Command::new(&all[0])
        .args(&all[1..])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let killed = std::os::unix::process::ExitStatusExt::signal(&output.status) == Some(9);
    assert!(
        killed || output.status.success(),
        "{all:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    killed
}

fn trace(words: &[String]) -> String {
    let folder = folder();
    let log = folder.path().join("trace");
    let mut command = Command::new("strace");
    command
        .args(["-f", "-s", "200", "-e", &traced(), "-e", "signal=none", "-o"])
        .arg(&log)
        .args(words);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    fs::read_to_string(log).unwrap()
}

fn words(program: &Path, arguments: &[&str]) -> Vec<String> {
    let mut words = vec![program.display().to_string()];
    words.extend(arguments.iter().map(|word| (*word).to_owned()));
    words
}

#[test]
fn install_is_repeatable_after_a_kill_at_any_write() {
    need_strace();
    let install = |to: &Path| words(agent(), &["install", "--to", to.to_str().unwrap()]);
    let new = fs::read(agent()).unwrap();
    let old = b"the agent of an earlier release".to_vec();
    let whole = folder();
    let moments = sample(moments(&trace(&install(whole.path())), true), 40);
    let want = tree(whole.path());
    assert_eq!(
        (want.len(), &want["/flux-agent"].what),
        (1, &What::File(new.clone()))
    );
    assert!(moments.len() > 8, "{moments:?}");
    let killed = AtomicUsize::new(0);
    each(&moments, |moment| {
        for there_before in [None, Some(&old)] {
            let to = folder();
            let target = to.path().join("flux-agent");
            if let Some(old) = there_before {
                fs::write(&target, old).unwrap();
                fs::set_permissions(&target, fs::Permissions::from_mode(0o755)).unwrap();
            }
            killed.fetch_add(
                usize::from(run_and_die(&install(to.path()), Some(moment))),
                Ordering::Relaxed,
            );
            let existing = fs::read(&target).ok();
            let is_whole = existing.as_ref() == Some(&new) || existing.as_ref() == there_before;
            assert!(is_whole, "{moment:?}: only a part of the program is at its name");
            let mode = fs::metadata(&target).map(|data| data.mode() & 0o7777);
            assert!(
                mode.is_err() || mode.is_ok_and(|mode| mode == 0o755),
                "{moment:?}"
            );
            run_and_die(&install(to.path()), None);
            assert_same(&want, &tree(to.path()), &format!("install, killed at {moment:?}"));
        }
    });
    assert_eq!(
        killed.load(Ordering::Relaxed),
        2 * moments.len(),
        "every moment came"
    );
}

/// A small image of a view: files of some sizes, links, hard links, modes.
fn view_image(version: &str) -> tempfile::TempDir {
    let top = folder();
    let at = |path: &str| top.path().join(path);
    for folder in [
        "opt/views/._view/abc/bin",
        "opt/views/._view/abc/etc/flux/system",
        "opt/software/flux/bin",
    ] {
        fs::create_dir_all(at(folder)).unwrap();
    }
    for number in 0..5 {
        fs::write(
            at(&format!("opt/views/._view/abc/lib{number}.so")),
            version.repeat(1 + number * 3000),
        )
        .unwrap();
    }
    fs::write(at("opt/software/flux/bin/flux"), version.repeat(100)).unwrap();
    fs::set_permissions(
        at("opt/software/flux/bin/flux"),
        fs::Permissions::from_mode(0o555),
    )
    .unwrap();
    fs::hard_link(at("opt/software/flux/bin/flux"), at("opt/software/flux/flux")).unwrap();
    symlink("/opt/software/flux/bin/flux", at("opt/views/._view/abc/bin/flux")).unwrap();
    symlink("/opt/views/._view/abc", at("opt/view")).unwrap();
    fs::set_permissions(at("opt/views/._view/abc/bin"), fs::Permissions::from_mode(0o555)).unwrap();
    top
}

fn view(image: &Path, pod: &Path) -> Vec<String> {
    let text = |path: &Path| path.display().to_string();
    let (to, software) = (text(&pod.join("flux")), text(&pod.join("software")));
    words(
        agent(),
        &[
            "view",
            "--root",
            &text(image),
            "--to",
            &to,
            "--software",
            &software,
        ],
    )
}

#[test]
fn view_is_repeatable_after_a_kill_at_any_write() {
    need_strace();
    let (old, new) = (view_image("older "), view_image("new "));
    let whole = folder();
    let first = moments(&trace(&view(new.path(), whole.path())), true);
    let want = tree(whole.path());
    // If there is an older view, more has to be removed.
    let renewed = folder();
    run_and_die(&view(old.path(), renewed.path()), None);
    let second = moments(&trace(&view(new.path(), renewed.path())), true);
    assert_same(&want, &tree(renewed.path()), "a view in place of an older one");
    for (moments, there_before) in [(first, None), (second, Some(&old))] {
        assert!(moments.len() > 20, "{moments:?}");
        let killed = AtomicUsize::new(0);
        let moments = sample(moments, 60);
        each(&moments, |moment| {
            let pod = folder();
            if let Some(old) = there_before {
                run_and_die(&view(old.path(), pod.path()), None);
            }
            killed.fetch_add(
                usize::from(run_and_die(&view(new.path(), pod.path()), Some(moment))),
                Ordering::Relaxed,
            );
            let marker = fs::read(pod.path().join("flux/.flux-view.done"))
                .ok()
                .map(What::File);
            if marker.as_ref() == Some(&want["/flux/.flux-view.done"].what) {
                assert_same(
                    &want,
                    &tree(pod.path()),
                    &format!("{moment:?}: a view that is marked as whole"),
                );
            }
            age_temporary_files(pod.path(), &tree(pod.path()));
            run_and_die(&view(new.path(), pod.path()), None);
            assert_same(&want, &tree(pod.path()), &format!("view, killed at {moment:?}"));
        });
        // Threads share the work differently in each run, so some moments may not occur again.
        assert!(
            killed.load(Ordering::Relaxed) * 4 > moments.len() * 3,
            "{killed:?} of {}",
            moments.len()
        );
    }
}

/// An image for `run`: a single lead with a certificate, a user to create, and a script.
fn lead() -> Image {
    let image = Image::usual();
    image.hosts("mc", "flux-service", 1);
    image.certificate((0, 0));
    image.file(
        "/etc/flux-agent/spec/agent.toml",
        0o444,
        "name = 'mc'\nrestart_policy = 'OnFailure'\n[runner]\nuser = { name = 'flux', uid = 1002 }\n[runner.program]\nmode = 'script'\ntext = \"#!/bin/sh\\ntrue\\n\"\n",
    );
    image
}

/// Runs the agent in the image, with the words `outside` before it. Returns its exit code.
fn run_lead(image: &Image, outside: Vec<String>) -> i32 {
    let mut container = Container::new(image, "mc-0", &[AGENT, "run"]);
    container.outside = outside;
    let ended = image::run(&[container]);
    assert!([0, 137].contains(&ended[0].code), "{ended:?}");
    ended[0].code
}

/// Files that contain the key and that users other than the owner may read.
fn readable_keys(tree: &Tree) -> Vec<&String> {
    let holds_key = |node: &Node| matches!(&node.what, What::File(bytes) if bytes.windows(KEY.len()).any(|part| part == KEY.as_bytes()));
    tree.iter()
        .filter(|(_, node)| node.mode & 0o077 != 0 && holds_key(node))
        .map(|(path, _)| path)
        .collect()
}

/// Makes temporary files a few minutes old, as if the container restarted later. The agent removes only old ones.
fn age_temporary_files(top: &Path, tree: &Tree) {
    use nix::sys::stat::{UtimensatFlags, utimensat};
    use nix::sys::time::TimeSpec;
    let then = std::time::SystemTime::now() - std::time::Duration::from_secs(300);
    let then = TimeSpec::from_duration(then.duration_since(std::time::UNIX_EPOCH).unwrap());
    let is_temporary = |path: &str| {
        path.ends_with(".new")
            && [".runner-", ".view-", ".install-"]
                .iter()
                .any(|by| path.contains(by))
    };
    for path in tree.keys().filter(|path| is_temporary(path)) {
        let path = top.join(path.trim_start_matches('/'));
        utimensat(
            nix::fcntl::AT_FDCWD,
            &path,
            &then,
            &then,
            UtimensatFlags::NoFollowSymlink,
        )
        .unwrap();
    }
}

/// The record of the container's starts.
const STARTS: &str = "/mnt/flux/config/agent/starts";

#[test]
fn run_is_repeatable_after_a_kill_at_any_write() {
    need_strace();
    let whole = lead();
    let log = whole.at(image::RECORD).join("trace").display().to_string();
    let strace = [
        "strace",
        "-s",
        "200",
        "-o",
        &log,
        "-e",
        &traced(),
        "-e",
        "signal=none",
    ];
    assert_eq!(run_lead(&whole, strace.map(str::to_owned).into()), 0);
    let moments = sample(moments(&fs::read_to_string(log).unwrap(), false), 100);
    let want = whole.tree();
    let curve = &want["/mnt/flux/config/curve/curve.cert"];
    assert_eq!((curve.mode, curve.owner), (0o400, (1002, 1002)));
    assert!(moments.len() > 40, "{moments:?}");
    let died = AtomicUsize::new(0);
    each(&moments, |moment| {
        let image = lead();
        // `false`, as in the trace above: strace must kill the agent, not a program that the agent starts.
        if run_lead(&image, death(moment, false)) == 0 {
            // The traced run was slow and wrote one more message than this run.
            return;
        }
        died.fetch_add(1, Ordering::Relaxed);
        let have = image.tree();
        assert!(
            readable_keys(&have).is_empty(),
            "{moment:?}: {:?}",
            readable_keys(&have)
        );
        // Files at their final names are complete.
        for (path, node) in have.iter().filter(|(_, node)| matches!(node.what, What::File(_))) {
            // These two grow during the run. Both begin with `started`.
            if path == STARTS || path.ends_with("/config/program-result") {
                let begins = matches!(&node.what, What::File(bytes) if bytes.is_empty() || bytes.starts_with(b"started"));
                assert!(begins, "{node:?}");
                continue;
            }
            // Not in `want`: a file that is there only during a run. In /etc: the accounts before the run changes them.
            let is_before =
                !want.contains_key(path) || path.starts_with("/etc/") || Some(node) == want.get(path);
            assert!(is_before, "{moment:?}: {path} is {node:?}");
        }
        age_temporary_files(image.top(), &have);
        assert_eq!(run_lead(&image, Vec::new()), 0);
        // If the killed start had written the record, the record counts that start, too.
        let mut same = image.tree();
        if let (Some(node), Some(first)) = (same.get_mut(STARTS), want.get(STARTS)) {
            let What::File(bytes) = &mut node.what else {
                panic!("{node:?}")
            };
            assert!(
                bytes.starts_with(b"started 1\n") || bytes.starts_with(b"started 2\n"),
                "{moment:?}: {bytes:?}"
            );
            node.what = first.what.clone();
        }
        assert_same(&want, &same, &format!("run, killed at {moment:?}"));
    });
    let died = died.into_inner();
    assert!(
        died + 3 >= moments.len(),
        "only {died} of {} runs were killed",
        moments.len()
    );
}

/// A memory limit for one process and its children.
struct Limit {
    group: std::path::PathBuf,
}

impl Limit {
    fn new(bytes: u64) -> Limit {
        let name = format!(
            "flux-agent-test-{}-{:?}",
            std::process::id(),
            std::thread::current().id()
        );
        let name = name.replace(['(', ')'], "");
        let v1 = Path::new("/sys/fs/cgroup/memory");
        let (base, file) = if v1.is_dir() {
            (v1, "memory.limit_in_bytes")
        } else {
            (Path::new("/sys/fs/cgroup"), "memory.max")
        };
        let group = base.join(name);
        fs::create_dir(&group).expect("this test makes a memory cgroup: run it as root");
        fs::write(group.join(file), bytes.to_string()).unwrap();
        Limit { group }
    }

    /// Runs a command with this limit. Returns its exit code and its standard error.
    fn run(&self, words: &[String]) -> (Option<i32>, String) {
        let script = format!("echo $$ >{}/cgroup.procs && exec \"$@\"", self.group.display());
        let output = Command::new("sh")
            .args(["-c", &script, "-"])
            .args(words)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.group);
    }
}

#[test]
fn install_and_view_run_with_16_mib_of_memory() {
    let limit = Limit::new(16 << 20);
    let to = folder();
    let (code, stderr) = limit.run(&words(agent(), &["install", "--to", to.path().to_str().unwrap()]));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(fs::read(to.path().join("flux-agent")).unwrap() == fs::read(agent()).unwrap());

    let image = view_image("version ");
    let large = vec![7; 60 << 20];
    fs::write(image.path().join("opt/software/flux/large"), &large).unwrap();
    // The agent reads its memory limit below `--root`. If it is small, the copy saves memory.
    fs::create_dir_all(image.path().join("sys/fs/cgroup")).unwrap();
    fs::write(
        image.path().join("sys/fs/cgroup/memory.max"),
        (16 << 20).to_string(),
    )
    .unwrap();
    let pod = folder();
    let (code, stderr) = limit.run(&view(image.path(), pod.path()));
    assert_eq!(code, Some(0), "{stderr}");
    assert!(fs::read(pod.path().join("software/flux/large")).unwrap() == large);
}

#[test]
fn leftovers_of_a_killed_broker_do_not_block_the_next_start() {
    let job = "[ -e /record/second ] || { >/record/second; kill -9 -1; }";
    let image = Image::usual();
    image.hosts("mc", "flux-service", 1);
    // No sidecar runs. The spec has one so that the agent also writes the file `ended`.
    let spec = format!(
        "name = 'mc'\nrestart_policy = 'OnFailure'\n[runner.program]\nmode = 'submit'\nwords = ['bash', '-c', '{job}']\n\
         [sidecars.client]\ncommand = 'exec flux proxy $fluxsocket flux uptime'\n"
    );
    image.file("/etc/flux-agent/spec/agent.toml", 0o444, &spec);
    let lead = || {
        let mut container = Container::new(&image, "mc-0", &[AGENT, "run"]);
        // The agent must not be process 1, which only the kubelet could kill.
        container.outside = ["sh", "-c", "\"$@\"; exit $?", "-"].map(str::to_owned).into();
        container
    };
    assert_eq!(image::run(&[lead()])[0].code, 137);
    let socket = image.at("/mnt/flux/config/run/flux/local");
    assert!(
        fs::symlink_metadata(&socket).is_ok_and(|data| !data.is_file()),
        "the killed broker must leave its socket"
    );
    let before = image.tree();
    assert_eq!(image::run(&[lead()])[0].code, 0);
    let mut want = before;
    want.remove("/mnt/flux/config/run/flux/local");
    let mut have = image.tree();
    for tree in [&mut want, &mut have] {
        tree.remove("/mnt/flux/config/agent/starts");
        tree.remove("/mnt/flux/config/program-result");
        // Only the second run came to its end, and wrote this file for the sidecar.
        tree.remove("/mnt/flux/config/ended");
    }
    assert_same(&want, &have, "the second run");
}
