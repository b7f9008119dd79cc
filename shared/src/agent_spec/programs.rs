//! What runs in the pods: the lead's program, snippets, sidecars.

use serde::{Deserialize, Serialize};

use super::{is_false, yes};
use crate::command_words::Word;

fn logs() -> String {
    crate::paths::DEFAULT_LOGS.into()
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

impl Program {
    /// Whether the program is a command, script or batch of the user's.
    pub fn is_from_user(&self) -> bool {
        !matches!(self, Program::Persistent | Program::Diagnostics)
    }
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
    /// Start no initial program (`broker.rc2_none`), except diagnostics. The broker runs until it is shut down.
    #[serde(default, skip_serializing_if = "is_false")]
    pub interactive: bool,
    /// Words before submit, batch, the launcher's command, the broker, the followers' start, and the lead's start with the
    /// RESTful API or diagnostics.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub prefix: Vec<Word>,
    /// Cores 0 to n-1 of every node. Unset: those that the container may use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// CPU limit of the container, in CPUs. It counts where the container's cgroup has no quota, as with the kubelet's
    /// `cpuCFSQuota: false`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_limit: Option<f64>,
    /// The container requests GPUs: the scheduler is Fluxion if the view has it, unless `scheduler` says otherwise.
    #[serde(default, skip_serializing_if = "is_false")]
    pub gpus: bool,
    /// Directory for the output of batch jobs.
    #[serde(default = "logs")]
    pub logs: String,
    /// The user to run Flux as. Unset: the container's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<RunnerUser>,
    /// The requested working directory; the user that runs Flux must be able to write to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub working_dir: Option<String>,
    /// Variables that differ between pods (the downward API's, and those that refer to them): a task has those of its
    /// own pod. `HOSTNAME` and `JOB_COMPLETION_INDEX` always differ, and need not be listed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub per_pod: Vec<String>,
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

impl Runner {
    /// The cores that the spec declares for every node. 0 declares none.
    pub fn declared_cores(&self) -> Option<u32> {
        self.cores.filter(|cores| *cores > 0)
    }

    /// Whether `interactive` leaves the instance to its users: no initial program runs, even if one is given.
    /// Diagnostics are the exception: they run in an interactive MiniCluster, too.
    pub fn is_left_to_users(&self) -> bool {
        self.interactive && self.program != Program::Diagnostics
    }
}

/// The Flux RESTful API. Its key, user and token are files of the mounted Secret.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Restful {
    /// Git URL of its repository.
    #[serde(default = "restful_repository")]
    pub repository: String,
    /// Branch or tag.
    #[serde(default = "restful_branch")]
    pub branch: String,
    /// Port that it listens on.
    #[serde(default = "restful_port")]
    pub port: u16,
}

/// Default Git URL of the Flux RESTful API. The operator's `--restful-repository` replaces it, such as by a mirror.
pub const RESTFUL_REPOSITORY: &str = "https://github.com/flux-framework/flux-restful-api";

/// Default branch of the Flux RESTful API.
pub const RESTFUL_BRANCH: &str = "main";

/// Default port of the Flux RESTful API.
pub const RESTFUL_PORT: u16 = 5000;

/// The commit that is run for the default branch: without a choice of the user, the code that runs must not
/// change by itself.
pub const RESTFUL_COMMIT: &str = "46dcc3276f85aad19fc91214b5dde9de3116151c";

impl Restful {
    /// The commit to run. None: the newest one of the branch or tag, since it is not the default branch.
    pub fn commit(&self) -> Option<&'static str> {
        (self.branch == RESTFUL_BRANCH).then_some(RESTFUL_COMMIT)
    }
}

fn restful_repository() -> String {
    RESTFUL_REPOSITORY.into()
}
fn restful_branch() -> String {
    RESTFUL_BRANCH.into()
}
fn restful_port() -> u16 {
    RESTFUL_PORT
}

impl Default for Restful {
    fn default() -> Self {
        Restful {
            repository: restful_repository(),
            branch: restful_branch(),
            port: restful_port(),
        }
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
            cpu_limit: None,
            gpus: false,
            logs: logs(),
            user: None,
            working_dir: None,
            per_pod: Vec::new(),
            snippets: Snippets::default(),
            program: Program::Persistent,
            restful: None,
        }
    }
}

/// The user to run Flux as; created if missing, for which the agent must be root.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct RunnerUser {
    /// User name.
    pub name: String,
    /// User id, if the user must be created.
    pub uid: u32,
    /// Create the user, but run Flux as the container's own user (root).
    #[serde(default, skip_serializing_if = "is_false")]
    pub run_flux_as_root: bool,
}

impl RunnerUser {
    /// The user id if the spec names none.
    pub const DEFAULT_UID: u32 = 1000;
}

/// The user's shell source, in the order in which it runs.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Snippets {
    /// Runs first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<String>,
    /// Runs next, after Flux's files are written, or before them where the image's own Flux runs as another
    /// user (`[runner.user]` without a view).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_command: Option<String>,
    /// Runs next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre: Option<String>,
    /// Runs next, on the lead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker_pre: Option<String>,
    /// Runs next, on the followers, before the wait for the parent broker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worker_pre: Option<String>,
    /// Runs after Flux has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post: Option<String>,
}

impl Snippets {
    /// The snippets that run before the lead's broker (`of_lead`) or a follower's, in their order.
    pub fn before_broker(&self, of_lead: bool) -> impl Iterator<Item = &String> {
        let last = if of_lead {
            &self.broker_pre
        } else {
            &self.worker_pre
        };
        [&self.init, &self.pre_command, &self.pre, last]
            .into_iter()
            .flatten()
    }
}

/// A container beside the runner whose entrypoint is the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Sidecar {
    /// The sidecar declares ports: a server, which ends as soon as Flux has ended. Others have up to 10 s (at most
    /// two thirds of the grace period) to end by themselves.
    #[serde(default, skip_serializing_if = "is_false")]
    pub serves: bool,
    /// Wait for the broker's socket before the command.
    #[serde(default = "yes")]
    pub wait_socket: bool,
    /// Runs first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub init: Option<String>,
    /// Runs next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre_command: Option<String>,
    /// Runs next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pre: Option<String>,
    /// Runs next, before the wait for the broker's socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service_pre: Option<String>,
    /// Shell source to run as the sidecar's program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// A script to run instead of the command. Without a `#!`, the image's shell runs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub script: Option<String>,
    /// Runs after the command.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post: Option<String>,
}

impl Default for Sidecar {
    fn default() -> Self {
        Sidecar {
            serves: false,
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
