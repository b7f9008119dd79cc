//! The containers of a pod, in the order in which they start.

use flux_shared::agent_spec::Program;
use flux_shared::crd::v1alpha2::Resources;
use flux_shared::names::SOFTWARE_CONTAINER;
use flux_shared::paths::{
    AGENT_DIR, AGENT_FILE, COPIED_PACKAGES, MOUNT_FOLDER, MOUNT_STAGING, RUNNER_IMAGE_MOUNT, SOFTWARE_FOLDER,
    SOFTWARE_STAGING, VIEW_IMAGE_MOUNT,
};
use flux_shared::validate::{PullPolicy, ValidContainer, ValidMiniCluster, ValidSidecar};
use flux_shared::{derive, names};
use k8s_openapi::api::core::v1::{
    Capabilities, Container, ContainerPort, EnvVar, EnvVarSource, ExecAction, Lifecycle, LifecycleHandler,
    ObjectFieldSelector, Probe, ResourceRequirements, SecretKeySelector, SecurityContext,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::services::BROKER_PORT;
use super::view::ViewFrom;
use super::volumes::{self, UserVolumes};
use super::{Options, RenderError, none_if_empty, typed};
use crate::labels::AGENT;

/// Name of the port with the instance's metrics.
const METRICS_PORT: &str = "metrics";
/// The agent's path in its image.
const AGENT_IN_IMAGE: &str = "/flux-agent";

/// The init containers: one installs the agent, others copy or link the view and merge its packages, then the sidecars
/// follow. Sidecars are restartable init containers, so that they end with the pod.
pub(super) fn init(
    cluster: &ValidMiniCluster,
    options: &Options,
    view: ViewFrom,
    user_volumes: &UserVolumes,
) -> Result<Vec<Container>, RenderError> {
    let mut containers = vec![install(cluster, options, view)];
    if matches!(view, ViewFrom::Copy | ViewFrom::OwnImage) {
        containers.push(provide_view(cluster, options, view)?);
    }
    if view == ViewFrom::Copy {
        containers.push(software(cluster)?);
    }
    for sidecar in &cluster.sidecars {
        containers.push(sidecar_of(cluster, sidecar, view, user_volumes)?);
    }
    Ok(containers)
}

/// Names of the operator's own init containers, whose exit codes the Job's failure policy reads.
pub(super) fn own_init_names(cluster: &ValidMiniCluster, view: ViewFrom) -> Vec<String> {
    let has_view_container = matches!(view, ViewFrom::Copy | ViewFrom::OwnImage);
    let software = (view == ViewFrom::Copy).then(|| SOFTWARE_CONTAINER.to_owned());
    [AGENT.to_owned()]
        .into_iter()
        .chain(has_view_container.then(|| cluster.view.name.clone()))
        .chain(software)
        .collect()
}

/// The init container that installs the agent. It also fills the folder that the other containers see at the mount
/// path, unless the view's container does. If the pods mount the view's image, this container mounts it too, and beside
/// it the runner's image, and merges the packages of both. So if a mount fails, nothing has run yet.
fn install(cluster: &ValidMiniCluster, options: &Options, view: ViewFrom) -> Container {
    let mut command = [AGENT_IN_IMAGE, "install", "--binary", AGENT_DIR]
        .map(str::to_owned)
        .to_vec();
    if matches!(view, ViewFrom::ImageVolume | ViewFrom::Nowhere) {
        command.extend(["--to".to_owned(), staged_mount()]);
    }
    if view == ViewFrom::ImageVolume {
        command.extend(
            [
                "--link-view",
                VIEW_IMAGE_MOUNT,
                "--runner-image",
                RUNNER_IMAGE_MOUNT,
            ]
            .map(str::to_owned),
        );
    }
    command.extend(log_format(cluster));
    Container {
        name: AGENT.into(),
        image: Some(options.agent_image.clone()),
        image_pull_policy: Some(PullPolicy::IfNotPresent.name().into()),
        command: Some(command),
        resources: own_init_resources(cluster),
        volume_mounts: Some(volumes::for_install(cluster, view)),
        // It writes into empty directories that everybody may write to, and needs nothing else.
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".into()]),
                add: None,
            }),
            read_only_root_filesystem: Some(true),
            ..SecurityContext::default()
        }),
        termination_message_policy: Some("File".into()),
        ..Container::default()
    }
}

