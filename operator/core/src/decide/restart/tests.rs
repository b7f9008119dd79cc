//! Tests the decision with a small model of the Job controller, of the kubelets with their agents, of watches that lag
//! behind, and of operators that are killed between any two writes. The model follows Kubernetes' Job controller
//! (`pkg/controller/job`) and `render::job`, with `restartPolicy: Never`. `ends` tests decisions without the model.

use std::collections::{BTreeMap, VecDeque};

use flux_shared::exit::{self, REPLACE, UNSEEN};
use flux_shared::termination::Termination;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proptest::prelude::*;

use super::*;
use crate::labels;
use crate::observe::job::TrueCondition;
use crate::observe::pod::{Exit, FailedInit, Trouble};
use crate::observe::{Index, Key, Kind};

mod ends;
mod histories;
mod job_controller;
mod operator;

/// Pods of a MiniCluster, unless a test says otherwise.
const SIZE: u32 = 2;

/// What may happen next.
#[derive(Debug, Clone, Copy)]
enum Event {
    ProgramEnds(u8),
    /// The same while the runtime is down: the kubelet reports 255, and the agent's message has the code.
    ProgramEndsUnseen(u8),
    /// The node of a lead or a follower reboots: the runtime reports 255.
    Reboot(u32),
    /// A pod is deleted and killed at once.
    Kill(u32),
    /// Flux loses a node, and the job with it.
    NodeFails,
    /// A lead or a follower is evicted, or somebody deletes it.
    Evict(u32),
    Delete(u32),
    FollowerFails(u8),
    /// A snippet of a follower fails.
    SnippetFails(u8),
    DeleteJob,
    Suspend(bool),
    /// The kubelets start pods, and end those that are being deleted or were asked to end.
    Kubelets,
    /// The Job controller reconciles.
    Controller,
    /// A watch delivers its next event: about a Job, or about a pod.
    NewsOfJobs,
    NewsOfPods,
    /// The operator reconciles, and stops after this many writes, as if it were killed. (`NewOperator` replaces it.) With
    /// 9, it always makes all.
    Operator(u8),
    /// Another operator takes over. Its clock is off by this many seconds.
    NewOperator(i64),
}

#[derive(Debug, Clone)]
struct Job {
    uid: String,
    restarts_left: u32,
    seen: JobSeen,
    has_suspended_condition: bool,
}

/// A pod, with what only its node knows.
#[derive(Debug, Clone)]
struct Pod {
    seen: PodSeen,
    /// Whether its program runs.
    runs: bool,
    /// The Job controller has not counted it yet.
    has_finalizer: bool,
    restarts_left: u32,
    /// Its phase is Failed and its code 255, whatever the agent says.
    is_unseen: bool,
}

#[derive(Debug, Clone)]
enum News<T> {
    Is(T),
    Gone(String),
}

struct World {
    size: u32,
    backoff_limit: i32,
    max_restarts: i32,
    job: Option<Job>,
    /// In the order of their creation.
    pods: BTreeMap<String, Pod>,
    /// As stored.
    status: MiniClusterStatus,
    /// The last resourceVersion. It is also the control plane's time, in seconds (`World::now`).
    version: u64,
    /// Events that the watches have not delivered yet.
    news_of_jobs: VecDeque<News<(u64, JobSeen)>>,
    news_of_pods: VecDeque<News<PodSeen>>,
    index: Index,
    /// By how many seconds the operator's clock is ahead.
    skew: i64,
    /// The exit code of a lead whose pod is stopped.
    lead_stop_code: u8,
    /// How many Jobs were created, how often the program has started, and how often it has ended for good: after such
    /// an end, nothing may start.
    jobs: u32,
    starts: u32,
    final_ends: u32,
    /// Whether this Job has lost a follower.
    lost_follower: bool,
    /// The first promise that was broken.
    violation: Option<String>,
}

fn condition(reason: &str) -> Option<TrueCondition> {
    Some(TrueCondition {
        reason: reason.into(),
        message: String::new(),
        since: None,
    })
}

fn exit(termination: Termination) -> Option<Exit> {
    Some(Exit {
        code: termination.code.into(),
        termination: Some(termination),
        ..Exit::default()
    })
}

impl World {
    fn new(size: u32, backoff_limit: i32, max_restarts: i32) -> World {
        let mut world = World {
            size,
            backoff_limit,
            max_restarts,
            job: None,
            pods: BTreeMap::new(),
            status: MiniClusterStatus::default(),
            version: 1,
            news_of_jobs: VecDeque::new(),
            news_of_pods: VecDeque::new(),
            index: Index::default(),
            skew: 0,
            lead_stop_code: exit::of_signal(15),
            jobs: 0,
            starts: 0,
            final_ends: 0,
            lost_follower: false,
            violation: None,
        };
        world.replace_operator(0);
        world
    }

