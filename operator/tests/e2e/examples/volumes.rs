//! Examples that keep data on volumes.

use super::*;
use crate::pasted;

/// The folder of the node that this test's volumes use.
pub(super) fn folder_on_the_node(fixture: &Fixture) -> String {
    format!("/tmp/{}", fixture.namespace)
}

/// Creates a claim, and a hostPath volume for it.
fn create_claim(fixture: &Fixture, claim: &Value) {
    let (name, spec) = (&claim["metadata"]["name"], &claim["spec"]);
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": fixture.namespace },
        "spec": {
            "capacity": spec["resources"]["requests"], "accessModes": spec["accessModes"],
            "storageClassName": spec["storageClassName"],
            "claimRef": { "namespace": fixture.namespace, "name": name },
            "hostPath": { "path": folder_on_the_node(fixture), "type": "DirectoryOrCreate" },
        },
    });
    fixture.kubectl(
        &["apply", "-f", "-"],
        &json!({ "apiVersion": "v1", "kind": "List", "items": [volume, claim] }).to_string(),
    );
}

/// Deletes the volumes, which belong to no namespace, and their files. A test node shares this machine's files; on any
/// other node, the files stay.
fn delete_volumes(fixture: &Fixture, volumes: &[&str]) {
    // Kubernetes deletes a bound volume only after its claim, which goes with the namespace, after the test.
    fixture.kubectl(
        &[&["delete", "--wait=false", "persistentvolume"], volumes].concat(),
        "",
    );
    let _ = std::fs::remove_dir_all(folder_on_the_node(fixture));
}

#[test]
fn an_archive_outlives_its_cluster() {
    test("archive", async |fixture| {
        create_claim(&fixture, &documents(&fixture, "archive/claim")[0]);
        let first = to_the_end(fixture.clone(), ("archive/minicluster", 0, &[("remember me", 1)])).await;
        assert_eq!(first, None);
        if is_fake_flux() {
            // The fake Flux's archive has a line for each start. This command reads it before the second run saves it.
            let mut restore = documents(&fixture, "archive/restore").remove(0);
            restore["spec"]["containers"][0]["command"] = json!("tar -xzOf /state/archive.tar.gz");
            fixture.kubectl(&["apply", "-f", "-"], &restore.to_string());
            let status = fixture.when_finished("archive-restore").await;
            assert_eq!(status["exitCode"], 0, "{status:#}");
            let log = log(&fixture, &fixture.lead("archive-restore").await.unwrap(), None).await;
            assert_eq!(log.lines().filter(|line| *line == "start").count(), 1, "{log}");
        } else {
            assert_eq!(
                to_the_end(fixture.clone(), ("archive/restore", 0, &[("remember me", 1)])).await,
                None
            );
        }
        delete_volumes(&fixture, &[&fixture.namespace]);
    });
}

#[test]
fn results_are_fetched_as_the_page_on_storage_says() {
    test("fetch", async |fixture| {
        let page = "docs/tasks/storage.md";
        let manifests = pasted::manifests(&fixture, page.as_ref());
        let manifest = |kind: &str, name: &str| {
            let found = manifests
                .iter()
                .flatten()
                .find(|document| document["kind"] == kind && document["metadata"]["name"] == name);
            found.unwrap_or_else(|| panic!("{kind} {name}"))
        };
        create_claim(&fixture, manifest("PersistentVolumeClaim", "results"));
        // A folder of the node belongs to root.
        let volumes = json!({ "results": { "path": "/results", "claimName": "results" } });
        let container = json!({ "command": "chmod 0777 /results", "volumes": volumes });
        fixture.create("writable", 1, container).await;
        fixture.when_finished("writable").await;
        fixture.kubectl(
            &["apply", "-f", "-"],
            &manifest("MiniCluster", "study").to_string(),
        );
        let status = fixture.when_finished("study").await;
        assert_eq!(status["exitCode"], 0, "{status:#}");

        let folder = tempfile::tempdir().unwrap();
        let fetch = manifest("Pod", "fetch").to_string();
        std::fs::write(folder.path().join("fetch.yaml"), fetch).unwrap();
        pasted::run_left_out(&fixture, page, "kubectl apply -f fetch.yaml", folder.path());
        let fetched = std::fs::read_dir(folder.path().join("results")).unwrap();
        let mut files: Vec<_> = fetched.map(|file| file.unwrap().file_name()).collect();
        files.sort();
        assert_eq!(files, ["task-0", "task-1", "task-2", "task-3"]);
        delete_volumes(&fixture, &[&fixture.namespace]);
    });
}

#[test]
fn host_claimed_and_created_volumes_hold_their_data() {
    test("volumes", async |fixture| {
        fixture.kubectl(
            &["apply", "-f", "-"],
            &json!({ "apiVersion": "v1", "kind": "List", "items": documents(&fixture, "volumes/data") })
                .to_string(),
        );
        prepare(&fixture);
        let lines: &[(&str, usize)] = &[("volumes-claim-0", 1), ("volumes-claim-1", 1)];
        assert_eq!(
            to_the_end(fixture.clone(), ("volumes/claim", 0, lines)).await,
            None
        );
        // Three more MiniClusters use the same folder. Each of the two tasks of the first one lists it.
        let lines: &[(&str, usize)] = &[("volumes-claim-0", 2), ("volumes-claim-1", 2)];
        assert_eq!(
            to_the_end(fixture.clone(), ("volumes/minicluster", 0, lines)).await,
            None
        );
        let lines: &[(&str, usize)] = &[("volumes-claim-0", 1), ("colour = green", 1)];
        assert_eq!(
            to_the_end(fixture.clone(), ("spellings/existing-volumes", 0, lines)).await,
            None
        );
        let name = apply(&fixture, "volumes/made");
        let status = fixture.when_finished(&name).await;
        assert_eq!(status["exitCode"], 0, "{status:#}");
        let phase = fixture.kubectl(
            &[
                "get",
                "pvc",
                "volumes-made.data",
                "-o",
                "jsonpath={.status.phase} {.spec.volumeName}",
            ],
            "",
        );
        let (phase, volume) = phase.split_once(' ').unwrap();
        assert_eq!(phase, "Bound");
        delete_volumes(&fixture, &["data", volume]);
    });
}
