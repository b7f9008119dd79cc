//! The webhook's process, as anybody in the cluster can call it: its memory is limited, and well-behaved
//! clients get answers.

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair};
use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::prometheus::free_address;
use test_support::api_server::runtime;

/// How long the API server waits for an answer.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Below the limit of the webhook's pod, 320 MiB.
const MEMORY_MAX: u64 = 288 << 20;

/// The program, with the test's certificate.
pub struct Webhook {
    child: Child,
    address: SocketAddr,
    pub health: SocketAddr,
    tls: TlsConnector,
    _folder: tempfile::TempDir,
}

impl Drop for Webhook {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Webhook {
    pub async fn start() -> Webhook {
        Webhook::with(CertificateParams::new(["webhook".to_owned()]).unwrap()).await
    }

    pub async fn with(params: CertificateParams) -> Webhook {
        let folder = tempfile::tempdir().unwrap();
        let key = KeyPair::generate().unwrap();
        let certificate = params.self_signed(&key).unwrap();
        std::fs::write(folder.path().join("tls.crt"), certificate.pem()).unwrap();
        std::fs::write(folder.path().join("tls.key"), key.serialize_pem()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(certificate.der().clone()).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let (address, health) = (free_address(), free_address());
        // As by default, `[::]`: the webhook gets its peers' IPv4 addresses in the form of IPv6.
        let child = Command::new(env!("CARGO_BIN_EXE_flux-operator"))
            .args([
                "webhook",
                "--listen",
                &format!("[::]:{}", address.port()),
                "--health",
                &health.to_string(),
            ])
            .arg("--certificate")
            .arg(folder.path())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let tls = TlsConnector::from(Arc::new(config.with_no_client_auth()));
        let webhook = Webhook {
            child,
            address,
            health,
            tls,
            _folder: folder,
        };
        while !webhook.health("/readyz").await.contains("200 OK") {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        webhook
    }

    async fn health(&self, path: &str) -> String {
        let mut answer = String::new();
        if let Ok(mut stream) = TcpStream::connect(self.health).await {
            stream
                .write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes())
                .await
                .unwrap();
            stream.read_to_string(&mut answer).await.unwrap();
        }
        answer
    }

    /// A connection from 127.0.0.`peer`.
    pub async fn tcp(&self, peer: u8) -> std::io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(([127, 0, 0, peer], 0).into())?;
        socket.connect(self.address).await
    }

    pub async fn connect(&self, peer: u8) -> std::io::Result<TlsStream<TcpStream>> {
        self.tls
            .connect(ServerName::try_from("webhook").unwrap(), self.tcp(peer).await?)
            .await
    }

    /// The status and the text of the answer. An error means that the webhook closed the connection.
    pub async fn post(&self, peer: u8, body: &[u8]) -> std::io::Result<(u16, String)> {
        let mut stream = self.connect(peer).await?;
        ask(&mut stream, body).await
    }

    async fn converts(&self, peer: u8) {
        let begin = Instant::now();
        let (status, text) = self.post(peer, &review(&[cluster(10)])).await.unwrap();
        assert!(status == 200 && text.contains("Success"), "{status} {text}");
        assert!(begin.elapsed() < TIMEOUT, "{:?}", begin.elapsed());
    }

