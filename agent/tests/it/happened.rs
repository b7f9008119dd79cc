//! The plan that `dry-run` prints is what `run` does: every file, every variable, every word.
//!
//! ```text
//! spec + facts of the image ─► flux-agent dry-run --format json ─► expected tree, environment, argv ┐
//! spec in the image         ─► flux-agent run, as a pod         ─► tree, the stand-in's record      ┴► equal
//! ```
//!
//! The facts are told by the test, which has made the image, not by the agent.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use flux_shared::agent_spec::AgentSpec;
use flux_shared::paths::{CURVE_FILE, SPEC_FILE};
use serde_json::{Value, json};

use crate::image::{self, AGENT, Container, Image, Node, RECORD, Tree, What, agent, assert_same, need_strace};

/// Environment and files as a plan's steps leave them.
struct Expected {
    us: (u32, u32),
    tree: Tree,
    environment: BTreeMap<String, String>,
    directory: String,
    /// What is launched: argv, environment, working directory, ids.
    launched: Vec<Launched>,
}

#[derive(Clone, Debug, PartialEq)]
struct Launched {
    argv: Vec<String>,
    environment: BTreeMap<String, String>,
    directory: String,
    ids: (u64, u64),
}

/// What a snippet of the test does: the test says it, since a plan has only its source.
type Effect = fn(&str, &mut Expected);

fn nothing(name: &str, _: &mut Expected) {
    panic!("there is no snippet {name} in this spec")
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_else(|| panic!("no {name} in {value}"))
}

fn owner(value: &Value) -> (u32, u32) {
    let id = |name: &str| u32::try_from(value[name].as_u64().unwrap()).unwrap();
    (id("uid"), id("gid"))
}

