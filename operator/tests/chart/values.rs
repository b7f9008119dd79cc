//! What each set of values changes in the installation: recorded in files, and accepted by a real API server.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use test_support::control_plane::ControlPlane;

use crate::{built, helms, repository, same};

/// Objects by kind, namespace and name.
type Objects = BTreeMap<String, Value>;

fn objects(yaml: &[u8]) -> Objects {
    let documents: Vec<Option<Value>> =
        serde_saphyr::from_multiple(std::str::from_utf8(yaml).unwrap()).unwrap();
    let mut all = Objects::new();
    for mut document in documents.into_iter().flatten() {
        floats_to_integers(&mut document);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &document["metadata"];
        let name = format!(
            "{} {}/{}",
            text(&document["kind"]),
            text(&metadata["namespace"]),
            text(&metadata["name"])
        );
        assert!(all.insert(name.clone(), document).is_none(), "{name} twice");
    }
    all
}

/// kustomize and Helm may write a number as 2147483647.0 or 2.147483647e+09.
fn floats_to_integers(value: &mut Value) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(floats_to_integers),
        Value::Object(all) => all.values_mut().for_each(floats_to_integers),
        Value::Number(number) if number.is_f64() => {
            let float = number.as_f64().unwrap();
            if float.fract() == 0.0 {
                *value = json!(float as i64);
            }
        }
        _ => {}
    }
}

/// The values of the plain manifest: the images that the chart requires.
pub fn images() -> PathBuf {
    repository().join("operator/manifests/values.yaml")
}

/// What Helm renders from the chart with a file of values.
pub fn templated(helm: &Path, namespace: &str, values: &Path) -> Objects {
    let mut command = Command::new(helm);
    command
        .args(["template", "flux-framework", "--namespace", namespace])
        .arg(repository().join("chart"));
    let output = command
        .arg("--values")
        .arg(images())
        .arg("--values")
        .arg(values)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}: {}",
        values.display(),
        String::from_utf8_lossy(&output.stderr)
    );
    objects(&output.stdout)
}

fn files() -> Vec<PathBuf> {
    let folder = std::fs::read_dir(repository().join("operator/tests/chart/values")).unwrap();
    let mut files: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 19, "{files:?}");
    files
}

fn stem(file: &Path) -> &str {
    file.file_stem().unwrap().to_str().unwrap()
}

/// A namespace may look like a number in YAML.
fn namespace_of(file: &Path) -> &'static str {
    if stem(file) == "numbers" {
        "123"
    } else {
        "some-namespace"
    }
}

pub fn defaults() -> PathBuf {
    repository().join("operator/tests/chart/values/defaults.yaml")
}

/// The values that `file` is compared with: those that its first line, `# beside: NAME`, names, or the defaults.
fn compared_with(file: &Path) -> PathBuf {
    let text = std::fs::read_to_string(file).unwrap();
    let first = text.lines().next().unwrap_or_default();
    first
        .strip_prefix("# beside: ")
        .map_or_else(defaults, |name| file.with_file_name(format!("{name}.yaml")))
}

/// The longest value that is recorded in full. The dashboard is longer.
const LONGEST: usize = 400;

/// `path: value` of each value.
fn lines(value: &Value, path: &str, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(all) if !all.is_empty() => {
            all.iter()
                .for_each(|(key, value)| lines(value, &format!("{path}.{key}"), found));
        }
        Value::Array(all) if !all.is_empty() => {
            for (number, value) in all.iter().enumerate() {
                // Objects with a name and plain values have no number here: an inserted one does not change the lines
                // of those after it.
                let element = match value["name"].as_str() {
                    Some(name) => name.to_owned(),
                    None if value.is_object() => number.to_string(),
                    None => String::new(),
                };
                lines(value, &format!("{path}[{element}]"), found);
            }
        }
        _ => {
            let text = value.to_string();
            let text = text
                .char_indices()
                .nth(LONGEST)
                .map_or(&text[..], |(end, _)| &text[..end]);
            found.insert(format!("{path}: {text}"));
        }
    }
}

