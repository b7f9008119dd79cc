//! Who may log: only what acts. (Who may look and act is clippy's ban, `operator/clippy.toml`.)

use std::path::Path;

/// Files and folders of `src` that decide: from their arguments only, without a word.
const SILENT: &[&str] = &[
    "health/metrics.rs",
    "install",
    "labels.rs",
    "observe.rs",
    "observe/job.rs",
    "observe/node.rs",
    "observe/pod.rs",
    "observe/service.rs",
    "observe/storage.rs",
    "reconcile/decide",
    "reconcile/fetch.rs",
    "reconcile/keys.rs",
    "reconcile/render",
    "reconcile/status",
    "yaml.rs",
];

#[test]
fn what_decides_does_not_log() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for name in SILENT {
        assert!(source.join(name).exists(), "there is no {name}");
    }
    let mut pending = vec![source.clone()];
    let mut seen = 0;
    while let Some(path) = pending.pop() {
        if path.is_dir() {
            pending.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let relative = path.strip_prefix(&source).unwrap().to_string_lossy().into_owned();
        let is_silent = |name: &&str| {
            relative == **name || relative == format!("{name}.rs") || relative.starts_with(&format!("{name}/"))
        };
        if SILENT.iter().any(is_silent) {
            seen += 1;
            let text = std::fs::read_to_string(&path).unwrap();
            assert!(!text.contains("tracing::") && !text.contains("log::"), "{relative} logs");
        }
    }
    assert!(seen > 20, "only {seen} files found");
}

/// A panic is caught (src/health/panics.rs), which needs tables for unwinding in what is shipped.
#[test]
fn what_is_shipped_unwinds() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let profiles: toml::Table = read("Cargo.toml").parse().unwrap();
    let release = profiles["profile"].get("release").and_then(|release| release.get("panic"));
    assert!(release.is_none_or(|panic| panic.as_str() == Some("unwind")));
    assert!(read(".ci/dist").contains("build --release -p flux-operator "));
}
