use flux_shared::manifest;
use flux_shared::validate::validate;
use serde_json::json;

use super::*;
use crate::observe::list_watch::tests::{Answers, failure, page, server};

/// The channels that the watches write to, and the number of kinds that count as listed.
fn outlets() -> (Outlets, watch::Receiver<usize>) {
    let (wake, _) = mpsc::unbounded_channel();
    let (unlabelled, _) = mpsc::unbounded_channel();
    let (orphans, _) = mpsc::unbounded_channel();
    let (deleted, _) = mpsc::unbounded_channel();
    let (synced, synced_kinds) = watch::channel(0);
    let outlets = Outlets {
        wake,
        unlabelled,
        orphans,
        deleted,
        synced: Arc::new(synced),
    };
    (outlets, synced_kinds)
}

fn named(name: &str) -> serde_json::Value {
    json!({ "metadata": { "name": name, "resourceVersion": "5" }, "spec": {} })
}

async fn for_an_hour(watch: impl Future<Output = ()>) {
    let ended = tokio::time::timeout(std::time::Duration::from_secs(3600), watch).await;
    assert!(ended.is_err(), "the watch has ended");
}

#[tokio::test(start_paused = true)]
async fn nodes_are_watched_once_the_permission_comes() {
    let (index, (outlets, synced_kinds)) = (Arc::<Index>::default(), outlets());
    let answers = vec![failure(403), failure(403), page(&[named("node")], "")];
    for_an_hour(nodes(server(answers).0, index.clone(), outlets)).await;
    assert!(index.has_nodes());
    // The first 403 counted as the list, since the operator starts without nodes. The later list does not count again.
    assert_eq!(*synced_kinds.borrow(), 1, "its first list counts once");
}

#[tokio::test(start_paused = true)]
async fn incomplete_node_list_does_not_count_as_synced() {
    let (index, (outlets, synced_kinds)) = (Arc::<Index>::default(), outlets());
    let answers: Answers = vec![page(&[named("one")], "2"), failure(403)];
    for_an_hour(nodes(server(answers).0, index.clone(), outlets)).await;
    assert_eq!(*synced_kinds.borrow(), 0);
}

#[tokio::test(start_paused = true)]
async fn volumes_and_classes_are_watched_once_permitted() {
    let (index, (outlets, _)) = (Arc::<Index>::default(), outlets());
    let cluster = "{apiVersion: flux-framework.org/v1alpha2, kind: MiniCluster, metadata: {name: mc}, spec: {\
        volumes: {data: {storageClass: fast, driver: d, volumeHandle: h, secret: s}}, \
        containers: [{image: a, command: b, volumes: {data: {path: /d}}}]}}";
    let cluster = validate(&manifest::parse(cluster).unwrap()).unwrap();
    // The second page is refused once and asked for again. It is empty, so the whole list is `slow`.
    let answers = || {
        vec![
            failure(403),
            page(&[named("slow")], "2"),
            failure(403),
            page(&[], ""),
        ]
    };
    for_an_hour(volumes(server(answers()).0, None, index.clone(), outlets.clone())).await;
    for_an_hour(storage_classes(server(answers()).0, index.clone(), outlets)).await;
    // `disks_of` returns None until both kinds are listed.
    let disks = index.disks_of(&cluster).unwrap();
    assert!(disks[0].is_class_missing, "there is `slow` alone: {disks:?}");
}

#[test]
fn missing_permission_is_logged_once_until_it_comes() {
    let (logged, _guard) = log::Logged::start();
    let (mut permission, denied) = (Permission::new("nodes", "so"), || failed_list(403));
    let events = [
        denied(),
        denied(),
        failed_list(503),
        denied(),
        Ok(Event::Init),
        Ok(Event::InitDone),
        denied(),
    ];
    events.iter().for_each(|event| permission.log(event));
    let lines = logged.lines();
    let messages: Vec<&str> = lines.iter().filter_map(|line| line["message"].as_str()).collect();
    assert_eq!(
        messages,
        [
            "no permission to watch nodes: so",
            "the watch of nodes failed",
            "nodes can be watched",
            "no permission to watch nodes: so",
        ]
    );
}

fn failed_list(code: u16) -> watcher::Result<Event<NodeObject>> {
    let status = kube::core::Status {
        code,
        ..Default::default()
    };
    Err(watcher::Error::InitialListFailed(kube::Error::Api(Box::new(
        status,
    ))))
}

#[test]
fn names_are_kept_only_while_a_list_goes_on() {
    let mut listed = Listed::default();
    listed.begin();
    listed.see("a".into());
    assert_eq!(listed.end(), HashSet::from(["a".to_owned()]));
    listed.see("later".into());
    assert!(!listed.has_begun() && listed.end().is_empty());
}
