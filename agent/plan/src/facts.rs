//! The facts about a container and its host that a plan needs.
//!
//! ```text
//! the host, read by flux-agent                 ─► Facts ─► plan
//! a file of assumed facts (TOML, JSON, YAML)   ─► Facts::parse ─► plan   (dry-run)
//! ```

mod error;
mod key;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use flux_shared::agent_spec::Runner;
use flux_shared::paths;
use serde::{Deserialize, Serialize};

use crate::file_format::is_toml;
use crate::known_paths::DEFAULT_PATH;

pub use error::FactsError;
pub use key::KeyInputs;
pub use view::ViewFacts;

/// The facts about a container and its host. A file may leave out any field. The field then has its default, which
/// is that of an assumed pod: root, a Debian image with bash, a view with Fluxion, 4 cores.
///
/// The names of the fields are part of the file format and of `dry-run --format json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Facts {
    /// The host name, from gethostname. Empty (only in a file): `<cluster>-<index>`.
    pub hostname: String,
    /// The pod's completion index, `JOB_COMPLETION_INDEX`. None: plans take it from the end of the host name.
    pub index: Option<u32>,
    /// Number of earlier pods of this index that failed or were removed.
    pub earlier_pods: u32,
    /// How often the whole MiniCluster may still restart. The operator sets it (`--restarts-left`). None: there is no
    /// operator.
    pub restarts_left: Option<u32>,
    /// The pod's terminationGracePeriodSeconds. None: unknown.
    pub grace_period: Option<u64>,
    /// What the certificate is derived from, if `--key-from-env` was given. None: it is mounted, or none is needed.
    pub key: Option<KeyInputs>,
    /// Path of the agent's own binary, as the container's processes see it.
    pub agent: String,
    /// Path of the AgentSpec from the command line (`--spec`). None: the default path.
    pub spec_file: Option<String>,
    /// Random id of this start, 16 hexadecimal digits. It is part of the names of files that only this start
    /// writes.
    pub attempt: String,
    /// The user and group that the agent runs as.
    pub uid: u32,
    pub gid: u32,
    /// Text of /etc/passwd and /etc/group; empty if the file is missing.
    pub passwd: String,
    pub group: String,
    /// The uid that owns each folder in /home, by the folder's path; links are left out. Read only if the agent is root
    /// and the password file lacks users of the spec.
    pub home_owners: BTreeMap<String, u32>,
    /// The environment of the container.
    pub environment: BTreeMap<String, String>,
    /// The working directory that the container starts in.
    pub working_directory: String,
    /// The pod's own address. None: the brokers bind to all addresses.
    pub address: Option<String>,
    /// The cluster's domain, from the search list of resolv.conf.
    pub cluster_domain: Option<String>,
    /// Number of cores (not SMT siblings) in the affinity mask.
    pub cores: u32,
    /// For each of these cores, the numbers of its CPUs. Empty (only in a file): each core has one CPU, and the CPUs
    /// are numbered from 0.
    pub cpus: Vec<Vec<u32>>,
    /// CPU time that the cgroup may use, in CPUs, such as 2.5. None: it has no quota, and the spec's limit counts.
    pub cpu_quota: Option<f64>,
    /// Number of CPUs (not cores) in the affinity mask. None: the mask has all online CPUs, or these are unknown.
    pub cpuset: Option<u32>,
    /// The value of /proc/self/oom_score_adj. The kubelet sets -997 in a Guaranteed pod and more than 0 in the
    /// other QoS classes. 0 (no kubelet, or a file without this fact) counts as Guaranteed.
    pub oom_score: i32,
    /// Number of GPUs in the container (NVIDIA, AMD, Intel). Each MIG partition counts as one.
    pub gpus: u32,
    /// Whether the Python modules of Flux have up-to-date compiled files.
    pub python_compiled: bool,
    /// Whether this Flux runs `flux modprobe rc1` when it starts (0.79 and later). The agent can add tasks to that.
    pub flux_modprobe: bool,
    /// Whether Flux Accounting is installed with this Flux.
    pub flux_accounting: bool,
    /// The version of Flux, such as `0.88.0`, if its installation says it. None: plans are for a current Flux.
    pub flux_version: Option<String>,
    /// The Flux view.
    pub view: ViewFacts,
    /// Path of the `flux` on the container's PATH or, once the broker has started, on the PATH that the snippets have
    /// left. Plans use it if the view is disabled.
    pub flux_on_path: Option<String>,
    /// Path of the image's shell: bash on the PATH, else sh on the PATH, else one of the usual paths. None: there is
    /// no shell.
    pub shell: Option<String>,
    /// Whether standard input is a terminal.
    pub terminal: bool,
    /// The paths that a plan asks about (`paths_to_check` in `agent/src/facts.rs`) and that exist, and homes that may.
    pub present: BTreeSet<String>,
    /// Those of the paths that a plan asks about that the agent may write to.
    pub writable: BTreeSet<String>,
    /// Those of /tmp and /var/tmp that Flux's user may write to.
    pub writable_by_flux: BTreeSet<String>,
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
            home_owners: BTreeMap::new(),
            environment: BTreeMap::from([
                ("HOME".into(), "/root".into()),
                ("PATH".into(), DEFAULT_PATH.into()),
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
            flux_accounting: false,
            flux_version: None,
            view: ViewFacts::default(),
            flux_on_path: Some("/usr/bin/flux".into()),
            shell: Some("/bin/bash".into()),
            terminal: false,
            // Without `/`, a home that is not listed does not count as missing (`is_missing` in `plan/user.rs`).
            present: [
                paths::FALLBACK_HOME,
                paths::CURVE_FILE,
                "/root",
                "/tmp",
                "/var/tmp",
            ]
            .map(String::from)
            .into(),
            writable: ["/", "/etc", "/run", paths::FALLBACK_HOME, "/tmp", "/var/tmp"]
                .map(String::from)
                .into(),
            writable_by_flux: ["/tmp", "/var/tmp"].map(String::from).into(),
        }
    }
}

