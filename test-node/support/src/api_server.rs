//! A namespace for each test on the real control plane, and an operator for this namespace, which runs with the
//! permissions of the chart. The operator's calls are counted.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use flux_operator::api::client;
use flux_operator::controller;
use flux_operator::definition::{self, crd};
use flux_operator::health::metrics::Metrics;
use flux_operator::reconcile::apply::Writer;
use flux_operator_core::labels::OPERATOR;
use flux_operator_core::observe::Index;
use flux_operator_core::render::services::Member;
use flux_operator_core::render::{Options, RenderFacts, objects};
use flux_operator_core::status::events::{Event, EventType};
use flux_shared::crd::v1alpha2::MiniCluster;
use flux_shared::curve::Certificate;
use flux_shared::manifest::Manifest;
use flux_shared::validate::validate;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Namespace, Pod, ResourceQuota, Secret};
use kube::api::{DeleteParams, ListParams, ObjectMeta, Patch, PatchParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Config, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::oneshot;

mod calls;

use calls::Counting;
pub use calls::{Calls, Fault};

pub use crate::call::Call;
use crate::control_plane::ControlPlane;
use crate::installation::{Installation, NAMESPACE};
use crate::waiting::until_granted;

/// The name of the quota that allows no Job.
const NO_JOBS: &str = "none";
/// Far longer than anything takes on a quiet machine.
pub const DEADLINE: Duration = Duration::from_secs(150);
const POLL: Duration = Duration::from_millis(50);
/// Long enough for an operator to react: the operator collects a burst of events for a tenth of this.
pub const SETTLE: Duration = Duration::from_secs(1);
/// Longer than the first pauses between two statuses that differ in numbers only (1 s, then 2 s).
const QUIET: Duration = Duration::from_secs(3);

struct Plane {
    /// Stopped when this process ends.
    control_plane: ControlPlane,
    runtime: tokio::runtime::Runtime,
    operator_kubeconfig: PathBuf,
    admin: Client,
}

static PLANE: OnceLock<Plane> = OnceLock::new();

fn plane() -> &'static Plane {
    PLANE.get_or_init(|| {
        let plane = ControlPlane::start(&crd(&definition::Options::default()).unwrap()).unwrap();
        // The pods of the Deployments never run, since there is no kubelet. `kueue.enabled`: the operator may list
        // Kueue's Workloads.
        plane
            .apply(&Installation::whole(&json!({ "kueue": { "enabled": true } })).text())
            .unwrap();
        let token = plane
            .kubectl(&["-n", NAMESPACE, "create", "token", "flux-operator"])
            .unwrap();
        let operator_kubeconfig = plane.kubeconfig_for_token("operator", &token).unwrap();
        let runtime = runtime();
        let admin =
            runtime.block_on(async { Client::try_from(config(plane.kubeconfig_path()).await).unwrap() });
        Plane {
            control_plane: plane,
            runtime,
            operator_kubeconfig,
            admin,
        }
    })
}

pub async fn config(kubeconfig: &Path) -> Config {
    let kubeconfig = Kubeconfig::read_from(kubeconfig).unwrap();
    Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .unwrap()
}

/// An operator that runs, until it is stopped or dropped.
pub struct Operator {
    pub calls: Calls,
    stop: Option<oneshot::Sender<()>>,
    task: tokio::task::JoinHandle<Result<(), controller::ControllerError>>,
}

impl Operator {
    /// Whether the operator's calls get no answer any more (`dies_after`).
    pub fn is_dead(&self) -> bool {
        self.calls
            .dies_after
            .is_some_and(|last| self.calls.writes.load(Ordering::SeqCst) > last)
    }

    /// Waits until the operator makes no more calls, so that late writes disturb neither this test nor the next
    /// operator.
    pub async fn settled(&self) {
        until("it has nothing left to do", async || {
            let before = self.calls.all().len();
            tokio::time::sleep(QUIET).await;
            (self.calls.all().len() == before).then_some(())
        })
        .await;
    }

    pub async fn stop(mut self) {
        let _ = self.stop.take().unwrap().send(());
        (&mut self.task).await.unwrap().unwrap();
    }

