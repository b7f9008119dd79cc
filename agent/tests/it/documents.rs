//! Statements of the Go operator's documentation, and batches, tested in whole instances of the fake Flux or of real
//! Flux (`make test-flux`).

use std::fs;
use std::time::{Duration, Instant};

use crate::image::{Container, Image, V4, fake_flux, real_flux, run};
use crate::instance::{images, launch, start, submit};
use crate::live::{Network, Running, eventually, forget_starts, open, pod_image, run_words};

/// A pod's image with its own Flux instead of a view.
fn with_own_flux(spec: &str) -> Image {
    let image = pod_image(&format!("{spec}[view]\nenabled = false\n"), 1);
    // Not in /usr/bin: for real Flux, the host's /usr is mounted over the image's.
    fs::create_dir_all(image.at("/sbin")).unwrap();
    match real_flux() {
        Some(flux) => std::os::unix::fs::symlink(flux, image.at("/sbin/flux")).unwrap(),
        None => image.program(fake_flux(), "/sbin/flux"),
    }
    image
}

/// "Flux user … if the user already exists, the uid will be discovered". A snippet may create the user.
#[test]
fn a_snippet_may_make_the_user_that_flux_runs_as() {
    for uid in [1000, 1234] {
        let add = format!("echo flux:x:{uid}:{uid}::/home/flux:/bin/sh >>/etc/passwd");
        let spec = format!(
            "{}[runner.user]\nname = 'flux'\nuid = 1000\n[runner.snippets]\npre_command = '{add}'\npre = 'echo pre as $(id -u)'\n",
            submit("echo job as $(id -u)")
        );
        let image = with_own_flux(&spec);
        let ended = run(&[Container::new(&image, "mc-0", &run_words(&[]))]).remove(0);
        assert_eq!(
            (ended.code, ended.stdout),
            (0, format!("pre as 0\njob as {uid}\n")),
            "{}",
            ended.stderr
        );
        assert_eq!(
            fs::read_to_string(image.at("/etc/passwd"))
                .unwrap()
                .lines()
                .filter(|line| line.starts_with("flux:"))
                .count(),
            1
        );
    }
}

/// The exit code and the output of a batch on one pod. Its lines have the numbers 0, 3, 6, …
fn batch(lines: &[&str]) -> (i32, String) {
    batch_of("", lines)
}

/// A batch with more of the spec.
fn batch_of(more: &str, lines: &[&str]) -> (i32, String) {
    let lines: Vec<String> = lines
        .iter()
        .enumerate()
        .map(|(at, text)| format!("{{number = {}, text = '''{text}'''}}", 3 * at))
        .collect();
    let spec = format!(
        "{more}[runner.program]\nmode = 'batch'\nlines = [{}]\n",
        lines.join(", ")
    );
    let image = pod_image(&spec, 1);
    let ended = run(&[Container::new(&image, "mc-0", &run_words(&[]))]).remove(0);
    (ended.code, format!("{}{}", ended.stdout, ended.stderr))
}

/// Without a submission there is no job whose failure Flux could report.
#[test]
fn batch_fails_if_a_line_cannot_be_submitted() {
    let report = "lines that were not submitted (1): 3\n";
    // In a pipe and in the background, the line runs in a subshell.
    for last in ["-N1", "-N1 | cat", "-N1 &", "true <missing"] {
        let (code, text) = batch(&["true", last]);
        assert_eq!((code, text.contains(report)), (1, true), "{last}: {text}");
    }
    for last in [
        "true | { read -r id; }",
        "true || false",
        "true &",
        "true; false &",
    ] {
        let (code, text) = batch(&["true", last]);
        assert_eq!(
            (code, text.contains("not submitted")),
            (0, false),
            "{last}: {text}"
        );
    }
}

/// Only the first command of a line is a job. The others run in the batch's script, where Flux does not see them fail.
#[test]
fn batch_fails_if_the_rest_of_a_line_fails() {
    for last in [
        "true && sh -c \"exit 3\"",
        "true; false",
        "true | { read -r id; exit 3; }",
    ] {
        let (code, text) = batch(&["true", last]);
        let reported = (
            text.contains("failed lines (1): 3\n"),
            text.contains("not submitted"),
        );
        assert_eq!((code, reported), (1, (true, false)), "{last}: {text}");
    }
}

/// The agent shows only the last lines of a batch's output. The list of its jobs may be longer, so the numbers of the
/// failed lines come after it.
#[test]
fn failed_batch_ends_with_the_numbers_of_its_lines() {
    let lines = [
        "true",
        "sh -c \"exit 1\"",
        "true",
        "sh -c \"exit 3\"",
        "-N1",
        "--job-name=own sh -c \"exit 2\"",
    ];
    let (code, text) = batch(&lines);
    let report = "failed lines (3): own 3 9\nlines that were not submitted (1): 12\n";
    assert_eq!((code, text.contains(report)), (1, true), "{text}");

    let (code, text) = batch(&["sh -c \"exit 1\""; 60]);
    let numbers: Vec<String> = (0..50).map(|at| (3 * at).to_string()).collect();
    let report = format!("failed lines (60): {} ...\n", numbers.join(" "));
    assert_eq!((code, text.contains(&report)), (1, true), "{text}");
}

