//! What a container does, one thing after the other: the executor has an arm for each.

use std::collections::BTreeMap;

use flux_shared::command_words::Word;
use serde::Serialize;

use super::{EnvChange, Launch, Mode, Owner, Parent};

/// One thing to do. Every step may run twice with the same result.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "step", rename_all = "kebab-case")]
pub enum Step {
    /// Add a user and its group to /etc/passwd and /etc/group unless it exists.
    User {
        name: String,
        uid: u32,
        gid: u32,
        home: String,
    },
    /// Give the user the password that stands in the file, as its SHA-512 crypt in /etc/shadow.
    Password { user: String, source: String },
    /// Make the owner able to write to a directory: one that they cannot write to becomes theirs, unless it
    /// is the system's, or on a volume and somebody else's. Then it is a warning. A missing one is no error.
    Give { path: String, owner: Owner },
    /// Start a program that goes to the background by itself. A failure is logged and ignored.
    Daemon { argv: Vec<String> },
    /// A directory with its parents; mode and owner apply to the last component.
    Directory { path: String, mode: Mode, owner: Owner },
    /// A whole file, written beside and renamed.
    File {
        path: String,
        mode: Mode,
        owner: Owner,
        content: Content,
    },
    /// A symbolic link, replaced if it leads elsewhere; left alone if a real file or directory stands there.
    Link { path: String, target: String },
    /// Variables for every later step.
    Environment { changes: Vec<EnvChange> },
    /// The one shell that runs all of the container's snippets: the first of them starts it, and one that
    /// follows a program which has ended it starts it again.
    Shell(SnippetShell),
    /// The user's shell source; state carries over to later snippets and to every later step's environment.
    Snippet(Snippet),
    /// The snippets' shell ends: what it traps on EXIT runs.
    EndShell,
    /// Plan the rest of the steps anew, with what the container says now: a snippet before may have made the
    /// user that Flux is to run as.
    Replan,
    /// Before the lead's broker: if a snippet has written R, it is checked, and Flux uses it.
    SnippetResources(SnippetResources),
    /// Wait until the parent broker's port answers, or its name has an address.
    WaitParent(Parent),
    /// Wait until a Unix socket exists and answers.
    WaitSocket { path: String },
    /// Check the record of earlier starts of this container, before anything of the user's runs: in them the
    /// program may have run. It never runs again once it has ended with 0; otherwise `restarts` times. The note
    /// `result` has the end of a program whose container ended before it could record that.
    #[serde(rename = "once")]
    CheckEarlierStarts {
        record: String,
        result: String,
        restarts: u32,
    },
    /// An earlier pod of this lead was lost, and its program may have run: run nothing here. Without a
    /// restart left, fail; otherwise wait to be stopped, since the operator starts the whole MiniCluster
    /// anew.
    LeadLost { restarts_left: u32 },
    /// Start a program, supervise it, remember its exit code.
    Launch(Box<Launch>),
    /// Before the broker: remove the files of earlier dumps that were interrupted (the name with a `*`), and
    /// create an empty file that Flux may write to.
    PrepareArchive {
        dump: String,
        leftovers: String,
        owner: Owner,
    },
    /// After the broker has ended: put the dump in the archive's place, if it is whole and the broker ended
    /// well.
    PublishArchive { from: String, to: String },
    /// From here on, a stop that follows the end of Flux is held back: until `seconds` after the note was
    /// written.
    Linger { note: String, seconds: f64 },
    /// Write the note that this container has ended by itself; after a stop, none.
    NoteEnd { note: String },
    /// Stay until told to stop, although the work is done: Kubernetes would start a sidecar again.
    Stay,
}

/// What a file holds.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    Text(String),
    /// Shell lines `export NAME='value'`, quoted by the writer, with the environment of that moment.
    Exports(BTreeMap<String, Word>),
    /// Copied from a mounted Secret; never shown.
    Secret {
        source: String,
    },
    /// The curve certificate: checked and copied from the mounted Secret; never shown.
    Curve {
        source: String,
    },
    /// A curve certificate that every pod of the job derives alike: from the secret seed in a file, and from
    /// what tells this job from others. Never shown.
    DerivedCurve {
        seed: String,
        /// The name in the certificate.
        name: String,
        of: Vec<String>,
    },
}

/// The shell of a container's snippets.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SnippetShell {
    /// The shell, and the options that it is started with.
    pub argv: Vec<String>,
    /// The value of `$asFlux`: words that run what follows them as Flux's user. Not exported.
    pub as_flux: String,
    /// More variables that snippets find, by name. Not exported, and left out where the environment has the
    /// name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<&'static str, String>,
}

/// What becomes of an R that a snippet has written.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SnippetResources {
    /// The file that snippets may write.
    pub path: String,
    /// The hosts that R must name, each once: a hostlist.
    pub hosts: String,
    /// The agent's R, if it was written before the snippets; none: each broker discovers what it has.
    #[serde(rename = "own", skip_serializing_if = "Option::is_none")]
    pub agents_r: Option<String>,
    /// A file that makes the broker use R, where broker.toml does not name it: its path and text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<(String, String)>,
    pub owner: Owner,
    /// Whether an R that cannot be used ends the container; otherwise the agent's own takes its place.
    pub strict: bool,
}

/// Shell source of the user's.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Snippet {
    /// The name of its field in the MiniCluster.
    pub name: &'static str,
    pub source: String,
    /// Whether a failing command ends it, and with [`SnippetPhase::Before`] the container with its code;
    /// otherwise it is logged and ignored.
    pub strict: bool,
    pub phase: SnippetPhase,
    /// With [`SnippetPhase::After`]: whether its failure gives the container its code if the program's is 0.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub decides: bool,
    /// Options that the shell sets before it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<&'static str>,
    /// The variable that is set to the working directory before it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub directory_variable: Option<&'static str>,
    /// Whether its output is hidden; the last of its errors is shown if it fails.
    pub silent: bool,
}

/// When a snippet runs, and what its end means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum SnippetPhase {
    /// Before the program, which does not start if the snippet ends the container.
    Before,
    /// It is the program: its code is the container's.
    Program,
    /// After the program, whose result neither a stop that comes meanwhile nor its own end changes.
    After,
}
