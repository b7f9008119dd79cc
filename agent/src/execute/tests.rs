//! Executes small plans, most with a shell script in place of the broker.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use flux_agent_plan::plan::{AtEnd, InstancePart, Launch, Role, SignalTarget, Stdout, VERSION, Waits};
use flux_shared::agent_spec::LogFormat;
use flux_shared::command_words::Word;
use flux_shared::termination::Ender;
use test_support::waiting::{DEADLINE, eventually};

use super::*;
use crate::flux_rpc::connection::peer::{ACCEPTED, answer_of};
use crate::report::activity::ActivityFile;
use crate::testing::{self, FOLDER_VARIABLE, block_on, stop_after};

mod snippets;

/// Runs `work` in its own process. Its folder has the program that a snippet shell runs to report its state.
fn alone(test: &str, work: impl FnOnce(&Path)) -> String {
    testing::alone(&format!("execute::tests::{test}"), |folder| {
        program(folder, "agent", AGENT);
        work(folder);
    })
}

fn options() -> Options {
    let agent = Path::new(&std::env::var_os(FOLDER_VARIABLE).unwrap()).join("agent");
    Options {
        root: "/".into(),
        agent,
        patience: Duration::ZERO,
        activity_file: ActivityFile::default(),
    }
}

/// Replaces `flux-agent snippet-state`, since the test's program is not flux-agent. Reports only the needed
/// parts.
const AGENT: &str = "#!/bin/sh\nprintf 'status=%s\\0umask=0022\\0directory=/\\0as-flux=\\0environment\\0PATH=%s\\0end\\0' \"$3\" \"$PATH\" >\"$2\"\n";

fn plan(role: Role, quiet: bool, steps: Vec<Step>) -> Plan {
    Plan {
        version: VERSION,
        cluster: "mc".into(),
        role,
        index: 0,
        hostname: "mc-0".into(),
        rank: Some(0),
        trace: None,
        log: flux_agent_plan::plan::Log {
            quiet,
            timed: false,
            format: LogFormat::Text,
        },
        waits: Waits::default(),
        kill_after: Some(DEADLINE.as_secs_f64()),
        binding: None,
        notices: Vec::new(),
        steps,
    }
}

/// The container's exit code after these steps.
fn execute_all(role: Role, quiet: bool, steps: Vec<Step>) -> Result<u8, Failure> {
    execute_to_the_end(role, quiet, steps).0
}

/// Also returns what the steps recorded about the container's end.
fn execute_to_the_end(role: Role, quiet: bool, steps: Vec<Step>) -> (Result<u8, Failure>, ContainerEnd) {
    let plan = plan(role, quiet, steps);
    block_on(async {
        let mut supervisor = Supervisor::new().unwrap();
        let replan = || panic!("no plan here has Step::Replan");
        let (mut timeline, mut ending) = (ContainerTimeline::start(), ContainerEnd::default());
        let code = run_plan(
            &plan,
            &replan,
            options(),
            &mut supervisor,
            &mut timeline,
            &mut ending,
        )
        .await;
        (code, ending)
    })
}

fn words(texts: &[&str]) -> Vec<Word> {
    texts.iter().map(|text| Word::literal(*text)).collect()
}

/// A parent on this machine.
fn local_parent(port: u16) -> BrokerAddress {
    BrokerAddress {
        host: "127.0.0.1".into(),
        port,
        only_looked_up: false,
    }
}

/// A launch of a lead with a program.
pub(super) fn launch(argv: &[&str]) -> Launch {
    Launch {
        label: "fluxstart",
        part: InstancePart::Lead,
        argv: words(argv),
        options: None,
        flux: None,
        program: words(argv),
        run_as: None,
        environment: Vec::new(),
        stdout: Stdout::Inherit,
        signals: SignalTarget::Process,
        socket: None,
        parent: None,
        lead: None,
        hold_stop: None,
        drain: None,
        below: String::new(),
        job_shell: None,
        metrics: None,
        result: None,
        record: None,
        needs_instance: false,
        at_end: AtEnd::Exit,
    }
}

fn start(launch: Launch) -> Step {
    Step::Launch(launch.into())
}

pub(super) fn program(folder: &Path, name: &str, text: &str) -> String {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path.display().to_string()
}

