//! How often a program starts: once, unless one of its pods is lost or the program is retried. The program
//! records its starts in a folder of its node.

use std::sync::Arc;

use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::{DeleteParams, EvictParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use test_support::node::{Fixture, app_image, has_flux_itself, test};

/// A folder with free space on every node.
const NODE_FOLDER: &str = "/var/tmp";

/// A folder of one node, and a pod that reads it.
pub struct Counter {
    fixture: Arc<Fixture>,
    pub node: String,
    folder: String,
}

/// What a program runs after it has recorded its start.
#[derive(Clone, Copy)]
pub struct Runs<'a> {
    /// In the first run of all its tasks. It must end the shell by `exit` or `exec`: otherwise `later` runs after it.
    pub first: &'a str,
    /// In any other run.
    pub later: &'a str,
}

impl<'a> Runs<'a> {
    fn always(command: &'a str) -> Runs<'a> {
        Runs {
            first: command,
            later: command,
        }
    }
}

/// The first run has to be interrupted. Every later run succeeds.
pub const SLEEPS_THEN_SUCCEEDS: Runs = Runs {
    first: "exec sleep 3600",
    later: "exit 0",
};

impl Counter {
    pub async fn new(fixture: &Arc<Fixture>) -> Counter {
        let nodes = test_support::node::list(&Api::<Node>::all(fixture.client.clone()), "").await;
        let node = nodes.first().expect("the cluster has nodes").labels()["kubernetes.io/hostname"].clone();
        let counter = Counter {
            fixture: fixture.clone(),
            node,
            folder: format!("{NODE_FOLDER}/{}", fixture.namespace),
        };
        // The pod is deleted with the namespace, and removes the folder when it ends.
        let folder = format!("/node/{}", fixture.namespace);
        let keep = format!("trap 'rm -r {folder}; exit' TERM; mkdir -m 777 {folder}; sleep 3600 & wait");
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": "counter" },
            "spec": {
                "nodeSelector": { "kubernetes.io/hostname": counter.node },
                "containers": [{
                    "name": "counter", "image": app_image(),
                    "command": ["sh", "-c", keep],
                    "volumeMounts": [{ "name": "node", "mountPath": "/node" }],
                }],
                "volumes": [{ "name": "node", "hostPath": { "path": NODE_FOLDER } }],
            },
        });
        fixture.create_object::<Pod>(pod).await;
        fixture
            .until("the counter's pod has created the folder", async || {
                counter.exec(&["test", "-d", &folder])
            })
            .await;
        counter
    }

    fn exec(&self, command: &[&str]) -> Option<String> {
        self.fixture
            .try_kubectl(&[&["exec", "counter", "--"], command].concat(), "")
            .ok()
    }

    /// How often the program of `name` has started.
    pub fn starts(&self, name: &str) -> usize {
        self.exec(&["cat", &format!("/node/{}/{name}", self.fixture.namespace)])
            .map_or(0, |text| text.lines().count())
    }

    pub async fn started(&self, name: &str, times: usize) {
        self.fixture
            .until(&format!("{name} has started {times} times"), async || {
                (self.starts(name) == times).then_some(())
            })
            .await;
    }

    /// A MiniCluster whose program records its start.
    pub async fn create(&self, name: &str, size: u32, spec: Value, runs: Runs<'_>) {
        let Runs { first, later } = runs;
        let tasks = spec["tasks"].as_u64().unwrap_or(1);
        let file = format!("/starts/{name}");
        let command = format!(
            "sh -c 'echo start >> {file}; if [ $(wc -l < {file}) -le {tasks} ]; then {first}; fi; {later}'"
        );
        let container = json!({
            "image": app_image(), "command": command, "commands": spec["commands"],
            "volumes": { "starts": { "hostPath": self.folder, "path": "/starts" } },
        });
        let mut object = json!({
            "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": { "name": name },
            "spec": { "size": size, "tasks": 1, "containers": [container], "pod": { "nodeSelector": { "kubernetes.io/hostname": self.node } } },
        });
        for (field, value) in spec
            .as_object()
            .unwrap()
            .iter()
            .filter(|(field, _)| *field != "commands")
        {
            if let (Value::Object(existing), Value::Object(more)) = (&mut object["spec"][field], value) {
                existing.extend(more.clone());
            } else {
                object["spec"][field] = value.clone();
            }
        }
        self.fixture.create_object::<MiniCluster>(object).await;
    }

    /// A snippet that records that this pod has reached it, and blocks until the test releases it.
    fn hold(name: &str) -> String {
        format!(
            "touch /starts/{name}.$JOB_COMPLETION_INDEX; until [ -e /starts/{name}.go ]; do sleep 0.1; done"
        )
    }

    /// Evicts the pod of this index while its snippet blocks, waits until it has ended, and releases the snippet.
    async fn evict_while_held(&self, name: &str, index: &str) {
        let file = |which: &str| format!("/node/{}/{name}.{which}", self.fixture.namespace);
        self.fixture
            .until(&format!("{name} is held"), async || {
                self.exec(&["test", "-e", &file(index)])
            })
            .await;
        let pods = self.fixture.api::<Pod>();
        let pod = self.fixture.pod(name, index).await.unwrap();
        pods.evict(&pod.name_any(), &EvictParams::default())
            .await
            .unwrap();
        self.fixture
            .until(&format!("{} is gone or has ended", pod.name_any()), async || {
                let pod = pods.get_opt(&pod.name_any()).await.unwrap();
                let phase = pod.and_then(|pod| pod.status?.phase);
                phase
                    .is_none_or(|phase| phase == "Failed" || phase == "Succeeded")
                    .then_some(())
            })
            .await;
        self.exec(&["touch", &file("go")]).unwrap();
    }

    /// The status at the end, after this many starts of the program and this many restarts.
    pub async fn ended(&self, name: &str, phase: &str, starts: usize, restarts: u64) -> Value {
        let status = self.fixture.when_finished(name).await;
        assert_eq!(status["phase"], phase, "{name}: {status:#}");
        assert_eq!(self.starts(name), starts, "{name}: {status:#}");
        assert_eq!(
            status["restartCount"].as_u64().unwrap_or(0),
            restarts,
            "{name}: {status:#}"
        );
        status
    }
}

