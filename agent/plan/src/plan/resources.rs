//! R, the resource set of the instance (RFC 20, version 1), in which every host has the same cores and GPUs. The agent
//! writes it if the brokers do not discover their resources (`discovery`).
//!
//! Only the R on the lead counts: the other brokers fetch it from the lead. The hosts in R must be those of the
//! instance, each once.

use serde::Serialize;

use super::broker::SnippetRConfig;
use super::error::SerializationError;
use super::hosts::encode;
use super::{Content, Mode, PlanError, Resolved, SnippetResources, Step, broker, discovery};

/// R as JSON.
#[derive(Serialize)]
struct ResourceSet {
    version: u32,
    execution: Execution,
}

#[derive(Serialize)]
struct Execution {
    #[serde(rename = "R_lite")]
    r_lite: [Ranks; 1],
    starttime: f64,
    expiration: f64,
    nodelist: [String; 1],
}

/// Ranks with the same resources.
#[derive(Serialize)]
struct Ranks {
    /// The ranks, as an idset.
    rank: String,
    children: Children,
}

/// The resources of each rank, as idsets.
#[derive(Serialize)]
struct Children {
    core: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu: Option<String>,
}

/// The step that writes R.
pub fn step(resolved: &Resolved) -> Result<Step, PlanError> {
    let step = Step::File {
        path: resolved.paths.resources(),
        mode: Mode(0o644),
        owner: resolved.agent_owner(),
        content: Content::Text(text(resolved)?),
    };
    Ok(step)
}

/// The step that makes Flux use an R that a snippet has written. None if no snippet can have written one, or if the
/// user's own broker.toml names another R.
pub fn snippet_step(resolved: &Resolved) -> Result<Option<Step>, PlanError> {
    if !resolved.may_write_resources() {
        return Ok(None);
    }
    let is_discovered = discovery::is_discovered(resolved);
    let config = match broker::snippet_r_config(resolved)? {
        SnippetRConfig::NamesAnotherR => return Ok(None),
        SnippetRConfig::BrokerToml => None,
        SnippetRConfig::FileBeside { path, text } => Some((path, text)),
    };
    let step = SnippetResources {
        path: resolved.paths.resources(),
        hosts: encode(&resolved.hosts.names),
        agents_r: if is_discovered {
            None
        } else {
            Some(text(resolved)?)
        },
        config,
        owner: resolved.agent_owner(),
        // `logging.strict` is not about logs: it says whether failures of snippets end the container. An R that
        // cannot be used counts as such a failure.
        strict: resolved.spec.logging.is_strict(),
    };
    Ok(Some(Step::SnippetResources(step)))
}

/// The text of the agent's R.
fn text(resolved: &Resolved) -> Result<String, PlanError> {
    let cores = resolved.cores();
    let gpus = resolved.facts.gpus;
    let resources = ResourceSet {
        version: 1,
        execution: Execution {
            r_lite: [Ranks {
                rank: ids(resolved.hosts.size()),
                children: Children {
                    core: ids(cores),
                    gpu: (gpus > 0).then(|| ids(gpus)),
                },
            }],
            // Both 0: the resources are available for any time.
            starttime: 0.0,
            expiration: 0.0,
            nodelist: [encode(&resolved.hosts.names)],
        },
    };
    let text = serde_json::to_string(&resources);
    let text = text.map_err(|error| PlanError::Render {
        file: "R",
        source: SerializationError(error.to_string()),
    })?;
    Ok(text + "\n")
}

/// An idset of `count` ids from 0 on. (No caller passes 0, which counts as 1.)
pub fn ids(count: u32) -> String {
    match count {
        0 | 1 => "0".into(),
        _ => format!("0-{}", count - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Facts;
    use flux_shared::agent_spec::AgentSpec;

    fn r_of(spec: &str, facts: &Facts) -> serde_json::Value {
        let spec = AgentSpec::from_toml(spec).unwrap();
        let planned = step(&Resolved::new(&spec, facts).unwrap()).unwrap();
        let Step::File {
            content: Content::Text(text),
            ..
        } = planned
        else {
            unreachable!()
        };
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn every_host_has_the_cores_that_the_container_may_use() {
        let facts = Facts {
            cores: 8,
            cpu_quota: Some(3.5),
            gpus: 2,
            ..Facts::default()
        };
        let r = r_of("name='mc'\nsize=4", &facts);
        let want = serde_json::json!({"version": 1, "execution": {
            "R_lite": [{"rank": "0-3", "children": {"core": "0-2", "gpu": "0-1"}}],
            "starttime": 0.0, "expiration": 0.0, "nodelist": ["mc-[0-3]"]}});
        assert_eq!(r, want);
    }

    #[test]
    fn agents_r_counts_only_where_broker_toml_names_it() {
        let snippet = "name = 'mc'\n[runner.snippets]\ninit = 'true'\n[runner]\ncores = 2\n";
        let falls_back = |more: &str| {
            let spec = AgentSpec::from_toml(&format!("{snippet}{more}")).unwrap();
            let facts = Facts::default();
            match snippet_step(&Resolved::new(&spec, &facts).unwrap()).unwrap() {
                Some(Step::SnippetResources(step)) => step.falls_back_to_agents_r(),
                other => panic!("{other:?}"),
            }
        };
        assert!(falls_back(""));
        assert!(!falls_back("[flux]\nbroker_config = ''\n"));
    }

    #[test]
    fn r_has_declared_cores_and_each_repeated_host_once() {
        let r = r_of(
            "name='mc'\nsize=4\n[runner]\ncores=1\n[network]\nhostlist='mc-[0-3],mc-[1-2],gpu'",
            &Facts::default(),
        );
        assert_eq!(r["execution"]["nodelist"][0], "mc-[0-3],gpu");
        assert_eq!(r["execution"]["R_lite"][0]["rank"], "0-4");
        assert_eq!(
            r["execution"]["R_lite"][0]["children"],
            serde_json::json!({"core": "0"})
        );
    }
}
