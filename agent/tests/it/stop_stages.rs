//! A stop at every stage of the entrypoint: none of the user's programs start after it (but a follower's `post` if its
//! instance has ended), running ones are killed in time, and the exit code is correct.
//!
//! All of the user's programs print `ran NAME` when they start, so the output shows what starts after the stop.

use std::fs;
use std::time::{Duration, Instant, SystemTime};

use flux_shared::exit::REPLACE;
use flux_shared::paths::{END_KEY, SPEC_DIR};
use flux_shared::termination::{Ender, Termination};

use crate::image::{AGENT, Container, Image, real_flux};
use crate::instance::{launch, submit};
use crate::live::{Network, Running, eventually, gate, pod_image, run_words, termination_of};

/// How the pod is stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// One SIGTERM, which the program obeys.
    Heeded,
    /// Two SIGTERMs, the first of which the program ignores.
    Twice,
    /// One SIGTERM, which the program ignores until the deadline.
    Ignored,
}

const STOPS: [Stop; 3] = [Stop::Heeded, Stop::Twice, Stop::Ignored];
/// The stops of a stage in which no program gets the first SIGTERM.
const ONCE_OR_TWICE: [Stop; 2] = [Stop::Heeded, Stop::Twice];
const GRACE: Duration = Duration::from_secs(15);
/// When the agent kills what still runs after a stop (`kill_after` in the planner: 14.25 s), minus a margin for timers.
const DEADLINE: Duration = Duration::from_secs(14);
/// How long a follower holds back a stop (`hold_stop` in the planner: 13.5 s), minus a margin for a busy machine.
const HOLD: Duration = Duration::from_secs(12);
/// Exit code of a stopped follower, whose pod the Job may replace.
const REPLACED: i32 = REPLACE as i32;

/// A shell script that prints `ran NAME` and then stays. Unless `stop` is `Heeded`, it ignores SIGTERM.
fn stays(name: &str, stop: Stop) -> String {
    let trap = if stop == Stop::Heeded {
        ""
    } else {
        "trap '' TERM; "
    };
    format!("{trap}echo ran {name}; while :; do sleep 0.1; done")
}

/// All snippets but `except`. They only print their names.
fn echoing_snippets(except: &str) -> String {
    let names = ["init", "pre", "broker_pre", "worker_pre", "post"];
    let lines = names.iter().filter(|name| **name != except);
    let lines: String = lines
        .map(|name| format!("{name} = 'echo ran {name}'\n"))
        .collect();
    format!("[runner.snippets]\n{lines}")
}

/// One stage.
struct Stage<'a> {
    /// Number of pods. The last one is stopped.
    size: u32,
    /// Whether the lead runs too, if the stopped pod is a follower.
    with_lead: bool,
    /// Whether the agent holds back the first stop, since the lead may end the follower's broker.
    waits_for_lead: bool,
    /// The stops that differ in this stage.
    stops: &'a [Stop],
    spec: &'a (dyn Fn(Stop) -> String + Sync),
    prepare: &'a (dyn Fn(&Image, Stop) + Sync),
    /// The output when the stage is reached.
    reached: &'a str,
    /// Another condition for the stage.
    is_reached: &'a (dyn Fn(&Image) -> bool + Sync),
    /// How the fake Flux dumps the archive.
    dump: &'a (dyn Fn(Stop) -> &'static str + Sync),
    /// The exit code.
    code: &'a (dyn Fn(Stop) -> i32 + Sync),
    /// Whether the pod ends before the deadline, even if a program ignores the stop.
    ends_at_once: bool,
    /// Checks the ended pod's image, given the time of the first stop.
    check_image: &'a (dyn Fn(&Image, Stop, SystemTime) + Sync),
}

