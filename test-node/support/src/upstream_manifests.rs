//! Where the manifests and documents of the Go operator's users are. They are test data that is not part of this
//! repository.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::repository::repository;

/// The folder of one version's manifests, below `UPSTREAM_MANIFESTS` or beside the checkout.
pub fn manifests(version: &str) -> Option<PathBuf> {
    find("UPSTREAM_MANIFESTS", "manifests", version)
}

/// The folder of the documents: `UPSTREAM_DOCUMENTS`, or the one beside the checkout.
pub fn documents() -> Option<PathBuf> {
    find("UPSTREAM_DOCUMENTS", "docs", "")
}

/// A folder that `variable` names must exist. Without the variable, a missing folder beside the checkout leaves the
/// test out. The report goes past the harness, which hides what passing tests print.
fn find(variable: &str, beside: &str, version: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable);
    let folder = named.as_ref().map_or_else(|| repository().join("../shared").join(beside), PathBuf::from);
    let wanted = folder.join(version);
    if wanted.is_dir() {
        return Some(wanted);
    }
    assert!(named.is_none(), "{variable} is {}, but there is no folder {}", folder.display(), wanted.display());
    report_left_out(variable, &wanted);
    None
}

fn report_left_out(variable: &str, folder: &Path) {
    let line = format!("LEFT OUT: there is no folder {}. Set {variable} to test what is in it.\n", folder.display());
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}
