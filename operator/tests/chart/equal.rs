//! `helm template` against `flux-operator install --values`, and `kubectl kustomize` against `install`.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use flux_operator::install::{self, Settings};
use serde_json::Value;

use crate::{built, flux_operator, helms, repository};

/// Objects by kind, namespace and name.
pub type Objects = BTreeMap<String, Value>;

fn objects(yaml: &[u8]) -> Objects {
    let documents: Vec<Option<Value>> = serde_saphyr::from_multiple(std::str::from_utf8(yaml).unwrap()).unwrap();
    let mut all = Objects::new();
    for mut document in documents.into_iter().flatten() {
        whole(&mut document);
        let metadata = &document["metadata"];
        let name = format!("{} {}/{}", document["kind"], metadata["namespace"], metadata["name"]);
        assert!(all.insert(name.clone(), document).is_none(), "{name} twice");
    }
    all
}

/// The rules of a role one by one, in order.
fn permissions(rules: &Value) -> Value {
    let mut all = Vec::new();
    for rule in rules.as_array().unwrap() {
        let list = |name: &str| rule[name].as_array().cloned().unwrap_or_default();
        for (group, resource) in
            list("apiGroups").iter().flat_map(|group| list("resources").into_iter().map(move |it| (group, it)))
        {
            all.extend(list("verbs").iter().map(|verb| format!("{group} {resource} {verb} {}", rule["resourceNames"])));
        }
    }
    all.sort();
    all.into()
}

/// kustomize and Helm may write a number as 2147483647.0 or 2.147483647e+09.
fn whole(value: &mut Value) {
    match value {
        Value::Array(all) => all.iter_mut().for_each(whole),
        Value::Object(all) => all.values_mut().for_each(whole),
        Value::Number(number) if number.is_f64() => {
            let float = number.as_f64().unwrap();
            if float.fract() == 0.0 && float.abs() < 1e18 {
                *value = serde_json::json!(float as i64);
            }
        }
        _ => {}
    }
}

pub fn installed(arguments: &[&str]) -> Objects {
    let output = flux_operator(&[&["install"], arguments].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    objects(&output.stdout)
}

/// What Helm makes of the chart with a file of values.
pub fn templated(helm: &Path, namespace: &str, values: &Path) -> Objects {
    let mut command = Command::new(helm);
    command.args(["template", "flux-framework"]).arg(repository().join("chart")).arg("--values").arg(values);
    let output = command.args(["--namespace", namespace]).output().unwrap();
    assert!(output.status.success(), "{}: {}", values.display(), String::from_utf8_lossy(&output.stderr));
    objects(&output.stdout)
}

/// Without what only one of the two has: Helm makes the namespace by an option of its own, and `install` knows no policy for
/// what is kept, and deletes nothing.
fn in_common(mut objects: Objects) -> Objects {
    objects.retain(|_, object| object["kind"] != "Namespace" && !is_of_deletion(object));
    for object in objects.values_mut().filter(|object| object["kind"] == "CustomResourceDefinition") {
        let metadata = object["metadata"].as_object_mut().unwrap();
        if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
            annotations.remove("helm.sh/resource-policy");
            if annotations.is_empty() {
                metadata.remove("annotations");
            }
        }
    }
    objects
}

fn is_of_deletion(object: &Value) -> bool {
    object["metadata"]["name"].as_str().unwrap().ends_with(install::DELETION)
}

/// What deletes all MiniClusters when the release goes, without the annotations by which Helm makes the Job then.
fn of_deletion(mut objects: Objects) -> Objects {
    objects.retain(|_, object| is_of_deletion(object));
    for object in objects.values_mut() {
        let annotations = object["metadata"].as_object_mut().unwrap().remove("annotations");
        assert_eq!(annotations.is_some_and(|all| all["helm.sh/hook"] == "pre-delete"), object["kind"] == "Job");
    }
    objects
}

