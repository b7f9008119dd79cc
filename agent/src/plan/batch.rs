//! A batch: the script with one job a line, and where it is put.

use flux_shared::agent_spec::BatchLine;

use super::display::quote;
use super::{Content, Mode, PlanError, Planned, Scene, Step};

/// The script's path: the pod's own, since MiniClusters may share a working directory. Its name is the job's in Flux.
pub fn path(scene: &Scene) -> String {
    format!("{}/flux-job.batch", scene.paths.config_root())
}

/// The step that writes the script.
pub fn file(scene: &Scene, text: String) -> Planned {
    let step =
        Step::File { path: path(scene), mode: Mode(0o755), owner: scene.identity.owner, content: Content::Text(text) };
    Planned::with(&["uid", "shell"], step)
}

/// One submission a line, its text untouched; then the end of the queue is awaited, the jobs are listed and those that failed
/// told.
pub fn script(scene: &Scene, lines: &[BatchLine]) -> Result<String, PlanError> {
    let logs = scene.logs.trim_end_matches('/');
    let submit: Vec<String> = scene.spec.flux.submit_command.iter().map(|word| quote(word)).collect();
    let submit = submit.join(" ");
    let mut script = scene.shebang("the batch script")?;
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
pub fn raw(scene: &Scene, text: &str) -> Result<String, PlanError> {
    let mut script = super::program::with_shebang(scene, text, "the batch script")?;
    if !script.ends_with('\n') {
        script.push('\n');
    }
    Ok(script)
}
