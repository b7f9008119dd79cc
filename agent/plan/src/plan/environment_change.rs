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
    /// Becomes `old + separator + value`, or the value alone if there is no old one; stays if the value is
    /// already in it.
    Append {
        name: String,
        separator: char,
        value: String,
    },
    /// Undoes an append: removes the last part that is the value; removes the variable if nothing is left.
    Withdraw {
        name: String,
        separator: char,
        value: String,
    },
    /// Sets it only if it is not set.
    Default {
        name: String,
        value: String,
    },
    Remove {
        name: String,
    },
}

pub(super) fn set(name: &str, value: &str) -> EnvChange {
    EnvChange::Set {
        name: name.to_owned(),
        value: Word::literal(value),
    }
}
