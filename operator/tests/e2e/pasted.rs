//! Runs the commands of the pages and of the examples' READMEs as a reader pastes them: the blocks of a page
//! in order, in one shell. The exceptions are in `test_support::pasted`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;

use serde_json::Value;

use super::examples::adapt;
use test_support::node::{Fixture, app_image, has_flux_itself, test};
use test_support::pages::{self, Block, repository};
use test_support::pasted::{blocks_by_page, why_left_out};

/// How many pages run at once. They mostly wait.
const AT_ONCE: usize = 4;
/// The time limit of one page, in seconds. Some pages wait until something is cleaned up.
const DEADLINE: &str = "300";

/// A command of a page that may fail.
struct AllowedFailure {
    page: &'static str,
    command_start: &'static str,
}

const MAY_FAIL: [AllowedFailure; 4] = [
    // grep finds nothing: a healthy operator does not log this.
    AllowedFailure {
        page: "docs/tasks/alerts.md",
        command_start: "grep",
    },
    // The command shows that the MiniCluster is gone.
    AllowedFailure {
        page: "examples/cleanup-and-ttl/README.md",
        command_start: "kubectl get minicluster cleanup-and-ttl",
    },
    // The command shows a rejected change.
    AllowedFailure {
        page: "examples/elasticity/README.md",
        command_start: "kubectl scale minicluster/elasticity --replicas=5",
    },
    // `logs` exits with the job's exit code.
    AllowedFailure {
        page: "examples/exit-code/README.md",
        command_start: "kubectl minicluster logs",
    },
];

#[test]
fn blocks_of_commands_run_as_they_are_pasted() {
    if !has_flux_itself("commands of the pages and READMEs, as they are pasted") {
        return;
    }
    let mut waiting: Vec<(usize, Vec<Block>)> = Vec::new();
    for (number, blocks) in blocks_by_page().into_iter().enumerate() {
        let is_run = |block: &Block| why_left_out(block).is_none();
        let blocks: Vec<Block> = blocks.into_iter().filter(is_run).collect();
        if !blocks.is_empty() {
            waiting.push((number, blocks));
        }
    }
    assert!(waiting.len() > 25, "only {} pages", waiting.len());
    let (waiting, wrong) = (Mutex::new(waiting), Mutex::new(Vec::new()));
    let run_all = || {
        // The braces release the lock before the page runs.
        while let Some((number, blocks)) = { waiting.lock().unwrap().pop() } {
            test(&format!("pasted-{number}"), async |fixture| {
                let failures = tokio::task::spawn_blocking(move || failures_of(&fixture, &blocks))
                    .await
                    .unwrap();
                wrong.lock().unwrap().extend(failures);
            });
        }
    };
    std::thread::scope(|scope| (0..AT_ONCE).for_each(|_| drop(scope.spawn(run_all))));
    let wrong = wrong.into_inner().unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// Runs the blocks of one page. Returns what is wrong with them.
fn failures_of(fixture: &Fixture, blocks: &[Block]) -> Option<String> {
    let folder = tempfile::tempdir().unwrap();
    let place = page_folder(fixture, blocks, folder.path());
    run_in(fixture, blocks, folder.path(), &place).err()
}

/// Runs a block that `LEFT_OUT` leaves to another test, which has prepared the cluster and `folder`. Returns the
/// standard output.
pub fn run_left_out(fixture: &Fixture, page: &str, first_command: &str, folder: &Path) -> String {
    let blocks: Vec<Block> = pages::blocks(&repository().join(page))
        .into_iter()
        .filter(|block| {
            let commands = block.commands();
            let is_first = |(command, _): &(String, Vec<String>)| command.starts_with(first_command);
            block.word.as_deref() == Some("needs-cluster") && commands.first().is_some_and(is_first)
        })
        .collect();
    assert_eq!(blocks.len(), 1, "{page}: {first_command}");
    run_in(fixture, &blocks, folder, folder).unwrap_or_else(|wrong| panic!("{wrong}"))
}

/// Runs blocks in the folder `place`. Returns their standard output, or what is wrong with them. The kubeconfig and the
/// list of failed commands are written to `folder`.
fn run_in(fixture: &Fixture, blocks: &[Block], folder: &Path, place: &Path) -> Result<String, String> {
    let page = &blocks[0].page;
    let failed = folder.join("failed");
    let mut bash = Command::new("timeout");
    bash.args([
        DEADLINE,
        "bash",
        "-o",
        "pipefail",
        "-c",
        &script(blocks, &app_image(), &failed),
    ])
    .current_dir(place)
    .stdin(Stdio::null())
    .env("PATH", path_with_programs())
    .env("KUBECONFIG", kubeconfig_in(fixture, folder));
    let output = bash.output().unwrap();
    let failed = std::fs::read_to_string(failed).unwrap_or_default();
    let mut wrong = unexpected(page, &failed);
    if output.status.code() == Some(124) {
        wrong.push("it does not end");
    }
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    if wrong.is_empty() {
        return Ok(printed);
    }
    Err(format!(
        "{}: {}\n{printed}{}",
        page.display(),
        wrong.join("; "),
        String::from_utf8_lossy(&output.stderr)
    ))
}

/// Creates the folder that the page's commands run in, below `folder`.
fn page_folder(fixture: &Fixture, blocks: &[Block], folder: &Path) -> PathBuf {
    let page = &blocks[0].page;
    copy_examples(fixture, folder);
    if page.starts_with("examples") {
        return folder.join(page.parent().unwrap());
    }
    give_manifests(fixture, page, blocks, folder);
    folder.to_owned()
}

/// The blocks as one script, which writes each command that fails to the file `failed`, with a NUL after it:
/// a command may have several lines. `image` replaces the image of the pages. At its end, the script kills what the
/// page has left in the background.
fn script(blocks: &[Block], image: &str, failed: &Path) -> String {
    let mut script = format!(
        "trap 'printf \"%s\\0\" \"$BASH_COMMAND\" >> {}' ERR\ntrap 'trap - ERR; kill $(jobs -p) 2>/dev/null' EXIT\n",
        failed.display()
    );
    for (command, _) in blocks.iter().flat_map(Block::commands) {
        script += &format!("{}\n", command.replace("rockylinux:9", image));
    }
    script
}

/// The failed commands that must not fail. `failed` is what the script wrote.
fn unexpected<'a>(page: &Path, failed: &'a str) -> Vec<&'a str> {
    let may_fail = |command: &str| {
        MAY_FAIL
            .iter()
            .any(|allowed| Path::new(allowed.page) == page && command.starts_with(allowed.command_start))
    };
    failed
        .split_terminator('\0')
        .filter(|command| !may_fail(command))
        .collect()
}

