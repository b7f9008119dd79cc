//! Everything the executor needs for supervision is in the plan.

use super::*;

fn follower(text: &str) -> Launch {
    launch(&plan_of(&spec(&format!("size = 2\n{text}")), &facts(1))).clone()
}

fn lead(text: &str) -> Launch {
    launch(&plan_of(&spec(&format!("size = 2\n{text}")), &facts(0))).clone()
}

const PROGRAM: &str = "[runner.program]\nmode = 'submit'\nwords = ['true']\n";

#[test]
fn stop_signals_the_broker_below_its_wrapper() {
    let prefix = "[runner]\nprefix = ['flux', 'run']\n";
    assert_eq!(
        (lead("").signals, follower("").signals),
        (SignalTarget::Process, SignalTarget::Process)
    );
    assert_eq!(
        (lead(prefix).signals, follower(prefix).signals),
        (SignalTarget::Broker, SignalTarget::Broker)
    );
    let wrap = "[flux]\nwrap = 'strace,-tt'\n";
    for launch in [lead(wrap), lead(&format!("{wrap}{PROGRAM}")), follower(wrap)] {
        assert_eq!(launch.signals, SignalTarget::Broker, "{:?}", launch.argv);
    }
    let program = lead(&format!("{prefix}{PROGRAM}"));
    assert_eq!(
        program.signals,
        SignalTarget::Process,
        "the prefix runs inside the instance"
    );
}

#[test]
fn prefix_is_once_in_every_command_line() {
    let programs = [
        "",
        "interactive = true\n",
        "[runner.program]\nmode = 'submit'\nwords = ['true']\n",
        "[runner.program]\nmode = 'launcher'\nwords = ['true']\n",
        "[runner.program]\nmode = 'script'\ntext = 'true'\n",
        "[runner.program]\nmode = 'batch'\nlines = [{number = 0, text = 'true'}]\n",
        "[runner.program]\nmode = 'diagnostics'\n",
        "[runner.program]\nmode = 'persistent'\n[runner.restful]\nport = 5000\n",
    ];
    for program in programs {
        let text = format!("[runner]\nprefix = ['fuse']\n{program}");
        for launch in [lead(&text), follower(&text)] {
            let count = launch
                .argv
                .iter()
                .filter(|word| **word == Word::literal("fuse"))
                .count();
            assert_eq!(count, 1, "{program}: {:?}", launch.argv);
            // Before the broker, the prefix gets no signals.
            let is_first = launch.argv[0] == Word::literal("fuse");
            assert_eq!(launch.signals == SignalTarget::Broker, is_first, "{program}");
        }
    }
}

#[test]
fn complete_workers_spares_the_index_that_ends_the_job() {
    let completes = |text: &str, index: u32| {
        let spec = spec(&format!("size = 2\n[flux]\ncomplete_workers = true\n{text}"));
        let facts = Facts {
            hostname: format!("mc-{index}"),
            ..facts(index)
        };
        matches!(launch(&plan_of(&spec, &facts)).at_end, AtEnd::Complete { .. })
    };
    let burst = "[network]\nhostlist = 'far-0,mc-[0-1]'\nlead = {address = 'far-0'}\n";
    assert!(completes("", 1));
    assert!(completes(burst, 1));
    assert!(!completes(burst, 0), "its success would end the Job");
}

#[test]
fn the_socket_is_the_one_that_the_broker_is_given() {
    for launch in [lead(""), lead(PROGRAM), follower("")] {
        let socket = launch.socket.unwrap();
        assert!(
            launch
                .argv
                .contains(&Word::Literal(format!("-Slocal-uri=local://{socket}"))),
            "{socket}"
        );
    }
    let inner = "[flux]\ndisable_socket = true\n[runner.program]\nmode = 'launcher'\n\
                 words = ['flux', 'start', '-Slocal-uri=local:///tmp/inner', 'true']\n";
    assert_eq!(
        lead(inner).socket,
        None,
        "the socket of a nested instance is not this launch's socket"
    );
}

#[test]
fn follower_launch_names_awaited_parent_and_lead_none() {
    assert_eq!((lead("").part, lead("").parent), (InstancePart::Lead, None));
    for text in ["", "[logging]\nzeromq = true\n"] {
        let plan = plan_of(&spec(&format!("size = 2\n{text}")), &facts(1));
        let awaited = plan.steps.iter().find_map(|step| match step {
            Step::WaitParent(parent) => Some(parent),
            _ => None,
        });
        let launch = launch(&plan);
        assert_eq!(
            (launch.part, launch.parent.as_ref()),
            (InstancePart::Follower, awaited)
        );
        // With `zeromq`, a connection by the agent would be logged as a failed handshake.
        assert_eq!(awaited.unwrap().only_looked_up, !text.is_empty());
    }
    let own = follower("[flux]\nbroker_config = 'x = 1'\n");
    assert_eq!(
        (own.part, own.parent),
        (InstancePart::Follower, None),
        "the user's own broker.toml may name another parent"
    );
}

