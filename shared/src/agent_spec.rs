//! `AgentSpec`: all that a pod needs to know, as TOML in a ConfigMap. Written by the operator, read by the agent.
//!
//! Versioned; unknown fields are refused. Everything but `name` has a default, so that a person can write one by hand
//! for a plain Indexed Job (`docs/AGENTSPEC.md` is made from these types). The curve certificate is not in it: it
//! is a Secret, mounted beside it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::words::Word;

#[cfg(all(test, feature = "crd"))]
mod reference;

/// The version of the contract. Raised when an older agent would misread a newer spec.
pub const VERSION: u32 = 1;

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
fn service() -> String {
    "flux-service".into()
}
fn namespace() -> String {
    "default".into()
}
fn port() -> u16 {
    8050
}
fn log_level() -> u8 {
    6
}
fn logs() -> String {
    crate::paths::DEFAULT_LOGS.into()
}
fn submit_command() -> Vec<String> {
    vec!["flux".into(), "submit".into()]
}

/// The spec of one MiniCluster's pods.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct AgentSpec {
    /// Version of this format: 1.
    #[serde(default = "version")]
    pub version: u32,
    /// Name of the cluster; its pods' host names are `<name>-<index>`.
    pub name: String,
    /// Namespace of the pods, part of their DNS names.
    #[serde(default = "namespace")]
    pub namespace: String,
    /// Number of pods at the start of the job, used in its flags.
    #[serde(default = "one")]
    pub size: u32,
    /// Number of pods that there may ever be. Default: size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_size: Option<u32>,
    /// Brokers online before the job starts. Default: size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quorum: Option<u32>,
    /// Total number of tasks of the job; 0: only the number of nodes is given.
    #[serde(default = "one")]
    pub tasks: u32,
    /// Ask for `quorum` nodes at least, not for all of `size` (set when a minimum size is given).
    #[serde(default, skip_serializing_if = "is_false")]
    pub elastic: bool,
    /// Whether the kubelet starts a container again that has failed, as the pod's own `restartPolicy` says.
    #[serde(default, skip_serializing_if = "RestartPolicy::is_never")]
    pub restart_policy: RestartPolicy,
    /// Where Flux's files are, in every container.
    #[serde(default = "mount_path")]
    pub mount_path: String,
    /// State to restore and save, an absolute path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub archive: Option<String>,
    /// The view that brings Flux.
    #[serde(default)]
    pub view: View,
    /// How the brokers find each other.
    #[serde(default)]
    pub network: Network,
    /// Options of Flux.
    #[serde(default)]
    pub flux: Flux,
    /// What is logged.
    #[serde(default)]
    pub logging: Logging,
    /// The container that runs Flux.
    #[serde(default)]
    pub runner: Runner,
    /// Users to make on every pod. The password of each is the file of its name in the mounted Secret.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub users: Vec<String>,
    /// Containers beside it whose entrypoint is the agent, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub sidecars: BTreeMap<String, Sidecar>,
}

/// Whether the kubelet starts a container again that has failed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
pub enum RestartPolicy {
    /// No: the program starts once.
    #[default]
    Never,
    /// Yes: a program that has failed runs again, in the same pods.
    OnFailure,
}

impl RestartPolicy {
    fn is_never(&self) -> bool {
        *self == RestartPolicy::Never
    }
}

/// The view that brings Flux.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct View {
    /// Flux comes from a view; false: from the runner's own image.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// PYTHONPATH in place of the view's own site-packages.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub python_path: Option<String>,
    /// Without a view: the prefix of the image's own Flux. Unset: where PATH leads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install_root: Option<String>,
}

impl Default for View {
    fn default() -> Self {
        View { enabled: true, python_path: None, install_root: None }
    }
}

/// How the brokers find each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Name of the headless Service, the pods' subdomain.
    #[serde(default = "service")]
    pub service: String,
    /// Port of the brokers.
    #[serde(default = "port")]
    pub port: u16,
    /// Domain of the cluster. Default: from resolv.conf, else cluster.local.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_domain: Option<String>,
    /// All hosts of the instance in rank order (RFC 29). Default: `<name>-[0-(max_size - 1)]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostlist: Option<String>,
    /// The lead broker, if it is in another cluster. Then every pod of this one is a follower.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lead: Option<RemoteLead>,
}

impl Default for Network {
    fn default() -> Self {
        Network { service: service(), port: port(), cluster_domain: None, hostlist: None, lead: None }
    }
}

/// A lead broker in another cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RemoteLead {
    /// Host name or address; the first host of the list.
    pub address: String,
    /// Port.
    #[serde(default = "port")]
    pub port: u16,
}

/// Which scheduler to load.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum SchedulerKind {
    /// Flux's own.
    Simple,
    /// Fluxion; an error if the view lacks it.
    Fluxion,
}

