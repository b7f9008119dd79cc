//! Root directories in which the agent runs, as pods with their own network.
//!
//! An image is a folder with the agent, a Flux and the C library that debug builds of both need. A pod
//! is a process in it with chroot, as PID 1 of its own namespaces. The pods of a cluster share a network, in
//! which index N has the address 10.9.0.(N + 1).

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, OnceLock};

pub const AGENT: &str = flux_shared::paths::AGENT_FILE;
/// The prefix of a pod's address, to which its index + 1 is appended.
pub const V4: &str = "10.9.0.";
pub const V6: &str = "fd00:9::";
/// The documented path of the agent.
const DOCUMENTED_AGENT: &str = "/mnt/flux/flux-agent";
pub const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// The folder of the fake Flux's record. [`tree`] leaves it out.
pub const RECORD: &str = "/record";
/// The server's key pair of ZeroMQ's manual: its secret half, and the public one.
pub const KEY: &str = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6";
const PUBLIC_KEY: &str = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";

/// The text of a curve certificate.
pub fn certificate() -> String {
    format!(
        "metadata\n    name = \"mc\"\ncurve\n    public-key = \"{PUBLIC_KEY}\"\n    secret-key = \"{KEY}\"\n"
    )
}

/// A folder for tests, on the file system of the built programs (so that they are linked, not copied).
pub fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// The agent under test, without debug information, since [`tree`] reads it often.
pub fn agent() -> &'static Path {
    static STRIPPED: OnceLock<PathBuf> = OnceLock::new();
    STRIPPED.get_or_init(|| stripped(Path::new(env!("CARGO_BIN_EXE_flux-agent"))))
}

/// The fake Flux. It is built now unless the feature `fake-flux` is on.
pub fn fake_flux() -> &'static Path {
    static STRIPPED: OnceLock<PathBuf> = OnceLock::new();
    STRIPPED.get_or_init(|| {
        // Cargo sets the variable even if it does not build the binary. Only the feature says that the binary
        // exists.
        if cfg!(feature = "fake-flux") {
            return stripped(Path::new(env!("CARGO_BIN_EXE_fake-flux")));
        }
        let arguments = [
            "build",
            "--quiet",
            "-p",
            "flux-agent",
            "--features",
            "fake-flux",
            "--bin",
            "fake-flux",
        ];
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo
            .args(arguments)
            .arg("--target-dir")
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"));
        assert!(cargo.status().unwrap().success(), "the fake flux can't be built");
        stripped(&target.join("debug/fake-flux"))
    })
}

/// Real Flux, if `FLUX` names it (`make test-flux`). Pods then have it instead of the fake Flux.
pub fn real_flux() -> Option<&'static Path> {
    static FLUX: OnceLock<Option<PathBuf>> = OnceLock::new();
    FLUX.get_or_init(|| std::env::var_os("FLUX").map(|path| fs::canonicalize(path).expect("FLUX names flux")))
        .as_deref()
}

/// Shell lines that make the namespaces of a process those of a pod: host name $1, image $2, which is `$root`
/// afterwards.
pub fn enter() -> String {
    "hostname \"$1\"\nroot=$2\nmount -t proc proc \"$root/proc\"\n\
     mount -t devpts -o newinstance,ptmxmode=0666 devpts \"$root/dev/pts\"\n"
        .to_owned()
        + &mounts()
}

/// Shell lines that bring what real Flux needs into the image at `$root`.
fn mounts() -> String {
    let Some(flux) = real_flux() else {
        return String::new();
    };
    let prefix = flux.ancestors().nth(2).unwrap();
    // A prefix such as /opt/flux is mounted alone, since an image has its own folders in /opt. A Spack package lies
    // deeper, and needs others next to it: the whole top folder is mounted.
    let is_alone = prefix.components().count() == 3;
    let top: PathBuf = flux.components().take(if is_alone { 3 } else { 2 }).collect();
    let folders: std::collections::BTreeSet<PathBuf> = [top, "/usr".into(), "/sys".into()].into();
    let mount = |folder: &PathBuf| {
        let folder = folder.display();
        format!("mkdir -p \"$root{folder}\"; mount --rbind {folder} \"$root{folder}\"\n")
    };
    folders.iter().map(mount).collect()
}

