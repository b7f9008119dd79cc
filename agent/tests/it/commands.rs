//! The agent's commands for users, next to a broker of the fake Flux or of real Flux (`make test-flux`).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::image;
use crate::live::eventually;

/// A mount folder with a spec of `size` hosts, in which this host has the rank `rank`, and with a broker.toml
/// for the fake Flux.
fn mount_folder(size: usize, rank: usize) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let own = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let mut hosts: Vec<String> = (0..size).map(|index| format!("absent-{index}.invalid")).collect();
    hosts[rank].clone_from(&own);
    let mount = folder.path().display().to_string();
    let (bin, config) = (
        folder.path().join("bin"),
        folder.path().join("config/etc/flux/config"),
    );
    fs::create_dir_all(&config).unwrap();
    fs::create_dir_all(folder.path().join("config/run/flux")).unwrap();
    fs::create_dir_all(&bin).unwrap();
    std::os::unix::fs::symlink(
        image::real_flux().unwrap_or_else(image::fake_flux),
        bin.join("flux"),
    )
    .unwrap();
    let hostlist = hosts.join(",");
    let spec = format!(
        "name = 'mc'\nsize = {size}\nmount_path = '{mount}'\n[view]\nenabled = false\n[network]\nhostlist = '{hostlist}'\n"
    );
    fs::write(folder.path().join("agent.toml"), spec).unwrap();
    let certificate = folder.path().join("curve.cert");
    fs::write(&certificate, image::certificate()).unwrap();
    fs::set_permissions(&certificate, fs::Permissions::from_mode(0o400)).unwrap();
    // With port 0, each broker that listens gets a free port: tests run at the same time.
    let addresses =
        "default_port = 0\ndefault_bind = 'tcp://127.0.0.1:%p'\ndefault_connect = 'tcp://%h:%p'\n";
    let bootstrap = format!(
        "[bootstrap]\n{addresses}curve_cert = '{}'\nhosts = [{{ host = '{hostlist}' }}]\n",
        certificate.display()
    );
    fs::write(config.join("broker.toml"), bootstrap).unwrap();
    folder
}

/// A broker that ends with the test.
struct Broker(Child);

