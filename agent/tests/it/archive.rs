//! The archive is replaced by a whole dump or not at all, and a dump that fails does not fail the job.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use flux_shared::exit::Category;
use flux_shared::termination::Ender;

use crate::image::{AGENT, Container, Image, real_flux, run};
use crate::live::{Network, Running, eventually, gate, pod_image, send, termination_of};

const ARCHIVE: &str = "/state/archive.tgz";

/// An archive as the fake Flux writes it.
pub fn packed(state: &str) -> Vec<u8> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    let mut header = tar::Header::new_ustar();
    header.set_size(state.len() as u64);
    header.set_mode(0o644);
    header.set_cksum();
    archive
        .append_data(&mut header, "starts", state.as_bytes())
        .unwrap();
    archive.into_inner().unwrap().finish().unwrap()
}

/// The content of the archive: a line for each start of Flux that was saved.
fn saved(image: &Image) -> String {
    unpacked(&image.at(ARCHIVE))
}

/// The content of an archive of the fake Flux.
pub fn unpacked(archive: &Path) -> String {
    let mut text = String::new();
    let mut archive = tar::Archive::new(GzDecoder::new(fs::File::open(archive).unwrap()));
    for entry in archive.entries().unwrap() {
        entry.unwrap().read_to_string(&mut text).unwrap();
    }
    text
}

fn image_of(script: &str, more: &str) -> Image {
    let script = serde_json::to_string(script).unwrap();
    let spec = format!(
        "archive = '{ARCHIVE}'\n[runner.program]\nmode = 'submit'\nwords = ['sh', '-c', {script}]\n{more}"
    );
    let image = pod_image(&spec, 1);
    fs::create_dir(image.at("/state")).unwrap();
    image
}

/// A program that prints how many starts of real Flux the state has, with its own.
const COUNT: &str = "n=$(flux kvs get -N primary starts 2>/dev/null || echo 0)
flux kvs put -N primary starts=$((n + 1)) && echo $((n + 1))";

/// An image whose program is [`COUNT`], if Flux is real.
fn counting_image(more: &str) -> Image {
    let image = image_of(if real_flux().is_some() { COUNT } else { "echo job" }, more);
    image.program("/usr/bin/cp".as_ref(), "/usr/bin/cp");
    image
}

/// Runs a lead. Asserts that it saves the state, and that this state has `count` starts.
fn run_and_assert_starts(image: &Image, count: usize, when: &str) {
    let mut container = lead(image, "");
    // Without a view, Flux is the one on the PATH.
    let path = "/mnt/flux/view/bin:/usr/bin:/bin";
    container.environment.insert("PATH".into(), path.into());
    let ended = run(&[container]).remove(0);
    let when = format!("{when}, start {count}: {}", ended.stderr);
    assert_eq!((ended.code, not_saved(image)), (0, None), "{when}");
    if real_flux().is_some() {
        assert_eq!(ended.stdout, format!("{count}\n"), "{when}");
    } else {
        assert_eq!(saved(image), "start\n".repeat(count), "{when}");
    }
    assert_eq!(beside(image), [] as [PathBuf; 0], "{when}");
}

fn with_archive(script: &str) -> (Image, Vec<u8>) {
    with_old_archive(image_of(script, ""))
}

fn with_old_archive(image: Image) -> (Image, Vec<u8>) {
    let old = packed("start\n");
    fs::write(image.at(ARCHIVE), &old).unwrap();
    (image, old)
}

/// An instance that runs until somebody shuts it down.
fn interactive() -> (Image, Vec<u8>) {
    let image = pod_image(
        &format!("archive = '{ARCHIVE}'\n[runner]\ninteractive = true\n"),
        1,
    );
    fs::create_dir(image.at("/state")).unwrap();
    with_old_archive(image)
}

/// Lines of a spec in which the image's own Flux runs as another user.
const OWN_FLUX: &str = "[view]\nenabled = false\n[runner.user]\nname = 'flux'\nuid = 1000\n";

/// Shell lines that mount the archive's volume read-only.
const READ_ONLY: &str =
    "mount --bind \"$root/state\" \"$root/state\"; mount -o remount,bind,ro \"$root/state\"\n";

