//! Pods of a JobSet or a TrainJob. No operator writes a spec or a key for them, so they are configured by the
//! command line and the environment.

use std::collections::BTreeMap;
use std::fs;

use flux_shared::exit::Category;
use flux_shared::termination::Ender;

use crate::image::{self, AGENT, Container, Ended, Image};
use crate::live::{Network, Running, gate, pod_image, termination_of};

const SEED: &str = "0123456789abcdef0123456789abcdef";
const WORDS: [&str; 6] = [
    AGENT,
    "run",
    "--lead-from-env=LEAD",
    "--size-from-env=SIZE",
    "--namespace-from-env=NAMESPACE",
    "--key-from-env=UID,ATTEMPT",
];

/// The image of a pod with a seed, but without a spec and a certificate.
fn image() -> Image {
    let image = pod_image("", 2);
    for file in [
        "/etc/flux-agent/spec/agent.toml",
        "/etc/flux-agent/curve/curve.cert",
    ] {
        fs::remove_file(image.at(file)).unwrap();
    }
    image.file("/etc/flux-agent/seed/seed", 0o440, SEED);
    image.hosts_of("train-node-0", "train", 2, &[image::V4]);
    image
}

fn variables(attempt: &str) -> BTreeMap<String, String> {
    let fixed = [
        ("LEAD", "train-node-0-0.train"),
        ("SIZE", "2"),
        ("NAMESPACE", "default"),
        ("UID", "c0ffee-1"),
    ];
    fixed
        .into_iter()
        .chain([("ATTEMPT", attempt)])
        .map(|(name, value)| (name.into(), value.into()))
        .collect()
}

fn pod<'a>(image: &'a Image, index: usize, attempt: &str, program: &[&str]) -> Container<'a> {
    let words = [&WORDS[..], &["--"], program].concat();
    let mut container = Container::new(image, &format!("train-node-0-{index}"), &words);
    container.environment.extend(variables(attempt));
    container
}

fn run(images: &[Image], program: &[&str]) -> Vec<Ended> {
    let pods: Vec<Container> = images
        .iter()
        .enumerate()
        .map(|(index, image)| pod(image, index, "0", program))
        .collect();
    image::run(&pods)
}

fn certificate(image: &Image) -> String {
    fs::read_to_string(image.at("/mnt/flux/config/curve/curve.cert")).unwrap()
}

#[test]
fn command_line_alone_makes_an_instance_with_program_code() {
    let images = [image(), image()];
    let ended = run(
        &images,
        &[
            "/bin/sh",
            "-c",
            "echo \"two  words\" '$HOME' \"$0\"; exit 7",
            "it's",
        ],
    );
    assert_eq!((ended[0].code, ended[1].code), (7, 0), "{ended:?}");
    // A task on each node.
    assert_eq!(ended[0].stdout, "two  words $HOME it's\n".repeat(2));
    assert_eq!(termination_of(&images[0]).by, Ender::Program);
    let own = certificate(&images[0]);
    assert!(own == certificate(&images[1]) && own.contains("name = \"train-node-0-0\""));
    let secret = own.rsplit('"').nth(1).unwrap();
    for text in ended.iter().flat_map(|pod| [&pod.stdout, &pod.stderr]) {
        assert!(!text.contains(secret) && !text.contains(SEED), "{text}");
    }
}

#[test]
fn another_attempt_has_another_key() {
    let certificate = |attempt: &str| {
        let image = image();
        let mut pod = pod(&image, 0, attempt, &["/bin/true"]);
        pod.environment.insert("SIZE".into(), "1".into());
        assert_eq!(image::run(&[pod])[0].code, 0);
        certificate(&image)
    };
    let (first, second) = (certificate("0"), certificate("1"));
    assert!(first != second && first == certificate("0"));
}

#[test]
fn missing_environment_is_agent_failure_and_seed_stays_hidden() {
    let failed = |image: &Image, leave_out: &str| {
        let mut pod = pod(image, 0, "0", &["/bin/true"]);
        pod.environment.remove(leave_out);
        let ended = image::run(&[pod]).remove(0);
        assert_eq!(termination_of(image).by, Ender::Agent);
        ended
    };
    let ended = failed(&image(), "SIZE");
    assert_eq!(ended.code, i32::from(Category::SpecInvalid.code()));
    assert!(
        ended
            .stderr
            .contains("failed to use --size-from-env SIZE: it is not set"),
        "{}",
        ended.stderr
    );

    let short = image();
    short.file("/etc/flux-agent/seed/seed", 0o440, "hunter2");
    let ended = failed(&short, "");
    assert_eq!(ended.code, i32::from(Category::CurveUnreadable.code()));
    assert!(
        ended.stderr.contains("7 bytes") && !ended.stderr.contains("hunter2"),
        "{}",
        ended.stderr
    );
}

/// With `kubectl exec`, whose processes have the container's environment but not the entrypoint's command line.
#[test]
fn commands_know_the_arguments_of_the_entrypoint() {
    let image = image();
    let script = "echo up; while [ ! -e /tmp/go ]; do sleep 0.1; done";
    // The commands read the words from /proc/1/cmdline. There, an empty last word is only a second zero byte.
    let mut container = pod(&image, 0, "0", &["/bin/sh", "-c", script, ""]);
    container.environment.insert("SIZE".into(), "1".into());
    let environment: Vec<String> = container
        .environment
        .iter()
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    let running = Running::pod(&container, &Network::new());
    running.wait_for_output("up\n");
    let words: Vec<&str> = ["/usr/bin/env", "-i"]
        .into_iter()
        .chain(environment.iter().map(String::as_str))
        .collect();
    let exec = |more: &[&str]| running.exec(&[&words[..], more].concat());
    let ready = exec(&[AGENT, "status", "--ready", "--wait", "60"]);
    assert!(
        ready.status.success(),
        "{}",
        String::from_utf8_lossy(&ready.stderr)
    );
    let status = exec(&[AGENT, "status", "--json"]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).unwrap();
    assert_eq!(status["state"], "run", "{status}");
    let plan = exec(&[AGENT, "dry-run", "--here", "--format", "json"]);
    let plan = String::from_utf8(plan.stdout).unwrap();
    assert!(
        plan.contains("\"hostname\": \"train-node-0-0\"") && plan.contains("derived-curve"),
        "{plan}"
    );
    assert!(plan.contains("c0ffee-1") && !plan.contains(SEED));
    fs::write(gate(&image, "go"), "").unwrap();
    assert_eq!(running.end().code, 0);
}
