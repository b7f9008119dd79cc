//! Clients that are built with the Go operator's types write the zero values that `omitempty` cannot leave
//! out: empty structs, empty texts, false, null, 0. Each means "not set". The bodies are generated from our own
//! schema: every struct with all its fields zero, one struct at a time and all together.

use flux_shared::crd::convert::{Version, convert_spec};
use flux_shared::crd::definition;
use flux_shared::manifest;
use flux_shared::validate::{Problem, validate_and_note};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use serde_json::{Map, Value, json};

use test_support::api_server::{Fixture, test, until};
use test_support::field_values::{effects, merge, patch};

/// The fields of each version. `shared/src/crd/shape.rs` explains the notation, such as `*` and `!`.
const V1ALPHA1: &str = include_str!("../../../shared/src/crd/shape/v1alpha1.json");
const V1ALPHA2: &str = include_str!("../../../shared/src/crd/shape/v1alpha2.json");

/// What a typed client sent (`archive: {}`, an empty leadBroker, nulls, a status).
const GO_CLIENT: &str = include_str!("zero_values/go_client.json");

/// A dry run.
const TRY_ONLY: PostParams = PostParams {
    dry_run: true,
    field_manager: None,
};

/// Numbers without `omitempty`.
const NUMBERS: &[&str] = &[
    "leadBroker.size",
    "clusters.0.size",
    "clusters.1.size",
    "clusters.2.size",
    "containers.0.cores",
    "containers.1.cores",
    "services.0.cores",
];

/// Fields whose zero value has a meaning. Go leaves them out when they are zero.
const MEANINGFUL: &[&str] = &[
    "connectTimeout",
    "strict",
    "delete",
    "suspend",
    "podTemplate",
    "servicesPodTemplate",
    "cleanup",
];

/// Whether typed clients of the Go operator have this field. `fluxuser` is a second spelling of our `fluxUser`.
fn is_known_to_go(version: Version, path: &str) -> bool {
    let unknown: &[&str] = match version {
        Version::V1alpha1 => &["flux.container", "automountServiceAccountToken", "noWaitSocket"],
        Version::V1alpha2 => &["fluxUser", "fluxRestful"],
    };
    !path.contains("securityContext.")
        && !path.ends_with("fluxuser")
        && !unknown.iter().any(|field| path.contains(field))
}

/// The zero value of a field. None: these clients leave the field out if it is zero, or do not know it.
fn zero(version: Version, path: &str, shape: &Value) -> Option<Value> {
    let name = path.rsplit('.').next().unwrap_or_default();
    // These clients write an empty block, as in `GO_CLIENT`.
    if name == "securityContext" {
        return Some(json!({}));
    }
    if MEANINGFUL.contains(&name) || !is_known_to_go(version, path) {
        return None;
    }
    match shape {
        // Go writes a map or a list that is not set as null.
        Value::Object(fields) if fields.contains_key("*") => Some(Value::Null),
        Value::Object(fields) => Some(zeros(version, path, fields)),
        Value::Array(_) => Some(Value::Null),
        Value::String(type_) => match type_.as_str() {
            "string" | "quantity" => Some(json!("")),
            "boolean" => Some(json!(false)),
            _ => NUMBERS
                .iter()
                .any(|number| path.ends_with(number))
                .then(|| json!(0)),
        },
        _ => None,
    }
}

fn zeros(version: Version, path: &str, fields: &Map<String, Value>) -> Value {
    let field = |(name, shape): (&String, &Value)| {
        let name = name.trim_end_matches('!');
        Some((name.to_owned(), zero(version, &format!("{path}.{name}"), shape)?))
    };
    Value::Object(fields.iter().filter_map(field).collect())
}

