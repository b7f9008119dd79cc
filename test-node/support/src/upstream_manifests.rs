//! Where to find manifests and documents of the Go operator, and manifests of its users. They are test data outside
//! of this repository.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::repository::repository;

/// The folder `name` of manifests, below `UPSTREAM_MANIFESTS` or `../shared/manifests` (beside the checkout).
pub fn manifests(name: &str) -> Option<PathBuf> {
    find("UPSTREAM_MANIFESTS", "manifests", name)
}

/// The folder of the documents: `UPSTREAM_DOCUMENTS`, or `../shared/docs`.
pub fn documents() -> Option<PathBuf> {
    find("UPSTREAM_DOCUMENTS", "docs", "")
}

/// Finds a folder. If it does not exist, the test is skipped, and this is reported past the harness, which hides the
/// output of passing tests.
fn find(variable: &str, beside: &str, name: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let folder = existing(
        variable,
        named.as_deref(),
        &repository().join("../shared").join(beside),
    )
    .join(name);
    if folder.is_dir() {
        return Some(folder);
    }
    report_left_out(variable, &folder);
    None
}

/// The folder that the variable names, or else the one beside the checkout. Panics if the named folder does not exist.
/// It need not have every folder in it: `.ci/public-manifests` creates only `public`.
fn existing<'a>(variable: &str, named: Option<&'a Path>, beside: &'a Path) -> &'a Path {
    if let Some(named) = named {
        assert!(
            named.is_dir(),
            "{variable} is {}, but there is no such folder",
            named.display()
        );
    }
    named.unwrap_or(beside)
}

fn report_left_out(variable: &str, folder: &Path) {
    let line = format!(
        "LEFT OUT: there is no folder {}. Set {variable} to test what is in it.\n",
        folder.display()
    );
    std::io::stderr().write_all(line.as_bytes()).unwrap();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folder_that_the_variable_names_is_preferred() {
        let named = tempfile::tempdir().unwrap();
        assert_eq!(
            existing("NAME", Some(named.path()), Path::new("/beside")),
            named.path()
        );
        assert_eq!(existing("NAME", None, Path::new("/beside")), Path::new("/beside"));
    }

    #[test]
    #[should_panic(expected = "NAME is /not/there, but there is no such folder")]
    fn folder_that_the_variable_names_must_exist() {
        existing("NAME", Some(Path::new("/not/there")), Path::new("/"));
    }
}
