//! Rank 0: starts the instance, runs the program in it, saves its state.

use flux_shared::agent_spec::{Program, RestartPolicy};
use flux_shared::words::Word;

use super::program::{self, Initial};
use super::{
    AtEnd, Content, Launch, Mode, PlanError, Planned, Scene, Step, archive, options, python, runner, snippets, user,
};

pub fn steps(scene: &Scene) -> Result<Vec<Planned>, PlanError> {
    if scene.facts.earlier_pods > 0 {
        let step = Step::LeadLost { restarts_left: scene.facts.restarts_left.unwrap_or(0) };
        return Ok(vec![Planned::with(&["earlier_pods", "restarts_left"], step)]);
    }
    let initial = program::initial(scene);
    let mut steps: Vec<Planned> = once(scene, &initial).into_iter().collect();
    steps.extend(runner::prepare(scene)?);
    steps.extend(snippets::step(scene, "brokerPre", scene.spec.runner.snippets.broker_pre.as_ref())?);
    steps.extend(archive::prepare(scene));
    steps.extend(initial.words.as_ref().map(|_| result_file(scene)));
    steps.push(launch(scene, initial)?);
    steps.extend(archive::publish(scene));
    steps.extend(snippets::step(scene, "post", scene.spec.runner.snippets.post.as_ref())?);
    Ok(steps)
}

/// A broker without a program may start again.
fn once(scene: &Scene, initial: &Initial) -> Option<Planned> {
    initial.words.as_ref()?;
    let record = scene.paths.starts();
    Some(match scene.spec.restart_policy {
        RestartPolicy::Never => Planned::with(&["uid"], Step::Once { record, restarts: 0 }),
        RestartPolicy::OnFailure => {
            let restarts = scene.facts.restarts_left.unwrap_or(u32::MAX);
            Planned::with(&["uid", "restarts_left"], Step::Once { record, restarts })
        }
    })
}

/// Without a program there is nothing that `flux start` would do for us, so it is the broker itself. It gets no shell
/// for an initial program unless the container has a terminal for one.
fn launch(scene: &Scene, Initial { words, stdout }: Initial) -> Result<Planned, PlanError> {
    let mut facts = vec![scene.flux_fact()];
    let mut argv: Vec<Word> = Vec::new();
    let result = words.as_ref().map(|_| scene.paths.program_result());
    let at_end = if words.is_some() { AtEnd::Exit } else { AtEnd::ExitUnlessStopped };
    match words {
        Some(program) => {
            facts.extend(match scene.spec.runner.program {
                Program::Batch { .. } | Program::BatchRaw { .. } => Some("working_directory"),
                Program::Submit { .. } | Program::Script { launch: false, .. } => Some("terminal"),
                _ => None,
            });
            argv.extend(runner::flux_start(scene)?.into_iter().map(Word::Literal));
            argv.extend(options(scene, false, &mut facts));
            facts.push("grace_period");
            argv.extend(wrapper(scene).into_iter().map(Word::Literal));
            argv.extend(program);
        }
        None => {
            facts.push("terminal");
            let headless = scene.spec.runner.interactive || !scene.facts.terminal;
            let config = scene.paths.broker_config_dir();
            argv.extend(scene.spec.runner.prefix.iter().cloned());
            argv.extend([scene.flux()?, "broker".into(), "--config-path".into(), config].map(Word::Literal));
            argv.extend(options(scene, headless, &mut facts));
        }
    }
    let run_as = user::run_as(scene);
    facts.extend(run_as.iter().flat_map(|_| ["uid", "passwd"]));
    let environment = Vec::from_iter(python::variable(scene));
    let launch = Launch { label: "fluxstart", argv, run_as, environment, stdout, result, at_end };
    Ok(Planned::with(&facts, Step::Launch(launch)))
}

/// Where the program's own end is noted, empty and Flux's own to write: the broker's code tells of its own end as well.
fn result_file(scene: &Scene) -> Planned {
    let (path, owner) = (scene.paths.program_result(), scene.identity.owner);
    Planned::with(&["uid"], Step::File { path, mode: Mode(0o600), owner, content: Content::Text(String::new()) })
}

/// The grace period that Kubernetes gives where none is asked for.
const USUAL_GRACE: u64 = 30;

/// How long the program, or its jobs, may take to end at a stop, in seconds.
pub fn time_to_end(scene: &Scene) -> f64 {
    let grace = scene.facts.grace_period.unwrap_or(USUAL_GRACE) as f64;
    // The instance goes down in two seconds, on a busy node in four; a dump of its state takes as long as it takes.
    let reserve = if scene.spec.archive.is_some() { grace / 2.0 } else { (grace / 4.0).clamp(4.0, 10.0) };
    grace - reserve.min(grace / 2.0)
}

/// What stands before the program: it notes how that ended, and gives it or its jobs SIGTERM and time at a stop.
fn wrapper(scene: &Scene) -> Vec<String> {
    let within = format!("--within={}", time_to_end(scene));
    let mut words = vec![scene.paths.agent(), "program".into(), format!("--result={}", scene.paths.program_result())];
    words.push(within);
    let waits_for_jobs = match scene.spec.runner.program {
        Program::Submit { .. } | Program::Batch { .. } | Program::BatchRaw { .. } => true,
        Program::Script { launch, .. } => !launch,
        Program::Launcher { .. } | Program::Persistent | Program::Diagnostics => false,
    };
    words.extend(waits_for_jobs.then(|| "--jobs".into()));
    words.extend(python::kept_from_program(scene));
    words.push("--".into());
    words
}

/// The broker's options, and the archive to read and to write.
fn options(scene: &Scene, interactive: bool, facts: &mut Vec<&'static str>) -> Vec<Word> {
    let mut options = options::broker(scene, interactive);
    options.extend(archive::options(scene, facts));
    options.into_iter().map(Word::Literal).collect()
}
