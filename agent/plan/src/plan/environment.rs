//! The environment of all later steps: PATH, PYTHONPATH, the choice of the scheduler, and the variables that the user
//! sets for Flux.

use flux_shared::agent_spec::SchedulerKind;

use super::{EnvChange, Mode, PlanError, Resolved, Step, discovery, scheduler, set, shell_defaults};
use crate::known_paths::{DEFAULT_PATH, TEMPORARY};

/// The steps for the runner.
pub fn steps(resolved: &Resolved) -> Result<Vec<Step>, PlanError> {
    let mut steps = Vec::new();
    let mut changes = view_paths(resolved);
    // With this variable, the broker would assume that it is a job of the instance that the variable names.
    if resolved.facts.environment.contains_key("FLUX_URI") {
        changes.push(EnvChange::Remove {
            name: "FLUX_URI".into(),
        });
    }
    // So that the program's own spans can be part of the trace.
    let trace = resolved.spec.trace.as_ref();
    changes.extend(trace.map(|trace| EnvChange::Default {
        name: "TRACEPARENT".into(),
        value: trace.parent.to_string(),
    }));
    // The Go operator exported these two as well, so programs and snippets may read them.
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
    // FLUX_SHELL_RC_PATH, the folders with defaults of Flux's job shell. After the user's variables, which may set it:
    // the view's folder and the agent's are appended to the user's value.
    changes.push(shell_defaults::variable(resolved));
    // The file with this pod's cores and GPUs (`FLUX_HWLOC_XMLFILE`), also for instances in this one. It overrides the
    // user's value.
    changes.extend(discovery::variable(resolved));
    steps.push(Step::Environment { changes });
    Ok(steps)
}

/// The change that sets TMPDIR, if Flux cannot write to /tmp or /var/tmp. If it can write to neither, the function also
/// adds the step that creates another folder. An instance inside this one (`flux batch`, `flux alloc`) keeps its state
/// in /var/tmp and its sockets in /tmp unless TMPDIR is set. If it could not write there, it would end at once.
fn temporary(resolved: &Resolved, steps: &mut Vec<Step>) -> Option<EnvChange> {
    let facts = resolved.facts;
    let (usable, unusable): (Vec<&str>, Vec<&str>) = TEMPORARY
        .iter()
        .partition(|path| facts.writable_by_flux.contains(**path));
    if unusable.is_empty() || facts.environment.contains_key("TMPDIR") {
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

/// The step `init`, with the folders of [`view_paths`] appended while it runs. They are withdrawn after it. Later steps
/// append them again, so that they come after what `init` has appended.
pub fn around_init(resolved: &Resolved, init: Option<Step>) -> Vec<Step> {
    let Some(init) = init else { return Vec::new() };
    let is_listed = |name: &str, path: &str| {
        let value = resolved.facts.environment.get(name);
        value.is_some_and(|value| value.split(':').any(|present| present == path))
    };
    let mut appended: Vec<EnvChange> = view_paths(resolved);
    // A folder that the variable already lists is left out, since `Withdraw` would remove the container's own entry.
    appended.retain(|change| match change {
        EnvChange::Append { name, value, .. } => !is_listed(name, value),
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

/// The step for a sidecar: the view's folders, the broker's socket, and the variables that the user sets for Flux.
pub fn sidecar_step(resolved: &Resolved) -> Step {
    let mut changes = view_paths(resolved);
    // For the documented `flux proxy $fluxsocket`. (The agent's file flux-view.sh, which people source, sets it too.)
    changes.push(set("fluxsocket", &format!("local://{}", resolved.socket())));
    changes.extend(
        resolved
            .spec
            .flux
            .environment
            .iter()
            .map(|(name, value)| set(name, value)),
    );
    // FLUX_SHELL_RC_PATH: a job that is submitted here inherits it. Its job shell reads it in the runner's containers.
    changes.push(shell_defaults::variable(resolved));
    Step::Environment { changes }
}

/// Appends the view's folders to PATH and PYTHONPATH. Without a view, it appends the folder of the image's own Flux to
/// PATH, if that is below the spec's install root, or was found by a snippet's PATH. They come last, so that the image's
/// own programs come first.
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
    } else if let Some(folder) = resolved.flux_folder_beside_path() {
        changes.push(append("PATH", folder));
    }
    changes.extend(resolved.python_path().map(|path| append("PYTHONPATH", path)));
    changes
}

/// The variables that make a view's Flux of any release load the chosen scheduler. Empty without a view: only
/// broker.toml (`[modules] alternatives`) then tells the image's Flux.
fn scheduler_changes(resolved: &Resolved) -> Result<Vec<EnvChange>, PlanError> {
    let view = resolved.paths.view();
    // Whether the view's Fluxion comes with an rc1 script instead of a file for `flux modprobe`.
    let loads_by_rc1 = !resolved.facts.view.fluxion_modprobe;
    Ok(match scheduler::chosen(resolved)? {
        None => Vec::new(),
        Some(_) if !resolved.spec.view.enabled => Vec::new(),
        Some(SchedulerKind::Simple) if resolved.facts.view.fluxion && loads_by_rc1 => {
            // Fluxion's rc1 script, if Flux runs one (an image or the user may set FLUX_RC_EXTRA), then loads nothing.
            vec![
                set("FLUXION_RESOURCE_RC_NOOP", "1"),
                set("FLUXION_QMANAGER_RC_NOOP", "1"),
            ]
        }
        // Without Fluxion, Flux loads the simple scheduler anyway. `flux modprobe` takes the one in broker.toml.
        Some(SchedulerKind::Simple) => Vec::new(),
        Some(SchedulerKind::Fluxion) => {
            // The view's folder for rc1 scripts, which has Fluxion's script if there is one.
            let mut changes = vec![append("FLUX_RC_EXTRA", format!("{view}/etc/flux"))];
            if loads_by_rc1 {
                // Flux's own rc1 script then loads no scheduler, since Fluxion's script does.
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
