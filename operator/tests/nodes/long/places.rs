//! Pods that come to other nodes while a job runs.

use flux_shared::crd::v1alpha2::MiniCluster;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use crate::stage::{End, Program, Stage, test};

async fn resize(stage: &Stage, name: &str, size: u32) {
    let patch = Patch::Merge(json!({ "spec": { "size": size } }));
    stage.fixture.api::<MiniCluster>().patch(name, &PatchParams::default(), &patch).await.unwrap();
    stage
        .fixture
        .until(&format!("{size} pods are ready"), async || {
            (stage.fixture.status(name).await["readySize"] == size).then_some(())
        })
        .await;
}

#[test]
fn job_goes_on_while_its_instance_grows_and_shrinks_over_nodes() {
    test("resize", async |stage| {
        let spec = json!({ "maxSize": 3 });
        let program = Program { name: "grows", lead_on: 1, may_use: &[2, 3], first: 90, spec, ..Program::default() };
        stage.create_all(&[&program]).await;
        for _ in 0..2 {
            resize(stage, "grows", 3).await;
            let mut nodes = Vec::new();
            for index in ["0", "1", "2"] {
                nodes.push(stage.node_of("grows", index).await);
            }
            nodes.sort();
            assert_eq!(nodes, ["worker-1", "worker-2", "worker-3"]);
            resize(stage, "grows", 1).await;
        }
        stage.assert_untouched("grows");
        stage.ended("grows", &End::undisturbed()).await;
        stage.assert_untouched("grows");
    });
}