impl Stage<'_> {
    fn check(&self) {
        std::thread::scope(|scope| {
            for stop in self.stops {
                scope.spawn(|| self.check_one(*stop));
            }
        });
    }

    fn check_one(&self, stop: Stop) {
        let images: Vec<Image> = (0..self.size)
            .map(|_| pod_image(&(self.spec)(stop), self.size))
            .collect();
        images.iter().for_each(|image| (self.prepare)(image, stop));
        let (network, grace) = (Network::new(), GRACE.as_secs().to_string());
        let command = run_words(&["--grace-period", &grace]);
        let begin = |index: usize| {
            let mut container = Container::new(&images[index], &format!("mc-{index}"), &command);
            container.set("JOB_COMPLETION_INDEX", &index.to_string());
            container.set("FAKE_FLUX_DUMP", (self.dump)(stop));
            Running::pod(&container, &network)
        };
        let last = images.len() - 1;
        let lead = (self.with_lead && last > 0).then(|| begin(0));
        let pod = begin(last);
        pod.wait_for_output(self.reached);
        eventually(self.reached, || (self.is_reached)(&images[last]).then_some(()));
        let output_before = pod.stdout();
        let (stopped_at, stop_time) = (Instant::now(), SystemTime::now());
        pod.signal(15);
        if stop == Stop::Twice {
            // Longer than `DUPLICATE_STOP_WITHIN`, so that this is a second stop.
            std::thread::sleep(Duration::from_millis(400));
            pod.signal(15);
        }
        let ended = pod.end();
        let took = stopped_at.elapsed();
        let case = format!("{} {stop:?}", self.reached);
        assert!(
            !ended.stdout[output_before.len()..].contains("ran "),
            "{case}: {ended:?}"
        );
        assert_eq!(ended.code, (self.code)(stop), "{case}: {ended:?}");
        assert!(took < GRACE, "{case}: {took:?}");
        if self.waits_for_lead {
            // A second stop ends the hold.
            assert!(stop == Stop::Twice || took >= HOLD, "{case}: {took:?}");
        } else if stop == Stop::Ignored && !self.ends_at_once {
            assert!(took >= DEADLINE, "{case}: {took:?}");
        } else {
            assert!(took < DEADLINE, "{case}: {took:?}");
        }
        (self.check_image)(&images[last], stop, stop_time);
        drop(lead);
    }
}

const ALONE: Stage = Stage {
    size: 1,
    with_lead: false,
    waits_for_lead: false,
    stops: &STOPS,
    spec: &|_| String::new(),
    prepare: &|_, _| {},
    reached: "",
    is_reached: &|_| true,
    dump: &|_| "",
    code: &|_| 143,
    ends_at_once: false,
    check_image: &|_, _, _| {},
};
const FOLLOWER: Stage = Stage {
    size: 2,
    code: &|_| REPLACED,
    ..ALONE
};

#[test]
fn stop_while_the_spec_is_missing_starts_nothing() {
    let prepare: &(dyn Fn(&Image, Stop) + Sync) =
        &|image, _| std::fs::remove_file(image.at(flux_shared::paths::SPEC_FILE)).unwrap();
    for stage in [ALONE, FOLLOWER] {
        Stage {
            stops: &ONCE_OR_TWICE,
            prepare,
            reached: "retrying for up to",
            ..stage
        }
        .check();
    }
}

#[test]
fn stop_during_a_snippet_starts_nothing_after_it() {
    for name in ["init", "pre"] {
        let spec: &(dyn Fn(Stop) -> String + Sync) = &|stop| {
            let source = serde_json::to_string(&stays(name, stop)).unwrap();
            format!(
                "{}{name} = {source}\n{}",
                echoing_snippets(name),
                launch("echo ran program")
            )
        };
        let reached = format!("ran {name}\n");
        for stage in [ALONE, FOLLOWER] {
            Stage {
                spec,
                reached: &reached,
                ..stage
            }
            .check();
        }
    }
}

#[test]
fn stop_that_a_snippet_traps_starts_nothing_after_it() {
    let spec: &(dyn Fn(Stop) -> String + Sync) = &|_| {
        format!(
            "{}pre = \"trap 'echo trapped' TERM; echo ran pre; sleep 3 || true; echo pre ends\"\n{}",
            echoing_snippets("pre"),
            launch("echo ran program")
        )
    };
    for stage in [ALONE, FOLLOWER] {
        Stage {
            stops: &[Stop::Heeded],
            spec,
            reached: "ran pre\n",
            ..stage
        }
        .check();
    }
}

