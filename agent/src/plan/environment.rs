//! The environment of everything that follows: PATH, PYTHONPATH, the scheduler's choice, the user's own for Flux.

use flux_shared::agent_spec::SchedulerKind;

use super::{EnvChange, Mode, PlanError, Planned, Scene, Step, binding, discovery, scheduler, set};
use crate::facts::TEMPORARY;

/// Where the image sets no PATH.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The steps for the runner.
pub fn steps(scene: &Scene) -> Result<Vec<Planned>, PlanError> {
    let mut steps = Vec::new();
    let mut changes = view_paths(scene);
    // A broker that finds it takes itself for a job of that instance.
    if scene.facts.environment.contains_key("FLUX_URI") {
        changes.push(EnvChange::Remove { name: "FLUX_URI".into() });
    }
    changes.push(set("STATE_DIR", &scene.paths.state_dir()));
    changes.push(set("FLUX_OUTPUT_DIR", &scene.logs));
    changes.extend(scheduler_changes(scene)?);
    changes.extend(temporary(scene, &mut steps));
    changes.extend(scene.spec.flux.environment.iter().map(|(name, value)| set(name, value)));
    changes.push(binding::variable(scene));
    changes.extend(discovery::variable(scene));
    let depends_on: &[&str] = if scene.spec.view.enabled { &["env.PATH", "view", "tmp"] } else { &["tmp"] };
    steps.push(Planned::with(depends_on, Step::Environment { changes }));
    Ok(steps)
}

/// An instance in the instance (`flux batch`, `flux alloc`) keeps its state in /var/tmp and its sockets in /tmp unless TMPDIR
/// is set. Where one of them is missing or read-only, it would end at once.
fn temporary(scene: &Scene, steps: &mut Vec<Planned>) -> Option<EnvChange> {
    let facts = scene.facts;
    let (there, missing): (Vec<&str>, Vec<&str>) = TEMPORARY.iter().partition(|path| facts.is_writable(path));
    if missing.is_empty() || facts.environment.contains_key("TMPDIR") {
        return None;
    }
    let value = there.first().map_or_else(|| format!("{}/tmp", scene.paths.config_root()), |path| (*path).to_owned());
    if there.is_empty() {
        let owner = scene.identity.owner;
        let step = Step::Directory { path: value.clone(), mode: Mode(0o1777), owner };
        steps.push(Planned::with(&["uid", "tmp"], step));
    }
    Some(EnvChange::Default { name: "TMPDIR".into(), value })
}

/// The step for a container beside the runner: the same programs, and where the socket is.
pub fn sidecar_step(scene: &Scene) -> Planned {
    let mut changes = view_paths(scene);
    changes.push(set("fluxsocket", &format!("local://{}", scene.socket())));
    changes.extend(scene.spec.flux.environment.iter().map(|(name, value)| set(name, value)));
    // The job shell of what is submitted here looks for it in the runner's containers.
    changes.push(binding::variable(scene));
    let depends_on: &[&str] = if scene.spec.view.enabled { &["env.PATH", "view"] } else { &[] };
    Planned::with(depends_on, Step::Environment { changes })
}

/// The view's programs come last, so that the image's own come first.
fn view_paths(scene: &Scene) -> Vec<EnvChange> {
    let mut changes = Vec::new();
    if !scene.facts.environment.contains_key("PATH") {
        changes.push(EnvChange::Default { name: "PATH".into(), value: DEFAULT_PATH.into() });
    }
    if scene.spec.view.enabled {
        changes.push(append("PATH", format!("{}/bin", scene.paths.view())));
    }
    changes.extend(scene.python_path().map(|path| append("PYTHONPATH", path)));
    changes
}

/// What makes Flux of any age load the scheduler that was chosen.
fn scheduler_changes(scene: &Scene) -> Result<Vec<EnvChange>, PlanError> {
    let view = scene.paths.view();
    let old = !scene.facts.view.fluxion_modprobe;
    Ok(match scheduler::chosen(scene)? {
        None => Vec::new(),
        Some(_) if !scene.spec.view.enabled => Vec::new(),
        Some(SchedulerKind::Simple) if scene.facts.view.fluxion && old => {
            vec![set("FLUXION_RESOURCE_RC_NOOP", "1"), set("FLUXION_QMANAGER_RC_NOOP", "1")]
        }
        Some(SchedulerKind::Simple) => Vec::new(),
        Some(SchedulerKind::Fluxion) => {
            let mut changes = vec![append("FLUX_RC_EXTRA", format!("{view}/etc/flux"))];
            match old {
                true => changes.push(set("FLUX_SCHED_MODULE", "none")),
                false => changes.push(append("FLUX_MODPROBE_PATH_APPEND", format!("{view}/etc/flux/modprobe"))),
            }
            changes.push(append("FLUX_MODULE_PATH_PREPEND", format!("{view}/lib/flux/modules")));
            changes
        }
    })
}

fn append(name: &str, value: String) -> EnvChange {
    EnvChange::Append { name: name.into(), separator: ':', value }
}
