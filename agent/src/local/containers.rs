//! The containers of a MiniCluster on this machine: what each sees, and what is not supported. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use flux_agent_plan::dry_run::Source;
use flux_shared::agent_spec::AgentSpec;
use flux_shared::hostlist;
use flux_shared::names::{self, DEFAULT_GRACE_PERIOD, RESTARTS_LEFT};
use flux_shared::paths::{
    AGENT_FILE, CURVE_FILE, SPEC_FILE, TERMINATION_LOG, VIEW_IMAGE_LINK, VIEW_IMAGE_MOUNT, home_beside,
};
use flux_shared::validate::{Mount, ValidContainer, ValidMiniCluster, VolumeSource};
use serde::{Deserialize, Serialize};

/// The largest number of pods in one run, an arbitrary limit: each is a tree of processes.
const MAX_PODS: u32 = 250;

/// This machine, and the user who runs the command on it.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    pub uid: u32,
    pub gid: u32,
    /// The prefix that Flux is installed in.
    pub prefix: String,
    /// Path of this program.
    pub agent: String,
    /// The current folder of the command.
    pub here: String,
    /// The user's home folder.
    pub home: Option<String>,
    /// The variable PATH.
    pub path: String,
    /// Other variables that the containers get.
    pub environment: BTreeMap<String, String>,
}

impl Machine {
    pub fn is_root(&self) -> bool {
        self.uid == 0
    }
}

/// The containers to run, and how they differ from those in a cluster.
#[derive(Debug)]
pub struct Arrangement {
    pub spec: AgentSpec,
    pub containers: Vec<LocalContainer>,
    /// Seconds from a stop to a kill.
    pub grace_period: u64,
    /// The text of the MiniCluster's own certificate. None: `run` creates one if the pods need it.
    pub certificate: Option<String>,
    /// The differences from a cluster, one a line.
    pub notices: Vec<String>,
}

impl Arrangement {
    /// Whether the pods have a certificate. A single broker needs none: no other one connects to it. (With an
    /// invalid hostlist, the pods make no plan, and so read none.)
    pub fn needs_certificate(&self) -> bool {
        hostlist::expand(&self.spec.hostlist()).map_or(true, |hosts| hosts.len() > 1)
    }
}

/// One container of a pod, which `inside` sets up.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct LocalContainer {
    pub index: u32,
    /// The sidecar's name; none: the container that runs Flux.
    pub sidecar: Option<String>,
    pub hostname: String,
    /// The folder that becomes its root.
    pub root: String,
    /// Empty folders of its own: paths and modes.
    pub folders: BTreeMap<String, u32>,
    pub mounts: Vec<Bind>,
    /// Its emptyDir volumes and claims: mount paths, and folders relative to the run's folder.
    /// `LockedRunFolder::prepare` moves them to `mounts`.
    pub volumes: BTreeMap<String, String>,
    /// Files of its own: paths and texts.
    pub files: BTreeMap<String, String>,
    pub environment: BTreeMap<String, String>,
    /// The working directory.
    pub directory: String,
    /// The command line.
    pub words: Vec<String>,
    /// Uid and gid that it runs as; none: root of the container.
    pub owner: Option<(u32, u32)>,
    /// The mount path: where Flux's files are.
    pub mount_path: String,
    /// Whether the container first links Flux's files (the view) below the mount path, as an init container does in a
    /// pod.
    pub view: bool,
}

/// A bind mount: a folder or file of the machine, and its path in the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bind {
    pub from: String,
    pub to: String,
    pub writable: bool,
}

impl Bind {
    fn new(from: &str, to: &str, writable: bool) -> Bind {
        Bind {
            from: from.to_owned(),
            to: to.to_owned(),
            writable,
        }
    }
}

impl LocalContainer {
    /// The name in lines and messages.
    pub fn name(&self) -> String {
        match &self.sidecar {
            Some(sidecar) => format!("{}/{sidecar}", self.hostname),
            None => self.hostname.clone(),
        }
    }

    pub fn is_lead(&self) -> bool {
        self.index == 0 && self.sidecar.is_none()
    }

