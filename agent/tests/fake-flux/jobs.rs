//! Jobs: one child process for each task, on this node and on the followers' nodes. As with Flux's job shell,
//! the tasks of this node are bound to as many cores as the job has tasks, unless `-o cpu-affinity=off` or a file
//! of defaults says otherwise.

use std::io::{IsTerminal, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::signal::{SigSet, Signal};
use nix::unistd::Pid;

use super::{broker, remote, waiting};

/// Options whose value is the next word.
const WITH_VALUE: [&str; 14] = [
    "-N", "-n", "-c", "-g", "-t", "-q", "-o", "-B", "--flags", "--cwd", "--env", "--output", "--error",
    "--nodes",
];

struct Request<'a> {
    nodes: usize,
    tasks: usize,
    watch: bool,
    /// Whether the job has a begin time.
    is_delayed: bool,
    input: Option<&'a str>,
    output: Option<&'a str>,
    name: Option<&'a str>,
    affinity: Option<&'a str>,
    environment: Vec<(&'a str, &'a str)>,
    command: &'a [&'a str],
}

fn parse<'a>(words: &'a [&'a str]) -> Request<'a> {
    let (mut nodes, mut tasks, mut watch, mut is_delayed, mut at) = (1, None, false, false, 0);
    let (mut input, mut output, mut name) = (None, None, None);
    let (mut affinity, mut environment) = (None, Vec::new());
    while let Some(word) = words.get(at).filter(|word| word.starts_with('-')) {
        if let Some(count) = word.strip_prefix("-n").and_then(|count| count.parse().ok()) {
            tasks = Some(count);
        }
        watch |= *word == "--watch";
        is_delayed |= word.starts_with("--begin-time=");
        input = word.strip_prefix("--input=").or(input);
        output = word.strip_prefix("--output=").or(output);
        name = word.strip_prefix("--job-name=").or(name);
        environment.extend(word.strip_prefix("--env=").and_then(|set| set.split_once('=')));
        if WITH_VALUE.contains(word) {
            if *word == "-o" {
                affinity = words
                    .get(at + 1)
                    .and_then(|option| option.strip_prefix("cpu-affinity="))
                    .or(affinity);
            }
            let value = words.get(at + 1).and_then(|value| value.parse().ok());
            match *word {
                "-N" => nodes = value.unwrap_or(1),
                "-n" => tasks = value,
                _ => {}
            }
            at += 1;
        }
        at += 1;
    }
    let command = words.get(at..).unwrap_or_default();
    Request {
        nodes,
        tasks: tasks.unwrap_or(nodes),
        watch,
        is_delayed,
        input,
        output,
        name,
        affinity,
        environment,
        command,
    }
}

/// The default of `cpu-affinity`, from the first file that sets it. The files are in the folders of
/// FLUX_SHELL_RC_PATH, in this order.
fn default_affinity() -> Option<String> {
    let folders = std::env::var("FLUX_SHELL_RC_PATH").unwrap_or_default();
    let files = folders
        .split(':')
        .filter_map(|folder| std::fs::read_dir(folder).ok())
        .flatten()
        .flatten();
    let mut texts = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
    texts.find_map(|text| {
        let value = text
            .lines()
            .find_map(|line| line.trim().strip_prefix("shell.options[\"cpu-affinity\"] = "))?;
        Some(value.trim_matches('"').to_owned())
    })
}

/// The CPUs of the tasks on this node. None: they are not bound.
fn cpus(request: &Request) -> Option<CpuSet> {
    let affinity = request.affinity.map(str::to_owned).or_else(default_affinity);
    if affinity.as_deref() == Some("off") {
        return None;
    }
    let all = sched_getaffinity(Pid::from_raw(0)).ok()?;
    let mut own = CpuSet::new();
    let some = (0..CpuSet::count())
        .filter(|cpu| all.is_set(*cpu).unwrap_or(false))
        .take(request.tasks);
    some.for_each(|cpu| {
        let _ = own.set(cpu);
    });
    Some(own)
}

/// The exit code as in a shell.
pub fn code(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    code.to_le_bytes()[0]
}

/// The rank of each task's node. Each node gets its tasks in a row. Only a job of several nodes uses other nodes,
/// if it is submitted on the lead. The tasks of other jobs get rank 0, by which `run_tasks` runs them on its own node.
fn task_ranks(request: &Request) -> Vec<u32> {
    let is_lead = request.nodes > 1 && broker::ask("getattr rank").is_some_and(|rank| rank == "0");
    let size = broker::ask("getattr size")
        .and_then(|size| size.parse().ok())
        .unwrap_or(1);
    let mut ranks: Vec<u32> = vec![0];
    // A job waits until enough nodes are online.
    while is_lead && ranks.len() < request.nodes.min(size) {
        let online = broker::ask("ranks").unwrap_or_default();
        ranks = online
            .split(',')
            .filter_map(|rank| rank.parse().ok())
            .take(request.nodes)
            .collect();
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let (each, more) = (request.tasks / ranks.len(), request.tasks % ranks.len());
    ranks
        .iter()
        .enumerate()
        .flat_map(|(at, rank)| vec![*rank; each + usize::from(at < more)])
        .collect()
}

/// As in Flux, a task does not write to a terminal.
#[allow(unsafe_code, reason = "these system calls may be made between fork and exec")]
fn spawn(mut command: Command, cpus: Option<CpuSet>, term: SigSet) -> std::io::Result<Child> {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let prepare = move || {
        if let Some(cpus) = &cpus {
            sched_setaffinity(Pid::from_raw(0), cpus)?;
        }
        Ok(term.thread_unblock()?)
    };
    // SAFETY: the closure makes two system calls and allocates nothing.
    unsafe { command.pre_exec(prepare) };
    command.spawn()
}

/// Starts one child for each task. Returns the highest exit code. `is_run`: this is `flux run`, which prints output at
/// once, and no job id. Unlike the real `flux submit`, this waits until a job without a begin time has ended. Only for
/// a job with a name, it returns 0 as the real one does, and [`failed`] returns the name if the job has failed.
pub fn submit(words: &[&str], is_run: bool) -> u8 {
    let request = parse(words);
    if is_run && request.watch {
        eprintln!("flux-run: error: unrecognized arguments: --watch");
        return 2;
    }
    let Some((program, arguments)) = request.command.split_first() else {
        eprintln!("flux-submit: ERROR: job command and arguments are missing");
        return 1;
    };
    if request.is_delayed {
        return waiting::submit(request.command);
    }
    wait_for_queues();
    let code = run_tasks(&request, program, arguments, is_run);
    let (Some(name), Some(file)) = (request.name, failed_file()) else {
        return code;
    };
    if code != 0 {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(file);
        let _ = file.and_then(|mut file| writeln!(file, "{name}"));
    }
    0
}

/// Waits until the queues are started.
fn wait_for_queues() {
    while broker::ask("started").is_some_and(|started| started == "false") {
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
}

/// The file with the names of the jobs that failed. The broker's socket is in the same folder.
fn failed_file() -> Option<String> {
    let uri = std::env::var("FLUX_URI").ok()?;
    Some(format!("{}.failed", uri.strip_prefix("local://")?))
}

/// The names of the jobs that failed, of those that have a name.
pub fn failed() -> String {
    let text = failed_file().and_then(|file| std::fs::read_to_string(file).ok());
    text.unwrap_or_default()
}

/// Runs the tasks to their end. Returns the highest exit code.
fn run_tasks(request: &Request, program: &str, arguments: &[&str], is_run: bool) -> u8 {
    if !request.watch && !is_run {
        // An id for which `code_of` returns 0. Ignores errors: nobody has to read it.
        let _ = writeln!(std::io::stdout(), "f1x0");
    }
    // The SIGTERM that stops the jobs must not end this process before them.
    let mut term = SigSet::empty();
    term.add(Signal::SIGTERM);
    let _ = term.thread_block();
    let live = request.output.is_none() && (is_run || std::io::stdout().is_terminal());
    let live_errors = is_run || std::io::stderr().is_terminal();
    let cpus = cpus(request);
    let (mut children, mut others) = (Vec::new(), Vec::new());
    for (task, node) in task_ranks(request).into_iter().enumerate() {
        let mut environment = vec![
            ("FLUX_TASK_RANK", task.to_string()),
            ("FLUX_JOB_SIZE", request.tasks.to_string()),
            ("FLUX_JOB_ID", "f1".to_owned()),
        ];
        environment.extend(
            request
                .environment
                .iter()
                .map(|(name, value)| (*name, (*value).to_owned())),
        );
        if node > 0 {
            let environment = environment
                .into_iter()
                .map(|(name, value)| (name.to_owned(), value))
                .collect();
            others.push(remote::start(
                node,
                request.command,
                environment,
                live,
                live_errors,
            ));
            continue;
        }
        let mut command = Command::new(program);
        command.args(arguments).envs(environment);
        // Without `--input`, the input of a job stays open for somebody who attaches to the job.
        match request.input.map(std::fs::File::open) {
            Some(Ok(file)) => _ = command.stdin(file),
            Some(Err(_)) => return 1,
            None if is_run => {}
            None => _ = command.stdin(Stdio::piped()),
        }
        match spawn(command, cpus, term) {
            Ok(mut child) => {
                let output = collect(child.stdout.take(), live, std::io::stdout());
                children.push((
                    output,
                    collect(child.stderr.take(), live_errors, std::io::stderr()),
                    child,
                ));
            }
            Err(error) => {
                eprintln!("flux-shell: ERROR: {program}: {error}");
                return if error.kind() == std::io::ErrorKind::NotFound {
                    127
                } else {
                    126
                };
            }
        }
    }
    let (stops, others): (Vec<_>, Vec<_>) = others.into_iter().unzip();
    std::thread::spawn(move || {
        let _ = term.wait();
        stops
            .into_iter()
            .flatten()
            .for_each(|mut stop| drop(stop.write_all(b"stop")));
    });
    let (mut highest, mut held_back, mut errors) = (0, Vec::new(), Vec::new());
    for (output, faults, mut child) in children {
        held_back.extend(output.join().expect("no thread panics"));
        errors.extend(faults.join().expect("no thread panics"));
        let Ok(status) = child.wait() else { return 1 };
        highest = highest.max(code(status));
    }
    for other in others {
        let ended = other.join().expect("no thread panics");
        held_back.extend(ended.output);
        errors.extend(ended.errors);
        highest = highest.max(ended.code);
    }
    print_held_back(request.output, &held_back, &errors);
    highest
}

/// Writes the output that was held back to the requested place.
fn print_held_back(path: Option<&str>, output: &[u8], errors: &[u8]) {
    let _ = std::io::stderr().write_all(errors);
    let _ = match path {
        Some(path) => std::fs::write(path, output),
        None => std::io::stdout().write_all(output),
    };
}

/// Reads the output of a task, and prints it at once or holds it back.
fn collect(
    from: Option<impl Read + Send + 'static>,
    live: bool,
    mut to: impl Write + Send + 'static,
) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let (mut held_back, mut buffer) = (Vec::new(), [0; 4096]);
        let mut from = from.expect("it is piped");
        while let Some(count) = from.read(&mut buffer).ok().filter(|count| *count > 0) {
            if live {
                drop(to.write_all(&buffer[..count]).and_then(|()| to.flush()))
            } else {
                held_back.extend(&buffer[..count])
            }
        }
        held_back
    })
}

