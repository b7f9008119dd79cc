//! Reads the files that a person names.
#![expect(clippy::disallowed_methods, reason = "reads them")]

use std::path::Path;

use crate::failure::Failure;

/// The text of a file; `-` is standard input.
pub fn read(path: &Path) -> Result<String, Failure> {
    let text = match path == Path::new("-") {
        true => std::io::read_to_string(std::io::stdin()),
        false => std::fs::read_to_string(path),
    };
    text.map_err(|source| Failure::Read { path: path.display().to_string(), source })
}
