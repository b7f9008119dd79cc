//! Which scheduler runs, with Flux itself (`make test-flux`): the fake Flux has none.

use crate::image::{Container, Image, real_flux, run};
use crate::instance::submit;
use crate::live::{pod_image, run_words};

/// What `flux module list` names that schedules, with the services that each provides.
fn schedulers(spec: &str, script: &str) -> Vec<(String, String)> {
    let spec = submit(script).replace("'submit'", "'launcher'") + spec;
    let image: Image = pod_image(&spec, 1);
    // A released view brings what makes Flux load Fluxion; here it is the installation's own.
    let modprobe = real_flux().unwrap().ancestors().nth(2).unwrap().join("etc/flux/modprobe");
    std::os::unix::fs::symlink(modprobe, image.at("/mnt/flux/view/etc/flux/modprobe")).unwrap();
    let ended = run(&[Container::new(&image, "mc-0", &run_words(&[]))]).remove(0);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<String>>();
    let lines =
        ended.stdout.lines().map(words).filter(|words| words.first().is_some_and(|it| it.starts_with("sched-")));
    let mut found: Vec<(String, String)> =
        lines.map(|words| (words[0].clone(), words.get(5).cloned().unwrap_or_default())).collect();
    found.sort();
    found
}

#[test]
fn simple_scheduler_runs_by_default() {
    if real_flux().is_none() {
        return;
    }
    let simple = [("sched-simple".to_owned(), "feasibility,sched".to_owned())];
    for said in ["", "[flux]\nscheduler = 'simple'\n"] {
        assert_eq!(schedulers(said, "flux module list"), simple, "{said}");
    }
}

// `.ci/test-flux` leaves out the tests whose names begin with `fluxion` where there is none.

#[test]
fn fluxion_runs_when_it_or_a_gpu_is_requested() {
    if real_flux().is_none() {
        return;
    }
    for said in ["[flux]\nscheduler = 'fluxion'\n", "[flux]\nqueue_policy = 'easy'\n", "[runner]\ngpus = true\n"] {
        let found = schedulers(said, "flux module list");
        let is_there = |name: &str, service: &str| found.contains(&(name.to_owned(), service.to_owned()));
        assert!(is_there("sched-fluxion-qmanager", "sched") && is_there("sched-fluxion-resource", ""), "{found:?}");
    }
}

/// The page: "you should see two modules for fluxion, qmanager and resource", and none other that schedules.
#[test]
fn fluxion_modules_are_as_documented_when_loaded() {
    if real_flux().is_none() {
        return;
    }
    let found = schedulers("", "bash /mnt/flux/load-fluxion.sh && flux run true");
    let of = |name: &str, service: &str| (name.to_owned(), service.to_owned());
    let feasibility = of("sched-fluxion-feasibility", "feasibility");
    assert_eq!(found, [feasibility, of("sched-fluxion-qmanager", "sched"), of("sched-fluxion-resource", "")]);
}
