//! The user's snippets: one shell runs all of them, and its state reaches the later steps.

use flux_shared::termination::{Ender, Termination};
use flux_shared::timeline::PodTimeline;

use crate::image::{self, AGENT, Container, Image};
use crate::instance::{images, start, submit};
use crate::live::{Network, Solo, open, termination_of};

const SHELLS: [&str; 2] = ["bash", "sh"];

/// Runs `command` after `snippets`, which run in `shell`. Returns exit code, output, errors and termination message.
fn run_in(shell: &str, top: &str, snippets: &str, command: &str) -> (i32, String, String, Termination) {
    let programs: &[&str] = if shell == "bash" {
        &["sh", "bash", "env", "sleep"]
    } else {
        &["sh", "env", "sleep"]
    };
    let solo = Solo::new(top, snippets, command).with(programs);
    let ended = solo.run(&[]);
    (ended.code, ended.stdout, ended.stderr, solo.termination())
}

#[test]
fn snippet_shell_state_carries_over_to_later_steps() {
    for shell in SHELLS {
        let snippets = r#"
            init = '''plain=1; f() { echo "f sees $plain"; }; export SEEN="it's \"quoted\" $HOME
two lines"; cd /tmp; umask 027; ulimit -n 333'''
            pre = 'f; plain=2; export LATE=x; pwd; umask; ulimit -n'
            broker_pre = 'f'
            post = 'f; echo "post $LATE"'
        "#;
        let command = r#"echo "$SEEN|$LATE|${plain-unset}|$(umask)|$(ulimit -n)|$(pwd)""#;
        let programs: &[&str] = if shell == "bash" { &["sh", "bash"] } else { &["sh"] };
        let solo = Solo::new("", snippets, command).with(programs);
        let ended = solo.run(&[]);
        let want = "f sees 1\n/tmp\n0027\n333\nf sees 2\nit's \"quoted\" /root\ntwo lines|x|unset|0027|333|/tmp\nf sees 2\npost x\n";
        ended.expect(0, want, shell);
        let record = solo.record();
        let environment = record["environment"].as_object().unwrap();
        // `Solo` sets this variable.
        assert_eq!(environment["ODD-NAME"], "kept", "a name that no shell can have");
        let internal = environment
            .keys()
            .find(|name| name.starts_with("flux_agent") || ["_", "OLDPWD"].contains(&name.as_str()));
        assert_eq!(internal, None, "{shell}");
        assert_eq!(
            (&record["umask"], &record["nofile"]),
            (&"0027".into(), &333.into())
        );
    }
}

#[test]
fn failed_snippet_gives_the_code_when_strict_else_is_ignored() {
    for shell in SHELLS {
        let snippets = "init = 'echo a; false; echo b'\npre = 'sh -c \"exit 3\"'\npost = 'echo post'";
        let command = "echo job; exit 5";
        let (code, stdout, stderr, termination) = run_in(shell, "", snippets, command);
        assert_eq!((code, stdout.as_str()), (1, "a\n"), "{shell}");
        assert!(
            stderr.contains("the snippet init ended with exit code 1"),
            "{stderr}"
        );
        assert_eq!(
            (termination.by, termination.snippet.as_deref()),
            (Ender::Snippet, Some("init"))
        );
        assert_eq!((termination.code, termination.program_code), (1, None));
        let (code, stdout, stderr, _) = run_in(shell, "[logging]\nstrict = false", snippets, command);
        assert_eq!(
            (code, stdout.as_str()),
            (5, "a\nb\njob\npost\n"),
            "{shell}: the job's own code"
        );
        assert!(
            stderr.contains("the snippet pre ended with exit code 3; continuing"),
            "{stderr}"
        );
    }
    // Both ends are reported: the job's, and that of `post`.
    let (code, _, _, termination) = run_in("sh", "", "post = 'exit 3'", "exit 5");
    assert_eq!(
        (code, termination.by, termination.code, termination.program_code),
        (5, Ender::Program, 5, Some(5))
    );
    assert_eq!(termination.snippet.as_deref(), Some("post"));
    assert_eq!(termination.failed_post(), Some(3));
    let (code, ..) = run_in("bash", "", "init = 'false | true'", "exit 5");
    assert_eq!(code, 1, "pipefail applies if the shell has it");
}