impl Facts {
    /// Parses the text of a facts file: JSON, TOML or YAML.
    pub fn parse(text: &str) -> Result<Facts, FactsError> {
        match toml::from_str(text) {
            Ok(facts) => Ok(facts),
            // A file that begins like TOML gets the error of TOML.
            Err(error) if is_toml(text) => Err(FactsError::Syntax(error.message().replace('\n', " "))),
            // Any other file is parsed as YAML, of which JSON is a subset.
            Err(_) => serde_saphyr::from_str(text).map_err(|error| {
                let error = error.to_string();
                FactsError::Syntax(error.lines().next().unwrap_or_default().to_owned())
            }),
        }
    }

    /// The container's limit on CPU time, in CPUs: the cgroup's quota or, if it has none, the limit in the spec. The
    /// quota comes first, since an in-place resize of the pod changes it. None: no limit.
    pub fn cpu_limit(&self, runner: &Runner) -> Option<f64> {
        self.cpu_quota.or(runner.cpu_limit)
    }

    /// Number of cores that the container can use: those in the affinity mask, but at most the limit (rounded
    /// down), and at least 1.
    pub fn usable_cores(&self, runner: &Runner) -> u32 {
        let limit = self.cpu_limit(runner).map_or(u32::MAX, |cpus| {
            cpus.floor().clamp(1.0, f64::from(u32::MAX)) as u32
        });
        self.cores.min(limit).max(1)
    }

    /// Whether Flux is known to be older than 0.`minor`.
    pub fn is_flux_before(&self, minor: u32) -> bool {
        let numbers = self.flux_version.as_deref().and_then(|version| {
            let mut parts = version.split('.').map(str::parse::<u32>);
            Some((parts.next()?.ok()?, parts.next()?.ok()?))
        });
        numbers.is_some_and(|found| found < (0, minor))
    }

    pub fn is_present(&self, path: &str) -> bool {
        self.present.contains(path)
    }

    pub fn is_writable(&self, path: &str) -> bool {
        self.writable.contains(path)
    }

