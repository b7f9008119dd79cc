//! A person who runs jobs: an account with the rights that the documents name, and the plugin.

use std::path::PathBuf;
use std::process::{Output, Stdio};

use tokio::process::{Child, Command};

pub const PROGRAM: &str = env!("CARGO_BIN_EXE_kubectl-minicluster");

/// What the documents say that it takes (docs/tasks/kubectl.md).
pub const RIGHTS: &[(&str, &str)] = &[
    ("miniclusters.flux-framework.org", "get,list,watch,create,patch"),
    ("pods", "get,list,watch"),
    ("pods/log", "get"),
    ("pods/exec", "get,create"),
    ("events", "list"),
];

pub struct Person {
    pub kubeconfig: PathBuf,
    namespace: String,
}

impl Person {
    /// An account of the namespace, made by `kubectl`, which is called there as an administrator.
    pub fn with(namespace: &str, kubeconfig: PathBuf, kubectl: impl Fn(&[&str])) -> Person {
        for (number, (resource, verbs)) in RIGHTS.iter().enumerate() {
            let role = format!("person-{number}");
            kubectl(&["create", "role", &role, &format!("--verb={verbs}"), &format!("--resource={resource}")]);
            let account = format!("--serviceaccount={namespace}:person");
            kubectl(&["create", "rolebinding", &role, &format!("--role={role}"), &account]);
        }
        Person { kubeconfig, namespace: namespace.to_owned() }
    }

    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(PROGRAM);
        command.args(["-n", &self.namespace]).args(arguments);
        command.env("KUBECONFIG", &self.kubeconfig).env("NO_COLOR", "1");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    /// Calls it, in this namespace.
    pub async fn says(&self, arguments: &[&str]) -> Said {
        Said::of(self.command(arguments).output().await.unwrap())
    }

    /// Calls it, and does not wait for its end.
    pub fn starts(&self, arguments: &[&str]) -> Child {
        self.command(arguments).spawn().unwrap()
    }
}

/// What it printed, and its end.
#[derive(Debug)]
pub struct Said {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Said {
    pub fn of(output: Output) -> Said {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Said { code: output.status.code().unwrap(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    pub async fn when_over(child: Child) -> Said {
        Said::of(child.wait_with_output().await.unwrap())
    }
}
