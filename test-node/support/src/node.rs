//! A namespace of a real cluster, for one test.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::api::{DeleteParams, ListParams, LogParams, ObjectMeta, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

/// Time limit of each wait. Images are pulled within it too.
const DEADLINE: Duration = Duration::from_secs(300);
const POLL: Duration = Duration::from_millis(200);

/// The namespace, and a client.
pub struct Fixture {
    pub client: Client,
    pub namespace: String,
    deadline: Duration,
}

impl Fixture {
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), &self.namespace)
    }

    pub fn kubectl(&self, arguments: &[&str], input: &str) -> String {
        self.try_kubectl(arguments, input)
            .unwrap_or_else(|error| panic!("kubectl {arguments:?}: {error}"))
    }

    /// Standard output, or all output if kubectl failed.
    pub fn try_kubectl(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        kubectl(&[&["--namespace", &self.namespace], arguments].concat(), input)
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
        self.create_object::<MiniCluster>(object).await;
    }

    pub async fn create_object<K>(&self, object: Value) -> K
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
        K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
    {
        let object = serde_json::from_value(object).unwrap();
        self.api().create(&PostParams::default(), &object).await.unwrap()
    }

    /// Objects of the namespace with these labels.
    pub async fn list<K>(&self, labels: &str) -> Vec<K>
    where
        K: kube::Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>,
        K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
    {
        list(&self.api(), labels).await
    }

    /// Deletes objects, and waits until no pod is left in the namespace.
    pub async fn delete(&self, kind: &str, names: &[&str]) {
        self.kubectl(&[&["delete", kind, "--timeout=60s"], names].concat(), "");
        let ask = async || self.list::<Pod>("").await.is_empty().then_some(());
        self.until("no pod is left", ask).await;
    }

    /// Waits until `fits` accepts the status of a MiniCluster.
    pub async fn when(&self, name: &str, description: &str, fits: impl Fn(&Value) -> bool) -> Value {
        let ask = async || Some(self.status(name).await).filter(&fits);
        self.until(&format!("{name}: {description}"), ask).await
    }

    pub async fn when_condition(&self, name: &str, type_: &str) -> Value {
        let is_true = |condition: &Value| condition["type"] == type_ && condition["status"] == "True";
        let has_condition = |status: &Value| {
            status["conditions"]
                .as_array()
                .is_some_and(|all| all.iter().any(is_true))
        };
        self.when(name, type_, has_condition).await
    }

    pub async fn status(&self, name: &str) -> Value {
        serde_json::to_value(self.api::<MiniCluster>().get(name).await.unwrap().status).unwrap()
    }

    pub async fn when_finished(&self, name: &str) -> Value {
        let has_validly_finished = |status: &Value| {
            assert_ne!(status["phase"], "Invalid", "{name}: {status:#}");
            has_finished(status)
        };
        self.when(name, "it has finished", has_validly_finished).await
    }

    /// The pods that are not being deleted.
    pub async fn pods(&self, name: &str) -> Vec<Pod> {
        let mut pods: Vec<Pod> = self.list(&format!("batch.kubernetes.io/job-name={name}")).await;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        pods
    }

    /// The pod of this index, unless it is being deleted.
    pub async fn pod(&self, name: &str, index: &str) -> Option<Pod> {
        let pods = self.pods(name).await;
        pods.into_iter()
            .find(|pod| pod.labels()["batch.kubernetes.io/job-completion-index"] == index)
    }

    /// The pod of index 0, even if it is being deleted.
    pub async fn lead(&self, name: &str) -> Option<Pod> {
        let selector =
            format!("flux-framework.org/minicluster={name},batch.kubernetes.io/job-completion-index=0");
        self.list(&selector).await.into_iter().next()
    }

    /// The log of a pod with one container; empty before it starts.
    pub async fn log(&self, pod: &Pod) -> String {
        let (pods, options) = (self.api::<Pod>(), LogParams::default());
        pods.logs(&pod.name_any(), &options).await.unwrap_or_default()
    }

    /// The log of the lead of a MiniCluster, so far.
    pub async fn lead_log(&self, name: &str) -> String {
        match self.lead(name).await {
            Some(lead) => self.log(&lead).await,
            None => String::new(),
        }
    }

    pub async fn until<T>(&self, description: &str, ask: impl AsyncFnMut() -> Option<T>) -> T {
        self.within(self.deadline, description, ask).await
    }

    /// Like `until`, with another deadline.
    pub async fn within<T>(
        &self,
        limit: Duration,
        description: &str,
        mut ask: impl AsyncFnMut() -> Option<T>,
    ) -> T {
        let deadline = Instant::now() + limit;
        while Instant::now() < deadline {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(POLL).await;
        }
        // The CustomResourceDefinition may be gone.
        match self.api::<MiniCluster>().list(&ListParams::default()).await {
            Ok(clusters) => {
                let status = |cluster: &MiniCluster| serde_json::to_value(&cluster.status).unwrap();
                panic!(
                    "not in time: {description}\n{:#?}",
                    clusters.items.iter().map(status).collect::<Vec<Value>>()
                )
            }
            Err(error) => panic!("not in time: {description}; and no MiniCluster can be listed: {error}"),
        }
    }
}

