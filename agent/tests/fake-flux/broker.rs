//! Brokers: the lead listens, followers connect to it.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, IsTerminal, Read, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::book::{Book, join, members};
use super::configuration::{Broker, read};
use super::jobs::code;
use super::{archive, message, remote, resources, waiting};

const GOODBYE: &str = "goodbye\n";
/// Prefix of a message that a follower forwards to the lead. The topic, a blank and the payload follow.
const QUESTION: &str = "question ";
/// The group whose member is the lead's agent as long as the lead stays up.
const STAYING: &str = "flux-agent.staying";

enum Event {
    /// The start-up scripts have ended, and whether all have succeeded.
    ScriptsEnded(bool),
    Signal(Signal),
    /// A follower joined: its rank, the number of its connection, and the connection.
    Joined(u32, u64, TcpStream),
    /// The connection with this number has ended.
    Left(u32, u64),
    /// The lead is not the one that this broker joined earlier.
    Rejected,
    /// A message of a follower's client: topic and payload.
    Question(String, String, TcpStream),
    /// The task with this number has ended.
    Ended(u64),
    /// The lead said goodbye to this follower.
    Dismissed,
    /// `flux shutdown`.
    Shutdown,
    /// A client's request on the local socket, as `message::request` returns it, and the connection for the answer.
    Ask(String, UnixStream),
    /// The result of the task with this number.
    Result(u64, TcpStream),
}

pub fn run(words: &[&str]) -> u8 {
    let mut signals = SigSet::empty();
    for signal in [
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGCHLD,
        Signal::SIGUSR1,
    ] {
        signals.add(signal);
    }
    signals.thread_block().expect("signals can be blocked");
    let broker = match read(words) {
        Ok(broker) => broker,
        Err(why) => {
            eprintln!("flux-broker: {why}");
            return 1;
        }
    };
    let name = std::ffi::CString::new(format!("flux-broker-{}", broker.rank)).expect("no byte is 0");
    let _ = nix::sys::prctl::set_name(&name);
    let (sender, events) = channel();
    let to = sender.clone();
    std::thread::spawn(move || {
        while let Ok(signal) = signals.wait() {
            let _ = to.send(Event::Signal(signal));
        }
    });
    let socket = broker
        .attributes
        .get("local-uri")
        .and_then(|uri| uri.strip_prefix("local://"))
        .map(str::to_owned);
    if let Some(path) = &socket {
        serve(path, sender.clone());
    }
    let code = if broker.rank == 0 {
        broker.with_archive(&sender, &events)
    } else {
        broker.follow(&sender, &events)
    };
    if let Some(path) = socket {
        let _ = std::fs::remove_file(path);
    }
    code
}

/// Reports the state `run` once this broker has joined, and then nothing more while the connection lasts.
fn report_when_joined(mut stream: UnixStream, joined: &AtomicBool) {
    while !joined.load(Relaxed) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let _ = stream.write_all(&message::answer("state-machine.monitor", Some(&state_of("run"))));
    let _ = std::io::copy(&mut stream, &mut std::io::sink());
}

/// Dumps the archive. Meanwhile, this broker answers nothing but its state.
fn dump_and_answer(path: &str, state: Option<&str>, events: &Receiver<Event>) -> Result<(), String> {
    std::thread::scope(|scope| {
        let dump = scope.spawn(|| archive::dump(path, state));
        let mut unanswered = Vec::new();
        while !dump.is_finished() {
            let Ok(Event::Ask(request, mut stream)) = events.recv_timeout(Duration::from_millis(20)) else {
                continue;
            };
            match message::parts(&request) {
                Some((topic @ "state-machine.get", _)) => {
                    let _ = stream.write_all(&message::answer(topic, Some(&state_of("finalize"))));
                }
                _ => unanswered.push(stream),
            }
        }
        dump.join().expect("no thread panics")
    })
}

