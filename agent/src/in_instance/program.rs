//! `flux-agent program`: runs the lead's program, and records in a file how it ended, since the broker's exit code may
//! be about its own end. After a stop signal it gives the program or its jobs time to end.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;

use flux_agent_plan::known_paths::users_value_name;
use flux_agent_plan::plan::SignalTarget;

use super::command_runner::CommandRunner;
use super::flux_wrapper::FluxWrapper;
use crate::execute::program_note::{note_end, note_start};
use crate::flux_rpc::connection::Broker;
use crate::flux_rpc::jobs;
use crate::report::failure::Failure;
use crate::supervise::policy::{AtStop, Order, Policy, PolicyRequest, SecondStop, Terms};
use crate::supervise::program::{Environment, Output};

/// How the lead's program is run.
#[derive(Debug, Clone, clap::Args)]
pub struct ProgramArgs {
    /// File to record how the program ended
    #[arg(long)]
    result: PathBuf,
    /// Seconds the program has after a stop
    #[arg(long, value_name = "SECONDS")]
    within: f64,
    /// The program only waits for jobs: on a stop, stop the jobs
    #[arg(long)]
    jobs: bool,
    /// If the program fails, it runs again in the same state of Flux: cancel the jobs that wait
    #[arg(long)]
    retried: bool,
    /// After a stop, keep the jobs that wait, which the archive then has
    #[arg(long)]
    archived: bool,
    /// Remove this variable from the program's environment
    #[arg(long, value_name = "NAME")]
    without: Vec<OsString>,
    /// Give this variable, which the broker carries under another name, back to the program
    #[arg(long = "own", value_name = "NAME")]
    given_back: Vec<String>,
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Runs the command, and records its start and its end in the file `result`, which exists and is empty. The broker
/// announces a stop by SIGHUP. The command or its jobs then get SIGTERM.
pub fn run(args: &ProgramArgs) -> Result<u8, Failure> {
    let uri = std::env::var("FLUX_URI").unwrap_or_default();
    let broker = uri.strip_prefix("local://").map(|socket| Broker {
        socket: socket.into(),
        owner: None,
    });
    run_with(args, broker)
}

/// The same with this broker of the instance.
fn run_with(args: &ProgramArgs, broker: Option<Broker>) -> Result<u8, Failure> {
    crate::system::runtime::block_on(Box::pin(async {
        let mut runner = CommandRunner::new()?;
        for name in &args.without {
            runner.session.environment.remove(name);
        }
        args.given_back
            .iter()
            .for_each(|name| give_back(&mut runner.session.environment, name));
        let flux_wrapper = match &broker {
            // Only search paths are given back: they are what the wrapper hides from Flux.
            Some(broker) if !args.given_back.is_empty() => {
                FluxWrapper::put_first_on_path(&mut runner.session.environment, &broker.socket)
            }
            _ => None,
        };
        // After a stop, nothing is recorded: by this the entrypoint knows that the program has not started.
        if let Some(code) = runner.stop_code() {
            return Ok(code);
        }
        note_start(&args.result).map_err(|error| Failure::write("write", &args.result, &error))?;
        let within = Duration::try_from_secs_f64(args.within).unwrap_or(Duration::ZERO);
        runner.supervisor.set_kill_after(Some(within));
        let terms = Terms {
            target: SignalTarget::Group,
            second_stop: SecondStop::IsIgnored,
        };
        let started = jobs::now();
        let mut policy = GracefulStop {
            jobs: if args.jobs { broker.clone() } else { None },
            started,
            are_killed: false,
        };
        let mut code = runner
            .run_by(&args.command, Output::Inherit, terms, &mut policy)
            .await?;
        // Removes the wrapper's link.
        drop(flux_wrapper);
        // After a stop, the stop ended the program, even if an earlier job of it had lost a node.
        let was_stopped = runner.stop_code().is_some();
        // The stop may have ended only the printing of what a job had written before it ended.
        if was_stopped
            && code > 128
            && let Some(broker) = &policy.jobs
            && let Some(code_of_job) = jobs::code_of_only_ended(broker, started).await
            && code_of_job != code
        {
            tracing::warn!(
                stage = "stop",
                "the job ended with exit code {code_of_job}, but not all of its output was printed before the stop"
            );
            code = code_of_job;
        }
        let node_failure = match &broker {
            Some(broker) if code != 0 && !was_stopped => {
                // A future that completes at a stop signal.
                let stop = async { drop(runner.supervisor.until_stopped().await) };
                jobs::node_was_lost(broker, stop).await
            }
            _ => false,
        };
        note_end(&args.result, code, node_failure, || runner.stop_code().is_some());
        // The jobs that wait would run beside those of the next attempt. Flux itself cancels the jobs that run.
        let keeps_waiting_jobs = args.archived && runner.stop_code().is_some();
        if let Some(broker) = &broker
            && code != 0
            && args.retried
            && !keeps_waiting_jobs
        {
            jobs::cancel_waiting(broker, "the program failed").await;
        }
        Ok(code)
    }))
}

/// Sets the variable to the user's value, which the broker has carried under another name. Without a user's value
/// (missing or empty), removes the variable: its present value, if any, is for Flux itself.
fn give_back(environment: &mut Environment, name: &str) {
    let kept = environment
        .remove(OsStr::new(&users_value_name(name)))
        .filter(|value| !value.is_empty());
    match kept {
        Some(value) => environment.insert(name.into(), value),
        None => environment.remove(OsStr::new(name)),
    };
}

/// Stops the program by SIGTERM, and gives it time to clean up.
#[derive(Debug)]
struct GracefulStop {
    /// The broker that signals the jobs in place of the program, which ends once its jobs have ended. None: the program
    /// itself is signalled.
    jobs: Option<Broker>,
    /// When the program was started, in seconds since 1970.
    started: f64,
    /// Whether the jobs were killed already.
    are_killed: bool,
}

impl Policy for GracefulStop {
    fn at_stop(&mut self, _: i32) -> AtStop {
        AtStop::PassOn(Order::signal(libc::SIGTERM))
    }