/// The runtime stops a container by the STOPSIGNAL of its image: SIGQUIT (nginx), SIGUSR1 (haproxy), SIGWINCH (httpd) or
/// SIGRTMIN+3 (systemd).
#[test]
fn stopsignal_of_the_image_stops_like_sigterm() {
    let waits = "[sidecars.monitor]\nwait_socket = false\npre = 'echo ready'\n";
    let stays = "trap 'exit 3' TERM; echo ran program; while :; do sleep 0.1; done";
    let run = run_words(&[]);
    let sidecar = [AGENT, "sidecar", "monitor"];
    let stages: [(u32, String, &[&str], &str); 4] = [
        (2, launch("echo ran program"), &run, "follower (rank 1)"),
        (
            1,
            "[runner.snippets]\npre = 'echo ran pre; sleep 60'\n".to_owned() + &launch("echo ran program"),
            &run,
            "ran pre\n",
        ),
        (1, launch(stays), &run, "ran program\n"),
        (1, waits.into(), &sidecar, "waiting for the pod to be deleted"),
    ];
    let stopped_by = |signal: i32, (size, spec, words, reached): &(u32, String, &[&str], &str)| {
        let image = pod_image(spec, *size);
        let mut container = Container::new(&image, &format!("mc-{}", size - 1), words);
        let index = (size - 1).to_string();
        container.environment.insert("JOB_COMPLETION_INDEX".into(), index);
        let pod = Running::pod(&container, &Network::new());
        pod.wait_for_output(reached);
        // SIGCONT stops nothing.
        pod.signal(18);
        pod.signal(signal);
        let ended = pod.end();
        let termination = termination_of(&image);
        (ended.code, ended.stdout, termination)
    };
    std::thread::scope(|scope| {
        for stage in &stages {
            let ends = [15, 3, 10, 28, 37].map(|signal| scope.spawn(move || stopped_by(signal, stage)));
            scope.spawn(move || {
                let ends = ends.map(|end| end.join().unwrap());
                assert!(ends.iter().all(|end| *end == ends[0]), "{}: {ends:?}", stage.3);
            });
        }
    });
}

/// For example, a sender may signal the process, and then its whole process group.
#[test]
fn stop_that_is_sent_twice_is_one_stop() {
    let source = "trap 'sleep 1; echo cleaned up; exit 0' TERM; echo ran it; while :; do sleep 0.1; done";
    let of_a_snippet = format!(
        "[runner.snippets]\npre = {}\n",
        serde_json::to_string(source).unwrap()
    );
    for spec in [of_a_snippet, launch(source)] {
        let image = pod_image(&spec, 1);
        let pod = Running::pod(&Container::new(&image, "mc-0", &run_words(&[])), &Network::new());
        pod.wait_for_output("ran it\n");
        pod.signal(15);
        // With a pause, since the kernel merges two pending signals.
        std::thread::sleep(Duration::from_millis(40));
        pod.signal(15);
        let ended = pod.end();
        assert!(ended.stdout.ends_with("ran it\ncleaned up\n"), "{ended:?}");
    }
}

#[test]
fn stop_during_munged_starts_nothing_after_it() {
    let spec: &(dyn Fn(Stop) -> String + Sync) = &|_| {
        // The agent starts Munge only if Flux is the image's own, and the spec names Flux's user.
        let user = "[view]\nenabled = false\n[runner.user]\nname = 'flux'\nuid = 1000\n";
        format!("{user}{}{}", echoing_snippets(""), launch("echo ran program"))
    };
    let prepare: &(dyn Fn(&Image, Stop) + Sync) = &|image, stop| {
        image.file("/etc/munge/munge.key", 0o400, "key");
        image.file(
            "/usr/sbin/munged",
            0o755,
            &format!("#!/bin/sh\n{}\n", stays("munged", stop)),
        );
        std::os::unix::fs::symlink("/mnt/flux/view/bin/flux", image.at("/usr/bin/flux")).unwrap();
    };
    for stage in [ALONE, FOLLOWER] {
        Stage {
            spec,
            prepare,
            reached: "ran munged\n",
            ..stage
        }
        .check();
    }
}

#[test]
fn stop_while_the_parent_is_awaited_starts_nothing() {
    let spec: &(dyn Fn(Stop) -> String + Sync) = &|_| echoing_snippets("") + &launch("echo ran program");
    Stage {
        stops: &ONCE_OR_TWICE,
        spec,
        reached: "waiting for mc-0",
        check_image: &|image, _, _| assert_eq!(termination_of(image), Termination::new(Ender::Stop, REPLACE)),
        ..FOLLOWER
    }
    .check();
}

#[test]
fn stop_while_the_broker_starts_is_no_success() {
    let spec: &(dyn Fn(Stop) -> String + Sync) = &|stop| {
        // The lead's broker starts normally.
        let source = format!(
            "[ $(hostname) != mc-0 ] || exec \"$@\"; {}",
            stays("broker", stop)
        );
        let prefix = serde_json::to_string(&source).unwrap();
        format!(
            "[runner]\nprefix = ['bash', '-c', {prefix}, '-']\n{}",
            echoing_snippets("")
        )
    };
    let alone: &(dyn Fn(Stop) -> String + Sync) = &|stop| spec(stop).replace("!= mc-0", "= mc-0");
    Stage {
        spec: alone,
        reached: "ran broker\n",
        ..ALONE
    }
    .check();
    Stage {
        spec,
        reached: "ran broker\n",
        with_lead: true,
        waits_for_lead: true,
        ..FOLLOWER
    }
    .check();
}

