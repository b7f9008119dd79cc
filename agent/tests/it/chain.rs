//! From the program to the pod's end: the container's exit code is the program's, the termination message says
//! who caused the end, and the program starts as often as it may.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::time::{Duration, Instant};

use flux_shared::exit::{Category, REPLACE};
use flux_shared::termination::{Ender, Termination};

use crate::image::{AGENT, Container, Ended, Image, real_flux, run};
use crate::instance::{images, launch, program, start, submit};
use crate::live::{
    Network, Running, Solo, children_of, eventually, forget_starts, gate, in_parallel, open, run_words, send,
    state_of, termination_of,
};

/// A script that adds a line to `/tmp/starts` at each start, on any node.
fn counted(script: &str) -> String {
    format!("echo >>/tmp/starts; {script}")
}

fn starts(images: &[Image]) -> usize {
    let count = |image| {
        fs::read_to_string(gate(image, "starts"))
            .unwrap_or_default()
            .lines()
            .count()
    };
    images.iter().map(count).sum()
}

/// Runs all pods of a cluster to their end.
fn run_all(images: &[Image]) -> Vec<Ended> {
    let command = run_words(&[]);
    let pods: Vec<Container> = images
        .iter()
        .enumerate()
        .map(|(at, image)| Container::new(image, &format!("mc-{at}"), &command))
        .collect();
    run(&pods)
}

fn program_ended_with(code: u8) -> Termination {
    Termination {
        program_code: Some(code),
        ..Termination::new(Ender::Program, code)
    }
}

#[test]
fn container_passes_on_every_code_and_reports_who_ended_it() {
    in_parallel(0..=255, |code: u8| {
        let solo = Solo::new(
            "",
            "",
            &format!("echo >>\"$FAKE_FLUX_RECORD.starts\"; exit {code}"),
        )
        .with(&["sh"]);
        assert_eq!(solo.run(&[]).code, i32::from(code));
        assert_eq!(solo.termination(), program_ended_with(code));
        // A restart in the same pod does not run the program again, and reports the same.
        assert_eq!(solo.run(&[]).code, i32::from(code), "{code}");
        assert_eq!(
            (solo.termination().by, solo.termination().code),
            (Ender::Program, code)
        );
        assert_eq!(
            fs::read_to_string(solo.folder.path().join("record.starts")).unwrap(),
            "\n",
            "{code}"
        );
    });
}

#[test]
fn on_failure_retries_every_nonzero_code_per_container_start() {
    in_parallel(0..=255, |code: u8| {
        let script = format!("echo >>\"$FAKE_FLUX_RECORD.starts\"; exit {code}");
        let solo = Solo::new("", "", &script).with(&["sh"]);
        solo.edit(|spec| format!("{ON_FAILURE}{spec}"));
        for _ in 0..3 {
            assert_eq!(solo.run(&[]).code, i32::from(code));
            assert_eq!(
                (solo.termination().by, solo.termination().program_code),
                (Ender::Program, Some(code))
            );
        }
        let starts = fs::read_to_string(solo.folder.path().join("record.starts"))
            .unwrap()
            .lines()
            .count();
        assert_eq!(starts, if code == 0 { 1 } else { 3 }, "{code}");
    });
}

/// Exit codes with a meaning for shells, signals or the agent. With the fake Flux, also a few others.
fn special_codes() -> Vec<u8> {
    let few: Vec<u8> = [0, 1, 2, 126, 127, 128, 137, 143, 255]
        .into_iter()
        .chain(237..250)
        .collect();
    if real_flux().is_some() {
        few
    } else {
        few.into_iter().chain((3..126).step_by(29)).collect()
    }
}

#[test]
fn lead_exits_with_code_of_a_job_on_one_and_three_pods() {
    let cases = special_codes()
        .into_iter()
        .flat_map(|code| [(code, 1), (code, 3)]);
    in_parallel(cases, |(code, size)| {
        let images = images(&submit(&counted(&format!("exit {code}"))), size);
        let ended = run_all(&images);
        assert_eq!(ended[0].code, i32::from(code), "{size}: {}", ended[0].stderr);
        assert!(
            ended[1..].iter().all(|ended| ended.code == 0),
            "{code}: {ended:?}"
        );
        assert_eq!(termination_of(&images[0]), program_ended_with(code), "{size}");
        for follower in &images[1..] {
            assert_eq!(
                termination_of(follower),
                Termination::new(Ender::Program, 0),
                "{code}"
            );
        }
        assert_eq!(starts(&images), 1, "{code}, {size} pods");
    });
}

