//! The Helm chart is the source of the installation. The plain manifest is what it renders.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod pages;
mod refused;
mod values;

use std::process::{Command, Output};

use serde_json::Value;
use test_support::committed::same;
use test_support::helm::{built, helms};
use test_support::repository::repository;

const MADE: &str = "# Made from chart/ by `make generate`: change that.\n";

fn flux_operator(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flux-operator"))
        .args(arguments)
        .output()
        .unwrap()
}

/// The manifest for kustomize is the chart with its default values, and the images that the chart requires. The CRD and
/// the namespace have their own files.
#[test]
fn plain_manifest_is_what_helm_renders() {
    // One Helm makes the file: the first that HELM names, by default Helm 4.
    let helm = &helms()[0];
    let mut command = Command::new(helm);
    command
        .args(["template", "flux-framework"])
        .arg(repository().join("chart"));
    command.arg("--values").arg(values::images());
    let output = command
        .args(["--namespace", "flux-operator", "--set", "crds.enabled=false"])
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let text = String::from_utf8(output.stdout).unwrap();
    same(
        &repository().join("operator/manifests/operator.yaml"),
        &format!("{MADE}{text}"),
    );
}

/// A kustomization's `namespace` moves the installation: it changes these fields, and never a part of another text.
#[test]
fn only_fields_called_namespace_hold_the_namespace() {
    fn strays(value: &Value, path: &str, found: &mut Vec<String>) {
        match value {
            Value::String(text) if text.contains("elsewhere") && !path.ends_with(".namespace") => {
                found.push(format!("{path}: {text}"));
            }
            Value::Object(fields) => {
                for (name, field) in fields {
                    strays(field, &format!("{path}.{name}"), found);
                }
            }
            Value::Array(items) => {
                for item in items {
                    strays(item, path, found);
                }
            }
            _ => {}
        }
    }
    for helm in helms() {
        let mut found = Vec::new();
        for (name, object) in values::templated(&helm, "elsewhere", &values::defaults()) {
            strays(&object, &name, &mut found);
        }
        assert_eq!(found, Vec::<String>::new(), "{}", helm.display());
    }
}
