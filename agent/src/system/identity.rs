//! The rights of a program: user, group and supplementary groups. Only this module gives up the agent's own rights.
//!
//! The groups are those that initgroups would give, read from the image's own files, and those that the pod gives to
//! each of its processes (fsGroup, supplementalGroups). The latter are the groups of the agent's process, except root's,
//! those of the agent's user in the image, and the one by which the operator lets only the agent read Secrets.
//!
//! The files are parsed by hand: the C library's look-ups, which crates call as well, load NSS modules, and a
//! static program cannot rely on those of the image.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use flux_agent_plan::owner::Owner;
use flux_shared::exit::Category;
use flux_shared::names::SECRETS_GROUP;
use nix::unistd::{Gid, Uid};

use crate::report::failure::Failure;

/// The remedy if the agent cannot become Flux's user.
pub const REMEDY: &str = "let the container run as root with the capabilities SETUID, SETGID, CHOWN, DAC_OVERRIDE and KILL, or leave out fluxUser";

/// Without KILL, the agent cannot signal the broker of another user. A stop would last until SIGKILL.
pub const LACKS_KILL: &str = "the container lacks the capability KILL";
const MAPPED_REMEDY: &str = "set a fluxUser.uid below 65536, or leave out hostUsers: false";

/// The user, the group and the supplementary groups that a process takes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    pub uid: Uid,
    gid: Gid,
    groups: Vec<Gid>,
}

impl Credentials {
    /// The credentials of `owner`, by /etc/passwd and /etc/group below `root`. None: the agent has this uid and gid
    /// already.
    pub fn of(owner: Owner, root: &Path) -> Result<Option<Credentials>, Failure> {
        let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
        if (owner.uid, owner.gid) == (uid.as_raw(), gid.as_raw()) {
            return Ok(None);
        }
        let cannot = |why: &str| {
            let cause = format!("failed to run as uid {}: {why}", owner.uid);
            Failure::new(Category::UserFailed, cause, REMEDY)
        };
        if !has(Capability::SetUid) || !has(Capability::SetGid) {
            return Err(cannot("the container lacks the capability SETUID or SETGID"));
        }
        let (uid_map, gid_map) = (IdMap::of("uid_map"), IdMap::of("gid_map"));
        for (kind, id, map) in [("uid", owner.uid, &uid_map), ("gid", owner.gid, &gid_map)] {
            if !map.has(id) {
                let cause = format!(
                    "failed to run as uid {}: {kind} {id} does not exist in the pod's user namespace",
                    owner.uid
                );
                return Err(Failure::new(Category::UserFailed, cause, MAPPED_REMEDY));
            }
        }
        let groups = nix::unistd::getgroups().map_err(|error| cannot(&error.to_string()))?;
        let text = |path: &str| std::fs::read(root.join(path)).unwrap_or_default();
        let (passwd, group) = (text("etc/passwd"), text("etc/group"));
        let (passwd, group) = (String::from_utf8_lossy(&passwd), String::from_utf8_lossy(&group));
        let of_this_process: Vec<u32> = groups.into_iter().map(Gid::as_raw).collect();
        let groups = groups_of(owner, uid.as_raw(), &of_this_process, &passwd, &group);
        let groups = groups.into_iter().filter(|gid| gid_map.has(*gid));
        let groups = groups.map(Gid::from_raw).collect();
        Ok(Some(Credentials {
            uid: Uid::from_raw(owner.uid),
            gid: Gid::from_raw(owner.gid),
            groups,
        }))
    }

    /// Whether a process with these credentials may create files in a folder, by the folder's owner, group and mode.
    pub fn may_create_in(&self, folder: &Metadata) -> bool {
        let bits = if folder.uid() == self.uid.as_raw() {
            folder.mode() >> 6
        } else if self.groups.contains(&Gid::from_raw(folder.gid())) {
            folder.mode() >> 3
        } else {
            folder.mode()
        };
        bits & 0o3 == 0o3
    }

