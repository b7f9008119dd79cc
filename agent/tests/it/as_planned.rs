//! `run` does exactly what the plan of `dry-run` says: every file, every variable, every word.
//!
//! ```text
//! spec + facts of the image ─► flux-agent dry-run --format json ─► expected tree, environment, argv ┐
//! spec in the image         ─► flux-agent run, as a pod         ─► tree, the fake Flux's record      ┴► equal
//! ```
//!
//! The facts come from the test, which has built the image, not from the agent.

mod expected;
pub(crate) mod traced;

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use flux_shared::agent_spec::AgentSpec;
use flux_shared::names::POD_ADDRESS;
use flux_shared::paths::{CURVE_FILE, FALLBACK_HOME, SPEC_FILE};
use flux_shared::validate::validate;
use flux_shared::{derive, manifest};
use serde_json::{Value, json};

use crate::image::{self, AGENT, Container, Image, KEY, What, agent, assert_same};
use expected::{Effect, Expected, Launched, no_snippet, text};

/// A cluster to run, with its special conditions.
struct Case {
    /// A MiniCluster.
    input: String,
    ids: (u32, u32),
    environment: Vec<(&'static str, &'static str)>,
    effect: Effect,
    /// Changes every image before the run.
    prepare: fn(&Image),
    /// Files that Flux or the user's programs leave, which are not in the plan.
    left: Vec<&'static str>,
    /// Variables that the prefix adds.
    added: Vec<(&'static str, &'static str)>,
    sidecars: Vec<&'static str>,
    /// Whether the image has a shell and users. If not, it is almost empty.
    shell: bool,
    /// The host name of all pods if they use the network of their nodes.
    node: Option<&'static str>,
}

fn input(name: &str) -> Case {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("plan/tests/inputs")
        .join(name);
    Case {
        input: std::fs::read_to_string(path).unwrap(),
        ids: (0, 0),
        environment: vec![("QUOTED", "it's \"$HOME\" `x` \\ *")],
        effect: no_snippet,
        prepare: |_| {},
        left: Vec::new(),
        added: Vec::new(),
        sidecars: Vec::new(),
        shell: true,
        node: None,
    }
}

fn spec_of(input: &str) -> AgentSpec {
    let cluster = validate(&manifest::parse(input).unwrap()).unwrap();
    derive::agent_spec(&cluster)
}

fn cores() -> u32 {
    let set = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)).unwrap();
    let count = (0..nix::sched::CpuSet::count())
        .filter(|cpu| set.is_set(*cpu).unwrap_or(false))
        .count();
    u32::try_from(count).unwrap()
}

/// The `paths` that exist in the image and, if a uid is given, that this user may write to (root: all).
fn paths_in(image: &Image, paths: &[&str], writable_by: Option<u32>) -> Vec<String> {
    let counts = |path: &&&str| {
        let Ok(data) = std::fs::metadata(image.at(path)) else {
            return false;
        };
        use std::os::unix::fs::MetadataExt;
        writable_by.is_none_or(|uid| {
            uid == 0 || data.mode() & 0o002 != 0 || (data.uid() == uid && data.mode() & 0o200 != 0)
        })
    };
    paths
        .iter()
        .filter(counts)
        .map(|path| (*path).to_owned())
        .collect()
}

/// The container's environment without the variable that only the agent uses.
fn user_environment(container: &Container) -> BTreeMap<String, String> {
    let mut environment = container.environment.clone();
    environment.remove(POD_ADDRESS.0);
    environment
}

