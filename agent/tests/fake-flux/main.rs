//! A fake `flux`, for tests and for the images of CI. It behaves like the real one as far as pods start, join,
//! run and end. Its behaviour was measured with flux-core 0.88. `make test-flux` runs many of the same tests with
//! the real Flux.
//!
//! As in the real one: the rank comes from the hostlist. Jobs of the lead run on the requested number of nodes. A
//! follower waits for the lead, ends with 0 when dismissed or stopped, and stays up when the lead is killed.
//! The lead runs the program once the quorum has joined. SIGTERM to the lead becomes SIGHUP to the program,
//! whose code, but at least 1, is the lead's. `submit --watch` holds output and errors back unless they go to terminals.
//!
//! With `FAKE_FLUX_RECORD=FILE`, each call appends one line of JSON to the file.
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a program for tests"
)]

mod archive;
mod book;
mod broker;
mod configuration;
mod jobs;
mod message;
mod remote;
mod resources;
mod waiting;

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    record();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    ExitCode::from(match words.as_slice() {
        ["start", rest @ ..] => start(rest),
        ["broker", rest @ ..] => broker::run(rest),
        ["submit" | "run", rest @ ..] => jobs::submit(rest, words[0] == "run"),
        ["batch", rest @ ..] => jobs::batch(rest),
        ["job", "wait-event", "-v", _, event] => say(&format!("1.0 {event}")),
        ["job", "status", id] => jobs::code_of(id),
        ["shutdown", ..] => broker::ask("shutdown").map_or(1, |_| 0),
        ["uptime"] => broker::ask("uptime").map_or(1, |answer| say(&answer)),
        ["overlay", "status", rest @ ..] => {
            let request = if rest.contains(&"-v") {
                "overlay -v"
            } else {
                "overlay"
            };
            broker::ask(request).map_or(1, |answer| say(&answer))
        }
        ["getattr", name] => broker::ask(&format!("getattr {name}")).map_or(1, |answer| say(&answer)),
        ["listen"] => listen(),
        ["proxy", uri, command @ ..] if !command.is_empty() => proxy(uri, command),
        ["keygen", .., path] => keygen(path),
        ["version" | "--version", ..] => say("commands:\t\tfake"),
        ["job", "wait", "--all"] => u8::from(!jobs::failed().is_empty()),
        ["jobs", rest @ ..] if rest.contains(&"{name}") => say(&jobs::failed()),
        ["queue", "idle"] | ["jobs", ..] | ["module", ..] => 0,
        ["R", "encode", rest @ ..] => resources::encode(rest).map_or(1, |r| say(&r)),
        ["resource", "list", "-no", form] => resources::list(form).map_or(1, |line| say(&line)),
        ["queue", "drain"] => waiting::drain(),
        ["queue", "start", ..] => broker::ask("start queues").map_or(1, |_| 0),
        ["kvs", "get", "checkpoint.job-manager"] => match broker::ask("getattr content.restore") {
            // The value of an attribute that is not set is its name.
            Some(value) if value != "content.restore" => say(r#"{"queue":[{"name":"debug"}]}"#),
            _ => 1,
        },
        ["queue", "list", ..] => broker::ask("queues").map_or(1, |answer| say(&answer)),
        ["lsattr" | "dmesg" | "resource" | "queue", ..] => say(&format!("fake: {}", words.join(" "))),
        other => {
            eprintln!("flux: {other:?} is unknown to the fake Flux");
            1
        }
    })
}

/// Becomes the broker or, as with the real one, the command in `--wrap`, which runs the broker.
fn start(words: &[&str]) -> u8 {
    let Some(wrap) = words.iter().find_map(|word| word.strip_prefix("--wrap=")) else {
        return broker::run(words);
    };
    let mut wrapper = wrap.split(',');
    let broker = words.iter().filter(|word| !word.starts_with("--wrap="));
    let error = Command::new(wrapper.next().unwrap_or_default())
        .args(wrapper)
        .args(std::env::args().take(1))
        .arg("broker")
        .args(broker)
        .exec();
    eprintln!("flux-start: {wrap}: {error}");
    127
}

fn say(text: &str) -> u8 {
    println!("{text}");
    0
}

/// For tests of signals: prints each signal that it gets.
fn listen() -> u8 {
    let all = nix::sys::signal::SigSet::all();
    all.thread_block().expect("signals can be blocked");
    let fd = nix::sys::signalfd::SignalFd::new(&all).expect("a descriptor of signals");
    println!("ready");
    while let Ok(Some(info)) = fd.read_signal() {
        println!("got {}.", info.ssi_signo);
    }
    1
}

/// Writes the client's key pair of ZeroMQ's manual. The fake brokers do not use it. It is not the server's pair: tests
/// assert that the server's secret key (`KEY` in `tests/it/image.rs`) is in no log.
fn keygen(path: &str) -> u8 {
    let text = "metadata\n    name = \"fake\"\ncurve\n    public-key = \"Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID\"\n    \
                secret-key = \"D:)Q[IlAW!ahhC2ac:9*A}h:p?([4%wOTJ%JR%cs\"\n";
    u8::from(std::fs::write(path, text).is_err())
}

fn proxy(uri: &str, command: &[&str]) -> u8 {
    let error = Command::new(command[0])
        .args(&command[1..])
        .env("FLUX_URI", uri)
        .exec();
    eprintln!("flux-proxy: {}: {error}", command[0]);
    127
}

/// Appends the arguments, environment and other facts of this call to the record.
fn record() {
    let Some(path) = std::env::var_os("FAKE_FLUX_RECORD") else {
        return;
    };
    let environment: std::collections::BTreeMap<String, String> = std::env::vars_os()
        .map(|(name, value)| {
            (
                name.to_string_lossy().into_owned(),
                value.to_string_lossy().into_owned(),
            )
        })
        .collect();
    let mask = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o022));
    nix::sys::stat::umask(mask);
    let (files, _) =
        nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).unwrap_or_default();
    let line = serde_json::json!({
        "argv": std::env::args().collect::<Vec<_>>(),
        "environment": environment,
        "directory": std::env::current_dir().unwrap_or_default(),
        "uid": nix::unistd::getuid().as_raw(),
        "gid": nix::unistd::getgid().as_raw(),
        "groups": nix::unistd::getgroups().unwrap_or_default().iter().map(|gid| gid.as_raw()).collect::<Vec<_>>(),
        "umask": format!("{:04o}", mask.bits()),
        "nofile": files,
        "pid": std::process::id(),
        "time": std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
    });
    let file = std::fs::OpenOptions::new().append(true).create(true).open(path);
    let _ = file.and_then(|mut file| file.write_all(format!("{line}\n").as_bytes()));
}
