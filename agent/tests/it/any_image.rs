//! An almost empty image, in a container as restricted as chroot allows: no shell, no users, a read-only root, no
//! capabilities but three, no writable /tmp. It has only the agent, the fake Flux, and the C library that debug
//! builds of both need, unless a test adds a shell.

use flux_shared::exit::Category;
use flux_shared::termination::{Ender, Termination};

use crate::image::{self, AGENT, Container, Ended, Image};
use crate::live::termination_at;

/// The only program in such an image is Flux itself.
const JOB: &str = "[runner.program]\nmode = 'submit'\nwords = ['/mnt/flux/view/bin/flux', 'version']\n";

/// Makes the root read-only, except the pod's volume and the tests' record.
const READ_ONLY: &str = "\
    mount --rbind \"$root\" \"$root\"\n\
    for volume in mnt/flux record; do mount --bind \"$root/$volume\" \"$root/$volume\"; done\n\
    mount -o remount,bind,ro \"$root\"\n";

fn scratch(spec: &str) -> Image {
    let image = Image::empty();
    image.view();
    image.file(
        "/etc/flux-agent/spec/agent.toml",
        0o444,
        &format!("name = 'mc'\n{spec}"),
    );
    image.mode("/mnt/flux", 0o777);
    image.mode("/mnt/flux/config", 0o777);
    image
}

/// A container without privileges, as with `drop: [ALL]` and `allowPrivilegeEscalation: false`. (chroot needs
/// the three capabilities that root keeps.)
fn restricted<'a>(image: &'a Image, uid: u32, command: &[&str]) -> Container<'a> {
    let mut container = Container::new(image, "mc-0", command);
    let setpriv = [
        "setpriv",
        "--no-new-privs",
        "--inh-caps=-all",
        "--bounding-set=-all,+sys_chroot,+setuid,+setgid",
    ];
    container.outside = setpriv.map(str::to_owned).into();
    container.ids = (uid, uid);
    container.before = READ_ONLY.into();
    container.environment.remove("HOME");
    container
}

fn run(container: Container) -> Ended {
    image::run(&[container]).remove(0)
}

const TERMINATION_LOG: &str = "/mnt/flux/termination-log";

/// Runs the agent as uid 1000, with these further words. Also returns its termination message.
fn run_with_termination(image: &Image, words: &[&str]) -> (Ended, Termination) {
    image.file(TERMINATION_LOG, 0o666, "");
    let command = [&[AGENT, "run", "--termination-log", TERMINATION_LOG], words].concat();
    let ended = run(restricted(image, 1000, &command));
    (ended, termination_at(&image.at(TERMINATION_LOG)))
}

#[test]
fn a_job_runs_in_an_empty_read_only_image_as_any_user() {
    for uid in [0, 1000, 65534, 4_000_000_000] {
        let image = scratch(JOB);
        if uid == 0 {
            // Root owns both folders, and the agent would set the mode of `config`.
            image.mode("/mnt/flux", 0o755);
            image.mode("/mnt/flux/config", 0o755);
        }
        let before = image.tree();
        let ended = run(restricted(&image, uid, &[AGENT, "run"]));
        assert_eq!(ended.code, 0, "uid {uid}: {ended:?}");
        assert!(ended.stdout.contains("fake"), "uid {uid}: {ended:?}");
        for (path, node) in image.tree() {
            let is_agents = path.starts_with("/mnt/flux/") && !before.contains_key(&path);
            assert!(
                is_agents || before.get(&path) == Some(&node),
                "uid {uid}: {path} has changed"
            );
            assert!(
                !is_agents || node.owner == (uid, uid),
                "uid {uid}: {path} is {node:?}"
            );
        }
    }
}

#[test]
fn job_runs_without_environment_or_terminal() {
    let image = scratch(JOB);
    let mut container = restricted(&image, 1000, &[AGENT, "run"]);
    container.environment.clear();
    container.before = format!("umount \"$root/dev/pts\"\n{READ_ONLY}");
    let ended = run(container);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.stdout.contains("fake"), "{ended:?}");
}

