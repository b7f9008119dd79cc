use std::sync::Mutex;

use kube::Resource;
use kube::client::Body;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use super::*;
use crate::health::log;
use crate::testing;

#[test]
fn future_of_a_waiting_reconcile_is_small() {
    fn size<A, B, C, D, F>(_: impl Fn(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }
    let waiting = size(in_turn);
    assert!(
        waiting <= 1024,
        "thousands may wait, and each takes {waiting} bytes"
    );
}

/// A context with a fake API server that creates every object that it gets, with a uid. Also returns the Jobs
/// that it got.
fn with_fake_server() -> (Arc<Context>, Arc<Mutex<Vec<Value>>>) {
    with_fake_server_and(|_, _| {})
}

/// Like `with_fake_server`. `on_request` is called with the method and path of each request.
fn with_fake_server_and(
    on_request: impl Fn(&str, &str) + Send + Sync + 'static,
) -> (Arc<Context>, Arc<Mutex<Vec<Value>>>) {
    let jobs = Arc::<Mutex<Vec<Value>>>::default();
    let sent = jobs.clone();
    let client = testing::client(move |request, mut object| {
        on_request(request.method.as_str(), request.uri.path());
        if request.method == "POST" && request.uri.path().ends_with("/jobs") {
            sent.lock().unwrap().push(object.clone());
        }
        object["metadata"]["uid"] = json!("made");
        Some((200, object))
    });
    (Arc::new(testing::context(client, Options::default())), jobs)
}

/// The MiniCluster `team/mc` as a watch delivers it.
fn minicluster(image: &str, uid: &str, generation: i64) -> Cluster {
    let cluster = json!({
        "metadata": {
            "namespace": "team", "name": "mc", "uid": uid, "generation": generation,
            "resourceVersion": generation.to_string(),
        },
        "spec": { "size": 1, "containers": [{ "image": image, "command": "hostname" }] },
    });
    serde_json::from_str(&cluster.to_string()).unwrap()
}

#[tokio::test]
async fn log_line_of_a_reconcile_names_the_minicluster() {
    let (logged, _guard) = log::Logged::start();
    let (context, _) = with_fake_server();
    in_turn(Arc::new(minicluster("app:1", "u", 1)), context, Arc::default(), 7)
        .await
        .unwrap();
    let lines = logged.lines();
    let created = lines.iter().find(|line| line["message"] == "created the Job");
    let created = created.unwrap_or_else(|| panic!("{lines:#?}"));
    assert_eq!(
        (&created["span"]["id"], &created["span"]["minicluster"]),
        (&json!(7), &json!("team/mc")),
        "{created}"
    );
    // The innermost span is in `span` and in `spans`.
    assert_eq!(created.to_string().matches("team/mc").count(), 2, "{created}");
}

/// When the API server is slow, hundreds of reconciles wait.
#[tokio::test]
async fn reconcile_uses_what_changed_while_it_waited_for_its_turn() {
    let image_of_the_job = async |meanwhile: Event<Cluster>| {
        let (context, jobs) = with_fake_server();
        let (store, mut stored) = kube::runtime::reflector::store();
        context.miniclusters.set_store(store);
        stored.apply_watcher_event(&Event::Apply(minicluster("app:1", "u", 1)));
        stored.apply_watcher_event(&meanwhile);
        let waited = Arc::new(minicluster("app:1", "u", 1));
        in_turn(waited, context, Arc::default(), 7).await.unwrap();
        let jobs = jobs.lock().unwrap();
        assert!(jobs.len() <= 1, "{jobs:#?}");
        jobs.first().map(|job| {
            let container = &job["spec"]["template"]["spec"]["containers"][0];
            container["image"].as_str().unwrap().to_owned()
        })
    };
    let edited = image_of_the_job(Event::Apply(minicluster("app:2", "u", 2))).await;
    assert_eq!(edited.as_deref(), Some("app:2"));
    let deleted = image_of_the_job(Event::Delete(minicluster("app:1", "u", 1))).await;
    assert_eq!(deleted, None, "a Job would run without an owner");
    let replaced = image_of_the_job(Event::Apply(minicluster("app:3", "other", 3))).await;
    assert_eq!(replaced, None, "the new MiniCluster has its own turn");
}

/// The MiniCluster is deleted while an object of `resource` is being created, as when an admission webhook is slow.
/// Returns the calls about Jobs and pods, and the context.
async fn calls_when_deleted_during(resource: &'static str) -> (Vec<String>, Arc<Context>) {
    calls_with_event_during(resource, || Event::Delete(minicluster("app:1", "u", 1))).await
}

/// Like `calls_when_deleted_during`, with another event of the watch.
async fn calls_with_event_during(
    resource: &'static str,
    event: fn() -> Event<Cluster>,
) -> (Vec<String>, Arc<Context>) {
    let (store, mut stored) = kube::runtime::reflector::store();
    stored.apply_watcher_event(&Event::Apply(minicluster("app:1", "u", 1)));
    let (stored, calls) = (Mutex::new(stored), Arc::<Mutex<Vec<String>>>::default());
    let log = calls.clone();
    let (context, _) = with_fake_server_and(move |method, path| {
        let object = path.split("/team/").nth(1).unwrap_or_default();
        if object == resource {
            stored.lock().unwrap().apply_watcher_event(&event());
        }
        if object.starts_with("jobs") || object.starts_with("pods") {
            log.lock().unwrap().push(format!("{method} {object}"));
        }
    });
    context.miniclusters.set_store(store);
    let cluster = Arc::new(minicluster("app:1", "u", 1));
    in_turn(cluster, context.clone(), Arc::default(), 7)
        .await
        .unwrap();
    let calls = calls.lock().unwrap().clone();
    (calls, context)
}

#[tokio::test]
async fn job_of_a_deleted_minicluster_is_deleted_at_once() {
    // Deleted before the Job is created.
    for resource in ["configmaps", "services"] {
        let (calls, _) = calls_when_deleted_during(resource).await;
        assert_eq!(calls, Vec::<String>::new(), "{resource}");
    }
    let (calls, _) = calls_when_deleted_during("jobs").await;
    // First the Job, so that it replaces no pod. Then its pods.
    assert_eq!(calls, ["POST jobs", "DELETE jobs/mc", "DELETE pods"]);
}

#[tokio::test]
async fn job_stays_if_its_owner_is_deleted_with_cascade_orphan() {
    let orphaning = || {
        let mut cluster =
            json!({ "spec": { "size": 1, "containers": [{ "image": "app:1", "command": "hostname" }] } });
        cluster["metadata"] = json!({ "namespace": "team", "name": "mc", "uid": "u", "generation": 2,
            "resourceVersion": "2", "deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["orphan"] });
        Event::Apply(serde_json::from_str(&cluster.to_string()).unwrap())
    };
    let (calls, _) = calls_with_event_during("jobs", orphaning).await;
    assert_eq!(calls, ["POST jobs"]);
    let (calls, _) = calls_with_event_during("services", orphaning).await;
    assert_eq!(calls, Vec::<String>::new(), "the Job did not exist yet");
}

#[tokio::test]
async fn minicluster_deleted_in_its_reconcile_is_forgotten() {
    let (_, context) = calls_when_deleted_during("configmaps").await;
    // A noted write or change of the Job would delay the next status. The two flags are those of a first status.
    assert_eq!(
        context
            .miniclusters
            .wait_to_write("u", true, true, Instant::now()),
        None
    );
    // kube's controller reports a failure only after `in_turn` has forgotten the MiniCluster.
    let gone = Arc::new(minicluster("app:1", "u", 1));
    let action = error_policy(gone, &ReconcileError::TooManySlow, context.clone());
    assert_eq!(action, Action::await_change());
    assert_eq!(context.miniclusters.last_outcome("u"), LastOutcome::NotFailed);
    context.miniclusters.note_job_changed("other", Instant::now());
    assert!(
        context
            .miniclusters
            .wait_to_write("other", true, true, Instant::now())
            .is_some()
    );
}

/// A call that the API server does not answer. It is in flight until it is dropped.
struct InFlight(Arc<Mutex<usize>>);

impl Drop for InFlight {
    fn drop(&mut self) {
        *self.0.lock().unwrap() -= 1;
    }
}

#[tokio::test(start_paused = true)]
async fn reconciles_in_flight_never_exceed_the_slots() {
    let (in_flight, most) = (Arc::<Mutex<usize>>::default(), Arc::<Mutex<usize>>::default());
    let (current, highest) = (in_flight.clone(), most.clone());
    let service = tower::service_fn(move |request: http::Request<Body>| {
        // Each reconcile creates one ConfigMap.
        let call = request.uri().path().ends_with("/configmaps").then(|| {
            let mut count = current.lock().unwrap();
            *count += 1;
            let mut highest = highest.lock().unwrap();
            *highest = (*highest).max(*count);
            InFlight(current.clone())
        });
        async move {
            let _call = call;
            std::future::pending::<Result<http::Response<Body>, tower::BoxError>>().await
        }
    });
    let client = kube::client::ClientBuilder::new(service, "default").build();
    let context = Arc::new(testing::context(client, Options::default()));
    let slots = Arc::new(Slots::default());
    // More MiniClusters than there are slots of both kinds.
    let reconciles = (0..160).map(|number| {
        let (context, slots) = (context.clone(), slots.clone());
        let mut cluster = minicluster("app:1", &format!("u{number}"), 1);
        cluster.meta_mut().name = Some(format!("mc-{number}"));
        let ((key, uid), cluster) = (key_and_uid(&cluster), Arc::new(cluster));
        async move {
            // As kube's controller does with the pauses of `error_policy`.
            loop {
                let result = in_turn(cluster.clone(), context.clone(), slots.clone(), number).await;
                let error = result.unwrap_err();
                let pause = context
                    .miniclusters
                    .after_failure(&key, &uid, &error, Instant::now());
                tokio::time::sleep(pause.unwrap()).await;
            }
        }
    });
    let a_while = Duration::from_secs(20);
    let all = future::join_all(reconciles.map(in_own_task));
    assert!(tokio::time::timeout(a_while, all).await.is_err());
    // A reconcile that is slow gives up its slot for a slow one. If all of these are taken, it ends with an error, and is
    // tried again. So at some time all slots of both kinds are in use.
    let free = Slots::default();
    let take = || free.take(LastOutcome::NotFailed).now_or_never().flatten();
    let quick: Vec<_> = std::iter::from_fn(take).collect();
    let slow: Vec<_> = std::iter::from_fn(|| free.take_slow()).collect();
    assert_eq!(*most.lock().unwrap(), quick.len() + slow.len());
}
