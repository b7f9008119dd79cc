//! Examples that need something beside them: another cluster, services.

use super::*;

#[test]
fn a_second_cluster_bursts_into_the_first_ones_instance() {
    test("bursting", async |fixture| {
        let root = apply(&fixture, "bursting/minicluster");
        fixture.when_condition(&root, "Ready").await;
        let lead = fixture.lead(&root).await.unwrap().name_any();
        let overlay = inside(&fixture, &lead, "flux overlay status");
        assert!(
            overlay.starts_with("0 bursting-0: partial\n") && overlay.contains("3 burst-0-1: offline"),
            "{overlay}"
        );
        apply(&fixture, "bursting/burst");
        fixture
            .until("all four are one instance", async || {
                inside(&fixture, &lead, "flux overlay status")
                    .starts_with("0 bursting-0: full\n")
                    .then_some(())
            })
            .await;
        let hosts = inside(&fixture, &lead, "flux run -N 4 uname -n");
        let mut hosts: Vec<&str> = hosts.lines().collect();
        hosts.sort_unstable();
        assert_eq!(hosts, ["burst-0-0", "burst-0-1", "bursting-0", "bursting-1"]);
    });
}

#[test]
fn services_are_beside_the_cluster_and_end_with_it() {
    test("services", async |fixture| {
        let conf = json!({ "apiVersion": "v1", "kind": "List", "items": documents(&fixture, "services/nginx-conf") });
        fixture.kubectl(&["apply", "-f", "-"], &conf.to_string());
        assert_eq!(
            to_the_end(
                fixture.clone(),
                ("services/minicluster", 0, &[("served beside the cluster", 1)])
            )
            .await,
            None
        );
        fixture
            .until("the services' pod goes with the MiniCluster", async || {
                fixture
                    .api::<Pod>()
                    .get_opt("services-services")
                    .await
                    .unwrap()
                    .is_none()
                    .then_some(())
            })
            .await;
    });
}

#[test]
fn shared_headless_service_is_deleted_with_the_last_cluster() {
    test("headless", async |fixture| {
        let first = apply(&fixture, "network/minicluster");
        fixture.when_condition(&first, "Ready").await;
        let second = apply(&fixture, "network/second");
        let status = fixture.when_finished(&second).await;
        let log = log(&fixture, &fixture.lead(&second).await.unwrap(), None).await;
        assert_eq!(status["exitCode"], 0, "{status:#} {log}");
        let name = format!("network-1.my-network.{}.svc.cluster.local", fixture.namespace);
        assert!(log.lines().any(|line| line.ends_with(&name)), "{log}");
        let services = fixture.api::<k8s_openapi::api::core::v1::Service>();
        fixture
            .api::<MiniCluster>()
            .delete(&first, &DeleteParams::default())
            .await
            .unwrap();
        fixture
            .until("the first one is gone", async || {
                fixture.pods(&first).await.is_empty().then_some(())
            })
            .await;
        assert!(
            services.get_opt("my-network").await.unwrap().is_some(),
            "the second one still has it"
        );
        fixture
            .api::<MiniCluster>()
            .delete(&second, &DeleteParams::default())
            .await
            .unwrap();
        fixture
            .until("the Service is gone", async || {
                services
                    .get_opt("my-network")
                    .await
                    .unwrap()
                    .is_none()
                    .then_some(())
            })
            .await;
    });
}