/// Every zero body below `shape` as a patch of `base`: whole structs and single fields that `base` does not
/// set.
fn bodies(version: Version, base: &Value, path: &str, shape: &Value, out: &mut Vec<(String, Value)>) {
    let at = |name: &str| {
        if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        }
    };
    match (shape, base) {
        (Value::Object(fields), _) if fields.contains_key("*") => {
            for (key, value) in base.as_object().into_iter().flatten() {
                bodies(version, value, &at(key), &fields["*"], out);
            }
        }
        (Value::Object(fields), _) => {
            for (name, shape) in fields {
                let path = at(name.trim_end_matches('!'));
                if !is_known_to_go(version, &path) {
                    continue;
                }
                let existing = base.get(name.trim_end_matches('!'));
                if existing.is_none() {
                    out.extend(zero(version, &path, shape).map(|zero| (path.clone(), zero)));
                    if shape.as_object().is_some_and(|fields| !fields.contains_key("*")) {
                        out.push((path.clone(), json!({})));
                    }
                }
                let is_list_without_items = shape.is_array() && existing.is_none();
                if !is_list_without_items {
                    bodies(version, existing.unwrap_or(&Value::Null), &path, shape, out);
                }
            }
        }
        (Value::Array(shapes), Value::Array(list)) => {
            for (i, value) in list.iter().enumerate() {
                bodies(version, value, &at(&i.to_string()), &shapes[0], out);
            }
        }
        _ => {}
    }
}

/// Specs that set little: one container, and several with everything that maps and lists may contain.
fn bases() -> [Value; 2] {
    let alone = json!({ "size": 2, "containers": [{ "image": "app:1", "command": "work" }] });
    let volumes = json!({
        "host": { "path": "/host", "hostPath": "/data" },
        "memory": { "emptyDir": true, "emptyDirMedium": "memory" },
        "claim": { "path": "/claim", "claimName": "data" },
        "config": { "path": "/config", "configMapName": "settings" },
        "secret": { "path": "/secret", "secretName": "key" },
    });
    let several = json!({
        "size": 2,
        "containers": [
            { "image": "app:1", "command": "work", "runFlux": true, "volumes": volumes },
            { "image": "side:1", "name": "side", "command": "serve" },
        ],
        "services": [{ "image": "db:1", "name": "db" }],
        "flux": { "bursting": { "clusters": [{ "name": "burst-0", "size": 2 }, { "name": "other" }, { "size": 3 }] } },
        "users": [{ "name": "ada" }, { "name": "grace", "password": "hopper" }],
        "pod": { "tolerations": [{ "operator": "Exists" }] },
    });
    [alone, several]
}

/// Every base with each of its zero bodies, and with all of them together.
fn cases(version: Version, shape: &str) -> Vec<(String, Value, Value)> {
    let shape: Value = serde_json::from_str(shape).unwrap();
    let mut cases = Vec::new();
    for base in bases() {
        let mut zeros = Vec::new();
        bodies(version, &base, "", &shape, &mut zeros);
        assert!(zeros.len() > 100, "the shape was walked: {}", zeros.len());
        let mut all = base.clone();
        // `simple: false` alone asks for Fluxion.
        for (path, zero) in zeros.iter().filter(|(path, _)| path != "flux.scheduler.simple") {
            let mut spec = base.clone();
            merge(&mut spec, &patch(path, zero.clone()));
            cases.push((format!("{path}: {zero}"), base.clone(), spec));
            if *zero != json!({}) {
                merge(&mut all, &patch(path, zero.clone()));
            }
        }
        cases.push(("all together".into(), base, all));
    }
    cases
}

fn document(version: Version, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": version.api_version(), "kind": "MiniCluster", "spec": spec,
        "metadata": { "name": name, "creationTimestamp": null },
        "status": { "size": 0, "selector": "", "jobid": "", "maximumSize": 0 },
    })
}

#[test]
fn every_zero_value_means_not_set() {
    for (version, shape) in [(Version::V1alpha1, V1ALPHA1), (Version::V1alpha2, V1ALPHA2)] {
        let mut wrong = Vec::new();
        for (case, base, spec) in cases(version, shape) {
            let objects = |mut spec: Value| -> Result<_, Vec<Problem>> {
                let manifest = manifest::from_value(&document(version, "mc", &spec))?;
                if version == Version::V1alpha1 {
                    convert_spec(&mut spec, Version::V1alpha2);
                }
                let notes = validate_and_note(&manifest)?.notices;
                Ok((effects(&spec)?, notes))
            };
            match (objects(base), objects(spec)) {
                (Ok(left_out), Ok(zero)) if left_out == zero => {}
                (Ok(_), Ok(_)) => wrong.push(format!("{case}: makes a difference")),
                (_, Err(problems)) => wrong.push(format!("{case}: {problems:?}")),
                (Err(problems), _) => panic!("the base is refused: {problems:?}"),
            }
        }
        assert!(
            wrong.is_empty(),
            "{}: {}:\n{}",
            version.name(),
            wrong.len(),
            wrong.join("\n")
        );
    }
}

