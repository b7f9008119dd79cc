//! Deletes all MiniClusters before the CRD. If the CRD were deleted first, their Jobs and pods would stay: the garbage
//! collector does not know so new a CRD yet (`operator/src/delete_miniclusters.rs`).

use super::*;

use flux_operator::delete_miniclusters::{DeletionError, delete_all};
use flux_operator_core::labels;

/// The name of the chart's Job.
const DELETION: &str = "flux-operator-delete-miniclusters";
/// In place of the CRD, which the test creates later. `ControlPlane::start` has to apply something.
const UNRELATED: &str = "apiVersion: v1\nkind: Namespace\nmetadata: {name: unrelated}\n";

/// Creates a MiniCluster with the objects that the operator would create. Until all of them exist, a finalizer keeps
/// the MiniCluster, so that a deletion meanwhile does not miss any.
fn make(plane: &ControlPlane, name: &str) {
    let spec = json!({ "size": 2, "containers": [{ "image": "a" }] });
    let cluster = json!({
        "apiVersion": Version::V1alpha2.api_version(), "kind": "MiniCluster",
        "metadata": { "name": name, "finalizers": ["test.example/making"] }, "spec": spec,
    });
    plane.apply(&cluster.to_string()).unwrap();
    let uid = plane
        .kubectl(&["get", "minicluster", name, "--output", "jsonpath={.metadata.uid}"])
        .unwrap();
    let owner = json!({
        "apiVersion": Version::V1alpha2.api_version(), "kind": "MiniCluster", "name": name, "uid": uid,
        "controller": true, "blockOwnerDeletion": true,
    });
    let job = json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": { "name": name, "ownerReferences": [owner] },
        "spec": {
            "parallelism": 2, "completions": 2, "completionMode": "Indexed",
            "template": { "spec": { "restartPolicy": "Never", "containers": [{ "name": "a", "image": "a" }] } },
        },
    });
    plane.apply(&job.to_string()).unwrap();
    for (suffix, keep) in [("goes", false), ("stays", true)] {
        let mut annotations = json!({ labels::OWNER: uid });
        if keep {
            annotations[labels::KEEP] = json!("true");
        }
        let volume = json!({
            "apiVersion": "v1", "kind": "PersistentVolume",
            "metadata": {
                "name": format!("{name}-{suffix}"),
                "labels": { labels::MANAGED_BY: labels::MANAGER, labels::NAMESPACE: "default", labels::CLUSTER: name },
                "annotations": annotations,
            },
            "spec": { "capacity": { "storage": "1Gi" }, "accessModes": ["ReadWriteMany"], "hostPath": { "path": "/tmp" } },
        });
        plane.apply(&volume.to_string()).unwrap();
    }
    release(plane, name, "test.example/making");
}

/// Removes a finalizer, which must be the first one.
fn release(plane: &ControlPlane, name: &str, finalizer: &str) {
    let patch = json!([
        { "op": "test", "path": "/metadata/finalizers/0", "value": finalizer },
        { "op": "remove", "path": "/metadata/finalizers/0" },
    ]);
    let patch = patch.to_string();
    plane
        .kubectl(&["patch", "minicluster", name, "--type=json", "--patch", &patch])
        .unwrap();
}

#[test]
fn delete_all_removes_clusters_of_a_definition_created_later() {
    let plane = ControlPlane::start(UNRELATED).unwrap();
    plane.apply(&installation()).unwrap();
    // The chart has the Job, its account and that account's permissions only if `crds.keep` is false.
    let mut deletion = Installation::whole(&json!({ "crds": { "keep": false } }));
    deletion
        .objects
        .retain(|object| object["metadata"]["name"].as_str().unwrap().ends_with(DELETION));
    assert_eq!(deletion.objects.len(), 4);
    plane.apply(&deletion.text()).unwrap();
    let token = plane
        .kubectl(&["-n", NAMESPACE, "create", "token", DELETION])
        .unwrap();
    let kubeconfig = plane.kubeconfig_for_token("delete", &token).unwrap();
    runtime().block_on(async {
        let calls = Calls::default();
        let client = client(&kubeconfig, &calls).await;
        assert!(
            delete_all(&client, 10)
                .await
                .unwrap()
                .starts_with("deleted 0 MiniClusters"),
            "there is no CRD"
        );

        plane
            .apply(&yaml::document(&definition(&Conversion::None).unwrap()).unwrap())
            .unwrap();
        plane
            .kubectl(&[
                "wait",
                "--for=condition=Established",
                "crd",
                "miniclusters.flux-framework.org",
            ])
            .unwrap();
        make(&plane, "first");
        let objects_left = |option: &str| {
            let found = plane
                .kubectl(&["get", "jobs,pods,persistentvolumes", "--output=name", option])
                .unwrap();
            let is_ours = |name: &&str| ["first", "late"].iter().any(|cluster| name.contains(cluster));
            found
                .lines()
                .filter(is_ours)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let pods = async || {
            let found = objects_left("--selector=batch.kubernetes.io/job-name=first");
            // Its two pods, and the Job: the API server gives a Job without labels those of its pod template.
            if found.len() == 3 {
                Ok(())
            } else {
                Err(format!("{found:?}"))
            }
        };
        until("it has its pods", pods).await;

        // Somebody's finalizer: the error says what the deletion waits for.
        let finalizer = json!({ "metadata": { "finalizers": ["test.example/held"] } }).to_string();
        plane
            .kubectl(&[
                "patch",
                "minicluster",
                "first",
                "--type=merge",
                "--patch",
                &finalizer,
            ])
            .unwrap();
        let error = delete_all(&client, 2).await.unwrap_err();
        assert!(
            matches!(&error, DeletionError::Left { .. }) && error.to_string().contains("default/first"),
            "{error}"
        );

        // A MiniCluster that is created while the deletion waits is deleted as well.
        let lists = || {
            let calls = calls.lock().unwrap();
            calls
                .iter()
                .filter(|call| call.verb == "list" && call.resource == "miniclusters")
                .count()
        };
        let lists_before = lists();
        let deleting = tokio::spawn({
            let client = client.clone();
            async move { delete_all(&client, 60).await }
        });
        until("the deletion waits for the first", async || {
            if lists() > lists_before {
                Ok(())
            } else {
                Err("no list".to_owned())
            }
        })
        .await;
        make(&plane, "late");
        until("the deletion has seen the late one", async || {
            let late = [
                "get",
                "minicluster",
                "late",
                "--ignore-not-found",
                "--output=jsonpath={.metadata}",
            ];
            let late = plane.kubectl(&late).unwrap();
            if late.is_empty() || late.contains("deletionTimestamp") {
                Ok(())
            } else {
                Err(late)
            }
        })
        .await;
        release(&plane, "first", "test.example/held");
        let message = deleting.await.unwrap().unwrap();
        assert_eq!(
            message,
            "deleted 2 MiniClusters, with their pods and 2 PersistentVolumes\n"
        );
        plane
            .kubectl(&["delete", "crd", "miniclusters.flux-framework.org"])
            .unwrap();
        until("the volumes are gone", async || {
            // This option filters nothing: all objects are listed.
            let left = objects_left("--ignore-not-found");
            let wanted = ["persistentvolume/first-stays", "persistentvolume/late-stays"];
            if left == wanted {
                Ok(())
            } else {
                Err(format!("{left:?}"))
            }
        })
        .await;
        let requests = std::mem::take(&mut *calls.lock().unwrap());
        assert_sufficient_and_all_used(&requests, &deletion.permissions(DELETION));
    });
}
