//! The five statements of Design 3.3 about MiniClusters (`shared/tests/documents/promises.md`), tested with both
//! API versions. Here are 1 and 2, which are about objects. 3 to 5 are about pods.

use flux_shared::crd::convert::{Version, convert};
use k8s_openapi::api::batch::v1::Job;
use serde_json::{Value, json};

use test_support::api_server::test;

/// "A MiniCluster is a CRD that includes containers (and for each, options such as image and command) and
/// size."
#[test]
fn design_3_3_statement_1_minicluster_has_containers_and_size() {
    let crd: Vec<Value> =
        serde_saphyr::from_multiple(&flux_operator::definition::crd(&Default::default()).unwrap()).unwrap();
    for name in ["v1alpha1", "v1alpha2"] {
        let crd = &crd[0];
        let versions = crd["spec"]["versions"].as_array().unwrap();
        let version = versions.iter().find(|version| version["name"] == name).unwrap();
        assert_eq!(version["served"], true, "{name}");
        let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"];
        assert_eq!(spec["size"]["type"], "integer", "{name}");
        let container = &spec["containers"]["items"]["properties"];
        assert_eq!(
            (&container["image"]["type"], &container["command"]["type"]),
            (&json!("string"), &json!("string"))
        );
    }
}

/// "Creating a MiniCluster first creates Config Maps, Volumes (TBA), and secrets and then an indexed job with
/// pods that use them."
#[test]
fn design_3_3_statement_2_objects_come_before_the_indexed_job() {
    test("design-2", async |fixture| {
        let operator = fixture.operator().await;
        let older = json!({
            "size": 2, "users": [{ "name": "ada" }], "volumes": { "data": { "path": "/tmp/data" } },
            "containers": [{ "image": "app:1", "command": "work", "volumes": { "data": { "path": "/data" } } }],
        });
        let object = json!({
            "apiVersion": "flux-framework.org/v1alpha1", "kind": "MiniCluster", "metadata": { "name": "x" }, "spec": older,
        });
        let newer = convert(object, Version::V1alpha2).unwrap()["spec"].clone();
        let mut own = newer.clone();
        // The default of v1alpha2 is a view. The converted spec uses the Flux of the image, the default of v1alpha1.
        own["flux"] = json!({});
        for (name, spec) in [("older", newer), ("newer", own)] {
            operator.calls.clear();
            fixture.create(name, spec).await;
            fixture.when_condition(name, "JobRequested", "True").await;
            let made: Vec<String> = operator
                .calls
                .all()
                .into_iter()
                .filter(|call| call.verb == "create")
                .map(|call| call.resource)
                .collect();
            // The first call for the Job is a dry run.
            let job = made.iter().rposition(|resource| resource == "jobs").unwrap();
            let first = &made[..job];
            for resource in [
                "configmaps",
                "secrets",
                "persistentvolumes",
                "persistentvolumeclaims",
            ] {
                assert!(
                    first.iter().any(|kind| kind == resource),
                    "{name}: {resource} before the Job: {made:?}"
                );
            }
            let job: Job = fixture.job(name).await;
            let spec = serde_json::to_value(job.spec.unwrap()).unwrap();
            assert_eq!(spec["completionMode"], "Indexed");
            let volumes = spec["template"]["spec"]["volumes"].as_array().unwrap();
            let uses = |source: &str, key: &str, value: &str| {
                volumes.iter().any(|volume: &Value| volume[source][key] == value)
            };
            let secret = async |what: &str| fixture.secret(name, what).await.unwrap().metadata.name.unwrap();
            // The folder with the ConfigMap also contains what the operator tells a pod.
            let projected = volumes
                .iter()
                .filter_map(|volume| volume["projected"]["sources"].as_array())
                .flatten();
            let config_maps: Vec<&Value> = projected.map(|source| &source["configMap"]["name"]).collect();
            assert!(
                config_maps.contains(&&json!(format!("{name}-agent"))),
                "{volumes:#?}"
            );
            assert!(
                uses("secret", "secretName", &secret("curve").await),
                "{volumes:#?}"
            );
            assert!(
                uses("secret", "secretName", &secret("users").await),
                "{volumes:#?}"
            );
            assert!(
                uses("persistentVolumeClaim", "claimName", &format!("{name}.data")),
                "{volumes:#?}"
            );
        }
    });
}
