//! The words in conditions, reasons and events, each with its meaning. The reference (`docs/reference`) is
//! made from them, and a test (`tests/docs`) checks them against the code and the headings of
//! `docs/troubleshooting.md`.

/// A condition's type, and what it means where it is true and where it is not.
#[derive(Debug)]
pub struct ConditionType {
    pub name: &'static str,
    pub when_true: &'static str,
    pub when_false: &'static str,
}

const fn condition(name: &'static str, when_true: &'static str, when_false: &'static str) -> ConditionType {
    ConditionType {
        name,
        when_true,
        when_false,
    }
}

/// Every type of a condition.
pub const CONDITIONS: &[ConditionType] = &[
    condition(
        "Valid",
        "every field can be used",
        "a field cannot be used, the API server refuses the pods, or the Job does not match the spec",
    ),
    condition(
        "Ready",
        "enough brokers are ready, or the job has completed",
        "too few brokers are ready (the reason says why), or the job has failed",
    ),
    condition(
        "Complete",
        "the job has ended with exit code 0",
        "it has not ended (`NotFinished`), or it has failed",
    ),
    condition(
        "Failed",
        "the job has failed",
        "it has not ended (`NotFinished`), or it has completed",
    ),
    condition(
        "Suspended",
        "the Job is suspended: it has no pods",
        "the Job is not suspended",
    ),
    condition("Reconciling", "the MiniCluster is starting; otherwise absent", ""),
    condition(
        "Stalled",
        "the MiniCluster needs a user's action: it has failed, its spec is not valid, or a name is taken; otherwise absent",
        "",
    ),
    condition(
        "JobRequested",
        "the Job has been created",
        "it has not been created; the reason says why",
    ),
    condition(
        "JobWaitingForResources",
        "not all pods run yet",
        "all pods run, or none is wanted",
    ),
    condition(
        "JobRunning",
        "the lead's container runs; `Unknown` where its node does not answer",
        "the lead's container does not run",
    ),
    condition(
        "JobMiniClusterReady",
        "enough brokers are ready",
        "too few brokers are ready, or the job has ended",
    ),
    condition(
        "JobFinished",
        "the job has completed or failed",
        "it has not ended",
    ),
    condition(
        "ViewMounted",
        "the view's image is mounted; absent if that was not tried",
        "it could not be mounted, so the view is copied",
    ),
    condition(
        "VolumesValid",
        "no CSI volume of `spec.volumes` shares its handle or lacks its storage class; absent without such volumes",
        "a handle is shared, or a storage class does not exist",
    ),
    condition(
        "ArchiveSaved",
        "the archive was saved; absent without `archive`",
        "it was not saved and is unchanged",
    ),
    condition(
        "PostSucceeded",
        "`post` ended with exit code 0 in the lead's pod; absent without `post`, and before it is known",
        "`post` failed in a pod: the message has its last error. The job's result stands",
    ),
    condition(
        "CleanedUp",
        "`cleanupPods` has deleted pods and volumes; otherwise absent",
        "",
    ),
    condition(
        "OperatorPanicked",
        "this MiniCluster triggers a bug in the operator; otherwise absent",
        "",
    ),
];

/// What a reason is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// Nothing is wrong.
    Progress,
    /// The spec is as it should be, or not.
    Spec,
    /// It does not start, or not yet.
    Start,
    /// It has ended with a failure.
    End,
    /// The whole MiniCluster restarts, or a pod was lost.
    Loss,
}

impl Of {
    /// Each with its title in the reference.
    pub const ALL: [(Of, &'static str); 5] = [
        (Of::Progress, "Nothing is wrong"),
        (Of::Spec, "The spec, its view and its volumes"),
        (Of::Start, "It does not start, or not yet"),
        (Of::End, "It has failed"),
        (Of::Loss, "It restarts, or a pod was lost"),
    ];
}

/// A reason: of a condition, of `status.reason`, of `status.restarts` and `status.lostPods`, of an event.
#[derive(Debug)]
pub struct Reason {
    pub name: &'static str,
    pub of: Of,
    pub meaning: &'static str,
}

/// The type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventType {
    Normal,
    Warning,
}

