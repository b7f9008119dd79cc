//! Tasks on other nodes: the lead's broker sends a task to a follower's broker, and the output comes back in
//! frames.
//!
//! ```text
//! submit ─ "exec RANK TASK" ─► lead ─ "exec NUMBER TASK" ─► follower, which starts it
//! submit ◄──── frames ──────── lead ◄─ "result NUMBER", frames ──────┘
//! submit ─ a byte, or its end ► lead ──────────────────► follower, which tells the task to stop
//! ```

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

/// Prefix of a task, on both connections.
pub const EXEC: &str = "exec ";
/// Prefix of the number of the task whose frames follow.
pub const RESULT: &str = "result ";

const OUTPUT: u8 = b'o';
const ERRORS: u8 = b'e';
const CODE: u8 = b'x';

/// How a task ended, and its output unless that was printed at once.
#[derive(Debug, Default)]
pub struct Ended {
    pub output: Vec<u8>,
    pub errors: Vec<u8>,
    pub code: u8,
}

/// Starts a task on another node, with this process's folder and environment and `more` variables. Any byte on the
/// returned connection stops the task.
pub fn start(
    rank: u32,
    command: &[&str],
    more: Vec<(String, String)>,
    live: bool,
    live_errors: bool,
) -> (Option<UnixStream>, JoinHandle<Ended>) {
    let environment: Vec<(String, String)> = std::env::vars().chain(more).collect();
    let folder = std::env::current_dir().unwrap_or_default();
    let task = json!({ "command": command, "environment": environment, "folder": folder });
    let stream = super::broker::client(&format!("{EXEC}{rank} {task}"));
    let stop = stream.as_ref().and_then(|stream| stream.try_clone().ok());
    let read = std::thread::spawn(move || {
        let mut ended = Ended {
            code: 1,
            ..Ended::default()
        };
        if let Some(mut stream) = stream {
            while let Some((kind, bytes)) = frame(&mut stream) {
                match kind {
                    OUTPUT if live => drop(std::io::stdout().write_all(&bytes)),
                    OUTPUT => ended.output.extend(bytes),
                    ERRORS if live_errors => drop(std::io::stderr().write_all(&bytes)),
                    ERRORS => ended.errors.extend(bytes),
                    _ => ended.code = bytes.first().copied().unwrap_or(1),
                }
            }
        }
        ended
    });
    (stop, read)
}

fn frame(stream: &mut UnixStream) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 5];
    stream.read_exact(&mut head).ok()?;
    let mut bytes = vec![0; u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize];
    stream.read_exact(&mut bytes).ok()?;
    Some((head[0], bytes))
}

/// On the lead: copies the follower's frames to the client, and the client's bytes to the follower.
pub fn carry(mut from: TcpStream, mut to: UnixStream, ended: impl FnOnce() + Send + 'static) {
    if let (Ok(mut back), Ok(mut client)) = (from.try_clone(), to.try_clone()) {
        std::thread::spawn(move || {
            let _ = std::io::copy(&mut client, &mut back);
            back.shutdown(Shutdown::Write)
        });
    }
    std::thread::spawn(move || {
        let _ = std::io::copy(&mut from, &mut to);
        // First, so that the lead notes the task's end before it answers what the client asks next.
        ended();
        to.shutdown(Shutdown::Both)
    });
}

/// On a follower: runs `NUMBER TASK`, and sends its output to the lead.
pub fn run(line: &str, lead: &str, uri: Option<(String, String)>) {
    let (line, lead) = (line.to_owned(), lead.to_owned());
    std::thread::spawn(move || {
        let (number, task) = line.split_once(' ')?;
        let task: Value = serde_json::from_str(task).ok()?;
        let mut stream = TcpStream::connect(lead).ok()?;
        writeln!(stream, "{RESULT}{number}").ok()?;
        let stop_request = stream.try_clone().ok()?;
        let stream = Arc::new(Mutex::new(stream));
        let mut child = match command(&task, uri)?.spawn() {
            Ok(child) => child,
            Err(error) => {
                let code = if error.kind() == std::io::ErrorKind::NotFound {
                    127
                } else {
                    126
                };
                send(
                    &stream,
                    ERRORS,
                    format!("flux-shell: ERROR: {error}\n").as_bytes(),
                );
                send(&stream, CODE, &[code]);
                end(&stream);
                return None;
            }
        };
        let pid = Pid::from_raw(child.id().cast_signed());
        let is_running = Arc::new(AtomicBool::new(true));
        let still_runs = is_running.clone();
        std::thread::spawn(move || {
            // `end` ends this read, too. By then the pid may belong to another process.
            let _ = (&stop_request).read(&mut [0]);
            still_runs.load(Relaxed).then(|| kill(pid, Signal::SIGTERM))
        });
        let errors = child
            .stderr
            .take()
            .map(|pipe| forward(pipe, ERRORS, stream.clone()));
        let output = child
            .stdout
            .take()
            .map(|pipe| forward(pipe, OUTPUT, stream.clone()));
        let status = child.wait().ok()?;
        is_running.store(false, Relaxed);
        for pipe in [errors, output].into_iter().flatten() {
            let _ = pipe.join();
        }
        let code = status
            .code()
            .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
        send(&stream, CODE, &code.to_le_bytes()[..1]);
        end(&stream);
        Some(())
    });
}

#[allow(unsafe_code, reason = "sigprocmask may be called between fork and exec")]
fn command(task: &Value, uri: Option<(String, String)>) -> Option<Command> {
    let words: Vec<&str> = task["command"]
        .as_array()?
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let environment = task["environment"].as_array()?.iter();
    let mut command = Command::new(words.first()?);
    command
        .args(&words[1..])
        .env_clear()
        .current_dir(task["folder"].as_str()?);
    command
        .envs(environment.filter_map(|pair| Some((pair[0].as_str()?, pair[1].as_str()?))))
        .envs(uri);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    // SAFETY: the closure makes one system call and allocates nothing.
    unsafe { command.pre_exec(|| Ok(SigSet::all().thread_unblock()?)) };
    Some(command)
}

fn forward(mut pipe: impl Read + Send + 'static, kind: u8, stream: Arc<Mutex<TcpStream>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Some(count) = pipe.read(&mut buffer).ok().filter(|count| *count > 0) {
            send(&stream, kind, &buffer[..count]);
        }
    })
}

/// Closes the connection. To drop the stream would not be enough: a thread may read from a copy of it.
fn end(stream: &Mutex<TcpStream>) {
    let _ = stream.lock().expect("no thread panics").shutdown(Shutdown::Both);
}

fn send(stream: &Mutex<TcpStream>, kind: u8, bytes: &[u8]) {
    let length = u32::try_from(bytes.len()).unwrap_or_default().to_be_bytes();
    let _ = stream
        .lock()
        .expect("no thread panics")
        .write_all(&[&[kind], length.as_slice(), bytes].concat());
}