fn stripped(program: &Path) -> PathBuf {
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-stripped", name_of(program)));
    let beside = copy.with_extension(std::process::id().to_string());
    let strip = Command::new("strip").arg("-o").arg(&beside).arg(program).status();
    let strip = strip.expect("`strip` is needed: apt-get install binutils");
    assert!(strip.success(), "`strip {}` failed: {strip}", program.display());
    fs::rename(&beside, &copy).unwrap();
    copy
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// Fails with a remedy if strace is missing.
pub fn need_strace() {
    let found = Command::new("strace").arg("-V").stdout(Stdio::null()).status();
    assert!(
        found.is_ok_and(|status| status.success()),
        "strace is needed: apt-get install strace"
    );
}

/// Mode, owner, kind and content of the file at a path. The mode of a link, which has no meaning, is 0.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    pub mode: u32,
    pub owner: (u32, u32),
    pub what: What,
}

#[derive(Clone, PartialEq)]
pub enum What {
    Folder,
    File(Vec<u8>),
    Link(PathBuf),
    Other,
}

impl std::fmt::Debug for What {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            What::Folder => f.write_str("folder"),
            What::File(bytes) if bytes.len() > 4096 => write!(f, "file of {} bytes", bytes.len()),
            What::File(bytes) => write!(f, "file {:?}", String::from_utf8_lossy(bytes)),
            What::Link(to) => write!(f, "link to {}", to.display()),
            What::Other => f.write_str("other"),
        }
    }
}

/// The files by their absolute paths as the pod sees them.
pub type Tree = BTreeMap<String, Node>;

/// All files and folders below `top`, except /usr/bin, the libraries, the fake Flux's record and `.flux-stage.…`.
pub fn tree(top: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(top.join(&folder)).unwrap() {
            let path = folder.join(entry.unwrap().file_name());
            let name = format!("/{}", path.display());
            // The files `.flux-stage.…` have times in them.
            if name.contains("flux-stage.")
                || [RECORD, "/usr/lib", "/lib", "/lib64", "/usr/bin"].contains(&name.as_str())
            {
                continue;
            }
            let data = fs::symlink_metadata(top.join(&path)).unwrap();
            let what = if data.is_dir() {
                folders.push(path.clone());
                What::Folder
            } else if data.is_symlink() {
                What::Link(fs::read_link(top.join(&path)).unwrap())
            } else if data.is_file() {
                What::File(fs::read(top.join(&path)).unwrap())
            } else {
                What::Other
            };
            let mode = if matches!(what, What::Link(_)) {
                0
            } else {
                data.mode() & 0o7777
            };
            tree.insert(
                name,
                Node {
                    mode,
                    owner: (data.uid(), data.gid()),
                    what,
                },
            );
        }
    }
    tree
}

/// The differences between two trees, one entry for each path.
pub fn differences(want: &Tree, have: &Tree) -> Vec<String> {
    let paths: std::collections::BTreeSet<&String> = want.keys().chain(have.keys()).collect();
    let differing = paths
        .into_iter()
        .filter(|path| want.get(*path) != have.get(*path));
    differing
        .map(|path| format!("{path}\n  want {:?}\n  have {:?}", want.get(path), have.get(path)))
        .collect()
}

pub fn assert_same(want: &Tree, have: &Tree, when: &str) {
    let found = differences(want, have);
    assert!(found.is_empty(), "{when}:\n{}", found.join("\n"));
}

/// A root directory.
pub struct Image {
    folder: tempfile::TempDir,
}