/// Sends a task to its follower. Returns the follower's rank if it is online.
fn pass_on(request: &str, number: u64, followers: &mut BTreeMap<u32, TcpStream>) -> Option<u32> {
    let (rank, task) = request[remote::EXEC.len()..].split_once(' ')?;
    let rank = rank.parse().ok()?;
    let _ = writeln!(followers.get_mut(&rank)?, "{}{number} {task}", remote::EXEC);
    Some(rank)
}

impl Broker {
    /// rc1 loads the archive. rc3 dumps it, even if rc1 has failed. The broker's code is the first one that is not 0. In
    /// place of Flux's content, an archive has a line `start` for each start, and the jobs of `waiting`.
    fn with_archive(&self, sender: &Sender<Event>, events: &Receiver<Event>) -> u8 {
        let restored = self
            .attributes
            .get("content.restore")
            .map_or(Ok(String::new()), |path| {
                archive::restore(path).map(|state| waiting::restore(self.statedir(), &state))
            });
        let (code, state) = match restored {
            Ok(state) => (
                self.lead(sender, events),
                Some(state + "start\n" + &waiting::lines(self.statedir())),
            ),
            Err(why) => {
                eprintln!("flux-broker: rc1: restore: {why}");
                (1, None)
            }
        };
        let dumped = self
            .attributes
            .get("content.dump")
            .map_or(Ok(()), |path| dump_and_answer(path, state.as_deref(), events));
        match dumped {
            Err(why) => {
                eprintln!("flux-broker: rc3: {why}");
                code.max(1)
            }
            Ok(()) => code,
        }
    }

    fn lead(&self, sender: &Sender<Event>, events: &Receiver<Event>) -> u8 {
        if self.hosts.len() > 1 {
            let Some(listener) = self.listen() else { return 1 };
            let to = sender.clone();
            std::thread::spawn(move || welcome(&listener, &to));
        }
        let (mut followers, mut program): (BTreeMap<u32, TcpStream>, Option<Child>) = Default::default();
        let mut connections = BTreeMap::new();
        let mut is_aborted = false;
        let (mut book, mut tasks, mut number) = (Book::default(), BTreeMap::<u64, UnixStream>::new(), 0);
        let mut monitors = Vec::new();
        // Restored queues are started, others are not.
        book.are_queues_started = self.queues.is_empty() || self.attributes.contains_key("content.restore");
        let mut is_rc1_done = false;
        self.run_scripts(sender.clone());
        let code = loop {
            if is_rc1_done && program.is_none() && followers.len() + 1 >= self.quorum && self.has_program() {
                match self.command().spawn() {
                    Ok(child) => program = Some(child),
                    Err(error) => {
                        break if error.kind() == std::io::ErrorKind::NotFound {
                            127
                        } else {
                            126
                        };
                    }
                }
            }
            match events.recv().expect("the signal thread lives") {
                Event::ScriptsEnded(true) => is_rc1_done = true,
                Event::ScriptsEnded(false) => {
                    eprintln!("flux-broker: rc1: a script failed");
                    break 1;
                }
                Event::Joined(rank, connection, stream) => {
                    connections.insert(rank, connection);
                    followers.insert(rank, stream);
                    book.set_online(&followers);
                }
                Event::Left(rank, connection) => {
                    // If the follower has joined again, this was only its earlier connection.
                    if connections.get(&rank) == Some(&connection) {
                        followers.remove(&rank);
                        book.set_online(&followers);
                    }
                }
                Event::Ask(request, stream)
                    if request.starts_with("message groups.get\n") && request.contains("broker.online") =>
                {
                    book.watchers.push(stream);
                    book.set_online(&followers);
                }
                Event::Signal(Signal::SIGCHLD) => {
                    let ended = program.as_mut().and_then(|child| child.try_wait().ok().flatten());
                    if let Some(status) = ended {
                        // As with Flux, a program that was told to end has failed.
                        break code(status).max(u8::from(is_aborted));
                    }
                }
                // The agent passes on every signal. Flux sends this one to its jobs and goes on.
                Event::Signal(Signal::SIGUSR1) => {}
                Event::Signal(_) | Event::Shutdown => match &program {
                    Some(child) => {
                        is_aborted = true;
                        let _ = kill(Pid::from_raw(-child.id().cast_signed()), Signal::SIGHUP);
                    }
                    None => break 0,
                },
                Event::Ask(request, mut stream) if request.starts_with("message groups.join\n") => {
                    let _ = stream.write_all(&message::answer("groups.join", Some("{}")));
                    book.staying = Some(stream);
                }
                Event::Question(topic, payload, mut stream) => {
                    let answer = self.answer_to(&topic, &payload, &mut book);
                    let _ = stream.write_all(answer.unwrap_or_default().as_bytes());
                }
                Event::Ended(number) => drop(book.tasks.remove(&number)),
                Event::Ask(request, stream) if request.starts_with(remote::EXEC) => {
                    // If the node is not online, the client's connection is closed.
                    number += 1;
                    if let Some(rank) = pass_on(&request, number, &mut followers) {
                        tasks.insert(number, stream);
                        book.tasks.insert(number, rank);
                    }
                }
                Event::Result(number, stream) => {
                    if let Some(client) = tasks.remove(&number) {
                        let to = sender.clone();
                        remote::carry(stream, client, move || drop(to.send(Event::Ended(number))));
                    }
                }
                // Only a lead without a program reports its states: `run`, and `shutdown` at its end.
                Event::Ask(request, mut stream)
                    if request.starts_with("message state-machine.monitor\n") && !self.has_program() =>
                {
                    let _ =
                        stream.write_all(&message::answer("state-machine.monitor", Some(&state_of("run"))));
                    monitors.push(stream);
                }
                Event::Ask(request, stream) => self.answer(&request, stream, &mut book),
                Event::Dismissed | Event::Rejected => {}
            }
        };
        for stream in &mut monitors {
            let state = state_of("shutdown");
            let _ = stream.write_all(&message::answer("state-machine.monitor", Some(&state)));
            // The clients read it before the broker ends.
            std::thread::sleep(Duration::from_millis(200));
        }
        for mut stream in followers.into_values() {
            let _ = stream.write_all(GOODBYE.as_bytes());
        }
        code
    }

