//! Exit codes, signals, orphans and terminals: what every init has to handle, tested as PID 1 and not as PID 1.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::image::{agent, fake_flux};
use crate::live::{Running, Solo, eventually, in_parallel, state_of};

/// `flux-agent time` is just the supervisor.
fn time<'a>(command: &[&'a str]) -> Vec<&'a str> {
    [&["time", "--label", "test", "--"], command].concat()
}

#[test]
fn all_exit_codes_are_passed_on() {
    in_parallel(0..256, |code| {
        let script = format!("exit {code}");
        assert_eq!(Running::plain(&time(&["sh", "-c", &script])).end().code, code);
        assert_eq!(Running::as_init(&time(&["sh", "-c", &script])).end().code, code);
    });
}

#[test]
fn program_ended_by_a_signal_exits_128_plus_signal() {
    // By default, the signals in this list do not end a process. The C library uses 32 and 33.
    let deadly = (1..32)
        .filter(|signal| ![17, 18, 19, 20, 21, 22, 23, 28].contains(signal))
        .chain(34..65);
    in_parallel(deadly, |signal| {
        let script = format!("ulimit -c 0; kill -{signal} $$; sleep 9");
        assert_eq!(
            Running::as_init(&time(&["sh", "-c", &script])).end().code,
            128 + signal
        );
    });
}

#[test]
fn program_does_not_inherit_ignored_signals() {
    let agent = agent().display();
    let script =
        format!("trap '' HUP INT QUIT TERM; exec {agent} time --label test -- sh -c 'kill -HUP $$; exit 0'");
    let status = Command::new("sh")
        .args(["-c", &script])
        .stderr(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(status.code(), Some(129));
}

/// The kernel discards the exit status of children if their parent ignores SIGCHLD. Some daemons pass that on
/// to their children.
#[test]
fn sigchld_ignored_above_does_not_hide_the_programs_end() {
    let run = |program: &[&str]| {
        let mut command = Command::new("timeout");
        command
            .args(["--foreground", "-s", "KILL", "30", "env", "--ignore-signal=CHLD"])
            .arg(agent())
            .args(time(program));
        command.output().unwrap()
    };
    assert_eq!(run(&["sh", "-c", "exit 5"]).status.code(), Some(5));
    let ignored = run(&["grep", "SigIgn:", "/proc/self/status"]).stdout;
    let ignored = String::from_utf8(ignored).unwrap();
    let set = u64::from_str_radix(ignored.trim_start_matches("SigIgn:").trim(), 16).unwrap();
    assert_eq!(set >> 16 & 1, 0, "the program must not ignore SIGCHLD: {ignored}");
}

#[test]
fn program_that_cannot_start_exits_126_or_127_as_in_a_shell() {
    let folder = crate::image::folder();
    let at = |name: &str, text: &str, mode: u32| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        path.display().to_string()
    };
    let code = |program: &str| Running::plain(&time(&[program])).end().code;
    assert_eq!(code("no-such-program-anywhere"), 127);
    assert_eq!(code("/no/such/program"), 127);
    assert_eq!(code(&at("plain", "", 0o644)), 126);
    assert_eq!(code(folder.path().to_str().unwrap()), 126);
    assert_eq!(code(&at("lost", "#!/no/such/interpreter\n", 0o755)), 127);
    assert_eq!(
        code(&at("bare", "exit 42\n", 0o755)),
        42,
        "a script without a `#!` line is run by sh"
    );
}

#[test]
fn every_signal_reaches_the_program_once() {
    for start in [Running::plain, Running::as_init] {
        let running = start(&time(&[fake_flux().to_str().unwrap(), "listen"]));
        running.wait_for_output("ready");
        // Nobody can catch 9 and 19. 17 (SIGCHLD) is about the agent's own children. The C library uses 32 and 33.
        for signal in (1..65).filter(|signal| ![9, 17, 19, 32, 33].contains(signal)) {
            running.signal(signal);
            running.wait_for_output(&format!("got {signal}."));
        }
        let output = running.stdout();
        for signal in (1..65).filter(|signal| ![9, 17, 19, 32, 33].contains(signal)) {
            assert_eq!(
                output.matches(&format!("got {signal}.")).count(),
                1,
                "signal {signal}: {output}"
            );
        }
    }
}

