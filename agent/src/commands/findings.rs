//! Collects the facts that `preflight` judges.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use flux_agent_plan::known_paths::DEFAULT_PATH;
use flux_shared::curve::Certificate;
use flux_shared::{hostlist, paths};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use nix::unistd::{AccessFlags, access};
use serde_json::Value;

use super::observe;
use super::pod::Pod;
use super::preflight::{Findings, HugePages, Names, Numa, ResourceTotals};
use crate::facts::host::HostFiles;
use crate::facts::{bash_trouble, devices};
use crate::report::failure::{Failure, plain};
use crate::system::below;
use crate::system::glibc::Libc;
use crate::system::identity::{self, Capability};
use crate::wait::ParentProbe;
use crate::wait::resolve::{NameError, Resolver};

/// Time limit for looking up the host names of all pods, of which there may be thousands.
const NAMES_DEADLINE: Duration = Duration::from_secs(10);

/// Collects the facts. Root runs as Flux's user afterwards; if it cannot become that user, this fails.
pub fn collect(pod: &Pod) -> Result<Findings<'_>, Failure> {
    let session = pod.session();
    let at = |path: &str| below(&pod.root, path);
    let home = session.lookup("HOME").unwrap_or_default();
    let pod_paths = pod.spec.paths();
    // The run directory, if the entrypoint has created it: Flux's user must be able to write to it. Otherwise a folder
    // above it: there, the agent's own user must be able to create the run directory.
    let (run_dir, config_root) = (pod_paths.run_dir(), pod_paths.config_root());
    let flux_folder = [&run_dir, &config_root]
        .into_iter()
        .find(|path| at(path).is_dir());
    let flux_folder = flux_folder.unwrap_or(&pod.spec.mount_path);
    let writable = |path: &str| (path.to_owned(), access(&at(path), AccessFlags::W_OK).is_ok());
    let by_agent = writable(flux_folder);
    let lacks_kill = pod.instance.run_as.is_some() && !identity::has(Capability::Kill);
    observe::become_owner(pod)?;
    let first = if *flux_folder == run_dir {
        writable(flux_folder)
    } else {
        by_agent
    };
    let places = [first, writable(&home), writable("/tmp")];
    let mut findings = Findings {
        instance: &pod.instance,
        facts: &pod.facts,
        declared_cores: pod.spec.runner.declared_cores(),
        cpu_limit: pod.facts.cpu_limit(&pod.spec.runner),
        has_users_config: pod.spec.flux.broker_config.is_some(),
        lacks_kill,
        places: places.into(),
        shared_memory: nix::sys::statvfs::statvfs(&at("/dev/shm"))
            .ok()
            .map(|volume| volume.blocks() * volume.fragment_size()),
        huge_pages: huge_pages(&at("/sys/kernel/mm/hugepages"), &at("/sys/fs/cgroup")),
        numa: numa(&at("/sys/devices/system/node"), &pod.facts.cpus),
        mig_parts: devices::mig_parts(&HostFiles::new(&pod.root)),
        rdma: rdma(&at("/dev/infiniband")),
        memory_lock: memory_lock(&at("/proc/self/status")),
        certificate: certificate(&[at(&pod_paths.curve_cert()), at(paths::CURVE_FILE)]),
        resources: fs::read_to_string(at(&pod_paths.resources()))
            .ok()
            .and_then(|text| resources(&text)),
        libc: pod
            .instance
            .flux
            .as_ref()
            .ok()
            .and_then(|flux| Libc::of(&at(flux), &pod.root)),
        bash_trouble: bash_trouble(
            &HostFiles::new(&pod.root),
            session.lookup("PATH").as_deref().unwrap_or(DEFAULT_PATH),
        ),
        clock_behind: false,
        own_name: None,
        other_names: None,
        parent: None,
    };
    if let Some(built) = pod
        .instance
        .flux
        .as_ref()
        .ok()
        .and_then(|flux| fs::metadata(at(flux)).ok()?.modified().ok())
    {
        findings.clock_behind = SystemTime::now() < built;
    }
    crate::system::runtime::block_on_interruptible(Box::pin(async {
        if pod.instance.hosts.len() > 1 {
            let resolver = Resolver::new(&pod.root);
            findings.own_name = Some(own_name(pod, &resolver).await);
            findings.other_names = Some(other_names(pod, &resolver).await);
        }
        if let Some(parent) = &pod.instance.parent {
            findings.parent = Some((&parent.host, ParentProbe::of(parent, &pod.root).probe().await));
        }
        // Nobody reads this exit code.
        Ok(0)
    }))?;
    Ok(findings)
}

