//! A release of the chart is installed, upgraded and uninstalled on a cluster where pods run (KUBECONFIG),
//! while a job runs. The job ends as if nothing had happened. `.ci/e2e` runs this where no operator is
//! installed.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::print_stdout, reason = "tests print figures and notices")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::{Value, json};
use test_support::helm::helms;
use test_support::node::{Fixture, app_image, run, test};
use test_support::pages;
use test_support::repository::repository;

const NAMESPACE: &str = "flux-helm";
const RELEASE: &str = "flux-framework";
const CRD: &str = "miniclusters.flux-framework.org";
/// Name of the policy on `spec.volumes` and of its binding.
const VOLUMES_POLICY: &str = "flux-framework-flux-operator-volumes";

fn kubectl(arguments: &[&str]) -> Result<String, String> {
    test_support::node::kubectl(arguments, "")
}

/// A release, with the images of these tests.
struct Release {
    helm: PathBuf,
    folder: tempfile::TempDir,
}

impl Release {
    fn new(helm: PathBuf) -> Self {
        let image = |variable: &str| {
            let name = std::env::var(variable).unwrap_or_else(|_| panic!("{variable} must name an image"));
            let (repository, tag) = name.rsplit_once(':').unwrap();
            json!({ "repository": repository, "tag": tag })
        };
        let view = image("E2E_VIEW_IMAGE");
        let values = json!({
            "image": image("E2E_OPERATOR_IMAGE"),
            "agent": { "image": image("E2E_AGENT_IMAGE") },
            "view": { "image": view },
        });
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("values.yaml"), values.to_string()).unwrap();
        Self { helm, folder }
    }

    fn helm(&self, command: &[&str], namespace: &str, more: &[&str]) -> Result<String, String> {
        run(
            &self.helm,
            &[command, &["--namespace", namespace], more].concat(),
            "",
        )
    }

    /// Installs or upgrades, and waits until the pods are ready.
    fn apply(&self, command: &str, chart: &Path, more: &[&str]) {
        let values = self.folder.path().join("values.yaml");
        let usual = ["--values", values.to_str().unwrap(), "--wait", "--timeout", "5m"];
        let result = self.helm(
            &[command, RELEASE, chart.to_str().unwrap()],
            NAMESPACE,
            &[&usual, more].concat(),
        );
        result.unwrap_or_else(|error| panic!("helm {command}: {error}"));
    }

    fn refusal_of(&self, release: &str, namespace: &str) -> String {
        let (chart, values) = (repository().join("chart"), self.folder.path().join("values.yaml"));
        let options = ["--values", values.to_str().unwrap()];
        self.helm(
            &["install", release, chart.to_str().unwrap()],
            namespace,
            &options,
        )
        .unwrap_err()
    }

    fn uninstall(&self) {
        self.helm(&["uninstall", RELEASE], NAMESPACE, &["--wait", "--timeout", "5m"])
            .unwrap();
    }

    /// An earlier version of the chart, packed.
    fn earlier(&self) -> PathBuf {
        let (chart, folder) = (repository().join("chart"), self.folder.path().to_str().unwrap());
        let options = ["--version", "0.0.1", "--destination", folder];
        run(
            &self.helm,
            &[&["package", chart.to_str().unwrap()], &options[..]].concat(),
            "",
        )
        .unwrap();
        self.folder.path().join("flux-framework-operator-0.0.1.tgz")
    }

    /// The objects of the release (`manifest`), or those that Helm creates when it is uninstalled (`hooks`).
    fn objects(&self, kind: &str) -> Vec<Value> {
        let manifest = self.helm(&["get", kind, RELEASE], NAMESPACE, &[]).unwrap();
        let documents: Vec<Option<Value>> = serde_saphyr::from_multiple(&manifest).unwrap();
        documents.into_iter().flatten().collect()
    }
}

/// Which of these objects still exist.
fn left(objects: &[Value]) -> BTreeSet<String> {
    let is_there = |object: &&Value| {
        let text = |value: &Value| value.as_str().unwrap_or(NAMESPACE).to_owned();
        let (kind, name) = (text(&object["kind"]), text(&object["metadata"]["name"]));
        let namespace = text(&object["metadata"]["namespace"]);
        let found = kubectl(&[
            "get",
            &kind,
            &name,
            "--namespace",
            &namespace,
            "--ignore-not-found",
            "--output=name",
        ]);
        !found.unwrap().is_empty()
    };
    let name = |document: &Value| {
        format!(
            "{}/{}",
            document["kind"].as_str().unwrap(),
            document["metadata"]["name"].as_str().unwrap()
        )
    };
    objects.iter().filter(is_there).map(name).collect()
}

