//! Derives the AgentSpec of the pods from a valid MiniCluster. The operator writes it into a ConfigMap, and
//! `flux-agent dry-run` shows what it does.

use std::collections::BTreeSet;

use crate::agent_spec::{
    AgentSpec, BrokerNetwork, FluxSettings, LogSettings, RestartPolicy, Restful, Runner, VERSION, View,
};
use crate::crd::v1alpha2::Resources;
use crate::overlay::Overlay;
use crate::quantity::Quantity;
use crate::validate::ValidMiniCluster;

/// The AgentSpec of the cluster's pods.
pub fn agent_spec(cluster: &ValidMiniCluster) -> AgentSpec {
    AgentSpec {
        version: VERSION,
        name: cluster.name.clone(),
        namespace: cluster.namespace.clone(),
        size: cluster.size,
        max_size: (cluster.max_size != cluster.size).then_some(cluster.max_size),
        quorum: cluster.min_size,
        tasks: cluster.tasks,
        // Whether the job may begin with fewer nodes than `size`. (`maxSize` plays no role.)
        elastic: cluster.min_size.is_some_and(|min| min < cluster.size),
        restart_policy: match cluster.pod.restart_policy.as_deref() {
            Some("OnFailure") => RestartPolicy::OnFailure,
            _ => RestartPolicy::Never,
        },
        mount_path: cluster.view.mount_path.clone(),
        archive: cluster.archive.clone(),
        view: View {
            enabled: cluster.view.enabled,
            python_path: cluster.view.python_path.clone(),
            install_root: cluster.view.install_root.clone(),
        },
        network: BrokerNetwork {
            service: cluster.headless_name.clone(),
            host_network: has_host_network(cluster.pod_template.as_ref()),
            hostlist: cluster.flux.hostlist.clone(),
            lead: cluster.flux.lead.clone(),
            // The port and the cluster's domain: no field of the MiniCluster sets them.
            ..BrokerNetwork::default()
        },
        flux: flux(cluster),
        logging: LogSettings {
            quiet: cluster.logging.quiet,
            strict: cluster.logging.strict,
            timed: cluster.logging.timed,
            debug: cluster.logging.debug,
            zeromq: cluster.logging.zeromq,
            format: cluster.log_format,
        },
        // The operator sets the trace: only the operator knows whether traces are sent, and the MiniCluster's uid.
        trace: None,
        runner: runner(cluster),
        // Only the names: the passwords are in a Secret.
        users: cluster.users.iter().map(|user| user.name.clone()).collect(),
        // Only those whose entrypoint is the agent: in the others, no agent reads the spec.
        sidecars: cluster
            .sidecars
            .iter()
            .filter_map(|sidecar| Some((sidecar.container.name.clone(), sidecar.wrapped.clone()?)))
            .collect(),
    }
}

/// Whether the pod template turns on host networking. The MiniCluster has no field for it.
pub fn has_host_network(overlay: Option<&Overlay>) -> bool {
    overlay
        .and_then(|overlay| overlay.value().pointer("/spec/hostNetwork")?.as_bool())
        .unwrap_or(false)
}

fn flux(cluster: &ValidMiniCluster) -> FluxSettings {
    let options = &cluster.flux;
    FluxSettings {
        log_level: options.log_level,
        connect_timeout: options.connect_timeout.clone(),
        heartbeat_timeout: options.heartbeat_timeout.clone(),
        parent_deadline: options.parent_deadline,
        lead_gone: options.lead_gone,
        lead_silent: options.lead_silent,
        metrics_port: options.metrics_port,
        topology: options.topology.clone(),
        submit_command: options.submit_command.clone(),
        option_flags: options.option_flags.clone(),
        wrap: options.wrap.clone(),
        complete_workers: options.complete_workers,
        scheduler: options.scheduler,
        queue_policy: options.queue_policy.clone(),
        broker_config: options.broker_config.clone(),
        configs: options.configs.clone(),
        disable_socket: options.disable_socket,
        environment: options.environment.clone(),
    }
}

fn runner(cluster: &ValidMiniCluster) -> Runner {
    let runner = &cluster.runner;
    Runner {
        interactive: cluster.interactive,
        prefix: runner.prefix.clone(),
        cores: runner.cores,
        cpu_limit: cluster.cpu_limit(),
        gpus: asks_for_gpus(&runner.container.resources),
        logs: runner.logs.clone().unwrap_or_else(|| Runner::default().logs),
        user: runner.user.clone(),
        // Only if Flux runs as `user`: the agent makes the directory writable for that user.
        working_dir: match &runner.user {
            Some(user) if !user.run_flux_as_root => runner.container.working_dir.clone(),
            _ => None,
        },
        per_pod: per_pod(cluster),
        snippets: runner.snippets.clone(),
        program: runner.program.clone(),
        // The operator replaces the default repository by that of its option `--restful-repository`.
        restful: cluster.restful.as_ref().map(|restful| Restful {
            branch: restful.branch.clone(),
            port: restful.port,
            ..Restful::default()
        }),
    }
}