    /// Waits until the operator ends by itself.
    pub async fn end(mut self) -> Result<(), controller::ControllerError> {
        (&mut self.task).await.unwrap()
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A namespaced kind.
pub trait Namespaced:
    kube::Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug
{
}

impl<K> Namespaced for K where
    K: kube::Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug
{
}

/// A test's namespace, and an administrator's client of the test's control plane.
pub struct Fixture {
    pub namespace: String,
    pub client: Client,
}

fn new_metrics() -> Arc<Metrics> {
    Arc::new(Metrics::new().unwrap())
}

pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
}

/// Runs a test in a namespace of its own.
pub fn test<F: Future<Output = ()>>(name: &str, body: impl FnOnce(Fixture) -> F) {
    let plane = plane();
    // Two tests of this process may choose the same name. Each process has its own API server.
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let namespace = format!("{name}-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    plane.runtime.block_on(async {
        let object = Namespace {
            metadata: ObjectMeta {
                name: Some(namespace.clone()),
                ..ObjectMeta::default()
            },
            ..Namespace::default()
        };
        Api::all(plane.admin.clone())
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
        body(Fixture {
            namespace,
            client: plane.admin.clone(),
        })
        .await;
    });
}

/// The YAML of a definition for clusters without webhooks, with v1alpha2 only. If it also had v1alpha1, the API server
/// would list all MiniClusters once a second, and fail to convert them.
pub fn crd_without_conversion() -> String {
    crd(&definition::Options {
        without_conversion: true,
        ..definition::Options::default()
    })
    .unwrap()
}

/// Runs a test on its own control plane. Tests need this for what all namespaces share: nodes, and flags of the API
/// server. `variables` are those of `test-node/control-plane`. `body` also gets the administrator's kubeconfig, for
/// [`Fixture::operator_as`]. Of the fixture's methods, only that one and those that use `client` reach this control
/// plane. The others use the shared one.
pub fn test_alone<F>(variables: &[(&str, &str)], body: impl FnOnce(Fixture, PathBuf) -> F)
where
    F: Future<Output = ()>,
{
    let runtime = runtime();
    let plane = ControlPlane::start_with(&crd_without_conversion(), variables).unwrap();
    let kubeconfig = plane.kubeconfig_path().to_owned();
    runtime.block_on(async {
        let client = Client::try_from(config(&kubeconfig).await).unwrap();
        let namespace = "default".to_owned();
        body(Fixture { namespace, client }, kubeconfig).await;
    });
}

/// Asserts that the message of the status contains these words.
#[track_caller]
pub fn assert_message(status: &Value, words: &str) {
    let message = status["message"].as_str().unwrap_or_default();
    assert!(message.contains(words), "{status:#}");
}

impl Fixture {
    /// An operator for this namespace, with the permissions of the chart.
    pub async fn operator(&self) -> Operator {
        self.operator_with(Calls::default()).await
    }

    /// An operator that dies at its `last`-th write (from 0): the call arrives, the answer does not.
    pub async fn operator_that_dies(&self, last: usize) -> Operator {
        self.operator_with(Calls {
            dies_after: Some(last),
            ..Calls::default()
        })
        .await
    }

    /// An operator whose connection breaks at about every fourth write.
    pub async fn operator_with_flaky_connection(&self) -> Operator {
        self.operator_with(Calls {
            is_flaky: true,
            ..Calls::default()
        })
        .await
    }

    async fn client_of_operator(&self, kubeconfig: &Path, calls: &Calls, metrics: Arc<Metrics>) -> Client {
        let calls = calls.clone();
        let layer = tower::layer::layer_fn(move |inner| Counting {
            inner,
            calls: calls.clone(),
        });
        let builder = client::builder(config(kubeconfig).await).unwrap();
        client::build(builder.with_layer(&layer), metrics)
    }

    async fn operator_with(&self, calls: Calls) -> Operator {
        self.operator_of(calls, |_| {}).await
    }

    /// An operator with other settings.
    pub async fn operator_of(
        &self,
        calls: Calls,
        change: impl FnOnce(&mut controller::ControllerSettings),
    ) -> Operator {
        self.operator_as(&plane().operator_kubeconfig, calls, change)
            .await
    }

