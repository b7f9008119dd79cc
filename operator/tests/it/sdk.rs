//! The Go operator's Python SDK from PyPI, against our CRD on the real API server.

use std::path::{Path, PathBuf};
use std::process::Command;

use kube::ResourceExt;
use serde_json::Value;

use test_support::api_server::test;

/// An environment with the SDK, made once and kept under the hash of what is in it.
fn python() -> PathBuf {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk");
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.unwrap_or_else(|| PathBuf::from(std::env::var_os("HOME").expect("HOME")).join(".cache"));
    let wanted = std::fs::read_to_string(tests.join("requirements.txt")).unwrap();
    let name: String = wanted.split_whitespace().collect::<Vec<_>>().join("-").replace("==", "-");
    let place = cache.join("flux-operator").join(name);
    let marker = place.join("complete");
    if !marker.exists() {
        run(
            Command::new("python3").args(["-m", "venv", "--clear"]).arg(&place),
            "python3 with venv (Debian: python3-venv)",
        );
        let pip = [Path::new("-m"), Path::new("pip"), Path::new("install"), Path::new("--quiet"), Path::new("-r")];
        let pip = pip.into_iter().map(Path::to_owned).chain([tests.join("requirements.txt")]);
        run(Command::new(place.join("bin/python")).args(pip), "pip and PyPI");
        std::fs::write(&marker, wanted).unwrap();
    }
    place.join("bin/python")
}

fn run(command: &mut Command, needs: &str) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{needs} is needed: {error}"));
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?} failed; {needs} is needed: {said}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn python_sdk_of_the_go_operator_creates_scales_follows_and_deletes() {
    test("sdk", async |fixture| {
        let operator = fixture.operator().await;
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk/use.py");
        let mut command = Command::new(python());
        command.arg(script).arg(&fixture.namespace).env("KUBECONFIG", test_support::api_server::kubeconfig());
        let script = tokio::task::spawn_blocking(move || run(&mut command, "the SDK"));
        let pods = fixture.pods("lammps", 4).await;
        for pod in pods.values() {
            fixture.run_pod(pod).await;
        }
        let out = script.await.unwrap();
        let steps: Vec<Value> = out.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let step = |name: &str| &steps.iter().find(|step| step["step"] == name).unwrap()["object"];
        let created = &step("created")["spec"];
        assert_eq!((&created["size"], &created["maxSize"], &created["tasks"]), (&2.into(), &4.into(), &2.into()));
        assert_eq!(created["flux"]["optionFlags"], "-ompi=openmpi@5");
        assert_eq!(created["containers"][0]["resources"]["requests"]["cpu"], 1);
        assert_eq!(step("scaled")["spec"]["size"], 4);
        assert!(step("refused")["message"].as_str().unwrap().contains("must not be smaller than size"));
        assert_eq!(step("listed")["items"].as_array().unwrap().len(), 1);
        let followed = step("followed");
        let names: Vec<String> = pods.values().map(ResourceExt::name_any).collect();
        assert_eq!(followed["pods"].as_array().unwrap().len(), 4, "{followed}");
        assert!(names.iter().all(|name| followed["pods"].as_array().unwrap().contains(&name.as_str().into())));
        assert_eq!(followed["broker"], names[0], "{followed}");
        assert!(step("deleted")["delete"].is_number(), "it waits for the end of the pods");
        let gone = fixture.api::<flux_shared::crd::v1alpha2::MiniCluster>().get_opt("lammps").await.unwrap();
        assert!(gone.is_none_or(|cluster| cluster.metadata.deletion_timestamp.is_some()));
        operator.stop().await;
    });
}