#[test]
fn container_exits_with_the_jobs_own_code() {
    let image = scratch(&JOB.replace("'version'", "'nonsense'"));
    let ended = run(restricted(&image, 1000, &[AGENT, "run"]));
    assert_eq!(ended.code, 1, "{ended:?}");
    let image = scratch(&JOB.replace("/view/bin/flux', 'version'", "/nothing'"));
    let ended = run(restricted(&image, 1000, &[AGENT, "run"]));
    assert_eq!(ended.code, 127, "{ended:?}");
}

/// Replaces the last `old` in the image's Flux by `new`, which has the same length.
fn forge_flux(image: &Image, old: &str, new: &str) {
    change_flux(image, |bytes| {
        let at = bytes
            .windows(old.len())
            .rposition(|window| window == old.as_bytes())
            .unwrap();
        bytes[at..at + old.len()].copy_from_slice(new.as_bytes());
    });
}

fn change_flux(image: &Image, change: impl FnOnce(&mut Vec<u8>)) {
    let path = image.at("/mnt/flux/view/bin/flux");
    let mut bytes = std::fs::read(&path).unwrap();
    change(&mut bytes);
    // It may be a link to the built program, which must not change.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, bytes).unwrap();
    image.mode("/mnt/flux/view/bin/flux", 0o755);
}

#[test]
fn image_with_unfit_c_library_is_reported_with_remedy() {
    for (old, new, want) in [
        ("/ld-linux-", "/no-linux-", "/no-linux-"),
        (
            "GLIBC_2.34",
            "GLIBC_2.99",
            "Flux needs glibc 2.99, the image has 2.",
        ),
    ] {
        let image = scratch(JOB);
        forge_flux(&image, old, new);
        let (ended, termination) = run_with_termination(&image, &[]);
        assert_eq!(
            (ended.code, termination.by, termination.category),
            (248, Ender::Agent, Some(Category::BrokerFailed)),
            "{ended:?}"
        );
        let message = termination.message;
        assert!(message.contains(want), "{message}: {ended:?}");
        assert!(
            message.contains("glibc") && message.contains(": use a"),
            "{message}"
        );
        assert!(ended.stderr.contains(message.trim_end_matches('.')), "{ended:?}");
    }
}

/// If the kernel cannot run a program, the C library runs it in /bin/sh, as a script.
#[test]
fn view_for_another_architecture_is_reported_with_remedy() {
    let this_node = std::env::consts::ARCH;
    // As ELF numbers machines.
    let (number, other) = if this_node == "aarch64" {
        (62, "x86_64")
    } else {
        (183, "aarch64")
    };
    for shell in [None, Some("dash"), Some("bash")] {
        let image = scratch(JOB);
        change_flux(&image, |bytes| bytes[18] = number);
        if let Some(shell) = shell {
            image.program(&std::path::Path::new("/bin").join(shell), "/bin/sh");
        }
        let (ended, termination) = run_with_termination(&image, &[]);
        assert_eq!(
            (ended.code, termination.category),
            (248, Some(Category::BrokerFailed)),
            "{shell:?}: {ended:?}"
        );
        let want = format!("Flux is for {other}, this node is {this_node}: use a view image for it");
        assert!(
            termination.message.contains(&want),
            "{shell:?}: {}",
            termination.message
        );
    }
}

