//! What the containers of the Job's pods get: the spec's fields with `spec.podTemplate` merged in.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{ValidContainer, ValidMiniCluster};
use crate::quantity::Quantity;

impl ValidMiniCluster {
    /// The variables of the runner or of a sidecar, without those of `secrets`, in the order that they have in the pod:
    /// objects with the key `name`, and with `value` or `valueFrom`.
    pub(crate) fn variables(&self, container: &ValidContainer) -> Vec<Value> {
        let variables = container.environment.iter();
        let variables = variables.map(|(name, value)| json!({"name": name, "value": value}));
        match self.merged(container, "env", variables.collect()) {
            Value::Array(variables) => variables,
            _ => Vec::new(),
        }
    }

    /// The environment of the runner or of a sidecar, with the references in values expanded. Variables without a
    /// literal value (`valueFrom`) are left out.
    pub fn environment(&self, container: &ValidContainer) -> BTreeMap<String, String> {
        let mut environment = BTreeMap::new();
        for variable in self.variables(container) {
            if let (Some(name), Some(value)) = (variable["name"].as_str(), variable["value"].as_str()) {
                let value = expand(value, &environment);
                environment.insert(name.to_owned(), value);
            }
        }
        environment
    }

    /// The CPU limit of the container that runs Flux, in CPUs. Without its own, it has the pod's, as in the kubelet.
    /// None: neither has one. (0 is no limit.)
    pub fn cpu_limit(&self) -> Option<f64> {
        let is_limit = |cpus: &f64| *cpus > 0.0;
        // `podTemplate` cannot change a container's resources.
        let own = self.runner.container.resources.limits.get("cpu");
        own.and_then(Quantity::value).filter(is_limit).or_else(|| {
            let of_pod = match self.pod.runtime_class_name {
                // With a runtime class, `pod.resources` is the pod's overhead.
                Some(_) => json!({}),
                None => json!({"resources": {"limits": self.pod.resources}}),
            };
            let mut pod = json!({ "spec": of_pod });
            if let Some(overlay) = &self.pod_template {
                pod = overlay.over(pod);
            }
            let limit = pod.pointer_mut("/spec/resources/limits/cpu")?.take();
            let limit: Quantity = serde_json::from_value(limit).ok()?;
            limit.value().filter(is_limit)
        })
    }

    /// A field of the runner or of a sidecar, with the overlay merged in. Null: the overlay deletes it.
    fn merged(&self, container: &ValidContainer, field: &str, value: Value) -> Value {
        let Some(overlay) = &self.pod_template else {
            return value;
        };
        // The operator renders sidecars as init containers.
        let list = if container.name == self.runner.container.name {
            "containers"
        } else {
            "initContainers"
        };
        let pod = json!({"spec": {list: [{"name": container.name, field: value}]}});
        let mut merged = overlay.over(pod);
        let mut containers = merged["spec"][list].as_array_mut().into_iter().flatten();
        containers
            .find(|merged| merged["name"] == container.name)
            .map(|merged| merged[field].take())
            .unwrap_or_default()
    }
}

/// Replaces `$(NAME)` by the variable's value and `$$` by `$`, as the kubelet does with the variables before this one.
/// Other text, and a reference to an unknown variable, stays.
fn expand(value: &str, earlier: &BTreeMap<String, String>) -> String {
    let (mut expanded, mut rest) = (String::new(), value);
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        let reference = after.strip_prefix('(').and_then(|after| after.split_once(')'));
        rest = if let Some((name, after)) = reference {
            match earlier.get(name) {
                Some(value) => expanded.push_str(value),
                None => expanded.push_str(&format!("$({name})")),
            }
            after
        } else {
            expanded.push('$');
            after.strip_prefix('$').unwrap_or(after)
        };
    }
    expanded + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest;
    use crate::validate::validate;

    #[test]
    fn references_are_expanded_as_in_the_kubelet() {
        let earlier =
            [("A", "one"), ("B", "$(A)"), ("E", "")].map(|(name, value)| (name.into(), value.into()));
        let earlier = BTreeMap::from(earlier);
        for (value, want) in [
            ("", ""),
            ("plain $A ${A} 100%", "plain $A ${A} 100%"),
            ("$(A)", "one"),
            ("<$(A)-$(A)$(E)>", "<one-one>"),
            // The value of a variable is not expanded again.
            ("$(B)", "$(A)"),
            ("$(C) $(a) $()", "$(C) $(a) $()"),
            ("$$", "$"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$one"),
            ("$$$$(A)", "$$(A)"),
            ("$(A", "$(A"),
            ("$", "$"),
            ("é$(A)é", "éoneé"),
        ] {
            assert_eq!(expand(value, &earlier), want, "{value}");
        }
    }

    #[test]
    fn environment_is_expanded_in_the_order_of_the_pod() {
        let text = "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {name: mc}\nspec:\n  \
            containers:\n  \
            - {image: a, runFlux: true, environment: {A: '$(B)', B: b, C: '$(B)$(OVER)$(TOKEN)$(NODE)'}, \
               secrets: {TOKEN: {name: s, key: k}}}\n  \
            - {image: a, name: side, command: c, environment: {X: x, YY: '$(X)$(Z)'}}\n  \
            - {image: a, name: other, command: c}\n  \
            podTemplate: {spec: {\
               containers: [{name: mc, env: [{name: OVER, value: over}, \
                 {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]}], \
               initContainers: [{name: other, env: [{name: X, value: other}]}, {name: side, env: [{name: Z, value: z}]}]}}\n";
        let cluster = validate(&manifest::parse(text).unwrap()).unwrap();
        let environment = |container| {
            let environment = cluster.environment(container).into_iter();
            environment
                .map(|(name, value)| format!("{name}={value}"))
                .collect::<Vec<_>>()
                .join(" ")
        };
        let runner = environment(&cluster.runner.container);
        assert_eq!(runner, "A=$(B) B=b C=bover$(TOKEN)$(NODE) OVER=over");
        assert_eq!(environment(&cluster.sidecars[0].container), "X=x YY=xz Z=z");
    }
}
