//! The CEL expression that a field of the spec means what it meant before. It compares leaves rather than
//! whole objects: clients that are built with Go types send the zero values that they cannot leave out, and
//! these mean "not set".
//!
//! All is compared in lists, `[a] == [b]`: the API server estimates what a comparison costs by the longest
//! text, list or map that may be compared, but only one level deep.

use serde_json::{Map, Value};

/// Fields whose zero value is an answer of its own.
const MEANINGFUL: &[&str] = &["connectTimeout", "strict", "delete", "cleanup"];
/// Numbers that Go types cannot leave out.
const NUMBERS: &[&str] = &["size"];
/// Lists of Kubernetes' own types, which leave zero values out.
const OF_KUBERNETES: &[&str] = &["tolerations", "sysctls"];

/// Most numbers that a list of numbers is written with.
const ROW: u64 = 32;

/// Whether a field of the spec is as before, by its schema.
pub(super) fn is_as_before(spec: &Map<String, Value>, field: &str) -> Option<String> {
    let schema = spec.get("properties")?.get(field)?;
    let mut comparison = Comparison {
        new: "self.spec",
        old: "oldSelf.spec",
        ..Comparison::default()
    };
    comparison.field(schema, field, "");
    Some(comparison.expression())
}

/// The leaves of two objects.
#[derive(Default)]
struct Comparison<'a> {
    new: &'a str,
    old: &'a str,
    /// Paths of texts, switches and numbers.
    texts: Vec<String>,
    switches: Vec<String>,
    numbers: Vec<String>,
    /// What is compared in another way.
    conditions: Vec<String>,
}

impl Comparison<'_> {
    fn object(&mut self, schema: &Value, path: &str) {
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            self.field(schema, name, path);
        }
    }

    fn field(&mut self, schema: &Value, name: &str, above: &str) {
        let path = format!("{above}.?{name}");
        let type_ = schema["type"].as_str().unwrap_or_default();
        let items = &schema["items"];
        let values = &schema["additionalProperties"];
        match type_ {
            // The API server writes the default where the object is given.
            _ if schema["default"].is_string() && MEANINGFUL.contains(&name) => {
                self.same(&path, &format!(".orValue({})", literal(&schema["default"])));
            }
            "string" if schema["default"].is_string() => {
                let default = literal(&schema["default"]);
                let or_default =
                    |side| format!("{side}{path}.orValue('') == '' ? {default} : {side}{path}.orValue('')");
                self.conditions.push(format!(
                    "[{}] == [{}]",
                    or_default(self.new),
                    or_default(self.old)
                ));
            }
            "integer" | "boolean" if !schema["default"].is_null() => {
                self.same(&path, &format!(".orValue({})", schema["default"]));
            }
            _ if MEANINGFUL.contains(&name) => self.same(&path, ""),
            "string" => self.texts.push(path),
            "boolean" => self.switches.push(path),
            "integer" if NUMBERS.contains(&name) => self.numbers.push(path),
            "array" if items["properties"].is_object() && !OF_KUBERNETES.contains(&name) => {
                self.list(items, &path, schema["maxItems"].as_u64().unwrap_or_default());
            }
            "array" => self.same(&path, ".orValue([])"),
            "object" if values["properties"].is_object() => self.map(values, &path),
            "object" if values.is_object() => self.same(&path, ".orValue({})"),
            "object" if schema["properties"].is_object() => self.object(schema, &path),
            "" if schema["x-kubernetes-int-or-string"] == true => self.same(&path, ".orValue('')"),
            _ => self.same(&path, ""),
        }
    }

    fn same(&mut self, path: &str, or: &str) {
        self.conditions
            .push(format!("[{}{path}{or}] == [{}{path}{or}]", self.new, self.old));
    }

    /// A list of objects, index by index: CEL has no other way to walk along two lists.
    fn list(&mut self, items: &Value, path: &str, most: u64) {
        let (new, old) = (
            format!("{}{path}.orValue([])", self.new),
            format!("{}{path}.orValue([])", self.old),
        );
        let (here, there) = (
            format!("{}[i]", present(self.new, path)),
            format!("{}[i]", present(self.old, path)),
        );
        let mut inner = Comparison {
            new: &here,
            old: &there,
            ..Comparison::default()
        };
        inner.object(items, "");
        let same = format!("i >= {new}.size() || ({})", inner.expression());
        let each = if most <= ROW {
            format!("{}.all(i, {same})", numbers(most))
        } else {
            let rows = most.div_ceil(ROW);
            format!(
                "{}.all(row, {}.map(i, {ROW} * row + i).all(i, {same}))",
                numbers(rows),
                numbers(ROW)
            )
        };
        // The order of a list with keys means nothing, and the API server compares it so.
        self.conditions.push(format!(
            "([{new}] == [{old}] || {new}.size() == {old}.size() && {each})"
        ));
    }

    /// A map of objects, key by key.
    fn map(&mut self, values: &Value, path: &str) {
        let (new, old) = (
            format!("{}{path}.orValue({{}})", self.new),
            format!("{}{path}.orValue({{}})", self.old),
        );
        let (keys, here, there) = (
            present(self.new, path),
            format!("{}[k]", present(self.new, path)),
            format!("{}[k]", present(self.old, path)),
        );
        let mut inner = Comparison {
            new: &here,
            old: &there,
            ..Comparison::default()
        };
        inner.object(values, "");
        let inner = inner.expression();
        self.conditions.push(format!(
            "{new}.size() == {old}.size() && (!has({keys}) || {keys}.all(k, k in {old} && ({inner})))"
        ));
    }

    fn expression(mut self) -> String {
        for (paths, zero) in [
            (&self.texts, "''"),
            (&self.switches, "false"),
            (&self.numbers, "0"),
        ] {
            let leaves = |side: &str| {
                let leaves: Vec<String> = paths
                    .iter()
                    .map(|path| format!("{side}{path}.orValue({zero})"))
                    .collect();
                leaves.join(", ")
            };
            if !paths.is_empty() {
                self.conditions
                    .push(format!("[{}] == [{}]", leaves(self.new), leaves(self.old)));
            }
        }
        self.conditions.join(" && ")
    }
}

/// The numbers from 0 to `end`, without it, as CEL has them.
fn numbers(end: u64) -> String {
    let all: Vec<String> = (0..end).map(|i| i.to_string()).collect();
    format!("[{}]", all.join(", "))
}

/// A text as CEL has it.
fn literal(text: &Value) -> String {
    format!("'{}'", text.as_str().unwrap_or_default())
}

/// The path of something that is known to be there.
fn present(side: &str, path: &str) -> String {
    format!("{side}{}", path.replace(".?", "."))
}
