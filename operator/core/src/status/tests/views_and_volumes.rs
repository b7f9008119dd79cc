//! What the status says about the view, the volumes and the archive.

use super::*;

#[test]
fn unmountable_view_is_copied_unless_the_job_may_have_begun() {
    let mut observation = observation("size: 2");
    let mounted = |status: &MiniClusterStatus| condition(status, "ViewMounted").cloned();
    let copied = JobSeen {
        completions: 2,
        ..JobSeen::default()
    };
    let mounts = JobSeen {
        mounts_view: true,
        ..copied.clone()
    };
    observation.job = Some(copied.clone());
    assert_eq!(
        mounted(&observation.status()),
        None,
        "nothing is mounted, so there is no condition"
    );
    observation.job = Some(mounts.clone());
    assert_eq!(
        mounted(&observation.status()).unwrap().reason,
        "ImageVolumeUnsure",
        "the nodes are not known"
    );

    let stuck = PodSeen {
        creation_failure: Some("path escapes from parent".into()),
        ..pod(1)
    };
    observation.pods = vec![ready(0), stuck.clone()];
    assert!(
        !image_volume_failed(&observation.status()),
        "the lead is ready: its job may have begun"
    );
    observation.pods = vec![pod(0), stuck];
    let status = observation.status();
    assert!(image_volume_failed(&status));
    let view = mounted(&status).unwrap();
    assert!(
        view.message.contains("pod 1")
            && view.message.contains("source: copy")
            && view.message.contains("escapes")
    );

    (observation.previous, observation.job, observation.pods) = (status, Some(copied), vec![pod(0), pod(1)]);
    assert_eq!(
        mounted(&observation.status()).unwrap().message,
        view.message,
        "the condition stays, and so does the copy"
    );
    // The image could be mounted after all, and the Job succeeded before the operator deleted it. Then its success
    // counts. The end of a given-up Job would be removed.
    let succeeded = JobSeen {
        mounts_view: true,
        complete: true_condition("SuccessPolicy", ""),
        ..job(2)
    };
    let seen = restart::without_end_if_given_up(&observation.previous, &succeeded);
    assert!(seen.complete.is_some() && !seen.is_deleting);
}

/// With `OnFailure` the kubelet restarts the lead's container, which has not joined then and shows no exit.
#[test]
fn mount_error_of_a_replaced_follower_keeps_a_begun_job() {
    let mounts = JobSeen {
        mounts_view: true,
        ..job(2)
    };
    let mut begun = observation("size: 2");
    (begun.job, begun.pods) = (Some(mounts.clone()), vec![ready(0), ready(1)]);
    begun.previous = begun.status();
    let mut restarted = observation("size: 2");
    restarted.job = Some(mounts);
    let stuck = PodSeen {
        creation_failure: Some("path escapes from parent".into()),
        ..pod(1)
    };
    let lead = |runner_ends: u32| PodSeen {
        runner_ends,
        ..pod(0)
    };
    for (mut observation, lead) in [(begun, lead(0)), (restarted, lead(1))] {
        observation.pods = vec![lead, stuck.clone()];
        assert!(!image_volume_failed(&observation.status()));
    }
}

#[test]
fn copied_view_names_its_node_while_the_job_exists() {
    let mut observation = observation("size: 2");
    let mounted = |status: &MiniClusterStatus| condition(status, "ViewMounted").cloned();
    let job = JobSeen {
        uid: "j".into(),
        completions: 2,
        ..JobSeen::default()
    };
    observation.job = Some(job.clone());
    observation.copied_for = Some("node old (kubelet v1.34.1)".into());
    let status = observation.status();
    let view = mounted(&status).unwrap();
    assert!(
        view.reason == "ViewCopied" && view.message.contains("node old"),
        "{view:?}"
    );
    assert!(
        !image_volume_failed(&status),
        "nothing has failed: the next Job may mount it"
    );
    assert!(
        super::events::between(&MiniClusterStatus::default(), &status)
            .iter()
            .all(|event| event.reason != "ViewCopied")
    );
    (observation.previous, observation.copied_for) = (status, None);
    assert_eq!(mounted(&observation.status()).unwrap().message, view.message);
    observation.copied_for = Some("node other".into());
    observation.job = Some(JobSeen {
        uid: "k".into(),
        ..job
    });
    assert!(
        mounted(&observation.status())
            .unwrap()
            .message
            .contains("node other")
    );
}

