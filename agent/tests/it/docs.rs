//! What people read of the agent is true: its commands print what the pages show, every MiniCluster of the pages can be
//! planned, and every file of a pod is explained.

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
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout).unwrap()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[test]
fn every_minicluster_of_the_pages_can_be_planned() {
    let (mut planned, mut wrong) = (0, Vec::new());
    for block in pages::pages().iter().flat_map(|page| pages::blocks(page)) {
        if block.language != "yaml" || block.word.is_some() || !block.text.contains("kind: MiniCluster") {
            continue;
        }
        planned += 1;
        wrong.extend(dry_run(&block.text).err().map(|why| format!("{}: {why}", block.place())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(planned > 3, "only {planned}");
}

/// Every file, folder and link that the agent makes for some example has its line in the reference.
#[test]
fn every_file_of_a_pod_is_explained() {
    let page = std::fs::read_to_string(pages::repository().join("docs/reference/files.md")).unwrap();
    let named: BTreeSet<&str> = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    let mut made = BTreeSet::new();
    let folders = ["hello-world", "batch", "script", "sidecar", "archive", "fluxion"];
    for example in folders.map(|folder| format!("{folder}/minicluster")).into_iter().chain(["users/flux-user".into()]) {
        let path = pages::repository().join("examples").join(format!("{example}.yaml"));
        let plan = dry_run(&std::fs::read_to_string(path).unwrap()).unwrap();
        paths(&plan["pods"], &mut made);
    }
    let ours = made.iter().filter(|path| path.starts_with("/mnt/flux/"));
    let is_below = |path: &str, other: &str| path.starts_with(&format!("{other}/"));
    let is_named =
        |path: &&String| named.iter().any(|name| *name == **path || is_below(name, path) || is_below(path, name));
    let missing: Vec<&String> = ours.filter(|path| !is_named(path)).collect();
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
