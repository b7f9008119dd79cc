//! A valid MiniCluster becomes Kubernetes objects. Pure: no client, no clock, no random source; same input,
//! same bytes.
//!
//! ```text
//! ValidMiniCluster + Options + RenderFacts ─► config, curve, secrets, storage, network, services, gang,
//!                                             services_pod, job (pod (containers, volumes, access, placement)) ─► Objects
//! ```
//!
//! The operator creates the [`Objects`] that are missing. It never changes those of a running cluster, except the
//! fields of the Job in [`elastic`], the gang's number of pods, and the owners and selector of the shared headless
//! Service.

use std::borrow::Cow;

use crate::labels;
use flux_shared::agent_spec::RESTFUL_REPOSITORY;
use flux_shared::crd::v1alpha2 as crd;
use flux_shared::curve::Certificate;
use flux_shared::overlay::Overlay;
use flux_shared::trace::TraceParent;
use flux_shared::validate::{Problem, ValidMiniCluster, ViewSource};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Service};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use crate::otlp_endpoint::Endpoint;
use overlaid::Overlaid;

mod access;
mod config;
mod containers;
pub mod curve;
pub mod elastic;
pub mod gang;
pub mod hidden_secret;
pub(crate) mod job;
mod network;
pub mod overlaid;
pub mod placement;
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

/// The view's image for clusters that name none: it has the oldest libc of the published ones, so it suits
/// most images.
pub const DEFAULT_VIEW_IMAGE: &str = "ghcr.io/converged-computing/flux-view-rocky:tag-9";
/// The agent's image of the same version as this operator, under the name that `make images` gives it. No registry has
/// it, so `flux-operator run` requires the option `--agent-image`.
pub const DEFAULT_AGENT_IMAGE: &str = concat!("flux-agent:", env!("CARGO_PKG_VERSION"));

/// The administrator's choices for all MiniClusters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    pub agent_image: String,
    pub view_image: String,
    /// Address of the Flux RESTful API's repository.
    pub restful_repository: String,
    /// How the view gets into the pods of MiniClusters whose spec does not choose it.
    pub view_source: ViewSource,
    /// Default of `logging.strict`.
    pub strict_snippets: bool,
    /// Each MiniCluster without bursting gets a NetworkPolicy.
    pub network_policy: bool,
    /// `spec.gang` may be used: pods that are scheduled all or none.
    pub gang: bool,
    /// `spec.volumes` may be used.
    pub volumes: bool,
    /// `spec.services` may be used.
    pub services: bool,
    /// Name of the headless Service of MiniClusters that keep the default name.
    pub headless: HeadlessName,
    /// Where the operator sends traces.
    pub traces: Option<Endpoint>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            agent_image: DEFAULT_AGENT_IMAGE.into(),
            view_image: DEFAULT_VIEW_IMAGE.into(),
            restful_repository: RESTFUL_REPOSITORY.into(),
            view_source: ViewSource::Auto,
            strict_snippets: true,
            network_policy: false,
            gang: false,
            volumes: true,
            services: true,
            headless: HeadlessName::Shared,
            traces: None,
        }
    }
}

