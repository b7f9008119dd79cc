//! A namespace on the nodes, for one test: MiniClusters whose programs record what they do. Each writes a file, its
//! account, in a folder that all nodes share, since they are on one machine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use flux_shared::crd::v1alpha2::MiniCluster;
use serde_json::{Value, json};
use test_support::history::{History, TICK, What};
use test_support::node::{Fixture, app_image};

use crate::machines::{cordon, node, node_of, restore};
use crate::timeline::{Timeline, now};

const PROGRAM: &str = include_str!("program.sh");
const EXCHANGE: &str = include_str!("exchange.sh");
/// No task is silent for longer, even while a node starts on the same machine.
const SILENCE: f64 = 4.0 * TICK;
const POLL: Duration = Duration::from_millis(200);

pub struct Stage {
    pub fixture: Arc<Fixture>,
    pub timeline: Timeline,
    folder: PathBuf,
}

/// A MiniCluster with a program. The pods of its followers are placed after the lead's.
#[derive(Clone)]
pub struct Program {
    pub name: &'static str,
    pub lead_on: u8,
    pub followers_on: &'static [u8],
    /// Where pods may also be placed, once one is lost.
    pub may_use: &'static [u8],
    pub tasks: u32,
    /// Seconds that the program runs at its first start.
    pub first_run: u32,
    /// Seconds that it runs at every later start.
    pub later_run: u32,
    pub code: i32,
    /// Seconds until its pods are evicted from a node that does not answer.
    pub evicted_after: u32,
    pub spec: Value,
}

impl Program {
    fn workers(&self) -> Vec<u8> {
        let mut workers = [&[self.lead_on], self.followers_on, self.may_use].concat();
        workers.sort_unstable();
        workers.dedup();
        workers
    }
}

impl Default for Program {
    fn default() -> Program {
        Program {
            name: "mc",
            lead_on: 1,
            followers_on: &[],
            may_use: &[],
            tasks: 1,
            first_run: 3600,
            later_run: 3,
            code: 0,
            evicted_after: 300,
            spec: json!({}),
        }
    }
}

/// How a MiniCluster must end.
pub struct ExpectedEnd {
    pub phase: &'static str,
    pub code: Option<i32>,
    /// The reason of a failure.
    pub reason: Option<&'static str>,
    pub starts: usize,
    /// The reasons of `status.restarts`.
    pub restarts: &'static [&'static str],
}

impl ExpectedEnd {
    /// The program ends with 0, in its only start.
    pub fn undisturbed() -> ExpectedEnd {
        ExpectedEnd {
            phase: "Completed",
            code: Some(0),
            reason: None,
            starts: 1,
            restarts: &[],
        }
    }

    /// The program ends with 0, after a restart for each of these reasons.
    pub fn after_restart(reasons: &'static [&'static str]) -> ExpectedEnd {
        ExpectedEnd {
            phase: "Completed",
            code: Some(0),
            reason: None,
            starts: 1 + reasons.len(),
            restarts: reasons,
        }
    }
}

/// Runs a test in a namespace of its own, with all nodes up.
pub fn test(name: &str, body: impl AsyncFnOnce(&Stage)) {
    test_support::node::test(name, async |fixture| {
        restore(&fixture.client).await;
        let stage = Stage::new(fixture);
        body(&stage).await;
    });
}

impl Stage {
    fn new(fixture: Arc<Fixture>) -> Stage {
        let folder = PathBuf::from("/var/tmp").join(&fixture.namespace);
        std::fs::create_dir(&folder).unwrap();
        for (name, text) in [("program.sh", PROGRAM), ("exchange.sh", EXCHANGE)] {
            std::fs::write(folder.join(name), text).unwrap();
        }
        let timeline = Timeline::of(fixture.api());
        Stage {
            fixture,
            timeline,
            folder,
        }
    }

