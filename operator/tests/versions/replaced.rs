//! The webhook's pods, authorities and certificate are replaced, and every request is still answered.

use super::*;

async fn is_ready(port: u16) -> Result<(), String> {
    let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port))
        .await
        .map_err(|error| error.to_string())?;
    stream
        .write_all(b"GET /readyz HTTP/1.1\r\n\r\n")
        .await
        .map_err(|error| error.to_string())?;
    let mut answer = String::new();
    stream
        .read_to_string(&mut answer)
        .await
        .map_err(|error| error.to_string())?;
    if answer.contains("200 OK") {
        Ok(())
    } else {
        Err(answer)
    }
}

/// The webhooks' Service: new connections go to the ports in `targets` by turns.
async fn service(port: u16, targets: Arc<Mutex<Vec<u16>>>) {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    for number in 0usize.. {
        let mut caller = listener.accept().await.unwrap().0;
        let ports = targets.lock().unwrap().clone();
        let port = ports[number % ports.len()];
        tokio::spawn(async move {
            let mut webhook = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut caller, &mut webhook).await;
        });
    }
}

#[test]
fn no_conversion_fails_while_the_webhooks_are_replaced() {
    test(crd, async |fixture| {
        let targets = Arc::new(Mutex::new(Vec::new()));
        let start = async |port: u16| {
            let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
            let mut settings = fixture.settings(port, NAMESPACE);
            let health = free_port();
            settings.health = Some(([127, 0, 0, 1], health).into());
            let stopped = async { drop(stopped.await) };
            let run = webhook::run(with_metrics(fixture.webhook_client.clone()), settings, stopped);
            let task = tokio::spawn(async move { run.await.unwrap() });
            until("it is ready", async || is_ready(health).await).await;
            (port, stop, task)
        };
        let mut running = vec![start(free_port()).await, start(free_port()).await];
        targets
            .lock()
            .unwrap()
            .extend(running.iter().map(|(port, ..)| *port));
        let _service = tokio::spawn(service(fixture.port, targets.clone()));
        fixture.answers().await;
        let (answered, failed) = (Arc::new(Mutex::new(0)), Arc::new(Mutex::new(Vec::new())));
        let askers: Vec<_> = (0..8)
            .map(|_| {
                let (api, answered, failed) =
                    (fixture.api(Version::V1alpha1), answered.clone(), failed.clone());
                tokio::spawn(async move {
                    loop {
                        match api.get("probe").await {
                            Ok(_) => *answered.lock().unwrap() += 1,
                            Err(error) => failed.lock().unwrap().push(error.to_string()),
                        }
                        tokio::time::sleep(Duration::from_millis(7)).await;
                    }
                })
            })
            .collect();
        for _ in 0..3 {
            // As a Deployment does it: it starts one more pod, and when that is ready, it ends one. The Service learns
            // of the end 1 s after the pod. The webhook serves longer than that (`drain`).
            let new = start(free_port()).await;
            targets.lock().unwrap().push(new.0);
            running.push(new);
            let (port, stop, task) = running.remove(0);
            stop.send(()).unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
            targets.lock().unwrap().retain(|other| *other != port);
            task.await.unwrap();
        }
        for asker in askers {
            asker.abort();
        }
        let answered = *answered.lock().unwrap();
        println!("{answered} conversions while three of the webhooks were replaced");
        assert!(
            answered > 200 && failed.lock().unwrap().is_empty(),
            "{answered}: {:?}",
            failed.lock().unwrap()
        );
    });
}

#[test]
fn replicas_keep_each_others_ca_in_the_bundle() {
    test(crd, async |fixture| {
        let other = free_port();
        // A webhook keeps its authority in a Secret of its namespace, so these two have different ones. Both use
        // the administrator's client, since the webhook's account has no rights in `default`.
        let namespaces = [(fixture.port, NAMESPACE), (other, "default")];
        let run = |(port, namespace)| {
            webhook::run(
                with_metrics(fixture.client.clone()),
                fixture.settings(port, namespace),
                std::future::pending(),
            )
        };
        let bundle = || {
            let path = "jsonpath={.spec.conversion.webhook.clientConfig.caBundle}";
            let text = fixture
                .plane
                .kubectl(&["get", "crd", "miniclusters.flux-framework.org", "-o", path])
                .unwrap();
            let bytes: k8s_openapi::ByteString = serde_json::from_value(json!(text)).unwrap();
            let text = String::from_utf8(bytes.0).unwrap();
            let all = text
                .split_inclusive("-----END CERTIFICATE-----")
                .map(|certificate| certificate.trim().to_owned());
            all.filter(|certificate| !certificate.is_empty())
                .collect::<Vec<_>>()
        };
        let checks = async {
            let mut before = Vec::new();
            let both = until("both are in the bundle", async || {
                let now = bundle();
                assert!(
                    before.iter().all(|one| now.contains(one)),
                    "an existing one is gone"
                );
                before = now.clone();
                if now.len() >= 2 {
                    Ok(now)
                } else {
                    Err(format!("{} are", now.len()))
                }
            })
            .await;
            fixture.answers().await;
            tokio::time::sleep(Duration::from_secs(3)).await;
            assert_eq!(bundle(), both, "and nobody writes any more");
        };
        tokio::select! {
            _ = futures::future::join_all(namespaces.map(run)) => unreachable!(),
            () = checks => {}
        }
    });
}

#[test]
fn expiring_certificate_is_renewed_without_failed_requests() {
    test(crd, async |fixture| {
        let _webhook = fixture.webhook().await;
        let read = |what: &str| {
            let path = format!("jsonpath={{.data.{what}}}");
            fixture
                .plane
                .kubectl(&[
                    "-n",
                    NAMESPACE,
                    "get",
                    "secret",
                    "flux-operator-webhook",
                    "-o",
                    &path,
                ])
                .unwrap()
        };
        let before = read("tls\\.crt");
        // The webhook reads in this annotation when its certificate expires.
        let expired = "flux-framework.org/not-after=2026-01-01T00:00:00Z";
        fixture
            .plane
            .kubectl(&[
                "-n",
                NAMESPACE,
                "annotate",
                "--overwrite",
                "secret",
                "flux-operator-webhook",
                expired,
            ])
            .unwrap();
        until("there is another certificate", async || {
            fixture.api(Version::V1alpha1).get("probe").await.unwrap();
            if read("tls\\.crt") == before {
                Err("not yet".into())
            } else {
                Ok(())
            }
        })
        .await;
        // Just after it has written the Secret, the webhook begins to serve the new certificate.
        for _ in 0..40 {
            fixture.api(Version::V1alpha1).get("probe").await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        // The webhook creates a deleted Secret again.
        fixture
            .plane
            .kubectl(&["-n", NAMESPACE, "delete", "secret", "flux-operator-webhook"])
            .unwrap();
        until("there is a Secret again", async || {
            fixture
                .plane
                .kubectl(&["-n", NAMESPACE, "get", "secret", "flux-operator-webhook"])
        })
        .await;
        fixture.answers().await;
        let calls = fixture.calls.lock().unwrap().clone();
        assert_sufficient_and_all_used(
            &calls,
            &Installation::whole(&json!({})).permissions(webhook::NAME),
        );
    });
}
