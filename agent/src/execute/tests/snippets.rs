//! Executes small plans with snippets of the user.

use flux_agent_plan::plan::{Owner, Snippet, SnippetPhase, SnippetResources, SnippetShell};

use super::*;

fn snippet(name: &'static str, source: &str) -> Snippet {
    Snippet {
        name,
        source: source.into(),
        strict: false,
        phase: SnippetPhase::Before,
        decides: false,
        options: Vec::new(),
        directory_variable: None,
        silent: false,
    }
}

fn shell(argv: &[&str]) -> Step {
    let argv = argv.iter().map(|word| (*word).to_owned()).collect();
    Step::Shell(SnippetShell {
        argv,
        as_flux: "/elsewhere/agent as-flux".into(),
        variables: Default::default(),
    })
}

/// Asserts that the process left by the snippet still exists when the follower's second and last broker checks it.
fn assert_left_process_outlives_broker(folder: &Path, snippet_source: &str, broker: &str) {
    let follower = Launch {
        part: InstancePart::Follower,
        at_end: AtEnd::RestartFollower {
            limit: 1,
            lead_can_restart: false,
        },
        ..launch(&[&program(folder, "broker", broker)])
    };
    let steps = vec![
        shell(&["/bin/sh"]),
        Step::Snippet(snippet("pre", snippet_source)),
        start(follower),
    ];
    assert_eq!(execute_all(Role::Follower, false, steps).unwrap(), 0);
    assert!(folder.join("was-there").exists());
}

#[test]
fn process_left_by_a_snippet_outlives_a_failed_broker() {
    alone(
        "snippets::process_left_by_a_snippet_outlives_a_failed_broker",
        |folder| {
            let at = folder.display();
            let snippet_source =
                format!("cd {at}; sleep 100 >/dev/null 2>&1 & echo $! >left; echo $$ >shell");
            // The snippets' shell ends meanwhile, as by the OOM killer. The agent then becomes the parent of its
            // children.
            let broker = format!(
                "#!/bin/sh\ncd {at}\nif [ -e first ]; then kill $(cat left) && touch was-there; exit 0; fi\n\
                 touch first\nkill -9 $(cat shell)\nexit 1\n"
            );
            assert_left_process_outlives_broker(folder, &snippet_source, &broker);
        },
    );
}

#[test]
fn stop_while_the_shell_starts_prevents_the_snippet() {
    alone(
        "snippets::stop_while_the_shell_starts_prevents_the_snippet",
        |folder| {
            let at = |name: &str| folder.join(name).display().to_string();
            // This program gets the stop signal, and becomes a shell all the same.
            let slow = format!(
                "#!/bin/sh\ntrap stopped=1 TERM\ntouch {}\nwhile [ -z \"$stopped\" ]; do sleep 0.02; done\n\
                 trap '' TERM\nexec /bin/sh \"$@\"\n",
                at("starts")
            );
            let slow = program(folder, "slow", &slow);
            for (phase, code) in [(SnippetPhase::Before, 143), (SnippetPhase::After, 0)] {
                let _ = fs::remove_file(at("starts"));
                stop_after(folder.join("starts"));
                let snippet = Snippet {
                    phase,
                    ..snippet("pre", &format!("touch {}", at("ran")))
                };
                let steps = vec![shell(&[&slow]), Step::Snippet(snippet)];
                assert_eq!(execute_all(Role::Lead, false, steps).unwrap(), code, "{phase:?}");
                assert!(!Path::new(&at("ran")).exists(), "{phase:?}");
            }
        },
    );
}

#[test]
fn orphan_of_a_snippets_service_outlives_broker() {
    alone(
        "snippets::orphan_of_a_snippets_service_outlives_broker",
        |folder| {
            let at = folder.display();
            // While the broker runs, the service loses its parent and becomes a child of the agent.
            let snippet_source = format!(
                "cd {at}; (until [ -e first ]; do sleep 0.02; done; sleep 100 & echo $! >late.new; mv late.new late) \
                 >/dev/null 2>&1 &"
            );
            let broker = format!(
                "#!/bin/sh\ncd {at}\nif [ -e first ]; then kill $(cat late) && touch was-there; exit 0; fi\n\
                 touch first\nuntil [ -e late ]; do sleep 0.02; done\nexit 1\n"
            );
            assert_left_process_outlives_broker(folder, &snippet_source, &broker);
        },
    );
}

#[test]
fn exit_trap_is_logged_before_shell_ends() {
    let output = alone("snippets::exit_trap_is_logged_before_shell_ends", |_| {
        // A pipe holds 64 KiB. So the shell can end before the agent has read this.
        let long = "x".repeat(60_000);
        for round in 0..20 {
            let trap = format!("trap 'echo {long} >&2; echo trap-{round} >&2' EXIT");
            let steps = vec![
                shell(&["/bin/sh"]),
                Step::Snippet(snippet("pre", &trap)),
                Step::EndShell,
            ];
            assert_eq!(execute_all(Role::Lead, true, steps).unwrap(), 0);
            std::io::Write::write_all(&mut std::io::stderr(), format!("ended-{round}\n").as_bytes()).unwrap();
        }
    });
    if !output.is_empty() {
        for round in 0..20 {
            let at = |text: &str| output.find(&format!("{text}-{round}\n")).unwrap_or(usize::MAX);
            assert!(at("trap") < at("ended"), "{round}");
        }
    }
}

#[test]
fn left_over_r_config_is_removed_when_no_snippet_writes_r() {
    alone(
        "snippets::left_over_r_config_is_removed_when_no_snippet_writes_r",
        |folder| {
            let at = |name: &str| folder.join(name).display().to_string();
            // No snippet has changed R: it is the same as `agents_r` below.
            fs::write(at("R"), "the agent's").unwrap();
            // An earlier start of the container has written this file, for the R of a snippet.
            fs::write(at("resources.toml"), "old").unwrap();
            let step = SnippetResources {
                path: at("R"),
                hosts: "mc-0".into(),
                agents_r: Some("the agent's".into()),
                config: Some((at("resources.toml"), "new".into())),
                owner: Owner {
                    uid: nix::unistd::geteuid().as_raw(),
                    gid: nix::unistd::getegid().as_raw(),
                },
                strict: false,
            };
            let steps = vec![Step::SnippetResources(step)];
            assert_eq!(execute_all(Role::Lead, true, steps).unwrap(), 0);
            assert_eq!(fs::read_to_string(at("R")).unwrap(), "the agent's");
            assert!(!Path::new(&at("resources.toml")).exists());
        },
    );
}
