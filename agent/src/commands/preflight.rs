//! Judges whether a pod has what Flux needs, and names remedies. Pure.

use std::net::IpAddr;

use flux_agent_plan::facts::Facts;
use flux_agent_plan::known_paths::FLUX;
use flux_agent_plan::plan::Instance;

use super::status::remedy;
use crate::system::glibc::{Libc, version};
use crate::system::identity::{LACKS_KILL, REMEDY};
use crate::wait::Missing;
use crate::wait::resolve::NameError;

/// Default size of /dev/shm in container runtimes, in bytes. It is too small for MPI programs.
const SMALL_SHARED_MEMORY: u64 = 64 << 20;
/// Bytes of /dev/shm that Open MPI uses for each task on a node, by default.
const SHARED_MEMORY_OF_TASK: u64 = 4 << 20;
const MINIMAL_SERVICE: &str = "(With minimalService only the lead has a name)";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Pass,
    Warn,
    Fail,
}
use Level::{Fail, Pass, Warn};

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    pub level: Level,
    pub topic: &'static str,
    /// The finding, and the remedy if there is one.
    pub text: String,
}

/// The facts that the checks judge.
#[derive(Debug)]
pub struct Findings<'a> {
    pub instance: &'a Instance,
    pub facts: &'a Facts,
    /// Cores that the spec declares for each pod; none: it declares none.
    pub declared_cores: Option<u32>,
    /// The container's limit on CPU time, in CPUs; none: no limit.
    pub cpu_limit: Option<f64>,
    /// Whether broker.toml is the user's own, which may make Flux check R against this host. The agent's own disables
    /// the check wherever R may have more cores.
    pub has_users_config: bool,
    /// Whether Flux runs as another user than the agent, which then lacks the capability to signal it.
    pub lacks_kill: bool,
    /// Paths that Flux or its jobs write to, and whether they are writable. The first is on Flux's own volume.
    pub places: Vec<(String, bool)>,
    /// Size of /dev/shm in bytes.
    pub shared_memory: Option<u64>,
    pub huge_pages: Vec<HugePages>,
    /// None: the machine has only one NUMA node, or its nodes are not known.
    pub numa: Option<Numa>,
    /// Parts of divided GPUs (NVIDIA MIG) in the container.
    pub mig_parts: usize,
    /// RDMA devices that the container sees (`/dev/infiniband/uverbs0` …).
    pub rdma: usize,
    /// Bytes of memory that a process may lock; none: any number.
    pub memory_lock: Option<u64>,
    /// The first characters of the certificate's public key, or why there is none.
    pub certificate: Result<String, String>,
    /// None: there is no file R, or it cannot be understood.
    pub resources: Option<ResourceTotals>,
    /// None: Flux is missing, static or a script.
    pub libc: Option<Libc>,
    /// Whether the clock shows a time before Flux's build date.
    pub clock_behind: bool,
    /// Why Flux finds no bash; none: it finds one.
    pub bash_trouble: Option<String>,
    /// The addresses of this host's name; none: a single broker needs no name.
    pub own_name: Option<Result<Vec<IpAddr>, NameError>>,
    /// The look-up of the other hosts' names, whose pods should be there.
    pub other_names: Option<Names>,
    /// The parent's host, and whether it can be reached; none: no parent, or only the user's own broker.toml names it.
    pub parent: Option<(&'a str, Result<(), Missing>)>,
}

/// Huge pages of one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HugePages {
    pub kibibytes: u64,
    /// Pages of this size on the node.
    pub pages: u64,
    /// Bytes of them that the container may use; none: there is no limit, or the kernel does not say.
    pub limit: Option<u64>,
}

/// NUMA nodes of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Numa {
    pub nodes: usize,
    /// NUMA nodes with a CPU of the affinity mask.
    pub allowed: usize,
    /// CPUs of the largest NUMA node.
    pub largest: usize,
}

/// The result of looking up names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// Names that were looked up, with an answer.
    pub asked: usize,
    /// Names that were not looked up in time, or without an answer.
    pub left: usize,
    /// Host names of those without an address.
    pub missing: Vec<String>,
    /// Why the last look-up without an answer failed; none: each had one.
    pub failure: Option<NameError>,
}

/// What the file R (Flux's resources, RFC 20) lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResourceTotals {
    pub hosts: usize,
    /// Cores of one host.
    pub cores: u32,
}