    /// Runs the start-up scripts in the folders that `FLUX_RC_EXTRA` names.
    fn run_scripts(&self, to: Sender<Event>) {
        let folders = std::env::var("FLUX_RC_EXTRA").unwrap_or_default();
        let entries = folders
            .split(':')
            .filter_map(|folder| std::fs::read_dir(format!("{folder}/rc1.d")).ok())
            .flatten()
            .flatten();
        let commands: Vec<Command> = entries.map(|script| self.command_of(&script.path())).collect();
        std::thread::spawn(move || {
            let mut results = commands.into_iter().map(|mut command| command.status());
            let all = results.all(|status| status.is_ok_and(|status| status.success()));
            let _ = to.send(Event::ScriptsEnded(all));
        });
    }

    fn statedir(&self) -> &str {
        self.attributes.get("statedir").map_or("", String::as_str)
    }

    fn has_program(&self) -> bool {
        let is_headless = self.attributes.contains_key("broker.rc2_none");
        !self.program.is_empty() || (!is_headless && std::io::stdin().is_terminal())
    }

    fn listen(&self) -> Option<TcpListener> {
        let listener = match &self.bind {
            Some(address) => TcpListener::bind((address.as_str(), self.port)),
            None => {
                TcpListener::bind(("::", self.port)).or_else(|_| TcpListener::bind(("0.0.0.0", self.port)))
            }
        };
        listener
            .inspect_err(|error| eprintln!("flux-broker: failed to listen on port {}: {error}", self.port))
            .ok()
    }

    /// Whether other brokers have this broker as their parent.
    fn is_router(&self) -> bool {
        let number = |name: &str| {
            self.attributes
                .get(name)?
                .trim_start_matches("kary:")
                .parse::<usize>()
                .ok()
        };
        let fanout = number("tbon.topo")
            .or_else(|| number("tbon.fanout"))
            .unwrap_or(self.hosts.len());
        self.rank as usize * fanout + 1 < self.hosts.len()
    }

