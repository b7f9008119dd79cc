//! The end of a sidecar. After the end of Flux, it may finish its work, unless it is a server.

use std::fs;
use std::time::{Duration, Instant};

use crate::image::{AGENT, Container, Image};
use crate::instance::submit;
use crate::live::{Network, Running, eventually, gate, pod_image, run_words};

const UNTIL_GO: &str = "while [ ! -e /tmp/go ]; do sleep 0.02; done";

/// The pod's image, and the running sidecar and lead.
fn pod(sidecar: &str) -> (Image, Running, Running) {
    pod_with(sidecar, &[])
}

/// Like [`pod`], with more words for both entrypoints.
fn pod_with(sidecar: &str, more: &[&str]) -> (Image, Running, Running) {
    let report = "until [ -e /tmp/report ]; do sleep 0.02; done; echo REPORT complete";
    let side =
        format!("[sidecars.monitor]\n{sidecar}command = 'echo collecting; {report}'\npost = 'echo posted'\n");
    let image = pod_image(&format!("{}{side}", submit(UNTIL_GO)), 1);
    let network = Network::new();
    let lead = Running::pod(&Container::new(&image, "mc-0", &run_words(more)), &network);
    let words = [&[AGENT, "sidecar", "monitor"], more].concat();
    let beside = Running::pod(&Container::new(&image, "mc-0", &words), &network);
    beside.wait_for_output("collecting\n");
    (image, beside, lead)
}

#[test]
fn sidecar_reports_after_flux_has_ended() {
    let (image, beside, lead) = pod("");
    fs::write(gate(&image, "go"), "").unwrap();
    assert_eq!(lead.end().code, 0);
    beside.signal(15);
    eventually("the stop is held back", || {
        beside.stderr().contains("s to end by itself").then_some(())
    });
    fs::write(gate(&image, "report"), "").unwrap();
    let ended = beside.end();
    ended.expect(0, "collecting\nREPORT complete\nposted\n", "");
}

#[test]
fn sidecar_that_does_not_finish_is_stopped_in_time() {
    let (image, beside, lead) = pod("");
    fs::write(gate(&image, "go"), "").unwrap();
    assert_eq!(lead.end().code, 0);
    let begin = Instant::now();
    beside.signal(15);
    let ended = beside.end();
    assert_eq!(ended.code, 143, "{}", ended.stderr);
    // The command has 10 s to end by itself.
    assert!(
        begin.elapsed() > Duration::from_secs(2) && begin.elapsed() < Duration::from_secs(25),
        "{:?}",
        begin.elapsed()
    );
}

#[test]
fn sidecar_gets_sigterm_within_a_short_grace_period() {
    let trap = "pre = \"trap 'echo told; exit 3' TERM\"\n";
    let (image, beside, lead) = pod_with(trap, &["--grace-period", "6"]);
    fs::write(gate(&image, "go"), "").unwrap();
    assert_eq!(lead.end().code, 0);
    let begin = Instant::now();
    beside.signal(15);
    let ended = beside.end();
    assert!(ended.stdout.contains("told\n"), "{ended:?}");
    // The command has two thirds of the grace period to end by itself.
    assert!(
        begin.elapsed() > Duration::from_secs(2) && begin.elapsed() < Duration::from_secs(6),
        "{:?}",
        begin.elapsed()
    );
}

#[test]
fn server_and_sidecar_of_a_stopped_pod_end_at_once() {
    let (image, server, lead) = pod("serves = true\n");
    fs::write(gate(&image, "go"), "").unwrap();
    assert_eq!(lead.end().code, 0);
    server.signal(15);
    let ended = server.end();
    assert_eq!(ended.code, 143);
    assert!(!ended.stderr.contains("to end by itself"), "{}", ended.stderr);

    let (_image, beside, lead) = pod("");
    lead.signal(15);
    lead.end();
    beside.signal(15);
    let ended = beside.end();
    assert!(
        ended.code == 143 && !ended.stderr.contains("to end by itself"),
        "{}",
        ended.stderr
    );
}

#[test]
fn exit_trap_of_a_sidecar_without_a_command_runs_at_its_end() {
    let side = "[sidecars.monitor]\nwait_socket = false\npre = 'trap \"echo trapped\" EXIT; echo ready'\n";
    let image = pod_image(&format!("{}{side}", submit(UNTIL_GO)), 1);
    let sidecar = Container::new(&image, "mc-0", &[AGENT, "sidecar", "monitor"]);
    let beside = Running::pod(&sidecar, &Network::new());
    beside.wait_for_output("finished; waiting for the pod to be deleted");
    assert_eq!(beside.stdout(), "ready\n");
    beside.signal(15);
    let ended = beside.end();
    ended.expect(0, "ready\ntrapped\n", "");
}

#[test]
fn failed_sidecar_exits_with_the_code_of_its_program() {
    for program in ["command = '(exit 5)'", "script = 'exit 5'"] {
        let image = pod_image(
            &format!("[sidecars.monitor]\nwait_socket = false\n{program}\n"),
            1,
        );
        let sidecar = Container::new(&image, "mc-0", &[AGENT, "sidecar", "monitor"]);
        let ended = Running::pod(&sidecar, &Network::new()).end();
        assert_eq!(ended.code, 5, "{program}: {}", ended.stderr);
    }
}
