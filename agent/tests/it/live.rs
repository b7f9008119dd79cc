//! Agents that tests observe and signal while they run.

use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use flux_shared::termination::Termination;
use nix::sys::signal::Signal::SIGKILL;
pub use test_support::waiting::eventually;
use test_support::waiting::{DEADLINE, within};

use crate::image::{Container, Ended, Image, V4, agent, enter, fake_flux, folder, host_program};

/// A running agent, perhaps inside of wrappers. It is killed when this is dropped, as PID 1 with all its processes.
pub struct Running {
    child: Child,
    pub folder: tempfile::TempDir,
    pub pid: i32,
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}{}", self.stdout(), self.stderr());
        }
        // After it was reaped, its pid may belong to another process.
        if self.child.try_wait().is_ok_and(|status| status.is_none()) {
            let _ =
                nix::sys::signal::killpg(nix::unistd::Pid::from_raw(self.child.id().cast_signed()), SIGKILL);
            let _ = self.child.wait();
        }
    }
}

impl Running {
    /// Starts `command`. `find` returns the agent's pid, given that of the started process. If this process ends
    /// before the agent is found, the pid is 0.
    fn start(command: Command, find: impl Fn(i32) -> Option<i32>) -> Running {
        Running::start_with(command, Stdio::null(), find)
    }

    fn start_with(mut command: Command, input: Stdio, find: impl Fn(i32) -> Option<i32>) -> Running {
        let folder = folder();
        let file = |name: &str| File::create(folder.path().join(name)).unwrap();
        command
            .stdin(input)
            .stdout(file("out"))
            .stderr(file("err"))
            .process_group(0);
        let mut child = command.spawn().unwrap();
        let first = child.id().cast_signed();
        let pid = eventually("the agent runs", || {
            find(first).or_else(|| child.try_wait().unwrap().map(|_| 0))
        });
        Running { child, folder, pid }
    }

    /// Starts `flux-agent words…` directly.
    pub fn plain(words: &[&str]) -> Running {
        let mut command = Command::new(agent());
        command.args(words);
        Running::start(command, Some)
    }

    /// Starts `flux-agent words…` as PID 1 of a namespace.
    pub fn as_init(words: &[&str]) -> Running {
        let mut command = Command::new("unshare");
        command
            .args(["--fork", "--pid", "--mount-proc", "--kill-child"])
            .arg(agent())
            .args(words);
        Running::start(command, |first| child_of(first).filter(|pid| is_agent(*pid)))
    }

    /// Starts an agent, perhaps as PID 1, with a terminal and with `wrappers` before its command. The terminal exists
    /// until the returned file is dropped.
    pub fn on_terminal(wrappers: &[&str], agent: &Command) -> (Running, File) {
        let mut command = Command::new(wrappers[0]);
        command
            .args(&wrappers[1..])
            .arg(agent.get_program())
            .args(agent.get_args());
        command.envs(agent.get_envs().filter_map(|(name, value)| Some((name, value?))));
        let pty = nix::pty::openpty(None, None).unwrap();
        let below =
            |first| std::iter::successors(Some(first), |pid| child_of(*pid)).find(|pid| is_agent(*pid));
        (
            Running::start_with(command, pty.slave.into(), below),
            pty.master.into(),
        )
    }

    /// Starts a container as a pod in `network`.
    pub fn pod(container: &Container, network: &Network) -> Running {
        Running::pod_with(container, network, Stdio::null())
    }

    /// Like [`Running::pod`], with a terminal as for `tty: true`. The terminal exists until the returned
    /// descriptor is dropped.
    pub fn pod_with_terminal(
        image: &Image,
        hostname: &str,
        words: &[&str],
        network: &Network,
    ) -> (Running, OwnedFd) {
        let mut container = Container::new(image, hostname, words);
        container.outside = ["setsid", "--ctty"].map(str::to_owned).into();
        let pty = nix::pty::openpty(None, None).unwrap();
        (
            Running::pod_with(&container, network, pty.slave.into()),
            pty.master,
        )
    }

    fn pod_with(container: &Container, network: &Network, input: Stdio) -> Running {
        let variables = container
            .environment
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        let root = container.image.top().display().to_string();
        let inner = enter() + &container.before + "\nshift 2\nexec \"$@\"";
        let mut command = Command::new("nsenter");
        command.args(["-t", &network.holder.id().to_string(), "--net"]);
        command.args([
            "unshare",
            "--mount",
            "--uts",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-ec",
            &inner,
            "-",
        ]);
        command
            .args([&container.hostname, &root])
            .args(&container.outside)
            .args(["env", "-i"])
            .args(variables);
        let (uid, gid) = container.ids;
        command
            .args(["chroot", &format!("--userspec={uid}:{gid}"), &root])
            .args(&container.command);
        Running::start_with(command, input, |first| {
            child_of(first).filter(|pid| is_agent(*pid))
        })
    }

