//! What lead and followers have in common: everything before the broker.

use super::{
    PlanError, Planned, Scene, Step, accounts, binding, broker, curve, discovery, environment, helpers, munge, program,
    python, resources, restful, snippets, user,
};

/// User and home, `init`, environment, files, `preCommand`, `pre`. Where the image's own Flux is run as another user, the
/// snippets come first, as they did when images brought Flux: one of them may make that user itself.
pub fn prepare(scene: &Scene) -> Result<Vec<Planned>, PlanError> {
    let own = &scene.spec.runner.snippets;
    let init = snippets::step(scene, "init", own.init.as_ref())?;
    let pre_command = snippets::step(scene, "preCommand", own.pre_command.as_ref())?;
    let pre = snippets::step(scene, "pre", own.pre.as_ref())?;
    let mut steps = Vec::new();
    if scene.is_system_like() {
        steps.extend(init);
        steps.extend(environment::steps(scene)?);
        let snippets: Vec<Planned> = pre_command.into_iter().chain(pre).collect();
        let may_have_made_one = (!snippets.is_empty()).then(|| Planned::with(&[], Step::LookAgain));
        steps.extend(snippets.into_iter().chain(may_have_made_one));
        steps.extend(users(scene));
        steps.extend(files(scene)?);
    } else {
        steps.extend(users(scene));
        steps.extend(init);
        steps.extend(environment::steps(scene)?);
        steps.extend(files(scene)?);
        steps.extend(pre_command);
        steps.extend(pre);
    }
    Ok(steps)
}

fn users(scene: &Scene) -> Vec<Planned> {
    let mut steps = user::steps(scene);
    steps.extend(accounts::steps(scene));
    steps.extend(working_directory(scene));
    steps.extend(munge::steps(scene));
    steps
}

fn files(scene: &Scene) -> Result<Vec<Planned>, PlanError> {
    let mut steps = broker::directories(scene);
    steps.push(broker::hostlist(scene));
    steps.push(broker::config(scene)?);
    steps.extend(binding::steps(scene));
    steps.extend(python::steps(scene));
    steps.extend(curve::step(scene));
    // A broker.toml of the user's own is the same on all pods, and a broker whose file of resources is missing fails.
    let is_asked_for = scene.is_lead() || scene.spec.flux.broker_config.is_some();
    match discovery::step(scene) {
        Some(step) => steps.push(step),
        None if is_asked_for => steps.push(resources::step(scene)?),
        None => {}
    }
    steps.extend(broker::documented_links(scene));
    steps.extend(helpers::steps(scene));
    steps.extend(program::files(scene)?);
    steps.extend(restful::files(scene));
    Ok(steps)
}

/// What a user asked for to work in belongs to who works there.
fn working_directory(scene: &Scene) -> Option<Planned> {
    let path = scene.spec.runner.working_dir.clone()?;
    let owner = scene.identity.run_as?;
    Some(Planned::with(&["uid", "passwd"], Step::Give { path, owner }))
}

/// `flux start` as far as the broker's options. `-o --config DIR` is understood by every release: flux-start takes
/// `--config` for an option of the broker and hands the folder on with all that follows.
pub fn flux_start(scene: &Scene) -> Result<Vec<String>, PlanError> {
    let mut words = vec![scene.flux()?, "start".into()];
    words.extend(scene.spec.flux.wrap.as_ref().map(|wrap| format!("--wrap={wrap}")));
    words.extend(["-o".into(), "--config".into(), scene.paths.broker_config_dir()]);
    Ok(words)
}