fn parent(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

impl Expected {
    fn word(&self, word: &Value) -> String {
        let Some(parts) = word.as_array() else { return word.as_str().unwrap().to_owned() };
        let part = |part: &Value| match part.get("env") {
            Some(name) => self.environment.get(name.as_str().unwrap()).cloned().unwrap_or_default(),
            None => text(part, "text").to_owned(),
        };
        parts.iter().map(part).collect()
    }

    fn change(&mut self, change: &Value) {
        let name = text(change, "name").to_owned();
        match text(change, "change") {
            "set" => {
                let value = self.word(&change["value"]);
                self.environment.insert(name, value);
            }
            "default" => {
                self.environment.entry(name).or_insert_with(|| text(change, "value").to_owned());
            }
            "append" => {
                let (value, separator) = (text(change, "value"), text(change, "separator"));
                let old = self.environment.get(&name).filter(|old| !old.is_empty());
                let new = match old {
                    None => value.to_owned(),
                    Some(old) if old.split(separator).any(|part| part == value) => old.clone(),
                    Some(old) => format!("{old}{separator}{value}"),
                };
                self.environment.insert(name, new);
            }
            "remove" => {
                self.environment.remove(&name);
            }
            other => panic!("unknown change {other}"),
        }
    }

    fn folders(&mut self, path: &str) {
        if path.is_empty() || self.tree.get(path).is_some_and(|node| node.what == What::Folder) {
            return;
        }
        self.folders(parent(path));
        self.put(path, 0o755, self.us, What::Folder);
    }

    fn put(&mut self, path: &str, mode: u32, owner: (u32, u32), what: What) {
        self.tree.insert(path.to_owned(), Node { mode, owner, what });
    }

    fn account(&mut self, path: &str, name: &str, line: String) {
        let us = self.us;
        let node =
            self.tree.entry(path.into()).or_insert(Node { mode: 0o644, owner: us, what: What::File(Vec::new()) });
        let What::File(bytes) = &mut node.what else { panic!("{path} is no file") };
        let known = String::from_utf8(bytes.clone()).unwrap();
        if !known.lines().any(|line| line.starts_with(&format!("{name}:"))) {
            bytes.extend_from_slice(line.as_bytes());
        }
    }

    fn content(&self, content: &Value) -> Vec<u8> {
        if let Some(text) = content["text"].as_str() {
            return text.into();
        }
        if let Some(source) = content["curve"]["source"].as_str() {
            let What::File(bytes) = &self.tree[source].what else { panic!("{source} is no file") };
            return bytes.clone();
        }
        let exports = content["exports"].as_object().unwrap_or_else(|| panic!("unknown content {content}"));
        let line =
            |(name, word): (&String, &Value)| format!("export {name}='{}'\n", self.word(word).replace('\'', r"'\''"));
        exports.iter().map(line).collect::<String>().into()
    }

    fn step(&mut self, step: &Value, effect: Effect) {
        match text(step, "step") {
            "environment" => step["changes"].as_array().unwrap().iter().for_each(|change| self.change(change)),
            "directory" | "file" => {
                let path = text(step, "path");
                self.folders(parent(path));
                let what = match step.get("content") {
                    Some(content) => What::File(self.content(content)),
                    None => What::Folder,
                };
                let mode = u32::from_str_radix(text(step, "mode"), 8).unwrap();
                self.put(path, mode, owner(&step["owner"]), what);
            }
            "link" => {
                let path = text(step, "path");
                self.folders(parent(path));
                if self.tree.get(path).is_none_or(|node| matches!(node.what, What::Link(_))) {
                    self.put(path, 0, self.us, What::Link(text(step, "target").into()));
                }
            }
            "user" => {
                let (name, home, (uid, gid)) = (text(step, "name"), text(step, "home"), owner(step));
                self.account("/etc/passwd", name, format!("{name}:x:{uid}:{gid}::{home}:/bin/sh\n"));
                self.account("/etc/group", name, format!("{name}:x:{gid}:\n"));
            }
            "snippet" => effect(text(step, "name"), self),
            "launch" => {
                let ids = step.get("run_as").map_or(self.us, owner);
                self.launched.push(Launched {
                    argv: step["argv"].as_array().unwrap().iter().map(|word| self.word(word)).collect(),
                    environment: self.environment.clone(),
                    directory: self.directory.clone(),
                    ids: (ids.0.into(), ids.1.into()),
                });
            }
            "wait-parent" | "wait-socket" | "publish-archive" => {}
            other => panic!("unknown step {other}"),
        }
    }
}

/// A cluster to run: what is special about it.
struct Case {
    /// A MiniCluster or an AgentSpec.
    input: String,
    ids: (u32, u32),
    environment: Vec<(&'static str, &'static str)>,
    effect: Effect,
    /// What happens to every image before.
    prepare: fn(&Image),
    /// What Flux or the user's own programs leave, which no plan knows.
    left: Vec<&'static str>,
    /// Variables that the prefix adds.
    added: Vec<(&'static str, &'static str)>,
    sidecars: Vec<&'static str>,
    certificate: bool,
    /// How an empty image is made.
    shell: bool,
}

fn input(name: &str) -> Case {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/inputs").join(name);
    Case {
        input: std::fs::read_to_string(path).unwrap(),
        ids: (0, 0),
        environment: vec![("QUOTED", "it's \"$HOME\" `x` \\ *")],
        effect: nothing,
        prepare: |_| {},
        left: Vec::new(),
        added: Vec::new(),
        sidecars: Vec::new(),
        certificate: true,
        shell: true,
    }
}

fn spec_of(input: &str) -> AgentSpec {
    if !input.contains("kind: MiniCluster") {
        return AgentSpec::from_toml(input).unwrap();
    }
    let cluster = flux_shared::validate::validate(&flux_shared::manifest::parse(input).unwrap()).unwrap();
    flux_shared::derive::agent_spec(&cluster)
}

fn cores() -> u32 {
    let set = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap();
    let count = (0..nix::sched::CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).count();
    u32::try_from(count).unwrap()
}

/// Of `paths`, those that are in the image and, if asked, that its user may write to (all, for root).
fn paths_in(image: &Image, paths: &[&str], writable_by: Option<u32>) -> Vec<String> {
    let counts = |path: &&&str| {
        let Ok(data) = std::fs::metadata(image.at(path)) else { return false };
        use std::os::unix::fs::MetadataExt;
        writable_by
            .is_none_or(|uid| uid == 0 || data.mode() & 0o002 != 0 || (data.uid() == uid && data.mode() & 0o200 != 0))
    };
    paths.iter().filter(counts).map(|path| (*path).to_owned()).collect()
}

/// What the agent ought to find in the image, told by who made it.
fn facts(image: &Image, spec: &AgentSpec, index: u32, container: &Container) -> Value {
    let read = |path: &str| std::fs::read_to_string(image.at(path)).unwrap_or_default();
    let user_home = spec.runner.user.as_ref().map_or_else(String::new, |user| format!("/home/{}", user.name));
    let archive = spec.archive.clone().unwrap_or_default();
    let asked: Vec<&str> = ["/home/flux-operator", CURVE_FILE, "/", &spec.runner.logs, &user_home, &archive]
        .into_iter()
        .filter(|path| !path.is_empty())
        .collect();
    let (uid, gid) = container.ids;
    let has_view = image.at("/mnt/flux/view/bin/flux").exists();
    json!({
        "hostname": container.hostname,
        "index": index,
        "uid": uid,
        "gid": gid,
        "passwd": read("/etc/passwd"),
        "group": read("/etc/group"),
        "environment": container.environment,
        "working_directory": "/",
        "address": format!("10.9.0.{}", index + 1),
        "cluster_domain": "cluster.local",
        "cores": cores(),
        "cpu_quota": null,
        "gpus": 0,
        "view": {"flux": has_view, "python": has_view.then_some("python3.11"), "fluxion": has_view, "fluxion_modprobe": has_view},
        "flux_on_path": image.at("/usr/bin/flux").exists().then_some("/usr/bin/flux"),
        "shell": image.at("/usr/bin/bash").exists().then_some("/bin/bash"),
        "terminal": false,
        "present": paths_in(image, &asked, None),
        "writable": paths_in(image, &asked, Some(uid)),
    })
}

/// What `dry-run` says that the containers of pod `index` will do.
fn planned(input: &str, index: u32, facts: &Value) -> Vec<Value> {
    let folder = image::folder();
    let (file, facts_file) = (folder.path().join("input"), folder.path().join("facts"));
    std::fs::write(&file, input).unwrap();
    std::fs::write(&facts_file, facts.to_string()).unwrap();
    let mut command = Command::new(agent());
    command.arg("dry-run").arg(&file).arg("--facts").arg(&facts_file).arg("--index").arg(index.to_string());
    let output = command.args(["--format", "json"]).env_clear().output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    document["pods"].as_array().unwrap().clone()
}

fn launched(record: &Value) -> Launched {
    let environment = record["environment"].as_object().unwrap().iter();
    Launched {
        argv: record["argv"].as_array().unwrap().iter().map(|word| word.as_str().unwrap().to_owned()).collect(),
        environment: environment.map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned())).collect(),
        directory: text(record, "directory").to_owned(),
        ids: (record["uid"].as_u64().unwrap(), record["gid"].as_u64().unwrap()),
    }
}

