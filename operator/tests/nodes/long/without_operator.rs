//! The node of the leading operator, and that of its webhook, lose their power. The MiniClusters run on worker-1, which
//! stays up.

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use crate::machines::{kubectl, node, node_of, operator_pods, place_operator_on, power_off, try_kubectl};
use crate::stage::{ExpectedEnd, Program, Stage, sleep, test};
use crate::timeline::now;

/// The worker with the operator's pod whose name `is_wanted` accepts.
async fn worker_of(stage: &Stage, is_wanted: impl Fn(&str) -> bool) -> u8 {
    let pods = operator_pods(&stage.fixture.client).await;
    let pod = pods
        .iter()
        .find(|pod| is_wanted(&pod.name_any()))
        .expect("the operator has this pod");
    node_of(pod)
        .strip_prefix("worker-")
        .expect("it is on a worker")
        .parse()
        .unwrap()
}

/// The name of the leading pod, which holds the only Lease of the operator's namespace.
async fn leader(stage: &Stage) -> String {
    let leases = Api::<Lease>::namespaced(stage.fixture.client.clone(), "flux-operator");
    let leases = leases.list(&ListParams::default()).await.unwrap().items;
    leases
        .into_iter()
        .find_map(|lease| lease.spec?.holder_identity)
        .expect("the operator has a leader")
}

#[test]
fn minicluster_is_served_when_the_leaders_node_is_lost() {
    test("leader", async |stage| {
        place_operator_on(&stage.fixture.client, &[node(2), node(3)]).await;
        let before = Program {
            name: "before",
            first_run: 90,
            ..Program::default()
        };
        stage.create_all(&[&before]).await;
        let leader = leader(stage).await;
        let worker = worker_of(stage, |pod| pod == leader).await;
        let lost_at = now();
        power_off(worker).await;
        let meanwhile = Program {
            name: "meanwhile",
            first_run: 3,
            ..Program::default()
        };
        stage.create(&meanwhile).await;
        stage.ended("meanwhile", &ExpectedEnd::undisturbed()).await;
        let started_at = stage.history("meanwhile").runs()[0].from;
        assert!(started_at - lost_at < 60.0, "{}", stage.account("meanwhile"));
        stage.ended("before", &ExpectedEnd::undisturbed()).await;
        stage.assert_untouched("before");
    });
}

#[test]
fn old_version_is_answered_in_90_s_when_webhook_node_is_lost() {
    test("webhook", async |stage| {
        place_operator_on(&stage.fixture.client, &[node(2), node(3)]).await;
        let program = Program {
            name: "runs",
            first_run: 120,
            ..Program::default()
        };
        stage.create_all(&[&program]).await;
        let worker = worker_of(stage, |pod| pod.contains("webhook")).await;
        let lost_at = now();
        power_off(worker).await;
        // Some requests may fail or take long for a while: the API server waits 30 s for a connection to the replica
        // that is gone. Ten quick answers in a row show that this is over.
        let mut answered_in_a_row = 0;
        while answered_in_a_row < 10 {
            let asked_at = now();
            let namespace = ["--namespace", &stage.fixture.namespace];
            let get = [
                "get",
                "--request-timeout",
                "40s",
                "miniclusters.v1alpha1.flux-framework.org",
            ];
            let is_answered = try_kubectl(&[namespace.as_slice(), &get].concat()).await.is_ok();
            answered_in_a_row = if is_answered && now() - asked_at < 5.0 {
                answered_in_a_row + 1
            } else {
                0
            };
            assert!(now() - lost_at < 90.0, "v1alpha1 is not answered");
            sleep(0.5).await;
        }
        // The current version, which needs no conversion, is answered in all namespaces, too.
        kubectl(&["get", "miniclusters", "--all-namespaces"]).await;
        stage.ended("runs", &ExpectedEnd::undisturbed()).await;
        stage.assert_untouched("runs");
    });
}