    /// An operator with another account.
    pub async fn operator_as(
        &self,
        kubeconfig: &Path,
        calls: Calls,
        change: impl FnOnce(&mut controller::ControllerSettings),
    ) -> Operator {
        let mut settings = controller::ControllerSettings {
            namespace: Some(self.namespace.clone()),
            options: options(),
            candidate: None,
            health: None,
            metrics: new_metrics(),
        };
        change(&mut settings);
        let client = self
            .client_of_operator(kubeconfig, &calls, settings.metrics.clone())
            .await;
        let (stop, stopped) = oneshot::channel::<()>();
        let task = tokio::spawn(controller::run(client, settings, async { drop(stopped.await) }));
        Operator {
            calls,
            stop: Some(stop),
            task,
        }
    }

    /// An operator installed only for this namespace, with these values of the chart and the permissions that result
    /// from them.
    pub async fn operator_installed(
        &self,
        calls: Calls,
        values: &Value,
        change: impl FnOnce(&mut controller::ControllerSettings),
    ) -> Operator {
        apply(
            &Installation::of_namespace(&self.namespace, values)
                .without("Deployment")
                .text(),
        );
        self.operator_as(&self.kubeconfig_of(OPERATOR), calls, change)
            .await
    }

    /// The kubeconfig of a ServiceAccount of this namespace.
    pub fn kubeconfig_of(&self, account: &str) -> PathBuf {
        let token = self.kubectl(&["create", "token", account]).unwrap();
        plane()
            .control_plane
            .kubeconfig_for_token(&format!("{}-{account}", self.namespace), &token)
            .unwrap()
    }

