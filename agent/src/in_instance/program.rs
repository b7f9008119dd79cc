//! `flux-agent program`: runs the lead's program, and records in a file how it ended, since the broker's exit code does
//! not show this. After a stop signal it gives the program or its jobs time to end.

use std::ffi::{OsStr, OsString};
use std::future::pending;
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
        let mut policy = GracefulStop {
            jobs: if args.jobs { broker.clone() } else { None },
            are_killed: false,
        };
        let code = runner
            .run_by(&args.command, Output::Inherit, terms, &mut policy)
            .await?;
        // Removes the wrapper's link.
        drop(flux_wrapper);
        let node_failure = match &broker {
            Some(broker) if code != 0 => {
                // A future that completes at a stop signal.
                let stop = async { drop(runner.supervisor.unless_stopped(pending::<()>()).await) };
                jobs::node_was_lost(broker, stop).await
            }
            _ => false,
        };
        let is_aborted = runner.stop_code().is_some();
        note_end(&args.result, code, node_failure, is_aborted);
        Ok(code)
    }))
}

/// Sets the variable to the user's value, which the broker has carried under another name. If the user has set none,
/// that is empty or missing: removes the variable, whose present value (if any) is for Flux itself.
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
    /// Whether the jobs were killed already.
    are_killed: bool,
}

impl Policy for GracefulStop {
    fn at_stop(&mut self, _: i32) -> AtStop {
        AtStop::PassOn(Order::signal(libc::SIGTERM))
    }

    fn in_place_of_signal(&mut self) -> Option<PolicyRequest> {
        let broker = self.jobs.clone()?;
        Some(Box::pin(async move { jobs::stop(&broker).await }))
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
