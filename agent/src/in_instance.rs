//! Small programs for the inside of an instance: `time`, `batch`, `diagnostics`. They replace what a shell would do.
#![expect(clippy::disallowed_methods, reason = "act: starts programs")]

use std::ffi::OsString;
use std::fs::File;
use std::io::{PipeReader, Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flux_shared::exit::of_signal;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::execute::program_note::{note_end, note_start};
use crate::execute::session::Session;
use crate::execute::timing::flux_time;
use crate::flux_rpc::jobs;
use crate::report::failure::Failure;
use crate::report::log;
use crate::supervise::program::{Output, Program};
use crate::supervise::{Gently, Policy, Supervisor, Target};
use crate::system::raw::ChildSetup;

pub mod restful;

/// The reports of `diagnostics`.
const REPORTS: [&[&str]; 3] = [&["flux", "overlay", "status", "-v"], &["flux", "lsattr", "-v"], &["flux", "dmesg"]];

/// Runs `command` and says on standard error how long it took.
pub fn time(label: &str, command: &[OsString]) -> Result<u8, Failure> {
    crate::system::runtime::block_on(Box::pin(async {
        let begin = Instant::now();
        let code = Inside::new()?.run(command, Output::Inherit).await?;
        log::plain("time", &flux_time(label, begin.elapsed()));
        Ok(code)
    }))
}

/// How the lead's program is run.
#[derive(Debug, Clone, clap::Args)]
pub struct ProgramArgs {
    /// File for a note on how it ended
    #[arg(long)]
    result: PathBuf,
    /// Its time to end when it is told to stop
    #[arg(long, value_name = "SECONDS")]
    within: f64,
    /// It only waits for jobs: they are told to stop, and it ends with them
    #[arg(long)]
    jobs: bool,
    /// A variable that it is not told
    #[arg(long, value_name = "NAME")]
    without: Option<OsString>,
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Notes in the result, an empty file that is there, that the command has started, and how it has ended. A stop, of which
/// the broker tells by SIGHUP, is SIGTERM for it or its jobs.
pub fn program(args: &ProgramArgs) -> Result<u8, Failure> {
    let uri = std::env::var("FLUX_URI").unwrap_or_default();
    let socket = uri.strip_prefix("local://");
    crate::system::runtime::block_on(Box::pin(async {
        let mut inside = Inside::new()?;
        if let Some(name) = &args.without {
            inside.session.environment.remove(name);
        }
        note_start(&args.result);
        let jobs = socket.filter(|_| args.jobs);
        let within = Duration::try_from_secs_f64(args.within).unwrap_or(Duration::ZERO);
        let code = inside.run_gently(&args.command, Output::Inherit, Some(Gently { jobs, within })).await?;
        let node_failure = code != 0 && socket.is_some_and(jobs::node_was_lost);
        note_end(&args.result, code, node_failure);
        Ok(code)
    }))
}

/// So much of what a failed batch has printed is shown: lines, of so many bytes.
const SHOWN: usize = 20;
const SHOWN_OF: u64 = 64 << 10;

/// Runs `command`, which submits a batch and prints its id; then waits for it. Its exit code is the batch's. `events`:
/// prints the events of its life.
pub fn batch(command: &[OsString], events: bool) -> Result<u8, Failure> {
    crate::system::runtime::block_on(Box::pin(async {
        let mut inside = Inside::new()?;
        let failed = |error: std::io::Error| Failure::internal(format!("failed to read the job's id: {error}"));
        let (source, there) = std::io::pipe().map_err(failed)?;
        let (wake, ended) = std::io::pipe().map_err(failed)?;
        // It reads while the command runs: one that prints more than a pipe holds would wait for ever.
        let reader = std::thread::Builder::new().stack_size(128 << 10).spawn(move || collect(source, &wake));
        let reader = reader.map_err(failed)?;
        let code = inside.run(command, Output::To(there.into())).await?;
        drop(ended);
        let bytes = reader.join().unwrap_or_default();
        let _ = std::io::stdout().write_all(&bytes);
        let text = String::from_utf8_lossy(&bytes);
        if code != 0 {
            return Ok(code);
        }
        let id = text.split_whitespace().last();
        if let Some(id) = id.filter(|_| events) {
            // Its code says nothing about the batch.
            inside.run(&["flux", "job", "wait-event", "-v", id, "clean"].map(OsString::from), Output::Inherit).await?;
            if let Some(signal) = inside.supervisor.stop_wanted() {
                return Ok(of_signal(signal));
            }
        }
        let wait: Vec<OsString> = match id {
            Some(id) => ["flux", "job", "status", id].map(OsString::from).into(),
            None => ["flux", "job", "wait", "--all"].map(OsString::from).into(),
        };
        let code = inside.run(&wait, Output::Inherit).await?;
        if let Some(id) = id.filter(|_| code != 0 && inside.supervisor.stop_wanted().is_none()) {
            tell_output(command, id, code);
        }
        Ok(code)
    }))
}

/// What comes from `source` until all who write to it have ended, or until `ended` is closed and nothing is left: a
/// process in the background may hold it open.
fn collect(mut source: PipeReader, ended: &PipeReader) -> Vec<u8> {
    let (mut bytes, mut chunk) = (Vec::new(), [0; 16 << 10]);
    loop {
        let mut fds = [&source, ended].map(|pipe| PollFd::new(pipe.as_fd(), PollFlags::POLLIN));
        let [there, over] = match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) => fds.map(|fd| fd.any().unwrap_or(true)),
            Err(_) => continue,
        };
        match there.then(|| source.read(&mut chunk)) {
            Some(Ok(count @ 1..)) => bytes.extend_from_slice(&chunk[..count]),
            Some(Err(error)) if error.kind() == std::io::ErrorKind::Interrupted => {}
            None if !over => {}
            _ => return bytes,
        }
    }
}