/// The log format as an argument: init containers cannot read the AgentSpec.
fn log_format(cluster: &ValidMiniCluster) -> Option<String> {
    (!cluster.log_format.is_text()).then(|| "--log-format=json".to_owned())
}

/// Path in the init containers of the folder that the other containers see at the mount path.
fn staged_mount() -> String {
    format!("{MOUNT_STAGING}/{MOUNT_FOLDER}")
}

/// The init container with the view's image: it copies the view, or links to it if the other containers
/// run the same image.
fn provide_view(
    cluster: &ValidMiniCluster,
    options: &Options,
    from: ViewFrom,
) -> Result<Container, RenderError> {
    let view = &cluster.view;
    let mut command = [AGENT_FILE, "view", "--to", &staged_mount()]
        .map(str::to_owned)
        .to_vec();
    match from {
        ViewFrom::OwnImage => command.push("--link".into()),
        _ => command.extend(["--software", COPIED_PACKAGES].map(str::to_owned)),
    }
    command.extend(log_format(cluster));
    Ok(Container {
        name: view.name.clone(),
        image: Some(super::view::image(cluster, options).to_owned()),
        image_pull_policy: Some(view.pull_policy.name().into()),
        command: Some(command),
        resources: own_init_resources(cluster),
        working_dir: view.working_dir.clone(),
        security_context: typed(
            "spec.flux.container.securityContext",
            view.security_context.as_ref(),
        )?,
        volume_mounts: Some(volumes::for_view(cluster, from)),
        termination_message_policy: Some("File".into()),
        ..Container::default()
    })
}

/// The init container that merges the copied view's packages and the runner's own `/opt/software` into the volume for
/// `/opt/software`. It runs the runner's image as the runner's user: it has to read the files of that image.
fn software(cluster: &ValidMiniCluster) -> Result<Container, RenderError> {
    let runner = &cluster.runner.container;
    let to = format!("{SOFTWARE_STAGING}/{SOFTWARE_FOLDER}");
    let command = [AGENT_FILE, "software", "--packages", COPIED_PACKAGES, "--to", &to].map(str::to_owned);
    let field = format!("securityContext of container {}", runner.name);
    Ok(Container {
        name: SOFTWARE_CONTAINER.into(),
        image: Some(runner.image.clone()),
        image_pull_policy: Some(runner.pull_policy.name().into()),
        command: Some(command.into_iter().chain(log_format(cluster)).collect()),
        resources: own_init_resources(cluster),
        security_context: typed(&field, runner.security_context.as_ref())?,
        volume_mounts: Some(volumes::for_software()),
        termination_message_policy: Some("File".into()),
        ..Container::default()
    })
}

fn sidecar_of(
    cluster: &ValidMiniCluster,
    sidecar: &ValidSidecar,
    view: ViewFrom,
    user_volumes: &UserVolumes,
) -> Result<Container, RenderError> {
    let mut container = common(&sidecar.container)?;
    container.volume_mounts = none_if_empty(volumes::merged(
        cluster,
        &sidecar.container.name,
        volumes::for_sidecar(cluster, view, sidecar),
        user_volumes.mounts(&sidecar.container),
    ));
    // A sidecar without work for the agent keeps its image's own entrypoint.
    if sidecar.wrapped.is_some() {
        container.command = Some(vec![
            AGENT_FILE.into(),
            "sidecar".into(),
            sidecar.container.name.clone(),
            grace_period(cluster),
        ]);
    }
    container.restart_policy = Some("Always".into());
    Ok(container)
}

/// The option by which the agent knows when the kubelet kills it. Before that, the runner can save the state, and a
/// sidecar gets SIGTERM.
fn grace_period(cluster: &ValidMiniCluster) -> String {
    format!("{}={}", names::GRACE_PERIOD, cluster.grace_period())
}