#[test]
fn follower_in_tree_names_the_lead_and_brokers_below_it() {
    let parent_lead_and_below = |index: u32, more: &str| {
        let plan = plan_of(&spec(&format!("size = 5\n{more}")), &facts(index));
        let launch = launch(&plan).clone();
        let named = |broker: Option<BrokerAddress>| broker.map(|broker| broker.host[..4].to_owned());
        (named(launch.parent), named(launch.lead), launch.below)
    };
    let mc = |index: u32| Some(format!("mc-{index}"));
    let tree = "[flux]\ntopology = 'kary:2'\n";
    assert_eq!(parent_lead_and_below(0, tree), (None, None, String::new()));
    assert_eq!(parent_lead_and_below(1, tree), (mc(0), None, "3-4".into()));
    assert_eq!(parent_lead_and_below(2, tree), (mc(0), None, String::new()));
    assert_eq!(parent_lead_and_below(3, tree), (mc(1), mc(0), String::new()));
    assert_eq!(
        parent_lead_and_below(1, ""),
        (mc(0), None, String::new()),
        "all are the lead's children"
    );
    let silent = "[flux]\ntopology = 'kary:1'\ndisable_socket = true\n";
    assert_eq!(
        parent_lead_and_below(2, silent),
        (mc(1), mc(0), String::new()),
        "without a socket nothing is drained"
    );
}

#[test]
fn follower_ends_when_lead_name_is_gone_for_good() {
    let lead_gone = |index: u32, text: &str, override_s: Option<u64>| {
        let waits = Waits {
            lead_gone: override_s,
            ..Waits::default()
        };
        plan_of(&spec(&format!("size = 2\n{text}")), &facts(index))
            .with_waits(waits)
            .waits
            .lead_gone
    };
    let own = "[flux]\nlead_gone = 7\n";
    assert_eq!(
        [("", None), (own, None), (own, Some(9))].map(|(text, override_s)| lead_gone(1, text, override_s)),
        [30, 7, 9].map(Some)
    );
    for text in [
        // The lead may restart, and has no name meanwhile.
        "restart_policy = 'OnFailure'\n",
        // The limit counts only before a broker is restarted, and this follower restarts none.
        "[flux]\ncomplete_workers = true\n",
        // The follower's parent is unknown.
        "[flux]\nbroker_config = ''\n",
    ] {
        assert_eq!(lead_gone(1, text, Some(9)), None, "{text}");
    }
    assert_eq!(lead_gone(0, own, Some(9)), None, "a lead waits for nobody");
}

#[test]
fn follower_that_leaves_alone_finds_its_job_by_flux_shell() {
    assert_eq!(
        (lead(PROGRAM).job_shell, follower("").job_shell),
        (None, Some("flux-shell"))
    );
    assert_eq!(
        follower("[flux]\ndisable_socket = true\n").job_shell,
        None,
        "without a socket the agent cannot learn that only this pod leaves"
    );
}

#[test]
fn launch_program_is_the_command_line_without_agent_words() {
    let program_of = |text: &str| {
        let Launch { argv, program, .. } = lead(text);
        let typed = |words: &[Word]| {
            words
                .iter()
                .map(shell_quote::word)
                .collect::<Vec<String>>()
                .join(" ")
        };
        let (argv, program) = (typed(&argv), typed(&program));
        // In a batch, the agent's words are between the prefix (`nice`) and `flux batch`.
        assert!(argv.ends_with(&program) || program.starts_with("nice "), "{argv}");
        program
    };
    let around = "[logging]\ntimed = true\n[runner]\nprefix = ['nice']\n";
    assert_eq!(
        program_of(&format!("users = ['ada']\n{around}{PROGRAM}")),
        "nice flux submit --input=/dev/null -n 1 --quiet --watch true"
    );
    let batch = "[runner.program]\nmode = 'batch'\nlines = [{number = 0, text = 'true'}]\n";
    let program = program_of(&format!("{around}{batch}"));
    assert!(
        program.starts_with("nice flux batch ") && !program.contains("flux-agent"),
        "{program}"
    );
    let own = "[runner.program]\nmode = 'launcher'\nwords = ['/opt/flux-agent', 'program', '--', 'x']\n";
    assert_eq!(
        program_of(own),
        "/opt/flux-agent program -- x",
        "the user's own command is not the agent's wrapper"
    );
    assert_eq!(
        program_of("[runner.program]\nmode = 'diagnostics'\n"),
        "/mnt/flux/flux-agent diagnostics"
    );
    assert_eq!(
        (
            program_of(""),
            program_of("[runner]\nprefix = ['nice']\n").as_str()
        ),
        (String::new(), "")
    );
    assert!(follower(PROGRAM).program.is_empty());
}