#[test]
fn exit_ends_the_entrypoint_strict_or_not() {
    for strict in [true, false] {
        let top = format!("[logging]\nstrict = {strict}");
        let (code, stdout, ..) = run_in("sh", &top, "pre = 'exit 9'", "echo job");
        assert_eq!((code, stdout.as_str()), (9, ""));
        let (code, stdout, ..) = run_in("sh", &top, "pre = 'exit 0'", "echo job");
        assert_eq!((code, stdout.as_str()), (0, ""));
        // A failed `post` does not hide the job's failure: it is reported beside it.
        assert_eq!(run_in("sh", &top, "post = 'exit 3'", "exit 7").0, 7);
        assert_eq!(run_in("sh", &top, "post = 'exit 0'", "exit 7").0, 7);
        let (code, _, _, termination) = run_in("sh", &top, "post = 'exit 3'", "exit 0");
        assert_eq!(
            (code, termination.failed_post()),
            (if strict { 3 } else { 0 }, Some(3)),
            "only an explicit `strict` makes `post` decide"
        );
    }
}

#[test]
fn exit_0_before_flux_is_named_and_fails_a_follower() {
    for line in ["exit 0", "exec true"] {
        let spec = format!("{}[runner.snippets]\npre = '{line}'\n", submit("echo job"));
        let images = images(&spec, 2);
        let mut pods = start(&images, &Network::new(), &[]);
        let (lead, follower) = (pods.remove(0).end(), pods.remove(0).end());
        assert_eq!((lead.code, lead.stdout.as_str()), (0, ""), "{}", lead.stderr);
        let cause = "ended the entrypoint with code 0 before Flux began";
        let termination = termination_of(&images[0]);
        let note = format!("the snippet pre {cause}.");
        assert_eq!((termination.code, termination.message), (0, note), "{line}");
        assert_eq!(follower.code, 1, "{}", follower.stderr);
        let termination = termination_of(&images[1]);
        assert_eq!(
            (
                termination.by,
                termination.snippet.as_deref(),
                termination.snippet_code
            ),
            (Ender::Snippet, Some("pre"), Some(1))
        );
        assert_eq!(
            (termination.snippet_error, termination.message),
            (format!("it {cause}"), String::new())
        );
    }
}

#[test]
fn quiet_shows_the_job_and_post_and_the_reason_of_a_failure() {
    let snippets = "init = 'echo init; echo more >&2'\npre = 'echo pre'\npost = 'echo post; echo err >&2'";
    let (code, stdout, stderr, _) = run_in("sh", "[logging]\nquiet = true", snippets, "echo job");
    assert_eq!(
        (code, stdout.as_str(), stderr.as_str()),
        (0, "job\npost\n", "err\n")
    );
    let snippets = "init = 'echo noise; echo no such thing >&2; exit 4'";
    let (code, stdout, stderr, _) = run_in("sh", "[logging]\nquiet = true", snippets, "echo job");
    assert_eq!(
        (code, stdout.as_str(), stderr.lines().count()),
        (4, "", 1),
        "{stderr}"
    );
    assert!(stderr.contains("code 4: no such thing. To continue"), "{stderr}");
    let survived = "[logging]\nquiet = true\nstrict = false";
    let (code, stdout, stderr, _) = run_in("sh", survived, "init = 'false'", "echo job");
    assert_eq!(
        (code, stdout.as_str(), stderr.lines().count()),
        (0, "job\n", 1),
        "{stderr}"
    );
    assert!(
        stderr.contains("the snippet init ended with exit code 1; continuing"),
        "{stderr}"
    );
}

#[test]
fn a_snippet_that_takes_long_is_named_while_it_runs() {
    let (code, stdout, stderr, _) = run_in("sh", "", "pre = 'sleep 6'", "echo job");
    assert_eq!((code, stdout.as_str()), (0, "job\n"), "{stderr}");
    assert_eq!(
        stderr
            .matches("the snippet pre is still running after 5 s")
            .count(),
        1,
        "{stderr}"
    );
}