/// Objects with these labels.
pub async fn list<K>(api: &Api<K>, labels: &str) -> Vec<K>
where
    K: Clone + std::fmt::Debug + serde::de::DeserializeOwned,
{
    let options = ListParams::default().labels(labels);
    api.list(&options).await.unwrap().items
}

/// Whether a MiniCluster with this status has ended.
pub fn has_finished(status: &Value) -> bool {
    status["phase"] == "Completed" || status["phase"] == "Failed"
}

/// Image of an application with a shell.
pub fn app_image() -> String {
    image("E2E_APP_IMAGE")
}

pub fn image(variable: &str) -> String {
    std::env::var(variable).unwrap_or_else(|_| panic!("{variable} must name an image"))
}

pub fn kubectl(arguments: &[&str], input: &str) -> Result<String, String> {
    run("kubectl".as_ref(), arguments, input)
}

/// The output and exit status of a program with this input.
pub fn output(program: &Path, arguments: &[&str], input: &str) -> Output {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

/// A program's standard output, or all its output if it failed.
pub fn run(program: &Path, arguments: &[&str], input: &str) -> Result<String, String> {
    let output = output(program, arguments, input);
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    if output.status.success() {
        Ok(out.into_owned())
    } else {
        Err(format!("{out}{err}"))
    }
}

/// Prints what a failed test leaves behind: objects, logs and events.
fn print_namespace(namespace: &str) {
    let ask = |arguments: &[&str]| {
        // Not every cluster has these kinds.
        let printed = kubectl(&[&["--namespace", namespace], arguments].concat(), "").unwrap_or_default();
        let lines: Vec<&str> = printed.lines().collect();
        // The last 60 lines, or fewer.
        let last = &lines[lines.len().saturating_sub(60)..];
        println!("{}", last.join("\n"));
    };
    for kinds in [
        "miniclusters",
        "jobsets",
        "trainjobs",
        "workloads",
        "hpa",
        "jobs,pods",
    ] {
        ask(&["get", kinds, "--output=wide"]);
    }
    let of_jobs = "--selector=batch.kubernetes.io/job-name";
    ask(&["logs", of_jobs, "--all-containers", "--tail=15", "--prefix"]);
    ask(&["get", "events", "--sort-by=.lastTimestamp"]);
}

/// Whether the fake Flux runs.
pub fn is_fake_flux() -> bool {
    std::env::var_os("E2E_FAKE_FLUX").is_some()
}

/// Whether `feature`, which needs real Flux, can be tested. If not, prints a notice.
pub fn has_flux_itself(feature: &str) -> bool {
    if is_fake_flux() {
        // `FLUX=/prefix make e2e` takes the Flux that is installed there.
        not_tested(feature, "FLUX=/prefix");
    }
    !is_fake_flux()
}

/// Prints what is not tested here, and what tests it. Writes past the harness, which hides the output of
/// passing tests.
pub fn not_tested(feature: &str, elsewhere: &str) {
    let notice = format!("NOT TESTED ({elsewhere} does): {feature}\n");
    std::io::stderr().write_all(notice.as_bytes()).unwrap();
}

/// Runs a test in a namespace that is deleted afterwards, even if the test fails.
pub fn test<F: Future<Output = ()>>(name: &str, body: impl FnOnce(Arc<Fixture>) -> F) {
    test_within(DEADLINE, name, body);
}

/// Like `test`, with another time limit of each wait.
pub fn test_within<F: Future<Output = ()>>(
    deadline: Duration,
    name: &str,
    body: impl FnOnce(Arc<Fixture>) -> F,
) {
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
        let fixture = Arc::new(Fixture {
            client,
            namespace,
            deadline,
        });
        let result =
            futures::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(body(fixture.clone()))).await;
        (fixture, result)
    });
    if result.is_err() {
        print_namespace(&fixture.namespace);
    }
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