    /// The administrator's kubectl, in this namespace.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        plane()
            .control_plane
            .kubectl(&[&["-n", self.namespace.as_str()][..], arguments].concat())
    }

    /// A client with a ServiceAccount of this namespace that may do everything with MiniClusters, and nothing else.
    pub async fn tenant(&self) -> Client {
        let kubectl = |arguments: &[&str]| self.kubectl(&[&["create"][..], arguments].concat()).unwrap();
        kubectl(&["serviceaccount", "tenant"]);
        kubectl(&[
            "role",
            "tenant",
            "--verb=*",
            "--resource=miniclusters.flux-framework.org",
        ]);
        kubectl(&[
            "rolebinding",
            "tenant",
            "--role=tenant",
            &format!("--serviceaccount={}:tenant", self.namespace),
        ]);
        let account = format!("system:serviceaccount:{}:tenant", self.namespace);
        until_granted(
            |arguments| self.kubectl(arguments),
            &account,
            "get",
            "miniclusters.flux-framework.org",
        );
        self.client_as(&account).await
    }

    /// A client that impersonates this user.
    pub async fn client_as(&self, user: &str) -> Client {
        let mut config = config(plane().control_plane.kubeconfig_path()).await;
        config.auth_info.impersonate = Some(user.to_owned());
        Client::try_from(config).unwrap()
    }

    /// A writer with the operator's permissions.
    pub async fn writer(&self) -> Writer {
        Writer::new(
            self.client_of_operator(&plane().operator_kubeconfig, &Calls::default(), new_metrics())
                .await,
        )
    }

    /// The calls of a writer that writes a cluster's objects twice, the second time with another size. Its index is
    /// empty, so it does not know then that the objects exist. The operator needs some permissions only in this case.
    pub async fn calls_about_what_exists(&self) -> Vec<Call> {
        let calls = Calls::default();
        let writer = Writer::new(
            self.client_of_operator(&plane().operator_kubeconfig, &calls, new_metrics())
                .await,
        );
        let mut spec = json!({ "size": 1, "services": [{ "image": "cache:1", "name": "cache" }] });
        spec["containers"] = json!([{ "image": "app:1" }]);
        let uid = self.create("exists", spec.clone()).await.uid().unwrap();
        // The first round creates the objects. In the second they exist, and the Job has another size.
        for size in [1, 2] {
            spec["size"] = json!(size);
            let manifest = Manifest {
                name: "exists".into(),
                namespace: self.namespace.clone(),
                queueing: Default::default(),
                cleans_by_default: false,
                maximum_size: None,
                spec: serde_json::from_value(spec.clone()).unwrap(),
            };
            let facts = RenderFacts {
                uid: Some(uid.clone()),
                ..RenderFacts::default()
            };
            let certificate = Certificate::from_keys("exists-0", &[1; 32], &[2; 32]);
            let objects = objects(&validate(&manifest).unwrap(), &options(), &facts, certificate).unwrap();
            let member = Member {
                name: "exists".into(),
                uid: uid.clone(),
                minimal: false,
            };
            // `|| false`: the MiniCluster is not deleted meanwhile.
            writer
                .create_all(&Index::default(), &objects, &member, || false)
                .await
                .unwrap();
        }
        // The second time, the Event of the first exists.
        for _ in 0..2 {
            let event = Event {
                type_: EventType::Normal,
                reason: "Twice".into(),
                note: "Twice".into(),
                action: "Test".into(),
            };
            let cluster: flux_operator_core::observe::cluster::Cluster =
                self.api().get("exists").await.unwrap();
            writer.write_events(&cluster, &[event]).await;
        }
        calls.all()
    }

    pub fn api<K: Namespaced>(&self) -> Api<K> {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    /// Creates the MiniCluster `name`; `spec` gets one container if it has none.
    pub async fn create(&self, name: &str, spec: Value) -> MiniCluster {
        let created = self.try_create(name, spec).await;
        created.unwrap_or_else(|error| panic!("failed to create MiniCluster {name}: {error}"))
    }

    /// [`Fixture::create`], for a MiniCluster that the API server may reject.
    pub async fn try_create(&self, name: &str, spec: Value) -> Result<MiniCluster, kube::Error> {
        let mut spec = spec;
        if spec.get("containers").is_none() {
            spec["containers"] = json!([{ "image": "app:1", "command": "hostname" }]);
        }
        let object = json!({
            "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": { "name": name }, "spec": spec,
        });
        self.api()
            .create(&PostParams::default(), &serde_json::from_value(object).unwrap())
            .await
    }

    /// Creates an object of any kind.
    pub async fn add<K: Namespaced + Serialize>(&self, object: Value) -> K {
        let object: K = serde_json::from_value(object).unwrap();
        let created = self.api::<K>().create(&PostParams::default(), &object).await;
        created.unwrap_or_else(|error| panic!("failed to create {}: {error}", K::kind(&())))
    }

    pub async fn patch<K: Namespaced>(&self, name: &str, change: Value) -> Result<K, kube::Error> {
        self.api::<K>()
            .patch(name, &PatchParams::default(), &Patch::Merge(change))
            .await
    }

    /// Changes these fields of a MiniCluster's spec.
    pub async fn edit(&self, name: &str, spec: Value) {
        let edited = self.patch::<MiniCluster>(name, json!({ "spec": spec })).await;
        edited.unwrap_or_else(|error| panic!("failed to edit MiniCluster {name}: {error}"));
    }

    /// Lets a quota refuse all Jobs, until [`Fixture::allow_jobs`].
    pub async fn refuse_jobs(&self) {
        let quota =
            json!({ "metadata": { "name": NO_JOBS }, "spec": { "hard": { "count/jobs.batch": "0" } } });
        self.add::<ResourceQuota>(quota).await;
        until("the quota is in force", async || {
            self.find::<ResourceQuota>(NO_JOBS).await.unwrap().status?.hard
        })
        .await;
    }

    pub async fn allow_jobs(&self) {
        self.delete::<ResourceQuota>(NO_JOBS).await;
    }

    /// Deletes an object. The garbage collector deletes what it owns.
    pub async fn delete<K: Namespaced>(&self, name: &str) {
        self.delete_with::<K>(name, &DeleteParams::background()).await;
    }

    pub async fn delete_with<K: Namespaced>(&self, name: &str, parameters: &DeleteParams) {
        let deleted = self.api::<K>().delete(name, parameters).await;
        deleted.unwrap_or_else(|error| panic!("failed to delete {} {name}: {error}", K::kind(&())));
    }

    pub async fn until_gone<K: Namespaced>(&self, name: &str) {
        until(&format!("{} {name} is gone", K::kind(&())), async || {
            self.find::<K>(name).await.is_none().then_some(())
        })
        .await;
    }

    pub async fn find<K: Namespaced>(&self, name: &str) -> Option<K> {
        let found = self.api::<K>().get_opt(name).await;
        found.unwrap_or_else(|error| panic!("failed to get {} {name}: {error}", K::kind(&())))
    }

    /// Every object of this kind in the namespace.
    pub async fn all<K: Namespaced>(&self) -> Vec<K> {
        let list = self.api::<K>().list(&ListParams::default()).await;
        list.unwrap_or_else(|error| panic!("failed to list {}: {error}", K::plural(&())))
            .items
    }

    /// What the API server answers to a request with this object, or to a merge patch. It rejects unknown fields, and
    /// stores nothing.
    pub async fn offer(
        &self,
        verb: &str,
        group: &str,
        resource: &str,
        object: &impl Serialize,
    ) -> Result<Value, String> {
        let content_type = if verb == "PATCH" {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let request = http::Request::builder()
            .method(verb)
            .uri(format!(
                "/{group}/namespaces/{}/{resource}?dryRun=All&fieldValidation=Strict",
                self.namespace
            ))
            .header("content-type", content_type)
            .body(serde_json::to_vec(object).unwrap());
        let answer = self.client.request(request.unwrap()).await;
        answer.map_err(|error| error.to_string())
    }

    /// The API server's minor version.
    pub async fn minor(&self) -> u32 {
        self.client
            .apiserver_version()
            .await
            .unwrap()
            .minor
            .parse()
            .unwrap()
    }

    pub async fn get(&self, name: &str) -> MiniCluster {
        self.api().get(name).await.unwrap()
    }

    /// The status; null before there is one.
    pub async fn status(&self, name: &str) -> Value {
        serde_json::to_value(self.get(name).await.status).unwrap()
    }

    /// Waits until `fits` accepts the status, and returns it.
    pub async fn when(&self, name: &str, description: &str, fits: impl Fn(&Value) -> bool) -> Value {
        self.when_within(DEADLINE, name, description, fits).await
    }

    pub async fn when_within(
        &self,
        limit: Duration,
        name: &str,
        description: &str,
        fits: impl Fn(&Value) -> bool,
    ) -> Value {
        let mut last = Value::Null;
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if let Some(cluster) = self.find::<MiniCluster>(name).await {
                last = serde_json::to_value(cluster.status).unwrap();
                if fits(&last) {
                    return last;
                }
            }
            tokio::time::sleep(POLL).await;
        }
        panic!("MiniCluster {name} did not become {description}:\n{last:#}");
    }

    /// Waits until this field of the status has this value. Returns the status. Null also fits before there is a status.
    pub async fn when_is(&self, name: &str, field: &str, value: impl Into<Value>) -> Value {
        let value = value.into();
        self.when(name, &format!("{field}={value}"), |status| status[field] == value)
            .await
    }

    /// Waits until this condition, `Complete` or `Failed`, is true. Returns the status. Plays the kubelet meanwhile:
    /// the Job finishes once the pods that the Job controller deletes have ended.
    pub async fn when_finished(&self, name: &str, type_: &str) -> Value {
        until(&format!("{name} is {type_}"), async || {
            self.reap(name).await;
            let status = self.status(name).await;
            (condition(&status, type_)["status"] == "True").then_some(status)
        })
        .await
    }

    /// Waits until the condition has this status. Returns the MiniCluster's status.
    pub async fn when_condition(&self, name: &str, type_: &str, status: &str) -> Value {
        self.when(name, &format!("{type_}={status}"), |current| {
            condition(current, type_)["status"] == status
        })
        .await
    }

    /// The Job's pods, by index, when there are `count` that are neither being deleted nor ended.
    pub async fn pods(&self, cluster: &str, count: usize) -> BTreeMap<u32, Pod> {
        until(&format!("{cluster} has {count} pods"), async || {
            let pods = self.all_pods(cluster).await;
            let living = pods
                .into_iter()
                .filter(|pod| pod.metadata.deletion_timestamp.is_none() && !has_ended(pod));
            let pods: BTreeMap<u32, Pod> = living.map(|pod| (index(&pod), pod)).collect();
            (pods.len() == count).then_some(pods)
        })
        .await
    }

    /// The Secret of a MiniCluster: curve, users or restful. A hash of the MiniCluster's uid ends its name.
    pub async fn secret(&self, cluster: &str, kind: &str) -> Option<Secret> {
        let selector = ListParams::default().labels(&format!("flux-framework.org/minicluster={cluster}"));
        let mut all = self.api::<Secret>().list(&selector).await.unwrap().items;
        all.retain(|secret| secret.name_any().starts_with(&format!("{cluster}-{kind}-")));
        assert!(all.len() < 2, "{cluster} has several Secrets {kind}");
        all.pop()
    }

    pub async fn all_pods(&self, cluster: &str) -> Vec<Pod> {
        let selector = format!("flux-framework.org/minicluster={cluster}");
        self.api::<Pod>()
            .list(&ListParams::default().labels(&selector))
            .await
            .unwrap()
            .items
    }

    pub async fn job(&self, name: &str) -> Job {
        until(&format!("Job {name} exists"), async || {
            self.find::<Job>(name).await
        })
        .await
    }

    /// Plays the kubelet: the pod runs and is ready.
    pub async fn run_pod(&self, pod: &Pod) {
        // The operator renders the runner first. Sidecars are init containers.
        let runner = &pod.spec.as_ref().unwrap().containers[0].name;
        let status = json!({ "status": {
            "phase": "Running",
            "conditions": [
                { "type": "PodScheduled", "status": "True" },
                { "type": "Ready", "status": "True" },
            ],
            "containerStatuses": [{
                "name": runner, "image": "i", "imageID": "i", "ready": true, "restartCount": 0, "started": true,
                "state": { "running": { "startedAt": "2026-01-01T00:00:00Z" } },
            }],
        } });
        self.patch_pod_status(pod, status).await;
    }

    /// Plays the kubelet: the Job's pods run and are ready. Returns them as [`Fixture::pods`] does.
    pub async fn run_pods(&self, cluster: &str, count: usize) -> BTreeMap<u32, Pod> {
        let pods = self.pods(cluster, count).await;
        for pod in pods.values() {
            self.run_pod(pod).await;
        }
        pods
    }

    /// Plays the kubelet: the pod's runner ends.
    pub async fn end_pod(&self, pod: &Pod, code: i32, reason: &str, message: &str) {
        let runner = &pod.spec.as_ref().unwrap().containers[0].name;
        let status = json!({ "status": {
            "phase": if code == 0 { "Succeeded" } else { "Failed" },
            "containerStatuses": [{
                "name": runner, "image": "i", "imageID": "i", "ready": false, "restartCount": 0,
                "state": { "terminated": {
                    "exitCode": code, "reason": reason, "message": message,
                    "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:01:00Z",
                } },
            }],
        } });
        self.patch_pod_status(pod, status).await;
    }

    /// Plays a kubelet whose runtime cannot mount the view's image.
    pub async fn cannot_mount(&self, pod: &Pod) {
        self.cannot_create_container(pod, "failed to mount image volume: no such thing")
            .await;
    }

    /// Plays a kubelet whose runtime could mount the view's image later: the agent's init container has ended.
    pub async fn mounts_after_all(&self, pod: &Pod) {
        let terminated = json!({
            "exitCode": 0, "reason": "Completed",
            "startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:00Z",
        });
        let status = json!({ "status": { "initContainerStatuses": [{
            "name": "flux-agent", "image": "i", "imageID": "i", "ready": true, "restartCount": 0,
            "state": { "terminated": terminated },
        }] } });
        self.patch_pod_status(pod, status).await;
    }

    /// Plays a kubelet whose runtime cannot create the agent's container.
    pub async fn cannot_create_container(&self, pod: &Pod, why: &str) {
        let waiting = json!({ "reason": "CreateContainerError", "message": why });
        let status = json!({ "status": {
            "phase": "Pending",
            "initContainerStatuses": [{
                "name": "flux-agent", "image": "i", "imageID": "", "ready": false, "restartCount": 0,
                "state": { "waiting": waiting },
            }],
        } });
        self.patch_pod_status(pod, status).await;
    }

    /// Plays a dead node: the pod stays when it is deleted. It gets a node, unless it has one: Kubernetes' pod garbage
    /// collector fails pods that are deleted and have no node. Each pod gets one of its own, because the collector also
    /// fails pods whose node it has found missing for 40 s.
    pub async fn hold_pod(&self, pod: &Pod) {
        let name = pod.name_any();
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": { "name": name },
            "target": { "apiVersion": "v1", "kind": "Node", "name": name },
        });
        let pods = self.api::<Pod>();
        let bound: Result<Value, _> = pods
            .create_subresource("binding", &name, &PostParams::default(), &binding)
            .await;
        // 409 (Conflict): the pod has a node already.
        if let Err(error) = bound {
            assert!(
                matches!(&error, kube::Error::Api(status) if status.code == 409),
                "{error}"
            );
        }
        let mut finalizers = pod.finalizers().to_vec();
        finalizers.push("test.flux-framework.org/dead-node".into());
        self.set_finalizers(pod, json!(finalizers)).await;
    }

    /// Ends what `hold_pod` has begun: the node is back, and its kubelet ends the pod if it was deleted.
    pub async fn release_pod(&self, pod: &Pod) {
        // This removes every finalizer, also one of the Job controller.
        self.set_finalizers(pod, Value::Null).await;
        let current = self.find::<Pod>(&pod.name_any()).await;
        if current.is_some_and(|pod| pod.metadata.deletion_timestamp.is_some()) {
            let parameters = DeleteParams::default().grace_period(0);
            let _ = self.api::<Pod>().delete(&pod.name_any(), &parameters).await;
        }
    }

    async fn set_finalizers(&self, pod: &Pod, finalizers: Value) {
        let change = json!({ "metadata": { "finalizers": finalizers } });
        self.patch::<Pod>(&pod.name_any(), change).await.unwrap();
    }

    pub async fn patch_pod_status(&self, pod: &Pod, status: Value) {
        let api = self.api::<Pod>();
        api.patch_status(
            &pod.name_any(),
            &PatchParams::default(),
            &Patch::Strategic(status),
        )
        .await
        .unwrap();
    }

    /// Plays the kubelet: pods that are being deleted end.
    pub async fn reap(&self, cluster: &str) {
        for pod in self.all_pods(cluster).await {
            if pod.metadata.deletion_timestamp.is_some() && !has_ended(&pod) {
                let parameters = DeleteParams::default().grace_period(0);
                let _ = self.api::<Pod>().delete(&pod.name_any(), &parameters).await;
            }
        }
    }
}

