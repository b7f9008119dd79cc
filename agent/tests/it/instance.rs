//! Whole instances of the fake Flux or of real Flux (`make test-flux`): exit codes through broker and job, live
//! output, stops, and a lead that dies.

use std::fs;
use std::time::{Duration, Instant};

use flux_shared::exit::{Category, REPLACE};
use flux_shared::termination::{Ender, Termination};

use crate::image::{AGENT, Container, Image, V4, V6, real_flux, run};
use crate::live::{
    Network, Running, eventually, forget_starts, gate, open, pod_image, run_words, send, termination_of,
};

mod node_network;
mod sidecar_end;
mod stops;
mod tree;

/// Long enough for the agents to see that their brokers are connected to the lead.
const SEEN_BY: Duration = Duration::from_millis(1500);

/// A spec whose program is a script, in this mode.
pub fn program(mode: &str, script: &str) -> String {
    let script = serde_json::to_string(script).unwrap();
    format!("[runner.program]\nmode = '{mode}'\nwords = ['sh', '-c', {script}]\n")
}

pub fn submit(script: &str) -> String {
    program("submit", script)
}

pub fn launch(script: &str) -> String {
    program("launcher", script)
}

/// Starts the pods of a cluster, each with its own image.
pub fn start(images: &[Image], network: &Network, more: &[&str]) -> Vec<Running> {
    let command = run_words(more);
    let pod =
        |(index, image)| Running::pod(&Container::new(image, &format!("mc-{index}"), &command), network);
    images.iter().enumerate().map(pod).collect()
}

pub fn images(spec: &str, size: u32) -> Vec<Image> {
    (0..size).map(|_| pod_image(spec, size)).collect()
}

/// Flux creates named queues stopped.
#[test]
fn jobs_of_named_queues_run() {
    let queues = "[queues.debug]\n[queues.batch]\n[policy.jobspec.defaults.system]\nqueue = 'batch'\n";
    let spec = format!("[flux.configs]\nqueues = \"\"\"{queues}\"\"\"\n");
    let jobs = launch("flux run echo batch; flux run -q debug echo debug");
    let image = pod_image(&(jobs + &spec), 1);
    let ended = run(&[Container::new(&image, "mc-0", &run_words(&[]))]).remove(0);
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (0, "batch\ndebug\n"),
        "{}",
        ended.stderr
    );

    // Without a program, too.
    let image = pod_image(&format!("[runner]\ninteractive = true\n{spec}"), 1);
    let images = [image];
    let pod = start(&images, &Network::new(), &[]).remove(0);
    let status = || pod.exec(&[AGENT, "status", "--ready"]).status;
    eventually("the instance is up", || status().success().then_some(()));
    // Without `cd`, the working directory would be the test's.
    let line = format!("cd / && {AGENT} connect -- flux run -q debug echo ran");
    let ran = pod.exec(&["sh", "-c", &line]);
    assert_eq!(ran.stdout, b"ran\n", "{ran:?}");
}

#[test]
fn instance_comes_up_with_ipv6_only_and_dual_stack() {
    for networks in [&[V6] as &[&str], &[V6, V4], &[V4, V6]] {
        let all = images(
            &format!(
                "tasks = 3\n{}",
                submit("echo ran; while [ ! -e /tmp/go ]; do sleep 0.1; done")
            ),
            3,
        );
        all.iter()
            .for_each(|image| image.hosts_of("mc", "flux-service", 3, networks));
        let pods = start(&all, &Network::of(networks), &[]);
        eventually("each node's task", || {
            (pods[0].stdout().matches("ran\n").count() == 3).then_some(())
        });
        let config = fs::read_to_string(all[1].at("/mnt/flux/config/etc/flux/config/broker.toml")).unwrap();
        // The broker listens on the first address that /etc/hosts has for its pod.
        assert_eq!(
            config.contains("enable_ipv6 = true"),
            networks[0] == V6,
            "{config}"
        );
        for pod in &pods {
            assert_eq!(status(pod)["state"], "run", "{networks:?}");
            let judged = pod.exec(&[AGENT, "preflight"]);
            let judged = String::from_utf8_lossy(&judged.stdout).into_owned();
            assert!(
                !judged.contains("FAIL dns") && !judged.contains("FAIL parent"),
                "{networks:?}: {judged}"
            );
        }
        all.iter()
            .for_each(|image| fs::write(gate(image, "go"), "").unwrap());
        let codes: Vec<i32> = pods.into_iter().map(|pod| pod.end().code).collect();
        assert_eq!(codes, [0, 0, 0], "{networks:?}");
    }
}

