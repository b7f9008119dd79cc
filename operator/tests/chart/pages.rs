//! The chart's documentation is true: the table of its values, its versions, its images.

use serde_json::Value;

use crate::values::{defaults, templated};
use crate::{helms, repository, same};

fn read(path: &str) -> String {
    std::fs::read_to_string(repository().join(path)).unwrap()
}

/// Path, default and comment of each value with a comment, in the order of the file. The comment is the one line above
/// the value. An empty line ends a comment that belongs to no value.
fn values() -> Vec<(String, String, String)> {
    let text = read("chart/values.yaml");
    let parsed: Value = serde_saphyr::from_str(&text).unwrap();
    let mut above: Vec<(usize, String)> = Vec::new();
    let (mut comment, mut all) = (String::new(), Vec::new());
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        match line.trim_start() {
            "" => comment.clear(),
            text if text.starts_with('#') => comment = text.trim_start_matches("# ").to_owned(),
            text => {
                let key = text.split(':').next().unwrap().to_owned();
                above.retain(|(depth, _)| *depth < indent);
                above.push((indent, key));
                if !comment.is_empty() {
                    let path: Vec<&str> = above.iter().map(|(_, key)| key.as_str()).collect();
                    let value = path.iter().fold(&parsed, |value, key| &value[key]);
                    all.push((
                        path.join("."),
                        serde_json::to_string(value).unwrap(),
                        comment.clone(),
                    ));
                    comment.clear();
                }
            }
        }
    }
    all
}

/// The paths of a value's leaves. A path in `known` has a comment, which covers what is below it: it counts as a leaf.
fn leaves(value: &Value, path: &str, known: &[String], all: &mut Vec<String>) {
    match value
        .as_object()
        .filter(|map| !map.is_empty() && !known.contains(&path.to_owned()))
    {
        Some(map) => {
            for (key, value) in map {
                leaves(value, format!("{path}.{key}").trim_start_matches('.'), known, all);
            }
        }
        None => all.push(path.to_owned()),
    }
}

#[test]
fn the_readme_has_a_table_of_all_values() {
    let values = values();
    let known: Vec<String> = values.iter().map(|(path, ..)| path.clone()).collect();
    let mut all = Vec::new();
    leaves(
        &serde_saphyr::from_str(&read("chart/values.yaml")).unwrap(),
        "",
        &known,
        &mut all,
    );
    let without: Vec<&String> = all.iter().filter(|path| !known.contains(path)).collect();
    assert!(
        without.is_empty() && known.len() > 25,
        "values.yaml says nothing of {without:?}"
    );

    let (begin, end) = (
        "<!-- values: made from values.yaml by `make generate` -->\n",
        "<!-- end of values -->",
    );
    let readme = read("chart/README.md");
    let (head, rest) = readme.split_once(begin).unwrap();
    let (_, tail) = rest.split_once(end).unwrap();
    let mut table = String::from("\n| value | default | what it is |\n| --- | --- | --- |\n");
    for (path, default, comment) in values {
        table += &format!("| `{path}` | `{default}` | {} |\n", comment.replace('|', "\\|"));
    }
    same(
        &repository().join("chart/README.md"),
        &format!("{head}{begin}{table}\n{end}{tail}"),
    );
}

#[test]
fn chart_and_program_have_one_version_and_name_the_same_images() {
    let chart: Value = serde_saphyr::from_str(&read("chart/Chart.yaml")).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(
        (&chart["version"], &chart["appVersion"]),
        (&version.into(), &version.into())
    );
    let values: Value = serde_saphyr::from_str(&read("chart/values.yaml")).unwrap();
    // The chart has no default for two repositories. In this file they have the names that `make images` gives.
    let plain: Value = serde_saphyr::from_str(&read("operator/manifests/values.yaml")).unwrap();
    let name = |image: &Value, usual_tag: &str| {
        let tag = image["tag"]
            .as_str()
            .filter(|tag| !tag.is_empty())
            .unwrap_or(usual_tag);
        format!("{}:{tag}", image["repository"].as_str().unwrap())
    };
    let [operator, agent, view] = [
        &plain["image"],
        &plain["agent"]["image"],
        &values["view"]["image"],
    ]
    .map(|image| name(image, version));
    assert_eq!(agent, flux_operator_core::render::DEFAULT_AGENT_IMAGE);
    assert_eq!(view, flux_operator_core::render::DEFAULT_VIEW_IMAGE);
    assert_eq!(
        values["restful"]["repository"],
        flux_shared::agent_spec::RESTFUL_REPOSITORY
    );
    let images: Value =
        serde_saphyr::from_str(chart["annotations"]["artifacthub.io/images"].as_str().unwrap()).unwrap();
    let images: Vec<&str> = images
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|image| image["image"].as_str())
        .collect();
    assert_eq!(images, [operator, agent, view]);
}

#[test]
fn python_package_and_program_have_one_version() {
    let line = format!("version = \"{}\"", env!("CARGO_PKG_VERSION"));
    let package = read("python/pyproject.toml");
    assert!(package.lines().any(|other| other == line), "{line}");
}

#[test]
fn readme_lists_every_object_that_is_installed() {
    let readme = read("chart/README.md");
    let (_, section) = readme.split_once("\n## What it installs\n").unwrap();
    let (section, _) = section.split_once("\n## ").unwrap();
    // One Helm is enough: this test is about the README.
    let objects = templated(&helms()[0], "flux-operator", &defaults());
    let missing: Vec<&String> = objects
        .iter()
        .filter(|(_, object)| {
            // A binding is in the row of its role or policy: `Role and binding`.
            let kind = object["kind"].as_str().unwrap().trim_end_matches("Binding");
            let name = format!("`{}`", object["metadata"]["name"].as_str().unwrap());
            let is_row = |line: &str| line.contains(kind) && line.contains(&name);
            !section.lines().any(is_row)
        })
        .map(|(name, _)| name)
        .collect();
    assert!(missing.is_empty() && objects.len() > 25, "{missing:?}");
}

/// Images without a registry have the names and the version that `make images` gives them.
#[test]
fn manifests_and_examples_name_the_images_of_this_version() {
    let version = env!("CARGO_PKG_VERSION");
    for (file, image) in [
        ("operator/manifests/migrate/migrate.yaml", "flux-operator"),
        ("examples/jobset/jobset.yaml", "flux-agent"),
        ("examples/plain-job/job.yaml", "flux-agent"),
        ("examples/trainjob/runtime.yaml", "flux-agent"),
    ] {
        assert!(
            read(file).contains(&format!("image: {image}:{version}\n")),
            "{file}"
        );
    }
}

/// The annotation is text. The YAML in it is an example, and must be usable.
#[test]
fn the_example_of_the_annotations_is_valid() {
    let chart: Value = serde_saphyr::from_str(&read("chart/Chart.yaml")).unwrap();
    let annotations = &chart["annotations"];
    let examples: Value =
        serde_saphyr::from_str(annotations["artifacthub.io/crdsExamples"].as_str().unwrap()).unwrap();
    for example in examples.as_array().unwrap() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), example.to_string()).unwrap();
        let output = crate::flux_operator(&["validate", file.path().to_str().unwrap()]);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let crds: Value = serde_saphyr::from_str(annotations["artifacthub.io/crds"].as_str().unwrap()).unwrap();
    let versions: Vec<&str> = crds
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|crd| crd["version"].as_str())
        .collect();
    assert_eq!(versions, ["v1alpha2", "v1alpha1"]);
}
