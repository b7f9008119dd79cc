//! When the agent itself gives up: a reserved exit code, and one line with the reason, which is also in the
//! termination message.

use std::time::Duration;

use flux_shared::exit::Category;
use flux_shared::paths::SPEC_FILE;
use flux_shared::termination::Ender;

use crate::image::{AGENT, Container, Image, run};
use crate::live::{pod_image, run_words, termination_of};

/// Runs a pod that must give up with `category`, and checks that its line has `words`.
fn gives_up(
    image: &Image,
    hostname: &str,
    more: &[&str],
    ids: (u32, u32),
    category: Category,
    words: &[&str],
) {
    let command = run_words(more);
    let mut container = Container::new(image, hostname, &command);
    container.ids = ids;
    let ended = run(&[container]).remove(0);
    assert_eq!(
        ended.code,
        i32::from(category.code()),
        "{}{}",
        ended.stdout,
        ended.stderr
    );
    let start = format!("flux-agent: {}: ", category.name());
    let lines: Vec<&str> = ended
        .stderr
        .lines()
        .filter(|line| line.starts_with(&start))
        .collect();
    assert_eq!(lines.len(), 1, "{}", ended.stderr);
    for word in words {
        assert!(lines[0].contains(word), "{word}: {}", lines[0]);
    }
    let termination = termination_of(image);
    assert_eq!(
        (termination.by, i32::from(termination.code), termination.category),
        (Ender::Agent, ended.code, Some(category))
    );
    assert_eq!(format!("{start}{}", termination.message), lines[0]);
}

const ROOT: (u32, u32) = (0, 0);

#[test]
fn agent_gives_up_on_a_missing_or_invalid_spec() {
    let image = pod_image("", 1);
    std::fs::remove_file(image.at(SPEC_FILE)).unwrap();
    gives_up(
        &image,
        "mc-0",
        &["--patience", "1"],
        ROOT,
        Category::SpecUnreadable,
        &[SPEC_FILE, "No such file or directory. Is the ConfigMap"],
    );
    let image = pod_image("sice = 4", 1);
    gives_up(&image, "mc-0", &[], ROOT, Category::SpecInvalid, &["sice"]);
    let image = pod_image("version = 9", 1);
    gives_up(
        &image,
        "mc-0",
        &[],
        ROOT,
        Category::SpecInvalid,
        &["version 9", "release"],
    );
    let image = pod_image("", 1);
    gives_up(
        &image,
        "stranger",
        &[],
        ROOT,
        Category::SpecInvalid,
        &["stranger", "the hostlist mc-0"],
    );
}

#[test]
fn agent_gives_up_on_a_view_without_flux() {
    let image = pod_image("", 1);
    std::fs::remove_file(image.at("/mnt/flux/view/bin/flux")).unwrap();
    gives_up(
        &image,
        "mc-0",
        &[],
        ROOT,
        Category::ViewMissing,
        &["/mnt/flux/view/bin/flux"],
    );
}

#[test]
fn follower_gives_up_when_lead_misses_parent_deadline() {
    let image = pod_image("", 2);
    let words = ["mc-0.flux-service", "refuses", "8050", "See the log of its pod"];
    gives_up(
        &image,
        "mc-1",
        &["--parent-deadline", "1"],
        ROOT,
        Category::ParentUnreachable,
        &words,
    );
    // Now the lead has no address: it is not in this file, and resolv.conf names no server.
    image.file("/etc/hosts", 0o644, "10.9.0.2 mc-1\n");
    let words = ["mc-0.flux-service.default.svc.cluster.local", "no DNS server"];
    gives_up(
        &image,
        "mc-1",
        &["--parent-deadline", "1"],
        ROOT,
        Category::ParentUnreachable,
        &words,
    );
}