/// A program with a child. The child records SIGTERM, and runs until the parent, on SIGTERM, creates `end`.
fn parent_and_child(folder: &Path, name: &str) -> String {
    let at = folder.display();
    let child = format!(
        "trap 'touch {at}/child-got-stop' TERM; touch {at}/ready; while [ ! -e {at}/end ]; do sleep 0.02; done"
    );
    let text = format!(
        "#!/bin/sh\ntrap 'sleep 0.5; touch {at}/end' TERM\n(sh -c \"{child}\") & wait; wait; exit 7\n"
    );
    program(folder, name, &text)
}

#[test]
fn stop_signals_the_planned_processes_for_any_program_name() {
    alone(
        "stop_signals_the_planned_processes_for_any_program_name",
        |folder| {
            for (name, signals) in [
                ("flux", SignalTarget::Group),
                ("other", SignalTarget::Process),
                // Without a broker below it, the group gets the signal.
                ("wrapper", SignalTarget::Broker),
            ] {
                let folder = &folder.join(format!("of-{name}"));
                fs::create_dir(folder).unwrap();
                let argv = parent_and_child(folder, name);
                stop_after(folder.join("ready"));
                let step = start(Launch {
                    signals,
                    ..launch(&[&argv])
                });
                assert_eq!(execute_all(Role::Lead, false, vec![step]).unwrap(), 7);
                assert_eq!(
                    folder.join("child-got-stop").exists(),
                    signals != SignalTarget::Process,
                    "{name}"
                );
            }
        },
    );
}

/// `Executor::steps` would see the signal before this step, so the launch is called directly.
#[test]
fn stop_before_the_launch_starts_nothing() {
    alone("stop_before_the_launch_starts_nothing", |folder| {
        let began = folder.join("began");
        for (part, code) in [(InstancePart::Follower, REPLACE), (InstancePart::Lead, 143)] {
            let launch = Launch {
                part,
                ..launch(&["/bin/touch", &began.display().to_string()])
            };
            let ended = block_on(async {
                let mut supervisor = Supervisor::new().unwrap();
                nix::sys::signal::kill(nix::unistd::Pid::this(), nix::sys::signal::SIGTERM).unwrap();
                let (mut timeline, mut ending) = (ContainerTimeline::start(), ContainerEnd::default());
                let plan = plan(Role::Lead, false, Vec::new());
                let mut executor =
                    Executor::new(&plan, options(), &mut supervisor, &mut timeline, &mut ending);
                executor.launch(&launch).await.unwrap()
            });
            assert_eq!((ended, began.exists()), (code, false), "{part:?}");
        }
    });
}

/// As when all pods are stopped, and the lead's ends at once.
#[test]
fn held_stop_is_passed_on_when_the_parent_has_gone() {
    alone("held_stop_is_passed_on_when_the_parent_has_gone", |folder| {
        let (began, got_stop) = (folder.join("began"), folder.join("got-stop"));
        let script = format!(
            "trap 'touch {}; exit 7' TERM; touch {}; while :; do sleep 0.02; done",
            got_stop.display(),
            began.display()
        );
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        stop_after(began.clone());
        let parent_goes = std::thread::spawn(move || {
            eventually("the program runs", || began.exists().then_some(()));
            std::thread::sleep(Duration::from_secs(2));
            let early = got_stop.exists();
            drop(listener);
            early
        });
        let step = start(Launch {
            parent: Some(local_parent(port)),
            hold_stop: Some(DEADLINE.as_secs_f64()),
            ..launch(&["/bin/sh", "-c", &script])
        });
        assert_eq!(execute_all(Role::Lead, false, vec![step]), Ok(7));
        assert!(!parent_goes.join().unwrap(), "the stop was passed on too early");
    });
}

