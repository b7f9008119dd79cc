//! Finds out who reads a field: each is tried with several values, and the output that differs shows who
//! reads it.

use std::collections::BTreeSet;

use flux_shared::crd;
use serde_json::Value;

use test_support::field_values::{Effects, all_leaves, around, effects, merge, patch, values};

type Effect = fn(&Effects) -> &Value;

/// In the order in which the reference names them.
const ALL: [(&str, Effect); 6] = [
    ("agent", |effects| &effects.agent),
    ("Job", |effects| &effects.job),
    ("pods", |effects| &effects.pods),
    ("Service", |effects| &effects.services),
    ("volume", |effects| &effects.volumes),
    ("operator", |effects| &effects.operator),
];

/// Readers that the trial does not find, besides those that it finds.
const MORE_READERS: &[(&str, &[&str])] = &[
    // A spec in which only this field differs is invalid.
    ("spec.containers[].runFlux", &["agent", "pods"]),
    // The same. No object depends on it: the operator only checks it.
    ("spec.containers[].noWrapEntrypoint", &["operator"]),
    // What the operator does with a failed Job is no part of `Effects`.
    ("spec.backoffLimit", &["operator"]),
    ("spec.deadlineSeconds", &["operator"]),
];

/// Every leaf of v1alpha2's spec, by its path in the reference, with its readers.
pub struct Readers(Vec<(String, BTreeSet<usize>)>);

impl Readers {
    pub fn found() -> Readers {
        let crd = serde_json::to_value(crd::definition::crd().unwrap()).unwrap();
        // This definition has only v1alpha2.
        let spec = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let leaves = all_leaves();
        let tried = leaves
            .iter()
            .map(|(leaf, schema)| (shown(leaf, spec), readers(leaf, schema)));
        let number = |name: &&str| ALL.iter().position(|(other, _)| other == name).unwrap();
        let more = MORE_READERS
            .iter()
            .map(|(path, names)| ((*path).to_owned(), names.iter().map(number).collect()));
        Readers(tried.chain(more).collect())
    }

    /// The readers of a field, or of all fields in a block. v1alpha1 has the same fields, except that its
    /// `cleanupMiniCluster` is v1alpha2's `cleanup`, and its `cleanup` is v1alpha2's `cleanupPods`. In v1alpha2 these two
    /// have the same readers. So v1alpha1's `cleanup` is not renamed here.
    pub fn of(&self, path: &str) -> String {
        let path = match path {
            "spec.cleanupMiniCluster" => "spec.cleanup",
            other => other,
        };
        let is_in = |leaf: &str| {
            leaf.strip_prefix(path)
                .is_some_and(|rest| !rest.starts_with(char::is_alphanumeric))
        };
        let found: BTreeSet<usize> = self
            .0
            .iter()
            .filter(|(leaf, _)| is_in(leaf))
            .flat_map(|(_, readers)| readers.iter().copied())
            .collect();
        found
            .into_iter()
            .map(|number| ALL[number].0)
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// `containers.0.environment.key` as the reference writes it: `spec.containers[].environment{}`.
fn shown(leaf: &str, spec: &Value) -> String {
    let (mut path, mut schema) = ("spec".to_owned(), spec);
    for part in leaf.split('.') {
        if schema["items"].is_object() {
            path += "[]";
            schema = &schema["items"];
        } else if schema["additionalProperties"].is_object() {
            path += "{}";
            schema = &schema["additionalProperties"];
        } else {
            path += &format!(".{part}");
            schema = &schema["properties"][part];
        }
    }
    path
}

/// The outputs that differ between the values of a leaf, or without it.
fn readers(leaf: &str, schema: &Value) -> BTreeSet<usize> {
    let without = around(leaf).0;
    let with = |value: Value| {
        let mut spec = without.clone();
        merge(&mut spec, &patch(leaf, value));
        effects(&spec)
    };
    let all: Vec<Effects> = values(leaf, schema)
        .into_iter()
        .map(with)
        .chain([effects(&without)])
        .filter_map(Result::ok)
        .collect();
    let differs = |number: &usize| {
        all.iter()
            .any(|effects| ALL[*number].1(effects) != ALL[*number].1(&all[0]))
    };
    (0..ALL.len()).filter(differs).collect()
}
