//! Tests that change the CRD, each on a control plane of its own: both versions with the operator's webhook, the
//! migration, v1alpha1 switched off, and the deletion of all MiniClusters. Conversion itself is tested in `shared`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::print_stdout, reason = "tests print figures and notices")]

mod deletion;
mod replaced;
mod switched_off;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use flux_operator_core::yaml;
use futures::StreamExt;

use flux_operator::health::metrics::Metrics;
use flux_operator::webhook;
use flux_operator::webhook::migrate;
use flux_shared::crd::convert::{Version, convert_spec};
use flux_shared::crd::definition::{Conversion, WebhookClient, definition};
use kube::api::{Patch, PatchParams};
use kube::client::{Body, ClientBuilder};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::{DynamicObject, GroupVersionKind};
use kube::discovery::ApiResource;
use kube::{Api, Client, Config, ResourceExt};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinHandle;

use test_support::api_server::runtime;
use test_support::call::{Call, assert_sufficient_and_all_used};
use test_support::control_plane::ControlPlane;
use test_support::installation::{Installation, NAMESPACE};
use test_support::upstream_manifests;

const DEADLINE: Duration = Duration::from_secs(60);

struct Fixture {
    plane: ControlPlane,
    /// The administrator's client.
    client: Client,
    /// A client of the webhook's account, with the shipped permissions.
    webhook_client: Client,
    /// The requests of `webhook_client`.
    calls: Calls,
    port: u16,
}

type Calls = Arc<Mutex<Vec<Call>>>;

/// The CRD of both versions, with a webhook at this port.
fn crd(port: u16) -> Value {
    let client = WebhookClient::Url(format!("https://127.0.0.1:{port}/convert"));
    let conversion = Conversion::Webhook {
        client,
        ca_bundle: Vec::new(),
    };
    serde_json::to_value(definition(&conversion).unwrap()).unwrap()
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
}

/// Each test has a control plane of its own, because it changes the CRD.
fn test<F: Future<Output = ()>>(crd: impl FnOnce(u16) -> Value, body: impl FnOnce(Fixture) -> F) {
    let port = free_port();
    let plane = ControlPlane::start(&yaml::document(&crd(port)).unwrap()).unwrap();
    plane.apply(&installation()).unwrap();
    let token = plane
        .kubectl(&["-n", NAMESPACE, "create", "token", "flux-operator-webhook"])
        .unwrap();
    let webhook_kubeconfig = plane.kubeconfig_for_token("webhook", &token).unwrap();
    runtime().block_on(async {
        let calls = Calls::default();
        let client = client(plane.kubeconfig_path(), &Calls::default()).await;
        let webhook_client = self::client(&webhook_kubeconfig, &calls).await;
        body(Fixture {
            plane,
            client,
            webhook_client,
            calls,
            port,
        })
        .await;
    });
}

async fn client(kubeconfig: &Path, calls: &Calls) -> Client {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap();
    let calls = calls.clone();
    let log = tower::util::MapRequestLayer::new(move |request: http::Request<Body>| {
        calls
            .lock()
            .unwrap()
            .push(Call::of(request.method().as_str(), request.uri()));
        request
    });
    ClientBuilder::try_from(config).unwrap().with_layer(&log).build()
}

/// The client argument of `webhook::run`. The metrics stay empty, so their clock is this machine's.
fn with_metrics(client: Client) -> Option<(Client, Arc<Metrics>)> {
    Some((client, Arc::new(Metrics::new().unwrap())))
}

/// What is shipped, except the CRD and the operator itself.
fn installation() -> String {
    Installation::whole(&json!({}))
        .without("CustomResourceDefinition")
        .without("Deployment")
        .text()
}

async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Result<T, String>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(why) if Instant::now() > deadline => panic!("not in time: {what}: {why}"),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

impl Fixture {
    fn settings(&self, port: u16, namespace: &str) -> webhook::WebhookSettings {
        webhook::WebhookSettings {
            listen: ([127, 0, 0, 1], port).into(),
            health: None,
            namespace: namespace.into(),
            hosts: vec!["127.0.0.1".into()],
            directory: None,
            overlap: Duration::from_secs(3),
            drain: Duration::from_secs(3),
        }
    }

    fn webhook_at(&self, port: u16) -> JoinHandle<()> {
        let settings = self.settings(port, NAMESPACE);
        let client = with_metrics(self.webhook_client.clone());
        tokio::spawn(async move {
            webhook::run(client, settings, std::future::pending())
                .await
                .unwrap()
        })
    }

