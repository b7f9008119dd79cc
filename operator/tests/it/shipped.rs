//! What is shipped.

use std::path::Path;

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
