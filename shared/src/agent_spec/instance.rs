//! Settings of the whole instance: its view, network, brokers and log.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{is_false, yes};
use crate::trace::TraceParent;

// The defaults of fields, which serde's attributes name.

fn service() -> String {
    "flux-service".into()
}
fn port() -> u16 {
    8050
}
fn log_level() -> u8 {
    6
}
fn submit_command() -> Vec<String> {
    vec!["flux".into(), "submit".into()]
}

/// The view that provides Flux.
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
    /// Without a view: the prefix of the image's own Flux. Unset: that of the `flux` on the PATH.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub install_root: Option<String>,
}

impl Default for View {
    fn default() -> Self {
        View {
            enabled: true,
            python_path: None,
            install_root: None,
        }
    }
}

/// How the brokers find each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct BrokerNetwork {
    /// Name of the headless Service, the pods' subdomain.
    #[serde(default = "service")]
    pub service: String,
    /// Port of the brokers.
    #[serde(default = "port")]
    pub port: u16,
    /// Domain of the cluster. Default: from resolv.conf, else cluster.local.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_domain: Option<String>,
    /// The pods use their nodes' network (`hostNetwork`) and have their nodes' host names, so the agent tells
    /// pods apart by their completion index.
    #[serde(default, skip_serializing_if = "is_false")]
    pub host_network: bool,
    /// All hosts of the instance in rank order (RFC 29). Default: `<name>-[0-(max_size - 1)]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hostlist: Option<String>,
    /// The lead broker, if it is in another cluster. Then every pod of this one is a follower.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lead: Option<RemoteLead>,
}

impl Default for BrokerNetwork {
    fn default() -> Self {
        BrokerNetwork {
            service: service(),
            port: port(),
            cluster_domain: None,
            host_network: false,
            hostlist: None,
            lead: None,
        }
    }
}

/// A lead broker in another cluster.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RemoteLead {
    /// Host name or address by which the brokers reach it. Without `hostlist`, also the first host of the list.
    pub address: String,
    /// Port.
    #[serde(default = "port")]
    pub port: u16,
}

/// The trace (OpenTelemetry) that the pods are part of: they leave their timelines in their termination messages,
/// and programs find it in `TRACEPARENT`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// The MiniCluster's span: `00-<trace id>-<span id>-01`.
    #[cfg_attr(all(test, feature = "crd"), schemars(with = "String"))]
    pub parent: TraceParent,
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
pub struct FluxSettings {
    /// Level of the broker's messages on standard error, 0 to 7.
    #[serde(default = "log_level")]
    pub log_level: u8,
    /// `tbon.connect_timeout`, a Flux duration. Unset: not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connect_timeout: Option<String>,
    /// `heartbeat.timeout`, a Flux duration. Unset: Flux's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heartbeat_timeout: Option<String>,
    /// Seconds a follower waits for its parent at the start before it exits. Unset: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent_deadline: Option<u64>,
    /// Seconds the lead's DNS name may be missing before a follower exits. Unset: 30.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lead_gone: Option<u64>,
    /// Seconds a lead that has answered before may be silent before a follower exits. Unset: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lead_silent: Option<u64>,
    /// Port on which the lead serves metrics of the instance. Unset: none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub metrics_port: Option<u16>,
    /// `tbon.topo`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
    /// Command in place of `flux submit`.
    #[serde(default = "submit_command")]
    pub submit_command: Vec<String>,
    /// Arguments added to `flux submit` and `flux batch`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub option_flags: Vec<String>,
    /// Command before the broker, its words separated by commas: `flux start --wrap=`, or directly before
    /// `flux broker`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wrap: Option<String>,
    /// A follower ends when its broker ends, instead of restarting the broker, unless `restart_policy` is `OnFailure`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub complete_workers: bool,
    /// Which scheduler to load. Unset: Fluxion, if the view has it, with a queue policy or a table of
    /// Fluxion in `configs`, or if the pods have GPUs; else the simple one. Without a view: the default of the image's Flux.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<SchedulerKind>,
    /// Queue policy of Fluxion.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_policy: Option<String>,
    /// The whole broker.toml.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker_config: Option<String>,
    /// Parts of broker.toml, by name: TOML whose tables are merged over the agent's.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub configs: BTreeMap<String, String>,
    /// Leave the broker's socket at Flux's default path.
    #[serde(default, skip_serializing_if = "is_false")]
    pub disable_socket: bool,
    /// Environment of brokers and jobs, also in flux-view.sh.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub environment: BTreeMap<String, String>,
}

impl Default for FluxSettings {
    fn default() -> Self {
        FluxSettings {
            log_level: log_level(),
            connect_timeout: None,
            heartbeat_timeout: None,
            parent_deadline: None,
            lead_gone: None,
            lead_silent: None,
            metrics_port: None,
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

/// What the pods log.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct LogSettings {
    /// Only the job's output, warnings and errors.
    #[serde(default, skip_serializing_if = "is_false")]
    pub quiet: bool,
    /// If a command fails in a snippet that runs before the program, the entrypoint ends. Unset: true. If true is
    /// set explicitly, `post` is strict as well: if the job ended with 0 and `post` fails on the lead, the
    /// container ends with the exit code of `post`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
    /// Log wall times: FLUXTIME lines and, at the end, the stages with their times as a table and as one line
    /// of JSON. No effect with quiet.
    #[serde(default, skip_serializing_if = "is_false")]
    pub timed: bool,
    /// Log more: -vvv for submit, the events of a batch. No effect with quiet.
    #[serde(default, skip_serializing_if = "is_false")]
    pub debug: bool,
    /// `tbon.zmqdebug`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub zeromq: bool,
    /// Format of the agent's own log lines.
    #[serde(default, skip_serializing_if = "LogFormat::is_text")]
    pub format: LogFormat,
}

/// Format of the agent's own log lines.
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
    /// The values of `logging.format` in a MiniCluster.
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

impl LogSettings {
    /// Whether the entrypoint ends if a command fails in a snippet that runs before the program.
    pub fn is_strict(&self) -> bool {
        self.strict.unwrap_or(true)
    }
}
