//! The Helm chart and the kustomize base are `flux-operator install`: made from it, and equal to it object for object.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests look and act")]

mod equal;
mod generator;
mod merge;
mod pages;
mod refused;
mod rights;

use std::process::{Command, Output};

use test_support::committed::same;
use test_support::helm::{built, helms};
use test_support::repository::repository;

fn flux_operator(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flux-operator")).args(arguments).output().unwrap()
}

#[test]
fn the_templates_are_as_committed() {
    same(&repository().join("chart/templates/install.yaml"), &generator::objects());
    same(&repository().join("chart/templates/deletion.yaml"), &generator::deletion());
    same(&repository().join("chart/templates/monitoring.yaml"), &generator::monitoring());
}