/// The container that runs Flux: the only one that is no init container. `restarts_left`: how many restarts
/// `backoffLimit` still allows.
pub(super) fn runner(
    cluster: &ValidMiniCluster,
    view: ViewFrom,
    user_volumes: &UserVolumes,
    restarts_left: u32,
) -> Result<Container, RenderError> {
    let runner = &cluster.runner;
    let mut container = common(&runner.container)?;
    // By this number a lead that replaces a lost one knows whether to wait for a restart or to fail. With OnFailure,
    // the number also limits how often the agent runs the program again.
    let restarts = format!("{}={restarts_left}", names::RESTARTS_LEFT);
    container.command = Some(vec![
        AGENT_FILE.into(),
        "run".into(),
        grace_period(cluster),
        restarts,
    ]);
    // By these two variables the agent knows that its pod is not the first of its index: a lead that replaces another
    // runs nothing.
    let earlier_pods = [names::INDEX_FAILURES, names::INDEX_DISRUPTIONS]
        .map(|(name, annotation)| from_annotation(name, annotation));
    container.env.get_or_insert_default().extend(earlier_pods);
    if derive::has_host_network(cluster.pod_template.as_ref()) {
        use_host_network(&mut container, cluster.flux.metrics_port);
    }
    // The port with metrics. Scrapers find it by its name; only the lead listens.
    container
        .ports
        .get_or_insert_default()
        .extend(cluster.flux.metrics_port.map(|port| ContainerPort {
            name: Some(METRICS_PORT.into()),
            ..port_of(port)
        }));
    container.ports = container.ports.filter(|ports| !ports.is_empty());
    // The probe asks the broker by its socket. If the socket is disabled, a running container counts as ready.
    container.startup_probe = (!cluster.flux.disable_socket).then(startup_probe);
    container.volume_mounts = none_if_empty(volumes::merged(
        cluster,
        &runner.container.name,
        volumes::for_runner(cluster, view),
        user_volumes.mounts(&runner.container),
    ));
    // A terminal mixes stdout and stderr and ends lines in CR LF. So the container has one only if a person may attach.
    let is_idle = runner.program == Program::Persistent && cluster.restful.is_none();
    let terminal = (cluster.interactive || is_idle).then_some(true);
    container.stdin = terminal;
    container.tty = terminal;
    Ok(container)
}

/// With host networking the broker uses a port and an address of the node. This declares the port, and passes the
/// address to the agent. A declared port becomes a `hostPort`: Kubernetes puts no two pods with the same port on a
/// node, and reports a pod without a free node as unschedulable. A single broker does not listen, so its port may be
/// the port with metrics, which is declared as well.
fn use_host_network(container: &mut Container, metrics_port: Option<u16>) {
    let ports = container.ports.get_or_insert_default();
    let is_declared = ports.iter().any(|port| port.container_port == BROKER_PORT)
        || metrics_port.is_some_and(|port| i32::from(port) == BROKER_PORT);
    if !is_declared {
        ports.push(ContainerPort {
            container_port: BROKER_PORT,
            protocol: Some("TCP".into()),
            ..ContainerPort::default()
        });
    }
    let (name, field) = names::POD_ADDRESS;
    container
        .env
        .get_or_insert_default()
        .push(from_field(name, field.to_owned()));
}

/// The startup probe. It succeeds when the broker has joined. Then the container is ready until it ends, and no probe
/// disturbs the job. The kubelet never kills a container that starts slowly: the agent decides about that. Each probe
/// waits for the broker, so that Kubernetes reports no warning at an ordinary start. If the start takes longer, the
/// warning says why, and the operator reads it.
fn startup_probe() -> Probe {
    let command = [AGENT_FILE, "status", "--ready", "--wait", "20"].map(str::to_owned);
    Probe {
        exec: Some(ExecAction {
            command: Some(command.to_vec()),
        }),
        period_seconds: Some(1),
        // Longer than the probe's own wait, so that it can still find out which brokers are missing.
        timeout_seconds: Some(60),
        failure_threshold: Some(i32::MAX),
        ..Probe::default()
    }
}

