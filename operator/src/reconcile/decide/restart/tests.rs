//! The decision among everything that can go wrong: a small model of the Job controller, of the kubelets with their agents,
//! of watches that lag behind, and of operators that are killed between any two writes. The model's rules are those of
//! Kubernetes' Job controller (`pkg/controller/job`) and of `render::job`.

use std::collections::{BTreeMap, VecDeque};

use flux_shared::exit::Category;
use flux_shared::termination::Termination;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use proptest::prelude::*;

use super::*;
use crate::labels;
use crate::observe::job::Verdict;
use crate::observe::pod::{Exit, Trouble};
use crate::observe::{Index, Key, Kind};

const SIZE: u32 = 2;

/// What may happen next.
#[derive(Debug, Clone, Copy)]
enum Event {
    ProgramEnds(u8),
    /// Flux has lost a node, and the job with it.
    NodeFails,
    /// A lead or a follower is evicted, or deleted by somebody.
    Evict(u32),
    Delete(u32),
    FollowerFails(u8),
    DeleteJob,
    Suspend(bool),
    /// The kubelets end what is told to stop.
    Kubelets,
    /// The Job controller looks.
    Controller,
    /// A watch brings its next piece of news: of Jobs, or of pods.
    NewsOfJobs,
    NewsOfPods,
    /// The operator looks, and is killed after so many writes. (More than it makes: it lives on.)
    Operator(u8),
    /// Another operator takes over, whose clock is off by so many seconds.
    Restart(i64),
}

#[derive(Debug, Clone)]
struct Job {
    uid: String,
    restarts_left: u32,
    seen: JobSeen,
}

/// A pod, and what is behind it.
#[derive(Debug, Clone)]
struct Pod {
    seen: PodSeen,
    /// Its program runs.
    runs: bool,
    /// The Job controller has not counted it.
    has_finalizer: bool,
    restarts_left: u32,
}

#[derive(Debug, Clone)]
enum News<T> {
    Is(T),
    Gone(String),
}

struct World {
    backoff_limit: i32,
    max_restarts: i32,
    job: Option<Job>,
    /// In the order in which they were made.
    pods: BTreeMap<String, Pod>,
    /// As it is stored, with its version.
    status: (u64, MiniClusterStatus),
    version: u64,
    news_of_jobs: VecDeque<News<(u64, JobSeen)>>,
    news_of_pods: VecDeque<News<PodSeen>>,
    index: Index,
    skew: i64,
    /// Jobs that were made, starts of the program, and ends by itself that nothing may follow.
    jobs: u32,
    starts: u32,
    final_ends: u32,
    /// Of this Job's.
    lost_follower: bool,
    wrong: Option<String>,
}

fn verdict(reason: &str) -> Option<Verdict> {
    Some(Verdict { reason: reason.into(), message: String::new(), since: None })
}

fn exit(said: Termination) -> Option<Exit> {
    Some(Exit { code: said.code.into(), said: Some(said), ..Exit::default() })
}

impl World {
    fn new(backoff_limit: i32, max_restarts: i32) -> World {
        let mut world = World {
            backoff_limit,
            max_restarts,
            job: None,
            pods: BTreeMap::new(),
            status: (0, MiniClusterStatus::default()),
            version: 1,
            news_of_jobs: VecDeque::new(),
            news_of_pods: VecDeque::new(),
            index: Index::default(),
            skew: 0,
            jobs: 0,
            starts: 0,
            final_ends: 0,
            lost_follower: false,
            wrong: None,
        };
        world.restart(0);
        world
    }

    fn is_wrong(&mut self, what: String) {
        self.wrong.get_or_insert(what);
    }

