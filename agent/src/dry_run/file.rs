//! The files that a person names.

use std::path::Path;

use flux_agent_plan::dry_run::{DryRunError, Source};

/// The text of a file; `-` is standard input. (The operator's and the plugin's is
/// `operator/client/src/input.rs`: see there.)
pub fn read(path: &Path) -> std::io::Result<String> {
    if path == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(path)
    }
}

/// Parses the file.
pub fn source(path: &Path) -> Result<Source, DryRunError> {
    let text = read(path).map_err(|source| DryRunError::Read {
        path: path.to_owned(),
        source,
    })?;
    Source::parse(&text).map_err(|problems| DryRunError::Input {
        path: path.to_owned(),
        source: problems,
    })
}
