//! Hostile files where root changes owners: at paths of the spec, and where a job can write.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown, lchown, symlink};
use std::path::Path;

use super::{USER, container, pod};
use crate::image::{self, AGENT, Container, Ended, Image};

/// A batch, whose `logs` the agent makes writable.
const BATCH: &str = "[runner.program]\nmode = 'batch'\nlines = [{number = 0, text = 'true'}]\n";
const JOB: &str = "[runner.program]\nmode = 'submit'\nwords = ['id', '-u']\n";

/// A pod whose folder /data belongs to the Flux user, as after an earlier job.
fn pod_with_data(spec: &str) -> Image {
    let image = pod(spec);
    fs::create_dir(image.at("/data")).unwrap();
    chown(image.at("/data"), Some(USER), Some(USER)).unwrap();
    image
}

fn run(image: &Image, before: &str) -> Ended {
    crate::live::forget_starts(image);
    let mut container = container(image, &[AGENT, "run"]);
    container.before += before;
    image::run(&[container]).remove(0)
}

/// Owner, group and mode of the file at a path. Follows links.
fn owners(path: &Path) -> (u32, u32, u32) {
    let data = fs::metadata(path).unwrap();
    (data.uid(), data.gid(), data.mode() & 0o7777)
}

/// A file that a job or the pod's author may have put at a path.
struct Obstacle {
    name: &'static str,
    put: fn(&Image, &str),
    /// Whether a volume with root's secret is mounted there.
    is_mounted: bool,
}

const OBSTACLES: [Obstacle; 7] = [
    Obstacle {
        name: "the job's link",
        put: |image, path| link(image, path, USER),
        is_mounted: false,
    },
    Obstacle {
        name: "root's link in the job's folder",
        put: |image, path| link(image, path, 0),
        is_mounted: false,
    },
    Obstacle {
        name: "a dangling link",
        put: |image, path| {
            symlink("/etc/new", image.at(path)).unwrap();
            lchown(image.at(path), Some(USER), Some(USER)).unwrap();
        },
        is_mounted: false,
    },
    Obstacle {
        name: "a hard link",
        put: |image, path| fs::hard_link(image.at("/etc/passwd"), image.at(path)).unwrap(),
        is_mounted: false,
    },
    Obstacle {
        name: "a pipe",
        put: |image, path| {
            nix::unistd::mkfifo(&image.at(path), nix::sys::stat::Mode::from_bits_truncate(0o666)).unwrap();
        },
        is_mounted: false,
    },
    Obstacle {
        name: "a mount of root's secret",
        put: |image, path| fs::create_dir(image.at(path)).unwrap(),
        is_mounted: true,
    },
    Obstacle {
        name: "a folder of root's that the job has moved there",
        put: |image, path| fs::rename(image.at("/secret"), image.at(path)).unwrap(),
        is_mounted: false,
    },
];

/// A secret folder, which only root may read. Its inode identifies it wherever it is moved to.
struct Secret(u64);

impl Secret {
    fn new(image: &Image) -> Secret {
        fs::create_dir(image.at("/secret")).unwrap();
        image.mode("/secret", 0o700);
        chown(image.at("/secret"), Some(0), Some(7)).unwrap();
        Secret(fs::metadata(image.at("/secret")).unwrap().ino())
    }

    /// Asserts that the folder, at its own place or at `path`, still belongs to root. The job may have replaced
    /// it.
    fn check(&self, image: &Image, path: &str, when: &str) {
        let at = |path: &str| {
            fs::symlink_metadata(image.at(path))
                .ok()
                .filter(|data| data.ino() == self.0)
        };
        if let Some(data) = at("/secret").or_else(|| at(path)) {
            assert_eq!(
                (data.uid(), data.gid(), data.mode() & 0o7777),
                (0, 7, 0o700),
                "{when}"
            );
        }
    }
}

impl Obstacle {
    /// Shell lines that mount the secret in the container.
    fn mount(&self, path: &str) -> String {
        if self.is_mounted {
            format!("mount --bind \"$root/secret\" \"$root{path}\"\n")
        } else {
            String::new()
        }
    }
}

fn link(image: &Image, path: &str, uid: u32) {
    symlink("/etc", image.at(path)).unwrap();
    lchown(image.at(path), Some(uid), Some(uid)).unwrap();
}

/// A spec, the path of the obstacle, and the paths that the image lacks. Without them, the agent makes its own.
type Case<'a> = (String, &'a str, &'a [&'a str]);