    /// Whether the agent can create the folder `path`, or write to it if it exists: the nearest folder that exists is
    /// writable. Of its ancestors, the facts must list those that exist (`paths_to_check`).
    pub fn can_create(&self, path: &str) -> bool {
        let folders: Vec<&str> = Path::new(path).ancestors().filter_map(Path::to_str).collect();
        // If none is in the facts (assumed facts may lack `/`), the last folder.
        let nearest_existing = folders
            .iter()
            .find(|folder| self.is_present(folder))
            .or(folders.last());
        nearest_existing.is_some_and(|folder| self.is_writable(folder))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_line_decides_whether_an_error_is_that_of_toml() {
        let error = |text: &str| Facts::parse(text).unwrap_err().to_string();
        let yaml = error("# a block scalar\n\nshell: |\n  a = 1\n  [b]\ncore: 8\n");
        assert!(yaml.contains("unknown field `core`"), "{yaml}");
        let toml = error("# quoted\n\n\"uid\" = 1\ncore = 8\n");
        assert!(toml.contains("unknown field `core`"), "{toml}");
        let list = error("shell: sh\nenvironment:\n- A = 1\n");
        assert!(list.contains("map"), "{list}");
    }

    #[test]
    fn facts_come_from_three_formats_and_unknown_names_are_refused() {
        let want = Facts {
            uid: 1000,
            cores: 8,
            cpu_quota: Some(2.5),
            ..Facts::default()
        };
        for text in [
            "uid = 1000\ncores = 8\ncpu_quota = 2.5\n",
            "{\"uid\": 1000, \"cores\": 8, \"cpu_quota\": 2.5}",
            "uid: 1000\ncores: 8\ncpu_quota: 2.5\n",
        ] {
            assert_eq!(Facts::parse(text).unwrap(), want, "{text}");
        }
        for bad in ["uuid = 1\n", "uuid: 1\n", "{\"uuid\": 1}"] {
            assert!(
                Facts::parse(bad).unwrap_err().to_string().contains("uuid"),
                "{bad}"
            );
        }
        let odd = Facts {
            environment: [("PS1".to_owned(), "a = [\nb".to_owned())].into(),
            ..want.clone()
        };
        assert_eq!(
            Facts::parse(&serde_json::to_string_pretty(&odd).unwrap()).unwrap(),
            odd
        );
        let again = Facts::parse(&serde_json::to_string(&want).unwrap()).unwrap();
        assert_eq!(again, want);
    }

    #[test]
    fn unknown_version_of_flux_counts_as_current() {
        let is_old = |version: Option<&str>| {
            let flux_version = version.map(str::to_owned);
            let facts = Facts {
                flux_version,
                ..Facts::default()
            };
            facts.is_flux_before(51)
        };
        for old in ["0.9.0", "0.50.0", "0.50.0-12-g1a2b3c4"] {
            assert!(is_old(Some(old)), "{old}");
        }
        // A checkout without tags has the hash of its commit as the version.
        for other in [
            "0.51.0",
            "0.88.0",
            "1.0.0",
            "0.51.0-2-gabcdef0",
            "3a4b5c6",
            "0",
            "",
        ] {
            assert!(!is_old(Some(other)), "{other}");
        }
        assert!(!is_old(None));
    }

    #[test]
    fn usable_cores_are_at_most_the_limit_and_at_least_one() {
        let usable = |cores, cpu_quota, cpu_limit| {
            let runner = Runner {
                cpu_limit,
                ..Runner::default()
            };
            Facts {
                cores,
                cpu_quota,
                ..Facts::default()
            }
            .usable_cores(&runner)
        };
        assert_eq!(usable(8, None, None), 8);
        assert_eq!(usable(8, Some(2.5), None), 2);
        assert_eq!(usable(2, Some(16.0), None), 2);
        assert_eq!(usable(8, Some(0.5), None), 1);
        assert_eq!(usable(0, Some(f64::NAN), None), 1);
        // The kubelet sets no quota with `cpuCFSQuota: false`.
        assert_eq!(usable(64, None, Some(4.0)), 4);
        assert_eq!(usable(64, None, Some(3.5)), 3);
        // After a resize of the pod, the quota is current, and the spec's limit is not.
        assert_eq!(usable(64, Some(8.0), Some(4.0)), 8);
        assert_eq!(usable(64, Some(2.0), Some(4.0)), 2);
    }
}
