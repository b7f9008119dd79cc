//! What is done to the pods, the operator and the nodes of a run, and which faults may have removed pods.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Namespace, Pod, ResourceQuota};
use kube::api::{DeleteParams, EvictParams, ListParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use test_support::node::app_image;
use test_support::promises::{Disturbance, Interval};
use tokio::task::JoinHandle;

use super::clusters::Life;
use super::schedule::{Action, Event, Pick};
use crate::machines::{
    cut, kubectl, node, node_of, power_off, power_on, shut_down, try_kubectl, try_operator_pods, try_restart,
};
use crate::stage::{Stage, sleep};
use crate::timeline::now;

const QUOTA: &str = "full";
const WEBHOOK: &str = "chaos-somebody-elses";
/// A label of the namespaces that are deleted while MiniClusters run in them.
pub const PASSING: &str = "chaos-passing";
/// After a node is back, its kubelet needs this time to report what happened to its pods.
pub(super) const SETTLING: f64 = 60.0;
/// A restarted program of a node or of the control plane needs this time to do its work.
const RECOVERY: f64 = 20.0;

pub struct World<'a> {
    pub(super) stage: &'a Stage,
    began_at: f64,
    pub(super) lives: RefCell<Vec<Life>>,
    /// By the name of a MiniCluster, in order of time.
    pub(super) disturbances: RefCell<BTreeMap<String, Vec<Disturbance>>>,
    /// The faults that may delay a status.
    pub(super) delays: RefCell<Vec<Interval>>,
    tasks: RefCell<Vec<JoinHandle<()>>>,
    /// The tasks that stop the interactive instances.
    pub(super) stops: RefCell<Vec<JoinHandle<()>>>,
    pub(super) story: RefCell<Vec<StoryLine>>,
    pub(super) violations: RefCell<Vec<String>>,
    faults: RefCell<usize>,
}

/// What was done at one time.
pub(super) struct StoryLine {
    pub(super) at: f64,
    pub(super) text: String,
}

