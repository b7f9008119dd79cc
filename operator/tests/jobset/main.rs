//! Flux in a JobSet and in a TrainJob, with their own controllers, unchanged, on a node where pods really run
//! (`make e2e-jobset`). The manifests are those of `examples/jobset` and `examples/trainjob`. A test that
//! changes them says so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]
#![allow(clippy::print_stdout, reason = "tests print figures and notices")]

use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::EvictParams;
use serde_json::{Value, json};
use test_support::node::{Fixture, app_image, image, is_fake_flux, not_tested, test_within};
use test_support::repository::repository;

const DEADLINE: Duration = Duration::from_secs(180);
/// All pods restart within this time after one is gone. No operator tells the others: Flux and Kubernetes do.
const RESTART: Duration = Duration::from_secs(60);
/// The kinds as kubectl knows them. The only object of a namespace has the same name.
const KINDS: [&str; 2] = ["jobset", "trainjob"];

/// The only JobSet or TrainJob of a namespace.
struct Set {
    fixture: Arc<Fixture>,
    kind: &'static str,
}

/// Runs a test for a JobSet and for a TrainJob at the same time.
fn test_both(name: &str, body: impl AsyncFn(&Set) + Sync) {
    let body = &body;
    let run = |kind| {
        test_within(DEADLINE, &format!("{kind}-{name}"), async |fixture| {
            // The agents derive the key of the job from it (`--key-from-env`).
            let seed = format!("--from-literal=seed={}", "0123456789abcdef".repeat(4));
            fixture.kubectl(&["create", "secret", "generic", "flux-seed", &seed], "");
            body(&Set { fixture, kind }).await;
        });
    };
    std::thread::scope(|scope| KINDS.map(|kind| scope.spawn(move || run(kind))).map(drop));
}