impl Broker {
    fn start(folder: &Path) -> Broker {
        let uri = format!("-Slocal-uri=local://{}", socket(folder).display());
        let mut command = Command::new(folder.join("bin/flux"));
        command
            .args(["broker", "--config-path"])
            .arg(folder.join("config/etc/flux/config"));
        command.args([&uri, "-Sbroker.rc2_none=1"]);
        let child = command.stdin(Stdio::null()).spawn().unwrap();
        let broker = Broker(child);
        eventually("the broker comes up", || {
            let status: serde_json::Value =
                serde_json::from_str(&agent(folder, &["status", "--json"]).0).ok()?;
            ["quorum", "run"]
                .contains(&status["state"].as_str()?)
                .then_some(())
        });
        broker
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn socket(folder: &Path) -> std::path::PathBuf {
    folder.join("config/run/flux/local")
}

/// The agent's output on both streams, and its exit code.
fn agent(folder: &Path, words: &[&str]) -> (String, i32) {
    let path = format!("{}:/usr/bin:/bin", folder.join("bin").display());
    agent_with(folder, words, &[("PATH", &path)])
}

/// The agent's command with these words. As in a pod, it sees no other agents.
fn command(folder: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("unshare");
    command
        .args(["--fork", "--pid", "--mount-proc"])
        .arg(env!("CARGO_BIN_EXE_flux-agent"));
    command
        .arg(words[0])
        .arg("--spec")
        .arg(folder.join("agent.toml"))
        .args(&words[1..]);
    command.current_dir(folder).stdin(Stdio::null());
    command
}

/// Like `agent`, with these variables.
fn agent_with(folder: &Path, words: &[&str], variables: &[(&str, &str)]) -> (String, i32) {
    let Output {
        status,
        stdout,
        stderr,
    } = command(folder, words)
        .envs(variables.iter().copied())
        .output()
        .unwrap();
    let text = [stdout, stderr].concat();
    (String::from_utf8(text).unwrap(), status.code().unwrap())
}

#[test]
fn probe_follows_the_broker_and_is_silent_when_ready() {
    let folder = mount_folder(1, 0);
    let (text, code) = agent(folder.path(), &["status", "--ready"]);
    assert!(
        code == 1 && text.starts_with("not ready: the broker does not answer: its socket"),
        "{text}"
    );
    let broker = Broker::start(folder.path());
    assert_eq!(agent(folder.path(), &["status", "--ready"]), (String::new(), 0));
    drop(broker);
    // A killed broker leaves its socket behind.
    let (text, code) = agent(folder.path(), &["status", "--ready"]);
    assert!(
        code == 1 && text.contains("connection refused at its socket"),
        "{text}"
    );
}

#[test]
fn a_probe_that_waits_is_ready_as_soon_as_the_broker_is() {
    let folder = mount_folder(1, 0);
    std::thread::scope(|scope| {
        let probe = scope.spawn(|| agent(folder.path(), &["status", "--ready", "--wait", "60"]));
        std::thread::sleep(Duration::from_secs(1));
        assert!(!probe.is_finished(), "the probe must wait instead of failing");
        let _broker = Broker::start(folder.path());
        let begin = std::time::Instant::now();
        assert_eq!(probe.join().unwrap(), (String::new(), 0));
        assert!(begin.elapsed() < Duration::from_secs(20));
    });
}

#[test]
fn status_of_waiting_lead_names_missing_hosts_and_is_not_ready() {
    let folder = mount_folder(3, 0);
    let _broker = Broker::start(folder.path());
    let (text, code) = agent(folder.path(), &["status"]);
    assert!(
        code == 0 && text.contains("in state quorum") && text.contains("1 of 3 brokers"),
        "{text}"
    );
    for host in ["absent-1.invalid (rank 1): ", "absent-2.invalid (rank 2): "] {
        assert!(
            text.lines()
                .any(|line| line.starts_with("missing") && line.contains(host)),
            "{text}"
        );
    }
    let (text, code) = agent(folder.path(), &["status", "--ready"]);
    assert!(code == 1 && text.contains("state quorum"), "{text}");
    let begin = std::time::Instant::now();
    let (text, code) = agent(folder.path(), &["status", "--ready", "--wait", "1"]);
    assert!(code == 1 && begin.elapsed().as_millis() >= 1000, "{text}");
    assert!(
        text.lines().count() == 1 && text.contains("state quorum: it waits until"),
        "an event's first line: {text}"
    );
    assert!(text.contains("; missing: absent-1.invalid (rank 1): "), "{text}");
    let (text, _) = agent(folder.path(), &["status", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        (&json["state"], &json["missing"]),
        (&"quorum".into(), &serde_json::json!([1, 2]))
    );
}

#[test]
fn usage_reports_state_nodes_and_cores_of_the_instance() {
    let folder = mount_folder(1, 0);
    let (text, code) = agent(folder.path(), &["usage"]);
    assert!(
        code == 1 && text.starts_with("flux-agent: not up: the broker does not answer: its socket"),
        "{text}"
    );
    let _broker = Broker::start(folder.path());
    let usage = eventually("the nodes are known", || {
        let (text, code) = agent(folder.path(), &["usage"]);
        assert_eq!(code, 0, "{text}");
        let usage: serde_json::Value = serde_json::from_str(&text).unwrap();
        usage["resources"].is_object().then_some(usage)
    });
    let own = nix::unistd::gethostname().unwrap().into_string().unwrap();
    assert_eq!(
        (&usage["state"], &usage["brokers"]),
        (&"run".into(), &serde_json::json!({ "size": 1, "online": 1 }))
    );
    let resources = &usage["resources"];
    assert_eq!(
        resources["nodes"],
        serde_json::json!({ "total": 1, "used": 0, "free": 1, "down": 0 }),
        "{usage}"
    );
    assert!(
        resources["cores"]["total"].as_u64() > Some(0) && resources["cores"]["used"] == 0,
        "{usage}"
    );
    let host = &resources["hosts"][0];
    assert_eq!(
        (&host["rank"], &host["name"], &host["state"]),
        (&0.into(), &own.into(), &"up".into()),
        "{usage}"
    );
    assert!(usage["jobs"]["waiting"].is_u64(), "{usage}");
}

#[test]
fn usage_works_while_brokers_are_missing() {
    let folder = mount_folder(3, 0);
    let _broker = Broker::start(folder.path());
    let (text, code) = agent(folder.path(), &["usage"]);
    let usage: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &usage["state"]), (0, &"quorum".into()), "{text}");
    assert_eq!(
        usage["brokers"],
        serde_json::json!({ "size": 3, "online": 1 }),
        "{text}"
    );
}

#[test]
fn answer_that_cannot_be_written_is_a_failure() {
    let folder = mount_folder(1, 0);
    let _broker = Broker::start(folder.path());
    let full = fs::File::options().write(true).open("/dev/full").unwrap();
    let ended = command(folder.path(), &["status"]).stdout(full).output().unwrap();
    let errors = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(245), "{errors}");
    assert!(
        errors.contains("failed to write to standard output: no space left on device"),
        "{errors}"
    );
}

