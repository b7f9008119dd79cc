//! Runs the README's quick start as a reader does: its commands in order, and the output that it shows.

use std::process::Command;

use super::consoles::{differences_of, shown_in};
use test_support::node::test;

/// The blocks `console,e2e`.
#[test]
fn the_quick_start_prints_what_the_readme_shows() {
    test("readme", async |fixture| {
        let namespace = fixture.namespace.clone();
        let run = move || {
            let readme = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
            let steps = shown_in(&std::fs::read_to_string(readme).unwrap(), "```console,e2e");
            assert!(steps.len() > 4, "{steps:?}");
            // The cluster may have no registry, so the name of the tests' image replaces the image's name.
            // kubectl takes no option before a plugin's name, so the plugin is called directly. (E2E_PLUGIN:
            // .ci/e2e builds it.)
            let kubectl = format!(
                "kubectl() {{ if [ \"$1 $2\" = 'apply -f' ]; then sed \"s#image: .*#image: $E2E_APP_IMAGE#\" \"$3\" | command kubectl --namespace {namespace} apply -f -; \
                 elif [ \"$1\" = minicluster ]; then shift; \"$E2E_PLUGIN\" --namespace {namespace} \"$@\"; \
                 else command kubectl --namespace {namespace} \"$@\"; fi; }}\n"
            );
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/..");
            let wrong = steps.iter().filter_map(|step| {
                let mut bash = Command::new("bash");
                let output = bash
                    .args(["-c", &format!("{kubectl}{}", step.command)])
                    .current_dir(folder)
                    .output()
                    .unwrap();
                let printed = format!(
                    "{}{}",
                    String::from_utf8_lossy(&output.stdout),
                    String::from_utf8_lossy(&output.stderr)
                );
                differences_of(step, &printed)
            });
            wrong.collect::<Vec<String>>()
        };
        let wrong = tokio::task::spawn_blocking(run).await.unwrap();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    });
}
