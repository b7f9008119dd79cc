//! Generates `docs/AGENTSPEC.md`, the reference for people who write a spec by hand, from the types.

use serde_json::Value;

use super::AgentSpec;

const HEAD: &str = "\
# AgentSpec

In a pod, `flux-agent run` reads this spec from `/etc/flux-agent/spec/agent.toml`, or from the file that `--spec` names. The
format is TOML, version 1. The operator writes a spec for each MiniCluster. For
[any other Job](https://github.com/flux-framework/flux-operator/blob/main/examples/plain-job/README.md) you can write one yourself.
Only `name` is required; an unknown field is an error. `flux-agent dry-run FILE` shows what a spec does.

A *word* is a string or, if it refers to variables of the container's environment, a list of parts:
`[{ text = \"hello \" }, { env = \"USER\" }]`.

<!-- made from shared/src/agent_spec.rs by `make generate` -->
";

struct Page {
    /// Schemas of the types by name.
    types: Value,
    /// The page as far as it is written.
    text: String,
}

impl Page {
    /// The name of the type that `schema` refers to, directly or for an optional field (`anyOf`). None: it refers to
    /// none.
    fn name<'a>(&self, schema: &'a Value) -> Option<&'a str> {
        let one_of = schema["anyOf"].as_array().into_iter().flatten();
        [schema]
            .into_iter()
            .chain(one_of)
            .find_map(|schema| schema["$ref"].as_str()?.strip_prefix("#/$defs/"))
    }

    /// The schema of the type that `schema` refers to, else `schema` itself.
    fn resolve(&self, schema: &Value) -> Value {
        self.name(schema)
            .map_or(schema.clone(), |name| self.types[name].clone())
    }

    /// The page's name for the kind of a value. None: it is a table with a section of its own.
    fn kind(&self, schema: &Value) -> Option<String> {
        if self.name(schema) == Some("Word") {
            return Some("word".into());
        }
        let schema = self.resolve(schema);
        // An optional field has a list of types, of which null is the last.
        let type_name = schema["type"].as_str().or_else(|| schema["type"][0].as_str());
        match type_name {
            Some("array") => {
                let each = self
                    .kind(&schema["items"])
                    .unwrap_or_else(|| self.fields(&schema["items"]));
                Some(format!("list of {each}"))
            }
            Some("object") if schema["additionalProperties"]["type"] == "string" => {
                Some("map of string".into())
            }
            Some(name @ ("string" | "integer" | "number" | "boolean")) if schema["oneOf"].is_null() => {
                Some(name.into())
            }
            // One of several words. For a table, with or without modes, one of the `?` returns None.
            _ => {
                let names: Option<Vec<&str>> = schema["oneOf"]
                    .as_array()?
                    .iter()
                    .map(|variant| variant["const"].as_str())
                    .collect();
                Some(format!("`\"{}\"`", names?.join("\"` or `\"")))
            }
        }
    }

    /// The fields of an inline table, on one line: `{name: kind, …}`.
    fn fields(&self, schema: &Value) -> String {
        let schema = self.resolve(schema);
        let fields = schema["properties"].as_object().unwrap().iter();
        let fields: Vec<String> = fields
            .map(|(name, field)| format!("{name}: {}", self.kind(field).unwrap()))
            .collect();
        format!("{{{}}}", fields.join(", "))
    }

    /// Writes the section of the table at `path` (empty: the whole spec), then those of the tables in it.
    fn table(&mut self, path: &str, schema: &Value) {
        let title = if path.is_empty() {
            "At the top".to_owned()
        } else {
            format!("`[{path}]`")
        };
        self.text += &format!("\n## {title}\n\n{}\n\n", meaning(schema, path));
        if schema["oneOf"].is_array() {
            return self.modes(schema);
        }
        self.text += "| field | value | default | meaning |\n| --- | --- | --- | --- |\n";
        let mut inner = Vec::new();
        for (name, field) in schema["properties"].as_object().unwrap() {
            let below = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}.{name}")
            };
            match self.kind(field) {
                Some(kind) => {
                    let needed = schema["required"]
                        .as_array()
                        .is_some_and(|all| all.contains(&name.as_str().into()));
                    let default = match kind.as_str() {
                        _ if needed => "needed".into(),
                        // schemars leaves out a default that serde skips (`is_false`). An Option may also be null.
                        "boolean" if field["default"].is_null() && field["type"] == "boolean" => {
                            "`false`".into()
                        }
                        _ => default(&field["default"]),
                    };
                    self.text += &format!("| `{name}` | {kind} | {default} | {} |\n", meaning(field, &below));
                }
                None if field["additionalProperties"].is_object() => {
                    inner.push((
                        format!("{below}.NAME"),
                        self.resolve(&field["additionalProperties"]),
                    ));
                }
                None => inner.push((below, self.resolve(field))),
            }
        }
        inner.iter().for_each(|(path, schema)| self.table(path, schema));
    }

    /// Writes the fields of a table whose other fields depend on `mode`: one row for each mode.
    fn modes(&mut self, schema: &Value) {
        self.text += "| `mode` | other fields | meaning |\n| --- | --- | --- |\n";
        for mode in schema["oneOf"].as_array().unwrap() {
            let properties = mode["properties"].as_object().unwrap();
            let name = properties["mode"]["const"].as_str().unwrap();
            let others = properties.iter().filter(|(name, _)| *name != "mode");
            let others: Vec<String> = others
                .map(|(name, field)| format!("`{name}`: {}", self.kind(field).unwrap()))
                .collect();
            self.text += &format!(
                "| `\"{name}\"` | {} | {} |\n",
                others.join(", "),
                meaning(mode, name)
            );
        }
    }
}

/// A default as the page shows it; empty if there is none.
fn default(value: &Value) -> String {
    let is_empty = value.as_array().is_some_and(Vec::is_empty)
        || value.as_object().is_some_and(serde_json::Map::is_empty);
    if value.is_null() || is_empty {
        String::new()
    } else {
        format!("`{value}`")
    }
}

/// The doc comment of a type, field or mode, on one line. Panics, naming `what`, if there is none.
fn meaning(schema: &Value, what: &str) -> String {
    let text = schema["description"]
        .as_str()
        .unwrap_or_else(|| panic!("{what} is not described"));
    text.replace('\n', " ").replace('|', "\\|")
}

#[test]
fn agent_spec_page_matches_the_types() {
    let schema = schemars::schema_for!(AgentSpec).to_value();
    let mut page = Page {
        types: schema["$defs"].clone(),
        text: HEAD.to_owned(),
    };
    page.table("", &schema);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/AGENTSPEC.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(file, &page.text).unwrap();
    }
    let current = std::fs::read_to_string(file).unwrap_or_default();
    assert!(
        current == page.text,
        "{file} is stale: renew it with `make generate`"
    );
}