/// The objects that the operator and the webhook created for themselves.
fn own() -> Vec<String> {
    let names = kubectl(&["get", "secrets,leases", "--namespace", NAMESPACE, "--output=name"]).unwrap();
    let is_own = |name: &&str| name.contains("/flux-operator");
    names.lines().filter(is_own).map(str::to_owned).collect()
}

/// Waits until the garbage collector has deleted the objects of `own`, after the Deployment.
async fn until_own_objects_are_gone(fixture: &Fixture) {
    fixture
        .until("Secret and Lease are gone", async || {
            own().is_empty().then_some(())
        })
        .await;
}

fn memory_limit() -> String {
    let path = "jsonpath={.spec.template.spec.containers[0].resources.limits.memory}";
    kubectl(&[
        "get",
        "deployment",
        "flux-operator",
        "--namespace",
        NAMESPACE,
        "--output",
        path,
    ])
    .unwrap()
}

fn authority() -> String {
    let path = "jsonpath={.spec.conversion.webhook.clientConfig.caBundle}";
    kubectl(&["get", "crd", CRD, "--output", path]).unwrap()
}

/// A job of two pods that runs until it is told to end.
async fn start_job(fixture: &Fixture, name: &str) -> BTreeSet<String> {
    let command = "sh -c 'until [ -e /tmp/end ]; do sleep 0.2; done; exit 5'";
    fixture
        .create(name, 2, json!({ "name": "main", "command": command }))
        .await;
    fixture.when_condition(name, "Ready").await;
    uids(fixture, name).await
}

async fn uids(fixture: &Fixture, name: &str) -> BTreeSet<String> {
    fixture
        .pods(name)
        .await
        .iter()
        .filter_map(|pod| pod.uid())
        .collect()
}

async fn end_job(fixture: &Fixture, name: &str) {
    let lead = fixture.lead(name).await.unwrap().name_any();
    kubectl(&[
        "exec",
        &lead,
        "--namespace",
        &fixture.namespace,
        "--container=main",
        "--",
        "touch",
        "/tmp/end",
    ])
    .unwrap();
    fixture
        .until("its Job has failed", async || {
            let job: Job = fixture.api().get(name).await.unwrap();
            let conditions = job.status?.conditions?;
            conditions
                .iter()
                .any(|condition| condition.type_ == "Failed" && condition.status == "True")
                .then_some(())
        })
        .await;
}

#[test]
fn job_is_unaffected_by_helm_install_upgrade_uninstall() {
    for (number, helm) in helms().into_iter().enumerate() {
        test(&format!("helm-{number}"), async |fixture| {
            println!("{}", helm.display());
            let release = Release::new(helm.clone());
            let chart = repository().join("chart");
            release.apply("install", &release.earlier(), &["--create-namespace"]);
            let pods = start_job(&fixture, "job").await;
            let first = fixture.until("the webhook has an authority", async || {
                Some(authority()).filter(|bundle| !bundle.is_empty())
            });
            let first = first.await;

            release.apply("upgrade", &chart, &["--set", "resources.limits.memory=300Mi"]);
            assert_eq!(memory_limit(), "300Mi");
            assert_eq!(authority(), first, "an upgrade leaves the webhook's authority");
            // The API server asks the webhook: the stored version is v1alpha2.
            kubectl(&[
                "get",
                "miniclusters.v1alpha1.flux-framework.org",
                "job",
                "--namespace",
                &fixture.namespace,
            ])
            .unwrap();
            release
                .helm(
                    &["rollback", RELEASE, "1"],
                    NAMESPACE,
                    &["--wait", "--timeout", "5m"],
                )
                .unwrap();
            // The chart's default, as in revision 1.
            assert_eq!(memory_limit(), "384Mi");
            assert_eq!(authority(), first, "a rollback leaves it, too");

            assert_eq!(own().len(), 2, "{:?}", own());
            let objects = release.objects("manifest");
            assert!(release.objects("hooks").is_empty());
            assert!(
                objects.len() > 20 && left(&objects).len() == objects.len(),
                "{:#?}",
                left(&objects)
            );
            release.uninstall();
            let kept = [
                format!("CustomResourceDefinition/{CRD}"),
                format!("ValidatingAdmissionPolicy/{VOLUMES_POLICY}"),
                format!("ValidatingAdmissionPolicyBinding/{VOLUMES_POLICY}"),
            ];
            assert_eq!(left(&objects), BTreeSet::from(kept));
            until_own_objects_are_gone(&fixture).await;
            assert_eq!(uids(&fixture, "job").await, pods, "its pods run on");
            end_job(&fixture, "job").await;
            assert_eq!(uids(&fixture, "job").await, pods, "nothing ran twice");

            // The CRD and the MiniCluster were kept: an operator that is installed again reports how the job
            // ended.
            release.apply("install", &chart, &["--set", "crds.keep=false"]);
            let status = fixture.when_condition("job", "Failed").await;
            assert_eq!(
                (&status["exitCode"], &status["restarts"]),
                (&json!(5), &Value::Null),
                "{status:#}"
            );

            give_each_its_service(&release);
            start_job(&fixture, "other").await;
            kubectl(&["get", "service", "other", "--namespace", &fixture.namespace]).unwrap();
            nothing_stays(&fixture, &release).await;

            // The CRD has just been created, so the garbage collector does not know it yet.
            release.apply("install", &chart, &["--set", "crds.keep=false"]);
            start_job(&fixture, "young").await;
            nothing_stays(&fixture, &release).await;
            kubectl(&["delete", "namespace", NAMESPACE]).unwrap();
        });
    }
}