    /// Paths where the container has something of its own in place of the machine's: folders, files and mounts.
    pub fn replaced(&self) -> BTreeSet<&Path> {
        let mounts = self.mounts.iter().map(|mount| mount.to.as_str());
        let paths = self
            .folders
            .keys()
            .chain(self.files.keys())
            .map(String::as_str)
            .chain(mounts);
        paths.map(Path::new).collect()
    }

    /// Folders of the machine that contain one of the container's own paths, parents first: their entries are
    /// mounted one by one.
    pub fn opened(&self) -> BTreeSet<&Path> {
        let replaced = self.replaced();
        let is_inside = |path: &Path| path.ancestors().any(|parent| replaced.contains(parent));
        replaced
            .iter()
            .flat_map(|path| path.ancestors().skip(1))
            .filter(|path| !is_inside(path))
            .collect()
    }
}

impl Arrangement {
    /// Arranges `source` on `machine`; the error says why that is not possible.
    pub fn of(source: &Source, machine: &Machine) -> Result<Arrangement, String> {
        let mut spec = source.spec.clone();
        if spec.network.lead.is_some() {
            return Err("its lead broker is in another cluster".into());
        }
        if spec.size > MAX_PODS {
            return Err(format!(
                "it has {} pods, but at most {MAX_PODS} are supported here",
                spec.size
            ));
        }
        let mut notices = Vec::new();
        let cluster = source.cluster();
        if let Some(cluster) = cluster {
            list_differences(cluster, machine, &mut notices);
        }
        drop_unsupported(&mut spec, machine, &mut notices);
        let mut containers = Vec::new();
        for index in 0..spec.size {
            for sidecar in [None].into_iter().chain(spec.sidecars.keys().map(Some)) {
                let name = sidecar.map(String::as_str);
                containers.push(LocalContainer::of(&spec, machine, index, name, cluster)?);
            }
        }
        let certificate = cluster
            .and_then(|cluster| cluster.flux.curve_cert.as_ref())
            .map(|certificate| certificate.to_text());
        Ok(Arrangement {
            spec,
            containers,
            grace_period: cluster.map_or(DEFAULT_GRACE_PERIOD, ValidMiniCluster::grace_period),
            certificate,
            notices,
        })
    }
}

impl LocalContainer {
    /// A container of the pod `index`: the sidecar with this name or, without a name, the one that runs Flux. No
    /// `cluster`: the source is an AgentSpec. The error says why it cannot run here.
    fn of(
        spec: &AgentSpec,
        machine: &Machine,
        index: u32,
        sidecar: Option<&str>,
        cluster: Option<&ValidMiniCluster>,
    ) -> Result<LocalContainer, String> {
        let given = cluster.and_then(|cluster| match sidecar {
            None => Some(&cluster.runner.container),
            Some(name) => {
                let sidecars = cluster.sidecars.iter().map(|sidecar| &sidecar.container);
                sidecars.into_iter().find(|container| container.name == name)
            }
        });
        let hostname = names::host(&spec.name, index);
        let words = match sidecar {
            Some(name) => vec!["sidecar".to_owned(), name.to_owned()],
            // Nothing restarts a container here.
            None => vec!["run".to_owned(), format!("{RESTARTS_LEFT}=0")],
        };
        let mut container = LocalContainer {
            index,
            sidecar: sidecar.map(str::to_owned),
            hostname,
            words: [vec![AGENT_FILE.to_owned()], words].concat(),
            directory: given
                .and_then(|given| given.working_dir.clone())
                .unwrap_or_else(|| machine.here.clone()),
            owner: match (cluster, given) {
                (Some(cluster), Some(given)) if machine.is_root() => owner(cluster, given),
                _ => None,
            },
            mount_path: spec.mount_path.trim_end_matches('/').to_owned(),
            view: spec.view.enabled && sidecar.is_none(),
            ..LocalContainer::default()
        };
        let of_spec = match (cluster, given) {
            (Some(cluster), Some(given)) => cluster.environment(given),
            _ => BTreeMap::new(),
        };
        container.environment = environment(spec, machine, index, of_spec);
        let given_mounts = given.map(|given| given.mounts.as_slice()).unwrap_or_default();
        let home = home_beside(given_mounts.iter().map(|mount| mount.path.as_str()));
        container.add_machine_mounts(machine, home);
        container.files = files(spec, &container.hostname);
        for mount in given_mounts {
            container.add(mount);
        }
        // What the program writes into this folder must not be lost.
        let here = Path::new(&machine.here);
        let is_mounted = |bind: &Bind| bind.writable && Path::new(&bind.to) == here;
        if container.directory == machine.here && !container.mounts.iter().any(is_mounted) {
            return Err(format!(
                "the current folder, {}, contains folders that the pods have themselves: start it in another folder",
                machine.here
            ));
        }
        Ok(container)
    }

