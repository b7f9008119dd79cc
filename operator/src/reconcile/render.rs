//! A valid MiniCluster becomes Kubernetes objects. Pure: no client, no clock, no random source; same input, same bytes.
//!
//! ```text
//! ValidMiniCluster + Options + Facts ─► config, curve, secrets, storage, network, services, gang, job (pod (containers, volumes, access, placement)),
//!                                       services_pod ─► Objects
//! ```
//!
//! The operator creates what is missing of [`Objects`] and never changes a running cluster's objects, but for what
//! [`elastic`] names and the members of the shared Service.

use crate::labels;
use flux_shared::agent_spec::RESTFUL_REPOSITORY;
use flux_shared::curve::Certificate;
use flux_shared::overlay::Overlay;
use flux_shared::trace::Endpoint;
use flux_shared::validate::{ValidMiniCluster, ViewSource};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use overlaid::Overlaid;

mod access;
mod config;
mod containers;
pub mod curve;
pub mod elastic;
pub mod gang;
pub mod hidden_secret;
mod job;
mod network;
pub mod overlaid;
mod placement;
mod pod;
mod queueing;
pub mod refusal;
pub mod requirements;
mod secrets;
pub mod services;
mod services_pod;
pub mod spec_hash;
pub mod storage;
pub mod view;
mod volumes;

pub use volumes::IMAGE as VIEW_IMAGE_VOLUME;

/// The view of clusters that name none: the oldest libc of the published ones, so it suits most images.
pub const DEFAULT_VIEW_IMAGE: &str = "ghcr.io/converged-computing/flux-view-rocky:tag-9";
/// The agent that belongs to this operator.
pub const DEFAULT_AGENT_IMAGE: &str = concat!("ghcr.io/flux-framework/flux-agent:", env!("CARGO_PKG_VERSION"));

/// What the administrator chose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub agent_image: String,
    pub view_image: String,
    /// Address of the Flux RESTful API's repository.
    pub restful_repository: String,
    /// For MiniClusters that say nothing of it.
    pub view_source: ViewSource,
    /// Each MiniCluster gets a NetworkPolicy.
    pub network_policy: bool,
    /// Pods may be gangs.
    pub gang: bool,
    /// Where traces are sent.
    pub traces: Option<Endpoint>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            agent_image: DEFAULT_AGENT_IMAGE.into(),
            view_image: DEFAULT_VIEW_IMAGE.into(),
            restful_repository: RESTFUL_REPOSITORY.into(),
            view_source: ViewSource::Auto,
            network_policy: false,
            gang: false,
            traces: None,
        }
    }
}

/// What is known of the object in the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// The MiniCluster's uid, for owner references. None: rendered for a person.
    pub uid: Option<String>,
    /// The size when the Job was made, which later pods must agree on. None: the spec's.
    pub initial_size: Option<u32>,
    /// The largest size, frozen when the cluster was made. None: the spec's.
    pub maximum_size: Option<u32>,
    /// Every node can mount images.
    pub nodes_mount_images: bool,
    /// A pod of this cluster could not mount the view's image.
    pub image_volume_failed: bool,
    /// How many of the starts that `backoffLimit` allows have been used.
    pub backoff_limit_used: u32,
    /// What is left of `deadlineSeconds` after earlier starts. None: all.
    pub deadline_left: Option<i64>,
    /// Of what cannot change of the spec, once there is a Job (`reconcile::target::Target::spec_hash`).
    pub spec_hash: Option<String>,
    /// How often the whole has started before.
    pub attempt: u32,
    /// Which APIs for gangs the cluster serves.
    pub gangs: gang::Served,
}

/// Every object of a MiniCluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Objects {
    pub config_map: ConfigMap,
    /// The curve certificate, unless the user has a Secret with one; passwords, keys and tokens.
    pub secrets: Vec<hidden_secret::HiddenSecret>,
    /// Volumes that are made for it, with their claims.
    pub volumes: Vec<storage::MadeVolume>,
    /// Who reaches its brokers.
    pub network_policy: Option<NetworkPolicy>,
    /// The Service that gives the pods their names; may be shared with other MiniClusters.
    pub headless: Service,
    /// One for each sidecar with ports.
    pub services: Vec<Service>,
    /// What makes a gang of the Job's pods.
    pub gang: gang::GangOf,
    pub job: Overlaid<Job>,
    pub services_pod: Option<Overlaid<Pod>>,
}