/// Replaces the image's `flux` by a wrapper with this script, which may handle some commands itself.
fn replace_flux(image: &Image, script: &str) {
    let flux = image.at("/mnt/flux/view/bin/flux");
    fs::rename(&flux, flux.with_file_name("flux-itself")).unwrap();
    let text = format!("#!/bin/sh\n{script}\nexec /mnt/flux/view/bin/flux-itself \"$@\"\n");
    image.file("/mnt/flux/view/bin/flux", 0o755, &text);
}

#[test]
fn stop_during_accounting_starts_nothing_after_it() {
    let spec: &(dyn Fn(Stop) -> String + Sync) = &|_| {
        format!(
            "users = ['ada']\n{}{}",
            echoing_snippets(""),
            launch("echo ran program")
        )
    };
    let prepare: &(dyn Fn(&Image, Stop) + Sync) = &|image, stop| {
        image.file(&format!("{}/ada", flux_shared::paths::USERS_DIR), 0o400, "secret");
        // By this file the agent sees that Flux Accounting is installed.
        image.file("/mnt/flux/view/libexec/flux/cmd/flux-account.py", 0o644, "");
        image.file(
            "/dev/urandom",
            0o444,
            "any bytes for the salt of a password will do here",
        );
        // The client's output is discarded, so it writes to the pod's.
        let account = stays("account >/proc/1/fd/1", stop);
        replace_flux(image, &format!("case $1 in account*) {account} ;; esac"));
    };
    // The lead's program, which begins with the accounting, is killed early enough for the instance to end by itself.
    let code: &(dyn Fn(Stop) -> i32 + Sync) = &|stop| if stop == Stop::Heeded { 143 } else { 137 };
    Stage {
        spec,
        prepare,
        reached: "ran account\n",
        code,
        ends_at_once: true,
        ..ALONE
    }
    .check();
}

#[test]
fn stop_of_a_follower_with_a_job_leaves_the_job_its_time() {
    let spec: &(dyn Fn(Stop) -> String + Sync) = &|_| {
        // Flux prints what tasks write in the lead's pod. So each task writes to the output of its own pod itself. The
        // time of its file shows until when it ran.
        let source = "echo ran program >/proc/1/fd/1; while :; do : >/tmp/runs; sleep 0.1; done";
        let program = submit(source);
        format!("tasks = 2\n{}{program}", echoing_snippets(""))
    };
    let check_image: &(dyn Fn(&Image, Stop, SystemTime) + Sync) = &|image, stop, stop_time| {
        let last_sign = fs::metadata(gate(image, "runs")).unwrap().modified().unwrap();
        let ran_on = last_sign.duration_since(stop_time).unwrap_or_default();
        assert_eq!(ran_on >= HOLD, stop != Stop::Twice, "{stop:?}: {ran_on:?}");
    };
    Stage {
        stops: &ONCE_OR_TWICE,
        spec,
        reached: "ran program\n",
        with_lead: true,
        waits_for_lead: true,
        check_image,
        ..FOLLOWER
    }
    .check();
}

#[test]
fn stop_during_the_job_gives_its_code_and_skips_post() {
    let spec: &(dyn Fn(Stop) -> String + Sync) = &|stop| {
        let source = match stop {
            Stop::Heeded => "trap 'exit 3' TERM; echo ran program; while :; do sleep 0.1; done".into(),
            stop => stays("program", stop),
        };
        echoing_snippets("") + &launch(&source)
    };
    // The program is killed early enough for the instance to end by itself before the deadline.
    let code: &(dyn Fn(Stop) -> i32 + Sync) = &|stop| if stop == Stop::Heeded { 3 } else { 137 };
    Stage {
        spec,
        reached: "ran program\n",
        code,
        ends_at_once: true,
        ..ALONE
    }
    .check();
}

