//! The watches and the operators of the model.

use super::*;
use crate::decide::ending;
use crate::observe::Observed;
use crate::testing;
use crate::vocabulary::ConditionType;
use flux_shared::crd::v1alpha2::ConditionStatus;

impl World {
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

    pub(super) fn deliver_job_news(&mut self) {
        match self.news_of_jobs.pop_front() {
            Some(News::Is((version, seen))) => {
                let uid = seen.uid.clone();
                drop(self.index.update_job(&World::metadata("mc", &uid, version), seen));
            }
            Some(News::Gone(uid)) => drop(self.index.remove(Kind::Job, &World::metadata("mc", &uid, 0))),
            None => {}
        }
    }

    pub(super) fn deliver_pod_news(&mut self) {
        match self.news_of_pods.pop_front() {
            Some(News::Is(seen)) => {
                let name = seen.name.clone();
                let update = self.index.update_pod(&World::metadata(&name, &name, 0), seen);
                // Labels the lead's pod, as the background task does.
                if update.unlabelled.is_some()
                    && let Some(pod) = self.pods.get_mut(&name)
                {
                    pod.seen.is_labelled = true;
                }
            }
            Some(News::Gone(name)) => drop(self.index.remove(Kind::Pod, &World::metadata(&name, &name, 0))),
            None => {}
        }
    }

    /// A new operator lists all objects.
    pub(super) fn replace_operator(&mut self, skew: i64) {
        self.index = Index::default();
        self.skew = skew;
        if self.job.is_none() && !self.pods.values().any(|pod| pod.seen.index == 0) {
            // The Job was deleted, and every trace of its end is gone, so nobody can know it.
            self.final_ends = 0;
        }
        // To the index, a MiniCluster exists if it uses a headless Service. Only then the index remembers the last Job
        // and the lead's pods that are gone.
        self.index.join(&Key::new("ns", "service"), "mc");
        self.news_of_jobs.clear();
        self.news_of_pods.clear();
        self.report_job();
        let names: Vec<String> = self.pods.keys().cloned().collect();
        for name in names {
            self.report_pod(&name);
        }
        while !self.news_of_jobs.is_empty() || !self.news_of_pods.is_empty() {
            self.deliver_job_news();
            self.deliver_pod_news();
        }
    }

    /// One reconcile, with the steps of `reconcile` that matter here. It stops after `writes`.
    pub(super) fn operator(&mut self, mut writes: u8) {
        let mut may_write = || {
            let may_write = writes > 0;
            writes = writes.saturating_sub(1);
            may_write
        };
        let (known, now) = self.known();
        match self.decision(&known, now) {
            Decision::Restart {
                job_uid,
                job_exists,
                reason,
                message,
                limit,
            } => {
                // The operator reads the Job once more, without a cache.
                let current_uid = self.job.as_ref().map(|job| &job.uid);
                let has_completed = self.job.as_ref().is_some_and(|job| job.seen.complete.is_some());
                if current_uid != job_exists.then_some(&job_uid) || has_completed {
                    return;
                }
                if may_write() {
                    let after = with_counted_restart(&known, &job_uid, &reason, &message, limit, now);
                    self.write(MiniClusterStatus {
                        reason: Some(reason),
                        ..after
                    });
                }
                if may_write() && job_exists {
                    self.delete_job_of(&job_uid);
                }
            }
            Decision::Delete { job_uid } => {
                if may_write() {
                    self.delete_job_of(&job_uid);
                }
            }
            // The model has no view that cannot be mounted.
            Decision::KeepJob { job_uid } => self.record_violation(format!("{job_uid} is kept")),
            Decision::EndPods { pods, .. } => {
                for name in pods {
                    if may_write()
                        && let Some(pod) = self.pods.get_mut(&name)
                    {
                        pod.seen.end_requested = Some(now);
                        self.report_pod(&name);
                    }
                }
            }
            Decision::Fail { job_uid, reason, .. } => {
                if may_write()
                    && let Some(job) = self
                        .job
                        .as_mut()
                        .filter(|job| job.uid == job_uid && job.seen.failing.is_none())
                {
                    job.seen.failing = condition(&reason);
                    self.report_job();
                }
            }
            Decision::Ended { reason, .. } => {
                if may_write() {
                    self.finish(&reason);
                }
            }
            Decision::Wait => {
                if may_write() {
                    self.write(MiniClusterStatus {
                        reason: Some("WaitingForPods".into()),
                        ..known
                    });
                }
            }
            Decision::Continue if previous_status::is_finished(&known) => {}
            Decision::Continue => self.create_job_or_write_status(known, now, may_write),
        }
    }

