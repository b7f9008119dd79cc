//! The cores that a job's tasks run on, with the fake Flux or with real Flux (`make test-flux`).

use crate::image::{AGENT, Container, Image, real_flux, run};
use crate::instance::{launch, submit};
use crate::live::{Network, Running, eventually, pod_image, run_words};

/// A task that prints the CPUs that it may run on.
const CPUS: &str = "while read -r name list; do [ \"$name\" = Cpus_allowed_list: ] && echo \"cpus $list\"; done \
                    </proc/self/status; exit 0";

/// Its output without any binding.
fn all_cpus() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))
        .unwrap()
        .trim();
    assert!(
        list.contains(['-', ',']),
        "this test needs a machine with several CPUs, this one has {list}"
    );
    format!("cpus {list}\n")
}

fn image(more: &str) -> Image {
    pod_image(&(submit(CPUS) + more), 1)
}

#[test]
fn tasks_are_bound_only_when_job_or_user_file_asks() {
    let all = all_cpus();
    let option = "[flux]\noption_flags = ['-o', 'cpu-affinity=per-task']\n";
    let own = "[flux.environment]\nFLUX_SHELL_RC_PATH = '/mine'\n";
    for (more, is_bound) in [("", false), (option, true), (own, true)] {
        let image = image(more);
        image.file(
            "/mine/own.lua",
            0o644,
            "shell.options[\"cpu-affinity\"] = \"on\"\n",
        );
        let ended = run(&[Container::new(&image, "mc-0", &run_words(&[]))]).remove(0);
        assert_eq!(ended.code, 0, "{more}: {}", ended.stderr);
        let cpu = ended.stdout.strip_prefix("cpus ").unwrap().trim();
        assert_eq!(
            (ended.stdout != all, cpu.parse::<u32>().is_ok()),
            (is_bound, is_bound),
            "{more}: {}",
            ended.stdout
        );
    }
}

/// Spack installs flux-pmix beside flux-core. So its file is in the view, but not in the folder of flux-core's own files.
#[test]
fn job_shell_reads_the_files_of_the_view() {
    let image = image("");
    let option = "shell.options[\"cpu-affinity\"] = \"on\"\n";
    image.file("/mnt/flux/view/etc/flux/shell/lua.d/pmix.lua", 0o644, option);
    let ended = run(&[Container::new(&image, "mc-0", &run_words(&[]))]).remove(0);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_ne!(ended.stdout, all_cpus(), "the view's file was not read");
}

#[test]
fn too_many_declared_cores_give_one_notice_and_no_job_error() {
    let image = image("[runner]\ncores = 64\n");
    let ended = run(&[Container::new(&image, "mc-0", &run_words(&[]))]).remove(0);
    assert_eq!((ended.code, ended.stdout), (0, all_cpus()), "{}", ended.stderr);
    let lines: Vec<&str> = ended
        .stderr
        .lines()
        .filter(|line| line.contains("cores"))
        .collect();
    assert!(
        lines.len() == 1 && lines[0].contains("64 cores are declared, but there are "),
        "{lines:#?}"
    );
    assert!(!ended.stderr.contains("ffinity"), "{}", ended.stderr);
}

#[test]
fn tasks_are_bound_to_an_exclusive_cpuset() {
    let image = image("");
    // Pods see this file of their node.
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    image.file("/sys/devices/system/cpu/online", 0o644, &online);
    let mut container = Container::new(&image, "mc-0", &run_words(&[]));
    container.outside = ["taskset", "-c", "0"].map(str::to_owned).into();
    let ended = run(&[container]).remove(0);
    ended.expect(0, "cpus 0\n", "");
    let defaults =
        std::fs::read_to_string(image.at("/mnt/flux/config/etc/flux/shell/flux-agent.lua")).unwrap();
    assert!(
        defaults.contains("bound to cores: the cpuset of 1 CPU is exclusive"),
        "{defaults}"
    );
    assert!(!defaults.contains("off"), "{defaults}");
}