    /// Fails if the agent cannot run a child as `owner`, or cannot signal it.
    pub fn check_child(owner: Owner, root: &Path) -> Result<(), Failure> {
        if Credentials::of(owner, root)?.is_some() && !has(Capability::Kill) {
            let cause = format!("failed to run as uid {}: {LACKS_KILL}", owner.uid);
            return Err(Failure::new(Category::UserFailed, cause, REMEDY));
        }
        Ok(())
    }

    /// Switches to the groups, the group and the user, or fails. May be called between fork and exec: it neither
    /// allocates nor takes a lock.
    pub fn assume(&self) -> io::Result<()> {
        nix::unistd::setgroups(&self.groups)?;
        nix::unistd::setgid(self.gid)?;
        nix::unistd::setuid(self.uid)?;
        Ok(())
    }
}

/// Does `work` with the effective uid `uid`, in a thread of its own, so that the rest of this process keeps its uid.
pub fn as_user<T: Send>(uid: u32, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let thread = std::thread::Builder::new().stack_size(64 << 10);
    std::thread::scope(|scope| {
        let work = move || {
            rustix::thread::set_thread_res_uid(None, Some(rustix::thread::Uid::from_raw(uid)), None)?;
            // With the change of uid, the kernel marks the whole process as not dumpable: its own user can then not
            // read it in /proc. `status`, `connect` and the snippets' shell do that.
            nix::sys::prctl::set_dumpable(true)?;
            Ok(work())
        };
        let ended = thread.spawn_scoped(scope, work)?.join();
        ended.map_err(|_| io::Error::other("a thread has panicked"))?
    })
}

/// The groups of `owner`, beginning with `owner.gid`. `passwd` and `group` are the texts of the image's files.
fn groups_of(owner: Owner, agent_uid: u32, of_this_process: &[u32], passwd: &str, group: &str) -> Vec<u32> {
    let names = |wanted: u32| -> Vec<&str> {
        let fields = passwd.lines().map(|line| line.split(':').collect::<Vec<_>>());
        fields
            .filter(|entry| entry.get(2).is_some_and(|uid| uid.parse() == Ok(wanted)))
            .map(|entry| entry[0])
            .collect()
    };
    let given_to = |names: &[&str]| -> Vec<u32> {
        let fields = group.lines().map(|line| line.split(':').collect::<Vec<_>>());
        let lists = |entry: &Vec<&str>| {
            entry
                .get(3)
                .is_some_and(|list| list.split(',').any(|name| names.contains(&name.trim())))
        };
        fields
            .filter(lists)
            .filter_map(|entry| entry.get(2)?.parse().ok())
            .collect()
    };
    // Of several names for a uid the last one counts: the agent appends the one that the spec names.
    let owner_names = names(owner.uid);
    let of_the_image = given_to(&names(agent_uid));
    let mut groups = vec![owner.gid];
    let owner_groups = given_to(
        owner_names
            .get(owner_names.len().saturating_sub(1)..)
            .unwrap_or_default(),
    );
    // Group 0 is root's, and by the other one the agent reads Secrets: Flux's user inherits neither.
    let of_the_pod = of_this_process
        .iter()
        .copied()
        .filter(|gid| ![0, SECRETS_GROUP].contains(gid) && !of_the_image.contains(gid));
    for gid in owner_groups.into_iter().chain(of_the_pod) {
        if !groups.contains(&gid) {
            groups.push(gid);
        }
    }
    groups
}

/// The ids of this process's user namespace: the text of /proc/self/uid_map or gid_map.
struct IdMap(Option<String>);

impl IdMap {
    fn of(name: &str) -> IdMap {
        IdMap(std::fs::read_to_string(Path::new("/proc/self").join(name)).ok())
    }

    /// Whether the namespace has this id; true if this cannot be found out.
    fn has(&self, id: u32) -> bool {
        let Some(text) = &self.0 else { return true };
        // The fields are: first id inside, first id outside, number of ids.
        text.lines().any(|line| {
            let mut fields = line.split_whitespace().map(|field| field.parse::<u32>());
            let (first, count) = (fields.next(), fields.nth(1));
            matches!((first, count), (Some(Ok(first)), Some(Ok(count))) if id >= first && id - first < count)
        })
    }
}

