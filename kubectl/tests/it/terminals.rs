//! What a user sees on a terminal, which script(1) provides.
//!
//! The pods have no kubelet. So `with_programs` puts a proxy (`Front`) before the API server. For each program that the
//! plugin starts in a pod, the proxy calls the test's closure, which plays the program by its `Session`.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStdout};

use crate::front::{Session, SessionEvent};
use crate::in_pods::{up, usage, with_programs};
use crate::user_account::{PluginOutput, in_time};
use crate::user_of;
use test_support::api_server::{test, until};

/// The pid of the plugin that the terminal's shell started with `word` in its command line.
fn plugin_below(script: &Child, word: &str) -> Option<u32> {
    let children = |pid: u32| -> Vec<u32> {
        let path = format!("/proc/{pid}/task/{pid}/children");
        std::fs::read_to_string(path)
            .unwrap_or_default()
            .split_whitespace()
            .map(|number| number.parse().unwrap())
            .collect()
    };
    let mut all = vec![script.id().unwrap()];
    while let Some(pid) = all.pop() {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
        let is_plugin = Path::new(std::str::from_utf8(words[0]).unwrap()).ends_with("kubectl-minicluster");
        if is_plugin && words.contains(&word.as_bytes()) {
            return Some(pid);
        }
        all.extend(children(pid));
    }
    None
}

async fn plugin_of(script: &Child, word: &str) -> u32 {
    until(&format!("{word} runs"), async || plugin_below(script, word)).await
}

/// Resizes the terminal of a process.
fn resize(pid: u32, rows: &str, columns: &str) {
    let terminal = format!("/proc/{pid}/fd/0");
    let stty = std::process::Command::new("stty")
        .args(["-F", &terminal, "rows", rows, "cols", columns])
        .status();
    assert!(stty.unwrap().success());
}