#[test]
fn status_and_preflight_say_whether_tasks_are_bound_and_why() {
    let image = pod_image("", 1);
    let pod = Running::pod(&Container::new(&image, "mc-0", &run_words(&[])), &Network::new());
    let output_of = |command: &str| String::from_utf8_lossy(&pod.exec(&[AGENT, command]).stdout).into_owned();
    let status = eventually("status", || {
        Some(output_of("status")).filter(|text| text.contains("in state run"))
    });
    for text in [status, output_of("preflight")] {
        let line = text
            .lines()
            .find(|line| line.contains("binding"))
            .unwrap_or_else(|| panic!("{text}"));
        assert!(line.contains("off: the node's pods share its CPUs"), "{line}");
    }
}

/// A script that prints the resources of an instance of two different pods, for real Flux only.
const PRINT_RESOURCES: &str = "flux resource list -s all -no '{nodelist} {ncores} {ngpus}' -i 0; \
    flux resource list -s all -no '{nodelist} {ncores} {ngpus}' -i 1; \
    flux resource status -s drain -no '{nnodes} drained'; flux run -n3 sh -c 'echo ran'; \
    flux run -n1 -g2 sh -c 'echo gpus $CUDA_VISIBLE_DEVICES of $(hostname)'; \
    flux run -n1 sh -c 'echo none $CUDA_VISIBLE_DEVICES'";

fn unlike_images(script: &str, more: &str) -> [Image; 2] {
    let spec = format!("{more}\n{}", launch(script));
    let images = [pod_image(&spec, 2), pod_image(&spec, 2)];
    for gpu in ["nvidia0", "nvidia1", "nvidiactl"] {
        images[1].file(&format!("/dev/{gpu}"), 0o666, "");
    }
    images
}

/// The pods. The one with index `narrow` has one CPU.
fn unlike_pods<'a>(images: &'a [Image; 2], narrow: usize) -> Vec<Container<'a>> {
    let command = run_words(&[]);
    let pod = |(index, image): (usize, &'a Image)| {
        let mut pod = Container::new(image, &format!("mc-{index}"), &command);
        if index == narrow {
            pod.outside = ["taskset", "-c", "1"].map(str::to_owned).into();
        }
        pod
    };
    images.iter().enumerate().map(pod).collect()
}

fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// The lines that `PRINT_RESOURCES` prints, sorted.
fn printed_resources(narrow: usize, more: &str) -> Vec<String> {
    let images = unlike_images(PRINT_RESOURCES, more);
    let ended = run(&unlike_pods(&images, narrow));
    assert_eq!((ended[0].code, ended[1].code), (0, 0), "{ended:?}");
    sorted(&ended[0].stdout)
}

/// The lines of [`printed_resources`] if the pods have this many cores.
fn expected(cores: [u32; 2]) -> Vec<String> {
    let nodes = [format!("mc-0 {} 0", cores[0]), format!("mc-1 {} 2", cores[1])];
    let head = ["0 drained".to_owned(), "gpus 0,1 of mc-1".into()];
    head.into_iter()
        .chain(nodes)
        .chain(["none -1", "ran", "ran", "ran"].map(str::to_owned))
        .collect()
}

/// False with the fake Flux, which does not schedule by resources.
fn has_resources() -> bool {
    if real_flux().is_none() {
        return false;
    }
    assert_eq!(
        all_cpus(),
        "cpus 0-1\n",
        "this test needs a machine with exactly two CPUs"
    );
    true
}

/// The cores of both pods: one in the narrow pod, two in the other.
fn cores_of(narrow: usize) -> [u32; 2] {
    [0, 1].map(|index| if index == narrow { 1 } else { 2 })
}

#[test]
fn unlike_nodes_have_own_cores_and_gpus_and_none_is_drained() {
    if !has_resources() {
        return;
    }
    for narrow in [0, 1] {
        assert_eq!(
            printed_resources(narrow, ""),
            expected(cores_of(narrow)),
            "mc-{narrow} is the narrow one"
        );
    }
}

#[test]
fn unlike_nodes_have_declared_cores_and_their_own_gpus() {
    if !has_resources() {
        return;
    }
    for narrow in [0, 1] {
        // 2 is more than the narrow pod has, 3 is more than each pod has.
        for cores in [2, 3] {
            let more = format!("[runner]\ncores = {cores}\n");
            assert_eq!(
                printed_resources(narrow, &more),
                expected([cores; 2]),
                "{cores} cores, mc-{narrow} is the narrow one"
            );
        }
    }
}