/// The facts that the agent should find in the image, from the test that has built it.
fn facts(image: &Image, spec: &AgentSpec, index: u32, container: &Container) -> Value {
    let read = |path: &str| std::fs::read_to_string(image.at(path)).unwrap_or_default();
    let user_home = spec
        .runner
        .user
        .as_ref()
        .map_or_else(String::new, |user| format!("/home/{}", user.name));
    let usual = [
        FALLBACK_HOME,
        CURVE_FILE,
        "/",
        "/etc",
        "/etc/flux/config",
        "/run",
        "/run/flux",
        "/tmp",
        "/var/tmp",
    ];
    let paths: Vec<&str> = usual
        .into_iter()
        .chain([user_home.as_str()])
        .chain(Path::new(&spec.runner.logs).ancestors().filter_map(Path::to_str))
        .chain(container.environment.get("HOME").map(String::as_str))
        .filter(|path| !path.is_empty())
        .collect();
    let (uid, gid) = container.ids;
    let user = spec
        .runner
        .user
        .iter()
        .find(|user| uid == 0 && !user.run_flux_as_root);
    let flux_uid = user.map_or(uid, |user| user.uid);
    let has_view = image.at("/mnt/flux/view/bin/flux").exists();
    json!({
        "hostname": container.hostname,
        "index": index,
        "uid": uid,
        "gid": gid,
        "passwd": read("/etc/passwd"),
        "group": read("/etc/group"),
        "environment": user_environment(container),
        "working_directory": "/",
        "address": format!("10.9.0.{}", index + 1),
        "cluster_domain": "cluster.local",
        "cores": cores(),
        "cpu_quota": null,
        "gpus": 0,
        "flux_modprobe": has_view,
        "view": {"flux": has_view, "python": has_view.then_some("python3.11"), "fluxion": has_view, "fluxion_modprobe": has_view},
        "flux_on_path": image.at("/usr/bin/flux").exists().then_some("/usr/bin/flux"),
        "shell": image.at("/usr/bin/bash").exists().then_some("/bin/bash"),
        "terminal": false,
        "present": paths_in(image, &paths, None),
        "writable": paths_in(image, &paths, Some(uid)),
        "writable_by_flux": paths_in(image, &["/tmp", "/var/tmp"], Some(flux_uid)),
    })
}

/// The plans of `dry-run` for the containers of pod `index`.
fn planned(input: &str, index: u32, facts: &Value) -> Vec<Value> {
    let folder = image::folder();
    let (file, facts_file) = (folder.path().join("input"), folder.path().join("facts"));
    std::fs::write(&file, input).unwrap();
    std::fs::write(&facts_file, facts.to_string()).unwrap();
    let mut command = Command::new(agent());
    command
        .arg("dry-run")
        .arg(&file)
        .arg("--facts")
        .arg(&facts_file)
        .arg("--index")
        .arg(index.to_string());
    let output = command.args(["--format", "json"]).env_clear().output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    document["pods"].as_array().unwrap().clone()
}

/// Replaces the part of a dump's name that differs for each start by zeros, as in the assumed facts. The name is
/// `.flux-dump-ID-START` and a suffix; ID and START have 16 digits each.
fn without_attempt(word: &str) -> String {
    match word.split_once(".flux-dump-") {
        Some((before, name)) => format!(
            "{before}.flux-dump-{}{}{}",
            &name[..17],
            "0".repeat(16),
            &name[33..]
        ),
        None => word.to_owned(),
    }
}

fn launched(record: &Value) -> Launched {
    let environment = record["environment"].as_object().unwrap().iter();
    Launched {
        argv: record["argv"]
            .as_array()
            .unwrap()
            .iter()
            .map(|word| without_attempt(word.as_str().unwrap()))
            .collect(),
        environment: environment
            .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()))
            .collect(),
        directory: text(record, "directory").to_owned(),
        ids: (record["uid"].as_u64().unwrap(), record["gid"].as_u64().unwrap()),
    }
}

/// An image for one pod of the case's cluster.
fn pod_image(case: &Case, spec: &AgentSpec, size: u32) -> Image {
    let image = if case.shell {
        Image::usual()
    } else {
        Image::empty()
    };
    if !case.shell {
        image.view();
        // By this file, the C library of the fake Flux looks names up in /etc/hosts only.
        image.file("/etc/nsswitch.conf", 0o644, "hosts: files\n");
    }
    image.hosts(&spec.name, &spec.network.service, size);
    image.certificate(case.ids);
    if case.ids.0 != 0 {
        // As in a pod whose init containers run as the same user: they create these folders.
        for folder in ["/mnt/flux", "/mnt/flux/config"] {
            std::os::unix::fs::chown(image.at(folder), Some(case.ids.0), Some(case.ids.1)).unwrap();
        }
    }
    image.file(SPEC_FILE, 0o444, &spec.to_toml().unwrap());
    (case.prepare)(&image);
    image
}