#[test]
fn job_ended_by_a_signal_exits_128_plus_number() {
    let deadly: Vec<u8> = match real_flux() {
        // With real Flux, each signal takes long.
        Some(_) => vec![1, 2, 9, 11, 15, 34],
        // By default, those that are left out below 32 end no process.
        None => (1..32)
            .filter(|signal| !(17..=23).contains(signal) && *signal != 28)
            .chain([34, 64])
            .collect(),
    };
    in_parallel(deadly.into_iter(), |signal| {
        // A few of them with three pods.
        let size = if signal % 4 == 3 { 3 } else { 1 };
        let images = images(
            &submit(&counted(&format!("ulimit -c 0; kill -{signal} $$; sleep 9"))),
            size,
        );
        let ended = run_all(&images);
        assert_eq!(ended[0].code, 128 + i32::from(signal), "{}", ended[0].stderr);
        assert_eq!(
            (termination_of(&images[0]), starts(&images)),
            (program_ended_with(128 + signal), 1)
        );
    });
}

/// Starts the pod of `index`, for the first time or again.
fn pod(images: &[Image], index: usize, network: &Network) -> Running {
    let command = run_words(&[]);
    Running::pod(
        &Container::new(&images[index], &format!("mc-{index}"), &command),
        network,
    )
}

#[test]
fn killed_lead_does_not_rerun_its_program() {
    let images = images(&submit(&counted("echo up; while :; do sleep 0.05; done")), 1);
    let network = Network::new();
    let lead = pod(&images, 0, &network);
    lead.wait_for_output("up\n");
    send(lead.pid, 9);
    lead.end();
    let later = pod(&images, 0, &network).end();
    assert_eq!(
        later.code,
        i32::from(Category::LeadLost.code()),
        "{}",
        later.stderr
    );
    let termination = termination_of(&images[0]);
    assert_eq!(
        (termination.by, termination.category, termination.program_code),
        (Ender::Agent, Some(Category::LeadLost), None)
    );
    assert_eq!(starts(&images), 1);
}

const ON_FAILURE: &str = "restart_policy = 'OnFailure'\n";
const ARCHIVE: &str = "archive = '/state/archive.tgz'\n";

#[test]
fn on_failure_reruns_a_failed_program_and_never_a_success() {
    for size in [1, 3] {
        let script = counted("[ -e /tmp/again ] || exit 7");
        let images = images(&format!("{ON_FAILURE}tasks = 1\n{}", submit(&script)), size);
        let network = Network::new();
        let mut pods: Vec<Running> = (0..images.len())
            .map(|index| pod(&images, index, &network))
            .collect();
        let mut lead = pods.remove(0);
        for attempt in 1..=3 {
            let ended = lead.end();
            assert_eq!(ended.code, 7, "{}", ended.stderr);
            assert_eq!(
                (termination_of(&images[0]), starts(&images)),
                (program_ended_with(7), attempt)
            );
            for follower in &pods {
                let stays = "this pod stays for the lead's next attempt";
                eventually(stays, || {
                    (follower.stderr().matches(stays).count() == attempt).then_some(())
                });
            }
            if attempt == 3 {
                // The job may run on any of the nodes.
                open(&images, "again");
            }
            lead = pod(&images, 0, &network);
        }
        assert_eq!(lead.end().code, 0);
        assert_eq!(
            (termination_of(&images[0]), starts(&images)),
            (program_ended_with(0), 4)
        );
        let later = pod(&images, 0, &network).end();
        assert_eq!((later.code, starts(&images)), (0, 4), "{}", later.stderr);
        let begin = Instant::now();
        pods.iter().for_each(|follower| follower.signal(15));
        let codes: Vec<i32> = pods.into_iter().map(|follower| follower.end().code).collect();
        // A follower does not know whether its lead has succeeded, so it always exits with REPLACE. After a success this
        // is harmless: the Job is over and replaces no pod.
        assert!(codes.iter().all(|code| *code == i32::from(REPLACE)), "{codes:?}");
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "the followers have no lead to wait for"
        );
    }
}