#[test]
fn hostile_files_at_spec_paths_take_no_ownership_from_root() {
    let of_data = [
        format!("[runner]\nworking_dir = '/data/it'\n{JOB}"),
        format!("[runner]\nworking_dir = '/data/it/below'\n{JOB}"),
        format!("[runner]\nlogs = '/data/it'\n{BATCH}"),
        format!("[runner]\nlogs = '/data/it/below'\n{BATCH}"),
        format!("archive = '/data/it/archive.tgz'\n{JOB}"),
        format!("archive = '/data/it'\n{JOB}"),
    ];
    let mut cases: Vec<Case> = of_data.map(|spec| (spec, "/data/it", &[] as &[&str])).into();
    // Paths that a start creates only if they are missing: a job may put files there before the next start.
    cases.extend([
        (JOB.to_owned(), "/home/flux", &[] as &[&str]),
        (format!("users = ['ada']\n{JOB}"), "/home/ada", &[]),
        (JOB.to_owned(), "/mnt/flux/config/tmp", &["/tmp", "/var/tmp"]),
    ]);
    for (spec, path, missing) in &cases {
        for obstacle in &OBSTACLES {
            let image = pod_with_data(spec);
            image.file(&format!("{}/ada", flux_shared::paths::USERS_DIR), 0o400, "secret");
            fs::create_dir_all(image.at("/home")).unwrap();
            image.mode("/home", 0o777);
            missing.iter().for_each(|folder| remove(&image.at(folder)));
            let secret = Secret::new(&image);
            fs::create_dir_all(image.at("/etc/below")).unwrap();
            (obstacle.put)(&image, path);
            let guarded = ["/etc", "/etc/below", "/etc/group", "/root", "/"];
            let before = guarded.map(|path| owners(&image.at(path)));
            let ended = run(&image, &obstacle.mount(path));
            let when = format!("{} at {path}, {spec}: {ended:?}", obstacle.name);
            assert_eq!(guarded.map(|path| owners(&image.at(path))), before, "{when}");
            assert_eq!(fs::metadata(image.at("/etc/passwd")).unwrap().uid(), 0, "{when}");
            assert!(
                !image.at("/etc/new").exists() && !image.at("/etc/archive.tgz").exists(),
                "{when}"
            );
            secret.check(&image, path, &when);
        }
    }
}

#[test]
fn system_directories_stay_roots_and_job_runs_with_warning() {
    for path in ["/", "/etc", "/usr/bin", "/root", "/run", "/data/../etc"] {
        for field in [
            format!("working_dir = '{path}'\n{JOB}"),
            format!("logs = '{path}'\n{BATCH}"),
        ] {
            let image = pod_with_data(&format!("[runner]\n{field}"));
            fs::create_dir_all(image.at("/run")).unwrap();
            let before = owners(&image.at(path));
            let ended = run(&image, "");
            assert_eq!(owners(&image.at(path)), before, "{path}: {ended:?}");
            let warning = format!("cannot write to {path}, a folder or volume: ");
            assert!(ended.stderr.contains(&warning), "{path}: {ended:?}");
            assert!(
                ended.stderr.contains("is one of the system's directories"),
                "{path}: {ended:?}"
            );
            assert!(
                ended.stderr.contains("runFluxAsRoot") && ended.stderr.contains("another workingDir"),
                "{ended:?}"
            );
            // The batch may fail, since its output goes to this folder.
            assert!(!field.contains(JOB) || ended.code == 0, "{path}: {ended:?}");
        }
    }
}

#[test]
fn working_dir_changes_owner_and_its_contents_do_not() {
    let script = "[runner.program]\nmode = 'submit'\nwords = ['sh', '-c', 'echo x >/work/made']\n";
    for mount in ["", "mount --bind \"$root/volume\" \"$root/work\"\n"] {
        let image = pod(&format!("[runner]\nworking_dir = '/work'\n{script}"));
        for folder in ["/work", "/volume"] {
            image.file(&format!("{folder}/input"), 0o644, "x");
        }
        let ended = run(&image, mount);
        assert_eq!(ended.code, 0, "{ended:?}");
        let folder = if mount.is_empty() { "/work" } else { "/volume" };
        assert_eq!(owners(&image.at(folder)), (USER, USER, 0o755));
        assert_eq!(owners(&image.at(&format!("{folder}/input"))), (0, 0, 0o644));
        assert_eq!(
            fs::metadata(image.at(&format!("{folder}/made"))).unwrap().uid(),
            USER
        );
    }
}

