//! The steps that lead and followers share: everything before the broker, and the start of the broker.

use flux_shared::command_words::Word;

use super::{
    PlanError, Resolved, SignalTarget, Step, accounts, broker, curve, discovery, environment, munge, program,
    python, queues, resources, restful, shell_defaults, snippets, sourced_files, user,
};

/// The steps before the broker: user and home, `init`, environment, files, `preCommand`, `pre`. If the image's own
/// Flux runs as another user, the snippets come first, as with the Go operator: one of them may create that user.
pub fn prepare(resolved: &Resolved) -> Result<Vec<Step>, PlanError> {
    let sources = &resolved.spec.runner.snippets;
    let init = snippets::step(resolved, "init", sources.init.as_ref());
    let pre_command = snippets::step(resolved, "preCommand", sources.pre_command.as_ref());
    let pre = snippets::step(resolved, "pre", sources.pre.as_ref());
    let mut steps = Vec::new();
    if resolved.is_system_instance() {
        steps.extend(own_files(resolved)?);
        let has_snippet = init.is_some() || pre_command.is_some() || pre.is_some();
        steps.extend(environment::around_init(resolved, init));
        steps.extend(environment::steps(resolved)?);
        steps.extend(pre_command);
        steps.extend(pre);
        // A snippet may have created the user.
        steps.extend(has_snippet.then_some(Step::Replan));
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

/// The steps for Flux's user, the spec's users, the working directory and Munge.
fn users(resolved: &Resolved) -> Vec<Step> {
    let mut steps = user::steps(resolved);
    steps.extend(accounts::steps(resolved));
    steps.extend(working_directory(resolved));
    steps.extend(munge::steps(resolved));
    steps
}

/// The files and folders that exist before the first snippet: the agent's own folders, links, the hostlist and R.
/// A snippet may overwrite R.
fn own_files(resolved: &Resolved) -> Result<Vec<Step>, PlanError> {
    let mut steps = broker::own_directories(resolved);
    steps.extend(broker::documented_links(resolved));
    steps.push(broker::hostlist(resolved));
    // The user's own broker.toml is the same on all pods. If it names R, a broker without the file fails.
    let needs_r = resolved.is_lead() || resolved.spec.flux.broker_config.is_some();
    if needs_r && !discovery::is_discovered(resolved) {
        steps.push(resources::step(resolved)?);
    }
    Ok(steps)
}

/// The other files and folders of the broker and the program.
fn files(resolved: &Resolved) -> Result<Vec<Step>, PlanError> {
    let mut steps = broker::directories(resolved);
    steps.push(broker::config(resolved)?);
    steps.extend(shell_defaults::steps(resolved));
    steps.extend(python::steps(resolved));
    steps.extend(curve::step(resolved));
    steps.extend(discovery::steps(resolved).into_iter().flatten());
    steps.extend(queues::steps(resolved)?);
    steps.extend(broker::system_link(resolved));
    steps.extend(sourced_files::steps(resolved));
    steps.extend(program::files(resolved)?);
    steps.extend(restful::files(resolved));
    Ok(steps)
}

/// Makes the spec's working directory writable for Flux's user.
fn working_directory(resolved: &Resolved) -> Option<Step> {
    let path = resolved.spec.runner.working_dir.clone()?;
    let owner = resolved.identity.run_as.as_ref()?.owner;
    Some(Step::Give { path, owner })
}

/// The words `flux start …` up to the broker's options. `-o --config DIR` works with every release: flux-start passes
/// `--config` to the broker, and then the folder and all later words.
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

/// The words of `flux.wrap`, for a broker that is started without `flux start`.
pub fn wrap_words(resolved: &Resolved) -> Vec<String> {
    let wrap = resolved.spec.flux.wrap.iter();
    wrap.flat_map(|wrap| wrap.split(',')).map(str::to_owned).collect()
}

/// The processes that get a signal. `flux start` and `flux broker` become the broker. The words before these, `prefix`
/// and `flux.wrap`, may be any program of the user, with the broker as its child.
pub fn signals(resolved: &Resolved, prefix: &[Word]) -> SignalTarget {
    if prefix.is_empty() && resolved.spec.flux.wrap.is_none() {
        SignalTarget::Process
    } else {
        SignalTarget::Broker
    }
}

/// The socket on which the broker listens. None: the spec disables it.
pub fn socket(resolved: &Resolved) -> Option<String> {
    (!resolved.spec.flux.disable_socket).then(|| resolved.paths.socket())
}
