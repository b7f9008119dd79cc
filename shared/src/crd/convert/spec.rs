//! Converts the spec, in both directions.

use serde_json::{Value, json};

use super::block::{Block, fill, has_only, has_text, is_missing, is_true, object, object_mut};
use super::flux;
use crate::agent_spec::RunnerUser;

const TOKEN: &str = "automountServiceAccountToken";

pub(super) fn to_v1alpha2(spec: &mut Block) {
    // `cleanup` first: the second field takes its name.
    rename(spec, "cleanup", "cleanupPods");
    rename(spec, "cleanupMiniCluster", "cleanup");
    if is_missing(spec, "cleanupPods") {
        spec.insert("cleanupPods".into(), json!(true));
    } else if !is_true(spec, "cleanupPods") && spec.get("cleanupPods").is_some_and(Value::is_boolean) {
        // `false` is the default of v1alpha2. A value of a wrong type stays.
        spec.shift_remove("cleanupPods");
    }
    flux::to_v1alpha2(spec);
    token_to_v1alpha2(spec);
    restful_to_v1alpha2(spec);
    if let Some(runner) = runner(spec) {
        user_to_v1alpha2(runner);
    }
}

pub(super) fn to_v1alpha1(spec: &mut Block) {
    // `cleanup` first: the second field takes its name.
    rename(spec, "cleanup", "cleanupMiniCluster");
    rename(spec, "cleanupPods", "cleanup");
    fill(spec, &[("cleanup", json!(false))]);
    flux::to_v1alpha1(spec);
    token_to_v1alpha1(spec);
    restful_to_v1alpha1(spec);
    if let Some(runner) = runner(spec) {
        user_to_v1alpha1(runner);
    }
}

/// Renames a field. A field that already has the new name is unknown in the version of `block`, and is dropped.
fn rename(block: &mut Block, from: &str, to: &str) {
    block.shift_remove(to);
    if let Some(value) = block.shift_remove(from) {
        block.insert(to.to_owned(), value);
    }
}

fn token_to_v1alpha2(spec: &mut Block) {
    if is_missing(spec, "pod") {
        spec.insert("pod".into(), json!({}));
    }
    let Some(pod) = object_mut(spec, "pod") else {
        return;
    };
    fill(pod, &[(TOKEN, json!(true))]);
    remove_if_default(spec, "pod", TOKEN, &json!(false));
}

fn token_to_v1alpha1(spec: &mut Block) {
    if is_missing(spec, "pod") {
        spec.insert("pod".into(), json!({}));
    }
    let Some(pod) = object_mut(spec, "pod") else {
        return;
    };
    fill(pod, &[(TOKEN, json!(false))]);
    remove_if_default(spec, "pod", TOKEN, &json!(true));
}

/// Removes the field from the block `name` if it has the value `default`, and the block if nothing is left.
fn remove_if_default(spec: &mut Block, name: &str, field: &str, default: &Value) {
    let Some(block) = object_mut(spec, name) else {
        return;
    };
    if block.get(field) == Some(default) {
        block.shift_remove(field);
    }
    if block.is_empty() {
        spec.shift_remove(name);
    }
}