/// A PATH with the plugin and the agent before all other programs.
fn path_with_programs() -> String {
    let plugin = std::env::var("E2E_PLUGIN").expect("E2E_PLUGIN must name the plugin's program");
    let plugin = Path::new(&plugin).parent().unwrap().display();
    let architecture = if cfg!(target_arch = "x86_64") {
        "amd64"
    } else {
        "arm64"
    };
    // `.ci/e2e` puts the programs of a release there.
    let agent = repository().join("dist").join(architecture);
    let others = std::env::var("PATH").unwrap();
    format!("{plugin}:{}:{others}", agent.display())
}

/// With this kubeconfig, `kubectl` without an option uses the fixture's namespace.
fn kubeconfig_in(fixture: &Fixture, folder: &Path) -> PathBuf {
    let kubeconfig = folder.join("kubeconfig");
    std::fs::copy(
        std::env::var_os("KUBECONFIG").expect("KUBECONFIG must name a cluster"),
        &kubeconfig,
    )
    .unwrap();
    let mut kubectl = Command::new("kubectl");
    kubectl
        .args([
            "config",
            "set-context",
            "--current",
            "--namespace",
            &fixture.namespace,
        ])
        .env("KUBECONFIG", &kubeconfig);
    assert!(kubectl.output().unwrap().status.success());
    kubeconfig
}

/// Copies the examples, with images that exist here.
fn copy_examples(fixture: &Fixture, to: &Path) {
    copy(fixture, &repository().join("examples"), &to.join("examples"));
}

fn copy(fixture: &Fixture, from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for path in std::fs::read_dir(from)
        .unwrap()
        .map(|entry| entry.unwrap().path())
    {
        let copied = to.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(fixture, &path, &copied);
        } else if path.extension().is_some_and(|ending| ending == "yaml") {
            let is_older = path.components().any(|part| part.as_os_str() == "v1alpha1");
            let text = std::fs::read_to_string(&path).unwrap();
            std::fs::write(copied, yaml_of(&adapt(fixture, &text, is_older))).unwrap();
        } else {
            std::fs::copy(path, copied).unwrap();
        }
    }
}

