//! The snippets' shell survives what a snippet, a job or the user's environment may do to it.

use std::process::Command;

use crate::image::{self, AGENT, Container, Ended, Image};
use crate::live::{Network, Running, Solo, eventually, gate, run_words, send, termination_of};

const BASH: &[&str] = &["sh", "bash", "sleep", "cat", "ls", "touch"];
const DASH: &[&str] = &["sh", "sleep", "cat", "ls", "touch"];

fn run(programs: &[&str], snippets: &str, command: &str) -> Ended {
    Solo::new("", snippets, command).with(programs).run(&[])
}

/// During the job, the shell waits in `read`, which bash ends after TMOUT seconds. Only the shell of `pre` knows `f`.
/// The `sleep` keeps the shell's pipes open, so that they would not show the shell's end.
#[test]
fn tmout_of_a_snippet_does_not_end_the_shell_of_post() {
    for line in ["TMOUT=1", "readonly TMOUT=1", "export TMOUT=1; sleep 300 &"] {
        let snippets = format!("pre = 'f() {{ echo f; }}; {line}'\npost = 'f; echo post ran'");
        let ended = run(BASH, &snippets, "sleep 3; echo job done");
        ended.expect(0, "job done\nf\npost ran\n", line);
    }
}

#[test]
fn tmout_of_the_container_does_not_end_the_shell_of_post() {
    let image = Image::usual();
    let spec = "name = 'mc'\n[runner.program]\nmode = 'submit'\nwords = ['sh', '-c', 'sleep 3; echo job done']\n\
                [runner.snippets]\nbroker_pre = 'echo pre ran'\npost = 'echo post ran'\n";
    image.file(flux_shared::paths::SPEC_FILE, 0o444, spec);
    let mut container = Container::new(&image, "mc-0", &run_words(&[]));
    container.environment.insert("TMOUT".into(), "1".into());
    let ended = image::run(&[container]).remove(0);
    ended.expect(0, "pre ran\njob done\npost ran\n", "");
}

/// Without a background process, and with one that holds the shell's pipes open.
#[test]
fn shell_that_is_killed_during_the_job_is_replaced_for_post() {
    for programs in [BASH, DASH] {
        for background in ["", "sleep 300 & "] {
            // Only the folder of this `Solo` is used, for the file with the pid.
            let solo = Solo::new("", "", "").with(programs);
            let pid = solo.folder.path().join("pid").display().to_string();
            let snippets = format!(
                "pre = '''{background}export KEPT=kept; ulimit -n 300; umask 027; echo $$ >{pid}'''\n\
                 post = 'echo post sees $KEPT $(ulimit -n) $(umask)'"
            );
            let ended = run(
                programs,
                &snippets,
                &format!("kill -9 $(cat {pid}); sleep 0.3; echo job done"),
            );
            ended.expect(0, "job done\npost sees kept 300 0027\n", background);
            let expected = "was ended by signal 9 while no snippet ran: post runs in a new one";
            assert!(ended.stderr.contains(expected), "{}", ended.stderr);
        }
    }
}

#[test]
fn exported_function_is_the_one_of_the_last_snippet() {
    let snippets = r#"
        init = 'f() { echo one; }; export -f f; g() { echo gone; }; export -f g; h() { echo kept; }; export -f h'
        pre = 'f() { echo two; }; export -f f; unset -f g'
    "#;
    let solo = Solo::new("", snippets, "f; g; h").with(BASH);
    // Another shell would drop the functions.
    solo.edit(|spec| spec.replace("'sh', '-c'", "'bash', '-c'"));
    let ended = solo.run(&[]);
    ended.expect(0, "two\nkept\n", "");
    assert!(ended.stderr.contains("g: command not found"), "{}", ended.stderr);
}

