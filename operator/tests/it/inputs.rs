//! Offers files to the real API server, as a strict client would: examples and the objects rendered from
//! them, users' manifests, and the folder of bad inputs. Nothing is stored (dry run).

use flux_operator_core::render::{Options, RenderFacts, requirements};
use flux_shared::crd::convert::{Version, convert};
use flux_shared::{manifest, validate};
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::Api;
use kube::api::PostParams;
use serde_json::{Value, json};

use test_support::api_server::{Fixture, test};
use test_support::rendering::rendered;
use test_support::repository::{repository, yaml_files};
use test_support::upstream_manifests;

/// The first MiniCluster of a file. As in kubectl, the last of duplicate keys counts.
fn minicluster(text: &str) -> Option<Value> {
    let options = serde_saphyr::options! { duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options).unwrap();
    documents
        .into_iter()
        .find(|document| document["kind"] == "MiniCluster")
}

async fn offer_minicluster(fixture: &Fixture, document: &Value) -> Result<Value, String> {
    let mut document = document.clone();
    document["metadata"]["namespace"] = json!(fixture.namespace);
    fixture
        .offer(
            "POST",
            "apis/flux-framework.org/v1alpha2",
            "miniclusters",
            &document,
        )
        .await
}

#[test]
fn every_example_is_accepted_and_so_is_what_it_is_rendered_to() {
    test("examples", async |fixture| {
        let minor = fixture.minor().await;
        let mut wrong = Vec::new();
        let folders = ["examples", "shared/tests/spellings"].map(|folder| repository().join(folder));
        let files: Vec<_> = folders.iter().flat_map(|folder| yaml_files(folder)).collect();
        assert!(files.len() > 60, "{files:?}");
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            let Some(mut document) = minicluster(&text) else {
                continue;
            };
            document["metadata"]["namespace"] = json!(fixture.namespace);
            let document = convert(document, Version::V1alpha2).unwrap();
            let render = || rendered(&document, &Options::default(), &RenderFacts::default());
            let objects = render();
            // The same input gives the same objects, also in the order of their fields.
            assert_eq!(format!("{objects:?}"), format!("{:?}", render()));
            let mut answers = vec![offer_minicluster(&fixture, &document).await];
            // In this Kubernetes, the operator would not create these objects. `false`: no dry run has shown that the
            // API server keeps image volumes.
            if requirements::unsupported(&objects, minor, false).is_some() {
                let refused = answers.into_iter().filter_map(Result::err);
                wrong.extend(refused.map(|why| format!("{}: {why}", file.display())));
                continue;
            }
            answers.extend([
                fixture
                    .offer("POST", "api/v1", "configmaps", &objects.config_map)
                    .await,
                fixture
                    .offer("POST", "api/v1", "services", &objects.headless)
                    .await,
                fixture.offer("POST", "apis/batch/v1", "jobs", &objects.job).await,
            ]);
            for secret in &objects.secrets {
                answers.push(fixture.offer("POST", "api/v1", "secrets", secret.expose()).await);
            }
            for made in &objects.volumes {
                answers.push(
                    fixture
                        .offer("POST", "api/v1", "persistentvolumeclaims", &made.claim)
                        .await,
                );
                // Not by `offer`: a PersistentVolume has no namespace.
                let create = PostParams {
                    dry_run: true,
                    ..PostParams::default()
                };
                let volumes: Api<PersistentVolume> = Api::all(fixture.client.clone());
                answers.push(
                    volumes
                        .create(&create, &made.volume)
                        .await
                        .map(|volume| json!(volume))
                        .map_err(|error| error.to_string()),
                );
            }
            for service in &objects.services {
                answers.push(fixture.offer("POST", "api/v1", "services", service).await);
            }
            if let Some(pod) = &objects.services_pod {
                answers.push(fixture.offer("POST", "api/v1", "pods", pod).await);
            }
            let refused = answers.into_iter().filter_map(Result::err);
            wrong.extend(refused.map(|why| format!("{}: {why}", file.display())));
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}

#[test]
fn upstreams_manifests_are_accepted_where_they_are_at_hand() {
    test("upstream", async |fixture| {
        let Some(folder) = upstream_manifests::manifests("v1alpha2") else {
            return;
        };
        let mut wrong = Vec::new();
        for file in yaml_files(&folder) {
            let document = minicluster(&std::fs::read_to_string(&file).unwrap()).unwrap();
            if let Err(why) = offer_minicluster(&fixture, &document).await {
                wrong.push(format!("{}: {why}", file.display()));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}

/// Each document that people have published, including those that are rejected.
#[test]
fn validate_and_the_api_server_agree_on_every_public_document() {
    test("public", async |fixture| {
        let Some(folder) = upstream_manifests::manifests("public") else {
            return;
        };
        let (mut wrong, mut count) = (Vec::new(), 0);
        for file in yaml_files(&folder) {
            let text = std::fs::read_to_string(&file).unwrap();
            for (number, document) in manifest::documents(&text).unwrap().into_iter().enumerate() {
                let judged = manifest::from_value(&document)
                    .and_then(|parsed| validate::validate(&parsed))
                    .map(drop);
                // A v1alpha1 document is offered as v1alpha2, in which the API server cannot see what only v1alpha1
                // rejects.
                let is_older = document["apiVersion"] != "flux-framework.org/v1alpha2";
                if is_older && judged.is_err() {
                    continue;
                }
                let name = document
                    .pointer("/metadata/name")
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned();
                let document = if is_older {
                    convert(document, Version::V1alpha2).unwrap()
                } else {
                    document
                };
                let offered = offer_minicluster(&fixture, &document).await;
                count += 1;
                if judged.is_ok() != offered.is_ok() {
                    wrong.push(format!(
                        "{}#{number} {name}: {judged:?}, {offered:?}",
                        file.display()
                    ));
                }
            }
        }
        assert!(count > 100, "{count} documents");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}

#[test]
fn validate_and_the_api_server_agree_on_names_of_images() {
    let longer = |texts: Vec<String>| -> Vec<String> {
        let longer_by_one = |text: &String| ["a", ":", "/", "@"].map(|letter| format!("{text}{letter}"));
        texts.iter().flat_map(longer_by_one).collect()
    };
    let mut names: Vec<String> = vec![String::new()];
    let mut last = names.clone();
    for _ in 0..4 {
        last = longer(last);
        names.extend(last.iter().cloned());
    }
    let more = [
        "App",
        "A/app",
        "A/b/App",
        "app:A",
        "app@a:A",
        "docker://a",
        "a:1@a:b",
        "a:1/b:2@a:b",
        "a@b://c",
        "a@b:c/d",
        "a/b@c/d:e",
    ];
    names.extend(more.map(str::to_owned));
    test("images", async |fixture| {
        let mut wrong = Vec::new();
        for name in names {
            let document = json!({
                "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": { "name": "images" },
                "spec": { "containers": [{ "image": name }] },
            });
            let parsed = manifest::from_value(&document).unwrap();
            let is_valid = validate::validate(&parsed).is_ok();
            let offered = offer_minicluster(&fixture, &document).await;
            if is_valid != offered.is_ok() {
                wrong.push(format!("`{name}`: valid: {is_valid}, {offered:?}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}

#[test]
fn bad_inputs_are_refused_by_the_component_they_name() {
    test("bad", async |fixture| {
        let mut wrong = Vec::new();
        for file in yaml_files(&repository().join("shared/tests/bad")) {
            let text = std::fs::read_to_string(&file).unwrap();
            let by_api_server = text.starts_with("# refused-by: api-server");
            let Some(document) = minicluster(&text) else {
                continue;
            };
            if document["apiVersion"] != "flux-framework.org/v1alpha2" {
                continue;
            }
            match offer_minicluster(&fixture, &document).await {
                Ok(_) if by_api_server => {
                    wrong.push(format!("{}: the API server accepts it", file.display()))
                }
                Err(why) if !by_api_server => {
                    wrong.push(format!("{}: the API server refuses it: {why}", file.display()))
                }
                _ => {}
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}
