//! Every leaf of the schema on the real API server: it rejects a change that an existing MiniCluster cannot
//! follow, and an empty text means the same as none.

use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::batch::v1::Job;
use kube::api::{DeleteParams, PropagationPolicy};
use serde_json::{Value, json};

use crate::change::gone;
use test_support::api_server::{Fixture, test, until};
use test_support::field_values::{all_leaves, around, base, effects, merge, patch, values};

/// The fields that a MiniCluster follows while it lives, each with a value that it can follow.
const FOLLOWED: &[(&str, &str)] = &[
    ("size", "3"),
    ("suspend", "true"),
    ("cleanup", "true"),
    ("cleanupPods", "true"),
    ("ttlSecondsAfterFinished", "60"),
    ("maxRestarts", "2"),
];

/// What the API server answers to a request with `object`. Nothing is stored. `name` is `/` and the object's name, or
/// empty for a new object.
async fn offer(
    fixture: &Fixture,
    verb: &str,
    name: &str,
    kind: &str,
    object: &Value,
) -> Result<Value, String> {
    let miniclusters = format!(
        "/apis/flux-framework.org/v1alpha2/namespaces/{}/miniclusters",
        fixture.namespace
    );
    let request = http::Request::builder()
        .method(verb)
        .uri(format!("{miniclusters}{name}?dryRun=All&fieldValidation=Strict"));
    let request = request
        .header("content-type", kind)
        .body(serde_json::to_vec(object).unwrap())
        .unwrap();
    fixture
        .client
        .request(request)
        .await
        .map_err(|error| error.to_string())
}

#[test]
fn every_field_edit_is_applied_or_refused_with_remedy() {
    test("fixed-leaves", async |fixture| {
        let operator = fixture.operator().await;
        fixture.create("mc", base()).await.unwrap();
        // From then on, the API server rejects edits of fixed fields.
        fixture
            .when("mc", "its maximum", |status| status["maximumSize"] == 4)
            .await;
        let all = all_leaves();
        let mut wrong = Vec::new();
        for (leaf, schema) in &all {
            let top = leaf.split('.').next().unwrap();
            let followed = FOLLOWED.iter().find(|(field, _)| field == leaf);
            let with = |value: Value| {
                let mut spec = around(leaf).0;
                merge(&mut spec, &patch(leaf, value));
                spec
            };
            let spec = match followed {
                Some((_, value)) => with(serde_json::from_str(value).unwrap()),
                // The last value first: an earlier one may be `false` or an empty text, which mostly change nothing.
                None => values(leaf, schema)
                    .into_iter()
                    .rev()
                    .map(with)
                    .find(|spec| *spec != base())
                    .unwrap(),
            };
            let change = json!({ "spec": spec });
            let answer = offer(&fixture, "PATCH", "/mc", "application/merge-patch+json", &change).await;
            let is_right = match (&answer, followed) {
                (Ok(object), Some(_)) => object["metadata"]["generation"] == 2,
                (Err(why), None) => {
                    let named = why.split("spec: Forbidden: ").nth(1).unwrap_or_default();
                    let named = named
                        .split(" cannot change once the Job has been created: delete")
                        .next();
                    named.is_some_and(|fields| fields.split(' ').any(|field| field == top))
                }
                _ => false,
            };
            if !is_right {
                wrong.push(format!("{leaf}: {:?}", answer.map(|_| "accepted")));
            }
        }
        assert!(all.len() > 300, "only {} leaves", all.len());
        assert!(
            wrong.is_empty(),
            "{} of {}:\n{}",
            wrong.len(),
            all.len(),
            wrong.join("\n")
        );
        operator.stop().await;
    });
}

/// Changes of `size` and `suspend` are tested in `change.rs`.
#[test]
fn cleanup_and_ttl_set_after_the_end_take_effect() {
    test("said-later", async |fixture| {
        let _operator = fixture.operator().await;
        for (name, change) in [
            ("cleanup", json!({ "cleanup": true })),
            ("ttl", json!({ "ttlSecondsAfterFinished": 1 })),
            ("pods", json!({ "cleanupPods": true })),
        ] {
            fixture.create(name, json!({ "size": 1 })).await.unwrap();
            let pods = fixture.pods(name, 1).await;
            fixture.end_pod(&pods[&0], 0, "Completed", "").await;
            fixture.when_condition(name, "Complete", "True").await;
            fixture
                .patch::<MiniCluster>(name, json!({ "spec": change }))
                .await
                .unwrap();
            if name == "pods" {
                fixture.when_condition(name, "CleanedUp", "True").await;
                until("its pods go", async || {
                    fixture.all_pods(name).await.is_empty().then_some(())
                })
                .await;
                // `cleanupPods` keeps the MiniCluster, so the test deletes it.
                let all = DeleteParams {
                    propagation_policy: Some(PropagationPolicy::Background),
                    ..Default::default()
                };
                fixture.api::<MiniCluster>().delete(name, &all).await.unwrap();
            }
            gone(&fixture, name).await;
            assert!(fixture.api::<Job>().get_opt(name).await.unwrap().is_none());
        }
    });
}

#[test]
fn an_empty_text_is_as_one_that_is_left_out() {
    test("empty-texts", async |fixture| {
        // Empty texts that mean something: an empty connectTimeout means none, a volume's source names its
        // kind, and a map's value is free.
        let says_something =
            |leaf: &str| leaf == "flux.connectTimeout" || leaf.contains("olumes.") || leaf.contains(".key");
        let is_needed = |leaf: &str| {
            ["users.0.name", "containers.1.name", "services.0.name"].contains(&leaf)
                || leaf.starts_with("services.0.commands")
        };
        let all: Vec<String> = all_leaves()
            .into_iter()
            // A securityContext is Kubernetes' own: it is passed on with its empty texts.
            .filter(|(leaf, schema)| schema["type"] == "string" && !leaf.contains("ecurityContext"))
            .map(|(leaf, _)| leaf)
            .filter(|leaf| !says_something(leaf) && !is_needed(leaf))
            .collect();
        let mut wrong = Vec::new();
        for leaf in &all {
            let mut without = around(leaf).0;
            // The block that contains the text may mean something by itself.
            let (block, name) = leaf.rsplit_once('.').unwrap_or(("", leaf));
            let pointer: String = block
                .split('.')
                .filter(|part| !part.is_empty())
                .map(|part| format!("/{part}"))
                .collect();
            if !block.is_empty() {
                merge(&mut without, &patch(block, json!({})));
            }
            without
                .pointer_mut(&pointer)
                .unwrap()
                .as_object_mut()
                .unwrap()
                .remove(name);
            let mut with = without.clone();
            merge(&mut with, &patch(leaf, json!("")));
            let object = json!({
                "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": { "name": "mc" }, "spec": with,
            });
            if let Err(why) = offer(&fixture, "POST", "", "application/json", &object).await {
                wrong.push(format!("{leaf}: refused: {why}"));
            }
            match (effects(&with), effects(&without)) {
                (Err(problems), Ok(_)) => wrong.push(format!("{leaf}: {problems:?}")),
                (Ok(with), Ok(without)) if with != without => {
                    wrong.push(format!("{leaf}: it makes a difference"))
                }
                _ => {}
            }
        }
        assert!(all.len() > 60, "only {}: {all:?}", all.len());
        assert!(
            wrong.is_empty(),
            "{} of {}:\n{}",
            wrong.len(),
            all.len(),
            wrong.join("\n")
        );
    });
}
