//! What the host says. Read once, before anything is decided; nothing here chooses.
//!
//! ```text
//! host (hosts, resolv.conf, passwd, /sys, /proc, the view tree) ─► Facts::read ─► plan
//! a file of pretended facts (TOML, JSON, YAML)                  ─► Facts::parse ─► plan   (dry-run)
//! ```
//!
//! No NSS: names come from plain files, so that it works in any image.

#![expect(clippy::disallowed_methods, reason = "looks at the process and its host")]

mod cpu;
mod devices;
mod error;
pub mod host;
mod key;
mod network;
mod process;
mod python;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use flux_shared::agent_spec::AgentSpec;
use flux_shared::{names, paths};
use serde::{Deserialize, Serialize};

use crate::known_paths::{
    DEFAULT_PATH, MUNGE, MUNGE_KEY, SYSTEM_CONFIG, SYSTEM_RUN, TEMPORARY, accounting_of, flux_below, home_of,
};

pub use error::FactsError;
pub use key::Key;
pub use process::Process;
pub use view::ViewFacts;

/// The shells that snippets may run in, best first.
pub const SHELLS: [&str; 4] = ["/bin/bash", "/usr/bin/bash", "/bin/sh", "/usr/bin/sh"];

/// What a container's host says. Every field may be left out of a file: it then has the value of the usual pod
/// (root, a Debian image with bash, a view with Fluxion, 4 cores).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Facts {
    /// What gethostname says. Empty (only in files): `<cluster>-<index>`.
    pub hostname: String,
    /// The pod's completion index, `JOB_COMPLETION_INDEX`.
    pub index: Option<u32>,
    /// How many pods of this index there were before this one: failed, or taken away.
    pub earlier_pods: u32,
    /// How often the whole MiniCluster may still start anew, as the operator says (`--restarts-left`).
    pub restarts_left: Option<u32>,
    /// The pod's terminationGracePeriodSeconds, if it is known.
    pub grace_period: Option<u64>,
    /// What the certificate is derived from, by the command line (`--key-from-env`); none: it is mounted.
    pub key: Option<Key>,
    /// Path of the agent's own binary, as the container's processes see it.
    pub agent: String,
    /// The AgentSpec that the command line names (`--spec`); none: the usual one.
    pub spec_file: Option<String>,
    /// Random id of this start, 16 hexadecimal digits: part of the name of what no other start may write to.
    pub attempt: String,
    /// The user and group that the agent runs as.
    pub uid: u32,
    pub gid: u32,
    /// Text of /etc/passwd and /etc/group; empty where there is none.
    pub passwd: String,
    pub group: String,
    /// The environment of the container.
    pub environment: BTreeMap<String, String>,
    /// The working directory that the container starts in.
    pub working_directory: String,
    /// The pod's own address; none: the brokers bind to all.
    pub address: Option<String>,
    /// The cluster's domain, from the search list of resolv.conf.
    pub cluster_domain: Option<String>,
    /// Cores (not SMT siblings) in the affinity mask.
    pub cores: u32,
    /// The CPUs of each of these cores, by number; empty (only in files): 0, 1 …
    pub cpus: Vec<Vec<u32>>,
    /// CPUs' worth of time that the cgroup may use; none: no limit.
    pub cpu_quota: Option<f64>,
    /// CPUs (SMT siblings count each) in the affinity mask, where it is narrower than the machine; none: it has all.
    pub cpuset: Option<u32>,
    /// What /proc/self/oom_score_adj says: the kubelet sets -997 in a Guaranteed pod and more than 0 in the other classes.
    pub oom_score: i32,
    /// GPUs in the container (NVIDIA, AMD, Intel); each part of a divided one (MIG) counts.
    pub gpus: u32,
    /// Whether Flux's own Python finds compiled files that are up to date.
    pub python_compiled: bool,
    /// Whether Flux starts by `flux modprobe rc1`, which accepts additional tasks (0.79 and later).
    pub flux_modprobe: bool,
    /// The Flux view.
    pub view: ViewFacts,
    /// Where `flux` is on the PATH (of use where the view is disabled).
    pub flux_on_path: Option<String>,
    /// The image's shell: bash on the PATH, else sh on it, else one in the usual places, else none.
    pub shell: Option<String>,
    /// Whether standard input is a terminal.
    pub terminal: bool,
    /// Of the paths that a plan asks about, those that exist.
    pub present: BTreeSet<String>,
    /// Of the paths that a plan asks about, those that the agent may write to.
    pub writable: BTreeSet<String>,
}

