//! Pods that are stopped.

use std::os::unix::process::ExitStatusExt;

use super::*;
use crate::image::Ended;
use crate::live::{children_of, program_of};

pub(super) const HANGING: &str = "trap 'exit 3' TERM; echo up; while :; do sleep 0.05; done";

#[test]
fn stop_of_all_pods_ends_program_and_followers_soon() {
    let images = images(&submit(HANGING), 3);
    let pods = start(&images, &Network::new(), &[]);
    pods[0].wait_for_output("up\n");
    let begin = Instant::now();
    // The worst order: followers first.
    pods.iter().rev().for_each(|pod| pod.signal(15));
    let codes: Vec<i32> = pods.into_iter().map(|pod| pod.end().code).collect();
    assert_eq!(codes, [3, 0, 0]);
    let expected = Termination {
        program_code: Some(3),
        ..Termination::new(Ender::Stop, 3)
    };
    assert_eq!(termination_of(&images[0]), expected);
    // Less than the 27 s for which a follower would hold the stop back (`hold_stop`).
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

/// Flux prints about a thousand lines a second, so it still prints after the job's end. (The fake Flux has printed all
/// by then: for it, the stop comes during the shutdown or later.)
#[test]
fn stop_after_the_jobs_end_lets_flux_print_its_output() {
    let script = "i=0; while [ $i -lt 10000 ]; do i=$((i+1)); echo $i; done; echo >/tmp/done; exit 3";
    let images = images(&submit(script), 2);
    let pods = start(&images, &Network::new(), &["--grace-period", "60"]);
    eventually("the job's end", || {
        images
            .iter()
            .any(|image| gate(image, "done").exists())
            .then_some(())
    });
    // Flux learns of the end.
    std::thread::sleep(Duration::from_secs(1));
    pods.iter().rev().for_each(|pod| pod.signal(15));
    let ended: Vec<_> = pods.into_iter().map(Running::end).collect();
    assert_eq!((ended[0].code, ended[1].code), (3, 0), "{}", ended[0].stderr);
    assert!(ended[0].stdout.contains("10000"), "{}", ended[0].stderr);
    assert!(
        real_flux().is_none() || ended[0].stderr.contains("waiting until its output is printed"),
        "{}",
        ended[0].stderr
    );
}

/// Stops only the follower of two pods while a program runs. Returns how it ended, and after how long.
fn stop_follower_alone(images: &[Image], grace_period: &str) -> (Ended, Duration) {
    let mut pods = start(images, &Network::new(), &["--grace-period", grace_period]);
    pods[0].wait_for_output("up\n");
    let begin = Instant::now();
    pods[1].signal(15);
    (pods.remove(1).end(), begin.elapsed())
}

#[test]
fn follower_stopped_alone_leaves_soon_and_is_no_success() {
    let images = images(&submit(HANGING), 2);
    let (ended, took) = stop_follower_alone(&images, "60");
    assert_eq!(ended.code, i32::from(REPLACE), "{}", ended.stderr);
    assert_eq!(termination_of(&images[1]), Termination::new(Ender::Stop, REPLACE));
    assert!(
        ended
            .stderr
            .contains("the lead stays, only this pod is being removed"),
        "{}",
        ended.stderr
    );
    assert!(took < Duration::from_secs(30), "{took:?}");
}

#[test]
fn stopped_follower_that_cannot_ask_waits_for_its_limit() {
    // The broker cannot be asked, since its socket is not known.
    let images = images(&(submit(HANGING) + "[flux]\ndisable_socket = true\n"), 2);
    let (ended, held) = stop_follower_alone(&images, "10");
    assert_eq!(ended.code, i32::from(REPLACE), "{}", ended.stderr);
    assert_eq!(termination_of(&images[1]), Termination::new(Ender::Stop, REPLACE));
    assert!(
        held >= Duration::from_secs(8) && held < Duration::from_secs(20),
        "{held:?}"
    );
}

/// A submitted program or a launcher that exits with 3, `seconds` after it gets a stop signal.
pub(super) fn tidy(seconds: u32, mode: &str) -> String {
    let script =
        format!("trap 'sleep {seconds}; echo tidied up; exit 3' TERM; echo up; while :; do sleep 0.05; done");
    program(mode, &script)
}

#[test]
fn stopped_program_has_its_time_and_followers_wait() {
    // Longer than the five seconds that Flux itself allows.
    for mode in ["submit", "launcher"] {
        let images = images(&tidy(7, mode), 2);
        let pods = start(&images, &Network::new(), &["--grace-period", "60"]);
        pods[0].wait_for_output("up\n");
        pods.iter().rev().for_each(|pod| pod.signal(15));
        let ended: Vec<_> = pods.into_iter().map(Running::end).collect();
        assert!(
            ended[0].stdout.ends_with("tidied up\n"),
            "{mode}: {}",
            ended[0].stderr
        );
        assert_eq!(
            (ended[0].code, ended[1].code),
            (3, 0),
            "{mode}: {}",
            ended[1].stderr
        );
    }
}

#[test]
fn stopped_batch_gives_its_jobs_the_grace_period() {
    // A batch of the fake Flux has no instance. Other tests compare its arguments with the plan.
    if real_flux().is_none() {
        return;
    }
    let job = "trap 'sleep 7; echo >/tmp/tidied; exit 3' TERM; echo >/tmp/up; while :; do sleep 0.05; done";
    let text = serde_json::to_string(&format!("flux run sh -c \"{job}\"\n")).unwrap();
    let images = images(
        &format!("[runner.program]\nmode = 'batch-raw'\ntext = {text}\n"),
        2,
    );
    let pods = start(&images, &Network::new(), &["--grace-period", "60"]);
    eventually("the batch's job", || {
        images
            .iter()
            .any(|image| gate(image, "up").exists())
            .then_some(())
    });
    pods.iter().for_each(|pod| pod.signal(15));
    let ended: Vec<_> = pods.into_iter().map(Running::end).collect();
    assert!(
        images.iter().any(|image| gate(image, "tidied").exists()),
        "{ended:?}"
    );
    assert_ne!(ended[0].code, 0, "{ended:?}");
    assert_eq!(termination_of(&images[0]).by, Ender::Stop);
}

#[test]
fn program_that_ignores_stop_is_killed_within_grace_period() {
    for mode in ["submit", "launcher"] {
        let script = "trap '' TERM; echo up; while :; do sleep 0.05; done";
        let images = images(&program(mode, script), 2);
        // Flux's shutdown runs Python, which takes long on a busy machine.
        let (grace, least, most) = if real_flux().is_some() {
            ("40", 30, 40)
        } else {
            ("10", 6, 10)
        };
        let pods = start(&images, &Network::new(), &["--grace-period", grace]);
        pods[0].wait_for_output("up\n");
        let begin = Instant::now();
        pods.iter().for_each(|pod| pod.signal(15));
        let ended: Vec<_> = pods.into_iter().map(Running::end).collect();
        assert_eq!(
            (ended[0].code, ended[1].code),
            (137, 0),
            "{mode}: {} {}",
            ended[0].stderr,
            ended[1].stderr
        );
        let took = begin.elapsed();
        assert!(
            took >= Duration::from_secs(least) && took < Duration::from_secs(most),
            "{mode}: {took:?}"
        );
        assert_eq!(termination_of(&images[0]).by, Ender::Stop);
    }
}

/// A container without a command may have a terminal. Flux then runs a shell, which ends by SIGHUP.
#[test]
fn instance_without_a_command_completes_only_if_shut_down() {
    for has_terminal in [false, true] {
        for is_deleted in [false, true] {
            let images = images("", 2);
            let (network, command) = (Network::new(), run_words(&[]));
            let pod = |index: usize| {
                let (image, name) = (&images[index], format!("mc-{index}"));
                if has_terminal {
                    let (pod, terminal) = Running::pod_with_terminal(image, &name, &command, &network);
                    (pod, Some(terminal))
                } else {
                    (
                        Running::pod(&Container::new(image, &name, &command), &network),
                        None,
                    )
                }
            };
            let (lead, follower) = (pod(0), pod(1));
            eventually("the instance", || {
                (status(&lead.0)["state"] == "run").then_some(())
            });
            // The broker of real Flux has other children, too. That of the fake Flux has only the shell.
            let is_shell = |pid: &i32| real_flux().is_none() || program_of(*pid).ends_with("sh");
            let has_shell = || {
                lead.0
                    .children()
                    .iter()
                    .any(|broker| children_of(*broker).iter().any(is_shell))
            };
            eventually("its shell", || (has_shell() || !has_terminal).then_some(()));
            if is_deleted {
                [&lead, &follower].iter().for_each(|(pod, _)| pod.signal(15));
            } else {
                let stop = lead.0.exec(&[AGENT, "stop"]);
                // The pod may end before the command does. Then the kernel kills the command.
                assert!(
                    stop.status.success() || stop.status.signal() == Some(9),
                    "{stop:?}"
                );
            }
            let codes = [lead, follower].map(|(pod, _terminal)| pod.end().code);
            let (code, by) = if is_deleted {
                (143, Ender::Stop)
            } else {
                (0, Ender::Program)
            };
            assert_eq!(codes, [code, 0], "terminal: {has_terminal}");
            assert_eq!(
                termination_of(&images[0]),
                Termination::new(by, code as u8),
                "terminal: {has_terminal}"
            );
        }
    }
}

#[test]
fn follower_that_ignores_a_late_stop_ends_in_grace_period() {
    // Without a socket, the agent cannot find out that the lead stays, so it stops the broker late. The prefix ignores
    // the stop.
    let prefix = "[runner]\nprefix = ['bash', '-c', 'trap \"\" TERM; \"$@\"; sleep 60', '-']\n";
    let images = images(
        &format!("{prefix}{}[flux]\ndisable_socket = true\n", submit(HANGING)),
        2,
    );
    let mut pods = start(&images, &Network::new(), &["--grace-period", "20"]);
    pods[0].wait_for_output("up\n");
    let begin = Instant::now();
    pods[1].signal(15);
    pods.remove(1).end();
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}

/// A launcher that runs a job on both nodes until a gate opens, and stays until another gate opens. With a
/// smaller quorum, as for pods that may join later, R comes from the lead. If Flux discovers R itself, a node
/// that leaves is lost for good (flux-core 0.88).
fn on_both() -> String {
    let job = "echo up; until [ -e /tmp/go ]; do sleep 0.05; done";
    let stays = "until [ -e /tmp/end ]; do sleep 0.05; done";
    let script = format!(
        "trap \"{stays}; exit 3\" TERM; flux run -N 2 -n 2 sh -c '{job}'; echo ended with $?; {stays}"
    );
    format!("quorum = 1\n{}", launch(&script))
}

/// The state of a node, from the lead's `usage`.
pub(super) fn node_state(lead: &Running, rank: usize) -> String {
    let usage = lead.exec(&[AGENT, "usage"]).stdout;
    let usage: serde_json::Value = serde_json::from_slice(&usage).unwrap_or_default();
    usage["resources"]["hosts"][rank]["state"]
        .as_str()
        .unwrap_or_default()
        .to_owned()
}

#[test]
fn leaving_node_is_drained_and_takes_jobs_again_on_return() {
    let images = images(&on_both(), 2);
    let network = Network::new();
    let mut pods = start(&images, &network, &["--grace-period", "60"]);
    eventually("both tasks", || {
        (pods[0].stdout().matches("up\n").count() == 2).then_some(())
    });
    assert_eq!(node_state(&pods[0], 1), "up");
    let follower = pods.remove(1);
    follower.signal(15);
    follower.wait_for_output("only this pod is being removed: node drained");
    eventually("its node is drained", || {
        (node_state(&pods[0], 1) == "drained").then_some(())
    });
    // Longer than the two looks for jobs, one every 2 s, after which the broker of an idle node is stopped.
    std::thread::sleep(Duration::from_secs(5));
    assert!(
        !follower.stderr().contains("stopping this broker"),
        "{}",
        follower.stderr()
    );
    assert!(!pods[0].stdout().contains("ended"), "{}", pods[0].stdout());
    open(&images, "go");
    let ended = follower.end();
    assert_eq!(ended.code, i32::from(REPLACE), "{}", ended.stderr);
    assert!(
        ended
            .stderr
            .contains("the lead stays, only this pod is being removed: stopping this broker"),
        "{}",
        ended.stderr
    );
    pods[0].wait_for_output("ended with 0\n");

    forget_starts(&images[1]);
    let back = Running::pod(&Container::new(&images[1], "mc-1", &run_words(&[])), &network);
    pods[0].wait_for_output("undrained rank 1, which is back");
    eventually("its node is up again", || {
        (node_state(&pods[0], 1) == "up").then_some(())
    });
    fs::write(gate(&images[0], "end"), "").unwrap();
    assert_eq!((pods.remove(0).end().code, back.end().code), (0, 0));
}

/// As when pods are deleted one after the other: the lead gets the stop after the follower has concluded that the lead
/// stays.
#[test]
fn follower_stopped_before_lead_ends_with_the_job() {
    let images = images(&on_both(), 2);
    let pods = start(&images, &Network::new(), &["--grace-period", "60"]);
    eventually("both tasks", || {
        (pods[0].stdout().matches("up\n").count() == 2).then_some(())
    });
    pods[1].signal(15);
    pods[1].wait_for_output("only this pod is being removed: node drained");
    pods[0].signal(15);
    pods[1].wait_for_output("the lead is being stopped as well");
    for name in ["go", "end"] {
        open(&images, name);
    }
    let ended: Vec<_> = pods.into_iter().map(Running::end).collect();
    assert_eq!(ended[1].code, 0, "{}", ended[1].stderr);
    // The agent neither killed its broker ("killing this broker: a job runs ...") nor stopped it.
    assert!(!ended[1].stderr.contains("this broker:"), "{}", ended[1].stderr);
    assert!(
        !ended[1].stderr.contains("stopping this broker"),
        "{}",
        ended[1].stderr
    );
}

#[test]
fn follower_broker_that_somebody_else_stops_is_restarted() {
    let gate_open = "echo up; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo done";
    let images = images(&submit(gate_open), 2);
    let pods = start(&images, &Network::new(), &[]);
    pods[0].wait_for_output("up\n");
    let broker = eventually("the follower's broker", || pods[1].children().first().copied());
    std::thread::sleep(SEEN_BY);
    send(broker, 15);
    pods[1]
        .wait_for_output("the broker was stopped by somebody else, and the lead is still up; restarting it");
    eventually("it is up again", || {
        (status(&pods[1])["state"] == "run").then_some(())
    });
    open(&images, "go");
    let codes: Vec<i32> = pods.into_iter().map(|pod| pod.end().code).collect();
    assert_eq!(codes, [0, 0]);
}

#[test]
fn stop_of_a_hanging_job_ends_within_the_grace_period() {
    let images = images(&on_both(), 2);
    let mut pods = start(&images, &Network::new(), &["--grace-period", "15"]);
    eventually("both tasks", || {
        (pods[0].stdout().matches("up\n").count() == 2).then_some(())
    });
    let begin = Instant::now();
    let follower = pods.remove(1);
    follower.signal(15);
    let ended = follower.end();
    let took = begin.elapsed();
    assert!(
        took >= Duration::from_secs(12) && took < Duration::from_secs(15),
        "{took:?}"
    );
    assert!(
        ended
            .stderr
            .contains("this node was not seen to become idle in time"),
        "{}",
        ended.stderr
    );
    // Flux reports the job's end at once, since the broker was killed.
    if real_flux().is_some() {
        pods[0].wait_for_output("ended with ");
        assert!(begin.elapsed() < Duration::from_secs(25), "{:?}", begin.elapsed());
    }
}

/// Flux answers only its own user. So the agent, as root, has to ask as this user whether the lead stays.
#[test]
fn follower_with_flux_user_knows_that_the_lead_stays() {
    let images = images(
        &(submit(HANGING) + "[runner.user]\nname = 'flux'\nuid = 1000\n"),
        2,
    );
    let (ended, took) = stop_follower_alone(&images, "60");
    assert_eq!(ended.code, i32::from(REPLACE), "{}", ended.stderr);
    assert!(took < Duration::from_secs(30), "{took:?}");
}
