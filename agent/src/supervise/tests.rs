//! The supervisor asks its policy and obeys it. No pending request delays signals, children or timeouts.

use std::ffi::OsString;
use std::future::ready;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use test_support::waiting::{DEADLINE, eventually};

use super::policy::DefaultPolicy;
use super::program::{ChildProgram, Environment, Output};
use super::*;
use crate::system::raw::ChildSetup;
use crate::testing::{
    allow_processes, alone, become_user, block_on, signal, signal_from_another_process, stop_after,
};

/// Runs a shell script under supervision. Returns how it ended.
fn supervise(
    folder: &Path,
    source: &str,
    (kill_after, terms): Bounds,
    policy: &mut dyn Policy,
) -> EndedChild {
    block_on(async {
        let mut supervisor = Supervisor::new().unwrap();
        let argv = ["/bin/sh", "-c", source].map(OsString::from);
        let environment: Environment = std::env::vars_os().collect();
        let (output, setup) = (Output::Inherit, ChildSetup::default());
        let program = ChildProgram {
            argv: &argv,
            environment: &environment,
            directory: folder,
            output,
            setup,
        };
        supervisor.set_kill_after(Some(kill_after));
        let child = supervisor.start(&program).unwrap();
        supervisor.run(child, terms, policy).await.unwrap()
    })
}

/// The time from the stop to SIGKILL, and the terms.
type Bounds = (Duration, Terms);

fn bounds(kill_after: Duration, second_stop: SecondStop) -> Bounds {
    (
        kill_after,
        Terms {
            target: SignalTarget::Group,
            second_stop,
        },
    )
}

/// Makes a request instead of a signal. The request is pending until the file `answered` exists.
struct Asks {
    answered: PathBuf,
}

impl Policy for Asks {
    fn in_place_of_signal(&mut self) -> Option<PolicyRequest> {
        let answered = self.answered.clone();
        Some(Box::pin(async move {
            while !answered.exists() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            true
        }))
    }
}

/// A script that records its pid and SIGUSR1, and ignores SIGTERM.
const DEAF: &str =
    "trap 'touch heard' USR1; trap '' TERM; echo $$ >pid.new; mv pid.new pid; while :; do sleep 0.02; done";

#[test]
fn signals_pass_on_while_awaiting_and_second_stop_kills() {
    let test = "supervise::tests::signals_pass_on_while_awaiting_and_second_stop_kills";
    alone(test, |folder| {
        let at = folder.to_owned();
        let signals = std::thread::spawn(move || {
            eventually("the program runs", || at.join("pid").exists().then_some(()));
            signal_from_another_process(Signal::SIGTERM);
            std::thread::sleep(DUPLICATE_STOP_WITHIN * 2);
            signal(Signal::SIGUSR1);
            eventually("SIGUSR1 is passed on", || at.join("heard").exists().then_some(()));
            signal_from_another_process(Signal::SIGTERM);
            let pid = std::fs::read_to_string(at.join("pid")).unwrap();
            let gone = || (!Path::new("/proc").join(pid.trim()).exists()).then_some(());
            eventually("the program is killed and reaped", gone);
            std::fs::write(at.join("answered"), "").unwrap();
        });
        let mut policy = Asks {
            answered: folder.join("answered"),
        };
        let ended = supervise(folder, DEAF, bounds(DEADLINE, SecondStop::Kills), &mut policy);
        assert_eq!(
            (ended.end, ended.stopped.map(|stop| stop.signal)),
            (ChildEnd::Signaled(9), Some(15))
        );
        signals.join().unwrap();
    });
}

/// The operator requests the end of a pod, whose agent then stops itself. Later, or before, the pod is deleted.
#[test]
fn stop_by_the_agent_itself_is_no_second_stop() {
    let test = "supervise::tests::stop_by_the_agent_itself_is_no_second_stop";
    alone(test, |folder| {
        for senders in [["self", "kubelet"], ["kubelet", "self"]] {
            let at = folder.join(senders[0]);
            std::fs::create_dir(&at).unwrap();
            let place = at.clone();
            let stops = std::thread::spawn(move || {
                eventually("the program runs", || place.join("pid").exists().then_some(()));
                for sender in senders {
                    if sender == "self" {
                        signal(Signal::SIGTERM);
                    } else {
                        signal_from_another_process(Signal::SIGTERM);
                        // Also sent to the process group.
                        signal_from_another_process(Signal::SIGTERM);
                    }
                    std::thread::sleep(DUPLICATE_STOP_WITHIN * 2);
                }
                std::fs::write(place.join("end"), "").unwrap();
            });
            let script = "trap '' TERM; touch pid; until [ -e end ]; do sleep 0.02; done; exit 3";
            let bounds = bounds(DEADLINE, SecondStop::Kills);
            let ended = supervise(&at, script, bounds, &mut DefaultPolicy);
            assert_eq!(ended.end, ChildEnd::Exited(3), "{senders:?}");
            stops.join().unwrap();
        }
    });
}

#[test]
fn kill_deadline_passes_while_a_request_is_pending() {
    alone(
        "supervise::tests::kill_deadline_passes_while_a_request_is_pending",
        |folder| {
            let at = folder.to_owned();
            stop_after(at.join("pid"));
            std::thread::spawn(move || {
                let pid = eventually("the program runs", || {
                    std::fs::read_to_string(at.join("pid")).ok()
                });
                eventually("the program is killed", || {
                    (!Path::new("/proc").join(pid.trim()).exists()).then_some(())
                });
                std::fs::write(at.join("answered"), "").unwrap();
            });
            let mut policy = Asks {
                answered: folder.join("answered"),
            };
            let ended = supervise(
                folder,
                DEAF,
                bounds(Duration::from_millis(300), SecondStop::IsIgnored),
                &mut policy,
            );
            assert_eq!(ended.end, ChildEnd::Signaled(9));
        },
    );
}

