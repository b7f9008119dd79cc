//! The GitHub workflows: every action is pinned to the digest of its commit, no job has a permission that it
//! does not need, and a person can run every command locally.

use std::collections::BTreeSet;
use std::path::PathBuf;

use serde_json::Value;

use test_support::pages::repository;

/// The jobs with write permission: they publish.
const WRITES: [(&str, &str); 2] = [("book.yml", "publish"), ("release.yml", "publish")];
/// What a command may begin with, besides `make` and the programs in `.ci`.
const TOOLS: &[&str] = &[
    "cargo install --locked ",
    "go install ",
    "rustup toolchain install ",
    "diff ",
    "skopeo login ",
    "helm registry login ",
    "cosign login ",
];

struct Workflow {
    name: String,
    text: String,
    value: Value,
}

fn workflows() -> Vec<Workflow> {
    let folder = std::fs::read_dir(repository().join(".github/workflows")).unwrap();
    let mut paths: Vec<PathBuf> = folder.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).unwrap();
        let value =
            serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        Workflow {
            name: path.file_name().unwrap().to_string_lossy().into_owned(),
            text,
            value,
        }
    };
    paths.into_iter().map(read).collect()
}

fn workflow(name: &str) -> Workflow {
    workflows()
        .into_iter()
        .find(|workflow| workflow.name == name)
        .unwrap()
}

fn jobs(workflow: &Workflow) -> impl Iterator<Item = (&String, &Value)> {
    workflow.value["jobs"].as_object().unwrap().iter()
}

fn steps(job: &Value) -> &[Value] {
    job["steps"].as_array().unwrap()
}

#[test]
fn every_action_is_named_by_its_commit_and_its_version() {
    let mut seen = 0;
    for Workflow { name, text, .. } in workflows() {
        for line in text
            .lines()
            .filter_map(|line| line.trim_start_matches([' ', '-']).strip_prefix("uses: "))
        {
            let (action, version) = line.split_once(" # ").unwrap_or((line, ""));
            let digest = action.split_once('@').map_or("", |(_, digest)| digest);
            assert!(is_commit(digest) && version.starts_with('v'), "{name}: {line}");
            seen += 1;
        }
    }
    assert!(seen > 5, "only {seen} were found");
}

#[test]
fn each_job_has_the_rights_that_it_needs_and_a_timeout() {
    let mut writes = BTreeSet::new();
    for workflow in workflows() {
        let name = &workflow.name;
        assert_eq!(
            workflow.value["permissions"],
            serde_json::json!({}),
            "{name}: none unless a job says so"
        );
        assert_eq!(
            workflow.value["on"].get("pull_request_target"),
            None,
            "{name}: strangers' code with our rights"
        );
        for (job, value) in jobs(&workflow) {
            assert!(value["timeout-minutes"].is_u64(), "{name}, {job}: no timeout");
            let rights = value["permissions"]
                .as_object()
                .unwrap_or_else(|| panic!("{name}, {job}: no permissions"));
            if rights
                .iter()
                .any(|(right, level)| level != "read" || right != "contents")
            {
                writes.insert((name.clone(), job.clone()));
            }
            for step in steps(value) {
                let is_checkout = step["uses"]
                    .as_str()
                    .is_some_and(|action| action.starts_with("actions/checkout@"));
                let keeps = step["with"]["persist-credentials"] != serde_json::json!(false);
                assert!(
                    !(is_checkout && keeps),
                    "{name}, {job}: the checkout keeps its token"
                );
            }
        }
    }
    let may_write = WRITES.map(|(name, job)| (name.to_owned(), job.to_owned()));
    assert_eq!(writes, BTreeSet::from(may_write));
}

/// A release is built from nothing that another run has left.
#[test]
fn release_uses_no_cache() {
    assert!(!workflow("release.yml").text.contains("actions/cache@"));
}

/// A job that publishes runs no code of a dependency: it uses what other jobs have built.
#[test]
fn jobs_with_write_permission_build_nothing() {
    let builds = |step: &&Value| {
        step["run"].as_str().is_some_and(|run| {
            ["make ", "cargo ", ".ci/books"]
                .iter()
                .any(|build| run.contains(build))
        })
    };
    for (name, job) in WRITES {
        let workflow = workflow(name);
        let steps = steps(&workflow.value["jobs"][job]);
        assert!(!steps.is_empty(), "{name}, {job}");
        assert_eq!(steps.iter().find(builds), None, "{name}, {job}");
    }
}

