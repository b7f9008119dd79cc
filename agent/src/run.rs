//! `flux-agent run` and `sidecar`: the entrypoint.
//!
//! ```text
//! spec ─► facts ─► plan ─► execute ─► exit code, termination message with the timeline
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use flux_agent_plan::facts::Facts;
use flux_agent_plan::plan::{FromEnvironment, Plan, PodContainer, Role, Waits};
use flux_shared::agent_spec::AgentSpec;
use flux_shared::exit::{Category, of_stop_before_program};
use flux_shared::names::{COMPLETION_INDEX, LONGEST_GRACE_PERIOD};
use flux_shared::paths::{END_KEY, SPEC_DIR, SPEC_FILE, TERMINATION_LOG};

use crate::execute;
use crate::execute::retry::{AfterFailure, Attempts, RETRY_DEADLINE};
use crate::execute::timing::ContainerTimeline;
use crate::facts::{self, Process};
use crate::report::activity::{ActivityFile, Awaited};
use crate::report::ending::ContainerEnd;
use crate::report::failure::{Failure, chain, refused, write_termination};
use crate::report::log::{self, LineFormat};
use crate::spec::ReadError;
use crate::supervise::{Interrupted, Stop, Supervisor};
use crate::system::below;
use crate::wait::end;

/// How to run, apart from what the spec says: the entrypoint's command line.
#[derive(Debug, Clone, clap::Args)]
pub struct RunOptions {
    /// The AgentSpec, which the operator mounts [default: /etc/flux-agent/spec/agent.toml; with
    /// --name-from-env or
    /// --lead-from-env: no file, default values and one task per node]
    #[arg(long, value_name = "FILE")]
    pub spec: Option<PathBuf>,
    /// Format of the agent's own log lines [default: logging.format of the spec, else text]
    #[arg(long, value_enum, value_name = "FORMAT")]
    pub log_format: Option<LineFormat>,
    /// Seconds to wait for the parent broker at the start [default: the spec's, else no limit]
    #[arg(long, value_name = "SECONDS")]
    parent_deadline: Option<u64>,
    /// Seconds to retry after failures that may be temporary: a spec or view that is not there yet, a full or
    /// missing volume
    #[arg(long, value_name = "SECONDS", default_value_t = RETRY_DEADLINE.as_secs())]
    patience: u64,
    /// The pod's terminationGracePeriodSeconds: shortly before its end, remaining processes are killed
    /// [default: unknown]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(..=LONGEST_GRACE_PERIOD))]
    grace_period: Option<u64>,
    /// How often the program may be restarted [default: with OnFailure no limit, else never]
    #[arg(long, value_name = "N")]
    restarts_left: Option<u32>,
    /// Seconds the lead's DNS name may be missing before a follower exits [default: the spec's, else 30]
    #[arg(long, value_name = "SECONDS")]
    lead_gone: Option<u64>,
    /// Seconds a lead that has answered before may be silent before a follower exits [default: the spec's,
    /// else no limit]
    #[arg(long, value_name = "SECONDS")]
    lead_silent: Option<u64>,
    #[command(flatten)]
    pub from_environment: FromEnvironment,
    /// Read and write below this folder
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    pub root: PathBuf,
    #[arg(long, value_name = "FILE", default_value = TERMINATION_LOG, hide = true)]
    pub termination_log: PathBuf,
}

/// Runs the container; returns its exit code.
pub fn run_container(options: &RunOptions, container: &PodContainer) -> u8 {
    report_panics(options);
    let (mut timeline, mut ending) = (ContainerTimeline::start(), ContainerEnd::default());
    // Until the spec has been read, only the command line names a format.
    log::set_format(options.log_format.unwrap_or_default());
    // The plan. It stays here even if the work fails: the termination message needs it.
    let mut planned = None;
    let work = entrypoint(options, container, &mut timeline, &mut ending, &mut planned);
    let result = crate::system::runtime::block_on(Box::pin(work));
    if let Err(failure) = &result {
        log::failure(failure);
    }
    let termination = ending.termination(&result);
    // The operator makes the timeline a part of the trace.
    let message = match planned.filter(|plan| plan.trace.is_some()) {
        Some(plan) => termination.encode_with(&timeline.for_message(&plan.hostname, role_name(&plan))),
        None => termination.encode(),
    };
    write_termination(&options.termination_log, &message);
    termination.code
}

fn role_name(plan: &Plan) -> &'static str {
    match plan.role {
        Role::Lead => "lead",
        Role::Follower => "follower",
        Role::Sidecar(_) => "sidecar",
    }
}