/// Names of the runner's variables whose values may differ between pods: the pod template takes them from the downward
/// API, or they refer to such a variable. Without the names, a task would see the values of the pod that submitted its
/// job.
fn per_pod(cluster: &ValidMiniCluster) -> Vec<String> {
    let variables = cluster.variables(&cluster.runner.container);
    // The same names, in order and for look-ups.
    let (mut names, mut found) = (Vec::new(), BTreeSet::new());
    for variable in &variables {
        let source = &variable["valueFrom"];
        let is_of_downward_api = source["fieldRef"].is_object() || source["resourceFieldRef"].is_object();
        // Kubernetes expands references to earlier variables only, and `$$` to `$`.
        let refers_to_one =
            |value: &str| references(&value.replace("$$", "")).any(|name| found.contains(name));
        if (is_of_downward_api || variable["value"].as_str().is_some_and(refers_to_one))
            && let Some(name) = variable["name"].as_str()
            // Not these: the pod's own values lack the folders that the agent and the snippets add.
            && !["PATH", "MANPATH", "PYTHONPATH", "LD_LIBRARY_PATH"].contains(&name)
            && found.insert(name)
        {
            names.push(name.to_owned());
        }
    }
    names
}

/// The names in a value's references `$(NAME)`.
fn references(value: &str) -> impl Iterator<Item = &str> {
    value
        .split("$(")
        .skip(1)
        .filter_map(|rest| Some(rest.split_once(')')?.0))
}

/// Whether this is the name of a resource of GPUs, or of slices of one (NVIDIA's MIG): such as nvidia.com/gpu,
/// gpu.intel.com/i915 and nvidia.com/mig-1g.5gb.
fn is_gpu(resource: &str) -> bool {
    resource.split_once('/').is_some_and(|(vendor, device)| {
        device.contains("gpu")
            || vendor.contains("gpu")
            || (vendor == "nvidia.com" && device.starts_with("mig-"))
    })
}

/// Whether this resource is a share of a GPU (its memory or cores), not a number of GPUs: such as nvidia.com/gpumem,
/// nvidia.com/gpucores and aliyun.com/gpu-mem.
fn is_share(resource: &str) -> bool {
    let device = resource.split_once('/').map_or("", |(_, device)| device);
    ["mem", "core", "percentage"]
        .iter()
        .any(|unit| device.contains(unit))
}

/// The number of GPUs, or slices of one, that a container with these resources gets.
pub fn gpus(resources: &Resources) -> u32 {
    let limits = resources.limits.iter();
    let numbers = limits.filter(|(name, _)| is_gpu(name) && !is_share(name));
    numbers.filter_map(|(_, quantity)| quantity.value()).sum::<f64>() as u32
}