    fn record_violation(&mut self, what: String) {
        self.violation.get_or_insert(what);
    }

    fn tick(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    /// Queues the Job's state for the watch of Jobs.
    fn report_job(&mut self) {
        let version = self.tick();
        if let Some(job) = &self.job {
            self.news_of_jobs.push_back(News::Is((version, job.seen.clone())));
        }
    }

    /// Queues a pod's state for the watch of pods.
    fn report_pod(&mut self, name: &str) {
        if let Some(pod) = self.pods.get(name) {
            self.news_of_pods.push_back(News::Is(pod.seen.clone()));
        }
    }

    /// Name of the pod of this index that is neither being deleted nor ended.
    fn active(&self, index: u32) -> Option<String> {
        let is_active = |pod: &Pod| pod.seen.index == index && !pod.seen.has_ended && !pod.seen.is_deleting;
        self.pods
            .iter()
            .find(|(_, pod)| is_active(pod))
            .map(|(name, _)| name.clone())
    }

    fn all_active(&self) -> Vec<String> {
        let active = self
            .pods
            .iter()
            .filter(|(_, pod)| !pod.seen.has_ended && !pod.seen.is_deleting);
        active.map(|(name, _)| name.clone()).collect()
    }

    fn running_lead(&self) -> Option<String> {
        self.pods
            .iter()
            .find(|(_, pod)| pod.seen.index == 0 && pod.runs && !pod.seen.has_ended)
            .map(|(name, _)| name.clone())
    }

    fn end(&mut self, name: &str, termination: Termination) {
        let Some(pod) = self.pods.get_mut(name) else {
            return;
        };
        pod.runs = false;
        pod.seen.has_ended = true;
        pod.seen.is_ready = false;
        pod.seen.has_succeeded = termination.code == 0;
        pod.seen.exit = exit(termination).map(Box::new);
        self.report_pod(name);
    }

    fn kill(&mut self, name: &str, exit: Exit) {
        let Some(pod) = self.pods.get_mut(name) else {
            return;
        };
        self.lost_follower |= pod.seen.index > 0;
        pod.is_unseen |= exit.is_unseen;
        (pod.runs, pod.seen.is_running, pod.seen.is_ready) = (false, false, false);
        (pod.seen.has_ended, pod.seen.exit) = (true, Some(Box::new(exit)));
        self.report_pod(name);
    }

    /// The time by the control plane's clock.
    fn now(&self) -> Timestamp {
        Timestamp::from_second(1_000_000 + i64::try_from(self.version).unwrap()).unwrap()
    }

    fn delete_pod(&mut self, name: &str) {
        let now = self.now();
        let Some(pod) = self.pods.get_mut(name) else {
            return;
        };
        self.lost_follower |= pod.seen.index > 0;
        pod.seen.is_deleting = true;
        pod.seen.deletion_requested.get_or_insert(now);
        self.report_pod(name);
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::ProgramEnds(code) => self.program_ends(code),
            Event::ProgramEndsUnseen(code) => {
                if let Some(lead) = self.running_lead().and_then(|name| self.pods.get_mut(&name)) {
                    lead.is_unseen = true;
                }
                self.program_ends(code);
            }
            Event::Reboot(index) => {
                if let Some(name) = self.active(index) {
                    self.kill(
                        &name,
                        Exit {
                            code: UNSEEN.into(),
                            is_unseen: true,
                            ..Exit::default()
                        },
                    );
                }
            }
            Event::Kill(index) => {
                if let Some(name) = self.active(index) {
                    self.delete_pod(&name);
                    self.kill(
                        &name,
                        Exit {
                            code: 137,
                            ..Exit::default()
                        },
                    );
                }
            }
            Event::NodeFails => self.node_fails(),
            Event::Evict(index) => {
                if let Some(name) = self.active(index) {
                    if let Some(pod) = self.pods.get_mut(&name) {
                        let disruption = Trouble {
                            reason: "Evicted".into(),
                            is_disruption: true,
                            ..Trouble::default()
                        };
                        pod.seen.trouble = Some(Box::new(disruption));
                    }
                    self.delete_pod(&name);
                }
            }
            Event::Delete(index) => {
                if let Some(name) = self.active(index) {
                    self.delete_pod(&name);
                }
            }
            Event::FollowerFails(code) => {
                if let Some(name) = self.active(1) {
                    self.end(&name, Termination::new(Ender::Program, code));
                }
            }
            Event::SnippetFails(code) => {
                if let Some(name) = self.active(1) {
                    self.end(&name, Termination::new(Ender::Snippet, code));
                }
            }
            Event::DeleteJob => self.somebody_deletes_the_job(),
            Event::Suspend(suspend) => {
                if let Some(job) = self
                    .job
                    .as_mut()
                    .filter(|job| !job.seen.is_finished() && job.seen.is_suspended != suspend)
                {
                    job.seen.is_suspended = suspend;
                    self.report_job();
                }
            }
            Event::Kubelets => self.kubelets(),
            Event::Controller => self.controller(),
            Event::NewsOfJobs => self.deliver_job_news(),
            Event::NewsOfPods => self.deliver_pod_news(),
            Event::Operator(writes) => self.operator(writes),
            Event::NewOperator(skew) => self.replace_operator(skew),
        }
    }