#[test]
fn missing_job_program_exits_127() {
    let images = images(
        "[runner.program]\nmode = 'launcher'\nwords = ['no-such-program']",
        1,
    );
    let ended = start(&images, &Network::new(), &[]).remove(0).end();
    assert_eq!(ended.code, 127, "{}", ended.stderr);
}

#[test]
fn output_is_shown_while_job_runs_and_none_is_lost_at_end() {
    let script = "echo first; echo apart >&2; while [ ! -e /tmp/go ]; do sleep 0.02; done; \
                  i=0; while [ $i -lt 5000 ]; do echo line $i; i=$((i + 1)); done; echo last";
    let images = images(&(submit(script) + "[logging]\ntimed = true\n"), 1);
    let pod = start(&images, &Network::new(), &[]).remove(0);
    eventually("the first line", || (pod.stdout() == "first\n").then_some(()));
    eventually("the line on standard error", || {
        pod.stderr().contains("apart\n").then_some(())
    });
    fs::write(gate(&images[0], "go"), "").unwrap();
    let ended = pod.end();
    assert_eq!((ended.code, ended.stdout.lines().count()), (0, 5002));
    assert!(!ended.stdout.contains('\r') && ended.stdout.ends_with("last\n"));
    for label in ["fluxsubmit", "fluxstart"] {
        assert!(
            ended.stderr.contains(&format!("\nFLUXTIME {label} wall time 0:")),
            "{}",
            ended.stderr
        );
    }
    let timeline = ended.stderr.lines().last().unwrap();
    let timeline: serde_json::Value = serde_json::from_str(timeline).unwrap();
    let stages: Vec<&str> = timeline["stages"]
        .as_array()
        .unwrap()
        .iter()
        .map(|s| s["stage"].as_str().unwrap())
        .collect();
    // The fake Flux reports no states of a lead with a program.
    let want = ["plan", "config", "broker", "quorum", "submit", "job", "stop"];
    let is_reported = |stage: &&str| real_flux().is_some() || !["quorum", "submit", "stop"].contains(stage);
    assert_eq!(stages, want.into_iter().filter(is_reported).collect::<Vec<_>>());
}

#[test]
fn a_quiet_run_prints_the_job_and_nothing_else() {
    let images = images(
        &(submit("echo hello") + "[logging]\nquiet = true\ntimed = true\n"),
        1,
    );
    let ended = start(&images, &Network::new(), &[]).remove(0).end();
    assert_eq!(
        (ended.code, ended.stdout.as_str(), ended.stderr.as_str()),
        (0, "hello\n", "")
    );
}

#[test]
fn lost_node_is_distinguished_from_a_failed_job() {
    let failing = images(&submit("exit 143"), 2);
    let mut pods = start(&failing, &Network::new(), &[]);
    assert_eq!(pods.remove(0).end().code, 143);
    assert!(!termination_of(&failing[0]).node_failure);
    // The fake Flux cannot lose nodes.
    if real_flux().is_none() {
        return;
    }
    let words = "words = ['sh', '-c', 'echo up; sleep 60']";
    let spec = format!("tasks = 3\n[runner.program]\nmode = 'submit'\n{words}\n");
    for stop in [false, true] {
        let images = images(&spec, 3);
        let mut pods = start(&images, &Network::new(), &["--grace-period", "30"]);
        pods[0].wait_for_output("up\nup\nup\n");
        std::thread::sleep(SEEN_BY);
        let begin = Instant::now();
        let lost = pods.remove(2);
        if stop {
            lost.signal(15)
        } else {
            drop(lost)
        }
        let ended = pods.remove(0).end();
        let termination = termination_of(&images[0]);
        assert!(
            termination.node_failure && ended.code != 0 && termination.by == Ender::Program,
            "{termination:?}"
        );
        // A pod that is stopped gives its jobs most of the grace period.
        let most = if stop { 45 } else { 20 };
        assert!(
            begin.elapsed() < Duration::from_secs(most),
            "{:?}",
            begin.elapsed()
        );
    }
}