    fn tick(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    fn tell_job(&mut self) {
        let version = self.tick();
        if let Some(job) = &self.job {
            self.news_of_jobs.push_back(News::Is((version, job.seen.clone())));
        }
    }

    fn tell_pod(&mut self, name: &str) {
        if let Some(pod) = self.pods.get(name) {
            self.news_of_pods.push_back(News::Is(pod.seen.clone()));
        }
    }

    /// Pods that are not deleted and have not ended.
    fn active(&self, index: u32) -> Option<String> {
        let is_active = |pod: &Pod| pod.seen.index == index && !pod.seen.ended && !pod.seen.deleting;
        self.pods.iter().find(|(_, pod)| is_active(pod)).map(|(name, _)| name.clone())
    }

    fn all_active(&self) -> Vec<String> {
        let active = self.pods.iter().filter(|(_, pod)| !pod.seen.ended && !pod.seen.deleting);
        active.map(|(name, _)| name.clone()).collect()
    }

    fn running_lead(&self) -> Option<String> {
        self.pods
            .iter()
            .find(|(_, pod)| pod.seen.index == 0 && pod.runs && !pod.seen.ended)
            .map(|(name, _)| name.clone())
    }

    fn end(&mut self, name: &str, said: Termination) {
        let Some(pod) = self.pods.get_mut(name) else { return };
        pod.runs = false;
        pod.seen.ended = true;
        pod.seen.ready = false;
        pod.seen.succeeded = said.code == 0;
        pod.seen.exit = exit(said);
        self.tell_pod(name);
    }

    fn delete_pod(&mut self, name: &str) {
        let Some(pod) = self.pods.get_mut(name) else { return };
        self.lost_follower |= pod.seen.index > 0;
        pod.seen.deleting = true;
        self.tell_pod(name);
    }

    /// What is deleted, has ended and was counted goes.
    fn collect(&mut self) {
        let is_gone = |pod: &Pod| pod.seen.deleting && pod.seen.ended && !pod.has_finalizer;
        let gone: Vec<String> =
            self.pods.iter().filter(|(_, pod)| is_gone(pod)).map(|(name, _)| name.clone()).collect();
        for name in gone {
            self.pods.remove(&name);
            self.news_of_pods.push_back(News::Gone(name));
        }
    }

    fn kubelets(&mut self) {
        let names: Vec<String> = self.pods.keys().cloned().collect();
        for name in names {
            let pod = self.pods[&name].clone();
            if pod.seen.ended {
                continue;
            }
            let replaces = pod.seen.index_failures + pod.seen.index_disruptions > 0;
            if pod.seen.deleting {
                let code = if pod.seen.index == 0 { 143 } else { REPLACE };
                self.end(&name, Termination::new(Ender::Stop, code));
            } else if pod.seen.index == 0 && replaces && pod.restarts_left == 0 {
                let refused = Termination { category: Some(Category::LeadLost), ..Termination::new(Ender::Agent, 239) };
                self.end(&name, refused);
            } else if pod.seen.index == 0 && !replaces && !pod.runs {
                self.start(&name);
            }
        }
        self.collect();
    }

    fn start(&mut self, name: &str) {
        if self.running_lead().is_some() {
            self.is_wrong(format!("{name} starts beside another"));
        }
        self.starts += 1;
        if self.final_ends > 0 {
            self.is_wrong(format!("{name} starts after an end for good"));
        }
        if let Some(pod) = self.pods.get_mut(name) {
            (pod.runs, pod.seen.running, pod.seen.ready, pod.seen.begun) = (true, true, true, true);
        }
        self.tell_pod(name);
    }

    /// What the failure policy makes of a pod: Some(true) fails the Job, Some(false) counts, None ignores.
    fn judged(pod: &PodSeen) -> Option<bool> {
        let code = pod.exit.as_ref().map_or(0, |exit| exit.code);
        if pod.is_disrupted() {
            return None;
        }
        Some(pod.labelled || code != i32::from(REPLACE))
    }

    fn controller(&mut self) {
        let Some(job) = self.job.clone() else {
            // Of a Job that is gone: the garbage collector deletes its pods, and nobody counts them.
            let names: Vec<String> = self.pods.keys().cloned().collect();
            for name in &names {
                if let Some(pod) = self.pods.get_mut(name) {
                    pod.has_finalizer = false;
                }
                if !self.pods[name].seen.deleting {
                    self.delete_pod(name);
                }
            }
            return self.collect();
        };
        let names: Vec<String> = self.pods.keys().cloned().collect();
        if job.seen.deleting {
            for name in &names {
                if let Some(pod) = self.pods.get_mut(name) {
                    pod.has_finalizer = false;
                }
                if !self.pods[name].seen.deleting {
                    self.delete_pod(name);
                }
            }
            self.collect();
            if job.seen.failing.is_some() && job.seen.failed.is_none() && self.pods.values().all(|pod| pod.seen.ended) {
                if let Some(job) = &mut self.job {
                    job.seen.failed = job.seen.failing.clone();
                }
                return self.tell_job();
            }
            if self.pods.is_empty() {
                self.news_of_jobs.push_back(News::Gone(job.uid));
                self.job = None;
            }
            return;
        }
        if job.seen.is_finished() {
            return;
        }
        let failed: Vec<PodSeen> = self
            .pods
            .values()
            .filter(|pod| pod.seen.ended && !pod.seen.succeeded)
            .map(|pod| pod.seen.clone())
            .collect();
        let mut seen = job.seen.clone();
        let succeeded = seen.has_succeeded
            || self.pods.values().any(|pod| pod.seen.index == 0 && pod.seen.succeeded && pod.has_finalizer);
        if seen.failing.is_none() && !seen.has_succeeded && failed.iter().any(|pod| World::judged(pod) == Some(true)) {
            seen.failing = verdict("PodFailurePolicy");
        }
        let limit = u32::try_from(self.backoff_limit).unwrap();
        if seen.failing.is_none()
            && !seen.has_succeeded
            && failed.iter().any(|pod| World::judged(pod) == Some(false) && pod.index_failures >= limit)
        {
            seen.failing = verdict("MaxFailedIndexesExceeded");
        }
        if seen.failing.is_some() || succeeded {
            seen.has_succeeded = seen.failing.is_none();
            // The pods first, then the word.
            for name in &self.all_active() {
                self.delete_pod(name);
            }
            let all_ended = self.pods.values().all(|pod| pod.seen.ended);
            for pod in self.pods.values_mut() {
                pod.has_finalizer = !pod.seen.ended;
            }
            self.collect();
            if seen.failing.is_some() && all_ended {
                seen.failed = seen.failing.clone();
            } else if succeeded && all_ended {
                seen.complete = verdict("SuccessPolicy");
            }
            if let Some(job) = &mut self.job {
                job.seen = seen;
            }
            return self.tell_job();
        }
        if seen.suspended {
            for name in &self.all_active() {
                if let Some(pod) = self.pods.get_mut(name) {
                    pod.has_finalizer = false;
                }
                self.delete_pod(name);
            }
            return self.collect();
        }
        for index in 0..SIZE {
            self.replace(&job, index);
        }
    }

    /// Makes the pod of an index that has none, with the counts of the last one that failed.
    fn replace(&mut self, job: &Job, index: u32) {
        let of_index = || self.pods.values().filter(|pod| pod.seen.index == index);
        if of_index().any(|pod| !pod.seen.ended || (pod.seen.succeeded && pod.has_finalizer)) {
            return;
        }
        let before = of_index().rfind(|pod| pod.has_finalizer && !pod.seen.succeeded).map(|pod| pod.seen.clone());
        let (failures, disruptions) = match &before {
            None => (0, 0),
            Some(pod) if World::judged(pod).is_some() => (pod.index_failures + 1, pod.index_disruptions),
            Some(pod) => (pod.index_failures, pod.index_disruptions + 1),
        };
        let name = format!("{:06}-mc-{index}", self.tick());
        let seen = PodSeen {
            name: name.clone(),
            job_uid: Some(job.uid.clone()),
            index,
            index_failures: failures,
            index_disruptions: disruptions,
            ready: index > 0,
            ..PodSeen::default()
        };
        for pod in self.pods.values_mut().filter(|pod| pod.seen.index == index) {
            pod.has_finalizer = false;
        }
        self.pods
            .insert(name.clone(), Pod { seen, runs: false, has_finalizer: true, restarts_left: job.restarts_left });
        self.tell_pod(&name);
        self.collect();
    }

    fn metadata(name: &str, uid: &str, version: u64) -> ObjectMeta {
        ObjectMeta {
            namespace: Some("ns".into()),
            name: Some(name.into()),
            uid: Some(uid.into()),
            resource_version: Some(version.to_string()),
            labels: Some([(labels::CLUSTER.to_owned(), "mc".to_owned())].into()),
            ..ObjectMeta::default()
        }
    }

    fn hear_job(&mut self) {
        match self.news_of_jobs.pop_front() {
            Some(News::Is((version, seen))) => {
                let uid = seen.uid.clone();
                drop(self.index.job(&World::metadata("mc", &uid, version), seen));
            }
            Some(News::Gone(uid)) => drop(self.index.gone(Kind::Job, &World::metadata("mc", &uid, 0))),
            None => {}
        }
    }

    fn hear_pod(&mut self) {
        match self.news_of_pods.pop_front() {
            Some(News::Is(seen)) => {
                let name = seen.name.clone();
                let (_, unlabelled) = self.index.pod(&World::metadata(&name, &name, 0), seen);
                // The chore, which takes its time elsewhere.
                if unlabelled.is_some()
                    && let Some(pod) = self.pods.get_mut(&name)
                {
                    pod.seen.labelled = true;
                }
            }
            Some(News::Gone(name)) => drop(self.index.gone(Kind::Pod, &World::metadata(&name, &name, 0))),
            None => {}
        }
    }

    /// A new operator lists everything.
    fn restart(&mut self, skew: i64) {
        self.index = Index::default();
        self.skew = skew;
        if self.job.is_none() && !self.pods.values().any(|pod| pod.seen.index == 0) {
            // Its Job was deleted, and all that told of its end is gone: nobody can know.
            self.final_ends = 0;
        }
        self.index.join(&Key::new("ns", "service"), "mc", false);
        self.news_of_jobs.clear();
        self.news_of_pods.clear();
        self.tell_job();
        let names: Vec<String> = self.pods.keys().cloned().collect();
        for name in names {
            self.tell_pod(&name);
        }
        while !self.news_of_jobs.is_empty() || !self.news_of_pods.is_empty() {
            self.hear_job();
            self.hear_pod();
        }
    }

    /// One reconcile, as `reconcile` does it. It is killed after `writes`.
    fn operator(&mut self, mut writes: u8) {
        let mut may = || {
            let may = writes > 0;
            writes = writes.saturating_sub(1);
            may
        };
        let now = Timestamp::from_second(1_000_000 + i64::try_from(self.version).unwrap() + self.skew).unwrap();
        let observed = self.index.observed(&Key::new("ns", "mc"));
        let mut known = self.status.1.clone();
        if recorded::is_finished(&known) {
            return;
        }
        if let Some(job) = observed.job.as_ref().or(observed.last_job.as_ref())
            && !is_given_up(&known, job)
        {
            for lost in &observed.losses {
                if !known.lost_pods.iter().any(|it| it.name == lost.name) {
                    known.lost_pods.push(LostPod { time: now.to_string(), ..lost.clone() });
                }
            }
        }
        let uid =
            observed.job.as_ref().or(observed.last_job.as_ref()).map(|job| job.uid.clone()).or(known.job_uid.clone());
        let decision = decide(&Observation {
            status: &known,
            backoff_limit: self.backoff_limit,
            max_restarts: self.max_restarts,
            on_failure: false,
            job: observed.job.as_ref(),
            last_job: observed.last_job.as_ref(),
            pods: observed.pods.values().filter(|pod| pod.job_uid == uid).collect(),
            gone: observed.gone_leads.iter().filter(|pod| pod.job_uid == uid).collect(),
            now,
        });
        match decision {
            Decision::Again { job_uid, is_there, reason, message, limit } => {
                // Asked once more, without a cache.
                let there = self.job.as_ref().map(|job| &job.uid);
                if there != is_there.then_some(&job_uid)
                    || self.job.as_ref().is_some_and(|job| job.seen.complete.is_some())
                {
                    return;
                }
                if may() {
                    self.write(counted(&known, &job_uid, &reason, &message, limit, now));
                }
                if may() && is_there {
                    self.delete_job_of(&job_uid);
                }
            }
            Decision::Delete { job_uid } => {
                if may() {
                    self.delete_job_of(&job_uid);
                }
            }
            Decision::Fail { job_uid, reason, .. } => {
                if may()
                    && let Some(job) = self.job.as_mut().filter(|job| job.uid == job_uid && job.seen.failing.is_none())
                {
                    job.seen.failing = verdict(&reason);
                    self.tell_job();
                }
            }
            Decision::Over { reason, .. } => {
                if may() {
                    self.finish(&reason);
                }
            }
            Decision::Wait => {}
            Decision::Goes => {
                let mut may_tell = true;
                let there = observed.job.as_ref().map(|job| unless_given_up(&known, job));
                match there.as_deref() {
                    None => {
                        if may() {
                            self.make_job();
                        } else {
                            may_tell = false;
                        }
                    }
                    Some(job) if job.is_finished() => {
                        if may() {
                            let reason = job.complete.as_ref().or(job.failed.as_ref()).map(|it| it.reason.clone());
                            self.finish(&reason.unwrap_or_default());
                        }
                        return;
                    }
                    Some(_) => {}
                }
                // The status tells of the Job, and of what was lost.
                let seen = self.index.observed(&Key::new("ns", "mc")).job;
                let seen = seen.filter(|job| !is_given_up(&known, job));
                known.job_uid = seen.map(|job| job.uid).or(known.job_uid.clone());
                if may_tell && known != self.status.1 && may() {
                    self.write(known);
                }
            }
        }
    }

    fn write(&mut self, status: MiniClusterStatus) {
        let version = self.tick();
        self.status = (version, status);
    }

    fn finish(&mut self, reason: &str) {
        let mut status = self.status.1.clone();
        status.conditions.push(flux_shared::crd::v1alpha2::Condition {
            type_: "JobFinished".into(),
            status: "True".into(),
            observed_generation: None,
            last_transition_time: "2026-01-01T00:00:00Z".into(),
            reason: reason.into(),
            message: String::new(),
        });
        self.write(status);
    }

    fn delete_job_of(&mut self, uid: &str) {
        if let Some(job) = self.job.as_mut().filter(|job| job.uid == uid) {
            job.seen.deleting = true;
            self.tell_job();
        }
    }

    fn make_job(&mut self) {
        if self.job.is_some() {
            return;
        }
        let used = self.status.1.backoff_limit_used;
        self.jobs += 1;
        self.lost_follower = false;
        let uid = format!("job-{}", self.tick());
        let seen = JobSeen { uid: uid.clone(), completions: SIZE, ..JobSeen::default() };
        let restarts_left = u32::try_from(self.backoff_limit - used).unwrap_or(0);
        self.job = Some(Job { uid: uid.clone(), restarts_left, seen: seen.clone() });
        let version = self.tick();
        self.news_of_jobs.push_back(News::Is((version, seen.clone())));
        // The answer of the API server, before any watch.
        drop(self.index.job(&World::metadata("mc", &uid, version), seen));
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::ProgramEnds(code) => {
                if let Some(lead) = self.running_lead() {
                    // A failure beside a follower that was taken away may be for its sake.
                    let for_a_follower =
                        self.lost_follower && self.status.1.max_restarts_used < self.max_restarts && code != 0;
                    // What ends after its Job was deleted leaves nothing that another operator could see.
                    // Nor does a failure in the time that a pod has left, if nobody has seen it.
                    let is_going = self.pods[&lead].seen.deleting && code != 0;
                    let allowed = for_a_follower || is_going || self.job.is_none();
                    self.final_ends += u32::from(!allowed);
                    self.end(&lead, Termination::new(Ender::Program, code));
                }
            }
            Event::NodeFails => {
                if let Some(lead) = self.running_lead() {
                    let is_going = self.pods[&lead].seen.deleting;
                    let allowed = self.status.1.max_restarts_used < self.max_restarts || is_going || self.job.is_none();
                    self.final_ends += u32::from(!allowed);
                    self.end(&lead, Termination { node_failure: true, ..Termination::new(Ender::Program, 1) });
                }
            }
            Event::Evict(index) => {
                if let Some(name) = self.active(index) {
                    if let Some(pod) = self.pods.get_mut(&name) {
                        let disruption = Trouble { reason: "Evicted".into(), disruption: true, ..Trouble::default() };
                        pod.seen.trouble = Some(disruption);
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
            Event::DeleteJob => {
                // In the background, and only one that has not finished (that is for another test), of which the status tells:
                // nobody remembers one that goes before that together with the operator. The watch of pods is taken to lag less
                // than a person who deletes it: an end that it has not told of would be forgotten with the pod.
                while !self.news_of_pods.is_empty() {
                    self.hear_pod();
                }
                let told = self.status.1.job_uid.clone();
                let is_on = |job: &mut Job| {
                    !job.seen.is_finished()
                        && job.seen.failing.is_none()
                        && !job.seen.deleting
                        && told.as_ref() == Some(&job.uid)
                };
                if let Some(job) = self.job.take_if(is_on) {
                    self.news_of_jobs.push_back(News::Gone(job.uid));
                }
            }
            Event::Suspend(suspend) => {
                if let Some(job) =
                    self.job.as_mut().filter(|job| !job.seen.is_finished() && job.seen.suspended != suspend)
                {
                    job.seen.suspended = suspend;
                    self.tell_job();
                }
            }
            Event::Kubelets => self.kubelets(),
            Event::Controller => self.controller(),
            Event::NewsOfJobs => self.hear_job(),
            Event::NewsOfPods => self.hear_pod(),
            Event::Operator(writes) => self.operator(writes),
            Event::Restart(skew) => self.restart(skew),
        }
    }

    /// What holds at any time; starts that a suspension asked for are nobody's loss.
    fn check(&mut self, suspensions: u32) {
        let status = &self.status.1;
        let (used, also) = (status.backoff_limit_used, status.max_restarts_used);
        let counted = u32::try_from(status.restart_count).unwrap();
        let wrong = match () {
            () if used > self.backoff_limit => Some(format!("{used} starts of {}", self.backoff_limit)),
            () if also > self.max_restarts => Some(format!("{also} restarts of {}", self.max_restarts)),
            () if self.jobs > 1 + counted => Some(format!("{} Jobs, {counted} counted", self.jobs)),
            () if self.starts > 1 + counted + suspensions => Some(format!("{} starts, {counted} counted", self.starts)),
            () => None,
        };
        if let Some(wrong) = wrong {
            self.is_wrong(wrong);
        }
    }

    /// Nothing goes wrong any more: where does it end?
    fn settle(&mut self) {
        for _ in 0..60 {
            for event in [Event::Suspend(false), Event::Kubelets, Event::Controller] {
                self.happen(event);
            }
            while !self.news_of_jobs.is_empty() || !self.news_of_pods.is_empty() {
                self.hear_job();
                self.hear_pod();
            }
            self.operator(9);
        }
    }
}

fn event() -> impl Strategy<Value = Event> {
    let code = || prop_oneof![Just(0), Just(1), Just(238), Just(239), Just(243), Just(255)];
    prop_oneof![
        2 => code().prop_map(Event::ProgramEnds),
        1 => Just(Event::NodeFails),
        3 => (0..SIZE).prop_map(Event::Evict),
        2 => (0..SIZE).prop_map(Event::Delete),
        1 => prop_oneof![Just(3), Just(137)].prop_map(Event::FollowerFails),
        1 => Just(Event::DeleteJob),
        8 => Just(Event::Kubelets),
        10 => Just(Event::Controller),
        10 => Just(Event::NewsOfJobs),
        14 => Just(Event::NewsOfPods),
        12 => prop_oneof![2 => 0..3_u8, 3 => Just(9)].prop_map(Event::Operator),
        2 => prop_oneof![Just(0), Just(600), Just(-600)].prop_map(Event::Restart),
    ]
}

fn played(backoff_limit: i32, max_restarts: i32, events: &[Event]) -> World {
    let mut world = World::new(backoff_limit, max_restarts);
    // It begins as it should, most of the time.
    for event in events {
        world.happen(*event);
        world.check(0);
        if world.wrong.is_some() {
            return world;
        }
    }
    world.settle();
    world.check(0);
    world
}

/// The lead was deleted, succeeded in the time it had left and was gone before a new operator came; then somebody deletes the Job.
#[test]
fn a_success_that_only_the_job_told_of_is_final() {
    let events = [
        Event::Operator(9),
        Event::Controller,
        Event::Kubelets,
        Event::Delete(0),
        Event::ProgramEnds(0),
        Event::Controller,
        Event::Restart(0),
        Event::DeleteJob,
    ];
    assert_eq!(played(1, 0, &events).wrong, None);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(1000), ..ProptestConfig::default() })]

