//! [`AgentSpec`]: the configuration of a MiniCluster's pods, as TOML in a ConfigMap. The operator writes it, the
//! agent reads it.
//!
//! An unknown field is an error. Of the top-level fields, only `name` is needed, so people can write a spec by hand for
//! a plain Indexed Job. `docs/AGENTSPEC.md` is generated from the doc comments of these types. The curve
//! certificate is not in the spec: it is in a Secret of its own.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::toml_error::one_line;

mod instance;
mod programs;
#[cfg(all(test, feature = "crd"))]
mod reference;

pub use instance::{
    BrokerNetwork, FluxSettings, LogFormat, LogSettings, RemoteLead, SchedulerKind, Trace, View,
};
pub use programs::{
    BatchLine, Program, RESTFUL_BRANCH, RESTFUL_COMMIT, RESTFUL_PORT, RESTFUL_REPOSITORY, Restful, Runner,
    RunnerUser, Sidecar, Snippets,
};

/// Version of this format. Raise it when an older agent would misread a newer spec.
pub const VERSION: u32 = 1;

// The defaults of fields, and a condition for leaving a field out, which serde's attributes name.

fn version() -> u32 {
    VERSION
}
fn one() -> u32 {
    1
}
fn yes() -> bool {
    true
}
fn is_false(value: &bool) -> bool {
    !*value
}
fn mount_path() -> String {
    crate::paths::DEFAULT_MOUNT_PATH.into()
}
fn namespace() -> String {
    "default".into()
}

/// The spec of one MiniCluster's pods.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    /// Version of this format: 1.
    #[serde(default = "version")]
    pub version: u32,
    /// Name of the cluster; its pods' host names are `<name>-<index>`. Needed, unless `flux-agent run` takes
    /// it from the environment (`--name-from-env`, `--lead-from-env`).
    #[serde(default)]
    pub name: String,
    /// Namespace of the pods, part of their DNS names.
    #[serde(default = "namespace")]
    pub namespace: String,
    /// Number of pods at the start of the job, used in its flags.
    #[serde(default = "one")]
    pub size: u32,
    /// Largest number of pods that size can be raised to. Default: size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_size: Option<u32>,
    /// Brokers online before the job starts. Default: size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quorum: Option<u32>,
    /// Total number of tasks of the job; 0: only the number of nodes is given.
    #[serde(default = "one")]
    pub tasks: u32,
    /// The job asks for at least `quorum` nodes instead of all `size` (the operator sets it with minSize).
    #[serde(default, skip_serializing_if = "is_false")]
    pub elastic: bool,
    /// Whether the kubelet restarts a failed container: the same as the pod's `restartPolicy`.
    #[serde(default, skip_serializing_if = "RestartPolicy::is_never")]
    pub restart_policy: RestartPolicy,
    /// Where Flux's files are, in every container.
    #[serde(default = "mount_path")]
    pub mount_path: String,
    /// State to restore and save, an absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<String>,
    /// The view that provides Flux.
    #[serde(default)]
    pub view: View,
    /// How the brokers find each other.
    #[serde(default)]
    pub network: BrokerNetwork,
    /// Options of Flux.
    #[serde(default)]
    pub flux: FluxSettings,
    /// What is logged.
    #[serde(default)]
    pub logging: LogSettings,
    /// The trace that the pods are part of. Unset: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Trace>,
    /// The container that runs Flux.
    #[serde(default)]
    pub runner: Runner,
    /// Users to create on every pod. The mounted Secret has a file with each user's password, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
    /// Sidecars whose entrypoint is the agent, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sidecars: BTreeMap<String, Sidecar>,
}

/// Whether the kubelet restarts a failed container.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
pub enum RestartPolicy {
    /// No: the program starts once.
    #[default]
    Never,
    /// Yes: a failed program runs again, in the same pods.
    OnFailure,
}

impl RestartPolicy {
    fn is_never(&self) -> bool {
        *self == RestartPolicy::Never
    }
}

/// Why a spec cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    #[error("failed to read the spec: {0}")]
    Syntax(String),
    #[error("the spec has version {0}, this agent knows version {VERSION}")]
    Version(u32),
    #[error("the spec's {field} is invalid: {why}")]
    Range { field: &'static str, why: String },
}

