//! What lead and followers have in common: everything before the broker, and how it is started.

use flux_shared::command_words::Word;

use super::{
    PlanError, Resolved, SignalTarget, Step, accounts, broker, curve, discovery, environment, munge, program,
    python, resources, restful, shell_defaults, snippets, sourced_files, user,
};

/// User and home, `init`, environment, files, `preCommand`, `pre`. Where the image's own Flux is run as
/// another user, the snippets come first, as they did when images brought Flux: one of them may make that
/// user itself.
pub fn prepare(resolved: &Resolved) -> Result<Vec<Step>, PlanError> {
    let sources = &resolved.spec.runner.snippets;
    let init = snippets::step(resolved, "init", sources.init.as_ref());
    let pre_command = snippets::step(resolved, "preCommand", sources.pre_command.as_ref());
    let pre = snippets::step(resolved, "pre", sources.pre.as_ref());
    let mut steps = Vec::new();
    if resolved.is_system_instance() {
        steps.extend(own_files(resolved)?);
        steps.extend(init);
        steps.extend(environment::steps(resolved)?);
        let snippets: Vec<Step> = pre_command.into_iter().chain(pre).collect();
        let may_have_made_one = (!snippets.is_empty()).then_some(Step::Replan);
        steps.extend(snippets.into_iter().chain(may_have_made_one));
        steps.extend(users(resolved));
        steps.extend(files(resolved)?);
    } else {
        steps.extend(users(resolved));
        steps.extend(own_files(resolved)?);
        steps.extend(environment::around_init(resolved, init));
        steps.extend(environment::steps(resolved)?);
        steps.extend(files(resolved)?);
        steps.extend(pre_command);
        steps.extend(pre);
    }
    Ok(steps)
}

fn users(resolved: &Resolved) -> Vec<Step> {
    let mut steps = user::steps(resolved);
    steps.extend(accounts::steps(resolved));
    steps.extend(working_directory(resolved));
    steps.extend(munge::steps(resolved));
    steps
}

/// What snippets find from the first on, and what one of them may write over: the folders that are the
/// agent's own, R.
fn own_files(resolved: &Resolved) -> Result<Vec<Step>, PlanError> {
    let mut steps = broker::own_directories(resolved);
    steps.extend(broker::documented_links(resolved));
    steps.push(broker::hostlist(resolved));
    // A broker.toml of the user's own is the same on all pods, and a broker whose file of resources is
    // missing fails.
    let is_asked_for = resolved.is_lead() || resolved.spec.flux.broker_config.is_some();
    if is_asked_for && !discovery::is_discovered(resolved) {
        steps.push(resources::step(resolved)?);
    }
    Ok(steps)
}

fn files(resolved: &Resolved) -> Result<Vec<Step>, PlanError> {
    let mut steps = broker::directories(resolved);
    steps.push(broker::config(resolved)?);
    steps.extend(shell_defaults::steps(resolved));
    steps.extend(python::steps(resolved));
    steps.extend(curve::step(resolved));
    steps.extend(discovery::steps(resolved).into_iter().flatten());
    steps.extend(broker::system_link(resolved));
    steps.extend(sourced_files::steps(resolved));
    steps.extend(program::files(resolved)?);
    steps.extend(restful::files(resolved));
    Ok(steps)
}

/// Gives the working directory that the user asked for to Flux's user.
fn working_directory(resolved: &Resolved) -> Option<Step> {
    let path = resolved.spec.runner.working_dir.clone()?;
    let owner = resolved.identity.run_as.as_ref()?.owner;
    Some(Step::Give { path, owner })
}

/// `flux start` as far as the broker's options. `-o --config DIR` is understood by every release: flux-start
/// takes `--config` for an option of the broker and hands the folder on with all that follows.
pub fn flux_start(resolved: &Resolved) -> Result<Vec<String>, PlanError> {
    let mut words = vec![resolved.flux()?, "start".into()];
    words.extend(
        resolved
            .spec
            .flux
            .wrap
            .as_ref()
            .map(|wrap| format!("--wrap={wrap}")),
    );
    words.extend(["-o".into(), "--config".into(), resolved.paths.broker_config_dir()]);
    Ok(words)
}

/// Which processes get a signal: Flux's own program ends what it has started, but a user's prefix may be
/// anything.
pub fn signals(prefix: &[Word]) -> SignalTarget {
    if prefix.is_empty() {
        SignalTarget::Process
    } else {
        SignalTarget::Group
    }
}

/// The socket at which the broker is told to listen; none if the spec disables it.
pub fn socket(resolved: &Resolved) -> Option<String> {
    (!resolved.spec.flux.disable_socket).then(|| resolved.paths.socket())
}