fn miniclusters(fixture: &Fixture, group: &str) -> Api<DynamicObject> {
    let kind = GroupVersionKind::gvk(group, "v1alpha2", "MiniCluster");
    let resource = ApiResource::from_gvk_with_plural(&kind, "miniclusters");
    Api::namespaced_with(fixture.client.clone(), &fixture.namespace, &resource)
}

#[test]
fn the_api_server_takes_every_zero_value() {
    test("zero-values", async |fixture| {
        let api = miniclusters(&fixture, "flux-framework.org");
        let mut wrong = Vec::new();
        for (case, _, spec) in cases(Version::V1alpha2, V1ALPHA2) {
            let object = serde_json::from_value(document(Version::V1alpha2, "mc", &spec)).unwrap();
            if let Err(error) = api.create(&TRY_ONLY, &object).await {
                wrong.push(format!("{case}: {error}"));
            }
        }
        assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    });
}

/// A client that reads a MiniCluster which was applied as YAML writes all zero values back.
#[test]
fn typed_client_updates_what_was_applied_without_zero_values() {
    test("typed-update", async |fixture| {
        let api = miniclusters(&fixture, "flux-framework.org");
        let mut wrong = Vec::new();
        for (number, base) in bases().into_iter().enumerate() {
            let name = format!("mc-{number}");
            let object = serde_json::from_value(document(Version::V1alpha2, &name, &base)).unwrap();
            let mut made = api.create(&PostParams::default(), &object).await.unwrap();
            // To the CRD's rules, the Job now exists, so most fields are fixed.
            made.data["status"] = json!({ "maximumSize": 2 });
            let made = api
                .replace_status(&name, &PostParams::default(), &made)
                .await
                .unwrap();
            for (case, case_base, mut spec) in cases(Version::V1alpha2, V1ALPHA2) {
                // Kubernetes' own type of a toleration leaves out empty texts.
                if case_base != base || case.starts_with("pod.tolerations") {
                    continue;
                }
                if let Some(tolerations) = base.pointer("/pod/tolerations") {
                    spec["pod"]["tolerations"] = tolerations.clone();
                }
                let mut written = made.clone();
                written.data["spec"] = spec;
                if let Err(error) = api.replace(&name, &TRY_ONLY, &written).await {
                    wrong.push(format!("{name}: {case}: {error}"));
                }
                // A real change is still rejected, also beside zero values.
                written.data["spec"]["containers"][0]["command"] = json!("other");
                let refused = api
                    .replace(&name, &TRY_ONLY, &written)
                    .await
                    .unwrap_err()
                    .to_string();
                assert!(
                    refused.contains("containers ") && refused.contains("cannot change once"),
                    "{case}: {refused}"
                );
            }
        }
        assert!(wrong.is_empty(), "{}:\n{}", wrong.len(), wrong.join("\n"));
    });
}

/// Go's type of a quantity writes a number as a text.
#[test]
fn typed_client_may_write_a_number_as_a_text() {
    test("typed-quantities", async |fixture| {
        let api = miniclusters(&fixture, "flux-framework.org");
        let spec = |cpu: Value, memory: &str, size: Value| {
            json!({
                "size": 1,
                "pod": { "resources": { "cpu": cpu } },
                "services": [{ "name": "db", "image": "db:1", "resources": { "limits": { "memory": memory } } }],
                "containers": [{
                    "image": "app:1",
                    "resources": { "requests": { "cpu": cpu, "memory": memory } },
                    "volumes": { "m": { "path": "/m", "emptyDir": true, "emptyDirSizeLimit": size } },
                }],
            })
        };
        let document = document(Version::V1alpha2, "mc", &spec(json!(4), "1Gi", json!(512)));
        let object = serde_json::from_value(document).unwrap();
        let mut made = api.create(&PostParams::default(), &object).await.unwrap();
        made.data["status"] = json!({ "maximumSize": 1 });
        let made = api
            .replace_status("mc", &PostParams::default(), &made)
            .await
            .unwrap();
        let replace = async |spec| {
            let mut written = made.clone();
            written.data["spec"] = spec;
            let written = api.replace("mc", &TRY_ONLY, &written).await;
            written.map(|_| ()).map_err(|error| error.to_string())
        };
        assert_eq!(replace(spec(json!("4"), "1Gi", json!("512"))).await, Ok(()));
        for other in [
            spec(json!("4m"), "1Gi", json!("512")),
            spec(json!("4"), "1G", json!("512")),
            spec(json!("4"), "1Gi", json!("")),
        ] {
            let refused = replace(other).await.unwrap_err();
            assert!(refused.contains("cannot change once"), "{refused}");
        }
    });
}