#[test]
fn on_failure_does_not_rerun_a_success_whose_post_failed() {
    let post = "[runner.snippets]\npost = 'exit 9'\n";
    let strict = "[logging]\nstrict = true\n";
    let images = images(
        &format!("{ON_FAILURE}{strict}{}{post}", submit(&counted("exit 0"))),
        1,
    );
    let network = Network::new();
    assert_eq!(pod(&images, 0, &network).end().code, 9);
    let termination = termination_of(&images[0]);
    assert_eq!(
        (termination.by, termination.code, termination.program_code),
        (Ender::Snippet, 9, Some(0))
    );
    assert_eq!(pod(&images, 0, &network).end().code, 0);
    let termination = termination_of(&images[0]);
    assert_eq!(
        (termination.by, termination.code, termination.program_code),
        (Ender::Program, 0, Some(0))
    );
    assert_eq!(
        termination.failed_post(),
        Some(9),
        "the status goes on to report it"
    );
    assert!(
        termination
            .message
            .contains("The snippet post ended with exit code 9"),
        "{}",
        termination.message
    );
    assert_eq!(starts(&images), 1);
}

/// A lead with a folder for its archive, if it has one. `dump`: how the fake Flux writes it, slowly enough to act
/// meanwhile.
fn lead_with_slow_dump(image: &Image, network: &Network, dump: &str) -> Running {
    fs::create_dir(image.at("/state")).unwrap();
    let mut container = Container::new(image, "mc-0", &run_words(&[]));
    container.environment.insert("FAKE_FLUX_DUMP".into(), dump.into());
    Running::pod(&container, network)
}

/// Whether the dump of the archive in /state has begun.
fn has_dump_begun(image: &Image) -> bool {
    let mut files = fs::read_dir(image.at("/state")).unwrap().flatten();
    files.any(|file| file.metadata().unwrap().len() > 0)
}

#[test]
fn killed_lead_does_not_rerun_a_program_whose_end_is_noted() {
    for (policy, code) in [(ON_FAILURE, 0), ("", 0), ("", 7)] {
        let script = counted(&format!("exit {code}"));
        let spec = format!("{ARCHIVE}{policy}{}", submit(&script));
        let images = images(&spec, 1);
        let network = Network::new();
        let lead = lead_with_slow_dump(&images[0], &network, "writes=100 pause=500");
        eventually("the dump grows", || has_dump_begun(&images[0]).then_some(()));
        send(lead.pid, 9);
        lead.end();
        for _ in 0..2 {
            let later = pod(&images, 0, &network).end();
            assert_eq!(later.code, i32::from(code), "{}", later.stderr);
            let termination = termination_of(&images[0]);
            assert_eq!(
                (termination.by, termination.program_code),
                (Ender::Program, Some(code))
            );
            assert!(termination.archive_not_saved.is_some(), "{termination:?}");
        }
        assert_eq!(starts(&images), 1, "{policy}{code}");
    }
}

#[test]
fn killed_lead_reruns_its_program_with_on_failure() {
    let images = images(
        &format!(
            "{ON_FAILURE}{}",
            submit(&counted("[ -e /tmp/again ] || { echo up; sleep 60; }"))
        ),
        2,
    );
    let network = Network::new();
    let mut pods = vec![pod(&images, 0, &network), pod(&images, 1, &network)];
    pods[0].wait_for_output("up\n");
    // Gives the follower's agent the time to notice that its broker has joined.
    std::thread::sleep(Duration::from_millis(600));
    let lead = pods.remove(0);
    send(lead.pid, 9);
    lead.end();
    open(&images, "again");
    assert_eq!(pod(&images, 0, &network).end().code, 0);
    assert_eq!(starts(&images), 2);
    // The follower waits for an attempt after this one. If its pod alone is removed, the Job has to replace it.
    pods[0].signal(15);
    assert_eq!(pods.remove(0).end().code, i32::from(REPLACE));
}

/// Shuts the instance down, as `kubectl minicluster stop` does.
fn shut_down(lead: &Running) {
    let stop = lead.exec(&[AGENT, "stop"]);
    // The pod may end before the command does. Then the kernel kills the command.
    assert!(
        stop.status.success() || stop.status.signal() == Some(9),
        "{stop:?}"
    );
}