/// Looks up this pod's name as the other pods do. The kubelet writes the name to the pod's own /etc/hosts, so only DNS
/// shows whether the others find the pod. If this file has all hosts, as with `local`, nobody asks DNS.
async fn own_name(pod: &Pod, resolver: &Resolver) -> Result<Vec<IpAddr>, NameError> {
    let own = pod.instance.rank;
    let others = (0u32..)
        .zip(&pod.instance.hosts)
        .filter(|(rank, _)| *rank != own)
        .map(|(rank, _)| pod.instance.address_of(rank).host);
    lookup_as_others_do(resolver, &pod.instance.address_of(own).host, others).await
}

/// The addresses of the name `own`, in DNS if /etc/hosts lacks one of the names `others`.
async fn lookup_as_others_do(
    resolver: &Resolver,
    own: &str,
    mut others: impl Iterator<Item = String>,
) -> Result<Vec<IpAddr>, NameError> {
    if others.any(|other| resolver.lookup_locally(&other).is_empty()) {
        resolver.lookup_in_dns(own).await
    } else {
        resolver.lookup(own).await
    }
}

/// Looks up the names of the other hosts, except spare ones, whose pods need not exist.
async fn other_names(pod: &Pod, resolver: &Resolver) -> Names {
    let begin = Instant::now();
    let mut names = Names {
        asked: 0,
        left: 0,
        missing: Vec::new(),
        failure: None,
    };
    for (rank, host) in (0u32..).zip(&pod.instance.hosts) {
        if *host == pod.instance.hostname || pod.instance.spare.contains(&rank) {
            continue;
        }
        if begin.elapsed() >= NAMES_DEADLINE {
            names.left += 1;
            continue;
        }
        match resolver.lookup(&pod.instance.address_of(rank).host).await {
            // Without an answer, it is not known whether the name exists.
            Err(error) if !error.has_no_record() => {
                names.left += 1;
                names.failure = Some(error);
                continue;
            }
            Err(_) => names.missing.push(host.clone()),
            Ok(_) => {}
        }
        names.asked += 1;
    }
    names
}

/// The huge page sizes that the node has pages of. `sizes` is the kernel's folder with one folder for each size,
/// `cgroup` the mount point of the cgroups (version 1 or 2).
fn huge_pages(sizes: &Path, cgroup: &Path) -> Vec<HugePages> {
    let number = |path: PathBuf| fs::read_to_string(path).ok()?.trim().parse::<u64>().ok();
    let folders = fs::read_dir(sizes).into_iter().flatten().flatten();
    let mut found: Vec<HugePages> = folders
        .filter_map(|folder| {
            let name = folder.file_name().into_string().ok()?;
            let kibibytes: u64 = name
                .strip_prefix("hugepages-")?
                .strip_suffix("kB")?
                .parse()
                .ok()?;
            let pages = number(folder.path().join("nr_hugepages")).filter(|pages| *pages > 0)?;
            // The kernel's spelling of sizes in the names of cgroup files.
            let unit = if kibibytes >= 1 << 20 {
                format!("{}GB", kibibytes >> 20)
            } else if kibibytes >= 1 << 10 {
                format!("{}MB", kibibytes >> 10)
            } else {
                format!("{kibibytes}KB")
            };
            // The file of cgroup version 2, else that of version 1.
            let limit = number(cgroup.join(format!("hugetlb.{unit}.max")))
                .or_else(|| number(cgroup.join(format!("hugetlb/hugetlb.{unit}.limit_in_bytes"))));
            Some(HugePages {
                kibibytes,
                pages,
                limit,
            })
        })
        .collect();
    found.sort_by_key(|huge_pages| huge_pages.kibibytes);
    found
}