/// The type of a reason's event, if it has one. A reason that is not ours is a warning.
pub fn event_type(reason: &str) -> Option<EventType> {
    let known = REASONS.iter().find(|known| known.name == reason);
    known.map_or(Some(EventType::Warning), Reason::event)
}

impl Reason {
    /// The type of its event, if it has one.
    pub fn event(&self) -> Option<EventType> {
        match (self.name, self.of) {
            ("ValidWithNotes" | "Completed", _) => Some(EventType::Normal),
            (
                "ViewCopied" | "NotSaved" | "Defect" | "Deleted" | "Gone" | "Valid" | "ImageVolume"
                | "ImageVolumeUnsure" | "WaitingForPrevious" | "Queued" | "Requeued",
                _,
            )
            | (_, Of::Progress) => None,
            _ => Some(EventType::Warning),
        }
    }
}

const fn reason(of: Of, name: &'static str, meaning: &'static str) -> Reason {
    Reason { name, of, meaning }
}

/// Every reason of the operator, and those of Kubernetes that it knows. Others it passes on unchanged.
pub const REASONS: &[Reason] = &[
    reason(Of::Progress, "NotRequested", "there is no Job yet"),
    reason(Of::Progress, "JobCreated", "the Job was created"),
    reason(
        Of::Progress,
        "PodsStarting",
        "pods are starting: the message counts them",
    ),
    reason(Of::Progress, "PodsRunning", "all pods run"),
    reason(Of::Progress, "LeadRunning", "the lead's container runs"),
    reason(
        Of::Progress,
        "LeadNotRunning",
        "the lead's container does not run (yet)",
    ),
    reason(Of::Progress, "BrokersReady", "enough brokers are ready"),
    reason(Of::Progress, "NotFinished", "the job has not ended"),
    reason(Of::Progress, "NotSuspended", "the Job is not suspended"),
    reason(Of::Progress, "Suspended", "the Job is suspended: it has no pods"),
    reason(Of::Progress, "Completed", "the job ended with exit code 0"),
    reason(Of::Progress, "Saved", "the archive was saved"),
    reason(Of::Progress, "PostCompleted", "`post` ended with exit code 0"),
    reason(Of::Progress, "None", "no specific reason"),
    reason(Of::Spec, "Valid", "every field can be used"),
    reason(
        Of::Spec,
        "ValidWithNotes",
        "every field can be used, but one may not have the effect that was meant",
    ),
    reason(
        Of::Spec,
        "Invalid",
        "a field cannot be used: the message names each",
    ),
    reason(
        Of::Spec,
        "SizeBeyondMaximum",
        "`size` is larger than the maximum fixed when the cluster was created",
    ),
    reason(
        Of::Spec,
        "SizeHeldByQueue",
        "`size` was changed, but the queue holds the Job to the admitted number of pods",
    ),
    reason(
        Of::Spec,
        "ChangedTooLate",
        "the spec was changed while its Job was being created: the earlier one runs",
    ),
    reason(
        Of::Spec,
        "PodTemplateRefused",
        "the API server refuses the pods as `podTemplate` or `servicesPodTemplate` patches them",
    ),
    reason(
        Of::Spec,
        "ImageVolume",
        "the view's image is mounted: nothing is copied",
    ),
    reason(
        Of::Spec,
        "ImageVolumeUnsure",
        "the view's image is mounted, though not every node is known to support that",
    ),
    reason(
        Of::Spec,
        "ImageVolumeFailed",
        "a node could not mount the view's image: the Job is recreated with a copy of the view",
    ),
    reason(
        Of::Spec,
        "ViewCopied",
        "the view is copied, since a node that the pods may use cannot mount images",
    ),
    reason(
        Of::Spec,
        "SharedHandle",
        "a CSI volume has the handle of another PersistentVolume",
    ),
    reason(
        Of::Spec,
        "UnknownStorageClass",
        "a volume names a storage class that is not in the cluster",
    ),
    reason(
        Of::Spec,
        "NotSaved",
        "the archive was not saved: the message says why",
    ),
    reason(Of::Spec, "ArchiveNotSaved", "the event of `NotSaved`"),
    reason(Of::Spec, "OperatorPanicked", "the event of a bug in the operator"),
    reason(
        Of::Spec,
        "Defect",
        "the reason of the condition `OperatorPanicked`",
    ),
    reason(
        Of::Start,
        "BrokersNotReady",
        "too few brokers are ready; after 20 s the message says what they wait for",
    ),
    reason(
        Of::Start,
        "SizeBelowQuorum",
        "`size` was lowered below the number of brokers that the command waits for before it starts",
    ),
    reason(
        Of::Start,
        "Queued",
        "the MiniCluster waits in a queue, or for more pods: the message has the queue's name and Kueue's reason",
    ),
    reason(
        Of::Start,
        "Forbidden",
        "the API server forbids the operator an object that the MiniCluster needs",
    ),
    reason(
        Of::Start,
        "Refused",
        "the API server refuses an object that the MiniCluster needs, for example by an admission policy",
    ),
    reason(
        Of::Start,
        "ApiError",
        "the API server, or an admission webhook behind it, fails or does not answer: the message has its words",
    ),
    reason(
        Of::Start,
        "NamespaceTerminating",
        "the namespace is being deleted: nothing is created in it",
    ),
    reason(
        Of::Start,
        "JobUnlabelled",
        "the MiniCluster's own Job lacks the operator's label",
    ),
    reason(
        Of::Start,
        "NameTaken",
        "another object already has the name of one that the MiniCluster needs",
    ),
    reason(
        Of::Start,
        "TooLarge",
        "an object would be larger than the API server accepts",
    ),
    reason(
        Of::Start,
        "Unsupported",
        "this Kubernetes is too old for a field of the spec",
    ),
    reason(
        Of::Start,
        "GangUnavailable",
        "`gang` is on, and the cluster has no gang API that the operator uses",
    ),
    reason(
        Of::Start,
        "WaitingForPrevious",
        "an object of an earlier MiniCluster of this name is still being deleted",
    ),
    reason(
        Of::Start,
        "WaitingForPods",
        "pods of a deleted Job, or of an earlier MiniCluster of this name, may still run",
    ),
    reason(
        Of::Start,
        "FailedCreate",
        "the API server refuses the Job's pods (set by Kubernetes)",
    ),
    reason(
        Of::Start,
        "SecretDeleted",
        "a Secret that new pods need was deleted",
    ),
    reason(
        Of::Start,
        "Unschedulable",
        "no node has room for a pod or fits it (set by Kubernetes)",
    ),
    reason(
        Of::Start,
        "SchedulingGated",
        "a pod has a scheduling gate, for example set by a queue (set by Kubernetes)",
    ),
    reason(
        Of::Start,
        "SchedulerError",
        "the scheduler failed while it placed a pod, and tries again (set by Kubernetes)",
    ),
    reason(
        Of::Start,
        "SchedulerSilent",
        "no scheduler of the pods' `schedulerName` has said anything about a pod",
    ),
    reason(
        Of::Start,
        "ErrImagePull",
        "an image cannot be pulled (set by Kubernetes)",
    ),
    reason(
        Of::Start,
        "ImagePullBackOff",
        "an image could not be pulled, and is tried again later (set by Kubernetes)",
    ),
    reason(
        Of::Start,
        "InvalidImageName",
        "an image's name is not valid (set by Kubernetes)",
    ),
    reason(
        Of::Start,
        "ErrImageNeverPull",
        "an image is not on the node, and must not be pulled (set by Kubernetes)",
    ),
    reason(
        Of::Start,
        "CreateContainerError",
        "the node could not create a container (set by Kubernetes)",
    ),
    reason(
        Of::Start,
        "FailedMount",
        "a volume could not be mounted (set by Kubernetes)",
    ),
    reason(
        Of::Start,
        "NotStarted",
        "the lead's pod ended before its program had started",
    ),
    reason(
        Of::Start,
        "InitFailed",
        "one of the agent's init containers has failed",
    ),
    reason(
        Of::End,
        "SidecarStillRuns",
        "the job ended with exit code 0, and a container that is not the MiniCluster's keeps a pod alive",
    ),
    reason(
        Of::End,
        "NonZeroExitCode",
        "the command ended with an exit code other than 0",
    ),
    reason(Of::End, "Signalled", "a signal ended the command"),
    reason(
        Of::End,
        "OOMKilled",
        "the container used more memory than its limit (set by Kubernetes)",
    ),
    reason(Of::End, "SnippetFailed", "a snippet of `commands` has failed"),
    reason(
        Of::End,
        "PostFailed",
        "`post` failed in a pod; the job's result stands",
    ),
    reason(
        Of::End,
        "Stopped",
        "the pod was stopped before its program had ended",
    ),
    reason(Of::End, "DeadlineExceeded", "`deadlineSeconds` exceeded"),
    reason(
        Of::End,
        "JobFailed",
        "the Job has failed, and no pod is left that shows why",
    ),
    reason(
        Of::End,
        "LeadFailed",
        "the lead has failed on its own, after it had replaced a pod or while it was disrupted",
    ),
    reason(
        Of::End,
        "AgentFailed",
        "the agent failed without giving a category",
    ),
    reason(
        Of::End,
        "LeadLost",
        "the lead's pod was lost: the MiniCluster restarts, or `backoffLimit` is reached",
    ),
    reason(Of::End, "SpecUnreadable", "exit code 240"),
    reason(Of::End, "SpecInvalid", "exit code 241"),
    reason(Of::End, "ViewMissing", "exit code 242"),
    reason(Of::End, "ParentUnreachable", "exit code 243"),
    reason(Of::End, "UserFailed", "exit code 244"),
    reason(Of::End, "WriteFailed", "exit code 245"),
    reason(Of::End, "CurveUnreadable", "exit code 246"),
    reason(Of::End, "ShellMissing", "exit code 247"),
    reason(Of::End, "BrokerFailed", "exit code 248"),
    reason(Of::End, "Internal", "exit code 249"),
    reason(
        Of::End,
        "BackoffLimitExceeded",
        "a pod was recreated as often as `backoffLimit` allows (set by Kubernetes)",
    ),
    reason(
        Of::End,
        "MaxFailedIndexesExceeded",
        "a pod has failed as often as allowed",
    ),
    reason(
        Of::End,
        "FailedIndexes",
        "all pods have ended, and some have failed (set by Kubernetes)",
    ),
    reason(
        Of::End,
        "PodFailurePolicy",
        "a pod's failure ended the Job, and no pod is left that shows why",
    ),
    reason(
        Of::Loss,
        "StartedAnew",
        "the event of a restart of the whole MiniCluster",
    ),
    reason(Of::Loss, "PodLost", "a follower was lost while the job ran on it"),
    reason(
        Of::Loss,
        "Requeued",
        "the queue has evicted the MiniCluster, which waits there again",
    ),
    reason(Of::Loss, "JobDeleted", "the Job was deleted"),
    reason(Of::Loss, "NodeLost", "a pod's node has stopped answering"),
    reason(
        Of::Loss,
        "NodeRestarted",
        "the pod's node, or its container runtime, was restarted, and nobody saw how the container ended",
    ),
    reason(Of::Loss, "Deleted", "the pod was deleted"),
    reason(Of::Loss, "Gone", "the pod is gone, for an unknown reason"),
    reason(
        Of::Loss,
        "Disrupted",
        "Kubernetes removed the pod without giving a reason",
    ),
    reason(
        Of::Loss,
        "Evicted",
        "the node evicted the pod, being short of memory or disk (set by Kubernetes)",
    ),
    reason(
        Of::Loss,
        "NodeShutdown",
        "the node was shut down (set by Kubernetes)",
    ),
    reason(
        Of::Loss,
        "Shutdown",
        "the node was shut down (set by older Kubernetes)",
    ),
    reason(
        Of::Loss,
        "Terminated",
        "the node was shut down (set by Kubernetes)",
    ),
    reason(
        Of::Loss,
        "Preempting",
        "the node needed the room for a critical pod (set by Kubernetes)",
    ),
    reason(
        Of::Loss,
        "ContainerStatusUnknown",
        "the node has lost track of the container (set by Kubernetes)",
    ),
];
