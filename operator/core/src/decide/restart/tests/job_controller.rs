//! The kubelets and the Job controller of the model.

use flux_shared::exit::{self, Category};

use super::*;
use crate::render::job::REPLACEMENTS;

/// What the pod failure policy decides about a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PolicyAction {
    Ignored,
    Counts,
    FailsIndex,
    FailsJob,
}

impl Pod {
    /// Whether the Job counts the pod as a success.
    fn succeeds(&self) -> bool {
        self.seen.has_succeeded && !self.is_unseen
    }
}

impl World {
    /// Removes the pods that are deleted, have ended and were counted.
    pub(super) fn collect(&mut self) {
        let is_gone = |pod: &Pod| pod.seen.is_deleting && pod.seen.has_ended && !pod.has_finalizer;
        let gone: Vec<String> = self
            .pods
            .iter()
            .filter(|(_, pod)| is_gone(pod))
            .map(|(name, _)| name.clone())
            .collect();
        for name in gone {
            self.pods.remove(&name);
            self.news_of_pods.push_back(News::Gone(name));
        }
    }

    /// The kubelets start pods, and report the end of others. Only a later `collect` removes an ended pod that is being
    /// deleted.
    pub(super) fn kubelets(&mut self) {
        self.collect();
        let names: Vec<String> = self.pods.keys().cloned().collect();
        for name in names {
            let pod = self.pods[&name].clone();
            if pod.seen.has_ended {
                continue;
            }
            let replaces = pod.seen.replaces();
            if pod.seen.is_deleting && pod.seen.index == 0 && !pod.seen.has_begun {
                // No container has started, so none has an exit code.
                if let Some(pod) = self.pods.get_mut(&name) {
                    pod.seen.has_ended = true;
                }
                self.report_pod(&name);
            } else if pod.seen.is_deleting || pod.seen.end_requested.is_some() {
                // A stopped follower asks for a replacement.
                let code = if pod.seen.index == 0 {
                    self.lead_stop_code
                } else {
                    exit::REPLACE
                };
                self.end(&name, Termination::new(Ender::Stop, code));
            } else if pod.seen.index == 0 && replaces && pod.restarts_left == 0 {
                // With a restart left, the agent of such a lead waits for the operator: no branch applies.
                let refused = Termination {
                    category: Some(Category::LeadLost),
                    ..Termination::new(Ender::Agent, Category::LeadLost.code())
                };
                self.end(&name, refused);
            } else if pod.seen.index == 0 && !replaces && !pod.runs {
                self.start(&name);
            }
        }
    }

    fn start(&mut self, name: &str) {
        if self.running_lead().is_some() {
            self.record_violation(format!("{name} starts beside another"));
        }
        self.starts += 1;
        if previous_status::is_finished(&self.status) {
            self.record_violation(format!("{name} starts after the end of the MiniCluster"));
        }
        if self.final_ends > 0 {
            self.record_violation(format!("{name} starts after an end for good"));
        }
        if let Some(pod) = self.pods.get_mut(name) {
            (
                pod.runs,
                pod.seen.is_running,
                pod.seen.is_ready,
                pod.seen.has_begun,
            ) = (true, true, true, true);
        }
        self.report_pod(name);
    }

    /// The first rule of `render::job`'s failure policy that matches. Without a match, the failure counts. Of a pod
    /// with `is_unseen`, the Job sees the code 255, which is retried.
    fn policy_action(pod: &Pod) -> PolicyAction {
        let fails_index = |exit: &Exit| !pod.is_unseen && !is_retried(exit.code);
        if pod.seen.is_disrupted() {
            PolicyAction::Ignored
        } else if pod.seen.exit.as_deref().is_some_and(fails_index) {
            PolicyAction::FailsIndex
        } else if pod.seen.is_labelled {
            PolicyAction::FailsJob
        } else {
            PolicyAction::Counts
        }
    }

    pub(super) fn controller(&mut self) {
        let Some(job) = self.job.clone() else {
            return self.clear_away();
        };
        if job.seen.is_deleting {
            return self.delete_job(job);
        }
        if job.seen.is_finished() {
            return;
        }
        let (seen, succeeded) = self.verdict_on(&job);
        if let Some(job) = self.job.as_mut().filter(|job| job.seen != seen) {
            job.seen = seen.clone();
            self.report_job();
        }
        if seen.failing.is_some() || succeeded {
            return self.end_job(seen, succeeded);
        }
        self.note_suspension();
        if seen.is_suspended {
            // The Job controller removes the finalizers of pods that it deletes for a suspension: they are not counted, and
            // the lead of the resumed Job is no replacement.
            for name in &self.all_active() {
                if let Some(pod) = self.pods.get_mut(name) {
                    pod.has_finalizer = false;
                }
                self.delete_pod(name);
            }
            return self.collect();
        }
        for index in 0..self.size {
            self.replace(&job, index);
        }
    }

    /// Sets the condition Suspended, and the Job's start time.
    fn note_suspension(&mut self) {
        let now = self.now();
        let Some(job) = &mut self.job else { return };
        let before = job.seen.start_time;
        if job.seen.is_suspended {
            job.seen.start_time = None;
        } else if job.has_suspended_condition || before.is_none() {
            job.seen.start_time = Some(now);
        }
        job.has_suspended_condition = job.seen.is_suspended;
        if job.seen.start_time != before {
            self.report_job();
        }
    }

    /// The Job is gone or is being deleted: the garbage collector deletes its pods, and nobody counts them.
    fn clear_away(&mut self) {
        let names: Vec<String> = self.pods.keys().cloned().collect();
        for name in &names {
            if let Some(pod) = self.pods.get_mut(name) {
                pod.has_finalizer = false;
            }
            if !self.pods[name].seen.is_deleting {
                self.delete_pod(name);
            }
        }
        self.collect();
    }