/// Shows the end of what a batch that failed has printed, which `flux batch` keeps in a file.
fn tell_output(command: &[OsString], id: &str, code: u8) {
    let given = command.iter().rev().find_map(|word| word.to_str()?.strip_prefix("--output="));
    let place = |id: &str| given.unwrap_or("flux-{{id}}.out").replace("{{id}}", id);
    // Flux writes the id without its first letter's hook where the locale lacks that.
    let places = [place(id), place(&id.replace('ƒ', "f"))];
    let Some(text) = places.iter().find_map(|path| end_of(path, SHOWN_OF).ok()) else {
        let [place, _] = places;
        tracing::info!(
            stage = "batch",
            "the batch ended with code {code}; its output is in {place} of the pod where it ran"
        );
        return;
    };
    tracing::info!(stage = "batch", "the batch ended with code {code}; the end of its output:");
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines.iter().skip(lines.len().saturating_sub(SHOWN)).for_each(|line| log::plain("batch", line));
}

/// The last bytes of a file, `most` at most.
fn end_of(path: &str, most: u64) -> std::io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let begin = file.metadata()?.len().saturating_sub(most);
    file.seek(SeekFrom::Start(begin))?;
    let mut end = Vec::new();
    file.take(most).read_to_end(&mut end)?;
    Ok(end)
}

/// Bank of the users whom nobody gave another one.
const BANK: &str = "default";

