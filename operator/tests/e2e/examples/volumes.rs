//! Examples that keep data on volumes.

use super::*;

/// The folder for volumes of the node itself.
pub(super) fn folder_on_the_node(fixture: &Fixture) -> String {
    format!("/tmp/{}", fixture.namespace)
}

/// Creates a volume of the node for the claim of an example, and the claim.
fn claim(fixture: &Fixture, file: &str) {
    let claim = documents(fixture, file).remove(0);
    let name = claim["metadata"]["name"].clone();
    let volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": fixture.namespace },
        "spec": {
            "capacity": { "storage": "1Gi" }, "accessModes": claim["spec"]["accessModes"],
            "claimRef": { "namespace": fixture.namespace, "name": name },
            "hostPath": { "path": folder_on_the_node(fixture), "type": "DirectoryOrCreate" },
        },
    });
    fixture.kubectl(
        &["apply", "-f", "-"],
        &json!({ "apiVersion": "v1", "kind": "List", "items": [volume, claim] }).to_string(),
    );
}

/// Deletes the volumes, which are in no namespace, and their files, which the node would keep. The test node has the
/// files of this machine. On another node, they stay.
fn forget(fixture: &Fixture, volumes: &[&str]) {
    // A bound volume goes after its claim, and the claim goes with the namespace, after the test.
    fixture.kubectl(
        &[&["delete", "--wait=false", "persistentvolume"], volumes].concat(),
        "",
    );
    let _ = std::fs::remove_dir_all(folder_on_the_node(fixture));
}

#[test]
fn an_archive_outlives_its_cluster() {
    test("archive", async |fixture| {
        claim(&fixture, "archive/claim");
        let first = to_the_end(fixture.clone(), ("archive/minicluster", 0, &[("remember me", 1)])).await;
        assert_eq!(first, None);
        if is_fake_flux() {
            // The fake Flux's archive has a line for each start. The next run reads it before anything else.
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
        forget(&fixture, &[&fixture.namespace]);
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
        forget(&fixture, &["data", volume]);
    });
}