    /// Creates the MiniCluster, and places its pods as the program's fields say.
    pub async fn create(&self, program: &Program) {
        let Program {
            name, followers_on, ..
        } = program;
        let others: Vec<u8> = program
            .workers()
            .into_iter()
            .filter(|worker| *worker != program.lead_on)
            .collect();
        // The Job controller creates the lead's pod first. Until that pod has a node, only the lead's node
        // accepts pods.
        for other in &others {
            cordon(&self.fixture.client, *other, true).await;
        }
        self.submit(program).await;
        if !others.is_empty() {
            self.until_placed(name, 1).await;
        }
        for other in followers_on.iter() {
            cordon(&self.fixture.client, *other, false).await;
        }
        // The nodes of `may_use` accept pods only when all pods have their nodes.
        if others.len() > followers_on.len() {
            self.until_placed(name, 1 + followers_on.len()).await;
        }
        for other in &others {
            cordon(&self.fixture.client, *other, false).await;
        }
    }

    /// The nodes of this many pods, once all of them have a node.
    pub async fn until_placed(&self, name: &str, pods: usize) -> Vec<String> {
        self.fixture
            .until(&format!("{pods} pods of {name} are placed"), async || {
                let pods_now = self.fixture.pods(name).await;
                let placed: Vec<String> = pods_now
                    .iter()
                    .map(node_of)
                    .filter(|node| !node.is_empty())
                    .collect();
                (placed.len() == pods).then_some(placed)
            })
            .await
    }

    pub async fn submit(&self, program: &Program) {
        let Program {
            name,
            tasks,
            first_run,
            later_run,
            code,
            ..
        } = program;
        let nodes: Vec<String> = program.workers().into_iter().map(node).collect();
        let mut spec = json!({
            "size": 1 + program.followers_on.len(),
            "tasks": tasks,
            "pod": { "nodeAffinity": { "kubernetes.io/hostname": nodes } },
            "podTemplate": { "spec": pod_template(program) },
        });
        for (field, value) in program.spec.as_object().unwrap() {
            spec[field] = value.clone();
        }
        self.apply(
            name,
            &format!("bash /account/program.sh $POD {name} {first_run} {later_run} {code}"),
            spec,
        )
        .await;
    }

    /// Creates a MiniCluster with the folder of accounts at /account. `image` in `spec`, which is no field of a
    /// MiniCluster, is the image of its container, if it is not the usual one.
    pub async fn apply(&self, name: &str, command: &str, mut spec: Value) {
        let image = spec.as_object_mut().unwrap().remove("image");
        spec["containers"] = json!([{
            "image": image.unwrap_or_else(|| json!(app_image())),
            "command": command,
            "volumes": { "account": { "hostPath": self.folder, "path": "/account" } },
        }]);
        let object = json!({
            "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": { "name": name }, "spec": spec,
        });
        self.fixture.create_object::<MiniCluster>(object).await;
    }

