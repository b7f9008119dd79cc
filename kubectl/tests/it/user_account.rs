//! A user who runs jobs: an account with given rights, such as the documented ones, which calls the plugin.

use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use test_support::waiting::until_granted;
use tokio::io::{AsyncBufRead, AsyncBufReadExt};
use tokio::process::{Child, Command};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_kubectl-minicluster");

/// The documented rights (docs/tasks/kubectl.md).
pub const RIGHTS: &[(&str, &str)] = &[
    ("miniclusters.flux-framework.org", "get,list,watch,create,patch"),
    ("pods", "get,list,watch"),
    ("pods/log", "get"),
    ("pods/exec", "get,create"),
    ("events", "list"),
];

#[derive(Debug, Clone)]
pub struct UserAccount {
    pub kubeconfig: PathBuf,
    pub namespace: String,
}

impl UserAccount {
    /// Gives these rights to the namespace's ServiceAccount `name`, which exists, by the administrator's `kubectl`.
    /// With `kubeconfig`, the plugin acts as this account.
    pub fn with(
        namespace: &str,
        name: &str,
        rights: &[(&str, &str)],
        kubeconfig: PathBuf,
        kubectl: impl Fn(&[&str]) -> Result<String, String>,
    ) -> UserAccount {
        for (number, (resource, verbs)) in rights.iter().enumerate() {
            let role = format!("{name}-{number}");
            kubectl(&[
                "create",
                "role",
                &role,
                &format!("--verb={verbs}"),
                &format!("--resource={resource}"),
            ])
            .unwrap();
            let account = format!("--serviceaccount={namespace}:{name}");
            kubectl(&[
                "create",
                "rolebinding",
                &role,
                &format!("--role={role}"),
                &account,
            ])
            .unwrap();
        }
        // The API server learns of the grants in their order.
        let (resources, verbs) = rights.last().unwrap();
        let resource = resources.split(',').next().unwrap();
        let verb = verbs.split(',').next().unwrap();
        let account = format!("system:serviceaccount:{namespace}:{name}");
        until_granted(kubectl, &account, verb, resource);
        UserAccount {
            kubeconfig,
            namespace: namespace.to_owned(),
        }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(["-n", &self.namespace]).args(arguments);
        command.env("KUBECONFIG", &self.kubeconfig).env_remove("NO_COLOR");
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Runs the shell command `line` on a terminal that script(1) provides; `size` is arguments of stty. In `line`,
    /// `$plugin` is the plugin with this namespace.
    pub fn on_terminal(&self, size: &str, line: &str) -> Command {
        let mut script = Command::new("script");
        script.args([
            "--quiet",
            "--return",
            "--command",
            &format!("stty {size}; {line}"),
            "/dev/null",
        ]);
        script
            .env("KUBECONFIG", &self.kubeconfig)
            .env("plugin", format!("{PROGRAM} -n {}", self.namespace));
        script
            .env_remove("NO_COLOR")
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh");
        script
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        script
    }

    /// Runs the plugin in this namespace.
    pub async fn run(&self, arguments: &[&str]) -> PluginOutput {
        PluginOutput::of(
            in_time(&arguments.join(" "), self.command(arguments).output())
                .await
                .unwrap(),
        )
    }

    /// Starts the plugin, and does not wait for its end.
    pub fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).spawn().unwrap()
    }
}

/// Longer than any step takes. A test that hangs fails with a message.
const LONGEST: Duration = Duration::from_secs(180);

pub async fn in_time<T>(description: &str, done: impl Future<Output = T>) -> T {
    tokio::time::timeout(LONGEST, done)
        .await
        .unwrap_or_else(|_| panic!("not in time: {description}"))
}

/// The next line that a program prints.
pub async fn next_line(out: &mut (impl AsyncBufRead + Unpin)) -> String {
    let mut line = String::new();
    in_time("it prints a line", out.read_line(&mut line))
        .await
        .unwrap();
    line
}

/// Reads lines until these words have come. Returns all that was read.
pub async fn read_until(lines: &mut (impl AsyncBufRead + Unpin), words: &str) -> String {
    let mut text = String::new();
    while !text.contains(words) {
        let count = in_time(words, lines.read_line(&mut text)).await.unwrap();
        assert!(count > 0, "no `{words}` in {text}");
    }
    text
}

/// What the plugin printed, and its exit code.
#[derive(Debug)]
pub struct PluginOutput {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl PluginOutput {
    pub fn of(output: Output) -> PluginOutput {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        PluginOutput {
            code: output.status.code().unwrap(),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }

    pub async fn when_over(child: Child) -> PluginOutput {
        PluginOutput::of(
            in_time("the plugin ends", child.wait_with_output())
                .await
                .unwrap(),
        )
    }
}
