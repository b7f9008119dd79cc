//! A batch: the script with one job a line, and where it is put.

use flux_shared::agent_spec::BatchLine;

use super::display::quote;
use super::{Content, Mode, PlanError, Planned, Resolved, Step};

/// The script's path: the pod's own, since MiniClusters may share a working directory. Its name is the job's in Flux.
pub fn path(resolved: &Resolved) -> String {
    format!("{}/flux-job.batch", resolved.paths.config_root())
}

/// The step that writes the script.
pub fn file(resolved: &Resolved, text: String) -> Planned {
    let step = Step::File {
        path: path(resolved),
        mode: Mode(0o755),
        owner: resolved.identity.owner,
        content: Content::Text(text),
    };
    Planned::with(&["uid", "shell"], step)
}

/// What Flux's own kill-timeout is, after which a job that was told to end is killed.
const USUAL_TIME: f64 = 5.0;
/// What the batch's instance needs for its own way down.
const WAY_DOWN: f64 = 4.0;

/// The broker's option and the file for the instance that a batch is: at a stop its jobs are cancelled, and shall have what the
/// program has. (A node that is lost is lost to the instance around it as well, which does not wait for so long.) None: that
/// is no more than Flux gives; or a broker of it may run in a pod of another cluster, without the file.
pub fn configuration(resolved: &Resolved) -> Option<(String, Planned)> {
    let time = super::resolved::time_to_end(resolved) - WAY_DOWN;
    let spec = resolved.spec;
    if time <= USUAL_TIME || spec.network.lead.is_some() || spec.network.hostlist.is_some() {
        return None;
    }
    let content = Content::Text(format!("[exec]\nkill-timeout = \"{time}s\"\n"));
    let (path, owner) = (format!("{}/exec.toml", resolved.paths.batch_config_dir()), resolved.own());
    let file = Step::File { path, mode: Mode(0o644), owner, content };
    let option = format!("--broker-opts=--config-path={}", resolved.paths.batch_config_dir());
    Some((option, Planned::with(&["uid", "grace_period"], file)))
}

/// One submission a line, its text untouched; then the end of the queue is awaited, the jobs are listed and those that failed
/// told.
pub fn script(resolved: &Resolved, lines: &[BatchLine]) -> Result<String, PlanError> {
    let logs = resolved.logs.trim_end_matches('/');
    let submit: Vec<String> = resolved.spec.flux.submit_command.iter().map(|word| quote(word)).collect();
    let submit = submit.join(" ");
    let mut script = resolved.shebang("the batch script")?;
    for BatchLine { number, text } in lines {
        let output = |suffix: &str| quote(&format!("{logs}/job-{number}.{suffix}"));
        let (err, out) = (output("err"), output("out"));
        script += &format!("{submit} --flags waitable --error={err} --output={out} {text}\n");
    }
    // The last one's code is the batch's: 1 if a job has failed, each of which it names.
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
