//! `docs/tasks/teams.md` in its order, on a real API server: the quota, the LimitRange and the label reject
//! nothing that runs according to the page.

use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::core::v1::ResourceQuota;
use serde_json::{Value, json};

use test_support::api_server::{Fixture, apply, test, until};
use test_support::pages::{Block, blocks, repository};

/// The namespace of the page.
const TEAM: &str = "team-a";

struct Page {
    blocks: Vec<Block>,
    namespace: String,
}

impl Page {
    fn of(fixture: &Fixture) -> Page {
        Page {
            blocks: blocks(&repository().join("docs/tasks/teams.md")),
            namespace: fixture.namespace.clone(),
        }
    }

    /// The block that contains this text, changed to the test's namespace.
    fn block(&self, with: &str) -> String {
        let block = self.blocks.iter().find(|block| block.text.contains(with));
        let block = block.unwrap_or_else(|| panic!("teams.md has no block with {with}"));
        block.text.replace(TEAM, &self.namespace)
    }
}

/// Creates the MiniCluster of a file or a block in the test's namespace.
async fn create(fixture: &Fixture, text: &str) -> Result<MiniCluster, kube::Error> {
    create_object(fixture, &serde_saphyr::from_str(text).unwrap()).await
}

async fn create_object(fixture: &Fixture, object: &Value) -> Result<MiniCluster, kube::Error> {
    let name = object["metadata"]["name"].as_str().unwrap();
    fixture.try_create(name, object["spec"].clone()).await
}

async fn counted_quota(fixture: &Fixture) {
    until("the quota has been counted", async || {
        let quota = fixture.api::<ResourceQuota>().get("miniclusters").await.unwrap();
        let status = quota.status?;
        (status.hard? == quota.spec?.hard?).then_some(())
    })
    .await;
}

#[test]
fn manifests_of_the_teams_page_are_accepted_in_its_order() {
    test("teams", async |fixture| {
        let _operator = fixture.operator().await;
        let page = Page::of(&fixture);
        let hello_world =
            std::fs::read_to_string(repository().join("examples/hello-world/minicluster.yaml")).unwrap();
        let fits = page.block("name: fits");

        let quota = page.block("kind: ResourceQuota");
        apply(&quota);
        counted_quota(&fixture).await;
        // The LimitRange gives requests to containers that have none, including the operator's own.
        create(&fixture, &hello_world).await.unwrap();
        fixture.pods("hello-world", 4).await;

        let label = page.block("kubectl label namespace");
        let words: Vec<&str> = label.split_whitespace().skip(1).collect();
        fixture.kubectl(&words).unwrap();
        let not_restricted = hello_world.replace("hello-world", "not-restricted");
        create(&fixture, &not_restricted).await.unwrap();
        fixture
            .when("not-restricted", "rejected", |status| {
                status["reason"] == "FailedCreate"
                    && status["message"]
                        .as_str()
                        .unwrap_or_default()
                        .contains("restricted")
            })
            .await;
        create(&fixture, &fits).await.unwrap();
        fixture.pods("fits", 2).await;
    });
}

/// Many namespaces have a quota without a LimitRange. Then every container must have requests, including the
/// operator's own.
#[test]
fn pods_with_requests_fit_a_quota_without_a_limit_range() {
    test("quota", async |fixture| {
        let _operator = fixture.operator().await;
        let page = Page::of(&fixture);
        let quota = page.block("kind: ResourceQuota");
        // The LimitRange is the block's second document.
        let (quota, _) = quota.split_once("---").unwrap();
        let limits = "    limits.cpu: 64\n    limits.memory: 64Gi\n";
        let fits: Value = serde_saphyr::from_str(&page.block("name: fits")).unwrap();
        // Kubernetes takes limits for requests if a container has only limits.
        for (kind, quota) in [
            ("requests", quota.to_owned()),
            ("limits", format!("{quota}{limits}")),
        ] {
            apply(&quota);
            counted_quota(&fixture).await;
            for source in ["copy", "imageVolume"] {
                let name = format!("{kind}-{}", source.to_lowercase());
                let mut object = fits.clone();
                object["metadata"]["name"] = json!(name);
                object["spec"]["flux"]["container"]["source"] = json!(source);
                let resources = &mut object["spec"]["containers"][0]["resources"];
                *resources = json!({ kind: resources[kind] });
                create_object(&fixture, &object).await.unwrap();
                fixture.pods(&name, 2).await;
            }
        }
    });
}