#[test]
fn descriptors_of_a_snippet_are_its_own() {
    // Scripts use 200 for locks. The agent's own begin at 230 (`FIRST_INHERITED`). dash only knows 0 to 9.
    for (programs, more) in [
        (
            BASH,
            "exec 12>taken 200>taken 230>taken 255>taken; echo hello >&12; ",
        ),
        (DASH, "exec 9>taken; "),
    ] {
        let closed = "for fd in 3 4 5 6 7 8; do eval \"exec $fd>&-\"; done; exec </dev/null";
        let snippets = format!(
            "init = 'cd $HOME_OF_TEST; {more}{closed}'\npre = '''sleep 300 & sleep 0.5; ls -l /proc/$!/fd >fds'''\npost = 'cat fds; echo post ran'"
        );
        let solo = Solo::new("", &snippets, "echo job").with(programs);
        let home = solo.folder.path().display().to_string();
        solo.edit(|spec| spec.replace("$HOME_OF_TEST", &home));
        let ended = solo.run(&[]);
        assert!(
            ended.code == 0 && ended.stdout.ends_with("post ran\n"),
            "{ended:?}"
        );
        // The agent passes its script in a memfd. (The descriptors of the test process are listed, too.)
        assert!(ended.stdout.contains("taken"), "{ended:?}");
        assert!(
            !ended.stdout.contains("memfd:"),
            "a snippet's daemon has inherited descriptors of the agent: {ended:?}"
        );
    }
}

#[test]
fn users_environment_does_not_break_the_driver() {
    let functions = "read() { echo my read; }; printf() { echo my printf; }; kill() { echo my kill; }";
    // The words that the agent sends to the driver (`go`, `silent`, `end`) have the letters in `IFS=geos`.
    for (programs, lines) in [
        (
            BASH,
            vec![
                functions,
                "IFS=geos",
                "set -u",
                "PS4='$(echo trace) '; set -x",
                "set -eu; set -o pipefail",
                "set -f; set -C",
                "shopt -s extdebug",
                "trap : DEBUG; set -T",
                "enable -n read printf kill",
                ":() { false; }; true() { false; }",
                "break() { :; }; continue() { :; }; shift() { :; }; exec() { :; }",
                "shopt -s expand_aliases; alias read=false command=false .=false while=false",
            ],
        ),
        (
            DASH,
            vec![
                functions,
                "IFS=geos",
                "set -u",
                "set -f; set -C",
                "trap 'echo usr' USR1",
                "true() { false; }",
                "alias read=false command=false .=false while=false",
            ],
        ),
    ] {
        for line in lines {
            let snippets = format!("init = '''{line}'''\npre = 'echo pre ran'\npost = 'echo post ran'");
            let ended = run(programs, &snippets, "echo job done");
            ended.expect(0, "pre ran\njob done\npost ran\n", line);
        }
    }
}

/// A later snippet runs in a new shell without the replacements.
#[test]
fn shell_whose_builtins_are_replaced_runs_no_snippet_twice() {
    for line in [
        "command() { :; }",
        ".() { :; }",
        "source() { :; }; .() { source; }",
        "enable -n command",
    ] {
        let snippets =
            format!("init = '''echo init ran; {line}'''\npre = 'echo pre ran'\npost = 'echo post ran'");
        let ended = run(BASH, &snippets, "echo job done");
        ended.expect(0, "init ran\npre ran\njob done\npost ran\n", line);
        assert!(
            ended.stderr.contains(" runs in a new one"),
            "{line}: {}",
            ended.stderr
        );
    }
    let exported = "init = 'command() { :; }; export -f command'\npre = 'echo pre ran'";
    let ended = run(BASH, exported, "echo job done");
    // The shell does not wait for its next step, but may find that the agent has just written it.
    if (ended.code, ended.stdout.as_str()) == (0, "pre ran\njob done\n") {
        return;
    }
    assert_eq!((ended.code, ended.stdout.as_str()), (1, ""), "{}", ended.stderr);
    let why = "is a builtin such as `command` an exported function";
    assert!(ended.stderr.contains(why), "{}", ended.stderr);
}

