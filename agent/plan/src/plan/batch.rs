//! The script of a batch, with one job per line, and the files that the batch needs.

use flux_shared::agent_spec::BatchLine;

use super::shell_quote::quote;
use super::{Content, Mode, PlanError, Resolved, Step};

/// Flux's default for `exec.kill-timeout`, in seconds: the time between SIGTERM and SIGKILL when Flux ends a job.
const FLUX_KILL_TIMEOUT: f64 = 5.0;
/// Seconds that the batch's instance needs to shut down.
const SHUTDOWN_RESERVE: f64 = 4.0;

/// The script's path. It is in the pod's own folder, since MiniClusters may share a working directory. Flux names
/// the batch job after the script.
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

/// The option of `flux batch` that makes the brokers of the batch read [`config_file`]. The file gives the batch's jobs
/// the time to end that a program gets, less a reserve for the shutdown of the batch's instance. None if Flux's default
/// is at least as long, or if these brokers may run in pods of another cluster, which lack the file. (If a node is
/// lost, the batch does not take longer to end: the surrounding instance loses the node as well, and does not wait
/// that long.)
pub fn config_option(resolved: &Resolved) -> Option<String> {
    let has_config_file = kill_timeout(resolved).is_some();
    has_config_file.then(|| {
        format!(
            "--broker-opts=--config-path={}",
            resolved.paths.batch_config_dir()
        )
    })
}

/// The step that writes the configuration of the batch's brokers, into the folder that [`config_option`] names.
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

/// The kill-timeout of the batch's instance, in seconds. None: Flux's default is long enough, or some brokers of
/// the batch may lack the file.
fn kill_timeout(resolved: &Resolved) -> Option<f64> {
    let network = &resolved.spec.network;
    if network.lead.is_some() || network.hostlist.is_some() {
        return None;
    }
    let seconds = super::resolved::time_to_end(resolved) - SHUTDOWN_RESERVE;
    (seconds > FLUX_KILL_TIMEOUT).then_some(seconds)
}

/// The script for a list of jobs. It submits one job per line, with the user's text unchanged. Then it waits until
/// the queue is idle, lists the jobs and names those that failed.
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
    // A function, and not a check of `$?` after each line: the rest of a line, such as a pipe, is the user's own. In a
    // pipe or with `&`, the function runs in a subshell. So it tells the script by a signal, not by a variable.
    script += &format!(
        "flux_agent_failed=0\n\
         trap 'flux_agent_failed=1' USR1\n\
         flux_agent_submit() {{\n\
         \t{submit} --flags waitable \"$@\" && return\n\
         \tflux_agent_code=$?\n\
         \tkill -USR1 $$\n\
         \techo \"line $flux_agent_line was not submitted\" >&2\n\
         \treturn $flux_agent_code\n\
         }}\n"
    );
    for BatchLine { number, text } in lines {
        let output = |suffix: &str| quote(&format!("{logs}/job-{number}.{suffix}"));
        let (err, out) = (output("err"), output("out"));
        script +=
            &format!("flux_agent_line={number}\nflux_agent_submit --error={err} --output={out} {text}\n");
    }
    // The lines in the background are submitted before the queue is asked. A signal ends `wait` early, with its code.
    script += "until wait; do :; done\n";
    // `flux job wait` waits for the jobs with the flag `waitable`. It ends with 1 if one has failed, and names each.
    script += "flux queue idle\nflux jobs -a\nflux job wait --all || flux_agent_failed=1\nexit $flux_agent_failed\n";
    Ok(script)
}

/// The user's own script, with a `#!` line if it has none, and a newline at its end.
pub fn raw(resolved: &Resolved, text: &str) -> Result<String, PlanError> {
    let mut script = super::snippets::with_shebang(resolved, text, "the batch script")?;
    if !script.ends_with('\n') {
        script.push('\n');
    }
    Ok(script)
}
