//! Faults of nodes, caused with the scripts of the test node.

use std::process::{Child, Command};

use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use test_support::repository::repository;

pub const WORKERS: [u8; 3] = [1, 2, 3];
/// The node with the control plane. It is never taken down.
pub const FIRST: &str = "node";
/// The namespace of the operator and its webhook.
const OPERATOR: &str = "flux-operator";

pub fn node(worker: u8) -> String {
    format!("worker-{worker}")
}

/// A script of `test-node` that acts on this worker. None: on the first node, or on those that its arguments name.
fn script(name: &str, worker: Option<u8>, arguments: &[&str]) -> Command {
    let mut command = Command::new(repository().join("test-node").join(name));
    command.args(arguments);
    if let Some(worker) = worker {
        command.env("WORKER", worker.to_string());
    }
    command
}

/// Runs a command without blocking the test's other tasks. The error is what the command printed.
async fn try_run(mut command: Command) -> Result<(), String> {
    let shown = format!("{command:?}");
    let output = tokio::task::spawn_blocking(move || command.output())
        .await
        .unwrap()
        .unwrap();
    let printed = [output.stdout, output.stderr].concat();
    if output.status.success() {
        Ok(())
    } else {
        Err(format!("{shown}: {}", String::from_utf8_lossy(&printed)))
    }
}

async fn run(command: Command) {
    try_run(command).await.unwrap_or_else(|error| panic!("{error}"));
}

pub async fn try_kubectl(arguments: &[&str]) -> Result<(), String> {
    let mut command = Command::new("kubectl");
    command.args(arguments);
    try_run(command).await
}

pub async fn kubectl(arguments: &[&str]) {
    try_kubectl(arguments)
        .await
        .unwrap_or_else(|error| panic!("{error}"));
}

/// Power loss, without any shutdown.
pub async fn power_off(worker: u8) {
    run(script("node-down", Some(worker), &[])).await;
}

/// Shuts a machine down as `reboot` does: each process gets SIGTERM and 10 s.
pub async fn shut_down(worker: u8) {
    run(script("node-down", Some(worker), &["--orderly"])).await;
}

/// Starts the machine with its disk, and waits until its node is ready.
pub async fn power_on(worker: u8) {
    run(script("up", Some(worker), &["--worker"])).await;
}

/// Kills a program of a node. It is started again after this many seconds.
pub async fn restart(worker: u8, program: &str, seconds: u32) {
    try_restart(Some(worker), program, seconds)
        .await
        .unwrap_or_else(|error| panic!("{error}"));
}

/// Like `restart`, also on the control plane's node (None). An error if the program does not run at that moment.
pub async fn try_restart(worker: Option<u8>, program: &str, seconds: u32) -> Result<(), String> {
    try_run(script("restart", worker, &[program, &seconds.to_string()])).await
}

pub async fn make_image(worker: u8, name: &str, folder: &str) {
    run(script("mkimage", Some(worker), &[name, folder])).await;
}

/// A worker that is cut off. The cut ends when this is dropped, if not before.
pub struct Cut(Child);

/// Cuts a worker off for this many seconds: from the worker with the number `from`, or, if that is `api`, only from
/// the API server.
pub fn cut(worker: u8, from: &str, seconds: u32) -> Cut {
    Cut(script(
        "partition",
        None,
        &[&worker.to_string(), from, &seconds.to_string()],
    )
    .spawn()
    .unwrap())
}

impl Cut {
    pub async fn end(self) {
        assert!(self.try_end().await);
    }

    /// False: the cut failed, for example because one of the machines was not running.
    pub async fn try_end(mut self) -> bool {
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status.success();
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        if self.0.try_wait().unwrap().is_none() {
            // Not SIGKILL: the script has to undo the cut.
            Command::new("kill")
                .arg(self.0.id().to_string())
                .status()
                .unwrap();
            self.0.wait().unwrap();
        }
    }
}

/// Cordons a worker, or uncordons it.
pub async fn cordon(client: &Client, worker: u8, is_cordoned: bool) {
    let patch = Patch::Merge(json!({ "spec": { "unschedulable": is_cordoned } }));
    Api::<Node>::all(client.clone())
        .patch(&node(worker), &PatchParams::default(), &patch)
        .await
        .unwrap();
}

/// Adds or removes the taint with which an administrator confirms that the machine is off.
pub async fn taint_out_of_service(worker: u8, is_tainted: bool) {
    let taint = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";
    let suffix = if is_tainted { "" } else { "-" };
    kubectl(&[
        "taint",
        "node",
        &node(worker),
        &format!("{taint}{suffix}"),
        "--overwrite",
    ])
    .await;
}

/// Restores all nodes to the initial state, whatever a test has left: on, joined, without taints, and with
/// the operator on the first.
pub async fn restore(client: &Client) {
    // A `place_operator_on` that failed may have left this node cordoned.
    kubectl(&["uncordon", FIRST]).await;
    let nodes = Api::<Node>::all(client.clone());
    for worker in WORKERS {
        let taints = nodes
            .get_opt(&node(worker))
            .await
            .unwrap()
            .and_then(|node| node.spec?.taints)
            .unwrap_or_default();
        if taints
            .iter()
            .any(|taint| taint.key == "node.kubernetes.io/out-of-service")
        {
            taint_out_of_service(worker, false).await;
        }
        power_on(worker).await;
        cordon(client, worker, false).await;
    }
    if operator_pods(client)
        .await
        .iter()
        .any(|pod| node_of(pod) != FIRST)
    {
        place_operator_on(client, &[FIRST.to_owned()]).await;
    }
}

/// Moves the operator's pods to the nodes in `wanted`, and waits until they are ready there.
pub async fn place_operator_on(client: &Client, wanted: &[String]) {
    let all = test_support::node::list(&Api::<Node>::all(client.clone()), "").await;
    let others: Vec<String> = all
        .iter()
        .map(ResourceExt::name_any)
        .filter(|name| !wanted.contains(name))
        .collect();
    for other in &others {
        kubectl(&["cordon", other]).await;
    }
    kubectl(&["--namespace", OPERATOR, "rollout", "restart", "deployment"]).await;
    kubectl(&[
        "--namespace",
        OPERATOR,
        "rollout",
        "status",
        "deployment",
        "--timeout",
        "180s",
    ])
    .await;
    for other in &others {
        kubectl(&["uncordon", other]).await;
    }
}

/// The pods of the operator and of its webhook that are not being deleted.
pub async fn operator_pods(client: &Client) -> Vec<Pod> {
    try_operator_pods(client).await.unwrap()
}

/// The same, for times when the API server may be away.
pub async fn try_operator_pods(client: &Client) -> kube::Result<Vec<Pod>> {
    let mut pods = Api::<Pod>::namespaced(client.clone(), OPERATOR)
        .list(&ListParams::default())
        .await?
        .items;
    pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
    Ok(pods)
}

pub fn node_of(pod: &Pod) -> String {
    pod.spec
        .as_ref()
        .and_then(|spec| spec.node_name.clone())
        .unwrap_or_default()
}