async fn read_until(from: &mut (impl AsyncReadExt + Unpin), shown: &mut String, words: &str) {
    let mut buffer = [0; 4096];
    let read = async {
        while !shown.contains(words) {
            let count = from.read(&mut buffer).await.unwrap();
            assert!(count > 0, "it ended without `{words}`: {shown}");
            shown.push_str(&String::from_utf8_lossy(&buffer[..count]));
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(60), read).await;
    assert!(in_time.is_ok(), "no `{words}` in {shown:?}");
}

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

/// Runs `top`, and prints the terminal's settings before and after it.
const TOP: &str =
    "echo before $(stty -g); $plugin top mc --interval 1; echo code $?; echo after $(stty -g) over";

/// How the user ends `top`.
enum Ending {
    Key(&'static [u8]),
    Signal(&'static str),
}

/// `top` refreshes, reports an error that passes, and prints no line that is longer than the terminal's.
async fn assert_refreshes_and_fits(script: &Child, out: &mut ChildStdout, shown: &mut String) {
    assert!(shown.contains("0 running, 3 waiting"), "{shown}");
    read_until(out, shown, "1 running, 3 waiting").await;
    read_until(out, shown, "! no usage available of mc: not up: a hiccup").await;
    shown.clear();
    read_until(out, shown, "every 1 s; q ends").await;
    resize(plugin_of(script, "top").await, "9", "20");
    // The first line, cut at 20 columns.
    read_until(out, shown, "mc: state run for 61\x1b[0m").await;
}

async fn assert_ends_as_it_began(
    mut script: Child,
    mut out: ChildStdout,
    mut shown: String,
    before: &str,
    ending: Ending,
) {
    let mut input = script.stdin.take().unwrap();
    match ending {
        Ending::Signal(name) => {
            let pid = plugin_of(&script, "top").await.to_string();
            assert!(
                std::process::Command::new("kill")
                    .args([name, &pid])
                    .status()
                    .unwrap()
                    .success()
            );
        }
        Ending::Key(key) => input.write_all(key).await.unwrap(),
    }
    read_until(&mut out, &mut shown, " over").await;
    let after = shown
        .split(LEAVE)
        .nth(1)
        .unwrap_or_else(|| panic!("`top` did not leave the other screen: {shown:?}"));
    assert!(
        after.contains("code 0\r\n") && after.contains(&format!("after {before} over")),
        "{before}: {after}"
    );
    assert!(
        shown.contains("\x1b[?25h"),
        "the cursor is not shown again: {shown:?}"
    );
    drop(input);
    assert_eq!(PluginOutput::when_over(script).await.code, 0);
}

#[test]
fn top_refreshes_until_a_key_and_leaves_the_terminal_as_it_was() {
    test("top-live", async |fixture| {
        let operator = up(&fixture, 1).await;
        let looks = Arc::new(AtomicU64::new(0));
        let agent = move |mut session: Session| {
            let looks = looks.clone();
            async move {
                match looks.fetch_add(1, Ordering::SeqCst) {
                    // A temporary failure. Two requests fail, since `top` asks again before it reports a failure.
                    2 | 3 => {
                        session.complain("flux-agent: not up: a hiccup\n").await;
                        session.end(1).await;
                    }
                    // A job appears after the first look.
                    look => {
                        session.say(&usage(look.min(1))).await;
                        session.end(0).await;
                    }
                }
            }
            .boxed()
        };
        let (front, person) = with_programs(user_of(&fixture), agent).await;
        for ending in [Ending::Key(b"q"), Ending::Key(b"\x03"), Ending::Signal("-TERM")] {
            let is_first = front.started().is_empty();
            let mut script = person.on_terminal("rows 12 cols 60", TOP).spawn().unwrap();
            let mut out = script.stdout.take().unwrap();
            let mut shown = String::new();
            read_until(&mut out, &mut shown, "every 1 s; q ends").await;
            let before = shown
                .split("before ")
                .nth(1)
                .unwrap()
                .split_whitespace()
                .next()
                .unwrap()
                .to_owned();
            if is_first {
                assert_refreshes_and_fits(&script, &mut out, &mut shown).await;
            }
            assert_ends_as_it_began(script, out, shown, &before, ending).await;
        }
        // With `--once`, `top` does not switch to the other screen.
        let mut once = person.on_terminal("rows 12 cols 60", "$plugin top mc --once");
        let output = PluginOutput::of(
            in_time("top --once", once.stdin(Stdio::null()).output())
                .await
                .unwrap(),
        );
        assert!(
            output.code == 0 && output.out.contains("1 running") && !output.out.contains(ENTER),
            "{output:?}"
        );
        operator.stop().await;
    });
}

#[test]
fn top_ends_when_the_job_does() {
    test("top-ends", async |fixture| {
        let operator = up(&fixture, 1).await;
        let pods = fixture.pods("mc", 1).await;
        let looks = Arc::new(AtomicU64::new(0));
        let agent = move |mut session: Session| {
            let is_first = looks.fetch_add(1, Ordering::SeqCst) == 0;
            async move {
                if is_first {
                    session.say(&usage(1)).await;
                }
                session.end(u8::from(!is_first)).await;
            }
            .boxed()
        };
        let (_front, person) = with_programs(user_of(&fixture), agent).await;
        let mut script = person
            .on_terminal("rows 30 cols 100", "$plugin top mc --interval 1; echo code $?")
            .spawn()
            .unwrap();
        let _input = script.stdin.take().unwrap();
        let mut out = script.stdout.take().unwrap();
        let mut shown = String::new();
        read_until(&mut out, &mut shown, "every 1 s").await;
        fixture.end_pod(&pods[&0], 0, "Completed", "").await;
        read_until(&mut out, &mut shown, "code 0").await;
        assert!(
            shown
                .split(LEAVE)
                .nth(1)
                .unwrap()
                .contains("mc has ended (Completed)"),
            "{shown:?}"
        );
        operator.stop().await;
    });
}

#[test]
fn resize_of_the_terminal_reaches_the_program_in_the_pod() {
    test("resize", async |fixture| {
        let operator = up(&fixture, 1).await;
        let shell = |mut session: Session| {
            async move {
                assert!(
                    session.terminal && session.words == ["connect"],
                    "{:?}",
                    session.words
                );
                session.say("ready\r\n").await;
                while let Some(event) = session.hear().await {
                    match event {
                        SessionEvent::Size(size) => session.say(&format!("size {size}\r\n")).await,
                        SessionEvent::Input(keys) if keys == b"\x03" => session.say("got Ctrl-C\r\n").await,
                        SessionEvent::Input(keys) if keys == b"\x04" => break,
                        other => session.say(&format!("{other:?}\r\n")).await,
                    }
                }
                session.end(9).await;
            }
            .boxed()
        };
        let (_front, person) = with_programs(user_of(&fixture), shell).await;
        let mut script = person
            .on_terminal("rows 33 cols 77", "$plugin connect mc; echo code $?")
            .spawn()
            .unwrap();
        let mut input = script.stdin.take().unwrap();
        let mut out = script.stdout.take().unwrap();
        let mut shown = String::new();
        read_until(&mut out, &mut shown, r#"size {"Width":77,"Height":33}"#).await;
        resize(plugin_of(&script, "connect").await, "40", "100");
        read_until(&mut out, &mut shown, r#"size {"Width":100,"Height":40}"#).await;
        // Keys reach the program in the pod.
        input.write_all(b"\x03").await.unwrap();
        read_until(&mut out, &mut shown, "got Ctrl-C").await;
        input.write_all(b"\x04").await.unwrap();
        read_until(&mut out, &mut shown, "code 9").await;
        operator.stop().await;
    });
}

#[test]
fn connect_leaves_the_terminal_as_it_was_after_a_signal() {
    test("connect-signal", async |fixture| {
        let operator = up(&fixture, 1).await;
        let shell = |mut session: Session| {
            async move {
                session.say("ready\r\n").await;
                while session.hear().await.is_some() {}
            }
            .boxed()
        };
        let (_front, person) = with_programs(user_of(&fixture), shell).await;
        let line =
            "echo before $(stty -g) over; $plugin connect mc; echo code $?; echo after $(stty -g) over";
        for (signal, code) in [("-TERM", "code 143"), ("-HUP", "code 129")] {
            let mut script = person.on_terminal("rows 33 cols 77", line).spawn().unwrap();
            let _input = script.stdin.take().unwrap();
            let mut out = script.stdout.take().unwrap();
            let mut shown = String::new();
            read_until(&mut out, &mut shown, "ready").await;
            let pid = plugin_of(&script, "connect").await.to_string();
            let kill = std::process::Command::new("kill").args([signal, &pid]).status();
            assert!(kill.unwrap().success());
            read_until(&mut out, &mut shown, code).await;
            let before = shown.split("before ").nth(1).unwrap().split(" over").next();
            let after = format!("after {} over", before.unwrap());
            read_until(&mut out, &mut shown, &after).await;
        }
        operator.stop().await;
    });
}

#[test]
fn start_progress_is_animated_on_terminal_and_plain_in_pipe() {
    test("spinner", async |fixture| {
        let operator = fixture.operator().await;
        let person = user_of(&fixture);
        for (name, line) in [
            ("tty", "$plugin run --name tty app:1 -- true"),
            ("pipe", "$plugin run --name pipe app:1 -- true 2>&1 | cat"),
        ] {
            let mut script = person.on_terminal("rows 30 cols 100", line).spawn().unwrap();
            let _input = script.stdin.take().unwrap();
            let pods = fixture.pods(name, 1).await;
            let mut out = script.stdout.take().unwrap();
            let mut shown = String::new();
            read_until(&mut out, &mut shown, "pods").await;
            // Some turns of the spinner.
            tokio::time::sleep(Duration::from_millis(500)).await;
            fixture.run_pod(&pods[&0]).await;
            fixture.when_condition(name, "Ready", "True").await;
            fixture.end_pod(&pods[&0], 0, "Completed", "").await;
            in_time("its output ends", out.read_to_string(&mut shown))
                .await
                .unwrap();
            match name {
                "tty" => {
                    assert!(shown.contains("\x1b[") && shown.contains('\r'), "{shown:?}");
                    assert!(
                        shown
                            .chars()
                            .any(|character| ('\u{2800}'..='\u{28ff}').contains(&character)),
                        "no spinner: {shown:?}"
                    );
                    assert!(!shown.contains("pods: "), "no plain lines: {shown:?}");
                }
                _ => {
                    assert!(
                        !shown.contains('\x1b') && shown.contains("\r\nquorum: 1 broker: the job starts\r\n"),
                        "{shown:?}"
                    );
                }
            }
        }
        operator.stop().await;
    });
}

/// The terminal prints `^C` at the cursor. At the end of a full line it would begin another one, so that one of the lines
/// that are updated in place would stay.
#[test]
fn ctrl_c_leaves_no_progress_line_on_the_terminal() {
    test("ctrl-c-room", async |fixture| {
        let operator = fixture.operator().await;
        let person = user_of(&fixture);
        let line = "$plugin run --name mc app:1 -- true";
        let mut script = person.on_terminal("rows 30 cols 100", line).spawn().unwrap();
        let mut input = script.stdin.take().unwrap();
        fixture.pods("mc", 1).await;
        let mut out = script.stdout.take().unwrap();
        let mut shown = String::new();
        read_until(&mut out, &mut shown, "quorum").await;
        // Some turns of the spinner.
        tokio::time::sleep(Duration::from_millis(500)).await;
        input.write_all(b"\x03").await.unwrap();
        read_until(&mut out, &mut shown, "shutting down mc").await;
        let (before, after) = shown.split_once("^C").unwrap();
        assert!(before.ends_with('\n'), "{shown:?}");
        // Moves up over the four lines of the progress, and clears them.
        assert!(after.starts_with("\x1b[4A\r\x1b[J"), "{shown:?}");
        in_time("its output ends", out.read_to_string(&mut shown))
            .await
            .unwrap();
        operator.stop().await;
    });
}

#[test]
fn colours_are_for_terminals_without_no_color() {
    test("colours", async |fixture| {
        let operator = fixture.operator().await;
        let person = user_of(&fixture);
        fixture.create("mc", json!({ "size": 1 })).await;
        fixture
            .when("mc", "one with a phase", |status| status["phase"].is_string())
            .await;
        for (line, has_colours) in [
            ("$plugin status mc", true),
            ("NO_COLOR=1 $plugin status mc", false),
            ("NO_COLOR= $plugin status mc", true),
            ("$plugin status mc | cat", false),
            ("$plugin status mc -o yaml", false),
        ] {
            let mut script = person.on_terminal("rows 30 cols 100", line);
            let output = PluginOutput::of(in_time(line, script.stdin(Stdio::null()).output()).await.unwrap());
            assert_eq!(output.code, 0, "{output:?}");
            assert_eq!(output.out.contains("\x1b["), has_colours, "{line}: {output:?}");
            assert!(output.out.contains("mc"), "{output:?}");
        }
        operator.stop().await;
    });
}