    /// Makes this machine's files the container's image, with the pod's own folders and mounts in it.
    fn add_machine_mounts(&mut self, machine: &Machine, fallback_home: &str) {
        // The agent creates users' homes in /home. Any user may write to the fallback home, as to the volume in a pod.
        let empty = [
            ("/tmp", 0o1777),
            ("/var/tmp", 0o1777),
            ("/home", 0o755),
            (fallback_home, 0o777),
        ];
        // Nothing is mounted on /dev/mqueue: the empty folder only hides the machine's.
        let kernel_mount_points = [
            ("/proc", 0o555),
            ("/dev/pts", 0o755),
            ("/dev/shm", 0o1777),
            ("/dev/mqueue", 0o755),
        ];
        self.folders = empty
            .into_iter()
            .chain(kernel_mount_points)
            .map(|(path, mode)| (path.to_owned(), mode))
            .collect();
        self.mounts.push(Bind::new(&machine.agent, AGENT_FILE, false));
        // In place of the view's image, in which the agent looks for the view at this path.
        self.mounts.push(Bind::new(
            &machine.prefix,
            &format!("{VIEW_IMAGE_MOUNT}{VIEW_IMAGE_LINK}"),
            false,
        ));
        // Without the machine's folders, which are added below: one of them may contain another.
        let own_paths: BTreeSet<PathBuf> = self.replaced().into_iter().map(Path::to_owned).collect();
        // A home inside the current folder gets no mount of its own, which would be read-only.
        let home = machine
            .home
            .iter()
            .filter(|home| !Path::new(home).starts_with(&machine.here));
        let home = home.map(|home| (home, false));
        // Such a home and the current folder are always mounted if they can be. The prefix is mounted only if one of the
        // pod's own paths hides it: Flux looks for its parts where it was installed.
        for (path, writable) in home.chain([(&machine.prefix, false), (&machine.here, true)]) {
            // A folder with one of the pod's own paths in it, such as /, cannot be mounted as a whole.
            let can_be_mounted = own_paths
                .iter()
                .all(|own| !own.starts_with(path) || own == Path::new(path));
            let is_hidden = own_paths.iter().any(|own| Path::new(path).starts_with(own));
            if can_be_mounted && (writable || is_hidden || Some(path) == machine.home.as_ref()) {
                self.mounts.push(Bind::new(path, path, writable));
            }
        }
    }

    /// Adds a volume, if its kind is supported.
    fn add(&mut self, mount: &Mount) {
        match &mount.source {
            VolumeSource::HostPath(path) => self.mounts.push(Bind::new(path, &mount.path, !mount.read_only)),
            VolumeSource::EmptyDir { memory, size_limit } => {
                // As in a pod: mounts with the same name and the same options share one volume.
                let size = size_limit.as_ref().map_or("", |limit| &limit.0);
                let folder = format!("pods/{}/volumes/{}-{memory}-{size}", self.index, mount.name);
                self.volumes.insert(mount.path.clone(), folder);
            }
            VolumeSource::Claim(claim) => {
                self.volumes
                    .insert(mount.path.clone(), format!("volumes/{claim}"));
            }
            _ => {}
        }
    }
}

/// The user that the container asks for, unless that is root.
fn owner(cluster: &ValidMiniCluster, container: &ValidContainer) -> Option<(u32, u32)> {
    cluster.run_as(container).filter(|(uid, _)| *uid != 0)
}

