//! The time from exec of the entrypoint to exec of flux. The fake flux notes when it runs. The time of a direct
//! exec of the fake flux, which is the cost of starting any process, is subtracted.

use std::process::{Command, Stdio};
use std::time::SystemTime;

use crate::cpu::cpu_of_children;
use crate::place::{AGENT, CLUSTER, FAKE_FLUX};
use test_support::report::{Report, median, quantile, setting};

const NOTE: &str = "/mnt/note";

/// Milliseconds since the epoch.
fn now() -> f64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap()
        .as_secs_f64()
        * 1e3
}

/// What is executed as `flux`.
pub fn fake_flux() {
    let time = now();
    // In the benchmark `wait`, this program is the broker of a follower that has joined.
    if crate::wait::is_fake_of_joined() {
        return crate::wait::stay_joined();
    }
    // The bash entrypoint runs `flux R encode` before. Only `flux start` ends the measurement.
    if std::env::args().nth(1).is_some_and(|word| word == "start") {
        std::fs::write(NOTE, time.to_string()).unwrap();
    }
}

/// Milliseconds until the fake flux ran, and milliseconds of CPU time in total.
fn once(command: &mut Command) -> (f64, f64) {
    // This folder has the agent's record of starts. With it, the agent might not start flux again.
    let _ = std::fs::remove_dir_all("/mnt/flux/config");
    let _ = std::fs::remove_file(NOTE);
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .env("HOME", "/root")
        .current_dir("/mnt");
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let (begin, cpu) = (now(), cpu_of_children());
    let status = command.status().unwrap();
    let noted =
        std::fs::read_to_string(NOTE).unwrap_or_else(|_| panic!("{command:?}: {status}, and flux never ran"));
    (
        noted.parse::<f64>().unwrap() - begin,
        (cpu_of_children() - cpu) * 1e3,
    )
}

pub fn measure(report: &mut Report) {
    std::fs::write("/mnt/entrypoint.bash", include_str!("entrypoint.bash")).unwrap();
    let spec = crate::write_spec(CLUSTER);
    let direct = || command(&[FAKE_FLUX, "start"]);
    let agent = || {
        command(&[
            AGENT,
            "run",
            "--spec",
            &spec,
            "--termination-log",
            "/mnt/termination",
        ])
    };
    // The last arguments are the size and tasks that `write_spec` writes.
    let bash = || command(&["bash", "/mnt/entrypoint.bash", CLUSTER, "4", "4"]);
    let runs = setting("BENCH_RUNS", 200);
    eprintln!("start: {runs} runs of each in turn");
    let (mut times, mut cpu): ([Vec<f64>; 3], [Vec<f64>; 3]) = Default::default();
    for _ in 0..runs {
        for (number, mut command) in [direct(), agent(), bash()].into_iter().enumerate() {
            let (time, used) = once(&mut command);
            times[number].push(time);
            cpu[number].push(used);
        }
    }
    let [floor, with_agent, with_bash] = times.each_ref().map(|times| median(times));
    // On a busy machine, the median of the runs includes waits for other processes. Their fastest tenth hardly does.
    let [fast_floor, fast_agent, _] = times.each_ref().map(|times| quantile(times, 0.1));
    report.figure("start-floor-ms", floor);
    report.figure("start-ms", with_agent - floor);
    report.figure("start-ms-fast-tenth", fast_agent - fast_floor);
    report.figure("start-bash-ms", with_bash - floor);
    report.figure("start-ratio", (with_agent - floor) / (with_bash - floor));
    let [floor, with_agent, with_bash] = cpu.each_ref().map(|times| median(times));
    report.figure("start-cpu-ms", with_agent - floor);
    report.figure("start-cpu-ratio", (with_agent - floor) / (with_bash - floor));
    for (name, command) in [("start-processes", agent()), ("start-bash-processes", bash())] {
        if let Some(count) = processes(command) {
            report.figure(name, count as f64);
        }
    }
}

fn command(words: &[&str]) -> Command {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

/// The number of processes that were started besides `flux start` and the entrypoint. None without strace.
fn processes(command: Command) -> Option<usize> {
    let mut traced = Command::new("strace");
    traced.args([
        "-f",
        "-qq",
        "-e",
        "trace=clone,clone3,fork,vfork",
        "-e",
        "signal=none",
        "-o",
        "/mnt/trace",
    ]);
    traced.arg(command.get_program()).args(command.get_args());
    if Command::new("strace").arg("-V").output().is_err() {
        eprintln!("  processes are not counted: there is no strace");
        return None;
    }
    once(&mut traced);
    let trace = std::fs::read_to_string("/mnt/trace").unwrap();
    // strace writes an interrupted call as two lines. The second one has the word `resumed`.
    let is_begin =
        |line: &&str| line.contains("fork(") || (line.contains("clone") && !line.contains("resumed"));
    let started = trace
        .lines()
        .filter(is_begin)
        .filter(|line| !line.contains("CLONE_THREAD"))
        .count();
    // One of them is `flux start`.
    Some(started.saturating_sub(1))
}
