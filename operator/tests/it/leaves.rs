//! Every leaf of the schema on the real API server: it rejects a change that an existing MiniCluster cannot
//! follow, and an empty text means the same as none.

use std::collections::HashMap;

use flux_shared::crd::convert::{Version, convert_spec};
use flux_shared::crd::definition::{Conversion, WebhookClient, definition};
use flux_shared::crd::v1alpha2::MiniCluster;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, ListParams, PostParams};
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

const GROUP: &str = "apis/flux-framework.org/v1alpha2";

#[test]
fn every_field_edit_is_applied_or_refused_with_remedy() {
    test("fixed-leaves", async |fixture| {
        let operator = fixture.operator().await;
        fixture.create("mc", base()).await;
        // From then on, the API server rejects edits of fixed fields.
        fixture.when_is("mc", "maximumSize", 4).await;
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
            let answer = fixture.offer("PATCH", GROUP, "miniclusters/mc", &change).await;
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

/// Every text, boolean and block below `schema` with its zero value: `""`, `false`, `{}`.
fn zeros(path: &str, schema: &Value, out: &mut Vec<(String, Value)>) {
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() {
            name.clone()
        } else {
            format!("{path}.{name}")
        };
        let zero = match field["type"].as_str() {
            Some("string") => json!(""),
            Some("boolean") => json!(false),
            Some("object") => json!({}),
            _ => Value::Null,
        };
        // The other fields of a securityContext are passed on with their zero values, which are Kubernetes' defaults.
        let is_default = path.contains("ecurityContext.")
            && !["allowPrivilegeEscalation", "runAsNonRoot"].contains(&name.as_str());
        if !zero.is_null() && !is_default && !FOLLOWED.iter().any(|(field, _)| *field == path) {
            out.push((path.clone(), zero));
        }
        // The tables of `field_values` name a volume `vol`.
        let key = if path.ends_with("volumes") { "vol" } else { "key" };
        zeros(&path, field, out);
        zeros(&format!("{path}.0"), &field["items"], out);
        zeros(&format!("{path}.{key}"), &field["additionalProperties"], out);
    }
}

/// The spec without the field at `path`, but with the blocks around it.
fn without(path: &str, mut spec: Value) -> Value {
    let (block, name) = path.rsplit_once('.').unwrap_or(("", path));
    let mut pointer = String::new();
    if !block.is_empty() {
        merge(&mut spec, &patch(block, json!({})));
        pointer = format!("/{}", block.replace('.', "/"));
    }
    let block = spec.pointer_mut(&pointer).and_then(Value::as_object_mut);
    block.unwrap().shift_remove(name);
    spec
}

/// The API of one version alone, in a group of its own: the API server needs no webhook for it.
async fn alone(fixture: &Fixture, version: Version) -> (Api<CustomResourceDefinition>, Api<DynamicObject>) {
    let client = WebhookClient::Url("https://127.0.0.1/convert".into());
    let both = definition(&Conversion::Webhook {
        client,
        ca_bundle: Vec::new(),
    });
    let mut crd = serde_json::to_value(both.unwrap()).unwrap();
    let group = format!("{}.flux-framework.example", version.name());
    crd["metadata"]["name"] = json!(format!("miniclusters.{group}"));
    let spec = crd["spec"].as_object_mut().unwrap();
    spec["group"] = json!(group);
    spec.shift_remove("conversion");
    let versions = spec["versions"].as_array_mut().unwrap();
    versions.retain(|served| served["name"] == version.name());
    versions[0]["storage"] = json!(true);
    // Only the installed CRD has the short name `mc`, and a place in `kubectl get all`.
    for name in ["shortNames", "categories"] {
        spec["names"].as_object_mut().unwrap().shift_remove(name);
    }
    let definitions: Api<CustomResourceDefinition> = Api::all(fixture.client.clone());
    let crd = serde_json::from_value(crd).unwrap();
    definitions.create(&PostParams::default(), &crd).await.unwrap();
    let kind = GroupVersionKind::gvk(&group, version.name(), "MiniCluster");
    let resource = ApiResource::from_gvk_with_plural(&kind, "miniclusters");
    let miniclusters = Api::namespaced_with(fixture.client.clone(), &fixture.namespace, &resource);
    until("the API is served", async || {
        miniclusters.list(&ListParams::default()).await.ok()
    })
    .await;
    (definitions, miniclusters)
}

/// MiniClusters that have a Job, as far as the CRD's rules see it.
struct WithJobs {
    version: Version,
    api: Api<DynamicObject>,
    /// By their specs.
    created: HashMap<String, DynamicObject>,
}

/// What the API server answers to an edit.
enum Edit {
    Accepted,
    Rejected(String),
    /// It did not accept the spec before the edit.
    NotCreated(String),
}

impl WithJobs {
    async fn edit(&mut self, from: &Value, to: &Value) -> Edit {
        let key = from.to_string();
        if !self.created.contains_key(&key) {
            let name = format!("mc-{}", self.created.len());
            let object = json!({
                "apiVersion": format!("{0}.flux-framework.example/{0}", self.version.name()), "kind": "MiniCluster",
                "metadata": { "name": name }, "spec": from,
            });
            let object = serde_json::from_value(object).unwrap();
            let object = self.api.create(&PostParams::default(), &object).await;
            let mut object = match object {
                Ok(object) => object,
                Err(error) => return Edit::NotCreated(error.to_string()),
            };
            object.data["status"] = json!({ "maximumSize": 4 });
            let object = self
                .api
                .replace_status(&name, &PostParams::default(), &object)
                .await
                .unwrap();
            self.created.insert(key.clone(), object);
        }
        let mut object = self.created[&key].clone();
        object.data["spec"] = to.clone();
        let try_only = PostParams {
            dry_run: true,
            ..PostParams::default()
        };
        let name = object.metadata.name.clone().unwrap();
        match self.api.replace(&name, &try_only, &object).await {
            Ok(_) => Edit::Accepted,
            Err(error) => Edit::Rejected(error.to_string()),
        }
    }
}

/// Specs that mean the same, such as one that was applied and what a client with Go types writes for it.
const SAME: &[(Version, &str, &str)] = &[
    (
        Version::V1alpha1,
        r#"{"pod": {"automountServiceAccountToken": true}}"#,
        r#"{"pod": {}}"#,
    ),
    (
        Version::V1alpha2,
        r#"{"flux": {"scheduler": {"queuePolicy": "easy"}}}"#,
        r#"{"flux": {"scheduler": {"queuePolicy": "easy", "simple": false}}}"#,
    ),
    (
        Version::V1alpha2,
        r#"{"flux": {"scheduler": {"simple": false}}}"#,
        r#"{"flux": {"scheduler": {"simple": false, "queuePolicy": ""}}}"#,
    ),
    (
        Version::V1alpha2,
        r#"{"flux": {"scheduler": {}}}"#,
        r#"{"flux": {"scheduler": {"simple": false, "queuePolicy": ""}}}"#,
    ),
    (
        Version::V1alpha2,
        r#"{"fluxRestful": null, "flux": {"scheduler": {"simple": null}}}"#,
        r#"{"flux": {"scheduler": {}}}"#,
    ),
];

#[test]
fn zero_value_that_has_an_effect_cannot_be_added_or_removed() {
    test("zero-edits", async |fixture| {
        for version in [Version::V1alpha1, Version::V1alpha2] {
            let (definitions, api) = alone(&fixture, version).await;
            let crd = format!("miniclusters.{}.flux-framework.example", version.name());
            let schema = serde_json::to_value(definitions.get(&crd).await.unwrap()).unwrap();
            let mut all = Vec::new();
            zeros(
                "",
                &schema["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"],
                &mut all,
            );
            let effects_of = |spec: &Value| {
                let mut spec = spec.clone();
                if version == Version::V1alpha1 {
                    convert_spec(&mut spec, Version::V1alpha2);
                }
                effects(&spec)
            };
            let mut miniclusters = WithJobs {
                version,
                api,
                created: HashMap::new(),
            };
            let (mut wrong, mut with_effect) = (Vec::new(), Vec::new());
            for (path, zero) in all {
                // `SURROUNDINGS` names a block by the beginning of its fields' paths.
                let dot = if zero.is_object() { "." } else { "" };
                let absent = without(&path, around(&format!("{path}{dot}")).0);
                let mut present = absent.clone();
                merge(&mut present, &patch(&path, zero));
                let (Ok(before), Ok(after)) = (effects_of(&absent), effects_of(&present)) else {
                    continue;
                };
                if before == after {
                    continue;
                }
                for (edit, from, to) in [("added", &absent, &present), ("removed", &present, &absent)] {
                    if matches!(miniclusters.edit(from, to).await, Edit::Accepted) {
                        wrong.push(format!("{}: {path} can be {edit}", version.name()));
                    }
                }
                with_effect.push(path);
            }
            let expected: &[&str] = match version {
                Version::V1alpha1 => &["flux.container", "pod.automountServiceAccountToken"],
                Version::V1alpha2 => &["fluxRestful", "flux.scheduler.simple", "containers.0.fluxUser"],
            };
            for path in expected {
                assert!(
                    with_effect.iter().any(|known| known == path),
                    "{path}: {with_effect:?}"
                );
            }
            for (_, from, to) in SAME.iter().filter(|(of, _, _)| *of == version) {
                let [from, to] = [from, to].map(|text| {
                    let mut spec = base();
                    merge(&mut spec, &serde_json::from_str(text).unwrap());
                    spec
                });
                if let Edit::Rejected(why) | Edit::NotCreated(why) = miniclusters.edit(&from, &to).await {
                    wrong.push(format!("{}: {to}: {why}", version.name()));
                }
            }
            definitions.delete(&crd, &Default::default()).await.unwrap();
            assert!(wrong.is_empty(), "{with_effect:?}\n{}", wrong.join("\n"));
        }
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
            fixture.create(name, json!({ "size": 1 })).await;
            let pods = fixture.pods(name, 1).await;
            fixture.end_pod(&pods[&0], 0, "Completed", "").await;
            fixture.when_condition(name, "Complete", "True").await;
            fixture.edit(name, change).await;
            if name == "pods" {
                fixture.when_condition(name, "CleanedUp", "True").await;
                until("its pods go", async || {
                    fixture.all_pods(name).await.is_empty().then_some(())
                })
                .await;
                // `cleanupPods` keeps the MiniCluster, so the test deletes it.
                fixture.delete::<MiniCluster>(name).await;
            }
            gone(&fixture, name).await;
            assert!(fixture.find::<Job>(name).await.is_none());
        }
    });
}

#[test]
fn empty_text_means_the_same_as_an_omitted_field() {
    test("empty-texts", async |fixture| {
        // An empty `connectTimeout` leaves the broker's option out, and a map's value is free. Without some of its
        // texts, such as its source, a volume is invalid.
        let is_excepted =
            |leaf: &str| leaf == "flux.connectTimeout" || leaf.contains("olumes.") || leaf.contains(".key");
        // The API server requires these names, and rejects `commands` of a service.
        let is_rejected = |leaf: &str| {
            ["users.0.name", "containers.1.name", "services.0.name"].contains(&leaf)
                || leaf.starts_with("services.0.commands")
        };
        let all: Vec<String> = all_leaves()
            .into_iter()
            // A securityContext is Kubernetes' own: it is passed on with its empty texts.
            .filter(|(leaf, schema)| schema["type"] == "string" && !leaf.contains("ecurityContext"))
            .map(|(leaf, _)| leaf)
            .filter(|leaf| !is_excepted(leaf) && !is_rejected(leaf))
            .collect();
        let mut wrong = Vec::new();
        for leaf in &all {
            // The block that contains the text may mean something by itself.
            let without = without(leaf, around(leaf).0);
            let mut with = without.clone();
            merge(&mut with, &patch(leaf, json!("")));
            let object = json!({
                "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": { "name": "mc" }, "spec": with,
            });
            if let Err(why) = fixture.offer("POST", GROUP, "miniclusters", &object).await {
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