fn environment(
    spec: &AgentSpec,
    machine: &Machine,
    index: u32,
    of_spec: BTreeMap<String, String>,
) -> BTreeMap<String, String> {
    let mut environment = machine.environment.clone();
    let bin = format!("{}/bin", machine.prefix);
    // With a view, the agent appends the view's folder of programs to the PATH.
    let path = if spec.view.enabled || machine.path.split(':').any(|folder| folder == bin) {
        machine.path.clone()
    } else {
        format!("{bin}:{}", machine.path)
    };
    environment.insert("PATH".into(), path);
    environment.insert("HOSTNAME".into(), names::host(&spec.name, index));
    environment.extend(of_spec);
    environment.insert(names::COMPLETION_INDEX.into(), index.to_string());
    // With a host network, the agent takes the pod's address from this variable only.
    if spec.network.host_network {
        environment.insert(
            names::POD_ADDRESS.0.into(),
            super::network::address(index).to_string(),
        );
    }
    environment
}

/// The files that Kubernetes gives a pod, except the spec and the certificate. nsswitch.conf is added: by it, the C
/// library looks names up in files only.
fn files(spec: &AgentSpec, hostname: &str) -> BTreeMap<String, String> {
    let domain = spec.network.cluster_domain.as_deref().unwrap_or("cluster.local");
    let (service, namespace) = (&spec.network.service, &spec.namespace);
    let line = |index| {
        let host = names::host(&spec.name, index);
        format!(
            "{} {host}.{service}.{namespace}.svc.{domain} {host}\n",
            super::network::address(index)
        )
    };
    let hosts: String = (0..spec.size).map(line).collect();
    let files = [
        (
            "/etc/hosts",
            format!("127.0.0.1 localhost\n::1 localhost\n{hosts}"),
        ),
        ("/etc/hostname", format!("{hostname}\n")),
        // There is no DNS server here. The agent reads the cluster's domain from this file.
        (
            "/etc/resolv.conf",
            format!("search {namespace}.svc.{domain} svc.{domain} {domain}\n"),
        ),
        (
            "/etc/nsswitch.conf",
            "passwd: files\ngroup: files\nshadow: files\nhosts: files\n".to_owned(),
        ),
        (TERMINATION_LOG, String::new()),
    ];
    files
        .into_iter()
        .map(|(path, text)| (path.to_owned(), text))
        .collect()
}

/// Lists the parts of the MiniCluster that are not supported here, or differ.
fn list_differences(cluster: &ValidMiniCluster, machine: &Machine, notices: &mut Vec<String>) {
    notices.push(format!(
        "this machine's programs are used in place of the image {}",
        cluster.runner.container.image
    ));
    if cluster.max_size > cluster.size {
        notices.push(format!(
            "the size stays {}: autoscaling is not supported here",
            cluster.size
        ));
    }
    let not_started = cluster
        .sidecars
        .iter()
        .filter(|sidecar| sidecar.wrapped.is_none())
        .map(|sidecar| &sidecar.container.name);
    let not_started: Vec<&str> = not_started
        .chain(cluster.services.iter().map(|service| &service.name))
        .map(String::as_str)
        .collect();
    if !not_started.is_empty() {
        notices.push(format!(
            "not started, since they run their image's own entrypoint: {}",
            not_started.join(", ")
        ));
    }
    let wrapped = cluster
        .sidecars
        .iter()
        .filter(|sidecar| sidecar.wrapped.is_some())
        .map(|sidecar| &sidecar.container);
    for container in [&cluster.runner.container].into_iter().chain(wrapped) {
        list_container_differences(cluster, container, machine, notices);
    }
    if cluster.pod_template.is_some() {
        notices.push("of podTemplate, only variables and the pod's CPU limit are used".into());
    }
    if let Some(seconds) = cluster.deadline_seconds {
        notices.push(format!(
            "deadlineSeconds: {seconds} has no effect here: nothing ends the run"
        ));
    }
    if cluster.max_restarts > 0 || cluster.pod.restart_policy.as_deref() == Some("OnFailure") {
        notices.push("maxRestarts and restartPolicy have no effect here: nothing restarts".into());
    }
    if cluster.flux.munge_secret.is_some() {
        notices.push("the munge key is not mounted: Secrets are not supported here".into());
    }
}