#[test]
fn lead_without_name_is_waited_for_while_connected() {
    let images = images(&stops::tidy(3, "launcher"), 2);
    let pods = start(&images, &Network::new(), &["--grace-period", "60"]);
    pods[0].wait_for_output("up\n");
    // Deleting the MiniCluster also deletes the Service, and so the names.
    images[1].file("/etc/hosts", 0o644, "127.0.0.1 localhost\n");
    // The worst order: the follower first.
    pods.iter().rev().for_each(|pod| pod.signal(15));
    let ended: Vec<_> = pods.into_iter().map(Running::end).collect();
    assert!(ended[0].stdout.ends_with("tidied up\n"), "{}", ended[0].stderr);
    assert_eq!((ended[0].code, ended[1].code), (3, 0), "{}", ended[1].stderr);
    assert!(
        !ended[1].stderr.contains("the parent broker is gone"),
        "{}",
        ended[1].stderr
    );
}

#[test]
fn follower_broker_ends_within_seconds_when_lead_is_killed() {
    let images = images(&submit(stops::HANGING), 2);
    let mut pods = start(&images, &Network::new(), &["--lead-silent", "2"]);
    pods[0].wait_for_output("up\n");
    std::thread::sleep(SEEN_BY);
    send(pods[0].pid, 9);
    let begin = Instant::now();
    pods[1].wait_for_output("the parent broker is gone");
    let ended = pods.remove(1).end();
    let code = i32::from(Category::ParentUnreachable.code());
    assert_eq!(ended.code, code, "{}", ended.stderr);
    assert!(begin.elapsed() < Duration::from_secs(25), "{:?}", begin.elapsed());
    assert!(
        ended.stderr.contains("refuses the connection"),
        "{}",
        ended.stderr
    );
}

/// As on a node that is too busy. Flux itself waits five minutes. 14 s are longer than the agent's limits for a silent
/// parent (`agent/src/wait/presence.rs`), which must not apply here. The fake Flux has no heartbeats.
#[test]
fn a_lead_that_is_silent_for_a_while_is_not_given_up() {
    let silence = if real_flux().is_some() { 14 } else { 1 };
    let gate_open = "while [ ! -e /tmp/go ]; do sleep 0.05; done";
    let images = images(
        &("tasks = 2\n".to_owned() + &submit(&format!("echo up; {gate_open}; echo done"))),
        2,
    );
    let pods = start(&images, &Network::new(), &[]);
    pods[0].wait_for_output("up\n");
    let broker = eventually("the lead's broker", || pods[0].children().first().copied());
    // SIGSTOP, and then SIGCONT.
    send(broker, 19);
    std::thread::sleep(Duration::from_secs(silence));
    send(broker, 18);
    open(&images, "go");
    let ended: Vec<_> = pods.into_iter().map(Running::end).collect();
    assert_eq!(
        (ended[0].code, ended[1].code),
        (0, 0),
        "{}{}",
        ended[0].stderr,
        ended[1].stderr
    );
    assert_eq!(ended[0].stdout.matches("done").count(), 2, "{}", ended[0].stdout);
}

#[test]
fn a_lead_that_comes_back_is_joined_again() {
    let images = images(
        &submit("if [ -e /tmp/again ]; then echo again; else echo up; while :; do sleep 0.05; done; fi"),
        2,
    );
    let network = Network::new();
    let mut pods = start(&images, &network, &[]);
    pods[0].wait_for_output("up\n");
    std::thread::sleep(SEEN_BY);
    drop(pods.remove(0));
    // The job may run on either pod.
    open(&images, "again");
    forget_starts(&images[0]);
    let command = run_words(&[]);
    let lead = Running::pod(&Container::new(&images[0], "mc-0", &command), &network).end();
    lead.expect(0, "again\n", "");
    assert_eq!(pods.remove(0).end().code, 0);
}

/// The output of `flux-agent status` in a pod. Null if it prints nothing. Without a broker's answer, `state` is null.
fn status(pod: &Running) -> serde_json::Value {
    serde_json::from_slice(&pod.exec(&[AGENT, "status", "--json"]).stdout).unwrap_or_default()
}