/// A container with only these capabilities.
fn with_capabilities<'a>(image: &'a Image, names: &str) -> Container<'a> {
    let mut container = container(image, &[AGENT, "run"]);
    // chroot, which starts the agent, needs one more.
    container.outside = ["setpriv", &format!("--bounding-set=-all,+sys_chroot,{names}")]
        .map(str::to_owned)
        .into();
    container
}

#[test]
fn flux_user_needs_five_capabilities_that_the_message_names() {
    let spec = format!("archive = '/data/archive.tgz'\n[runner]\nlogs = '/data/out'\n{BATCH}");
    let pod = || {
        let image = pod_with_data(&spec);
        image.mode("/data", 0o700);
        image.hosts("mc", "flux-service", 1);
        image.certificate((0, 0));
        image
    };
    let image = pod();
    let ended = image::run(&[with_capabilities(
        &image,
        "+setuid,+setgid,+chown,+dac_override,+kill",
    )])
    .remove(0);
    assert_eq!(ended.code, 0, "{ended:?}");
    for path in [
        "/data/out",
        "/data/archive.tgz",
        "/mnt/flux/config/curve/curve.cert",
    ] {
        assert_eq!(fs::metadata(image.at(path)).unwrap().uid(), USER, "{path}");
    }
    for (names, lacks) in [
        ("+setuid,+setgid,+dac_override,+kill", "CHOWN"),
        ("+setuid,+setgid,+chown,+kill", "DAC_OVERRIDE"),
        ("+setuid,+setgid,+chown,+dac_override", "KILL"),
    ] {
        let image = pod();
        let ended = image::run(&[with_capabilities(&image, names)]).remove(0);
        assert_eq!(ended.code, 244, "{ended:?}");
        assert!(
            ended.stderr.contains(&format!("lacks the capability {lacks}")),
            "{ended:?}"
        );
        assert!(
            ended
                .stderr
                .contains("SETUID, SETGID, CHOWN, DAC_OVERRIDE and KILL"),
            "{ended:?}"
        );
    }
}

#[test]
fn no_snippet_runs_when_root_cannot_signal_the_flux_user() {
    // Without a view, the rest of the plan is made after the snippets.
    for view in ["", "[view]\nenabled = false\n"] {
        for (kill, has_run) in [("", false), (",+kill", true)] {
            let spec = format!("{view}[runner.snippets]\ninit = ': >/data/ran'\n{JOB}");
            let image = pod_with_data(&spec);
            image.program(crate::image::fake_flux(), "/usr/bin/flux");
            let names = format!("+setuid,+setgid,+chown,+dac_override{kill}");
            let ended = image::run(&[with_capabilities(&image, &names)]).remove(0);
            assert_eq!(image.at("/data/ran").exists(), has_run, "{view}: {ended:?}");
            assert_eq!(
                ended.stderr.contains("lacks the capability KILL"),
                !has_run,
                "{ended:?}"
            );
        }
    }
}

/// Root may not write to /data, as on an NFS export with root squash.
#[test]
fn missing_path_is_created_by_owner_when_root_may_not_write() {
    let spec = format!("archive = '/data/saved/archive.tgz'\n[runner]\nlogs = '/data/deep/out'\n{BATCH}");
    let image = pod_with_data(&spec);
    image.mode("/data", 0o700);
    // Without DAC_OVERRIDE, root can create the links in this folder (flux-view.sh, …) only if the folder is root's.
    chown(image.at("/mnt/flux"), Some(0), Some(0)).unwrap();
    let mut container = container(&image, &[AGENT, "run"]);
    container.outside = ["setpriv", "--bounding-set=-dac_override,-fowner"]
        .map(str::to_owned)
        .into();
    let ended = image::run(&[container]).remove(0);
    assert_eq!(ended.code, 0, "{ended:?}");
    for path in ["/data/deep", "/data/deep/out", "/data/saved/archive.tgz"] {
        let data = fs::metadata(image.at(path)).unwrap();
        assert_eq!((data.uid(), data.gid()), (USER, USER), "{path}");
    }
    assert_eq!(owners(&image.at("/data/deep/out")).2, 0o755);
}

