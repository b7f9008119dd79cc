//! The CPUs that the container may use: the cores of its affinity mask, which a cpuset limits, and its CFS quota. Also
//! its OOM score: with it, the planner decides whether other pods share the cpuset.

use std::collections::{BTreeMap, BTreeSet};

use flux_shared::hostlist;

use super::host::HostFiles;

/// The cores in the affinity mask, each with its CPUs: SMT siblings are one core, as in hwloc and Flux.
pub fn cores(host: &HostFiles) -> Vec<Vec<u32>> {
    group_by_core(host, &mask(host))
}

/// Number of CPUs in the affinity mask. None: they are all CPUs of the machine that are online, or it is not known
/// which are online.
pub fn cpuset(host: &HostFiles) -> Option<u32> {
    // The kernel lists CPUs in the syntax of Flux's idsets, such as 0-3,8.
    let online = hostlist::idset(host.text("/sys/devices/system/cpu/online")?.trim())?;
    let allowed = mask(host).len();
    if allowed < online.len() {
        u32::try_from(allowed).ok()
    } else {
        None
    }
}

/// This process's oom_score_adj, which the kubelet sets by the pod's QoS class. 0 if it cannot be read.
pub fn oom_score(host: &HostFiles) -> i32 {
    host.text("/proc/self/oom_score_adj")
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or_default()
}

/// The CPUs of the affinity mask. `CpuSet` holds 1024 CPUs, so the call fails on a larger machine. There they are
/// read from /proc. If that fails too, the mask is CPU 0.
fn mask(host: &HostFiles) -> Vec<usize> {
    if let Ok(set) = nix::sched::sched_getaffinity(nix::unistd::Pid::from_raw(0)) {
        return (0..nix::sched::CpuSet::count())
            .filter(|cpu| set.is_set(*cpu).unwrap_or(false))
            .collect();
    }
    let status = host.text("/proc/self/status").unwrap_or_default();
    let online = host.text("/sys/devices/system/cpu/online").unwrap_or_default();
    allowed_and_online(&status, &online).unwrap_or_else(|| vec![0])
}

/// The CPUs that /proc/self/status allows, of those that are online.
fn allowed_and_online(status: &str, online: &str) -> Option<Vec<usize>> {
    let allowed = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let (allowed, online) = (hostlist::idset(allowed.trim())?, hostlist::idset(online.trim())?);
    let online: BTreeSet<u32> = online.into_iter().collect();
    let both: Vec<usize> = allowed
        .into_iter()
        .filter(|cpu| online.contains(cpu))
        .filter_map(|cpu| usize::try_from(cpu).ok())
        .collect();
    (!both.is_empty()).then_some(both)
}

/// The CPUs of each core. CPUs of one core have the same list of siblings. (The kernel's `core_id` does not tell cores
/// apart: it may restart in each cluster of a package.) A CPU without a list counts as a core.
fn group_by_core(host: &HostFiles, cpus: &[usize]) -> Vec<Vec<u32>> {
    let siblings = |cpu: usize| {
        // The second is the newer name of the same file.
        let mut lists = ["thread_siblings_list", "core_cpus_list"]
            .into_iter()
            .filter_map(|file| host.text(&format!("/sys/devices/system/cpu/cpu{cpu}/topology/{file}")));
        lists.find(|list| !list.trim().is_empty())
    };
    let mut cores: Vec<Vec<u32>> = Vec::new();
    let mut known: BTreeMap<String, usize> = BTreeMap::new();
    for &cpu in cpus {
        let number = u32::try_from(cpu).unwrap_or(u32::MAX);
        // A core that was not seen before gets the next index, `cores.len()`.
        match siblings(cpu).map(|list| *known.entry(list).or_insert(cores.len())) {
            Some(core) if core < cores.len() => cores[core].push(number),
            _ => cores.push(vec![number]),
        }
    }
    cores
}

/// The CPU quota, in CPUs (0.5 is half of one): the smallest of the container's cgroup and those above it, of cgroup
/// version 1 or 2. None: no limit.
pub fn quota(host: &HostFiles) -> Option<f64> {
    let text = host.text("/proc/self/cgroup").unwrap_or_default();
    let limits = cgroup_folders(&text).into_iter().filter_map(|folder| {
        let file = |name: &str| host.text(&format!("{folder}/{name}"));
        let v2 = file("cpu.max").and_then(|text| from_v2(&text));
        v2.or_else(|| from_v1(&file("cpu.cfs_quota_us")?, &file("cpu.cfs_period_us")?))
    });
    limits.reduce(f64::min)
}

/// The cgroup folders that may limit this process: its own and all above it, in the unified tree (version 2) and in
/// that of `cpu` (version 1). In a cgroup namespace, the root of the mount is the container's own cgroup.
fn cgroup_folders(proc_self_cgroup: &str) -> Vec<String> {
    let mut folders = Vec::new();
    for line in proc_self_cgroup.lines() {
        // `NUMBER:CONTROLLERS:PATH`. Version 2 has no controllers.
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
            continue;
        };
        if controllers.is_empty() {
            folders.extend(ancestors_within("/sys/fs/cgroup", path));
        } else if controllers.split(',').any(|controller| controller == "cpu") {
            // The tree may be mounted by the names of all its controllers (`cpu,cpuacct`), or as `cpu`.
            folders.extend(ancestors_within(&format!("/sys/fs/cgroup/{controllers}"), path));
            folders.extend(ancestors_within("/sys/fs/cgroup/cpu", path));
        }
    }
    // The file cannot be read, or names no such cgroup: only the roots of the mounts are left.
    if folders.is_empty() {
        folders.extend(["/sys/fs/cgroup".to_owned(), "/sys/fs/cgroup/cpu".to_owned()]);
    }
    folders
}

