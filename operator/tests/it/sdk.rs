//! The Go operator's Python SDK from PyPI, against our CRD on the real API server. `tests/sdk/use.py` calls the SDK,
//! and prints the steps. What the SDK does in pods that run is in `tests/e2e/sdk.rs`.

use kube::ResourceExt;

use test_support::api_server::{kubeconfig, test};
use test_support::sdk;

#[test]
fn go_operator_python_sdk_creates_scales_follows_and_deletes() {
    test("sdk", async |fixture| {
        let operator = fixture.operator().await;
        let namespace = fixture.namespace.clone();
        let program =
            tokio::task::spawn_blocking(move || sdk::run("use.py", &namespace, kubeconfig().as_ref()));
        let pods = fixture.run_pods("lammps", 4).await;
        let steps = program.await.unwrap();

        // These functions fail with every operator, because they never ask the API server.
        let not_created = steps.object("not created");
        for function in ["create_minicluster", "FluxMiniCluster", "FluxBrokerMiniCluster"] {
            let error = not_created[function]
                .as_str()
                .unwrap_or_else(|| panic!("{function}: {not_created}"));
            assert!(
                error.starts_with("TypeError: ") && error.contains("'flux_restful'"),
                "{function}: {error}"
            );
        }
        assert_eq!(not_created["items"].as_array().unwrap().len(), 0);

        let created = &steps.object("created")["spec"];
        assert_eq!(
            (&created["size"], &created["maxSize"], &created["tasks"]),
            (&2.into(), &4.into(), &2.into())
        );
        assert_eq!(created["flux"]["optionFlags"], "-o pmi=pmix");
        assert_eq!(created["containers"][0]["resources"]["requests"]["cpu"], 1);
        assert_eq!(steps.object("scaled")["spec"]["size"], 4);
        // Which rule speaks depends on whether the operator has written the status.
        let refused = steps.object("refused")["message"].as_str().unwrap();
        let (by_status, by_spec) = (
            "size is 9, but cannot exceed 4",
            "is 4, but must not be smaller than size, which is 9",
        );
        assert!(
            refused.contains(by_status) != refused.contains(by_spec),
            "{refused}"
        );
        assert_eq!(steps.object("listed")["items"].as_array().unwrap().len(), 1);

        assert_eq!(steps.object("typed"), "-o pmi=pmix");
        // The SDK cannot read back a whole MiniCluster: its models lack Kubernetes' types.
        let whole = steps.object("typed whole").as_str().unwrap();
        assert!(
            whole.starts_with("AttributeError: module 'fluxoperator.models'"),
            "{whole}"
        );

        let followed = steps.object("followed");
        let names: Vec<String> = pods.values().map(ResourceExt::name_any).collect();
        for list in ["pods", "again"] {
            let listed = followed[list].as_array().unwrap();
            assert_eq!(listed.len(), 4, "{followed}");
            assert!(
                names.iter().all(|name| listed.contains(&name.as_str().into())),
                "{followed}"
            );
        }
        assert_eq!(
            (&followed["broker"], &followed["found"]),
            (&names[0].as_str().into(), &names[0].as_str().into())
        );
        let status = steps.object("status");
        assert!(
            status["maximumSize"] == 4 && status["conditions"].is_array(),
            "{status:#}"
        );

        // The seconds that the SDK's delete() took. It sets them once it has seen no pod left.
        assert!(steps.object("deleted")["delete"].is_number());
        // The SDK does not wait for the MiniCluster itself.
        let gone = fixture
            .find::<flux_shared::crd::v1alpha2::MiniCluster>("lammps")
            .await;
        assert!(gone.is_none_or(|cluster| cluster.metadata.deletion_timestamp.is_some()));
        operator.stop().await;
    });
}
