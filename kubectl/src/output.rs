//! Results on standard output: text for people, or JSON or YAML for programs (`-o`).

use serde::Serialize;
use serde_json::{Value, json};

use crate::failure::Failure;
use crate::screen;

/// Output formats for programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    Json,
    Yaml,
}

/// How a command prints its result.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::Args)]
pub struct Output {
    /// Print the result as JSON or YAML, for programs; some commands do not support it
    // The id also names the option: `--output` and `-o`, as in kubectl.
    #[arg(
        id = "output",
        long,
        short,
        global = true,
        value_name = "FORMAT",
        value_enum,
        help_heading = "Output"
    )]
    pub format: Option<Format>,
}

impl Format {
    /// Prints a value.
    pub fn show(self, value: &impl Serialize) -> Result<(), Failure> {
        screen::print(&serialize(value, self)?)
    }

    /// Prints objects, as a JSON list or one YAML stream.
    pub fn show_all(self, objects: &[Value]) -> Result<(), Failure> {
        match self {
            Format::Json => self.show(&json!({ "apiVersion": "v1", "kind": "List", "items": objects })),
            Format::Yaml => {
                let documents: Result<Vec<String>, Failure> =
                    objects.iter().map(|object| serialize(object, self)).collect();
                screen::print(&flux_operator_core::yaml::stream(documents?))
            }
        }
    }
}

impl Output {
    /// Prints a result in the format of `-o`, or as text without `-o`.
    pub fn show(self, value: &impl Serialize, text: impl FnOnce() -> String) -> Result<(), Failure> {
        match self.format {
            Some(format) => format.show(value),
            None => screen::print(&text()),
        }
    }

    /// Rejects `-o` for a command that does not support it. `why` says what the command prints or does.
    pub fn refuse(self, command: &str, why: &str) -> Result<(), Failure> {
        match self.format {
            None => Ok(()),
            Some(_) => Err(Failure::Message(format!("`{command}` takes no -o: {why}"))),
        }
    }
}

/// The value as text in the format.
fn serialize(value: &impl Serialize, format: Format) -> Result<String, Failure> {
    let write_failed =
        |error: &dyn std::error::Error| Failure::Message(format!("failed to write the output: {error}"));
    Ok(match format {
        Format::Json => serde_json::to_string_pretty(value).map_err(|error| write_failed(&error))? + "\n",
        Format::Yaml => flux_operator_core::yaml::document(value).map_err(|error| write_failed(&error))?,
    })
}