/// All checks, in the order in which they are printed.
pub fn judge(findings: &Findings) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut add = |topic, (level, text): (Level, String)| checks.push(Check { level, topic, text });
    add("flux", flux(findings));
    if let Some(libc) = &findings.libc {
        match libc.other_machine() {
            Some(trouble) => add("arch", (Fail, trouble)),
            None => {
                add("arch", (Pass, libc.machine.into()));
                add("libc", c_library(libc));
            }
        }
    }
    if let Some(trouble) = &findings.bash_trouble {
        // Only a warning: other versions may not need it.
        add("bash", (Warn, trouble.clone()));
    }
    if let Some(found) = &findings.own_name {
        add("dns", own_name(findings, found));
    }
    if let Some(names) = &findings.other_names {
        add("names", other_names(names));
    }
    if let Some((host, found)) = &findings.parent {
        add("parent", parent(host.trim_end_matches('.'), found));
    }
    // A single broker needs no certificate.
    if findings.instance.hosts.len() > 1 {
        add("cert", certificate(&findings.certificate));
    }
    add("cpus", cores(findings));
    if findings.mig_parts > 1 {
        add("gpus", (Warn, mig_slices(findings.mig_parts)));
    }
    add("binding", (Pass, findings.instance.binding.line()));
    if let Some(resources) = &findings.resources {
        add("R", listed_resources(findings, *resources));
    }
    if let Some(numa) = findings.numa {
        add("numa", numa_nodes(findings.facts, numa));
    }
    // Assumes one task for each core.
    add(
        "shm",
        shared_memory(
            findings.shared_memory,
            findings.declared_cores.unwrap_or(usable_cores(findings)),
        ),
    );
    for pages in &findings.huge_pages {
        add("huge", huge_pages(*pages));
    }
    add("mpi", mpi(findings));
    add("user", user(findings));
    // The first place is on Flux's own volume.
    for (index, (path, writable)) in findings.places.iter().enumerate() {
        add("write", place(index == 0, path, *writable));
    }
    add("clock", clock(findings.clock_behind));
    checks
}

/// One line for each check.
pub fn text(checks: &[Check]) -> String {
    let word = |level| match level {
        Pass => "pass",
        Warn => "WARN",
        Fail => "FAIL",
    };
    checks
        .iter()
        .map(|check| format!("{} {:<7} {}\n", word(check.level), check.topic, check.text))
        .collect()
}

fn flux(findings: &Findings) -> (Level, String) {
    match &findings.instance.flux {
        Ok(path) if path == FLUX => (
            Warn,
            "`flux` is not on the container's PATH: a snippet must put it there".into(),
        ),
        Ok(path) => (Pass, path.clone()),
        Err(error) => (Fail, format!("{error}: {}", error.hint())),
    }
}

fn c_library(libc: &Libc) -> (Level, String) {
    match libc.trouble() {
        Some(trouble) => (Fail, trouble),
        None => (
            Pass,
            format!(
                "glibc {}, {} is needed",
                version(libc.offered),
                version(libc.wanted)
            ),
        ),
    }
}

fn own_name(findings: &Findings, found: &Result<Vec<IpAddr>, NameError>) -> (Level, String) {
    let name = findings.instance.address_of(findings.instance.rank).host;
    let name = name.trim_end_matches('.');
    match found {
        Ok(addresses) => {
            let address = addresses.first().map(IpAddr::to_string).unwrap_or_default();
            match &findings.facts.address {
                Some(known) if addresses.iter().all(|address| address.to_string() != *known) => (
                    Warn,
                    format!("{name} is {address}, this pod is {known}: DNS still has an older pod's address"),
                ),
                _ => (Pass, format!("{name} is {address}")),
            }
        }
        Err(error) => {
            if !error.has_no_record() {
                return (
                    Fail,
                    format!("{name}: {error}. {}", remedy(&Missing::Name(error.clone()))),
                );
            }
            let text = format!("{name}: {error}: does the headless Service select this pod?");
            // This pod cannot know whether it is meant to have a name. Without one, only the brokers below it fail, and
            // the check `parent` in their pods reports that.
            if !findings.instance.is_lead {
                (Warn, format!("{text} {MINIMAL_SERVICE}"))
            } else {
                (Fail, text)
            }
        }
    }
}

fn other_names(names: &Names) -> (Level, String) {
    const SHOWN: usize = 5;
    let left = match &names.failure {
        _ if names.left == 0 => String::new(),
        None => format!(" ({} more were not looked up in time)", names.left),
        Some(error) => format!(" ({} more could not be looked up: {error})", names.left),
    };
    if names.missing.is_empty() {
        let text = format!("{} other hosts have an address{left}", names.asked);
        return match &names.failure {
            None => (Pass, text),
            Some(error) => (Warn, format!("{text}. {}", remedy(&Missing::Name(error.clone())))),
        };
    }
    let more = names.missing.len().saturating_sub(SHOWN);
    let shown = names
        .missing
        .iter()
        .take(SHOWN)
        .map(String::as_str)
        .collect::<Vec<_>>()
        .join(", ");
    let shown = if more == 0 {
        shown
    } else {
        format!("{shown} and {more} more")
    };
    let text = format!(
        "{} of {} other hosts have no address{left}: {shown}. Do their pods run? {MINIMAL_SERVICE}",
        names.missing.len(),
        names.asked
    );
    (Warn, text)
}

