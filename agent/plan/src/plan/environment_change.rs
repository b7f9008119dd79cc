//! Changes of the environment, for all later steps or for one program.

use flux_shared::command_words::Word;
use serde::Serialize;

/// How a variable changes.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "change", rename_all = "kebab-case")]
pub enum EnvChange {
    Set {
        name: String,
        value: Word,
    },
    /// Appends the separator and the value, or sets the value alone if the variable is unset or empty. No change if the
    /// value is already one of its parts.
    Append {
        name: String,
        separator: char,
        value: String,
    },
    /// Undoes an append: removes the last part that equals the value. Removes the variable if nothing is left. A part
    /// at the beginning of a longer list stays, since a snippet may have put it there.
    Withdraw {
        name: String,
        separator: char,
        value: String,
    },
    /// Sets the variable only if it is unset.
    Default {
        name: String,
        value: String,
    },
    Remove {
        name: String,
    },
}

/// [`EnvChange::Set`] with a literal value.
pub(super) fn set(name: &str, value: &str) -> EnvChange {
    EnvChange::Set {
        name: name.to_owned(),
        value: Word::literal(value),
    }
}