/// A program in the background of a line runs in the batch's shell, and ends with the batch.
#[test]
fn batch_does_not_wait_for_a_program_in_the_background() {
    let begin = Instant::now();
    let background = "true; sleep 1000 >/dev/null 2>&1 &";
    // When the batch's script ends, a second line may not be submitted yet, or cannot be.
    for (lines, code) in [
        (&[background][..], 0),
        (&[background, "true &", "true | cat &"], 0),
        (&[background, "true <missing"], 1),
    ] {
        let (ended, text) = batch(lines);
        assert_eq!(ended, code, "{lines:?}: {text}");
        assert!(begin.elapsed() < Duration::from_secs(500), "{lines:?}: {text}");
    }
}

/// A line with two `&` has two processes. The shell names only the last one, which is not the submission.
#[test]
fn batch_waits_for_a_slow_submission_in_the_background() {
    let slow = "[flux]\nsubmit_command = ['sh', '-c', 'sleep 1; exec flux submit \"$@\"', 'submit']\n";
    for line in ["true &", "true & sleep 0.3 &", "true | cat & sleep 0.3 &"] {
        let (code, text) = batch_of(slow, &[line]);
        assert_eq!(
            (code, text.contains("not submitted")),
            (0, false),
            "{line}: {text}"
        );
    }
}

/// As in a Kubernetes Job. By default, Flux would keep the input open, and these programs would wait for ever.
#[test]
fn program_that_reads_its_input_finds_it_empty() {
    let read = "read -r line || echo empty";
    let image = pod_image(&submit(read), 1);
    let ended = run(&[Container::new(&image, "mc-0", &run_words(&[]))]).remove(0);
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (0, "empty\n"),
        "{}",
        ended.stderr
    );
    let (code, text) = batch(&[&format!("sh -c \"{read}\"")]);
    assert_eq!(code, 0, "{text}");
}

/// `flux run` has no option `--watch`.
#[test]
fn flux_run_can_be_the_submit_command() {
    let spec = submit("echo $FLUX_TASK_RANK; exit 3") + "[flux]\nsubmit_command = ['flux', 'run']\n";
    let image = pod_image(&spec, 1);
    let ended = run(&[Container::new(&image, "mc-0", &run_words(&[]))]).remove(0);
    assert_eq!(
        (ended.code, ended.stdout.as_str()),
        (3, "0\n"),
        "{}",
        ended.stderr
    );
}

/// "Note that the output is recommended to be a shared volume".
#[test]
fn batch_logs_are_writable_or_an_early_warning_is_printed() {
    let spec = "[runner]\nlogs = '/data/out'\n[runner.program]\nmode = 'batch'\nlines = [{number = 0, text = 'echo a'}]\n\
                [runner.user]\nname = 'flux'\nuid = 1000\n";
    // The image has the folder, and the agent gives it to the Flux user.
    let image = pod_image(spec, 1);
    image.file("/data/out/.keep", 0o644, "");
    let of_the_image = run(&[Container::new(&image, "mc-0", &run_words(&[]))]).remove(0);
    assert_eq!(of_the_image.code, 0, "{}", of_the_image.stderr);
    assert!(
        !of_the_image.stderr.contains("cannot write"),
        "{}",
        of_the_image.stderr
    );
    if real_flux().is_some() {
        assert_eq!(
            fs::read_to_string(image.at("/data/out/job-0.out")).unwrap(),
            "a\n"
        );
    }

    // The folder is on a volume and belongs to uid 7. The agent does not change this owner.
    let image = pod_image(spec, 1);
    fs::create_dir(image.at("/data")).unwrap();
    let mut volume = Container::new(&image, "mc-0", &run_words(&[]));
    volume.before = "mount -t tmpfs -o mode=0755 tmpfs \"$root/data\"; mkdir -m 0755 \"$root/data/out\"; chown 7:7 \"$root/data/out\"\n".into();
    let ended = run(&[volume]).remove(0);
    let line = ended
        .stderr
        .lines()
        .find(|line| line.contains("cannot write"))
        .unwrap_or_else(|| panic!("{ended:?}"));
    assert!(
        line.contains("cannot write to /data/out, ") && line.contains("uid 1000") && line.contains("fsGroup"),
        "{line}"
    );
}