/// A container of pod `index` in cluster `name`.
fn container<'a>(case: &Case, name: &str, index: u32, image: &'a Image, command: &[&str]) -> Container<'a> {
    let pod_name = format!("{name}-{index}");
    let mut container = Container::new(image, case.node.unwrap_or(&pod_name), command);
    container.ids = case.ids;
    let variables = case
        .environment
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    container.environment.extend(variables);
    container.set("JOB_COMPLETION_INDEX", &index.to_string());
    if case.node.is_some() {
        container.set(POD_ADDRESS.0, &format!("{}{}", image::V4, index + 1));
    }
    container
}

/// Runs all pods of the case and compares each with its plan. Returns the output of the lead.
fn compare(case: &Case) -> String {
    let spec = spec_of(&case.input);
    let size = spec.size;
    let images: Vec<Image> = (0..size).map(|_| pod_image(case, &spec, size)).collect();
    let mut containers = Vec::new();
    let mut expected = Vec::new();
    for (index, image) in (0..size).zip(&images) {
        let make = |command: &[&str]| container(case, &spec.name, index, image, command);
        let container = make(&[AGENT, "run"]);
        let facts = facts(image, &spec, index, &container);
        let mut want = Expected {
            us: case.ids,
            tree: image.tree(),
            environment: BTreeMap::new(),
            directory: String::new(),
            restore: None,
            launched: Vec::new(),
        };
        for pod in planned(&case.input, index, &facts) {
            let is_sidecar = pod["role"].is_object();
            if is_sidecar && !case.sidecars.contains(&text(&pod["role"], "sidecar")) {
                continue;
            }
            assert!(is_sidecar || pod["rank"] == index);
            (want.environment, want.directory) = (user_environment(&container), "/".into());
            pod["steps"]
                .as_array()
                .unwrap()
                .iter()
                .for_each(|step| want.step(step, case.effect));
        }
        expected.push(want);
        containers.push(container);
        containers.extend(case.sidecars.iter().map(|name| Container {
            until: Some("waiting for the pod to be deleted".into()),
            ..make(&[AGENT, "sidecar", name])
        }));
    }
    let ends = image::run(&containers);
    for (container, ended) in containers.iter().zip(&ends) {
        assert_eq!(
            ended.code, 0,
            "{}: {}{}",
            container.hostname, ended.stdout, ended.stderr
        );
        assert!(!format!("{ended:?}").contains(KEY), "the key is in the log");
    }
    for ((index, image), want) in (0..).zip(&images).zip(&expected) {
        let mut have = image.tree();
        for path in &case.left {
            assert!(index > 0 || have.contains_key(*path), "{path} does not exist");
            have.remove(*path);
        }
        assert_same(&want.tree, &have, &format!("pod {index}"));
        compare_calls(case, image, want);
        assert!(
            !format!("{:?}", image.record()).contains(KEY),
            "the key is in arguments or the environment"
        );
    }
    ends[0].stdout.clone()
}

