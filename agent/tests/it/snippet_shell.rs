//! The shell of the snippets, through all that a snippet, a job or the user's environment may do to it.

use crate::image::{self, AGENT, Container, Image};
use crate::live::{Ended, Solo, run_words};

const BASH: &[&str] = &["sh", "bash", "sleep", "cat", "ls", "touch"];
const DASH: &[&str] = &["sh", "sleep", "cat", "ls", "touch"];

fn run(programs: &[&str], snippets: &str, command: &str) -> Ended {
    Solo::new("", snippets, command).with(programs).run(&[])
}

#[test]
fn tmout_of_a_snippet_does_not_end_the_shell_of_post() {
    for line in ["TMOUT=1", "readonly TMOUT=1", "export TMOUT=1; sleep 300 &"] {
        let snippets = format!("pre = 'f() {{ echo f; }}; {line}'\npost = 'f; echo post ran'");
        let ended = run(BASH, &snippets, "sleep 3; echo job done");
        assert_eq!((ended.code, ended.stdout.as_str()), (0, "job done\nf\npost ran\n"), "{line}: {}", ended.stderr);
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
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "pre ran\njob done\npost ran\n"), "{}", ended.stderr);
}

/// With something in the background that would hold its pipes, and without.
#[test]
fn shell_that_is_killed_during_the_job_is_replaced_for_post() {
    for programs in [BASH, DASH] {
        for background in ["", "sleep 300 & "] {
            let solo = Solo::new("", "", "").with(programs);
            let pid = solo.folder.path().join("pid").display().to_string();
            let snippets = format!(
                "pre = '''{background}export KEPT=kept; ulimit -n 300; umask 027; echo $$ >{pid}'''\n\
                 post = 'echo post sees $KEPT $(ulimit -n) $(umask)'"
            );
            let ended = run(programs, &snippets, &format!("kill -9 $(cat {pid}); sleep 0.3; echo job done"));
            let want = "job done\npost sees kept 300 0027\n";
            assert_eq!((ended.code, ended.stdout.as_str()), (0, want), "{background}: {}", ended.stderr);
            let told = "was ended by signal 9 while no snippet ran: post runs in a new one";
            assert!(ended.stderr.contains(told), "{}", ended.stderr);
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
    // Another shell would drop them.
    solo.edit(|spec| spec.replace("'sh', '-c'", "'bash', '-c'"));
    let ended = solo.run(&[]);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "two\nkept\n"), "{}", ended.stderr);
    assert!(ended.stderr.contains("g: command not found"), "{}", ended.stderr);
}

#[test]
fn descriptors_of_a_snippet_are_its_own() {
    for (programs, more) in
        [(BASH, "exec 12>taken 200>taken 230>taken 255>taken; echo hello >&12; "), (DASH, "exec 9>taken; ")]
    {
        let closed = "for fd in 3 4 5 6 7 8; do eval \"exec $fd>&-\"; done; exec </dev/null";
        let snippets = format!(
            "init = 'cd $HOME_OF_TEST; {more}{closed}'\npre = '''sleep 300 & sleep 0.5; ls -l /proc/$!/fd >fds'''\npost = 'cat fds; echo post ran'"
        );
        let solo = Solo::new("", &snippets, "echo job").with(programs);
        let home = solo.folder.path().display().to_string();
        solo.edit(|spec| spec.replace("$HOME_OF_TEST", &home));
        let ended = solo.run(&[]);
        assert!(ended.code == 0 && ended.stdout.ends_with("post ran\n"), "{ended:?}");
        // The agent hands its text over in memory. (What the tests themselves were started with is there, too.)
        assert!(ended.stdout.contains("taken"), "{ended:?}");
        assert!(!ended.stdout.contains("memfd:"), "a daemon of a snippet has descriptors of the agent's: {ended:?}");
    }
}

