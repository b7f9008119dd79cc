//! Every leaf of the CRD's schema: values for it, a spec in which it has an effect, and the result of that
//! spec.

use flux_operator_core::decide::next_action::{is_to_be_cleaned_up, seconds_to_live};
use flux_operator_core::decide::restart::{Decision, Observation, decide};
use flux_operator_core::observe::Observed;
use flux_operator_core::observe::job::JobSeen;
use flux_operator_core::observe::pod::{Exit, PodSeen};
use flux_operator_core::render::gang::{GangOf, Served};
use flux_operator_core::render::{self, Options, RenderFacts};
use flux_shared::crd::v1alpha2::{Condition, MiniClusterStatus};
use flux_shared::curve::Certificate;
use flux_shared::termination::{Ender, Termination};
use flux_shared::validate::{Problem, ValidMiniCluster, validate};
use flux_shared::{crd, manifest};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

/// The spec to which every leaf is added. It has each kind of container.
pub fn base() -> Value {
    json!({
        "size": 4,
        "containers": [
            { "image": "app:1", "runFlux": true, "command": "work" },
            { "image": "side:1", "name": "side", "command": "serve" },
        ],
        "services": [{ "image": "service:1", "name": "service", "command": "serve" }],
    })
}

/// Fields that a leaf needs beside it to have an effect: the end of its path, and a patch for the object
/// before the `|`. The first entry that matches counts, and none does if [`SURROUNDINGS`] has one. With these
/// fields, every value of the leaf must be valid.
pub const COMPANIONS: &[(&str, &str)] = &[
    ("containers.0|batchRaw", r#"{"batch": true}"#),
    ("containers.0|logs", r#"{"batch": true}"#),
    ("pod.tolerations.0|value", r#"{"key": "k"}"#),
    ("pod.tolerations.0|operator", r#"{"key": "k"}"#),
    ("pod.tolerations.0|effect", r#"{"key": "k"}"#),
    (
        "pod.tolerations.0|tolerationSeconds",
        r#"{"key": "k", "effect": "NoExecute"}"#,
    ),
    ("volumes.vol|path", r#"{"claimName": "c"}"#),
    ("volumes.vol|readOnly", r#"{"claimName": "c", "path": "/p"}"#),
    ("volumes.vol|hostPath", r#"{"path": "/p"}"#),
    ("volumes.vol|claimName", r#"{"path": "/p"}"#),
    ("volumes.vol|configMapName", r#"{"path": "/p"}"#),
    ("volumes.vol|secretName", r#"{"path": "/p"}"#),
    ("volumes.vol|csiDriver", r#"{"path": "/p"}"#),
    (
        "volumes.vol|csiDriverAttributes.key",
        r#"{"path": "/p", "csiDriver": "d"}"#,
    ),
    ("volumes.vol|items.key", r#"{"path": "/p", "configMapName": "c"}"#),
    ("volumes.vol|emptyDirMedium", r#"{"emptyDir": true}"#),
    ("volumes.vol|emptyDirSizeLimit", r#"{"emptyDir": true}"#),
    ("existingVolumes.key|path", r#"{"claimName": "c"}"#),
    (
        "existingVolumes.key|readOnly",
        r#"{"claimName": "c", "path": "/p"}"#,
    ),
    ("existingVolumes.key|claimName", r#"{"path": "/p"}"#),
    ("existingVolumes.key|configMapName", r#"{"path": "/p"}"#),
    ("existingVolumes.key|secretName", r#"{"path": "/p"}"#),
    (
        "existingVolumes.key|items.key",
        r#"{"path": "/p", "configMapName": "c"}"#,
    ),
    ("appArmorProfile|localhostProfile", r#"{"type": "Localhost"}"#),
    ("seccompProfile|localhostProfile", r#"{"type": "Localhost"}"#),
    ("sysctls.0|name", r#"{"value": "v"}"#),
    ("sysctls.0|value", r#"{"name": "n"}"#),
    ("users.0|password", r#"{"name": "u"}"#),
    ("secrets.key|name", r#"{"key": "k"}"#),
    ("secrets.key|key", r#"{"name": "n"}"#),
];

/// Fields that a leaf needs elsewhere in the spec: the start of its path, and a patch for the spec. The first
/// entry that matches counts. With these fields, every value of the leaf must be valid.
pub const SURROUNDINGS: &[(&str, &str)] = &[
    // Only with OnFailure does the Job have this field.
    ("backoffLimit", r#"{"pod": {"restartPolicy": "OnFailure"}}"#),
    ("volumes.vol.path", MOUNTED),
    ("volumes.vol.storageClass", IN_CLOUD),
    ("volumes.vol.driver", IN_CLOUD),
    ("volumes.vol.volumeHandle", IN_CLOUD),
    ("volumes.vol.volumeName", IN_CLOUD),
    ("volumes.vol.attributes.", IN_CLOUD),
    ("volumes.vol.secret", IN_CLOUD),
    ("volumes.vol.", ON_NODE),
    // The API is served only if there is no command.
    (
        "fluxRestful.",
        r#"{"containers": [{"command": ""}], "fluxRestful": {}}"#,
    ),
    (
        "flux.installRoot",
        r#"{"flux": {"container": {"disable": true}}}"#,
    ),
    // A script replaces the command: only one of them may be set.
    (
        "containers.0.commands.script",
        r#"{"containers": [{"command": ""}]}"#,
    ),
    (
        "containers.1.commands.script",
        r#"{"containers": [{}, {"command": ""}]}"#,
    ),
    (
        "flux.leadBroker.hostlist",
        r#"{"flux": {"leadBroker": {"address": "10.0.0.9"}}}"#,
    ),
    (
        "flux.bursting.leadBroker.hostlist",
        r#"{"flux": {"bursting": {"leadBroker": {"address": "10.0.0.9"}}}}"#,
    ),
    // The hosts of the instance must include this MiniCluster's own (`mc`).
    (
        "flux.leadBroker.",
        r#"{"flux": {"leadBroker": {"name": "lead", "address": "10.0.0.9", "size": 3}, "bursting": {"clusters": [{"name": "mc"}]}}}"#,
    ),
    (
        "flux.bursting.leadBroker.",
        r#"{"flux": {"bursting": {"leadBroker": {"name": "lead", "address": "10.0.0.9", "size": 3}, "clusters": [{"name": "mc"}]}}}"#,
    ),
];

/// Leaves that need nothing beside them, and whose values must all be valid. If a leaf is in no table, a problem that
/// names the leaf counts as an effect, and ends its test.
pub const MUST_BE_VALID: &[&str] = &[
    "archive.path",
    "containers.0.batch",
    "containers.0.command",
    "containers.0.commands.runFluxAsRoot",
    "containers.0.diagnostics",
    "containers.0.launcher",
];

const MOUNTED: &str = r#"{"containers": [{"volumes": {"vol": {"path": "/mounted"}}}]}"#;
const ON_NODE: &str =
    r#"{"volumes": {"vol": {"path": "/p"}}, "containers": [{"volumes": {"vol": {"path": "/mounted"}}}]}"#;
const IN_CLOUD: &str = r#"{"volumes": {"vol": {"storageClass": "cloud", "driver": "d", "secret": "s"}}, "containers": [{"volumes": {"vol": {"path": "/mounted"}}}]}"#;

/// Two valid values for a leaf with this name.
fn named_values(path: &str) -> Option<[Value; 2]> {
    let certificate = |n: u8| Certificate::from_keys("a", &[n; 32], &[n; 32]).to_text();
    let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
    Some(match name {
        "size" if parent.is_empty() => [json!(5), json!(6)],
        "maxSize" => [json!(7), json!(8)],
        "managedBy" => [
            json!("flux-framework.org/flux-operator"),
            json!("kueue.x-k8s.io/multikueue"),
        ],
        "topology" => [json!("kary:2"), json!("kary:3")],
        "connectTimeout" | "heartbeatTimeout" => [json!("7s"), json!("8s")],
        "key" if parent.ends_with(".configs") => [json!("a = 1"), json!("a = 2")],
        "brokerConfig" => [json!("a = 1"), json!("a = 2")],
        "curveCert" => [json!(certificate(1)), json!(certificate(2))],
        "hostlist" => [json!("10.0.0.9,mc-[0-3]"), json!("10.0.0.9,mc-[0-4]")],
        "emptyDirMedium" => [json!(""), json!("memory")],
        "podTemplate" | "servicesPodTemplate" => [
            json!({ "spec": { "hostNetwork": true } }),
            json!({ "spec": { "priorityClassName": "high" } }),
        ],
        "operator" => [json!("Equal"), json!("Exists")],
        "effect" => [json!("NoSchedule"), json!("NoExecute")],
        "path" if parent == "archive" => [json!("/state/one.tar"), json!("/state/two.tgz")],
        "path" | "hostPath" | "mountPath" | "logs" | "installRoot" => [json!("/one"), json!("/two")],
        _ => return None,
    })
}

/// Values for a leaf, whose results must all differ from each other. One of them may be the default.
pub fn values(path: &str, schema: &Value) -> Vec<Value> {
    if let Some(values) = named_values(path) {
        return values.into();
    }
    // Null and the empty text count as left out.
    if let Some(values) = schema["enum"].as_array() {
        return values
            .iter()
            .filter(|value| !value.is_null() && **value != "")
            .cloned()
            .collect();
    }
    match schema["type"].as_str() {
        Some("boolean") => vec![json!(false), json!(true)],
        Some("integer") => vec![json!(2), json!(3)],
        Some("string") => vec![json!("one"), json!("two")],
        _ if schema["x-kubernetes-int-or-string"] == true => vec![json!(2), json!(3)],
        _ => panic!("{path}: a leaf of a type that this test does not know: {schema}"),
    }
}

/// Every leaf below `schema`, as a path with `0` for items and a key for maps, with its schema.
fn leaves(path: &str, schema: &Value, out: &mut Vec<(String, Value)>) {
    let at = |name: &str| {
        if path.is_empty() {
            name.to_owned()
        } else {
            format!("{path}.{name}")
        }
    };
    if let Some(properties) = schema["properties"].as_object() {
        for (name, property) in properties {
            leaves(&at(name), property, out);
        }
    } else if schema["items"].is_object() {
        // `containers[0]` runs Flux, and `containers[1]` is a sidecar: see `base`.
        leaves(&at("0"), &schema["items"], out);
        if path == "containers" {
            leaves(&at("1"), &schema["items"], out);
        }
    } else if schema["additionalProperties"].is_object() {
        // The tables above name a volume `vol`.
        leaves(
            &at(if path.ends_with("volumes") { "vol" } else { "key" }),
            &schema["additionalProperties"],
            out,
        );
    } else {
        out.push((path.to_owned(), schema.clone()));
    }
}

/// Merges `patch` into a value: objects by key, lists by position.
pub fn merge(into: &mut Value, patch: &Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (key, value) in patch {
                merge(into.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
        (Value::Array(into), Value::Array(patch)) => {
            for (i, value) in patch.iter().enumerate() {
                if i == into.len() {
                    into.push(Value::Null);
                }
                merge(&mut into[i], value);
            }
        }
        (into, patch) => *into = patch.clone(),
    }
}

/// A patch that holds `value` at `path`.
pub fn patch(path: &str, value: Value) -> Value {
    path.rsplit('.')
        .fold(value, |inner, part| match part.parse::<usize>() {
            Ok(index) => Value::Array(std::iter::repeat_n(json!({}), index).chain([inner]).collect()),
            Err(_) => Value::Object(Map::from_iter([(part.to_owned(), inner)])),
        })
}

/// The status of a MiniCluster that has just ended.
fn ended() -> MiniClusterStatus {
    let is_true = |type_: &str| Condition {
        type_: type_.into(),
        status: "True".into(),
        observed_generation: None,
        last_transition_time: "2026-01-01T00:00:00Z".into(),
        reason: String::new(),
        message: String::new(),
    };
    MiniClusterStatus {
        conditions: vec![is_true("JobFinished"), is_true("Complete")],
        ..MiniClusterStatus::default()
    }
}

/// How often the MiniCluster restarts if every start loses a follower.
fn restarts_after_losses(cluster: &ValidMiniCluster) -> i32 {
    // As the lead's agent reports a lost follower: Flux ends the job, so the program fails, and `node_failure` says why.
    let termination = Termination {
        node_failure: true,
        ..Termination::new(Ender::Program, 1)
    };
    let exit = Some(Box::new(Exit {
        code: 1,
        termination: Some(termination),
        ..Exit::default()
    }));
    let lead = PodSeen {
        has_ended: true,
        exit,
        ..PodSeen::default()
    };
    let job = JobSeen::default();
    let mut status = MiniClusterStatus::default();
    loop {
        let observation = Observation {
            status: &status,
            is_spec_valid: true,
            backoff_limit: 0,
            max_restarts: cluster.max_restarts,
            lead_is_elsewhere: cluster.flux.lead.is_some(),
            restarts_on_failure: false,
            min_size: None,
            job: Some(&job),
            last_job: None,
            pods: vec![&lead],
            gone: Vec::new(),
            now: Timestamp::UNIX_EPOCH,
        };
        if !matches!(decide(&observation), Decision::Restart { .. }) {
            return status.max_restarts_used;
        }
        status.max_restarts_used += 1;
    }
}

/// The results of a spec, by reader.
#[derive(Debug, PartialEq)]
pub struct Effects {
    /// The AgentSpec, and the Secrets that pods mount.
    pub agent: Value,
    /// The Job, without its pods.
    pub job: Value,
    pub pods: Value,
    pub services: Value,
    pub volumes: Value,
    /// In this order: seconds until an ended MiniCluster is deleted, whether its pods are cleaned up, how often
    /// it restarts, whether another controller manages it, whether its gang lacks an API.
    pub operator: Value,
}

/// The result of `spec`.
pub fn effects(spec: &Value) -> Result<Effects, Vec<Problem>> {
    let document = json!({
        "apiVersion": "flux-framework.org/v1alpha2", "kind": "MiniCluster", "metadata": { "name": "mc" }, "spec": spec,
    });
    let manifest = manifest::from_value(&document)?;
    let cluster = validate(&manifest)?;
    let certificate = Certificate::from_keys("mc-0", &[7; 32], &[9; 32]);
    let options = Options {
        // Without gangs, the values `auto` and `off` of `spec.gang` would have the same effects.
        gang: true,
        ..Options::default()
    };
    let objects =
        |facts: &RenderFacts| render::objects(&cluster, &options, facts, certificate.clone()).unwrap();
    // Some fields have an effect only if the nodes or the API server support it. So the Job is also rendered
    // with that support.
    let full_support = RenderFacts {
        nodes_mount_images: true,
        gangs: Served {
            kubernetes: true,
            ..Served::default()
        },
        ..RenderFacts::default()
    };
    let mut job_with_full_support = serde_json::to_value(objects(&full_support).job).unwrap();
    let render::Objects {
        config_map,
        secrets,
        volumes,
        network_policy,
        headless,
        services,
        gang,
        job,
        services_pod,
    } = objects(&RenderFacts::default());
    let secrets: Vec<_> = secrets.iter().map(|secret| secret.expose()).collect();
    let volumes: Vec<_> = volumes.iter().map(|pair| (&pair.volume, &pair.claim)).collect();
    // No pods are observed, so the Job's uid (empty) does not matter.
    let is_cleaned_up = is_to_be_cleaned_up(&manifest.spec, &ended(), &Observed::default(), "");
    let lifetime = seconds_to_live(&manifest.spec, &ended(), "2026-01-01T00:00:01Z".parse().unwrap());
    let mut job = serde_json::to_value(job).unwrap();
    let pods = json!([
        job["spec"]["template"].take(),
        job_with_full_support["spec"]["template"].take(),
        services_pod
    ]);
    Ok(Effects {
        agent: json!([config_map, secrets]),
        job,
        pods,
        services: json!([headless, services, network_policy]),
        volumes: json!(volumes),
        operator: json!([
            lifetime,
            is_cleaned_up,
            restarts_after_losses(&cluster),
            manifest.spec.is_managed_elsewhere(),
            matches!(gang, GangOf::Unserved(_))
        ]),
    })
}

/// Every leaf of the spec of v1alpha2, with its schema.
pub fn all_leaves() -> Vec<(String, Value)> {
    let crd = serde_json::to_value(crd::definition::crd().unwrap()).unwrap();
    let mut all = Vec::new();
    // This definition has one version, v1alpha2.
    leaves(
        "",
        &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"],
        &mut all,
    );
    all
}

/// A spec in which the leaf can have an effect, and whether every value of the leaf must be valid in it.
pub fn around(path: &str) -> (Value, bool) {
    let surroundings = SURROUNDINGS.iter().find(|(start, _)| path.starts_with(start));
    let companions = COMPANIONS
        .iter()
        .find(|(suffix, _)| surroundings.is_none() && path.ends_with(&suffix.replace('|', ".")));
    let mut around = base();
    if let Some((_, text)) = surroundings {
        merge(&mut around, &serde_json::from_str(text).unwrap());
    }
    if let Some((suffix, text)) = companions {
        // Without the part of the path behind the `|`, and the `.` before it, the path is that of the object.
        let inner = suffix.split_once('|').unwrap().1.len();
        merge(
            &mut around,
            &patch(
                &path[..path.len() - inner - 1],
                serde_json::from_str(text).unwrap(),
            ),
        );
    }
    let must_be_valid = companions.or(surroundings).is_some() || MUST_BE_VALID.contains(&path);
    (around, must_be_valid)
}