    /// Starts the webhook, and waits until the API server trusts it.
    async fn webhook(&self) -> JoinHandle<()> {
        let task = self.webhook_at(self.port);
        self.answers().await;
        task
    }

    /// Waits until the API server can convert: it stores the probe, which is written as v1alpha1, as v1alpha2.
    async fn answers(&self) {
        let probe = json!({ "size": 1, "containers": [{ "image": "a" }] });
        until("both versions can be written", async || {
            self.apply(Version::V1alpha1, "probe", probe.clone())
                .await
                .map_err(|error| error.to_string())
        })
        .await;
    }

    fn api(&self, version: Version) -> Api<DynamicObject> {
        let kind = GroupVersionKind::gvk("flux-framework.org", version.name(), "MiniCluster");
        let resource = ApiResource::from_gvk_with_plural(&kind, "miniclusters");
        Api::namespaced_with(self.client.clone(), "default", &resource)
    }

    /// Server-side apply.
    async fn apply(&self, version: Version, name: &str, spec: Value) -> Result<DynamicObject, kube::Error> {
        let object = json!({
            "apiVersion": version.api_version(), "kind": "MiniCluster", "metadata": { "name": name }, "spec": spec,
        });
        self.api(version)
            .patch(name, &PatchParams::apply("test"), &Patch::Apply(object))
            .await
    }

    async fn merge(&self, version: Version, name: &str, change: Value) -> DynamicObject {
        self.api(version)
            .patch(name, &PatchParams::default(), &Patch::Merge(change))
            .await
            .unwrap()
    }

    async fn spec(&self, version: Version, name: &str) -> Value {
        self.api(version).get(name).await.unwrap().data["spec"].clone()
    }
}

/// Checks that `found` has all of `wanted`. `found` may also have defaults.
fn holds(found: &Value, wanted: &Value, path: &str) -> Result<(), String> {
    match (found, wanted) {
        (Value::Object(found), Value::Object(wanted)) => wanted.iter().try_for_each(|(key, value)| {
            let path = format!("{path}.{key}");
            holds(found.get(key).ok_or(format!("{path} is missing"))?, value, &path)
        }),
        (Value::Array(found), Value::Array(wanted)) if found.len() == wanted.len() => found
            .iter()
            .zip(wanted)
            .try_for_each(|(found, wanted)| holds(found, wanted, &format!("{path}[]"))),
        _ if found == wanted => Ok(()),
        _ => Err(format!("{path} is {found}, was {wanted}")),
    }
}

/// MiniClusters of 2023, and one for each difference between the versions.
fn of_2023() -> Vec<(String, Value)> {
    let mut all = Vec::new();
    for folder in ["v1alpha1-2023-05", "v1alpha1-2023-09"] {
        for file in upstream_manifests::manifests(folder)
            .into_iter()
            .flat_map(|folder| std::fs::read_dir(folder).unwrap())
        {
            let text = std::fs::read_to_string(file.unwrap().path()).unwrap();
            // As in kubectl, the last of duplicate keys counts.
            let options =
                serde_saphyr::options! { duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins };
            let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(&text, options).unwrap();
            all.extend(
                documents
                    .into_iter()
                    .filter(|document| document["kind"] == "MiniCluster")
                    .map(|document| document["spec"].clone()),
            );
        }
    }
    println!("{} manifests of 2023", all.len());
    all.extend([
        json!({ "size": 2, "containers": [{ "image": "a" }] }),
        json!({ "size": 2, "cleanup": false, "containers": [{ "image": "a", "command": "b", "fluxUser": { "uid": 7 } }] }),
        json!({ "flux": { "logLevel": 7 }, "containers": [{ "image": "a", "command": "b" }] }),
        json!({
            "users": [{ "name": "peenut", "password": "butter" }, { "name": "squidward" }],
            "fluxRestful": { "branch": "feature", "secretKey": "notsosecrethoo" },
            "volumes": { "data": { "path": "/tmp/data", "labels": { "type": "local" }, "delete": false } },
            "pod": { "labels": { "a": "b" } },
            "containers": [{
                "image": "a", "volumes": { "data": { "path": "/data", "readOnly": true } }, "fluxLogLevel": 7,
                "securityContext": { "privileged": true, "addCapabilities": ["SYS_PTRACE"] },
                "resources": { "limits": { "cpu": 4, "memory": "500M" } },
            }],
        }),
    ]);
    all.into_iter()
        .enumerate()
        .map(|(i, spec)| (format!("mc-{i}"), spec))
        .collect()
}