#[test]
fn on_failure_does_not_rerun_a_program_that_was_shut_down() {
    let script = counted("echo up; while :; do sleep 0.05; done");
    for (mode, size) in [("submit", 1), ("launcher", 2)] {
        let program = program(mode, &script);
        let images = images(&format!("{ON_FAILURE}{program}"), size);
        let network = Network::new();
        let followers: Vec<Running> = (1..images.len())
            .map(|index| pod(&images, index, &network))
            .collect();
        let lead = pod(&images, 0, &network);
        lead.wait_for_output("up\n");
        shut_down(&lead);
        let ended = lead.end();
        assert_eq!(ended.code, 143, "{}", ended.stderr);
        let expected = Termination {
            shut_down: true,
            ..program_ended_with(143)
        };
        assert_eq!(termination_of(&images[0]), expected);
        for _ in 0..2 {
            let later = pod(&images, 0, &network).end();
            assert_eq!((later.code, starts(&images)), (143, 1), "{}", later.stderr);
            assert_eq!(termination_of(&images[0]), expected);
        }
        for follower in followers {
            follower.wait_for_output("this pod stays for the lead's next attempt");
            follower.signal(15);
            assert_eq!(follower.end().code, i32::from(REPLACE));
        }
    }
}

/// The program has failed by itself, and the instance still shuts down or has just ended.
#[test]
fn on_failure_does_not_rerun_a_failed_program_after_a_stop() {
    let post = "[runner.snippets]\npost = 'echo >/tmp/ending; sleep 4'\n";
    let trap = "[runner.snippets]\npre = 'trap \"echo >/tmp/ending; sleep 4\" EXIT'\n";
    // The dump of the real Flux ends too soon. So a script in its rc3 takes a while.
    let rc3 = "[runner.snippets]\ninit = \"\"\"mkdir -p /tmp/rc/rc3.d; \
               printf '#!/bin/sh\\necho >/tmp/ending; sleep 4\\n' >/tmp/rc/rc3.d/slow; \
               chmod +x /tmp/rc/rc3.d/slow; export FLUX_RC_EXTRA=/tmp/rc\"\"\"\n";
    let before_end = if real_flux().is_some() {
        ("", rc3)
    } else {
        (ARCHIVE, "")
    };
    for (fields, snippets) in [before_end, ("", post), ("", trap)] {
        let program = submit(&counted("exit 3"));
        let images = images(&format!("{fields}{ON_FAILURE}{program}{snippets}"), 1);
        let network = Network::new();
        let lead = lead_with_slow_dump(&images[0], &network, "writes=8 pause=500");
        eventually("the program has ended", || {
            (has_dump_begun(&images[0]) || gate(&images[0], "ending").exists()).then_some(())
        });
        shut_down(&lead);
        let ended = lead.end();
        assert_eq!(ended.code, 3, "{snippets}: {}", ended.stderr);
        for _ in 0..2 {
            let later = pod(&images, 0, &network).end();
            assert_eq!(
                (later.code, starts(&images)),
                (3, 1),
                "{snippets}: {}",
                later.stderr
            );
            assert!(termination_of(&images[0]).shut_down, "{snippets}");
        }
    }
}

/// The image of a lead. At the first start, its launcher submits a job that waits for 8 s, and then runs `end`. At the
/// second start, it waits for all jobs.
fn with_waiting_job(fields: &str, end: &str) -> Vec<Image> {
    let script = counted(&format!(
        "if [ -e /tmp/again ]; then flux queue drain; exit; fi; echo >/tmp/again
         flux submit --begin-time=+8s sh -c 'echo >>/tmp/jobs'; echo up; {end}"
    ));
    let program = launch(&script);
    let images = images(&format!("{fields}{program}"), 1);
    fs::create_dir(images[0].at("/state")).unwrap();
    images
}

/// Starts the lead of [`with_waiting_job`] again. Returns whether the job has run.
fn has_waiting_job_run(images: &[Image], network: &Network) -> bool {
    let later = pod(images, 0, network).end();
    assert_eq!((later.code, starts(images)), (0, 2), "{}", later.stderr);
    gate(&images[0], "jobs").exists()
}