#[test]
fn stop_during_post_does_not_change_the_jobs_result() {
    for code in [0, 7] {
        let spec: &(dyn Fn(Stop) -> String + Sync) = &|stop| {
            let source = serde_json::to_string(&stays("post", stop)).unwrap();
            format!(
                "{}post = {source}\n{}",
                echoing_snippets("post"),
                launch(&format!("echo ran program; exit {code}"))
            )
        };
        let check_image: &(dyn Fn(&Image, Stop, SystemTime) + Sync) = &|image, stop, _| {
            let termination = termination_of(image);
            assert_eq!(
                (termination.by, termination.code, termination.program_code),
                (Ender::Program, code, Some(code)),
                "{stop:?}"
            );
            assert_ne!(termination.failed_post(), None, "{stop:?}");
            assert_eq!(
                termination.message,
                "the pod was stopped while the snippet post was still running."
            );
        };
        Stage {
            spec,
            reached: "ran post\n",
            code: &|_| code.into(),
            check_image,
            ..ALONE
        }
        .check();
    }
}

/// Kubernetes stops the followers when the lead's pod has ended. That leaves their `post` the grace period.
#[test]
fn stop_in_a_followers_post_leaves_its_success() {
    let spec: &(dyn Fn(Stop) -> String + Sync) = &|stop| {
        let post = match stop {
            Stop::Heeded => "echo ran post; sleep 2".to_owned(),
            Stop::Twice | Stop::Ignored => stays("post", stop),
        };
        let source = serde_json::to_string(&post).unwrap();
        // The lead runs the same post, but is not stopped here.
        format!(
            "[runner.snippets]\npost = {source}\n{}",
            launch("echo ran program")
        )
    };
    Stage {
        spec,
        reached: "ran post\n",
        with_lead: true,
        code: &|_| 0,
        ..FOLLOWER
    }
    .check();
}

#[test]
fn followers_post_ends_in_order_after_the_leads_pod() {
    let post = "[ $JOB_COMPLETION_INDEX = 0 ] || { echo begins; sleep 2; echo saved; }";
    let spec = format!(
        "[runner.snippets]\npost = {}\n{}",
        serde_json::to_string(post).unwrap(),
        launch("echo ran program")
    );
    for is_stopped_soon in [true, false] {
        let images = [(); 2].map(|()| pod_image(&spec, 2));
        let (network, command) = (Network::new(), run_words(&["--grace-period", "15"]));
        let [lead, follower] = [0, 1].map(|index: usize| {
            let mut container = Container::new(&images[index], &format!("mc-{index}"), &command);
            container.set("JOB_COMPLETION_INDEX", &index.to_string());
            Running::pod(&container, &network)
        });
        assert_eq!(lead.end().code, 0);
        if is_stopped_soon {
            // The follower's broker ends a little after the lead's container. In Kubernetes, the stop comes even later.
            std::thread::sleep(Duration::from_millis(200));
        } else {
            follower.wait_for_output("begins\n");
        }
        follower.signal(15);
        let ended = follower.end();
        ended.expect(0, "begins\nsaved\n", "");
    }
}

/// Whether the dump of the archive in /state has begun. If so, first waits for longer than `BEFORE_BROKER`: if the
/// broker is killed earlier, the code of a failed program does not count.
fn is_dumping(image: &Image) -> bool {
    let files = fs::read_dir(image.at("/state")).unwrap().flatten();
    let is_there = files
        .filter_map(|file| file.metadata().ok())
        .any(|data| data.len() > 0);
    if is_there {
        std::thread::sleep(Duration::from_millis(1500));
    }
    is_there
}

#[test]
fn stop_while_the_archive_is_saved_leaves_the_jobs_result() {
    for code in [0, 7] {
        let spec: &(dyn Fn(Stop) -> String + Sync) = &|_| {
            format!(
                "archive = '/state/archive.tgz'\n{}{}",
                echoing_snippets(""),
                launch(&format!("echo ran program; exit {code}"))
            )
        };
        let prepare: &(dyn Fn(&Image, Stop) + Sync) = &|image, _| fs::create_dir(image.at("/state")).unwrap();
        // The dump takes 4 s, or longer than the grace period.
        let dump: &(dyn Fn(Stop) -> &'static str + Sync) = &|stop| match stop {
            Stop::Heeded => "writes=8 pause=500",
            _ => "writes=100 pause=500",
        };
        let code: &(dyn Fn(Stop) -> i32 + Sync) = &|_| code;
        Stage {
            spec,
            prepare,
            reached: "ran program\n",
            is_reached: &is_dumping,
            dump,
            code,
            ..ALONE
        }
        .check();
    }
}

