//! The plugin's documentation, its krew manifest, the link for completions, and its output for a file.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::user_account::{PROGRAM, RIGHTS};
use test_support::pages;

const EXAMPLE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../examples/hello-world/minicluster.yaml"
);

fn printed(arguments: &[&str]) -> String {
    let output = Command::new(PROGRAM).args(arguments).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_reference_has_the_program_s_own_help() {
    pages::is_committed(
        "kubectl-minicluster.md",
        &pages::help("kubectl minicluster", Path::new(PROGRAM)),
    );
}

#[test]
fn render_and_validate_agree_with_core_dry_run_has_the_plan() {
    let text = std::fs::read_to_string(EXAMPLE).unwrap();
    let options = flux_operator_core::render::Options::default();
    assert_eq!(
        printed(&["render", EXAMPLE]),
        flux_operator_core::offline::render(&text, &options).unwrap()
    );
    assert_eq!(
        printed(&["validate", EXAMPLE]),
        flux_operator_core::offline::judge(&text).text().unwrap()
    );
    assert!(
        printed(&["dry-run", EXAMPLE])
            .contains("flux submit --input=/dev/null -N 4 -n 4 --quiet --watch echo hello world")
    );
}

#[test]
fn render_notes_that_it_uses_the_first_of_several() {
    let text = std::fs::read_to_string(EXAMPLE).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("twice.yaml");
    std::fs::write(&file, format!("{text}---\n{text}")).unwrap();
    for format in [&[][..], &["-o", "json"]] {
        let output = Command::new(PROGRAM)
            .arg("render")
            .arg(&file)
            .args(format)
            .output()
            .unwrap();
        assert!(output.status.success());
        let notes = String::from_utf8(output.stderr).unwrap();
        assert!(
            notes.starts_with("note: the file has 2 MiniClusters: only the first one"),
            "{notes}"
        );
        assert_eq!(notes.lines().count(), 1, "{notes}");
    }
}

#[test]
fn wrong_file_is_rejected_with_every_problem() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("wrong.yaml");
    let text = std::fs::read_to_string(EXAMPLE)
        .unwrap()
        .replace("size: 4", "size: 0")
        .replace("tasks: 4", "task: 4");
    std::fs::write(&file, text).unwrap();
    let output = Command::new(PROGRAM).arg("validate").arg(&file).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(
        message.contains("did you mean tasks?") && message.contains("spec.size: "),
        "{message}"
    );
    for format in [&[][..], &["-o", "json"]] {
        let output = Command::new(PROGRAM)
            .arg("dry-run")
            .arg(&file)
            .args(format)
            .output()
            .unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        // `dry-run` ends with the code with which pods end for the same error.
        assert_eq!(
            output.status.code(),
            Some(flux_shared::exit::Category::SpecInvalid.code().into())
        );
        assert!(
            message.contains("did you mean tasks?") && message.contains("spec.size: "),
            "{message}"
        );
        assert!(output.stdout.is_empty());
    }
}

/// Checks krew's own rules (internal/index/validation and cmd/validate-krew-manifest of kubernetes-sigs/krew).
#[test]
fn krew_manifest_of_a_release_follows_krews_rules() {
    let folder = tempfile::tempdir().unwrap();
    for arch in ["amd64", "arm64"] {
        std::fs::write(
            folder
                .path()
                .join(format!("kubectl-minicluster_1.2.3_linux_{arch}.tar.gz")),
            arch,
        )
        .unwrap();
    }
    let mut script = Command::new(pages::repository().join(".ci/krew"));
    script
        .args(["1.2.3", "https://there/v1.2.3"])
        .arg(folder.path())
        .args(["amd64", "arm64"]);
    let output = script.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let manifest: Value = serde_saphyr::from_str(&text).unwrap();
    let fields = |value: &Value| {
        value
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect::<Vec<String>>()
    };
    assert_eq!(fields(&manifest), ["apiVersion", "kind", "metadata", "spec"]);
    assert_eq!(
        manifest["apiVersion"],
        "krew.googlecontainertools.github.com/v1alpha2"
    );
    assert_eq!(
        (&manifest["kind"], &manifest["metadata"]["name"]),
        (&"Plugin".into(), &"minicluster".into())
    );
    let spec = &manifest["spec"];
    let known = [
        "version",
        "shortDescription",
        "description",
        "caveats",
        "homepage",
        "platforms",
    ];
    assert!(
        fields(spec).iter().all(|field| known.contains(&field.as_str())),
        "{spec:#}"
    );
    assert_eq!(spec["version"], "v1.2.3");
    let longest = |field: &str| spec[field].as_str().unwrap().lines().map(str::len).max().unwrap();
    assert!(longest("shortDescription") <= 70 && !spec["shortDescription"].as_str().unwrap().contains('\n'));
    assert!(longest("description") <= 80);
    let platforms = spec["platforms"].as_array().unwrap();
    let selected: Vec<&Value> = platforms.iter().map(|platform| &platform["selector"]).collect();
    let labels_of = |arch: &str| serde_json::json!({ "matchLabels": { "os": "linux", "arch": arch } });
    assert_eq!(
        selected,
        [&labels_of("amd64"), &labels_of("arm64")],
        "each platform selects its architecture"
    );
    for (platform, arch) in platforms.iter().zip(["amd64", "arm64"]) {
        assert_eq!(fields(platform), ["uri", "sha256", "bin", "files", "selector"]);
        let archive = format!("kubectl-minicluster_1.2.3_linux_{arch}.tar.gz");
        assert_eq!(platform["uri"], format!("https://there/v1.2.3/{archive}"));
        let sum = Command::new("sha256sum")
            .arg(folder.path().join(archive))
            .output()
            .unwrap();
        let sum = String::from_utf8(sum.stdout).unwrap();
        assert_eq!(platform["sha256"].as_str(), sum.split_whitespace().next());
        let files = platform["files"].as_array().unwrap();
        assert!(
            files
                .iter()
                .all(|file| fields(file) == ["from", "to"] && file["to"] == "."),
            "{files:?}"
        );
        assert!(
            files.iter().any(|file| file["from"] == platform["bin"]),
            "the program is one of the files"
        );
    }
}

