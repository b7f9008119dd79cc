//! The MiniClusters of a run: creates, changes and deletes them, and checks the promises about each.

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use flux_shared::crd::v1alpha2::MiniCluster;
use flux_shared::validate::DEFAULT_BACKOFF_LIMIT;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};
use test_support::history::History;
use test_support::node::{app_image, has_finished};
use test_support::promises::{Disturbance, Interval, Wanted, broken, late};

use super::faults::{StoryLine, World};
use super::schedule::{AT_ONCE, Form, Manifest, Pick};
use super::status_if_there;
use crate::machines::try_kubectl;
use crate::stage::{Stage, sleep, tolerations, with_own_name};
use crate::timeline::now;

/// How long a call is repeated while the API server is away.
const INSIST_FOR: Duration = Duration::from_secs(90);
/// Longer than the loss of a node, an eviction, a restart and a stop take together.
const GIVE_UP_AFTER: Duration = Duration::from_secs(600);

/// One MiniCluster, from its creation to its deletion.
#[derive(Debug, Clone)]
pub struct Life {
    pub wanted: Wanted,
    pub(super) manifest: Manifest,
    created_at: f64,
    /// Pods that existed before it. Their starts do not count as its own: a pod of an earlier MiniCluster of
    /// this name may start its program late.
    earlier_pods: Vec<String>,
    is_deleted: bool,
}

impl Life {
    pub fn name(&self) -> &'static str {
        self.manifest.name
    }
}

