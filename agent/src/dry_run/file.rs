//! Reads the files that are named on the command line.

use std::path::Path;

use flux_agent_plan::dry_run::{DryRunError, Source};

/// The text of a file; `-` is standard input. (`operator/client/src/input.rs` has the same lines, but this program is
/// built without that crate.)
pub fn read(path: &Path) -> std::io::Result<String> {
    if path == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(path)
    }
}

/// Reads and parses a MiniCluster or an AgentSpec.
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
