//! Every manifest below `examples/` is what a user may apply: it parses, is valid, and becomes an AgentSpec
//! that its pods can read. And the folder is whole: each has its manifest and its explanation, and the index
//! names it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "tests look, and say what they saw"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use flux_shared::agent_spec::AgentSpec;
use flux_shared::exit::{Category, REPLACE};
use flux_shared::{derive, manifest, validate};
use serde_json::Value;

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../examples")
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    entries.sort();
    entries
}

/// The folder with the examples of the older version: one folder an example, as here.
fn older() -> PathBuf {
    root().join("v1alpha1")
}

fn folders() -> Vec<PathBuf> {
    let all = entries(&root())
        .into_iter()
        .filter(|path| *path != older())
        .chain(entries(&older()));
    all.filter(|path| path.is_dir()).collect()
}

fn is_older(path: &Path) -> bool {
    path.starts_with(older())
}

fn name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).unwrap()
}

/// Manifests that only spell an example otherwise: fields at the places and under the names of earlier
/// documents.
fn spellings() -> PathBuf {
    root().join("../shared/tests/spellings")
}

/// Every YAML file with its documents.
fn manifests() -> Vec<(PathBuf, String, Vec<Value>)> {
    let files = folders()
        .into_iter()
        .chain([spellings()])
        .flat_map(|folder| entries(&folder));
    files
        .filter(|file| file.extension().is_some_and(|ending| ending == "yaml"))
        .map(|file| {
            let text = std::fs::read_to_string(&file).unwrap();
            let documents =
                serde_saphyr::from_multiple(&text).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
            (file, text, documents)
        })
        .collect()
}

fn is_minicluster(document: &Value) -> bool {
    document["kind"] == "MiniCluster"
}