/// The same TOML with another size and largest size, and `elastic` as they make it. Fields that this version does not
/// know stay. None if `text` is no TOML.
pub fn with_size(text: &str, size: u32, max_size: u32) -> Option<String> {
    let mut spec: toml::Table = text.parse().ok()?;
    spec.insert("size".into(), size.into());
    spec.remove("max_size");
    // Unset means the size.
    if max_size != size {
        spec.insert("max_size".into(), max_size.into());
    }
    let quorum = spec.get("quorum").and_then(toml::Value::as_integer);
    if quorum.is_some_and(|quorum| quorum < size.into()) {
        spec.insert("elastic".into(), true.into());
    } else {
        spec.remove("elastic");
    }
    toml::to_string(&spec).ok()
}

impl AgentSpec {
    /// The spec as TOML.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }

    /// Parses and checks a spec.
    pub fn from_toml(text: &str) -> Result<AgentSpec, SpecError> {
        let spec = AgentSpec::unchecked(text)?;
        spec.check()?;
        Ok(spec)
    }

    /// Parses a spec without checking it. `flux-agent run` first replaces fields by values of the pod's
    /// environment, and then calls [`AgentSpec::check`].
    pub fn unchecked(text: &str) -> Result<AgentSpec, SpecError> {
        #[derive(Deserialize)]
        struct Header {
            #[serde(default = "version")]
            version: u32,
        }
        // The version first: a spec of another version may have fields that are unknown here.
        let header: Header =
            toml::from_str(text).map_err(|error| SpecError::Syntax(one_line(text, &error)))?;
        if header.version != VERSION {
            return Err(SpecError::Version(header.version));
        }
        toml::from_str(text).map_err(|error| SpecError::Syntax(one_line(text, &error)))
    }

    /// Checks what the types do not express, such as ranges. The error is the first violation.
    pub fn check(&self) -> Result<(), SpecError> {
        let out_of_range = |field, why: &str| {
            Err(SpecError::Range {
                field,
                why: why.to_owned(),
            })
        };
        if self.name.is_empty() {
            return out_of_range("name", "it is missing");
        }
        if !crate::names::is_dns_label(&self.name) {
            return out_of_range(
                "name",
                "use at most 63 lower case letters, digits and `-`, with no `-` at either end",
            );
        }
        if self.size == 0 || self.size as usize > crate::hostlist::MAX_HOSTS {
            return out_of_range("size", &format!("use 1 to {}", crate::hostlist::MAX_HOSTS));
        }
        if self
            .max_size
            .is_some_and(|max| max < self.size || max as usize > crate::hostlist::MAX_HOSTS)
        {
            return out_of_range("max_size", &format!("use size to {}", crate::hostlist::MAX_HOSTS));
        }
        // The plan checks that the quorum is at most the number of hosts.
        if self.quorum.is_some_and(|quorum| quorum == 0) {
            return out_of_range("quorum", "use 1 or more");
        }
        if self.flux.log_level > 7 {
            return out_of_range("flux.log_level", "use 0 to 7");
        }
        if self
            .runner
            .cpu_limit
            .is_some_and(|cpus| !cpus.is_finite() || cpus <= 0.0)
        {
            return out_of_range("runner.cpu_limit", "use a number above 0");
        }
        if !self.mount_path.starts_with('/') {
            return out_of_range("mount_path", "use an absolute path");
        }
        if !self.flux.configs.is_empty()
            && let Err(wrong) = crate::broker_config::merged(&self.flux.configs, self.own_hosts().as_deref())
        {
            return out_of_range(
                "flux.configs",
                &wrong
                    .iter()
                    .map(ToString::to_string)
                    .collect::<Vec<_>>()
                    .join("; "),
            );
        }
        if let Some(list) = &self.network.hostlist
            && let Err(why) = crate::hostlist::expand(list)
        {
            return out_of_range("network.hostlist", &why);
        }
        Ok(())
    }

    /// Largest number of pods: `max_size`, or `size` if it is unset.
    pub fn max_size(&self) -> u32 {
        self.max_size.unwrap_or(self.size)
    }

    /// The hostlist (RFC 29) of the Flux instance, in rank order. A lead in another cluster may be missing: the plan
    /// then puts it first.
    pub fn hostlist(&self) -> String {
        crate::hostlist::of_instance(self.network.hostlist.as_deref(), &self.name, self.max_size())
    }

    /// All hosts of the instance, for which this cluster's lead writes R (Flux's resource set). None if the lead
    /// broker is in another cluster, or if the hostlist is invalid.
    pub fn own_hosts(&self) -> Option<Vec<String>> {
        if self.network.lead.is_some() {
            None
        } else {
            crate::hostlist::expand(&self.hostlist()).ok()
        }
    }