impl Image {
    /// An image with the agent and little else; no shell.
    pub fn empty() -> Image {
        let image = Image { folder: folder() };
        for folder in ["/proc", "/dev/pts", "/etc", "/tmp", RECORD] {
            fs::create_dir_all(image.at(folder)).unwrap();
        }
        for folder in ["/tmp", RECORD] {
            image.mode(folder, 0o1777);
        }
        symlink("pts/ptmx", image.at("/dev/ptmx")).unwrap();
        let null = image.at("/dev/null");
        nix::sys::stat::mknod(
            &null,
            nix::sys::stat::SFlag::S_IFCHR,
            nix::sys::stat::Mode::from_bits_truncate(0o666),
            nix::sys::stat::makedev(1, 3),
        )
        .expect("these tests make devices and namespaces: run them as root");
        image.mode("/dev/null", 0o666);
        image.program(agent(), AGENT);
        fs::create_dir_all(image.at("/mnt/flux")).unwrap();
        symlink(AGENT, image.at(DOCUMENTED_AGENT)).unwrap();
        image
    }

    /// Like `empty`, with a view that has the fake Flux, a shell and users.
    pub fn usual() -> Image {
        let image = Image::empty();
        image.view();
        for program in ["bash", "dash", "env", "sleep", "echo", "id", "true", "hostname"] {
            image.program(&host_program(program), &format!("/usr/bin/{program}"));
        }
        symlink("dash", image.at("/usr/bin/sh")).unwrap();
        symlink("usr/bin", image.at("/bin")).unwrap();
        fs::create_dir(image.at("/root")).unwrap();
        image.mode("/root", 0o700);
        image.file("/etc/passwd", 0o644, "root:x:0:0:root:/root:/bin/bash\n");
        image.file("/etc/group", 0o644, "root:x:0:\n");
        image.file("/etc/nsswitch.conf", 0o644, "hosts: files\n");
        image
    }

    /// A view that looks like the copy of a released one, after the `view` init container.
    pub fn view(&self) {
        if let Some(flux) = real_flux() {
            // `bin` is no link, because tests remove `flux` from it.
            fs::create_dir_all(self.at("/mnt/flux/view/bin")).unwrap();
            symlink(flux, self.at("/mnt/flux/view/bin/flux")).unwrap();
            let prefix = flux.ancestors().nth(2).unwrap();
            for folder in ["lib", "libexec"] {
                symlink(prefix.join(folder), self.at("/mnt/flux/view").join(folder)).unwrap();
            }
        } else {
            self.program(fake_flux(), "/mnt/flux/view/bin/flux");
            self.file("/mnt/flux/view/lib/python3.11/site-packages/flux.py", 0o644, "");
            self.file(
                "/mnt/flux/view/lib/flux/modules/sched-fluxion-qmanager.so",
                0o644,
                "",
            );
            self.file(
                "/mnt/flux/view/etc/flux/modprobe/modprobe.d/fluxion.toml",
                0o644,
                "",
            );
            self.file("/mnt/flux/view/libexec/flux/modprobe/rc1.py", 0o644, "");
        }
        fs::create_dir_all(self.at("/mnt/flux/config")).unwrap();
        for (link, target) in [
            ("run", "../config/run"),
            ("curve", "../config/curve"),
            ("var", "../config/var"),
        ] {
            symlink(target, self.at("/mnt/flux/view").join(link)).unwrap();
        }
        fs::create_dir_all(self.at("/mnt/flux/view/etc/flux")).unwrap();
        symlink(
            "../../../config/etc/flux/system",
            self.at("/mnt/flux/view/etc/flux/system"),
        )
        .unwrap();
    }

    /// Writes the certificate, as in the Secret's volume.
    pub fn certificate(&self, owner: (u32, u32)) {
        self.file("/etc/flux-agent/curve/curve.cert", 0o400, &certificate());
        std::os::unix::fs::chown(
            self.at("/etc/flux-agent/curve/curve.cert"),
            Some(owner.0),
            Some(owner.1),
        )
        .unwrap();
    }

    /// Writes the host names of a cluster's pods.
    pub fn hosts(&self, name: &str, service: &str, count: u32) {
        self.hosts_of(name, service, count, &[V4]);
    }

