//! `flux-agent view` against `cp -a`: the same two trees into the same file system, for one pod, and for four
//! at once.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use nix::sys::wait::{Id, WaitPidFlag, waitid};

use crate::cpu::cpu_of_children;
use test_support::report::{Report, median, setting};

/// The view's folder in the generated image. /opt/view is a link to it.
const VIEW: &str = "opt/views/._view/abcdefghijklmnopqrstuvwxyz234567";
/// About as in the released images: 10,000 entries and 130 MB. The view itself has only links and folders.
const PACKAGES: usize = 40;
const BYTES: usize = 130_000_000;
/// The number of large files, which hold half of the bytes.
const LARGE: usize = 20;
/// Folders of one package with the numbers of their files. A seventh of the links are in folders that packages
/// share, so that the agent cannot replace these folders by links. (In the image that was measured: an eighth.)
const FOLDERS: [(&str, usize); 10] = [
    ("bin", 3),
    ("lib", 3),
    ("share/man/man3", 6),
    ("share/PACKAGE/a", 12),
    ("share/PACKAGE/b", 12),
    ("share/PACKAGE/c", 12),
    ("share/PACKAGE/d", 22),
    ("lib/python3.11/site-packages/PACKAGE", 10),
    ("lib/python3.11/site-packages/PACKAGE/one", 10),
    ("lib/python3.11/site-packages/PACKAGE/two", 10),
];

/// Copies with both programs in turn. Each copies to folders of its own: `ours` is by the agent, `theirs` by `cp`.
/// BENCH_DIR is where they are. BENCH_VIEW is the root of a real image, which replaces the generated one.
pub fn measure(agent: &Path, report: &mut Report) {
    let top =
        PathBuf::from(std::env::var("BENCH_DIR").unwrap_or_else(|_| env!("CARGO_TARGET_TMPDIR").into()));
    let top = top.join(format!("flux-agent-copy-{}", std::process::id()));
    let real = std::env::var_os("BENCH_VIEW").map(PathBuf::from);
    let image = real.clone().unwrap_or_else(|| top.join("image"));
    if real.is_none() {
        generate(&image);
    }
    let view_folder = fs::read_dir(image.join("opt/views/._view"))
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let size = bytes_in(&image.join("opt"));
    let runs = setting("BENCH_COPIES", 5);
    eprintln!(
        "copy: {size} bytes in {}, {runs} runs of each in turn",
        top.display()
    );
    let view = |pod: &Path| {
        let mut command = Command::new(agent);
        command
            .arg("view")
            .arg("--root")
            .arg(&image)
            .arg("--to")
            .arg(pod.join("flux"));
        command.arg("--software").arg(pod.join("software"));
        command
    };
    let cp = |pod: &Path| {
        let (view, from, to) = (view_folder.display(), image.display(), pod.display());
        let line = format!(
            "mkdir -p {to}/flux/view {to}/software && cp -a {view}/. {to}/flux/view && cp -a {from}/opt/software/. {to}/software"
        );
        let mut command = Command::new("sh");
        command.args(["-c", &line]);
        command
    };
    for (name, pods) in [("one", 1), ("four", 4), ("again", 4)] {
        if name == "again" {
            // As on a node whose previous MiniCluster has ended: the file system has just freed inodes.
            (0..runs).for_each(|run| fs::remove_dir_all(top.join(format!("four-{run}-theirs"))).unwrap());
        }
        // One run: the folders above are removed only once.
        let runs = if name == "again" { 1 } else { runs };
        let (mut agent_copies, mut cp_copies) = (Vec::new(), Vec::new());
        for run in 0..runs {
            agent_copies.push(copies(&top.join(format!("{name}-{run}-ours")), pods, size, &view));
            cp_copies.push(copies(&top.join(format!("{name}-{run}-theirs")), pods, size, &cp));
        }
        let time =
            |copies: &[Copies]| median(&copies.iter().map(|copies| copies.seconds).collect::<Vec<_>>());
        let cpu = |copies: &[Copies]| median(&copies.iter().map(|copies| copies.cpu).collect::<Vec<_>>());
        report.figure(&format!("copy-{name}-s"), time(&agent_copies));
        report.figure(&format!("copy-{name}-cp-s"), time(&cp_copies));
        report.figure(
            &format!("copy-{name}-ratio"),
            time(&agent_copies) / time(&cp_copies),
        );
        report.figure(
            &format!("copy-{name}-cpu-ratio"),
            cpu(&agent_copies) / cpu(&cp_copies),
        );
        // The same in every run: the agent writes each byte once (none if the file system has reflinks).
        if pods == 1 {
            report.figure("copy-written-ratio", agent_copies[0].written as f64 / size as f64);
        }
    }
    fs::remove_dir_all(&top).unwrap();
}

