//! A job of the Flux user tries to become root: it changes the files that root reads and runs in the pod, as far as
//! it has the rights.
//!
//! The pod is like those of the operator: the binary is mounted read-only, the mount path belongs to the user of the
//! init containers, and the configuration's folder has the mode of a volume.

use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Component, Path, PathBuf};

use flux_shared::names::SECRETS_GROUP;

use crate::as_planned::traced::calls;
use crate::image::{self, AGENT, Container, Image, RECORD, need_strace};

mod ownership;

const USER: u32 = 1002;
/// The user of the agent's image.
const INSTALLER: u32 = 63617;

/// A program that records the uid that it runs with.
const TELL: &str = "#!/bin/sh\nid -u >>/record/ran\n";

fn pod(spec: &str) -> Image {
    let image = Image::usual();
    let user = format!("[runner.user]\nname = 'flux'\nuid = {USER}\n");
    image.file(
        flux_shared::paths::SPEC_FILE,
        0o444,
        &format!("name = 'mc'\n{spec}{user}"),
    );
    for program in ["mv", "cp", "rm", "ln", "chmod", "mkdir", "cat"] {
        image.program(
            &Path::new("/usr/bin").join(program),
            &format!("/usr/bin/{program}"),
        );
    }
    chown(image.at("/mnt/flux"), Some(INSTALLER), Some(INSTALLER)).unwrap();
    image.mode("/mnt/flux/config", 0o777);
    image
}

/// Mounts the binary's volume read-only, as all containers except the installer do.
const READ_ONLY: &str = "\
    mount --bind \"$root/etc/flux-agent/bin\" \"$root/etc/flux-agent/bin\"\n\
    mount -o remount,bind,ro \"$root/etc/flux-agent/bin\"\n";

fn container<'a>(image: &'a Image, command: &[&str]) -> Container<'a> {
    Container {
        before: READ_ONLY.into(),
        ..Container::new(image, "mc-0", command)
    }
}

/// Attacks that were found, and similar ones. /proc/PID/exe names a removed program `PATH (deleted)`.
const ATTACK: &str = r#"
for file in /mnt/flux/flux-agent '/mnt/flux/flux-agent (deleted)' /etc/flux-agent/bin/flux-agent \
    '/etc/flux-agent/bin/flux-agent (deleted)' /mnt/flux/flux-view.sh /mnt/flux/config/flux-view.sh \
    /mnt/flux/flux-connect.sh /mnt/flux/config/flux-connect.sh /mnt/flux/view/bin/flux \
    /mnt/flux/config/etc/flux/config/broker.toml /mnt/flux/config/etc/flux/system/R; do
    rm -f "$file"; cp /record/tell "$file"; chmod 755 "$file"; echo 'id -u >>/record/ran' >>"$file"
done
mv /mnt/flux/view /mnt/flux/old && mkdir -p /mnt/flux/view/bin && cp /record/tell /mnt/flux/view/bin/flux
mv /mnt/flux/config /mnt/flux/older
mv /mnt/flux/config/etc /mnt/flux/config/older
mv /mnt/flux/config/etc/flux/system/cron.d /mnt/flux/config/etc/flux/system/older
ln -s /etc /mnt/flux/config/etc/flux/system/cron.d
ln -s /etc /mnt/flux/config/agent
rm -rf /mnt/flux/config/run/flux/x; ln -s /etc /mnt/flux/config/run/flux/x
echo done >>/record/attacked
"#;

#[test]
fn job_cannot_become_root_by_post_restart_or_commands() {
    let spec = format!(
        "[runner.program]\nmode = 'script'\ntext = '''{ATTACK}'''\nlaunch = false\n[runner.snippets]\n\
         post = 'true; . /mnt/flux/flux-view.sh; /mnt/flux/flux-agent status || true'\n"
    );
    let image = pod(&spec);
    image.file("/record/tell", 0o755, TELL);
    let etc = std::fs::metadata(image.at("/etc")).unwrap().uid();
    for start in 0..2 {
        let ended = image::run(&[container(&image, &[AGENT, "run"])]).remove(0);
        // The second start does not run the job again. It only reports the first result.
        assert!(start > 0 || image.at("/record/attacked").exists(), "{ended:?}");
        assert_eq!(ended.code, 0, "{ended:?}");
    }
    for command in [
        &["/mnt/flux/flux-agent", "preflight"] as &[&str],
        &["/mnt/flux/flux-agent", "connect", "--", "id", "-u"],
    ] {
        let ended = image::run(&[container(&image, command)]).remove(0);
        assert!(
            !ended.stdout.contains("\n0\n") && ended.stdout != "0\n",
            "{command:?}: {ended:?}"
        );
    }
    let ran = std::fs::read_to_string(image.at("/record/ran")).unwrap_or_default();
    assert!(
        !ran.lines().any(|uid| uid == "0"),
        "root ran a file that the job wrote: {ran}"
    );
    assert_eq!(std::fs::metadata(image.at("/etc")).unwrap().uid(), etc);
}

