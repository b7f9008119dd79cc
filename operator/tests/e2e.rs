//! MiniClusters on a cluster with nodes, where pods really run: the one that KUBECONFIG names, with the operator
//! installed (`.ci/e2e` does that, from the printed manifests). E2E_APP_IMAGE names an image with a shell.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "tests look and act")]

use std::time::{Duration, Instant};

use flux_shared::crd::v1alpha2::MiniCluster;
use futures::{AsyncBufReadExt, TryStreamExt};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, Secret, Service};
use kube::api::{DeleteParams, ListParams, LogParams, ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

/// Images are pulled within it.
const DEADLINE: Duration = Duration::from_secs(300);
/// A stop takes 3 s or less; a busy machine gets more.
const STOP: Duration = Duration::from_secs(30);
const POLL: Duration = Duration::from_millis(200);

struct Bed {
    client: Client,
    namespace: String,
}

impl Bed {
    fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    async fn create(&self, name: &str, size: u32, container: Value) {
        let mut container = container;
        container["image"] =
            json!(std::env::var("E2E_APP_IMAGE").expect("E2E_APP_IMAGE must name an image with a shell"));
        let object = json!({
            "apiVersion": "flux-framework.org/v1alpha2",
            "kind": "MiniCluster",
            "metadata": { "name": name },
            "spec": { "size": size, "containers": [container] },
        });
        self.api()
            .create(&PostParams::default(), &serde_json::from_value::<MiniCluster>(object).unwrap())
            .await
            .unwrap();
    }

    async fn when_condition(&self, name: &str, type_: &str) -> Value {
        self.until(&format!("{name} is {type_}"), async || {
            let cluster = serde_json::to_value(self.api::<MiniCluster>().get(name).await.unwrap()).unwrap();
            let conditions = cluster["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let is_true = |it: &Value| it["type"] == type_ && it["status"] == "True";
            conditions.iter().any(is_true).then(|| cluster["status"].clone())
        })
        .await
    }

    async fn lead(&self, name: &str) -> Option<Pod> {
        let selector = format!("flux-framework.org/minicluster={name},batch.kubernetes.io/job-completion-index=0");
        self.api::<Pod>().list(&ListParams::default().labels(&selector)).await.unwrap().items.into_iter().next()
    }

    async fn until<T>(&self, what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + DEADLINE;
        while Instant::now() < deadline {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(POLL).await;
        }
        let clusters = self.api::<MiniCluster>().list(&ListParams::default()).await.unwrap().items;
        let statuses: Vec<Value> = clusters.iter().map(|it| serde_json::to_value(&it.status).unwrap()).collect();
        panic!("not in time: {what}\n{statuses:#?}");
    }
}

/// Runs a test in a namespace that goes afterwards, even if the test fails.
fn test<F: Future<Output = ()>>(name: &str, body: impl FnOnce(std::sync::Arc<Bed>) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let namespace = format!("e2e-{name}-{}", std::process::id());
    let (bed, result) = runtime.block_on(async {
        let client = Client::try_default().await.expect("KUBECONFIG must name a cluster");
        let metadata = ObjectMeta { name: Some(namespace.clone()), ..ObjectMeta::default() };
        let object = Namespace { metadata, ..Namespace::default() };
        Api::all(client.clone()).create(&PostParams::default(), &object).await.unwrap();
        let bed = std::sync::Arc::new(Bed { client, namespace });
        let result = futures::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(body(bed.clone()))).await;
        (bed, result)
    });
    runtime.block_on(async {
        let namespaces: Api<Namespace> = Api::all(bed.client.clone());
        namespaces.delete(&bed.namespace, &DeleteParams::default()).await.unwrap();
    });
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn hello_world_prints_live_and_ends_with_0() {
    test("hello", async |bed| {
        let command = "sh -c 'echo hello from the job; sleep 5; echo good bye'";
        bed.create("hello", 2, json!({ "command": command })).await;
        let lead = bed
            .until("the lead runs", async || {
                let lead = bed.lead("hello").await?;
                let status = lead.status.as_ref()?.container_statuses.as_ref()?.first()?.state.as_ref()?;
                (status.running.is_some() || status.terminated.is_some()).then_some(lead)
            })
            .await;
        let parameters = LogParams { follow: true, ..LogParams::default() };
        let log = bed.api::<Pod>().log_stream(&lead.name_any(), &parameters).await.unwrap();
        let mut lines = log.lines();
        let mut all = Vec::new();
        let mut hello = None;
        let mut bye = None;
        while let Some(line) = lines.try_next().await.unwrap() {
            hello = hello.or((line == "hello from the job").then(Instant::now));
            bye = bye.or((line == "good bye").then(Instant::now));
            all.push(line);
        }
        let (hello, bye) = (hello.unwrap_or_else(|| panic!("{all:#?}")), bye.unwrap_or_else(|| panic!("{all:#?}")));
        assert!(bye - hello > Duration::from_secs(3), "the first line came while the job ran: {all:#?}");

        let status = bed.when_condition("hello", "Complete").await;
        assert_eq!((&status["exitCode"], &status["phase"]), (&json!(0), &json!("Completed")), "{status:#}");
        let lead = bed.lead("hello").await.unwrap();
        assert_eq!(lead.status.unwrap().phase.as_deref(), Some("Succeeded"));
    });
}

#[test]
fn exit_code_7_goes_through_pod_job_and_minicluster() {
    test("seven", async |bed| {
        bed.create("seven", 2, json!({ "command": "sh -c 'exit 7'" })).await;
        let status = bed.when_condition("seven", "Failed").await;
        assert_eq!((&status["exitCode"], &status["phase"]), (&json!(7), &json!("Failed")), "{status:#}");
        assert_eq!(status["failedIndex"], 0);
        let lead = bed.lead("seven").await.unwrap().status.unwrap();
        let code = lead.container_statuses.unwrap()[0].state.clone().unwrap().terminated.unwrap().exit_code;
        assert_eq!((lead.phase.as_deref(), code), (Some("Failed"), 7));
        let job: Job = bed.api().get("seven").await.unwrap();
        let conditions = job.status.unwrap().conditions.unwrap();
        let failed =
            conditions.iter().find(|condition| condition.type_ == "Failed" && condition.status == "True").unwrap();
        assert!(failed.message.as_ref().unwrap().contains("exit code 7"), "{failed:?}");
    });
}

#[test]
fn delete_while_it_runs_leaves_nothing() {
    test("delete", async |bed| {
        bed.create("mc", 2, json!({ "command": "sleep 3600" })).await;
        bed.when_condition("mc", "Ready").await;
        let start = Instant::now();
        bed.api::<MiniCluster>().delete("mc", &DeleteParams::default()).await.unwrap();
        bed.until("nothing is left", async || {
            let all = ListParams::default().labels("app.kubernetes.io/managed-by=flux-operator");
            let left = bed.api::<Pod>().list(&all).await.unwrap().items.len()
                + bed.api::<Job>().list(&all).await.unwrap().items.len()
                + bed.api::<Service>().list(&all).await.unwrap().items.len()
                + bed.api::<ConfigMap>().list(&all).await.unwrap().items.len()
                + bed.api::<Secret>().list(&all).await.unwrap().items.len();
            (left == 0).then_some(())
        })
        .await;
        let took = start.elapsed();
        assert!(took < STOP, "it took {took:?}");
    });
}
