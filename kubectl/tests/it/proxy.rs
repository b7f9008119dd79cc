//! An API server behind an HTTP proxy, which the kubeconfig names.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kube::config::Kubeconfig;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, copy_bidirectional};
use tokio::net::{TcpListener, TcpStream};

use crate::user_account::UserAccount;
use crate::user_of;
use test_support::api_server::test;

/// Starts a proxy. Returns its address, and the number of connections that it has tunnelled.
async fn proxy() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let count = Arc::new(AtomicUsize::new(0));
    let tunnelled = count.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let tunnelled = tunnelled.clone();
            tokio::spawn(async move {
                let mut client = BufReader::new(client);
                let mut request = String::new();
                while !request.ends_with("\r\n\r\n") {
                    client.read_line(&mut request).await.unwrap();
                }
                let server = request.split(' ').nth(1).unwrap();
                let mut server = TcpStream::connect(server).await.unwrap();
                client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
                tunnelled.fetch_add(1, Ordering::Relaxed);
                let _ = copy_bidirectional(&mut client, &mut server).await;
            });
        }
    });
    (address, count)
}

#[test]
fn only_the_kubeconfigs_proxy_leads_to_a_local_api_server() {
    test("proxy", async |fixture| {
        let person = user_of(&fixture);
        let (proxy, tunnelled) = proxy().await;
        let mut kubeconfig = Kubeconfig::read_from(&person.kubeconfig).unwrap();
        kubeconfig.clusters[0].cluster.as_mut().unwrap().proxy_url = Some(format!("http://{proxy}"));
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("kubeconfig");
        std::fs::write(&file, serde_json::to_vec(&kubeconfig).unwrap()).unwrap();
        let behind_proxy = UserAccount {
            kubeconfig: file,
            ..person.clone()
        };
        // Nobody listens at HTTPS_PROXY. Like kubectl, the plugin does not use it for an API server on this machine.
        for (who, connections) in [(&person, 0), (&behind_proxy, 1)] {
            let mut list = who.command(&["list"]);
            list.env("HTTPS_PROXY", "http://127.0.0.1:1");
            let output = list.output().await.unwrap();
            assert!(output.status.success(), "{output:?}");
            assert_eq!(tunnelled.load(Ordering::Relaxed), connections, "{output:?}");
        }
    });
}