impl Default for Facts {
    fn default() -> Self {
        Facts {
            hostname: String::new(),
            index: None,
            earlier_pods: 0,
            restarts_left: None,
            grace_period: None,
            key: None,
            agent: paths::AGENT_FILE.into(),
            spec_file: None,
            attempt: "0".repeat(16),
            uid: 0,
            gid: 0,
            passwd: "root:x:0:0:root:/root:/bin/bash\n".into(),
            group: "root:x:0:\n".into(),
            environment: BTreeMap::from([
                ("HOME".into(), "/root".into()),
                ("PATH".into(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".into()),
            ]),
            working_directory: "/".into(),
            address: None,
            cluster_domain: None,
            cores: 4,
            cpus: Vec::new(),
            cpu_quota: None,
            cpuset: None,
            oom_score: 0,
            gpus: 0,
            python_compiled: true,
            flux_modprobe: true,
            view: ViewFacts::default(),
            flux_on_path: Some("/usr/bin/flux".into()),
            shell: Some("/bin/bash".into()),
            terminal: false,
            present: [paths::FALLBACK_HOME, paths::CURVE_FILE, "/root", "/tmp", "/var/tmp"].map(String::from).into(),
            writable: ["/", "/etc", "/run", paths::FALLBACK_HOME, "/tmp", "/var/tmp"].map(String::from).into(),
        }
    }
}

impl Facts {
    /// The facts of this host, for `spec` and a process of this container; files are looked for below `root`.
    pub fn read(root: &Path, spec: &AgentSpec, process: Process) -> Result<Facts, FactsError> {
        let host = host::Host::new(root);
        let hostname = network::hostname()?;
        let Process { program: agent, mut environment, working_directory, terminal, .. } = process;
        let earlier_pods = earlier_pods(&mut environment);
        let address = network::parse_address(environment.remove(names::POD_ADDRESS.0));
        let address = address.or_else(|| network::address(&host, &hostname, spec.network.host_network));
        let path = environment.get("PATH").map_or(DEFAULT_PATH, String::as_str);
        let flux_on_path = host.which("flux", path);
        let mut asked = questions(spec, &environment, &working_directory);
        let (pod, cpus) = (spec.paths(), cpu::cores(&host));
        asked.extend(flux_on_path.as_deref().and_then(accounting_of));
        let installation = installation(spec, flux_on_path.as_deref());
        // Flux reads the archive.
        let is_archive = |path: &String| spec.archive.as_ref() == Some(path);
        let is_present = |path| if is_archive(path) { host.is_file_or_folder(path) } else { host.exists(path) };
        Ok(Facts {
            index: environment.get(names::COMPLETION_INDEX).and_then(|index| index.parse().ok()),
            earlier_pods,
            restarts_left: None,
            grace_period: None,
            key: None,
            agent,
            spec_file: None,
            attempt: attempt(),
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
            passwd: host.text("/etc/passwd").unwrap_or_default(),
            group: host.text("/etc/group").unwrap_or_default(),
            address,
            cluster_domain: network::cluster_domain(&host),
            cores: u32::try_from(cpus.len()).unwrap_or(u32::MAX).max(1),
            cpus,
            cpu_quota: cpu::quota(&host),
            cpuset: cpu::cpuset(&host),
            oom_score: cpu::oom_score(&host),
            gpus: devices::gpus(&host),
            python_compiled: python::is_compiled(&host, &installation),
            flux_modprobe: host.exists(&format!("{installation}/libexec/flux/modprobe/rc1.py")),
            view: ViewFacts::read(&host, &pod.view()),
            flux_on_path,
            shell: shell(&host, path),
            terminal,
            present: asked.iter().filter(|path| is_present(path)).cloned().collect(),
            writable: asked.iter().filter(|path| host.is_writable(path)).cloned().collect(),
            hostname,
            environment,
            working_directory,
        })
    }

    /// The facts of a file's text: JSON, TOML or YAML.
    pub fn parse(text: &str) -> Result<Facts, FactsError> {
        let one_line = |error: &dyn std::fmt::Display| {
            FactsError::Syntax(error.to_string().lines().next().unwrap_or_default().to_owned())
        };
        // JSON is YAML, too.
        match toml::from_str(text) {
            Ok(facts) => Ok(facts),
            // No mapping with a name in it is valid in both: the message is that of the likelier one.
            Err(error) if text.lines().any(is_toml) => Err(FactsError::Syntax(error.message().replace('\n', " "))),
            Err(_) => serde_saphyr::from_str(text).map_err(|error| one_line(&error)),
        }
    }

    /// Cores that the container may really use: the mask, bounded by the quota, 1 at least.
    pub fn usable_cores(&self) -> u32 {
        let quota = self.cpu_quota.map_or(u32::MAX, |cpus| cpus.floor().clamp(1.0, f64::from(u32::MAX)) as u32);
        self.cores.min(quota).max(1)
    }

    pub fn is_present(&self, path: &str) -> bool {
        self.present.contains(path)
    }

    pub fn is_writable(&self, path: &str) -> bool {
        self.writable.contains(path)
    }
}

/// Whether a line looks like TOML: a table's head, or a bare name before `=`. (Values of JSON and YAML may have a `=`, too.)
fn is_toml(line: &str) -> bool {
    let is_name = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte))
    };
    line.starts_with('[') || line.split_once('=').is_some_and(|(name, _)| is_name(name.trim()))
}