/// Options of Flux.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Flux {
    /// Level of the broker's messages on standard error, 0 to 7.
    #[serde(default = "log_level")]
    pub log_level: u8,
    /// `tbon.connect_timeout`, a Flux duration. Unset: not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect_timeout: Option<String>,
    /// `heartbeat.timeout`, a Flux duration. Unset: Flux's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_timeout: Option<String>,
    /// Seconds that a follower waits for its parent at the start. Unset: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_deadline: Option<u64>,
    /// Seconds that the name of a lead that was there is gone before a follower takes it for ended. Unset: 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lead_gone: Option<u64>,
    /// Seconds that a lead that was there does not answer before a follower gives up. Unset: for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lead_silent: Option<u64>,
    /// `tbon.topo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
    /// Words in place of `flux submit`.
    #[serde(default = "submit_command")]
    pub submit_command: Vec<String>,
    /// Words added to submit and batch.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub option_flags: Vec<String>,
    /// `flux start --wrap=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrap: Option<String>,
    /// A follower ends after its broker's first end.
    #[serde(default, skip_serializing_if = "is_false")]
    pub complete_workers: bool,
    /// Which scheduler to load. Unset: Fluxion with a queue policy or where the runner asks for GPUs, if the view has it; else
    /// the simple one. Without a view: what the image's Flux comes with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<SchedulerKind>,
    /// Queue policy of Fluxion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_policy: Option<String>,
    /// The whole broker.toml.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker_config: Option<String>,
    /// Parts of it, by name: TOML whose tables are merged over those that the agent writes.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub configs: BTreeMap<String, String>,
    /// Leave the socket where Flux puts it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub disable_socket: bool,
    /// Environment of brokers and jobs, also in flux-view.sh.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
}

impl Default for Flux {
    fn default() -> Self {
        Flux {
            log_level: log_level(),
            connect_timeout: None,
            heartbeat_timeout: None,
            parent_deadline: None,
            lead_gone: None,
            lead_silent: None,
            topology: None,
            submit_command: submit_command(),
            option_flags: Vec::new(),
            wrap: None,
            complete_workers: false,
            scheduler: None,
            queue_policy: None,
            broker_config: None,
            configs: BTreeMap::new(),
            disable_socket: false,
            environment: BTreeMap::new(),
        }
    }
}

/// What is logged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Logging {
    /// Nothing but the job's output and errors.
    #[serde(default, skip_serializing_if = "is_false")]
    pub quiet: bool,
    /// A failing snippet ends the entrypoint.
    #[serde(default = "yes")]
    pub strict: bool,
    /// FLUXTIME lines, and at the end a table of the stages with their times, as a line of JSON, too.
    #[serde(default, skip_serializing_if = "is_false")]
    pub timed: bool,
    /// -vvv for submit, the events of a batch; neither with quiet.
    #[serde(default, skip_serializing_if = "is_false")]
    pub debug: bool,
    /// `tbon.zmqdebug`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub zeromq: bool,
    /// How the agent's own lines look.
    #[serde(default, skip_serializing_if = "LogFormat::is_text")]
    pub format: LogFormat,
}

/// How the agent's own lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One object a line.
    Json,
}

impl LogFormat {
    /// As the MiniCluster names them.
    pub const NAMES: &'static [&'static str] = &["text", "json"];

    pub fn is_text(&self) -> bool {
        *self == LogFormat::Text
    }
}

impl std::str::FromStr for LogFormat {
    type Err = String;

    fn from_str(name: &str) -> Result<LogFormat, String> {
        match name {
            "text" => Ok(LogFormat::Text),
            "json" => Ok(LogFormat::Json),
            _ => Err(format!("must be one of {}", LogFormat::NAMES.join(", "))),
        }
    }
}

impl Default for Logging {
    fn default() -> Self {
        Logging { quiet: false, strict: true, timed: false, debug: false, zeromq: false, format: LogFormat::Text }
    }
}

/// What the lead does once the instance is up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case", tag = "mode", deny_unknown_fields)]
pub enum Program {
    /// Nothing: the broker stays up until it is shut down.
    Persistent,
    /// `flux submit … words`, watched.
    Submit { words: Vec<Word> },
    /// The words themselves are the initial program.
    Launcher { words: Vec<Word> },
    /// A script of the user's, submitted as the job (or, with `launch`, started as it is).
    Script {
        text: String,
        #[serde(default, skip_serializing_if = "is_false")]
        launch: bool,
    },
    /// One job a line, in a flux batch.
    Batch { lines: Vec<BatchLine> },
    /// The batch script itself.
    BatchRaw { text: String },
    /// Three reports on the instance, then it stays up.
    Diagnostics,
}

