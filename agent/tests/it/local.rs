//! `flux-agent local`: whole MiniClusters on this machine, with the fake Flux or with real Flux (`make
//! test-flux`).

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use crate::image::{agent, fake_flux, folder, real_flux};
use crate::live::{eventually, send};

/// A user of the machine other than root, who owns nothing.
const NOBODY: &str = "65534";

struct Laptop {
    folder: tempfile::TempDir,
    name: String,
}

impl Laptop {
    /// A laptop with Flux, and with a MiniCluster `name` in mc.yaml.
    fn new(name: &str, spec: &str) -> Laptop {
        let folder = folder();
        let laptop = Laptop {
            folder,
            name: name.to_owned(),
        };
        // Other users may write too.
        for path in ["", "work", "tmp", "flux", "flux/bin"] {
            fs::create_dir_all(laptop.at(path)).unwrap();
            fs::set_permissions(laptop.at(path), PermissionsExt::from_mode(0o777)).unwrap();
        }
        if real_flux().is_none() {
            fs::copy(fake_flux(), laptop.at("flux/bin/flux")).unwrap();
        }
        fs::copy(agent(), laptop.at("flux-agent")).unwrap();
        let text = format!(
            "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: {name}}}\nspec:\n{spec}\n"
        );
        fs::write(laptop.at("mc.yaml"), text).unwrap();
        laptop
    }

    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join(path)
    }

    fn prefix(&self) -> PathBuf {
        real_flux().map_or(self.at("flux"), |flux| {
            flux.ancestors().nth(2).unwrap().to_owned()
        })
    }

    /// The command. Its files are below this laptop's own /tmp. `before`: words before the program, such as
    /// `setpriv …`; `env` changes nothing.
    fn command(&self, before: &[&str], more: &[&str]) -> Command {
        let program = self.at("flux-agent").display().to_string();
        let words: Vec<&str> = before.iter().copied().chain([program.as_str()]).collect();
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .arg("local")
            .arg(self.at("mc.yaml"))
            .arg("--flux")
            .arg(self.prefix())
            .args(more);
        command
            .current_dir(self.at("work"))
            .env("TMPDIR", self.at("tmp"))
            .env("HOME", self.at("work"));
        // `FLUX` is for the tests (`real_flux`). The program does not read it.
        command.env_remove("FLUX").stdin(Stdio::null());
        command
    }

    fn run(&self, before: &[&str], more: &[&str]) -> Output {
        self.command(before, more).output().unwrap()
    }

    /// Starts the command, and waits until its job prints `up`. Also returns a function for its output so far.
    fn until_up(&self, more: &[&str]) -> (Child, impl Fn() -> String + use<>) {
        let (out, err) = (self.at("out"), self.at("err"));
        let child = self
            .command(&["env"], more)
            .stdout(fs::File::create(&out).unwrap())
            .stderr(fs::File::create(&err).unwrap())
            .spawn()
            .unwrap();
        let printed = move || fs::read_to_string(&out).unwrap() + &fs::read_to_string(&err).unwrap();
        eventually("the job runs", || printed().contains("up\n").then_some(()));
        (child, printed)
    }

    /// The folder of the run, if this user runs it.
    fn ground(&self, uid: &str) -> PathBuf {
        self.at(&format!("tmp/flux-local-{uid}-{}", self.name))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn job(size: u32, command: &str) -> String {
    let command = serde_json::to_string(command).unwrap();
    format!("  size: {size}\n  tasks: {size}\n  containers: [{{image: app, command: {command}}}]")
}

#[test]
fn local_job_has_named_pods_and_the_command_exits_with_its_code() {
    for (script, code) in [("hostname", 0), ("sh -c 'hostname; exit 7'", 7)] {
        let laptop = Laptop::new("four", &job(4, script));
        let ended = laptop.run(&["env"], &[]);
        let (out, err) = (text(&ended.stdout), text(&ended.stderr));
        assert_eq!(ended.status.code(), Some(code), "{out}{err}");
        let mut hosts: Vec<&str> = out.lines().filter(|line| !line.contains(" | ")).collect();
        hosts.sort_unstable();
        assert_eq!(hosts, ["four-0", "four-1", "four-2", "four-3"], "{err}");
        assert!(
            err.contains("flux-agent: four: 4 pods on this machine, with the Flux in "),
            "{err}"
        );
        assert!(
            err.contains("four-3 | ") && !err.contains("four-0 | "),
            "only the followers' lines have names: {err}"
        );
        assert!(!laptop.ground("0").exists(), "nothing is left");
    }
}

#[test]
fn local_run_works_without_root_and_lists_what_it_omits() {
    let spec = "  size: 2\n  tasks: 2\n  containers: [{image: app, command: \"sh -c 'hostname; id -u; echo mine > written-$(hostname)'\", \
                fluxUser: {name: flux, uid: 1002}}]";
    let laptop = Laptop::new("user", spec);
    let ended = laptop.run(
        &["setpriv", "--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"],
        &[],
    );
    let (out, err) = (text(&ended.stdout), text(&ended.stderr));
    assert_eq!(ended.status.code(), Some(0), "{out}{err}");
    // In the pods' user namespace, the user is root: `id -u` prints 0.
    assert!(
        out.contains("user-0\n") && out.contains("user-1\n") && out.lines().any(|line| line == "0"),
        "{out}"
    );
    assert!(
        err.contains("Flux runs as your user, not as flux (uid 1002), which needs root"),
        "{err}"
    );
    use std::os::unix::fs::MetadataExt;
    assert_eq!(
        fs::metadata(laptop.at("work/written-user-1"))
            .unwrap()
            .uid()
            .to_string(),
        NOBODY
    );
    assert!(!laptop.ground(NOBODY).exists(), "nothing is left");
}

#[test]
fn local_pods_change_only_the_folder_they_start_in() {
    let script = "here=$PWD; for place in /usr /var/lib /opt /root /srv; do \
                  echo x > $place/flux-local-was-here || true; done; \
                  echo x > /tmp/flux-local-was-here && echo x >> /etc/passwd && rm -f /etc/hostname && echo own files; \
                  echo x > \"$here/result\"";
    let script = serde_json::to_string(script).unwrap();
    let spec =
        format!("  size: 1\n  containers: [{{image: app, commands: {{init: {script}}}, command: hostname}}]");
    let laptop = Laptop::new("careful", &spec);
    let before = (fs::read("/etc/passwd").unwrap(), fs::read("/etc/hostname").ok());
    let ended = laptop.run(&["env"], &[]);
    let (out, err) = (text(&ended.stdout), text(&ended.stderr));
    assert_eq!(ended.status.code(), Some(0), "{out}{err}");
    assert!(out.contains("own files\n"), "{out}{err}");
    // In the pod, a write may have succeeded: a folder that contains the checkout is the pod's own there.
    for place in ["/usr", "/var/lib", "/opt", "/root", "/srv", "/tmp"] {
        assert!(
            !Path::new(place).join("flux-local-was-here").exists(),
            "{place}: {err}"
        );
    }
    assert_eq!(fs::read_to_string(laptop.at("work/result")).unwrap(), "x\n");
    assert_eq!(
        before,
        (fs::read("/etc/passwd").unwrap(), fs::read("/etc/hostname").ok())
    );
}

#[test]
fn local_stop_ends_pods_in_order_and_shell_enters_before() {
    let laptop = Laptop::new(
        "long",
        &job(
            2,
            "sh -c 'trap \"echo tidied; exit 3\" TERM; echo up; while :; do sleep 0.1; done'",
        ),
    );
    let (mut child, printed) = laptop.until_up(&["--keep"]);

    let inside = laptop.run(&["env"], &["--shell", "1", "--", "hostname"]);
    assert_eq!(
        (text(&inside.stdout).as_str(), inside.status.code()),
        ("long-1\n", Some(0)),
        "{}",
        text(&inside.stderr)
    );
    let twice = laptop.run(&["env"], &[]);
    assert!(
        text(&twice.stderr).contains("a run is in progress there"),
        "{}",
        text(&twice.stderr)
    );

    send(child.id().cast_signed(), 2);
    let status = eventually("the end", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(3), "{}", printed());
    assert!(
        printed().contains("tidied\n") && printed().contains("stopping all pods"),
        "{}",
        printed()
    );
    let kept = laptop.ground("0").join("pods/0/root");
    assert!(
        printed().contains(&laptop.ground("0").display().to_string()),
        "{}",
        printed()
    );
    assert_eq!(fs::read_to_string(kept.join("etc/hostname")).unwrap(), "long-0\n");
    let after = laptop.run(&["env"], &["--shell", "1"]);
    assert!(
        text(&after.stderr).contains("is not running here"),
        "{}",
        text(&after.stderr)
    );
}

/// The kernel may give the pid of a pod that has ended to another process.
#[test]
fn local_shell_does_not_enter_a_pod_that_has_ended() {
    // The follower ends by itself once the lead's program runs, which then takes five seconds to stop.
    let command = r#"sh -c 'trap "sleep 5; exit 3" TERM; touch runs; echo up; while :; do sleep 0.1; done'"#;
    let spec = format!(
        "  size: 2\n  minSize: 1\n  tasks: 1\n  containers: [{{image: app, command: {}, \
         commands: {{workerPre: \"while [ ! -e runs ]; do sleep 0.1; done; exit 0\"}}}}]",
        serde_json::to_string(command).unwrap()
    );
    let laptop = Laptop::new("partly", &spec);
    let (mut child, printed) = laptop.until_up(&[]);
    let pid = laptop.ground("0").join("pods/1/pid");
    eventually("the follower has ended", || (!pid.exists()).then_some(()));
    let inside = laptop.run(&["env"], &["--shell", "1", "--", "hostname"]);
    let err = text(&inside.stderr);
    assert!(err.contains("failed to enter partly-1: it has ended"), "{err}");
    let unknown = text(&laptop.run(&["env"], &["--shell", "2"]).stderr);
    assert!(unknown.contains("failed to find the pod of index 2"), "{unknown}");
    send(child.id().cast_signed(), 2);
    eventually("the end", || child.try_wait().unwrap());
    drop(printed);
}

#[test]
fn local_pods_die_with_a_killed_run_and_next_run_cleans_up() {
    let laptop = Laptop::new("killed", &job(2, "sh -c 'echo up; sleep 3600'"));
    let mut child = laptop
        .command(&["env"], &[])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let pid = |index: u32| {
        fs::read_to_string(laptop.ground("0").join(format!("pods/{index}/pid")))
            .ok()?
            .parse::<i32>()
            .ok()
    };
    let pids = eventually("both pods run", || Some([pid(0)?, pid(1)?]));
    child.kill().unwrap();
    child.wait().unwrap();
    let is_there = |pid: &i32| fs::metadata(format!("/proc/{pid}")).is_ok();
    eventually("the pods are gone", || (!pids.iter().any(is_there)).then_some(()));
    fs::write(
        laptop.at("mc.yaml"),
        fs::read_to_string(laptop.at("mc.yaml"))
            .unwrap()
            .replace("3600", "0"),
    )
    .unwrap();
    let again = laptop.run(&["env"], &[]);
    assert_eq!(again.status.code(), Some(0), "{}", text(&again.stderr));
    assert!(!laptop.ground("0").exists());
}

/// When a process changes its user, the kernel forgets that it dies with its parent.
#[test]
fn single_local_pod_of_another_user_runs_and_dies_with_the_run() {
    let spec = "  size: 1\n  containers: [{image: app, command: \"sh -c 'id -u; echo up; sleep 3600'\", \
                securityContext: {runAsUser: 1000}}]";
    let laptop = Laptop::new("alone", spec);
    let (mut child, printed) = laptop.until_up(&[]);
    assert!(printed().contains("1000\n"), "{}", printed());
    let pid = fs::read_to_string(laptop.ground("0").join("pods/0/pid")).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let process = Path::new("/proc").join(pid);
    eventually("the pod is gone", || (!process.exists()).then_some(()));
}

#[test]
fn local_pod_that_fails_ends_all_with_a_reason() {
    let spec = "  size: 2\n  containers: [{image: app, command: \"sleep 600\", commands: {workerPre: \"echo looked at; exit 9\"}}]";
    let laptop = Laptop::new("failing", spec);
    let ended = laptop.run(&["env"], &[]);
    let err = text(&ended.stderr);
    assert_eq!(ended.status.code(), Some(9), "{}{err}", text(&ended.stdout));
    assert!(text(&ended.stdout).contains("failing-1 | looked at\n"), "{err}");
    assert!(
        err.contains("failing-1 ended with 9") && err.contains("stopping all pods"),
        "{err}"
    );
}

#[test]
fn a_sidecar_runs_beside_its_runner() {
    let spec = "  size: 1\n  containers:\n  - {image: app, runFlux: true, command: 'sleep 2'}\n  - {image: app, name: helper, command: 'flux proxy $fluxsocket flux getattr size'}";
    let laptop = Laptop::new("beside", spec);
    let ended = laptop.run(&["env"], &[]);
    let (out, err) = (text(&ended.stdout), text(&ended.stderr));
    assert_eq!(ended.status.code(), Some(0), "{out}{err}");
    assert!(out.contains("beside-0/helper | 1\n"), "{out}{err}");
}

/// Mounts with the same name share a volume. `other` mounts a volume of another name at the same path.
#[test]
fn containers_of_a_local_pod_share_its_empty_volumes() {
    let volume = |key: &str| format!("volumes: {{{key}: {{emptyDir: true, path: /scratch}}}}");
    let lists = "sh -c 'until [ -e /scratch/from-helper ]; do sleep 0.1; done; ls /scratch'";
    let touches = "touch /scratch/from-helper; sleep 60";
    let spec = format!(
        "  size: 2\n  tasks: 2\n  containers:\n  - {{image: app, runFlux: true, command: \"{lists}\", {}}}\n\
         \x20 - {{image: app, name: helper, command: \"{touches}\", {}}}\n\
         \x20 - {{image: app, name: other, command: \"touch /scratch/from-other; sleep 60\", {}}}",
        volume("scratch"),
        volume("scratch"),
        volume("own")
    );
    let laptop = Laptop::new("shares", &spec);
    let ended = laptop.run(&["timeout", "90"], &[]);
    let (out, err) = (text(&ended.stdout), text(&ended.stderr));
    assert_eq!(ended.status.code(), Some(0), "{out}{err}");
    assert_eq!(out, "from-helper\nfrom-helper\n", "{err}");
}

#[test]
fn local_run_names_the_remedy_for_a_missing_path() {
    let volume = "volumes: {data: {hostPath: /no/such/data, path: /data}}";
    for (field, remedy) in [
        (
            volume,
            "failed to find /no/such/data: no such file or directory. Create it, or leave the volume out.",
        ),
        (
            "workingDir: /no/such/folder",
            "failed to start in /no/such/folder: no such file or directory. Create it, or leave workingDir out.",
        ),
    ] {
        let spec = format!("  size: 1\n  containers: [{{image: app, command: hostname, {field}}}]");
        let ended = Laptop::new("lacks", &spec).run(&["env"], &[]);
        let err = text(&ended.stderr);
        assert!(err.contains(remedy), "{err}");
    }
}

#[test]
fn local_run_without_flux_names_the_option() {
    let laptop = Laptop::new("none", &job(1, "hostname"));
    let ended = Command::new(agent())
        .args(["local", "mc.yaml", "--flux", "/nonexistent"])
        .current_dir(laptop.folder.path())
        .output()
        .unwrap();
    assert_eq!(ended.status.code(), Some(242), "{}", text(&ended.stderr));
    assert!(
        text(&ended.stderr).contains("Give the folder that Flux is installed in with --flux"),
        "{}",
        text(&ended.stderr)
    );
}

/// `timeout` signals its child, and then the process group that both are in.
#[test]
fn stop_sent_twice_at_once_leaves_pods_their_grace_period() {
    let job = job(
        1,
        "sh -c 'trap \"sleep 1; echo tidied; exit 3\" TERM; echo up; while :; do sleep 0.1; done'",
    );
    let laptop = Laptop::new("twice", &job);
    let (mut child, printed) = laptop.until_up(&[]);
    for pause in [30, 0] {
        send(child.id().cast_signed(), 15);
        std::thread::sleep(Duration::from_millis(pause));
    }
    let status = eventually("the end", || child.try_wait().unwrap());
    assert_eq!(status.code(), Some(3), "{}", printed());
    assert!(printed().contains("tidied\n"), "{}", printed());
}

/// The kernel drops a signal to the first process of a namespace if that process neither handles nor blocks it.
#[test]
fn stop_while_pods_are_set_up_is_not_lost() {
    let laptop = Laptop::new("early", &job(2, "sleep 600"));
    let err = laptop.at("err");
    let mut command = laptop.command(&["env"], &[]);
    command
        .stdout(Stdio::null())
        .stderr(fs::File::create(&err).unwrap());
    let mut child = command.spawn().unwrap();
    let last = laptop.ground("0").join("pods/1/pid");
    let begin = std::time::Instant::now();
    while !last.exists() {
        assert!(begin.elapsed() < Duration::from_secs(60), "no pod was started");
        std::thread::sleep(Duration::from_millis(1));
    }
    send(child.id().cast_signed(), 15);
    let status = eventually("the end", || child.try_wait().unwrap());
    let err = fs::read_to_string(err).unwrap();
    assert_eq!(status.code(), Some(143), "{err}");
    assert!(!err.contains("not ended in the grace period"), "{err}");
}

#[test]
fn local_runs_where_a_mount_point_is_no_text() {
    let laptop = Laptop::new("bytes", &job(1, "hostname"));
    let mounts = format!(
        "place=$(printf '{}/disk-\\377') && mkdir \"$place\" && mount -t tmpfs none \"$place\" && exec \"$@\"",
        laptop.folder.path().display()
    );
    let ended = laptop.run(&["unshare", "--mount", "sh", "-c", &mounts, "-"], &[]);
    assert_eq!(ended.status.code(), Some(0), "{}", text(&ended.stderr));
    assert_eq!(text(&ended.stdout), "bytes-0\n");
}
