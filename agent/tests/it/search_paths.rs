//! The user's variables: search paths that Flux must not use, and values that differ between pods. With the
//! fake Flux or with real Flux (`make test-flux`).

use crate::image::{Container, Image, real_flux, run};
use crate::instance::{images, launch, submit};
use crate::live::run_words;

/// The user's variables, with their values.
const OWN: [(&str, &str); 3] = [
    ("PYTHONPATH", "/user"),
    ("LD_LIBRARY_PATH", "/user"),
    ("LD_PRELOAD", "/user/lib.so"),
];
const SAY: &str = r#"
echo "index=$JOB_COMPLETION_INDEX python=$PYTHONPATH preloaded=$LD_PRELOAD libraries=$LD_LIBRARY_PATH"
"#;

/// Pods whose search paths have a Python module and a library with names that Flux uses.
fn pods<'a>(images: &'a [Image], command: &[&str]) -> Vec<Container<'a>> {
    let pod = |(index, image): (usize, &'a Image)| {
        image.file(
            "/user/yaml/__init__.py",
            0o644,
            "raise ImportError('the wrong yaml')\n",
        );
        image.file("/user/libjansson.so.4", 0o755, "no library");
        let mut container = Container::new(image, &format!("mc-{index}"), command);
        // The dynamic loader warns about this file, and continues.
        image.file("/user/lib.so", 0o755, "no library");
        let own = OWN.map(|(name, value)| (name.to_owned(), value.to_owned()));
        container.environment.extend(own);
        container.set("JOB_COMPLETION_INDEX", &index.to_string());
        container
    };
    images.iter().enumerate().map(pod).collect()
}

/// The search paths with which the fake `flux` ran this subcommand.
fn paths_of(image: &Image, subcommand: &str) -> Vec<String> {
    let call = image
        .record()
        .into_iter()
        .find(|call| call["argv"][1] == subcommand)
        .unwrap();
    let value = |name: &str| call["environment"][name].as_str().unwrap_or_default().to_owned();
    OWN.iter().map(|(name, _)| value(name)).collect()
}

#[test]
fn users_paths_are_hidden_from_flux_and_tasks_see_them() {
    let words = run_words(&[]);
    let images = images(&format!("tasks = 2\n{}", submit(SAY)), 2);
    let ended = run(&pods(&images, &words));
    assert_eq!(
        (ended[0].code, ended[1].code),
        (0, 0),
        "{}\n{}",
        ended[0].stderr,
        ended[1].stderr
    );
    // The fake Flux does not read the job shell's `shell.setenv` lines, so only real Flux shows what tasks see.
    if real_flux().is_none() {
        for (image, subcommand) in [
            (&images[0], "start"),
            (&images[0], "submit"),
            (&images[1], "start"),
        ] {
            let paths = paths_of(image, subcommand);
            assert!(
                paths.iter().all(|path| !path.contains("/user")),
                "{subcommand}: {paths:?}"
            );
        }
        return;
    }
    let mut lines: Vec<&str> = ended[0]
        .stdout
        .lines()
        .filter(|line| line.starts_with("index="))
        .collect();
    lines.sort_unstable();
    let starts = ["index=0 python=/user", "index=1 python=/user"];
    assert!(
        lines.len() == 2
            && lines
                .iter()
                .zip(starts)
                .all(|(line, start)| line.starts_with(start)),
        "{lines:?}"
    );
    // Flux puts the folder of its PMI library before the user's folders.
    let is_whole = |line: &&str| line.contains(" preloaded=/user/lib.so ") && line.ends_with("/user");
    assert!(lines.iter().all(is_whole), "{lines:?}");
}

#[test]
fn launcher_has_the_users_paths() {
    let words = run_words(&[]);
    let images = images(&launch(SAY), 1);
    let ended = run(&pods(&images, &words)).remove(0);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let line = ended
        .stdout
        .lines()
        .find(|line| line.starts_with("index="))
        .unwrap();
    assert!(
        line.starts_with("index=0 python=/user") && line.ends_with(" preloaded=/user/lib.so libraries=/user"),
        "{line}"
    );
}