/// Asserts that the planned programs were started, word for word, with the planned environment.
fn compare_calls(case: &Case, image: &Image, want: &Expected) {
    let calls: Vec<Launched> = image.record().iter().map(launched).collect();
    // The runner's plan comes before those of sidecars, and launches the broker.
    let mut wanted = want.launched[0].clone();
    let begin = wanted
        .argv
        .iter()
        .position(|word| word.ends_with("/flux"))
        .unwrap();
    wanted.argv.drain(..begin);
    // `flux start --wrap` runs the wrapper, and that runs `flux broker`.
    let is_wrapped = wanted.argv.iter().any(|word| word.starts_with("--wrap="));
    let brokers: Vec<&Launched> = calls
        .iter()
        .filter(|call| match call.argv[1].as_str() {
            "start" => true,
            "broker" => !is_wrapped,
            _ => false,
        })
        .collect();
    // A follower's prefix is before Flux, the lead's is before the job.
    let added = case
        .added
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    if begin > 0 {
        wanted.environment.extend(added.clone());
    }
    assert_eq!(brokers, [&wanted]);
    // The lead's initial program is what follows the broker's options.
    let Some(end) = wanted.argv.iter().rposition(|word| word.starts_with("-S")) else {
        return;
    };
    let initial = &wanted.argv[end + 1..];
    let from = initial.iter().position(|word| word == "flux");
    let Some(from) = from else { return };
    let mut want_environment = wanted.environment.clone();
    // The program's environment, by two options of `flux-agent program`: `--without=NAME` removes a variable.
    // `--own=NAME` gives back the user's value, which the broker carried under another name.
    let removed = initial[..from]
        .iter()
        .filter_map(|word| word.strip_prefix("--without="));
    removed.for_each(|name| drop(want_environment.remove(name).unwrap()));
    for name in initial[..from]
        .iter()
        .filter_map(|word| word.strip_prefix("--own="))
    {
        want_environment.remove(name);
        let own = want_environment
            .remove(&format!("FLUX_AGENT_OWN_{name}"))
            .unwrap();
        // The wrapper of `flux` hides the value again from commands that run no program of the user
        // (`flux_wrapper.rs`). Of the commands in these tests, only `batch` runs one.
        let is_hidden = initial[from + 1] != "batch";
        let name = if is_hidden {
            format!("FLUX_AGENT_OWN_{name}")
        } else {
            name.to_owned()
        };
        // The carried value is empty if the user has not set the variable.
        want_environment.extend((!own.is_empty()).then_some((name, own)));
    }
    // With `--own`, this wrapper is the first `flux` on the PATH.
    if initial[..from].iter().any(|word| word.starts_with("--own=")) {
        let path = format!(
            "/mnt/flux/config/run/flux/flux-agent-bin:{}",
            want_environment["PATH"]
        );
        want_environment.insert("PATH".into(), path);
    }
    want_environment.extend(added);
    let uri = wanted
        .argv
        .iter()
        .find_map(|word| word.strip_prefix("-Slocal-uri="));
    want_environment.extend(uri.map(|uri| ("FLUX_URI".to_owned(), uri.to_owned())));
    let first = calls.iter().find(|call| call.argv[1..] == initial[from + 1..]);
    let first = first.unwrap_or_else(|| panic!("{initial:?} was not started: {calls:?}"));
    assert_eq!(first.environment, want_environment);
    assert_eq!((&first.directory, first.ids), (&wanted.directory, wanted.ids));
}

#[test]
fn a_submitted_job_with_four_pods() {
    assert_eq!(compare(&input("hello.yaml")), "hello root\n".repeat(4));
}

#[test]
fn command_with_characters_special_to_shells() {
    let command = r#"echo "it's  $QUOTED" '$HOME `x` $(y)' \* "a;b|c" '' end"#;
    let case = mini_cluster(&format!(
        "size: 1\ncontainers:\n- image: debian:12\n  command: |\n    {command}"
    ));
    let printed = compare(&case);
    assert_eq!(
        printed,
        "it's  it's \"$HOME\" `x` \\ * $HOME `x` $(y) * a;b|c  end\n"
    );
}

#[test]
fn pods_with_the_network_of_their_nodes() {
    let case = Case {
        node: Some("node-7"),
        ..input("host-network.yaml")
    };
    assert_eq!(compare(&case), "node-7\n".repeat(2));
}

#[test]
fn a_user_that_the_agent_makes() {
    compare(&input("other-user.yaml"));
}

#[test]
fn a_user_of_the_containers_own() {
    compare(&Case {
        ids: (1000, 1000),
        ..input("nonroot.yaml")
    });
}

#[test]
fn missing_home_is_replaced_by_the_volume_for_it() {
    compare(&Case {
        ids: (1000, 1000),
        environment: vec![("HOME", "/nonexistent")],
        prepare: |image| {
            let home = image.at(FALLBACK_HOME);
            std::fs::create_dir_all(&home).unwrap();
            std::os::unix::fs::chown(home, Some(1000), Some(1000)).unwrap();
        },
        ..input("nonroot.yaml")
    });
}

fn mini_cluster(spec: &str) -> Case {
    let head = "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {name: mc}\nspec:\n  ";
    Case {
        input: format!("{head}{}\n", spec.trim().replace('\n', "\n  ")),
        ..input("hello.yaml")
    }
}

#[test]
fn snippets_a_prefix_a_chain_of_brokers_and_timed_output() {
    let original = input("launcher-timed.yaml");
    compare(&Case {
        // A prefix that just runs the command replaces a FUSE client, and such a wrapper replaces strace.
        input: original
            .input
            .replace("fusion --mount \"/my data\"", "env \"MOUNT=/my data\"")
            .replace("strace,-e,network,-tt", "env,--"),
        added: vec![("MOUNT", "/my data")],
        effect: |name, expected| match name {
            "init" => drop(
                expected
                    .environment
                    .insert("LD_LIBRARY_PATH".into(), "/opt/conda/lib".into()),
            ),
            "pre" => expected.directory = "/tmp".into(),
            "brokerPre" | "workerPre" | "post" => {}
            other => no_snippet(other, expected),
        },
        ..original
    });
}

