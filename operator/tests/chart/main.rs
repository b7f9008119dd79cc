//! The Helm chart and the kustomize base are `flux-operator install`: made from it, and equal to it object for object.
//!
//! Helm is built once, as the control plane is: `test-node/helm/build`. Helm 4 alone is tried, unless HELM="4 3" says more.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests look and act")]

mod equal;
mod generator;
mod merge;
mod pages;
mod refused;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A file of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path)
}

fn flux_operator(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flux-operator")).args(arguments).output().unwrap()
}

fn helms() -> Vec<PathBuf> {
    let majors = std::env::var("HELM").unwrap_or_else(|_| "4".into());
    majors.split_whitespace().map(|major| built("helm/build", &[major])).collect()
}

/// What a script of the test node prints: the path of a program that it has built.
fn built(script: &str, arguments: &[&str]) -> PathBuf {
    let output = Command::new(repository("test-node").join(script)).args(arguments).output().unwrap();
    assert!(output.status.success(), "{script}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap().trim().into()
}

/// Compares with a committed file, or renews it.
fn same(path: &Path, made: &str) {
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, made).unwrap();
        return;
    }
    let committed = std::fs::read_to_string(path).unwrap_or_default();
    let difference = committed.lines().zip(made.lines()).enumerate().find(|(_, (old, new))| old != new);
    assert!(
        committed == made,
        "{} is stale (first difference: {difference:?}): `make generate` renews it",
        path.display()
    );
}

#[test]
fn the_templates_are_as_committed() {
    same(&repository("chart/templates/install.yaml"), &generator::objects());
    same(&repository("chart/templates/crd.yaml"), &generator::crd());
}
