//! A program to start, with everything that the executor needs to supervise it. The executor takes every decision
//! from these fields.

use std::ops::Range;

use flux_shared::command_words::Word;
use serde::Serialize;

use super::{EnvChange, Owner};

/// A program to start and supervise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Launch {
    /// Its name in the timeline (the FLUXTIME lines of the log): `fluxstart` for the broker.
    pub label: &'static str,
    /// The program's role in the instance.
    pub part: InstancePart,
    pub argv: Vec<Word>,
    /// The range of `argv` that has the broker's options. Snippets may change these options in `$brokerOptions`. None:
    /// the program is no broker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<Range<usize>>,
    /// How the executor finds the program `flux`. None: `argv` has its path, or has no `flux`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub flux: Option<FluxLookup>,
    /// The program as a person would type it, without the wrappers of the agent and Flux. Empty: only a broker runs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub program: Vec<Word>,
    /// The user that the program runs as. None: the agent's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_as: Option<RunAs>,
    /// Variables for this program alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<EnvChange>,
    pub stdout: Stdout,
    /// The processes that get forwarded signals. Two signals always go to the whole group: SIGTSTP and SIGCONT. A stop
    /// that follows a forwarded one kills the group.
    pub signals: SignalTarget,
    /// The broker's socket, to follow its states. None: the agent does not follow them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// The parent broker, which must answer before this program is restarted. A stop of this pod is passed on when the
    /// parent is gone or no job needs this pod any more, at the latest after `hold_stop`. None: at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<BrokerAddress>,
    /// The lead, if that is not the parent. The agent asks it whether the whole instance has ended, or only the parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lead: Option<BrokerAddress>,
    /// The longest time, in seconds, that a stop waits for the parent. None: it does not wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_stop: Option<f64>,
    /// The rank to drain if only this pod is removed. Its jobs then may end until the deadline of the stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<u32>,
    /// The ranks below `drain` in the tree of brokers, as an idset. They leave the instance with this broker, since
    /// they are connected through it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub below: String,
    /// Name of the process that shows that a job runs on this node: a descendant of the broker. If the lead stays and
    /// this broker leaves during a job, the agent kills the broker. Flux then ends the job at once. After an orderly
    /// shutdown of the broker, this would take half a minute. None: the agent does not look for jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_shell: Option<&'static str>,
    /// The metrics of the instance to serve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
    /// The file in which `flux-agent program` notes how the program ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// The file in which the agent records that the program starts, before the start, and how the program ends. By it,
    /// [`super::Step::CheckEarlierStarts`] limits or prevents further starts. None: nothing is recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
    /// Whether the container fails with `broker-failed`, instead of the broker's code, if the instance does not come
    /// up. With a `result` file, the instance did not come up if the file does not say that the program has begun.
    /// Without one, it did not come up if the broker failed before its state was `run`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub needs_instance: bool,
    /// What the executor does when the program ends.
    pub at_end: AtEnd,
}

/// The image's own `flux` is looked up when the broker starts, on the PATH that the snippets have left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FluxLookup {
    /// Which word of `argv` the found path replaces. If the PATH has no `flux`, the word stays, and must be a program.
    pub word: usize,
    /// A link to the found program, by which the commands that people run in the pod find it.
    pub link: String,
}

/// The role of a launched program in the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum InstancePart {
    /// The lead broker (rank 0). Until a stop, its agent is a member of a group in Flux, by which followers see that
    /// the lead stays (`agent/src/flux_rpc/lead_presence.rs`).
    Lead,
    /// A follower's broker. If a stop comes before it has started, the pod exits with 238, a code that
    /// does not fail the Job (`flux_shared::exit::REPLACE`).
    Follower,
    /// A sidecar's program, which is no broker.
    Command,
}

/// Which processes a signal is sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SignalTarget {
    /// Only the process itself: a broker ends its own children in order.
    Process,
    /// Only the broker, which the process runs as a child (`prefix`, `wrap`). A wrapper that got the signal might end
    /// before the broker, as strace does. Without a broker, as [`SignalTarget::Group`].
    Broker,
    /// The process and everything that it has started.
    Group,
}

/// Where a broker listens, and how the agent asks whether it does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BrokerAddress {
    /// An absolute DNS name, or the address of a lead in another cluster as the spec has it.
    pub host: String,
    pub port: u16,
    /// Whether `Step::WaitParent` and the commands `status` and `preflight` only look up the name, and do not connect.
    /// With `logging.zeromq`, Flux would log such a connection as a failed handshake. Once the follower's own broker
    /// has started, the agent connects all the same: it must learn whether this broker is still there.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub only_looked_up: bool,
}

/// Metrics of the instance, for autoscalers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Metrics {
    pub port: u16,
    /// Value of the metrics' label `minicluster`.
    pub cluster: String,
}

/// How standard output reaches the container's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stdout {
    /// The program inherits the agent's standard output.
    Inherit,
    /// The program writes standard output and standard error to two raw pseudo-terminals, and the agent copies both.
    /// Programs flush every line to a terminal.
    LineBuffered,
    /// The output is dropped.
    Discard,
}

/// What the executor does when a launched program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "then")]
pub enum AtEnd {
    /// Its exit code is the container's.
    Exit,
    /// The same, but after a stop, exit code 0 becomes 128 plus the signal. It is for an instance that stays up until
    /// people shut it down: a stop does not complete it.
    ExitUnlessStopped,
    /// The broker is restarted with backoff as long as the lead runs. When the lead has ended, the container ends
    /// with 0. With `lead_can_restart`, the lead may start again in its pod. The container then waits for it until it
    /// is stopped, and ends with 238 (`flux_shared::exit::REPLACE`), also if the stop came before the lead's end.
    RestartFollower {
        /// Restarts in a row; a broker that ran for a minute begins a new row.
        limit: u32,
        // `again` is the key in the JSON of `dry-run` (`agent/plan/schema/dry-run.json`).
        #[serde(rename = "again", skip_serializing_if = "std::ops::Not::not")]
        lead_can_restart: bool,
    },
    /// As `RestartFollower`, but instead of a restart the container ends: with 0 if the broker had joined the instance,
    /// otherwise with a failure. With `lead_can_restart`, a broker that had joined is restarted, without a limit.
    Complete {
        #[serde(rename = "again", skip_serializing_if = "std::ops::Not::not")]
        lead_can_restart: bool,
    },
}

/// The user that a program runs as instead of the agent's: ids, and the values of LOGNAME, USER and HOME, unless a
/// snippet has set these. Programs that run as the agent's user do not get these values: a shell or Python of root
/// would read files in that home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunAs {
    #[serde(flatten)]
    pub owner: Owner,
    pub name: String,
    pub home: String,
}