/// The prefix that Flux is installed in.
fn installation(spec: &AgentSpec, flux_on_path: Option<&str>) -> String {
    if spec.view.enabled {
        return spec.paths().view();
    }
    let found = flux_on_path.and_then(|flux| flux.strip_suffix("/bin/flux")).map(str::to_owned);
    spec.view.install_root.clone().or(found).unwrap_or_else(|| "/usr".into())
}

/// How many pods this index had before, by variables of the downward API. They are for the agent alone, and removed.
fn earlier_pods(environment: &mut BTreeMap<String, String>) -> u32 {
    let counts = OF_THE_INDEX.iter().filter_map(|name| environment.remove(*name)?.trim().parse().ok());
    counts.fold(0, u32::saturating_add)
}

/// Variables with the numbers of earlier pods of this index: failed, and taken away.
const OF_THE_INDEX: [&str; 2] = [names::INDEX_FAILURES.0, names::INDEX_DISRUPTIONS.0];
/// Variables that the operator sets for the agent alone.
pub const OF_THE_POD: [&str; 3] = [OF_THE_INDEX[0], OF_THE_INDEX[1], names::POD_ADDRESS.0];

/// The shell that all of the container's snippets and scripts run in: bash on the PATH, else sh on it, else one in the
/// usual places. If a usual path leads to the same file, it is named by that.
fn shell(host: &host::Host, path: &str) -> Option<String> {
    let on_path = ["bash", "sh"].into_iter().find_map(|name| host.which(name, path));
    let by_habit = || SHELLS.into_iter().find(|shell| host.is_executable(shell)).map(str::to_owned);
    let found = on_path.or_else(by_habit)?;
    let usual = SHELLS.into_iter().find(|usual| host.is_same(usual, &found));
    Some(usual.map_or(found, str::to_owned))
}

/// A random id for this attempt, from /proc/sys/kernel/random/uuid.
fn attempt() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    // All zeros if /proc is missing: then there is no second process that could be mistaken for this one.
    format!("{digits:0>16}")
}

