//! Rank 0: starts the instance, runs the program in it, saves its state.

use std::ops::Range;

use flux_shared::agent_spec::{Program, RestartPolicy};
use flux_shared::command_words::Word;

use super::program::{self, Initial};
use super::{
    AtEnd, Content, FluxLookup, InstancePart, Launch, Metrics, Mode, PlanError, Resolved, SignalTarget,
    Stdout, Step, archive, discovery, node_network, options, python, queues, resources, runner, search_paths,
    snippets, user,
};

/// All steps of the lead. If an earlier pod of the lead was lost, only `LeadLost`.
pub fn steps(resolved: &Resolved) -> Result<Vec<Step>, PlanError> {
    if resolved.facts.earlier_pods > 0 {
        let step = Step::LeadLost {
            // None: there is no operator, so nothing restarts the MiniCluster.
            restarts_left: resolved.facts.restarts_left.unwrap_or(0),
        };
        return Ok(vec![step]);
    }
    let initial = program::initial(resolved);
    // This step comes first. It reads the result of an earlier start, and `result_file` empties that file.
    let mut steps: Vec<Step> = check_of_earlier_starts(resolved, initial.is_some())
        .into_iter()
        .collect();
    steps.extend(runner::prepare(resolved)?);
    steps.extend(snippets::step(
        resolved,
        "brokerPre",
        resolved.spec.runner.snippets.broker_pre.as_ref(),
    ));
    steps.extend(resources::snippet_step(resolved)?);
    steps.extend(archive::prepare(resolved));
    steps.extend(initial.as_ref().map(|_| result_file(resolved)));
    steps.push(launch(resolved, initial)?);
    steps.extend(archive::publish(resolved));
    steps.extend(snippets::post(
        resolved,
        resolved.spec.runner.snippets.post.as_ref(),
    ));
    Ok(steps)
}

/// The check of earlier starts. None for a broker without a program, which may start any number of times.
fn check_of_earlier_starts(resolved: &Resolved, has_program: bool) -> Option<Step> {
    if !has_program {
        return None;
    }
    Some(Step::CheckEarlierStarts {
        record: resolved.paths.starts(),
        result: resolved.paths.program_result(),
        restarts: restarts_of_container(resolved),
    })
}

/// How often a restart of the container may run the program again.
fn restarts_of_container(resolved: &Resolved) -> u32 {
    match resolved.spec.restart_policy {
        RestartPolicy::Never => 0,
        // None: no limit is known, and the kubelet sets none.
        RestartPolicy::OnFailure => resolved.facts.restarts_left.unwrap_or(u32::MAX),
    }
}

/// The command line of the lead's broker.
struct CommandLine {
    argv: Vec<Word>,
    /// The range of `argv` that has the broker's options, which snippets may change ([`Launch::options`]).
    options: Range<usize>,
    flux: Option<FluxLookup>,
    signals: SignalTarget,
}

/// `flux start` with the initial program.
fn with_program(resolved: &Resolved, program: &[Word]) -> Result<CommandLine, PlanError> {
    let runner = &resolved.spec.runner;
    // The command line of a program of the user has the prefix already.
    let mut argv = if runner.program.is_from_user() {
        Vec::new()
    } else {
        runner.prefix.clone()
    };
    let signals = runner::signals(resolved, &argv);
    let flux = resolved.flux_lookup(argv.len());
    argv.extend(literals(runner::flux_start(resolved)?));
    let options_start = argv.len();
    // `false`: `program` is the broker's initial program.
    argv.extend(broker_and_dump_options(resolved, false));
    let options = options_start..argv.len();
    argv.extend(literals(wrapper(resolved)));
    argv.extend_from_slice(program);
    Ok(CommandLine {
        argv,
        options,
        flux,
        signals,
    })
}

/// `flux broker` without a program of the user, for which `flux start` is not needed. By default, the broker starts a
/// shell as its initial program. It starts none if there is no terminal, or if the MiniCluster is interactive: users
/// enter that by `kubectl minicluster connect`.
fn broker_alone(resolved: &Resolved) -> Result<CommandLine, PlanError> {
    let runner = &resolved.spec.runner;
    let config = resolved.paths.broker_config_dir();
    let broker = [resolved.flux()?, "broker".into(), "--config-path".into(), config];
    let mut argv = runner.prefix.clone();
    let signals = runner::signals(resolved, &argv);
    argv.extend(literals(runner::wrap_words(resolved)));
    let flux = resolved.flux_lookup(argv.len());
    argv.extend(literals(broker));
    let options_start = argv.len();
    let without_initial_program = runner.interactive || !resolved.facts.terminal;
    argv.extend(broker_and_dump_options(resolved, without_initial_program));
    let options = options_start..argv.len();
    Ok(CommandLine {
        argv,
        options,
        flux,
        signals,
    })
}