#[test]
fn break_and_continue_of_a_snippet_do_not_reach_the_driver() {
    for programs in [BASH, DASH] {
        for line in [
            "break",
            "continue",
            "break 9",
            "continue 2",
            "for i in 1 2; do break 2; done",
        ] {
            let snippets = format!("pre = '{line} || :; echo pre ran'\npost = '{line} || :; echo post ran'");
            let ended = run(programs, &snippets, "echo job done");
            ended.expect(0, "pre ran\njob done\npost ran\n", line);
        }
    }
}

#[test]
fn return_exec_and_exit_in_a_snippet_act_as_in_a_script() {
    for programs in [BASH, DASH] {
        for (line, code, stdout) in [
            ("return; echo more", 0, "job done\npost ran\n"),
            ("return 3", 3, ""),
            ("exit 0", 0, ""),
            ("exit 4", 4, ""),
            ("exec sh -c \"echo replaced\"", 0, "replaced\n"),
            ("exec sh -c \"exit 5\"", 5, ""),
            ("exec /nonexistent", 127, ""),
            (
                "read line && echo $line; cat; echo read",
                0,
                "read\njob done\npost ran\n",
            ),
        ] {
            let ended = run(
                programs,
                &format!("pre = '{line}'\npost = 'echo post ran'"),
                "echo job done",
            );
            ended.expect(code, stdout, line);
        }
    }
}

/// Snippets whose last command `set -e` exempts, here as in a script.
const EXEMPT_ENDS: &[&str] = &[
    "x=1; [ $x = 2 ] && echo no",
    "if :; then [ 1 = 2 ] && echo no; fi",
    "! :",
    "[ 1 = 2 ] && echo no # a comment",
    "[ 1 = 2 ] && echo no \\",
    "cat >/dev/null <<END; [ 1 = 2 ] && echo no\ntext\nEND",
    "cat >/dev/null <<-\\END; [ 1 = 2 ] && echo no\n1 << number\n\tEND",
    "number=1; : $((1<<number)); [ 1 = 2 ] && echo no",
    "# cat <<END\n[ 1 = 2 ] && echo no",
    "echo 'print(1 << 4)' >/dev/null\n[ 1 = 2 ] && echo no",
    "cat >/dev/null <<'END-OF-CONF'\ntext\nEND-OF-CONF\n[ 1 = 2 ] && echo no",
    "cat >/dev/null <<A - <<B\na\nA\nb\nB\n[ 1 = 2 ] && echo no",
    "echo 'cat << \"hi\"' >/dev/null\n[ 1 = 2 ] && echo no",
];

/// Asserts that the job is done with each line of [`EXEMPT_ENDS`] at the end of `pre` and `post`. `pre_begin`: the lines
/// of `pre` before it.
fn assert_exempt_ends_succeed(strict: bool, pre_begin: &str) {
    for programs in [BASH, DASH] {
        for line in EXEMPT_ENDS {
            let top = format!("[logging]\nstrict = {strict}");
            let snippets = format!("pre = '''{pre_begin}{line}'''\npost = '''{line}'''");
            let ended = Solo::new(&top, &snippets, "echo job done")
                .with(programs)
                .run(&[]);
            ended.expect(0, "job done\n", line);
        }
    }
}

#[test]
fn strict_snippet_succeeds_when_errexit_exempts_last_command() {
    assert_exempt_ends_succeed(true, "");
}

#[test]
fn set_e_of_a_lenient_snippet_exempts_its_last_command() {
    assert_exempt_ends_succeed(false, "set -e\n");
}

#[test]
fn last_failure_of_a_lenient_snippet_is_reported() {
    for programs in [BASH, DASH] {
        for (line, code, stdout) in [
            ("false", 0, "job done\n"),
            ("return 1", 0, "job done\n"),
            ("set -e; false", 1, ""),
        ] {
            let top = "[logging]\nstrict = false";
            let ended = Solo::new(top, &format!("pre = '{line}'"), "echo job done")
                .with(programs)
                .run(&[]);
            let got = (ended.code, ended.stdout.as_str());
            assert_eq!(got, (code, stdout), "{line}: {}", ended.stderr);
            let reported = ended
                .stderr
                .lines()
                .any(|line| line.contains("pre") && line.contains("exit code 1"));
            assert!(reported, "{line}: {}", ended.stderr);
        }
    }
}