    /// The paths below the mount path.
    pub fn paths(&self) -> crate::paths::PodPaths {
        crate::paths::PodPaths::new(&self.mount_path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agent_spec_needs_only_a_name() {
        let spec = AgentSpec::from_toml("name = \"mc\"\nsize = 4\n").unwrap();
        assert_eq!(spec.hostlist(), "mc-[0-3]");
        assert_eq!(spec.runner.program, Program::Persistent);
        let again = AgentSpec::from_toml(&spec.to_toml().unwrap()).unwrap();
        assert_eq!(again, spec);
    }

    #[test]
    fn resized_spec_is_elastic_only_above_its_quorum() {
        let resized = |text: &str, size: u32, max_size: u32| {
            let spec = AgentSpec::from_toml(&with_size(text, size, max_size).unwrap()).unwrap();
            (spec.size, spec.max_size, spec.elastic)
        };
        let elastic = "name = 'mc'\nsize = 4\nquorum = 2\nelastic = true\n";
        assert_eq!(resized(elastic, 2, 4), (2, Some(4), false));
        assert_eq!(resized(elastic, 3, 3), (3, None, true));
        let fixed = "name = 'mc'\nsize = 2\nquorum = 2\n";
        assert_eq!(resized(fixed, 4, 4), (4, None, true));
        assert_eq!(resized("name = 'mc'\nsize = 2\n", 4, 4), (4, None, false));
    }

    #[test]
    fn unknown_fields_versions_and_bad_values_are_refused() {
        assert!(
            matches!(AgentSpec::from_toml("name=\"a\"\nsizes=2"), Err(SpecError::Syntax(e)) if e.contains("sizes"))
        );
        let place = "line 3, column 1: unknown field `sizes`";
        assert!(
            matches!(AgentSpec::from_toml("name='ä'\n# é\nsizes=2"), Err(SpecError::Syntax(e)) if e.starts_with(place))
        );
        assert!(matches!(
            AgentSpec::from_toml("name=\"a\"\nversion=2\nnew=1"),
            Err(SpecError::Version(2))
        ));
        assert!(matches!(
            AgentSpec::from_toml("name=\"a\"\nsize=0"),
            Err(SpecError::Range { field: "size", .. })
        ));
        for limit in ["0", "-1.5", "nan", "inf"] {
            let text = format!("name=\"a\"\n[runner]\ncpu_limit={limit}");
            assert!(
                matches!(
                    AgentSpec::from_toml(&text),
                    Err(SpecError::Range {
                        field: "runner.cpu_limit",
                        ..
                    })
                ),
                "{limit}"
            );
        }
        assert!(AgentSpec::from_toml("name = ").is_err());
    }

    #[test]
    fn unchecked_spec_may_lack_a_name_until_it_is_checked() {
        let mut spec = AgentSpec::unchecked("size = 2").unwrap();
        let why = spec.check().unwrap_err().to_string();
        assert_eq!(why, "the spec's name is invalid: it is missing");
        assert_eq!(AgentSpec::from_toml("size = 2").unwrap_err().to_string(), why);
        spec.name = "mc".into();
        assert!(spec.check().is_ok() && AgentSpec::unchecked("version = 2").is_err());
    }

    #[test]
    fn every_program_survives_toml() {
        let words = crate::command_words::split("echo \"hi $USER\" 'x'")
            .unwrap()
            .words;
        for program in [
            Program::Persistent,
            Program::Submit { words: words.clone() },
            Program::Launcher { words },
            Program::Script {
                text: "#!/bin/sh\necho \"$A\"\n".into(),
                launch: true,
            },
            Program::Batch {
                lines: vec![BatchLine {
                    number: 0,
                    text: "echo '$x' \"y\"".into(),
                }],
            },
            Program::BatchRaw {
                text: "flux queue idle\n".into(),
            },
            Program::Diagnostics,
        ] {
            let mut spec = AgentSpec::from_toml("name=\"mc\"").unwrap();
            spec.runner.program = program;
            spec.sidecars.insert(
                "db".into(),
                Sidecar {
                    command: Some("exec db".into()),
                    ..Sidecar::default()
                },
            );
            assert_eq!(AgentSpec::from_toml(&spec.to_toml().unwrap()).unwrap(), spec);
        }
    }
}
