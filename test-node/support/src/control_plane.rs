//! A real etcd, API server and controller manager for the tests of this process (`test-node/control-plane`).
//!
//! They end when their standard input is closed. So they end with this process, even if it is killed. `Drop` alone
//! would not do: a static is never dropped, and a killed process drops nothing. There is no kubelet: pods stay
//! Pending until a test writes their status.

use std::fmt::Display;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::repository::repository;

pub type Result<T> = std::result::Result<T, String>;

#[derive(Debug)]
pub struct ControlPlane {
    starter: Child,
    binary: PathBuf,
    kubeconfig: PathBuf,
}

/// Writes a copy of a kubeconfig with `address` as server. Returns its path, and the original server.
pub fn kubeconfig_via(kubeconfig: &Path, name: &str, address: SocketAddr) -> Result<(PathBuf, String)> {
    let failed = |path: &Path, error: &dyn Display| format!("failed at {}: {error}", path.display());
    let text = fs::read_to_string(kubeconfig).map_err(|e| failed(kubeconfig, &e))?;
    let server = text
        .lines()
        .find_map(|line| line.trim().strip_prefix("server: https://"));
    let server = server.ok_or_else(|| failed(kubeconfig, &"no https server"))?;
    let path = kubeconfig.with_file_name(format!("{name}.kubeconfig"));
    fs::write(&path, text.replace(server, &address.to_string())).map_err(|e| failed(&path, &e))?;
    Ok((path, server.to_owned()))
}

impl ControlPlane {
    /// Starts everything, and returns when pods can be created. This takes 4 s, or 5 minutes if Kubernetes has
    /// to be built first. The manifests are applied before the garbage collector first looks for kinds: it looks
    /// again only after 30 s, and would not know their kinds until then.
    pub fn start(manifests: &str) -> Result<Self> {
        Self::start_with(manifests, &[])
    }

    /// Like [`ControlPlane::start`], with variables for `test-node/control-plane`.
    pub fn start_with(manifests: &str, variables: &[(&str, &str)]) -> Result<Self> {
        let mut file = tempfile::NamedTempFile::new().map_err(|e| format!("failed to make a file: {e}"))?;
        file.write_all(manifests.as_bytes())
            .map_err(|e| format!("failed to write the manifests: {e}"))?;
        let folder = repository().join("test-node");
        // `build` prints the folder in which it has built the program `node`.
        let binary = match std::env::var_os("CONTROLPLANE") {
            Some(binary) => binary.into(),
            None => {
                Path::new(&first_line(&mut start(&mut Command::new(folder.join("build")))?)?).join("node")
            }
        };
        let mut starter = start(
            Command::new(folder.join("control-plane"))
                .env("CONTROLPLANE", &binary)
                .envs(variables.to_vec())
                .arg(file.path()),
        )?;
        let kubeconfig = first_line(&mut starter)?.into();
        Ok(Self {
            starter,
            binary,
            kubeconfig,
        })
    }

    /// The program that contains all of Kubernetes' programs, chosen by its first argument.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// The administrator's kubeconfig: an https server on 127.0.0.1, its certificate authority, a token.
    pub fn kubeconfig_path(&self) -> &Path {
        &self.kubeconfig
    }

    /// The CPU seconds that one of its programs has taken, such as `kube-apiserver`.
    pub fn cpu_seconds(&self, program: &str) -> Result<f64> {
        // All programs of this control plane run in the folder of its kubeconfig, and none of another one does.
        let folder = self.kubeconfig.parent();
        let processes = fs::read_dir("/proc").map_err(|e| format!("failed to list processes: {e}"))?;
        let is_wanted = |process: &Path| {
            let words = fs::read(process.join("cmdline")).unwrap_or_default();
            let is_program = words
                .split(|byte| *byte == 0)
                .any(|word| word == program.as_bytes());
            is_program && fs::read_link(process.join("cwd")).ok().as_deref() == folder
        };
        let process = processes
            .flatten()
            .map(|entry| entry.path())
            .find(|process| is_wanted(process));
        let process = process.ok_or_else(|| format!("{program} does not run"))?;
        let stat =
            fs::read_to_string(process.join("stat")).map_err(|e| format!("failed to read its times: {e}"))?;
        // The text behind the program's name, which is in parentheses, begins with field 3 of proc_pid_stat(5).
        // Items 11 and 12 are then fields 14 and 15: the user and system time, in hundredths of a second.
        let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
        let ticks = |field: usize| {
            fields
                .get(field)
                .and_then(|ticks| ticks.parse::<f64>().ok())
                .unwrap_or_default()
        };
        Ok((ticks(11) + ticks(12)) / 100.0)
    }

    /// Writes a kubeconfig with another token, such as a ServiceAccount's from `kubectl create token`.
    pub fn kubeconfig_for_token(&self, name: &str, token: &str) -> Result<PathBuf> {
        let path = self.kubeconfig.with_file_name(format!("{name}.kubeconfig"));
        fs::copy(&self.kubeconfig, &path).map_err(|e| format!("failed to write {}: {e}", path.display()))?;
        self.run(
            &path,
            &["config", "set-credentials", "user", "--token", token.trim_end()],
            "",
        )?;
        Ok(path)
    }

    /// Runs kubectl as the administrator, and returns its output.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.run(&self.kubeconfig, arguments, "")
    }

    /// Applies YAML text as the administrator.
    pub fn apply(&self, manifests: &str) -> Result<String> {
        self.run(
            &self.kubeconfig,
            &["apply", "--server-side", "-f", "-"],
            manifests,
        )
    }

    fn run(&self, kubeconfig: &Path, arguments: &[&str], input: &str) -> Result<String> {
        let mut command = Command::new(&self.binary);
        command
            .arg("kubectl")
            .arg("--kubeconfig")
            .arg(kubeconfig)
            .args(arguments)
            .stderr(Stdio::piped());
        let mut kubectl = start(&mut command)?;
        // If kubectl ends without reading its input, its own error is reported below.
        let _ = kubectl
            .stdin
            .take()
            .map(|mut stdin| stdin.write_all(input.as_bytes()));
        let output = kubectl
            .wait_with_output()
            .map_err(|e| format!("failed to wait for kubectl: {e}"))?;
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() {
            Ok(text(&output.stdout))
        } else {
            Err(format!(
                "kubectl {}: {}",
                arguments.join(" "),
                text(&output.stderr).trim_end()
            ))
        }
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        drop(self.starter.stdin.take());
        let _ = self.starter.wait();
    }
}

fn start(command: &mut Command) -> Result<Child> {
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    command
        .spawn()
        .map_err(|e| format!("failed to start {}: {e}", command.get_program().display()))
}

/// The first line that the program prints; its errors go to the standard error of the tests.
fn first_line(child: &mut Child) -> Result<String> {
    let output = child.stdout.take().ok_or("standard output is not a pipe")?;
    match BufReader::new(output).lines().next() {
        Some(Ok(line)) => Ok(line),
        _ => Err("the control plane did not start, see above".to_owned()),
    }
}