#[test]
fn a_host_that_the_cluster_may_grow_by_is_spare_and_not_missing() {
    let folder = mount_folder(2, 0);
    let file = folder.path().join("agent.toml");
    let elastic = fs::read_to_string(&file)
        .unwrap()
        .replace("size = 2", "size = 1\nmax_size = 2");
    // A spare host is recognised by the name of its pod.
    fs::write(&file, elastic.replace("absent-1.invalid", "mc-1")).unwrap();
    let _broker = Broker::start(folder.path());
    let (text, code) = agent(folder.path(), &["status"]);
    assert!(
        code == 0 && text.contains("spare    1 more") && !text.contains("missing"),
        "{text}"
    );
}

#[test]
fn follower_reports_its_parents_state_and_how_to_stop() {
    let folder = mount_folder(2, 1);
    let (text, code) = agent(folder.path(), &["status"]);
    assert!(
        code == 1
            && text
                .lines()
                .any(|line| line.starts_with("parent   absent-0.invalid")),
        "{text}"
    );
    let (text, code) = agent(folder.path(), &["stop"]);
    assert!(
        code == 1 && text.contains("job-completion-index=0") && text.contains("flux-agent stop"),
        "{text}"
    );
    let (text, code) = agent(folder.path(), &["preflight"]);
    assert!(
        code == 1 && text.contains("FAIL parent") && text.contains("FAIL cert"),
        "{text}"
    );
}

#[test]
fn connect_becomes_the_command_inside_the_instance() {
    let folder = mount_folder(1, 0);
    let _broker = Broker::start(folder.path());
    let uri = format!("local://{}", socket(folder.path()).display());
    let words = ["connect", "--", "sh", "-c", "echo $FLUX_URI $fluxsocket; exit 7"];
    assert_eq!(agent(folder.path(), &words), (format!("{uri} {uri}\n"), 7));
    let (text, code) = agent(folder.path(), &["connect", "--", "flux", "uptime"]);
    assert!(code == 0 && text.contains(" run "), "{text}");
    let (text, code) = agent(folder.path(), &["connect", "--", "no-such-program"]);
    assert!(code == 127 && text.contains("not found"), "{text}");
    let plain = folder.path().join("bin/plain");
    fs::write(&plain, "").unwrap();
    fs::set_permissions(&plain, fs::Permissions::from_mode(0o644)).unwrap();
    assert_eq!(
        agent(folder.path(), &["connect", "--", plain.to_str().unwrap()]).1,
        126
    );
}

#[test]
fn stop_on_the_lead_ends_the_instance() {
    let folder = mount_folder(1, 0);
    let mut broker = Broker::start(folder.path());
    assert_eq!(agent(folder.path(), &["stop"]), (String::new(), 0));
    assert_eq!(broker.0.wait().unwrap().code(), Some(0));
}

/// Replaces `old` in the spec of this folder.
fn change_spec(folder: &Path, old: &str, new: &str) {
    let file = folder.join("agent.toml");
    let spec = fs::read_to_string(&file).unwrap();
    assert!(spec.contains(old), "{spec}");
    fs::write(&file, spec.replace(old, new)).unwrap();
}