/// What deletes all MiniClusters, where the definition goes with the release.
fn deletion(namespace: &str, values: &Path) -> Objects {
    let text = std::fs::read_to_string(values).unwrap();
    let read: Option<Value> = serde_saphyr::from_str(&text).unwrap();
    let crds = &read.unwrap_or_default()["crds"];
    if crds["keep"] != false || crds["enabled"] == false {
        return Objects::new();
    }
    let settings = Settings { namespace: namespace.to_owned(), ..Settings::default() };
    let installation = settings.installation(Some(&text)).unwrap();
    objects(flux_operator_core::yaml::stream(install::deletion(&installation).unwrap()).as_bytes())
}

fn assert_same(what: &str, one: &Objects, other: &Objects) {
    let names = |objects: &Objects| objects.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(one), names(other), "{what}");
    let comparable = |object: &Value| {
        let mut object = object.clone();
        if object["kind"].as_str().is_some_and(|kind| kind.ends_with("Role")) {
            object["rules"] = permissions(&object["rules"]);
        }
        object
    };
    for (name, object) in one {
        let (object, other) = (comparable(object), comparable(&other[name]));
        let text = |object: &Value| serde_json::to_string_pretty(object).unwrap();
        let (left, right) = (text(&object), text(&other));
        let difference = left.lines().zip(right.lines()).find(|(a, b)| a != b);
        assert!(object == other, "{what}: {name} differs: {difference:?}");
    }
}

#[test]
fn the_chart_and_install_make_the_same_objects_for_each_file_of_values() {
    let folder = repository().join("operator/tests/chart/values");
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert!(files.len() >= 12, "{files:?}");
    let (mut counts, mut deletions) = (BTreeMap::new(), 0);
    for helm in helms() {
        for file in &files {
            let name = file.file_stem().unwrap().to_str().unwrap();
            // A namespace may be a number to YAML.
            let namespace = if name == "numbers" { "123" } else { "some-namespace" };
            let path = file.to_str().unwrap();
            let all = templated(&helm, namespace, file);
            let removal = deletion(namespace, file);
            deletions += removal.len();
            assert_same(name, &of_deletion(all.clone()), &removal);
            let chart = in_common(all);
            let program = in_common(installed(&["--namespace", namespace, "--values", path]));
            assert_same(name, &chart, &program);
            counts.insert(name.to_owned(), chart.len());
        }
    }
    assert_eq!(deletions, 4 * 4 * helms().len(), "four files do not keep the definition");
    // The files say something: an installation for one namespace is the smallest, all that can be had the largest.
    assert!(counts["namespaced"] < counts["without-v1alpha1"] && counts["without-v1alpha1"] < counts["defaults"]);
    assert!(counts["defaults"] < counts["service-monitor-and-policies"], "{counts:?}");
}

#[test]
fn options_and_values_of_the_same_meaning_make_the_same_objects() {
    let digest = "@sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let [image, agent, view] =
        ["operator", "agent", "view"].map(|name| format!("registry.example/flux/{name}{digest}"));
    let of_images = ["--image", &image, "--agent-image", &agent, "--view-image", &view];
    for (name, options) in [
        ("defaults", &[][..]),
        ("namespaced", &["--namespaced"]),
        ("without-crd", &["--without-crd"]),
        ("without-v1alpha1", &["--without-v1alpha1"]),
        ("cert-manager", &["--cert-manager"]),
        ("minicluster-policy", &["--minicluster-network-policy"]),
        ("digests", &of_images),
    ] {
        let file = repository().join(format!("operator/tests/chart/values/{name}.yaml"));
        assert_same(name, &installed(options), &installed(&["--values", file.to_str().unwrap()]));
        // What the options ask for stands over a file.
        let all = repository().join("operator/tests/chart/values/defaults.yaml");
        assert_same(name, &installed(options), &installed(&[options, &["--values", all.to_str().unwrap()]].concat()));
    }
}

#[test]
fn the_kustomize_base_is_the_installation() {
    let node = match std::env::var_os("CONTROLPLANE") {
        Some(program) => program.into(),
        None => built("build", &[]).join("node"),
    };
    let output = Command::new(node)
        .args(["kubectl", "kustomize"])
        .arg(repository().join("operator/manifests"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_same("kustomize", &objects(&output.stdout), &installed(&[]));
}
