//! Reads the facts of the host, by which the planner decides. Nothing here decides.
//!
//! ```text
//! host (hosts, resolv.conf, passwd, /sys, /proc, the view tree) ─► facts::read ─► Facts ─► plan
//! ```
//!
//! No NSS: names are read from plain files, which works in any image.

mod cpu;
pub mod devices;
pub mod host;
mod network;
mod process;
mod python;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::LazyLock;

use flux_agent_plan::facts::{Facts, FactsError};
use flux_agent_plan::known_paths::{
    DEFAULT_PATH, FLUX, HOMES, MUNGE, MUNGE_KEY, SYSTEM_CONFIG, SYSTEM_RUN, TEMPORARY, flux_below, home_of,
};
use flux_agent_plan::plan::Identity;
use flux_shared::agent_spec::AgentSpec;
use flux_shared::{names, paths};

use crate::system::identity::Credentials;

pub use process::Process;

/// The usual paths of shells, best first.
const SHELLS: [&str; 4] = ["/bin/bash", "/usr/bin/bash", "/bin/sh", "/usr/bin/sh"];

/// The facts of this host, for `spec` and a process of this container; files are looked for below `root`.
pub fn read(root: &Path, spec: &AgentSpec, process: Process) -> Result<Facts, FactsError> {
    let host = host::HostFiles::new(root);
    let hostname = network::hostname()?;
    let Process {
        program: agent,
        mut environment,
        working_directory,
        terminal,
        ..
    } = process;
    let earlier_pods = earlier_pods(&mut environment);
    let address = network::parse_address(environment.remove(names::POD_ADDRESS.0));
    let address = address.or_else(|| network::address(&host, &hostname, spec.network.host_network));
    let path = environment.get("PATH").map_or(DEFAULT_PATH, String::as_str);
    let checked_paths = paths_to_check(spec, &environment, &working_directory);
    let (pod_paths, cpus) = (spec.paths(), cpu::cores(&host));
    let flux_on_path = flux_of_snippet(&host, spec).or_else(|| host.which(FLUX, path));
    let installation = installation(&host, spec, flux_on_path.as_deref());
    let passwd = host.text("/etc/passwd").unwrap_or_default();
    let uid = nix::unistd::geteuid().as_raw();
    let mut facts = Facts {
        index: environment
            .get(names::COMPLETION_INDEX)
            .and_then(|index| index.parse().ok()),
        earlier_pods,
        // `RunOptions::facts` sets the next three fields, and `spec_file`.
        restarts_left: None,
        grace_period: None,
        key: None,
        agent,
        spec_file: None,
        attempt: ATTEMPT.clone(),
        uid,
        gid: nix::unistd::getegid().as_raw(),
        home_owners: home_owners(&host, spec, &passwd, uid),
        passwd,
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
        flux_accounting: host.exists(&format!("{installation}/libexec/flux/cmd/flux-account.py")),
        flux_version: flux_version(&host, &installation),
        view: view::read(&host, &pod_paths.view()),
        flux_on_path,
        shell: shell(&host, path),
        terminal,
        present: checked_paths
            .iter()
            .filter(|path| host.exists(path))
            .cloned()
            .collect(),
        writable: checked_paths
            .iter()
            .filter(|path| host.is_writable(path))
            .cloned()
            .collect(),
        writable_by_flux: BTreeSet::new(),
        hostname,
        environment,
        working_directory,
    };
    // If the agent cannot become this user, the start fails later, with the remedy.
    let account = Identity::of(spec.runner.user.as_ref(), &facts).run_as;
    let user = account
        .as_ref()
        .and_then(|account| Credentials::of(account.owner, root).ok()?);
    let homes = [
        facts.environment.get("HOME").cloned(),
        account.map(|account| account.home),
    ];
    let homes = homes.into_iter().flatten();
    facts.present.extend(homes.filter(|home| host.may_exist(home)));
    facts.writable_by_flux = TEMPORARY
        .into_iter()
        .filter(|path| host.is_writable_by(user.as_ref(), path))
        .map(str::to_owned)
        .collect();
    Ok(facts)
}

/// The `flux` by which the broker was started, if a snippet may have put it on the PATH (`find_flux` in
/// `agent/src/execute/attempt.rs`). None: not yet, or the plan has named its path.
fn flux_of_snippet(host: &host::HostFiles, spec: &AgentSpec) -> Option<String> {
    if spec.view.enabled {
        return None;
    }
    let flux = host.link_target(&spec.paths().flux_link())?;
    host.is_executable(&flux).then_some(flux)
}