fn parent(host: &str, found: &Result<(), Missing>) -> (Level, String) {
    match found {
        Ok(()) => (Pass, format!("{host} answers")),
        Err(missing) => (Fail, format!("{host}: {missing}. {}", remedy(missing))),
    }
}

fn certificate(found: &Result<String, String>) -> (Level, String) {
    match found {
        Ok(key) => (
            Pass,
            format!("public key {key}…, which must be the same on every pod"),
        ),
        Err(why) => (
            Fail,
            format!(
                "{why}: is the Secret mounted, is its `curve.cert` a file of `flux keygen --name=NAME`, and can this user \
                 read it (pod.securityContext.fsGroup)?"
            ),
        ),
    }
}

fn cores(findings: &Findings) -> (Level, String) {
    let facts = findings.facts;
    let limit = match (facts.cpu_quota, findings.cpu_limit) {
        (Some(cpus), _) => format!(", a quota of {cpus}"),
        (None, Some(cpus)) => format!(", a limit of {cpus}"),
        (None, None) => String::new(),
    };
    let has = format!("{} cores{limit}, {} GPUs", facts.cores, facts.gpus);
    // The number of CPUs that were assigned to this container, if its quota does not let tasks use them all. `cpuset`
    // is none if the container may use all CPUs of the machine: then none were assigned.
    let throttled = facts
        .cpuset
        .filter(|cpus| facts.cpu_quota.is_some_and(|quota| quota < f64::from(*cpus)));
    match (findings.declared_cores, throttled) {
        (Some(declared), _) if declared > usable_cores(findings) => (
            Warn,
            format!(
                "{has}, but {declared} are declared: tasks will share them. Lower `cores`, raise the CPU limit, or use larger nodes"
            ),
        ),
        (_, Some(cpus)) => (
            Warn,
            format!(
                "{has}, {cpus} CPUs of its own: the quota stops tasks that use them all. Raise limits.cpu"
            ),
        ),
        _ if findings.cpu_limit.is_some_and(|cpus| cpus < 1.0) => (
            Warn,
            format!("{has}: Flux counts it as one core. Raise the limit"),
        ),
        _ => (Pass, has),
    }
}

/// How many cores Flux uses: at most the CPU limit.
fn usable_cores(findings: &Findings) -> u32 {
    let limit = findings.cpu_limit.map_or(u32::MAX, |cpus| cpus as u32);
    findings.facts.cores.min(limit).max(1)
}

fn mig_slices(count: usize) -> String {
    format!(
        "{count} MIG slices: CUDA selects a slice by its UUID, but Flux passes indexes. Request one slice per pod, and set `size` to the number of slices"
    )
}

/// Whether R has as many hosts as the instance and no more cores than this host. If the spec declares cores, the
/// agent's R lists these. Then the check `cpus` warns if there are too few.
fn listed_resources(findings: &Findings, ResourceTotals { hosts, cores }: ResourceTotals) -> (Level, String) {
    let (size, present) = (findings.instance.hosts.len(), findings.facts.cores);
    let listed = format!("R lists {hosts} nodes with {cores} cores");
    match findings.declared_cores {
        _ if hosts != size => (
            Fail,
            format!(
                "{listed}, but the instance has {size} brokers: Flux will not start. R and the hostlist must name the same hosts"
            ),
        ),
        None if cores > present && findings.has_users_config => (
            Fail,
            format!(
                "{listed}, but there are {present}: Flux drains this node, unless broker.toml sets resource.noverify. Set it, or renew R"
            ),
        ),
        None if cores > present => (
            Warn,
            format!("{listed}, but there are {present}: tasks will share them. Use nodes of one size"),
        ),
        _ => (Pass, listed),
    }
}

/// Warns if the container was assigned CPUs (`cpuset`) of several NUMA nodes, although one node could hold them all.
fn numa_nodes(facts: &Facts, numa: Numa) -> (Level, String) {
    let has = format!("its cores are on {} of {} NUMA nodes", numa.allowed, numa.nodes);
    match facts.cpuset {
        Some(cpus) if numa.allowed > 1 && cpus as usize <= numa.largest => (
            Warn,
            format!(
                "{has}, and one has {} CPUs: tasks may wait for memory of another. Set the kubelet's topologyManagerPolicy",
                numa.largest
            ),
        ),
        _ => (Pass, has),
    }
}