#[test]
fn jobs_of_a_failed_program_are_cancelled_only_before_a_retry() {
    let cancels = |text: &str, restarts_left: Option<u32>| {
        let facts = Facts {
            restarts_left,
            ..facts(0)
        };
        let argv = launch(&plan_of(&spec(text), &facts)).argv.clone();
        ["--retried", "--archived"].map(|word| argv.contains(&Word::literal(word)))
    };
    let archive = "archive = '/state/a.tgz'\n";
    let on_failure = "restart_policy = 'OnFailure'\n";
    let retried = format!("{on_failure}{PROGRAM}");
    assert_eq!(cancels(&format!("{archive}{PROGRAM}"), Some(5)), [false, false]);
    for left in [None, Some(1)] {
        assert_eq!(cancels(&retried, left), [true, false]);
        assert_eq!(cancels(&format!("{archive}{retried}"), left), [true, true]);
    }
    assert_eq!(cancels(&format!("{archive}{retried}"), Some(0)), [false, false]);
    // People submit the jobs of this instance.
    let persistent = "[runner.program]\nmode = 'persistent'\n[runner.restful]\nport = 5000\n";
    assert_eq!(
        cancels(&format!("{on_failure}{persistent}"), None),
        [false, false]
    );
}

#[test]
fn as_flux_runs_this_agent_with_its_spec_file() {
    let as_flux = |facts: &Facts| shells("", facts).map(|shell| shell.as_flux);
    assert_eq!(as_flux(&facts(0)), ["/etc/flux-agent/bin/flux-agent as-flux"; 2]);
    let elsewhere = Facts {
        agent: "/opt/agent".into(),
        spec_file: Some("/etc/mc.toml".into()),
        ..facts(0)
    };
    assert_eq!(as_flux(&elsewhere), ["/opt/agent as-flux --spec=/etc/mc.toml"; 2]);
}

/// The steps of a lead and of a sidecar with snippets.
fn with_snippets(logging: &str, facts: &Facts) -> [Vec<Step>; 2] {
    let text = format!(
        "[logging]\n{logging}\n[runner.snippets]\npre = 'a'\npost = 'b'\n[sidecars.side]\npre = 'c'\ncommand = 'd'\npost = 'e'\n"
    );
    let plans = [PodContainer::Runner, PodContainer::Sidecar("side".into())];
    plans.map(|role| build(&spec(&text), facts, &role).unwrap().steps)
}

fn snippets(logging: &str, facts: &Facts) -> Vec<Snippet> {
    let steps = with_snippets(logging, facts).into_iter().flatten();
    steps
        .filter_map(|step| {
            if let Step::Snippet(snippet) = step {
                Some(snippet)
            } else {
                None
            }
        })
        .collect()
}

/// The one shell of each container.
fn shells(logging: &str, facts: &Facts) -> [SnippetShell; 2] {
    with_snippets(logging, facts).map(|steps| {
        let shells = steps.into_iter().filter_map(|step| {
            if let Step::Shell(shell) = step {
                Some(shell)
            } else {
                None
            }
        });
        let [shell] = shells.collect::<Vec<SnippetShell>>().try_into().unwrap();
        shell
    })
}

#[test]
fn post_and_sidecar_command_are_not_silenced_by_quiet() {
    let silenced = |logging: &str| -> Vec<(&str, SnippetPhase, bool)> {
        snippets(logging, &facts(0))
            .iter()
            .map(|snippet| (snippet.name, snippet.phase, snippet.silent))
            .collect()
    };
    let all = |silent| {
        vec![
            ("pre", SnippetPhase::Before, silent),
            ("post", SnippetPhase::After, false),
            ("pre", SnippetPhase::Before, silent),
            ("command", SnippetPhase::Program, false),
            ("post", SnippetPhase::After, false),
        ]
    };
    assert_eq!(silenced("quiet = true"), all(true));
    assert_eq!(silenced("quiet = false"), all(false));
}

#[test]
fn snippet_shell_gets_only_options_that_it_supports() {
    let started = |shell: &str, strict: bool| {
        let facts = Facts {
            shell: Some(shell.into()),
            ..facts(0)
        };
        shells(&format!("strict = {strict}"), &facts).map(|shell| shell.argv.join(" "))
    };
    assert_eq!(started("/bin/bash", true), ["/bin/bash -e -E -o pipefail"; 2]);
    assert_eq!(
        started("/opt/bin/bash", true),
        ["/opt/bin/bash -e -E -o pipefail"; 2]
    );
    assert_eq!(started("/bin/sh", true), ["/bin/sh -e"; 2]);
    assert_eq!(started("/bin/bash", false), ["/bin/bash"; 2]);
}