#[test]
fn users_environment_does_not_break_the_driver() {
    let functions = "read() { echo my read; }; printf() { echo my printf; }; kill() { echo my kill; }";
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
            ],
        ),
        (DASH, vec![functions, "IFS=geos", "set -u", "set -f; set -C", "trap 'echo usr' USR1"]),
    ] {
        for line in lines {
            let snippets = format!("init = '''{line}'''\npre = 'echo pre ran'\npost = 'echo post ran'");
            let ended = run(programs, &snippets, "echo job done");
            let want = "pre ran\njob done\npost ran\n";
            assert_eq!((ended.code, ended.stdout.as_str()), (0, want), "{line}: {}", ended.stderr);
        }
    }
}

#[test]
fn file_of_bash_env_is_sourced_and_one_that_ends_the_shell_is_named() {
    let image = Image::usual();
    let spec = "name = 'mc'\n[runner.program]\nmode = 'submit'\nwords = ['echo', 'job']\n\
                [runner.snippets]\npre = 'from_bash_env'\n";
    image.file(flux_shared::paths::SPEC_FILE, 0o444, spec);
    for (text, code, stdout) in [("from_bash_env() { echo known; }", 0, "known\njob\n"), ("exit 5", 5, "")] {
        crate::live::forget_starts(&image);
        image.file("/etc/bash.env", 0o644, text);
        let mut container = Container::new(&image, "mc-0", &run_words(&[]));
        container.environment.insert("BASH_ENV".into(), "/etc/bash.env".into());
        let ended = image::run(&[container]).remove(0);
        assert_eq!((ended.code, ended.stdout.as_str()), (code, stdout), "{}", ended.stderr);
        assert_eq!(ended.stderr.contains("does the file that BASH_ENV names end it?"), code != 0, "{}", ended.stderr);
    }
}

/// As where a security module keeps processes from looking at each other.
#[test]
fn shell_that_may_not_look_at_the_agent_runs_snippets_as_well() {
    let image = Image::usual();
    let spec = "name = 'mc'\n[runner.program]\nmode = 'submit'\nwords = ['echo', 'job']\n\
                [runner.snippets]\npre = 'export SEEN=1; echo ${flux_agent_ask%fd*}'\npost = 'echo post $SEEN'\n";
    image.file(flux_shared::paths::SPEC_FILE, 0o444, spec);
    // A program that its user may not read cannot be looked at.
    let own = std::fs::read(image.at(AGENT)).unwrap();
    std::fs::remove_file(image.at(AGENT)).unwrap(); // a link to that of all tests
    std::fs::write(image.at(AGENT), own).unwrap();
    image.mode(AGENT, 0o711);
    ["/mnt/flux", "/mnt/flux/config"].iter().for_each(|folder| image.mode(folder, 0o777));
    let mut container = Container::new(&image, "mc-0", &run_words(&[]));
    container.ids = (4321, 4321);
    let ended = image::run(&[container]).remove(0);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "/proc/self/\njob\npost 1\n"), "{}", ended.stderr);
}

#[test]
fn start_of_the_shell_is_retried_when_no_process_more_is_allowed() {
    let image = Image::usual();
    let spec = "name = 'mc'\n[runner.program]\nmode = 'submit'\nwords = ['echo', 'job']\n[runner.snippets]\npre = 'echo pre'\n";
    image.file(flux_shared::paths::SPEC_FILE, 0o444, spec);
    ["/mnt/flux", "/mnt/flux/config"].iter().for_each(|folder| image.mode(folder, 0o777));
    let mut container = Container::new(&image, "mc-0", &run_words(&["--patience", "2"]));
    container.ids = (4322, 4322);
    container.outside = ["prlimit", "--nproc=1"].map(str::to_owned).into();
    let ended = image::run(&[container]).remove(0);
    assert!(ended.code != 0 && ended.stdout.is_empty(), "{ended:?}");
    assert!(ended.stderr.contains("resource temporarily unavailable; retrying for up to"), "{}", ended.stderr);
}
