//! What is shipped.

use std::path::Path;
use std::time::Duration;

use flux_operator::health::metrics::{LiveState, Metrics};
use flux_operator::health::queue::QueueSnapshot;
use flux_operator::install::{
    GANG_PERMISSIONS, KUEUE_PERMISSIONS, NETWORK_PERMISSIONS, NODE_PERMISSIONS, OWN_PERMISSIONS, PERMISSIONS,
    SERVICES_PERMISSIONS, STORAGE_PERMISSIONS, VOLUME_PERMISSIONS, WHOLE_PERMISSIONS,
};
use test_support::call::granted;

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

/// Who is told that calls fail is sent to the label `resource`, to see which.
#[test]
fn every_resource_that_the_operator_may_ask_for_has_its_name_among_the_metrics() {
    let all = [
        PERMISSIONS,
        WHOLE_PERMISSIONS,
        SERVICES_PERMISSIONS,
        STORAGE_PERMISSIONS,
        VOLUME_PERMISSIONS,
        NODE_PERMISSIONS,
        NETWORK_PERMISSIONS,
        KUEUE_PERMISSIONS,
        GANG_PERMISSIONS,
        OWN_PERMISSIONS,
    ];
    let metrics = Metrics::new().unwrap();
    let mut names: Vec<String> = Vec::new();
    for (group, resource, _) in granted(&all) {
        let (kind, part) =
            resource.split_once('/').map_or((resource, String::new()), |(kind, part)| (kind, format!("/{part}")));
        let root = if group.is_empty() { "/api".to_owned() } else { format!("/apis/{group}") };
        let path = format!("{root}/v1/namespaces/a/{kind}/b{part}");
        metrics.called("GET", &path, false, Some(200), Duration::ZERO);
        names.push(resource.to_owned());
    }
    let text = metrics.text(LiveState { is_ready: true, queue: QueueSnapshot::default(), phases: std::iter::empty() });
    assert!(names.len() > 40);
    for name in names {
        assert!(text.contains(&format!("resource=\"{name}\"")), "{name} is told as another one");
    }
    assert!(!text.contains("resource=\"other\""), "{text}");
}
