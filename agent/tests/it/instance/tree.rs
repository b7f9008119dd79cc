//! Followers with another parent than the lead: 1 and 2 are the lead's children, 3 is the child of 1. Only with
//! real Flux, since all brokers of the fake Flux are the lead's children.

use super::stops::node_state;
use super::*;

/// A launcher that runs a job on node 3 until a gate opens, then another job, and stays until a third gate
/// opens. With a smaller quorum, the agent writes R. If Flux discovered R, a node that leaves would be lost for good.
fn images_of_a_tree() -> Vec<Image> {
    let job = "echo up; until [ -e /tmp/go ]; do sleep 0.05; done";
    let on_3 = "flux run --requires=rank:3";
    let script = format!(
        "{on_3} sh -c '{job}'; echo ended with $?; until [ -e /tmp/next ]; do sleep 0.05; done; \
         {on_3} true; echo again $?; until [ -e /tmp/end ]; do sleep 0.05; done"
    );
    let program = launch(&script);
    images(&format!("quorum = 1\n{program}[flux]\ntopology = 'kary:2'\n"), 4)
}

fn wait_until_all_up(lead: &Running) {
    eventually("all nodes are up", || {
        (1..4).all(|rank| node_state(lead, rank) == "up").then_some(())
    });
}

fn all_end_well(pods: impl IntoIterator<Item = Running>) {
    for pod in pods {
        let ended = pod.end();
        assert_eq!(ended.code, 0, "{}", ended.stderr);
    }
}

/// Starts a new pod of index 1.
fn start_again(images: &[Image], network: &Network, more: &[&str]) -> Running {
    forget_starts(&images[1]);
    Running::pod(&Container::new(&images[1], "mc-1", &run_words(more)), network)
}

/// An idle follower with brokers below it looks for jobs three times more than one without, once in 2 s (`departure`).
/// So it leaves 6 s later. This is longer.
const MORE_THAN_IDLE: Duration = Duration::from_secs(9);

#[test]
fn stopped_idle_follower_waits_for_jobs_below_it() {
    if real_flux().is_none() {
        return;
    }
    let images = images_of_a_tree();
    let mut pods = start(&images, &Network::new(), &["--grace-period", "60"]);
    pods[0].wait_for_output("up\n");
    wait_until_all_up(&pods[0]);
    pods[1..].iter().for_each(|pod| pod.signal(15));
    assert_eq!(
        pods.remove(2).end().code,
        i32::from(REPLACE),
        "no job runs on this node or below it"
    );
    std::thread::sleep(MORE_THAN_IDLE);
    let (above, below) = (&pods[1], &pods[2]);
    assert_eq!(
        above.stderr().matches("waiting for jobs on rank 3").count(),
        1,
        "{}",
        above.stderr()
    );
    assert!(
        !above.stderr().contains("stopping this broker"),
        "{}",
        above.stderr()
    );
    assert!(
        !below.stderr().contains("stopping this broker"),
        "{}",
        below.stderr()
    );
    open(&images, "go");
    pods[0].wait_for_output("ended with 0\n");
    for pod in pods.drain(1..) {
        let ended = pod.end();
        assert_eq!(ended.code, i32::from(REPLACE), "{}", ended.stderr);
        assert!(
            !ended.stderr.contains("not properly shut down"),
            "{}",
            ended.stderr
        );
    }
}

#[test]
fn follower_below_a_removed_one_keeps_its_job_and_returns() {
    if real_flux().is_none() {
        return;
    }
    let (images, network) = (images_of_a_tree(), Network::new());
    let mut pods = start(&images, &network, &["--grace-period", "60"]);
    pods[0].wait_for_output("up\n");
    wait_until_all_up(&pods[0]);
    let above = pods.remove(1);
    above.signal(15);
    eventually("both nodes are drained", || {
        [1, 3]
            .iter()
            .all(|rank| node_state(&pods[0], *rank) == "drained")
            .then_some(())
    });
    assert_eq!(node_state(&pods[0], 2), "up");
    above.wait_for_output("waiting for jobs on rank 3");
    open(&images, "go");
    let ended = above.end();
    assert_eq!(ended.code, i32::from(REPLACE), "{}", ended.stderr);
    pods[0].wait_for_output("ended with 0\n");
    let below = pods.remove(2);
    below.wait_for_output("the parent broker has left, and the lead is still up; restarting it");

    let above = start_again(&images, &network, &[]);
    // Both ranks at once, or one after the other.
    pods[0].wait_for_output("undrained rank");
    wait_until_all_up(&pods[0]);
    open(&images, "next");
    pods[0].wait_for_output("again 0\n");
    open(&images, "end");
    all_end_well(pods.into_iter().chain([above, below]));
}

#[test]
fn job_below_is_bounded_by_grace_period_and_brokers_rejoin() {
    if real_flux().is_none() {
        return;
    }
    let (images, network) = (images_of_a_tree(), Network::new());
    let mut pods = start(&images, &network, &["--grace-period", "15"]);
    pods[0].wait_for_output("up\n");
    wait_until_all_up(&pods[0]);
    let (begin, above) = (Instant::now(), pods.remove(1));
    above.signal(15);
    let ended = above.end();
    let took = begin.elapsed();
    assert!(
        took >= Duration::from_secs(12) && took < Duration::from_secs(15),
        "{took:?}"
    );
    assert!(
        ended
            .stderr
            .contains("killing this broker: a job runs on a broker below it in the tree"),
        "{}",
        ended.stderr
    );
    pods[0].wait_for_output("ended with ");
    assert!(begin.elapsed() < Duration::from_secs(30), "{:?}", begin.elapsed());
    let above = start_again(&images, &network, &["--grace-period", "15"]);
    wait_until_all_up(&pods[0]);
    open(&images, "next");
    pods[0].wait_for_output("again 0\n");
    open(&images, "end");
    all_end_well(pods.into_iter().chain([above]));
}

#[test]
fn follower_checks_that_lead_is_there_when_it_cannot_ask() {
    if real_flux().is_none() {
        return;
    }
    let program = launch("until [ -e /tmp/end ]; do sleep 0.05; done");
    let images = images(
        &format!("quorum = 1\n{program}[flux]\ntopology = 'kary:2'\ndisable_socket = true\n"),
        4,
    );
    let network = Network::new();
    let mut pods = start(&images, &network, &["--grace-period", "10"]);
    let joined = |pod: &Running, times: usize| {
        eventually("it joins", || {
            (pod.stderr().matches("quorum->run").count() == times).then_some(())
        });
    };
    pods.iter().for_each(|pod| joined(pod, 1));
    let above = pods.remove(1);
    above.signal(15);
    let ended = above.end();
    assert_eq!(ended.code, i32::from(REPLACE), "{}", ended.stderr);
    pods[2].wait_for_output("the parent broker has left");
    let above = start_again(&images, &network, &[]);
    joined(&pods[2], 2);
    open(&images, "end");
    all_end_well(pods.into_iter().chain([above]));
}

#[test]
fn all_followers_of_a_tree_exit_0_after_the_lead() {
    if real_flux().is_none() {
        return;
    }
    let images = images_of_a_tree();
    let pods = start(&images, &Network::new(), &[]);
    pods[0].wait_for_output("up\n");
    wait_until_all_up(&pods[0]);
    ["go", "next", "end"].iter().for_each(|name| open(&images, name));
    let begin = Instant::now();
    for pod in pods {
        let ended = pod.end();
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        assert!(!ended.stderr.contains("restarting it"), "{}", ended.stderr);
    }
    assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", begin.elapsed());
}
