//! The environment of everything that follows: PATH, PYTHONPATH, the scheduler's choice, the user's own for
//! Flux.

use flux_shared::agent_spec::SchedulerKind;

use super::{EnvChange, Mode, PlanError, Resolved, Step, discovery, scheduler, set, shell_defaults};
use crate::known_paths::{DEFAULT_PATH, TEMPORARY};

/// The steps for the runner.
pub fn steps(resolved: &Resolved) -> Result<Vec<Step>, PlanError> {
    let mut steps = Vec::new();
    let mut changes = view_paths(resolved);
    // A broker that finds it takes itself for a job of that instance.
    if resolved.facts.environment.contains_key("FLUX_URI") {
        changes.push(EnvChange::Remove {
            name: "FLUX_URI".into(),
        });
    }
    // The program's own spans may be part of the trace as well.
    let trace = resolved.spec.trace.as_ref();
    changes.extend(trace.map(|trace| EnvChange::Default {
        name: "TRACEPARENT".into(),
        value: trace.parent.to_string(),
    }));
    changes.push(set("STATE_DIR", &resolved.paths.state_dir()));
    changes.push(set("FLUX_OUTPUT_DIR", &resolved.logs));
    changes.extend(scheduler_changes(resolved)?);
    changes.extend(temporary(resolved, &mut steps));
    changes.extend(
        resolved
            .spec
            .flux
            .environment
            .iter()
            .map(|(name, value)| set(name, value)),
    );
    changes.push(shell_defaults::variable(resolved));
    changes.extend(discovery::variable(resolved));
    steps.push(Step::Environment { changes });
    Ok(steps)
}

/// An instance in the instance (`flux batch`, `flux alloc`) keeps its state in /var/tmp and its sockets in
/// /tmp unless TMPDIR is set. Where one of them is missing or read-only, it would end at once.
fn temporary(resolved: &Resolved, steps: &mut Vec<Step>) -> Option<EnvChange> {
    let facts = resolved.facts;
    let (usable, missing): (Vec<&str>, Vec<&str>) =
        TEMPORARY.iter().partition(|path| facts.is_writable(path));
    if missing.is_empty() || facts.environment.contains_key("TMPDIR") {
        return None;
    }
    let value = usable.first().map_or_else(
        || format!("{}/tmp", resolved.paths.config_root()),
        |path| (*path).to_owned(),
    );
    if usable.is_empty() {
        let owner = resolved.identity.owner;
        let step = Step::Directory {
            path: value.clone(),
            mode: Mode(0o1777),
            owner,
        };
        steps.push(step);
    }
    Some(EnvChange::Default {
        name: "TMPDIR".into(),
        value,
    })
}

/// `init`, with the view's programs on the PATH while it runs. What is appended for it is withdrawn after it:
/// later steps append it again, behind what `init` has appended.
pub fn around_init(resolved: &Resolved, init: Option<Step>) -> Vec<Step> {
    let Some(init) = init else { return Vec::new() };
    let is_there = |name: &str, path: &str| {
        let value = resolved.facts.environment.get(name);
        value.is_some_and(|value| value.split(':').any(|present| present == path))
    };
    let mut appended: Vec<EnvChange> = view_paths(resolved);
    appended.retain(|change| match change {
        EnvChange::Append { name, value, .. } => !is_there(name, value),
        _ => true,
    });
    let withdrawn = appended.iter().filter_map(|change| match change {
        EnvChange::Append {
            name,
            separator,
            value,
        } => Some(EnvChange::Withdraw {
            name: name.clone(),
            separator: *separator,
            value: value.clone(),
        }),
        _ => None,
    });
    let step = |changes: Vec<EnvChange>| (!changes.is_empty()).then_some(Step::Environment { changes });
    let after = step(withdrawn.collect());
    step(appended).into_iter().chain([init]).chain(after).collect()
}

/// The step for a sidecar: the same programs, and where the socket is.
pub fn sidecar_step(resolved: &Resolved) -> Step {
    let mut changes = view_paths(resolved);
    changes.push(set("fluxsocket", &format!("local://{}", resolved.socket())));
    changes.extend(
        resolved
            .spec
            .flux
            .environment
            .iter()
            .map(|(name, value)| set(name, value)),
    );
    // The job shell of what is submitted here looks for it in the runner's containers.
    changes.push(shell_defaults::variable(resolved));
    Step::Environment { changes }
}

/// The view's programs come last, so that the image's own come first.
fn view_paths(resolved: &Resolved) -> Vec<EnvChange> {
    let mut changes = Vec::new();
    if !resolved.facts.environment.contains_key("PATH") {
        changes.push(EnvChange::Default {
            name: "PATH".into(),
            value: DEFAULT_PATH.into(),
        });
    }
    if resolved.spec.view.enabled {
        changes.push(append("PATH", format!("{}/bin", resolved.paths.view())));
    }
    changes.extend(resolved.python_path().map(|path| append("PYTHONPATH", path)));
    changes
}

/// The variables that make Flux of any release load the chosen scheduler.
fn scheduler_changes(resolved: &Resolved) -> Result<Vec<EnvChange>, PlanError> {
    let view = resolved.paths.view();
    let old = !resolved.facts.view.fluxion_modprobe;
    Ok(match scheduler::chosen(resolved)? {
        None => Vec::new(),
        Some(_) if !resolved.spec.view.enabled => Vec::new(),
        Some(SchedulerKind::Simple) if resolved.facts.view.fluxion && old => {
            vec![
                set("FLUXION_RESOURCE_RC_NOOP", "1"),
                set("FLUXION_QMANAGER_RC_NOOP", "1"),
            ]
        }
        Some(SchedulerKind::Simple) => Vec::new(),
        Some(SchedulerKind::Fluxion) => {
            let mut changes = vec![append("FLUX_RC_EXTRA", format!("{view}/etc/flux"))];
            if old {
                changes.push(set("FLUX_SCHED_MODULE", "none"))
            } else {
                changes.push(append(
                    "FLUX_MODPROBE_PATH_APPEND",
                    format!("{view}/etc/flux/modprobe"),
                ))
            }
            changes.push(append(
                "FLUX_MODULE_PATH_PREPEND",
                format!("{view}/lib/flux/modules"),
            ));
            changes
        }
    })
}

fn append(name: &str, value: String) -> EnvChange {
    EnvChange::Append {
        name: name.into(),
        separator: ':',
        value,
    }
}