/// Whether a limit or request asks for GPUs or for a part of one. An amount of 0 does not.
fn asks_for_gpus(resources: &Resources) -> bool {
    // A quantity is a text. (Nobody writes 0 with another digit, as in `0e3`.)
    let is_positive = |quantity: &Quantity| quantity.0.contains(|c: char| matches!(c, '1'..='9'));
    resources
        .limits
        .iter()
        .chain(&resources.requests)
        .any(|(name, quantity)| is_gpu(name) && is_positive(quantity))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest;
    use crate::validate::validate;

    #[test]
    fn host_network_follows_the_brokers_pod_template() {
        let is_set = |overlay: &str| {
            let text = format!(
                "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: mc}}\nspec:\n  size: 2\n  \
                 services: [{{image: db, name: db}}]\n  containers: [{{image: app}}]\n  {overlay}\n"
            );
            agent_spec(&validate(&manifest::parse(&text).unwrap()).unwrap())
                .network
                .host_network
        };
        assert!(is_set("podTemplate: {spec: {hostNetwork: true}}"));
        for other in [
            "podTemplate: {spec: {hostNetwork: false}}",
            "servicesPodTemplate: {spec: {hostNetwork: true}}",
        ] {
            assert!(!is_set(other), "{other}");
        }
    }

    #[test]
    fn variables_that_differ_between_pods_are_named_for_the_runner() {
        let per_pod = |environment: &str, overlay: &str| {
            let text = format!(
                "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: mc}}\nspec:\n  \
                 containers: [{{image: app, runFlux: true, environment: {{{environment}}}}}, {{image: b, name: other, command: c}}]\n  \
                 podTemplate: {{spec: {{containers: [{{name: mc, env: [{overlay}]}}], initContainers: [{{name: other, env: [{{name: C, valueFrom: {{fieldRef: {{fieldPath: spec.nodeName}}}}}}]}}]}}}}\n"
            );
            let cluster = validate(&manifest::parse(&text).unwrap()).unwrap();
            agent_spec(&cluster).runner.per_pod
        };
        let node = "{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}";
        assert_eq!(per_pod("", &format!("{node}, {{name: A, value: b}}")), ["NODE"]);
        // Composed variables differ as well, also if they are composed of composed ones.
        let composed = per_pod(
            "ADDRESS: '$(NODE):1', B: 'x$(ADDRESS)$(B)', PLAIN: '$(HOST) NODE $NODE'",
            &format!("{node}, {{name: URL, value: 'http://$(NODE)'}}"),
        );
        assert_eq!(composed, ["NODE", "URL", "ADDRESS", "B"]);
        // What the overlay replaces no longer differs.
        let replaced = per_pod(
            "ADDRESS: '$(NODE):1'",
            &format!("{node}, {{name: ADDRESS, value: a}}"),
        );
        assert_eq!(replaced, ["NODE"]);
        // Kubernetes does not expand a reference to a later variable.
        let early = per_pod("", &format!("{{name: EARLY, value: $(NODE)}}, {node}"));
        assert_eq!(early, ["NODE"]);
        let others = per_pod("PATH: '/opt/$(NODE)/bin', TEXT: '$$(NODE)'", node);
        assert_eq!(others, ["NODE"]);
    }

    #[test]
    fn cpu_limit_is_the_runners_else_the_pods() {
        let cpu_limit_in = |pod: &str, resources: &str| {
            let text = format!(
                "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: mc}}\nspec:\n  {pod}\n  containers: \
                 [{{image: app, runFlux: true, resources: {{{resources}}}}}, {{image: b, name: other, command: c, resources: {{limits: {{cpu: 9}}}}}}]\n"
            );
            agent_spec(&validate(&manifest::parse(&text).unwrap()).unwrap())
                .runner
                .cpu_limit
        };
        let cpu_limit = |resources: &str| cpu_limit_in("", resources);
        for (resources, want) in [
            ("", None),
            ("limits: {cpu: 1500m}", Some(1.5)),
            ("limits: {cpu: 4, memory: 1Gi}, requests: {cpu: 2}", Some(4.0)),
            ("limits: {memory: 1Gi}, requests: {cpu: 2}", None),
            ("limits: {cpu: 0}", None),
        ] {
            assert_eq!(cpu_limit(resources), want, "{resources}");
        }
        for (pod, resources, want) in [
            ("pod: {resources: {cpu: 2}}", "", Some(2.0)),
            ("pod: {resources: {memory: 1Gi}}", "", None),
            ("pod: {resources: {cpu: 2}}", "limits: {memory: 1Gi}", Some(2.0)),
            ("pod: {resources: {cpu: 2}}", "limits: {cpu: 0}", Some(2.0)),
            ("pod: {resources: {cpu: 2}}", "limits: {cpu: 1}", Some(1.0)),
            (
                "podTemplate: {spec: {resources: {limits: {cpu: 3}}}}",
                "",
                Some(3.0),
            ),
            // With a runtime class, these resources are the pod's overhead.
            ("pod: {resources: {cpu: 2}, runtimeClassName: kata}", "", None),
        ] {
            assert_eq!(cpu_limit_in(pod, resources), want, "{pod}; {resources}");
        }
    }

    #[test]
    fn gpus_are_asked_for_by_the_names_of_all_vendors() {
        let asks = |name: &str, count: &str| {
            let limits = [(name.to_owned(), Quantity(count.to_owned()))].into();
            asks_for_gpus(&Resources {
                limits,
                ..Resources::default()
            })
        };
        for name in [
            "nvidia.com/gpu",
            "nvidia.com/gpu.shared",
            "nvidia.com/mig-1g.5gb",
            "amd.com/gpu",
            "gpu.intel.com/i915",
            "gpu.intel.com/xe",
            "gpu-vendor.example/example-gpu",
        ] {
            assert!(asks(name, "1") && !asks(name, "0"), "{name}");
        }
        for name in [
            "cpu",
            "memory",
            "vpc.amazonaws.com/efa",
            "nvidia.com/hostdev",
            "rdma/hca",
        ] {
            assert!(!asks(name, "1"), "{name}");
        }
    }

    #[test]
    fn shares_of_gpus_do_not_count_as_gpus() {
        let count = |limits: &[(&str, &str)]| {
            let limits = limits
                .iter()
                .map(|(name, count)| ((*name).to_owned(), Quantity((*count).to_owned())));
            gpus(&Resources {
                limits: limits.collect(),
                ..Resources::default()
            })
        };
        let shares = [
            ("nvidia.com/gpumem", "3000"),
            ("nvidia.com/gpumem-percentage", "50"),
            ("nvidia.com/gpucores", "30"),
            ("aliyun.com/gpu-mem", "8"),
            ("volcano.sh/gpu-memory", "1024"),
            ("gpu.intel.com/memory.max", "8Gi"),
            ("gpu.intel.com/millicores", "500"),
        ];
        assert_eq!(count(&shares), 0);
        assert_eq!(
            count(&[shares.as_slice(), &[("nvidia.com/gpu", "1")]].concat()),
            1
        );
        assert_eq!(
            count(&[("nvidia.com/mig-1g.5gb.me", "2"), ("amd.com/gpu", "1")]),
            3
        );
    }
}