impl Options {
    /// Applies the installation's choices to a MiniCluster. The error lists the fields that this installation
    /// does not accept, each with the chart values that decide this. `spec.gang` is checked by `gang::build` instead,
    /// since it also depends on the cluster's APIs.
    pub fn admit(&self, mut cluster: ValidMiniCluster) -> Result<ValidMiniCluster, Vec<Problem>> {
        let unserved = |field: &str, what: &str, cause: &str, remedy: &str| {
            Problem::new(
                field,
                format!("this installation creates no {what} (its value {cause}): {remedy}"),
            )
        };
        let mut problems = Vec::new();
        if !self.volumes && !cluster.volumes.is_empty() {
            let remedy = "mount a claim by containers[].volumes and claimName, or ask an administrator";
            problems.push(unserved(
                "spec.volumes",
                "PersistentVolumes",
                "volumes.enabled is false, or namespaced is true",
                remedy,
            ));
        }
        if !self.services && !cluster.services.is_empty() {
            let remedy = "run them in a Deployment of your own, or ask an administrator";
            problems.push(unserved(
                "spec.services",
                "pod for services",
                "services.enabled is false",
                remedy,
            ));
        }
        // A Service's name begins with a letter.
        let can_name_service = cluster.name.starts_with(|first: char| first.is_ascii_lowercase());
        if self.headless == HeadlessName::Own
            && cluster.headless_name == crd::headless_name()
            && can_name_service
        {
            cluster.headless_name = cluster.name.clone();
            let mut sidecars = cluster.sidecars.iter().map(|sidecar| &sidecar.container);
            if sidecars.any(|sidecar| sidecar.name == cluster.name && !sidecar.ports.is_empty()) {
                let message = "must not be the MiniCluster's name: the headless Service has it in this installation (its value headlessService.name)";
                problems.push(Problem::new("spec.containers[].name", message));
            }
        }
        if problems.is_empty() {
            Ok(cluster)
        } else {
            Err(problems)
        }
    }
}

/// The name of the headless Service of MiniClusters that do not set it, or set the documented default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HeadlessName {
    /// The documented default, which all MiniClusters of a namespace share.
    #[default]
    Shared,
    /// The MiniCluster's own.
    Own,
}

impl std::str::FromStr for HeadlessName {
    type Err = String;

    fn from_str(text: &str) -> Result<HeadlessName, String> {
        match text {
            "shared" => Ok(HeadlessName::Shared),
            "minicluster" => Ok(HeadlessName::Own),
            _ => Err("must be shared or minicluster".to_owned()),
        }
    }
}

impl std::fmt::Display for HeadlessName {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            HeadlessName::Shared => "shared",
            HeadlessName::Own => "minicluster",
        })
    }
}

/// Facts about the MiniCluster and the cluster, besides the spec.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RenderFacts {
    /// The MiniCluster's uid, for owner references. None: rendered for output to a person, or for `validate --server`.
    pub uid: Option<String>,
    /// The size when the Job was created, or when its size was last changed before a start. The AgentSpec keeps it while
    /// pods run. None: the spec's.
    pub initial_size: Option<u32>,
    /// The largest size, fixed when the MiniCluster's first Job was created. None: the spec's.
    pub maximum_size: Option<u32>,
    /// Every node that the pods may use can mount images.
    pub nodes_mount_images: bool,
    /// A pod of this cluster could not mount the view's image.
    pub image_volume_failed: bool,
    /// How many of the restarts that `backoffLimit` allows have been used.
    pub backoff_limit_used: u32,
    /// What is left of `deadlineSeconds` after earlier starts. None: all.
    pub deadline_left: Option<i64>,
    /// Hash of the fields of the spec that cannot change once there is a Job
    /// ([`Target::spec_hash`](crate::target::Target::spec_hash)).
    pub spec_hash: Option<String>,
    /// How often the MiniCluster has restarted.
    pub attempt: u32,
    /// Whether the last Job was suspended: somebody may have suspended or resumed it, which the next Job follows. None:
    /// the spec decides, since there was no Job, a queue had it, or the spec has changed since.
    pub is_suspended: Option<bool>,
    /// Which APIs for gangs the cluster serves.
    pub gangs: gang::Served,
}

/// Every object of a MiniCluster.
#[derive(Debug, Clone, PartialEq)]
pub struct Objects {
    pub config_map: ConfigMap,
    /// The curve certificate, unless the user has a Secret with one; passwords, keys and tokens.
    pub secrets: Vec<hidden_secret::HiddenSecret>,
    /// PersistentVolumes and claims for `spec.volumes`.
    pub volumes: Vec<storage::RenderedVolume>,
    /// Restricts who reaches the MiniCluster's brokers.
    pub network_policy: Option<NetworkPolicy>,
    /// The Service that gives the pods their names; may be shared with other MiniClusters.
    pub headless: Service,
    /// A Service for each sidecar with ports.
    pub services: Vec<Service>,
    /// The object that makes a gang of the Job's pods, if any.
    pub gang: gang::GangOf,
    pub job: Overlaid<Job>,
    pub services_pod: Option<Overlaid<Pod>>,
}