fn shared_memory(bytes: Option<u64>, tasks: u32) -> (Level, String) {
    let remedy = "Mount an emptyDir with medium Memory at /dev/shm";
    match bytes {
        None => (
            Warn,
            format!("there is no /dev/shm: MPI programs need it. {remedy}"),
        ),
        Some(bytes) if bytes <= SMALL_SHARED_MEMORY => (
            Warn,
            format!(
                "{} MiB in /dev/shm: MPI programs need more. {remedy}",
                bytes >> 20
            ),
        ),
        Some(bytes) if bytes < u64::from(tasks) * SHARED_MEMORY_OF_TASK => {
            let wanted = u64::from(tasks) * (SHARED_MEMORY_OF_TASK >> 20);
            (
                Warn,
                format!(
                    "{} MiB in /dev/shm, Open MPI takes {wanted} MiB for {tasks} tasks. Make it larger",
                    bytes >> 20
                ),
            )
        }
        Some(bytes) => (Pass, format!("{} MiB in /dev/shm", bytes >> 20)),
    }
}

fn huge_pages(
    HugePages {
        kibibytes,
        pages,
        limit,
    }: HugePages,
) -> (Level, String) {
    // As Kubernetes writes the size: `hugepages-1Gi`.
    let (size, unit) = match kibibytes {
        0..1024 => (kibibytes, "Ki"),
        1024..0x10_0000 => (kibibytes >> 10, "Mi"),
        _ => (kibibytes >> 20, "Gi"),
    };
    let has = format!("the node has {pages} huge pages of {size} {unit}B");
    match limit {
        // Less than one page.
        Some(limit) if limit < kibibytes << 10 => (
            Warn,
            format!(
                "{has}, this container may use none: programs that map them are killed by SIGBUS. Set limits.hugepages-{size}{unit}"
            ),
        ),
        Some(limit) if limit < (pages * kibibytes) << 10 => (
            Pass,
            format!("{has}, this container may use {}", limit / (kibibytes << 10)),
        ),
        _ => (Pass, has),
    }
}

/// The network for MPI between pods: RDMA needs devices, and memory that may be locked.
fn mpi(findings: &Findings) -> (Level, String) {
    let locked = findings.memory_lock.map(|bytes| format!("{} KiB", bytes >> 10));
    match (findings.rdma, locked) {
        (0, _) => (
            Pass,
            "TCP between pods: the container sees no RDMA device in /dev/infiniband".into(),
        ),
        (devices, None) => (
            Pass,
            format!("RDMA between pods: {devices} devices, and memory may be locked"),
        ),
        (devices, Some(limit)) => (
            Warn,
            format!(
                "{devices} RDMA devices, but a process may lock {limit} of memory only: MPI fails, or falls back to TCP. \
                 Raise memlock in the container runtime's own limits, or add the capability IPC_LOCK (securityContext)"
            ),
        ),
    }
}

fn user(findings: &Findings) -> (Level, String) {
    let uid = findings.instance.owner.uid.to_string();
    let known = findings
        .facts
        .passwd
        .lines()
        .any(|line| line.split(':').nth(2) == Some(&uid));
    if findings.lacks_kill {
        return (
            Fail,
            format!("{LACKS_KILL}, so nothing can stop Flux, which runs as uid {uid}: {REMEDY}"),
        );
    }
    match (&findings.instance.user_notice, known) {
        (Some(notice), _) => (Warn, notice.clone()),
        (None, true) => (Pass, format!("Flux runs as uid {uid}")),
        (None, false) => (
            Warn,
            format!(
                "Flux runs as uid {uid}, which has no line in /etc/passwd: ssh and whoami won't know it. Add one to the image"
            ),
        ),
    }
}

/// Whether a path is writable. Only Flux's own volume must be: it has the broker's run directory.
fn place(must_be_writable: bool, path: &str, writable: bool) -> (Level, String) {
    match (writable, must_be_writable) {
        (true, _) => (Pass, path.to_owned()),
        (false, true) => (
            Fail,
            format!(
                "{path} is not writable: let init and application containers run as the same user, or set pod.securityContext.fsGroup"
            ),
        ),
        (false, false) => (
            Warn,
            format!("{path} is not writable, and some programs need it: mount an emptyDir there"),
        ),
    }
}

fn clock(behind: bool) -> (Level, String) {
    if behind {
        (
            Fail,
            "before Flux's build date: set the node's clock (NTP), job time limits depend on it".into(),
        )
    } else {
        (Pass, "plausible (after Flux's build date)".into())
    }
}

#[cfg(test)]
mod tests;