    /// Like [`Image::hosts`], with an address in each of these networks, in this order.
    pub fn hosts_of(&self, name: &str, service: &str, count: u32, networks: &[&str]) {
        let names = |index| format!("{name}-{index}.{service}.default.svc.cluster.local {name}-{index}\n");
        let own = |index| {
            networks
                .iter()
                .map(move |network| format!("{network}{} {}", index + 1, names(index)))
        };
        let lines: String = (0..count).flat_map(own).collect();
        self.file("/etc/hosts", 0o644, &format!("127.0.0.1 localhost\n{lines}"));
        self.file(
            "/etc/resolv.conf",
            0o644,
            "search default.svc.cluster.local svc.cluster.local cluster.local\n",
        );
    }

    pub fn top(&self) -> &Path {
        self.folder.path()
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.top().join(path.trim_start_matches('/'))
    }

    pub fn mode(&self, path: &str, mode: u32) {
        fs::set_permissions(self.at(path), fs::Permissions::from_mode(mode)).unwrap();
    }

    pub fn file(&self, path: &str, mode: u32, text: &str) {
        fs::create_dir_all(self.at(path).parent().unwrap()).unwrap();
        fs::write(self.at(path), text).unwrap();
        self.mode(path, mode);
    }

    /// Adds programs of this host to /usr/bin.
    pub fn with_programs(&self, names: &[&str]) {
        for name in names {
            let real = fs::canonicalize(host_program(name)).unwrap();
            self.program(&real, &format!("/usr/bin/{name}"));
        }
    }

    /// Adds a program and the libraries that it is linked with.
    pub fn program(&self, real: &Path, path: &str) {
        link(real, &self.at(path));
        for library in libraries(real) {
            if !self.at(&library).exists() {
                link(&fs::canonicalize(&library).unwrap(), &self.at(&library));
            }
        }
    }

    pub fn tree(&self) -> Tree {
        tree(self.top())
    }

    /// The record of the fake Flux: one entry for each call.
    pub fn record(&self) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(self.at(RECORD).join("flux")).unwrap_or_default();
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }
}

/// The path of a program of this host.
pub fn host_program(name: &str) -> PathBuf {
    ["/usr/bin", "/bin", "/usr/sbin"]
        .map(|folder| Path::new(folder).join(name))
        .into_iter()
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("{name} is needed here"))
}

/// The libraries of a program. ldd runs only once for each program.
fn libraries(program: &Path) -> Vec<String> {
    static KNOWN: Mutex<BTreeMap<PathBuf, Vec<String>>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap();
    let ask = || {
        let ldd = Command::new("ldd").arg(program).output().unwrap();
        let text = String::from_utf8_lossy(&ldd.stdout).into_owned();
        text.split_whitespace()
            .filter(|word| word.starts_with('/'))
            .map(str::to_owned)
            .collect()
    };
    known.entry(program.to_owned()).or_insert_with(ask).clone()
}

fn link(real: &Path, to: &Path) {
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    // `to` may be a hard link to the same file of the host, which a copy would empty.
    let _ = fs::remove_file(to);
    if fs::hard_link(real, to).is_err() {
        fs::copy(real, to).unwrap();
    }
}

/// A container: its image, command and user.
pub struct Container<'a> {
    pub image: &'a Image,
    pub hostname: String,
    pub ids: (u32, u32),
    /// The supplementary groups of the pod.
    pub groups: Vec<u32>,
    pub environment: BTreeMap<String, String>,
    pub command: Vec<String>,
    /// Words before the command, outside of the image: `strace …`, `setpriv …`.
    pub outside: Vec<String>,
    /// Shell lines in the container's namespaces before it starts; `$root` is the image.
    pub before: String,
    /// The container gets SIGTERM once its standard error has this, like a sidecar at the end of its pod.
    pub until: Option<String>,
}

impl Container<'_> {
    pub fn new<'a>(image: &'a Image, hostname: &str, command: &[&str]) -> Container<'a> {
        let environment = [
            ("PATH", PATH),
            ("HOME", "/root"),
            ("FAKE_FLUX_RECORD", "/record/flux"),
        ];
        Container {
            image,
            hostname: hostname.into(),
            ids: (0, 0),
            groups: Vec::new(),
            environment: environment
                .iter()
                .map(|(name, value)| ((*name).into(), (*value).into()))
                .collect(),
            command: command.iter().map(|word| (*word).to_owned()).collect(),
            outside: Vec::new(),
            before: String::new(),
            until: None,
        }
    }

    /// Sets an environment variable.
    pub fn set(&mut self, name: &str, value: &str) {
        self.environment.insert(name.into(), value.into());
    }
}