/// The operator requests the end of all pods, and later deletes them.
#[test]
fn deletion_after_an_end_request_leaves_the_dump_its_time() {
    let image = pod_image(
        &format!(
            "archive = '/state/archive.tgz'\n{}",
            launch("trap 'exit 3' TERM; echo ran program; while :; do sleep 0.1; done")
        ),
        1,
    );
    fs::create_dir(image.at("/state")).unwrap();
    let mut container = Container::new(&image, "mc-0", &run_words(&["--grace-period", "30"]));
    container.set("FAKE_FLUX_DUMP", "writes=8 pause=500");
    let pod = Running::pod(&container, &Network::new());
    pod.wait_for_output("ran program\n");
    let file = format!("{SPEC_DIR}/{END_KEY}");
    image.file(&file, 0o644, "2026-11-26T10:00:00Z a snippet has failed");
    eventually("the dump grows", || is_dumping(&image).then_some(()));
    pod.signal(15);
    let ended = pod.end();
    assert_eq!(ended.code, 3, "{ended:?}");
    assert!(!ended.stderr.contains("second stop signal"), "{ended:?}");
    let termination = termination_of(&image);
    assert_eq!(
        (termination.by, termination.archive_not_saved),
        (Ender::Stop, None),
        "{ended:?}"
    );
    assert!(image.at("/state/archive.tgz").exists());
}

/// A signal would end the rc3 of real Flux, which saves the archive. So the agent must send none. The fake Flux ignores
/// signals while it saves.
#[test]
fn stop_during_rc3_of_real_flux_saves_the_archive() {
    if real_flux().is_none() {
        return;
    }
    let init = "mkdir -p /tmp/rc/rc3.d; printf '#!/bin/sh\\necho >/tmp/up; sleep 4\\n' >/tmp/rc/rc3.d/slow; \
                chmod +x /tmp/rc/rc3.d/slow; export FLUX_RC_EXTRA=/tmp/rc";
    for flux in ["", "[flux]\ndisable_socket = true\n"] {
        let spec = format!(
            "archive = '/state/archive.tgz'\n{flux}[runner.snippets]\ninit = \"\"\"{init}\"\"\"\n{}",
            launch("echo ran program; exit 3")
        );
        let image = pod_image(&spec, 1);
        std::fs::create_dir(image.at("/state")).unwrap();
        let pod = Running::pod(&Container::new(&image, "mc-0", &run_words(&[])), &Network::new());
        eventually("rc3 runs", || image.at("/tmp/up").exists().then_some(()));
        pod.signal(15);
        let ended = pod.end();
        assert_eq!(ended.code, 3, "{ended:?}");
        let termination = termination_of(&image);
        assert_eq!(
            (termination.by, termination.archive_not_saved),
            (Ender::Program, None),
            "{ended:?}"
        );
        assert!(image.at("/state/archive.tgz").exists());
    }
}

/// The agent saves the archive even after a stop, but does not run `post`.
#[test]
fn stop_during_the_job_saves_the_archive_and_skips_post() {
    let source = "trap 'exit 3' TERM; echo ran program; while :; do sleep 0.1; done";
    let image = pod_image(
        &format!(
            "archive = '/state/archive.tgz'\n{}{}",
            echoing_snippets(""),
            launch(source)
        ),
        1,
    );
    std::fs::create_dir(image.at("/state")).unwrap();
    let mut container = Container::new(&image, "mc-0", &run_words(&["--grace-period", "30"]));
    container.set("FAKE_FLUX_DUMP", "writes=5 pause=300");
    let pod = Running::pod(&container, &Network::new());
    pod.wait_for_output("ran program\n");
    pod.signal(15);
    let dump = || std::fs::read_dir(image.at("/state")).unwrap().next();
    eventually("the dump has begun", || {
        dump().and_then(|file| (file.ok()?.metadata().ok()?.len() > 0).then_some(()))
    });
    let ended = pod.end();
    assert_eq!(ended.code, 3, "{ended:?}");
    assert!(
        ended.stderr.contains("archive saved to /state/archive.tgz"),
        "{ended:?}"
    );
    assert!(!ended.stdout.contains("ran post"), "{ended:?}");
    let termination = termination_of(&image);
    let want = Termination {
        program_code: Some(3),
        ..Termination::new(Ender::Stop, 3)
    };
    assert_eq!(
        Termination {
            message: String::new(),
            ..termination.clone()
        },
        want
    );
    assert_eq!(
        termination.message,
        "the pod was stopped: the snippet post does not run."
    );
}