/// An image for one pod of the case's cluster.
fn pod_image(case: &Case, spec: &AgentSpec, size: u32) -> Image {
    let image = if case.shell { Image::usual() } else { Image::empty() };
    if !case.shell {
        image.view();
        image.file("/etc/nsswitch.conf", 0o644, "hosts: files\n");
    }
    image.hosts(&spec.name, &spec.network.service, size);
    if case.certificate {
        image.certificate(case.ids);
    }
    if case.ids.0 != 0 {
        // As a volume with an fsGroup is; the agent's own file belongs to the init container's user.
        for folder in ["/mnt/flux", "/mnt/flux/config"] {
            std::os::unix::fs::chown(image.at(folder), Some(case.ids.0), Some(case.ids.1)).unwrap();
        }
    }
    image.file(SPEC_FILE, 0o444, &spec.to_toml().unwrap());
    (case.prepare)(&image);
    image
}

/// Runs all pods of the case and compares each with its plan.
fn compare(case: &Case) {
    let spec = spec_of(&case.input);
    let size = spec.size;
    let images: Vec<Image> = (0..size).map(|_| pod_image(case, &spec, size)).collect();
    let mut containers = Vec::new();
    let mut expected = Vec::new();
    for (index, image) in (0..size).zip(&images) {
        let make = |command: &[&str]| {
            let mut container = Container::new(image, &format!("{}-{index}", spec.name), command);
            container.ids = case.ids;
            container.environment.insert("JOB_COMPLETION_INDEX".into(), index.to_string());
            let own = case.environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
            container.environment.extend(own);
            container
        };
        let container = make(&[AGENT, "run"]);
        let facts = facts(image, &spec, index, &container);
        let mut want = Expected {
            us: case.ids,
            tree: image.tree(),
            environment: BTreeMap::new(),
            directory: String::new(),
            launched: Vec::new(),
        };
        for pod in planned(&case.input, index, &facts) {
            let is_sidecar = pod["role"].is_object();
            if is_sidecar && !case.sidecars.contains(&text(&pod["role"], "sidecar")) {
                continue;
            }
            assert!(is_sidecar || pod["rank"] == index);
            (want.environment, want.directory) = (container.environment.clone(), "/".into());
            pod["steps"].as_array().unwrap().iter().for_each(|step| want.step(step, case.effect));
        }
        expected.push(want);
        containers.push(container);
        containers.extend(case.sidecars.iter().map(|name| make(&[AGENT, "sidecar", name])));
    }
    for (container, ended) in containers.iter().zip(image::run(&containers)) {
        assert_eq!(ended.code, 0, "{}: {}{}", container.hostname, ended.stdout, ended.stderr);
    }
    for ((index, image), want) in (0..).zip(&images).zip(&expected) {
        let mut have = image.tree();
        for path in &case.left {
            assert!(index > 0 || have.contains_key(*path), "{path} is not left by anybody");
            have.remove(*path);
        }
        assert_same(&want.tree, &have, &format!("pod {index}"));
        compare_calls(case, image, want);
    }
}