/// Plans and executes; returns the exit code. Stores the plan in `plan_slot`.
async fn entrypoint(
    options: &RunOptions,
    container: &PodContainer,
    timeline: &mut ContainerTimeline,
    ending: &mut ContainerEnd,
    plan_slot: &mut Option<Plan>,
) -> Result<u8, Failure> {
    let begin = Instant::now();
    let mut supervisor = Supervisor::new()
        .map_err(|error| Failure::internal(format!("failed to receive signals: {error}")))?;
    supervisor.be_entrypoint();
    // Read before any program of the user has run, since such a program could replace the file of the agent.
    let process = Process::own();
    let planned = plan_with_retries(options, container, &process, &mut supervisor).await;
    let result = match planned {
        Ok(Interrupted::Done((plan, mount))) => {
            log::set_format(options.log_format.unwrap_or_else(|| plan.log.format.into()));
            log::set_quiet(plan.log.quiet);
            // The stages of the init containers.
            timeline.add_earlier(&options.root, &mount);
            timeline.record("plan", begin);
            let plan = plan_slot.insert(plan);
            let replan = || self::plan(options, container, &process).map(|(plan, _)| plan);
            let execute_options = options.for_execute(container);
            execute_plan(plan, &replan, execute_options, timeline, ending, &mut supervisor).await
        }
        Ok(Interrupted::Stopped(stop)) => {
            // Without a plan, it is not known whether there is an archive. If there is none, nobody reads this.
            ending.archive_not_saved = Some("the pod was stopped before Flux was started".into());
            Ok(stop_code(stop))
        }
        Err(failure) => Err(failure),
    };
    ending.stopped = supervisor.received_stop().map(|stop| stop.at);
    result
}

/// Executes the plan; returns the exit code. Meanwhile, the container that runs Flux also ends when the operator
/// requests it, by a file beside the spec. `replan` makes a new plan at `Step::Replan`.
async fn execute_plan(
    plan: &Plan,
    replan: &dyn Fn() -> Result<Plan, Failure>,
    options: execute::Options,
    timeline: &mut ContainerTimeline,
    ending: &mut ContainerEnd,
    supervisor: &mut Supervisor,
) -> Result<u8, Failure> {
    log_identity(plan);
    let is_runner = !matches!(plan.role, Role::Sidecar(_));
    let file = below(&options.root, SPEC_DIR).join(END_KEY);
    let watch = is_runner.then(|| tokio::spawn(end::stop_when_requested(file.clone())));
    let result = execute::run_plan(plan, replan, options, supervisor, timeline, ending).await;
    watch.inspect(tokio::task::JoinHandle::abort);
    if is_runner
        && supervisor.received_stop().is_some()
        && let Some(why) = end::reason(&file)
    {
        ending.note(why);
    }
    let code = match &result {
        Ok(code) => *code,
        Err(failure) => failure.category.code(),
    };
    if plan.log.timed {
        timeline.report(role_name(plan), code);
    }
    result
}

/// Makes a panic report itself like any other failure, whether the build unwinds or aborts.
fn report_panics(options: &RunOptions) {
    let termination_log = options.termination_log.clone();
    std::panic::set_hook(Box::new(move |panic| {
        let place = panic.location().map_or(String::new(), |place| {
            format!(" at {}:{}", place.file(), place.line())
        });
        let payload = panic.payload();
        let text = payload
            .downcast_ref::<&str>()
            .copied()
            .or(payload.downcast_ref::<String>().map(String::as_str));
        let why = text.unwrap_or("no reason given");
        let failure = Failure::internal(format!("flux-agent panicked{place}: {why}"));
        log::failure(&failure);
        let termination = ContainerEnd::default().termination(&Err(failure));
        write_termination(&termination_log, &termination.encode());
        // An abort would have another code, which for process 1 cannot be predicted.
        std::process::exit(termination.code.into());
    }));
    #[cfg(debug_assertions)]
    #[expect(
        clippy::panic,
        reason = "only in debug builds, for a test of what a panic leaves behind"
    )]
    if std::env::var_os("FLUX_AGENT_PANIC").is_some() {
        panic!("as the test wished");
    }
}

/// The plan, and the mount path of the pod's volume, once spec and view are there.
async fn plan_with_retries(
    options: &RunOptions,
    container: &PodContainer,
    process: &Process,
    supervisor: &mut Supervisor,
) -> Result<Interrupted<(Plan, String)>, Failure> {
    let mut attempts = Attempts::new(
        Duration::from_secs(options.patience),
        options.activity_file(container),
    );
    loop {
        let failure = match plan(options, container, process) {
            Ok(planned) => return Ok(Interrupted::Done(planned)),
            Err(failure) => failure,
        };
        let awaited = if failure.category == Category::ViewMissing {
            Awaited::View
        } else {
            Awaited::Spec
        };
        match attempts.after(failure, awaited, supervisor).await? {
            AfterFailure::Retry => {}
            AfterFailure::GiveUp(failure) => return Err(failure),
            AfterFailure::Stop(stop) => return Ok(Interrupted::Stopped(stop)),
        }
    }
}

/// The exit code after a stop before the plan is made. Until then, only the pod's index says whether this is the lead
/// (index 0). A pod without an index counts as the lead.
fn stop_code(stop: Stop) -> u8 {
    of_stop_before_program(
        stop.signal,
        std::env::var(COMPLETION_INDEX).is_ok_and(|index| index != "0"),
    )
}