/// Each of these programs reads credentials of its own.
#[test]
fn programs_that_publish_are_logged_in() {
    let release = workflow("release.yml");
    let at = |text: &str| {
        steps(&release.value["jobs"]["publish"])
            .iter()
            .position(|step| step["run"].as_str().is_some_and(|run| run.contains(text)))
    };
    let publish = at(".ci/publish ").unwrap();
    for login in ["skopeo login ", "helm registry login ", "cosign login "] {
        let step = at(&format!(
            "{login}--username \"$GITHUB_ACTOR\" --password-stdin ghcr.io"
        ));
        assert!(step.is_some_and(|step| step < publish), "{login}");
    }
}

#[test]
fn every_command_of_a_workflow_can_be_run_locally() {
    let makefile = std::fs::read_to_string(repository().join("Makefile")).unwrap();
    let mut seen = 0;
    for workflow in workflows() {
        for (job, value) in jobs(&workflow) {
            for run in steps(value).iter().filter_map(|step| step["run"].as_str()) {
                let place = format!("{}, {job}: `{run}`", workflow.name);
                let is_plain = !["\n", "|", ";", "&", "$(", "`", " >"]
                    .iter()
                    .any(|syntax| run.contains(syntax));
                assert!(is_plain, "{place}: logic of the shell belongs into .ci");
                let command = run.trim_start_matches("sudo --preserve-env env ").trim_start();
                let words: Vec<&str> = command
                    .split_whitespace()
                    .skip_while(|word| is_assignment(word))
                    .collect();
                // A recipe of the Makefile is one line: `NAME: ; COMMAND`.
                let is_known = match words.as_slice() {
                    ["make", recipe, ..] => makefile.contains(&format!("\n{recipe}: ;")),
                    [program, ..] if program.starts_with(".ci/") => repository().join(program).is_file(),
                    _ => TOOLS.iter().any(|tool| words.join(" ").starts_with(tool)),
                };
                assert!(is_known, "{place}: {words:?}");
                seen += 1;
            }
        }
    }
    assert!(seen > 8, "only {seen} were found");
}

/// No other repository can change what is tested, and the fetched manifests are the ones that the tests read.
#[test]
fn published_manifests_are_pinned_and_read_by_the_tests() {
    let list = std::fs::read_to_string(repository().join(".ci/public-manifests.list")).unwrap();
    // The first line is a comment.
    let (files, repositories): (Vec<&str>, Vec<&str>) =
        list.lines().skip(1).partition(|line| line.starts_with("  "));
    assert!(files.len() > 100 && repositories.len() > 10, "{list}");
    for repository in repositories {
        let (name, commit) = repository.split_once(' ').unwrap();
        assert!(is_commit(commit) && name.split('/').count() == 2, "{repository}");
        // The Go operator's repository: tests read its manifests from other folders, which this list does not fill.
        assert_ne!(name, "flux-framework/flux-operator");
    }
    let test = workflow("test.yml");
    let steps = steps(&test.value["jobs"]["test"]);
    let at = |text: &str| {
        steps
            .iter()
            .position(|step| step["run"].as_str().is_some_and(|run| run.contains(text)))
            .unwrap()
    };
    assert!(at(".ci/public-manifests \"$RUNNER_TEMP/manifests\"") < at("make test"));
    assert_eq!(
        steps[at("make test")]["env"]["UPSTREAM_MANIFESTS"],
        "${{ runner.temp }}/manifests"
    );
}

#[test]
fn fetched_tools_have_versions() {
    for workflow in workflows() {
        for line in workflow
            .text
            .lines()
            .filter(|line| line.contains(" install ") && line.contains("run:"))
        {
            let version = line.rsplit(['@', ' ']).next().unwrap();
            let is_version = version
                .trim_start_matches('v')
                .starts_with(|first: char| first.is_ascii_digit());
            assert!(
                is_version || line.contains("$RUSTUP_TOOLCHAIN"),
                "{}: {line}",
                workflow.name
            );
        }
    }
}

fn is_commit(text: &str) -> bool {
    text.len() == 40
        && text
            .chars()
            .all(|character| matches!(character, '0'..='9' | 'a'..='f'))
}

fn is_assignment(word: &str) -> bool {
    let name = word.trim_start_matches('"').split('=').next().unwrap_or_default();
    word.contains('=')
        && !name.is_empty()
        && name
            .chars()
            .all(|letter| letter.is_ascii_uppercase() || letter == '_')
}