/// How a container or an agent ended, with an exit code as in a shell.
#[derive(Debug)]
pub struct Ended {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// Checks the exit code and the whole standard output. `case` begins the message.
    #[track_caller]
    pub fn expect(&self, code: i32, stdout: &str, case: &str) {
        let got = (self.code, self.stdout.as_str());
        assert_eq!(got, (code, stdout), "{case}: {}", self.stderr);
    }
}

fn quoted(words: &[String]) -> String {
    words
        .iter()
        .map(|word| format!(" '{}'", word.replace('\'', r"'\''")))
        .collect()
}

/// Runs containers in parallel, in their own network, until all have ended. Three minutes at most. If one has `until`,
/// the next ones start after its signal.
pub fn run(containers: &[Container]) -> Vec<Ended> {
    let results = folder();
    let mut script = String::from("ip link set lo up || exit 99\n");
    // The addresses of up to eight pods.
    for index in 1..=8 {
        script += &format!("ip addr add 10.9.0.{index}/32 dev lo\n");
    }
    for (number, container) in containers.iter().enumerate() {
        let variables = container
            .environment
            .iter()
            .map(|(name, value)| format!("{name}={value}"));
        let mut words = container.outside.clone();
        words.extend(["env".into(), "-i".into()]);
        words.extend(variables);
        let (uid, gid) = container.ids;
        let groups: String = container.groups.iter().map(|group| format!(",{group}")).collect();
        let groups = format!("--groups={gid}{groups}");
        words.extend([
            "/usr/sbin/chroot".into(),
            format!("--userspec={uid}:{gid}"),
            groups,
        ]);
        words.push(container.image.top().display().to_string());
        words.extend(container.command.iter().cloned());
        let inner = format!("{}{}\nexec{}", enter(), container.before, quoted(&words));
        let outer = [
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
        ];
        let mut outer: Vec<String> = outer.iter().map(|word| (*word).to_owned()).collect();
        outer.extend([
            container.hostname.clone(),
            container.image.top().display().to_string(),
        ]);
        let at = results.path().join(number.to_string()).display().to_string();
        script += &format!(
            "({} </dev/null >{at}.out 2>{at}.err; echo $? >{at}.code) &\n",
            quoted(&outer)
        );
        if let Some(line) = &container.until {
            // `$!` is the subshell above. Its child is unshare, whose child is the container's process 1.
            script += &format!("shell=$!; until grep -q '{line}' {at}.err; do sleep 0.05; done\n");
            script += "read unshare </proc/$shell/task/$shell/children; read one </proc/$unshare/task/$unshare/children\n";
            script += "kill -TERM $one\n";
        }
    }
    script += "wait\n";
    let output = isolated(&["sh", "-c", &script]);
    let text = |number: usize, suffix: &str| {
        String::from_utf8_lossy(
            &fs::read(results.path().join(format!("{number}.{suffix}"))).unwrap_or_default(),
        )
        .into_owned()
    };
    let ended = |number| {
        let code = text(number, "code").trim().parse();
        let (stdout, stderr) = (text(number, "out"), text(number, "err"));
        let all = || {
            (0..containers.len())
                .map(|number| text(number, "err"))
                .collect::<Vec<_>>()
                .join("\n")
        };
        let code =
            code.unwrap_or_else(|_| panic!("container {number} did not end: {stdout}{}{output:?}", all()));
        Ended { code, stdout, stderr }
    };
    (0..containers.len()).map(ended).collect()
}

/// Runs a command in its own namespaces, and kills all its processes before it returns. Three minutes at most.
pub fn isolated(command: &[&str]) -> Output {
    let mut words = Command::new("timeout");
    words.args([
        "-s",
        "KILL",
        "180",
        "unshare",
        "--net",
        "--ipc",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
    ]);
    words.arg("--mount-proc");
    words.args(command).stdin(Stdio::null()).output().unwrap()
}