#[test]
fn every_minicluster_becomes_the_spec_of_its_pods() {
    let (mut wrong, mut taken) = (Vec::new(), 0);
    for (file, text, documents) in manifests() {
        if !documents.iter().any(is_minicluster) {
            continue;
        }
        let cluster = match manifest::parse(&text).and_then(|manifest| validate::validate_and_note(&manifest))
        {
            Ok(cluster) => cluster,
            Err(problems) => {
                wrong.extend(
                    problems
                        .iter()
                        .map(|problem| format!("{}: {problem}", file.display())),
                );
                continue;
            }
        };
        wrong.extend(
            cluster
                .notices
                .iter()
                .map(|notice| format!("{}: {notice}", file.display())),
        );
        let spec = derive::agent_spec(&cluster);
        assert_eq!(
            AgentSpec::from_toml(&spec.to_toml().unwrap()).unwrap(),
            spec,
            "{}",
            file.display()
        );
        taken += 1;
    }
    println!("{taken} MiniClusters");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_spec_that_is_written_by_hand_fits_its_job() {
    let mut found = 0;
    for (file, _, documents) in manifests() {
        let spec = documents
            .iter()
            .find_map(|document| document.pointer("/data/agent.toml")?.as_str());
        let Some(spec) = spec else { continue };
        let spec = AgentSpec::from_toml(spec).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let job = documents
            .iter()
            .find(|document| document["kind"] == "Job")
            .unwrap();
        assert_eq!(
            (job["metadata"]["name"].as_str(), &job["spec"]["completions"]),
            (Some(&*spec.name), &spec.size.into())
        );
        assert_eq!(job["spec"]["template"]["spec"]["subdomain"], spec.network.service);
        found += 1;
    }
    assert!(found > 0);
}

/// The codes after which a set of Jobs starts again, by the words that a failed Job has for them: those of
/// the agent's failures that another attempt may help, and that of a follower that alone was told to stop.
#[test]
fn jobset_restarts_after_exactly_the_retriable_agent_codes() {
    let may_help = Category::ALL
        .into_iter()
        .filter(|category| category.is_retriable());
    let wanted: BTreeSet<u8> = may_help.map(Category::code).chain([REPLACE]).collect();
    let mut found = BTreeSet::new();
    for (file, _, documents) in manifests() {
        for document in documents {
            let spec = match document["kind"].as_str() {
                Some("JobSet") => &document["spec"],
                Some("ClusterTrainingRuntime") => &document["spec"]["template"]["spec"],
                _ => continue,
            };
            let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
            let rules = list(&spec["failurePolicy"]["rules"]);
            let again = rules.iter().filter(|rule| rule["action"] == "RestartJobSet");
            let patterns = again.flat_map(|rule| list(&rule["onJobFailureMessagePatterns"]));
            let patterns: Vec<String> = patterns.map(|it| it.as_str().unwrap().to_owned()).collect();
            // The blank ends the number.
            let codes = patterns
                .iter()
                .filter_map(|it| it.strip_prefix("exit code (")?.strip_suffix(") "));
            let codes: BTreeSet<u8> = codes
                .flat_map(|it| it.split('|'))
                .map(|code| code.parse().unwrap())
                .collect();
            assert_eq!(codes, wanted, "{}", file.display());
            assert_eq!(
                rules.last().unwrap()["action"],
                "FailJobSet",
                "{}: the program's own",
                file.display()
            );
            // The Job's message has the code of this container alone.
            let job = &spec["replicatedJobs"][0]["template"]["spec"];
            let told = list(&job["podFailurePolicy"]["rules"])
                .into_iter()
                .find_map(|rule| rule.get("onExitCodes").cloned());
            assert_eq!(
                told.unwrap()["containerName"],
                job["template"]["spec"]["containers"][0]["name"]
            );
            found.insert(name(&file).to_owned());
        }
    }
    assert_eq!(
        found,
        BTreeSet::from(["jobset.yaml", "runtime.yaml"].map(str::to_owned))
    );
    // And the page has them.
    let page = std::fs::read_to_string(root().join("jobset/README.md")).unwrap();
    for code in wanted {
        assert!(
            page.lines()
                .any(|line| line.starts_with("| `") && line.contains(&code.to_string())),
            "{code}"
        );
    }
}

#[test]
fn every_example_has_one_minicluster_or_other_whole_objects() {
    for (file, _, documents) in manifests() {
        let miniclusters = documents
            .iter()
            .filter(|document| is_minicluster(document))
            .count();
        assert!(
            miniclusters == 0 || documents.len() == 1,
            "{}: more than the MiniCluster",
            file.display()
        );
        for document in &documents {
            for field in ["/apiVersion", "/kind", "/metadata/name"] {
                assert!(
                    document.pointer(field).is_some_and(Value::is_string),
                    "{}: no {field}",
                    file.display()
                );
            }
        }
    }
}

#[test]
fn names_are_those_of_the_folders_and_none_stands_there_twice() {
    let mut seen = BTreeMap::new();
    for (file, _, documents) in manifests() {
        for document in documents.iter().filter(|document| is_minicluster(document)) {
            let cluster = document["metadata"]["name"].as_str().unwrap().to_owned();
            if name(&file) == "minicluster.yaml" {
                let suffix = if is_older(&file) { "-v1alpha1" } else { "" };
                let wanted = format!("{}{suffix}", name(file.parent().unwrap()));
                assert_eq!(cluster, wanted, "{}", file.display());
            }
            if let Some(other) = seen.insert(cluster, file.clone()) {
                panic!("{} and {} have one name", file.display(), other.display());
            }
        }
    }
}

#[test]
fn every_example_has_a_manifest_and_explains_its_files() {
    let index = std::fs::read_to_string(root().join("README.md")).unwrap();
    let older_index = std::fs::read_to_string(older().join("README.md")).unwrap();
    assert!(index.contains("](v1alpha1)"));
    for folder in folders() {
        let index = if is_older(&folder) { &older_index } else { &index };
        assert!(
            index.contains(&format!("]({})", name(&folder))),
            "{} is not in the index",
            folder.display()
        );
        let readme = std::fs::read_to_string(folder.join("README.md")).unwrap();
        assert!(
            readme.starts_with(&format!("# {}\n", name(&folder))),
            "{}: its title",
            folder.display()
        );
        let has = |file: &str| folder.join(file).is_file();
        let has_manifest = ["minicluster.yaml", "job.yaml", "jobset.yaml", "trainjob.yaml"]
            .into_iter()
            .any(has);
        assert!(has_manifest, "{} has no manifest", folder.display());
        for file in entries(&folder).iter().filter(|file| name(file) != "README.md") {
            assert!(readme.contains(name(file)), "{} is not explained", file.display());
        }
    }
}

#[test]
fn links_between_the_explanations_lead_somewhere() {
    let pages = folders()
        .into_iter()
        .map(|folder| folder.join("README.md"))
        .chain([root(), older()].map(|it| it.join("README.md")));
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.starts_with("https:")) {
            let target = page.parent().unwrap().join(link.split('#').next().unwrap());
            assert!(target.exists(), "{}: {link}", page.display());
        }
    }
}