/// A line of a batch: its text as the user wrote it, and its number (blank lines count).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BatchLine {
    /// Names the files of its output.
    pub number: u32,
    /// What follows `flux submit` and its flags.
    pub text: String,
}

/// The container that runs Flux.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Runner {
    /// No initial program even if one is given (`broker.rc2_none`).
    #[serde(default, skip_serializing_if = "is_false")]
    pub interactive: bool,
    /// Words before submit, batch, the launcher's command, the broker and the followers' start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefix: Vec<Word>,
    /// Cores 0 to n-1 of every node. Unset: those that the container may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// The container asks for GPUs: Fluxion schedules unless something else is said.
    #[serde(default, skip_serializing_if = "is_false")]
    pub gpus: bool,
    /// Directory for the output of batch jobs.
    #[serde(default = "logs")]
    pub logs: String,
    /// The user to run Flux as. Unset: the container's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<User>,
    /// A directory that who runs Flux must be able to write to: the working directory that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// The user's snippets.
    #[serde(default)]
    pub snippets: Snippets,
    /// What the lead does.
    #[serde(default = "persistent")]
    pub program: Program,
    /// With a persistent program: the lead serves the Flux RESTful API.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restful: Option<Restful>,
}

/// The Flux RESTful API. Its key, user and token are files of the mounted Secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Restful {
    /// Address of its repository.
    #[serde(default = "restful_repository")]
    pub repository: String,
    /// Branch or tag.
    #[serde(default = "restful_branch")]
    pub branch: String,
    /// Port that it listens on.
    #[serde(default = "restful_port")]
    pub port: u16,
}

/// Where the Flux RESTful API comes from if the operator knows no other place.
pub const RESTFUL_REPOSITORY: &str = "https://github.com/flux-framework/flux-restful-api";

fn restful_repository() -> String {
    RESTFUL_REPOSITORY.into()
}
fn restful_branch() -> String {
    "main".into()
}
fn restful_port() -> u16 {
    5000
}

impl Default for Restful {
    fn default() -> Self {
        Restful { repository: restful_repository(), branch: restful_branch(), port: restful_port() }
    }
}

fn persistent() -> Program {
    Program::Persistent
}

impl Default for Runner {
    fn default() -> Self {
        Runner {
            interactive: false,
            prefix: Vec::new(),
            cores: None,
            gpus: false,
            logs: logs(),
            user: None,
            working_dir: None,
            snippets: Snippets::default(),
            program: Program::Persistent,
            restful: None,
        }
    }
}

/// The user to run Flux as, made if missing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct User {
    /// Its name.
    pub name: String,
    /// Used only if the user must be made.
    pub uid: u32,
    /// Make the user, but run Flux as root.
    #[serde(default, skip_serializing_if = "is_false")]
    pub run_flux_as_root: bool,
}

/// The user's shell source, in the order of running.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Snippets {
    /// First of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<String>,
    /// Once Flux's files are there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_command: Option<String>,
    /// Then this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre: Option<String>,
    /// Then this one, on the lead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker_pre: Option<String>,
    /// Then this one, on the followers, before they wait for their parent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_pre: Option<String>,
    /// After Flux has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post: Option<String>,
}

/// A container beside the runner whose entrypoint is the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Sidecar {
    /// Wait for the broker's socket before the command.
    #[serde(default = "yes")]
    pub wait_socket: bool,
    /// First of all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<String>,
    /// Then this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_command: Option<String>,
    /// Then this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre: Option<String>,
    /// Then this one, before the socket is waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_pre: Option<String>,
    /// Shell source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// A script to run in place of the command, byte for byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// After the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post: Option<String>,
}

impl Default for Sidecar {
    fn default() -> Self {
        Sidecar {
            wait_socket: true,
            init: None,
            pre_command: None,
            pre: None,
            service_pre: None,
            command: None,
            script: None,
            post: None,
        }
    }
}

/// Why a spec could not be used.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    #[error("failed to read the spec: {0}")]
    Syntax(String),
    #[error("the spec has version {0}, this agent knows version {VERSION}")]
    Version(u32),
    #[error("the spec's {field} is out of range: {why}")]
    Range { field: &'static str, why: String },
}

impl AgentSpec {
    /// The spec as TOML.
    pub fn to_toml(&self) -> Result<String, toml::ser::Error> {
        toml::to_string(self)
    }

    /// The spec of `text`, checked.
    pub fn from_toml(text: &str) -> Result<AgentSpec, SpecError> {
        #[derive(Deserialize)]
        struct Header {
            #[serde(default = "version")]
            version: u32,
        }
        let header: Header = toml::from_str(text).map_err(|error| SpecError::Syntax(one_line(text, &error)))?;
        if header.version != VERSION {
            return Err(SpecError::Version(header.version));
        }
        let spec: AgentSpec = toml::from_str(text).map_err(|error| SpecError::Syntax(one_line(text, &error)))?;
        spec.check()?;
        Ok(spec)
    }

