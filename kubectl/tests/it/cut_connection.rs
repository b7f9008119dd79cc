//! A proxy to the API server whose connections can be cut, to test what happens when the network fails.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::broadcast;

/// A TCP proxy to the API server whose connections can be cut.
pub struct Proxy {
    pub address: SocketAddr,
    is_cut: Arc<AtomicBool>,
    cut: broadcast::Sender<()>,
}

impl Proxy {
    pub async fn to(server: String, listener: TcpListener) -> Proxy {
        let address = listener.local_addr().unwrap();
        let is_cut = Arc::new(AtomicBool::new(false));
        let (cut, _) = broadcast::channel(1);
        let (gate, cutter) = (is_cut.clone(), cut.clone());
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                // Subscribes before it reads `gate`. Otherwise the connection could miss a cut between the two.
                let (server, mut cut) = (server.clone(), cutter.subscribe());
                if gate.load(Ordering::SeqCst) {
                    let _ = near.shutdown().await;
                    continue;
                }
                tokio::spawn(async move {
                    let mut far = TcpStream::connect(server).await.unwrap();
                    tokio::select! {
                        _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                        _ = cut.recv() => {}
                    }
                });
            }
        });
        Proxy { address, is_cut, cut }
    }

    pub fn cut(&self) {
        self.is_cut.store(true, Ordering::SeqCst);
        let _ = self.cut.send(());
    }

    pub fn mend(&self) {
        self.is_cut.store(false, Ordering::SeqCst);
    }
}
