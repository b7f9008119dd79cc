//! Methods on the objects of one MiniCluster: which of them are remembered after their deletion, and which pods count
//! as lost.

use std::collections::HashSet;

use flux_shared::crd::v1alpha2::LostPod;

use super::job::JobSeen;
use super::pod::PodSeen;
use super::pod_end::{self, PodEnd, end_of, is_follower_failed_by_itself};
use super::{Kind, Observed, ServicesPodSeen};

/// Most deleted lead pods that are remembered. A lead that is replaced again and again must not fill the memory.
const LEADS_KEPT: usize = 4;

impl Observed {
    /// Whether nothing is known of the MiniCluster's objects.
    pub(super) fn is_empty(&self) -> bool {
        let Observed {
            job,
            pods,
            services_pod,
            services,
            gone_leads,
            losses,
            last_job,
            // It is never cleared: if it counted, the entry of a deleted MiniCluster would stay forever.
            job_version: _,
        } = self;
        job.is_none()
            && last_job.is_none()
            && pods.is_empty()
            && services_pod.is_none()
            && services.is_empty()
            && gone_leads.is_empty()
            && losses.is_empty()
    }

    /// Forgets the objects of `kind` for whose uid `is_gone` is true. Returns whether there were any. If the
    /// MiniCluster still exists (`is_alive`), the Job goes to `last_job` and its lead pods to `gone_leads`.
    pub(super) fn forget(&mut self, kind: Kind, is_alive: bool, is_gone: impl Fn(&str) -> bool) -> bool {
        match kind {
            Kind::Job => {
                let gone = self.job.take_if(|job| is_gone(&job.uid));
                let was_there = gone.is_some();
                match gone {
                    Some(gone) if is_alive => self.last_job = Some(Box::new(gone)),
                    // Otherwise the losses would count for the next MiniCluster of this name.
                    Some(_) => self.losses.clear(),
                    None => {}
                }
                was_there
            }
            Kind::Pod => {
                let before = self.pods.len();
                // If no Job is known, as after a restart of the operator, the lead pods of any Job are kept: whoever
                // reads them compares the Job.
                let job = self
                    .job
                    .as_ref()
                    .or(self.last_job.as_deref())
                    .map(|job| job.uid.as_str());
                let is_of_job = |pod: &PodSeen| job.is_none_or(|job| pod.job_uid.as_deref() == Some(job));
                let leads = self
                    .pods
                    .iter()
                    .filter(|(uid, pod)| is_alive && is_gone(uid) && pod.index == 0);
                let of_job: Vec<PodSeen> = leads
                    .filter(|(_, pod)| is_of_job(pod))
                    .map(|(_, pod)| PodSeen::clone(pod))
                    .collect();
                self.gone_leads.extend(of_job);
                let surplus = self.gone_leads.len().saturating_sub(LEADS_KEPT);
                self.gone_leads.drain(..surplus);
                self.pods.retain(|uid, _| !is_gone(uid));
                self.services_pod.take_if(|pod| is_gone(&pod.uid)).is_some() || self.pods.len() != before
            }
            Kind::Service => {
                let before = self.services.len();
                self.services.retain(|_, service| !is_gone(&service.uid));
                self.services.len() != before
            }
        }
    }

    /// Removes from `losses` the pods that the Job controller deletes because the Job is suspended or smaller, as `seen`
    /// shows. They were added if the watch of pods reported the deletion before the watch of Jobs reported this change.
    pub(super) fn forget_losses_explained_by(&mut self, seen: &JobSeen) {
        let Observed {
            job, losses, pods, ..
        } = self;
        let Some(before) = job.as_ref() else { return };
        let is_new_suspension = seen.is_suspended && !before.is_suspended;
        let shrinks = seen.completions < before.completions;
        let is_explained = |pod: &PodSeen| {
            is_new_suspension || (shrinks && pod.index >= seen.completions && !pod.is_disrupted())
        };
        losses.retain(|lost| {
            !pods
                .values()
                .any(|pod| pod.name == lost.name && pod.is_deleting && !pod.has_ended && is_explained(pod))
        });
    }

    /// Whether the uid of an object of `kind` is missing in `uids`.
    pub(super) fn lacks_any(&self, kind: Kind, uids: &HashSet<String>) -> bool {
        match kind {
            Kind::Job => self.job.iter().any(|job| !uids.contains(&job.uid)),
            Kind::Pod => {
                let services_pod = self.services_pod.iter().map(|pod| &pod.uid);
                self.pods
                    .keys()
                    .chain(services_pod)
                    .any(|uid| !uids.contains(uid))
            }
            Kind::Service => self.services.values().any(|service| !uids.contains(&service.uid)),
        }
    }

    /// Forgets what is remembered of objects that no longer exist.
    pub(super) fn clear_history(&mut self) {
        self.gone_leads.clear();
        self.losses.clear();
        self.last_job = None;
    }

