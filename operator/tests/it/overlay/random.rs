//! Compares random overlays with `kubectl patch --local --type strategic`.

use flux_shared::names::OWN_POD_LABELS;
use flux_shared::{manifest, validate};

use super::*;

fn text() -> impl Strategy<Value = Value> {
    "[a-d]".prop_map(Value::from)
}

/// An object with some of these fields.
fn some(fields: Vec<(&'static str, BoxedStrategy<Value>)>) -> BoxedStrategy<Value> {
    let fields: Vec<_> = fields
        .into_iter()
        .map(|(name, value)| {
            proptest::option::weighted(0.4, value)
                .prop_map(move |value| value.map(|field| (name.to_owned(), field)))
        })
        .collect();
    fields
        .prop_map(|all| Value::Object(all.into_iter().flatten().collect::<Map<_, _>>()))
        .boxed()
}

/// An item of a list that is merged by `key`. Sometimes it is the directive that removes such an item.
fn with_key(
    key: &'static str,
    value: impl Strategy<Value = Value> + 'static,
    fields: BoxedStrategy<Value>,
) -> BoxedStrategy<Value> {
    (value, fields, proptest::option::weighted(0.2, Just("delete")))
        .prop_map(move |(value, mut item, directive)| {
            if let Some(directive) = directive {
                item = json!({ "$patch": directive });
            }
            item[key] = value;
            item
        })
        .boxed()
}

/// Sometimes adds the directive that removes everything that is not named.
fn retaining(object: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    (object, proptest::bool::weighted(0.05))
        .prop_map(|(mut object, has_directive)| {
            if has_directive {
                object["$retainKeys"] = object.as_object().unwrap().keys().cloned().collect();
            }
            object
        })
        .boxed()
}

fn list(item: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    proptest::collection::vec(item, 0..4)
        .prop_map(Value::Array)
        .boxed()
}

/// Keeps the first of two containers with the same name: kubectl leaves the directives of a new container to
/// be merged with the second.
fn each_once(list: BoxedStrategy<Value>) -> BoxedStrategy<Value> {
    list.prop_map(|list| {
        let mut names = BTreeSet::new();
        let items = list.as_array().unwrap().iter();
        items
            .filter(|item| names.insert(item["name"].as_str().unwrap().to_owned()))
            .cloned()
            .collect()
    })
    .boxed()
}

fn one_of(names: &'static [&'static str]) -> impl Strategy<Value = Value> {
    proptest::sample::select(names).prop_map(Value::from)
}

fn boolean() -> BoxedStrategy<Value> {
    any::<bool>().prop_map(Value::from).boxed()
}

fn always(value: Value) -> BoxedStrategy<Value> {
    Just(value).boxed()
}

/// An item of a list of containers. It never has the directive that removes the container: `validate` rejects that.
fn container(names: &'static [&'static str]) -> BoxedStrategy<Value> {
    let resources = some(vec![
        ("claims", list(some(vec![("name", text().boxed())]))),
        (
            "limits",
            some(vec![("cpu", always(json!("1"))), ("memory", always(Value::Null))]),
        ),
    ]);
    let env = list(with_key(
        "name",
        one_of(&["A", "B", "C", "D"]),
        some(vec![("value", text().boxed())]),
    ));
    let mount = some(vec![
        ("name", one_of(&["data", "scratch"]).boxed()),
        ("readOnly", boolean()),
    ]);
    let mounts = list(with_key(
        "mountPath",
        one_of(&["/data", "/x", "/y", "/mnt/flux"]),
        mount,
    ));
    let port = proptest::sample::select(&[80, 81, 82][..]).prop_map(Value::from);
    let ports = list(with_key(
        "containerPort",
        port,
        some(vec![("name", text().boxed())]),
    ));
    let probe = prop_oneof![
        Just(Value::Null),
        Just(json!({ "exec": { "command": ["a"] } })),
        Just(json!({ "$patch": "replace", "httpGet": { "port": 1 } }))
    ];
    let fields = some(vec![
        ("env", env),
        ("volumeMounts", mounts),
        ("ports", ports),
        ("resources", retaining(resources)),
        ("livenessProbe", probe.boxed()),
        (
            "lifecycle",
            always(json!({ "preStop": { "exec": { "command": ["b"] } } })),
        ),
        ("tty", boolean()),
    ]);
    let named = |(name, mut item): (Value, Value)| {
        item["name"] = name;
        item
    };
    retaining((one_of(names), fields).prop_map(named).boxed())
}