#[test]
fn waiting_jobs_of_a_failed_attempt_do_not_run_in_a_retry() {
    in_parallel(["", ARCHIVE].into_iter(), |archive| {
        let images = with_waiting_job(&format!("{archive}{ON_FAILURE}"), "exit 3");
        let network = Network::new();
        assert_eq!(pod(&images, 0, &network).end().code, 3);
        assert!(!has_waiting_job_run(&images, &network), "{archive}");
    });
}

/// With an archive, a stop may be a suspension. Without one, only this pod can find the jobs again.
#[test]
fn waiting_jobs_of_a_stopped_attempt_stay_only_in_an_archive() {
    in_parallel(["", ARCHIVE].into_iter(), |archive| {
        let fields = format!("{archive}{ON_FAILURE}");
        let images = with_waiting_job(&fields, "while :; do sleep 0.05; done");
        let network = Network::new();
        let lead = pod(&images, 0, &network);
        lead.wait_for_output("up\n");
        lead.signal(15);
        assert_eq!(lead.end().code, 143);
        assert_eq!(has_waiting_job_run(&images, &network), !archive.is_empty());
    });
}

#[test]
fn waiting_jobs_in_the_archive_of_a_failure_run_later() {
    let images = with_waiting_job(ARCHIVE, "exit 3");
    let network = Network::new();
    assert_eq!(pod(&images, 0, &network).end().code, 3);
    forget_starts(&images[0]);
    assert!(has_waiting_job_run(&images, &network));
}

/// A container may also be stopped alone: by a probe that fails, or with its node, which then starts it again.
#[test]
fn on_failure_reruns_a_program_whose_container_was_stopped() {
    let script = counted("[ -e /tmp/again ] || { echo up; while :; do sleep 0.05; done; }");
    let images = images(&format!("{ON_FAILURE}{}", submit(&script)), 1);
    let network = Network::new();
    let lead = pod(&images, 0, &network);
    lead.wait_for_output("up\n");
    lead.signal(15);
    assert_eq!(lead.end().code, 143);
    let expected = Termination {
        program_code: Some(143),
        ..Termination::new(Ender::Stop, 143)
    };
    assert_eq!(termination_of(&images[0]), expected);
    fs::write(gate(&images[0], "again"), "").unwrap();
    assert_eq!((pod(&images, 0, &network).end().code, starts(&images)), (0, 2));
}

