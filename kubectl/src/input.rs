//! Reads the files that the command line names.

use std::path::Path;

use flux_operator_client::input;

use crate::failure::Failure;

/// Like [`read`], for callers that add the path to the error themselves.
pub use input::read as read_io;

/// The text of a file. `-` is standard input. The error names the path.
pub fn read(path: &Path) -> Result<String, Failure> {
    input::read(path).map_err(|source| Failure::Read {
        path: path.display().to_string(),
        source,
    })
}