/// `base` with `path` below it, and with every shorter path up to `base` itself.
fn ancestors_within(base: &str, path: &str) -> Vec<String> {
    let path = path.trim_end_matches('/');
    let ends = path.match_indices('/').map(|(at, _)| at).chain([path.len()]);
    ends.map(|end| format!("{base}{}", &path[..end])).collect()
}

/// Parses `cpu.max`: quota and period in microseconds. None: `max`, no limit.
fn from_v2(text: &str) -> Option<f64> {
    let mut words = text.split_whitespace();
    let quota: f64 = words.next()?.parse().ok()?;
    // Without a period: the kernel's default, 100 ms.
    let period: f64 = words.next().unwrap_or("100000").parse().ok()?;
    ratio(quota, period)
}

/// Parses `cpu.cfs_quota_us` and `cpu.cfs_period_us`. None: the quota is -1, no limit.
fn from_v1(quota: &str, period: &str) -> Option<f64> {
    ratio(quota.trim().parse().ok()?, period.trim().parse().ok()?)
}

fn ratio(quota: f64, period: f64) -> Option<f64> {
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_all_allowed_and_online_when_more_than_1024() {
        let status = "Name:\tx\nCpus_allowed:\tffff\nCpus_allowed_list:\t0-2047\nMems_allowed_list:\t0\n";
        assert_eq!(
            allowed_and_online(status, "0-1535\n").unwrap(),
            (0..1536).collect::<Vec<_>>()
        );
        assert_eq!(
            allowed_and_online("Cpus_allowed_list:\t2,1100-1101\n", "0-1535\n").unwrap(),
            [2, 1100, 1101]
        );
        assert_eq!(
            (allowed_and_online("", "0-3"), allowed_and_online(status, "")),
            (None, None)
        );
    }

    #[test]
    fn siblings_are_one_core_and_cpus_without_siblings_one_each() {
        // `lists`: the siblings of CPU 0, 1, 2 …. `cpus`: the affinity mask.
        let cores = |file: &str, lists: &[&str], cpus: &[usize]| {
            let root = tempfile::tempdir().unwrap();
            for (cpu, list) in lists.iter().enumerate() {
                let folder = format!("sys/devices/system/cpu/cpu{cpu}/topology");
                let folder = root.path().join(folder);
                std::fs::create_dir_all(&folder).unwrap();
                let number = (cpu % 4).to_string();
                for (name, text) in [("physical_package_id", "0"), ("core_id", &number), (file, list)] {
                    std::fs::write(folder.join(name), format!("{text}\n")).unwrap();
                }
            }
            group_by_core(&HostFiles::new(root.path()), cpus)
        };
        let smt = ["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"];
        let all: Vec<usize> = (0..8).collect();
        for file in ["thread_siblings_list", "core_cpus_list"] {
            assert_eq!(cores(file, &smt, &all), [[0, 4], [1, 5], [2, 6], [3, 7]]);
        }
        // On ARM, core_id restarts in each cluster.
        let clusters = ["0", "1", "2", "3", "4", "5", "6", "7"];
        assert_eq!(cores("thread_siblings_list", &clusters, &all).len(), 8);
        // Siblings that this container may not use.
        assert_eq!(
            cores("thread_siblings_list", &smt, &[1, 4, 5]),
            [vec![1, 5], vec![4]]
        );
        assert_eq!(cores("", &[], &[4, 5]), [[4], [5]]);
        assert_eq!(cores("thread_siblings_list", &["", ""], &[0, 1]), [[0], [1]]);
        assert!(cores("", &[], &[]).is_empty());
    }

    #[test]
    fn mask_with_all_online_cpus_is_no_cpuset() {
        let own = mask(&HostFiles::new("/".as_ref())).len() as u32;
        let cpuset_with = |online: &str| {
            let root = tempfile::tempdir().unwrap();
            let folder = root.path().join("sys/devices/system/cpu");
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("online"), online).unwrap();
            cpuset(&HostFiles::new(root.path()))
        };
        assert_eq!(cpuset_with(&format!("0-{}\n", own - 1)), None);
        assert_eq!(cpuset_with(&format!("0-{},900,902-903\n", own - 1)), Some(own));
        assert_eq!((cpuset_with("x"), cpuset_with("")), (None, None));
        assert_eq!(cpuset(&HostFiles::new(tempfile::tempdir().unwrap().path())), None);
    }

    #[test]
    fn smallest_cpu_quota_is_read_in_either_cgroup_version() {
        let read = |files: &[(&str, &str)]| {
            let root = tempfile::tempdir().unwrap();
            for (path, text) in files {
                let path = root.path().join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            quota(&HostFiles::new(root.path()))
        };
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[("sys/fs/cgroup/cpu.max", "max 100000\n")]), None);
        assert_eq!(
            read(&[
                ("proc/self/cgroup", "0::/\n"),
                ("sys/fs/cgroup/cpu.max", "150000 100000\n")
            ]),
            Some(1.5)
        );
        assert_eq!(
            read(&[
                ("proc/self/cgroup", "0::/pod/container\n"),
                ("sys/fs/cgroup/pod/container/cpu.max", "400000 100000"),
                ("sys/fs/cgroup/pod/cpu.max", "200000 100000"),
            ]),
            Some(2.0)
        );
        assert_eq!(
            read(&[
                ("proc/self/cgroup", "5:memory:/a\n4:cpu,cpuacct:/kubepods/x\n"),
                ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "300000\n"),
                ("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n"),
            ]),
            Some(3.0)
        );
        assert_eq!(
            read(&[
                ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1"),
                ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000")
            ]),
            None
        );
    }
}