#[test]
fn strict_snippet_fails_when_errexit_applies_to_last_command() {
    for programs in [BASH, DASH] {
        for (line, code) in [
            ("false", 1),
            ("return 3", 3),
            ("f() { return 7; }; f", 7),
            ("f() { [ 1 = 2 ] && echo no; }; f", 1),
            ("([ 1 = 2 ] && echo no)", 1),
            ("echo \"unfinished", 2),
            ("if :; then", 2),
        ] {
            let ended = run(programs, &format!("pre = '{line}'"), "echo job done");
            ended.expect(code, "", line);
        }
    }
}

#[test]
fn variables_of_the_shell_itself_reach_the_next_snippet() {
    for programs in [BASH, DASH] {
        let snippets =
            "init = 'cd /usr; cd /'\npre = 'echo $PWD $OLDPWD; cd - >/dev/null'\npost = 'echo $PWD $OLDPWD'";
        let ended = run(programs, snippets, "echo job in $(pwd)");
        ended.expect(0, "/ /usr\njob in /usr\n/usr /\n", "");
    }
}

#[test]
fn bash_env_is_sourced_and_named_when_it_ends_the_shell() {
    let image = Image::usual();
    let spec = "name = 'mc'\n[runner.program]\nmode = 'submit'\nwords = ['echo', 'job']\n\
                [runner.snippets]\npre = 'from_bash_env'\n";
    image.file(flux_shared::paths::SPEC_FILE, 0o444, spec);
    for (text, code, stdout) in [
        ("from_bash_env() { echo known; }", 0, "known\njob\n"),
        ("exit 5", 5, ""),
        // `pre` has not run, so this is no success.
        ("exit 0", 1, ""),
    ] {
        crate::live::forget_starts(&image);
        image.file("/etc/bash.env", 0o644, text);
        let mut container = Container::new(&image, "mc-0", &run_words(&[]));
        container.set("BASH_ENV", "/etc/bash.env");
        let ended = image::run(&[container]).remove(0);
        ended.expect(code, stdout, "");
        assert_eq!(
            ended.stderr.contains("does the file that BASH_ENV names end it?"),
            code != 0,
            "{}",
            ended.stderr
        );
    }
}

/// As when a security module hides processes from each other. The shell then inherits the agent's descriptors, and
/// `flux_agent_ask` is a path below /proc/self.
#[test]
fn shell_that_may_not_look_at_the_agent_runs_snippets_as_well() {
    let image = Image::usual();
    let spec = "name = 'mc'\n[runner.program]\nmode = 'submit'\nwords = ['echo', 'job']\n\
                [runner.snippets]\npre = 'export SEEN=1; echo ${flux_agent_ask%fd*}'\npost = 'echo post $SEEN'\n";
    image.file(flux_shared::paths::SPEC_FILE, 0o444, spec);
    // Processes whose program the user may not read are hidden from that user.
    let own = std::fs::read(image.at(AGENT)).unwrap();
    // The file is a hard link that all tests share.
    std::fs::remove_file(image.at(AGENT)).unwrap();
    std::fs::write(image.at(AGENT), own).unwrap();
    image.mode(AGENT, 0o711);
    ["/mnt/flux", "/mnt/flux/config"]
        .iter()
        .for_each(|folder| image.mode(folder, 0o777));
    let mut container = Container::new(&image, "mc-0", &run_words(&[]));
    container.ids = (4321, 4321);
    let ended = image::run(&[container]).remove(0);
    ended.expect(0, "/proc/self/\njob\npost 1\n", "");
}