/// The paths that a plan for `spec` may ask about.
fn questions(spec: &AgentSpec, environment: &BTreeMap<String, String>, cwd: &str) -> BTreeSet<String> {
    let mut paths: BTreeSet<String> = [paths::FALLBACK_HOME, paths::CURVE_FILE, cwd].map(str::to_owned).into();
    paths.extend(Path::new(&spec.runner.logs).ancestors().filter_map(Path::to_str).map(str::to_owned));
    paths.extend(spec.archive.clone());
    paths.extend(spec.view.install_root.as_deref().map(flux_below));
    paths.extend(environment.get("SHELL").cloned());
    let users = spec.runner.user.iter().map(|user| &user.name).chain(&spec.users);
    paths.extend(users.map(|name| home_of(name)));
    paths.extend(
        [SYSTEM_CONFIG, "/etc", SYSTEM_RUN, "/run", MUNGE, MUNGE_KEY].into_iter().chain(TEMPORARY).map(str::to_owned),
    );
    let own = [Some(spec.paths().view()), spec.view.install_root.clone()];
    paths.extend(own.into_iter().flatten().filter_map(|root| accounting_of(&flux_below(&root))));
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> AgentSpec {
        AgentSpec::from_toml("name = 'mc'\nsize = 2\narchive = '/state/a.tgz'").unwrap()
    }

    #[test]
    fn a_host_without_any_file_is_read() {
        let root = tempfile::tempdir().unwrap();
        let facts = Facts::read(root.path(), &spec(), Process::own()).unwrap();
        assert_eq!((facts.passwd.as_str(), facts.shell, facts.flux_on_path), ("", None, None));
        assert!(!facts.view.flux && facts.present.iter().eq(["/"]) && facts.cores >= 1 && facts.gpus == 0);
    }

    #[test]
    fn earlier_pods_are_counted_and_the_variables_are_nobody_elses() {
        let count = |failures: &str, disruptions: &str| {
            let pairs = [(OF_THE_INDEX[0], failures), (OF_THE_INDEX[1], disruptions), ("HOME", "/root")];
            let mut environment: BTreeMap<String, String> =
                pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
            let count = earlier_pods(&mut environment);
            assert!(environment.keys().eq(["HOME"]));
            count
        };
        assert_eq!(count("", ""), 0);
        assert_eq!(count("0", "0"), 0);
        assert_eq!(count("1", ""), 1);
        assert_eq!(count("2", "3"), 5);
        assert_eq!(count("x", "4294967295"), u32::MAX);
        assert_eq!(earlier_pods(&mut BTreeMap::new()), 0);
    }

    #[test]
    fn facts_come_from_three_formats_and_unknown_names_are_refused() {
        let want = Facts { uid: 1000, cores: 8, cpu_quota: Some(2.5), ..Facts::default() };
        for text in [
            "uid = 1000\ncores = 8\ncpu_quota = 2.5\n",
            "{\"uid\": 1000, \"cores\": 8, \"cpu_quota\": 2.5}",
            "uid: 1000\ncores: 8\ncpu_quota: 2.5\n",
        ] {
            assert_eq!(Facts::parse(text).unwrap(), want, "{text}");
        }
        for bad in ["uuid = 1\n", "uuid: 1\n", "{\"uuid\": 1}"] {
            assert!(Facts::parse(bad).unwrap_err().to_string().contains("uuid"), "{bad}");
        }
        let odd = Facts { environment: [("PS1".to_owned(), "a = [\nb".to_owned())].into(), ..want.clone() };
        assert_eq!(Facts::parse(&serde_json::to_string_pretty(&odd).unwrap()).unwrap(), odd);
        let again = Facts::parse(&serde_json::to_string(&want).unwrap()).unwrap();
        assert_eq!(again, want);
    }

    #[test]
    fn the_shell_is_the_paths_own_by_its_usual_name_if_it_has_one() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let root = tempfile::tempdir().unwrap();
        let add = |path: &str| {
            let at = root.path().join(path);
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            std::fs::write(&at, path).unwrap();
            std::fs::set_permissions(at, PermissionsExt::from_mode(0o755)).unwrap();
        };
        let found = |path: &str| shell(&host::Host::new(root.path()), path);
        assert_eq!(found(DEFAULT_PATH), None);
        add("usr/bin/sh");
        symlink("usr/bin", root.path().join("bin")).unwrap();
        assert_eq!(found(DEFAULT_PATH).as_deref(), Some("/bin/sh"), "the same file as /usr/bin/sh");
        assert_eq!(found("/elsewhere").as_deref(), Some("/bin/sh"), "a PATH that has none");
        add("usr/local/bin/bash");
        assert_eq!(found(DEFAULT_PATH).as_deref(), Some("/usr/local/bin/bash"));
        add("usr/bin/bash");
        assert_eq!(found("/usr/sbin:/usr/bin:/bin").as_deref(), Some("/bin/bash"));
        assert_eq!(found(DEFAULT_PATH).as_deref(), Some("/usr/local/bin/bash"), "the first on the PATH");
    }

    #[test]
    fn the_quota_bounds_the_mask_and_one_core_remains() {
        let usable = |cores, cpu_quota| Facts { cores, cpu_quota, ..Facts::default() }.usable_cores();
        assert_eq!(usable(8, None), 8);
        assert_eq!(usable(8, Some(2.5)), 2);
        assert_eq!(usable(2, Some(16.0)), 2);
        assert_eq!(usable(8, Some(0.5)), 1);
        assert_eq!(usable(0, Some(f64::NAN)), 1);
    }
}