#[test]
fn follower_that_ends_with_0_restarts_while_lead_is_there() {
    alone(
        "follower_that_ends_with_0_restarts_while_lead_is_there",
        |folder| {
            let at = |name: &str| folder.join(name);
            let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
            let named = |listener: &TcpListener| Some(local_parent(listener.local_addr().unwrap().port()));
            let argv = program(
                folder,
                "broker",
                &format!(
                    "#!/bin/sh\ncd {}\n[ -e first ] || {{ touch first; exit 0; }}\ntouch second\nuntil [ -e gone ]; do sleep 0.02; done\n",
                    folder.display()
                ),
            );
            let at_end = AtEnd::RestartFollower {
                limit: 3,
                lead_can_restart: false,
            };
            let follower = |parent, lead| {
                start(Launch {
                    parent,
                    lead,
                    part: InstancePart::Follower,
                    at_end,
                    ..launch(&[&argv])
                })
            };
            let router = listen();
            // In a flat tree the parent is the lead, and the plan names no other lead.
            for is_flat in [false, true] {
                let lead = listen();
                let step = if is_flat {
                    follower(named(&lead), None)
                } else {
                    follower(named(&router), named(&lead))
                };
                let (second, gone) = (at("second"), at("gone"));
                let lead_goes = std::thread::spawn(move || {
                    eventually("the broker is restarted", || second.exists().then_some(()));
                    drop(lead);
                    fs::write(gone, "").unwrap();
                });
                assert_eq!(execute_all(Role::Follower, false, vec![step]).unwrap(), 0);
                lead_goes.join().unwrap();
                for name in ["first", "second", "gone"] {
                    fs::remove_file(at(name)).unwrap();
                }
            }
            let dismissed = follower(named(&router), None);
            drop(router);
            assert_eq!(execute_all(Role::Follower, false, vec![dismissed]).unwrap(), 0);
            assert!(
                !at("second").exists(),
                "the broker was started again although its lead has gone"
            );
        },
    );
}

/// Pods are deleted as soon as the lead has succeeded. But the pod may also be the only one that is deleted. Then the
/// instance, or the lead's next attempt, needs another pod of its index.
#[test]
fn stopped_follower_is_replaced_if_lead_may_need_it() {
    alone("stopped_follower_is_replaced_if_lead_may_need_it", |folder| {
        let ended = folder.join("ended");
        let argv = program(
            folder,
            "broker",
            &format!("#!/bin/sh\ntouch {}\n", ended.display()),
        );
        // `is_lead_gone`: the lead's port closes after the stop.
        for (lead_can_restart, is_lead_gone, code) in
            [(false, true, 0), (true, true, REPLACE), (false, false, REPLACE)]
        {
            let lead = TcpListener::bind("127.0.0.1:0").unwrap();
            let port = lead.local_addr().unwrap().port();
            let parent = Some(local_parent(port));
            let at_end = AtEnd::RestartFollower {
                limit: 3,
                lead_can_restart,
            };
            let step = start(Launch {
                parent,
                part: InstancePart::Follower,
                at_end,
                ..launch(&[&argv])
            });
            let broker = ended.clone();
            let stops = std::thread::spawn(move || {
                eventually("the broker has ended", || broker.exists().then_some(()));
                std::thread::sleep(Duration::from_millis(500));
                crate::testing::signal(nix::sys::signal::Signal::SIGTERM);
                std::thread::sleep(Duration::from_millis(500));
                if is_lead_gone {
                    drop(lead);
                } else {
                    // Longer than `SHUTDOWN_TIMEOUT` in `follower.rs`, after which a lead that answers goes on.
                    std::thread::sleep(Duration::from_secs(6));
                }
            });
            assert_eq!(
                execute_all(Role::Follower, false, vec![step]).unwrap(),
                code,
                "{lead_can_restart} {is_lead_gone}"
            );
            stops.join().unwrap();
            fs::remove_file(&ended).unwrap();
        }
    });
}

/// Flux aborts the dump of its state at a signal, so a broker whose program has ended gets none.
#[test]
fn stop_after_the_programs_end_sends_the_broker_no_signal() {
    alone(
        "stop_after_the_programs_end_sends_the_broker_no_signal",
        |folder| {
            let note = folder.join("result");
            for (text, code) in [("started\\nended 3\\n", 3), ("started\\n", 9)] {
                fs::write(&note, "").unwrap();
                let ready = folder.join(format!("ready-{code}"));
                let script = format!(
                    "trap 'exit 9' TERM; printf '{text}' >{}; touch {}; i=0; \
                 while [ $i -lt 50 ]; do sleep 0.02; i=$((i + 1)); done; exit 3",
                    note.display(),
                    ready.display()
                );
                stop_after(ready);
                let step = start(Launch {
                    result: Some(note.display().to_string()),
                    ..launch(&["/bin/sh", "-c", &script])
                });
                assert_eq!(execute_all(Role::Lead, false, vec![step]), Ok(code), "{text}");
            }
        },
    );
}