#[test]
fn shell_start_is_retried_when_process_limit_is_reached() {
    let image = Image::usual();
    let spec = "name = 'mc'\n[runner.program]\nmode = 'submit'\nwords = ['echo', 'job']\n[runner.snippets]\npre = 'echo pre'\n";
    image.file(flux_shared::paths::SPEC_FILE, 0o444, spec);
    ["/mnt/flux", "/mnt/flux/config"]
        .iter()
        .for_each(|folder| image.mode(folder, 0o777));
    let mut container = Container::new(&image, "mc-0", &run_words(&["--patience", "2"]));
    // The limit counts all processes of the user. So each test of it has a user of its own.
    container.ids = (4322, 4322);
    container.outside = ["prlimit", "--nproc=1"].map(str::to_owned).into();
    let ended = image::run(&[container]).remove(0);
    assert!(ended.code != 0 && ended.stdout.is_empty(), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("resource temporarily unavailable; retrying for up to"),
        "{}",
        ended.stderr
    );
}

/// A pod with its own user. Its shell was killed during the job, and the user may start no more processes.
fn pod_without_processes(uid: u32, network: &Network) -> (Image, Running) {
    let spec = "[runner.program]\nmode = 'launcher'\nwords = ['sh', '-c', 'until [ -e /tmp/go ]; do sleep 0.1; done']\n\
                [runner.snippets]\npre = 'echo pre ran'\npost = 'echo post ran'\n";
    let image = crate::live::pod_image(spec, 1);
    ["/mnt/flux", "/mnt/flux/config"]
        .iter()
        .for_each(|folder| image.mode(folder, 0o777));
    std::os::unix::fs::chown(image.at("/etc/flux-agent/curve/curve.cert"), Some(uid), Some(uid)).unwrap();
    let mut container = Container::new(&image, "mc-0", &run_words(&[]));
    container.ids = (uid, uid);
    let pod = Running::pod(&container, network);
    pod.wait_for_output("pre ran\n");
    let shell = eventually("the job runs", || {
        let words = |pid: &i32| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let children = pod.children();
        // The snippets' shell and the broker.
        if children.len() != 2 {
            return None;
        }
        // The shell's command line contains the driver, which runs `flux-agent snippet-state`.
        children
            .iter()
            .find(|pid| words(pid).contains("snippet-state"))
            .copied()
    });
    allow_processes(uid, &pod, 1);
    send(shell, 9);
    eventually("the shell has ended", || {
        (pod.children().len() == 1).then_some(())
    });
    std::fs::write(gate(&image, "go"), "").unwrap();
    pod.wait_for_output("resource temporarily unavailable; retrying for up to");
    (image, pod)
}

/// Runs as the pod's user: in some environments root may not change the limits of other users. Changes only the soft
/// limit (`COUNT:`), since this user could not raise the hard one again.
fn allow_processes(uid: u32, pod: &Running, count: u32) {
    let ids = [
        format!("--reuid={uid}"),
        format!("--regid={uid}"),
        "--clear-groups".into(),
    ];
    let words = [
        "prlimit".into(),
        format!("--pid={}", pod.pid),
        format!("--nproc={count}:"),
    ];
    assert!(
        Command::new("setpriv")
            .args(ids)
            .args(words)
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn post_shell_start_is_retried_when_process_limit_is_reached() {
    let network = Network::new();
    let (_image, pod) = pod_without_processes(4323, &network);
    allow_processes(4323, &pod, 1000);
    let ended = pod.end();
    ended.expect(0, "pre ran\npost ran\n", "");
}

#[test]
fn stop_keeps_job_result_when_post_shell_cannot_start() {
    let network = Network::new();
    let (image, pod) = pod_without_processes(4324, &network);
    pod.signal(15);
    let ended = pod.end();
    ended.expect(0, "pre ran\n", "");
    let termination = termination_of(&image);
    assert_eq!(termination.program_code, Some(0), "{termination:?}");
    assert!(
        termination
            .message
            .contains("the pod was stopped: the snippet post does not run"),
        "{termination:?}"
    );
}
