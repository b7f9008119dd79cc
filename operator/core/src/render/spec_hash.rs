//! A hash of the spec that a Job was created from. It shows whether the spec was edited after that. Pure.

use flux_shared::crd::FIXED;
use flux_shared::crd::v1alpha2::MiniClusterSpec;
use serde_json::{Map, Value, json};

use super::hash;

/// Two hashes with a dot between. The first is of all fields of the spec that cannot change once there is a Job. The
/// second is of those among them from which objects other than the Job and the agent's ConfigMap are created.
pub fn of(spec: &MiniClusterSpec) -> String {
    let spec = serde_json::to_value(spec).unwrap_or_default();
    let fixed: Map<String, Value> = FIXED
        .iter()
        .filter_map(|field| Some(((*field).to_owned(), spec.get(*field)?.clone())))
        .collect();
    format!("{}.{}", hash(&fixed), hash(&fields_of_other_objects(&spec)))
}

/// Whether the specs of two hashes differ at most in fields of the Job and the agent's ConfigMap, which can be created
/// again. False if `one` has no dot: another version wrote it.
pub fn is_of_the_same_objects(one: &str, other: &str) -> bool {
    let second = |text: &str| text.split_once('.').map(|(_, second)| second.to_owned());
    second(one).is_some() && second(one) == second(other)
}

/// The part of the spec from which Secrets, Services, volumes, the NetworkPolicy and the services pod are created.
fn fields_of_other_objects(spec: &Value) -> Value {
    // These three fields say which containers are sidecars, and which Services the sidecars have.
    let containers = spec["containers"].as_array().into_iter().flatten();
    let containers: Vec<Value> = containers
        .map(|container| json!([container["name"], container["runFlux"], container["ports"]]))
        .collect();
    let flux = &spec["flux"];
    let all = json!([
        spec["users"],
        spec["fluxRestful"],
        spec["volumes"],
        spec["services"],
        spec["network"],
        spec["pod"],
        flux["curveCert"],
        flux["curveCertSecret"],
        flux["minimalService"],
        containers,
    ]);
    // `bursting` and `leadBroker` decide whether there is a NetworkPolicy, and `arch` where the services pod, if there is
    // one, may run. They and `servicesPodTemplate` below are added only if they are set. So the hashes of all other specs
    // stay as earlier versions computed them. (An empty list of services is not in `spec`.)
    let later_fields: Vec<&Value> = ["bursting", "leadBroker"]
        .iter()
        .filter_map(|field| flux.get(field))
        .chain(spec.get("services").and(flux.get("arch")))
        .collect();
    let all = if later_fields.is_empty() {
        all
    } else {
        json!([all, later_fields])
    };
    match spec.get("servicesPodTemplate") {
        Some(overlay) => json!([all, overlay]),
        None => all,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(spec: &str) -> String {
        let mut whole = json!({ "containers": [{ "image": "a" }] });
        let changed: Value = serde_saphyr::from_str(spec).unwrap();
        for (key, value) in changed.as_object().unwrap() {
            whole[key] = value.clone();
        }
        of(&serde_json::from_value(whole).unwrap())
    }

    #[test]
    fn spec_hash_ignores_fields_that_may_change() {
        let base = "containers: [{image: a}]";
        let same =
            "size: 3\nsuspend: true\ncleanup: true\nttlSecondsAfterFinished: 7\ncontainers: [{image: a}]";
        assert_eq!(hash(base), hash(same));
        assert_ne!(hash(base), hash("containers: [{image: b}]"));
        assert_ne!(hash(base), hash("tasks: 7\ncontainers: [{image: a}]"));
    }

    #[test]
    fn spec_hash_tells_which_specs_have_the_same_objects() {
        let of_same = |one: &str, other: &str| is_of_the_same_objects(&hash(one), &hash(other));
        let base = "containers: [{image: a}]";
        assert!(of_same(base, "containers: [{image: b, command: c}]"));
        assert!(!of_same(base, "containers: [{image: a, ports: [80]}]"));
        assert!(!of_same(base, "users: [{name: a}]\ncontainers: [{image: a}]"));
        let bursts = "flux: {bursting: {clusters: [{name: b}]}}\ncontainers: [{image: a}]";
        assert!(!of_same(base, bursts), "it has no NetworkPolicy");
        let arch = "flux: {arch: arm64}\n";
        assert!(of_same(base, &format!("{arch}{base}")));
        let services = format!("services: [{{image: db}}]\n{base}");
        assert!(
            !of_same(&services, &format!("{arch}{services}")),
            "its services pod has a node selector"
        );
        assert!(!is_of_the_same_objects("a", "a"), "of another version");
    }
}