fn example(folder: &str, name: &str) -> Value {
    let path = repository().join(format!("examples/{folder}/{name}.yaml"));
    serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

/// Gives the pods of a JobSet images that exist here. Returns their container. With `reads_late_spec`, the agent also
/// reads a spec from the ConfigMap `late`, which need not exist, and fails after 1 s without it.
fn adapt(jobset: &mut Value, reads_late_spec: bool) -> &mut Value {
    let pod = &mut jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"];
    pod["initContainers"][0]["image"] = json!(image("E2E_AGENT_IMAGE"));
    pod["initContainers"][1]["image"] = json!(image("E2E_VIEW_IMAGE"));
    pod["containers"][0]["image"] = json!(app_image());
    if reads_late_spec {
        let insert = |list: &mut Value, at, item| list.as_array_mut().unwrap().insert(at, item);
        let late = json!({ "name": "spec", "configMap": { "name": "late", "optional": true } });
        insert(&mut pod["volumes"], 0, late);
        let container = &mut pod["containers"][0];
        let mount = json!({ "name": "spec", "mountPath": "/etc/flux-agent/spec" });
        insert(&mut container["volumeMounts"], 0, mount);
        // The options go after `flux-agent run`.
        for option in ["--patience=1", "--spec=/etc/flux-agent/spec/agent.toml"] {
            insert(&mut container["command"], 2, json!(option));
        }
    }
    &mut pod["containers"][0]
}

impl Set {
    /// Creates the example's object, with this change of its program.
    async fn create(&self, change: Value, reads_late_spec: bool) {
        let mut job = example(self.kind, self.kind);
        let mut objects = Vec::new();
        let program = if self.kind == "jobset" {
            adapt(&mut job, reads_late_spec)
        } else {
            let mut runtime = example("trainjob", "runtime");
            adapt(&mut runtime["spec"]["template"], reads_late_spec);
            if reads_late_spec {
                // A runtime of this namespace: the other tests use the cluster's runtime, which must stay as it is.
                runtime["kind"] = json!("TrainingRuntime");
                job["spec"]["runtimeRef"]["kind"] = json!("TrainingRuntime");
            }
            objects.push(runtime);
            job["spec"]["trainer"]["image"] = json!(app_image());
            &mut job["spec"]["trainer"]
        };
        for (field, value) in change.as_object().unwrap() {
            program[field] = value.clone();
        }
        objects.push(job);
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string();
        let apply = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        // Trainer's webhook needs a moment to see the runtime.
        let ask = async || self.fixture.try_kubectl(&apply, &list).ok();
        self.fixture.until("it is admitted", ask).await;
    }

    /// Creates an object that runs this program.
    async fn run(&self, program: &[&str]) {
        self.create(json!({ "args": program }), false).await;
    }

    /// The value at this path of the status of an object with the example's name.
    fn get(&self, kind: &str, path: &str) -> String {
        let output = format!("--output=jsonpath={{.status.{path}}}");
        let words = ["get", kind, self.kind, &output, "--ignore-not-found"];
        self.fixture.kubectl(&words, "")
    }

    /// How often all pods were restarted. (A TrainJob's JobSet has its name.)
    fn restarts(&self) -> u32 {
        self.get("jobset", "restarts").parse().unwrap_or(0)
    }

    async fn pod(&self, index: &str) -> Option<Pod> {
        self.fixture.pod(&format!("{}-node-0", self.kind), index).await
    }

    /// Whether each of the two nodes has printed this line once.
    async fn has_printed(&self, line: &str) -> bool {
        let log = match self.pod("0").await {
            Some(lead) => self.fixture.log(&lead).await,
            None => return false,
        };
        log.lines().filter(|printed| *printed == line).count() == 2
    }

    /// Waits until both tasks have printed `up`.
    async fn is_up(&self) {
        let ask = async || self.has_printed("up").await.then_some(());
        self.fixture.until("both tasks run", ask).await;
    }

    /// Waits for the end, which is this condition: `Failed`, or a TrainJob's `Complete`, or a JobSet's
    /// `Completed`.
    async fn ended(&self, wanted: &str) {
        let ask = async || {
            let conditions = self.get(self.kind, "conditions[?(@.status==\"True\")].type");
            let is_end = |condition: &&str| condition.starts_with("Complete") || *condition == "Failed";
            conditions.split(' ').find(is_end).map(str::to_owned)
        };
        let end = self.fixture.until("it has ended", ask).await;
        assert!(end.starts_with(wanted), "{}: {end}, not {wanted}", self.kind);
    }

    async fn completed(&self, line: &str) {
        self.ended("Complete").await;
        assert!(self.has_printed(line).await, "{}: {line}", self.kind);
        self.delete().await;
    }

    async fn failed(&self, code: i32, restarts: u32) {
        self.ended("Failed").await;
        assert_eq!(self.restarts(), restarts, "{}", self.kind);
        let status = self.pod("0").await.unwrap().status.unwrap();
        let state = status.container_statuses.unwrap().remove(0).state.unwrap();
        assert_eq!(state.terminated.unwrap().exit_code, code, "{}", self.kind);
    }

    async fn delete(&self) {
        self.fixture.delete(self.kind, &[self.kind]).await;
    }

    /// Removes a pod in the first attempt. The second attempt ends with the program's own code.
    async fn restarts_without(&self, index: &str, remove: impl AsyncFnOnce(&Fixture, &str)) {
        // The first attempt would run longer than the pods' grace period.
        let script = "echo up; if [ \"$FLUX_ATTEMPT\" = 0 ]; then sleep 300; fi; exit 7";
        self.run(&["sh", "-c", script]).await;
        self.is_up().await;
        remove(&self.fixture, &self.pod(index).await.unwrap().name_any()).await;
        let start = Instant::now();
        let ask = async || (self.restarts() > 0).then_some(());
        self.fixture.within(RESTART, "it has restarted", ask).await;
        println!("{}: restarted after {:.1?}", self.kind, start.elapsed());
        self.failed(7, 1).await;
        self.delete().await;
    }

    /// Starts a run, and returns the certificate that both of its pods have.
    async fn key_of_a_run(&self) -> String {
        self.run(&["sh", "-c", "echo up; sleep 600"]).await;
        self.is_up().await;
        let mut keys = Vec::new();
        for index in ["0", "1"] {
            let pod = self.pod(index).await.unwrap().name_any();
            let read = ["exec", &pod, "--", "cat", "/mnt/flux/config/curve/curve.cert"];
            keys.push(self.fixture.kubectl(&read, ""));
        }
        assert!(!keys[0].is_empty() && keys[0] == keys[1], "{}", self.kind);
        self.delete().await;
        keys.remove(0)
    }
}

#[test]
fn example_ends_well_and_arguments_arrive_unchanged() {
    test_both("example", async |set| {
        set.create(json!({}), false).await;
        set.completed("two  words and a \"quote\"").await;
    });
}

#[test]
fn exit_7_of_program_is_the_result_and_nothing_restarts() {
    test_both("seven", async |set| {
        set.run(&["sh", "-c", "echo 'it is me'; exit 7"]).await;
        set.failed(7, 0).await;
        assert!(set.has_printed("it is me").await, "{}", set.kind);
        let message = set.get(set.kind, "conditions[?(@.type==\"Failed\")].message");
        let job = format!("{}-node-0", set.kind);
        assert!(message.contains(&job), "it names its Job: {message}");
        // The command is the one in the README of examples/trainjob.
        let path = "--output=jsonpath={.status.conditions[?(@.type==\"Failed\")].message}";
        let message = set.fixture.kubectl(&["get", "job", &job, path], "");
        let (namespace, lead) = (&set.fixture.namespace, set.pod("0").await.unwrap().name_any());
        let shown =
            format!(" for pod {namespace}/{lead} failed with exit code 7 matching FailJob rule at index 1");
        assert!(
            message.starts_with("Container ") && message.ends_with(&shown),
            "{message}"
        );
        set.delete().await;
    });
}

#[test]
fn image_with_the_program_alone_runs() {
    if !is_fake_flux() {
        // Flux 0.88 starts with scripts for bash (rc1.py). The agent works without bash, Flux does not.
        return not_tested("an image without bash", "make e2e-jobset without FLUX");
    }
    test_both("bare", async |set| {
        let program = ["/bin/echo", "it's", "a  \"test\""];
        set.create(
            json!({ "image": image("E2E_BARE_IMAGE"), "args": program }),
            false,
        )
        .await;
        set.completed("it's a  \"test\"").await;
    });
}

/// The spec that the agent has to read does not exist at first.
#[test]
fn agent_failure_restarts_all_pods() {
    test_both("late", async |set| {
        set.create(json!({ "args": ["echo", "done"] }), true).await;
        let ask = async || (set.restarts() > 0).then_some(());
        set.fixture.until("it has restarted", ask).await;
        let spec = "--from-literal=agent.toml=tasks = 0";
        set.fixture.kubectl(&["create", "configmap", "late", spec], "");
        set.completed("done").await;
    });
}

/// The examples' rules restart all pods after 238, 240, 243, 245 and 248, even if the program exits with such a code.
/// Their maxRestarts is 3.
#[test]
fn program_with_a_code_of_the_agent_restarts_to_max_restarts() {
    test_both("240", async |set| {
        set.run(&["sh", "-c", "exit 240"]).await;
        set.failed(240, 3).await;
        set.delete().await;
    });
}

#[test]
fn deleted_follower_restarts_all_pods_within_60_s() {
    test_both("follower", async |set| {
        let delete = async |fixture: &Fixture, pod: &str| {
            fixture.kubectl(&["delete", "pod", pod, "--wait=false"], "");
        };
        set.restarts_without("1", delete).await;
    });
}

/// The test evicts the lead, since a lead that is deleted by hand ends with the program's code.
#[test]
fn evicted_lead_restarts_all_pods_within_60_s() {
    test_both("lead", async |set| {
        let evict = async |fixture: &Fixture, pod: &str| {
            let options = EvictParams::default();
            fixture.api::<Pod>().evict(pod, &options).await.unwrap();
        };
        set.restarts_without("0", evict).await;
    });
}

#[test]
fn pods_of_a_job_share_a_key_and_its_namesake_has_another() {
    test_both("keys", async |set| {
        assert_ne!(set.key_of_a_run().await, set.key_of_a_run().await, "{}", set.kind);
    });
}
