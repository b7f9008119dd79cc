//! Checks of what is shipped.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;

use flux_operator::health::metrics::{LiveState, Metrics};
use flux_operator::health::queue::QueueSnapshot;
use serde_json::json;
use test_support::call::is_for_admission;
use test_support::installation::Installation;

/// The operator catches panics (src/health/panics.rs), so the shipped build needs unwinding.
#[test]
fn release_build_unwinds_on_panic() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |name: &str| std::fs::read_to_string(root.join(name)).unwrap();
    let profiles: toml::Table = read("Cargo.toml").parse().unwrap();
    let release = profiles["profile"]
        .get("release")
        .and_then(|release| release.get("panic"));
    assert!(release.is_none_or(|panic| panic.as_str() == Some("unwind")));
    // The shipped operator is built with the profile `release`.
    assert!(read(".ci/dist").contains("build --release -p flux-operator "));
}

/// The alert about failing calls sends its reader to the label `resource`, to see which calls.
#[test]
fn metrics_name_every_resource_of_the_operator() {
    let installed = Installation::whole(&json!({
        "gang": { "enabled": true }, "kueue": { "enabled": true }, "networkPolicy": { "miniclusters": true },
    }));
    let roles = ["", "-services", "-claims", "-volumes", "-nodes", "-leader"];
    let all: BTreeSet<_> = roles
        .iter()
        .flat_map(|role| installed.permissions(&format!("flux-operator{role}")))
        .collect();
    let metrics = Metrics::new().unwrap();
    let mut names: Vec<String> = Vec::new();
    // No call uses a permission that only an admission plugin requires.
    for (group, resource, _) in all.iter().filter(|permission| !is_for_admission(permission)) {
        let (kind, part) = resource
            .split_once('/')
            .map_or((resource.as_str(), String::new()), |(kind, part)| {
                (kind, format!("/{part}"))
            });
        let root = if group.is_empty() {
            "/api".to_owned()
        } else {
            format!("/apis/{group}")
        };
        let path = format!("{root}/v1/namespaces/a/{kind}/b{part}");
        metrics.called("GET", &path, false, Some(200), Duration::ZERO);
        names.push(resource.to_owned());
    }
    let text = metrics.text(LiveState {
        is_ready: true,
        queue: QueueSnapshot::default(),
        phases: std::iter::empty(),
    });
    assert!(names.len() > 40);
    for name in names {
        assert!(
            text.contains(&format!("resource=\"{name}\"")),
            "{name} has no series of its own"
        );
    }
    assert!(!text.contains("resource=\"other\""), "{text}");
}
