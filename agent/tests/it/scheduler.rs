//! Which scheduler runs, tested with real Flux (`make test-flux`): the fake Flux has no scheduler.

use crate::image::{Container, Image, real_flux, run};
use crate::instance::launch;
use crate::live::{pod_image, run_words};

/// What a script prints in an instance of one pod with `gpus` GPUs.
fn printed(spec: &str, script: &str, gpus: usize) -> String {
    let spec = launch(script) + spec;
    let image: Image = pod_image(&spec, 1);
    // The agent counts GPUs by the names of device files.
    for gpu in 0..gpus {
        image.file(&format!("/dev/nvidia{gpu}"), 0o666, "");
    }
    // A released view has the modprobe files that make Flux load Fluxion. Here they come from the installation.
    let modprobe = real_flux()
        .unwrap()
        .ancestors()
        .nth(2)
        .unwrap()
        .join("etc/flux/modprobe");
    std::os::unix::fs::symlink(modprobe, image.at("/mnt/flux/view/etc/flux/modprobe")).unwrap();
    let ended = run(&[Container::new(&image, "mc-0", &run_words(&[]))]).remove(0);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    ended.stdout
}

/// The scheduler modules that `flux module list` names, each with its services.
fn schedulers(spec: &str, script: &str) -> Vec<(String, String)> {
    let printed = printed(spec, script, 0);
    let words = |line: &str| {
        line.split_whitespace()
            .map(str::to_owned)
            .collect::<Vec<String>>()
    };
    let lines = printed
        .lines()
        .map(words)
        .filter(|words| words.first().is_some_and(|name| name.starts_with("sched-")));
    // The sixth column has the services. It is empty if a module has none.
    let mut found: Vec<(String, String)> = lines
        .map(|words| (words[0].clone(), words.get(5).cloned().unwrap_or_default()))
        .collect();
    found.sort();
    found
}

#[test]
fn simple_scheduler_runs_by_default() {
    if real_flux().is_none() {
        return;
    }
    let simple = [("sched-simple".to_owned(), "feasibility,sched".to_owned())];
    for spec in ["", "[flux]\nscheduler = 'simple'\n"] {
        assert_eq!(schedulers(spec, "flux module list"), simple, "{spec}");
    }
}

/// Flux restores the state of the queues. The agent starts only those that Flux has just created.
#[test]
fn queue_that_a_user_stopped_stays_stopped_when_restored() {
    if real_flux().is_none() {
        return;
    }
    let script = "flux queue list -no '{queue} {started}' | sort; flux queue stop --quiet debug";
    let spec = launch(script);
    let queues = "[flux.configs]\nqueues = '''[queues.debug]\n[queues.batch]'''\n";
    let image = pod_image(&format!("archive = '/state/a.tgz'\n{spec}{queues}"), 1);
    std::fs::create_dir(image.at("/state")).unwrap();
    for debug in ["✔", "✗"] {
        crate::live::forget_starts(&image);
        let ended = run(&[Container::new(&image, "mc-0", &run_words(&[]))]).remove(0);
        let lines: Vec<&str> = ended.stdout.lines().collect();
        assert_eq!(lines, ["batch ✔", &format!("debug {debug}")], "{}", ended.stderr);
    }
}

// `.ci/test-flux` skips the tests whose names begin with `fluxion` if Fluxion is not installed.

#[test]
fn fluxion_runs_when_it_or_a_gpu_is_requested() {
    if real_flux().is_none() {
        return;
    }
    for spec in [
        "[flux]\nscheduler = 'fluxion'\n",
        "[flux]\nqueue_policy = 'easy'\n",
        "[runner]\ngpus = true\n",
    ] {
        let found = schedulers(spec, "flux module list");
        let is_there = |name: &str, service: &str| found.contains(&(name.to_owned(), service.to_owned()));
        assert!(
            is_there("sched-fluxion-qmanager", "sched") && is_there("sched-fluxion-resource", ""),
            "{found:?}"
        );
    }
}

/// The Go operator's crd-v1alpha2.md says "you should see two modules for fluxion, qmanager and resource". Newer releases
/// of Fluxion, such as the one tested here, have a third, feasibility. sched-simple is no longer loaded.
#[test]
fn fluxion_modules_are_as_documented_when_loaded() {
    if real_flux().is_none() {
        return;
    }
    let found = schedulers("", "bash /mnt/flux/load-fluxion.sh && flux run true");
    let module = |name: &str, service: &str| (name.to_owned(), service.to_owned());
    let feasibility = module("sched-fluxion-feasibility", "feasibility");
    assert_eq!(
        found,
        [
            feasibility,
            module("sched-fluxion-qmanager", "sched"),
            module("sched-fluxion-resource", "")
        ]
    );
}

/// docs/tasks/gpus.md says that each task has its own GPUs with `-o gpu-affinity=per-task`. Jobs that run at the
/// same time have their own GPUs too.
#[test]
fn fluxion_gives_tasks_and_jobs_gpus_of_their_own() {
    if real_flux().is_none() {
        return;
    }
    let script = "flux module list | grep -c sched-fluxion-qmanager; \
        flux run -n2 -g1 -o gpu-affinity=per-task sh -c 'echo task $CUDA_VISIBLE_DEVICES'; \
        flux submit --quiet --wait --cc=0-1 -g1 sh -c 'echo job $CUDA_VISIBLE_DEVICES >>/tmp/jobs; \
            until [ $(wc -l </tmp/jobs) = 2 ]; do sleep 0.1; done'; \
        cat /tmp/jobs; flux run -n1 -g3 true 2>&1 | grep -o unsatisfiable";
    let printed = printed("[runner]\ngpus = true\n", script, 2);
    let mut lines: Vec<&str> = printed.lines().collect();
    lines.sort();
    assert_eq!(
        lines,
        ["1", "job 0", "job 1", "task 0", "task 1", "unsatisfiable"],
        "{printed}"
    );
}