    #[test]
    fn it_never_starts_more_often_than_allowed_and_never_hangs(
        backoff_limit in 0..3,
        max_restarts in 0..2,
        events in proptest::collection::vec(event(), 0..120),
    ) {
        let world = played(backoff_limit, max_restarts, &events);
        prop_assert_eq!(&world.wrong, &None);
        let is_over = recorded::is_finished(&world.status.1);
        prop_assert!(is_over || world.running_lead().is_some(), "it waits for ever: {:#?} {:#?} {:#?}", world.job, world.pods, world.status);
        let status = &world.status.1;
        prop_assert_eq!(status.restart_count, status.backoff_limit_used + status.max_restarts_used);
        prop_assert_eq!(world.jobs, 1 + u32::try_from(status.restart_count).unwrap() - u32::from(is_over && world.job.is_none() && world.jobs == u32::try_from(status.restart_count).unwrap()));
    }

    #[test]
    fn a_suspension_never_ends_it(
        events in proptest::collection::vec(prop_oneof![
            2 => any::<bool>().prop_map(Event::Suspend),
            4 => Just(Event::Kubelets), 5 => Just(Event::Controller), 5 => Just(Event::NewsOfJobs), 5 => Just(Event::NewsOfPods),
            5 => Just(Event::Operator(9)), 1 => Just(Event::Restart(600)),
        ], 0..120),
    ) {
        let mut world = World::new(0, 0);
        for event in &events {
            world.happen(*event);
        }
        world.settle();
        prop_assert_eq!(&world.wrong, &None);
        prop_assert!(world.running_lead().is_some(), "{:#?} {:#?} {:#?}", world.job, world.pods, world.status);
        prop_assert_eq!(world.status.1.backoff_limit_used, 0);
    }
}
