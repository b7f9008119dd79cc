//! A program to start, and all that the executor must know to supervise it: it infers nothing from the words.

use std::ops::Range;

use flux_shared::command_words::Word;
use serde::Serialize;

use super::{EnvChange, Owner};

/// A program to start and supervise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Launch {
    /// Its name in the timeline (the FLUXTIME lines of the log): `fluxstart` for the broker.
    pub label: &'static str,
    /// Its role in the instance.
    pub part: InstancePart,
    pub argv: Vec<Word>,
    /// Which of the words are the broker's options: snippets may change them, as `$brokerOptions`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub options: Option<Range<usize>>,
    /// The user's program, as one would type it: without what the agent and Flux put around it. The container
    /// ends with it. Empty: there is only a broker, which others work in.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub program: Vec<Word>,
    /// The user that it runs as; none: the agent's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_as: Option<RunAs>,
    /// Variables for this program alone.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<EnvChange>,
    pub stdout: Stdout,
    /// Which processes a signal to the agent is passed on to. Of any program, a second stop kills the whole
    /// group.
    pub signals: SignalTarget,
    /// The broker's socket, by which its states are followed; none: they are not.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// The parent broker, which must answer before this program is restarted. A stop of this pod is passed on when
    /// the parent has ended the instance in order, or after `hold_stop`. None: it is passed on at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// The lead, if that is not the parent: it is asked whether the parent's end was the instance's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lead: Option<Parent>,
    /// How long a stop waits for the parent at most, in seconds. None: it does not wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_stop: Option<f64>,
    /// The rank that is drained when only this pod is to go: jobs on it may end within the time of the stop.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<u32>,
    /// The ranks below it in the tree, as an idset: they leave with it, since they are connected through it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub below: String,
    /// The name of a process below this one that means a job on this node. A broker that leaves during a job, while
    /// the lead stays, is killed: Flux then ends the job at once, and half a minute later if the broker shut down in
    /// order. None: nobody looks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_shell: Option<&'static str>,
    /// The metrics of the instance to serve.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
    /// The file in which `flux-agent program` notes how the program ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// The file in which each start is recorded, before it, and its end: the program must not run again, or
    /// not too often.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
    /// Whether the container fails with `broker-failed` instead of the broker's code if the instance does not
    /// come up. With a `result` file, that is so if the program has not begun by what the file says. Without one,
    /// it is so if the broker fails before its state is `run`.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub needs_instance: bool,
    /// What to do when it ends.
    pub at_end: AtEnd,
}

/// What a launched program is to the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum InstancePart {
    /// Rank 0: tells the others that it stays, until it is told to stop.
    Lead,
    /// A broker that joins another. If it is told to stop before it has started, its pod is to be replaced.
    Follower,
    /// A sidecar's own program, of which Flux knows nothing.
    Command,
}

/// Which processes a signal is sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SignalTarget {
    /// The process alone: a broker, which ends its own children in order.
    Process,
    /// Everything that it has started.
    Group,
}

/// A broker that another one joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Parent {
    pub host: String,
    pub port: u16,
    /// Whether an address of its name is enough at the start: where Flux is to show what ZeroMQ does
    /// (`logging.zeromq`), a connection of the agent's would show as a failed handshake.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_name: bool,
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
    /// The child inherits the agent's.
    Inherit,
    /// Through raw pseudo-terminals that the agent copies, one more for standard error: programs flush every
    /// line.
    LineBuffered,
    /// It is dropped.
    Discard,
}

/// What the end of a launched program means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "then")]
pub enum AtEnd {
    /// Its exit code is the container's.
    Exit,
    /// The same, but 0 after a stop becomes 128 plus the signal: people worked in it, and nothing was
    /// completed.
    ExitUnlessStopped,
    /// A broker that ends is restarted with backoff while the lead goes on. When the lead has ended, the container
    /// ends with 0. With `again` the lead may start again in its pod: the container then waits for it, and ends
    /// when it is told to stop.
    RestartFollower {
        /// Restarts in a row; a broker that ran for a minute begins a new row.
        limit: u32,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        again: bool,
    },
    /// The same, but no broker is restarted: the container ends with 0 if it had joined, and otherwise fails.
    Complete {
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        again: bool,
    },
}

/// Another user, for a program that gives up the agent's rights: its ids, and what HOME, USER and LOGNAME are
/// for it, unless a snippet has set them. No other program gets them: what root runs (a shell, Python) would
/// read files of that home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunAs {
    #[serde(flatten)]
    pub owner: Owner,
    pub name: String,
    pub home: String,
}