/// On a busy node such errors occur, and pass.
#[test]
fn job_stays_when_container_error_is_not_the_mount() {
    let mut observation = observation("size: 2");
    observation.job = Some(JobSeen {
        completions: 2,
        mounts_view: true,
        ..JobSeen::default()
    });
    let stuck = |error: &str| PodSeen {
        creation_failure: Some(error.into()),
        ..pod(1)
    };
    for error in [
        "failed to reserve container name flux-agent_mc-1",
        "context deadline exceeded",
    ] {
        observation.pods = vec![pod(0), stuck(error)];
        assert!(!image_volume_failed(&observation.status()), "{error}");
    }
    for error in [
        "failed to mount /var/lib/x: no such file",
        "Image volume is not supported",
        "path escapes from parent",
    ] {
        observation.pods = vec![pod(0), stuck(error)];
        assert!(image_volume_failed(&observation.status()), "{error}");
    }
}

#[test]
fn view_image_pull_failure_is_reported_with_its_fields() {
    // As the test node's kubelet and containerd report it.
    let seen_with = |container: &str, image: &str, message: &str| {
        let waiting = serde_json::json!({ "waiting": { "reason": "ImagePullBackOff", "message": message } });
        let container = serde_json::json!({
            "name": container, "image": image, "imageID": "", "ready": false, "restartCount": 0, "state": waiting,
        });
        let status = serde_json::json!({ "phase": "Pending", "initContainerStatuses": [container] });
        PodSeen::of(&Default::default(), serde_json::from_value(status).ok().as_ref())
    };
    let seen = |container: &str, image: &str, pulled: &str| {
        let message =
            format!("Back-off pulling image \"{pulled}\": ErrImagePull: failed to pull and unpack it");
        seen_with(container, image, &message)
    };
    let message_for = |pod: PodSeen, mounts_view: bool| {
        let mut observation = observation("flux: {container: {name: view}}");
        (observation.job, observation.pods) = (
            Some(JobSeen {
                mounts_view,
                ..job(1)
            }),
            vec![pod],
        );
        let status = observation.status();
        assert_eq!(status.reason.as_deref(), Some("ImagePullBackOff"));
        assert_eq!(
            condition(&status, "JobWaitingForResources").unwrap().message,
            status.message.clone().unwrap()
        );
        status.message.unwrap()
    };
    for (pod, mounts_view) in [
        (seen("flux-agent", "agent:1", "view:1"), true),
        (seen("view", "view:1", "view:1"), false),
    ] {
        let message = message_for(pod, mounts_view);
        assert!(
            message.starts_with("pod 0: the view's image cannot be pulled (spec.flux.container.image"),
            "{message}"
        );
        assert!(
            message.contains("imagePullSecret") && message.contains("\"view:1\""),
            "{message}"
        );
    }
    // The image may be missing on only one node.
    let message = message_for(
        PodSeen {
            node: Some("worker-3".into()),
            ..seen("app", "app:1", "app:1")
        },
        true,
    );
    assert!(
        message.starts_with("pod 0 on node worker-3: container app: "),
        "{message}"
    );
    // The agent's init container mounts the image of the container that runs Flux as well.
    let message = message_for(seen("flux-agent", "agent:1", "app:1"), true);
    assert!(
        message.starts_with("pod 0: the image of container mc cannot be pulled: container flux"),
        "{message}"
    );
    // The runtime's first message has the image's full name. The kubelet's later ones have the name in the pod's spec.
    for (image, in_full) in [
        ("app:1", "docker.io/library/app:1"),
        ("view:1", "docker.io/library/view:1"),
        ("mirror:5000/app:1", "mirror:5000/app:1"),
    ] {
        let at_first = format!(
            "failed to pull and unpack image \"{in_full}\": failed to resolve reference \"{in_full}\": not found"
        );
        let later = format!("Back-off pulling image \"{image}\": ErrImagePull: {at_first}");
        let whose = [at_first, later].map(|text| {
            let message = message_for(seen_with("flux-agent", "agent:1", &text), true);
            message.split(" cannot be pulled").next().unwrap().to_owned()
        });
        let expected = match image {
            "app:1" => "pod 0: the image of container mc",
            "view:1" => "pod 0: the view's image",
            _ => {
                "pod 0: the image of container mc or the view's (spec.flux.container.image; without it, the operator's --view-image)"
            }
        };
        assert_eq!(whose, [expected, expected], "{image}");
    }
    let message = message_for(seen("flux-agent", "agent:1", "agent:1"), true);
    assert!(message.starts_with("pod 0: container flux-agent: "), "{message}");
}