#[test]
fn on_failure_obeys_a_stop_while_the_archive_is_saved() {
    let spec = format!(
        "{ARCHIVE}{ON_FAILURE}{}",
        submit(&counted("until [ -e /tmp/go ]; do sleep 0.05; done; exit 3"))
    );
    let images = images(&spec, 1);
    fs::create_dir(images[0].at("/state")).unwrap();
    let network = Network::new();
    let lead = pod(&images, 0, &network);
    eventually("the program has started", || (starts(&images) == 1).then_some(()));
    let archive = images[0].at("/state/archive.tgz");
    fs::write(&archive, "").unwrap();
    let in_pod = |words: &[&str]| {
        let mut command = Command::new("nsenter");
        command
            .args(["-t", &lead.pid.to_string(), "--mount"])
            .args(words)
            .arg(&archive);
        assert!(command.status().unwrap().success(), "{words:?}");
    };
    // A mount point cannot be replaced: it is busy.
    in_pod(&["mount", "--bind", archive.to_str().unwrap()]);
    fs::write(gate(&images[0], "go"), "").unwrap();
    lead.wait_for_output("retrying for up to");
    shut_down(&lead);
    let status = lead.exec(&[AGENT, "status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(
        (&status["has_broker"], &status["has_ended"]),
        (&false.into(), &true.into())
    );
    in_pod(&["umount"]);
    assert_eq!(lead.end().code, 3);
    let later = pod(&images, 0, &network).end();
    assert_eq!((later.code, starts(&images)), (3, 1), "{}", later.stderr);
    assert!(termination_of(&images[0]).shut_down);
}

/// The first start has ended, and the second is in `pre`: `stop` and `status` answer for the second.
#[test]
fn stop_and_status_ignore_the_end_of_an_earlier_start() {
    let pre = "[runner.snippets]\n\
               pre = 'until [ ! -e /tmp/starts ] || [ -e /tmp/go ]; do echo again; sleep 0.1; done'\n";
    let spec = format!("{ON_FAILURE}{}{pre}", submit(&counted("exit 3")));
    let images = images(&spec, 1);
    let network = Network::new();
    assert_eq!(pod(&images, 0, &network).end().code, 3);
    let lead = pod(&images, 0, &network);
    lead.wait_for_output("again\n");
    let stop = lead.exec(&[AGENT, "stop"]);
    assert!(!stop.status.success(), "{stop:?}");
    let status = lead.exec(&[AGENT, "status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(
        (&status["snippet"], &status["has_ended"]),
        (&"pre".into(), &false.into())
    );
    fs::write(gate(&images[0], "go"), "").unwrap();
    assert_eq!((lead.end().code, starts(&images)), (3, 2));
}

#[test]
fn restart_after_kill_knows_whether_program_was_shut_down() {
    // The dump of the real Flux ends too soon.
    if real_flux().is_some() {
        return;
    }
    for is_shut_down in [true, false] {
        let script = counted("[ -e /tmp/again ] || { echo up; while :; do sleep 0.05; done; }");
        let spec = format!("{ARCHIVE}{ON_FAILURE}{}", submit(&script));
        let images = images(&spec, 1);
        let network = Network::new();
        let lead = lead_with_slow_dump(&images[0], &network, "writes=100 pause=500");
        lead.wait_for_output("up\n");
        if is_shut_down {
            shut_down(&lead);
        } else {
            lead.signal(15);
        }
        eventually("the dump grows", || has_dump_begun(&images[0]).then_some(()));
        send(lead.pid, 9);
        lead.end();
        fs::write(gate(&images[0], "again"), "").unwrap();
        let (code, count) = if is_shut_down { (143, 1) } else { (0, 2) };
        for _ in 0..2 {
            let later = pod(&images, 0, &network).end();
            assert_eq!((later.code, starts(&images)), (code, count), "{}", later.stderr);
            let termination = termination_of(&images[0]);
            assert_eq!(termination.shut_down, is_shut_down, "{termination:?}");
        }
    }
}

#[test]
fn replacement_of_a_lost_lead_starts_nothing() {
    let spec = submit(&counted("exit 0")) + "[runner.snippets]\ninit = 'echo >>/tmp/starts'\n";
    for (variable, left) in [
        ("FLUX_AGENT_INDEX_FAILURES", "0"),
        ("FLUX_AGENT_INDEX_DISRUPTIONS", "2"),
    ] {
        let images = images(&spec, 1);
        let command = run_words(&["--restarts-left", left]);
        let mut container = Container::new(&images[0], "mc-0", &command);
        container.environment.insert(variable.into(), "1".into());
        let lead = Running::pod(&container, &Network::new());
        if left == "0" {
            assert_eq!(lead.end().code, i32::from(Category::LeadLost.code()));
            assert_eq!(termination_of(&images[0]).category, Some(Category::LeadLost));
        } else {
            lead.wait_for_output("waiting for the operator to restart this MiniCluster");
            lead.signal(15);
            assert_eq!(lead.end().code, 143);
            // The plan does not say whether there is an archive. Without one, nobody reads this text.
            let expected = Termination {
                archive_not_saved: Some("an earlier pod of the lead was lost".into()),
                ..Termination::new(Ender::Stop, 143)
            };
            assert_eq!(termination_of(&images[0]), expected);
        }
        assert_eq!(starts(&images), 0);
    }
}

#[test]
fn follower_that_fails_before_the_start_names_its_snippet() {
    let spec = submit("true") + "[runner.snippets]\nworker_pre = 'echo oh; exit 4'\n";
    let images = images(&spec, 2);
    let ended = start(&images, &Network::new(), &[]).remove(1).end();
    let termination = termination_of(&images[1]);
    assert_eq!(
        (ended.code, termination.by, termination.snippet.as_deref()),
        (4, Ender::Snippet, Some("workerPre")),
        "{termination:?}"
    );
}

#[test]
fn complete_workers_exit_0_only_after_joining() {
    let spec = submit("while [ ! -e /tmp/go ]; do sleep 0.02; done") + "[flux]\ncomplete_workers = true\n";
    let all = images(&spec, 2);
    let mut pods = start(&all, &Network::new(), &[]);
    let broker = eventually("the follower's broker", || pods[1].children().first().copied());
    // By then the follower has joined.
    std::thread::sleep(Duration::from_millis(1500));
    send(broker, 9);
    assert_eq!(pods.remove(1).end().code, 0);
    let alone = images(&spec, 2);
    fs::remove_file(alone[1].at("/mnt/flux/view/bin/flux")).unwrap();
    alone[1].file("/mnt/flux/view/bin/flux", 0o755, "#!/bin/sh\nexit 1\n");
    let mut pods = start(&alone, &Network::new(), &[]);
    let ended = pods.remove(1).end();
    assert_eq!(
        ended.code,
        i32::from(Category::BrokerFailed.code()),
        "{}",
        ended.stderr
    );
    assert!(
        termination_of(&alone[1])
            .message
            .contains("before it had joined its lead"),
        "{}",
        ended.stderr
    );
}

/// The Job would not recreate an index that has succeeded, and the lead's next attempt needs all pods.
#[test]
fn worker_does_not_complete_if_its_lead_may_restart() {
    let program = submit("while [ ! -e /tmp/go ]; do sleep 0.02; done; exit 7");
    let images = images(
        &format!("{ON_FAILURE}{program}[flux]\ncomplete_workers = true\n"),
        2,
    );
    let network = Network::new();
    let mut pods = start(&images, &network, &[]);
    let broker = eventually("the follower's broker", || pods[1].children().first().copied());
    // By then the follower has joined.
    std::thread::sleep(Duration::from_millis(1500));
    send(broker, 9);
    pods[1].wait_for_output("the broker was ended by signal 9; restarting it");
    send(pods[0].children()[0], 9);
    assert_ne!(pods.remove(0).end().code, 0);
    open(&images, "go");
    assert_eq!(pod(&images, 0, &network).end().code, 7);
    let follower = pods.remove(0);
    follower.wait_for_output("this pod stays for the lead's next attempt");
    follower.signal(15);
    assert_eq!(follower.end().code, i32::from(REPLACE));
}

#[test]
fn processes_left_by_a_killed_broker_are_killed() {
    let images = images("", 2);
    let flux = images[1].at("/mnt/flux/view/bin/flux");
    fs::rename(&flux, flux.with_file_name("flux-itself")).unwrap();
    let script = "#!/bin/sh\nsleep 300 &\necho \"left $!.\"\nexec /mnt/flux/view/bin/flux-itself \"$@\"\n";
    images[1].file("/mnt/flux/view/bin/flux", 0o755, script);
    let pods = start(&images, &Network::new(), &[]);
    pods[1].wait_for_output("left ");
    let broker = eventually("the follower's broker", || pods[1].children().first().copied());
    let left = eventually("the broker's child", || children_of(broker).first().copied());
    send(broker, 9);
    pods[1].wait_for_output("killed processes that the broker left behind: 1");
    // The next broker prints the line again.
    eventually("the next broker", || {
        (pods[1].stdout().matches("left ").count() == 2).then_some(())
    });
    assert!(state_of(left).is_none_or(|state| state == 'Z'));
}

#[test]
fn program_left_by_the_leads_killed_broker_is_killed() {
    let post = "count() { n=0; while read -r _; do n=$((n + 1)); done </tmp/ticks; echo \"$n ticks\"; }; \
                count; sleep 1; count";
    let program = "echo up; while :; do echo >>/tmp/ticks; sleep 0.05; done";
    let spec = format!(
        "[runner.program]\nmode = 'launcher'\nwords = ['sh', '-c', '{program}']\n\
         [runner.snippets]\npost = '''{post}'''\n"
    );
    let images = images(&spec, 1);
    let lead = pod(&images, 0, &Network::new());
    lead.wait_for_output("up\n");
    eventually("ticks", || gate(&images[0], "ticks").exists().then_some(()));
    send(lead.children()[0], 9);
    let ended = lead.end();
    assert_eq!(ended.code, 137, "{}", ended.stderr);
    let counts: Vec<&str> = ended
        .stdout
        .lines()
        .filter(|line| line.ends_with(" ticks"))
        .collect();
    assert!(counts.len() == 2 && counts[0] == counts[1], "{ended:?}");
    let termination = termination_of(&images[0]);
    assert_eq!(
        (termination.by, termination.program_code),
        (Ender::Program, Some(137))
    );
}

#[test]
fn agent_retries_in_the_pod_until_its_spec_exists() {
    let images = images(&submit(&counted("exit 0")), 1);
    let spec = images[0].at(flux_shared::paths::SPEC_FILE);
    let text = fs::read_to_string(&spec).unwrap();
    fs::remove_file(&spec).unwrap();
    let lead = pod(&images, 0, &Network::new());
    lead.wait_for_output("retrying for up to");
    fs::write(&spec, text).unwrap();
    assert_eq!((lead.end().code, starts(&images)), (0, 1));
}

#[test]
fn full_volume_is_retried_until_it_has_room_or_time_is_up() {
    for (script, code) in [
        ("(sleep 1; mount -o remount,size=1m \"$volume\") &", 0),
        ("", 245),
    ] {
        let images = images(&submit(&counted("exit 0")), 1);
        let command = run_words(&["--patience", if code == 0 { "30" } else { "1" }]);
        let mut container = Container::new(&images[0], "mc-0", &command);
        container.before = format!(
            "volume=$root/mnt/flux/config\nmount -t tmpfs -o size=4k tmpfs \"$volume\"\n\
             head -c 4096 /dev/zero >\"$volume/full\"\n{script}\n"
        );
        let ended = run(&[container]).remove(0);
        assert_eq!(ended.code, code, "{}", ended.stderr);
        assert!(
            ended.stderr.contains("no space left on device; retrying"),
            "{}",
            ended.stderr
        );
        assert_eq!(starts(&images), usize::from(code == 0));
    }
}

#[test]
fn stop_before_program_begins_reports_no_program_code() {
    // There is no quorum, since the second pod does not exist.
    let images = images(&submit(&counted("exit 0")), 2);
    let lead = pod(&images, 0, &Network::new());
    let socket = images[0].at("/mnt/flux/config/run/flux/local");
    eventually("the broker is up", || {
        std::os::unix::net::UnixStream::connect(&socket).ok()
    });
    std::thread::sleep(Duration::from_millis(300)); // long enough for the agent to notice that, too
    lead.signal(15);
    let ended = lead.end();
    assert!(ended.code > 128, "{}: {}", ended.code, ended.stderr);
    let termination = termination_of(&images[0]);
    assert_eq!(
        (termination.by, termination.program_code, starts(&images)),
        (Ender::Stop, None, 0)
    );
}

#[test]
fn instance_that_does_not_come_up_is_no_program_failure() {
    // The last instance has no program. A broker whose interpreter is missing cannot be started.
    let idle = "[runner]\ninteractive = true\n".to_owned();
    for (program, flux, why) in [
        (
            submit(&counted("exit 0")),
            "#!/bin/sh\nexit 1\n",
            "the broker ended with code 1)",
        ),
        (
            submit(&counted("exit 0")),
            "#!/bin/sh\nexit 0\n",
            "the broker ended with code 0)",
        ),
        (
            submit(&counted("exit 0")),
            "#!/bin/sh\nkill -9 $$\n",
            "the broker ended with code 137)",
        ),
        (
            submit(&counted("exit 0")),
            "#!/bin/nowhere\n",
            "failed to start /mnt/flux/view/bin/flux: ",
        ),
        (idle, "#!/bin/sh\nexit 3\n", "the broker ended with code 3)"),
    ] {
        let images = images(&program, 1);
        std::fs::remove_file(images[0].at("/mnt/flux/view/bin/flux")).unwrap();
        images[0].file("/mnt/flux/view/bin/flux", 0o755, flux);
        let ended = run_all(&images).remove(0);
        let termination = termination_of(&images[0]);
        assert_eq!(
            (ended.code, termination.by, termination.category),
            (248, Ender::Agent, Some(Category::BrokerFailed)),
            "{termination:?}"
        );
        assert_eq!((termination.program_code, starts(&images)), (None, 0));
        assert!(termination.message.contains(why), "{termination:?}");
    }
}