/// The owners of the homes. Read only if this process, as `uid`, creates users: /home can be a large volume.
fn home_owners(host: &host::HostFiles, spec: &AgentSpec, passwd: &str, uid: u32) -> BTreeMap<String, u32> {
    let is_known = |name: &String| passwd.lines().any(|line| line.split(':').next() == Some(name));
    if uid != 0 || spec.users.iter().all(is_known) {
        return BTreeMap::new();
    }
    host.folder_owners(HOMES)
}

/// The prefix that Flux is installed in. Without a view, this is the folder above `bin/flux` if Flux's other files are
/// there. If they are not, `flux` may be a link to another prefix (`/usr/local/bin/flux`), or a folder of its path may
/// be a link (`/bin`): then the prefix is found by the links' targets.
fn installation(host: &host::HostFiles, spec: &AgentSpec, flux_on_path: Option<&str>) -> String {
    if spec.view.enabled {
        return spec.paths().view();
    }
    // As in `Resolved::flux`.
    let in_install_root = spec.view.install_root.as_deref().map(flux_below);
    let in_install_root = in_install_root.filter(|flux| host.exists(flux));
    let Some(flux) = in_install_root.or(flux_on_path.map(str::to_owned)) else {
        return "/usr".into();
    };
    let prefix_of = |flux: &str| flux.strip_suffix("/bin/flux").map(str::to_owned);
    prefix_of(&flux)
        .filter(|prefix| host.exists(&format!("{prefix}/libexec/flux")))
        .or_else(|| prefix_of(&host.without_links(&flux)?))
        .unwrap_or_else(|| "/usr".into())
}

/// The version of the Flux in `installation`, from the file for pkg-config that Flux's build installs beside its
/// libraries. None: there is no such file, as in packages without files for developers.
fn flux_version(host: &host::HostFiles, installation: &str) -> Option<String> {
    let text = LIBRARIES
        .iter()
        .find_map(|folder| host.text(&format!("{installation}/{folder}/pkgconfig/flux-core.pc")))?;
    let version = text.lines().find_map(|line| line.strip_prefix("Version:"))?;
    Some(version.trim().to_owned())
}

/// The folders of libraries below a prefix: the usual ones, and Debian's.
const LIBRARIES: [&str; 4] = ["lib", "lib64", "lib/x86_64-linux-gnu", "lib/aarch64-linux-gnu"];

/// Number of earlier pods of this index, from variables of the downward API. The variables are removed, since they are
/// for the agent only.
fn earlier_pods(environment: &mut BTreeMap<String, String>) -> u32 {
    let counts = EARLIER_POD_COUNTS
        .iter()
        .filter_map(|name| environment.remove(*name)?.trim().parse().ok());
    counts.fold(0, u32::saturating_add)
}

/// Variables with the numbers of earlier pods of this index: failed ones, and disrupted ones.
const EARLIER_POD_COUNTS: [&str; 2] = [names::INDEX_FAILURES.0, names::INDEX_DISRUPTIONS.0];
/// Variables that the operator sets for the agent alone.
pub const POD_VARIABLES: [&str; 3] = [EARLIER_POD_COUNTS[0], EARLIER_POD_COUNTS[1], names::POD_ADDRESS.0];

/// The shell that the container's snippets run in, and its scripts without a `#!` line: bash on the PATH, else sh on
/// it, else one in the usual places. If one of the usual paths leads to the same file, that path is returned: plans
/// compare it with `/bin/bash`, which Flux runs if SHELL is unset.
fn shell(host: &host::HostFiles, path: &str) -> Option<String> {
    let on_path = ["bash", "sh"].into_iter().find_map(|name| host.which(name, path));
    let in_usual_place = || {
        SHELLS
            .into_iter()
            .find(|shell| host.is_executable(shell))
            .map(str::to_owned)
    };
    let found = on_path.or_else(in_usual_place)?;
    let usual = SHELLS.into_iter().find(|usual| host.is_same(usual, &found));
    Some(usual.map_or(found, str::to_owned))
}

/// Why Flux 0.88, which runs bash scripts when it starts, finds no bash, with the remedy. None: bash is on `path`, a PATH.
/// This is only a hint, since other versions may not need bash.
pub fn bash_trouble(host: &host::HostFiles, path: &str) -> Option<String> {
    if host.which("bash", path).is_some() {
        return None;
    }
    let elsewhere = SHELLS
        .into_iter()
        .find(|shell| shell.ends_with("/bash") && host.is_executable(shell));
    let (trouble, remedy) = match elsewhere {
        None => ("the image has no bash".to_owned(), "use an image with bash"),
        Some(bash) => (
            format!("{bash} is not on the PATH ({path})"),
            "if `environment` sets PATH, list all folders there, such as /usr/local/bin:/usr/bin:/bin, since `$PATH` is not \
             expanded",
        ),
    };
    Some(format!(
        "{trouble}, and Flux 0.88 runs bash scripts when it starts: {remedy}"
    ))
}

