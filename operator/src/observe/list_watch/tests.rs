use std::sync::{Arc, Mutex};

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};

use super::*;
use crate::testing;

/// Answers of an API server, in order. After the last one it does not answer.
pub(in crate::observe) type Answers = Vec<(u16, Value)>;

/// A client of an API server with these answers, and the queries that the server gets.
pub(in crate::observe) fn server(answers: Answers) -> (Client, Arc<Mutex<Vec<String>>>) {
    let queries: Arc<Mutex<Vec<String>>> = Arc::default();
    let (log, mut answers) = (queries.clone(), answers.into_iter());
    let client = testing::client(move |request, _| {
        let query = request.uri.query().unwrap_or_default().to_owned();
        log.lock().unwrap().push(query);
        answers.next()
    });
    (client, queries)
}

fn object(name: &str, bytes: usize) -> Value {
    json!({ "metadata": { "name": name, "resourceVersion": "5" }, "data": { "a": "x".repeat(bytes) } })
}

pub(in crate::observe) fn page(objects: &[Value], token: &str) -> (u16, Value) {
    (
        200,
        json!({ "metadata": { "resourceVersion": "7", "continue": token }, "items": objects }),
    )
}

pub(in crate::observe) fn failure(code: u16) -> (u16, Value) {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "code": code,
        "reason": "Fake", "message": "fake failure" });
    (code, status)
}

/// The events until none comes for 200 s, the queries, and the time of the last event. 200 s are longer than each
/// pause, and shorter than an idle watch lasts (`IDLE_MAX`).
async fn events(answers: Answers) -> (Vec<String>, Vec<String>, Duration) {
    let begin = Instant::now();
    let mut last = begin;
    let (client, queries) = server(answers);
    let selection = Selection {
        labels: "a=b".into(),
        page: 20,
    };
    let mut stream = std::pin::pin!(list_watch(Api::<ConfigMap>::all(client), selection));
    let mut seen = Vec::new();
    while let Ok(Some(event)) = tokio::time::timeout(Duration::from_secs(200), stream.next()).await {
        last = Instant::now();
        seen.push(match event {
            Ok(Event::Init) => "init".to_owned(),
            Ok(Event::InitApply(object)) => format!("listed {}", object.name_any()),
            Ok(Event::InitDone) => "done".to_owned(),
            Ok(Event::Apply(object)) => format!("seen {}", object.name_any()),
            Ok(Event::Delete(object)) => format!("gone {}", object.name_any()),
            Err(_) => "error".to_owned(),
        });
    }
    let queries = queries.lock().unwrap().clone();
    (seen, queries, last - begin)
}

/// The limits of the lists' queries. A watch has no limit.
fn limits(queries: &[String]) -> Vec<String> {
    let limit = |query: &String| {
        Some(
            query
                .split('&')
                .find_map(|part| part.strip_prefix("limit="))?
                .to_owned(),
        )
    };
    queries.iter().filter_map(limit).collect()
}

#[tokio::test(start_paused = true)]
async fn pages_grow_while_they_are_small_and_shrink_when_one_is_large() {
    let small = || object("small", 10);
    // One is more than `SMALL_PAGE_BYTES`, and four are more than `PAGE_BYTES_MAX`.
    let large = || object("large", 1_200_000);
    let four = [large(), large(), large(), large()];
    let (seen, queries, _) = events(vec![
        page(&[small()], "2"),
        page(&[small()], "3"),
        // The page is too large, so it is requested again.
        page(&four, "4"),
        page(&[large()], "4"),
        page(&[small()], "5"),
        page(&four, "6"),
        // Pages of the first limit are accepted, however large they are.
        page(&four, ""),
    ])
    .await;
    assert_eq!(
        limits(&queries),
        ["20", "40", "80", "20", "20", "40", "20"],
        "{queries:?}"
    );
    assert_eq!(seen.iter().filter(|event| *event == "listed small").count(), 3);
}