#[test]
fn v1alpha1_is_read_back_and_unchanged_when_applied_again() {
    test(crd, async |fixture| {
        let _webhook = fixture.webhook().await;
        for (name, spec) in of_2023() {
            let made = fixture.apply(Version::V1alpha1, &name, spec.clone()).await;
            let made = made.unwrap_or_else(|error| panic!("{name}: {error}: {spec}"));
            let read = fixture.spec(Version::V1alpha1, &name).await;
            assert_eq!(read, made.data["spec"], "{name}");
            holds(&read, &spec, "spec").unwrap_or_else(|why| panic!("{name}: {why}"));

            let again = fixture
                .apply(Version::V1alpha1, &name, spec.clone())
                .await
                .unwrap();
            assert_eq!(
                again.resource_version(),
                made.resource_version(),
                "{name}: applied twice"
            );
            for version in [Version::V1alpha1, Version::V1alpha2] {
                let object = fixture.api(version).get(&name).await.unwrap();
                let put = fixture
                    .api(version)
                    .replace(&name, &Default::default(), &object)
                    .await
                    .unwrap();
                assert_eq!(
                    (put.metadata.generation, put.resource_version()),
                    (Some(1), made.resource_version()),
                    "{name}: got and put as {}",
                    version.name()
                );
            }
        }
    });
}

/// Specs of v1alpha2 that repeat a default, or leave out what v1alpha1 writes explicitly.
fn with_explicit_defaults() -> Vec<Value> {
    let container = json!({ "image": "a", "command": "b" });
    let with_user =
        |user: Value| json!({ "containers": [{ "image": "a", "command": "b", "fluxUser": user }] });
    vec![
        json!({ "cleanupPods": false, "containers": [container] }),
        json!({ "pod": {}, "containers": [container] }),
        json!({ "pod": { "automountServiceAccountToken": false }, "containers": [container] }),
        json!({ "flux": {}, "containers": [container] }),
        json!({ "flux": { "container": {} }, "containers": [container] }),
        json!({ "flux": { "installRoot": "/usr", "container": { "disable": true } }, "containers": [container] }),
        json!({ "flux": { "container": { "disable": true }, "logLevel": 7 }, "containers": [container] }),
        json!({ "fluxRestful": { "port": 80 }, "containers": [{ "image": "a" }] }),
        json!({ "fluxRestful": { "disable": true }, "containers": [{ "image": "a" }] }),
        with_user(json!({})),
        with_user(json!({ "name": "me" })),
        with_user(json!({ "disable": true })),
    ]
}

#[test]
fn v1alpha2_is_stored_as_it_was_when_v1alpha1_is_put_back() {
    test(crd, async |fixture| {
        let _webhook = fixture.webhook().await;
        for (i, spec) in with_explicit_defaults().into_iter().enumerate() {
            let name = format!("mc-{i}");
            let made = fixture
                .apply(Version::V1alpha2, &name, spec.clone())
                .await
                .unwrap();
            let api = fixture.api(Version::V1alpha1);
            let read = api.get(&name).await.unwrap();
            let put = api.replace(&name, &Default::default(), &read).await.unwrap();
            assert_eq!(put.resource_version(), made.resource_version(), "{spec}");
            let mut edit = read.clone();
            edit.data["spec"]["size"] = json!(2);
            api.replace(&name, &Default::default(), &edit).await.unwrap();
            let after = fixture.api(Version::V1alpha2).get(&name).await.unwrap();
            let mut expected = made.data["spec"].clone();
            expected["size"] = json!(2);
            assert_eq!(
                (&after.data["spec"], after.annotations()),
                (&expected, made.annotations())
            );
        }
    });
}

