//! GPUs on a node: those of `test-node/neighbours/gpus`, which uses the same API as NVIDIA's device plugin.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use serde_json::{Value, json};
use test_support::node::{Fixture, not_tested, test};

use super::pasted;

const GPUS_OF_NODE: u32 = 4;
const PAGE: &str = "docs/tasks/gpus.md";

#[test]
fn pods_of_a_node_have_gpus_of_their_own_and_tasks_see_theirs() {
    let Ok(image) = std::env::var("E2E_GPUS_IMAGE") else {
        return not_tested("GPUs of a device plugin", "make e2e on the test node");
    };
    test("gpus", async |fixture| {
        fixture.kubectl(&["apply", "-f", "-"], &device_plugin(&image).to_string());
        fixture
            .until("the node offers GPUs", async || {
                (offered(&fixture).await == GPUS_OF_NODE).then_some(())
            })
            .await;
        fixture
            .create(
                "gpus",
                2,
                json!({ "resources": { "limits": { "nvidia.com/gpu": 2, "memory": "256Mi" } } }),
            )
            .await;
        fixture.when_condition("gpus", "Ready").await;

        let mut seen = BTreeSet::new();
        for index in ["0", "1"] {
            let pod = fixture.pod("gpus", index).await.unwrap().metadata.name.unwrap();
            let in_pod = |words: &[&str]| fixture.kubectl(&[&["exec", &pod, "--"], words].concat(), "");
            let files: Vec<String> = in_pod(&["ls", "/dev"])
                .lines()
                .filter(|file| file.starts_with("nvidia"))
                .map(str::to_owned)
                .collect();
            let facts: Value =
                serde_json::from_str(&in_pod(&["/mnt/flux/flux-agent", "facts", "--json"])).unwrap();
            assert_eq!(
                (files.len(), &facts["gpus"]),
                (2, &json!(2)),
                "{pod}: {files:?} {facts:#}"
            );
            seen.extend(files);
        }
        assert_eq!(seen.len(), 4, "no GPU is given twice: {seen:?}");

        if std::env::var_os("E2E_FLUXION").is_none() {
            return not_tested("GPUs of jobs", "FLUX=/prefix make e2e, with Fluxion in it,");
        }
        let lead = fixture.lead("gpus").await.unwrap().metadata.name.unwrap();
        let flux = |words: &[&str]| {
            fixture.try_kubectl(
                &[
                    &[
                        "exec",
                        &lead,
                        "--",
                        "/mnt/flux/flux-agent",
                        "connect",
                        "--",
                        "flux",
                    ],
                    words,
                ]
                .concat(),
                "",
            )
        };
        let gpus = flux(&[
            "resource",
            "list",
            "--no-header",
            "--states=free",
            "-o",
            "{ngpus}",
        ])
        .unwrap();
        assert_eq!(gpus.trim(), "4");
        let script = "echo $FLUX_TASK_LOCAL_ID on $(hostname): $CUDA_VISIBLE_DEVICES";
        let per_task = [
            "run",
            "-N2",
            "-n4",
            "-g1",
            "-o",
            "gpu-affinity=per-task",
            "sh",
            "-c",
            script,
        ];
        let lines: BTreeSet<String> = flux(&per_task).unwrap().lines().map(str::to_owned).collect();
        let expected = [
            "0 on gpus-0: 0",
            "0 on gpus-1: 0",
            "1 on gpus-0: 1",
            "1 on gpus-1: 1",
        ];
        assert_eq!(lines, expected.map(str::to_owned).into());
        let none = flux(&["run", "-n1", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES"]).unwrap();
        assert_eq!(none.trim(), "-1", "a job that asks for none sees none");
        let refused = flux(&["run", "-n5", "-g1", "true"]).unwrap_err();
        assert!(refused.contains("unsatisfiable"), "{refused}");

        fixture.kubectl(&["delete", "minicluster", "gpus"], "");
        let folder = tempfile::tempdir().unwrap();
        let mut manifest = pasted::manifest_of_check(&fixture, PAGE);
        manifest["spec"].as_object_mut().unwrap().remove("flux");
        manifest["spec"]["containers"][0]["resources"]["limits"] =
            json!({ "nvidia.com/gpu": 2, "memory": "256Mi" });
        std::fs::write(folder.path().join("gpus-check.yaml"), manifest.to_string()).unwrap();
        let printed = pasted::run_left_out(&fixture, PAGE, "kubectl apply -f gpus-check.yaml", folder.path());
        // A line of `flux resource list`, in which NGPUS is the last column but one.
        let free = printed.lines().find(|line| line.contains(" free ")).unwrap();
        assert_eq!(free.split_whitespace().rev().nth(1), Some("4"), "{printed}");
        let visible = printed.lines().filter(|line| matches!(*line, "0" | "1"));
        assert_eq!(visible.count(), 2, "{printed}");
    });
}

/// A pod with a device plugin for its own node. (Vendors run such a pod on each node.)
fn device_plugin(image: &str) -> Value {
    let folder = json!({ "hostPath": { "path": "/var/lib/kubelet/device-plugins" }, "name": "plugins" });
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": "device-plugin" },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "gpus",
                "image": image,
                "args": [GPUS_OF_NODE.to_string()],
                "securityContext": { "privileged": true },
                "volumeMounts": [{ "name": "plugins", "mountPath": "/var/lib/kubelet/device-plugins" }],
            }],
            "volumes": [folder],
        },
    })
}

/// The number of GPUs that all nodes together offer to pods.
async fn offered(fixture: &Fixture) -> u32 {
    let nodes = test_support::node::list(&Api::<Node>::all(fixture.client.clone()), "").await;
    let gpus_of = |node: Node| {
        node.status?
            .allocatable?
            .get("nvidia.com/gpu")?
            .0
            .parse::<u32>()
            .ok()
    };
    nodes.into_iter().filter_map(gpus_of).sum()
}
