//! The agent's documentation is true: its commands print what the pages show, every MiniCluster of the pages
//! can be planned, and every file of a pod is documented.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use test_support::pages;

use serde_json::Value;

const AGENT: &str = env!("CARGO_BIN_EXE_flux-agent");

#[test]
fn the_commands_of_the_pages_print_what_the_pages_show() {
    let (run, wrong) = pages::differences("flux-agent", Path::new(AGENT));
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(run > 0, "only {run} were run");
}

#[test]
fn the_reference_has_the_program_s_own_help() {
    pages::is_committed("flux-agent.md", &pages::help("flux-agent", Path::new(AGENT)));
}

fn dry_run(text: &str) -> Result<Value, String> {
    let mut command = Command::new(AGENT);
    command
        .args(["dry-run", "-", "--format", "json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    if output.status.success() {
        Ok(serde_json::from_slice(&output.stdout).unwrap())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}

#[test]
fn every_minicluster_of_the_pages_can_be_planned() {
    let (mut planned, mut wrong) = (0, Vec::new());
    for block in pages::pages().iter().flat_map(|page| pages::blocks(page)) {
        // `part` is no whole manifest, and `refused` must be rejected.
        if block.language != "yaml"
            || block.word.is_some()
            || !block.text.lines().any(|line| line == "kind: MiniCluster")
        {
            continue;
        }
        planned += 1;
        wrong.extend(
            dry_run(&block.text)
                .err()
                .map(|why| format!("{}: {why}", block.place())),
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(planned > 3, "only {planned}");
}

/// The reference explains every file, folder and link that the agent creates below /mnt/flux in some examples.
#[test]
fn every_file_of_a_pod_is_explained() {
    let page = std::fs::read_to_string(pages::repository().join("docs/reference/files.md")).unwrap();
    let named: BTreeSet<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next())
        .collect();
    let mut made = BTreeSet::new();
    let folders = ["hello-world", "batch", "script", "sidecar", "archive", "fluxion"];
    for example in folders
        .map(|folder| format!("{folder}/minicluster"))
        .into_iter()
        .chain(["users/flux-user".into()])
    {
        let path = pages::repository()
            .join("examples")
            .join(format!("{example}.yaml"));
        let plan = dry_run(&std::fs::read_to_string(path).unwrap()).unwrap();
        paths(&plan["pods"], &mut made);
    }
    let mount_paths = made.iter().filter(|path| path.starts_with("/mnt/flux/"));
    let is_below = |path: &str, other: &str| path.starts_with(&format!("{other}/"));
    // The page may name a folder in place of its files, or the files in place of their folder.
    let is_named = |path: &&String| {
        named
            .iter()
            .any(|name| *name == **path || is_below(name, path) || is_below(path, name))
    };
    let missing: Vec<&String> = mount_paths.filter(|path| !is_named(path)).collect();
    assert!(missing.is_empty(), "not in docs/reference/files.md: {missing:#?}");
}

fn paths(value: &Value, made: &mut BTreeSet<String>) {
    match value {
        Value::Object(map) => {
            made.extend(map.get("path").and_then(Value::as_str).map(str::to_owned));
            map.values().for_each(|inner| paths(inner, made));
        }
        Value::Array(list) => list.iter().for_each(|inner| paths(inner, made)),
        _ => {}
    }
}

/// The documents of an example's file.
fn example(file: &str) -> Vec<Value> {
    let text = std::fs::read_to_string(pages::repository().join("examples").join(file)).unwrap();
    serde_saphyr::from_multiple(&text).unwrap()
}

/// The first field `name` in `value`, at any depth.
fn found<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Object(map) => map
            .get(name)
            .or_else(|| map.values().find_map(|inner| found(inner, name))),
        Value::Array(list) => list.iter().find_map(|inner| found(inner, name)),
        _ => None,
    }
}

fn words(value: &Value) -> Vec<&str> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|word| word.as_str().unwrap())
        .collect()
}

/// An assumed value for a label or a field of the pod.
fn assumed(path: &str) -> &'static str {
    match path {
        "metadata.namespace" => "default",
        "metadata.labels['batch.kubernetes.io/job-name']" => "example-node-0",
        "metadata.labels['jobset.sigs.k8s.io/jobset-name']" => "example",
        "metadata.labels['jobset.sigs.k8s.io/jobset-uid']" => "7a2e6d1c-0000",
        "metadata.labels['jobset.sigs.k8s.io/restart-attempt']" => "0",
        _ => panic!("no pod has {path}"),
    }
}

/// The plan of the pods of a JobSet or a TrainJob, from the arguments and the variables of their entrypoint.
/// `of_controller` are options with the variables that a controller adds to the pods.
fn plan_of_template(template: &Value, args: &[&str], of_controller: &[&str]) -> Value {
    let container = &found(template, "containers").unwrap()[0];
    let command = words(&container["command"]);
    assert!(
        command.starts_with(&[flux_shared::paths::AGENT_FILE, "run"]) && command.ends_with(&["--"]),
        "{command:?}"
    );
    let variables = container["env"].as_array().unwrap().iter().map(|variable| {
        let value = variable["value"].as_str();
        let value = value
            .unwrap_or_else(|| assumed(variable["valueFrom"]["fieldRef"]["fieldPath"].as_str().unwrap()));
        format!("--env={}={value}", variable["name"].as_str().unwrap())
    });
    let mut dry_run = Command::new(AGENT);
    dry_run
        .args(["dry-run", "--format=json"])
        .args(variables)
        .args(of_controller);
    // `dry-run` has no `--grace-period`. Nothing that the test compares depends on it.
    dry_run
        .args(
            command[2..]
                .iter()
                .filter(|word| !word.starts_with("--grace-period")),
        )
        .args(args);
    let output = dry_run.output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn examples_for_other_controllers_are_planned() {
    let jobset = &example("jobset/jobset.yaml")[0];
    let spec = &jobset["spec"]["replicatedJobs"][0]["template"]["spec"];
    assert_eq!(
        (&spec["completions"], &spec["parallelism"]),
        (&2.into(), &2.into())
    );
    let of_jobset = plan_of_template(jobset, &words(found(jobset, "args").unwrap()), &[]);
    let (runtime, trainjob) = (
        &example("trainjob/runtime.yaml")[0],
        &example("trainjob/trainjob.yaml")[0],
    );
    assert_eq!(
        trainjob["spec"]["runtimeRef"]["name"],
        runtime["metadata"]["name"]
    );
    let torch = [
        "--env=PET_MASTER_ADDR=example-node-0-0.example",
        "--env=PET_NNODES=2",
    ];
    let of_trainjob = plan_of_template(runtime, &words(found(trainjob, "args").unwrap()), &torch);
    for plan in [of_jobset, of_trainjob] {
        let source = &plan["source"];
        assert_eq!(
            (&source["name"], &source["size"]),
            (&"example-node-0".into(), &2.into())
        );
        assert_eq!(
            source["facts"]["key"]["of"],
            serde_json::json!(["7a2e6d1c-0000", "0"])
        );
        let steps = plan["pods"][0]["steps"].as_array().unwrap();
        let launch = steps.iter().find(|step| step["step"] == "launch").unwrap();
        assert!(
            words(&launch["argv"]).ends_with(&["echo", "two  words", "and a \"quote\""]),
            "{launch}"
        );
        let parent = plan["pods"][1].to_string();
        assert!(
            parent.contains("example-node-0-0.example.default.svc.cluster.local."),
            "{parent}"
        );
    }
}