#[test]
fn program_with_an_agents_exit_code_runs_once_and_keeps_it() {
    test("codes", async |fixture| {
        let counter = Counter::new(&fixture).await;
        // Codes with a meaning for shells (126, 127), signals (137, 143), the failure policy (238, 255) and the agent (239
        // to 249).
        let codes = [1, 126, 127, 137, 143, 238, 239, 240, 243, 245, 248, 249, 255];
        for code in codes {
            let end = format!("exit {code}");
            let spec = json!({ "backoffLimit": 2, "maxRestarts": 2 });
            counter
                .create(&format!("code-{code}"), 2, spec, Runs::always(&end))
                .await;
        }
        for code in codes {
            let status = counter.ended(&format!("code-{code}"), "Failed", 1, 0).await;
            assert_eq!(
                (&status["exitCode"], &status["failedIndex"]),
                (&json!(code), &json!(0)),
                "{status:#}"
            );
        }
    });
}

#[test]
fn lost_lead_restarts_within_backoff_limit() {
    test("lost-lead", async |fixture| {
        let counter = Counter::new(&fixture).await;
        let all = [
            ("evicted", 3, json!({})),
            ("deleted", 3, json!({})),
            ("alone", 1, json!({})),
            ("once", 3, json!({ "backoffLimit": 1 })),
            ("never", 3, json!({ "backoffLimit": 0 })),
            (
                "on-failure",
                3,
                json!({ "pod": { "restartPolicy": "OnFailure" } }),
            ),
        ];
        for (name, size, spec) in &all {
            counter
                .create(name, *size, spec.clone(), SLEEPS_THEN_SUCCEEDS)
                .await;
        }
        for (name, ..) in &all {
            counter.started(name, 1).await;
            let lead = fixture.pod(name, "0").await.unwrap().name_any();
            if *name == "deleted" {
                fixture
                    .api::<Pod>()
                    .delete(&lead, &DeleteParams::default())
                    .await
                    .unwrap();
            } else {
                fixture
                    .api::<Pod>()
                    .evict(&lead, &EvictParams::default())
                    .await
                    .unwrap();
            }
        }
        for (name, ..) in all.iter().filter(|(name, ..)| *name != "never") {
            let status = counter.ended(name, "Completed", 2, 1).await;
            let restart = &status["restarts"][0];
            assert_eq!(restart["reason"], "LeadLost", "{name}: {status:#}");
            assert!(
                restart["message"].as_str().unwrap().contains("on node"),
                "{name}: {restart}"
            );
        }
        let status = counter.ended("never", "Failed", 1, 0).await;
        assert_eq!(status["reason"], "LeadLost", "{status:#}");
        assert!(
            status["message"].as_str().unwrap().contains("backoffLimit is 0"),
            "{status:#}"
        );
    });
}

