//! Pods that are placed on other nodes while a job runs, and a node that lacks the image.

use flux_shared::crd::v1alpha2::MiniCluster;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use crate::machines::make_image;
use crate::stage::{ExpectedEnd, Program, Stage, test};
use crate::timeline::now;

async fn resize(stage: &Stage, name: &str, size: u32) {
    let patch = Patch::Merge(json!({ "spec": { "size": size } }));
    stage
        .fixture
        .api::<MiniCluster>()
        .patch(name, &PatchParams::default(), &patch)
        .await
        .unwrap();
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
        let program = Program {
            name: "grows",
            lead_on: 1,
            may_use: &[2, 3],
            first_run: 90,
            spec,
            ..Program::default()
        };
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
        stage.ended("grows", &ExpectedEnd::undisturbed()).await;
        stage.assert_untouched("grows");
    });
}

#[test]
fn node_without_image_is_named_and_job_starts_once_it_has_it() {
    // The root folder of the usual image.
    let folder =
        std::env::var("E2E_APP_FOLDER").expect("E2E_APP_FOLDER must name the root folder of an image");
    // The process ID makes the name new: no earlier run has left this image on a node.
    let image = format!("e2e/rare-{}:1", std::process::id());
    test("image", async |stage| {
        for worker in [1, 3] {
            make_image(worker, &image, &folder).await;
        }
        let spec = json!({ "image": image });
        let program = Program {
            name: "rare",
            followers_on: &[2, 3],
            tasks: 3,
            first_run: 3,
            spec,
            ..Program::default()
        };
        let created_at = now();
        stage.create(&program).await;
        let names_node_and_image = |status: &Value| {
            let message = status["message"].as_str().unwrap_or_default();
            message.contains("worker-2") && message.contains(&image)
        };
        let seconds = stage
            .until_status("rare", created_at, "node and image", names_node_and_image)
            .await;
        assert!(seconds < 30.0, "{seconds}\n{}", stage.account("rare"));
        stage.history("rare").assert_starts(0);
        make_image(2, &image, &folder).await;
        stage.ended("rare", &ExpectedEnd::undisturbed()).await;
    });
}