#[test]
fn signal_reaches_the_children_of_the_program() {
    let running = Running::as_init(&time(&[
        "sh",
        "-c",
        "sleep 77 & echo ready; sleep 77; echo never",
    ]));
    running.wait_for_output("ready");
    running.signal(15);
    let ended = running.end();
    assert_eq!((ended.code, ended.stdout.as_str()), (143, "ready\n"));
}

#[test]
fn orphans_are_reaped_while_the_program_runs() {
    let orphans = "for i in $(seq 1 30); do sh -c 'sleep 0.0$0 & exit 0' $((i % 9 + 1)); done
        for i in $(seq 1 2000); do
            [ \"$(cat /proc/[0-9]*/stat 2>/dev/null | grep -c ' Z ')\" = 0 ] && [ \"$(pgrep -xc sleep)\" = 0 ] && exit 5
            sleep 0.01
        done; exit 6";
    assert_eq!(Running::as_init(&time(&["sh", "-c", orphans])).end().code, 5);
}

#[test]
fn sigtstp_suspends_and_sigcont_resumes_the_program() {
    let running = Running::as_init(&time(&["sh", "-c", "sleep 77 & echo ready; wait"]));
    running.wait_for_output("ready");
    let program = running.children()[0];
    // 20 is SIGTSTP, 18 SIGCONT.
    running.signal(20);
    eventually("the program stops", || {
        (state_of(program) == Some('T')).then_some(())
    });
    running.signal(18);
    eventually("the program goes on", || {
        (state_of(program) == Some('S')).then_some(())
    });
    // A stop signal ends a suspended program, too.
    running.signal(20);
    eventually("the program stops again", || {
        (state_of(program) == Some('T')).then_some(())
    });
    running.signal(15);
    assert_eq!(running.end().code, 143);
}

#[test]
fn a_terminal_belongs_to_the_program_while_it_runs() {
    let script = |line: &str, input: &[u8]| {
        let command = format!("{} time -- sh -c '{line}'", agent().display());
        let mut child = Command::new("script")
            .args(["-qefc", &command, "/dev/null"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        stdin.write_all(input).unwrap();
        // Like a terminal, the input stays open until the program has ended.
        let output = child.wait_with_output().unwrap();
        drop(stdin);
        (
            output.status.code().unwrap(),
            String::from_utf8_lossy(&output.stdout).into_owned(),
        )
    };
    let (code, printed) = script("read x; echo \"got <$x>\"; exit 3", b"hello\n");
    assert!(code == 3 && printed.contains("got <hello>"), "{code} {printed}");
}

#[test]
fn ctrl_c_on_the_terminal_interrupts_once() {
    let line =
        "trap 'echo int; n=$((n + 1)); [ $n = 1 ] || exit 9' INT; echo ready; sleep 0.3; sleep 0.3; exit 4";
    let command = format!(
        "{} time -- bash -c \"{}\"",
        agent().display(),
        line.replace('$', "\\$")
    );
    let mut child = Command::new("script")
        .args(["-qefc", &command, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut output = String::new();
    let mut chunk = [0; 256];
    while let Ok(count @ 1..) = std::io::Read::read(&mut stdout, &mut chunk) {
        output += &String::from_utf8_lossy(&chunk[..count]);
        if output.ends_with("ready\r\n") {
            child.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
        }
    }
    assert_eq!(child.wait().unwrap().code(), Some(4), "{output}");
}

/// A script that prints when it was continued. It is for bash: other shells use vfork, and a suspended child of vfork
/// keeps its parent from being suspended.
const RESUMED: &str = "trap 'echo resumed' CONT; echo ready; while :; do sleep 0.05; done";
/// Makes the agent the leader of a session with the terminal, as a container's runtime does.
const LEADER: [&str; 2] = ["setsid", "--ctty"];
/// Kills the agent at the end of the test. The child leads no process group, so a `setsid` in it does not fork.
const CHILD: [&str; 3] = ["unshare", "--fork", "--kill-child"];

fn press_ctrl_z(mut terminal: &std::fs::File) {
    terminal.write_all(b"\x1a").unwrap();
}

fn wait_for_state(pid: i32, state: char) {
    eventually(&format!("state {state} of {pid}"), || {
        (state_of(pid) == Some(state)).then_some(())
    });
}

#[test]
fn ctrl_z_changes_nothing_without_a_shell_above() {
    let init = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child"];
    let mut agent = Command::new(agent());
    agent.args(time(&["bash", "-c", RESUMED]));
    // PID 1 of a container; a container that shares its pid namespace; PID 1 whose session leader is outside.
    for wrappers in [
        [&init, &LEADER[..]].concat(),
        [&CHILD, &LEADER[..]].concat(),
        [&CHILD, &LEADER[..], &init].concat(),
    ] {
        let (running, terminal) = Running::on_terminal(&wrappers, &agent);
        running.wait_for_output("ready");
        for count in 1..3 {
            press_ctrl_z(&terminal);
            eventually("the program goes on", || {
                (running.stdout().matches("resumed").count() == count).then_some(())
            });
            assert_ne!(state_of(running.pid), Some('T'), "{wrappers:?}");
        }
        // What somebody suspends through the agent stays suspended. 20 is SIGTSTP, 18 SIGCONT.
        let program = running.children()[0];
        running.signal(20);
        wait_for_state(program, 'T');
        std::thread::sleep(std::time::Duration::from_millis(300));
        assert_eq!(state_of(program), Some('T'), "{wrappers:?}");
        running.signal(18);
        wait_for_state(program, 'S');
        running.signal(15);
        assert_eq!(running.end().code, 143, "{wrappers:?}");
    }
}

#[test]
fn ctrl_z_changes_nothing_in_a_snippet() {
    let solo = Solo::new(
        "",
        &format!("pre = {}", serde_json::to_string(RESUMED).unwrap()),
        "echo never",
    );
    let (running, terminal) = Running::on_terminal(&[&CHILD, &LEADER[..]].concat(), &solo.command(true, &[]));
    running.wait_for_output("ready");
    press_ctrl_z(&terminal);
    running.wait_for_output("resumed");
    running.wait_for_output("Ctrl-Z has no effect");
    running.signal(15);
    assert_eq!(running.end().code, 143);
}

#[test]
fn ctrl_z_returns_to_the_shell_above() {
    let shell = ["bash", "--norc", "-ic", "\"$0\" \"$@\"; echo shell; fg"];
    let wrappers = [&CHILD, &LEADER[..], &shell].concat();
    let mut agent = Command::new(agent());
    agent.args(time(&["bash", "-c", RESUMED]));
    let (running, terminal) = Running::on_terminal(&wrappers, &agent);
    running.wait_for_output("ready");
    press_ctrl_z(&terminal);
    running.wait_for_output("shell");
    running.wait_for_output("resumed");
    running.signal(15);
    assert_eq!(running.end().code, 143);
}

#[test]
fn last_output_of_a_program_is_not_lost() {
    let ended = Solo::new("", "", "seq 1 20000; echo end; exit 6")
        .with(&["sh", "seq"])
        .run(&[]);
    assert_eq!(
        (
            ended.code,
            ended.stdout.lines().count(),
            ended.stdout.ends_with("end\n")
        ),
        (6, 20001, true)
    );
    // A process that keeps the output open does not delay the end of the container.
    let running = Running::as_init(&time(&["sh", "-c", "sleep 300 & echo end; exit 6"]));
    assert_eq!(running.end().code, 6);
}

#[test]
fn install_and_view_end_at_once_on_a_stop() {
    // A named pipe without a writer is in place of a file that the command reads.
    for (command, pipe) in [("install", "flux-agent"), ("view", ".flux-view.done")] {
        let folder = crate::image::folder();
        let path = folder.path().join(pipe);
        nix::unistd::mkfifo(&path, nix::sys::stat::Mode::from_bits_truncate(0o600)).unwrap();
        std::fs::create_dir_all(folder.path().join("opt/view/bin")).unwrap();
        std::fs::create_dir_all(folder.path().join("opt/software")).unwrap();
        let root = folder.path().to_str().unwrap();
        let more: &[&str] = if command == "view" {
            &["--root", root, "--software", root]
        } else {
            &[]
        };
        // SIGQUIT and SIGRTMIN+3 are the STOPSIGNAL of some images.
        for signal in [15, 3, 37] {
            let running = Running::as_init(&[&[command, "--to", root], more].concat());
            // The second thread waits for stop signals.
            eventually("it listens", || {
                let status =
                    std::fs::read_to_string(format!("/proc/{}/status", running.pid)).unwrap_or_default();
                status.contains("\nThreads:\t2\n").then_some(())
            });
            running.signal(signal);
            assert_eq!(running.end().code, 143, "{command} {signal}");
        }
    }
}