#[test]
fn lost_follower_restarts_the_job_only_within_max_restarts() {
    // A job of the fake Flux does not notice that it has lost a node.
    if !has_flux_itself("a job that loses a follower") {
        return;
    }
    test("lost-pod", async |fixture| {
        let counter = Counter::new(&fixture).await;
        // There are two tasks for two pods, so one runs on the follower.
        let both = [
            ("may", json!({ "maxRestarts": 1, "tasks": 2 })),
            ("may-not", json!({ "tasks": 2 })),
        ];
        for (name, spec) in &both {
            counter.create(name, 2, spec.clone(), SLEEPS_THEN_SUCCEEDS).await;
        }
        for (name, _) in &both {
            counter.started(name, 2).await;
            let follower = fixture.pod(name, "1").await.unwrap();
            fixture
                .api::<Pod>()
                .evict(&follower.name_any(), &EvictParams::default())
                .await
                .unwrap();
        }
        let status = counter.ended("may-not", "Failed", 2, 0).await;
        assert_eq!(status["reason"], "PodLost", "{status:#}");
        let status = counter.ended("may", "Completed", 4, 1).await;
        assert_eq!(status["restarts"][0]["reason"], "PodLost", "{status:#}");
    });
}

#[test]
fn program_runs_once_when_pod_is_lost_before_or_after_it() {
    test("stages", async |fixture| {
        let counter = Counter::new(&fixture).await;
        // The name, the snippet that blocks, the pod that is removed, the program's code; then phase, exit
        // code and restarts.
        let all = [
            ("lead-before", "pre", "0", 0, "Completed", 0, 1),
            ("follower-before", "pre", "1", 0, "Completed", 0, 0),
            ("lead-after", "post", "0", 0, "Completed", 0, 0),
            ("lead-after-7", "post", "0", 7, "Failed", 7, 0),
            ("follower-after", "post", "1", 0, "Completed", 0, 0),
        ];
        for (name, snippet, _, code, ..) in all {
            let end = format!("exit {code}");
            let spec =
                json!({ "backoffLimit": 2, "maxRestarts": 2, "commands": { snippet: Counter::hold(name) } });
            counter.create(name, 2, spec, Runs::always(&end)).await;
        }
        for (name, _, index, ..) in all {
            counter.evict_while_held(name, index).await;
        }
        for (name, _, _, _, phase, code, restarts) in all {
            let status = counter.ended(name, phase, 1, restarts).await;
            assert_eq!(status["exitCode"], code, "{name}: {status:#}");
        }
    });
}

#[test]
fn on_failure_retries_the_whole_instance() {
    test("on-failure", async |fixture| {
        let counter = Counter::new(&fixture).await;
        let pod = json!({ "restartPolicy": "OnFailure" });
        for (name, size) in [("one", 1), ("three", 3)] {
            let succeeds_later = Runs {
                first: "exit 3",
                later: "exit 0",
            };
            counter
                .create(name, size, json!({ "pod": pod }), succeeds_later)
                .await;
            let fails_again = Runs {
                first: "exit 3",
                later: "exit 4",
            };
            counter
                .create(
                    &format!("{name}-fails"),
                    size,
                    json!({ "pod": pod, "backoffLimit": 1 }),
                    fails_again,
                )
                .await;
        }
        for name in ["one", "three"] {
            counter.ended(name, "Completed", 2, 1).await;
            let status = counter.ended(&format!("{name}-fails"), "Failed", 2, 1).await;
            assert_eq!(status["exitCode"], 4, "{status:#}");
        }
    });
}

#[test]
fn deadline_ends_the_minicluster() {
    test("deadline", async |fixture| {
        let name = crate::examples::apply(&fixture, "restarts/deadline");
        let status = fixture.when_finished(&name).await;
        assert_eq!(
            (&status["phase"], &status["reason"]),
            (&json!("Failed"), &json!("DeadlineExceeded")),
            "{status:#}"
        );
        assert!(fixture.list::<Pod>("").await.iter().all(|pod| {
            pod.metadata.deletion_timestamp.is_some()
                || pod
                    .status
                    .as_ref()
                    .is_none_or(|status| status.phase.as_deref() != Some("Running"))
        }));
    });
}