/// The lead, without the record of earlier starts, as in a new pod. `dump`: `FAKE_FLUX_DUMP`.
fn lead<'a>(image: &'a Image, dump: &str) -> Container<'a> {
    crate::live::forget_starts(image);
    let mut container = Container::new(image, "mc-0", &[AGENT, "run"]);
    container.environment.insert("FAKE_FLUX_DUMP".into(), dump.into());
    container
}

/// Files beside the archive.
fn beside(image: &Image) -> Vec<PathBuf> {
    let paths = fs::read_dir(image.at("/state"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    paths.filter(|path| *path != image.at(ARCHIVE)).collect()
}

/// Why the archive was not saved, from the termination message.
fn not_saved(image: &Image) -> Option<String> {
    termination_of(image).archive_not_saved
}

/// Asserts that the archive is unchanged, and that a later run saves it and leaves no other files.
fn assert_kept(image: &Image, old: &[u8], when: &str) {
    assert!(
        fs::read(image.at(ARCHIVE)).unwrap() == old,
        "{when}: the archive has changed"
    );
    let ended = run(&[lead(image, "")]).remove(0);
    assert!(
        ended.stderr.contains("archive saved to /state/archive.tgz"),
        "{when}, then again: {}",
        ended.stderr
    );
    assert_eq!(not_saved(image), None, "{when}");
    assert_eq!(saved(image), "start\nstart\n", "{when}");
    assert_eq!(beside(image), [] as [PathBuf; 0], "{when}");
}

#[test]
fn whole_dump_replaces_the_archive_and_is_restored() {
    let image = image_of("exit 3", "");
    for count in 1..4 {
        let ended = run(&[lead(&image, "writes=5")]).remove(0);
        assert_eq!(ended.code, 3, "{}", ended.stderr);
        assert_eq!(saved(&image), "start\n".repeat(count));
        assert_eq!(beside(&image), [] as [PathBuf; 0]);
    }
}

/// With a snippet and without a view, the agent plans again after the snippet.
#[test]
fn archive_is_saved_and_restored_after_a_new_plan() {
    for change in ["true", "brokerOptions=\"$brokerOptions -Slog-level=3\""] {
        let image = counting_image(&format!("[runner.snippets]\npre = '{change}'\n{OWN_FLUX}"));
        for count in 1..3 {
            run_and_assert_starts(&image, count, change);
        }
    }
}

/// The archive holds the jobs' environment.
#[test]
fn archive_keeps_mode_and_group_and_obeys_a_snippets_umask() {
    use std::os::unix::fs::{MetadataExt, chown};
    let mode_and_group = |image: &Image| {
        let data = fs::metadata(image.at(ARCHIVE)).unwrap();
        (data.mode() & 0o7777, data.gid())
    };
    for (snippet, mode) in [("", 0o644), ("[runner.snippets]\npre = 'umask 077'\n", 0o600)] {
        let image = counting_image(snippet);
        run_and_assert_starts(&image, 1, snippet);
        assert_eq!(mode_and_group(&image), (mode, 0), "{snippet}");
    }
    // User 1000 is no member of the group 4321, and cannot give it the file.
    for (flux, uid, kept_group) in [("", 0, 4321), (OWN_FLUX, 1000, 1000)] {
        let image = counting_image(flux);
        image.mode("/state", 0o777);
        run_and_assert_starts(&image, 1, flux);
        for (count, mode) in [(2, 0o640), (3, 0o600), (4, 0o664)] {
            image.mode(ARCHIVE, mode);
            chown(image.at(ARCHIVE), Some(uid), Some(4321)).unwrap();
            run_and_assert_starts(&image, count, flux);
            assert_eq!(mode_and_group(&image), (mode, kept_group), "{flux}");
        }
    }
}

/// The volume of the archive is as short-lived as the pod. Snippets copy the archive from elsewhere and to there.
#[test]
fn archive_that_a_snippet_fetches_is_restored() {
    for more in ["", OWN_FLUX] {
        for snippet in ["init", "pre_command", "pre", "broker_pre"] {
            let image = counting_image(&format!(
                "[runner.snippets]\n{snippet} = '[ ! -e /saved.tgz ] || cp /saved.tgz {ARCHIVE}'
                 post = 'cp {ARCHIVE} /saved.tgz'\n{more}"
            ));
            for count in 1..3 {
                run_and_assert_starts(&image, count, &format!("{snippet}{more}"));
                fs::remove_file(image.at(ARCHIVE)).unwrap();
            }
        }
    }
}

#[test]
fn archive_and_success_survive_broker_killed_during_dump() {
    for (write, code) in (1..=6).zip([0, 3].into_iter().cycle()) {
        let (image, old) = with_archive(&format!("exit {code}"));
        let ended = run(&[lead(&image, &format!("writes=6 die={write}"))]).remove(0);
        // A job's success counts. But a failure just before the broker's death may be due to it, so the death is
        // reported.
        assert_eq!(ended.code, if code == 0 { 0 } else { 137 }, "{}", ended.stderr);
        assert!(
            ended.stderr.contains("was not saved and is unchanged"),
            "{}",
            ended.stderr
        );
        assert_eq!(beside(&image), [] as [PathBuf; 0]);
        assert_eq!(not_saved(&image).unwrap(), "the broker was ended by signal 9");
        assert_kept(&image, &old, &format!("killed at write {write}"));
    }
}

#[test]
fn unsaved_archive_is_not_called_unchanged_if_there_was_none() {
    let image = image_of("exit 0", "");
    let ended = run(&[lead(&image, "writes=6 die=1")]).remove(0);
    let line = format!("the archive {ARCHIVE} was not saved: the broker was ended by signal 9");
    assert!(ended.stderr.contains(&line), "{}", ended.stderr);
}

#[test]
fn archive_survives_pod_killed_during_dump() {
    for writes in 0..=5_usize {
        let (image, old) = with_archive("exit 0");
        let network = Network::new();
        let pod = Running::pod(&lead(&image, "writes=6 pause=300"), &network);
        pod.wait_for_output("mc-0 of mc");
        eventually("the dump grows", || {
            let dump = beside(&image).into_iter().next()?;
            // The dump has six writes: five of this size, and a last one that may be smaller.
            let size = packed("start\nstart\n").len().div_ceil(6);
            (fs::metadata(dump).ok()?.len() >= (size * writes) as u64).then_some(())
        });
        send(pod.pid, 9);
        pod.end();
        assert_eq!(beside(&image).len(), 1, "the killed pod cannot remove its dump");
        assert_kept(&image, &old, &format!("after {writes} writes"));
    }
}

#[test]
fn failed_dump_does_not_change_the_exit_code() {
    for code in [0, 7] {
        let (image, old) = with_archive(&format!("exit {code}"));
        let ended = run(&[lead(&image, "writes=4 fail")]).remove(0);
        assert_eq!(ended.code, code, "{}", ended.stderr);
        let termination = termination_of(&image);
        assert_eq!(
            (termination.by, termination.program_code),
            (Ender::Program, u8::try_from(code).ok())
        );
        assert!(termination.archive_not_saved.is_some(), "{termination:?}");
        assert_kept(&image, &old, "a dump that failed");
    }
}

#[test]
fn archive_is_unchanged_when_its_volume_is_full() {
    let image = image_of(
        "exit 0",
        "[runner.snippets]\npost = 'cmp /state/archive.tgz /old.tgz; ls -A /state'",
    );
    image.program("/usr/bin/cmp".as_ref(), "/usr/bin/cmp");
    image.program("/usr/bin/ls".as_ref(), "/usr/bin/ls");
    let state: String = (0..6000)
        .map(|number| format!("{number} {}\n", number * 7919 % 1009)) // compresses badly
        .collect();
    let old = packed(&state);
    fs::write(image.at("/old.tgz"), &old).unwrap();
    let pages = old.len().div_ceil(4096);
    assert!(pages > 5, "{pages}");
    // Each volume has room for the archive and for a part of the dump beside it.
    for room in pages + 1..2 * pages {
        let mut container = lead(&image, "writes=8");
        container.before = format!(
            "mount -t tmpfs -o size={}k tmpfs \"$root/state\"; cp \"$root/old.tgz\" \"$root{ARCHIVE}\"\n",
            room * 4
        );
        let ended = run(&[container]).remove(0);
        ended.expect(0, "archive.tgz\n", &format!("{room} pages"));
        assert!(ended.stderr.contains("was not saved"), "{room}: {}", ended.stderr);
    }
}

fn broker_failed() -> i32 {
    i32::from(Category::BrokerFailed.code())
}

#[test]
fn failed_restore_never_overwrites_the_archive() {
    let whole = packed("start\n");
    for bad in [b"no archive".as_slice(), &whole[..whole.len() / 2], b""] {
        let image = image_of("echo job", "");
        fs::write(image.at(ARCHIVE), bad).unwrap();
        let ended = run(&[lead(&image, "")]).remove(0);
        ended.expect(broker_failed(), "", "");
        assert!(
            not_saved(&image)
                .unwrap()
                .contains("the instance did not come up"),
            "{}",
            ended.stderr
        );
        assert!(
            fs::read(image.at(ARCHIVE)).unwrap() == bad,
            "the archive has changed"
        );
        assert_eq!(beside(&image), [] as [PathBuf; 0]);
    }
}

#[test]
fn dump_that_fails_does_not_fail_an_interactive_instance() {
    let is_up = |pod: &Running| {
        let status = pod.exec(&[AGENT, "status", "--ready"]);
        status.status.success().then_some(())
    };
    // Only the fake Flux's dump can be made to fail.
    let fails = real_flux().is_none().then_some(("fail", ""));
    for (dump, before) in [("", READ_ONLY)].into_iter().chain(fails) {
        let (image, old) = interactive();
        let mut container = lead(&image, dump);
        container.before = before.into();
        let pod = Running::pod(&container, &Network::new());
        eventually("the instance is up", || is_up(&pod));
        // The agent itself must also have noticed that the instance is up.
        std::thread::sleep(Duration::from_millis(500));
        assert!(pod.exec(&[AGENT, "stop"]).status.success());
        let ended = pod.end();
        assert_eq!(ended.code, 0, "{dump}: {}", ended.stderr);
        assert!(not_saved(&image).is_some(), "{dump}: {}", ended.stderr);
        assert!(fs::read(image.at(ARCHIVE)).unwrap() == old, "{dump}");
    }
}

#[test]
fn dump_that_cannot_be_renamed_for_now_is_saved_later() {
    // Without and with a stop. After a stop, the pod has time until its grace period is over.
    for is_stopped in [false, true] {
        let wait = "until [ -e /tmp/go ]; do sleep 0.05; done";
        let (image, _) = with_archive(&format!("trap 'exit 0' TERM HUP; echo up; {wait}"));
        let mut container = lead(&image, "");
        container.command = [AGENT, "run", "--grace-period", "40"].map(str::to_owned).into();
        let pod = Running::pod(&container, &Network::new());
        let pid = pod.pid.to_string();
        let archive = image.at(ARCHIVE).display().to_string();
        let in_pod = |words: &[&str]| {
            let status = Command::new("nsenter")
                .args(["-t", &pid, "--mount"])
                .args(words)
                .status();
            assert!(status.unwrap().success(), "{words:?}");
        };
        pod.wait_for_output("up\n");
        // A mount point cannot be replaced: it is busy.
        in_pod(&["mount", "--bind", &archive, &archive]);
        if is_stopped {
            pod.signal(15);
        } else {
            fs::write(gate(&image, "go"), "").unwrap();
        }
        pod.wait_for_output("retrying for up to");
        std::thread::sleep(Duration::from_secs(1)); // long enough for a retry that fails
        in_pod(&["umount", &archive]);
        let ended = pod.end();
        assert_eq!(ended.code, 0, "{is_stopped}: {}", ended.stderr);
        assert_eq!(not_saved(&image), None, "{is_stopped}: {}", ended.stderr);
        assert_eq!(saved(&image), "start\nstart\n", "{is_stopped}");
        assert_eq!(beside(&image), [] as [PathBuf; 0], "{is_stopped}");
    }
}

#[test]
fn stopped_pod_gives_up_the_rename_before_it_is_killed() {
    let (image, old) = with_archive("trap 'exit 0' TERM HUP; echo up; while :; do sleep 0.05; done");
    let mut container = lead(&image, "");
    container.command = [AGENT, "run", "--grace-period", "6"].map(str::to_owned).into();
    container.before = "mount --bind \"$root/state/archive.tgz\" \"$root/state/archive.tgz\"\n".into();
    let pod = Running::pod(&container, &Network::new());
    pod.wait_for_output("up\n");
    let begin = Instant::now();
    pod.signal(15);
    let ended = pod.end();
    assert!(begin.elapsed() < Duration::from_secs(6), "{}", ended.stderr);
    assert!(
        not_saved(&image).unwrap().contains("resource busy"),
        "{}",
        ended.stderr
    );
    assert!(fs::read(image.at(ARCHIVE)).unwrap() == old);
    assert_eq!(beside(&image), [] as [PathBuf; 0]);
}

#[test]
fn dump_left_by_a_killed_run_is_never_published() {
    let (image, _) = with_archive("exit 0");
    // First a complete dump of a run that was killed before it renamed the dump, then a broker that does not
    // start.
    let network = Network::new();
    let pod = Running::pod(&lead(&image, "writes=2 pause=2000"), &network);
    let dump = eventually("the dump's file", || beside(&image).into_iter().next());
    send(pod.pid, 9);
    pod.end();
    fs::write(&dump, packed("stale\n")).unwrap();
    fs::write(image.at(ARCHIVE), "no archive").unwrap();
    assert_eq!(run(&[lead(&image, "")]).remove(0).code, broker_failed());
    assert_eq!(fs::read(image.at(ARCHIVE)).unwrap(), b"no archive");
    assert_eq!(beside(&image), [] as [PathBuf; 0]);
}

#[test]
fn stop_too_short_for_the_dump_keeps_archive_and_reports_it() {
    let (image, old) = with_archive("trap 'exit 4' HUP TERM; echo up; while :; do sleep 0.05; done");
    let network = Network::new();
    let mut container = lead(&image, "writes=10 pause=400");
    container.command = [AGENT, "run", "--grace-period", "2"].map(str::to_owned).into();
    let pod = Running::pod(&container, &network);
    pod.wait_for_output("up\n");
    let begin = Instant::now();
    pod.signal(15);
    let ended = pod.end();
    assert!(
        begin.elapsed() < Duration::from_secs(2),
        "{:?}: {}",
        begin.elapsed(),
        ended.stderr
    );
    assert!(
        ended.stderr.contains("was not saved and is unchanged"),
        "{}",
        ended.stderr
    );
    assert!(fs::read(image.at(ARCHIVE)).unwrap() == old);
    assert_eq!(beside(&image), [] as [PathBuf; 0]);
}

#[test]
fn stop_with_enough_time_saves_the_archive() {
    for code in [4, 0] {
        let (image, _) = with_archive(&format!(
            "trap 'exit {code}' HUP TERM; echo up; while :; do sleep 0.05; done"
        ));
        let network = Network::new();
        let mut container = lead(&image, "writes=3 pause=100");
        container.command = [AGENT, "run", "--grace-period", "20"].map(str::to_owned).into();
        let pod = Running::pod(&container, &network);
        pod.wait_for_output("up\n");
        pod.signal(15);
        let ended = pod.end();
        assert!(ended.stderr.contains("archive saved"), "{code}: {}", ended.stderr);
        assert_eq!((ended.code, not_saved(&image)), (code, None), "{}", ended.stderr);
        assert_eq!(saved(&image), "start\nstart\n");
    }
}

/// As strace at SIGTERM: passes the signal on, and ends at once by the same signal.
const WRAPPER: &str = "trap 'kill $!; trap - TERM; kill $$' TERM; \"$0\" \"$@\" & wait $!";

#[test]
fn stop_through_a_wrapper_saves_the_archive() {
    let quoted = |text: &str| serde_json::to_string(text).unwrap();
    let program = quoted("trap 'sleep 3; exit 4' HUP TERM; echo up; while :; do sleep 0.05; done");
    let program = format!("program = {{mode = 'submit', words = ['sh', '-c', {program}]}}\n");
    let interactive = "interactive = true\n";
    let wrap = match real_flux() {
        Some(_) => "[flux]\nwrap = 'strace,-e,network,-tt'\n".to_owned(),
        None => format!("[flux]\nwrap = {}\n", quoted(&format!("sh,-c,{WRAPPER}"))),
    };
    let prefix = format!("prefix = ['sh', '-c', {}]\n", quoted(WRAPPER));
    for (spec, code) in [
        (format!("[runner]\n{program}{wrap}"), 4),
        (format!("[runner]\n{interactive}{wrap}"), 143),
        (format!("[runner]\n{interactive}{prefix}"), 143),
    ] {
        let image = pod_image(&format!("archive = '{ARCHIVE}'\n{spec}"), 1);
        fs::create_dir(image.at("/state")).unwrap();
        if real_flux().is_some() {
            image.with_programs(&["strace"]);
        }
        let mut container = lead(&image, "writes=3 pause=100");
        container.command = [AGENT, "run", "--grace-period", "30"].map(str::to_owned).into();
        let pod = Running::pod(&container, &Network::new());
        if code == 4 {
            pod.wait_for_output("up\n");
        } else {
            let status = || pod.exec(&[AGENT, "status", "--ready"]).status;
            eventually("the instance is up", || status().success().then_some(()));
        }
        pod.signal(15);
        let ended = pod.end();
        assert_eq!(
            (ended.code, not_saved(&image)),
            (code, None),
            "{spec}: {}",
            ended.stderr
        );
        assert!(ended.stderr.contains("archive saved"), "{spec}: {}", ended.stderr);
        assert!(image.at(ARCHIVE).exists(), "{spec}");
    }
}

#[test]
fn unwritable_archive_volume_is_reported_before_the_job() {
    let image = image_of("echo job", "");
    image.mode("/state", 0o755);
    image.certificate((1000, 1000));
    for folder in ["/mnt/flux", "/mnt/flux/config"] {
        std::os::unix::fs::chown(image.at(folder), Some(1000), Some(1000)).unwrap();
    }
    let mut other = lead(&image, "");
    other.ids = (1000, 1000);
    let ended = run(&[other]).remove(0);
    assert_eq!((ended.code, ended.stdout.as_str()), (245, ""), "{}", ended.stderr);
    assert!(ended.stderr.contains("fsGroup"), "{}", ended.stderr);

    let (image, old) = with_archive("exit 0");
    let mut read_only = lead(&image, "");
    read_only.before = READ_ONLY.into();
    let ended = run(&[read_only]).remove(0);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(
        ended
            .stderr
            .contains("the archive will not be saved: its volume is read-only"),
        "{}",
        ended.stderr
    );
    assert_eq!(not_saved(&image).unwrap(), "its volume is read-only");
    assert_kept(&image, &old, "a read-only volume");
}

#[test]
fn archive_volume_that_becomes_read_only_is_reported() {
    let (image, old) = with_archive(": >/tmp/up; while ! [ -e /tmp/read-only ]; do sleep 0.05; done");
    let mut container = lead(&image, "");
    container.before = "mount --bind \"$root/state\" \"$root/state\"
        (while ! [ -e \"$root/tmp/up\" ]; do sleep 0.05; done
        mount -o remount,bind,ro \"$root/state\"; touch \"$root/tmp/read-only\") &\n"
        .into();
    let ended = run(&[container]).remove(0);
    assert!(
        ended.stderr.contains("was not saved and is unchanged"),
        "{}",
        ended.stderr
    );
    let why = not_saved(&image).unwrap();
    // The agent assumes this reason from its start, until it knows the real one.
    assert!(!why.contains("the pod ended before"), "{why}");
    assert!(fs::read(image.at(ARCHIVE)).unwrap() == old);
}