/// With the Go operator, snippets set `asFlux` to the words that start Flux. The agent needs no sudo: it only takes the
/// variables after `-E`.
#[test]
fn as_flux_keeps_its_variables_and_an_exit_trap_runs_at_the_end() {
    let snippets = r#"
        init = '''HOME=/elsewhere; asFlux="sudo -u flux -E HOME=$HOME -E FI_PROVIDER=efa"; trap "echo trapped" EXIT'''
        post = 'echo post'
    "#;
    for shell in SHELLS {
        let (code, stdout, stderr, _) = run_in(shell, "", snippets, "echo $HOME $FI_PROVIDER");
        assert_eq!(
            (code, stdout.as_str()),
            (0, "/elsewhere efa\npost\ntrapped\n"),
            "{shell}: {stderr}"
        );
    }
}

#[test]
fn exit_trap_runs_after_job_without_post() {
    for shell in SHELLS {
        let (code, stdout, stderr, _) = run_in(shell, "", r#"pre = 'trap "echo trapped" EXIT'"#, "echo job");
        assert_eq!(
            (code, stdout.as_str()),
            (0, "job\ntrapped\n"),
            "{shell}: {stderr}"
        );
    }
}

#[test]
fn exit_trap_runs_when_pod_is_stopped_during_job() {
    let command = "echo job; while :; do sleep 0.1; done";
    let solo = Solo::new("", r#"pre = 'trap "echo trapped" EXIT'"#, command);
    let running = solo.start();
    running.wait_for_output("job\n");
    running.signal(15);
    let ended = running.end();
    assert_eq!(ended.stdout, "job\ntrapped\n", "{}", ended.stderr);
}

#[test]
fn exit_trap_outlives_a_stop_that_comes_while_it_runs() {
    let pre = r#"pre = 'trap "echo begins; sleep 1; echo ends" EXIT'"#;
    let solo = Solo::new("", pre, "echo job");
    let running = solo.start();
    running.wait_for_output("begins\n");
    running.signal(15);
    let ended = running.end();
    assert_eq!(ended.stdout, "job\nbegins\nends\n", "{}", ended.stderr);
}

#[test]
fn exit_trap_of_follower_runs_after_its_broker() {
    let spec = submit("echo job; while [ ! -e /tmp/go ]; do sleep 0.02; done")
        + "[runner.snippets]\npre = 'trap \"echo trapped\" EXIT'\n";
    let images = images(&spec, 2);
    let mut pods = start(&images, &Network::new(), &[]);
    pods[0].wait_for_output("job\n");
    assert_eq!(pods[1].stdout(), "");
    open(&images, "go");
    assert_eq!(pods.remove(0).end().stdout, "job\ntrapped\n");
    assert_eq!(pods.remove(0).end().stdout, "trapped\n");
}

#[test]
fn as_flux_runs_what_follows_as_fluxs_user_in_fluxs_environment() {
    let snippets = r#"
        pre = """
            X=exported; export X; umask 027
            $asFlux sh -c 'echo $(id -u) $HOME $USER $X $OWN $(umask) ${FLUX_URI-none}; exit 3' || echo $?
            $asFlux flux version --verbose -x
            $asFlux no-such-program || echo $?
            $asFlux id -G
        """
        broker_pre = """asFlux='env A=1'; $asFlux sh -c 'id -u; echo $A'; unset asFlux"""
        post = 'echo ${asFlux-unset}'
    "#;
    for (shell, strict) in [("bash", true), ("bash", false), ("sh", true), ("sh", false)] {
        let image = Image::usual();
        if shell == "sh" {
            std::fs::remove_file(image.at("/usr/bin/bash")).unwrap();
        }
        let spec = format!(
            "name = 'mc'\n[logging]\nstrict = {strict}\n[runner.user]\nname = 'flux'\nuid = 1002\n\
             [flux.environment]\nOWN = 'mine'\n[runner.program]\nmode = 'submit'\n\
             words = ['sh', '-c', 'echo ${{asFlux-not exported}}; id -G']\n[runner.snippets]{snippets}"
        );
        image.file(flux_shared::paths::SPEC_FILE, 0o444, &spec);
        // The image gives a group to root (6) and one to flux (2000). The agent has root's and the pod's (5000).
        image.file(
            "/etc/group",
            0o644,
            "root:x:0:\ndisk:x:6:root\nproject:x:2000:ada,flux\n",
        );
        let mut container = Container::new(&image, "mc-0", &[AGENT, "run"]);
        container.groups = vec![6, 5000];
        let ended = image::run(&[container]).remove(0);
        assert_eq!(ended.code, 0, "{shell} {strict}: {ended:?}");
        let want = "1002 /home/flux flux exported mine 0027 none\n3\ncommands:\t\tfake\n127\n\
            1002 2000 5000\n0\n1\nnot exported\n1002 2000 5000\nunset\n";
        assert_eq!(ended.stdout, want, "{shell} {strict}: {}", ended.stderr);
        let call = image
            .record()
            .into_iter()
            .find(|call| call["argv"][1] == "version")
            .unwrap();
        assert_eq!(
            call["argv"].as_array().unwrap()[1..],
            ["version", "--verbose", "-x"]
        );
    }
}

/// Documented snippets use variables that are not set here. These count as empty, and are no error. But the list of
/// folders gets no empty element: that would be the current directory.
#[test]
fn documented_lines_work_in_an_image_that_sets_nothing() {
    let snippets = r#"
        init = 'export LD_LIBRARY_PATH=/opt/lib:$LD_LIBRARY_PATH'
        pre_command = 'asFlux="sudo -u flux -E PYTHONPATH=$PYTHONPATH -E PATH=$PATH -E RDMAV_FORK_SAFE=1"'
    "#;
    for shell in SHELLS {
        let (code, stdout, stderr, _) = run_in(shell, "", snippets, "echo $LD_LIBRARY_PATH $RDMAV_FORK_SAFE");
        assert_eq!((code, stdout.as_str()), (0, "/opt/lib 1\n"), "{shell}: {stderr}");
    }
}

#[test]
fn json_log_has_only_json_except_fluxtime_lines() {
    let solo = Solo::new(
        "[logging]\nstrict = false\ntimed = true",
        "init = 'false'",
        "exit 0",
    )
    .with(&["sh"]);
    let ended = solo.run(&["--log-format", "json"]);
    assert_eq!(ended.code, 0);
    // The documented FLUXTIME lines stay plain text.
    let own = ended.stderr.lines().filter(|line| !line.starts_with("FLUXTIME"));
    let lines: Vec<serde_json::Value> = own.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(
        lines
            .iter()
            .any(|line| line["level"] == "warn" && line["stage"] == "init")
    );
    let timeline = lines.last().unwrap();
    assert_eq!(
        (&timeline["timeline"], &timeline["exit_code"], &timeline["role"]),
        (&1.into(), &0.into(), &"lead".into())
    );
}

#[test]
fn status_says_which_snippet_runs() {
    let image = Image::usual();
    let spec = "name = 'mc'\n[runner.program]\nmode = 'submit'\nwords = ['/mnt/flux/view/bin/flux', 'version']\n\
        [runner.snippets]\nbroker_pre = '/mnt/flux/flux-agent status || /mnt/flux/flux-agent status --ready || true'\n";
    image.file("/etc/flux-agent/spec/agent.toml", 0o444, spec);
    image.file("/dev/termination-log", 0o666, "");
    let ended = image::run(&[Container::new(&image, "mc-0", &[AGENT, "run"])]).remove(0);
    assert_eq!(ended.code, 0, "{ended:?}");
    let want = "broker   mc-0 (rank 0) is not up: the snippet brokerPre runs. See the pod's log\n\
        not ready: the snippet brokerPre runs\n";
    assert!(ended.stdout.starts_with(want), "{ended:?}");
}

/// To query the broker, a thread of the agent takes the effective user of Flux. The kernel then hides the agent's
/// files in /proc from processes that may not trace, as by default in containers. The agent undoes this.
#[test]
fn commands_in_post_know_the_entrypoint_without_ptrace() {
    let image = Image::usual();
    let facts = format!("'{AGENT} facts'");
    let spec = format!(
        "name = 'mc'\n[runner.user]\nname = 'flux'\nuid = 1002\n[runner.program]\nmode = 'submit'\nwords = ['true']\n\
         [runner.snippets]\npre = {facts}\npost = {facts}\n"
    );
    image.file(flux_shared::paths::SPEC_FILE, 0o444, &spec);
    let mut container = Container::new(&image, "mc-0", &[AGENT, "run", "--grace-period", "45"]);
    container.outside = ["setpriv", "--bounding-set=-sys_ptrace"]
        .map(str::to_owned)
        .into();
    let ended = image::run(&[container]).remove(0);
    assert_eq!(ended.code, 0, "{ended:?}");
    let known = ended
        .stdout
        .lines()
        .filter(|line| line.starts_with("grace_period") && line.ends_with("45"))
        .count();
    assert_eq!(known, 2, "{}", ended.stdout);
}

#[test]
fn shell_that_cannot_start_programs_is_reported_without_hang() {
    // More variables than the kernel passes to a program, and limits with which no program starts or no pipe
    // can be opened.
    let large = "x=0123456789abcdef; while [ ${#x} -lt 4000000 ]; do x=$x$x; done; export x";
    for shell in SHELLS {
        for strict in [true, false] {
            for (source, has_known_cause) in [(large, true), ("ulimit -v 100", true), ("ulimit -n 3", false)]
            {
                let top = format!("[logging]\nstrict = {strict}");
                let (code, stdout, stderr, termination) =
                    run_in(shell, &top, &format!("init = '{source}'"), "echo job");
                assert_eq!(stdout, "", "{shell} {source}: {stderr}");
                assert_ne!(code, 0, "{shell} {source}: {stderr}");
                assert_eq!(
                    termination.snippet.as_deref(),
                    Some("init"),
                    "{shell} {source}: {termination:?}"
                );
                let is_named = termination
                    .snippet_error
                    .contains("its shell could not start a program");
                assert!(is_named || !has_known_cause, "{shell} {source}: {termination:?}");
            }
        }
    }
}

#[test]
fn traced_program_has_its_parent_and_message_a_timeline() {
    let trace = "[trace]\nparent = '00-0af7651916cd43dd8448eb211c80319c-8448eb211c80319c-01'";
    let solo = Solo::new(trace, "", "echo $TRACEPARENT; exit 7").with(&["sh"]);
    let ended = solo.run(&[]);
    assert_eq!(ended.code, 7, "{ended:?}");
    assert_eq!(
        ended.stdout,
        "00-0af7651916cd43dd8448eb211c80319c-8448eb211c80319c-01\n"
    );
    let message = std::fs::read_to_string(solo.folder.path().join("termination")).unwrap();
    let termination = Termination::decode(&message).unwrap();
    assert_eq!((termination.by, termination.code), (Ender::Program, 7));
    let timeline = PodTimeline::decode(&message).unwrap();
    assert_eq!(timeline.role, "lead");
    let stages: Vec<_> = timeline.stages.iter().map(|stage| stage.name.as_str()).collect();
    assert!(
        ["plan", "config", "broker"]
            .iter()
            .all(|name| stages.contains(name)),
        "{stages:?}"
    );
    assert!(
        timeline
            .stages
            .iter()
            .all(|stage| stage.lasted <= timeline.lasted),
        "{timeline:?}"
    );
    // Without a trace, the message has no second line.
    let solo = Solo::new("", "", "exit 7").with(&["sh"]);
    assert_eq!(solo.run(&[]).code, 7);
    let message = std::fs::read_to_string(solo.folder.path().join("termination")).unwrap();
    assert_eq!(message.lines().count(), 1, "{message}");
}

/// Flux starts programs with JSON messages, which are UTF-8. A variable with other bytes would keep the instance from
/// coming up, without an error.
#[test]
fn non_utf8_bytes_are_left_out_or_named() {
    let snippets = "pre = '''export BYTES=$(printf \"a\\377b\") TEXT=kept'''\n";
    let (code, stdout, stderr, _) = run_in("bash", "", snippets, "echo \"${BYTES-unset} $TEXT\"");
    assert_eq!((code, stdout.as_str()), (0, "unset kept\n"), "{stderr}");
    assert!(stderr.contains("the variable BYTES is not UTF-8"), "{stderr}");
    let program = "[runner.program]\nmode = 'submit'\nwords = ['echo', [{ env = 'BYTES' }]]\n";
    let image = crate::live::pod_image(&format!("{program}[runner.snippets]\n{snippets}"), 1);
    let ended = image::run(&[Container::new(&image, "mc-0", &crate::live::run_words(&[]))]).remove(0);
    // 248: the broker failed (`Category::BrokerFailed`).
    assert_eq!((ended.code, ended.stdout.as_str()), (248, ""), "{ended:?}");
    assert!(
        ended.stderr.contains("a word of the command is not UTF-8"),
        "{ended:?}"
    );
}