    /// Bounds that the types don't express.
    pub fn check(&self) -> Result<(), SpecError> {
        let range = |field, why: &str| Err(SpecError::Range { field, why: why.to_owned() });
        if !crate::names::is_dns_label(&self.name) {
            return range("name", "use lower case letters, digits and `-`");
        }
        if self.size == 0 || self.size as usize > crate::hostlist::MAX_HOSTS {
            return range("size", "use 1 or more");
        }
        if self.max_size.is_some_and(|max| max < self.size || max as usize > crate::hostlist::MAX_HOSTS) {
            return range("max_size", "use size or more");
        }
        if self.quorum.is_some_and(|quorum| quorum == 0) {
            return range("quorum", "use 1 or more");
        }
        if self.flux.log_level > 7 {
            return range("flux.log_level", "use 0 to 7");
        }
        if !self.mount_path.starts_with('/') {
            return range("mount_path", "use an absolute path");
        }
        if !self.flux.configs.is_empty()
            && let Err(wrong) = crate::broker_config::merged(&self.flux.configs, self.own_hosts().as_deref())
        {
            return range("flux.configs", &wrong.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "));
        }
        if let Some(list) = &self.network.hostlist
            && let Err(why) = crate::hostlist::expand(list)
        {
            return range("network.hostlist", &why);
        }
        Ok(())
    }

    /// Number of pods that there may ever be.
    pub fn max_size(&self) -> u32 {
        self.max_size.unwrap_or(self.size)
    }

    /// The hostlist of the instance, in rank order.
    pub fn hostlist(&self) -> String {
        crate::hostlist::of_instance(self.network.hostlist.as_deref(), &self.name, self.max_size())
    }

    /// All hosts, if this cluster's lead is the instance's and so writes R for them.
    pub fn own_hosts(&self) -> Option<Vec<String>> {
        if self.network.lead.is_some() { None } else { crate::hostlist::expand(&self.hostlist()).ok() }
    }

    /// The paths in the pod.
    pub fn paths(&self) -> crate::paths::PodPaths {
        crate::paths::PodPaths::new(&self.mount_path)
    }
}

/// What is wrong with the TOML `text`, and at which of its lines and columns, both from 1.
pub(crate) fn one_line(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let place = before.map(|before| {
        let line_begin = before.rfind('\n').map_or(0, |at| at + 1);
        let (line, column) = (before.matches('\n').count() + 1, before[line_begin..].chars().count() + 1);
        format!("line {line}, column {column}: ")
    });
    format!("{}{}", place.unwrap_or_default(), error.message().replace('\n', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_enough() {
        let spec = AgentSpec::from_toml("name = \"mc\"\nsize = 4\n").unwrap();
        assert_eq!(spec.hostlist(), "mc-[0-3]");
        assert_eq!(spec.runner.program, Program::Persistent);
        let again = AgentSpec::from_toml(&spec.to_toml().unwrap()).unwrap();
        assert_eq!(again, spec);
    }

    #[test]
    fn unknown_fields_and_versions_are_refused() {
        assert!(
            matches!(AgentSpec::from_toml("name=\"a\"\nsizes=2"), Err(SpecError::Syntax(e)) if e.contains("sizes"))
        );
        let place = "line 3, column 1: unknown field `sizes`";
        assert!(
            matches!(AgentSpec::from_toml("name='ä'\n# é\nsizes=2"), Err(SpecError::Syntax(e)) if e.starts_with(place))
        );
        assert!(matches!(AgentSpec::from_toml("name=\"a\"\nversion=2\nnew=1"), Err(SpecError::Version(2))));
        assert!(matches!(AgentSpec::from_toml("name=\"a\"\nsize=0"), Err(SpecError::Range { field: "size", .. })));
        assert!(AgentSpec::from_toml("name = ").is_err());
    }

    #[test]
    fn every_program_survives_toml() {
        let words = crate::words::split("echo \"hi $USER\" 'x'").unwrap().words;
        for program in [
            Program::Persistent,
            Program::Submit { words: words.clone() },
            Program::Launcher { words },
            Program::Script { text: "#!/bin/sh\necho \"$A\"\n".into(), launch: true },
            Program::Batch { lines: vec![BatchLine { number: 0, text: "echo '$x' \"y\"".into() }] },
            Program::BatchRaw { text: "flux queue idle\n".into() },
            Program::Diagnostics,
        ] {
            let mut spec = AgentSpec::from_toml("name=\"mc\"").unwrap();
            spec.runner.program = program;
            spec.sidecars.insert("db".into(), Sidecar { command: Some("exec db".into()), ..Sidecar::default() });
            assert_eq!(AgentSpec::from_toml(&spec.to_toml().unwrap()).unwrap(), spec);
        }
    }
}
