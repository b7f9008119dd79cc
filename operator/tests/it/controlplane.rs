//! A real etcd, API server and controller manager on free ports of 127.0.0.1, for the tests of this process.
//!
//! The programs come from `tests/controlplane/ensure`. They end with the [`ControlPlane`], and also when the test process
//! does in whatever way: a static is never dropped, and a killed process drops nothing. There is no kubelet: pods stay
//! Pending until a test writes their status.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

/// Far more than the 4 s it takes on a quiet machine, since a build may run beside it.
const START_DEADLINE: Duration = Duration::from_secs(90);
const POLL: Duration = Duration::from_millis(50);

pub type Result<T> = std::result::Result<T, String>;

#[derive(Debug)]
pub struct ControlPlane {
    directory: PathBuf,
    binary: PathBuf,
    url: String,
    admin_token: String,
    programs: Vec<Program>,
    spawner: Spawner,
}

#[derive(Debug)]
struct Program {
    name: &'static str,
    child: Child,
}

impl ControlPlane {
    /// Starts everything and waits until pods could be made. `manifests` (YAML, may be empty) are applied before the
    /// controller manager starts: its garbage collector looks for new kinds only every 30 seconds.
    pub fn start(manifests: &str) -> Result<Self> {
        let binary = ensure_binary()?;
        // A free port may be taken by somebody else until it is used.
        let mut attempts = 3;
        loop {
            attempts -= 1;
            match Self::try_start(&binary, manifests) {
                Err(message) if attempts > 0 && message.contains("address already in use") => {}
                result => return result,
            }
        }
    }

    fn try_start(binary: &Path, manifests: &str) -> Result<Self> {
        let [api_port, etcd_port, peer_port] = free_ports().map_err(|e| format!("failed to find a free port: {e}"))?;
        let directory = new_directory().map_err(|e| format!("failed to make a folder for the control plane: {e}"))?;
        let mut this = Self {
            directory,
            binary: binary.to_owned(),
            url: format!("https://127.0.0.1:{api_port}"),
            admin_token: random_token()?,
            programs: Vec::new(),
            spawner: Spawner::new(),
        };
        this.write_keys()?;

        let etcd = format!("http://127.0.0.1:{etcd_port}");
        let peer = format!("http://127.0.0.1:{peer_port}");
        this.run(
            "etcd",
            &[
                "--data-dir=etcd",
                "--unsafe-no-fsync",
                "--log-level=warn",
                &format!("--listen-client-urls={etcd}"),
                &format!("--advertise-client-urls={etcd}"),
                &format!("--listen-peer-urls={peer}"),
                &format!("--initial-advertise-peer-urls={peer}"),
                &format!("--initial-cluster=default={peer}"),
            ],
        )?;
        this.run(
            "kube-apiserver",
            &[
                "--bind-address=127.0.0.1",
                "--advertise-address=127.0.0.1",
                "--endpoint-reconciler-type=none", // 127.0.0.1 would be refused as an endpoint of the Service "kubernetes"
                &format!("--secure-port={api_port}"),
                &format!("--etcd-servers={etcd}"),
                "--cert-dir=certificates",
                "--token-auth-file=tokens.csv",
                "--authorization-mode=RBAC",
                "--service-cluster-ip-range=198.19.0.0/24", // reserved for laboratories; nothing is ever sent there
                "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
                "--service-account-key-file=service-account.key",
                "--service-account-signing-key-file=service-account.key",
            ],
        )?;
        // The certificate authority is written by the API server when it starts.
        this.wait_until("the API server is ready", |this| this.kubectl(&["get", "--raw=/readyz"]))?;
        this.apply(manifests)?;
        this.run(
            "kube-controller-manager",
            &[
                "--kubeconfig=controller-manager.json",
                "--secure-port=0",
                "--leader-elect=false",
                "--use-service-account-credentials",
                "--service-account-private-key-file=service-account.key",
                "--root-ca-file=certificates/apiserver.crt",
                "--kube-api-qps=500",
                "--kube-api-burst=1000",
            ],
        )?;
        this.wait_until("the controller manager works", |this| this.kubectl(&["get", "serviceaccount", "default"]))?;
        Ok(this)
    }