    /// The peak memory of the process, in bytes.
    fn memory(&self) -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = text.lines().find(|line| line.starts_with("VmHWM")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
    }
}

async fn ask(stream: &mut TlsStream<TcpStream>, body: &[u8]) -> std::io::Result<(u16, String)> {
    let head = format!(
        "POST /convert HTTP/1.1\r\nHost: webhook\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    // The webhook may answer before it has read everything.
    let _ = stream.write_all(&[head.as_bytes(), body].concat()).await;
    let mut answer = Vec::new();
    let mut buffer = vec![0; 64 << 10];
    loop {
        let count = stream.read(&mut buffer).await?;
        if count == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
        answer.extend_from_slice(&buffer[..count]);
        let Some(end) = answer.windows(4).position(|window| window == b"\r\n\r\n") else {
            continue;
        };
        let head = String::from_utf8_lossy(&answer[..end]).to_lowercase();
        let length = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .unwrap();
        if answer.len() >= end + 4 + length.parse::<usize>().unwrap() {
            let status = head.split(' ').nth(1).unwrap().parse().unwrap();
            return Ok((status, String::from_utf8_lossy(&answer).into_owned()));
        }
    }
}

fn cluster(script: usize) -> String {
    let spec =
        json!({ "size": 2, "containers": [{ "image": "app:1", "commands": { "pre": "x".repeat(script) } }] });
    json!({
        "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster",
        "metadata": { "name": "mc", "namespace": "ns" }, "spec": spec,
    })
    .to_string()
}

pub fn review(objects: &[String]) -> Vec<u8> {
    let request = json!({ "uid": "u", "desiredAPIVersion": "flux-framework.org/v1alpha1", "objects": [] });
    let whole =
        json!({ "apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview", "request": request });
    whole
        .to_string()
        .replace("\"objects\":[]", &format!("\"objects\":[{}]", objects.join(",")))
        .into_bytes()
}

fn run<F: Future<Output = ()>>(body: impl FnOnce() -> F) {
    runtime().block_on(body());
}

#[test]
fn webhook_memory_stays_below_its_pod_limit_for_any_body() {
    run(async || {
        let webhook = Webhook::start().await;
        let zeros = |bytes: usize| "0,".repeat(bytes / 2) + "0";
        // An object of which the conversion keeps the most copies.
        let with_copies = |x: &str| {
            format!(
                "{{\"apiVersion\":\"flux-framework.org/v1alpha2\",\"kind\":\"MiniCluster\",\"metadata\":{{\"name\":\"a\",\
                 \"annotations\":{{\"flux-framework.org/v1alpha1-spelling\":\"{{\\\"/size\\\":1}}\"}}}},\
                 \"spec\":{{\"size\":1,\"containers\":[{{\"image\":\"a\"}}],\"x\":{x}}}}}"
            )
        };
        // Nested lists or objects with one member each. (The parser goes 128 levels deep.)
        let chains = |begin: &str, end: &str| {
            let chain = format!("{}0{}", begin.repeat(110), end.repeat(110));
            with_copies(&format!("[{}0]", (chain + ",").repeat(600)))
        };
        // An object with this many members, each with a name of its own.
        let wide = |members: usize, value: &str| {
            let members: Vec<String> = (0..members).map(|i| format!("\"{i:07}\":{value}")).collect();
            format!("{{{}}}", members.join(","))
        };
        // The limit's 200,000 values, since a name counts as one. The object's template is copied as text.
        let wide_spec = || {
            let x = wide(99_900, &format!("\"{}\"", "x".repeat(70)));
            with_copies(&x).replace("\"size\":1,", "\"size\":1,\"podTemplate\":{},")
        };
        // serde's error for such a string quotes it, with six bytes for each.
        let quoted = format!("\"{}\"", "\u{7f}".repeat(30 << 20));
        let bodies: Vec<Vec<u8>> = vec![
            format!("[{}]", zeros(20 << 20)).into_bytes(),
            review(&[zeros(20 << 20)]),
            review(&[format!("[{}]", zeros(30 << 20))]),
            review(&[format!("{{\"spec\":[{}]}}", zeros(8 << 20))]),
            review(&[wide(2_500_000, "0")]),
            review(&[format!("{{\"metadata\":{}}}", wide(2_500_000, "0"))]),
            review(&vec![wide_spec(); 3]),
            review(std::slice::from_ref(&quoted)),
            String::from_utf8(review(&[]))
                .unwrap()
                .replace("[]", &quoted)
                .into_bytes(),
            quoted.into_bytes(),
            review(&["[".repeat(15 << 20) + &"]".repeat(15 << 20)]),
            review(&[format!("\"{}\"", "\\u003c".repeat(5 << 20))]),
            // Nearly 200,000 values in each object, the most that the webhook reads.
            review(&vec![
                format!("{{\"metadata\":{{\"a\":[{}]}}}}", zeros(390_000));
                60
            ]),
            review(&vec![chains("{\"\":", "}"); 75]),
            review(&vec![chains("[", "]"); 225]),
            review(&vec![cluster(1_000_000); 28]),
            review(&vec![cluster(10); 90_000]),
            vec![b'x'; 33 << 20],
        ];
        for body in &bodies {
            // Any answer is allowed, and so is a closed connection.
            let _ = webhook.post(2, body).await;
        }
        println!("one after the other: {} MiB", webhook.memory() >> 20);
        // Each caller is a task of its own. In one task, long requests would delay the others.
        let (webhook, bodies) = (Arc::new(webhook), Arc::new(bodies));
        let mut all = JoinSet::new();
        for number in 0..24 {
            let (webhook, bodies) = (webhook.clone(), bodies.clone());
            all.spawn(async move {
                let _ = webhook
                    .post(3 + number % 8, &bodies[usize::from(number) % bodies.len()])
                    .await;
            });
        }
        for _ in 0..5 {
            webhook.converts(1).await;
        }
        all.join_all().await;
        println!("at once: {} MiB", webhook.memory() >> 20);
        // Clients that are gone while their reviews are converted.
        for number in 0..24 {
            let large = &bodies[bodies.len() - 3];
            let _ = tokio::time::timeout(Duration::from_millis(250), webhook.post(20 + number, large)).await;
        }
        println!("with clients that are gone: {} MiB", webhook.memory() >> 20);
        assert!(webhook.memory() < MEMORY_MAX, "{} MiB", webhook.memory() >> 20);
        let (status, text) = webhook.post(1, &review(&vec![cluster(10); 5000])).await.unwrap();
        assert!(status == 200 && text.contains("Success"));
    });
}

#[test]
fn silent_webhook_clients_do_not_block_other_requests() {
    run(async || {
        let webhook = Webhook::start().await;
        // The API server's connection, which it keeps open.
        let mut kept = webhook.connect(1).await.unwrap();
        assert_eq!(ask(&mut kept, &review(&[cluster(10)])).await.unwrap().0, 200);
        let mut silent = Vec::new();
        for number in 0..800u32 {
            silent.push(webhook.tcp(2 + u8::try_from(number % 8).unwrap()).await);
        }
        webhook.converts(1).await;
        let mut slow = Vec::new();
        for number in 0..60 {
            let Ok(mut stream) = webhook.connect(2 + number % 8).await else {
                continue;
            };
            let head = "POST /convert HTTP/1.1\r\nHost: webhook\r\nContent-Length: 30000000\r\n\r\n";
            let _ = stream.write_all(head.as_bytes()).await;
            let _ = stream.write_all(&vec![b' '; 2 << 20]).await;
            slow.push(stream);
        }
        webhook.converts(1).await;
        for path in ["/healthz", "/readyz"] {
            assert!(webhook.health(path).await.contains("200 OK"), "{path}");
        }
        let memory = webhook.memory();
        assert!(memory < MEMORY_MAX, "{} MiB", memory >> 20);
    });
}

#[test]
fn stopping_webhook_answers_until_callers_have_learned_of_it() {
    run(async || {
        let mut webhook = Webhook::start().await;
        let mut kept = webhook.connect(1).await.unwrap();
        let body = review(&[cluster(10)]);
        let (_, text) = ask(&mut kept, &body).await.unwrap();
        assert!(!text.to_lowercase().contains("connection: close"), "{text}");
        let mut kill = Command::new("kill")
            .arg("-TERM")
            .arg(webhook.child.id().to_string())
            .spawn()
            .unwrap();
        kill.wait().unwrap();
        let begin = Instant::now();
        while !webhook.health("/readyz").await.contains("503") {
            assert!(begin.elapsed() < Duration::from_secs(5));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let (status, text) = ask(&mut kept, &body).await.unwrap();
        assert!(
            status == 200 && text.to_lowercase().contains("connection: close"),
            "{text}"
        );
        // It keeps serving for 10 s after the signal.
        while begin.elapsed() < Duration::from_secs(8) {
            webhook.converts(1).await;
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        assert!(webhook.health("/healthz").await.contains("200 OK"));
        let code = loop {
            if let Some(status) = webhook.child.try_wait().unwrap() {
                break status;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "it ends");
            tokio::time::sleep(Duration::from_millis(100)).await;
        };
        assert!(code.success(), "{code}");
    });
}