/// Any overlay of these fields. `containers` and `init`: names for its containers, of existing ones or new.
fn overlay(containers: &'static [&'static str], init: &'static [&'static str]) -> BoxedStrategy<Value> {
    let source = prop_oneof![
        Just(json!({ "emptyDir": { "medium": "Memory" } })),
        Just(json!({ "emptyDir": null, "secret": { "secretName": "s" } })),
        Just(json!({ "$retainKeys": ["name", "hostPath"], "hostPath": { "path": "/h" } })),
    ];
    let tolerations = prop_oneof![
        Just(Value::Null),
        Just(json!([])),
        Just(json!([{ "key": "k", "operator": "Exists" }]))
    ];
    let affinity = prop_oneof![
        Just(Value::Null),
        Just(json!({ "$patch": "replace" })),
        Just(json!({ "podAffinity": null, "nodeAffinity": { "x": { "y": null } } }))
    ];
    let hostnames = some(vec![("hostnames", always(json!(["h"])))]);
    let spec = some(vec![
        ("hostNetwork", boolean()),
        ("enableServiceLinks", boolean()),
        ("tolerations", tolerations.boxed()),
        ("affinity", affinity.boxed()),
        (
            "nodeSelector",
            some(vec![("a", text().boxed()), ("b", always(Value::Null))]),
        ),
        (
            "hostAliases",
            list(with_key("ip", one_of(&["10.0.0.1", "10.0.0.2"]), hostnames)),
        ),
        (
            "imagePullSecrets",
            list(with_key("name", text(), always(json!({})))),
        ),
        (
            "topologySpreadConstraints",
            list(with_key(
                "topologyKey",
                text(),
                some(vec![("maxSkew", always(json!(1)))]),
            )),
        ),
        ("containers", each_once(list(container(containers)))),
        ("initContainers", each_once(list(container(init)))),
        (
            "volumes",
            list(with_key(
                "name",
                one_of(&["data", "scratch", "more"]),
                source.boxed(),
            )),
        ),
    ]);
    let annotations = some(vec![("x", text().boxed()), ("y", always(Value::Null))]);
    let labels = retaining(some(vec![("z", text().boxed())]));
    let metadata = retaining(some(vec![
        ("annotations", retaining(annotations)),
        ("labels", labels),
    ]));
    some(vec![("spec", retaining(spec)), ("metadata", metadata)])
}

/// Removes nulls, and the directives that kubectl leaves in new items of lists: the API server takes them for
/// unknown fields.
fn plain(value: &Value) -> Value {
    let deletes = |value: &Value| value["$patch"] == "delete";
    match value {
        Value::Object(map) => {
            let kept = map
                .iter()
                .filter(|(key, value)| !key.starts_with('$') && !value.is_null() && !deletes(value));
            Value::Object(kept.map(|(key, value)| (key.clone(), plain(value))).collect())
        }
        Value::Array(list) => Value::Array(list.iter().filter(|item| !deletes(item)).map(plain).collect()),
        other => other.clone(),
    }
}

/// Removes the operator's own annotation of the pods, which no overlay has, and an empty map of annotations.
fn without_own_annotation(mut template: Value) -> Value {
    let metadata = template["metadata"].as_object_mut().unwrap();
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove("flux-framework.org/user-init-containers");
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    template
}

/// What no overlay may change in the pods, however it is written.
fn protected(template: &Value) -> Value {
    let spec = &template["spec"];
    let fields_of =
        |object: &Value, keys: &[&str]| keys.iter().map(|key| object[*key].clone()).collect::<Vec<_>>();
    let named = |list: &str, name: &str| {
        let found = spec[list]
            .as_array()
            .unwrap()
            .iter()
            .find(|item| item["name"] == name);
        found
            .unwrap_or_else(|| panic!("{list} without {name}: {spec:#}"))
            .clone()
    };
    let of_agent = |item: &&Value| {
        item["name"]
            .as_str()
            .is_some_and(|name| name.starts_with("flux-"))
    };
    let own = |list: &Value| {
        list.as_array()
            .unwrap()
            .iter()
            .filter(of_agent)
            .cloned()
            .collect::<Vec<_>>()
    };
    let labels = template["metadata"]["labels"].as_object().unwrap();
    let labels: Map<String, Value> = labels
        .iter()
        .filter(|(key, _)| OWN_POD_LABELS.contains(&key.as_str()))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    let (app, side) = (named("containers", "app"), named("initContainers", "side"));
    json!([
        labels,
        fields_of(
            spec,
            &[
                "subdomain",
                "restartPolicy",
                "terminationGracePeriodSeconds",
                "securityContext"
            ]
        ),
        fields_of(
            &app,
            &[
                "image",
                "command",
                "args",
                "workingDir",
                "startupProbe",
                "securityContext",
                "terminationMessagePath"
            ]
        ),
        fields_of(&app["resources"], &["limits", "requests"]),
        fields_of(
            &side,
            &["image", "command", "args", "restartPolicy", "securityContext"]
        ),
        own(&spec["initContainers"]),
        own(&spec["volumes"]),
        own(&app["volumeMounts"]),
        own(&side["volumeMounts"]),
    ])
}

