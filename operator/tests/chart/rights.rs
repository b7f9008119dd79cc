//! The permissions of the default installation, as a table, so that none is added by accident. Permissions
//! for Kueue, gangs and NetworkPolicies are not in it: only other values give them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::values::{Objects, defaults, templated};
use crate::{helms, repository};

/// For each role: resources with their groups, the names that they are limited to, and the verbs.
const RIGHTS: &str = "\
ClusterRole flux-framework-flux-operator
  configmaps: create get patch
  events: list
  events.events.k8s.io: create patch
  jobs.batch: create delete get list patch watch
  jobs/status.batch: patch
  miniclusters.flux-framework.org: delete get list watch
  miniclusters/finalizers.flux-framework.org: update
  miniclusters/status.flux-framework.org: patch
  pods: deletecollection list watch
  pods/status: patch
  secrets: create
  services: create delete get list patch watch
ClusterRole flux-framework-flux-operator-claims
  persistentvolumeclaims: create delete get patch
ClusterRole flux-framework-flux-operator-nodes
  nodes: list watch
ClusterRole flux-framework-flux-operator-services
  pods: create get
ClusterRole flux-framework-flux-operator-volumes
  persistentvolumes: create delete get list patch watch
  storageclasses.storage.k8s.io: list watch
ClusterRole flux-framework-flux-operator-webhook
  customresourcedefinitions.apiextensions.k8s.io miniclusters.flux-framework.org: get list patch watch
ClusterRole flux-framework-miniclusters-edit
  miniclusters.flux-framework.org: create delete deletecollection patch update
  miniclusters/scale.flux-framework.org: patch update
ClusterRole flux-framework-miniclusters-view
  miniclusters.flux-framework.org: get list watch
  miniclusters/scale.flux-framework.org: get
  miniclusters/status.flux-framework.org: get
Role flux-operator-leader
  deployments.apps flux-operator: get
  leases.coordination.k8s.io: create get patch
Role flux-operator-webhook
  deployments.apps flux-operator-webhook: get
  secrets: create
  secrets flux-operator-webhook: get list update watch
";

fn words(list: &Value) -> Vec<&str> {
    list.as_array()
        .into_iter()
        .flatten()
        .map(|word| word.as_str().unwrap())
        .collect()
}

/// The name of a role, or of the role that a binding refers to.
fn role(object: &Value, name: &Value) -> String {
    format!("{} {}", object["kind"].as_str().unwrap(), name.as_str().unwrap())
}

fn rights(objects: &Objects) -> String {
    let mut roles: BTreeMap<String, BTreeMap<String, BTreeSet<&str>>> = BTreeMap::new();
    for object in objects.values().filter(|object| object["rules"].is_array()) {
        let rights = roles
            .entry(role(object, &object["metadata"]["name"]))
            .or_default();
        for rule in object["rules"].as_array().unwrap() {
            assert!(rule["nonResourceURLs"].is_null(), "{rule}");
            for (group, resource) in words(&rule["apiGroups"]).iter().flat_map(|group| {
                words(&rule["resources"])
                    .into_iter()
                    .map(move |resource| (group, resource))
            }) {
                let names = words(&rule["resourceNames"]).join(" ");
                let full_name = format!("{resource}{}{group}", if group.is_empty() { "" } else { "." });
                rights
                    .entry(format!("{full_name} {names}").trim_end().to_owned())
                    .or_default()
                    .extend(words(&rule["verbs"]));
            }
        }
    }
    // A binding to a role that is not in the table would give permissions that the table does not show.
    let bound = objects
        .values()
        .filter(|object| object["roleRef"].is_object())
        .map(|binding| role(&binding["roleRef"], &binding["roleRef"]["name"]));
    let bound: Vec<String> = bound.collect();
    assert!(
        bound.len() > 4 && bound.iter().all(|role| roles.contains_key(role)),
        "{bound:?}"
    );
    let mut text = String::new();
    for (role, rights) in roles {
        text += &format!("{role}\n");
        for (resource, verbs) in rights {
            text += &format!(
                "  {resource}: {}\n",
                verbs.into_iter().collect::<Vec<_>>().join(" ")
            );
        }
    }
    text
}

#[test]
fn default_installation_grants_exactly_the_listed_rights() {
    for helm in helms() {
        assert_eq!(rights(&templated(&helm, "some-namespace", &defaults())), RIGHTS);
        // With one right more, here for Kueue, the text differs.
        let kueue = repository().join("operator/tests/chart/values/kueue.yaml");
        let kueue = rights(&templated(&helm, "some-namespace", &kueue));
        let more: Vec<&str> = kueue.lines().filter(|line| !RIGHTS.contains(line)).collect();
        assert_eq!(more, ["  workloads.kueue.x-k8s.io: list"], "a right more is seen");
    }
}
