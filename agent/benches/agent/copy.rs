//! `flux-agent view` against `cp -a` of the same two trees into the same file system, one pod and four at once.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use nix::sys::wait::{Id, WaitPidFlag, waitid};

use crate::cpu::cpu_of_children;
use crate::report::{Report, median, setting};

/// As in the released images: 10,000 entries, 130 MB, the view itself links and folders only.
const FILES: usize = 4000;
const LINKS: usize = 5400;
const FOLDERS: usize = 600;
const BYTES: u64 = 130_000_000;
const VIEW: &str = "opt/views/._view/abcdefghijklmnopqrstuvwxyz234567";

pub fn measure(agent: &Path, report: &mut Report) {
    let top = PathBuf::from(std::env::var("BENCH_DIR").unwrap_or_else(|_| env!("CARGO_TARGET_TMPDIR").into()));
    let top = top.join(format!("flux-agent-copy-{}", std::process::id()));
    let image = top.join("image");
    let size = generate(&image);
    let runs = setting("BENCH_COPIES", 5);
    eprintln!("copy: {size} bytes in {}, {runs} runs of each in turn", top.display());
    let view = |pod: &Path| {
        let mut command = Command::new(agent);
        command.arg("view").arg("--root").arg(&image).arg("--to").arg(pod.join("flux"));
        command.arg("--software").arg(pod.join("software"));
        command
    };
    let cp = |pod: &Path| {
        let (from, to) = (image.display(), pod.display());
        let line = format!(
            "mkdir -p {to}/flux/view {to}/software && cp -a {from}/{VIEW}/. {to}/flux/view && cp -a {from}/opt/software/. {to}/software"
        );
        let mut command = Command::new("sh");
        command.args(["-c", &line]);
        command
    };
    for (name, pods) in [("one", 1), ("four", 4)] {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for run in 0..runs {
            ours.push(copies(&top.join(format!("{name}-{run}-ours")), pods, &view));
            theirs.push(copies(&top.join(format!("{name}-{run}-theirs")), pods, &cp));
        }
        let time = |copies: &[Copies]| median(&copies.iter().map(|copies| copies.seconds).collect::<Vec<_>>());
        let cpu = |copies: &[Copies]| median(&copies.iter().map(|copies| copies.cpu).collect::<Vec<_>>());
        report.figure(&format!("copy-{name}-s"), time(&ours));
        report.figure(&format!("copy-{name}-cp-s"), time(&theirs));
        report.figure(&format!("copy-{name}-ratio"), time(&ours) / time(&theirs));
        report.figure(&format!("copy-{name}-cpu-ratio"), cpu(&ours) / cpu(&theirs));
        if pods == 1 {
            report.figure("copy-written-ratio", ours[0].written as f64 / size as f64);
        }
    }
    fs::remove_dir_all(&top).unwrap();
}

struct Copies {
    seconds: f64,
    cpu: f64,
    /// Bytes.
    written: u64,
}

/// Makes `pods` copies at once. They stay until all is measured: ext4 searches long for inodes that were not freed just now.
fn copies(top: &Path, pods: usize, command: &dyn Fn(&Path) -> Command) -> Copies {
    let folders: Vec<PathBuf> = (0..pods).map(|pod| top.join(format!("pod-{pod}"))).collect();
    folders.iter().for_each(|pod| fs::create_dir_all(pod).unwrap());
    nix::unistd::sync();
    let cpu = cpu_of_children();
    let begin = Instant::now();
    let start = |pod: &PathBuf| command(pod).stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut children: Vec<Child> = folders.iter().map(start).collect();
    let mut written = 0;
    for child in &mut children {
        // Looked at before it is reaped.
        let id = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
        waitid(Id::Pid(id), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
        let counters = fs::read_to_string(format!("/proc/{id}/io")).unwrap_or_default();
        written += counters.lines().find_map(|line| line.strip_prefix("wchar: ")?.parse::<u64>().ok()).unwrap_or(0);
    }
    let seconds = begin.elapsed().as_secs_f64();
    for child in &mut children {
        assert!(child.wait().unwrap().success(), "a copy failed");
    }
    let cpu = cpu_of_children() - cpu;
    Copies { seconds, cpu, written }
}

/// Makes an image's tree; returns the bytes in its files.
fn generate(image: &Path) -> u64 {
    let (software, view) = (image.join("opt/software"), image.join(VIEW));
    for folder in 0..FOLDERS / 2 {
        for top in [&software, &view] {
            fs::create_dir_all(top.join(folder_name(folder))).unwrap();
        }
    }
    // Many small files and a few large ones: twenty hold half of the bytes.
    let large = 20;
    let small_size = BYTES / 2 / (FILES - large) as u64;
    let mut total = 0;
    for file in 0..FILES {
        let size =
            if file < large { BYTES / 2 / large as u64 } else { small_size / 2 + small_size * (file as u64 % 5) / 4 };
        let content: Vec<u8> = (0..size).map(|at| (at.wrapping_mul(31) ^ file as u64) as u8).collect();
        fs::write(software.join(folder_name(file)).join(format!("file-{file}")), &content).unwrap();
        total += size;
    }
    for link in 0..LINKS {
        let file = link % FILES;
        let target = format!("/opt/software/{}/file-{file}", folder_name(file));
        symlink(target, view.join(folder_name(link)).join(format!("link-{link}"))).unwrap();
    }
    symlink(format!("/{VIEW}"), image.join("opt/view")).unwrap();
    total
}

fn folder_name(number: usize) -> String {
    let number = number % (FOLDERS / 2);
    format!("part-{}/folder-{number}", number % 7)
}