/// Flux accepts `flux shutdown` in the state `run`, before it has started the program.
#[test]
fn shutdown_before_the_program_begins_is_no_failure_to_start() {
    alone(
        "shutdown_before_the_program_begins_is_no_failure_to_start",
        |folder| {
            let path = |name: &str| folder.join(name).display().to_string();
            fs::write(path("result"), "").unwrap();
            for (state, has_come_up, code) in [
                ("run", true, 129),
                ("cleanup", true, 129),
                ("shutdown", false, 129),
                ("run", false, 1),
            ] {
                let _ = fs::remove_file(path("local"));
                broker_in_state(&folder.join("local"), folder.into(), state);
                let failed = Category::BrokerFailed.code();
                let step = start(Launch {
                    socket: Some(path("local")),
                    result: Some(path("result")),
                    record: Some(path("record")),
                    needs_instance: true,
                    ..launch(&["/bin/sh", "-c", &format!("sleep 1; exit {code}")])
                });
                let (result, ending) = execute_to_the_end(Role::Lead, false, vec![step]);
                let end = start_record::read(&folder.join("record")).unwrap().end;
                let expected = if has_come_up {
                    (Ok(129), true, Some((129, true)))
                } else {
                    (Ok(failed), false, None)
                };
                assert_eq!(
                    (
                        result,
                        ending.is_shut_down,
                        end.map(|end| (end.code, end.is_shut_down))
                    ),
                    expected,
                    "{state} {code}"
                );
            }
        },
    );
}

/// `flux-agent program` starts no program if the volume is full. The broker then ends with its code.
#[test]
fn note_that_cannot_be_written_is_no_failure_of_the_broker() {
    alone(
        "note_that_cannot_be_written_is_no_failure_of_the_broker",
        |folder| {
            let result = folder.join("result");
            fs::write(&result, "").unwrap();
            let failed = Category::WriteFailed;
            let step = start(Launch {
                result: Some(result.display().to_string()),
                needs_instance: true,
                ..launch(&["/bin/sh", "-c", &format!("exit {}", failed.code())])
            });
            let (code, ending) = execute_to_the_end(Role::Lead, false, vec![step]);
            assert_eq!(code.as_ref(), Ok(&failed.code()));
            let termination = ending.termination(&code);
            assert_eq!(
                (termination.by, termination.category),
                (Ender::Agent, Some(failed))
            );
            let why = format!("failed to write {}", result.display());
            assert!(termination.message.contains(&why), "{termination:?}");
        },
    );
}