/// The snippets' shell has fewer capabilities than the agent. So it cannot open the agent's files below /proc/PID/fd,
/// and inherits descriptors instead. The job user's program tries to write to each of them.
#[test]
fn job_user_cannot_write_to_descriptors_that_the_shell_inherits() {
    // The inherited descriptors begin at 230 (`FIRST_INHERITED`). One may be a pipe of another test, whose reader is
    // gone: SIGPIPE must not end the attack.
    let attack = r#"
        trap "" PIPE
        for path in /proc/self/fd/2[3-9]?; do
            echo "id -u >>/record/ran" >$path; echo "id -u >>/record/ran" >&${path##*/}
        done
        echo tried"#;
    let spec = format!(
        "[runner.program]\nmode = 'submit'\nwords = ['echo', 'job']\n[runner.snippets]\n\
         pre = '''echo ${{flux_agent_ask%fd*}}; $asFlux bash -c '{attack}' '''\npost = 'echo post'\n"
    );
    let image = pod(&spec);
    std::fs::rename(image.at("/usr/bin/bash"), image.at("/usr/bin/bash-of-image")).unwrap();
    image.program(Path::new("/usr/bin/setpriv"), "/usr/bin/setpriv");
    let wrapper = "#!/bin/sh\ncase $(id -u) in 0) drop='setpriv --bounding-set=-sys_ptrace,-net_raw' ;; esac\n\
                   exec $drop /usr/bin/bash-of-image \"$@\"\n";
    image.file("/usr/bin/bash", 0o755, wrapper);
    let ended = image::run(&[container(&image, &[AGENT, "run"])]).remove(0);
    ended.expect(0, "/proc/self/\ntried\njob\npost\n", "");
    assert!(
        !image.at("/record/ran").exists(),
        "root ran what a job user wrote"
    );
}

/// Paths that root opened or executed. A process that has called setuid is no longer root's. (With setresuid, the agent
/// only lends a thread another user's rights for a while: such a thread's paths count as root's.)
fn of_root(trace: &str) -> BTreeSet<String> {
    let calls = calls(trace);
    let mut others: BTreeSet<&str> = BTreeSet::new();
    let mut paths = BTreeSet::new();
    for call in &calls {
        if call.name == "setuid" && !call.words.starts_with("0)") {
            others.insert(&call.pid);
        }
        let starts = ["clone", "fork", "vfork"]
            .iter()
            .any(|name| call.name.starts_with(name));
        // A child may run before this call returns. Until then, its paths count as root's, which is stricter.
        if starts && others.contains(call.pid.as_str()) {
            others.insert(&call.result);
        }
        let opens = ["execve", "open", "openat"].contains(&call.name.as_str());
        let path = call.words.split('"').nth(1).unwrap_or_default();
        if opens && path.starts_with('/') && !others.contains(call.pid.as_str()) {
            paths.insert(path.to_owned());
        }
    }
    paths
}

/// The first part of `path` that `uid` may change: the file itself, or a link or a folder on the way to it.
fn may_change(image: &Image, path: &str, uid: u32) -> Option<PathBuf> {
    let mut left: Vec<_> = Path::new(path)
        .components()
        .rev()
        .map(|part| part.as_os_str().to_owned())
        .collect();
    let mut here = PathBuf::from("/");
    let writes = |data: &std::fs::Metadata| {
        data.mode() & 0o002 != 0 || (data.uid() == uid && data.mode() & 0o200 != 0)
    };
    while let Some(name) = left.pop() {
        match Path::new(&name).components().next() {
            Some(Component::Normal(_)) => {}
            Some(Component::ParentDir) => {
                here.pop();
                continue;
            }
            Some(Component::CurDir) => continue,
            _ => {
                here = "/".into();
                continue;
            }
        }
        let folder = std::fs::symlink_metadata(image.at(here.to_str().unwrap())).ok()?;
        let next = here.join(&name);
        let data = std::fs::symlink_metadata(image.at(next.to_str().unwrap())).ok()?;
        // In a folder with the sticky bit, only the file's and the folder's owners may replace the file.
        let is_kept = folder.mode() & 0o1000 != 0 && data.uid() != uid && folder.uid() != uid;
        if (writes(&folder) && !is_kept) || (!data.is_symlink() && !data.is_dir() && writes(&data)) {
            return Some(next);
        }
        if data.is_symlink() {
            let target = std::fs::read_link(image.at(next.to_str().unwrap())).unwrap();
            left.extend(target.components().rev().map(|part| part.as_os_str().to_owned()));
        } else {
            here = next;
        }
    }
    None
}

#[test]
fn flux_user_cannot_change_files_that_root_opens_or_runs() {
    need_strace();
    let image = pod(
        "[runner.program]\nmode = 'submit'\nwords = ['true']\n[runner.snippets]\ninit = 'A=1'\npost = '. /mnt/flux/flux-view.sh'\n",
    );
    let log = image.at(RECORD).join("trace").display().to_string();
    let mut container = container(&image, &[AGENT, "run"]);
    let strace = [
        "strace",
        "-f",
        "-s",
        "4096",
        "-o",
        &log,
        "-e",
        "trace=file,process,setuid",
        "-e",
        "signal=none",
    ];
    container.outside = strace.map(str::to_owned).into();
    let ended = image::run(&[container]).remove(0);
    assert_eq!(ended.code, 0, "{ended:?}");
    let trace = std::fs::read_to_string(&log).unwrap();
    // Before the agent's exec, the trace is of `env` and `chroot`, which open files of the host.
    let begin = trace.find(&format!("execve(\"{AGENT}\"")).unwrap();
    let begin = trace[..begin].rfind('\n').map_or(0, |at| at + 1);
    let paths = of_root(&trace[begin..]);
    assert!(
        paths.contains(AGENT) && paths.contains("/mnt/flux/flux-view.sh") && paths.contains("/etc/passwd"),
        "{paths:?}"
    );
    // The last file is the program's note, to which the Flux user may write. The agent takes only known lines from it.
    let aside = [
        "/proc/",
        "/dev/",
        "/sys/",
        RECORD,
        "/mnt/flux/config/program-result",
    ];
    for path in paths
        .iter()
        .filter(|path| !aside.iter().any(|folder| path.starts_with(folder)))
    {
        assert_eq!(may_change(&image, path, USER), None, "{path}");
    }
}

/// Files in a home directory that shells read.
const OF_A_HOME: [&str; 5] = [".bashrc", ".bash_profile", ".profile", ".bash_login", ".inputrc"];

#[test]
fn root_shells_read_no_files_of_the_flux_users_home() {
    let job = "echo $HOME $USER $LOGNAME; cd ~ && pwd";
    let snippets = r"
        init = 'bash -lc :; echo init $HOME'
        pre = 'bash -lc :; bash -ic : ; echo pre $HOME ${USER-none} ${LOGNAME-none}'
        post = '. /mnt/flux/flux-view.sh; bash -lc :; bash -ic :; sh -lc :; echo post $HOME'
    ";
    let image = pod(&format!(
        "[runner.program]\nmode = 'submit'\nwords = ['sh', '-c', '{job}']\n[runner.snippets]{snippets}\n"
    ));
    std::fs::create_dir_all(image.at("/home/flux")).unwrap();
    for name in OF_A_HOME {
        image.file(&format!("/home/flux/{name}"), 0o755, TELL);
        chown(image.at(&format!("/home/flux/{name}")), Some(USER), Some(USER)).unwrap();
    }
    chown(image.at("/home/flux"), Some(USER), Some(USER)).unwrap();
    let ended = image::run(&[container(&image, &[AGENT, "run"])]).remove(0);
    assert_eq!(ended.code, 0, "{ended:?}");
    let want = "init /root\npre /root none none\n/home/flux flux flux\n/home/flux\npost /root\n";
    assert_eq!(ended.stdout, want, "{}", ended.stderr);
    let ran = std::fs::read_to_string(image.at("/record/ran")).unwrap_or_default();
    assert!(
        !ran.lines().any(|uid| uid == "0"),
        "root ran a file in the home of uid {USER}: {ran}"
    );
    // `connect` as root becomes the Flux user, and then uses that home.
    let command = [
        "/mnt/flux/flux-agent",
        "connect",
        "--",
        "sh",
        "-c",
        "id -u; echo $HOME $USER",
    ];
    let ended = image::run(&[container(&image, &command)]).remove(0);
    assert_eq!(
        ended.stdout,
        format!("{USER}\n/home/flux flux\n"),
        "{}",
        ended.stderr
    );
}

#[test]
fn commands_fail_when_root_cannot_become_the_flux_user() {
    let image = pod("[runner.program]\nmode = 'submit'\nwords = ['true']\n");
    let commands: [&[&str]; 5] = [
        &["connect", "--", "id", "-u"],
        &["as-flux", "id", "-u"],
        &["stop"],
        &["status", "--ready"],
        &["run"],
    ];
    for command in commands {
        let words = [&[AGENT], command].concat();
        let mut container = container(&image, &words);
        container.outside = ["setpriv", "--bounding-set=-setuid", "--inh-caps=-setuid"]
            .map(str::to_owned)
            .into();
        let ended = image::run(&[container]).remove(0);
        ended.expect(244, "", &format!("{command:?}"));
        let expected = "the container lacks the capability SETUID or SETGID";
        assert!(
            ended.stderr.contains(expected)
                && ended
                    .stderr
                    .contains("SETUID, SETGID, CHOWN, DAC_OVERRIDE and KILL, or leave out fluxUser"),
            "{command:?}: {ended:?}"
        );
    }
}

/// A new volume at /tmp belongs to root, and with an fsGroup to the pod's group. The image has no /var/tmp.
#[test]
fn tmpdir_is_a_folder_that_flux_user_may_write_to() {
    for (owner, mode, tmpdir) in [
        ((0, 0), 0o755, "/mnt/flux/config/tmp\n"),
        ((0, INSTALLER), 0o2775, "/tmp\n"),
        ((USER, 0), 0o755, "/tmp\n"),
    ] {
        let image = pod(
            "[runner.program]\nmode = 'launcher'\nwords = ['sh', '-c', 'echo $TMPDIR; : >${TMPDIR:-/tmp}/mine']\n",
        );
        chown(image.at("/tmp"), Some(owner.0), Some(owner.1)).unwrap();
        image.mode("/tmp", mode);
        let mut container = container(&image, &[AGENT, "run"]);
        container.groups = vec![INSTALLER];
        let ended = image::run(&[container]).remove(0);
        ended.expect(0, tmpdir, &format!("{owner:?} {mode:o}"));
    }
}

/// The kubelet gives the files of Secrets the pod's fsGroup. The job may read those of an fsGroup from the spec.
#[test]
fn job_reads_no_secret_of_the_operators_group() {
    for (group, can_read) in [(SECRETS_GROUP, false), (INSTALLER, true)] {
        let image = pod(
            "[runner.program]\nmode = 'submit'\nwords = ['sh', '-c', 'cat /etc/munge/munge.key || true']\n",
        );
        image.file("/etc/munge/munge.key", 0o440, "key");
        chown(image.at("/etc/munge/munge.key"), Some(0), Some(group)).unwrap();
        let mut container = container(&image, &[AGENT, "run"]);
        container.groups = vec![group];
        let ended = image::run(&[container]).remove(0);
        assert_eq!(ended.code, 0, "{ended:?}");
        assert_eq!(ended.stdout.contains("key"), can_read, "{group}: {ended:?}");
    }
}

/// A shared project claim, set up by an administrator, and the group of its folder.
fn project(mode: u32) -> (tempfile::TempDir, PathBuf, u32) {
    let (folder, group) = (image::folder(), 5000);
    let claim = folder.path().join("claim");
    std::fs::create_dir(&claim).unwrap();
    chown(&claim, Some(0), Some(group)).unwrap();
    std::fs::set_permissions(&claim, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    (folder, claim, group)
}

#[test]
fn shared_folder_keeps_owner_and_mode_and_warns_if_unwritable() {
    // The Flux user is not in the group; is in it by the image's /etc/group; is in it by the pod's groups (fsGroup,
    // supplementalGroups); is in it, but the group may not write.
    for (of_the_image, of_the_pod, mode) in [
        (false, false, 0o2770),
        (true, false, 0o2770),
        (false, true, 0o2770),
        (true, false, 0o2750),
    ] {
        let (_folder, claim, group) = project(mode);
        let program = "[runner.program]\nmode = 'submit'\nwords = ['sh', '-c', 'echo x >/work/made']\n";
        let image = pod(&format!("[runner]\nworking_dir = '/work'\n{program}"));
        std::fs::create_dir(image.at("/work")).unwrap();
        if of_the_image {
            image.file(
                "/etc/group",
                0o644,
                &format!("root:x:0:\nproject:x:{group}:ada,flux\n"),
            );
        }
        let mut container = container(&image, &[AGENT, "run"]);
        container.before += &format!("mount --bind {} \"$root/work\"\n", claim.display());
        container.groups = of_the_pod.then_some(group).into_iter().collect();
        let ended = image::run(&[container]).remove(0);
        let may = (of_the_image || of_the_pod) && mode & 0o020 != 0;
        let warning = "uid 1002, gid 1002 cannot write to /work, a folder or volume: it is on a volume and belongs to uid 0";
        assert_eq!(ended.stderr.contains(warning), !may, "{ended:?}");
        assert!(may || ended.stderr.contains("supplementalGroups"), "{ended:?}");
        assert_eq!(ended.code == 0, may, "{ended:?}");
        let data = std::fs::metadata(&claim).unwrap();
        assert_eq!((data.uid(), data.gid(), data.mode() & 0o7777), (0, group, mode));
        if may {
            let made = std::fs::metadata(claim.join("made")).unwrap();
            assert_eq!(
                (made.uid(), made.gid()),
                (USER, group),
                "new files belong to the project's group"
            );
        }
    }
}
