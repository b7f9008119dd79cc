//! Full disks.

use super::*;

/// Runs `script` with a tmpfs with these mount options at $1. Returns its standard error and standard output.
fn on_small_disk(options: &str, disk: &Path, script: &str) -> (String, String) {
    let disk = disk.display().to_string();
    let script = format!("mount -t tmpfs -o {options} tmpfs \"$1\"\n{script}");
    let output = image::isolated(&["sh", "-c", &script, "-", &disk]);
    assert!(output.status.success(), "{output:?}");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (text(output.stderr), text(output.stdout))
}

/// Asserts that the agent failed with exactly one line.
fn assert_one_line(stderr: &str, category: &str, cause: &str) {
    let own: Vec<&str> = stderr.lines().collect();
    let is_plain =
        own.len() == 1 && own[0].contains(&format!("flux-agent: {category}: ")) && own[0].contains(cause);
    assert!(is_plain, "{stderr}");
}

#[test]
fn full_disk_fails_in_one_line_and_leaves_no_partial_file() {
    let size = fs::metadata(agent()).unwrap().len() / 1024;
    let disk = folder();
    for (room, fits) in [
        (0, false),
        (size / 2, false),
        (size.saturating_sub(8), false),
        (size + 64, true),
    ] {
        // size=0 would mean no limit.
        let options = format!("size={}k", room.max(4));
        // `.flux-stage.install` has only the times of the installation.
        let script = format!(
            "{} install --to \"$1/flux\"; echo \"code $?\"; find \"$1\" -type f ! -name .flux-stage.install",
            agent().display()
        );
        let (stderr, stdout) = on_small_disk(&options, disk.path(), &script);
        let installed = format!("{}/flux/flux-agent", disk.path().display());
        if fits {
            assert_eq!(stdout, format!("code 0\n{installed}\n"), "{options}: {stderr}");
        } else {
            assert_one_line(&stderr, "write-failed", "no space left on device");
            assert_eq!(stdout, "code 245\n", "{options}: {stderr}");
        }
    }
}

#[test]
fn view_too_large_for_disk_fails_in_one_line_and_frees_space() {
    let image = view_image("version ");
    let (whole, disk) = (folder(), folder());
    run_and_die(&view(image.path(), whole.path()), None);
    let mut want: Vec<String> = tree(whole.path())
        .into_iter()
        .filter(|(_, node)| node.what != What::Folder)
        .map(|(path, _)| path)
        .collect();
    want.sort();
    let view = view(image.path(), disk.path()).join(" ");
    // With each limit of bytes or inodes, another write fails, or none.
    let sizes = (1..40).step_by(4).map(|pages| format!("size={}k", pages * 8));
    let counts = (2..40).step_by(3).map(|count| format!("nr_inodes={count}"));
    let (mut failed, mut succeeded) = (0, 0);
    for options in sizes.chain(counts) {
        let script = format!(
            "{view}; echo \"code $?\"; cd \"$1\"; find . ! -type d ! -name '.flux-stage.*' | LC_ALL=C sort"
        );
        let (stderr, stdout) = on_small_disk(&options, disk.path(), &script);
        let mut lines = stdout.lines();
        let (code, files) = (
            lines.next().unwrap(),
            lines.map(|path| path[1..].to_owned()).collect::<Vec<_>>(),
        );
        match code {
            "code 0" => {
                succeeded += 1;
                assert_eq!(files, want, "{options}");
            }
            "code 245" => {
                failed += 1;
                assert_one_line(&stderr, "write-failed", "no space left on device");
                assert!(
                    !files
                        .iter()
                        .any(|path| path.contains(".new") || path.contains("done")),
                    "{options}: {files:?}"
                );
            }
            other => panic!("{options}: {other}: {stderr}"),
        }
    }
    assert!(failed > 5 && succeeded > 2, "{failed} {succeeded}");
}

/// Shell lines that give the container a passwd file on a volume of its own, `$small`, with room for 10 bytes more.
const NEARLY_FULL: &str = r#"
small=$root/small; mkdir "$small"; mount -t tmpfs -o size=4k tmpfs "$small"
cp "$root/etc/passwd" "$small/passwd"
printf '#%*s\n' $((4096 - 10 - 2 - $(stat -c %s "$small/passwd"))) >>"$small/passwd"
mount --bind "$small/passwd" "$root/etc/passwd"
"#;

#[test]
fn user_is_added_once_the_full_volume_has_room() {
    let spec = "[runner.user]\nname = 'flux'\nuid = 1002\n[runner.program]\nmode = 'launcher'\nwords = ['id', '-un']\n";
    for (more, code, stdout, remedy) in [
        (
            "(sleep 1; mount -o remount,size=1m \"$small\") &\n",
            0,
            "flux\n",
            "retrying for up to",
        ),
        ("", 244, "", "Give the volume or the node more room"),
        (
            "mount -o remount,bind,ro \"$root/etc/passwd\"\n",
            244,
            "",
            "readOnlyRootFilesystem: false",
        ),
    ] {
        let image = crate::live::pod_image(spec, 1);
        let patience = if code == 0 { "30" } else { "1" };
        let mut container = Container::new(&image, "mc-0", &[AGENT, "run", "--patience", patience]);
        container.before = format!("{NEARLY_FULL}{more}");
        let ended = image::run(&[container]).remove(0);
        ended.expect(code, stdout, "");
        assert!(ended.stderr.contains(remedy), "{}", ended.stderr);
    }
}