fn literals(words: impl IntoIterator<Item = String>) -> Vec<Word> {
    words.into_iter().map(Word::Literal).collect()
}

fn launch(resolved: &Resolved, initial: Option<Initial>) -> Result<Step, PlanError> {
    let has_program = initial.is_some();
    let command = match &initial {
        Some(program) => with_program(resolved, &program.command.argv)?,
        None => broker_alone(resolved)?,
    };
    // `Diagnostics` stays after its reports. `Persistent` has a program only for the RESTful API, which also stays.
    let stays_up = !resolved.spec.runner.program.is_from_user();
    let (program, stdout) = match initial {
        Some(Initial { command, stdout }) => (command.as_typed, stdout),
        None => (Vec::new(), Stdout::Inherit),
    };
    let run_as = user::run_as(resolved);
    let mut environment = search_paths::changes(resolved);
    let variables = [
        python::variable(resolved),
        discovery::broker_variable(resolved),
        queues::variable(resolved),
        node_network::variable(resolved),
    ];
    environment.extend(variables.into_iter().flatten());
    let launch = Launch {
        label: "fluxstart",
        part: InstancePart::Lead,
        argv: command.argv,
        options: Some(command.options),
        flux: command.flux,
        program,
        run_as,
        environment,
        stdout,
        signals: command.signals,
        socket: runner::socket(resolved),
        // Only followers have the fields from `parent` to `job_shell`: how they find their parent, hold back a stop, drain
        // themselves and the ranks below, and end if a job still runs on them.
        parent: None,
        lead: None,
        hold_stop: None,
        drain: None,
        below: String::new(),
        job_shell: None,
        metrics: metrics(resolved),
        result: has_program.then(|| resolved.paths.program_result()),
        record: has_program.then(|| resolved.paths.starts()),
        // Without a program, only the broker's states show that the instance came up. They need the socket.
        needs_instance: has_program || !resolved.spec.flux.disable_socket,
        at_end: if has_program && !stays_up {
            AtEnd::Exit
        } else {
            AtEnd::ExitUnlessStopped
        },
    };
    Ok(Step::Launch(launch.into()))
}

/// The metrics to serve. None if the spec has no port for them, or the broker no socket at which the agent could ask.
fn metrics(resolved: &Resolved) -> Option<Metrics> {
    let port = resolved.spec.flux.metrics_port?;
    let has_socket = runner::socket(resolved).is_some();
    has_socket.then(|| Metrics {
        port,
        cluster: resolved.spec.name.clone(),
    })
}

/// The file in which `flux-agent program` records how the program ended, since the broker's exit code may describe the
/// broker's own end. It is empty at first, and Flux's user owns it.
fn result_file(resolved: &Resolved) -> Step {
    let (path, owner) = (resolved.paths.program_result(), resolved.identity.owner);
    Step::File {
        path,
        mode: Mode(0o600),
        owner,
        content: Content::Text(String::new()),
    }
}

/// The words before the program. `flux-agent program` records how the program ended. At a stop, it sends SIGTERM to the
/// program or, with `--jobs`, to the jobs instead, and gives them `--within` seconds. If the program fails and is
/// `--retried`, it cancels the pending jobs; after a stop only if they are not `--archived`.
fn wrapper(resolved: &Resolved) -> Vec<String> {
    let mut words = vec![
        resolved.paths.agent(),
        "program".into(),
        format!("--result={}", resolved.paths.program_result()),
        format!("--within={}", super::resolved::time_to_end(resolved)),
    ];
    // Programs that only submit jobs and wait for them.
    let waits_for_jobs = match resolved.spec.runner.program {
        Program::Submit { .. } | Program::Batch { .. } | Program::BatchRaw { .. } => true,
        Program::Script { launch, .. } => !launch,
        Program::Launcher { .. } | Program::Persistent | Program::Diagnostics => false,
    };
    words.extend(waits_for_jobs.then(|| "--jobs".into()));
    // A restarted container has the state of its earlier start. In an instance that stays up for people, the pending
    // jobs are theirs.
    if resolved.spec.runner.program.is_from_user() && restarts_of_container(resolved) > 0 {
        words.push("--retried".into());
        words.extend(resolved.spec.archive.is_some().then(|| "--archived".into()));
    }
    words.extend(python::kept_from_program(resolved));
    words.extend(node_network::kept_from_program(resolved));
    words.extend(search_paths::given_to_program(resolved));
    words.push("--".into());
    words
}

/// The broker's options, with that for the dump.
fn broker_and_dump_options(resolved: &Resolved, without_initial_program: bool) -> Vec<Word> {
    let broker = options::broker(resolved, without_initial_program);
    literals(broker.into_iter().chain(archive::option(resolved)))
}