    pub fn signal(&self, signal: i32) {
        assert_ne!(self.pid, 0, "it ended before it was found: {}", self.stderr());
        send(self.pid, signal);
    }

    pub fn stdout(&self) -> String {
        self.text("out")
    }

    pub fn stderr(&self) -> String {
        self.text("err")
    }

    fn text(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.folder.path().join(name)).unwrap()).into_owned()
    }

    /// Waits until the agent's output contains `text`.
    pub fn wait_for_output(&self, text: &str) {
        eventually(&format!("{text:?} in the output"), || {
            let all = self.stdout() + &self.stderr();
            all.contains(text).then_some(())
        });
    }

    /// Runs a command in the pod, as `kubectl exec` does.
    pub fn exec(&self, words: &[&str]) -> std::process::Output {
        let mut command = Command::new("nsenter");
        command
            .args([
                "-t",
                &self.pid.to_string(),
                "--mount",
                "--uts",
                "--net",
                "--pid",
                "--root",
            ])
            .args(words);
        command.stdin(Stdio::null()).output().unwrap()
    }

    /// The direct children of the agent.
    pub fn children(&self) -> Vec<i32> {
        children_of(self.pid)
    }

    pub fn end(mut self) -> Ended {
        Ended {
            code: self.code(),
            stdout: self.stdout(),
            stderr: self.stderr(),
        }
    }

    /// Waits for the end. Returns the exit code.
    pub fn code(&mut self) -> i32 {
        self.code_within(DEADLINE)
    }

    /// Like [`Running::code`], with another deadline.
    pub fn code_within(&mut self, deadline: Duration) -> i32 {
        let status = within(deadline, "the end of the agent", || {
            self.child.try_wait().unwrap()
        });
        status.code().unwrap_or_else(|| 128 + status.signal().unwrap())
    }
}

/// A network for pods. (If the test is killed, the process that holds it ends after ten minutes.)
pub struct Network {
    holder: Child,
}

impl Network {
    pub fn new() -> Network {
        Network::of(&[V4])
    }

