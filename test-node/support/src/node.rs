//! A namespace of a real cluster, for one test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, ListParams, ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

/// Longest wait, in which images are pulled too.
const DEADLINE: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(200);

/// The namespace, and a client.
pub struct Fixture {
    pub client: Client,
    pub namespace: String,
}

impl Fixture {
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub async fn create(&self, name: &str, size: u32, container: Value) {
        let mut container = container;
        container["image"] = json!(app_image());
        let object = json!({
            "apiVersion": "flux-framework.org/v1alpha2",
            "kind": "MiniCluster",
            "metadata": { "name": name },
            "spec": { "size": size, "containers": [container] },
        });
        self.api()
            .create(
                &PostParams::default(),
                &serde_json::from_value::<MiniCluster>(object).unwrap(),
            )
            .await
            .unwrap();
    }

    pub async fn when_condition(&self, name: &str, type_: &str) -> Value {
        self.until(&format!("{name} is {type_}"), async || {
            let cluster = serde_json::to_value(self.api::<MiniCluster>().get(name).await.unwrap()).unwrap();
            let conditions = cluster["status"]["conditions"]
                .as_array()
                .cloned()
                .unwrap_or_default();
            let is_true = |it: &Value| it["type"] == type_ && it["status"] == "True";
            conditions.iter().any(is_true).then(|| cluster["status"].clone())
        })
        .await
    }

    pub async fn status(&self, name: &str) -> Value {
        serde_json::to_value(self.api::<MiniCluster>().get(name).await.unwrap().status).unwrap()
    }

    pub async fn when_finished(&self, name: &str) -> Value {
        self.until(&format!("{name} has finished"), async || {
            let status = self.status(name).await;
            assert_ne!(status["phase"], "Invalid", "{name}: {status:#}");
            has_finished(&status).then_some(status)
        })
        .await
    }

    /// The pods that are not being deleted.
    pub async fn pods(&self, name: &str) -> Vec<Pod> {
        let selector = ListParams::default().labels(&format!("batch.kubernetes.io/job-name={name}"));
        let pods = self.api::<Pod>().list(&selector).await.unwrap().items;
        pods.into_iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .collect()
    }

    /// The pod of this index, unless it is being deleted.
    pub async fn pod(&self, name: &str, index: &str) -> Option<Pod> {
        let pods = self.pods(name).await;
        pods.into_iter()
            .find(|pod| pod.labels()["batch.kubernetes.io/job-completion-index"] == index)
    }

    pub async fn lead(&self, name: &str) -> Option<Pod> {
        let selector =
            format!("flux-framework.org/minicluster={name},batch.kubernetes.io/job-completion-index=0");
        self.api::<Pod>()
            .list(&ListParams::default().labels(&selector))
            .await
            .unwrap()
            .items
            .into_iter()
            .next()
    }

    pub async fn until<T>(&self, what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
        let deadline = Instant::now() + DEADLINE;
        while Instant::now() < deadline {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(POLL).await;
        }
        // Their definition may be gone.
        match self.api::<MiniCluster>().list(&ListParams::default()).await {
            Ok(clusters) => {
                let status = |it: &MiniCluster| serde_json::to_value(&it.status).unwrap();
                panic!(
                    "not in time: {what}\n{:#?}",
                    clusters.items.iter().map(status).collect::<Vec<Value>>()
                )
            }
            Err(error) => panic!("not in time: {what}; and no MiniCluster can be listed: {error}"),
        }
    }
}

/// Whether a MiniCluster with this status has ended.
pub fn has_finished(status: &Value) -> bool {
    status["phase"] == "Completed" || status["phase"] == "Failed"
}

/// Image of an application with a shell.
pub fn app_image() -> String {
    std::env::var("E2E_APP_IMAGE").expect("E2E_APP_IMAGE must name an image with a shell")
}

/// Whether the fake Flux runs.
pub fn is_fake_flux() -> bool {
    std::env::var_os("E2E_FAKE_FLUX").is_some()
}

/// Whether `what` can be tested, which takes Flux; if not, that is told.
pub fn has_flux_itself(what: &str) -> bool {
    if is_fake_flux() {
        not_tested(what, "FLUX=/prefix");
    }
    !is_fake_flux()
}

/// Tells, past the harness, what is not tested here, and what does test it.
pub fn not_tested(what: &str, elsewhere: &str) {
    let told = format!("NOT TESTED ({elsewhere} does): {what}\n");
    std::io::Write::write_all(&mut std::io::stderr(), told.as_bytes()).unwrap();
}

/// Runs a test in a namespace that is deleted afterwards, even if the test fails.
pub fn test<F: Future<Output = ()>>(name: &str, body: impl FnOnce(Arc<Fixture>) -> F) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let namespace = format!("e2e-{name}-{}", std::process::id());
    let (fixture, result) = runtime.block_on(async {
        let client = Client::try_default()
            .await
            .expect("KUBECONFIG must name a cluster");
        let metadata = ObjectMeta {
            name: Some(namespace.clone()),
            ..ObjectMeta::default()
        };
        let object = Namespace {
            metadata,
            ..Namespace::default()
        };
        Api::all(client.clone())
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
        let fixture = Arc::new(Fixture { client, namespace });
        let result =
            futures::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(body(fixture.clone()))).await;
        (fixture, result)
    });
    runtime.block_on(async {
        let namespaces: Api<Namespace> = Api::all(fixture.client.clone());
        namespaces
            .delete(&fixture.namespace, &DeleteParams::default())
            .await
            .unwrap();
    });
    if let Err(panic) = result {
        std::panic::resume_unwind(panic);
    }
}