#[tokio::test(start_paused = true)]
async fn failed_page_is_requested_again_and_the_list_goes_on() {
    let (seen, queries, _) = events(vec![
        page(&[object("a", 1)], "2"),
        failure(500),
        failure(503),
        page(&[object("b", 1)], ""),
    ])
    .await;
    assert_eq!(seen, ["init", "listed a", "error", "error", "listed b", "done"]);
    assert!(
        queries[1..4].iter().all(|query| query.contains("continue=2")),
        "{queries:?}"
    );
    assert!(
        queries[4].contains("watch=true") && queries[4].contains("resourceVersion=7"),
        "{queries:?}"
    );
    assert!(
        queries.iter().all(|query| query.contains("labelSelector=a%3Db")),
        "{queries:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn denied_list_is_retried_with_growing_pauses() {
    let mut answers: Answers = (0..20).map(|_| failure(403)).collect();
    answers.push(page(&[object("a", 1)], ""));
    let (seen, _, time) = events(answers).await;
    assert_eq!(seen[20..], ["init", "listed a", "done"], "{seen:?}");
    // 0.5 s, 1 s, … 32 s, and then once a minute.
    let expected = Duration::from_millis(63_500 + 13 * 60_000);
    assert!(
        time >= expected && time < expected + Duration::from_secs(1),
        "{time:?}"
    );
}

/// An API server that has just started may deny what it allows a moment later.
#[tokio::test(start_paused = true)]
async fn denial_after_an_outage_is_retried_soon() {
    let mut answers: Answers = (0..9).map(|_| failure(503)).collect();
    answers.extend([failure(403), page(&[object("a", 1)], "")]);
    let (seen, _, time) = events(answers).await;
    assert_eq!(seen[10..], ["init", "listed a", "done"], "{seen:?}");
    let outage = Duration::from_millis(500 + 1000 + 2000 + 6 * 4000);
    assert!(time <= outage + Duration::from_secs(1), "{time:?}");
}

#[tokio::test(start_paused = true)]
async fn list_follows_at_once_when_a_watch_is_too_old() {
    let (_, expired) = failure(410);
    for too_old in [failure(410), (200, json!({ "type": "ERROR", "object": expired }))] {
        // The server was unreachable before, so the pauses have grown.
        let mut answers = vec![page(&[object("a", 1)], "")];
        answers.extend((0..6).map(|_| failure(503)));
        answers.extend([too_old, page(&[object("b", 1)], "")]);
        let (seen, _, time) = events(answers).await;
        assert_eq!(seen[..3], ["init", "listed a", "done"]);
        assert_eq!(seen[9..], ["init", "listed b", "done"], "{seen:?}");
        assert!(
            time <= Duration::from_millis(500 + 1000 + 2000 + 3 * 4000 + 100),
            "{time:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn relists_pause_when_every_watch_is_too_old() {
    // The first list after a 410 begins at once, each further one after `BETWEEN_LISTS`.
    let answers = (0..20).flat_map(|_| [page(&[], ""), failure(410)]).collect();
    let (seen, queries, time) = events(answers).await;
    assert_eq!(limits(&queries).len(), 21, "{seen:?}");
    assert!(time > Duration::from_secs(150), "{time:?}");
}

#[tokio::test(start_paused = true)]
async fn event_follows_the_list_and_moves_the_version_on() {
    let event = |type_: &str, name: &str, version: &str| {
        let mut object = object(name, 1);
        object["metadata"]["resourceVersion"] = json!(version);
        (200, json!({ "type": type_, "object": object }))
    };
    let (seen, queries, _) = events(vec![
        page(&[], ""),
        event("ADDED", "a", "8"),
        event("DELETED", "a", "9"),
    ])
    .await;
    assert_eq!(seen, ["init", "done", "seen a", "gone a"]);
    let versions = ["resourceVersion=7", "resourceVersion=8", "resourceVersion=9"];
    assert!(
        queries[1..]
            .iter()
            .zip(versions)
            .all(|(query, version)| query.contains(version)),
        "{queries:?}"
    );
}