impl Objects {
    /// Whether objects that are created before the Job, and stay as they are from then on, follow from the spec. (The
    /// curve certificate is random, unless the spec has one. Outdated volumes and Services are renewed, but a Service
    /// stays if its sidecar gets another name.)
    pub fn has_fixed_objects_of_the_spec(&self, cluster: &ValidMiniCluster) -> bool {
        !cluster.users.is_empty()
            || cluster.restful.is_some()
            || cluster.flux.curve_cert.is_some()
            || self.network_policy.is_some()
            || !self.services.is_empty()
    }
}

/// Why a valid MiniCluster could not be rendered: a bug of ours, or a field that validation let through.
#[derive(Debug, thiserror::Error)]
pub enum RenderError {
    #[error("failed to write the agent's spec")]
    Spec(#[from] toml::ser::Error),
    #[error("failed to read {field}")]
    Field {
        field: String,
        source: serde_json::Error,
    },
    #[error("failed to lay spec.podTemplate over the pods")]
    Overlay(#[source] serde_json::Error),
}

/// Random material for a MiniCluster's Secrets: a certificate, and words for passwords and keys. A Secret that the
/// user gives needs none of it.
#[derive(Clone)]
pub struct Generated {
    certificate: Certificate,
    words: Vec<String>,
}

impl Generated {
    pub fn new(certificate: Certificate, words: Vec<String>) -> Generated {
        Generated { certificate, words }
    }

    /// The words, then placeholders without end: output for a person has no random words.
    fn words(&self) -> impl Iterator<Item = String> {
        self.words
            .iter()
            .cloned()
            .chain(std::iter::repeat("(random)".to_owned()))
    }
}

/// Shows none of the secrets.
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

/// All objects of `cluster`. The random material goes into Secrets where the user gives none.
pub fn objects(
    cluster: &ValidMiniCluster,
    options: &Options,
    facts: &RenderFacts,
    generated: impl Into<Generated>,
) -> Result<Objects, RenderError> {
    let generated = generated.into();
    let cluster = &within_maximum(cluster, facts.maximum_size);
    let gang = gang::build(cluster, options.gang, facts);
    Ok(Objects {
        config_map: config::config_map(cluster, options, facts)?,
        secrets: curve::secret(cluster, facts, &generated.certificate)
            .into_iter()
            .chain(secrets::build(cluster, facts, &generated))
            .collect(),
        volumes: storage::volumes(cluster, facts),
        network_policy: options
            .network_policy
            .then(|| network::policy(cluster, facts))
            .flatten(),
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

/// The cluster with at most `maximum` pods. The spec may have a larger size: the API server rejects it only once the
/// status has the maximum.
fn within_maximum(cluster: &ValidMiniCluster, maximum: Option<u32>) -> Cow<'_, ValidMiniCluster> {
    let Some(maximum) = maximum.filter(|maximum| *maximum < cluster.size) else {
        return Cow::Borrowed(cluster);
    };
    Cow::Owned(ValidMiniCluster {
        size: maximum,
        min_size: cluster.min_size.map(|min| min.min(maximum)),
        ..cluster.clone()
    })
}

fn job_of(
    cluster: &ValidMiniCluster,
    options: &Options,
    facts: &RenderFacts,
    gang: &gang::GangOf,
) -> Result<Overlaid<Job>, RenderError> {
    let rendered = job::build(cluster, options, facts)?;
    let job = Overlaid::new(
        rendered,
        cluster.pod_template.as_ref(),
        "spec.podTemplate",
        "spec.template",
    );
    let job = job.map_err(RenderError::Overlay)?;
    match gang {
        gang::GangOf::Object(object) => gang::with_reference(job, &object.at),
        gang::GangOf::None | gang::GangOf::Unserved(_) => Ok(job),
    }
}

fn services_pod_of(
    cluster: &ValidMiniCluster,
    facts: &RenderFacts,
) -> Result<Option<Overlaid<Pod>>, RenderError> {
    let Some(rendered) = services_pod::build(cluster, facts)? else {
        return Ok(None);
    };
    let overlay = cluster.services_pod_template.as_ref();
    // With an empty path, the overlay applies to the whole object: the pod.
    let overlaid = Overlaid::new(rendered, overlay, "spec.servicesPodTemplate", "");
    overlaid.map(Some).map_err(RenderError::Overlay)
}

/// Hash of the pod templates of the spec; None without any.
pub fn overlay_hash(cluster: &ValidMiniCluster) -> Option<String> {
    let overlays = [&cluster.pod_template, &cluster.services_pod_template]
        .map(|overlay| overlay.as_ref().map(Overlay::value));
    overlays.iter().any(Option::is_some).then(|| hash(&overlays))
}

/// Metadata of an object that belongs to `cluster` alone.
fn metadata(name: String, cluster: &ValidMiniCluster, facts: &RenderFacts) -> ObjectMeta {
    ObjectMeta {
        name: Some(name),
        namespace: Some(cluster.namespace.clone()),
        labels: Some(labels::of_object(&cluster.name)),
        owner_references: facts.uid.as_deref().map(|uid| vec![owner(&cluster.name, uid)]),
        ..ObjectMeta::default()
    }
}

/// The MiniCluster's span, if the operator sends traces.
fn trace_parent(options: &Options, facts: &RenderFacts) -> Option<TraceParent> {
    options.traces.as_ref()?;
    TraceParent::of_uid(facts.uid.as_deref()?)
}

/// The MiniCluster as controlling owner of an object, which is deleted with it.
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

/// The list; None if it is empty, since an empty list would differ from a missing one when objects are compared.
fn none_if_empty<T>(list: Vec<T>) -> Option<Vec<T>> {
    (!list.is_empty()).then_some(list)
}

/// Parses the JSON of `field`, which the user gave, as a Kubernetes type.
fn typed<T: serde::de::DeserializeOwned>(
    field: &str,
    value: Option<&serde_json::Value>,
) -> Result<Option<T>, RenderError> {
    value
        .map(|value| serde_json::from_value(value.clone()))
        .transpose()
        .map_err(|source| RenderError::Field {
            field: field.to_owned(),
            source,
        })
}

/// FNV-1a hash of the JSON of `content`, as 16 hex digits: to notice that two renderings differ, not for security.
pub fn hash(content: &impl serde::Serialize) -> String {
    let bytes = serde_json::to_vec(content).unwrap_or_default();
    let hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use flux_shared::agent_spec::AgentSpec;
    use flux_shared::paths;

    use super::*;

    #[test]
    fn size_beyond_the_maximum_is_not_rendered() {
        let facts = RenderFacts {
            maximum_size: Some(2),
            ..RenderFacts::default()
        };
        let cluster = crate::testing::cluster("size: 3\nminSize: 3");
        let key = Certificate::from_keys("mc-0", &[1; 32], &[2; 32]);
        let objects = objects(&cluster, &Options::default(), &facts, key).unwrap();
        let spec = AgentSpec::from_toml(&objects.config_map.data.unwrap()[paths::SPEC_KEY]).unwrap();
        assert_eq!((spec.size, spec.max_size(), spec.quorum), (2, 2, Some(2)));
        let job = objects.job.rendered;
        assert_eq!(job.spec.unwrap().completions, Some(2));
        let annotations = job.metadata.annotations.unwrap();
        assert_eq!(
            (
                &*annotations[labels::INITIAL_SIZE],
                &*annotations[labels::MAXIMUM_SIZE]
            ),
            ("2", "2")
        );
    }
}
