use super::*;

mod ends;

/// A queue suspends a Job by itself: the watch of pods may tell of it before that of Jobs.
#[test]
fn pods_that_a_suspension_takes_are_no_losses_whichever_watch_tells_first() {
    let metadata = |name: &str, version: &str| ObjectMeta {
        name: Some(name.into()),
        namespace: Some("ns".into()),
        uid: Some(name.into()),
        resource_version: Some(version.into()),
        labels: Some([(labels::CLUSTER.to_owned(), "mc".to_owned())].into()),
        ..ObjectMeta::default()
    };
    let index = Index::default();
    let losses = || index.observed(&Key::new("ns", "mc")).losses.len();
    let job = JobSeen { uid: "mc".into(), completions: 2, ..JobSeen::default() };
    index.update_job(&metadata("mc", "1"), job.clone());
    let pod = PodSeen { name: "mc-0".into(), job_uid: Some("mc".into()), running: true, ..PodSeen::default() };
    index.update_pod(&metadata("mc-0", "2"), pod.clone());
    index.update_pod(&metadata("mc-0", "3"), PodSeen { deleting: true, ..pod });
    assert_eq!(losses(), 1, "as far as is known");
    index.update_job(&metadata("mc", "4"), JobSeen { suspended: true, ..job });
    assert_eq!(losses(), 0);
}