#[test]
fn none_is_drained_when_user_configures_more_cores_than_pods() {
    if !has_resources() {
        return;
    }
    let config = "[flux.configs]\nr = \"[[resource.config]]\\nhosts = 'mc-[0-1]'\\ncores = '0-3'\"\n";
    // As the user lists no GPUs, the job that requests some is rejected at once.
    let want = [
        "0 drained",
        "mc-0 4 0",
        "mc-1 4 0",
        "none -1",
        "ran",
        "ran",
        "ran",
    ];
    assert_eq!(printed_resources(0, config), want);
}

#[test]
fn later_pods_count_as_nodes_and_none_is_drained() {
    if !has_resources() {
        return;
    }
    // Since more pods may come, the agent writes R, in which every node has the lead's resources.
    for (narrow, lead_cores) in [(0, 1), (1, 2)] {
        let nodes = [0, 1].map(|index| format!("mc-{index} {lead_cores} 0"));
        let ran = ["none -1", "ran", "ran", "ran"].map(str::to_owned);
        // A job that requests GPUs is rejected at once: the lead has none.
        let want: Vec<String> = ["0 drained".to_owned()]
            .into_iter()
            .chain(nodes)
            .chain(ran)
            .collect();
        // If each node has one core, three tasks do not fit at once.
        let script = PRINT_RESOURCES.replace(
            "-n3",
            if narrow == 0 {
                "-n2 sh -c 'echo ran'; flux run -n1"
            } else {
                "-n3"
            },
        );
        let images = unlike_images(&script, "max_size = 3\n");
        let ended = run(&unlike_pods(&images, narrow));
        assert_eq!((ended[0].code, ended[1].code), (0, 0), "{ended:?}");
        assert_eq!(
            sorted(&ended[0].stdout),
            want,
            "mc-{narrow} is the narrow one: {}",
            ended[0].stderr
        );
    }
}

#[test]
fn restored_instance_uses_resources_of_its_own_nodes() {
    if !has_resources() {
        return;
    }
    let images = unlike_images(PRINT_RESOURCES, "archive = '/state/a.tgz'\n");
    images
        .iter()
        .for_each(|image| std::fs::create_dir(image.at("/state")).unwrap());
    // In each instance, the narrow pod is another one than in the previous instance.
    for narrow in [0, 1, 0] {
        images.iter().for_each(crate::live::forget_starts);
        let ended = run(&unlike_pods(&images, narrow));
        assert_eq!((ended[0].code, ended[1].code), (0, 0), "{ended:?}");
        assert_eq!(
            sorted(&ended[0].stdout),
            expected(cores_of(narrow)),
            "{}",
            ended[0].stderr
        );
        assert!(
            ended[0].stderr.contains("archive saved to"),
            "{}",
            ended[0].stderr
        );
        // The pod's volume is deleted with the pod.
        images
            .iter()
            .for_each(|image| drop(std::fs::remove_dir_all(image.at("/mnt/flux/config/var"))));
    }
}

#[test]
fn next_attempt_uses_resources_of_its_own_nodes() {
    if !has_resources() {
        return;
    }
    let script = format!("[ -e /tmp/again ] || {{ touch /tmp/again; exit 3; }}; {PRINT_RESOURCES}");
    let images = unlike_images(&script, "restart_policy = 'OnFailure'\n");
    let network = Network::new();
    // At the second attempt, the follower has a new pod on a node with more CPUs.
    let mut pods = unlike_pods(&images, 1);
    let (lead, follower) = (Running::pod(&pods[0], &network), Running::pod(&pods[1], &network));
    assert_eq!(lead.end().code, 3);
    follower.signal(9);
    drop(follower);
    pods[1].outside.clear();
    // The follower is not waited for: it stays for another attempt.
    let (lead, _follower) = (Running::pod(&pods[0], &network), Running::pod(&pods[1], &network));
    let ended = lead.end();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert_eq!(sorted(&ended.stdout), expected([2, 2]), "{}", ended.stderr);
}
