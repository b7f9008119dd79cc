//! Why the facts about a host could not be read.

/// Why the facts could not be read.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    #[error("failed to read the host name: {0}")]
    Hostname(String),
    /// The text of a file of assumed facts (`dry-run`) could not be parsed.
    #[error("failed to read the facts: {0}")]
    Syntax(String),
}