impl World<'_> {
    /// Creates the MiniCluster, unless too many or one of this name run. A finished one of this name is deleted first.
    pub(super) async fn create_if_room(&self, manifest: &Manifest) {
        let of_name = self
            .not_deleted()
            .into_iter()
            .find(|life| life.name() == manifest.name);
        if let Some(life) = of_name {
            if !self.is_finished(&life).await {
                return;
            }
            self.remove(&life).await;
        }
        let mut unfinished = 0;
        for life in &self.not_deleted() {
            unfinished += usize::from(!self.is_finished(life).await);
        }
        if unfinished < AT_ONCE {
            self.create_now(manifest).await;
        }
    }

    async fn is_finished(&self, life: &Life) -> bool {
        has_finished(&status_if_there(self.stage, life.name()).await.unwrap_or_default())
    }

    pub(super) async fn create_now(&self, manifest: &Manifest) {
        self.note(&format!("apply {manifest:?}"));
        // Successive MiniClusters of the same name have different archives.
        let archive_number = self.lives.borrow().len();
        let object = minicluster_json(manifest, archive_number, self.stage);
        let object: MiniCluster = serde_json::from_value(object).unwrap();
        let mut earlier_pods = Vec::new();
        insist("list the pods", async || {
            let pods = self.stage.fixture.api::<Pod>().list(&ListParams::default()).await;
            pods.is_ok_and(|pods| {
                earlier_pods = pods.iter().map(ResourceExt::name_any).collect();
                true
            })
        })
        .await;
        let created_at = now();
        let create = async || {
            let api = self.stage.fixture.api::<MiniCluster>();
            match api.create(&PostParams::default(), &object).await {
                // The object may be ours, from an attempt whose answer was lost. If it is being deleted, it
                // is an earlier one: try again.
                Err(kube::Error::Api(status)) if status.is_already_exists() => api
                    .get(manifest.name)
                    .await
                    .is_ok_and(|found| found.metadata.deletion_timestamp.is_none()),
                result => result.is_ok(),
            }
        };
        insist("create a MiniCluster", create).await;
        let is_interactive = manifest.form == Form::Interactive;
        let wanted = Wanted {
            code: match manifest.form {
                Form::Interactive => 0,
                // docs/tasks/batches.md: 1 if a line failed.
                Form::Batch => manifest.code.min(1),
                Form::Submit | Form::Launcher => manifest.code,
            },
            tasks: if is_interactive {
                0
            } else if manifest.is_across {
                manifest.size as usize
            } else {
                1
            },
            is_interactive,
            backoff_limit: manifest
                .backoff_limit
                .unwrap_or(DEFAULT_BACKOFF_LIMIT.unsigned_abs())
                .into(),
            max_restarts: manifest.max_restarts.unwrap_or(0).into(),
            is_retried: manifest.is_retried,
            suspensions: 0,
        };
        self.lives.borrow_mut().push(Life {
            wanted,
            manifest: manifest.clone(),
            created_at,
            earlier_pods,
            is_deleted: false,
        });
        if is_interactive {
            let (namespace, name) = (self.stage.fixture.namespace.clone(), manifest.name);
            let api = self.stage.fixture.api::<MiniCluster>();
            let at = created_at + f64::from(manifest.seconds);
            let stop = async move { stop_instance(&api, &namespace, name, at).await };
            self.stops.borrow_mut().push(tokio::spawn(stop));
        }
    }

    /// The MiniClusters that this run has not deleted, finished or not.
    pub fn not_deleted(&self) -> Vec<Life> {
        self.lives
            .borrow()
            .iter()
            .filter(|life| !life.is_deleted)
            .cloned()
            .collect()
    }

    pub(super) fn pick(&self, pick: Pick) -> Option<Life> {
        pick.of(&self.not_deleted()).cloned()
    }

    pub(super) async fn delete(&self, pick: Pick) {
        if let Some(life) = self.pick(pick) {
            self.remove(&life).await;
        }
    }

    /// Deletes the MiniCluster. If it has finished, records first which promises it broke.
    pub(super) async fn remove(&self, life: &Life) {
        let status = status_if_there(self.stage, life.name()).await.unwrap_or_default();
        if has_finished(&status) {
            let violations = self.violations_of(life, &status);
            self.violations.borrow_mut().extend(violations);
        }
        self.note(&format!("delete {}", life.name()));
        let namespace = &self.stage.fixture.namespace;
        let words = [
            "--namespace",
            namespace,
            "delete",
            "minicluster",
            life.name(),
            "--ignore-not-found",
            "--timeout=60s",
        ];
        insist("delete a MiniCluster", async || try_kubectl(&words).await.is_ok()).await;
        let mut lives = self.lives.borrow_mut();
        for deleted in lives.iter_mut().filter(|other| other.name() == life.name()) {
            deleted.is_deleted = true;
        }
    }

    pub async fn delete_all(&self) {
        for life in self.not_deleted() {
            self.remove(&life).await;
        }
    }

    pub(super) async fn resize(&self, pick: Pick) {
        let elastic: Vec<Life> = self
            .not_deleted()
            .into_iter()
            .filter(|life| life.manifest.max_size.is_some() && !life.manifest.is_across)
            .collect();
        let Some(life) = pick.of(&elastic) else {
            return;
        };
        let size = 1 + pick.detail().0 % u64::from(life.manifest.max_size.unwrap());
        self.note(&format!("scale {} to {size}", life.name()));
        // No `disturb`: its job is short (`schedule`) and ends before its node is removed, so nothing may be lost,
        // and nothing may restart.
        self.patch(life.name(), json!({ "spec": { "size": size } })).await;
    }

    pub(super) async fn edit(&self, pick: Pick) {
        let Some(life) = self.pick(pick) else { return };
        let edits = [
            json!({ "metadata": { "labels": { "edited": pick.0.to_string() } } }),
            json!({ "spec": { "logging": { "quiet": true } } }),
            json!({ "spec": { "tasks": 7 } }),
            json!({ "spec": { "containers": [{ "image": "example.com/none:1" }] } }),
            json!({ "spec": { "podTemplate": { "metadata": { "labels": { "edited": "yes" } } } } }),
        ];
        let edit = pick.detail().of(&edits).expect("one of them");
        self.note(&format!("edit {}: {edit}", life.name()));
        self.patch(life.name(), edit.clone()).await;
    }

    pub(super) async fn suspend(&self, pick: Pick, seconds: f64) {
        let Some(life) = self.pick(pick) else { return };
        self.note(&format!("suspend {} for {seconds:.0} s", life.name()));
        self.disturb(life.name(), seconds);
        self.lives
            .borrow_mut()
            .iter_mut()
            .filter(|other| other.name() == life.name())
            .for_each(|suspended| suspended.wanted.suspensions += 1);
        self.patch(life.name(), json!({ "spec": { "suspend": true } }))
            .await;
        let (api, name) = (self.stage.fixture.api::<MiniCluster>(), life.name());
        self.spawn(async move {
            sleep(seconds).await;
            let patch = Patch::Merge(json!({ "spec": { "suspend": false } }));
            let _ = api.patch(name, &PatchParams::default(), &patch).await;
        });
    }

    /// Waits until each interactive instance was stopped. Call `resume_all` before: a suspended instance is
    /// never stopped.
    pub async fn wait_for_stops(&self) {
        let stops = std::mem::take(&mut *self.stops.borrow_mut());
        for stop in stops {
            stop.await.expect("a stop ends");
        }
    }

    /// Resumes all MiniClusters: the end of a suspension may have failed because the API server was down.
    pub async fn resume_all(&self) {
        for life in self.not_deleted() {
            self.patch(life.name(), json!({ "spec": { "suspend": false } }))
                .await;
        }
    }

    async fn patch(&self, name: &str, patch: Value) {
        let api = self.stage.fixture.api::<MiniCluster>();
        insist("change a MiniCluster", async || {
            match api
                .patch(name, &PatchParams::default(), &Patch::Merge(&patch))
                .await
            {
                // The MiniCluster is gone, or its job has ended, or the API server rejects the edit (as it
                // rejects some in `edit`).
                Err(kube::Error::Api(status)) => (400..500).contains(&status.code) && status.code != 429,
                result => result.is_ok(),
            }
        })
        .await;
    }

    /// Each promise that this MiniCluster broke, with what happened to it.
    pub fn violations_of(&self, life: &Life, status: &Value) -> Vec<String> {
        let history = self.history_of(life);
        let mut violations = broken(&life.wanted, &history, status, &self.disturbances_of(life));
        let finished_at = self
            .stage
            .timeline
            .first(life.name(), life.created_at, has_finished);
        if let (Some(run), Some(finished_at)) = (history.runs().last(), finished_at)
            && run.ended >= life.wanted.tasks
        {
            let disturbances = self.disturbances_of(life);
            let mut faults: Vec<Interval> = disturbances.iter().map(Disturbance::interval).collect();
            faults.extend_from_slice(&self.delays.borrow());
            violations.extend(late(run.to, finished_at, &faults));
        }
        let account = self.stage.account(life.name());
        let story = self.story_of(life);
        let shown = |what: &String| format!("{}: {what}\n{account}{story}{status:#}", life.name());
        violations.iter().map(shown).collect()
    }

    pub fn disturbances_of(&self, life: &Life) -> Vec<Disturbance> {
        let all = self.disturbances.borrow();
        let is_since = |disturbance: &&Disturbance| disturbance.to >= life.created_at;
        all.get(life.name())
            .into_iter()
            .flatten()
            .filter(is_since)
            .cloned()
            .collect()
    }

    /// The starts since the MiniCluster's creation, without those of earlier pods.
    pub fn history_of(&self, life: &Life) -> History {
        let all = self.stage.history(life.name());
        let of_life: Vec<String> = all
            .runs()
            .into_iter()
            .filter(|run| run.from >= life.created_at && !life.earlier_pods.contains(&run.pod))
            .map(|run| run.pod)
            .collect();
        History {
            lines: all
                .lines
                .into_iter()
                .filter(|line| of_life.contains(&line.pod))
                .collect(),
        }
    }

    /// The violations that were found before a deletion, and each name of which two programs ran at once.
    pub fn other_violations(&self) -> Vec<String> {
        let mut violations = self.violations.borrow().clone();
        let names: BTreeSet<&str> = self.lives.borrow().iter().map(Life::name).collect();
        for name in names {
            let is_forced = self
                .disturbances
                .borrow()
                .get(name)
                .is_some_and(|all| all.iter().any(|disturbance| disturbance.is_forced));
            let overlaps = self.stage.history(name).overlaps();
            if !is_forced && !overlaps.is_empty() {
                violations.push(format!("{name}: two of this name ran at once: {overlaps:?}"));
            }
        }
        violations
    }

    /// What happened since the MiniCluster was created.
    pub fn story_of(&self, life: &Life) -> String {
        // The second before it has the line about the creation.
        let is_since = |line: &&StoryLine| line.at >= life.created_at - 1.0;
        self.story
            .borrow()
            .iter()
            .filter(is_since)
            .map(|line| format!("  {}\n", line.text))
            .collect()
    }
}