#[test]
fn killed_broker_of_a_follower_is_started_again() {
    let images = images("", 2);
    let pods = start(&images, &Network::new(), &[]);
    let joined = || {
        let runs = |pod| (status(pod)["state"] == "run").then_some(());
        eventually("it joins", || pods.iter().try_for_each(runs));
        eventually("it is online", || {
            (status(&pods[0])["missing"] == serde_json::json!([])).then_some(())
        });
    };
    joined();
    let broker = eventually("the follower's broker", || pods[1].children().first().copied());
    send(broker, 9);
    pods[1].wait_for_output("the broker was ended by signal 9; restarting it");
    eventually("another broker", || {
        pods[1].children().first().filter(|pid| **pid != broker).copied()
    });
    joined();
    pods.iter().for_each(|pod| pod.signal(15));
    let codes: Vec<i32> = pods.into_iter().map(|pod| pod.end().code).collect();
    assert_eq!(codes, [143, 0]);
}

#[test]
fn batch_exits_with_script_code_and_shows_its_last_output() {
    let spec = "[runner.program]\nmode = 'batch-raw'\ntext = '''\necho in the batch\nexit 5\n'''\n";
    let images = images(spec, 1);
    let ended = start(&images, &Network::new(), &[]).remove(0).end();
    assert_eq!(ended.code, 5, "{}{}", ended.stdout, ended.stderr);
    let heading = "the batch ended with code 5; the end of its output:\n";
    let shown = ended.stderr.split_once(heading).map_or("", |(_, shown)| shown);
    // Flux's broker prints a line too, before or after it.
    assert!(
        shown.lines().take(2).any(|line| line == "in the batch"),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_sidecar_waits_for_the_socket_and_runs_beside_the_broker() {
    let side = "[sidecars.db]\ncommand = 'echo served by $(id -u)'\n";
    let image = pod_image(
        &format!("{}{side}", submit("while [ ! -e /tmp/go ]; do sleep 0.02; done")),
        1,
    );
    let network = Network::new();
    let command = [crate::image::AGENT, "sidecar", "db"];
    let beside = Running::pod(&Container::new(&image, "mc-0", &command), &network);
    eventually("it waits", || {
        beside
            .stderr()
            .contains("waiting for /mnt/flux/config/run/flux/local")
            .then_some(())
    });
    let lead = Running::pod(&Container::new(&image, "mc-0", &run_words(&[])), &network);
    beside.wait_for_output("served by 0\n");
    fs::write(gate(&image, "go"), "").unwrap();
    assert_eq!(lead.end().code, 0);
    // Kubernetes would restart the sidecar, so it stays until its pod ends.
    beside.wait_for_output("finished; waiting for the pod to be deleted");
    beside.signal(15);
    assert_eq!(beside.end().code, 0);
}

#[test]
fn root_sidecar_without_setuid_finds_another_users_socket() {
    let more =
        "[runner.user]\nname = 'flux'\nuid = 1002\n[sidecars.db]\ncommand = 'echo served by $(id -u)'\n";
    let image = pod_image(
        &format!("{}{more}", submit("while [ ! -e /tmp/go ]; do sleep 0.02; done")),
        1,
    );
    let network = Network::new();
    let lead = Running::pod(&Container::new(&image, "mc-0", &run_words(&[])), &network);
    let mut hardened = Container::new(&image, "mc-0", &[AGENT, "sidecar", "db"]);
    let kept = "--bounding-set=-all,+sys_chroot,+setgid";
    hardened.outside = ["setpriv", kept, "--inh-caps=-all"].map(str::to_owned).into();
    let beside = Running::pod(&hardened, &network);
    beside.wait_for_output("served by 0\n");
    fs::write(gate(&image, "go"), "").unwrap();
    assert_eq!(lead.end().code, 0);
}

#[test]
fn as_flux_asks_the_instance_from_a_snippet() {
    let more = r#"
        [runner.user]
        name = 'flux'
        uid = 1002
        [sidecars.db]
        command = 'true'
        service_pre = """
            until $asFlux flux getattr size; do sleep 0.2; done
            echo asked by $(id -u)
        """
    "#;
    let image = pod_image(
        &format!("{}{more}", submit("while [ ! -e /tmp/go ]; do sleep 0.02; done")),
        1,
    );
    let network = Network::new();
    let lead = Running::pod(&Container::new(&image, "mc-0", &run_words(&[])), &network);
    let beside = Running::pod(
        &Container::new(&image, "mc-0", &[AGENT, "sidecar", "db"]),
        &network,
    );
    beside.wait_for_output("1\nasked by 0\n");
    fs::write(gate(&image, "go"), "").unwrap();
    assert_eq!(lead.end().code, 0);
}

#[test]
fn a_prefix_that_prints_a_lot_does_not_hold_up_the_batch() {
    let talk = "i=0; while [ $i -lt 20000 ]; do echo 0123456789; i=$((i + 1)); done; exec \"$@\"";
    let prefix = format!(
        "prefix = ['bash', '-c', {}, '-']\n",
        serde_json::to_string(talk).unwrap()
    );
    let images = images(
        &format!("[runner]\n{prefix}[runner.program]\nmode = 'batch-raw'\ntext = 'exit 5'\n"),
        1,
    );
    let ended = start(&images, &Network::new(), &[]).remove(0).end();
    assert_eq!(ended.code, 5, "{}", ended.stderr);
    assert_eq!(
        ended.stdout.lines().filter(|line| *line == "0123456789").count(),
        20000
    );
}

#[test]
fn two_batches_in_one_working_directory_run_their_own_scripts() {
    let shared = crate::image::folder();
    // Each waits for the other, so that both run at the same time.
    let image = |own: &str, other: &str| {
        let script = format!(
            "echo {own} >/shared/{own}; n=0\n\
             while [ ! -e /shared/{other} ] && [ $n -lt 500 ]; do n=$((n + 1)); sleep 0.02; done\n\
             [ -e /shared/{other} ]"
        );
        let script = serde_json::to_string(&script).unwrap();
        let image = pod_image(
            &format!("[runner.program]\nmode = 'batch-raw'\ntext = {script}\n"),
            1,
        );
        fs::create_dir(image.at("/shared")).unwrap();
        image
    };
    let images = [image("one", "two"), image("two", "one")];
    let pods: Vec<_> = images
        .iter()
        .map(|image| {
            let mut container =
                Container::new(image, "mc-0", &["/usr/bin/env", "-C", "/shared", AGENT, "run"]);
            container.before = format!("mount --bind {} \"$root/shared\"\n", shared.path().display());
            container
        })
        .collect();
    let ended = run(&pods);
    assert_eq!((ended[0].code, ended[1].code), (0, 0), "{ended:?}");
    assert!(
        ["one", "two"]
            .iter()
            .all(|name| shared.path().join(name).exists()),
        "{ended:?}"
    );
    // The agent writes the script into the pod's own folder, not into the working directory.
    assert!(!shared.path().join("flux-job.batch").exists());
}

/// With real Flux, the second instance lists the jobs of the first.
#[test]
fn the_state_of_an_instance_is_saved_and_read_back() {
    for suffix in ["tgz", "tar.xz", "tar.bz2", "tar", "zip"] {
        // The fake Flux knows only gzip.
        if real_flux().is_none() && suffix != "tgz" {
            continue;
        }
        let archive = format!("archive = '/state/a.{suffix}'\n");
        let first = format!("{archive}{}", submit("exit 0"));
        let image = pod_image(&first, 1);
        fs::create_dir(image.at("/state")).unwrap();
        let command = run_words(&[]);
        let container = Container::new(&image, "mc-0", &command);
        let ended = run(&[container]).remove(0);
        assert_eq!(ended.code, 0, "{suffix}: {}", ended.stderr);
        assert_eq!(
            termination_of(&image).archive_not_saved,
            None,
            "{suffix}: {}",
            ended.stderr
        );
        let files: Vec<_> = fs::read_dir(image.at("/state"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        assert_eq!(files, [format!("a.{suffix}").as_str()], "{suffix}");
        let second = format!(
            "name = 'mc'\n{archive}[runner.program]\nmode = 'launcher'\nwords = ['flux', 'jobs', '-a', '-n', '-o', '{{name}} {{status}}']\n"
        );
        image.file(flux_shared::paths::SPEC_FILE, 0o644, &second);
        // As in a new pod, there is no record of a start. With one, the program would not run again.
        forget_starts(&image);
        let ended = run(&[Container::new(&image, "mc-0", &command)]).remove(0);
        assert_eq!(ended.code, 0, "{suffix}: {}", ended.stderr);
        assert_eq!(
            termination_of(&image).archive_not_saved,
            None,
            "{suffix}: {}",
            ended.stderr
        );
        assert!(
            ended.stderr.contains("archive saved to"),
            "{suffix}: {}",
            ended.stderr
        );
        if real_flux().is_some() {
            assert_eq!(ended.stdout, "sh COMPLETED\n", "{suffix}: {}", ended.stderr);
        }
    }
}
