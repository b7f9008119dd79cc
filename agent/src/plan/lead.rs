//! Rank 0: starts the instance, runs the program in it, saves its state.

use flux_shared::agent_spec::{Program, RestartPolicy};
use flux_shared::words::Word;

use super::program::{self, Initial};
use super::{AtEnd, Launch, PlanError, Planned, Scene, Step, archive, options, runner, snippets};

pub fn steps(scene: &Scene) -> Result<Vec<Planned>, PlanError> {
    if scene.facts.earlier_pods > 0 {
        let step = Step::LeadLost { restarts_left: scene.facts.restarts_left };
        return Ok(vec![Planned::with(&["earlier_pods", "restarts_left"], step)]);
    }
    let initial = program::initial(scene);
    let mut steps: Vec<Planned> = once(scene, &initial).into_iter().collect();
    steps.extend(runner::prepare(scene)?);
    steps.extend(snippets::step(scene, "brokerPre", scene.spec.runner.snippets.broker_pre.as_ref())?);
    steps.extend(archive::prepare(scene));
    steps.extend(archive::result_file(scene).filter(|_| initial.words.is_some()));
    steps.push(launch(scene, initial)?);
    steps.extend(archive::publish(scene));
    steps.extend(snippets::step(scene, "post", scene.spec.runner.snippets.post.as_ref())?);
    Ok(steps)
}

/// A broker without a program may start again.
fn once(scene: &Scene, initial: &Initial) -> Option<Planned> {
    initial.words.as_ref()?;
    let again = scene.spec.restart_policy == RestartPolicy::OnFailure;
    Some(Planned::with(&["uid"], Step::Once { record: scene.paths.starts(), again }))
}

/// Without a program there is nothing that `flux start` would do for us, so it is the broker itself. It gets no shell
/// for an initial program unless the container has a terminal for one.
fn launch(scene: &Scene, Initial { words, stdout }: Initial) -> Result<Planned, PlanError> {
    let mut facts = vec![scene.flux_fact()];
    let mut argv: Vec<Word> = Vec::new();
    let result = archive::result(scene).filter(|_| words.is_some());
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
            if let Some(path) = &result {
                argv.extend([&scene.paths.agent(), "program", "--result", path, "--"].map(Word::literal));
            }
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
    let run_as = scene.identity.run_as;
    let launch = Launch { label: "fluxstart", argv, run_as, stdout, result, at_end };
    Ok(Planned::with(&facts, Step::Launch(launch)))
}

/// The broker's options, and the archive to read and to write.
fn options(scene: &Scene, interactive: bool, facts: &mut Vec<&'static str>) -> Vec<Word> {
    let mut options = options::broker(scene, interactive);
    options.extend(archive::options(scene, facts));
    options.into_iter().map(Word::Literal).collect()
}