    /// A network in which each of up to four pods has an address with each of these prefixes.
    pub fn of(networks: &[&str]) -> Network {
        let addresses = networks
            .iter()
            .flat_map(|network| (1..5).map(move |number| format!("{network}{number}")));
        let add: String = addresses
            .map(|address| format!("ip addr add {address} dev lo\n"))
            .collect();
        let script = format!("ip link set lo up\n{add}echo\nexec sleep 600");
        let mut command = Command::new("unshare");
        command
            .args(["--net", "sh", "-ec", &script])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut holder = command.spawn().unwrap();
        // The byte comes once the network has its addresses.
        let mut line = [0];
        std::io::Read::read_exact(holder.stdout.as_mut().unwrap(), &mut line).unwrap();
        Network { holder }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// Sends any signal, by number, as `kill` does.
pub fn send(pid: i32, signal: i32) {
    // The shell's builtin takes a signal's number with `-n`.
    let words = [
        "-c",
        "kill -n \"$0\" \"$1\"",
        &signal.to_string(),
        &pid.to_string(),
    ]
    .map(str::to_owned);
    // Ignores errors: the process may have just ended. Tests check how it ended.
    let _ = Command::new("bash").args(words).stderr(Stdio::null()).status();
}

pub fn children_of(pid: i32) -> Vec<i32> {
    // Flux's broker starts programs from several threads.
    let threads = fs::read_dir(format!("/proc/{pid}/task"))
        .into_iter()
        .flatten()
        .flatten();
    let texts = threads.map(|thread| fs::read_to_string(thread.path().join("children")).unwrap_or_default());
    texts
        .flat_map(|text| {
            text.split_whitespace()
                .map(|pid| pid.parse().unwrap())
                .collect::<Vec<_>>()
        })
        .collect()
}

/// The program that a process runs.
pub fn program_of(pid: i32) -> String {
    let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    String::from_utf8_lossy(line.split(|byte| *byte == 0).next().unwrap_or_default()).into_owned()
}

fn child_of(pid: i32) -> Option<i32> {
    children_of(pid).first().copied()
}

fn is_agent(pid: i32) -> bool {
    program_of(pid).contains("flux-agent")
}

/// State letter of a process: R, S, T, Z …
pub fn state_of(pid: i32) -> Option<char> {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    text.rsplit_once(") ")?.1.chars().next()
}

/// A cluster of one pod, on this host with the fake Flux: its folder and the arguments of `run`.
pub struct Solo {
    pub folder: tempfile::TempDir,
    words: Vec<String>,
}

impl Solo {
    /// `top` is TOML with tables of the spec, `snippets` the TOML of `[runner.snippets]`. `command` is for sh.
    pub fn new(top: &str, snippets: &str, command: &str) -> Solo {
        let folder = folder();
        let at = |name: &str| folder.path().join(name);
        let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
        let spec = format!(
            "name = 'mc'\nmount_path = '{}'\n[network]\nhostlist = '{host}'\n[view]\nenabled = false\n{top}\n\
             [runner.snippets]\n{snippets}\n[runner.program]\nmode = 'launcher'\nwords = ['sh', '-c', {}]\n",
            at("flux").display(),
            serde_json::to_string(command).unwrap(),
        );
        fs::create_dir(at("flux")).unwrap();
        fs::create_dir(at("bin")).unwrap();
        fs::write(at("spec"), spec).unwrap();
        // Like the kubelet. The agent writes its termination message only to an existing file.
        fs::write(at("termination"), "").unwrap();
        std::os::unix::fs::symlink(fake_flux(), at("bin/flux")).unwrap();
        std::os::unix::fs::symlink(agent(), at("flux/flux-agent")).unwrap();
        let spec = at("spec").display().to_string();
        let termination = at("termination").display().to_string();
        let words = ["run", "--spec", &spec, "--termination-log", &termination];
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        Solo { folder, words }
    }

    /// Adds programs of this host to the PATH. With [`Solo::run`], it has no others but `flux`.
    pub fn with(self, programs: &[&str]) -> Solo {
        for name in programs {
            std::os::unix::fs::symlink(host_program(name), self.folder.path().join("bin").join(name))
                .unwrap();
        }
        self
    }

    /// Changes the spec.
    pub fn edit(&self, change: impl Fn(&str) -> String) {
        let spec = self.folder.path().join("spec");
        fs::write(&spec, change(&text_of(&spec))).unwrap();
    }

    /// The command. If `init`, the agent is PID 1 of a namespace, and its PATH also has the programs of this host.
    pub fn command(&self, init: bool, more: &[&str]) -> Command {
        let mut command = Command::new(if init {
            Path::new("/usr/bin/unshare")
        } else {
            agent()
        });
        if init {
            command
                .args(["--fork", "--pid", "--mount-proc", "--kill-child"])
                .arg(agent());
        }
        command
            .args(&self.words)
            .args(more)
            .env_clear()
            .env("HOME", "/root");
        command
            .env("PATH", self.folder.path().join("bin"))
            // No variable of a shell can have this name. A test checks that Flux still gets the variable.
            .env("ODD-NAME", "kept");
        command.env("FAKE_FLUX_RECORD", self.folder.path().join("record"));
        if init {
            command.env(
                "PATH",
                format!("{}:/usr/bin:/bin", self.folder.path().join("bin").display()),
            );
        }
        command
    }

    /// Runs the agent to its end.
    pub fn run(&self, more: &[&str]) -> Ended {
        Running::start(self.command(false, more), Some).end()
    }

    /// Starts the agent as PID 1.
    pub fn start(&self) -> Running {
        Running::start(self.command(true, &[]), |first| {
            child_of(first).filter(|pid| is_agent(*pid))
        })
    }

    /// The fake Flux's record of its first call.
    pub fn record(&self) -> serde_json::Value {
        let text = text_of(&self.folder.path().join("record"));
        serde_json::from_str(text.lines().next().unwrap()).unwrap()
    }

    pub fn termination(&self) -> Termination {
        termination_at(&self.folder.path().join("termination"))
    }
}

/// A pod's image for `run`: the usual image with `spec` and a certificate, for a cluster `mc` of `size` pods.
pub fn pod_image(spec: &str, size: u32) -> Image {
    let image = Image::usual();
    image.file(
        flux_shared::paths::SPEC_FILE,
        0o644,
        &format!("name = 'mc'\nsize = {size}\n{spec}"),
    );
    image.certificate((0, 0));
    image.hosts("mc", "flux-service", size);
    image.file("/dev/termination-log", 0o666, "");
    image
}

/// The command `run` in an image.
pub fn run_words<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&[crate::image::AGENT, "run"], more].concat()
}

/// Removes the record of starts, as if the next start were that of a new pod.
pub fn forget_starts(image: &Image) {
    let _ = fs::remove_file(image.at("/mnt/flux/config/agent/starts"));
}

/// The termination message that the agent has written.
pub fn termination_of(image: &Image) -> Termination {
    termination_at(&image.at("/dev/termination-log"))
}

pub fn termination_at(path: &Path) -> Termination {
    let text = text_of(path);
    Termination::decode(&text).unwrap_or_else(|| panic!("no termination message of the agent: {text:?}"))
}

pub fn text_of(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}

/// A path in an image's /tmp. Tests create or check the file while the pod runs.
pub fn gate(image: &Image, name: &str) -> PathBuf {
    image.at("/tmp").join(name)
}

/// Creates this gate in all images.
pub fn open(images: &[Image], name: &str) {
    images
        .iter()
        .for_each(|image| fs::write(gate(image, name), "").unwrap());
}

/// Does `work` for each of `all`, four at a time.
pub fn in_parallel<T: Send>(all: impl Iterator<Item = T>, work: impl Fn(T) + Sync) {
    let all = std::sync::Mutex::new(all.collect::<Vec<_>>());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some(item) = { all.lock().unwrap().pop() } {
                    work(item);
                }
            });
        }
    });
}