    fn follow(&self, sender: &Sender<Event>, events: &Receiver<Event>) -> u8 {
        // All followers really connect to the lead. This port is for the agents of the brokers below: they probe it.
        let _listener = if self.is_router() { self.listen() } else { None };
        let (rank, to, ipv6) = (self.rank, sender.clone(), self.ipv6);
        let joined = Arc::new(AtomicBool::new(false));
        let has_joined = joined.clone();
        let target = self
            .connect
            .trim_start_matches("tcp://")
            .replace("%h", &self.hosts[0])
            .replace("%p", &self.port.to_string());
        let (lead, uri) = (target.clone(), self.uri());
        std::thread::spawn(move || {
            let mut had_joined = false;
            loop {
                if let Some(mut stream) = connect(&target, ipv6) {
                    // The earlier connection ended without a goodbye, so this lead is a new one. A real lead rejects a
                    // broker that it does not know, once that broker sends something.
                    if std::mem::replace(&mut had_joined, true) {
                        let _ = to.send(Event::Rejected);
                        return;
                    }
                    let _ = stream.write_all(format!("rank {rank}\n").as_bytes());
                    has_joined.store(true, Relaxed);
                    for line in BufReader::new(stream).lines().map_while(Result::ok) {
                        if line == GOODBYE.trim_end() {
                            let _ = to.send(Event::Dismissed);
                            return;
                        }
                        line.strip_prefix(remote::EXEC)
                            .into_iter()
                            .for_each(|task| remote::run(task, &target, uri.clone()));
                    }
                    has_joined.store(false, Relaxed);
                }
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        loop {
            match events.recv().expect("the signal thread lives") {
                Event::Dismissed | Event::Signal(Signal::SIGTERM | Signal::SIGINT | Signal::SIGHUP) => {
                    return 0;
                }
                Event::Rejected => return 1,
                // Unlike a real broker, this one is in the state `run` as soon as it has joined, whatever the quorum.
                Event::Ask(request, mut stream) if request.starts_with(message::MESSAGE) => {
                    let state = if joined.load(Relaxed) { "run" } else { "join" };
                    let (topic, payload) = message::parts(&request).unwrap_or_default();
                    match topic {
                        "state-machine.get" => {
                            let _ = stream.write_all(&message::answer(topic, Some(&state_of(state))));
                        }
                        // The state by its name. (Flux sends a number.) Then nothing more while the connection
                        // lasts.
                        "state-machine.monitor" => {
                            let joined = joined.clone();
                            std::thread::spawn(move || report_when_joined(stream, &joined));
                        }
                        // The lead answers all other topics.
                        topic => {
                            let (topic, payload, lead) = (topic.to_owned(), payload.to_owned(), lead.clone());
                            std::thread::spawn(move || {
                                let answer = ask_lead(&lead, ipv6, &topic, &payload);
                                let _ = stream.write_all(&message::answer(&topic, answer.as_deref()));
                            });
                        }
                    }
                }
                Event::Ask(request, stream) => self.answer(&request, stream, &mut Book::default()),
                _ => {}
            }
        }
    }

    /// The program.
    fn command(&self) -> Command {
        // On a terminal, Flux starts a shell. Here it has no dialogue.
        let shell = ["/bin/sh", "-c", "while :; do sleep 0.1; done"].map(str::to_owned);
        let program = if self.program.is_empty() {
            &shell
        } else {
            self.program.as_slice()
        };
        let mut command = self.command_of(Path::new(&program[0]));
        command.args(&program[1..]).process_group(0);
        command
    }

    /// A command that finds this broker, without the blocked signals of this process.
    #[allow(unsafe_code, reason = "sigprocmask may be called between fork and exec")]
    fn command_of(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        command.envs(self.uri());
        // SAFETY: the closure makes one system call and allocates nothing.
        unsafe { command.pre_exec(|| Ok(SigSet::all().thread_unblock()?)) };
        command
    }

    fn uri(&self) -> Option<(String, String)> {
        self.attributes
            .get("local-uri")
            .map(|uri| ("FLUX_URI".to_owned(), uri.clone()))
    }

    fn state(&self, book: &Book) -> &'static str {
        if book.online.len() + 1 >= self.quorum {
            "run"
        } else {
            "quorum"
        }
    }

    /// The lead's answer to a message. None: there is no such service.
    fn answer_to(&self, topic: &str, payload: &str, book: &mut Book) -> Option<String> {
        let given: serde_json::Value = serde_json::from_str(payload).unwrap_or_default();
        let rank = given["targets"]
            .as_str()
            .and_then(|rank| rank.parse::<u32>().ok());
        Some(match topic {
            "state-machine.get" => state_of(self.state(book)),
            "groups.get" if given["name"] == STAYING => {
                // A client whose connection has ended is no member any more.
                let is_there = book.staying.as_mut().is_some_and(|member| !has_ended(member));
                members(if is_there { "0" } else { "" }.to_owned())
            }
            "groups.get" => members(join([0].iter().chain(&book.online))),
            "resource.status" => {
                let drained = book
                    .drained
                    .iter()
                    .map(|(rank, why)| (rank.to_string(), json!({ "reason": why })));
                json!({ "drain": drained.collect::<serde_json::Map<_, _>>() }).to_string()
            }
            "resource.drain" => {
                book.drained
                    .insert(rank?, given["reason"].as_str().unwrap_or_default().to_owned());
                "{}".to_owned()
            }
            "resource.undrain" => book.drained.remove(&rank?).map(|_| "{}".to_owned())?,
            "resource.sched-status" => {
                let allocated = book.tasks.values().copied().collect();
                resources::status(self.hosts.len(), |rank| book.takes_jobs(rank), &allocated)
            }
            "job-manager.raiseall" => {
                waiting::cancel(self.statedir(), given["states"].as_u64().unwrap_or_default());
                "{}".to_owned()
            }
            // Fixed answers: one job runs, and none is listed.
            "job-list.job-stats" => "{\"job_states\":{\"run\":1}}".to_owned(),
            "job-list.list" => "{\"jobs\":[]}".to_owned(),
            _ => return None,
        })
    }

    fn answer(&self, request: &str, mut stream: UnixStream, book: &mut Book) {
        if let Some((topic, payload)) = message::parts(request) {
            let answer = self.answer_to(topic, payload, book);
            let _ = stream.write_all(&message::answer(topic, answer.as_deref()));
            return;
        }
        let size = self.hosts.len();
        let (online, state) = (book.online.len() + 1, self.state(book));
        let text = match request {
            "uptime" => format!(
                " 00:00:00 {state} 1s,  owner fake,  size {size},  offline {}",
                size - online
            ),
            "overlay" | "overlay -v" => {
                // With -v Flux adds the duration of the state: `full for 2.89s`.
                let since = if request.ends_with("-v") { " for 1.0s" } else { "" };
                (1..size)
                    .filter(|rank| !book.online.contains(&u32::try_from(*rank).unwrap_or_default()))
                    .fold(
                        format!(
                            "0 {}: {}{since}",
                            self.hosts[0],
                            if online == size { "full" } else { "partial" }
                        ),
                        |text, rank| text + &format!("\n {rank} {}: offline{since}", self.hosts[rank]),
                    )
            }
            "ranks" => join(
                [0].iter()
                    .chain(&book.online)
                    .filter(|rank| book.takes_jobs(**rank)),
            ),
            "queues" => self
                .queues
                .iter()
                .map(|queue| format!("{queue} enabled"))
                .collect::<Vec<_>>()
                .join("\n"),
            "start queues" => {
                book.are_queues_started = true;
                String::new()
            }
            // Only the lead has the queues.
            "started" => (self.rank > 0 || book.are_queues_started).to_string(),
            "resources" => self.resources.clone().unwrap_or_default(),
            "getattr size" => size.to_string(),
            "getattr instance-level" => "0".to_owned(),
            "getattr rank" => self.rank.to_string(),
            "getattr hostlist" => self.hosts.join(","),
            other => {
                // The value of an unknown attribute is its name.
                let name = other.trim_start_matches("getattr ");
                self.attributes.get(name).map_or(name, String::as_str).to_owned()
            }
        };
        let _ = stream.write_all(text.as_bytes());
    }
}

fn state_of(state: &str) -> String {
    format!("{{\"state\":\"{state}\",\"duration\":1.0}}")
}

/// The lead's answer. None: it does not answer, or has no such service.
fn ask_lead(lead: &str, ipv6: bool, topic: &str, payload: &str) -> Option<String> {
    let mut stream = connect(lead, ipv6)?;
    writeln!(stream, "{QUESTION}{topic} {payload}").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer).filter(|answer| !answer.is_empty())
}

/// Connects to the first address of the family, as libzmq does.
fn connect(target: &str, ipv6: bool) -> Option<TcpStream> {
    let address = target
        .to_socket_addrs()
        .ok()?
        .find(|address| address.is_ipv6() == ipv6)?;
    TcpStream::connect(address).ok()
}

fn has_ended(client: &mut UnixStream) -> bool {
    let _ = client.set_nonblocking(true);
    client.read(&mut [0]).is_ok_and(|count| count == 0)
}

fn welcome(listener: &TcpListener, to: &Sender<Event>) {
    for (number, stream) in (0..).zip(listener.incoming().flatten()) {
        let to = to.clone();
        std::thread::spawn(move || {
            // Reads no byte after the line: the frames after a result are read elsewhere.
            let (mut line, mut byte) = (Vec::new(), [0]);
            while line.last() != Some(&b'\n') && (&stream).read(&mut byte).is_ok_and(|count| count > 0) {
                line.extend(byte);
            }
            let line = String::from_utf8_lossy(&line);
            let question = line
                .strip_prefix(QUESTION)
                .and_then(|question| question.trim_end().split_once(' '));
            if let Some((topic, payload)) = question {
                let _ = to.send(Event::Question(topic.to_owned(), payload.to_owned(), stream));
            } else if let Some(number) = line
                .strip_prefix(remote::RESULT)
                .and_then(|task| task.trim().parse().ok())
            {
                let _ = to.send(Event::Result(number, stream));
            } else if let Some(rank) = line
                .strip_prefix("rank ")
                .and_then(|rank| rank.trim().parse().ok())
            {
                let copy = stream.try_clone();
                let _ = to.send(Event::Joined(rank, number, stream));
                let _ = copy.and_then(|mut copy| std::io::copy(&mut copy, &mut std::io::sink()));
                let _ = to.send(Event::Left(rank, number));
            }
        });
    }
}

/// The local socket. Each connection has one request.
fn serve(path: &str, to: Sender<Event>) {
    let _ = std::fs::remove_file(path);
    let Ok(listener) = UnixListener::bind(path) else {
        eprintln!("flux-broker: cannot bind {path}");
        return;
    };
    // As with Flux, every user may connect.
    let _ = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o777));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // Flux accepts a client with this byte.
            let _ = (&stream).write_all(&[0]);
            let _ = match message::request(&stream) {
                None => continue,
                Some(line) if line == "shutdown" => to.send(Event::Shutdown),
                Some(line) => to.send(Event::Ask(line, stream)),
            };
        }
    });
}

/// Sends a request to the broker that FLUX_URI names. Returns the answer.
pub fn ask(request: &str) -> Option<String> {
    let mut answer = String::new();
    client(request)?.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// Like [`ask`], but returns the connection, from which the answer can be read.
pub fn client(request: &str) -> Option<UnixStream> {
    let uri = std::env::var("FLUX_URI").ok()?;
    let mut stream = UnixStream::connect(uri.strip_prefix("local://")?).ok()?;
    stream.write_all(format!("{request}\n").as_bytes()).ok()?;
    // The byte with which the broker accepts this client.
    stream.read_exact(&mut [0]).ok()?;
    Some(stream)
}