    fn program_ends(&mut self, code: u8) {
        let Some(lead) = self.running_lead() else { return };
        // A failure after a follower was removed may have been caused by the removal.
        let for_a_follower =
            self.lost_follower && self.status.max_restarts_used < self.max_restarts && code != 0;
        // After these ends the program may start again, because their trace can vanish before an operator sees it: any
        // end after the Job was deleted; and, in a pod that is being deleted, a failure, or a success that the runtime
        // missed (the Job counts it as a failure). The model does not ask whether an operator did see it.
        let pod = &self.pods[&lead];
        let may_vanish = pod.seen.is_deleting && (code != 0 || pod.is_unseen);
        let may_start_again = for_a_follower || may_vanish || self.job.is_none();
        self.final_ends += u32::from(!may_start_again);
        self.end(&lead, Termination::new(Ender::Program, code));
    }

    fn node_fails(&mut self) {
        let Some(lead) = self.running_lead() else { return };
        let may_vanish = self.pods[&lead].seen.is_deleting;
        let may_start_again =
            self.status.max_restarts_used < self.max_restarts || may_vanish || self.job.is_none();
        self.final_ends += u32::from(!may_start_again);
        self.end(
            &lead,
            Termination {
                node_failure: true,
                ..Termination::new(Ender::Program, 1)
            },
        );
    }

    /// Somebody deletes the Job in the background, but only if it has not finished (`ends` has a test of that), and the
    /// status names it: if the operator is lost with an earlier Job, nobody remembers that Job. The model assumes that
    /// the watch of pods lags less than a person who deletes the Job. Otherwise an end that the watch has not delivered
    /// would be lost with the pod.
    fn somebody_deletes_the_job(&mut self) {
        while !self.news_of_pods.is_empty() {
            self.deliver_pod_news();
        }
        let job_in_status = self.status.job_uid.clone();
        let is_active_and_reported = |job: &mut Job| {
            !job.seen.is_finished()
                && job.seen.failing.is_none()
                && !job.seen.is_deleting
                && job_in_status.as_ref() == Some(&job.uid)
        };
        if let Some(job) = self.job.take_if(is_active_and_reported) {
            self.news_of_jobs.push_back(News::Gone(job.uid));
        }
    }

    /// Checks what must hold at any time.
    fn check(&mut self) {
        let status = &self.status;
        let (backoff_used, max_restarts_used) = (status.backoff_limit_used, status.max_restarts_used);
        let counted = u32::try_from(status.restart_count).unwrap();
        if backoff_used > self.backoff_limit {
            self.record_violation(format!(
                "{backoff_used} restarts of backoffLimit {}",
                self.backoff_limit
            ));
        } else if max_restarts_used > self.max_restarts {
            self.record_violation(format!(
                "{max_restarts_used} restarts of maxRestarts {}",
                self.max_restarts
            ));
        } else if self.jobs > 1 + counted {
            self.record_violation(format!("{} Jobs, {counted} counted", self.jobs));
        } else if self.starts > 1 + counted {
            self.record_violation(format!("{} starts, {counted} counted", self.starts));
        }
    }