    fn delete_job(&mut self, job: Job) {
        self.clear_away();
        // A failing Job gets the condition Failed, even while it is being deleted.
        if job.seen.failing.is_some()
            && job.seen.failed.is_none()
            && self.pods.values().all(|pod| pod.seen.has_ended)
        {
            if let Some(job) = &mut self.job {
                job.seen.failed = job.seen.failing.clone();
            }
            return self.report_job();
        }
        if self.pods.is_empty() {
            self.news_of_jobs.push_back(News::Gone(job.uid));
            self.job = None;
        }
    }

    /// The Job as its pods make it, and whether its lead has succeeded.
    fn verdict_on(&self, job: &Job) -> (JobSeen, bool) {
        let failed: Vec<&Pod> = self
            .pods
            .values()
            .filter(|pod| pod.seen.has_ended && !pod.succeeds())
            .collect();
        let mut seen = job.seen.clone();
        let succeeded = seen.has_succeeded()
            || self
                .pods
                .values()
                .any(|pod| pod.seen.index == 0 && pod.succeeds() && pod.has_finalizer);
        let culprit = failed
            .iter()
            .find(|pod| World::policy_action(pod) == PolicyAction::FailsJob);
        if seen.failing.is_none()
            && !seen.has_succeeded()
            && let Some(culprit) = culprit
        {
            // The decision reads the pod's index from this message (`TrueCondition::index_of_pod`).
            let message = format!("Container mc for pod ns/{} failed with a code", culprit.seen.name);
            seen.failing =
                condition("PodFailurePolicy").map(|condition| TrueCondition { message, ..condition });
        }
        // As `render::job` sets `backoffLimitPerIndex`.
        let limit = u32::try_from(self.backoff_limit.max(REPLACEMENTS)).unwrap();
        for pod in failed.iter().filter(|pod| pod.has_finalizer) {
            let is_at_limit =
                || World::policy_action(pod) == PolicyAction::Counts && pod.seen.index_failures >= limit;
            if World::policy_action(pod) == PolicyAction::FailsIndex || is_at_limit() {
                if pod.seen.index == 0 {
                    seen.has_lead_index_failed = true;
                } else {
                    seen.failed_index.get_or_insert(pod.seen.index);
                }
            }
        }
        // Without `maxFailedIndexes`, a failed index fails the Job only once all indexes have ended. The model has at
        // most one follower.
        let have_followers_ended = self.size == 1
            || seen.failed_index.is_some()
            || self.pods.values().any(|pod| pod.seen.index > 0 && pod.succeeds());
        if seen.failing.is_none() && !succeeded && seen.has_lead_index_failed && have_followers_ended {
            seen.failing = condition("FailedIndexes");
        }
        (seen, succeeded)
    }

    /// Deletes the pods first. The Job is finished once all of them have ended.
    fn end_job(&mut self, mut seen: JobSeen, succeeded: bool) {
        seen.succeeding = if seen.failing.is_none() {
            condition("SuccessPolicy")
        } else {
            None
        };
        for name in &self.all_active() {
            self.delete_pod(name);
        }
        let all_ended = self.pods.values().all(|pod| pod.seen.has_ended);
        for pod in self.pods.values_mut() {
            pod.has_finalizer = !pod.seen.has_ended;
        }
        self.collect();
        if seen.failing.is_some() && all_ended {
            seen.failed = seen.failing.clone();
        } else if succeeded && all_ended {
            seen.complete = condition("SuccessPolicy");
        }
        if let Some(job) = &mut self.job {
            job.seen = seen;
        }
        self.report_job();
    }

    /// Creates the pod of an index that has none, with the counts of the last one that failed.
    fn replace(&mut self, job: &Job, index: u32) {
        let of_index = || self.pods.values().filter(|pod| pod.seen.index == index);
        let has_failed = if index == 0 {
            job.seen.has_lead_index_failed
        } else {
            job.seen.failed_index == Some(index)
        };
        if has_failed {
            return;
        }
        if of_index().any(|pod| !pod.seen.has_ended || (pod.succeeds() && pod.has_finalizer)) {
            return;
        }
        let before = of_index()
            .rfind(|pod| pod.has_finalizer && !pod.succeeds())
            .cloned();
        let (failures, disruptions) = match &before {
            None => (0, 0),
            Some(pod) if World::policy_action(pod) != PolicyAction::Ignored => {
                (pod.seen.index_failures + 1, pod.seen.index_disruptions)
            }
            Some(pod) => (pod.seen.index_failures, pod.seen.index_disruptions + 1),
        };
        // The number sorts `World::pods` by creation. The index is the last part but one, as in names of a Job's pods.
        let name = format!("{:06}-mc-{index}-x", self.tick());
        let seen = PodSeen {
            name: name.clone(),
            job_uid: Some(job.uid.clone()),
            index,
            index_failures: failures,
            index_disruptions: disruptions,
            // `start` makes a lead ready. Followers of the model are ready at once.
            is_ready: index > 0,
            ..PodSeen::default()
        };
        // The new pod's annotations count the earlier pods of its index, so the Job controller has counted them.
        for pod in self.pods.values_mut().filter(|pod| pod.seen.index == index) {
            pod.has_finalizer = false;
        }
        let restarts_left = job.restarts_left;
        let pod = Pod {
            seen,
            runs: false,
            has_finalizer: true,
            restarts_left,
            is_unseen: false,
        };
        self.pods.insert(name.clone(), pod);
        self.report_pod(&name);
        self.collect();
    }
}