/// The image has another `flux` on the PATH, and search paths for libraries and Python.
#[test]
fn flux_of_the_view_is_not_disturbed_by_the_image() {
    let folder = mount_folder(1, 0);
    change_spec(folder.path(), "enabled = false", "enabled = true");
    let at = |path: &str| folder.path().join(path);
    fs::create_dir_all(at("view/bin")).unwrap();
    std::os::unix::fs::symlink(image::fake_flux(), at("view/bin/flux")).unwrap();
    fs::remove_file(at("bin/flux")).unwrap();
    fs::write(at("bin/flux"), "#!/bin/sh\nexit 9\n").unwrap();
    fs::set_permissions(at("bin/flux"), fs::Permissions::from_mode(0o755)).unwrap();
    let (path, record) = (
        format!("{}:/usr/bin:/bin", at("bin").display()),
        at("record").display().to_string(),
    );
    let variables = [
        ("PATH", path.as_str()),
        ("FAKE_FLUX_RECORD", &record),
        ("LD_LIBRARY_PATH", "/x"),
        ("PYTHONHOME", "/x"),
    ];
    let agent = |words: &[&str]| agent_with(folder.path(), words, &variables);
    let hidden = [
        "stop",
        "connect -- flux jobs",
        "connect -- flux python -c x",
        "as-flux flux queue list",
    ];
    // These run the user's programs.
    let kept = [
        "connect -- flux proxy u x",
        "connect -- flux batch x",
        "connect -- flux exec x",
    ];
    for line in hidden.iter().chain(&kept) {
        assert_ne!(agent(&line.split(' ').collect::<Vec<_>>()).1, 9, "{line}");
        let text = fs::read_to_string(&record).unwrap();
        fs::remove_file(&record).unwrap();
        let call: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
        assert_eq!(
            call["argv"][0],
            *at("view/bin/flux").display().to_string(),
            "{line}"
        );
        for name in ["LD_LIBRARY_PATH", "PYTHONHOME"] {
            let (given, carried) = (&call["environment"][name], format!("FLUX_AGENT_OWN_{name}"));
            if kept.contains(line) {
                assert_eq!(given, "/x", "{line}: {name}");
            } else {
                assert!(given.is_null(), "{line}: {name}");
                assert_eq!(call["environment"][carried], "/x", "{line}");
            }
        }
    }
    let (text, _) = agent(&["connect", "--", "sh", "-c", "echo $LD_LIBRARY_PATH $PYTHONHOME"]);
    assert!(text.starts_with("/x /x\n"), "{text}");
}

#[test]
fn flux_below_the_install_root_need_not_be_on_the_path() {
    let folder = mount_folder(1, 0);
    let root = folder.path().join("opt");
    let mut broker = Broker::start(folder.path());
    fs::create_dir_all(root.join("bin")).unwrap();
    fs::rename(folder.path().join("bin/flux"), root.join("bin/flux")).unwrap();
    let view = format!("enabled = false\ninstall_root = '{}'", root.display());
    change_spec(folder.path(), "enabled = false", &view);
    let (text, code) = agent(folder.path(), &["connect", "--", "sh", "-c", "flux uptime"]);
    assert!(code == 0 && text.contains(" run "), "{text}");
    assert_eq!(agent(folder.path(), &["stop"]), (String::new(), 0));
    assert_eq!(broker.0.wait().unwrap().code(), Some(0));
}

#[test]
fn each_problem_of_a_manifest_has_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bad.yaml");
    let head =
        "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {name: a}\nspec:\n  size: 0\n";
    let errors_of = |spec: &str| {
        fs::write(&file, format!("{head}{spec}")).unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_flux-agent"))
            .arg("dry-run")
            .arg(&file)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(241));
        String::from_utf8(output.stderr)
            .unwrap()
            .replace(file.to_str().unwrap(), "FILE")
    };
    let text = errors_of("  tasks: -1\n  containers: [{image: x}]\n");
    let want =
        "flux-agent: spec-invalid: failed to understand FILE:\nspec.size: must be 1 to 10000\nspec.tasks: ";
    assert!(text.starts_with(want) && text.lines().count() == 3, "{text}");
    let text = errors_of("  containers: [{image: x}]\n");
    assert_eq!(
        text,
        "flux-agent: spec-invalid: failed to understand FILE: spec.size: must be 1 to 10000.\n"
    );
}

#[test]
fn completions_name_commands_and_work_in_bash() {
    for shell in ["bash", "zsh", "fish"] {
        let output = Command::new(env!("CARGO_BIN_EXE_flux-agent"))
            .args(["completions", shell])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            ["connect", "status", "usage", "preflight", "stop", "dry-run"]
                .iter()
                .all(|name| text.contains(name)),
            "{text}"
        );
        assert!(
            !text.contains("snippet-state"),
            "hidden commands are not completed"
        );
        if shell == "bash" {
            let check = "eval \"$1\"; COMP_WORDS=(flux-agent status --re); COMP_CWORD=2; _flux_agent; echo \"$COMPREPLY\"";
            let output = Command::new("bash")
                .args(["-c", check, "bash", &text])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), "--ready\n");
        }
    }
}
