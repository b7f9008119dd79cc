//! Converts the `flux` block: the versions differ in where Flux comes from by default.

use serde_json::{Value, json};

use super::block::{Block, fill, has_only, is_missing, is_true, object, object_mut};
use crate::crd::v1alpha2;

/// Defaults of options of Flux in both versions.
fn options() -> [(&'static str, Value); 3] {
    let flux = v1alpha2::Flux::default();
    [
        ("submitCommand", json!(flux.submit_command)),
        ("logLevel", json!(flux.log_level)),
        ("connectTimeout", json!(flux.connect_timeout)),
    ]
}

/// v1alpha1's default of `installRoot` if the object has a `flux` block.
fn install_root() -> [(&'static str, Value); 1] {
    [("installRoot", json!("/usr"))]
}

fn is_disabled(flux: &Block) -> bool {
    object(flux, "container").is_some_and(|container| is_true(container, "disable"))
}

/// The fields of a container's block that only disables the view: `disable` and the defaults.
fn disabled_container() -> Vec<(&'static str, Value)> {
    container()
        .into_iter()
        .chain([("disable", json!(true))])
        .collect()
}

/// Defaults of the container's block in both versions.
fn container() -> [(&'static str, Value); 2] {
    let container = v1alpha2::FluxContainer::default();
    [
        ("name", json!(container.name)),
        ("mountPath", json!(container.mount_path)),
    ]
}

/// Whether the container's block has nothing but these defaults.
fn container_has_only(flux: &Block, defaults: &[(&str, Value)]) -> bool {
    object(flux, "container").is_some_and(|container| has_only(container, defaults))
}

/// Whether sidecars start without waiting for the broker's socket. v1alpha2 has had this field from the start, and waits
/// by default. The Go operator's v1alpha1 never waited. Without a sidecar, the field means nothing.
const NO_WAIT: &str = "noWaitSocket";

fn has_sidecar(spec: &Block) -> bool {
    let containers = spec.get("containers").and_then(Value::as_array);
    containers.is_some_and(|containers| containers.len() > 1)
}

/// Converts the block to v1alpha2, where no container means a view, and where sidecars wait.
pub(super) fn to_v1alpha2(spec: &mut Block) {
    let has_sidecar = has_sidecar(spec);
    let asks_to_wait = |flux: &&mut Block| flux.get(NO_WAIT) == Some(&json!(false));
    let waits = object_mut(spec, "flux")
        .filter(|flux| has_sidecar && asks_to_wait(flux))
        .is_some_and(|flux| flux.shift_remove(NO_WAIT).is_some());
    write_source(spec);
    if has_sidecar && !waits {
        // `write_source` removes a block that has only defaults.
        if is_missing(spec, "flux") {
            spec.insert("flux".into(), json!({}));
        }
        if let Some(flux) = object_mut(spec, "flux") {
            fill(flux, &[(NO_WAIT, json!(true))]);
        }
    }
    let Some(flux) = object_mut(spec, "flux") else {
        return;
    };
    fill(flux, &options());
    if let Some(block) = object_mut(flux, "container") {
        fill(block, &container());
    }
}

/// Writes `disable` if v1alpha1 has no container, which means the image's own Flux. Removes a container that has only
/// defaults, and with it a `flux` block that has nothing else but defaults. If the author has written a `flux` block,
/// `installRoot` is written with `disable`: `to_v1alpha1` removes a block that only disables the view, but keeps one
/// with `installRoot`.
fn write_source(spec: &mut Block) {
    if is_missing(spec, "flux") {
        spec.insert("flux".into(), json!({ "container": { "disable": true } }));
        return;
    }
    let Some(flux) = object_mut(spec, "flux") else {
        return;
    };
    if is_missing(flux, "container") {
        fill(flux, &install_root());
        flux.insert("container".into(), json!({ "disable": true }));
        return;
    }
    if container_has_only(flux, &container()) {
        flux.shift_remove("container");
        if has_only(flux, &options_and_root()) {
            spec.shift_remove("flux");
            return;
        }
    }
    let Some(flux) = object_mut(spec, "flux") else {
        return;
    };
    // The default of v1alpha1, which v1alpha2 rejects beside a view (`V1ALPHA2_RULES`).
    if !is_disabled(flux) && flux.get("installRoot") == Some(&json!("/usr")) {
        flux.shift_remove("installRoot");
    }
}

/// Converts the block to v1alpha1, where no container means the image's own Flux, and where sidecars do not wait. A block
/// that only says so is removed.
pub(super) fn to_v1alpha1(spec: &mut Block) {
    let has_sidecar = has_sidecar(spec);
    if is_missing(spec, "flux") {
        spec.insert("flux".into(), json!({}));
    }
    let Some(flux) = object_mut(spec, "flux") else {
        return;
    };
    if has_sidecar && is_true(flux, NO_WAIT) {
        flux.shift_remove(NO_WAIT);
    } else if has_sidecar {
        fill(flux, &[(NO_WAIT, json!(false))]);
    }
    if is_missing(flux, "container") {
        flux.insert("container".into(), json!({}));
    } else if is_disabled(flux) && container_has_only(flux, &disabled_container()) {
        flux.shift_remove("container");
        if has_only(flux, &options()) {
            spec.shift_remove("flux");
            return;
        }
    }
    let Some(flux) = object_mut(spec, "flux") else {
        return;
    };
    fill(flux, &options_and_root());
    if let Some(block) = object_mut(flux, "container") {
        fill(block, &container());
    }
}

fn options_and_root() -> Vec<(&'static str, Value)> {
    options().into_iter().chain(install_root()).collect()
}
