//! The types of conditions and the reasons of conditions, statuses and events, each with its meaning. The reference
//! (`docs/reference`) is generated from them. `operator/tests/docs` checks them against the code. A meaning has the
//! remedy, too, unless the message has it. If it takes more than a few sentences, it is in `docs/troubleshooting.md`.
//!
//! A reason that can only be the operator's own, such as that of an obstacle, is a [`Reason`] until it becomes text in a
//! status or an event. A reason that may be another's, such as that of a pod's trouble, of a failed Job or of an earlier
//! status, is text from the start: the operator passes on words of Kubernetes, a container runtime or Kueue that it does
//! not know. Text can be compared with a [`Reason`].

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
        "all pods run, or none is wanted, or the lead has ended with exit code 0";
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
        "it was not saved; an earlier one is unchanged";
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
                // Lists of one type or none, since a reason may lack `=> $event`.
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
        Suspended:
            "the Job is suspended, by `spec.suspend` or by hand: it has no pods. To start it, set `spec.suspend` to `false`",
        Completed => Normal: "the job ended with exit code 0",
        Saved: "the archive was saved",
        PostCompleted: "`post` ended with exit code 0",
        None: "no specific reason",
    }
    Spec {
        Valid: "every field can be used",
        ValidWithNotes => Normal:
            "every field can be used, but one may not have the effect that was meant: the message says which",
        Invalid => Warning: "a field cannot be used: the message names each",
        SizeBeyondMaximum => Warning:
            "`size` is larger than the maximum fixed when the cluster was created (the larger of `size` and `maxSize`): lower it, or recreate the MiniCluster with a larger `maxSize`",
        SizeHeldByQueue => Warning:
            "`size` was changed, but the queue holds the Job to the admitted number of pods. The new size takes effect when the queue evicts the Job. To resize a running cluster, create it with `maxSize`",
        ChangedTooLate => Warning:
            "the spec was changed while its Job was being created, or `podTemplate` was changed later: the earlier one runs. To run the current one, recreate the MiniCluster",
        PodTemplateRefused => Warning:
            "the API server refuses the pods as `podTemplate` or `servicesPodTemplate` patches them: the message names the field",
        ImageVolume: "the view's image is mounted: nothing is copied",
        ImageVolumeUnsure: "the view's image is mounted, though not every node is known to support that",
        ImageVolumeFailed => Warning:
            "a node could not mount the view's image: unless the command may have begun, the Job is recreated with a copy of the view",
        ViewCopied:
            "the view is copied, since a node that the pods may use cannot mount images: the message says how to mount it",
        SharedHandle => Warning:
            "a CSI volume has the handle of another PersistentVolume. The job starts anyway",
        UnknownStorageClass => Warning:
            "a volume names a storage class that is not in the cluster; the job may run anyway",
        NotSaved:
            "the archive was not saved, and an earlier one is unchanged: the message says why. For a large dump, raise `pod.terminationGracePeriodSeconds`",
        ArchiveNotSaved => Warning: "the event of `NotSaved`",
        OperatorPanicked => Warning: "the event of a bug in the operator: report its message with the spec",
        Defect: "the reason of the condition `OperatorPanicked`: report its message with the spec",
    }
    Start {
        BrokersNotReady => Warning:
            "too few brokers are ready; after 20 s the message says what they wait for",
        SizeBelowQuorum => Warning:
            "`size` was lowered below the number of brokers that the command waits for before it starts: scale back to the number in the message, or recreate the MiniCluster",
        Queued:
            "the MiniCluster waits in a queue, or for more pods: the message has the queue's name and Kueue's reason",
        Forbidden => Warning: "the API server forbids the operator an object that the MiniCluster needs",
        Refused => Warning:
            "the API server refuses an object that the MiniCluster needs: the message names an invalid field or an admission policy. The operator retries",
        ApiError => Warning:
            "the API server, or an admission webhook behind it, fails or does not answer: the message has its words. The operator retries. If it is a webhook, start its pods, or remove its configuration",
        NamespaceTerminating => Warning:
            "the namespace is being deleted: nothing is created in it. `kubectl describe namespace NAMESPACE` shows what the deletion waits for",
        JobUnlabelled => Warning:
            "the MiniCluster's own Job lacks the operator's label, so the operator does not watch it. Run the command in the message. It puts the label back or, if another operator created the Job, deletes the Job, and this operator creates its own",
        NameTaken => Warning:
            "another object already has the name of one that the MiniCluster needs: delete it, or rename the MiniCluster",
        TooLarge => Warning:
            "an object would be larger than the API server accepts: put large scripts and files on a volume",
        Unsupported => Warning:
            "this Kubernetes is too old for a field of the spec: the message has the remedy",
        GangUnavailable => Warning:
            "`gang` is on, and the cluster has no gang API that the operator uses: the message has the remedy",
        WaitingForPrevious:
            "an object or pod of an earlier MiniCluster of this name is still being deleted",
        WaitingForPods => Warning:
            "pods of a deleted Job, or of an earlier MiniCluster of this name, may still run: the MiniCluster starts when they have ended. Delete pods that were left behind on purpose (`--cascade=orphan`)",
        FailedCreate => Warning: "the API server refuses the Job's pods (set by Kubernetes)",
        SecretDeleted => Warning:
            "a Secret that new pods need was deleted: delete the MiniCluster and apply it again",
        Unschedulable => Warning: "no node has room for a pod or fits it (set by Kubernetes)",
        SchedulingGated => Warning:
            "a pod has a scheduling gate, for example set by a queue (set by Kubernetes)",
        SchedulerError => Warning:
            "the scheduler failed while it placed a pod, and retries; usually the API server or a plugin of the scheduler did not answer (set by Kubernetes)",
        SchedulerSilent => Warning:
            "no scheduler of the pods' `schedulerName` has reported on a pod: it does not run, is overloaded, or waits for a volume or for room for a gang",
        ErrImagePull => Warning:
            "an image cannot be pulled (set by Kubernetes): check its name and `imagePullSecret`. It may be the view's (`flux.container.image`)",
        ImagePullBackOff => Warning:
            "an image could not be pulled, and is tried again later (set by Kubernetes): check its name and `imagePullSecret`. It may be the view's (`flux.container.image`)",
        InvalidImageName => Warning:
            "an image's name is not valid: for example, it has capitals or blanks (set by Kubernetes)",
        ErrImageNeverPull => Warning:
            "an image is not on the node, and has `imagePullPolicy: Never` (set by Kubernetes)",
        CreateContainerError => Warning:
            "the node could not create a container: for example, a device is missing, or the image lacks the working directory or program (set by Kubernetes)",
        FailedMount => Warning:
            "a volume could not be mounted: a claim, ConfigMap or Secret does not exist in this namespace, the node lacks the directory of a `hostPath`, or the storage or its driver does not answer (set by Kubernetes)",
        SidecarFailed => Warning:
            "a sidecar (a container beside the runner, or an injected one) has failed before the runner has started, or ends again and again. Kubernetes restarts it, but may start the runner only once the sidecar runs: the message says how it ended, and `kubectl logs POD -c CONTAINER --previous` shows its output. If a snippet such as `pre` may fail, set `logging.strict: false`",
        CrashLoopBackOff => Warning:
            "a container ends again and again, and the kubelet waits before it starts it again: `kubectl logs POD -c CONTAINER --previous` shows its output (set by Kubernetes)",
        ServiceFailed => Warning:
            "a container of `services` has failed, or ends again and again: the message names it, and `kubectl logs NAME-services -c CONTAINER` shows its output. The job goes on, but may wait for it",
        NotStarted => Warning:
            "the lead's pod ended before its program had started: it is retried up to `backoffLimit` times",
        InitFailed => Warning:
            "one of the agent's init containers has failed: the message is its last line. For all lines, run `kubectl logs POD -c NAME`: `flux-agent`, `flux-view` (or `flux.container.name`) or, if the view is copied, `flux-software`",
    }
    End {
        SidecarStillRuns => Warning:
            "the job ended with exit code 0, and a container that is not the MiniCluster's keeps a pod on its node until you delete the MiniCluster. Switch the injection off, or inject a native sidecar",
        NonZeroExitCode => Warning: "the command ended with an exit code other than 0",
        Signalled => Warning:
            "a signal ended the command: the exit code is 128 + the signal's number. Signal 9 often means a memory limit",
        OOMKilled => Warning:
            "the container used more memory than its limit (set by Kubernetes): raise `resources.limits.memory`, or use more pods with fewer tasks each",
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
            "the lead's pod was lost, with its node, by a reboot, a drain or a deletion. The MiniCluster restarts up to `backoffLimit` times (default 100). To allow more, recreate it with a larger `backoffLimit`. If no restart is left, a pod that replaces the lead does not run the program again (exit code 239)",
        // The agent's own failures, up to `Internal`. `exit-codes.md` has these meanings, too.
        SpecUnreadable => Warning:
            "the agent cannot read its spec (exit code 240): its ConfigMap was deleted, or is not mounted at `/etc/flux-agent/spec`",
        SpecInvalid => Warning:
            "the agent cannot use its spec (exit code 241): the message names the field or variable. The agent's image (chart: `agent.image`; option `--agent-image`) must have the operator's version",
        ViewMissing => Warning:
            "the agent found no Flux (exit code 242): there is no view, or, with `flux.container.disable`, `flux` is not on the image's PATH, and no snippet such as `pre` puts it there. Then set `flux.installRoot` to the prefix of its Flux",
        ParentUnreachable => Warning:
            "the parent broker was not reached within `flux.parentDeadlineSeconds` (exit code 243): the message says why",
        UserFailed => Warning:
            "the agent cannot create or become Flux's user (exit code 244). It needs root in the pod and, to create `fluxUser`, a root file system that is writable and has room. Or leave out `fluxUser`",
        WriteFailed => Warning:
            "the agent cannot write a file (exit code 245): the disk is full or read-only, or the user lacks the permission. The message names the file",
        CurveUnreadable => Warning:
            "the curve certificate cannot be read, or is not valid (exit code 246): check `flux.curveCert` or `flux.curveCertSecret` (key `curve.cert`)",
        ShellMissing => Warning:
            "the image has no shell for a snippet (exit code 247): use one with bash, which Flux needs, too",
        BrokerFailed => Warning:
            "the lead's broker ended before the command began, or, ten times in a row, a follower's broker failed or did not join (exit code 248). See Flux's lines above the message in the log. Usually the image lacks bash, or its glibc is older than the view's",
        Internal => Warning: "a bug in the agent (exit code 249): report its last log lines",
        BackoffLimitExceeded => Warning:
            "a pod was recreated as often as the Job allows (`backoffLimit`, or 100 if that is more and `restartPolicy` is `Never`): the message says why its last attempt failed (set by Kubernetes)",
        MaxFailedIndexesExceeded => Warning:
            "the pods of an index have failed as often as allowed (set by Kubernetes or the operator)",
        FailedIndexes => Warning: "all pods have ended, and some have failed (set by Kubernetes)",
        PodFailurePolicy => Warning: "a pod's failure ended the Job, and no pod is left that shows why",
    }
    Loss {
        StartedAnew => Warning: "the event of a restart of the whole MiniCluster",
        PodLost => Warning:
            "a follower was lost while the job ran on it, so the job failed: the exit code says nothing about the program. The MiniCluster restarts up to `maxRestarts` times (default 0)",
        Requeued:
            "the queue has evicted the MiniCluster, which waits there again; this does not count towards `backoffLimit` or `maxRestarts`",
        JobDeleted => Warning:
            "the Job was deleted: the MiniCluster restarts up to `backoffLimit` times, or the message says why not. To stop it, delete the MiniCluster",
        NodeLost => Warning: "a pod's node has stopped answering",
        StuckTerminating => Warning:
            "a pod that has to end first still exists 30 s after its grace period, although its node responds: a finalizer, a volume or a container that cannot be killed holds it. The message names the pod, and `kubectl describe pod` shows the cause. Delete the pod by force only if its containers are gone from the node: otherwise two copies of the program may run",
        NodeRestarted => Warning:
            "the pod's node, or its container runtime, was restarted: nobody saw how the container ended (exit code 255), or it can no longer start. The pod counts as lost",
        Deleted: "the pod was deleted",
        Gone: "the pod is gone, for an unknown reason",
        Disrupted => Warning: "Kubernetes removed the pod without giving a reason",
        Evicted => Warning:
            "the node evicted the pod (set by Kubernetes). It was short of memory or disk: give the pods requests that match what they use. Or the pod exceeded its own storage limit: raise it, since such a pod is not restarted",
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