/// What was started is what was planned, word for word, in the planned environment.
fn compare_calls(case: &Case, image: &Image, want: &Expected) {
    let calls: Vec<Launched> = image.record().iter().map(launched).collect();
    let brokers: Vec<&Launched> =
        calls.iter().filter(|call| ["start", "broker"].contains(&call.argv[1].as_str())).collect();
    let mut wanted = want.launched[0].clone();
    let begin = wanted.argv.iter().position(|word| word.ends_with("/flux")).unwrap();
    wanted.argv.drain(..begin);
    wanted.environment.extend(case.added.iter().map(|(name, value)| ((*name).into(), (*value).into())));
    assert_eq!(brokers, [&wanted]);
    // The lead's initial program: the words after the broker's options.
    let Some(end) = wanted.argv.iter().rposition(|word| word.starts_with("-S")) else { return };
    let initial = &wanted.argv[end + 1..];
    let from = initial.iter().position(|word| word == "flux");
    let Some(from) = from else { return };
    let mut want_environment = wanted.environment.clone();
    let uri = wanted.argv.iter().find_map(|word| word.strip_prefix("-Slocal-uri="));
    want_environment.extend(uri.map(|uri| ("FLUX_URI".to_owned(), uri.to_owned())));
    let first = calls.iter().find(|call| call.argv[1..] == initial[from + 1..]);
    let first = first.unwrap_or_else(|| panic!("{initial:?} was not started: {calls:?}"));
    assert_eq!(first.environment, want_environment);
    assert_eq!((&first.directory, first.ids), (&wanted.directory, wanted.ids));
}

#[test]
fn a_submitted_job_with_four_pods() {
    compare(&input("hello.yaml"));
}

#[test]
fn a_user_that_the_agent_makes() {
    compare(&input("other-user.yaml"));
}

#[test]
fn a_user_of_the_containers_own() {
    compare(&Case { ids: (1000, 1000), ..input("nonroot.yaml") });
}

#[test]
fn a_script() {
    compare(&input("script.yaml"));
}
