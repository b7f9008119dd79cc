//! The types of conditions and the reasons of conditions, statuses and events, each with its meaning. The reference
//! (`docs/reference`) is generated from them. A test (`tests/docs`) checks them against the code and the headings of
//! `docs/troubleshooting.md`, which explains the reasons whose meaning does not say all.
//!
//! A reason that the operator finds is a [`Reason`] until it becomes text in a status or an event. Such a text may also
//! be a reason from Kubernetes, Kueue or the agent. It can be compared with a [`Reason`].

use std::fmt;

use flux_shared::exit::Category;

/// Declares an enum for a closed set of words. A variant has the name of its word.
macro_rules! words {
    ($(#[$attribute:meta])* $type_:ident: $($word:ident)*) => {
        $(#[$attribute])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $type_ {
            $($word,)*
        }

        impl $type_ {
            /// All words, in the order of the reference pages.
            pub const ALL: &[$type_] = &[$($type_::$word),*];

            /// The word as it is written in a status or an event.
            pub const fn name(self) -> &'static str {
                match self {
                    $($type_::$word => stringify!($word),)*
                }
            }

            /// Parses a word. None: it is not in this set.
            pub fn parse(word: &str) -> Option<$type_> {
                match word {
                    $(stringify!($word) => Some($type_::$word),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $type_ {
            fn fmt(&self, formatter: &mut fmt::Formatter) -> fmt::Result {
                formatter.write_str(self.name())
            }
        }

        impl From<$type_> for String {
            fn from(word: $type_) -> String {
                word.name().to_owned()
            }
        }

        impl PartialEq<$type_> for str {
            fn eq(&self, other: &$type_) -> bool {
                $type_::parse(self) == Some(*other)
            }
        }

        impl PartialEq<$type_> for String {
            fn eq(&self, other: &$type_) -> bool {
                self.as_str() == other
            }
        }
    };
}

/// Declares the types of conditions, each with its meaning if it is true and its meaning if it is not.
macro_rules! conditions {
    ($($name:ident: $when_true:literal, $when_false:literal;)*) => {
        words! {
            /// A condition's type.
            ConditionType: $($name)*
        }

        impl ConditionType {
            /// What the condition means if it is true, and if it is not.
            pub const fn meanings(self) -> (&'static str, &'static str) {
                match self {
                    $(ConditionType::$name => ($when_true, $when_false),)*
                }
            }
        }
    };
}

conditions! {
    Valid:
        "every field can be used",
        "a field cannot be used, the API server refuses the pods, or the Job does not match the spec";
    Ready:
        "enough brokers are ready, or the job has completed",
        "too few brokers are ready (the reason says why), or the job has failed";
    Complete:
        "the job has ended with exit code 0",
        "it has not ended (`NotFinished`), or it has failed";
    Failed:
        "the job has failed",
        "it has not ended (`NotFinished`), or it has completed";
    Suspended:
        "the Job is suspended: it has no pods",
        "the Job is not suspended";
    Reconciling:
        "the MiniCluster is starting; otherwise absent",
        "";
    Stalled:
        "the MiniCluster needs a user's action: it has failed, its spec is not valid, or a name is taken; otherwise absent",
        "";
    JobRequested:
        "the Job has been created",
        "it has not been created; the reason says why";
    JobWaitingForResources:
        "not all pods run yet",
        "all pods run, or none is wanted";
    JobRunning:
        "the lead's container runs; `Unknown` where its node does not answer",
        "the lead's container does not run";
    JobMiniClusterReady:
        "enough brokers are ready",
        "too few brokers are ready, or the job has ended";
    JobFinished:
        "the job has completed or failed",
        "it has not ended";
    ViewMounted:
        "the view's image is mounted; absent if the view is copied for another reason, or not needed",
        "the view is copied: its image could not be mounted, or a node that the pods may use cannot mount images";
    VolumesValid:
        "no CSI volume of `spec.volumes` shares its handle or lacks its storage class; absent without such volumes",
        "a handle is shared, or a storage class does not exist";
    ArchiveSaved:
        "the archive was saved; absent without `archive`",
        "it was not saved and is unchanged";
    PostSucceeded:
        "`post` ended with exit code 0 in the lead's pod; absent without `post`, and before it is known",
        "`post` failed in a pod: the message has its last error. The job's result stands";
    CleanedUp:
        "`cleanupPods` has deleted pods and volumes; otherwise absent",
        "";
    OperatorPanicked:
        "this MiniCluster triggers a bug in the operator; otherwise absent",
        "";
}

/// What a reason is about: its group in the reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject {
    /// Nothing is wrong.
    Progress,
    /// The spec, its view and its volumes are valid, or not.
    Spec,
    /// The MiniCluster does not start, or not yet.
    Start,
    /// The MiniCluster has ended, mostly with a failure.
    End,
    /// The whole MiniCluster restarts, or a pod was lost.
    Loss,
}

impl Subject {
    /// Every group with its title in the reference.
    pub const ALL: [(Subject, &'static str); 5] = [
        (Subject::Progress, "Nothing is wrong"),
        (Subject::Spec, "The spec, its view and its volumes"),
        (Subject::Start, "It does not start, or not yet"),
        (Subject::End, "It has failed"),
        (Subject::Loss, "It restarts, or a pod was lost"),
    ];
}

/// The type of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventType {
    Normal,
    Warning,
}

/// The type of a reason's event. None: the reason has no event. A reason that the operator does not know is a warning.
pub fn event_type(reason: &str) -> Option<EventType> {
    Reason::parse(reason).map_or(Some(EventType::Warning), Reason::event)
}

/// Declares the reasons in groups: each with the type of its event, if it has one, and its meaning.
macro_rules! reasons {
    ($($subject:ident { $($name:ident $(=> $event:ident)?: $meaning:literal,)* })*) => {
        words! {
            /// A reason of a condition, of `status.reason`, `status.restarts` or `status.lostPods`, or of an event. The
            /// operator's own, and those of Kubernetes that it knows. It passes on others as text.
            Reason: $($($name)*)*
        }

        impl Reason {
            /// The reason's group in the reference.
            pub const fn subject(self) -> Subject {
                match self {
                    $($(Reason::$name)|* => Subject::$subject,)*
                }
            }

            /// What the reason means, in words for the reference.
            pub const fn meaning(self) -> &'static str {
                match self {
                    $($(Reason::$name => $meaning,)*)*
                }
            }

            /// The type of the reason's event. None: the reason has no event.
            pub fn event(self) -> Option<EventType> {
                // A list has one type, or none if the reason has no event.
                let types: &[EventType] = match self {
                    $($(Reason::$name => &[$(EventType::$event)?],)*)*
                };
                types.first().copied()
            }
        }
    };
}

reasons! {
    Progress {
        NotRequested: "there is no Job yet; after 10 s another reason says why",
        JobCreated: "the Job was created",
        PodsStarting: "pods are starting: the message counts them",
        PodsRunning: "all pods run",
        LeadRunning: "the lead's container runs",
        LeadNotRunning: "the lead's container does not run (yet)",
        BrokersReady: "enough brokers are ready",
        NotFinished: "the job has not ended",
        NotSuspended: "the Job is not suspended",
        Suspended: "the Job is suspended: it has no pods",
        Completed => Normal: "the job ended with exit code 0",
        Saved: "the archive was saved",
        PostCompleted: "`post` ended with exit code 0",
        None: "no specific reason",
    }
    Spec {
        Valid: "every field can be used",
        ValidWithNotes => Normal: "every field can be used, but one may not have the effect that was meant",
        Invalid => Warning: "a field cannot be used: the message names each",
        SizeBeyondMaximum => Warning: "`size` is larger than the maximum fixed when the cluster was created",
        SizeHeldByQueue => Warning:
            "`size` was changed, but the queue holds the Job to the admitted number of pods",
        ChangedTooLate => Warning:
            "the spec was changed while its Job was being created: the earlier one runs",
        PodTemplateRefused => Warning:
            "the API server refuses the pods as `podTemplate` or `servicesPodTemplate` patches them",
        ImageVolume: "the view's image is mounted: nothing is copied",
        ImageVolumeUnsure: "the view's image is mounted, though not every node is known to support that",
        ImageVolumeFailed => Warning:
            "a node could not mount the view's image: the Job is recreated with a copy of the view",
        ViewCopied: "the view is copied, since a node that the pods may use cannot mount images",
        SharedHandle => Warning: "a CSI volume has the handle of another PersistentVolume",
        UnknownStorageClass => Warning:
            "a volume names a storage class that is not in the cluster; the job may run anyway",
        NotSaved: "the archive was not saved: the message says why",
        ArchiveNotSaved => Warning: "the event of `NotSaved`",
        OperatorPanicked => Warning: "the event of a bug in the operator",
        Defect: "the reason of the condition `OperatorPanicked`",
    }
    Start {
        BrokersNotReady => Warning:
            "too few brokers are ready; after 20 s the message says what they wait for",
        SizeBelowQuorum => Warning:
            "`size` was lowered below the number of brokers that the command waits for before it starts",
        Queued:
            "the MiniCluster waits in a queue, or for more pods: the message has the queue's name and Kueue's reason",
        Forbidden => Warning: "the API server forbids the operator an object that the MiniCluster needs",
        Refused => Warning:
            "the API server refuses an object that the MiniCluster needs: the message names an invalid field or an admission policy. The operator retries",
        ApiError => Warning:
            "the API server, or an admission webhook behind it, fails or does not answer: the message has its words",
        NamespaceTerminating => Warning: "the namespace is being deleted: nothing is created in it",
        JobUnlabelled => Warning: "the MiniCluster's own Job lacks the operator's label",
        NameTaken => Warning: "another object already has the name of one that the MiniCluster needs",
        TooLarge => Warning: "an object would be larger than the API server accepts",
        Unsupported => Warning:
            "this Kubernetes is too old for a field of the spec: the message has the remedy",
        GangUnavailable => Warning: "`gang` is on, and the cluster has no gang API that the operator uses",
        WaitingForPrevious:
            "an object or pod of an earlier MiniCluster of this name is still being deleted",
        WaitingForPods => Warning:
            "pods of a deleted Job, or of an earlier MiniCluster of this name, may still run",
        FailedCreate => Warning: "the API server refuses the Job's pods (set by Kubernetes)",
        SecretDeleted => Warning: "a Secret that new pods need was deleted",
        Unschedulable => Warning: "no node has room for a pod or fits it (set by Kubernetes)",
        SchedulingGated => Warning:
            "a pod has a scheduling gate, for example set by a queue (set by Kubernetes)",
        SchedulerError => Warning:
            "the scheduler failed while it placed a pod, and retries; usually the API server or a plugin of the scheduler did not answer (set by Kubernetes)",
        SchedulerSilent => Warning: "no scheduler of the pods' `schedulerName` has reported on a pod",
        ErrImagePull => Warning: "an image cannot be pulled (set by Kubernetes)",
        ImagePullBackOff => Warning:
            "an image could not be pulled, and is tried again later (set by Kubernetes)",
        InvalidImageName => Warning:
            "an image's name is not valid: for example, it has capitals or blanks (set by Kubernetes)",
        ErrImageNeverPull => Warning:
            "an image is not on the node, and has `imagePullPolicy: Never` (set by Kubernetes)",
        CreateContainerError => Warning:
            "the node could not create a container: for example, a device is missing, or the image lacks the working directory or program (set by Kubernetes)",
        FailedMount => Warning:
            "a volume could not be mounted: a claim, ConfigMap or Secret does not exist, the node lacks the directory of a `hostPath`, or the storage does not answer (set by Kubernetes)",
        NotStarted => Warning:
            "the lead's pod ended before its program had started: it is retried up to `backoffLimit` times",
        InitFailed => Warning: "one of the agent's init containers has failed",
    }
    End {
        SidecarStillRuns => Warning:
            "the job ended with exit code 0, and a container that is not the MiniCluster's keeps a pod alive",
        NonZeroExitCode => Warning: "the command ended with an exit code other than 0",
        Signalled => Warning: "a signal ended the command",
        OOMKilled => Warning: "the container used more memory than its limit (set by Kubernetes)",
        SnippetFailed => Warning: "a snippet of `commands` has failed",
        PostFailed => Warning: "`post` failed in a pod; the job's result stands",
        Stopped => Warning:
            "the container that runs Flux was stopped before its program had ended: its pod was removed, its node was shut down, or a `livenessProbe` or `lifeCycle.postStartExec` failed (see the events of `kubectl describe pod`)",
        DeadlineExceeded => Warning: "the job had not ended after `deadlineSeconds`",
        Failed: "the job has failed: the reason of the condition `Failed` says why",
        JobFailed => Warning: "the Job has failed, and no pod is left that shows why",
        LeadFailed => Warning:
            "the lead has failed, but the Job did not count it, because the pod was also being evicted, had replaced another one, or its container restarts (`OnFailure`): the operator has ended the Job",
        AgentFailed => Warning: "the agent failed without naming a cause: see the message",
        LeadLost => Warning:
            "the lead's pod was lost: the MiniCluster restarts, or `backoffLimit` is reached",
        // The agent's own failures. `exit-codes.md` has more on each.
        SpecUnreadable => Warning: "the agent cannot read the spec (exit code 240)",
        SpecInvalid => Warning: "the agent cannot use the spec (exit code 241)",
        ViewMissing => Warning: "the agent found no Flux (exit code 242)",
        ParentUnreachable => Warning: "the parent broker was not reached in time (exit code 243)",
        UserFailed => Warning: "Flux's user cannot be found or created (exit code 244)",
        WriteFailed => Warning: "the agent cannot write a file (exit code 245)",
        CurveUnreadable => Warning: "the agent cannot use the curve certificate (exit code 246)",
        ShellMissing => Warning: "the image has no shell for a snippet (exit code 247)",
        BrokerFailed => Warning: "the broker failed (exit code 248)",
        Internal => Warning: "a bug in the agent (exit code 249)",
        BackoffLimitExceeded => Warning:
            "a pod was recreated as often as the Job allows (`backoffLimit`, or 100 if that is more and `restartPolicy` is `Never`): the message says why its last attempt failed (set by Kubernetes)",
        MaxFailedIndexesExceeded => Warning:
            "the pods of an index have failed as often as allowed (set by Kubernetes or the operator)",
        FailedIndexes => Warning: "all pods have ended, and some have failed (set by Kubernetes)",
        PodFailurePolicy => Warning: "a pod's failure ended the Job, and no pod is left that shows why",
    }
    Loss {
        StartedAnew => Warning: "the event of a restart of the whole MiniCluster",
        PodLost => Warning: "a follower was lost while the job ran on it",
        Requeued:
            "the queue has evicted the MiniCluster, which waits there again; this does not count towards `backoffLimit` or `maxRestarts`",
        JobDeleted => Warning: "the Job was deleted",
        NodeLost => Warning: "a pod's node has stopped answering",
        StuckTerminating => Warning:
            "a pod that has to end first still exists 30 s after its grace period, although its node responds: a finalizer, a volume or a container that cannot be killed holds it. The message names the pod, and `kubectl describe pod` shows the cause. Delete the pod by force only if its containers are gone from the node: otherwise two copies of the program may run",
        NodeRestarted => Warning:
            "the pod's node, or its container runtime, was restarted: nobody saw how the container ended, or it can no longer start",
        Deleted: "the pod was deleted",
        Gone: "the pod is gone, for an unknown reason",
        Disrupted => Warning: "Kubernetes removed the pod without giving a reason",
        Evicted => Warning:
            "the node evicted the pod: it was short of memory or disk, or the pod exceeded its storage limit (set by Kubernetes)",
        NodeShutdown => Warning: "the node was shut down (set by Kubernetes)",
        Shutdown => Warning: "the node was shut down (set by older Kubernetes)",
        Terminated => Warning: "the node was shut down (set by Kubernetes)",
        Preempting => Warning: "the node needed the room for a critical pod (set by Kubernetes)",
        ContainerStatusUnknown => Warning:
            "the node has lost track of the container: the pod counts as lost (set by Kubernetes)",
    }
}

/// The reason for an agent that gave up.
impl From<Category> for Reason {
    fn from(category: Category) -> Reason {
        match category {
            Category::LeadLost => Reason::LeadLost,
            Category::SpecUnreadable => Reason::SpecUnreadable,
            Category::SpecInvalid => Reason::SpecInvalid,
            Category::ViewMissing => Reason::ViewMissing,
            Category::ParentUnreachable => Reason::ParentUnreachable,
            Category::UserFailed => Reason::UserFailed,
            Category::WriteFailed => Reason::WriteFailed,
            Category::CurveUnreadable => Reason::CurveUnreadable,
            Category::ShellMissing => Reason::ShellMissing,
            Category::BrokerFailed => Reason::BrokerFailed,
            Category::Internal => Reason::Internal,
        }
    }
}