struct Copies {
    seconds: f64,
    cpu: f64,
    /// Bytes that the processes wrote.
    written: u64,
}

/// Touches `bytes` of memory and frees them. A virtual machine may get memory from its host only when it is touched,
/// and return it two seconds after it was freed. Without this, some of the copies would pay for that.
fn touch(bytes: usize) {
    let mut memory = vec![0_u8; bytes];
    memory.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    std::hint::black_box(memory);
}

/// Makes `pods` copies of `size` bytes at once, and does not remove them: after a removal, ext4 searches longer for
/// inodes, since it skips those that it has just freed (`again` measures that).
fn copies(top: &Path, pods: usize, size: u64, command: &dyn Fn(&Path) -> Command) -> Copies {
    let folders: Vec<PathBuf> = (0..pods).map(|pod| top.join(format!("pod-{pod}"))).collect();
    folders.iter().for_each(|pod| fs::create_dir_all(pod).unwrap());
    nix::unistd::sync();
    // More than the page cache that the copies and their source take.
    touch(3 * pods * usize::try_from(size).unwrap());
    let cpu = cpu_of_children();
    let begin = Instant::now();
    let start = |pod: &PathBuf| {
        command(pod)
            .stdin(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut children: Vec<Child> = folders.iter().map(start).collect();
    let mut written = 0;
    for child in &mut children {
        // Reads the counters before the process is reaped.
        let id = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
        waitid(Id::Pid(id), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
        let counters = fs::read_to_string(format!("/proc/{id}/io")).unwrap_or_default();
        written += counters
            .lines()
            // The bytes that the process has written.
            .find_map(|line| line.strip_prefix("wchar: ")?.parse::<u64>().ok())
            .unwrap_or(0);
    }
    let seconds = begin.elapsed().as_secs_f64();
    for child in &mut children {
        assert!(child.wait().unwrap().success(), "a copy failed");
    }
    let cpu = cpu_of_children() - cpu;
    Copies {
        seconds,
        cpu,
        written,
    }
}

/// Makes the tree of an image: packages, and a view with a link to each of their files.
fn generate(image: &Path) {
    let (software, view) = (image.join("opt/software"), image.join(VIEW));
    let files = PACKAGES * FOLDERS.iter().map(|(_, files)| files).sum::<usize>();
    let mut number = 0;
    for package in 0..PACKAGES {
        let package = format!("package-{package}");
        for (folder, files_in_it) in FOLDERS {
            let folder = folder.replace("PACKAGE", &package);
            let (files_dir, links_dir) = (software.join(&package).join(&folder), view.join(&folder));
            fs::create_dir_all(&files_dir).unwrap();
            fs::create_dir_all(&links_dir).unwrap();
            let add = |name: String, create: &dyn Fn(&Path)| {
                create(&files_dir.join(&name));
                symlink(
                    format!("/opt/software/{package}/{folder}/{name}"),
                    links_dir.join(name),
                )
                .unwrap();
            };
            for file in 0..files_in_it {
                // The other half of the bytes: half to one and a half of `small` for each file, on average `small`.
                let small = BYTES / 2 / (files - LARGE);
                let size = match number {
                    ..LARGE => BYTES / 2 / LARGE,
                    _ => small / 2 + small * (number % 5) / 4,
                };
                // Of 256 files in a row, no two have the same bytes.
                let content: Vec<u8> = (0..size).map(|at| (at.wrapping_mul(31) ^ number) as u8).collect();
                let name = format!("{package}-file-{file}");
                add(name.clone(), &|path| fs::write(path, &content).unwrap());
                // As for shared libraries: a link with a version.
                if folder == "lib" {
                    add(format!("{name}.1"), &|path| symlink(&name, path).unwrap());
                }
                number += 1;
            }
        }
    }
    symlink(format!("/{VIEW}"), image.join("opt/view")).unwrap();
}

/// Bytes in the files below a folder.
fn bytes_in(folder: &Path) -> u64 {
    let entries = fs::read_dir(folder).unwrap().map(Result::unwrap);
    let size = |entry: fs::DirEntry| match entry.metadata().unwrap() {
        data if data.is_dir() => bytes_in(&entry.path()),
        data if data.is_file() => data.len(),
        _ => 0,
    };
    entries.map(size).sum()
}