/// Answers requests at once. At the first deadline, it creates a file instead of the kill.
struct Answers {
    useful: bool,
    killed: Option<PathBuf>,
}

impl Policy for Answers {
    fn in_place_of_signal(&mut self) -> Option<PolicyRequest> {
        Some(Box::pin(ready(self.useful)))
    }

    fn kill_first(&mut self) -> Option<PolicyRequest> {
        std::fs::write(self.killed.take()?, "").unwrap();
        Some(Box::pin(ready(true)))
    }
}

#[test]
fn signal_follows_a_vain_request_and_kill_follows_kill_first() {
    let test = "supervise::tests::signal_follows_a_vain_request_and_kill_follows_kill_first";
    alone(test, |folder| {
        let source =
            "trap 'exit 7' TERM; touch $PWD/$0-runs; while [ ! -e killed ]; do sleep 0.02; done; exit 5";
        let script_for = |name: &str| source.replace("$0", name);
        // In vain: the program gets SIGTERM (7). Useful: it gets no signal, and ends by itself after `kill_first` (5).
        for (name, useful, code) in [("vain", false, 7), ("useful", true, 5)] {
            stop_after(folder.join(format!("{name}-runs")));
            let bound = if useful {
                Duration::from_millis(300)
            } else {
                DEADLINE
            };
            let mut policy = Answers {
                useful,
                killed: Some(folder.join("killed")),
            };
            let ended = supervise(
                folder,
                &script_for(name),
                bounds(bound, SecondStop::IsIgnored),
                &mut policy,
            );
            assert_eq!(ended.end, ChildEnd::Exited(code), "{name}");
        }
        // A program that does not react is killed too.
        stop_after(folder.join("pid"));
        let mut policy = Answers {
            useful: true,
            killed: Some(folder.join("killed")),
        };
        let ended = supervise(
            folder,
            DEAF,
            bounds(Duration::from_millis(300), SecondStop::IsIgnored),
            &mut policy,
        );
        assert_eq!(ended.end, ChildEnd::Signaled(9));
    });
}

/// Holds a stop back, and ends the hold at once with an order.
struct Holds;

impl Policy for Holds {
    fn at_stop(&mut self, _: i32) -> AtStop {
        AtStop::Hold(DEADLINE)
    }

    fn reason(&mut self, _: i32, held: Option<Instant>) -> policy::EndReason<'_> {
        Box::pin(async move {
            if held.is_none() {
                return std::future::pending().await;
            }
            Order {
                signal: libc::SIGINT,
                within: Some(Duration::from_millis(300)),
            }
        })
    }
}

#[test]
fn policy_ends_a_hold_and_default_signals_at_once() {
    let test = "supervise::tests::policy_ends_a_hold_and_default_signals_at_once";
    alone(test, |folder| {
        let source = "trap 'exit 7' TERM; trap 'exit 8' INT; touch $0; while :; do sleep 0.02; done";
        for (name, code) in [("held", 8), ("plain", 7)] {
            stop_after(folder.join(name));
            let policy: &mut dyn Policy = if name == "held" {
                &mut Holds
            } else {
                &mut DefaultPolicy
            };
            let ended = supervise(
                folder,
                &source.replace("$0", name),
                bounds(DEADLINE, SecondStop::Kills),
                policy,
            );
            assert_eq!(
                (ended.end, ended.was_passed_on),
                (ChildEnd::Exited(code), true),
                "{name}"
            );
        }
        // The time limit of the order applies.
        stop_after(folder.join("deaf"));
        let source = "trap '' INT; touch deaf; while :; do sleep 0.02; done";
        let ended = supervise(folder, source, bounds(DEADLINE, SecondStop::Kills), &mut Holds);
        assert_eq!(ended.end, ChildEnd::Signaled(9));
    });
}

/// Sends no signal, since the program ends by itself.
struct LeavesAlone;

impl Policy for LeavesAlone {
    fn at_stop(&mut self, _: i32) -> AtStop {
        AtStop::PassOn(Order::signal(0))
    }
}

#[test]
fn order_without_a_signal_counts_as_not_passed_on() {
    let test = "supervise::tests::order_without_a_signal_counts_as_not_passed_on";
    alone(test, |folder| {
        stop_after(folder.join("alone"));
        let source = "touch alone; sleep 2";
        let ended = supervise(
            folder,
            source,
            bounds(DEADLINE, SecondStop::Kills),
            &mut LeavesAlone,
        );
        assert_eq!(
            (ended.end, ended.stopped.is_some(), ended.was_passed_on),
            (ChildEnd::Exited(0), true, false)
        );
    });
}

/// A failed start is tried again, so the program must not run.
#[test]
fn start_that_fails_at_the_process_limit_leaves_no_program() {
    let test = "supervise::tests::start_that_fails_at_the_process_limit_leaves_no_program";
    alone(test, |folder| {
        become_user(61_235, folder);
        // Enough for the program, or for the thread that copies its output, but not for both.
        allow_processes(1);
        block_on(async {
            let argv = ["/bin/sh", "-c", ": >ran"].map(OsString::from);
            let program = ChildProgram {
                argv: &argv,
                environment: &Environment::new(),
                directory: folder,
                output: Output::LineBuffered,
                setup: ChildSetup::default(),
            };
            let error = Supervisor::new().unwrap().start(&program).unwrap_err();
            assert!(error.is_passing, "{error}");
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(!folder.join("ran").exists(), "{error}");
        });
    });
}
