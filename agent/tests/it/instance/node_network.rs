//! Pods with the network of their nodes. Their host names are not in the hostlist.

use flux_shared::names::POD_ADDRESS;

use super::{launch, submit};
use crate::image::{AGENT, Container, Image, V4, real_flux};
use crate::live::{Network, Running, eventually, open, pod_image, run_words, termination_of};

const NODE: &str = "node-7";
const SPEC: &str = "[network]\nhost_network = true\n";

/// Two of the variables that the Job controller and the operator set in each pod.
fn pod_variables(index: usize) -> [(&'static str, String); 2] {
    [
        ("JOB_COMPLETION_INDEX", index.to_string()),
        (POD_ADDRESS.0, format!("{V4}{}", index + 1)),
    ]
}

/// All pods have the same host name: Flux must not need different ones.
fn container<'a>(image: &'a Image, index: usize, words: &[&str]) -> Container<'a> {
    let mut container = Container::new(image, NODE, words);
    container
        .environment
        .extend(pod_variables(index).map(|(name, value)| (name.to_owned(), value)));
    container
}

fn start(images: &[Image], network: &Network) -> Vec<Running> {
    let pod = |(index, image)| Running::pod(&container(image, index, &run_words(&[])), network);
    images.iter().enumerate().map(pod).collect()
}

/// Runs the agent like `kubectl exec`, with the pod's variables. Returns standard output and standard error.
fn exec(pod: &Running, index: usize, words: &[&str]) -> String {
    let variables = pod_variables(index).map(|(name, value)| format!("{name}={value}"));
    let variables: Vec<&str> = variables.iter().map(String::as_str).collect();
    let output = pod.exec(&[&["/usr/bin/env"], &variables[..], &[AGENT], words].concat());
    String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
}

#[test]
fn brokers_join_by_index_and_jobs_see_the_node_name() {
    // The broker gets this variable. A Flux instance inside a job would take it for its own host name.
    let job =
        submit("echo $(hostname) ${FLUX_FAKE_HOSTNAME:-untold}; while [ ! -e /tmp/go ]; do sleep 0.05; done");
    let images: Vec<Image> = (0..3)
        .map(|_| pod_image(&format!("tasks = 3\n{SPEC}{job}"), 3))
        .collect();
    let pods = start(&images, &Network::new());
    eventually("each node's task", || {
        (pods[0].stdout() == format!("{NODE} untold\n").repeat(3)).then_some(())
    });
    for (index, pod) in pods.iter().enumerate() {
        let status = exec(pod, index, &["status", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&status).unwrap_or_else(|_| panic!("{status}"));
        assert_eq!(status["host"], format!("mc-{index}"));
        assert_eq!(
            (&status["state"], &status["rank"], &status["size"]),
            (&"run".into(), &index.into(), &3.into())
        );
        let judged = exec(pod, index, &["preflight"]);
        assert!(
            judged.contains(&format!("pass dns     mc-{index}.flux-service")),
            "{judged}"
        );
        assert!(!judged.contains("FAIL parent"), "{judged}");
    }
    open(&images, "go");
    let ended: Vec<_> = pods.into_iter().map(Running::end).collect();
    assert_eq!(
        ended.iter().map(|pod| pod.code).collect::<Vec<_>>(),
        [0; 3],
        "{ended:?}"
    );
    let notice = "the pod has its node's network and host name: its name in Flux is mc-2";
    assert!(ended[2].stderr.contains(notice), "{}", ended[2].stderr);
}

/// Flux compares host names with those in R, and drains a node with another name. Tested for each way in which
/// Flux gets R.
#[test]
fn no_node_is_drained_for_its_name() {
    if real_flux().is_none() {
        return;
    }
    let job = launch("flux resource list -n -o '{state} {nnodes} {nodelist}'; flux resource drain -n");
    // In the first and the last row, the agent writes R. In the others, Flux discovers it.
    for (size, spec, wanted) in [
        (1, "", "free 1 mc-0\n"),
        (2, "", "free 2 mc-[0-1]\n"),
        (2, "archive = '/tmp/state.tgz'\n", "free 2 mc-[0-1]\n"),
        (2, "max_size = 3\nquorum = 2\n", "free 2 mc-[0-1]\n"),
    ] {
        let images: Vec<Image> = (0..size)
            .map(|_| pod_image(&format!("{spec}{SPEC}{job}"), size))
            .collect();
        let ended: Vec<_> = start(&images, &Network::new())
            .into_iter()
            .map(Running::end)
            .collect();
        let lines: Vec<&str> = ended[0].stdout.lines().collect();
        assert!(
            lines.contains(&wanted.trim_end()),
            "{spec}: {}{}",
            ended[0].stdout,
            ended[0].stderr
        );
        assert!(!ended[0].stdout.contains(NODE), "{spec}: {}", ended[0].stdout);
    }
}

#[test]
fn pod_without_an_index_names_the_missing_variable() {
    let image = pod_image(&format!("{SPEC}{}", submit("true")), 1);
    let ended = Running::pod(
        &Container::new(&image, NODE, &run_words(&["--patience", "0"])),
        &Network::new(),
    )
    .end();
    // `spec-invalid`: the agent cannot make a plan from the spec.
    assert_eq!(ended.code, 241, "{}", ended.stderr);
    assert!(
        ended.stderr.contains(NODE) && ended.stderr.contains("JOB_COMPLETION_INDEX"),
        "{}",
        ended.stderr
    );
    let termination = termination_of(&image);
    assert!(
        format!("{termination:?}").contains("JOB_COMPLETION_INDEX"),
        "{termination:?}"
    );
}

#[test]
fn undeclared_host_network_fails_and_names_the_field() {
    let image = pod_image(&submit("true"), 1);
    let ended = Running::pod(
        &container(&image, 0, &run_words(&["--patience", "0"])),
        &Network::new(),
    )
    .end();
    assert_eq!(ended.code, 241, "{}", ended.stderr);
    assert!(ended.stderr.contains("network.host_network"), "{}", ended.stderr);
}