#[test]
fn kubectl_apply_of_the_same_v1alpha1_manifest_says_unchanged() {
    test(crd, async |fixture| {
        let _webhook = fixture.webhook().await;
        // The last four are those that `of_2023` adds to the manifests.
        let mut specs: Vec<Value> = of_2023()
            .into_iter()
            .map(|(_, spec)| spec)
            .rev()
            .take(4)
            .collect();
        // Fields that conversion itself adds or removes.
        specs.extend([
            json!({ "pod": { "automountServiceAccountToken": true }, "containers": [{ "image": "a" }] }),
            json!({ "flux": { "container": { "disable": true } }, "containers": [{ "image": "a" }] }),
            json!({ "containers": [{ "image": "a", "fluxUser": { "disable": true } }] }),
        ]);
        let objects = specs.iter().enumerate().map(|(i, spec)| {
            let metadata = json!({ "name": format!("mc-{i}"), "namespace": "default" });
            json!({ "apiVersion": Version::V1alpha1.api_version(), "kind": "MiniCluster", "metadata": metadata, "spec": spec })
        });
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": Vec::from_iter(objects) });
        let file = std::env::temp_dir().join(format!("versions-{}.json", std::process::id()));
        std::fs::write(&file, list.to_string()).unwrap();
        let apply = || {
            fixture
                .plane
                .kubectl(&["apply", "-f", file.to_str().unwrap()])
                .unwrap()
        };
        let (first, second) = (apply(), apply());
        std::fs::remove_file(&file).unwrap();
        assert_eq!(first.matches(" created").count(), specs.len(), "{first}");
        let changed = second.lines().filter(|line| !line.ends_with(" unchanged"));
        assert_eq!(Vec::from_iter(changed), [""; 0]);
    });
}

#[test]
fn fields_of_one_version_survive_edits_in_the_other() {
    test(crd, async |fixture| {
        let _webhook = fixture.webhook().await;
        let spec = json!({ "size": 2, "minSize": 1, "flux": { "topology": "kary:2" }, "containers": [{ "image": "a" }] });
        fixture.apply(Version::V1alpha2, "new", spec).await.unwrap();
        let before = fixture.spec(Version::V1alpha2, "new").await;
        fixture
            .merge(Version::V1alpha1, "new", json!({ "spec": { "size": 3 } }))
            .await;
        let mut expected = before.clone();
        expected["size"] = json!(3);
        assert_eq!(fixture.spec(Version::V1alpha2, "new").await, expected);

        let spec = json!({ "size": 2, "users": [{ "name": "a" }], "containers": [{ "image": "a", "fluxLogLevel": 7 }] });
        fixture.apply(Version::V1alpha1, "old", spec).await.unwrap();
        let before = fixture.spec(Version::V1alpha1, "old").await;
        let newer = fixture.spec(Version::V1alpha2, "old").await;
        assert_eq!(newer["flux"]["container"]["disable"], true);
        assert_eq!(newer["cleanupPods"], true);
        fixture
            .merge(
                Version::V1alpha2,
                "old",
                json!({ "spec": { "size": 3, "minSize": 2 } }),
            )
            .await;
        let mut expected = before.clone();
        (expected["size"], expected["minSize"]) = (json!(3), json!(2));
        assert_eq!(fixture.spec(Version::V1alpha1, "old").await, expected);

        // The same rules apply in both versions.
        for version in [Version::V1alpha1, Version::V1alpha2] {
            for (spec, field) in [
                (json!({ "size": 0, "containers": [{}] }), "spec.size"),
                (
                    json!({ "users": [{ "name": "a", "password": "123456789" }], "containers": [{}] }),
                    "spec.users[0].password",
                ),
                (
                    json!({ "containers": [{ "volumes": { "data": { "path": "/d" } } }] }),
                    "spec.containers",
                ),
                (
                    json!({ "volumes": { "d": { "storageClass": "x", "path": "/x" } }, "containers": [{}] }),
                    "spec.volumes[d].driver",
                ),
            ] {
                let error = fixture
                    .apply(version, "bad", spec.clone())
                    .await
                    .unwrap_err()
                    .to_string();
                assert!(error.contains(field), "{spec}: {error}");
            }
        }
    });
}

#[test]
fn lost_webhook_affects_only_v1alpha1_and_keeps_certificate() {
    test(crd, async |fixture| {
        let webhook = fixture.webhook().await;
        let secret = || {
            fixture.plane.kubectl(&[
                "-n",
                NAMESPACE,
                "get",
                "secret",
                "flux-operator-webhook",
                "-o",
                "json",
            ])
        };
        let before = secret().unwrap();
        webhook.abort();
        let _ = webhook.await;
        until("v1alpha1 cannot be read", async || {
            match fixture.api(Version::V1alpha1).get("probe").await {
                Ok(_) => Err("it can".into()),
                Err(_) => Ok(()),
            }
        })
        .await;
        fixture.api(Version::V1alpha2).get("probe").await.unwrap();
        // Two replicas that run at once share the Secret.
        let other = fixture.webhook_at(free_port());
        let webhook = fixture.webhook().await;
        assert_eq!(secret().unwrap(), before, "the certificate is kept");
        assert!(!webhook.is_finished() && !other.is_finished());
    });
}

