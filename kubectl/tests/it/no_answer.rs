//! Ctrl-C while the API server does not answer, or answers 503.

use std::io::Write;
use std::sync::{Arc, Mutex};

use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::BufReader;
use tokio::net::TcpListener;
use tokio::process::{Child, ChildStderr};

use crate::runs::interrupt;
use crate::user_account::{UserAccount, in_time, read_until};
use test_support::api_server::until;

/// An API server that answers requests of some methods only: POST with the created object, others with 503.
pub struct Silent {
    pub person: UserAccount,
    requests: Arc<Mutex<Vec<Method>>>,
    _folder: tempfile::TempDir,
}

impl Silent {
    pub async fn start(answered: &[Method]) -> Silent {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("kubeconfig");
        let text = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "x",
            "clusters": [{ "name": "c", "cluster": { "server": format!("http://{}", listener.local_addr().unwrap()) } }],
            "users": [{ "name": "u", "user": { "token": "t" } }],
            "contexts": [{ "name": "x", "context": { "cluster": "c", "user": "u" } }],
        });
        std::fs::write(&kubeconfig, text.to_string()).unwrap();
        let requests: Arc<Mutex<Vec<Method>>> = Arc::default();
        let (received, answered) = (requests.clone(), answered.to_vec());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (received, answered) = (received.clone(), answered.clone());
                let service = hyper::service::service_fn(move |request| {
                    answer(request, answered.clone(), received.clone())
                });
                let connection = hyper::server::conn::http1::Builder::new();
                tokio::spawn(connection.serve_connection(TokioIo::new(stream), service));
            }
        });
        let person = UserAccount {
            kubeconfig,
            namespace: "default".into(),
        };
        Silent {
            person,
            requests,
            _folder: folder,
        }
    }

    /// Waits until the server has received such a request.
    async fn received(&self, method: Method) {
        until("the server receives the request", async || {
            self.requests.lock().unwrap().contains(&method).then_some(())
        })
        .await;
    }

    /// Starts `run`. Also returns its standard error.
    pub fn run(&self) -> (Child, BufReader<ChildStderr>) {
        let mut run = self.person.start(&["run", "--name", "mc", "app:1", "--", "true"]);
        let err = BufReader::new(run.stderr.take().unwrap());
        (run, err)
    }
}

async fn answer(
    request: Request<Incoming>,
    answered: Vec<Method>,
    received: Arc<Mutex<Vec<Method>>>,
) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let method = request.method().clone();
    let body = request.into_body().collect().await?.to_bytes();
    received.lock().unwrap().push(method.clone());
    if !answered.contains(&method) {
        std::future::pending::<()>().await;
    }
    if method != Method::POST {
        return Ok(Response::builder().status(503).body(Full::default()).unwrap());
    }
    let mut cluster: Value = serde_json::from_slice(&body).unwrap();
    cluster["metadata"]["uid"] = "u".into();
    let response = Response::builder()
        .status(201)
        .header("content-type", "application/json");
    Ok(response.body(Full::from(cluster.to_string())).unwrap())
}

#[tokio::test]
async fn second_ctrl_c_ends_a_creation_without_an_answer() {
    let silent = Silent::start(&[]).await;
    let (mut run, mut err) = silent.run();
    silent.received(Method::POST).await;
    interrupt(&run);
    read_until(&mut err, "it is stopped once it is created").await;
    interrupt(&run);
    read_until(
        &mut err,
        "mc may still run: `kubectl minicluster stop mc -n default`",
    )
    .await;
    let status = in_time("it ends", run.wait()).await.unwrap();
    assert_eq!(status.code(), Some(130));
}

#[tokio::test]
async fn third_ctrl_c_ends_a_deletion_without_an_answer() {
    let silent = Silent::start(&[Method::POST]).await;
    let (mut run, mut err) = silent.run();
    read_until(&mut err, "created MiniCluster mc").await;
    interrupt(&run);
    read_until(&mut err, "press Ctrl-C again to delete it").await;
    interrupt(&run);
    silent.received(Method::DELETE).await;
    interrupt(&run);
    read_until(&mut err, "mc may still run").await;
    let status = in_time("it ends", run.wait()).await.unwrap();
    assert_eq!(status.code(), Some(130));
}

/// Like `kubectl minicluster run ... 2>&1 | less`.
#[tokio::test]
async fn ctrl_c_ends_run_while_nobody_reads_the_messages() {
    let silent = Silent::start(&[]).await;
    let (_reader, mut writer) = std::io::pipe().unwrap();
    // As much as fits into a pipe.
    writer.write_all(&[b'x'; 64 * 1024]).unwrap();
    let mut command = silent
        .person
        .command(&["run", "--name", "mc", "app:1", "--", "true"]);
    let mut run = command.stderr(writer).spawn().unwrap();
    silent.received(Method::POST).await;
    let status = until("it ends", async || {
        interrupt(&run);
        run.try_wait().unwrap()
    })
    .await;
    assert_eq!(status.code(), Some(130));
}

#[tokio::test]
async fn failed_deletion_is_reported_before_the_retry() {
    let silent = Silent::start(&[Method::POST, Method::DELETE]).await;
    let (mut run, mut err) = silent.run();
    read_until(&mut err, "created MiniCluster mc").await;
    interrupt(&run);
    read_until(&mut err, "press Ctrl-C again to delete it").await;
    interrupt(&run);
    read_until(&mut err, "failed to delete MiniCluster mc").await;
    interrupt(&run);
    read_until(&mut err, "mc may still run").await;
    let status = in_time("it ends", run.wait()).await.unwrap();
    assert_eq!(status.code(), Some(130));
}