/// The machine's NUMA nodes. `nodes` is the kernel's folder with one folder for each node. None: there is only one, or
/// none has any of the CPUs in `cores`.
fn numa(nodes: &Path, cores: &[Vec<u32>]) -> Option<Numa> {
    let lists = fs::read_dir(nodes).ok()?.flatten().filter_map(|folder| {
        let name = folder.file_name().into_string().ok()?;
        name.strip_prefix("node")?.parse::<u32>().ok()?;
        hostlist::idset(fs::read_to_string(folder.path().join("cpulist")).ok()?.trim())
    });
    let cpus_of_nodes: Vec<Vec<u32>> = lists.collect();
    let allowed = cpus_of_nodes
        .iter()
        .filter(|cpus| cores.iter().flatten().any(|cpu| cpus.contains(cpu)))
        .count();
    let largest = cpus_of_nodes.iter().map(Vec::len).max()?;
    (cpus_of_nodes.len() > 1 && allowed > 0).then_some(Numa {
        nodes: cpus_of_nodes.len(),
        allowed,
        largest,
    })
}

/// The first 8 characters of the public key of the first certificate that exists.
fn certificate(candidates: &[PathBuf]) -> Result<String, String> {
    let path = candidates
        .iter()
        .find(|path| path.exists())
        .ok_or("there is no certificate")?;
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {}", path.display(), plain(&error)))?;
    let certificate = Certificate::parse(&text).map_err(|why| format!("{}: {why}", path.display()))?;
    Ok(certificate.public_key().chars().take(8).collect())
}

/// The number of hosts in R (Flux's resource file, RFC 20), and the cores of each node in its first group of nodes.
fn resources(text: &str) -> Option<ResourceTotals> {
    let r: Value = serde_json::from_str(text).ok()?;
    let execution = &r["execution"];
    let count = |list: &str| hostlist::expand(list).ok().map(|names| names.len());
    let hosts = execution["nodelist"]
        .as_array()?
        .iter()
        .map(|list| count(list.as_str()?));
    let cores = execution["R_lite"][0]["children"]["core"]
        .as_str()
        .and_then(|ids| count(&format!("[{ids}]")))?;
    Some(ResourceTotals {
        hosts: hosts.sum::<Option<usize>>()?,
        cores: u32::try_from(cores).ok()?,
    })
}

/// The number of RDMA devices in `folder` (/dev/infiniband). Each has a file `uverbs<number>`.
fn rdma(folder: &Path) -> usize {
    let names = fs::read_dir(folder)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name());
    names
        .filter(|name| name.to_string_lossy().starts_with("uverbs"))
        .count()
}

/// The bit of the capability CAP_IPC_LOCK, with which memory can be locked without a limit.
const IPC_LOCK: u32 = 14;