/// The plan, and the mount path of the pod's volume.
fn plan(
    options: &RunOptions,
    container: &PodContainer,
    process: &Process,
) -> Result<(Plan, String), Failure> {
    if let PodContainer::Sidecar(name) = container
        && options.from_environment.is_program_given()
    {
        return Err(Failure::new(
            Category::SpecInvalid,
            format!(
                "failed to use the program after `--`: it is for the container that runs Flux, and this is sidecar {name}"
            ),
            "leave it out, and name the sidecar's program in the spec (sidecars.NAME.command)",
        ));
    }
    let (spec, facts) = options.facts(process.clone())?;
    let planned = flux_agent_plan::plan::build(&spec, &facts, container);
    let view = below(&options.root, &spec.paths().view());
    planned
        .map(|plan| (plan.with_waits(options.waits()), spec.mount_path))
        .map_err(|error| {
            // A missing view may still be copied. A view without Flux does not change.
            let is_passing = error.category() == Category::ViewMissing && spec.view.enabled && !view.exists();
            Failure {
                is_passing,
                ..Failure::new(error.category(), chain(&error), error.hint())
            }
        })
}

/// The spec in `file` (none: in the usual file or, if `from_environment` says so, default values). It is completed from
/// the variables that `from_environment` names.
fn spec(
    file: Option<&Path>,
    from_environment: &FromEnvironment,
    environment: &BTreeMap<String, String>,
) -> Result<AgentSpec, Failure> {
    let unreadable = |error: ReadError| Failure {
        is_passing: error.is_passing(),
        ..Failure::new(error.category(), chain(&error), error.hint())
    };
    let path = file.unwrap_or(SPEC_FILE.as_ref());
    let in_place_of_spec = match file {
        Some(_) => None,
        None => from_environment.in_place_of_spec(),
    };
    let mut spec = match in_place_of_spec {
        Some(text) => AgentSpec::unchecked(text).map_err(|error| Failure::internal(chain(&error)))?,
        None => crate::spec::read(path).map_err(unreadable)?,
    };
    from_environment
        .apply_to(&mut spec, environment)
        .map_err(|error| refused(&error))?;
    crate::spec::check(&spec, path).map_err(unreadable)?;
    Ok(spec)
}

fn log_identity(plan: &Plan) {
    let who = match (&plan.role, plan.rank) {
        (Role::Sidecar(name), _) => format!("sidecar {name}"),
        (_, rank) => format!("{} (rank {})", role_name(plan), rank.unwrap_or_default()),
    };
    tracing::info!(stage = "plan", "{} of {}: {who}", plan.hostname, plan.cluster);
    plan.notices
        .iter()
        .for_each(|notice| tracing::info!(stage = "plan", "{notice}"));
}

impl Default for RunOptions {
    /// Options of an entrypoint without arguments.
    fn default() -> RunOptions {
        RunOptions {
            spec: None,
            log_format: None,
            parent_deadline: None,
            patience: RETRY_DEADLINE.as_secs(),
            grace_period: None,
            restarts_left: None,
            lead_gone: None,
            lead_silent: None,
            from_environment: FromEnvironment::default(),
            root: "/".into(),
            termination_log: TERMINATION_LOG.into(),
        }
    }
}

impl RunOptions {
    /// The spec, and the facts of this host for a process of this container, both completed from the command line.
    pub fn facts(&self, process: Process) -> Result<(AgentSpec, Facts), Failure> {
        let spec = spec(self.spec.as_deref(), &self.from_environment, &process.environment)?;
        let key = self
            .from_environment
            .key(&process.environment)
            .map_err(|error| refused(&error))?;
        let facts =
            facts::read(&self.root, &spec, process).map_err(|error| Failure::internal(chain(&error)))?;
        let (restarts_left, grace_period) = (self.restarts_left, self.grace_period);
        let spec_file = self.spec.as_ref().map(|file| file.display().to_string());
        Ok((
            spec,
            Facts {
                restarts_left,
                grace_period,
                key,
                spec_file,
                ..facts
            },
        ))
    }

    /// How long a follower waits, by the command line.
    pub fn waits(&self) -> Waits {
        Waits {
            parent_deadline: self.parent_deadline,
            lead_gone: self.lead_gone,
            lead_silent: self.lead_silent,
        }
    }

    fn for_execute(&self, container: &PodContainer) -> execute::Options {
        execute::Options {
            root: self.root.clone(),
            agent: "/proc/self/exe".into(),
            patience: Duration::from_secs(self.patience),
            activity_file: self.activity_file(container),
        }
    }

    /// The activity file, which `status` reads if there is no broker. So only the container that runs Flux has one.
    fn activity_file(&self, container: &PodContainer) -> ActivityFile {
        ActivityFile(matches!(container, PodContainer::Runner).then(|| self.termination_log.clone()))
    }
}