/// Adds `users` to Flux Accounting, with a database of this instance, and runs `command`. What fails of the former is
/// told and passed over: the exit code is the command's.
pub fn accounting(database: &Path, users: &[String], command: &[OsString]) -> Result<u8, Failure> {
    crate::system::runtime::block_on(Box::pin(async {
        let mut inside = Inside::new()?;
        let account = ["flux".into(), "account".into(), "-p".into(), database.as_os_str().to_owned()];
        let with = |words: &[&str]| -> Vec<OsString> {
            account.iter().cloned().chain(words.iter().map(OsString::from)).collect()
        };
        let mut service: Vec<OsString> =
            ["flux", "account-service", "--test-background", "-p"].map(OsString::from).into();
        service.push(database.into());
        let mut steps = vec![service];
        // A database that is there has been filled by a run before this one.
        if !database.exists() {
            steps.insert(0, with(&["create-db"]));
            steps.push(with(&["add-bank", "root", "1"]));
            steps.push(with(&["add-bank", "--parent-bank=root", BANK, "1"]));
            steps.extend(users.iter().map(|user| with(&["add-user", "--username", user, "--bank", BANK])));
        }
        for step in steps {
            let code = inside.run(&step, Output::Discard).await?;
            if let Some(signal) = inside.supervisor.stop_wanted() {
                return Ok(of_signal(signal));
            }
            if code != 0 {
                let words: Vec<_> = step.iter().map(|word| word.to_string_lossy()).collect();
                let why = format!("`{}` ended with code {code}", words.join(" "));
                tracing::info!(stage = "accounting", "failed to add the users to Flux Accounting: {why}");
                return inside.run(command, Output::Inherit).await;
            }
        }
        tracing::info!(stage = "accounting", "the users {} are in Flux Accounting", users.join(", "));
        inside.run(command, Output::Inherit).await
    }))
}

/// Prints the reports and then holds the instance up until it is told to stop.
pub fn diagnostics() -> Result<u8, Failure> {
    crate::system::runtime::block_on(Box::pin(async {
        let mut inside = Inside::new()?;
        for report in REPORTS {
            tracing::info!(stage = "diagnostics", "{}", report.join(" "));
            let words: Vec<OsString> = report.iter().map(OsString::from).collect();
            inside.run(&words, Output::Inherit).await?;
        }
        tracing::info!(stage = "diagnostics", "the instance stays up; `/mnt/flux/flux-agent stop` ends it");
        let stopped = inside.supervisor.unless_stopped(std::future::pending::<()>()).await;
        stopped.map(|_| 0).map_err(|error| Failure::internal(format!("failed to wait for events: {error}")))
    }))
}

/// A supervisor inside an instance.
pub struct Inside {
    pub supervisor: Supervisor,
    pub session: Session,
}

impl Inside {
    pub fn new() -> Result<Inside, Failure> {
        log::leave_out_supervision();
        let supervisor =
            Supervisor::new().map_err(|error| Failure::internal(format!("failed to receive signals: {error}")))?;
        Ok(Inside { supervisor, session: Session::of_process() })
    }

    /// The exit code, also where it does not start.
    pub async fn run(&mut self, argv: &[OsString], output: Output) -> Result<u8, Failure> {
        self.run_gently(argv, output, None).await
    }

    async fn run_gently(
        &mut self,
        argv: &[OsString],
        output: Output,
        gently: Option<Gently<'_>>,
    ) -> Result<u8, Failure> {
        let program = Program {
            argv,
            environment: &self.session.environment,
            directory: &self.session.directory,
            output,
            setup: ChildSetup { foreground: self.supervisor.has_terminal(), tied: true, ..ChildSetup::default() },
        };
        let child = match program.start() {
            Ok(child) => child,
            Err(error) => {
                log::plain("start", &format!("flux-agent: {error}"));
                return Ok(error.code);
            }
        };
        let policy =
            Policy { target: Target::Group, kill_after: None, second_kills: false, hold: None, staying: None, gently };
        let ended = self.supervisor.run(child, policy).await;
        ended.map(|ended| ended.end.code()).map_err(|error| Failure::internal(format!("failed to supervise: {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_file_only_the_end_is_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "first\nlast\n").unwrap();
        let end = |most| String::from_utf8(end_of(file.path().to_str().unwrap(), most).unwrap()).unwrap();
        assert_eq!((end(100).as_str(), end(5).as_str()), ("first\nlast\n", "last\n"));
    }
}
