//! Reads the files that a person names; also for `kubectl minicluster`.
//!
//! The agent's `dry_run/file.rs` has these lines of its own: it is built without this crate, and `shared` performs no
//! I/O.

use std::path::Path;

/// The text of a file; `-` is standard input.
pub fn read(path: &Path) -> std::io::Result<String> {
    if path == Path::new("-") { std::io::read_to_string(std::io::stdin()) } else { std::fs::read_to_string(path) }
}