    /// Runs without further faults until everything has settled.
    fn settle(&mut self) {
        // Many more rounds than the largest number of restarts needs.
        for _ in 0..60 {
            for event in [Event::Suspend(false), Event::Kubelets, Event::Controller] {
                self.happen(event);
            }
            while !self.news_of_jobs.is_empty() || !self.news_of_pods.is_empty() {
                self.deliver_job_news();
                self.deliver_pod_news();
            }
            self.operator(9);
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    // A program may exit with any code. The Job retries a follower with 238 or 255 (`RETRIED`). The agent itself fails
    // with codes such as 239 and 243.
    let code = || prop_oneof![Just(0), Just(1), Just(238), Just(239), Just(243), Just(255)];
    prop_oneof![
        2 => code().prop_map(Event::ProgramEnds),
        1 => code().prop_map(Event::ProgramEndsUnseen),
        2 => (0..SIZE).prop_map(Event::Reboot),
        1 => (0..SIZE).prop_map(Event::Kill),
        1 => Just(Event::NodeFails),
        3 => (0..SIZE).prop_map(Event::Evict),
        2 => (0..SIZE).prop_map(Event::Delete),
        1 => prop_oneof![Just(3), Just(137)].prop_map(Event::FollowerFails),
        1 => prop_oneof![Just(1), Just(238)].prop_map(Event::SnippetFails),
        1 => Just(Event::DeleteJob),
        8 => Just(Event::Kubelets),
        10 => Just(Event::Controller),
        10 => Just(Event::NewsOfJobs),
        14 => Just(Event::NewsOfPods),
        12 => prop_oneof![2 => 0..3_u8, 3 => Just(9)].prop_map(Event::Operator),
        2 => prop_oneof![Just(0), Just(600), Just(-600)].prop_map(Event::NewOperator),
    ]
}

/// The code of a program that SIGTERM ends, or of one that traps it, as for a checkpoint.
fn lead_stop_code() -> impl Strategy<Value = u8> {
    prop_oneof![Just(exit::of_signal(15)), Just(0)]
}

/// The world after these events, once everything has settled. It stops at the first violation.
fn played(backoff_limit: i32, max_restarts: i32, events: &[Event]) -> World {
    played_with_size(SIZE, backoff_limit, max_restarts, events)
}

fn played_with_size(size: u32, backoff_limit: i32, max_restarts: i32, events: &[Event]) -> World {
    World::new(size, backoff_limit, max_restarts).played(events)
}

impl World {
    fn played(mut self, events: &[Event]) -> World {
        for event in events {
            self.happen(*event);
            self.check();
            if self.violation.is_some() {
                return self;
            }
        }
        self.settle();
        self.check();
        let left = self.all_active();
        if previous_status::is_finished(&self.status) && !left.is_empty() {
            self.record_violation(format!("pods outlive the MiniCluster's end: {left:?}"));
        }
        self
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(1000), ..ProptestConfig::default() })]

    #[test]
    fn minicluster_never_starts_beyond_its_limits_and_never_hangs(
        size in 1..=SIZE,
        backoff_limit in 0..3,
        max_restarts in 0..2,
        lead_stop_code in lead_stop_code(),
        events in proptest::collection::vec(event(), 0..120),
    ) {
        let world = World { lead_stop_code, ..World::new(size, backoff_limit, max_restarts) }.played(&events);
        prop_assert_eq!(&world.violation, &None);
        let is_over = previous_status::is_finished(&world.status);
        prop_assert!(is_over || world.running_lead().is_some(), "it waits for ever: {:#?} {:#?} {:#?}", world.job, world.pods, world.status);
        let status = &world.status;
        prop_assert_eq!(status.restart_count, status.backoff_limit_used + status.max_restarts_used);
        // One Job more than restarts. If the MiniCluster has ended without a Job, the last restart may have made none.
        prop_assert_eq!(world.jobs, 1 + u32::try_from(status.restart_count).unwrap() - u32::from(is_over && world.job.is_none() && world.jobs == u32::try_from(status.restart_count).unwrap()));
    }

    #[test]
    fn suspension_never_ends_a_minicluster(
        size in 1..=SIZE,
        lead_stop_code in lead_stop_code(),
        events in proptest::collection::vec(prop_oneof![
            2 => any::<bool>().prop_map(Event::Suspend),
            4 => Just(Event::Kubelets), 5 => Just(Event::Controller), 5 => Just(Event::NewsOfJobs), 5 => Just(Event::NewsOfPods),
            5 => Just(Event::Operator(9)), 1 => Just(Event::NewOperator(600)),
        ], 0..120),
    ) {
        let mut world = World { lead_stop_code, ..World::new(size, 0, 0) };
        for event in &events {
            // The pod that fails the Job may be gone before a new operator sees it. Then nobody knows why it was stopped.
            let is_failing = world.job.as_ref().is_some_and(|job| job.seen.failing.is_some());
            if !(is_failing && matches!(event, Event::NewOperator(_))) {
                world.happen(*event);
            }
        }
        world.settle();
        prop_assert_eq!(&world.violation, &None);
        prop_assert!(world.running_lead().is_some(), "{:#?} {:#?} {:#?}", world.job, world.pods, world.status);
        prop_assert_eq!(world.status.backoff_limit_used, 0);
    }
}
