//! MiniClusters of 2023, applied as v1alpha1: they run to their end through the conversion webhook, and are
//! read back in both versions.
//!
//! The image must contain Flux: `E2E_FLUX_IMAGE` names one with a shell.

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, Pod, Secret};
use kube::Api;
use kube::api::{DeleteParams, DynamicObject, GroupVersionKind, ObjectMeta, PostParams};
use kube::core::ApiResource;
use serde_json::{Value, json};

use test_support::node::{Fixture, test};

fn older(fixture: &Fixture) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk("flux-framework.org", "v1alpha1", "MiniCluster");
    Api::namespaced_with(
        fixture.client.clone(),
        &fixture.namespace,
        &ApiResource::from_gvk(&kind),
    )
}

async fn create(fixture: &Fixture, name: &str, spec: &Value) {
    let mut spec = spec.clone();
    spec["containers"][0]["image"] = json!(
        std::env::var("E2E_FLUX_IMAGE").expect("E2E_FLUX_IMAGE must name an image with Flux and a shell")
    );
    let object = DynamicObject {
        types: None,
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            ..ObjectMeta::default()
        },
        data: json!({ "apiVersion": "flux-framework.org/v1alpha1", "kind": "MiniCluster", "spec": spec }),
    };
    older(fixture)
        .create(&PostParams::default(), &object)
        .await
        .unwrap();
}

/// Whether all of `wanted` is in `found`, which may also have defaults.
fn holds(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => wanted
            .iter()
            .all(|(key, wanted)| found.get(key).is_some_and(|found| holds(found, wanted))),
        (Value::Array(found), Value::Array(wanted)) => {
            found.len() == wanted.len()
                && found
                    .iter()
                    .zip(wanted)
                    .all(|(found, wanted)| holds(found, wanted))
        }
        _ => found == wanted,
    }
}

#[test]
fn manifest_of_2023_completes_and_reads_back_as_applied() {
    test("v1alpha1", async |fixture| {
        let spec = json!({
            "size": 2, "tasks": 2, "cleanup": false,
            "users": [{ "name": "peenut", "password": "butter" }, { "name": "squidward" }],
            "containers": [{
                "image": "", "workingDir": "/work/here",
                "command": "sh -c 'echo job of $(id -un) in $PWD sees $FI_EFA_USE_DEVICE_RDMA'",
                // Flux and the job get the variables after `-E`.
                "preCommand": "asFlux=\"sudo -u flux -E PYTHONPATH=$PYTHONPATH -E FI_EFA_USE_DEVICE_RDMA=1\"\n",
                // As in 2023, `pre` runs before any user is created.
                "commands": {
                    "pre": "grep -q peenut /etc/passwd || echo nobody yet",
                    "post": "cut -d: -f1 /etc/passwd; cut -d: -f2 /etc/shadow; ls /etc/flux/config/",
                },
            }],
        });
        create(&fixture, "of-2023", &spec).await;
        let status = fixture.when_condition("of-2023", "Complete").await;
        assert_eq!(status["exitCode"], 0, "{status:#}");
        let log = fixture.lead_log("of-2023").await;
        // The last one begins a password's hash in /etc/shadow.
        for line in [
            "nobody yet",
            "job of flux in /work/here sees 1",
            "peenut",
            "squidward",
            "broker.toml",
            "$6$",
        ] {
            assert!(log.contains(line), "{line}: {log}");
        }
        let secret: Secret = fixture
            .api()
            .get(status["usersSecret"].as_str().unwrap())
            .await
            .unwrap();
        let passwords: Vec<String> = secret
            .data
            .unwrap()
            .into_values()
            .map(|bytes| String::from_utf8(bytes.0).unwrap())
            .collect();
        // In the order of the users' names. squidward's password is generated, with 26 characters.
        assert_eq!(
            (passwords.len(), passwords[0].as_str(), passwords[1].len()),
            (2, "butter", 26)
        );
        assert!(passwords.iter().all(|password| !log.contains(password)), "{log}");

        let found = older(&fixture).get("of-2023").await.unwrap().data;
        let mut wanted = spec;
        wanted["containers"][0]["image"] = found["spec"]["containers"][0]["image"].clone();
        assert!(holds(&found["spec"], &wanted), "{found:#}");
        let newer = serde_json::to_value(
            fixture
                .api::<flux_shared::crd::v1alpha2::MiniCluster>()
                .get("of-2023")
                .await
                .unwrap(),
        )
        .unwrap();
        // Conversion writes what v1alpha1 means by fields that are left out.
        assert_eq!(newer["spec"]["flux"]["container"]["disable"], true, "{newer:#}");
        assert_eq!(
            newer["spec"]["containers"][0]["fluxUser"]["name"], "flux",
            "{newer:#}"
        );
    });
}

#[test]
fn v1alpha1_volume_is_created_used_and_deleted_on_completion() {
    test("v1alpha1-volume", async |fixture| {
        let path = format!("/tmp/{}", fixture.namespace);
        let command = "sh -c 'echo is-there > /data/file && cat /data/file'";
        create(
            &fixture,
            "with-volume",
            &json!({
                "size": 1, "volumes": { "data": { "path": path } },
                "containers": [{
                    "image": "", "command": command, "volumes": { "data": { "path": "/data" } },
                    "commands": { "pre": "chmod 0777 /data", "post": "cat /data/file; rm /data/file" },
                }],
            }),
        )
        .await;
        let status = fixture.when_condition("with-volume", "CleanedUp").await;
        assert_eq!(status["exitCode"], 0, "{status:#}");
        let volumes: Api<PersistentVolume> = Api::all(fixture.client.clone());
        let name = format!("{}.with-volume.data", fixture.namespace);
        fixture
            .until("pods, claim and volume are gone", async || {
                let pods = fixture.list::<Pod>("").await.len();
                let claims = fixture.list::<PersistentVolumeClaim>("").await.len();
                (pods + claims == 0 && volumes.get_opt(&name).await.unwrap().is_none()).then_some(())
            })
            .await;
        assert!(
            older(&fixture).get_opt("with-volume").await.unwrap().is_some(),
            "the MiniCluster itself stays"
        );
        older(&fixture)
            .delete("with-volume", &DeleteParams::default())
            .await
            .unwrap();
    });
}