/// Rights of root that a container may lack, with their bit in the kernel's sets.
#[derive(Debug, Clone, Copy)]
pub enum Capability {
    Chown = 0,
    DacOverride = 1,
    Kill = 5,
    SetGid = 6,
    SetUid = 7,
}

impl Capability {
    /// The name in a container's security context.
    pub fn name(self) -> &'static str {
        match self {
            Capability::Chown => "CHOWN",
            Capability::DacOverride => "DAC_OVERRIDE",
            Capability::Kill => "KILL",
            Capability::SetGid => "SETGID",
            Capability::SetUid => "SETUID",
        }
    }
}

/// Whether this process has the capability; true if this cannot be found out.
pub fn has(capability: Capability) -> bool {
    let Ok(text) = std::fs::read_to_string("/proc/self/status") else {
        return true;
    };
    let effective = text.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    effective.is_none_or(|bits| bits & (1 << capability as u64) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_outside_of_the_user_namespace_do_not_exist() {
        let has = |text: &str, id| IdMap(Some(text.into())).has(id);
        let whole = "         0          0 4294967295\n";
        let pod = "         0 2147549184      65536\n";
        let two = "0 1000 1\n1 100000 65536\n";
        assert!(has(whole, 70_000) && has(whole, u32::MAX - 1) && has(pod, 65_535) && has(two, 1000));
        assert!(!has(pod, 65_536) && !has(pod, 70_000) && !has(two, 65_537));
        assert!(IdMap(None).has(70_000));
    }

    #[test]
    fn a_folder_is_writable_by_its_owner_group_and_mode() {
        use std::os::unix::fs::{PermissionsExt, chown};
        let folder = tempfile::tempdir().unwrap();
        let user = Credentials {
            uid: Uid::from_raw(1000),
            gid: Gid::from_raw(1001),
            groups: [1001, 5000].map(Gid::from_raw).into(),
        };
        for (uid, gid, mode, may_create) in [
            (0, 0, 0o1777, true),
            (0, 0, 0o755, false),
            (0, 0, 0o775, false),
            (0, 0, 0o1776, false),
            (0, 5000, 0o2775, true),
            (0, 1001, 0o770, true),
            (0, 5000, 0o2755, false),
            (0, 6000, 0o2775, false),
            (1000, 0, 0o755, true),
            (1000, 0, 0o700, true),
            (1000, 0, 0o577, false),
        ] {
            chown(folder.path(), Some(uid), Some(gid)).expect("this test runs as root");
            std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(mode)).unwrap();
            let data = std::fs::metadata(folder.path()).unwrap();
            assert_eq!(user.may_create_in(&data), may_create, "{uid}:{gid} {mode:o}");
        }
    }

    #[test]
    fn groups_are_the_users_own_and_the_pods_not_those_of_root() {
        let passwd = "root:x:0:0::/root:/bin/sh\nflux:x:1234:1300::/home/flux:/bin/sh\n";
        let group =
            "root:x:0:root\ndisk:x:6:root,adm\nproject:x:2000:ada,flux\nflux:x:1300:\nother:x:2001:ada\n";
        let groups = |uid, own: &[u32]| groups_of(Owner { uid, gid: 1300 }, 0, own, passwd, group);
        assert_eq!(groups(1234, &[0, 6, SECRETS_GROUP, 65532]), [1300, 2000, 65532]);
        assert_eq!(
            groups(77, &[0, 6, 65532, 1300]),
            [1300, 65532],
            "a uid without a name"
        );
        let two = format!("ubuntu:x:1234:1300::/:/bin/sh\n{passwd}");
        let taken = format!("{group}sudo:x:27:ubuntu\n");
        assert_eq!(
            groups_of(Owner { uid: 1234, gid: 1300 }, 0, &[], &two, &taken),
            [1300, 2000]
        );
    }
}
