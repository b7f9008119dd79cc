//! The ConfigMap with the AgentSpec, by which the operator configures the pods.

use flux_shared::agent_spec::Trace;
use flux_shared::validate::ValidMiniCluster;
use flux_shared::{derive, names, paths};
use k8s_openapi::api::core::v1::ConfigMap;

use super::{Options, RenderError, RenderFacts, hash, metadata};
use crate::labels;

/// The ConfigMap. The installation's options fill in what the MiniCluster leaves out.
pub(super) fn config_map(
    cluster: &ValidMiniCluster,
    options: &Options,
    facts: &RenderFacts,
) -> Result<ConfigMap, RenderError> {
    let mut spec = derive::agent_spec(cluster);
    // Given if the Job exists: its pods have read this size, or will.
    if let Some(size) = facts.initial_size {
        spec.size = size;
    }
    if let Some(maximum) = facts.maximum_size {
        // Unset means the size.
        spec.max_size = (maximum != spec.size).then_some(maximum);
    }
    // The default `true` is not written: an explicit `true` also makes the snippet `post` strict.
    if spec.logging.strict.is_none() && !options.strict_snippets {
        spec.logging.strict = Some(false);
    }
    if let Some(restful) = &mut spec.runner.restful {
        restful.repository.clone_from(&options.restful_repository);
    }
    spec.trace = super::trace_parent(options, facts).map(|parent| Trace { parent });
    let data = [(paths::SPEC_KEY.to_owned(), spec.to_toml()?)].into();
    let mut metadata = metadata(names::config_map(&cluster.name), cluster, facts);
    metadata.annotations = Some([(labels::RENDERED_HASH.to_owned(), hash(&data))].into());
    Ok(ConfigMap {
        metadata,
        data: Some(data),
        ..ConfigMap::default()
    })
}
