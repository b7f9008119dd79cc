//! The installation as the chart renders it, with the images of operator/manifests/values.yaml.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use crate::helm::helms;
use crate::repository::repository;

/// The namespace of an installation for all namespaces.
pub const NAMESPACE: &str = "flux-operator";

/// API group, resource and verb.
pub type Permission = (String, String, String);

/// The objects of an installation.
#[derive(Debug, Clone)]
pub struct Installation {
    pub objects: Vec<Value>,
}

impl Installation {
    /// An installation for all namespaces, with the namespace that it is in.
    pub fn whole(values: &Value) -> Installation {
        let namespace =
            std::fs::read_to_string(repository().join("operator/manifests/namespace.yaml")).unwrap();
        let mut objects = Installation::of_text(&namespace).objects;
        objects.extend(rendered(NAMESPACE, values).objects);
        Installation { objects }
    }

    /// An installation only for this namespace, without the CustomResourceDefinition.
    pub fn of_namespace(namespace: &str, values: &Value) -> Installation {
        let mut values = values.clone();
        values["namespaced"] = json!(true);
        values["crds"] = json!({ "enabled": false });
        rendered(namespace, &values)
    }

    /// The objects in a YAML text.
    pub fn of_text(yaml: &str) -> Installation {
        let documents: Vec<Option<Value>> = serde_saphyr::from_multiple(yaml).unwrap();
        Installation {
            objects: documents.into_iter().flatten().collect(),
        }
    }

    /// The installation without the objects of a kind. Tests that run the operator in their own process leave
    /// out `Deployment`.
    #[must_use]
    pub fn without(mut self, kind: &str) -> Installation {
        self.objects.retain(|object| object["kind"] != kind);
        self
    }

    /// YAML for `kubectl apply`.
    pub fn text(&self) -> String {
        let documents: Vec<String> = self.objects.iter().map(Value::to_string).collect();
        documents.join("\n---\n")
    }

    /// The permissions of the Role and the ClusterRole of this name. (The name of a ClusterRole has a prefix.)
    /// Panics if neither exists.
    pub fn permissions(&self, role: &str) -> BTreeSet<Permission> {
        let is_this_role = |object: &&Value| {
            let name = object["metadata"]["name"].as_str().unwrap();
            object["rules"].is_array() && name.strip_prefix("flux-framework-").unwrap_or(name) == role
        };
        let rules = self
            .objects
            .iter()
            .filter(is_this_role)
            .flat_map(|object| object["rules"].as_array().unwrap());
        let words = |rule: &Value, field: &str| -> Vec<String> {
            rule[field]
                .as_array()
                .unwrap()
                .iter()
                .map(|word| word.as_str().unwrap().to_owned())
                .collect()
        };
        let mut found = BTreeSet::new();
        for rule in rules {
            for group in words(rule, "apiGroups") {
                for resource in words(rule, "resources") {
                    let of_verb = |verb| (group.clone(), resource.clone(), verb);
                    found.extend(words(rule, "verbs").into_iter().map(of_verb));
                }
            }
        }
        assert!(!found.is_empty(), "there is no role {role}");
        found
    }
}

/// The output of `helm template`, including hooks, from the first of the Helm programs.
fn rendered(namespace: &str, values: &Value) -> Installation {
    let mut helm = Command::new(&helms()[0])
        .args(["template", "flux-framework"])
        .arg(repository().join("chart"))
        .arg("--values")
        .arg(repository().join("operator/manifests/values.yaml"))
        .args(["--values", "-", "--namespace", namespace])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    helm.stdin
        .take()
        .unwrap()
        .write_all(values.to_string().as_bytes())
        .unwrap();
    let output = helm.wait_with_output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Installation::of_text(&String::from_utf8(output.stdout).unwrap())
}
