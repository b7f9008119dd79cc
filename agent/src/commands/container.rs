//! `facts` and `dry-run --here`: what this container's entrypoint was started with and found.

use std::path::Path;

use flux_agent_plan::facts::Facts;
use flux_agent_plan::plan::{PodContainer, Waits};
use flux_shared::agent_spec::AgentSpec;
use flux_shared::secret_names::{LEFT_OUT, is_secret, without_userinfo};

use crate::facts::Process;
use crate::report::failure::Failure;
use crate::run;

/// How the entrypoint of this container was started.
#[derive(Debug)]
pub struct Entrypoint {
    pub container: PodContainer,
    pub options: run::RunOptions,
    pub process: Process,
}

/// Everything that a container's plan is made from.
#[derive(Debug)]
pub struct OwnContainer {
    pub spec: AgentSpec,
    pub facts: Facts,
    pub container: PodContainer,
    /// How long a follower waits, by the entrypoint's command line.
    pub waits: Waits,
    /// Whether process 1 is the entrypoint. If not, the options are the defaults, and the environment is this
    /// process's.
    pub is_known: bool,
}

/// Process 1 of this container, if that is a flux-agent and may be read.
pub fn process_one() -> Option<Process> {
    let process = Process::of(Path::new("/proc/1"))?;
    let name = process.words.first()?.rsplit('/').next()?;
    (name == "flux-agent").then_some(process)
}

impl OwnContainer {
    /// Reads spec and facts as the entrypoint `known` does. None: as a runner's entrypoint with default options.
    pub fn read(known: Option<Entrypoint>) -> Result<OwnContainer, Failure> {
        let is_known = known.is_some();
        let Entrypoint {
            container,
            options,
            process,
        } = known.unwrap_or_else(|| Entrypoint {
            container: PodContainer::Runner,
            options: run::RunOptions::default(),
            process: Process::own(),
        });
        let (spec, mut facts) = options.facts(process)?;
        // People pass this output on to others who help them, so it must not have values of secrets.
        for (name, value) in &mut facts.environment {
            *value = if is_secret(name) {
                LEFT_OUT.to_owned()
            } else {
                without_userinfo(value)
            };
        }
        Ok(OwnContainer {
            spec,
            facts,
            container,
            waits: options.waits(),
            is_known,
        })
    }
}

/// The facts as JSON, or as YAML with one name and value per line.
pub fn facts(facts: &Facts, json: bool) -> Result<String, Failure> {
    let failed =
        |error: serde_json::Error| Failure::internal(format!("failed to write the facts as JSON: {error}"));
    if json {
        return Ok(serde_json::to_string_pretty(facts).map_err(failed)? + "\n");
    }
    // Each value is written as JSON, which is YAML as well.
    let object = serde_json::to_value(facts).map_err(failed)?;
    let fields = object.as_object().into_iter().flatten();
    Ok(fields.map(|(name, value)| format!("{name}: {value}\n")).collect())
}