/// Applies YAML text as the administrator.
pub fn apply(manifests: &str) {
    plane().control_plane.apply(manifests).unwrap();
}

/// Kubeconfig of the operator's account.
pub fn operator_kubeconfig() -> PathBuf {
    plane().operator_kubeconfig.clone()
}

/// The program that includes kubectl, and its first argument.
pub fn kubectl_program() -> (PathBuf, &'static str) {
    (plane().control_plane.binary().to_owned(), "kubectl")
}

/// The administrator's kubeconfig.
pub fn kubeconfig() -> PathBuf {
    plane().control_plane.kubeconfig_path().to_owned()
}

pub fn options() -> Options {
    Options {
        agent_image: "agent:test".into(),
        view_image: "view:test".into(),
        restful_repository: "repository:test".into(),
        ..Options::default()
    }
}

/// Polls until `ask` returns a value.
pub async fn until<T>(description: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    while Instant::now() < deadline {
        if let Some(answer) = ask().await {
            return answer;
        }
        tokio::time::sleep(POLL).await;
    }
    panic!("not in time: {description}");
}

/// The condition of a status, or null.
pub fn condition(status: &Value, type_: &str) -> Value {
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    conditions
        .into_iter()
        .find(|condition| condition["type"] == type_)
        .unwrap_or_default()
}

pub fn index(pod: &Pod) -> u32 {
    pod.labels()["batch.kubernetes.io/job-completion-index"]
        .parse()
        .unwrap()
}

pub fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}