/// Runs the script to its end, and encodes its exit code in the job's id.
pub fn batch(words: &[&str]) -> u8 {
    let request = parse(words);
    let [script, ..] = request.command else { return 1 };
    wait_for_queues();
    let output_path = |id: &str| request.output.unwrap_or("flux-{{id}}.out").replace("{{id}}", id);
    let output = std::fs::File::create(output_path("f1")).expect("cannot create the output file");
    let status = Command::new(script)
        .env("FLUX_JOB_ID", "f1")
        .stdout(output)
        .status();
    remove_records();
    match status.map(code) {
        Ok(0) => println!("f1"),
        Ok(code) => {
            let id = format!("f1x{code}");
            let _ = std::fs::rename(output_path("f1"), output_path(&id));
            println!("{id}");
        }
        Err(error) => {
            eprintln!("flux-batch: ERROR: {script}: {error}");
            return 1;
        }
    }
    0
}

/// Removes the files beside the broker's socket that are named after it. The real batch has a broker of its own, which
/// removes its folder.
fn remove_records() {
    let uri = std::env::var("FLUX_URI").unwrap_or_default();
    let Some((folder, socket)) = uri
        .strip_prefix("local://")
        .and_then(|path| path.rsplit_once('/'))
    else {
        return;
    };
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let prefix = format!("{socket}.");
    files
        .filter(|file| file.file_name().to_string_lossy().starts_with(&prefix))
        .for_each(|file| drop(std::fs::remove_file(file.path())));
}

/// The exit code in a batch's id, or 0.
pub fn code_of(id: &str) -> u8 {
    id.split_once('x')
        .and_then(|(_, code)| code.parse().ok())
        .unwrap_or(0)
}