/// Why a valid MiniCluster could not be rendered: a defect of ours, or a field that validation let through.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    #[error("failed to write the agent's spec")]
    Spec(#[from] toml::ser::Error),
    #[error("failed to read {field}")]
    Field { field: String, source: serde_json::Error },
    #[error("failed to lay spec.podTemplate over the pods")]
    Overlay(#[source] serde_json::Error),
}

/// What was made at random for a cluster, if it is needed: a certificate, and words for passwords and keys.
#[derive(Clone)]
pub struct Generated {
    certificate: Certificate,
    words: Vec<String>,
}

impl Generated {
    pub fn new(certificate: Certificate, words: Vec<String>) -> Generated {
        Generated { certificate, words }
    }

    /// Words for a cluster, as far as they reach; then a placeholder, which a person gets who looks at the objects.
    fn words(&self) -> impl Iterator<Item = String> {
        self.words.iter().cloned().chain(std::iter::repeat("(random)".to_owned()))
    }
}

/// Without the words.
impl std::fmt::Debug for Generated {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Generated")
    }
}

impl From<Certificate> for Generated {
    fn from(certificate: Certificate) -> Generated {
        Generated::new(certificate, Vec::new())
    }
}

/// All objects of `cluster`. What `generated` has goes into the Secrets, unless the user gave it.
pub fn objects(
    cluster: &ValidMiniCluster,
    options: &Options,
    facts: &Facts,
    generated: impl Into<Generated>,
) -> Result<Objects, RenderError> {
    let generated = generated.into();
    let gang = gang::gang(cluster, options.gang, facts);
    Ok(Objects {
        config_map: config::config_map(cluster, options, facts)?,
        secrets: curve::secret(cluster, facts, &generated.certificate)
            .into_iter()
            .chain(secrets::secrets(cluster, facts, &generated))
            .collect(),
        volumes: storage::volumes(cluster, facts),
        network_policy: options.network_policy.then(|| network::policy(cluster, facts)).flatten(),
        headless: services::headless(
            &cluster.namespace,
            &cluster.headless_name,
            &services::members_of_one(cluster, facts),
        ),
        services: services::of_sidecars(cluster, facts),
        job: job_of(cluster, options, facts, &gang)?,
        gang,
        services_pod: services_pod_of(cluster, facts)?,
    })
}

fn job_of(
    cluster: &ValidMiniCluster,
    options: &Options,
    facts: &Facts,
    gang: &gang::GangOf,
) -> Result<Overlaid<Job>, RenderError> {
    let rendered = job::job(cluster, options, facts)?;
    let place = ("/spec/template", "spec.template");
    let job = Overlaid::new(rendered, cluster.pod_template.as_ref(), "spec.podTemplate", place);
    let job = job.map_err(RenderError::Overlay)?;
    match gang {
        gang::GangOf::Object(object) => gang::tie(job, &object.at),
        gang::GangOf::None | gang::GangOf::Unserved(_) => Ok(job),
    }
}

fn services_pod_of(cluster: &ValidMiniCluster, facts: &Facts) -> Result<Option<Overlaid<Pod>>, RenderError> {
    let Some(rendered) = services_pod::pod(cluster, facts)? else { return Ok(None) };
    let overlay = cluster.services_pod_template.as_ref();
    let laid = Overlaid::new(rendered, overlay, "spec.servicesPodTemplate", ("", ""));
    laid.map(Some).map_err(RenderError::Overlay)
}

/// What lies over the pods, in short. None: nothing does.
pub fn overlay_hash(cluster: &ValidMiniCluster) -> Option<String> {
    let overlays = [&cluster.pod_template, &cluster.services_pod_template].map(|it| it.as_ref().map(Overlay::value));
    overlays.iter().any(Option::is_some).then(|| hash(&overlays))
}

/// Metadata of an object that belongs to `cluster` alone.
fn metadata(name: String, cluster: &ValidMiniCluster, facts: &Facts) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(cluster.namespace.clone()),
        labels: Some(labels::of_object(&cluster.name)),
        owner_references: facts.uid.as_deref().map(|uid| vec![owner(&cluster.name, uid)]),
        ..ObjectMeta::default()
    }
}

/// The MiniCluster as the one controller of an object: it goes when the MiniCluster does.
fn owner(name: &str, uid: &str) -> OwnerReference {
    OwnerReference {
        api_version: labels::API_VERSION.into(),
        kind: flux_shared::crd::v1alpha2::KIND.into(),
        name: name.into(),
        uid: uid.into(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// Unset where there is nothing: an empty list in an object is a difference to whoever compares it.
fn some<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// A Kubernetes type from the JSON in which the user gave it.
fn typed<T: serde::de::DeserializeOwned>(
    field: &str,
    value: Option<&serde_json::Value>,
) -> Result<Option<T>, RenderError> {
    value
        .map(|value| serde_json::from_value(value.clone()))
        .transpose()
        .map_err(|source| RenderError::Field { field: field.to_owned(), source })
}

/// FNV-1a over the JSON of `content`: says whether two renderings differ; not for security.
pub fn hash(content: &impl serde::Serialize) -> String {
    let bytes = serde_json::to_vec(content).unwrap_or_default();
    let hash = bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{hash:016x}")
}