impl<'a> World<'a> {
    pub fn new(stage: &'a Stage) -> World<'a> {
        World {
            stage,
            began_at: now(),
            lives: RefCell::default(),
            disturbances: RefCell::default(),
            delays: RefCell::default(),
            tasks: RefCell::default(),
            stops: RefCell::default(),
            story: RefCell::default(),
            violations: RefCell::default(),
            faults: RefCell::default(),
        }
    }

    pub async fn until(&self, at: f64) {
        sleep(self.began_at + at - now()).await;
    }

    pub(super) fn note(&self, what: &str) {
        let at = now();
        let text = format!("{at:.1} (+{:.0} s) {what}", at - self.began_at);
        eprintln!("chaos: {text}");
        self.story.borrow_mut().push(StoryLine { at, text });
    }

    pub async fn apply(&self, event: &Event) {
        if !matches!(event.action, Action::Create(_)) {
            *self.faults.borrow_mut() += 1;
        }
        match &event.action {
            Action::Create(manifest) => self.create_if_room(manifest).await,
            Action::Delete(pick) => self.delete(*pick).await,
            Action::Recreate(pick) => {
                if let Some(life) = self.pick(*pick) {
                    self.remove(&life).await;
                    self.create_now(&life.manifest).await;
                }
            }
            Action::DeletePod { pick, is_forced } => self.delete_pod(*pick, *is_forced).await,
            Action::Evict(pick) => self.evict(*pick).await,
            Action::Suspend { pick, seconds } => self.suspend(*pick, *seconds).await,
            Action::Resize(pick) => self.resize(*pick).await,
            Action::Edit(pick) => self.edit(*pick).await,
            Action::KillOperator(pick) => self.kill_operator(*pick).await,
            Action::FreezeOperator { seconds } => self.freeze_operator(*seconds),
            Action::Quota { seconds } => self.fill_quota(*seconds).await,
            Action::Webhook { resource, seconds } => self.refuse(resource, *seconds),
            Action::Namespace { seconds } => self.create_passing_namespace(*seconds),
            Action::KillOnControlPlane { program, seconds } => {
                self.note(&format!("{program} is killed, for {seconds} s"));
                self.note_delay(f64::from(*seconds) + RECOVERY);
                let (program, seconds) = (*program, *seconds);
                self.spawn(async move { drop(try_restart(None, program, seconds).await) });
            }
            Action::KillOnNode {
                worker,
                program,
                seconds,
            } => {
                // Pods outlive both programs (`long/programs.rs`), so this delays statuses and disturbs no MiniCluster.
                self.note(&format!(
                    "{program} of {} is killed, for {seconds} s",
                    node(*worker)
                ));
                self.note_delay(f64::from(*seconds) + RECOVERY);
                let (worker, program, seconds) = (*worker, *program, *seconds);
                self.spawn(async move { drop(try_restart(Some(worker), program, seconds).await) });
            }
            Action::PowerLoss { worker, seconds } => {
                self.note_node_fault(*worker, *seconds, "loses its power").await;
                let (worker, seconds) = (*worker, *seconds);
                self.spawn(async move {
                    power_off(worker).await;
                    sleep(seconds).await;
                    power_on(worker).await;
                });
            }
            Action::Reboot { worker, seconds } => {
                // The shutdown itself takes 10 s.
                self.note_node_fault(*worker, *seconds + 10.0, "reboots").await;
                let (worker, seconds) = (*worker, *seconds);
                self.spawn(async move {
                    shut_down(worker).await;
                    sleep(seconds).await;
                    power_on(worker).await;
                });
            }
            Action::CutOffFromApi { worker, seconds } => {
                self.note_node_fault(*worker, f64::from(*seconds), "is cut off from the API server")
                    .await;
                self.spawn(cut_if_running(*worker, "api".into(), *seconds));
            }
            Action::CutOff {
                worker,
                other,
                seconds,
            } => {
                self.note_node_fault(
                    *worker,
                    f64::from(*seconds),
                    &format!("is cut off from {}", node(*other)),
                )
                .await;
                self.note_node_fault(
                    *other,
                    f64::from(*seconds),
                    &format!("is cut off from {}", node(*worker)),
                )
                .await;
                self.spawn(cut_if_running(*worker, other.to_string(), *seconds));
            }
        }
    }

    // ---- pods

    async fn pods(&self) -> Vec<Pod> {
        let of_ours = ListParams::default().labels("flux-framework.org/minicluster");
        let pods = self
            .stage
            .fixture
            .api::<Pod>()
            .list(&of_ours)
            .await
            .map(|list| list.items)
            .unwrap_or_default();
        pods.into_iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .collect()
    }

    async fn pick_pod(&self, pick: Pick) -> Option<(String, String)> {
        let pods = self.pods().await;
        let pod = pick.of(&pods)?;
        Some((
            pod.name_any(),
            pod.labels()["flux-framework.org/minicluster"].clone(),
        ))
    }

    async fn delete_pod(&self, pick: Pick, is_forced: bool) {
        let Some((pod, cluster)) = self.pick_pod(pick).await else {
            return;
        };
        self.note(&format!(
            "delete pod {pod}{}",
            if is_forced { " by force" } else { "" }
        ));
        self.note_disturbance(&cluster, 0.0, is_forced);
        let force: &[&str] = if is_forced {
            &["--force", "--grace-period=0"]
        } else {
            &[]
        };
        let words = [
            "--namespace",
            &self.stage.fixture.namespace,
            "delete",
            "pod",
            &pod,
            "--wait=false",
        ];
        let _ = try_kubectl(&[words.as_slice(), force].concat()).await;
    }

    async fn evict(&self, pick: Pick) {
        let Some((pod, cluster)) = self.pick_pod(pick).await else {
            return;
        };
        self.note(&format!("evict pod {pod}"));
        self.disturb(&cluster, 0.0);
        let _ = self
            .stage
            .fixture
            .api::<Pod>()
            .evict(&pod, &EvictParams::default())
            .await;
    }

    async fn fill_quota(&self, seconds: f64) {
        self.note(&format!("no pod may be created, for {seconds:.0} s"));
        self.note_delay(seconds + RECOVERY);
        let full = json!({ "metadata": { "name": QUOTA }, "spec": { "hard": { "pods": "0" } } });
        let full: ResourceQuota = serde_json::from_value(full).unwrap();
        let quotas = self.stage.fixture.api::<ResourceQuota>();
        self.spawn(async move {
            let _ = quotas.create(&PostParams::default(), &full).await;
            sleep(seconds).await;
            // The API server may be away; the end of the run deletes it as well.
            let _ = quotas.delete(QUOTA, &DeleteParams::default()).await;
        });
    }

    /// A webhook of somebody else, whose pods are gone.
    fn refuse(&self, resource: &'static str, seconds: f64) {
        self.note(&format!(
            "a webhook that does not answer refuses {resource}, for {seconds:.0} s"
        ));
        self.note_delay(seconds + RECOVERY);
        let namespace = &self.stage.fixture.namespace;
        let webhook: ValidatingWebhookConfiguration = serde_json::from_value(json!({
            "metadata": { "name": WEBHOOK },
            "webhooks": [{
                "name": "somebody.example.com",
                "admissionReviewVersions": ["v1"],
                "sideEffects": "None",
                "timeoutSeconds": 2,
                "failurePolicy": "Fail",
                "clientConfig": { "service": { "namespace": namespace, "name": "nobody" } },
                "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": namespace } },
                "rules": [{ "apiGroups": ["*"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": [resource] }],
            }],
        }))
        .unwrap();
        let webhooks = Api::<ValidatingWebhookConfiguration>::all(self.client());
        self.spawn(async move {
            let _ = webhooks.create(&PostParams::default(), &webhook).await;
            sleep(seconds).await;
            // The API server may be away; the end of the run deletes it as well.
            let _ = webhooks.delete(WEBHOOK, &DeleteParams::default()).await;
        });
    }

    fn create_passing_namespace(&self, seconds: f64) {
        let name = format!("{}-{}", self.stage.fixture.namespace, self.faults.borrow());
        self.note(&format!("namespace {name} lives for {seconds:.0} s"));
        let client = self.client();
        self.spawn(async move {
            // The API server may be away during any of these calls. Then there is less to delete.
            let namespaces = Api::<Namespace>::all(client.clone());
            let namespace: Namespace =
                serde_json::from_value(json!({ "metadata": { "name": name, "labels": { PASSING: "yes" } } }))
                    .unwrap();
            let _ = namespaces.create(&PostParams::default(), &namespace).await;
            let clusters = Api::<MiniCluster>::namespaced(client, &name);
            for (cluster, command) in [("long", "sleep 300"), ("short", "sleep 5")] {
                let object = json!({
                    "apiVersion": "flux-framework.org/v1alpha2",
                    "kind": "MiniCluster",
                    "metadata": { "name": cluster },
                    "spec": { "size": 2, "containers": [{ "image": app_image(), "command": command }] },
                });
                let object: MiniCluster = serde_json::from_value(object).unwrap();
                let _ = clusters.create(&PostParams::default(), &object).await;
            }
            sleep(seconds).await;
            while let Err(error) = namespaces.delete(&name, &DeleteParams::default()).await {
                if matches!(&error, kube::Error::Api(status) if status.code == 404) {
                    break;
                }
                sleep(1.0).await;
            }
        });
    }

    fn freeze_operator(&self, seconds: f64) {
        self.note(&format!("the operator's programs stand still for {seconds:.0} s"));
        self.note_delay(seconds + RECOVERY);
        self.spawn(async move {
            // The nodes are on this machine. Processes that start meanwhile are not frozen.
            let pids = Command::new("pgrep")
                .args(["-x", "flux-operator"])
                .output()
                .unwrap()
                .stdout;
            let pids: Vec<String> = String::from_utf8(pids)
                .unwrap()
                .lines()
                .map(str::to_owned)
                .collect();
            let send = |signal: &str| Command::new("kill").arg(signal).args(&pids).output().unwrap();
            send("-STOP");
            sleep(seconds).await;
            send("-CONT");
        });
    }

    async fn kill_operator(&self, pick: Pick) {
        let request = try_operator_pods(&self.stage.fixture.client);
        let Ok(Ok(pods)) = tokio::time::timeout(Duration::from_secs(5), request).await else {
            return;
        };
        let Some(pod) = pick.of(&pods) else { return };
        self.note(&format!("kill the operator's pod {}", pod.name_any()));
        self.note_delay(RECOVERY);
        let words = [
            "--namespace",
            "flux-operator",
            "delete",
            "pod",
            &pod.name_any(),
            "--wait=false",
            "--grace-period=1",
        ];
        let _ = try_kubectl(&words).await;
    }

    // ---- nodes

    /// Records that a fault of this worker disturbs all MiniClusters.
    async fn note_node_fault(&self, worker: u8, seconds: f64, how: &str) {
        let pods = self.pods().await;
        let clusters: Vec<String> = pods
            .iter()
            .filter(|pod| node_of(pod) == node(worker))
            .map(|pod| pod.labels()["flux-framework.org/minicluster"].clone())
            .collect();
        self.note(&format!(
            "{} {how}, for {seconds:.0} s, under {clusters:?}",
            node(worker)
        ));
        // Pods may be placed on this node before anybody notices.
        for life in self.not_deleted() {
            self.disturb(life.name(), seconds);
        }
    }

    fn client(&self) -> Client {
        self.stage.fixture.client.clone()
    }

    pub(super) fn spawn(&self, fault: impl Future<Output = ()> + Send + 'static) {
        self.tasks.borrow_mut().push(tokio::spawn(fault));
    }

    /// Waits for the end of all faults in progress.
    pub async fn calm_down(&self) {
        self.note("no more faults");
        let tasks = std::mem::take(&mut *self.tasks.borrow_mut());
        for task in tasks {
            task.await.expect("a fault ends");
        }
        let namespace = &self.stage.fixture.namespace;
        kubectl(&[
            "--namespace",
            namespace,
            "delete",
            "quota",
            QUOTA,
            "--ignore-not-found",
        ])
        .await;
        kubectl(&[
            "delete",
            "validatingwebhookconfiguration",
            WEBHOOK,
            "--ignore-not-found",
        ])
        .await;
        let rollout = [
            "--namespace",
            "flux-operator",
            "rollout",
            "status",
            "deployment",
            "--timeout",
            "180s",
        ];
        kubectl(&rollout).await;
    }

    /// Records that statuses may be late from now on, for this many seconds.
    fn note_delay(&self, seconds: f64) {
        let from = now();
        let to = from + seconds;
        self.delays.borrow_mut().push(Interval { from, to });
    }

    /// Records that the MiniCluster is disturbed from now on, for this many seconds and until all has
    /// settled.
    pub(super) fn disturb(&self, name: &str, seconds: f64) {
        self.note_disturbance(name, seconds, false);
    }

    /// The same. `is_forced` means that a pod was deleted without waiting for its end.
    fn note_disturbance(&self, name: &str, seconds: f64, is_forced: bool) {
        let from = now();
        self.disturbances
            .borrow_mut()
            .entry(name.to_owned())
            .or_default()
            .push(Disturbance {
                from,
                to: from + seconds + SETTLING,
                is_forced,
            });
    }

    pub fn faults(&self) -> usize {
        *self.faults.borrow()
    }

    pub fn summary(&self) -> String {
        format!(
            "{} MiniClusters, {} faults",
            self.lives.borrow().len(),
            self.faults.borrow()
        )
    }
}

/// A machine that lost its power a moment before may still be down, if the host is busy. Then nothing is cut.
async fn cut_if_running(worker: u8, from: String, seconds: u32) {
    if !cut(worker, &from, seconds).try_end().await {
        eprintln!("chaos: {} could not be cut off from {from}", node(worker));
    }
}