/// Flux 0.88 runs bash scripts before the instance is up: "[Errno 2] No such file or directory: 'bash'".
#[test]
fn failed_start_names_bash_that_flux_does_not_find() {
    for (has_bash, path) in [(false, None), (true, None), (true, Some("/opt/app:$PATH"))] {
        let image = scratch(
            "archive = '/mnt/flux/archive.tar.gz'\n[runner.program]\nmode = 'submit'\nwords = ['true']\n",
        );
        // An archive that cannot be restored: rc1 fails.
        image.file("/mnt/flux/archive.tar.gz", 0o666, "no archive");
        if has_bash {
            image.file("/usr/bin/bash", 0o755, "");
        }
        image.file(TERMINATION_LOG, 0o666, "");
        let mut container = restricted(
            &image,
            1000,
            &[AGENT, "run", "--termination-log", TERMINATION_LOG],
        );
        container
            .environment
            .extend(path.map(|path| ("PATH".to_owned(), path.to_owned())));
        let ended = run(container);
        let termination = termination_at(&image.at(TERMINATION_LOG));
        assert_eq!(
            (ended.code, termination.category),
            (248, Some(Category::BrokerFailed)),
            "{ended:?}"
        );
        let message = &termination.message;
        let names_bash = message.contains("no bash") && message.contains("use an image with bash");
        assert_eq!(names_bash, !has_bash, "{message}");
        let names_path =
            message.contains("/usr/bin/bash is not on the PATH (/opt/app:$PATH:/mnt/flux/view/bin)");
        assert_eq!(names_path, path.is_some(), "{message}");
    }
}

#[test]
fn missing_shell_is_reported_in_one_line() {
    for (spec, what) in [
        (
            format!("{JOB}[runner.snippets]\npre = 'echo'\n"),
            "the snippet `pre`",
        ),
        (
            "[runner.program]\nmode = 'script'\ntext = 'echo'\n".to_owned(),
            "the script",
        ),
        (
            "[runner.program]\nmode = 'batch-raw'\ntext = 'echo'\n".to_owned(),
            "the batch script",
        ),
        (
            format!("{JOB}[sidecars.web]\ncommand = 'echo'\n"),
            "the snippet `command`",
        ),
    ] {
        let image = scratch(&spec);
        let words: &[&str] = if spec.contains("sidecars") {
            &["--container", "web"]
        } else {
            &[]
        };
        let before = image.tree();
        let (ended, termination) = run_with_termination(&image, words);
        assert_eq!(
            ended.code,
            i32::from(Category::ShellMissing.code()),
            "{spec}: {ended:?}"
        );
        let line = ended.stderr.trim_end();
        let cause = format!(
            "flux-agent: shell-missing: failed to find a shell for {what}. Use an image with /bin/sh"
        );
        assert!(!line.contains('\n') && line.starts_with(&cause), "{line}");
        let mut after = image.tree();
        after.remove(TERMINATION_LOG);
        assert!(line.ends_with(&termination.message), "{line}");
        assert!(
            after.iter().all(|(path, node)| before.get(path) == Some(node)),
            "the agent wrote files before it reported the missing shell"
        );
    }
}

#[test]
fn install_and_view_run_in_an_empty_image() {
    let image = Image::empty();
    image.program(image::fake_flux(), "/opt/view/bin/flux");
    std::fs::rename(image.at(AGENT), image.at("/flux-agent")).unwrap();
    // As in a Job that a user writes: the agent and the view are in one volume.
    let installed = "/mnt/flux/flux-agent";
    std::fs::remove_file(image.at(installed)).unwrap();
    image.mode("/mnt/flux", 0o777);
    std::fs::create_dir(image.at("/mnt/flux-software")).unwrap();
    for command in [
        &["/flux-agent", "install"],
        &["/flux-agent", "view"],
        &[installed, "view"],
    ] {
        let ended = run(restricted(&image, 1000, command));
        assert_eq!(ended.code, 0, "{command:?}: {ended:?}");
    }
    let have = image.tree();
    assert_eq!(have["/mnt/flux/view/bin/flux"].owner, (1000, 1000));
    assert!(have["/mnt/flux/view/bin/flux"].what == have["/opt/view/bin/flux"].what);
    assert!(have[installed].what == have["/flux-agent"].what);
}