/// Bytes of memory that this process may lock. None: any number. `status` is the path of /proc/self/status.
fn memory_lock(status: &Path) -> Option<u64> {
    let text = fs::read_to_string(status).unwrap_or_default();
    let effective = text
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    if effective.is_some_and(|set| set >> IPC_LOCK & 1 == 1) {
        return None;
    }
    let (limit, _) = getrlimit(Resource::RLIMIT_MEMLOCK).ok()?;
    (limit != RLIM_INFINITY).then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::block_on;

    /// In a pod, /etc/hosts has the pod's own name. With `local`, it has all names.
    #[test]
    fn own_name_is_looked_up_as_other_pods_look_it_up() {
        for (hosts, expected) in [
            ("10.0.0.5 mc-0\n", Err(NameError::NoServer)),
            (
                "10.0.0.5 mc-0\n10.0.0.6 mc-1\n",
                Ok(vec!["10.0.0.5".parse().unwrap()]),
            ),
        ] {
            let root = tempfile::tempdir().unwrap();
            fs::create_dir(root.path().join("etc")).unwrap();
            fs::write(root.path().join("etc/hosts"), hosts).unwrap();
            let resolver = Resolver::new(root.path());
            let others = ["mc-1".to_owned()].into_iter();
            let found = block_on(lookup_as_others_do(&resolver, "mc-0", others));
            assert_eq!(found, expected, "{hosts}");
        }
    }

    #[test]
    fn name_that_dns_does_not_know_is_told_from_a_failing_server() {
        let root = tempfile::tempdir().unwrap();
        let pod = Pod::of_lead("name='mc'\nsize=3", root.path());
        // No DNS server listens at this address.
        fs::write(root.path().join("etc/resolv.conf"), "nameserver 127.77.0.2\n").unwrap();
        let known = pod.instance.address_of(1).host;
        let hosts = format!("10.0.0.6 {}\n", known.trim_end_matches('.'));
        fs::write(root.path().join("etc/hosts"), hosts).unwrap();
        let names = block_on(other_names(&pod, &Resolver::new(root.path())));
        assert_eq!((names.asked, names.left), (1, 1));
        assert!(names.missing.is_empty(), "{names:?}");
        assert!(names.failure.is_some(), "{names:?}");
    }

    #[test]
    fn hosts_and_cores_of_r_are_counted() {
        let r = r#"{"version":1,"execution":{"R_lite":[{"rank":"0-4","children":{"core":"0-3"}}],"nodelist":["mc-[0-3]","x"]}}"#;
        assert_eq!(resources(r), Some(ResourceTotals { hosts: 5, cores: 4 }));
        assert_eq!(resources("{}"), None);
    }

    #[test]
    fn huge_pages_and_numa_nodes_are_read_as_the_kernel_writes_them() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("pages/hugepages-2048kB/nr_hugepages", "64\n");
        write("pages/hugepages-1048576kB/nr_hugepages", "2\n");
        write("pages/hugepages-32768kB/nr_hugepages", "0\n");
        write("pages/hugepages-64kB/nr_hugepages", "16\n");
        write("v2/hugetlb.64KB.max", "65536\n");
        write("v2/hugetlb.2MB.max", "0\n");
        write("v2/hugetlb.1GB.max", "max\n");
        write("v1/hugetlb/hugetlb.64KB.limit_in_bytes", "0\n");
        write("v1/hugetlb/hugetlb.2MB.limit_in_bytes", "4194304\n");
        let found = |cgroup: &str| huge_pages(&root.path().join("pages"), &root.path().join(cgroup));
        let small = HugePages {
            kibibytes: 2048,
            pages: 64,
            limit: Some(0),
        };
        assert_eq!(
            found("v2"),
            [
                HugePages {
                    kibibytes: 64,
                    pages: 16,
                    limit: Some(64 << 10),
                },
                small,
                HugePages {
                    kibibytes: 1 << 20,
                    pages: 2,
                    limit: None
                }
            ]
        );
        assert_eq!(
            found("v1")[1],
            HugePages {
                limit: Some(4 << 20),
                ..small
            }
        );
        assert_eq!(found("v1")[0].limit, Some(0));
        assert_eq!(huge_pages(&root.path().join("none"), root.path()), []);

        write("nodes/node0/cpulist", "0-3,8-11\n");
        let cores = [vec![2, 10], vec![3, 11], vec![4, 12]];
        assert_eq!(numa(&root.path().join("nodes"), &cores), None, "one node");
        write("nodes/node1/cpulist", "4-7,12-15\n");
        write("nodes/possible", "0-1\n");
        assert_eq!(
            numa(&root.path().join("nodes"), &cores),
            Some(Numa {
                nodes: 2,
                allowed: 2,
                largest: 8
            })
        );
        assert_eq!(
            numa(&root.path().join("nodes"), &cores[..2]),
            Some(Numa {
                nodes: 2,
                allowed: 1,
                largest: 8
            })
        );
    }

    #[test]
    fn certificate_shows_only_the_start_of_its_public_key() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("curve.cert");
        assert!(certificate(std::slice::from_ref(&path)).is_err());
        let key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
        let text = format!(
            "metadata\n    name = \"a\"\ncurve\n    public-key = \"{key}\"\n    secret-key = \"{key}\"\n"
        );
        fs::write(&path, &text).unwrap();
        assert_eq!(certificate(std::slice::from_ref(&path)), Ok("rq:rM>}U".into()));
        // The agent does not start a broker with such a file.
        fs::write(&path, text.replace("    secret-key", "    key")).unwrap();
        assert!(certificate(&[path]).is_err());
    }
}