    /// The administrator's kubeconfig.
    pub fn kubeconfig_path(&self) -> PathBuf {
        self.directory.join("admin.json")
    }

    /// Writes a kubeconfig for somebody else, for example a ServiceAccount's token, and returns its path.
    pub fn kubeconfig_for_token(&self, name: &str, token: &str) -> Result<PathBuf> {
        let kubeconfig = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": {"server": self.url, "certificate-authority": self.ca_path()}}],
            "users": [{"name": name, "user": {"token": token}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
            "current-context": "test",
        });
        let path = self.directory.join(format!("{name}.json"));
        write(&path, &kubeconfig.to_string())?;
        Ok(path)
    }

    /// The certificate authority of the API server, PEM.
    pub fn ca_path(&self) -> PathBuf {
        self.directory.join("certificates/apiserver.crt")
    }

    pub fn server_url(&self) -> &str {
        &self.url
    }

    /// A token of the group system:masters.
    pub fn admin_token(&self) -> &str {
        &self.admin_token
    }

    /// Runs kubectl as the administrator, and returns its output.
    pub fn kubectl(&self, arguments: &[&str]) -> Result<String> {
        self.kubectl_with_input(arguments, "")
    }

    /// `kubectl apply` of YAML text, which may be empty.
    pub fn apply(&self, manifests: &str) -> Result<String> {
        if manifests.trim().is_empty() {
            return Ok(String::new());
        }
        self.kubectl_with_input(&["apply", "--server-side", "-f", "-"], manifests)
    }

    fn kubectl_with_input(&self, arguments: &[&str], input: &str) -> Result<String> {
        let mut command = Command::new(&self.binary);
        command.arg("kubectl").arg("--kubeconfig").arg(self.kubeconfig_path()).args(arguments);
        output(&mut command, input)
    }

    /// The key that signs ServiceAccount tokens, the tokens of our two users and their kubeconfigs.
    fn write_keys(&self) -> Result<()> {
        let mut openssl = Command::new("openssl");
        openssl.args(["ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out"]);
        output(openssl.arg(self.directory.join("service-account.key")), "")?;
        let controllers_token = random_token()?;
        let tokens = format!(
            "{},admin,admin,system:masters\n{controllers_token},system:kube-controller-manager,controllers,\n",
            self.admin_token
        );
        write(&self.directory.join("tokens.csv"), &tokens)?;
        self.kubeconfig_for_token("admin", &self.admin_token)?;
        self.kubeconfig_for_token("controller-manager", &controllers_token)?;
        Ok(())
    }

    /// Starts one program, with its output in `<name>.log`.
    fn run(&mut self, name: &'static str, arguments: &[&str]) -> Result<()> {
        let log = File::create(self.log_path(name)).map_err(|e| format!("failed to create the log of {name}: {e}"))?;
        let errors = log.try_clone().map_err(|e| format!("failed to share the log of {name}: {e}"))?;
        // setpriv has the kernel kill the program when the thread that started it ends, then becomes the program.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(&self.binary).arg(name).args(arguments);
        command.current_dir(&self.directory).stdin(Stdio::null()).stdout(log).stderr(errors);
        let child = self.spawner.spawn(command).map_err(|e| format!("failed to start {name} with setpriv: {e}"))?;
        self.programs.push(Program { name, child });
        Ok(())
    }

    fn wait_until<T>(&mut self, what: &str, attempt: impl Fn(&Self) -> Result<T>) -> Result<T> {
        let deadline = Instant::now() + START_DEADLINE;
        loop {
            let failure = match attempt(self) {
                Ok(value) => return Ok(value),
                Err(failure) => failure,
            };
            if let Some(name) = self.first_ended() {
                return Err(format!("{name} ended while waiting until {what}:\n{}", self.log_tail(name)));
            }
            if Instant::now() > deadline {
                let logs: Vec<_> = self.programs.iter().map(|program| self.log_tail(program.name)).collect();
                return Err(format!("gave up waiting until {what}: {failure}\n{}", logs.join("\n")));
            }
            thread::sleep(POLL);
        }
    }