/// A container of the services pod. It runs the image's entrypoint unless a command is given.
pub(super) fn service(
    container: &ValidContainer,
    user_volumes: &UserVolumes,
) -> Result<Container, RenderError> {
    // The kubelet expands `$(NAME)` in a command, and reads `$$` as `$`. The user's words are to stay as they are.
    let as_text = |words: &Vec<String>| words.iter().map(|word| word.replace('$', "$$")).collect();
    Ok(Container {
        command: container.entrypoint.as_ref().map(as_text),
        volume_mounts: none_if_empty(user_volumes.mounts(container)),
        ..common(container)?
    })
}

/// What the runner, the sidecars and the containers of the services pod have in common.
fn common(container: &ValidContainer) -> Result<Container, RenderError> {
    Ok(Container {
        name: container.name.clone(),
        image: Some(container.image.clone()),
        image_pull_policy: Some(container.pull_policy.name().into()),
        working_dir: container.working_dir.clone(),
        env: none_if_empty(environment(container)),
        ports: none_if_empty(container.ports.iter().copied().map(port_of).collect()),
        resources: resources(&container.resources),
        lifecycle: lifecycle(container),
        security_context: typed(
            &format!("securityContext of container {}", container.name),
            container.security_context.as_ref(),
        )?,
        termination_message_policy: Some("File".into()),
        ..Container::default()
    })
}

fn port_of(port: u16) -> ContainerPort {
    ContainerPort {
        container_port: i32::from(port),
        protocol: Some("TCP".into()),
        ..ContainerPort::default()
    }
}

/// An environment variable with the value of a pod's annotation; empty if the pod has none.
fn from_annotation(name: &str, annotation: &str) -> EnvVar {
    from_field(name, format!("metadata.annotations['{annotation}']"))
}

/// An environment variable with the value of a pod's field.
fn from_field(name: &str, field_path: String) -> EnvVar {
    EnvVar {
        name: name.to_owned(),
        value: None,
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                api_version: None,
                field_path,
            }),
            ..EnvVarSource::default()
        }),
    }
}

fn environment(container: &ValidContainer) -> Vec<EnvVar> {
    // Here `$` stays as it is: the spec promises that `$(NAME)` in a value stands for an earlier variable, or for one of
    // `secrets`.
    let plain = container.environment.iter().map(|(name, value)| EnvVar {
        name: name.clone(),
        value: Some(value.clone()),
        value_from: None,
    });
    let secret = container.secrets.iter().map(|(name, secret)| EnvVar {
        name: name.clone(),
        value: None,
        value_from: Some(EnvVarSource {
            secret_key_ref: Some(SecretKeySelector {
                name: secret.name.clone(),
                key: secret.key.clone(),
                optional: None,
            }),
            ..EnvVarSource::default()
        }),
    });
    secret.chain(plain).collect()
}

/// The container's hooks. The kubelet expands nothing in their words, so `$` needs no escape.
fn lifecycle(container: &ValidContainer) -> Option<Lifecycle> {
    let hook = |words: &Option<Vec<String>>| {
        words.as_ref().map(|words| LifecycleHandler {
            exec: Some(ExecAction {
                command: Some(words.clone()),
            }),
            ..LifecycleHandler::default()
        })
    };
    let (post_start, pre_stop) = (hook(&container.post_start), hook(&container.pre_stop));
    (post_start.is_some() || pre_stop.is_some()).then(|| Lifecycle {
        post_start,
        pre_stop,
        ..Lifecycle::default()
    })
}

/// Resources of the operator's own init containers: those of `flux.container`, else the runner's cpu and memory.
///
/// A quota on cpu or memory rejects a pod if one of its containers lacks them, and such a pod is not of Kubernetes'
/// class Guaranteed. Those of the runner cost nothing: for a pod, Kubernetes counts its init containers or its
/// containers, whichever need more.
fn own_init_resources(cluster: &ValidMiniCluster) -> Option<ResourceRequirements> {
    let view_resources = &cluster.view.resources;
    if !view_resources.limits.is_empty() || !view_resources.requests.is_empty() {
        return resources(view_resources);
    }
    let mut inherited = cluster.runner.container.resources.clone();
    for quantities in [&mut inherited.limits, &mut inherited.requests] {
        quantities.retain(|name, _| matches!(name.as_str(), "cpu" | "memory"));
    }
    resources(&inherited)
}

