//! Reads the files that a person names.

use std::path::Path;

use flux_operator_client::input;

use crate::failure::Failure;

pub use input::read as text;

/// The text of a file; `-` is standard input.
pub fn read(path: &Path) -> Result<String, Failure> {
    input::read(path).map_err(|source| Failure::Read {
        path: path.display().to_string(),
        source,
    })
}