/// Runs the command of the page on sizing, and waits until no earlier operator runs.
fn give_each_its_service(release: &Release) {
    let blocks = pages::blocks(&repository().join("docs/tasks/sizing.md"));
    let block = blocks.iter().find(|block| block.text.starts_with("helm upgrade"));
    let command = block
        .unwrap()
        .text
        .replace("--namespace flux-operator", &format!("--namespace {NAMESPACE}"));
    let (folder, helm) = (repository().display().to_string(), release.helm.display());
    let script = format!("cd {folder}\nhelm() {{ {helm} \"$@\"; }}\n{command}");
    let in_namespace = [
        "--namespace",
        NAMESPACE,
        "--selector=app.kubernetes.io/component=operator",
    ];
    let earlier = kubectl(&[&["get", "pods", "--output=name"], &in_namespace[..]].concat()).unwrap();
    run("bash".as_ref(), &["-c", &script], "").unwrap();
    let pods: Vec<&str> = earlier.lines().collect();
    let wait = ["wait", "--for=delete", "--timeout=3m", "--namespace", NAMESPACE];
    kubectl(&[&wait, &pods[..]].concat()).unwrap();
}

/// With a CRD that is not kept, uninstalling removes the release, its hooks and its MiniClusters.
async fn nothing_stays(fixture: &Fixture, release: &Release) {
    let (objects, hooks) = (release.objects("manifest"), release.objects("hooks"));
    assert_eq!(hooks.len(), 1, "{hooks:#?}");
    release.uninstall();
    assert_eq!(left(&objects), BTreeSet::new());
    assert_eq!(left(&hooks), BTreeSet::new());
    let (jobs, pods) = (fixture.list::<Job>("").await, fixture.list::<Pod>("").await);
    assert!(jobs.is_empty() && pods.is_empty(), "{jobs:#?} {pods:#?}");
    until_own_objects_are_gone(fixture).await;
}

#[test]
fn helm_install_refuses_names_that_others_use() {
    for (number, helm) in helms().into_iter().enumerate() {
        test(&format!("helm-clash-{number}"), async |fixture| {
            let release = Release::new(helm.clone());
            // Like the Deployment of FluxCD's operator, which has the same name.
            let labels = json!({ "app.kubernetes.io/name": "flux-operator", "app.kubernetes.io/instance": "flux-operator" });
            let other = json!({
                "apiVersion": "apps/v1", "kind": "Deployment",
                "metadata": { "name": "flux-operator", "namespace": fixture.namespace },
                "spec": {
                    "replicas": 0,
                    "selector": { "matchLabels": labels },
                    "template": {
                        "metadata": { "labels": labels },
                        "spec": { "containers": [{ "name": "manager", "image": app_image() }] },
                    },
                },
            });
            let file = release.folder.path().join("other.json");
            std::fs::write(&file, other.to_string()).unwrap();
            kubectl(&["create", "--filename", file.to_str().unwrap()]).unwrap();
            let error = release.refusal_of("flux-operator", &fixture.namespace);
            assert!(
                error.contains("another operator's Deployment flux-operator"),
                "{error}"
            );
            assert_eq!(kubectl(&["get", "crd", CRD, "--ignore-not-found"]).unwrap(), "");

            // A second installation for all namespaces, beside ours.
            release.apply(
                "install",
                &repository().join("chart"),
                &["--create-namespace", "--set", "crds.keep=false"],
            );
            let error = release.refusal_of("second", "default");
            assert!(
                error.contains("cannot be imported into the current release"),
                "{error}"
            );
            assert_eq!(
                kubectl(&["get", "deployments", "--namespace", "default", "--output=name"]).unwrap(),
                ""
            );
            release.uninstall();
            kubectl(&["delete", "namespace", NAMESPACE]).unwrap();
        });
    }
}