/// Stops an interactive instance at this time, or later as soon as it is up. Stops it again after a restart,
/// until the MiniCluster has finished or is gone.
async fn stop_instance(api: &Api<MiniCluster>, namespace: &str, name: &str, at: f64) {
    let mut first_uid = None;
    let give_up_at = at + GIVE_UP_AFTER.as_secs_f64();
    while now() < give_up_at {
        if let Ok(answer) = api.get_opt(name).await {
            let Some(cluster) = answer else { return };
            // A later MiniCluster of the same name must not be stopped.
            let is_other = *first_uid.get_or_insert(cluster.uid()) != cluster.uid();
            if is_other || has_finished(&serde_json::to_value(&cluster.status).unwrap()) {
                return;
            }
        }
        if now() < at {
            sleep(1.0).await;
            continue;
        }
        let lead = format!(
            "--selector=flux-framework.org/minicluster={name},batch.kubernetes.io/job-completion-index=0"
        );
        let find = [
            "get",
            "pods",
            "--namespace",
            namespace,
            &lead,
            "--field-selector=status.phase=Running",
            "--output=name",
        ];
        let found = Command::new("kubectl").args(find).output().unwrap().stdout;
        if let Some(pod) = String::from_utf8(found).unwrap().lines().next() {
            // The command fails until the instance is up, and its answer may be lost with the container.
            let stop = [
                "exec",
                "--namespace",
                namespace,
                pod,
                "--container",
                name,
                "--",
                "/mnt/flux/flux-agent",
                "stop",
            ];
            let _ = tokio::time::timeout(Duration::from_secs(20), try_kubectl(&stop)).await;
        }
        sleep(3.0).await;
    }
}

