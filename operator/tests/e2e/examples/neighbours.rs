//! Examples with something beside them: another cluster, services.

use super::*;

#[test]
fn a_second_cluster_bursts_into_the_first_ones_instance() {
    test("bursting", async |bed| {
        let root = apply(&bed, "bursting/minicluster");
        bed.when_condition(&root, "Ready").await;
        let lead = bed.lead(&root).await.unwrap().name_any();
        let overlay = inside(&bed, &lead, "flux overlay status");
        assert!(
            overlay.starts_with("0 bursting-0: partial\n") && overlay.contains("3 burst-0-1: offline"),
            "{overlay}"
        );
        apply(&bed, "bursting/burst");
        bed.until("all four are one instance", async || {
            inside(&bed, &lead, "flux overlay status").starts_with("0 bursting-0: full\n").then_some(())
        })
        .await;
        let hosts = inside(&bed, &lead, "flux run -N 4 uname -n");
        let mut hosts: Vec<&str> = hosts.lines().collect();
        hosts.sort_unstable();
        assert_eq!(hosts, ["burst-0-0", "burst-0-1", "bursting-0", "bursting-1"]);
    });
}

#[test]
fn services_are_beside_the_cluster_and_end_with_it() {
    test("services", async |bed| {
        let conf = json!({ "apiVersion": "v1", "kind": "List", "items": documents(&bed, "services/nginx-conf") });
        kubectl(&bed, &["apply", "-f", "-"], &conf.to_string());
        assert_eq!(
            to_the_end(bed.clone(), ("services/minicluster", 0, &[("served beside the cluster", 1)])).await,
            None
        );
        bed.until("the services' pod goes with the MiniCluster", async || {
            bed.api::<Pod>().get_opt("services-services").await.unwrap().is_none().then_some(())
        })
        .await;
    });
}

#[test]
fn two_clusters_share_a_headless_service_and_the_last_one_takes_it_along() {
    test("headless", async |bed| {
        let first = apply(&bed, "network/minicluster");
        bed.when_condition(&first, "Ready").await;
        let second = apply(&bed, "network/second");
        let status = bed.when_finished(&second).await;
        let log = log(&bed, &bed.lead(&second).await.unwrap(), None).await;
        assert_eq!(status["exitCode"], 0, "{status:#} {log}");
        let name = format!("network-1.my-network.{}.svc.cluster.local", bed.namespace);
        assert!(log.lines().any(|line| line.ends_with(&name)), "{log}");
        let services = bed.api::<k8s_openapi::api::core::v1::Service>();
        bed.api::<MiniCluster>().delete(&first, &DeleteParams::default()).await.unwrap();
        bed.until("the first one is gone", async || bed.pods(&first).await.is_empty().then_some(())).await;
        assert!(services.get_opt("my-network").await.unwrap().is_some(), "the second one has it still");
        bed.api::<MiniCluster>().delete(&second, &DeleteParams::default()).await.unwrap();
        bed.until("the Service is gone", async || {
            services.get_opt("my-network").await.unwrap().is_none().then_some(())
        })
        .await;
    });
}