fn only_names(list: &mut Value, name: &str) {
    let all = list.as_array_mut().unwrap();
    all.iter_mut().for_each(|value| *value = value[name].take());
}

/// The lines of an object. Of a CRD's versions and of alerting rules, only the names count. A rule of permissions is
/// one line.
fn lines_of(object: &Value) -> BTreeSet<String> {
    let mut object = object.clone();
    if object["kind"] == "CustomResourceDefinition" {
        only_names(&mut object["spec"]["versions"], "name");
    }
    if object["kind"] == "PrometheusRule" {
        let groups = object["spec"]["groups"].as_array_mut().unwrap();
        groups
            .iter_mut()
            .for_each(|group| only_names(&mut group["rules"], "alert"));
    }
    if let Some(rules) = object["rules"].as_array() {
        let rule = |rule: &Value| {
            let words = |field: &str| {
                rule[field]
                    .as_array()
                    .map(|_| format!(" {field}: {}", rule[field]))
            };
            ["apiGroups", "resources", "resourceNames", "verbs"]
                .iter()
                .filter_map(|field| words(field))
                .collect::<String>()
        };
        object["rules"] = json!(rules.iter().map(rule).collect::<Vec<_>>());
    }
    let mut found = BTreeSet::new();
    lines(&object, "", &mut found);
    found
}

/// The differences from the usual installation.
fn differences(usual: &Objects, other: &Objects) -> String {
    let mut text = String::new();
    for (name, object) in usual {
        let Some(other) = other.get(name) else {
            text += &format!("- {name}\n");
            continue;
        };
        let (before, after) = (lines_of(object), lines_of(other));
        if before != after {
            text += &format!("  {name}\n");
        }
        before
            .difference(&after)
            .for_each(|line| text += &format!("  - {line}\n"));
        after
            .difference(&before)
            .for_each(|line| text += &format!("  + {line}\n"));
    }
    for (name, object) in other.iter().filter(|(name, _)| !usual.contains_key(*name)) {
        text += &format!("+ {name}\n");
        lines_of(object)
            .iter()
            .for_each(|line| text += &format!("  + {line}\n"));
    }
    text
}

#[test]
fn each_set_of_values_changes_exactly_the_recorded_lines() {
    for helm in helms() {
        for file in files() {
            let namespace = namespace_of(&file);
            let usual = templated(&helm, namespace, &compared_with(&file));
            let changes = differences(&usual, &templated(&helm, namespace, &file));
            if file == defaults() {
                assert_eq!(changes, "");
                continue;
            }
            assert_ne!(changes, "", "{} says nothing", file.display());
            same(
                &repository().join(format!("operator/tests/chart/changes/{}.txt", stem(&file))),
                &changes,
            );
        }
    }
}

/// Another chart may install this one, and switch it off by its value `enabled`.
#[test]
fn chart_can_be_an_optional_dependency() {
    let folder = tempfile::tempdir().unwrap();
    let parent = "{apiVersion: v2, name: parent, version: 1.0.0, dependencies: [{name: flux-framework-operator, \
                  version: '>=0-0', condition: flux-framework-operator.enabled}]}\n";
    std::fs::write(folder.path().join("Chart.yaml"), parent).unwrap();
    std::fs::create_dir(folder.path().join("charts")).unwrap();
    let link = folder.path().join("charts/flux-framework-operator");
    std::os::unix::fs::symlink(repository().join("chart"), link).unwrap();
    let images: Value = serde_saphyr::from_str(&std::fs::read_to_string(images()).unwrap()).unwrap();
    let values = folder.path().join("values.yaml");
    std::fs::write(&values, json!({ "flux-framework-operator": images }).to_string()).unwrap();
    for helm in helms() {
        for is_enabled in [true, false] {
            let mut command = Command::new(&helm);
            command.args(["template", "parent"]).arg(folder.path());
            let switch = format!("flux-framework-operator.enabled={is_enabled}");
            let output = command.args(["--set", &switch]).output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{error}");
            let text = String::from_utf8_lossy(&output.stdout);
            assert_eq!(text.contains("kind: Deployment"), is_enabled, "{text}");
        }
    }
}