/// Repeats the attempt until it succeeds.
async fn insist(what: &str, mut attempt: impl AsyncFnMut() -> bool) {
    let done = async {
        while !attempt().await {
            sleep(0.5).await;
        }
    };
    tokio::time::timeout(INSIST_FOR, done)
        .await
        .unwrap_or_else(|_| panic!("not in time: {what}"));
}

fn minicluster_json(manifest: &Manifest, archive_number: usize, stage: &Stage) -> Value {
    let Manifest {
        name,
        size,
        seconds,
        code,
        ..
    } = manifest;
    // Its last three arguments: how long the first start runs, how long each later one runs, and the exit code.
    let program = format!(
        "bash /account/program.sh $POD {name} {seconds} {} {code}",
        seconds.min(&8)
    );
    // program.sh notes the rank of its task, which only Flux sets.
    let command = if manifest.form == Form::Submit {
        program
    } else {
        format!("env FLUX_TASK_RANK=0 {program}")
    };
    let mut container = json!({
        "image": app_image(),
        "batch": manifest.form == Form::Batch,
        "launcher": manifest.form == Form::Launcher,
        "volumes": { "account": { "hostPath": stage.folder(), "path": "/account" } },
    });
    if manifest.form != Form::Interactive {
        container["command"] = command.into();
    }
    if manifest.has_snippets {
        container["commands"] = json!({ "pre": "sleep 1", "post": "sleep 1" });
    }
    let mut containers = vec![container];
    if manifest.has_sidecar {
        containers[0]["runFlux"] = true.into();
        containers.push(json!({ "name": "side", "image": app_image(), "command": "sleep 2" }));
    }
    let mut spec = json!({
        "size": size,
        "tasks": if manifest.is_across { *size } else { 1 },
        "suspend": manifest.is_suspended,
        "pod": {
            "nodeAffinity": { "kubernetes.io/hostname": ["worker-1", "worker-2", "worker-3"] },
            "restartPolicy": if manifest.is_retried { "OnFailure" } else { "Never" },
        },
        "podTemplate": { "spec": {
            "tolerations": tolerations(manifest.evicted_after),
            "containers": [with_own_name(name)],
        } },
        "containers": containers,
    });
    if manifest.form == Form::Interactive {
        spec["interactive"] = true.into();
    }
    if manifest.has_archive {
        spec["archive"] = json!({ "path": format!("/account/archive-{archive_number}.tar") });
    }
    for (field, value) in [
        ("backoffLimit", manifest.backoff_limit),
        ("maxRestarts", manifest.max_restarts),
        ("maxSize", manifest.max_size),
    ] {
        if let Some(value) = value {
            spec[field] = value.into();
        }
    }
    json!({ "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": { "name": name }, "spec": spec })
}