/// Requests and limits; None if neither is given.
pub(super) fn resources(resources: &Resources) -> Option<ResourceRequirements> {
    let limits = quantities(&resources.limits);
    let requests = quantities(&resources.requests);
    (limits.is_some() || requests.is_some()).then_some(ResourceRequirements {
        limits,
        requests,
        claims: None,
    })
}

/// Quantities of the spec as Kubernetes' type. None if there are none.
pub(super) fn quantities(
    quantities: &std::collections::BTreeMap<String, flux_shared::quantity::Quantity>,
) -> Option<std::collections::BTreeMap<String, Quantity>> {
    let convert = |(name, quantity): (&String, &flux_shared::quantity::Quantity)| {
        (name.clone(), Quantity(quantity.0.clone()))
    };
    (!quantities.is_empty()).then(|| quantities.iter().map(convert).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_port_has_a_name_beside_the_users_ports() {
        let ports = |flux: &str| {
            let cluster =
                crate::testing::cluster(&format!("{flux}\ncontainers: [{{image: a, ports: [80]}}]"));
            let user = UserVolumes::of(&cluster.view, [&cluster.runner.container]);
            let ports = runner(&cluster, ViewFrom::Copy, &user, 0).unwrap().ports.unwrap();
            ports
                .into_iter()
                .map(|port| (port.name, port.container_port))
                .collect::<Vec<_>>()
        };
        assert_eq!(ports("flux: {}"), [(None, 80)]);
        assert_eq!(
            ports("flux: {metricsPort: 9402}"),
            [(None, 80), (Some("metrics".into()), 9402)]
        );
    }

    /// The kubelet replaces `$(NAME)` only by variables that come before.
    #[test]
    fn variables_of_secrets_come_before_the_environment() {
        let cluster = crate::testing::cluster(
            "containers: [{image: a, environment: {DSN: 'db://$(TOKEN)@db'}, secrets: {TOKEN: {name: s, key: k}}}]",
        );
        let names: Vec<String> = environment(&cluster.runner.container)
            .into_iter()
            .map(|variable| variable.name)
            .collect();
        assert_eq!(names, ["TOKEN", "DSN"]);
    }

    #[test]
    fn host_network_broker_owns_node_port_and_knows_its_address() {
        let of = |flux: &str, has_host_network: bool, ports: &str| {
            let text = format!(
                "podTemplate: {{spec: {{hostNetwork: {has_host_network}}}}}\nflux: {{{flux}}}\ncontainers: [{{image: a, ports: [{ports}]}}]"
            );
            let cluster = crate::testing::cluster(&text);
            let runner = runner(
                &cluster,
                ViewFrom::Copy,
                &UserVolumes::of(&cluster.view, [&cluster.runner.container]),
                0,
            )
            .unwrap();
            let ports: Vec<i32> = runner
                .ports
                .iter()
                .flatten()
                .map(|port| port.container_port)
                .collect();
            let paths = runner
                .env
                .into_iter()
                .flatten()
                .filter(|variable| variable.name == names::POD_ADDRESS.0);
            let paths = paths.map(|variable| variable.value_from.unwrap().field_ref.unwrap().field_path);
            (ports, paths.collect::<Vec<_>>())
        };
        let address = || vec!["status.podIP".to_owned()];
        assert_eq!(of("", true, "80"), (vec![80, 8050], address()));
        assert_eq!(of("", true, "8050"), (vec![8050], address()), "declared once");
        assert_eq!(
            of("metricsPort: 8050", true, ""),
            (vec![8050], address()),
            "declared once"
        );
        assert_eq!(of("", false, "80"), (vec![80], Vec::new()));
    }
}
