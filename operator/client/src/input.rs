//! Reads the command line, and the files that it names.
//!
//! The agent's `dry_run/file.rs` has its own copy of `read`: the agent is built without this crate, and
//! `shared` performs no I/O.

use std::path::Path;

use clap::Parser;

/// Parses the command line of this process; exits if it is invalid. `version` may contain the commit, so it is
/// passed from `main.rs`: a new commit then rebuilds nothing else.
pub fn command_line<C: Parser>(version: &'static str) -> C {
    let matches = C::command().version(version).get_matches();
    C::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

/// The text of a file; `-` is standard input.
pub fn read(path: &Path) -> std::io::Result<String> {
    if path == Path::new("-") {
        std::io::read_to_string(std::io::stdin())
    } else {
        std::fs::read_to_string(path)
    }
}
