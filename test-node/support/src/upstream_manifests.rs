//! Where the manifests of the earlier operator's users are. They are test data that is not part of this repository.

use std::io::Write;
use std::path::PathBuf;

use crate::repository::repository;

/// The folder of one version below `UPSTREAM_MANIFESTS`, or beside the checkout. Where it is missing, the test that asks
/// cannot say anything: in CI (`CI=true`) that is a failure, elsewhere it is told, past the harness that hides what passing
/// tests print.
pub fn manifests(version: &str) -> Option<PathBuf> {
    let beside = || repository().join("../shared/manifests");
    let folder = std::env::var_os("UPSTREAM_MANIFESTS").map_or_else(beside, PathBuf::from).join(version);
    if folder.is_dir() {
        return Some(folder);
    }
    let missing = format!(
        "NOT TESTED: manifests of {version}, since there is no folder {}; UPSTREAM_MANIFESTS names another place",
        folder.parent().unwrap().display()
    );
    assert!(std::env::var("CI").as_deref() != Ok("true"), "{missing}");
    std::io::stderr().write_all(format!("{missing}\n").as_bytes()).unwrap();
    None
}
