//! The Helm chart and the kustomize base are `flux-operator install`: made from it, and equal to it object for object.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests look and act")]

#[path = "../support/committed.rs"]
mod committed;
mod equal;
mod generator;
#[path = "../support/helm.rs"]
mod helm;
mod merge;
mod pages;
mod refused;

use std::process::{Command, Output};

use committed::same;
use helm::{built, helms, repository};

fn flux_operator(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flux-operator")).args(arguments).output().unwrap()
}

#[test]
fn the_templates_are_as_committed() {
    same(&repository("chart/templates/install.yaml"), &generator::objects());
    same(&repository("chart/templates/crd.yaml"), &generator::crd());
}