    /// The status with the losses that the watches have seen since, and the time by the operator's clock.
    fn known(&self) -> (MiniClusterStatus, Timestamp) {
        let now =
            Timestamp::from_second(1_000_000 + i64::try_from(self.version).unwrap() + self.skew).unwrap();
        let observed = self.index.observed(&Key::new("ns", "mc"));
        let mut known = self.status.clone();
        if let Some(job) = observed.job.as_ref().or(observed.last_job.as_deref())
            && !is_given_up(&known, job)
        {
            for lost in &observed.losses {
                if !known.lost_pods.iter().any(|pod| pod.name == lost.name) {
                    known.lost_pods.push(LostPod {
                        time: now.to_string(),
                        ..lost.clone()
                    });
                }
            }
        }
        (known, now)
    }

    fn decision(&self, known: &MiniClusterStatus, now: Timestamp) -> Decision {
        decide(&self.observation(known, now, &self.index.observed(&Key::new("ns", "mc"))))
    }

    fn with_decided_end(&self, known: &MiniClusterStatus, now: Timestamp, job: &JobSeen) -> JobSeen {
        let observed = self.index.observed(&Key::new("ns", "mc"));
        ending::with_decided_end(&self.observation(known, now, &observed), job, now).into_owned()
    }

    fn observation<'a>(
        &self,
        known: &'a MiniClusterStatus,
        now: Timestamp,
        observed: &'a Observed,
    ) -> Observation<'a> {
        let uid = observed
            .job
            .as_ref()
            .or(observed.last_job.as_deref())
            .map(|job| job.uid.clone())
            .or(known.job_uid.clone());
        Observation {
            status: known,
            is_spec_valid: true,
            backoff_limit: self.backoff_limit,
            max_restarts: self.max_restarts,
            lead_is_elsewhere: false,
            restarts_on_failure: false,
            min_size: None,
            job: observed.job.as_ref(),
            last_job: observed.last_job.as_deref(),
            pods: observed
                .pods
                .values()
                .map(Box::as_ref)
                .filter(|pod: &&PodSeen| pod.job_uid == uid)
                .collect(),
            gone: observed
                .gone_leads
                .iter()
                .filter(|pod| pod.job_uid == uid)
                .collect(),
            now,
        }
    }

    /// Creates the Job if it is missing, and writes a status with the Job and the losses, or with the end.
    fn create_job_or_write_status(
        &mut self,
        mut known: MiniClusterStatus,
        now: Timestamp,
        mut may_write: impl FnMut() -> bool,
    ) {
        let observed = self.index.observed(&Key::new("ns", "mc"));
        match observed
            .job
            .as_ref()
            .map(|job| without_end_if_given_up(&known, job))
            .as_deref()
        {
            None if may_write() => self.create_job(),
            None => return,
            Some(job) if self.with_decided_end(&known, now, job).is_finished() => {
                let job = self.with_decided_end(&known, now, job);
                if may_write() {
                    let reason = job
                        .complete
                        .as_ref()
                        .or(job.failed.as_ref())
                        .map(|end| end.reason.clone());
                    self.finish(&reason.unwrap_or_default());
                }
                return;
            }
            Some(_) => {}
        }
        let seen = self.index.job(&Key::new("ns", "mc"));
        let seen = seen.filter(|job| !is_given_up(&known, job));
        known.job_uid = seen.map(|job| job.uid).or(known.job_uid.clone());
        if known != self.status && may_write() {
            self.write(known);
        }
    }

    fn write(&mut self, status: MiniClusterStatus) {
        self.tick();
        self.status = status;
    }

    fn finish(&mut self, reason: &str) {
        let mut status = self.status.clone();
        status.conditions.push(testing::condition(
            ConditionType::JobFinished,
            ConditionStatus::True,
            reason,
        ));
        self.write(status);
    }

    fn delete_job_of(&mut self, uid: &str) {
        if let Some(job) = self.job.as_mut().filter(|job| job.uid == uid) {
            job.seen.is_deleting = true;
            self.report_job();
        }
    }

    fn create_job(&mut self) {
        if self.job.is_some() {
            return;
        }
        let used = self.status.backoff_limit_used;
        self.jobs += 1;
        self.lost_follower = false;
        let uid = format!("job-{}", self.tick());
        let seen = JobSeen {
            uid: uid.clone(),
            completions: self.size,
            ..JobSeen::default()
        };
        let restarts_left = u32::try_from(self.backoff_limit - used).unwrap_or(0);
        self.job = Some(Job {
            uid: uid.clone(),
            restarts_left,
            seen: seen.clone(),
            has_suspended_condition: false,
        });
        let version = self.tick();
        self.news_of_jobs.push_back(News::Is((version, seen.clone())));
        // The API server's answer arrives before any watch event.
        drop(self.index.update_job(&World::metadata("mc", &uid, version), seen));
    }
}
