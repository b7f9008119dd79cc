//! Every manifest below `examples/` can be applied: it parses, is valid, and becomes an AgentSpec that its pods can
//! read. Each example has a manifest and a README, and the index lists it.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    reason = "tests read files and print what they found"
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

/// The folder with the examples of v1alpha1, which has one folder for each example, too.
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

/// Manifests with older names, places and values of fields, as documents of the Go operator had them.
fn spellings() -> PathBuf {
    root().join("../shared/tests/spellings")
}

/// Every YAML file, its text and its documents.
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
    let (mut wrong, mut count) = (Vec::new(), 0);
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
        count += 1;
    }
    println!("{count} MiniClusters");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn hand_written_agent_spec_fits_its_job() {
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

/// A set of Jobs restarts after the exit codes of the agent's failures that a retry may fix, and after the code of a
/// follower that alone was stopped. The rules match the codes in the message of a failed Job.
#[test]
fn jobset_restarts_after_exactly_the_retriable_agent_codes() {
    let retriable = Category::ALL
        .into_iter()
        .filter(|category| category.is_retriable());
    let wanted: BTreeSet<u8> = retriable.map(Category::code).chain([REPLACE]).collect();
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
            let restart_rules = rules.iter().filter(|rule| rule["action"] == "RestartJobSet");
            let patterns = restart_rules.flat_map(|rule| list(&rule["onJobFailureMessagePatterns"]));
            let patterns: Vec<String> = patterns
                .map(|pattern| pattern.as_str().unwrap().to_owned())
                .collect();
            // The blank marks the end of the number.
            let codes = patterns
                .iter()
                .filter_map(|pattern| pattern.strip_prefix("exit code (")?.strip_suffix(") "));
            let codes: BTreeSet<u8> = codes
                .flat_map(|list| list.split('|'))
                .map(|code| code.parse().unwrap())
                .collect();
            assert_eq!(codes, wanted, "{}", file.display());
            assert_eq!(
                rules.last().unwrap()["action"],
                "FailJobSet",
                "{}: other codes, which are the program's, fail the JobSet",
                file.display()
            );
            // The Job's message has the exit code of this container only.
            let job = &spec["replicatedJobs"][0]["template"]["spec"];
            let on_exit_codes = list(&job["podFailurePolicy"]["rules"])
                .into_iter()
                .find_map(|rule| rule.get("onExitCodes").cloned());
            assert_eq!(
                on_exit_codes.unwrap()["containerName"],
                job["template"]["spec"]["containers"][0]["name"]
            );
            found.insert(name(&file).to_owned());
        }
    }
    assert_eq!(
        found,
        BTreeSet::from(["jobset.yaml", "runtime.yaml"].map(str::to_owned))
    );
    // The page lists the codes too.
    let page = std::fs::read_to_string(root().join("jobset/README.md")).unwrap();
    for code in wanted {
        assert!(
            page.lines()
                .any(|line| line.starts_with("| `") && line.contains(&code.to_string())),
            "{code}"
        );
    }
}

/// The specs of all Jobs in a document.
fn jobs(document: &Value) -> Vec<&Value> {
    let set = match document["kind"].as_str() {
        Some("Job") => return vec![&document["spec"]],
        Some("JobSet") => &document["spec"],
        Some("ClusterTrainingRuntime") => &document["spec"]["template"]["spec"],
        _ => return Vec::new(),
    };
    let replicated = set["replicatedJobs"].as_array().unwrap();
    replicated.iter().map(|job| &job["template"]["spec"]).collect()
}

fn runs_agent(container: &Value) -> bool {
    let word = |at: usize| container["command"][at].as_str().unwrap_or_default();
    word(0).ends_with("/flux-agent") && word(1) == "run"
}

/// A lead's pod that replaces another one must not run the program again. The agent learns from two variables, with
/// the Job controller's counts of earlier pods, that its pod is a replacement. The Job controller counts them only with
/// `backoffLimitPerIndex`.
#[test]
fn job_replaces_no_pod_unless_its_agent_learns_of_it() {
    let mut found = BTreeSet::new();
    for (file, _, documents) in manifests() {
        for job in documents.iter().flat_map(jobs) {
            let containers = job["template"]["spec"]["containers"].as_array().unwrap();
            let Some(agent) = containers.iter().find(|container| runs_agent(container)) else {
                continue;
            };
            let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
            let env = list(&agent["env"]);
            let has = |name: &str| env.iter().any(|variable| variable["name"] == name);
            let learns_of_it = !job["backoffLimitPerIndex"].is_null()
                && has("FLUX_AGENT_INDEX_FAILURES")
                && has("FLUX_AGENT_INDEX_DISRUPTIONS");
            let ignores_a_failure = list(&job["podFailurePolicy"]["rules"])
                .iter()
                .any(|rule| rule["action"] == "Ignore");
            assert!(
                learns_of_it || job["backoffLimit"] == 0 && !ignores_a_failure,
                "{}",
                file.display()
            );
            found.insert(name(&file).to_owned());
        }
    }
    assert_eq!(
        found,
        BTreeSet::from(["job.yaml", "jobset.yaml", "runtime.yaml"].map(str::to_owned))
    );
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
            "{}: has other objects beside the MiniCluster",
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
fn miniclusters_are_named_like_their_folders_and_only_once() {
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
                panic!("{} and {} have the same name", file.display(), other.display());
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
            "{}: wrong title",
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
fn relative_links_of_the_readmes_lead_to_files() {
    let pages = folders()
        .into_iter()
        .map(|folder| folder.join("README.md"))
        .chain([root(), older()].map(|folder| folder.join("README.md")));
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let links = text.split("](").skip(1).filter_map(|rest| rest.split(')').next());
        for link in links.filter(|link| !link.starts_with("https:")) {
            let target = page.parent().unwrap().join(link.split('#').next().unwrap());
            assert!(target.exists(), "{}: {link}", page.display());
        }
    }
}

/// Readers paste commands. `kubectl wait` times out after 30 s by default. Files of the checkout must stay unchanged.
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
    pages.retain(|page| page.extension().is_some_and(|ending| ending == "md"));
    assert!(pages.len() > 80, "{}", pages.len());
    for page in pages {
        for line in std::fs::read_to_string(&page).unwrap().lines() {
            let is_wrong =
                line.contains("sed -i") || line.contains("$ kubectl wait ") && !line.contains("--timeout");
            assert!(!is_wrong, "{}: {line}", page.display());
        }
    }
}

/// Each field that a page names in backticks, such as `flux.container.source`, exists in some API version.
#[test]
fn fields_that_the_pages_name_exist() {
    let shapes = ["v1alpha1", "v1alpha2"].map(|version| {
        let file = format!("{}/src/crd/shape/{version}.json", env!("CARGO_MANIFEST_DIR"));
        serde_json::from_str::<Value>(&std::fs::read_to_string(file).unwrap()).unwrap()
    });
    // The page of `plain-job` names fields of the AgentSpec, which are not in these shapes.
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
            // Only a path whose first part is a field is checked. A single word may be anything.
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

/// A field of a shape (`src/crd/shape.rs` describes the format), required or not. For a list, the field of its items.
fn field<'a>(shape: &'a Value, name: &str) -> Option<&'a Value> {
    let shape = shape.get(0).unwrap_or(shape);
    shape.get(name).or_else(|| shape.get(format!("{name}!")))
}
