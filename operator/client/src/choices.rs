//! What an administrator chooses for all MiniClusters, on the command line or by the environment.

use clap::{ArgAction, Args};
use flux_operator_core::otlp_endpoint::Endpoint;
use flux_operator_core::render::{self, HeadlessName, Options};
use flux_shared::agent_spec;
use flux_shared::validate::ViewSource;

/// What an administrator chooses for all MiniClusters.
#[derive(Debug, Args)]
pub struct Choices {
    /// Create a NetworkPolicy for each MiniCluster: only its own pods reach its brokers
    #[arg(long, env = "FLUX_MINICLUSTER_NETWORK_POLICY")]
    minicluster_network_policy: bool,
    /// Schedule all pods of a MiniCluster or none, if the cluster has a gang API; spec.gang overrides
    #[arg(long, env = "FLUX_GANG")]
    gang: bool,
    /// Refuse spec.volumes: create no PersistentVolumes and watch none
    #[arg(long, env = "FLUX_WITHOUT_VOLUMES")]
    without_volumes: bool,
    /// Refuse spec.services: create no pod for them
    #[arg(long, env = "FLUX_WITHOUT_SERVICES")]
    without_services: bool,
    /// Name of the headless Service of MiniClusters that name none: shared is the documented default,
    /// flux-service; minicluster is the MiniCluster's own name, as with the Go operator of 2025
    #[arg(long, env = "FLUX_HEADLESS_NAME", default_value = "shared", value_parser = str::parse::<HeadlessName>, value_name = "shared|minicluster")]
    headless_name: HeadlessName,
    /// Endpoint to which the operator sends the traces (OpenTelemetry) of MiniClusters: OTLP over plain HTTP, such
    /// as http://collector.observability:4318 [default: no traces]
    #[arg(long, env = "OTEL_EXPORTER_OTLP_ENDPOINT", value_name = "ADDRESS", value_parser = str::parse::<Endpoint>)]
    otlp_endpoint: Option<Endpoint>,
    /// Image of the agent
    #[arg(long, env = "FLUX_AGENT_IMAGE", default_value = render::DEFAULT_AGENT_IMAGE)]
    agent_image: String,
    /// Image with the Flux view, for MiniClusters that do not name one
    #[arg(long, env = "FLUX_VIEW_IMAGE", default_value = render::DEFAULT_VIEW_IMAGE)]
    view_image: String,
    /// Git URL of the Flux RESTful API; give a mirror if pods cannot reach the default
    #[arg(long, env = "FLUX_RESTFUL_REPOSITORY", default_value = agent_spec::RESTFUL_REPOSITORY, value_name = "ADDRESS")]
    restful_repository: String,
    /// How the view gets into the pods, unless spec.flux.container.source says: imageVolume mounts its image;
    /// copy copies it; auto mounts it if every schedulable node can (Kubernetes 1.35 with containerd 2.1 or
    /// CRI-O 1.33), else copies it. auto needs the permission to list nodes
    #[arg(long, env = "FLUX_VIEW_SOURCE", default_value = "auto", value_parser = str::parse::<ViewSource>)]
    view_source: ViewSource,
    /// Whether a failing snippet ends its pod in MiniClusters that do not set spec.logging.strict. The Go
    /// operator's default was false
    #[arg(long, env = "FLUX_STRICT_SNIPPETS", default_value = "true", action = ArgAction::Set, value_name = "true|false")]
    strict_snippets: bool,
}

impl From<Choices> for Options {
    fn from(choices: Choices) -> Options {
        Options {
            agent_image: choices.agent_image,
            view_image: choices.view_image,
            restful_repository: choices.restful_repository,
            view_source: choices.view_source,
            strict_snippets: choices.strict_snippets,
            network_policy: choices.minicluster_network_policy,
            gang: choices.gang,
            volumes: !choices.without_volumes,
            services: !choices.without_services,
            headless: choices.headless_name,
            traces: choices.otlp_endpoint,
        }
    }
}