    fn first_ended(&mut self) -> Option<&'static str> {
        let ended = |program: &mut Program| program.child.try_wait().is_ok_and(|status| status.is_some());
        self.programs.iter_mut().find_map(|program| ended(program).then_some(program.name))
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.log"))
    }

    fn log_tail(&self, name: &str) -> String {
        let log = fs::read_to_string(self.log_path(name)).unwrap_or_default();
        let lines: Vec<_> = log.lines().collect();
        format!("--- end of {name}.log\n{}", lines[lines.len().saturating_sub(12)..].join("\n"))
    }
}

impl Drop for ControlPlane {
    fn drop(&mut self) {
        for program in self.programs.iter_mut().rev() {
            // It may have ended by itself, which is what we want.
            let _ = program.child.kill();
            let _ = program.child.wait();
        }
        let _ = fs::remove_dir_all(&self.directory);
    }
}

/// Starts children from one thread that lives as long as this value: "parent death" is the death of the starting thread,
/// and each test has a thread of its own.
#[derive(Debug)]
struct Spawner(mpsc::Sender<(Command, mpsc::Sender<io::Result<Child>>)>);

impl Spawner {
    fn new() -> Self {
        let (sender, requests) = mpsc::channel::<(Command, mpsc::Sender<io::Result<Child>>)>();
        thread::spawn(move || {
            for (mut command, reply) in requests {
                let _ = reply.send(command.spawn());
            }
        });
        Self(sender)
    }

    fn spawn(&self, command: Command) -> io::Result<Child> {
        let (reply, answer) = mpsc::channel();
        self.0.send((command, reply)).map_err(io::Error::other)?;
        answer.recv().map_err(io::Error::other)?
    }
}

fn ensure_binary() -> Result<PathBuf> {
    let ensure = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/controlplane/ensure");
    // Its progress is for whoever runs the tests: it may build for minutes.
    let output = Command::new(&ensure).stderr(Stdio::inherit()).output();
    let output = output.map_err(|e| format!("failed to run {}: {e}", ensure.display()))?;
    if !output.status.success() {
        return Err(format!("{} found no control plane, see above", ensure.display()));
    }
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim_end()))
}

/// All are held at once, so that they differ.
fn free_ports<const N: usize>() -> io::Result<[u16; N]> {
    let mut ports = [0; N];
    let mut held = Vec::new();
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        *port = listener.local_addr()?.port();
        held.push(listener);
    }
    Ok(ports)
}

/// A folder below `target/tmp` that names our process. Those of processes that are gone are removed first.
fn new_directory() -> io::Result<PathBuf> {
    let parent = Path::new(env!("CARGO_TARGET_TMPDIR")).join("controlplane");
    fs::create_dir_all(&parent)?;
    for entry in fs::read_dir(&parent)? {
        let entry = entry?;
        let process = entry.file_name().to_string_lossy().split('-').next().map(|id| Path::new("/proc").join(id));
        if process.is_some_and(|process| !process.exists()) {
            // Another test process may be removing it as well.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
    let directory = (0..).map(|n| parent.join(format!("{}-{n}", std::process::id()))).find(|path| !path.exists());
    let directory = directory.ok_or(io::ErrorKind::AlreadyExists)?;
    fs::create_dir(&directory)?;
    Ok(directory)
}

fn random_token() -> Result<String> {
    let mut bytes = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut bytes));
    read.map_err(|e| format!("failed to read random bytes: {e}"))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn write(path: &Path, content: &str) -> Result<()> {
    fs::write(path, content).map_err(|e| format!("failed to write {}: {e}", path.display()))
}

/// What the command printed, given `input`; an error unless it exits with 0.
fn output(command: &mut Command, input: &str) -> Result<String> {
    let failed = |e: io::Error, command: &Command| format!("failed to run {:?}: {e}", command.get_program());
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| failed(e, command))?;
    // A command that ends without reading tells why by itself.
    let _ = child.stdin.take().map(|mut stdin| stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().map_err(|e| failed(e, command))?;
    if !output.status.success() {
        return Err(format!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim_end()));
    }
    String::from_utf8(output.stdout).map_err(|e| format!("{command:?} printed no text: {e}"))
}