fn yaml_of(documents: &[Value]) -> String {
    documents
        .iter()
        .map(|document| format!("---\n{}\n", serde_saphyr::to_string(document).unwrap()))
        .collect()
}

/// Provides the MiniClusters of a page that its commands name: as a file if a command reads it, otherwise
/// applied.
fn give_manifests(fixture: &Fixture, page: &Path, blocks: &[Block], folder: &Path) {
    let commands: String = blocks.iter().map(|block| block.text.as_str()).collect();
    for documents in manifests(fixture, page) {
        let Some(name) = documents[0].pointer("/metadata/name").and_then(Value::as_str) else {
            continue;
        };
        let file = format!("{name}.yaml");
        let is_file = has_word(&commands, &file);
        if documents[0]["kind"] != "MiniCluster" || !(is_file || has_word(&commands, name)) {
            continue;
        }
        if is_file {
            std::fs::write(folder.join(&file), yaml_of(&documents)).unwrap();
        } else {
            fixture.kubectl(&["apply", "-f", "-"], &yaml_of(&documents));
        }
    }
}

/// The documents of each manifest of a page, with images that exist here.
pub fn manifests(fixture: &Fixture, page: &Path) -> Vec<Vec<Value>> {
    let blocks = pages::blocks(&repository().join(page));
    // `yaml,part` is no whole manifest, and `yaml,refused` must be rejected.
    let is_whole = |block: &&Block| block.language == "yaml" && block.word.is_none();
    // `false`: not of v1alpha1.
    let documents = |block: &Block| adapt(fixture, &block.text, false);
    blocks.iter().filter(is_whole).map(documents).collect()
}

/// The first manifest of a page, changed as the page says for its check: with the name `NAME-check`, and without
/// `command` and `tasks`.
pub fn manifest_of_check(fixture: &Fixture, page: &str) -> Value {
    let mut manifest = manifests(fixture, page.as_ref())[0][0].clone();
    let name = manifest["metadata"]["name"].as_str().unwrap();
    manifest["metadata"]["name"] = format!("{name}-check").into();
    let spec = manifest["spec"].as_object_mut().unwrap();
    spec.remove("tasks");
    spec["containers"][0].as_object_mut().unwrap().remove("command");
    manifest
}

/// Whether the name of an object or a file is in `text`, and not as a part of a longer name.
fn has_word(text: &str, name: &str) -> bool {
    let is_of_name = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    text.split(|letter| !is_of_name(letter)).any(|word| word == name)
}

#[test]
fn check_of_fast_networks_runs_without_their_devices() {
    test("fast-networks", async |fixture| {
        let page = "docs/tasks/fast-networks.md";
        let mut manifest = manifest_of_check(&fixture, page);
        let container = manifest["spec"]["containers"][0].as_object_mut().unwrap();
        container.remove("resources");
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("efa-check.yaml"), manifest.to_string()).unwrap();
        run_left_out(&fixture, page, "kubectl apply -f efa-check.yaml", folder.path());
    });
}

#[test]
fn failed_multiline_command_counts_once_and_names_match_whole() {
    let folder = tempfile::tempdir().unwrap();
    let failed = folder.path().join("failed");
    let blocks = [Block {
        page: "README.md".into(),
        line: 1,
        language: "bash".into(),
        word: None,
        text: "false \\\n  --more 'of\nit'\ntrue\nfalse again\n".into(),
    }];
    let status = Command::new("bash")
        .args(["-o", "pipefail", "-c", &script(&blocks, "app:1", &failed)])
        .status()
        .unwrap();
    assert!(!status.success());
    let failed = std::fs::read_to_string(failed).unwrap();
    assert_eq!(failed.split_terminator('\0').count(), 2, "{failed:?}");
    let page = Path::new("docs/tasks/alerts.md");
    assert_eq!(unexpected(page, "grep a\nb\0false\0"), ["false"]);
    let commands = "kubectl get minicluster/work-2 -o yaml\nkubectl apply -f first.yaml\n";
    assert!(has_word(commands, "work-2") && has_word(commands, "first.yaml"));
    assert!(!has_word(commands, "work") && !has_word(commands, "first"));
}
