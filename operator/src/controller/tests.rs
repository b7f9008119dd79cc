use std::io::Write;
use std::sync::{Mutex, PoisonError};

use http_body_util::BodyExt;
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::health::log;

#[test]
fn thousands_may_wait_for_their_turn() {
    fn size<A, B, C, D, F>(_: impl Fn(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }
    let waiting = size(in_turn);
    assert!(waiting <= 1024, "each that waits takes {waiting} bytes");
}

/// What was logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A client whose API server creates whatever it is sent, with a uid.
fn obliging() -> Client {
    let service = tower::service_fn(|request: http::Request<Body>| async move {
        let bytes = request.into_body().collect().await?.to_bytes();
        let mut object: Value = serde_json::from_slice(&bytes)?;
        object["metadata"]["uid"] = json!("made");
        Ok::<_, tower::BoxError>(http::Response::new(Body::from(serde_json::to_vec(&object)?)))
    });
    kube::client::ClientBuilder::new(service, "default").build()
}

#[tokio::test]
async fn a_line_of_a_reconcile_names_the_minicluster() {
    let log = Log::default();
    let written = log.clone();
    let _guard = tracing::subscriber::set_default(log::lines("info", move || written.clone()));
    let (client, metrics) = (obliging(), Arc::new(Metrics::new().unwrap()));
    let (writer, reader) = (Writer::new(client.clone()), Reader::new(client));
    let context = Arc::new(Context::new(writer, reader, Options::default(), metrics));
    let cluster = json!({
        "metadata": { "namespace": "team", "name": "mc", "uid": "u", "generation": 1, "resourceVersion": "1" },
        "spec": { "size": 1, "containers": [{ "image": "app:1", "command": "hostname" }] },
    });
    let cluster: Cluster = serde_json::from_str(&cluster.to_string()).unwrap();
    in_turn(Arc::new(cluster), context, Arc::default(), 7)
        .await
        .unwrap();
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let made = lines
        .iter()
        .find(|line| line["message"] == "created the Job")
        .expect(&text);
    assert_eq!(
        (&made["span"]["id"], &made["span"]["minicluster"]),
        (&json!(7), &json!("team/mc")),
        "{made}"
    );
    // The innermost span stands in `span` and in `spans`.
    assert_eq!(made.to_string().matches("team/mc").count(), 2, "{made}");
}
