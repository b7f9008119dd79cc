//! The steps of a container, in order. The executor has a match arm for each.

use std::collections::BTreeMap;

use flux_shared::command_words::Word;
use serde::Serialize;

use super::{BrokerAddress, EnvChange, Launch, Mode, Owner};

/// A step of a container. Every step but `Launch` may run twice with the same result (a `Snippet` if its source allows
/// that): in a container that starts again, and after a failure that may be temporary. `CheckEarlierStarts` decides
/// whether the lead's program may run again.
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
    /// Set the user's password to the text of the file `source`, as SHA-512 crypt in /etc/shadow.
    Password { user: String, source: String },
    /// Let `owner` write to a directory. If they cannot write to it, the directory becomes theirs. A directory of the
    /// system, or one on a volume that belongs to another user, stays as it is, with a warning. A missing
    /// directory is no error.
    Give { path: String, owner: Owner },
    /// Start a program that goes to the background by itself. A failure is logged and ignored.
    Daemon { argv: Vec<String> },
    /// Create a directory with its parents. Mode and owner apply to the last component.
    Directory { path: String, mode: Mode, owner: Owner },
    /// Write a file: to a temporary name in its folder, and then renamed, so that it is never incomplete.
    File {
        path: String,
        mode: Mode,
        owner: Owner,
        content: Content,
    },
    /// Make a symbolic link. A link that leads elsewhere is replaced; a real file or directory is left alone.
    Link { path: String, target: String },
    /// Change variables of the environment for every later step.
    Environment { changes: Vec<EnvChange> },
    /// The shell that runs all snippets of the container. The first snippet starts it. A later one starts it again if
    /// it has ended, or no longer reads the agent's commands.
    Shell(SnippetShell),
    /// Run the user's shell source. The shell's state carries over to later snippets, and its environment to every
    /// later step.
    Snippet(Snippet),
    /// End the snippets' shell, which then runs its EXIT trap.
    EndShell,
    /// Read the facts of the container again, and plan the other steps from them: an earlier snippet may have
    /// created the user that Flux runs as.
    Replan,
    /// Before the lead's broker: if a snippet has written R, check it and make Flux use it.
    SnippetResources(SnippetResources),
    /// Wait until the parent broker's port answers or, with `only_looked_up`, its name has an address.
    WaitParent(BrokerAddress),
    /// Wait until a Unix socket exists and answers.
    WaitSocket { path: String },
    /// Check the record of earlier starts of this container before any program of the user runs. If the program has
    /// ended with 0, or because somebody shut the instance down, it never runs again; otherwise up to `restarts` times
    /// (`u32::MAX`: without a limit). The note `result` has the program's end if the container ended before it could
    /// record that. If the program may run, this step removes the note.
    // The name in the JSON of `dry-run` (`agent/plan/schema/dry-run.json`).
    #[serde(rename = "once")]
    CheckEarlierStarts {
        record: String,
        result: String,
        restarts: u32,
    },
    /// An earlier pod of this lead was lost, and its program may have run: run nothing here. Without a restart left,
    /// fail. Otherwise wait for a stop, since the operator restarts the whole MiniCluster.
    LeadLost { restarts_left: u32 },
    /// Start a program, supervise it, remember its exit code.
    Launch(Box<Launch>),
    /// Before the broker: remove the files of earlier dumps that were interrupted, and create the empty file `dump`,
    /// to which Flux may write. `leftovers`: the path of any dump, with a `*` for what differs between starts. If there
    /// is an archive, the next `Launch` has one more option, `-Scontent.restore=ARCHIVE`.
    PrepareArchive {
        archive: String,
        dump: String,
        leftovers: String,
        owner: Owner,
    },
    /// After the broker has ended: replace the archive by the dump, if the dump is complete and the broker itself did
    /// not fail. A failed job does not matter.
    PublishArchive { from: String, to: String },
    /// In a sidecar: from here on, a stop after the end of Flux is held back, so that the sidecar's command can end by
    /// itself. The hold lasts until `seconds` after the runner's container has written the file `note`
    /// ([`Step::NoteEnd`]).
    Linger { note: String, seconds: f64 },
    /// Write the file `note`, by which sidecars know that Flux has ended by itself. After a stop, it is not
    /// written.
    NoteEnd { note: String },
    /// Wait for a stop although the work is done: Kubernetes would restart a sidecar that exits.
    Stay,
}

/// The content of a file.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Content {
    Text(String),
    /// Shell lines `export NAME='value'`. The executor fills in variables from its environment when it writes the file,
    /// and quotes the values.
    Exports(BTreeMap<String, Word>),
    /// Copied from a file of a mounted Secret. Never shown.
    Secret {
        source: String,
    },
    /// The curve certificate, checked and copied from the mounted Secret. Never shown.
    Curve {
        source: String,
    },
    /// A curve certificate that all pods of the job derive alike, from a secret seed and values that identify the
    /// job. Never shown.
    DerivedCurve {
        /// Path of the file with the seed.
        seed: String,
        /// The name in the certificate.
        name: String,
        /// The values that identify the job.
        of: Vec<String>,
    },
}

/// The shell of a container's snippets.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SnippetShell {
    /// The shell, and the options that it is started with.
    pub argv: Vec<String>,
    /// The value of `$asFlux`: the words that, put before a command, run it as Flux's user. Not exported.
    pub as_flux: String,
    /// More variables for snippets, by name. Not exported. A variable is left out if the environment has its name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub variables: BTreeMap<&'static str, String>,
}

/// How the executor handles an R that a snippet has written.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SnippetResources {
    /// The file that snippets may write.
    pub path: String,
    /// The hosts that R must name, each once, as a hostlist.
    pub hosts: String,
    /// The agent's own R, if it was written before the snippets. None: each broker discovers its resources.
    // The name in the JSON of `dry-run`.
    #[serde(rename = "own", skip_serializing_if = "Option::is_none")]
    pub agents_r: Option<String>,
    /// A file that makes the broker use R, where broker.toml does not name it: its path and text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<(String, String)>,
    pub owner: Owner,
    /// Whether the container fails if R can be read, but not used. Otherwise Flux uses the agent's own R
    /// ([`Self::falls_back_to_agents_r`]) or the resources that each broker discovers.
    pub strict: bool,
}

impl SnippetResources {
    /// Whether Flux uses the agent's R if no snippet has written a usable one. With the user's own broker.toml, the
    /// agent writes R, but Flux reads it only if that file names it. Then there is no `config`.
    pub fn falls_back_to_agents_r(&self) -> bool {
        self.agents_r.is_some() && self.config.is_none()
    }
}

/// A snippet: shell source that the user wrote.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Snippet {
    /// The name of its field in the MiniCluster.
    pub name: &'static str,
    pub source: String,
    /// Whether a failing command ends the snippet and, with [`SnippetPhase::Before`], also the container, with the
    /// command's exit code. Otherwise a failure is logged and ignored.
    pub strict: bool,
    pub phase: SnippetPhase,
    /// With [`SnippetPhase::After`]: whether its exit code becomes the container's if the program ended with 0.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub decides: bool,
    /// Options that the shell sets before it, as arguments of `set`.
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
    /// Before the program. If the snippet ends the container, the program does not start.
    Before,
    /// The snippet is the program: its exit code becomes the container's.
    Program,
    /// After the program. Neither a stop meanwhile nor the snippet's own end changes the program's result (but see
    /// [`Snippet::decides`]).
    After,
}