#[test]
fn commands_for_files_print_json_and_yaml() {
    let json = |arguments: &[&str]| -> Value {
        serde_json::from_str(&printed(&[arguments, &["-o", "json"]].concat())).unwrap()
    };
    let valid = json(&["validate", EXAMPLE]);
    assert_eq!(
        (&valid["miniclusters"][0]["name"], &valid["problems"]),
        (&"hello-world".into(), &serde_json::json!([]))
    );
    let rendered = json(&["render", EXAMPLE]);
    let kinds: Vec<&str> = rendered["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|object| object["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["ConfigMap", "Secret", "Service", "Job"]);
    assert_eq!(
        printed(&["render", EXAMPLE, "-o", "yaml"]),
        printed(&["render", EXAMPLE])
    );
    assert_eq!(json(&["dry-run", EXAMPLE])["source"]["name"], "hello-world");
    assert!(printed(&["dry-run", EXAMPLE, "-o", "yaml"]).contains("\nsource:\n"));
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("wrong.yaml");
    std::fs::write(
        &file,
        std::fs::read_to_string(EXAMPLE)
            .unwrap()
            .replace("size: 4", "size: 0"),
    )
    .unwrap();
    let output = Command::new(PROGRAM)
        .args(["validate", "-o", "json"])
        .arg(&file)
        .output()
        .unwrap();
    let found: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (output.status.code(), &found["problems"][0]["field"]),
        (Some(1), &"spec.size".into()),
        "{output:?}"
    );
}

#[test]
fn rights_in_the_kubectl_page_are_those_of_the_tests() {
    let page = pages::blocks(&pages::repository().join("docs/tasks/kubectl.md"));
    let role = page
        .iter()
        .find(|block| block.text.contains("kind: Role"))
        .unwrap();
    let role: Value = serde_saphyr::from_str(&role.text).unwrap();
    let words = |list: &Value| -> Vec<String> {
        list.as_array()
            .unwrap()
            .iter()
            .map(|word| word.as_str().unwrap().to_owned())
            .collect()
    };
    let rules = role["rules"].as_array().unwrap().iter().map(|rule| {
        let group = words(&rule["apiGroups"]).join("");
        let resource = words(&rule["resources"]).join(",");
        let resource = if group.is_empty() {
            resource
        } else {
            format!("{resource}.{group}")
        };
        (resource, words(&rule["verbs"]).join(","))
    });
    let tested = RIGHTS
        .iter()
        .map(|(resource, verbs)| ((*resource).to_owned(), (*verbs).to_owned()));
    assert_eq!(rules.collect::<Vec<_>>(), tested.collect::<Vec<_>>());
}

/// krew installs a link to the program. Its folder is on the PATH; the program's own folder is not.
#[test]
fn completion_link_is_beside_the_link_that_kubectl_calls() {
    let folder = tempfile::tempdir().unwrap();
    let link = folder.path().join("kubectl-minicluster");
    std::os::unix::fs::symlink(PROGRAM, &link).unwrap();
    let output = Command::new(&link).arg("completion").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let completer = folder.path().join("kubectl_complete-minicluster");
    assert_eq!(std::fs::read_link(completer).unwrap(), link);
}