    fn in_place_of_signal(&mut self) -> Option<PolicyRequest> {
        let broker = self.jobs.clone()?;
        let started = self.started;
        Some(Box::pin(async move {
            // Asked first, so that a job which ends because of the stop does not count.
            let has_ended = jobs::code_of_only_ended(&broker, started).await.is_some();
            let is_signalled = jobs::stop(&broker).await;
            if has_ended && !is_signalled {
                tracing::info!(
                    stage = "stop",
                    "the job has ended: waiting until its output is printed"
                );
            }
            has_ended || is_signalled
        }))
    }

    fn kill_first(&mut self) -> Option<PolicyRequest> {
        // None: the program itself is killed.
        if self.are_killed {
            return None;
        }
        let broker = self.jobs.clone()?;
        self.are_killed = true;
        Some(Box::pin(async move { jobs::kill(&broker).await }))
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::signal::Signal;
    use serde_json::json;
    use test_support::waiting::eventually;

    use super::*;
    use crate::execute::program_note::read_note;
    use crate::flux_rpc::connection::peer::{answer_of, questions_asked_by};
    use crate::testing::{alone, signal};

    /// `flux submit --watch` prints about a thousand short lines a second, so it may go on for long after its job.
    #[test]
    fn stop_after_the_jobs_end_leaves_its_exit_code() {
        let test = "in_instance::program::tests::stop_after_the_jobs_end_leaves_its_exit_code";
        alone(test, |folder| {
            // A negative age: submitted after the program's start, which is still to come.
            let job = |code: i32, age: f64| json!({ "state": 64, "t_submit": jobs::now() - age, "waitstatus": code << 8 });
            // Its end may never come, if the pod with its tasks is lost.
            let running = json!({ "state": 16, "t_submit": jobs::now() + 60.0 });
            let (prints, hangs) = ("sleep 1; touch \"$0\"; exit 3", "sleep 60");
            for (name, listed, then, within, expected) in [
                ("printed", vec![job(3, -60.0)], prints, 60.0, 3),
                ("not printed in time", vec![job(4, -60.0)], hangs, 0.2, 4),
                ("no job yet", vec![], prints, 60.0, 143),
                ("job of an archive", vec![job(0, 3600.0)], prints, 60.0, 143),
                (
                    "several jobs",
                    vec![job(0, -60.0), job(0, -60.0)],
                    prints,
                    60.0,
                    143,
                ),
                ("another runs", vec![running, job(0, -60.0)], hangs, 60.0, 143),
                (
                    "a job that never ran",
                    vec![json!({ "state": 64, "t_submit": jobs::now() + 60.0 })],
                    prints,
                    60.0,
                    143,
                ),
            ] {
                let [result, up, printed] =
                    ["result", "up", "printed"].map(|what| folder.join(format!("{what} {name}")));
                std::fs::write(&result, "").unwrap();
                let script = format!("touch '{}'; {then}", up.display());
                let args = ProgramArgs {
                    result: result.clone(),
                    within,
                    jobs: true,
                    retried: false,
                    archived: false,
                    without: Vec::new(),
                    given_back: Vec::new(),
                    command: ["sh", "-c", &script, printed.to_str().unwrap()]
                        .map(OsString::from)
                        .into(),
                };
                let answer =
                    move |_: &str| Some(answer_of(&json!({ "jobs": listed, "count": 0 }).to_string()));
                let work = async |broker| {
                    let program = std::thread::spawn(move || run_with(&args, Some(broker)));
                    eventually("the program runs", || up.exists().then_some(()));
                    signal(Signal::SIGHUP);
                    assert_eq!(program.join().unwrap().unwrap(), expected, "{name}");
                };
                questions_asked_by(work, answer);
                assert_eq!(printed.exists(), name == "printed", "{name}");
                let note = read_note(&result).unwrap();
                assert_eq!((note.code, note.is_aborted), (Some(expected), true), "{name}");
            }
        });
    }

    /// A script may have ignored the lost node, or be about to submit the job again.
    #[test]
    fn stop_ends_the_program_also_after_a_job_lost_a_node() {
        let test = "in_instance::program::tests::stop_ends_the_program_also_after_a_job_lost_a_node";
        alone(test, |folder| {
            for (is_stopped, code) in [(true, 143), (false, 7)] {
                let (result, up) = (folder.join("result"), folder.join(format!("up-{code}")));
                std::fs::write(&result, "").unwrap();
                let end = if is_stopped {
                    "while :; do sleep 0.02; done"
                } else {
                    "exit 7"
                };
                let script = format!("trap 'exit 143' TERM; touch {}; {end}", up.display());
                let args = ProgramArgs {
                    result: result.clone(),
                    within: 60.0,
                    jobs: false,
                    retried: false,
                    archived: false,
                    without: Vec::new(),
                    given_back: Vec::new(),
                    command: ["sh", "-c", &script].map(OsString::from).into(),
                };
                let now = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
                let job = json!({ "exception_type": "node-failure", "success": false, "ranks": "[0-1]",
                    "t_cleanup": now - 61.0, "t_inactive": now - 60.0 });
                let answer = move |_: &str| Some(answer_of(&json!({ "jobs": [job] }).to_string()));
                let work = async |broker| {
                    // A thread, since the program has an event loop of its own.
                    let program = std::thread::spawn(move || run_with(&args, Some(broker)));
                    if is_stopped {
                        eventually("the program runs", || up.exists().then_some(()));
                        signal(Signal::SIGHUP);
                    }
                    assert_eq!(program.join().unwrap().unwrap(), code);
                };
                questions_asked_by(work, answer);
                let note = read_note(&result).unwrap();
                assert_eq!(
                    (note.code, note.is_aborted, note.node_failure),
                    (Some(code), is_stopped, !is_stopped)
                );
            }
        });
    }
}