#[test]
fn shared_disk_and_missing_class_are_reported_only() {
    let mut observation = observation("size: 1");
    (observation.job, observation.pods) = (Some(job(1)), vec![ready(0)]);
    assert_eq!(
        condition(&observation.status(), "VolumesValid"),
        None,
        "the disks are not known"
    );
    observation.disks = Some(Vec::new());
    assert_eq!(
        condition(&observation.status(), "VolumesValid"),
        None,
        "there are no disks"
    );
    let disk = |shared: Option<&str>, missing: bool| DiskSeen {
        key: "data".into(),
        driver: "d.csi.io".into(),
        handle: "h".into(),
        class: "fast".into(),
        shared_with: shared.map(str::to_owned),
        is_class_missing: missing,
    };
    observation.disks = Some(vec![disk(Some("ns.other.data"), true)]);
    let status = observation.status();
    let volumes = condition(&status, "VolumesValid").unwrap();
    assert_eq!(
        (volumes.status, volumes.reason.as_str()),
        (ConditionStatus::False, "SharedHandle")
    );
    for words in [
        "spec.volumes[data].volumeHandle: ",
        "ns.other.data",
        "spec.volumes[data].storageClass: ",
        "StorageClass fast",
    ] {
        assert!(volumes.message.contains(words), "{words}: {}", volumes.message);
    }
    assert!(is(&status, "Ready") && status.reason.is_none());
    let warned = events::between(&MiniClusterStatus::default(), &status);
    assert!(warned.iter().any(|event| event.reason == "SharedHandle"));

    observation.previous = status;
    observation.disks = None;
    assert_eq!(
        condition(&observation.status(), "VolumesValid").unwrap().reason,
        "SharedHandle",
        "a new operator keeps the condition"
    );
    observation.disks = Some(vec![disk(None, true)]);
    assert_eq!(
        condition(&observation.status(), "VolumesValid").unwrap().reason,
        "UnknownStorageClass"
    );
    observation.disks = Some(vec![disk(None, false)]);
    assert!(is(&observation.status(), "VolumesValid"));
}

#[test]
fn view_mount_failure_is_believed_only_for_the_view_volume() {
    let mut observation = observation("size: 1");
    observation.job = Some(JobSeen {
        mounts_view: true,
        ..job(1)
    });
    observation.pods = vec![pod(0)];
    let mut outcome = |reason: &str, message: &str| {
        let (reason, message) = (reason.into(), message.into());
        observation.warning = Some(Trouble {
            reason,
            message,
            ..Trouble::default()
        });
        let status = observation.status();
        (
            image_volume_failed(&status),
            condition(&status, "ViewMounted").unwrap().message.clone(),
        )
    };
    // As kubelets of Kubernetes 1.31 to 1.35 report it without the feature.
    let plugin = |volume: &str| {
        format!(
            "Unable to attach or mount volumes: unmounted volumes=[{volume}], unattached volumes=[], failed to process \
             volumes=[{volume}]: failed to get Plugin from volumeSpec for volume \"{volume}\" err=no volume plugin matched"
        )
    };
    let (failed, message) = outcome("FailedMount", &plugin("flux-view-image"));
    assert!(failed && message.starts_with("a pod could not") && message.contains("no volume plugin matched"));
    assert!(!outcome("FailedMount", &plugin("data")).0, "a volume of the user");
    assert!(
        !outcome(
            "FailedMount",
            "MountVolume.SetUp failed for volume \"flux-view-image\" : busy"
        )
        .0
    );
    assert!(
        !outcome("Failed", "Failed to pull image \"view:1\"").0,
        "the copy would need it as well"
    );
}

