//! Where the repository is.

use std::path::PathBuf;

/// The top folder of the repository.
pub fn repository() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "..", ".."]
        .iter()
        .collect::<PathBuf>()
        .canonicalize()
        .unwrap()
}