#[test]
fn agent_gives_up_on_an_unreadable_or_invalid_certificate() {
    let image = pod_image("", 2);
    // Uid 1000 may write to these folders, so it fails at the certificate, which only root may read.
    for folder in ["/mnt/flux", "/mnt/flux/config", "/tmp"] {
        image.mode(folder, 0o1777);
    }
    gives_up(
        &image,
        "mc-0",
        &[],
        (1000, 1000),
        Category::CurveUnreadable,
        &["permission denied", "fsGroup"],
    );
    let image = pod_image("", 2);
    image.file(
        "/etc/flux-agent/curve/curve.cert",
        0o400,
        "metadata\n    name = \"mc\"\ncurve\n    public-key = \"hello\"\n",
    );
    gives_up(
        &image,
        "mc-0",
        &[],
        ROOT,
        Category::CurveUnreadable,
        &["public-key"],
    );
}

#[test]
fn agent_gives_up_on_a_volume_that_it_cannot_write_to() {
    let image = pod_image("", 1);
    image.mode("/mnt/flux/config", 0o555);
    gives_up(
        &image,
        "mc-0",
        &[],
        (1000, 1000),
        Category::WriteFailed,
        &["/mnt/flux/config", "fsGroup"],
    );
}

#[test]
fn panic_leaves_a_termination_message() {
    let image = pod_image("", 1);
    let command = run_words(&[]);
    let mut container = Container::new(&image, "mc-0", &command);
    // In a debug build, this variable makes the agent panic.
    container.set("FLUX_AGENT_PANIC", "1");
    let ended = run(&[container]).remove(0);
    let termination = termination_of(&image);
    assert_eq!(
        (ended.code, termination.code, termination.category),
        (249, 249, Some(Category::Internal))
    );
    assert!(
        termination.message.contains("as the test wished") && ended.stderr.contains(&termination.message),
        "{ended:?}"
    );
}

#[test]
fn program_on_the_command_line_of_a_sidecar_is_refused() {
    let image = pod_image(
        "[sidecars.side]\nwait_socket = false\ncommand = 'echo its own'\n",
        1,
    );
    for words in [
        &[AGENT, "sidecar", "side", "--", "echo", "lost"],
        &[AGENT, "run", "--container=side", "--", "echo", "lost"][..],
    ] {
        let ended = run(&[Container::new(&image, "mc-0", words)]).remove(0);
        let code = i32::from(Category::SpecInvalid.code());
        assert_eq!(ended.code, code, "{}{}", ended.stdout, ended.stderr);
        assert!(
            ended.stderr.contains("this is sidecar side") && !ended.stdout.contains("its own"),
            "{}{}",
            ended.stdout,
            ended.stderr
        );
    }
}

/// A process limit counts all processes of the user on the node.
#[test]
fn broker_start_is_retried_while_process_limit_is_reached() {
    const UID: u32 = 61_234;
    let spec = format!(
        "[runner.user]\nname = 'flux'\nuid = {UID}\n[runner.snippets]\npre = 'ulimit -u 40 2>/dev/null || ulimit -p 40'\n\
         [runner.program]\nmode = 'launcher'\nwords = ['/bin/sh', '-c', 'echo job; exit 7']"
    );
    let image = pod_image(&spec, 1);
    let sleeper = || {
        let mut sleep = std::process::Command::new("sleep");
        std::os::unix::process::CommandExt::uid(&mut sleep, UID);
        sleep.arg("1000").spawn().unwrap()
    };
    let mut others: Vec<_> = (0..50).map(|_| sleeper()).collect();
    // Ends all at once. Otherwise a broker could start and then fail to create processes of its own.
    let killer = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_secs(4)); // long enough for starts that fail
        others.iter_mut().for_each(|other| other.kill().unwrap());
        // A zombie counts too, so reap them.
        others.iter_mut().for_each(|other| drop(other.wait()));
    });
    let ended = run(&[Container::new(&image, "mc-0", &run_words(&[]))]).remove(0);
    killer.join().unwrap();
    ended.expect(7, "job\n", "");
    assert!(ended.stderr.contains("retrying for up to"), "{}", ended.stderr);
    assert_eq!(termination_of(&image).by, Ender::Program);
}