/// v1alpha1's defaults of the `fluxRestful` block.
fn restful() -> [(&'static str, Value); 2] {
    [("branch", json!("main")), ("port", json!(5000))]
}

fn restful_to_v1alpha2(spec: &mut Block) {
    let serves_by_default = has_nothing_else_to_run(spec);
    if is_missing(spec, "fluxRestful") {
        if serves_by_default {
            // The port, the other default, is left out: so `restful_to_v1alpha1` recognizes and removes the block.
            spec.insert("fluxRestful".into(), json!({ "branch": "main" }));
        }
        return;
    }
    let Some(block) = object_mut(spec, "fluxRestful") else {
        return;
    };
    if serves_by_default && only_disables(block, &restful()) {
        spec.shift_remove("fluxRestful");
    } else {
        fill(block, &restful());
    }
}

fn restful_to_v1alpha1(spec: &mut Block) {
    let serves_by_default = has_nothing_else_to_run(spec);
    if is_missing(spec, "fluxRestful") {
        if serves_by_default {
            spec.insert(
                "fluxRestful".into(),
                json!({ "disable": true, "branch": "main", "port": 5000 }),
            );
        }
        return;
    }
    // The block that `restful_to_v1alpha2` writes if there is none.
    let was_missing = spec.get("fluxRestful") == Some(&json!({ "branch": "main" }));
    if serves_by_default && was_missing {
        spec.shift_remove("fluxRestful");
    } else if let Some(block) = object_mut(spec, "fluxRestful") {
        fill(block, &restful());
    }
}

/// Whether the lead is in this cluster and has no command, script or other task. v1alpha1 then serves the Flux
/// RESTful API by default. A lead broker that the spec names counts as one in another cluster: conversion does not
/// know the name of this MiniCluster.
pub(super) fn has_nothing_else_to_run(spec: &Block) -> bool {
    let flux = object(spec, "flux");
    let names_a_lead = |lead: &Block| {
        ["address", "name", "hostlist"]
            .iter()
            .any(|field| has_text(lead, field))
    };
    let has_lead = |block: Option<&Block>| {
        block
            .and_then(|block| object(block, "leadBroker"))
            .is_some_and(names_a_lead)
    };
    let lead_is_elsewhere = has_lead(flux) || has_lead(flux.and_then(|flux| object(flux, "bursting")));
    let is_idle = |runner: &Block| {
        let script = object(runner, "commands").is_some_and(|commands| has_text(commands, "script"));
        !has_text(runner, "command") && !script && !is_true(runner, "diagnostics")
    };
    let runner = runner_index(spec).and_then(|i| spec.get("containers")?.get(i)?.as_object());
    !is_true(spec, "interactive") && !lead_is_elsewhere && runner.is_some_and(is_idle)
}

/// Defaults of `fluxUser` in both versions.
fn user() -> [(&'static str, Value); 2] {
    [("name", json!("flux")), ("uid", json!(RunnerUser::DEFAULT_UID))]
}

/// Whether the block has `disable: true`, and otherwise nothing but these defaults.
fn only_disables(block: &Block, defaults: &[(&'static str, Value)]) -> bool {
    let defaults: Vec<(&str, Value)> = defaults
        .iter()
        .cloned()
        .chain([("disable", json!(true))])
        .collect();
    is_true(block, "disable") && has_only(block, &defaults)
}

fn user_to_v1alpha2(runner: &mut Block) {
    // The user is given under the alias `fluxuser`: no default applies.
    if !is_missing(runner, "fluxuser") {
        return;
    }
    if is_missing(runner, "fluxUser") {
        // The uid, the other default, is left out: so `user_to_v1alpha1` recognizes and removes the block.
        runner.insert("fluxUser".into(), json!({ "name": "flux" }));
    } else if object(runner, "fluxUser").is_some_and(|block| only_disables(block, &user())) {
        runner.shift_remove("fluxUser");
    }
}

fn user_to_v1alpha1(runner: &mut Block) {
    // The user is given under the alias `fluxuser`: no default applies.
    if !is_missing(runner, "fluxuser") {
        return;
    }
    if is_missing(runner, "fluxUser") {
        runner.insert("fluxUser".into(), json!({ "disable": true }));
    } else if runner.get("fluxUser") == Some(&json!({ "name": "flux" })) {
        runner.shift_remove("fluxUser");
    }
}

fn runner(spec: &mut Block) -> Option<&mut Block> {
    let index = runner_index(spec)?;
    spec.get_mut("containers")?.get_mut(index)?.as_object_mut()
}

/// Index of the container that runs Flux: the only one, or of several the first with `runFlux: true`.
pub(super) fn runner_index(spec: &Block) -> Option<usize> {
    let containers = spec.get("containers")?.as_array()?;
    let runs_flux = |container: &Value| container.get("runFlux").and_then(Value::as_bool);
    match containers.as_slice() {
        [_] => Some(0),
        several => several
            .iter()
            .position(|container| runs_flux(container) == Some(true)),
    }
}