/// The same for the services pod.
fn protected_of_services(pod: &Value) -> Value {
    let labels = pod["metadata"]["labels"].as_object().unwrap();
    let labels: Map<String, Value> = labels
        .iter()
        .filter(|(key, _)| OWN_POD_LABELS.contains(&key.as_str()))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    let spec = &pod["spec"];
    let names: Vec<&Value> = spec["containers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|container| &container["name"])
        .collect();
    json!([
        labels,
        spec["hostname"],
        spec["subdomain"],
        spec["restartPolicy"],
        names
    ])
}

/// Pods that an overlay applies to.
struct Place {
    /// The overlay's field in the spec.
    field: &'static str,
    /// The path of the template in the object.
    template: &'static str,
    /// The pods as rendered, and with the overlay.
    pods: fn(render::Objects) -> (Value, Value),
    protected: fn(&Value) -> Value,
}

const OF_JOB: Place = Place {
    field: "podTemplate",
    template: "/spec/template",
    pods: |objects| {
        let job = objects.job;
        (
            serde_json::to_value(&job.rendered).unwrap(),
            serde_json::to_value(&job).unwrap(),
        )
    },
    protected,
};
const OF_SERVICES: Place = Place {
    field: "servicesPodTemplate",
    template: "",
    pods: |objects| {
        let pod = objects.services_pod.unwrap();
        (
            serde_json::to_value(&pod.rendered).unwrap(),
            serde_json::to_value(&pod).unwrap(),
        )
    },
    protected: protected_of_services,
};

impl Place {
    fn spec(&self, overlay: Value) -> Value {
        let mut spec = spec(json!({}));
        spec["size"] = json!(1);
        spec["services"] =
            json!([{ "image": "cache:1", "name": "cache", "ports": [80], "environment": { "A": "1" } }]);
        spec[self.field] = overlay;
        spec
    }

    /// A template with only the metadata and spec of a pod.
    fn template(&self, object: &Value) -> Value {
        let template = object.pointer(self.template).unwrap();
        without_own_annotation(plain(
            &json!({ "metadata": template["metadata"], "spec": template["spec"] }),
        ))
    }

    /// The overlay as a patch of the object.
    fn patch(&self, overlay: Value) -> Value {
        if self.template.is_empty() {
            overlay
        } else {
            json!({ "spec": { "template": overlay } })
        }
    }
}

/// Merges random overlays of these pods as the operator does, and with kubectl. `OVERLAYS=10000` tries 10000.
fn assert_merges_as_kubectl(place: &Place, overlays: &BoxedStrategy<Value>) {
    let count: usize = std::env::var("OVERLAYS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(120);
    let (kubectl, first) = kubectl_program();
    let folder = tempfile::tempdir().unwrap();
    // Pods on the network of their node are rendered differently.
    let bases = [false, true].map(|is_host| {
        let (rendered, _) = (place.pods)(objects(place.spec(json!({ "spec": { "hostNetwork": is_host } }))));
        let file = folder.path().join(format!("{is_host}.json"));
        std::fs::write(&file, rendered.to_string()).unwrap();
        (file, rendered)
    });
    let patch = folder.path().join("patch.json");
    let mut runner = TestRunner::deterministic();
    let (mut merged, mut refused) = (0, 0);
    for _ in 0..count * 20 {
        if merged >= count {
            break;
        }
        let overlay = overlays.new_tree(&mut runner).unwrap().current();
        let wanted = place.spec(overlay.clone());
        let document = json!({ "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": { "name": "mc" }, "spec": wanted });
        if validate::validate(&manifest::from_value(&document).unwrap()).is_err() {
            refused += 1;
            continue;
        }
        merged += 1;
        let (file, base) = &bases[usize::from(overlay["spec"]["hostNetwork"] == true)];
        let (_, merged_by_us) = (place.pods)(objects(wanted));
        std::fs::write(&patch, place.patch(overlay.clone()).to_string()).unwrap();
        let output = Command::new(&kubectl)
            .args([first, "patch", "--local", "--type=strategic", "-o=json", "-f"])
            .arg(file)
            .arg("--patch-file")
            .arg(&patch)
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "{overlay}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        let merged_by_kubectl: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(
            place.template(&merged_by_us),
            place.template(&merged_by_kubectl),
            "{overlay}"
        );
        let protected = |object: &Value| (place.protected)(object.pointer(place.template).unwrap());
        assert_eq!(protected(&merged_by_us), protected(base), "{overlay}");
    }
    assert!(
        merged >= count && refused > 0,
        "{merged} merged, {refused} refused"
    );
}

#[test]
fn overlay_is_refused_or_applied_as_kubectl_would() {
    test("overlay-kubectl", async |_| {
        assert_merges_as_kubectl(&OF_JOB, &overlay(&["app"], &["side", "new", "other"]));
    });
}

#[test]
fn any_services_pod_overlay_is_refused_or_merged_like_kubectl() {
    test("overlay-kubectl-services", async |_| {
        assert_merges_as_kubectl(&OF_SERVICES, &overlay(&["cache"], &["new", "other"]));
    });
}
