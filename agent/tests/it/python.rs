//! Where Flux's Python stores compiled files, with the fake Flux or with real Flux (`make test-flux`).

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::image::{Container, Image, real_flux, run};
use crate::instance::submit;
use crate::live::{pod_image, run_words};

/// A pod whose Flux has no compiled files. Of real Flux, a copy without them is mounted read-only.
fn uncompiled(image: &Image) -> Container<'_> {
    let mut container = Container::new(image, "mc-0", &run_words(&[]));
    match real_flux() {
        None => image.file(
            "/mnt/flux/view/lib/python3.11/site-packages/flux/__init__.py",
            0o644,
            "",
        ),
        Some(flux) => {
            let prefix = flux.ancestors().nth(2).unwrap().display();
            container.before = format!(
                "copy=$(mktemp -d)\nmount -t tmpfs tmpfs \"$copy\"\ncp -a {prefix}/. \"$copy\"\n\
                 find \"$copy\" -name __pycache__ -prune -exec rm -r {{}} +\n\
                 mount --bind \"$copy\" \"$root{prefix}\"\nmount -o remount,ro,bind \"$root{prefix}\"\n"
            );
        }
    }
    container
}

fn files(folder: &Path) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            if entry.path().is_dir() {
                files(&entry.path())
            } else {
                1
            }
        })
        .sum()
}

#[test]
fn python_cache_folder_is_unknown_to_snippets_and_jobs() {
    let user = "[runner.user]\nname = 'flux'\nuid = 1000\n";
    let say = |who: &str| format!("echo \"{who} [${{PYTHONPYCACHEPREFIX-}}]\"");
    let snippets = format!(
        "[runner.snippets]\npre = '''{}'''\npost = '''{}'''\n",
        say("pre"),
        say("post")
    );
    let image = pod_image(&format!("{}{snippets}{user}", submit(&say("job"))), 1);
    let ended = run(&[uncompiled(&image)]).remove(0);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(
        ended.stdout.contains("pre []") && ended.stdout.contains("post []"),
        "{}",
        ended.stdout
    );
    let place = image.at("/mnt/flux/config/python/1000");
    let (own, above) = (
        std::fs::metadata(&place).unwrap(),
        std::fs::metadata(place.parent().unwrap()).unwrap(),
    );
    assert_eq!(
        (own.uid(), own.mode() & 0o7777, above.uid(), above.mode() & 0o7777),
        (1000, 0o700, 0, 0o755)
    );
    // Flux's job shell removes the variable. The fake Flux does not do this.
    if real_flux().is_some() {
        assert!(ended.stdout.contains("job []"), "{}", ended.stdout);
        assert!(
            files(&place) > 50,
            "Flux's commands have compiled {} files",
            files(&place)
        );
    } else {
        let start = image
            .record()
            .into_iter()
            .find(|call| call["argv"][1] == "start")
            .unwrap();
        assert_eq!(
            start["environment"]["PYTHONPYCACHEPREFIX"],
            "/mnt/flux/config/python/1000"
        );
    }
}

/// The usual fake view counts as compiled: it lacks the sources whose compiled files the agent examines.
#[test]
fn compiled_flux_needs_no_python_cache() {
    let image = pod_image(&submit("exit 0"), 1);
    let ended = run(&[Container::new(&image, "mc-0", &run_words(&[]))]).remove(0);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(!image.at("/mnt/flux/config/python").exists());
}