/// A fake broker on this socket. It reports this state to a watcher once the file `begins` exists.
fn broker_in_state(socket: &Path, begins: PathBuf, state: &'static str) {
    let listener = UnixListener::bind(socket).unwrap();
    std::thread::spawn(move || {
        for peer in listener.incoming() {
            let (mut peer, begins) = (peer.unwrap(), begins.clone());
            std::thread::spawn(move || {
                let _ = peer.write_all(ACCEPTED);
                let mut bytes = [0; 1024];
                while let Ok(count @ 1..) = peer.read(&mut bytes) {
                    if String::from_utf8_lossy(&bytes[..count]).contains("state-machine.monitor") {
                        eventually("the shutdown begins", || begins.exists().then_some(()));
                    }
                    let _ = peer.write_all(&answer_of(&format!(r#"{{"state":"{state}"}}"#)));
                }
            });
        }
    });
}

/// The note counts, even if the broker begins to shut down only after the stop.
#[test]
fn program_has_ended_when_its_note_says_so() {
    alone("program_has_ended_when_its_note_says_so", |folder| {
        let (note, ready) = (folder.join("result"), folder.join("ready"));
        let (socket, begins) = (folder.join("local"), folder.join("begins"));
        broker_in_state(&socket, begins.clone(), "shutdown");
        for socket in [None, Some(socket.display().to_string())] {
            fs::write(&note, "").unwrap();
            let script = format!(
                "printf 'started\\nended 7\\n' >{}; touch {}; sleep 1; exit 7",
                note.display(),
                ready.display()
            );
            let (program_ready, shutdown_begins) = (ready.clone(), begins.clone());
            let stop = std::thread::spawn(move || {
                eventually("the program has ended", || program_ready.exists().then_some(()));
                std::thread::sleep(Duration::from_millis(300));
                let stopped_at = Instant::now();
                crate::testing::signal(nix::sys::signal::Signal::SIGTERM);
                fs::write(shutdown_begins, "").unwrap();
                stopped_at
            });
            let has_states = socket.is_some();
            let step = start(Launch {
                result: Some(note.display().to_string()),
                socket,
                ..launch(&["/bin/sh", "-c", &script])
            });
            let (result, ending) = execute_to_the_end(Role::Lead, false, vec![step]);
            assert_eq!(result, Ok(7));
            let (code, ended_at) = ending.program.unwrap();
            assert_eq!(code, 7);
            assert!(ended_at < stop.join().unwrap(), "{has_states}");
            fs::remove_file(&ready).unwrap();
            fs::remove_file(&begins).unwrap();
        }
    });
}

/// Such a stop comes, for example, when the node of an interactive instance is drained.
#[test]
fn stop_does_not_complete_an_instance_that_stays_up() {
    alone("stop_does_not_complete_an_instance_that_stays_up", |folder| {
        let (note, ready) = (folder.join("result"), folder.join("ready"));
        let note_path = || note.display().to_string();
        for (has_program, ends_first, code) in [(true, false, 143), (false, false, 143), (true, true, 0)] {
            fs::write(&note, "").unwrap();
            let notes = format!("printf 'started\\nended 0\\n' >{}", note_path());
            let script = if ends_first {
                format!("{notes}; touch {}; sleep 1", ready.display())
            } else {
                let touch = format!("touch {}", ready.display());
                format!("trap '{notes}; exit 0' TERM; {touch}; while :; do sleep 0.02; done")
            };
            let program_ready = ready.clone();
            let stops = std::thread::spawn(move || {
                eventually("the program runs", || program_ready.exists().then_some(()));
                std::thread::sleep(Duration::from_millis(300));
                crate::testing::signal(nix::sys::signal::Signal::SIGTERM);
            });
            let argv = ["/bin/sh", "-c", &script];
            let step = start(Launch {
                at_end: AtEnd::ExitUnlessStopped,
                program: words(if has_program { &argv } else { &[] }),
                result: has_program.then(note_path),
                ..launch(&argv)
            });
            let (result, ending) = execute_to_the_end(Role::Lead, false, vec![step]);
            assert_eq!(result, Ok(code), "{has_program} {ends_first}");
            let program_code = ending.program.map(|(code, _)| code);
            assert_eq!(program_code, has_program.then_some(code), "{ends_first}");
            stops.join().unwrap();
            fs::remove_file(&ready).unwrap();
        }
    });
}

/// The stop is held back, and the lead dismisses the broker before the agent asks whether the lead stays.
#[test]
fn early_stop_replaces_follower_if_lead_can_restart() {
    alone("early_stop_replaces_follower_if_lead_can_restart", |folder| {
        let at = |name: &str| folder.join(name);
        for (lead_can_restart, code) in [(true, REPLACE), (false, 0)] {
            let lead = TcpListener::bind("127.0.0.1:0").unwrap();
            let argv = program(
                folder,
                "broker",
                &format!(
                    "#!/bin/sh\ntouch {}\nwhile [ ! -e {} ]; do sleep 0.02; done\n",
                    at("up").display(),
                    at("dismissed").display()
                ),
            );
            let step = start(Launch {
                parent: Some(local_parent(lead.local_addr().unwrap().port())),
                part: InstancePart::Follower,
                hold_stop: Some(60.0),
                at_end: AtEnd::RestartFollower {
                    limit: 3,
                    lead_can_restart,
                },
                ..launch(&[&argv])
            });
            let (up, dismissed) = (at("up"), at("dismissed"));
            let stops = std::thread::spawn(move || {
                eventually("the broker is up", || up.exists().then_some(()));
                crate::testing::signal(nix::sys::signal::Signal::SIGTERM);
                std::thread::sleep(Duration::from_millis(500));
                fs::write(dismissed, "").unwrap();
                drop(lead);
            });
            let ended = execute_all(Role::Follower, false, vec![step]).unwrap();
            assert_eq!(ended, code, "{lead_can_restart}");
            stops.join().unwrap();
            for name in ["up", "dismissed"] {
                fs::remove_file(at(name)).unwrap();
            }
        }
    });
}

#[test]
fn restarted_container_knows_that_the_archive_is_saved() {
    alone("restarted_container_knows_that_the_archive_is_saved", |folder| {
        let at = |name: &str| folder.join(name).display().to_string();
        let (dump, archive) = (at("dump-0123456789abcdef.tgz"), at("archive.tgz"));
        let steps = |script: &str| {
            let script = script.replace("DUMP", &dump);
            vec![
                Step::CheckEarlierStarts {
                    record: at("starts"),
                    result: at("result"),
                    restarts: 0,
                },
                Step::PrepareArchive {
                    archive: archive.clone(),
                    dump: dump.clone(),
                    leftovers: at("dump-*.tgz"),
                    owner: process_owner(),
                },
                start(Launch {
                    record: Some(at("starts")),
                    ..launch(&["/bin/sh", "-c", &script])
                }),
                Step::PublishArchive {
                    from: dump.clone(),
                    to: archive.clone(),
                },
            ]
        };
        // The second container does not run the program again.
        for (script, is_saved) in [("echo state >DUMP", true), ("true", false)] {
            for _ in 0..2 {
                let (result, ending) = execute_to_the_end(Role::Lead, false, steps(script));
                assert_eq!(result, Ok(0));
                assert_eq!(ending.archive_not_saved.is_none(), is_saved, "{ending:?}");
            }
            fs::remove_file(at("starts")).unwrap();
        }
    });
}

/// Otherwise Flux would start with an empty state, and its dump would replace the archive.
#[test]
fn archive_that_cannot_be_looked_for_is_not_a_missing_one() {
    alone(
        "archive_that_cannot_be_looked_for_is_not_a_missing_one",
        |folder| {
            let at = |name: &str| folder.join(name).display().to_string();
            std::os::unix::fs::symlink("loop", folder.join("loop")).unwrap();
            fs::write(folder.join("file"), "").unwrap();
            for (archive, is_started) in [("missing", true), ("file/below", true), ("loop", false)] {
                let steps = vec![
                    Step::PrepareArchive {
                        archive: at(archive),
                        dump: at("dump-0123456789abcdef.tgz"),
                        leftovers: at("dump-*.tgz"),
                        owner: process_owner(),
                    },
                    start(launch(&["/bin/true"])),
                ];
                let ended = execute_all(Role::Lead, false, steps);
                assert_eq!(ended == Ok(0), is_started, "{archive}: {ended:?}");
                let is_named = |failure: Failure| failure.cause.contains("look for the archive");
                assert!(is_started || ended.is_err_and(is_named), "{archive}");
            }
        },
    );
}

#[test]
fn step_that_fails_after_the_program_does_not_change_its_result() {
    alone(
        "step_that_fails_after_the_program_does_not_change_its_result",
        |folder| {
            // Both steps fail, since their path leads through a regular file.
            fs::write(folder.join("file"), "").unwrap();
            let at = |name: &str| folder.join("file").join(name).display().to_string();
            let failing_steps = [
                Step::NoteEnd { note: at("note") },
                Step::Link {
                    path: at("link"),
                    target: "anywhere".into(),
                },
            ];
            for (step, code) in failing_steps.iter().flat_map(|step| [(step, 0), (step, 7)]) {
                let program = start(launch(&["/bin/sh", "-c", &format!("exit {code}")]));
                let (result, ending) = execute_to_the_end(Role::Lead, false, vec![program, step.clone()]);
                assert_eq!(result, Ok(code), "{step:?}");
                let termination = ending.termination(&result);
                assert_eq!(
                    (termination.by, termination.code, termination.program_code),
                    (Ender::Program, code, Some(code)),
                    "{step:?}"
                );
            }
        },
    );
}

/// The planner's three cases of a lead without a program, if the agent has not seen the broker's states.
#[test]
fn broker_without_a_program_gives_its_own_code_if_it_came_up() {
    alone(
        "broker_without_a_program_gives_its_own_code_if_it_came_up",
        |_| {
            let failed = Category::BrokerFailed.code();
            for (needs_instance, broker_code, code) in [(false, 3, 3), (true, 0, 0), (true, 3, failed)] {
                let step = start(Launch {
                    program: Vec::new(),
                    needs_instance,
                    at_end: AtEnd::ExitUnlessStopped,
                    ..launch(&["/bin/sh", "-c", &format!("exit {broker_code}")])
                });
                assert_eq!(execute_all(Role::Lead, false, vec![step]), Ok(code));
            }
        },
    );
}