#[test]
fn archive_of_an_earlier_start_is_forgotten() {
    let mut observation = observation("size: 1\narchive: {path: /state/a.tgz}");
    let suspended = |is_suspended: bool| JobSeen {
        is_suspended,
        ..job(1)
    };
    observation.job = Some(job(1));
    observation.pods = vec![ready(0)];
    observation.previous = observation.status();
    // The lead saves the archive when it is stopped.
    let lead = with_termination(0, Termination::new(Ender::Stop, 143));
    observation.job = Some(suspended(true));
    observation.pods = vec![PodSeen {
        is_deleting: true,
        ..lead
    }];
    observation.previous = observation.status();
    // The MiniCluster is resumed before the pod is gone.
    let after_stop = (observation.previous.clone(), observation.pods.clone());
    observation.pods[0].deletion_requested = Some(at("2026-01-01T00:05:00Z"));
    for start in [None, Some(at("2026-01-01T00:05:05Z"))] {
        observation.job = Some(JobSeen {
            start_time: start,
            ..suspended(false)
        });
        observation.previous = observation.status();
        assert_eq!(condition(&observation.previous, "ArchiveSaved"), None);
    }
    (observation.previous, observation.pods) = after_stop;
    observation.job = Some(suspended(true));
    observation.pods.clear();
    let stopped = observation.status();
    let saved = |status: &MiniClusterStatus| condition(status, "ArchiveSaved").map(|saved| saved.status);
    assert_eq!(
        saved(&stopped),
        Some(ConditionStatus::True),
        "the archive can be read during the suspension"
    );
    observation.previous = stopped.clone();
    observation.job = Some(suspended(false));
    observation.pods = vec![ready(0)];
    assert_eq!(saved(&observation.status()), None, "resumed");

    let limit = restart::Limit::Backoff;
    let counted = restart::with_counted_restart(&stopped, "job", "LeadLost", "gone", limit, at(NOW));
    assert_eq!(saved(&counted), None, "another Job");
}

#[test]
fn archive_condition_is_set_once_the_lead_has_ended() {
    let program = |code| Termination {
        program_code: Some(code),
        ..Termination::new(Ender::Program, code)
    };
    let archive_saved = |spec: &str, termination: Option<Termination>| {
        let mut observation = observation(spec);
        observation.job = Some(job(1));
        observation.pods = vec![ready(0)];
        let running = observation.status();
        assert_eq!(condition(&running, "ArchiveSaved"), None, "nobody knows yet");
        observation.pods = vec![ended(0, 0, 5)];
        observation.pods[0].exit.as_mut().unwrap().termination = termination;
        let after = observation.status();
        let events = events::between(&running, &after).into_iter();
        let warned = events.filter(|event| event.reason == "ArchiveNotSaved").count();
        let found = condition(&after, "ArchiveSaved")?;
        assert_eq!(warned, usize::from(found.status == ConditionStatus::False));
        Some((found.status, found.message.clone()))
    };
    let with_archive = "size: 1\narchive: {path: /state/a.tgz}";
    assert_eq!(archive_saved("size: 1", Some(program(0))), None);
    let of_remote_lead = format!(
        "{with_archive}\nflux: {{bursting: {{leadBroker: {{name: a, address: b}}, clusters: [{{name: mc}}]}}}}"
    );
    assert_eq!(
        archive_saved(&of_remote_lead, Some(program(0))),
        None,
        "no follower saves the archive"
    );
    let text = |status: ConditionStatus, message: &str| Some((status, message.to_owned()));
    assert_eq!(
        archive_saved(with_archive, Some(program(0))),
        text(
            ConditionStatus::True,
            "the state of Flux was saved to /state/a.tgz"
        )
    );
    let why = "the dump is not whole: its end is missing";
    let not_saved = Termination {
        archive_not_saved: Some(why.into()),
        ..program(0)
    };
    let message = format!("the archive /state/a.tgz was not saved: {why}");
    assert_eq!(
        archive_saved(with_archive, Some(not_saved)),
        text(ConditionStatus::False, &message)
    );
    // The agent failed before the job began.
    let gave_up = Termination::new(Ender::Agent, Category::WriteFailed.code());
    assert_eq!(
        archive_saved(with_archive, Some(gave_up)).unwrap().0,
        ConditionStatus::False
    );
    // The lead has ended without a report, and sends none any more.
    assert_eq!(
        archive_saved(with_archive, None).unwrap().0,
        ConditionStatus::False
    );
}