/// With `crds.enabled: false`, the chart does not set the annotation by which cert-manager fills in the caBundle.
#[test]
fn values_name_the_annotation_for_cert_manager() {
    let file = repository().join("operator/tests/chart/values/cert-manager.yaml");
    let all = templated(&helms()[0], "some-namespace", &file);
    let key = "cert-manager.io/inject-ca-from";
    let definition = &all["CustomResourceDefinition /miniclusters.flux-framework.org"];
    let annotation = definition["metadata"]["annotations"][key].as_str().unwrap();
    let annotation = annotation.replace("some-namespace", "NAMESPACE");
    let command = format!("`kubectl annotate crd miniclusters.flux-framework.org {key}={annotation}`");
    let values = std::fs::read_to_string(repository().join("chart/values.yaml")).unwrap();
    assert!(values.contains(&command), "{command}");
}

/// Kinds of other programs, which this API server does not have.
const OF_NEIGHBOURS: [&str; 4] = ["Certificate", "Issuer", "PrometheusRule", "ServiceMonitor"];

/// Without strict validation, the API server drops a misspelt field without an error.
#[test]
fn api_server_takes_every_object_and_knows_every_field() {
    let plane =
        ControlPlane::start("apiVersion: v1\nkind: Namespace\nmetadata: {name: some-namespace}\n").unwrap();
    plane.kubectl(&["create", "namespace", "123"]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for file in files() {
        let mut all = templated(&helms()[0], namespace_of(&file), &file);
        all.retain(|_, object| !OF_NEIGHBOURS.contains(&object["kind"].as_str().unwrap()));
        let text = all
            .values()
            .map(Value::to_string)
            .collect::<Vec<_>>()
            .join("\n---\n");
        let path = folder.path().join("all.yaml");
        std::fs::write(&path, text).unwrap();
        let apply = [
            "apply",
            "--server-side",
            "--dry-run=server",
            "--validate=strict",
            "-f",
            path.to_str().unwrap(),
        ];
        let answer = plane
            .kubectl(&apply)
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        assert_eq!(answer.lines().count(), all.len(), "{answer}");
    }
}

const VOLUMES_POLICY: &str = "ValidatingAdmissionPolicy /flux-framework-flux-operator-volumes";
const VOLUMES_BINDING: &str = "ValidatingAdmissionPolicyBinding /flux-framework-flux-operator-volumes";

/// A MiniCluster that is stored while no policy exists may be served later, with the operator's permissions and without
/// a check of its author.
#[test]
fn volumes_policy_is_installed_with_the_users_roles() {
    let is_complete = |all: &Objects| {
        let has_roles = all.contains_key("ClusterRole /flux-framework-miniclusters-edit");
        [VOLUMES_POLICY, VOLUMES_BINDING]
            .iter()
            .all(|name| all.contains_key(*name) == has_roles)
    };
    for file in files() {
        let all = templated(&helms()[0], namespace_of(&file), &file);
        assert!(is_complete(&all), "{}", file.display());
    }
    // A command that installs only a part of the chart has both templates or neither.
    for page in [
        "docs/tasks/teams.md",
        "chart/README.md",
        "docs/getting-started.md",
    ] {
        let text = std::fs::read_to_string(repository().join(page)).unwrap();
        for command in text.replace("\\\n", "").lines() {
            let has = |template: &str| command.contains(&format!("--show-only templates/{template}.yaml"));
            assert_eq!(has("user-roles"), has("volumes-policy"), "{page}: {command}");
        }
    }
}

fn kustomized(folder: &Path) -> Objects {
    let node = match std::env::var_os("CONTROLPLANE") {
        Some(program) => program.into(),
        None => built("build", &[]).join("node"),
    };
    let output = Command::new(node)
        .args(["kubectl", "kustomize"])
        .arg(folder)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    objects(&output.stdout)
}

#[test]
fn kustomize_base_is_the_chart_with_its_namespace() {
    let mut base = kustomized(&repository().join("operator/manifests"));
    let namespace = base.remove("Namespace /flux-operator").unwrap();
    assert_eq!(
        namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"],
        "restricted"
    );
    let mut chart = templated(&helms()[0], "flux-operator", &defaults());
    // With this annotation, Helm keeps an object when it uninstalls the release. The base has none.
    for kept in [
        "CustomResourceDefinition /miniclusters.flux-framework.org",
        VOLUMES_POLICY,
        VOLUMES_BINDING,
    ] {
        let metadata = chart.get_mut(kept).unwrap()["metadata"].as_object_mut().unwrap();
        let annotations = metadata.remove("annotations");
        assert_eq!(
            annotations,
            Some(json!({ "helm.sh/resource-policy": "keep" })),
            "{kept}"
        );
    }
    assert_eq!(differences(&chart, &base), "");
    assert_eq!(chart, base);
}

/// The images of the agent and of the view are not in an `image` field of a container. An old name that
/// remained might not be pullable.
#[test]
fn images_of_an_overlay_replace_all_three() {
    let folder = tempfile::tempdir_in(repository().join("operator")).unwrap();
    let overlay = "resources: [../manifests, ../manifests/migrate]\nimages:\n\
                   - {name: flux-operator, newName: r.example/o}\n\
                   - {name: flux-agent, newName: r.example/a, newTag: '7'}\n\
                   - {name: ghcr.io/converged-computing/flux-view-rocky, newName: r.example/v, newTag: '8'}\n";
    std::fs::write(folder.path().join("kustomization.yaml"), overlay).unwrap();
    let base = kustomized(&repository().join("operator/manifests"));
    let mut other = kustomized(folder.path());
    let migrate =
        &other["Job flux-operator/flux-operator-migrate"]["spec"]["template"]["spec"]["containers"][0];
    let operator = format!("r.example/o:{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(migrate["image"], operator);
    other.retain(|name, _| !name.contains("migrate"));
    let changes = differences(&base, &other);
    let new: BTreeSet<&str> = changes
        .lines()
        .filter_map(|line| line.strip_prefix("  + ")?.split(": ").nth(1))
        .collect();
    let quoted = [operator.as_str(), "r.example/a:7", "r.example/v:8"].map(|image| format!("{image:?}"));
    assert_eq!(new, quoted.iter().map(String::as_str).collect());
    assert_eq!(
        changes.matches("  - ").count(),
        4,
        "the operator, its webhook, and two variables: {changes}"
    );
}

/// The patch of `docs/getting-started.md`, also for the Job of the migration.
#[test]
fn documented_patch_gives_every_account_the_pull_secret() {
    let page = std::fs::read_to_string(repository().join("docs/getting-started.md")).unwrap();
    let patches = page.split("\npatches:\n").nth(1).unwrap();
    let patches = patches.split("END").next().unwrap();
    let folder = tempfile::tempdir_in(repository().join("operator")).unwrap();
    for (base, count) in [("manifests", 2), ("manifests/migrate", 1)] {
        let overlay = format!("resources: [../{base}]\npatches:\n{patches}");
        std::fs::write(folder.path().join("kustomization.yaml"), overlay).unwrap();
        let mut all = kustomized(folder.path());
        all.retain(|_, object| object["kind"] == "ServiceAccount");
        assert_eq!(all.len(), count, "{base}");
        for (name, account) in all {
            assert_eq!(account["imagePullSecrets"], json!([{ "name": "pull" }]), "{name}");
        }
    }
}

/// An administrator's policy selects all pods of the installation by the label `app.kubernetes.io/name`. What selects
/// one component must not select another.
#[test]
fn pods_share_a_name_and_have_one_component_each() {
    // With these values, the chart also has the Job that deletes all MiniClusters.
    let file = repository().join("operator/tests/chart/values/without-keeping.yaml");
    let mut all = templated(&helms()[0], "some-namespace", &file);
    all.extend(kustomized(&repository().join("operator/manifests/migrate")));
    let mut components = BTreeMap::new();
    for (name, object) in &all {
        let template = &object["spec"]["template"];
        if template.is_null() {
            continue;
        }
        let labels = &template["metadata"]["labels"];
        assert_eq!(labels["app.kubernetes.io/name"], "flux-operator", "{name}");
        let component = labels["app.kubernetes.io/component"].as_str().unwrap().to_owned();
        let other = components.insert(component, name);
        assert_eq!(other, None);
    }
    assert_eq!(components.len(), 4, "{components:?}");
    let mut selectors = 0;
    for (name, object) in &all {
        let spec = &object["spec"];
        let selector = match object["kind"].as_str().unwrap() {
            "Service" => &spec["selector"],
            "NetworkPolicy" => &spec["podSelector"]["matchLabels"],
            "Deployment" | "PodDisruptionBudget" | "ServiceMonitor" => &spec["selector"]["matchLabels"],
            _ => continue,
        };
        let component = selector["app.kubernetes.io/component"]
            .as_str()
            .unwrap_or_default();
        assert!(components.contains_key(component), "{name}: {selector}");
        selectors += 1;
    }
    assert!(selectors >= 6, "{selectors}");
}

/// Otherwise a drain would wait for pods that can never become ready.
#[test]
fn budgets_allow_eviction_of_pods_that_are_not_ready() {
    let mut budgets = templated(&helms()[0], "some-namespace", &defaults());
    budgets.retain(|_, object| object["kind"] == "PodDisruptionBudget");
    assert_eq!(budgets.len(), 2);
    for (name, budget) in budgets {
        assert_eq!(
            budget["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow",
            "{name}"
        );
    }
}

/// Without a deadline, a Job whose pods cannot start never fails, and the page's `kubectl wait` says nothing.
#[test]
fn migration_job_fails_within_the_documented_wait() {
    let all = kustomized(&repository().join("operator/manifests/migrate"));
    let deadline = &all["Job flux-operator/flux-operator-migrate"]["spec"]["activeDeadlineSeconds"];
    assert_eq!(deadline, 1800);
    let page = std::fs::read_to_string(repository().join("examples/v1alpha1/README.md")).unwrap();
    assert!(page.contains("--timeout=31m job/flux-operator-migrate"));
}

/// The section grants each account an SCC.
#[test]
fn openshift_section_names_every_service_account() {
    let page = std::fs::read_to_string(repository().join("docs/getting-started.md")).unwrap();
    let section = page.split("### OpenShift\n").nth(1).unwrap();
    let section = section.split("\n### ").next().unwrap();
    let words = section.split_whitespace().collect::<Vec<_>>().join(" ");
    // With these values, the chart also has the account of the Job that deletes all MiniClusters.
    let file = repository().join("operator/tests/chart/values/without-keeping.yaml");
    let mut accounts = templated(&helms()[0], "some-namespace", &file);
    accounts.extend(kustomized(&repository().join("operator/manifests/migrate")));
    accounts.retain(|_, object| object["kind"] == "ServiceAccount");
    assert_eq!(accounts.len(), 4);
    for account in accounts.values() {
        let option = format!("-z {}", account["metadata"]["name"].as_str().unwrap());
        let is_named = words
            .match_indices(&option)
            .any(|(at, _)| !words[at + option.len()..].starts_with('-'));
        assert!(is_named, "{option}");
    }
}
