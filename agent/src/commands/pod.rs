//! The pod that a command for people runs in: its spec, its facts, and the instance that follows from them.

use std::path::PathBuf;

use flux_agent_plan::facts::Facts;
use flux_agent_plan::plan::Instance;
use flux_shared::agent_spec::AgentSpec;

use crate::execute::session::Session;
use crate::facts::Process;
use crate::report::failure::{Failure, refused};
use crate::run;
use crate::system::below;

/// Where the pod's spec and files are.
#[derive(Debug, clap::Args)]
pub struct PodPlace {
    /// The AgentSpec, which the operator mounts [default: as the entrypoint]
    #[arg(long, value_name = "FILE")]
    spec: Option<PathBuf>,
    /// Look for files below this folder
    #[arg(long, value_name = "DIR", default_value = "/", hide = true)]
    root: PathBuf,
    /// The options of the container's entrypoint.
    #[arg(skip)]
    entrypoint: run::RunOptions,
}

impl PodPlace {
    /// The same place, with these options of the container's entrypoint. They tell which spec a command
    /// reads, and some facts.
    pub fn with_entrypoint_options(self, entrypoint: run::RunOptions) -> PodPlace {
        PodPlace { entrypoint, ..self }
    }

    /// The options of the entrypoint, with the root of this place and its spec, if it names one.
    fn options(&self) -> run::RunOptions {
        let mut options = self.entrypoint.clone();
        options.spec = self.spec.clone().or(options.spec);
        options.root.clone_from(&self.root);
        options
    }
}

/// What all commands for people need to know about their pod.
pub struct Pod {
    pub spec: AgentSpec,
    pub facts: Facts,
    pub instance: Instance,
    pub root: PathBuf,
    pub termination_log: PathBuf,
}

impl Pod {
    /// The lead's pod of this spec in a test, with its files in `root`, where this makes the folder `etc`.
    #[cfg(test)]
    pub fn of_lead(spec: &str, root: &std::path::Path) -> Pod {
        let spec = AgentSpec::from_toml(spec).unwrap();
        let facts = Facts {
            index: Some(0),
            ..Facts::default()
        };
        std::fs::create_dir(root.join("etc")).unwrap();
        Pod {
            instance: Instance::of(&spec, &facts).unwrap(),
            spec,
            facts,
            root: root.to_owned(),
            termination_log: PathBuf::new(),
        }
    }

    pub fn read(place: &PodPlace) -> Result<Pod, Failure> {
        let options = place.options();
        let (spec, facts) = options.facts(Process::own())?;
        let instance = Instance::of(&spec, &facts).map_err(|error| refused(&error))?;
        Ok(Pod {
            spec,
            facts,
            instance,
            root: options.root,
            termination_log: options.termination_log,
        })
    }

    /// The note on the end of the lead's program (`execute::program_note`).
    pub fn program_note(&self) -> PathBuf {
        below(&self.root, &self.spec.paths().program_result())
    }

    /// The state that a program of Flux starts with: environment, folder, umask.
    pub fn session(&self) -> Session {
        let mut session = Session::of_process();
        self.instance
            .environment
            .iter()
            .for_each(|change| session.apply(change));
        session.of_flux(self.instance.run_as.as_ref())
    }
}