#[test]
fn later_steps_see_files_and_exports_of_snippets() {
    compare(&Case {
        effect: |name, expected| match name {
            "init" => {
                expected.environment.insert("NAME".into(), "a b".into());
                expected
                    .environment
                    .insert("PATH".into(), format!("{}:/own/bin", image::PATH));
                expected.environment.remove("QUOTED");
            }
            "preCommand" => expected.put("/tmp/pre", 0o644, (0, 0), What::File(b"a b\n".to_vec())),
            other => no_snippet(other, expected),
        },
        ..mini_cluster(
            "
size: 2
containers:
- image: debian:12
  command: echo ${NAME}
  preCommand: echo \"$NAME\" >/tmp/pre
  commands:
    init: |
      export NAME='a b' PATH=$PATH:/own/bin
      unset QUOTED",
        )
    });
}

#[test]
fn a_batch_and_one_that_is_quiet() {
    compare(&Case {
        left: vec!["/flux-f1.out", "/shared/out/job-0.out", "/shared/out/job-2.out"],
        // At the end of a line's pipe.
        prepare: |image| image.with_programs(&["cat"]),
        ..input("batch.yaml")
    });
    compare(&Case {
        left: vec!["/flux-f1.out"],
        ..input("batch-raw-quiet.yaml")
    });
}

#[test]
fn an_image_with_flux_of_its_own() {
    let prepare = |image: &Image| {
        std::fs::remove_dir_all(image.at("/mnt/flux/view")).unwrap();
        image.program(image::fake_flux(), "/usr/bin/flux");
    };
    compare(&Case {
        prepare,
        ..input("view-disabled.yaml")
    });
}

#[test]
fn an_elastic_cluster_with_an_existing_archive() {
    let prepare = |image: &Image| {
        std::fs::create_dir_all(image.at("/state")).unwrap();
        std::fs::write(
            image.at("/state/archive.tar.gz"),
            crate::archive::packed("start\n"),
        )
        .unwrap();
    };
    let original = input("elastic.yaml");
    // The quorum is all pods: a pod that starts after the job's end would find no lead.
    compare(&Case {
        prepare,
        input: original.input.replace("minSize: 2", "minSize: 3"),
        ..original
    });
}

#[test]
fn a_broker_configuration_of_the_users_own() {
    compare(&mini_cluster(
        "
size: 2
flux:
  brokerConfig: |
    [bootstrap]
    curve_cert = \"/mnt/flux/config/curve/curve.cert\"
    default_port = 8051
    default_connect = \"tcp://%h.flux-service.default.svc.cluster.local:%p\"
    [[bootstrap.hosts]]
    host = \"mc-[0-1]\"
containers:
- image: debian:12
  command: hostname",
    ));
}

#[test]
fn a_container_beside_the_one_that_runs_flux() {
    let original = input("sidecars.yaml");
    // The job ends when the other container has written its output.
    let wait = "bash -c 'until [ -s /record/said ]; do sleep 0.1; done'";
    let input = original
        .input
        .replace("size: 2", "size: 1")
        .replace("sleep 5", wait);
    compare(&Case {
        input: input.replace("flux uptime", "flux uptime >/record/said"),
        sidecars: vec!["client"],
        effect: |name, expected| match name {
            "servicePre" | "command" => {}
            other => no_snippet(other, expected),
        },
        ..original
    });
}

#[test]
fn an_image_without_a_shell_or_users() {
    let case =
        mini_cluster("size: 2\ncontainers:\n- image: scratch\n  command: /mnt/flux/view/bin/flux version");
    compare(&Case { shell: false, ..case });
}

#[test]
fn a_root_folder_as_home_and_the_flux_uri_of_another_instance() {
    let environment = vec![
        ("HOME", "/"),
        ("FLUX_URI", "local:///elsewhere"),
        ("SHELL", "/bin/zsh"),
    ];
    compare(&Case {
        environment,
        ..input("script.yaml")
    });
}