fn list_container_differences(
    cluster: &ValidMiniCluster,
    container: &ValidContainer,
    machine: &Machine,
    notices: &mut Vec<String>,
) {
    let name = &container.name;
    for mount in &container.mounts {
        let (what, instead) = match &mount.source {
            VolumeSource::HostPath(_) | VolumeSource::EmptyDir { .. } => continue,
            VolumeSource::Claim(claim) => (format!("the claim {claim}"), "a folder that the pods share is"),
            VolumeSource::ConfigMap { name, .. } => (format!("the ConfigMap {name}"), "nothing is"),
            VolumeSource::Secret { name, .. } => (format!("the Secret {name}"), "nothing is"),
            VolumeSource::Csi { driver, .. } => (format!("a volume of {driver}"), "nothing is"),
        };
        notices.push(format!("{name}: in place of {what}, {instead} at {}", mount.path));
    }
    let variables: Vec<&str> = container.secrets.keys().map(String::as_str).collect();
    if !variables.is_empty() {
        notices.push(format!(
            "{name}: variables from Secrets are not set: {}",
            variables.join(", ")
        ));
    }
    let is_runner = container.name == cluster.runner.container.name;
    let limits = container.resources.limits.keys().map(String::as_str);
    // Flux heeds the runner's limit on CPUs, unless the cgroup of this machine sets another one.
    let limits: Vec<&str> = limits.filter(|limit| !is_runner || *limit != "cpu").collect();
    if !limits.is_empty() {
        notices.push(format!(
            "{name}: limits have no effect here: {}",
            limits.join(", ")
        ));
    }
    if container.post_start.is_some() || container.pre_stop.is_some() {
        notices.push(format!("{name}: its lifecycle hooks are not run"));
    }
    if !machine.is_root()
        && let Some((uid, _)) = owner(cluster, container)
    {
        notices.push(format!(
            "{name}: it runs as your user, not as uid {uid}, which needs root"
        ));
    }
}

/// Removes from the spec what is not possible here, and lists it: Flux's user (only root may give a process another
/// user's rights), the users with passwords, the RESTful API, metrics. The trace is removed without a notice.
fn drop_unsupported(spec: &mut AgentSpec, machine: &Machine, notices: &mut Vec<String>) {
    if let Some(user) = spec.runner.user.take_if(|_| !machine.is_root()) {
        notices.push(format!(
            "Flux runs as your user, not as {} (uid {}), which needs root",
            user.name, user.uid
        ));
    }
    if !spec.users.is_empty() {
        notices.push(format!(
            "users are not created, since their passwords are in a Secret: {}",
            spec.users.join(", ")
        ));
        spec.users.clear();
    }
    if spec.runner.restful.take().is_some() {
        notices.push(
            "the Flux RESTful API is not served: it is fetched from the network, which the pods do not reach"
                .into(),
        );
    }
    // Only the operator collects the times of a trace.
    spec.trace = None;
    if spec.flux.metrics_port.take().is_some() {
        notices.push("metrics are not served: the pods' network is not this machine's".into());
    }
}