/// The script sets a path by itself. The first `flux` on its PATH is the agent's, which hides the path from Flux.
#[test]
fn users_paths_in_a_script_are_hidden_from_flux_not_from_tasks() {
    let words = run_words(&[]);
    let script = "export PYTHONPATH=/user\necho script=$PYTHONPATH\nflux submit --quiet --watch sh -c 'echo task=$PYTHONPATH'\n\
                  flux jobs -a >/dev/null\n";
    let script = serde_json::to_string(script).unwrap();
    let images = images(
        &format!("[runner.program]\nmode = 'launcher'\nwords = ['sh', '-ec', {script}]\n"),
        1,
    );
    let ended = run(&pods(&images, &words)).remove(0);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stdout.contains("script=/user\n"), "{}", ended.stdout);
    if real_flux().is_some() {
        assert!(ended.stdout.contains("task=/user"), "{}", ended.stdout);
    } else {
        let paths = paths_of(&images[0], "submit");
        assert!(paths.iter().all(|path| !path.contains("/user")), "{paths:?}");
    }
}

/// A reference in the command has the value of the lead's environment, also in the words that Flux gets.
#[test]
fn command_words_have_the_users_paths_not_those_of_flux() {
    let words = run_words(&[]);
    for mode in ["launcher", "submit"] {
        let line = "[{ text = 'python=' }, { env = 'PYTHONPATH' }, \
                    { text = ' libraries=' }, { env = 'LD_LIBRARY_PATH' }]";
        let images = images(
            &format!("[runner.program]\nmode = '{mode}'\nwords = ['echo', {line}]\n"),
            1,
        );
        let ended = run(&pods(&images, &words)).remove(0);
        assert_eq!(ended.code, 0, "{mode}: {}", ended.stderr);
        let is_expected =
            |line: &str| line.starts_with("python=/user:") && line.ends_with(" libraries=/user");
        assert!(ended.stdout.lines().any(is_expected), "{mode}: {}", ended.stdout);
    }
}

/// A job's PYTHONPATH may contain the view's folder: a script that extends its own PYTHONPATH has it there.
#[test]
fn jobs_own_pythonpath_reaches_its_tasks() {
    if real_flux().is_none() {
        return;
    }
    let words = run_words(&[]);
    let script = "flux run --env=PYTHONPATH=/app:$PYTHONPATH sh -c 'echo extended=$PYTHONPATH'\n\
                  flux run --env=PYTHONPATH=/app sh -c 'echo replaced=$PYTHONPATH'\n\
                  flux run sh -c 'echo unchanged=$PYTHONPATH'\n\
                  flux run --env=PYTHONPATH=/x/lib/flux/python3.11 sh -c 'echo old-flux=$PYTHONPATH'\n\
                  printf '#!/bin/sh\\necho $0=$PYTHONPATH' >/tmp/app\n\
                  chmod +x /tmp/app\ncp /tmp/app /tmp/flux\n\
                  flux run /tmp/app broker\nflux run /tmp/flux broker\n";
    let script = serde_json::to_string(script).unwrap();
    let images = images(
        &format!("[runner.program]\nmode = 'launcher'\nwords = ['sh', '-ec', {script}]\n"),
        1,
    );
    let ended = run(&pods(&images, &words)).remove(0);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    for beginning in [
        "extended=/app:/user:",
        "replaced=/app\n",
        "unchanged=/user:",
        "old-flux=/user:",
        "/tmp/app=/user:",
        // A program with this name and the word `broker` counts as a broker (`IS_BROKER` in the planner), which must
        // not see the user's paths.
        "/tmp/flux=\n",
    ] {
        assert!(ended.stdout.contains(beginning), "{beginning}: {}", ended.stdout);
    }
}

/// The configuration of the job shell in each pod.
#[test]
fn each_pod_has_its_own_values_for_tasks() {
    let words = run_words(&[]);
    let images = images(&submit("exit 0"), 2);
    assert_eq!(run(&pods(&images, &words))[0].code, 0);
    for (index, image) in images.iter().enumerate() {
        let defaults =
            std::fs::read_to_string(image.at("/mnt/flux/config/etc/flux/shell/flux-agent.lua")).unwrap();
        assert!(
            defaults.contains(&format!("shell.setenv (\"JOB_COMPLETION_INDEX\", \"{index}\")")),
            "{defaults}"
        );
    }
}