#[test]
fn a_thousand_objects_are_listed_in_the_other_version() {
    test(crd, async |fixture| {
        let _webhook = fixture.webhook().await;
        let mut spec = json!({ "size": 2, "containers": [{ "image": "a" }] });
        spec["containers"][0]["commands"] = json!({ "pre": "true\n".repeat(500) });
        let (fixture, spec) = (&fixture, &spec);
        let write = |i: i32| async move {
            fixture
                .apply(Version::V1alpha2, &format!("mc-{i}"), spec.clone())
                .await
        };
        let writes = futures::stream::iter(0..1000).map(write);
        let made = writes
            .buffer_unordered(16)
            .filter_map(async |made| made.ok())
            .count()
            .await;
        assert_eq!(made, 1000);
        let start = Instant::now();
        let list = fixture
            .api(Version::V1alpha1)
            .list(&Default::default())
            .await
            .unwrap();
        println!("1001 objects listed as v1alpha1 in {:?}", start.elapsed());
        // One of them is the probe of `answers`.
        assert_eq!(list.items.len(), 1001);
        assert!(
            list.items
                .iter()
                .all(|object| object.data["spec"]["cleanup"].is_boolean())
        );
    });
}

#[test]
fn objects_that_were_stored_as_v1alpha1_are_migrated() {
    // Like upstream's CRD of 2023, with v1alpha1 alone.
    let older = |port| {
        let mut crd = crd(port);
        let versions = crd["spec"]["versions"].as_array_mut().unwrap();
        versions.retain(|version| version["name"] == "v1alpha1");
        versions[0]["storage"] = json!(true);
        crd["spec"].as_object_mut().unwrap().remove("conversion");
        crd
    };
    test(older, async |fixture| {
        let spec = json!({ "size": 2, "containers": [{ "image": "a", "command": "b" }] });
        for i in 0..3 {
            fixture
                .apply(Version::V1alpha1, &format!("mc-{i}"), spec.clone())
                .await
                .unwrap();
        }
        // The migration writes this one without the permission to create PersistentVolumes. The policy allows it,
        // since the volumes do not change.
        let mut volumes = spec.clone();
        volumes["volumes"] = json!({ "data": { "path": "/tmp/data" } });
        volumes["containers"][0]["volumes"] = json!({ "data": { "path": "/data" } });
        fixture
            .apply(Version::V1alpha1, "with-volume", volumes)
            .await
            .unwrap();
        fixture
            .plane
            .apply(&yaml::document(&crd(fixture.port)).unwrap())
            .unwrap();
        let webhook = fixture.webhook().await;
        let stored = || {
            fixture.plane.kubectl(&[
                "get",
                "crd",
                "miniclusters.flux-framework.org",
                "-o",
                "jsonpath={.status.storedVersions}",
            ])
        };
        assert_eq!(stored().unwrap(), r#"["v1alpha1","v1alpha2"]"#);
        // With the account of the shipped Job.
        let migration = Installation::of_text(include_str!("../../manifests/migrate/migrate.yaml"));
        fixture.plane.apply(&migration.text()).unwrap();
        let token = fixture
            .plane
            .kubectl(&["-n", NAMESPACE, "create", "token", "flux-operator-migrate"])
            .unwrap();
        let calls = Calls::default();
        let migrator = client(
            &fixture.plane.kubeconfig_for_token("migrate", &token).unwrap(),
            &calls,
        )
        .await;
        let message = migrate::migrate_all(migrator).await.unwrap();
        // Three, the one with a volume, and the probe of `answers`.
        assert!(
            message.starts_with("5 MiniClusters are stored as v1alpha2 now"),
            "{message}"
        );
        let requests = std::mem::take(&mut *calls.lock().unwrap());
        assert_sufficient_and_all_used(&requests, &migration.permissions("flux-operator-migrate"));
        assert_eq!(stored().unwrap(), r#"["v1alpha2"]"#);
        assert!(
            migrate::migrate_all(fixture.client.clone())
                .await
                .unwrap()
                .contains("nothing to do")
        );

        // They can be read without the webhook, so they are stored as v1alpha2.
        webhook.abort();
        let _ = webhook.await;
        let mut expected = json!({ "size": 2, "tasks": 1, "cleanup": true, "containers": [{ "image": "a", "command": "b" }] });
        convert_spec(&mut expected, Version::V1alpha2);
        for i in 0..3 {
            holds(
                &fixture.spec(Version::V1alpha2, &format!("mc-{i}")).await,
                &expected,
                "spec",
            )
            .unwrap();
        }
    });
}