/// The mounts of the files and folders that the pod's folder in the run folder has for a container.
pub fn run_folder_mounts(pod_folder: &str, mount_path: &str, has_certificate: bool) -> Vec<Bind> {
    let at = |name: &str| format!("{pod_folder}/{name}");
    let mut mounts = vec![
        Bind::new(&at("spec.toml"), SPEC_FILE, false),
        Bind::new(&at("flux"), mount_path, true),
    ];
    if has_certificate {
        mounts.push(Bind::new(&at("curve.cert"), CURVE_FILE, false));
    }
    mounts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Machine {
        Machine {
            uid: 1000,
            gid: 1000,
            prefix: "/opt/flux".into(),
            agent: "/usr/bin/flux-agent".into(),
            here: "/home/ada/work".into(),
            home: Some("/home/ada".into()),
            path: "/usr/bin:/bin".into(),
            environment: BTreeMap::new(),
        }
    }

    fn arrangement(spec: &str) -> Arrangement {
        arrangement_on(&machine(), spec).unwrap()
    }

    fn arrangement_on(machine: &Machine, spec: &str) -> Result<Arrangement, String> {
        let text = format!(
            "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {{name: mc}}\nspec:\n{spec}"
        );
        let source = Source::parse(&text).map_err(|error| error.to_string()).unwrap();
        Arrangement::of(&source, machine)
    }

    #[test]
    fn current_folder_that_cannot_be_mounted_is_refused() {
        for here in ["/", "/mnt", "/home", "/etc"] {
            let machine = Machine {
                here: here.into(),
                ..machine()
            };
            let error = arrangement_on(&machine, "  containers: [{image: app, command: id}]").unwrap_err();
            assert!(error.contains("start it in another folder"), "{here}: {error}");
            let elsewhere = "  containers: [{image: app, command: id, workingDir: /opt}]";
            assert!(arrangement_on(&machine, elsewhere).is_ok(), "{here}");
        }
    }

    #[test]
    fn user_of_the_pod_and_variables_of_the_overlay_count() {
        let root = Machine {
            uid: 0,
            gid: 0,
            ..machine()
        };
        let runner = |spec: &str| arrangement_on(&root, spec).unwrap().containers.remove(0);
        let container = "  containers: [{image: app, name: app, command: id";
        let pod = "  pod: {securityContext: {runAsUser: 7, runAsGroup: 8}}\n";
        assert_eq!(runner(&format!("{container}}}]")).owner, None);
        assert_eq!(runner(&format!("{pod}{container}}}]")).owner, Some((7, 8)));
        let of_container = format!("{pod}{container}, securityContext: {{runAsUser: 9}}}}]");
        assert_eq!(runner(&of_container).owner, Some((9, 8)));
        let overlay = "\n  podTemplate: {spec: {containers: [{name: app, env: [{name: OMP_NUM_THREADS, value: '4'}]}]}}";
        let overlaid = runner(&format!("{container}}}]{overlay}"));
        assert_eq!(overlaid.environment["OMP_NUM_THREADS"], "4");
    }

    #[test]
    fn environment_is_that_of_a_pod() {
        let all = arrangement(
            "  size: 2\n  containers:\n  \
             - {image: a, runFlux: true, command: id, environment: {A: a, B: '$(A)$$(A)$(X)', HOME: $(HOSTNAME)}}\n  \
             - {image: b, name: b, command: c, environment: {A: b, B: '<$(A)>', HOSTNAME: own}}",
        );
        let values = |container: usize| {
            let environment = &all.containers[container].environment;
            ["HOSTNAME", "A", "B"].map(|name| environment[name].as_str())
        };
        assert_eq!(values(0), ["mc-0", "a", "a$(A)$(X)"]);
        assert_eq!(values(1), ["own", "b", "<b>"]);
        assert_eq!(values(2), ["mc-1", "a", "a$(A)$(X)"]);
        // The container runtime sets HOSTNAME: the kubelet does not know it.
        assert_eq!(all.containers[0].environment["HOME"], "$(HOSTNAME)");
    }

    #[test]
    fn cpu_limit_counts_and_other_limits_are_listed() {
        let all = arrangement(
            "  size: 1\n  containers:\n  \
             - {image: a, runFlux: true, name: app, resources: {limits: {cpu: 2, memory: 1Gi, nvidia.com/gpu: 1}}}\n  \
             - {image: b, name: side, command: c, resources: {limits: {cpu: 1}}}",
        );
        assert_eq!(all.spec.runner.cpu_limit, Some(2.0));
        let limits: Vec<&String> = all
            .notices
            .iter()
            .filter(|notice| notice.contains("limits"))
            .collect();
        assert_eq!(
            limits,
            [
                "app: limits have no effect here: memory, nvidia.com/gpu",
                "side: limits have no effect here: cpu"
            ]
        );
    }

    #[test]
    fn several_hosts_need_a_certificate() {
        let needs = |spec: &str| {
            let containers = "  containers: [{image: app, command: hostname}]";
            arrangement(&format!("{spec}\n{containers}")).needs_certificate()
        };
        assert!(!needs("  size: 1") && needs("  size: 2"));
        assert!(needs("  size: 1\n  maxSize: 2"));
        assert!(needs("  size: 1\n  flux: {bursting: {hostlist: 'mc-[0-3]'}}"));
    }

    #[test]
    fn only_folders_with_files_of_the_pod_are_opened() {
        let all = arrangement("  size: 2\n  containers: [{image: app, command: hostname}]");
        assert_eq!(all.containers.len(), 2);
        let opened: Vec<&str> = all.containers[1]
            .opened()
            .into_iter()
            .filter_map(Path::to_str)
            .collect();
        let want = [
            "/",
            "/dev",
            "/etc",
            "/etc/flux-agent",
            "/etc/flux-agent/bin",
            "/mnt",
            "/mnt/flux-image",
            "/mnt/flux-image/opt",
            "/var",
        ];
        assert_eq!(opened, want);
        assert!(all.containers[0].is_lead() && !all.containers[1].is_lead());
        assert!(
            all.containers[1].files["/etc/hosts"]
                .contains("10.9.0.2 mc-1.flux-service.default.svc.cluster.local mc-1\n")
        );
    }

    #[test]
    fn home_is_elsewhere_when_a_volume_is_above_it() {
        for (path, home) in [
            ("/homes", "/home/flux-operator"),
            ("/home", "/etc/flux-agent/home"),
        ] {
            let all = arrangement(&format!(
                "  containers: [{{image: app, volumes: {{homes: {{path: {path}, claimName: homes}}}}}}]"
            ));
            let folders = &all.containers[0].folders;
            let with_all_rights = folders.iter().filter(|(_, mode)| **mode == 0o777);
            let homes: Vec<&String> = with_all_rights.map(|(path, _)| path).collect();
            assert_eq!(homes, [home], "{path}");
        }
    }

    #[test]
    fn pods_write_only_to_the_commands_folder() {
        let all = arrangement("  size: 1\n  containers: [{image: app, command: hostname}]");
        let writable: Vec<&Bind> = all.containers[0]
            .mounts
            .iter()
            .filter(|mount| mount.writable)
            .collect();
        assert_eq!(writable, [&Bind::new("/home/ada/work", "/home/ada/work", true)]);
    }

    #[test]
    fn pods_write_to_the_commands_folder_when_flux_is_below_it() {
        let machine = Machine {
            prefix: "/home/ada/miniconda3/envs/flux".into(),
            here: "/home/ada".into(),
            ..machine()
        };
        let mut container = LocalContainer::default();
        container.add_machine_mounts(&machine, "/home/flux-operator");
        let at_home: Vec<&Bind> = container
            .mounts
            .iter()
            .filter(|mount| mount.to == "/home/ada")
            .collect();
        assert_eq!(at_home, [&Bind::new("/home/ada", "/home/ada", true)]);
    }

    #[test]
    fn local_run_omits_features_that_need_root_or_a_cluster() {
        let all = arrangement(
            "  size: 1\n  maxSize: 3\n  users: [{name: ada}]\n  services: [{image: nginx, name: web}]\n  containers:\n  \
             - {image: app, command: id, fluxUser: {name: flux, uid: 1002}, securityContext: {runAsUser: 7},\n     \
                volumes: {data: {claimName: big, path: /data}, key: {secretName: key, path: /key, items: {a: b}}}}",
        );
        let notices = all.notices.join("\n");
        for want in [
            "in place of the image app",
            "size stays 1",
            "not started, since they run their image's own entrypoint: web",
            "in place of the claim big, a folder that the pods share is at /data",
            "in place of the Secret key, nothing is at /key",
            "not as uid 7, which needs root",
            "not as flux (uid 1002), which needs root",
            "users are not created",
        ] {
            assert!(notices.contains(want), "{want}: {notices}");
        }
        assert!(all.spec.runner.user.is_none() && all.spec.users.is_empty());
        assert_eq!(all.containers[0].volumes["/data"], "volumes/big");
        assert_eq!(all.containers[0].owner, None);
    }
}
