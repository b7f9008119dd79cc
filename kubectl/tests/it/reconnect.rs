//! Commands survive a lost connection to the API server.

use std::time::Duration;

use flux_shared::crd::v1alpha2::MiniCluster;
use tokio::net::TcpListener;

use crate::cut_connection::Proxy;
use crate::user_account::{PluginOutput, read_until};
use crate::user_of;
use test_support::api_server::test;
use test_support::control_plane::kubeconfig_via;

#[test]
fn run_exits_with_job_code_when_job_ends_while_disconnected() {
    test("wire", async |fixture| {
        let operator = fixture.operator().await;
        let mut person = user_of(&fixture);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (kubeconfig, server) = kubeconfig_via(
            &person.kubeconfig,
            &format!("{}-wire", fixture.namespace),
            listener.local_addr().unwrap(),
        )
        .unwrap();
        let wire = Proxy::to(server, listener).await;
        assert!(
            std::fs::read_to_string(&kubeconfig)
                .unwrap()
                .contains(&wire.address.to_string())
        );
        person.kubeconfig = kubeconfig;

        let mut run = person.start(&["run", "--name", "mc", "app:1", "--", "true"]);
        let pods = fixture.pods("mc", 1).await;
        let mut lines = tokio::io::BufReader::new(run.stderr.take().unwrap());
        read_until(&mut lines, "pods: ").await;
        wire.cut();
        read_until(&mut lines, "no events from the API server").await;
        fixture.run_pod(&pods[&0]).await;
        fixture.when_condition("mc", "Ready", "True").await;
        fixture.end_pod(&pods[&0], 9, "Error", "").await;
        fixture.when_condition("mc", "JobFinished", "True").await;
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert!(run.try_wait().unwrap().is_none(), "`run` gave up");
        wire.mend();
        read_until(&mut lines, "the API server answers again").await;
        let output = PluginOutput::when_over(run).await;
        assert_eq!(output.code, 9, "{output:?}");
        fixture.until_gone::<MiniCluster>("mc").await;
        operator.stop().await;
    });
}