/// A reader pastes them: kubectl's own patience is 30 s, a shell function of another page is not there, and a
/// file of the checkout stays as it is.
#[test]
fn pages_have_no_command_that_fails_when_pasted() {
    let mut pages: Vec<PathBuf> = folders()
        .into_iter()
        .map(|folder| folder.join("README.md"))
        .collect();
    pages.push(root().join("README.md"));
    let docs = root().join("../docs");
    pages.extend(
        [docs.clone(), docs.join("tasks")]
            .iter()
            .flat_map(|folder| entries(folder))
            .filter(|page| page.is_file()),
    );
    pages.retain(|page| page.extension().is_some_and(|it| it == "md"));
    assert!(pages.len() > 80, "{}", pages.len());
    for page in pages {
        for line in std::fs::read_to_string(&page).unwrap().lines() {
            let is_wrong = line.contains("$(lead ")
                || line.contains("sed -i")
                || line.contains("$ kubectl wait ") && !line.contains("--timeout");
            assert!(!is_wrong, "{}: {line}", page.display());
        }
    }
}

/// What the pages name in backticks as a field, such as `flux.container.source`, is one, in some version.
#[test]
fn fields_that_the_pages_name_are_there() {
    let shapes = ["v1alpha1", "v1alpha2"].map(|version| {
        let file = format!("{}/src/crd/shape/{version}.json", env!("CARGO_MANIFEST_DIR"));
        serde_json::from_str::<Value>(&std::fs::read_to_string(file).unwrap()).unwrap()
    });
    // One of them is about the agent's own fields, which AGENTSPEC.md takes from the types.
    let pages = folders()
        .into_iter()
        .filter(|folder| name(folder) != "plain-job")
        .map(|folder| folder.join("README.md"));
    let others = [
        "README.md",
        "../README.md",
        "../ARCHITECTURE.md",
        "../images/README.md",
        "../docs/COMPATIBILITY.md",
    ];
    let pages = pages.chain(others.map(|page| root().join(page)));
    let (mut wrong, mut right) = (Vec::new(), 0);
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let quoted = text
            .lines()
            .filter(|line| !line.starts_with("```"))
            .flat_map(|line| line.split('`').skip(1).step_by(2));
        for name in quoted.filter(|name| {
            name.chars()
                .all(|letter| letter.is_ascii_alphanumeric() || letter == '.')
        }) {
            let path: Vec<&str> = name.strip_prefix("spec.").unwrap_or(name).split('.').collect();
            let is_file = matches!(path.last(), Some(&("yaml" | "conf" | "toml")));
            if path.len() < 2 || is_file || !shapes.iter().any(|shape| field(shape, path[0]).is_some()) {
                continue;
            }
            if shapes.iter().any(|shape| {
                path.iter()
                    .try_fold(shape, |shape, name| field(shape, name))
                    .is_some()
            }) {
                right += 1
            } else {
                wrong.push(format!("{}: {name}", page.display()))
            }
        }
    }
    assert!(
        wrong.is_empty() && right > 5,
        "{right} are right; {}",
        wrong.join("\n")
    );
}

/// A field of a shape (`src/crd/shape.rs` says how they look), whether it is needed or not; that of each of a
/// list.
fn field<'a>(shape: &'a Value, name: &str) -> Option<&'a Value> {
    let shape = shape.get(0).unwrap_or(shape);
    shape.get(name).or_else(|| shape.get(format!("{name}!")))
}