/// The random id of this start, 16 hexadecimal digits from /proc/sys/kernel/random/uuid. All plans of this process have
/// the same id: it is part of the dump's path, which an earlier plan may have given to snippets.
static ATTEMPT: LazyLock<String> = LazyLock::new(|| {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/uuid").unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).take(16).collect();
    // All zeros if the file cannot be read.
    format!("{digits:0>16}")
});

/// The paths of which a plan for `spec` may need to know whether they exist and are writable. `cwd` is the working
/// directory.
fn paths_to_check(spec: &AgentSpec, environment: &BTreeMap<String, String>, cwd: &str) -> BTreeSet<String> {
    let mut paths: BTreeSet<String> = [
        "/",
        paths::AGENT_HOME,
        paths::FALLBACK_HOME,
        paths::CURVE_FILE,
        cwd,
    ]
    .map(str::to_owned)
    .into();
    // Of each, the nearest folder that exists decides whether the logs, or the home, can be created.
    let folders = [Some(&spec.runner.logs), environment.get("HOME")];
    let ancestors = folders
        .into_iter()
        .flatten()
        .flat_map(|folder| Path::new(folder).ancestors());
    paths.extend(ancestors.filter_map(Path::to_str).map(str::to_owned));
    paths.extend(spec.view.install_root.as_deref().map(flux_below));
    paths.extend(environment.get("SHELL").cloned());
    let users = spec.runner.user.iter().map(|user| &user.name).chain(&spec.users);
    paths.extend(users.map(|name| home_of(name)));
    paths.extend([SYSTEM_CONFIG, "/etc", SYSTEM_RUN, "/run", MUNGE, MUNGE_KEY].map(str::to_owned));
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
        let facts = read(root.path(), &spec(), Process::own()).unwrap();
        assert_eq!(
            (facts.passwd.as_str(), facts.shell, facts.flux_on_path),
            ("", None, None)
        );
        assert!(!facts.view.flux && facts.present.iter().eq(["/"]) && facts.cores >= 1 && facts.gpus == 0);
    }

    #[test]
    fn owners_of_homes_are_read_if_root_misses_users() {
        let root = tempfile::tempdir().unwrap();
        let at = |path: &str| root.path().join(path);
        std::fs::create_dir_all(at("home/ada")).unwrap();
        std::fs::write(at("home/file"), "").unwrap();
        std::os::unix::fs::symlink("ada", at("home/grace")).unwrap();
        std::os::unix::fs::chown(at("home/ada"), Some(1002), None).expect("this test runs as root");
        let mut spec = spec();
        let owners = |spec: &AgentSpec| read(root.path(), spec, Process::own()).unwrap().home_owners;
        assert_eq!(owners(&spec), BTreeMap::new());
        spec.users = vec!["bob".into()];
        assert_eq!(owners(&spec), BTreeMap::from([("/home/ada".into(), 1002)]));
        let host = host::HostFiles::new(root.path());
        assert_eq!(home_owners(&host, &spec, "", 1000), BTreeMap::new());
        std::fs::create_dir(at("etc")).unwrap();
        std::fs::write(at("etc/passwd"), "bob:x:1001:1001::/home/bob:/bin/sh\n").unwrap();
        assert_eq!(owners(&spec), BTreeMap::new());
    }

    #[test]
    fn homes_of_the_container_and_the_account_are_checked() {
        let root = tempfile::tempdir().unwrap();
        for folder in ["etc", "home", "srv/app"] {
            std::fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        let passwd = "app:x:1001:1001::/srv/app:/bin/sh\nada:x:1002:1002::/srv/gone:/bin/sh\n";
        std::fs::write(root.path().join("etc/passwd"), passwd).unwrap();
        let facts = |home: &str, user: &str| {
            let text = format!("name = 'mc'\n[runner.user]\nname = '{user}'\nuid = 1001\n");
            let mut process = Process::own();
            process.environment.insert("HOME".into(), home.into());
            read(root.path(), &AgentSpec::from_toml(&text).unwrap(), process).unwrap()
        };
        let found = facts("/home/me/deep", "app");
        assert!(found.is_present("/") && found.is_present("/srv/app"));
        assert!(!found.is_present("/home/me/deep") && found.can_create("/home/me/deep"));
        assert!(!facts("/", "ada").is_present("/srv/gone"));
    }

    /// The agent reads the facts again after snippets. Those that no snippet has changed must be equal in both plans.
    #[test]
    fn facts_are_the_same_when_one_process_reads_them_again() {
        let (root, process) = (tempfile::tempdir().unwrap(), Process::own());
        let facts = || read(root.path(), &spec(), process.clone()).unwrap();
        assert_eq!(facts(), facts());
    }

    #[test]
    fn earlier_pods_are_counted_and_their_variables_removed() {
        let count = |failures: &str, disruptions: &str| {
            let pairs = [
                (EARLIER_POD_COUNTS[0], failures),
                (EARLIER_POD_COUNTS[1], disruptions),
                ("HOME", "/root"),
            ];
            let mut environment: BTreeMap<String, String> = pairs
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into();
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
    fn linked_flux_has_the_facts_of_its_installation() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let spec =
            |view: &str| AgentSpec::from_toml(&format!("name='mc'\n[view]\nenabled=false\n{view}")).unwrap();
        // The folder of Flux, a link and its target, the container's PATH, and more of the spec.
        for (prefix, link, target, path, view) in [
            (
                "opt/flux",
                "usr/local/bin/flux",
                "/opt/flux/bin/flux",
                "/usr/local/bin",
                "",
            ),
            ("usr", "bin", "usr/bin", "/bin:/usr/bin", ""),
            ("opt/flux", "opt/current", "flux", "/opt/current/bin", ""),
            (
                "opt/flux",
                "usr/local/bin/flux",
                "../../../opt/flux/bin/flux",
                "",
                "install_root='/usr/local/'",
            ),
            // The install root has no Flux.
            ("usr", "bin", "usr/bin", "/bin", "install_root='/opt/flux'"),
        ] {
            let root = tempfile::tempdir().unwrap();
            let at = |path: &str| root.path().join(path);
            for file in [
                "bin/flux",
                "libexec/flux/modprobe/rc1.py",
                "libexec/flux/cmd/flux-account.py",
            ] {
                let file = at(&format!("{prefix}/{file}"));
                std::fs::create_dir_all(file.parent().unwrap()).unwrap();
                std::fs::write(&file, "").unwrap();
                std::fs::set_permissions(file, PermissionsExt::from_mode(0o755)).unwrap();
            }
            // Not compiled.
            let module = at(&format!("{prefix}/lib/flux/python3.11/flux/__init__.py"));
            std::fs::create_dir_all(module.parent().unwrap()).unwrap();
            std::fs::write(module, "").unwrap();
            let build = at(&format!("{prefix}/lib64/pkgconfig/flux-core.pc"));
            std::fs::create_dir_all(build.parent().unwrap()).unwrap();
            std::fs::write(build, "prefix=/x\n\nName: flux-core\nVersion: 0.49.0\nLibs:\n").unwrap();
            std::fs::create_dir_all(at(link).parent().unwrap()).unwrap();
            symlink(target, at(link)).unwrap();
            let mut process = Process::own();
            process.environment.insert("PATH".into(), path.into());
            let facts = read(root.path(), &spec(view), process).unwrap();
            assert!(
                facts.flux_modprobe && facts.flux_accounting && !facts.python_compiled,
                "{link} -> {target}: {facts:?}"
            );
            assert_eq!(
                facts.flux_version.as_deref(),
                Some("0.49.0"),
                "{link} -> {target}"
            );
        }
    }

    #[test]
    fn shell_is_the_first_on_the_path_by_its_usual_name() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let root = tempfile::tempdir().unwrap();
        let add = |path: &str| {
            let at = root.path().join(path);
            std::fs::create_dir_all(at.parent().unwrap()).unwrap();
            std::fs::write(&at, path).unwrap();
            std::fs::set_permissions(at, PermissionsExt::from_mode(0o755)).unwrap();
        };
        let found = |path: &str| shell(&host::HostFiles::new(root.path()), path);
        assert_eq!(found(DEFAULT_PATH), None);
        add("usr/bin/sh");
        symlink("usr/bin", root.path().join("bin")).unwrap();
        assert_eq!(
            found(DEFAULT_PATH).as_deref(),
            Some("/bin/sh"),
            "the same file as /usr/bin/sh"
        );
        assert_eq!(
            found("/elsewhere").as_deref(),
            Some("/bin/sh"),
            "a PATH that has none"
        );
        let trouble = |path: &str| bash_trouble(&host::HostFiles::new(root.path()), path);
        assert!(trouble(DEFAULT_PATH).unwrap().contains("the image has no bash"));
        add("usr/local/bin/bash");
        assert_eq!(found(DEFAULT_PATH).as_deref(), Some("/usr/local/bin/bash"));
        assert_eq!(trouble(DEFAULT_PATH), None);
        add("usr/bin/bash");
        let off_path = trouble("/opt/app/bin:$PATH").unwrap();
        assert!(
            off_path.starts_with("/bin/bash is not on the PATH (/opt/app/bin:$PATH), and"),
            "{off_path}"
        );
        assert_eq!(found("/usr/sbin:/usr/bin:/bin").as_deref(), Some("/bin/bash"));
        assert_eq!(
            found(DEFAULT_PATH).as_deref(),
            Some("/usr/local/bin/bash"),
            "the first on the PATH"
        );
    }
}