    /// The folder of the accounts, which all nodes share.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    pub fn history(&self, name: &str) -> History {
        History::parse(&std::fs::read_to_string(self.folder.join(name)).unwrap_or_default())
    }

    /// Waits until all pods are ready, and all tasks of this start have begun.
    pub async fn until_running(&self, program: &Program, start: usize) {
        let name = program.name;
        self.fixture
            .until(&format!("start {start} of {name} runs"), async || {
                let begun = self
                    .history(name)
                    .lines
                    .iter()
                    .filter(|line| line.what == What::Start)
                    .count();
                let status = self.fixture.status(name).await;
                let all = 1 + program.followers_on.len();
                (begun == start * program.tasks as usize && status["readySize"] == json!(all)).then_some(())
            })
            .await;
        self.history(name).assert_starts(start);
    }

    pub async fn create_all(&self, programs: &[&Program]) {
        for program in programs {
            self.create(program).await;
        }
        for program in programs {
            self.until_running(program, 1).await;
        }
    }

    /// Waits until the status says so, and returns how many seconds after `from` that was.
    pub async fn until_status(
        &self,
        name: &str,
        from: f64,
        what: &str,
        is_so: impl Fn(&Value) -> bool,
    ) -> f64 {
        let first = async || self.timeline.first(name, from, &is_so);
        match tokio::time::timeout(Duration::from_secs(150), async {
            loop {
                if let Some(at) = first().await {
                    return at - from;
                }
                tokio::time::sleep(POLL).await;
            }
        })
        .await
        {
            Ok(seconds) => {
                eprintln!("{name}: {what} {seconds:.1} s after");
                seconds
            }
            Err(_) => panic!("{name} never said: {what}\n{}", self.account(name)),
        }
    }

    /// The same, for a reason.
    pub async fn until_reason(&self, name: &str, from: f64, reason: &str) -> f64 {
        self.until_status(name, from, reason, |status| status["reason"] == reason)
            .await
    }

    /// Waits for the end, and checks it.
    pub async fn ended(&self, name: &str, end: &ExpectedEnd) -> Value {
        let status = self.fixture.when_finished(name).await;
        self.check(name, &status, end);
        status
    }

    fn check(&self, name: &str, status: &Value, end: &ExpectedEnd) {
        let account = self.account(name);
        let restarts: Vec<&str> = status["restarts"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|restart| restart["reason"].as_str())
            .collect();
        assert_eq!(status["phase"], end.phase, "{account}{status:#}");
        assert_eq!(status["exitCode"], json!(end.code), "{account}{status:#}");
        if let Some(reason) = end.reason {
            assert_eq!(status["reason"], reason, "{account}{status:#}");
        }
        assert_eq!(restarts, end.restarts, "{account}{status:#}");
        self.history(name).assert_starts(end.starts);
    }

    /// Asserts that the program has run since its start without a pause, and without being told to stop.
    pub fn assert_untouched(&self, name: &str) {
        let history = self.history(name);
        history.assert_starts(1);
        let run = &history.runs()[0];
        assert_eq!(run.told_to_stop, 0, "{}", self.account(name));
        assert!(run.longest_gap < SILENCE, "{}", self.account(name));
        assert!(
            run.ended > 0 || now() - run.to < SILENCE,
            "it has stopped\n{}",
            self.account(name)
        );
    }

    /// The program's account in short, and what the status said, for failure messages.
    pub fn account(&self, name: &str) -> String {
        format!("{}{}", self.history(name), self.timeline.story(name))
    }

    /// When the lead's container ended, in whole seconds.
    pub async fn container_ended_at(&self, name: &str) -> f64 {
        let lead = self
            .fixture
            .pod(name, "0")
            .await
            .expect("the lead's pod is there");
        // The pod has one container: `apply` gives it no sidecar.
        let state = lead.status.unwrap().container_statuses.unwrap()[0]
            .state
            .clone()
            .unwrap();
        state.terminated.unwrap().finished_at.unwrap().0.as_second() as f64
    }

    pub async fn node_of(&self, name: &str, index: &str) -> String {
        self.fixture
            .pod(name, index)
            .await
            .map_or(String::new(), |pod| node_of(&pod))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// The spec of the program's pods: one pod on each node, evicted after `evicted_after` seconds. Each pod has its
/// own name in its environment.
pub fn pod_template(program: &Program) -> Value {
    let of_this_job = json!({ "matchLabels": { "batch.kubernetes.io/job-name": program.name } });
    json!({
        "tolerations": tolerations(program.evicted_after),
        "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
            { "labelSelector": of_this_job, "topologyKey": "kubernetes.io/hostname" },
        ]}},
        "containers": [with_own_name(program.name)],
    })
}

/// Pods with these are evicted after this many seconds from a node that does not answer.
pub fn tolerations(evicted_after: u32) -> Value {
    let toleration = |key: &str| {
        json!({ "key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "effect": "NoExecute",
                "tolerationSeconds": evicted_after })
    };
    json!([toleration("unreachable"), toleration("not-ready")])
}

/// The runner of this MiniCluster, with its pod's name in its environment. A runner to which the manifest gives no name
/// has the MiniCluster's, by which `podTemplate` finds it.
pub fn with_own_name(cluster: &str) -> Value {
    json!({
        "name": cluster,
        "env": [{ "name": "POD", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } }],
    })
}

pub async fn sleep(seconds: f64) {
    tokio::time::sleep(Duration::from_secs_f64(seconds.max(0.0))).await;
}

/// Waits until this many seconds after that time.
pub async fn until(from: f64, seconds: f64) {
    sleep(from + seconds - now()).await;
}