/// The lines that the documentation shows, and no lines about the agent's connections that look like errors.
#[test]
fn zeromq_lines_are_shown_without_errors_of_the_agent() {
    let all = images(&(submit("echo ran") + "[logging]\nzeromq = true\n"), 2);
    let pods = start(&all, &Network::new(), &[]);
    let ended: Vec<_> = pods.into_iter().map(Running::end).collect();
    assert_eq!(
        (ended[0].code, ended[1].code, ended[0].stdout.as_str()),
        (0, 0, "ran\n"),
        "{}",
        ended[0].stderr
    );
    let lines = format!("{}{}", ended[0].stderr, ended[1].stderr);
    assert!(!lines.contains("handshake failed"), "{lines}");
    if real_flux().is_some() {
        assert!(
            ended[1].stderr.contains("handshake succeeded"),
            "{}",
            ended[1].stderr
        );
    }
}

/// As documented for `hostlist`: both clusters have the same text, and so the same ranks.
#[test]
fn two_clusters_of_one_hostlist_form_one_instance() {
    if real_flux().is_none() {
        return;
    }
    let hostlist = "flux-sample-[0-1],gffw-compute-a-[0-1]";
    let list = format!("hostlist = '{hostlist}'\n");
    let script = "flux run -N4 -n4 hostname; while [ ! -e /tmp/go ]; do sleep 0.1; done";
    let program = launch(script);
    let lead = format!("lead = {{address = '{V4}1', port = 8050}}\n");
    let cluster = |name: &str, rest: &str, first: u32| {
        let image = pod_image("", 2);
        let spec = format!("name = '{name}'\nsize = 2\n{rest}");
        image.file(flux_shared::paths::SPEC_FILE, 0o644, &spec);
        let host = |index: u32| {
            format!(
                "{V4}{} {name}-{index}.flux-service.default.svc.cluster.local {name}-{index}\n",
                first + index
            )
        };
        image.file(
            "/etc/hosts",
            0o644,
            &format!("127.0.0.1 localhost\n{}{}", host(0), host(1)),
        );
        image
    };
    let root = || cluster("flux-sample", &format!("{program}[network]\n{list}"), 1);
    let burst = || cluster("gffw-compute-a", &format!("[network]\n{list}{lead}"), 3);
    let images = [root(), root(), burst(), burst()];
    let names = [
        "flux-sample-0",
        "flux-sample-1",
        "gffw-compute-a-0",
        "gffw-compute-a-1",
    ];
    let network = Network::new();
    let command = run_words(&[]);
    let mut pods: Vec<Running> = (images.iter().zip(names))
        .map(|(image, name)| Running::pod(&Container::new(image, name, &command), &network))
        .collect();
    eventually("a task on each of the four", || {
        (pods[0].stdout().lines().count() == 4).then_some(())
    });
    let output = pods[0].stdout();
    let mut hosts: Vec<&str> = output.lines().collect();
    hosts.sort();
    assert_eq!(hosts, names);
    for (rank, pod) in pods.iter().enumerate() {
        let attribute = |name: &str| {
            let uri = "FLUX_URI=local:///mnt/flux/config/run/flux/local";
            let output = pod.exec(&["/usr/bin/env", uri, "/mnt/flux/view/bin/flux", "getattr", name]);
            String::from_utf8_lossy(&output.stdout).trim().to_owned()
        };
        assert_eq!(
            (attribute("rank"), attribute("hostlist")),
            (rank.to_string(), hostlist.to_owned())
        );
    }
    open(&images, "go");
    assert_eq!(pods.remove(0).end().code, 0);
}

/// "save state between MiniClusters": the second instance has the jobs of the first, with their output.
#[test]
fn archive_brings_jobs_of_the_first_instance_to_the_second() {
    if real_flux().is_none() {
        return;
    }
    let image = pod_image(
        &format!("archive = '/state/archive.tgz'\n{}", submit("echo saved words")),
        1,
    );
    fs::create_dir(image.at("/state")).unwrap();
    let first = run(&[Container::new(&image, "mc-0", &run_words(&[]))]).remove(0);
    first.expect(0, "saved words\n", "");
    assert!(fs::metadata(image.at("/state/archive.tgz")).unwrap().len() > 0);

    let script = "flux jobs -a -n -o '{id} {name} {status}'; flux job attach $(flux jobs -a -n -o '{id}')";
    let program = launch(script);
    let second = pod_image(&format!("archive = '/state/archive.tgz'\n{program}"), 1);
    fs::create_dir(second.at("/state")).unwrap();
    fs::copy(image.at("/state/archive.tgz"), second.at("/state/archive.tgz")).unwrap();
    forget_starts(&second);
    let ended = run(&[Container::new(&second, "mc-0", &run_words(&[]))]).remove(0);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let lines: Vec<&str> = ended.stdout.lines().collect();
    assert!(
        lines.len() == 2 && lines[0].ends_with(" sh COMPLETED") && lines[1] == "saved words",
        "{lines:?}"
    );
}
