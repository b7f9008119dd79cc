//! Plays the scheduler and the kubelets: each pod gets a node, runs and is ready. The nodes stay ready while the value
//! `Kubelets` lives.

use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{Namespace, Node, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::{DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use crate::plane::client;

const NODES: usize = 100;
/// Calls in flight.
const CONCURRENT: usize = 32;
/// Kubernetes considers a node lost when its Lease is older than 40 or 50 s, depending on its version.
const HEARTBEAT: Duration = Duration::from_secs(10);

pub struct Kubelets {
    client: Client,
    /// When this is dropped, the thread that renews the Leases ends.
    _alive: Arc<()>,
}

impl Kubelets {
    /// Creates the nodes. A separate thread renews the nodes' Leases, so the nodes stay ready while the caller's
    /// runtime is blocked.
    pub async fn start(kubeconfig: &Path) -> Kubelets {
        let client = client(kubeconfig).await;
        let alive = Arc::new(());
        // Before the nodes exist, so that no node is ever without a fresh Lease.
        renew(&client).await.unwrap();
        let nodes: Api<Node> = Api::all(client.clone());
        for number in 0..NODES {
            let node = json!({
                "metadata": { "name": name(number) },
                "status": {
                    "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady" }],
                    "nodeInfo": { "architecture": "amd64", "kubeletVersion": "v1.35.4", "operatingSystem": "linux",
                        "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                        "machineID": "", "osImage": "", "systemUUID": "" },
                },
            });
            nodes
                .create(&PostParams::default(), &serde_json::from_value(node).unwrap())
                .await
                .unwrap();
        }
        let (kubeconfig, is_alive) = (kubeconfig.to_owned(), Arc::downgrade(&alive));
        std::thread::spawn(move || keep_ready(&kubeconfig, &is_alive));
        Kubelets {
            client,
            _alive: alive,
        }
    }

    /// Gives all pods of the cluster a node and the status of a pod that runs, one namespace after the other.
    pub async fn run_all(&self) {
        let namespaces = Api::<Namespace>::all(self.client.clone());
        let mut number = 0;
        for namespace in namespaces.list_metadata(&ListParams::default()).await.unwrap() {
            let pods: Api<Pod> = Api::namespaced(self.client.clone(), &namespace.name_any());
            let all = pods.list(&ListParams::default()).await.unwrap().items;
            futures::stream::iter(all.iter().zip(number..))
                .map(async |(pod, number)| run(&pods, pod, &name(number % NODES)).await)
                .buffer_unordered(CONCURRENT)
                .collect::<Vec<_>>()
                .await;
            number += all.len();
        }
    }

    /// Ends all pods at once, including those that were not told to stop.
    pub async fn end_all(&self) {
        let pods: Api<Pod> = Api::all(self.client.clone());
        let at_once = DeleteParams::default().grace_period(0);
        let all = pods.list_metadata(&ListParams::default()).await.unwrap().items;
        futures::stream::iter(&all)
            .map(async |pod| {
                let pods: Api<Pod> = Api::namespaced(self.client.clone(), &pod.namespace().unwrap());
                let _ = pods.delete(&pod.name_any(), &at_once).await;
            })
            .buffer_unordered(CONCURRENT)
            .collect::<Vec<_>>()
            .await;
    }
}

/// Places the pod on the node, and runs it.
async fn run(pods: &Api<Pod>, pod: &Pod, node: &str) {
    let name = pod.name_any();
    let binding = json!({
        "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name },
        "target": { "apiVersion": "v1", "kind": "Node", "name": node },
    });
    let _: Value = pods
        .create_subresource("binding", &name, &PostParams::default(), &binding)
        .await
        .unwrap();
    // A merge patch would remove the conditions that the operator has set.
    let status = Patch::Strategic(running(pod));
    pods.patch_status(&name, &PatchParams::default(), &status)
        .await
        .unwrap();
}

/// The status of a pod that runs, as a kubelet reports it.
fn running(pod: &Pod) -> Value {
    let now = Timestamp::try_from(SystemTime::now()).unwrap().to_string();
    let spec = pod.spec.as_ref().unwrap();
    let ended = json!({ "terminated": { "exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now } });
    let statuses = |containers: &[k8s_openapi::api::core::v1::Container], state: &Value| -> Vec<Value> {
        containers
            .iter()
            .map(|container| {
                json!({
                    "name": container.name, "image": container.image, "imageID": "sha256:0123456789abcdef",
                    "containerID": "containerd://0123456789abcdef", "ready": true, "restartCount": 0, "state": state,
                })
            })
            .collect()
    };
    let conditions: Vec<Value> = [
        "PodScheduled",
        "PodReadyToStartContainers",
        "Initialized",
        "ContainersReady",
        "Ready",
    ]
    .map(|name| json!({ "type": name, "status": "True", "lastTransitionTime": now }))
    .into();
    json!({ "status": {
        "phase": "Running", "startTime": now, "conditions": conditions,
        "hostIP": "192.0.2.1", "hostIPs": [{ "ip": "192.0.2.1" }], "podIP": "198.51.100.1",
        "podIPs": [{ "ip": "198.51.100.1" }],
        "initContainerStatuses": statuses(spec.init_containers.as_deref().unwrap_or_default(), &ended),
        "containerStatuses": statuses(&spec.containers, &json!({ "running": { "startedAt": now } })),
    } })
}

fn name(number: usize) -> String {
    format!("node-{number}")
}

/// Renews the Leases while the [`Kubelets`] with this `_alive` exist.
fn keep_ready(kubeconfig: &Path, is_alive: &Weak<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let client = client(kubeconfig).await;
        while is_alive.upgrade().is_some() {
            // An error is left to the next heartbeat: the control plane may be gone, too.
            let _ = renew(&client).await;
            tokio::time::sleep(HEARTBEAT).await;
        }
    });
}

/// Renews the Leases of all nodes at once: one after the other would take too long while the API server is busy.
async fn renew(client: &Client) -> kube::Result<()> {
    let leases: Api<Lease> = Api::namespaced(client.clone(), "kube-node-lease");
    let now = Timestamp::try_from(SystemTime::now()).unwrap();
    let renewals = (0..NODES).map(async |number| {
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": name(number) },
            "spec": { "holderIdentity": name(number), "leaseDurationSeconds": 40, "renewTime": format!("{now:.6}") },
        });
        leases
            .patch(
                &name(number),
                &PatchParams::apply("bench").force(),
                &Patch::Apply(&lease),
            )
            .await
    });
    futures::future::try_join_all(renewals).await.map(drop)
}
