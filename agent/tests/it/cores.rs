//! What cores a job's tasks run on, with the stand-in or with Flux (`make test-flux`).

use crate::image::{AGENT, Container, Image, run};
use crate::instance::submit;
use crate::live::{Network, Running, eventually, pod_image, run_words};

/// A task says which CPUs it may run on.
const CPUS: &str = "while read -r name list; do [ \"$name\" = Cpus_allowed_list: ] && echo \"cpus $list\"; done \
                    </proc/self/status; exit 0";

/// What it says in a pod of its own without any binding.
fn all_cpus() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    assert!(list.contains(['-', ',']), "this test needs a machine of several CPUs, here is {list}");
    format!("cpus {list}\n")
}

fn image(more: &str) -> Image {
    pod_image(&(submit(CPUS) + more), 1)
}

#[test]
fn tasks_are_bound_to_cores_only_if_the_job_or_a_file_of_the_users_asks() {
    let all = all_cpus();
    let asked = "[flux]\noption_flags = ['-o', 'cpu-affinity=per-task']\n";
    let own = "[flux.environment]\nFLUX_SHELL_RC_PATH = '/mine'\n";
    for (more, is_bound) in [("", false), (asked, true), (own, true)] {
        let image = image(more);
        image.file("/mine/own.lua", 0o644, "shell.options[\"cpu-affinity\"] = \"on\"\n");
        let ended = run(&[Container::new(&image, "mc-0", &run_words(&[]))]).remove(0);
        assert_eq!(ended.code, 0, "{more}: {}", ended.stderr);
        let cpu = ended.stdout.strip_prefix("cpus ").unwrap().trim();
        assert_eq!((ended.stdout != all, cpu.parse::<u32>().is_ok()), (is_bound, is_bound), "{more}: {}", ended.stdout);
    }
}

#[test]
fn more_cores_than_there_are_are_one_notice_and_no_error_of_every_job() {
    let image = image("[runner]\ncores = 64\n");
    let ended = run(&[Container::new(&image, "mc-0", &run_words(&[]))]).remove(0);
    assert_eq!((ended.code, ended.stdout), (0, all_cpus()), "{}", ended.stderr);
    let lines: Vec<&str> = ended.stderr.lines().filter(|line| line.contains("cores")).collect();
    assert!(lines.len() == 1 && lines[0].contains("64 cores are declared and there are "), "{lines:#?}");
    assert!(!ended.stderr.contains("ffinity"), "{}", ended.stderr);
}

#[test]
fn a_cpuset_of_the_containers_own_is_told_and_bound() {
    let image = image("");
    // What a pod sees of its node; with Flux itself it does.
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    image.file("/sys/devices/system/cpu/online", 0o644, &online);
    let mut container = Container::new(&image, "mc-0", &run_words(&[]));
    container.outside = ["taskset", "-c", "0"].map(str::to_owned).into();
    let ended = run(&[container]).remove(0);
    assert_eq!((ended.code, ended.stdout.as_str()), (0, "cpus 0\n"), "{}", ended.stderr);
    let defaults = std::fs::read_to_string(image.at("/mnt/flux/config/etc/flux/shell/flux-agent.lua")).unwrap();
    assert!(defaults.contains("bound to cores: its cpuset of 1 CPU is its own"), "{defaults}");
    assert!(!defaults.contains("off"), "{defaults}");
}

#[test]
fn status_and_preflight_say_whether_tasks_are_bound_and_why() {
    let image = pod_image("", 1);
    let pod = Running::pod(&Container::new(&image, "mc-0", &run_words(&[])), &Network::new());
    let said = |command: &str| String::from_utf8_lossy(&pod.exec(&[AGENT, command]).stdout).into_owned();
    let status = eventually("status", || Some(said("status")).filter(|text| text.contains("in state run")));
    for text in [status, said("preflight")] {
        let line = text.lines().find(|line| line.contains("binding")).unwrap_or_else(|| panic!("{text}"));
        assert!(line.contains("off: all pods of the node compute on its CPUs"), "{line}");
    }
}

/// What each node has, for Flux alone: `hostname cores gpus` of every host, of an instance whose pods are unlike.
fn shares(narrow: usize) -> Vec<String> {
    let script = "flux resource list -s all -no '{nodelist} {ncores} {ngpus}' -i 0; flux resource list -s all -no '{nodelist} {ncores} {ngpus}' -i 1; \
                  flux resource status -s drain -no '{nnodes} drained'; flux run -n3 sh -c 'echo ran'; \
                  flux run -n1 -g2 sh -c 'echo gpus $CUDA_VISIBLE_DEVICES of $(hostname)'; flux run -n1 sh -c 'echo none $CUDA_VISIBLE_DEVICES'";
    let spec = submit(script).replace("'submit'", "'launcher'");
    let images = [pod_image(&spec, 2), pod_image(&spec, 2)];
    for gpu in ["nvidia0", "nvidia1", "nvidiactl"] {
        images[1].file(&format!("/dev/{gpu}"), 0o666, "");
    }
    let command = run_words(&[]);
    let pods: Vec<Container> = (images.iter().enumerate())
        .map(|(index, image)| {
            let mut pod = Container::new(image, &format!("mc-{index}"), &command);
            if index == narrow {
                pod.outside = ["taskset", "-c", "1"].map(str::to_owned).into();
            }
            pod
        })
        .collect();
    let ended = run(&pods);
    assert_eq!((ended[0].code, ended[1].code), (0, 0), "{ended:?}");
    let mut lines: Vec<String> = ended[0].stdout.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn nodes_that_are_unlike_have_their_own_cores_and_gpus_and_none_is_drained() {
    if crate::image::real_flux().is_none() {
        return;
    }
    let both = all_cpus();
    assert_eq!(both, "cpus 0-1\n", "this test knows of a machine of two CPUs");
    for narrow in [0, 1] {
        let cores = |index: usize| if index == narrow { 1 } else { 2 };
        let want = [
            "0 drained".to_owned(),
            "gpus 0,1 of mc-1".into(),
            format!("mc-0 {} 0", cores(0)),
            format!("mc-1 {} 2", cores(1)),
            "none -1".into(),
            "ran".into(),
            "ran".into(),
            "ran".into(),
        ];
        assert_eq!(shares(narrow), want, "mc-{narrow} is the narrow one");
    }
}