    /// Adds the losses of pods that the watch reported before their Job, as the lists of a new operator may do.
    pub(super) fn add_losses_before_the_job(&mut self) {
        let lost: Vec<LostPod> = self
            .pods
            .values()
            .filter(|pod| self.is_loss(pod))
            .map(|pod| pod_end::loss(pod))
            .collect();
        self.losses.extend(lost);
        pod_end::shorten(&mut self.losses);
    }

    /// Whether the pod was removed from a running Job, but not by the Job controller. The Job controller removes pods
    /// when the Job ends, is suspended or shrinks. (If another pod's end has ended the Job, the index has already seen
    /// that end: the watch reports changes of pods in order.)
    pub(super) fn is_loss(&self, pod: &PodSeen) -> bool {
        let Some(job) = self
            .job
            .as_ref()
            .filter(|job| pod.job_uid.as_deref() == Some(job.uid.as_str()))
        else {
            return false;
        };
        let is_running = !job.is_finished() && job.failing.is_none() && !job.is_deleting && !job.is_suspended;
        let others = || self.pods_of(job).filter(|other| other.name != pod.name);
        let ended_by_itself = !matches!(end_of(pod), None | Some(PodEnd::Removed));
        pod.was_removed()
            && !ended_by_itself
            && is_running
            && !pod_end::was_stopped_by_suspension(job, pod)
            && pod.index < job.completions
            // No other pod has ended the Job: the lead has not ended, and no follower has failed. (If the lost pod is a
            // lead, another pod of index 0 is one that it replaced. So that pod has not ended the Job.)
            && !others().any(|other| {
                (other.index == 0 && pod.index > 0 && other.has_ended) || is_follower_failed_by_itself(other)
            })
    }

    /// A copy in which pods of the Job with the uid `job` are those of a new list (uid and pod), which has at least all
    /// lead pods. A lead pod that the list lacks goes to `gone_leads`. The watch may lag behind the list.
    pub fn with_pods(&self, job: &str, listed: Vec<(String, PodSeen)>) -> Observed {
        let mut updated = self.clone();
        let is_gone = |uid: &String, pod: &PodSeen| {
            pod.index == 0
                && pod.job_uid.as_deref() == Some(job)
                && !listed.iter().any(|(lead, _)| lead == uid)
        };
        let gone = updated
            .pods
            .iter()
            .filter(|(uid, pod)| is_gone(uid, pod))
            .map(|(uid, _)| uid.clone());
        for uid in gone.collect::<Vec<_>>() {
            updated
                .gone_leads
                .extend(updated.pods.remove(&uid).map(|pod| *pod));
        }
        for (uid, mut pod) in listed {
            let before = updated.pods.get(&uid).map(Box::as_ref);
            pod.remember(before);
            // The pod itself need not show this: the index also learns it from the node (`Index::update_silence`).
            pod.is_on_silent_node |= !pod.has_ended && before.is_some_and(|before| before.is_on_silent_node);
            updated.pods.insert(uid, Box::new(pod));
        }
        updated
    }

    /// Pods that may still run, of this Job or of an earlier one of the same name.
    pub fn living(&self) -> Vec<&PodSeen> {
        let pods = self.pods.values().map(Box::as_ref);
        pods.filter(|pod| !pod.has_ended).collect()
    }

    /// The Job, if the MiniCluster with this uid controls it, and not an earlier one of the same name.
    pub fn job_of(&self, uid: &str) -> Option<&JobSeen> {
        self.job.as_ref().filter(|job| job.is_of(uid))
    }

    /// Whether a container of the Job was ever started, or a pod of it has ended.
    pub fn has_begun(&self, job: &JobSeen) -> bool {
        job.has_ended_pods || self.pods_of(job).any(|pod| pod.has_begun)
    }

    /// The services pod, if the MiniCluster with this uid controls it.
    pub fn services_pod_of(&self, uid: &str) -> Option<&ServicesPodSeen> {
        self.services_pod
            .as_ref()
            .filter(|pod| pod.controller_uid.as_deref() == Some(uid))
    }

    /// The lead pods of this Job that are gone.
    pub fn gone_leads_of<'a>(&'a self, job: &'a JobSeen) -> impl Iterator<Item = &'a PodSeen> {
        self.gone_leads
            .iter()
            .filter(|pod| pod.job_uid.as_deref() == Some(job.uid.as_str()))
    }

    /// The pods of this Job that exist.
    pub fn pods_of<'a>(&'a self, job: &'a JobSeen) -> impl Iterator<Item = &'a PodSeen> {
        self.pods
            .values()
            .map(Box::as_ref)
            .filter(|pod: &&PodSeen| pod.job_uid.as_deref() == Some(job.uid.as_str()))
    }
}