/// Created with kubectl, which validates strictly. Then the operator serves it, and the client scales it.
#[test]
fn typed_client_creates_scales_and_writes_back_what_it_read() {
    test("typed-client", async |fixture| {
        let operator = fixture.operator().await;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("go_client.json");
        std::fs::write(&file, GO_CLIENT).unwrap();
        fixture
            .kubectl(&["create", "--validate=strict", "-f", file.to_str().unwrap()])
            .unwrap();
        fixture.pods("go", 2).await;
        let api = miniclusters(&fixture, "flux-framework.org");
        fixture.when_is("go", "maximumSize", 4).await;
        // The operator may write the status in between.
        let replaced = until("it is replaced", async || {
            let mut read = api.get("go").await.unwrap();
            read.data["spec"]["size"] = json!(3);
            read.data["status"]["jobid"] = json!("");
            match api.replace("go", &PostParams::default(), &read).await {
                Err(kube::Error::Api(status)) if status.code == 409 => None,
                result => Some(result),
            }
        });
        replaced.await.unwrap();
        fixture.pods("go", 3).await;
        operator.stop().await;
    });
}

/// An object that the Go operator has stored, under our CRD: it is read, updated, and its status is written.
#[test]
fn go_operator_object_stays_valid_when_crd_is_replaced() {
    test("stored", async |fixture| {
        // A group of its own: other tests use the installed CRD at the same time.
        let group = "stored.flux-framework.example";
        let mut ours = serde_json::to_value(definition::crd().unwrap()).unwrap();
        ours["metadata"]["name"] = json!(format!("miniclusters.{group}"));
        ours["spec"]["group"] = json!(group);
        // Only the installed CRD keeps the short name `mc`, and its place in `kubectl get all`.
        for name in ["shortNames", "categories"] {
            ours["spec"]["names"].as_object_mut().unwrap().shift_remove(name);
        }
        // In place of the Go operator's CRD, one that accepts any object.
        let mut theirs = ours.clone();
        theirs["spec"]["versions"][0]["schema"]["openAPIV3Schema"] =
            json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
        let definitions: Api<CustomResourceDefinition> = Api::all(fixture.client.clone());
        let typed = |value: Value| serde_json::from_value::<CustomResourceDefinition>(value).unwrap();
        let made = definitions
            .create(&PostParams::default(), &typed(theirs))
            .await
            .unwrap();

        let api = miniclusters(&fixture, group);
        let mut object: DynamicObject = serde_json::from_str(GO_CLIENT).unwrap();
        object.types.as_mut().unwrap().api_version = format!("{group}/v1alpha2");
        let stored = until("it is stored", async || {
            api.create(&PostParams::default(), &object).await.ok()
        })
        .await;
        let mut with_status = stored.clone();
        with_status.data["status"] = json!({ "size": 0, "selector": "", "jobid": "", "maximumSize": 0 });
        api.replace_status("go", &PostParams::default(), &with_status)
            .await
            .unwrap();

        ours["metadata"]["resourceVersion"] = json!(
            definitions
                .get(made.metadata.name.as_deref().unwrap())
                .await
                .unwrap()
                .metadata
                .resource_version
        );
        let name = ours["metadata"]["name"].as_str().unwrap().to_owned();
        definitions
            .replace(&name, &PostParams::default(), &typed(ours))
            .await
            .unwrap();
        let mut invalid = object.clone();
        invalid.metadata.name = Some("invalid".into());
        invalid.data["spec"]["size"] = json!(0);
        until("our schema counts", async || {
            api.create(&TRY_ONLY, &invalid).await.err()
        })
        .await;

        let mut read = api.get("go").await.unwrap();
        assert_eq!(read.data["spec"]["archive"], json!({}));
        read.data["status"] = json!({ "phase": "Running", "size": 2, "readySize": 0, "maximumSize": 4 });
        let read = api
            .replace_status("go", &PostParams::default(), &read)
            .await
            .unwrap();
        let mut read = api.replace("go", &PostParams::default(), &read).await.unwrap();
        read.data["spec"]["size"] = json!(3);
        api.replace("go", &PostParams::default(), &read).await.unwrap();
        definitions.delete(&name, &Default::default()).await.unwrap();
    });
}
