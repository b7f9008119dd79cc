//! A batch: the script with one job a line, and where it is put.

use flux_shared::agent_spec::BatchLine;

use super::shell_quote::quote;
use super::{Content, Mode, PlanError, Resolved, Step};

/// Flux's default kill-timeout, in seconds, after which a job that was told to end is killed.
const FLUX_KILL_TIMEOUT: f64 = 5.0;
/// Seconds that the batch's instance needs to shut down.
const SHUTDOWN_RESERVE: f64 = 4.0;

/// The script's path, in the pod's own folder, since MiniClusters may share a working directory. Flux names
/// the job by it.
pub fn path(resolved: &Resolved) -> String {
    format!("{}/flux-job.batch", resolved.paths.config_root())
}

/// The step that writes the script.
pub fn file(resolved: &Resolved, text: String) -> Step {
    Step::File {
        path: path(resolved),
        mode: Mode(0o755),
        owner: resolved.identity.owner,
        content: Content::Text(text),
    }
}

/// The broker's option that gives the batch's jobs as long to end as a program has. None: Flux's default is
/// longer, or a broker of the batch may run in another cluster's pod, which lacks the file. (A lost node is
/// lost to the surrounding instance as well, which does not wait for so long.)
pub fn config_option(resolved: &Resolved) -> Option<String> {
    let has_config_file = kill_timeout(resolved).is_some();
    has_config_file.then(|| {
        format!(
            "--broker-opts=--config-path={}",
            resolved.paths.batch_config_dir()
        )
    })
}

/// The file that this option names.
pub fn config_file(resolved: &Resolved) -> Option<Step> {
    let seconds = kill_timeout(resolved)?;
    let file = Step::File {
        path: format!("{}/exec.toml", resolved.paths.batch_config_dir()),
        mode: Mode(0o644),
        owner: resolved.agent_owner(),
        content: Content::Text(format!("[exec]\nkill-timeout = \"{seconds}s\"\n")),
    };
    Some(file)
}

/// Seconds that the batch's jobs get to end, where they get more than by default.
fn kill_timeout(resolved: &Resolved) -> Option<f64> {
    let network = &resolved.spec.network;
    if network.lead.is_some() || network.hostlist.is_some() {
        return None;
    }
    let seconds = super::resolved::time_to_end(resolved) - SHUTDOWN_RESERVE;
    (seconds > FLUX_KILL_TIMEOUT).then_some(seconds)
}

/// The script: one submission a line, its text untouched; then it waits for the queue to be idle, lists the
/// jobs and names those that failed.
pub fn script(resolved: &Resolved, lines: &[BatchLine]) -> Result<String, PlanError> {
    let logs = resolved.logs.trim_end_matches('/');
    let submit: Vec<String> = resolved
        .spec
        .flux
        .submit_command
        .iter()
        .map(|word| quote(word))
        .collect();
    let submit = submit.join(" ");
    let mut script = resolved.shebang("the batch script")?;
    for BatchLine { number, text } in lines {
        let output = |suffix: &str| quote(&format!("{logs}/job-{number}.{suffix}"));
        let (err, out) = (output("err"), output("out"));
        script += &format!("{submit} --flags waitable --error={err} --output={out} {text}\n");
    }
    // The last command's code is the batch's: 1 if a job has failed. It names each of these.
    script += "flux queue idle\nflux jobs -a\nflux job wait --all\n";
    Ok(script)
}

/// The user's own script, with a first line if it has none.
pub fn raw(resolved: &Resolved, text: &str) -> Result<String, PlanError> {
    let mut script = super::snippets::with_shebang(resolved, text, "the batch script")?;
    if !script.ends_with('\n') {
        script.push('\n');
    }
    Ok(script)
}
