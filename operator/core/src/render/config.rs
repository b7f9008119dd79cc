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
    let mut spec = derive::agent_spec(&ValidMiniCluster {
        // `initial_size` is that of an existing Job, whose pods have read this size, or will.
        size: facts.initial_size.unwrap_or(cluster.size),
        max_size: facts.maximum_size.unwrap_or(cluster.max_size),
        ..cluster.clone()
    });
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

#[cfg(test)]
mod tests {
    use flux_shared::agent_spec::AgentSpec;

    use super::*;

    #[test]
    fn spec_of_an_existing_job_is_elastic_by_the_jobs_size() {
        let spec = |text: &str, initial_size: u32| {
            let facts = RenderFacts {
                initial_size: Some(initial_size),
                maximum_size: Some(4),
                ..RenderFacts::default()
            };
            let config_map = config_map(&crate::testing::cluster(text), &Options::default(), &facts).unwrap();
            let spec = AgentSpec::from_toml(&config_map.data.unwrap()[paths::SPEC_KEY]).unwrap();
            (spec.size, spec.max_size(), spec.elastic)
        };
        assert_eq!(spec("size: 2\nminSize: 2", 4), (4, 4, true));
        assert_eq!(spec("size: 4\nminSize: 2", 2), (2, 4, false));
    }
}