/// Root may not even read /data: it has no right at all on an NFS export with root squash.
#[test]
fn archive_is_restored_where_only_its_owner_can_look() {
    // The first start leaves an unfinished dump.
    let script = "[ -e /data/archive.tgz ] || for dump in /data/.flux-dump-*; do cp $dump ${dump%-*}-0123456789abcdef.tgz; done";
    let image = pod_with_data(&format!(
        "archive = '/data/archive.tgz'\n[runner.program]\nmode = 'submit'\nwords = ['sh', '-c', '{script}']\n"
    ));
    image.mode("/data", 0o700);
    chown(image.at("/mnt/flux"), Some(0), Some(0)).unwrap();
    for (saved, files) in [("start\n", 2), ("start\nstart\n", 1)] {
        crate::live::forget_starts(&image);
        let mut container = container(&image, &[AGENT, "run"]);
        container.outside = ["setpriv", "--bounding-set=-dac_override,-dac_read_search,-fowner"]
            .map(str::to_owned)
            .into();
        // The container fails, since without these capabilities root cannot read the program's note either.
        let ended = image::run(&[container]).remove(0);
        let archive = image.at("/data/archive.tgz");
        assert_eq!(crate::archive::unpacked(&archive), saved, "{ended:?}");
        assert_eq!(
            fs::read_dir(image.at("/data")).unwrap().count(),
            files,
            "{ended:?}"
        );
    }
}

/// Paths below `top` that the Flux user can replace, in the image of a pod that has run: they are in folders
/// that the user may write to.
fn replaceable(image: &Image, top: &str) -> Vec<String> {
    let (mut found, mut folders) = (Vec::new(), vec![top.to_owned()]);
    while let Some(folder) = folders.pop() {
        let (uid, _, mode) = owners(&image.at(&folder));
        let is_theirs = uid == USER || mode & 0o1002 == 0o002;
        for entry in fs::read_dir(image.at(&folder)).unwrap().flatten() {
            let path = format!("{folder}/{}", entry.file_name().display());
            if is_theirs {
                found.push(path.clone());
            }
            if entry.file_type().unwrap().is_dir() {
                folders.push(path);
            }
        }
    }
    found
}

fn remove(path: &Path) {
    let _ = if path.is_dir() && !path.is_symlink() {
        fs::remove_dir_all(path)
    } else {
        fs::remove_file(path)
    };
}

/// Obstacles at every path that the agent and Flux have created and that a job can replace.
#[test]
fn hostile_files_at_agent_paths_take_no_ownership_from_root() {
    let spec =
        format!("archive = '/data/a.tgz'\n[runner]\nworking_dir = '/data/run'\nlogs = '/data/out'\n{JOB}");
    let laid_out = pod_with_data(&spec);
    fs::create_dir(laid_out.at("/data/run")).unwrap();
    let first = run(&laid_out, "");
    assert_eq!(first.code, 0, "{first:?}");
    let tops = ["/data", "/mnt/flux/config", "/home"];
    let paths: Vec<String> = tops.iter().flat_map(|top| replaceable(&laid_out, top)).collect();
    assert!(paths.len() >= 3, "{paths:?}");
    let guarded = ["/etc", "/root", "/", "/etc/passwd", "/etc/group"];
    let check = |path: &String| {
        for obstacle in &OBSTACLES {
            let image = pod_with_data(&spec);
            fs::create_dir(image.at("/data/run")).unwrap();
            let secret = Secret::new(&image);
            let first = run(&image, "");
            assert_eq!(first.code, 0, "{first:?}");
            let before = guarded.map(|path| owners(&image.at(path)));
            let passwd = fs::read(image.at("/etc/passwd")).unwrap();
            remove(&image.at(path));
            fs::create_dir_all(image.at(path).parent().unwrap()).unwrap();
            (obstacle.put)(&image, path);
            let ended = run(&image, &obstacle.mount(path));
            let when = format!("{} at {path}: {ended:?}", obstacle.name);
            assert_eq!(guarded.map(|path| owners(&image.at(path))), before, "{when}");
            assert_eq!(fs::read(image.at("/etc/passwd")).unwrap(), passwd, "{when}");
            assert!(!image.at("/etc/new").exists(), "{when}");
            secret.check(&image, path, &when);
        }
    };
    std::thread::scope(|scope| {
        for half in paths.chunks(paths.len().div_ceil(2)) {
            scope.spawn(move || half.iter().for_each(check));
        }
    });
}
