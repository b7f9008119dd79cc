//! The committed files match what is generated: the objects of some MiniClusters and the CRD.

use std::path::{Path, PathBuf};

use test_support::committed::same;
use test_support::repository::repository;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

fn operator(arguments: &[&str]) -> String {
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_flux-operator"))
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn objects_are_as_committed() {
    let entries = std::fs::read_dir(folder("tests/it/golden"))
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let inputs: Vec<PathBuf> = entries
        .filter(|path| path.to_string_lossy().ends_with(".in.yaml"))
        .collect();
    assert!(inputs.len() >= 3);
    for input in inputs {
        let path = input.to_str().unwrap();
        let made = operator(&["render", "--agent-image=agent:1", "--view-image=view:1", path]);
        same(Path::new(&path.replace(".in.yaml", ".yaml")), &made);
    }
}

#[test]
fn the_definition_is_as_committed() {
    same(&repository().join("chart/crd/crd.yaml"), &operator(&["crd"]));
}

#[test]
fn validate_says_every_problem_and_ends_with_1() {
    let folder = std::env::temp_dir().join(format!("flux-operator-validate-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let check = |text: &str| {
        let file = folder.join("mc.yaml");
        std::fs::write(&file, text).unwrap();
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_flux-operator"))
            .arg("validate")
            .arg(&file)
            .output()
            .unwrap();
        (
            output.status.code(),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    };
    let head = "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {name: mc}\nspec:\n";
    let (code, out, _) = check(&format!("{head}  containers: [{{image: a, command: 'a | b'}}]\n"));
    assert_eq!(code, Some(0));
    assert!(
        out.contains("note: spec.containers[0].command") && out.contains("MiniCluster mc is valid"),
        "{out}"
    );
    let (code, _, err) = check(&format!(
        "{head}  size: 0\n  tasks: -1\n  containers: [{{image: a}}]\n"
    ));
    assert_eq!(code, Some(1));
    assert!(
        err.contains("spec.size: ") && err.contains("spec.tasks: "),
        "{err}"
    );
    let good = format!("{head}  containers: [{{image: a}}]\n");
    let (code, _, err) = check(&format!(
        "{good}---\n{head}  size: 0\n  containers: [{{image: a}}]\n"
    ));
    assert_eq!(code, Some(1), "each MiniCluster of a file counts");
    assert!(err.contains("spec.size: "), "{err}");
    let (code, out, _) = check(&format!("{good}---\n{good}"));
    assert_eq!((code, out.matches(" is valid").count()), (Some(0), 2));
    let (code, _, err) = check("kind: Pod\n");
    assert_eq!((code, err.lines().count()), (Some(1), 1));
    std::fs::remove_dir_all(&folder).unwrap();
}
