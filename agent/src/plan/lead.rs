//! Rank 0: starts the instance, runs the program in it, saves its state.

use flux_shared::agent_spec::Program;
use flux_shared::words::Word;

use super::program::{self, Initial};
use super::{AtEnd, Launch, PlanError, Planned, Scene, Step, options, runner, snippets};

pub fn steps(scene: &Scene) -> Result<Vec<Planned>, PlanError> {
    if scene.facts.earlier_pods > 0 {
        let step = Step::LeadLost { restarts_left: scene.facts.restarts_left };
        return Ok(vec![Planned::with(&["earlier_pods", "restarts_left"], step)]);
    }
    let initial = program::initial(scene);
    let mut steps = runner::prepare(scene)?;
    steps.extend(snippets::step(scene, "brokerPre", scene.spec.runner.snippets.broker_pre.as_ref())?);
    steps.push(launch(scene, initial)?);
    if let Some(archive) = &scene.spec.archive {
        let step = Step::PublishArchive { from: unfinished(archive), to: archive.clone() };
        steps.push(Planned::with(&[], step));
    }
    steps.extend(snippets::step(scene, "post", scene.spec.runner.snippets.post.as_ref())?);
    Ok(steps)
}

/// Without a program there is nothing that `flux start` would do for us, so it is the broker itself. It gets no shell
/// for an initial program unless the container has a terminal for one.
fn launch(scene: &Scene, Initial { words, stdout }: Initial) -> Result<Planned, PlanError> {
    let mut facts = vec![scene.flux_fact()];
    let mut argv: Vec<Word> = Vec::new();
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
    let launch = Launch { label: "fluxstart", argv, run_as, stdout, at_end };
    Ok(Planned::with(&facts, Step::Launch(launch)))
}

/// The broker's options, and the archive to read and to write.
fn options(scene: &Scene, interactive: bool, facts: &mut Vec<&'static str>) -> Vec<Word> {
    let mut options = options::broker(scene, interactive);
    if let Some(archive) = &scene.spec.archive {
        facts.push("archive");
        if scene.facts.is_present(archive) {
            options.push(format!("-Scontent.restore={archive}"));
        }
        options.push(format!("-Scontent.dump={}", unfinished(archive)));
    }
    options.into_iter().map(Word::Literal).collect()
}

/// Where the dump is written until it is whole: beside the archive, with its suffix, by which Flux knows the format.
fn unfinished(archive: &str) -> String {
    match archive.rsplit_once('/') {
        Some((folder, name)) => format!("{folder}/.unfinished-{name}"),
        None => format!(".unfinished-{archive}"),
    }
}
