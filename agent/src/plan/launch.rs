//! A program to start, and all that the executor must know to supervise it: it infers nothing from the words.

use flux_shared::words::Word;
use serde::Serialize;

use super::{EnvChange, Owner};

/// A program to start and supervise.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Launch {
    /// `fluxstart` for the broker; the name in FLUXTIME lines.
    pub label: &'static str,
    /// What it is to the instance.
    pub part: Part,
    pub argv: Vec<Word>,
    /// The program that all of it is for, as one would type it: without what the agent and Flux put around it. Its end is the
    /// container's. Empty: there is none, but a broker that others work in.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub program: Vec<Word>,
    /// Whom it runs as; none: the agent's own user.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_as: Option<RunAs>,
    /// What this program alone is told.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub environment: Vec<EnvChange>,
    pub stdout: Stdout,
    /// Whom a signal to the agent is passed on to.
    pub signals: Reach,
    /// The broker's socket, where its states are followed. None: nobody asks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// The broker above it: a stop is held back while that may still end the instance in order, and it is awaited before this
    /// program is started again. None: a stop is passed on at once.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// The lead, where the broker above is another: of that one's end it says whether it was the instance's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lead: Option<Parent>,
    /// How long a stop is held back at most, in seconds; none: it is not held back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold_stop: Option<f64>,
    /// What has not ended so many seconds after the stop is killed; none: that is the kubelet's part.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kill_after: Option<f64>,
    /// The node that is drained when only this pod is to go: jobs on it have the time of the stop to end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain: Option<u32>,
    /// The nodes that go along with that one, as an idset of their ranks: they are in the instance by way of it.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub below: String,
    /// What a process below this one is called that means a job on this node: a broker that goes while the lead stays is then
    /// killed, not told. None: nobody looks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_shell: Option<&'static str>,
    /// The figures of the instance that are served beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metrics: Option<Metrics>,
    /// The file that the program inside notes its own end in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub result: Option<String>,
    /// The file that each of its starts is recorded in before it is made, and its end: it must not run again, or not too often.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
    /// What to do when it ends.
    pub at_end: AtEnd,
}

/// What a launched program is to the instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Part {
    /// Rank 0: it tells the others that it stays until it is told to stop, and its end before a program ran is the agent's failure.
    Lead,
    /// A broker that joins another: told to stop before it has started, its pod is to be replaced.
    Follower,
    /// A sidecar's own program, of which Flux knows nothing.
    Command,
}

/// Whom a signal reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reach {
    /// The process alone: a broker, which ends its own in order.
    Process,
    /// Everything that it has started.
    Group,
}

/// A broker that another one joins.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Parent {
    pub host: String,
    pub port: u16,
    /// At the start, an address of its name is enough, where Flux is to show what ZeroMQ does: it would take the agent's attempt at
    /// the port for a handshake that failed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub by_name: bool,
}

/// Figures of the instance, for those that scale by them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Metrics {
    pub port: u16,
    /// What the figures are labelled with.
    pub cluster: String,
}

/// How standard output reaches the container's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stdout {
    /// The child has the agent's own.
    Inherit,
    /// Through raw pseudo-terminals that the agent copies, one more for standard error: programs flush every line.
    LineBuffered,
    /// To nowhere.
    Discard,
}

/// What the end of a launched program means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "then")]
pub enum AtEnd {
    /// Its exit code is the container's.
    Exit,
    /// The same, but 0 after a stop is 128 and the signal: people worked in it, and nothing was completed.
    ExitUnlessStopped,
    /// 0 ends the container; otherwise again with backoff, unless the lead has ended (then 0 as well). With `again` the
    /// lead may start again in its pod: the container then waits for it, and ends when it is told to stop.
    RestartFollower {
        limit: u32,
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        again: bool,
    },
    /// The same, but one that has joined is not started again: the container ends with 0.
    Complete {
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        again: bool,
    },
}

/// Another user, for a program that gives up the agent's rights: its ids, and what HOME, USER and LOGNAME are for it, unless a
/// snippet has set them. They are nobody else's: what root runs (a shell, Python) would read files of that home.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct RunAs {
    #[serde(flatten)]
    pub owner: Owner,
    pub name: String,
    pub home: String,
}
