//! Generates CEL expressions that are true if an update of the spec leaves the meaning of a field unchanged. They
//! compare leaves rather than whole objects: clients that are built with Go types send the zero values that they
//! cannot leave out, and these mean "not set".
//!
//! Values are compared within lists, `[a] == [b]`: the API server estimates the cost of a comparison by the longest text,
//! list or map that may be compared, but only one level deep.

use serde_json::{Map, Value};

use super::convert::Version;

/// Fields whose zero value (`false`, `""`) means something else than "not set". Go types leave these out if they are
/// not set.
const MEANINGFUL: &[&str] = &[
    "connectTimeout",
    "strict",
    "delete",
    "allowPrivilegeEscalation",
    "runAsNonRoot",
];
/// Numbers that Go types cannot leave out: 0 means "not set". `size` is that of `leadBroker` and of `clusters[]`. The
/// spec's own `size` may change, so it is not compared.
const NUMBERS: &[&str] = &["size", "cores"];
/// Lists of Kubernetes' own types, which Go sends without zero values. So whole lists can be compared.
const OF_KUBERNETES: &[&str] = &["tolerations", "sysctls"];

/// Longest list of numbers that is written into an expression (arbitrary). More numbers are compared in rows of this length.
const ROW_LENGTH: u64 = 32;

/// The CEL expression: whether the field `field` of the spec has the same meaning as before. `spec` is the schema of
/// the spec in `version`. None: it has no such field.
pub(super) fn is_as_before(spec: &Map<String, Value>, field: &str, version: Version) -> Option<String> {
    let schema = spec.get("properties")?.get(field)?;
    let mut comparison = Comparison::new("self.spec", "oldSelf.spec", version);
    comparison.field(schema, field, "");
    Some(comparison.expression())
}

/// Collects the comparisons of all leaves of two objects.
struct Comparison<'a> {
    /// The version whose schema is compared: a missing field may mean something else in the other version.
    version: Version,
    /// CEL expressions of the two objects.
    new: &'a str,
    old: &'a str,
    /// Paths of texts, booleans and numbers whose zero value means "not set".
    texts: Vec<String>,
    booleans: Vec<String>,
    numbers: Vec<String>,
    /// CEL expressions that compare the other leaves.
    conditions: Vec<String>,
}

impl<'a> Comparison<'a> {
    fn new(new: &'a str, old: &'a str, version: Version) -> Comparison<'a> {
        Comparison {
            version,
            new,
            old,
            texts: Vec::new(),
            booleans: Vec::new(),
            numbers: Vec::new(),
            conditions: Vec::new(),
        }
    }

    /// Compares all fields of the object at `path`. Paths are CEL's optional selection (`.?a.?b`), which does not fail
    /// if a field is missing; the empty path is the object itself.
    fn object(&mut self, schema: &Value, path: &str) {
        for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
            self.field(schema, name, path);
        }
    }

    /// Compares the field `name` of the object at the path `above`.
    fn field(&mut self, schema: &Value, name: &str, above: &str) {
        let path = format!("{above}.?{name}");
        let type_ = schema["type"].as_str().unwrap_or_default();
        let items = &schema["items"];
        let values = &schema["additionalProperties"];
        self.presence(name, &path);
        match type_ {
            // In v1alpha1, true is the default, which the schema does not have.
            "boolean"
                if ["automountServiceAccountToken", "noWaitSocket"].contains(&name)
                    && self.version == Version::V1alpha1 =>
            {
                self.compare(&path, ".orValue(true)");
            }
            // The API server writes a default only into an object that is present: without one, the field counts as
            // its default.
            _ if schema["default"].is_string() && MEANINGFUL.contains(&name) => {
                self.compare(&path, &format!(".orValue({})", literal(&schema["default"])));
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
            // Here 0 is a value like any other: Go types leave out such a number if it is 0.
            "integer" | "boolean" if !schema["default"].is_null() => {
                self.compare(&path, &format!(".orValue({})", schema["default"]));
            }
            _ if MEANINGFUL.contains(&name) => self.compare(&path, ""),
            "string" => self.texts.push(path),
            "boolean" => self.booleans.push(path),
            "integer" if NUMBERS.contains(&name) => self.numbers.push(path),
            // Every list has `maxItems`: `definition` adds it before.
            "array" if items["properties"].is_object() && !OF_KUBERNETES.contains(&name) => {
                self.list(items, &path, schema["maxItems"].as_u64().unwrap_or_default());
            }
            "array" => self.compare(&path, ".orValue([])"),
            "object" if values["properties"].is_object() => self.map(values, &path),
            "object" if is_quantity(values) => self.quantities(&path),
            "object" if values.is_object() => self.compare(&path, ".orValue({})"),
            "object" if schema["properties"].is_object() => self.object(schema, &path),
            "" if is_quantity(schema) => {
                let (new, old) = (self.new, self.old);
                self.conditions.push(same_quantity(
                    &format!("{new}{path}.orValue('')"),
                    &format!("{old}{path}.orValue('')"),
                ));
            }
            _ => self.compare(&path, ""),
        }
    }

    /// Compares whether the block `name` is there, if a block without fields means something.
    fn presence(&mut self, name: &str, path: &str) {
        // CEL: whether the block is there, and not disabled.
        let is_on = |side| format!("({side}{path}.hasValue() && !{side}{path}.?disable.orValue(false))");
        let condition = match (self.version, name) {
            // In v1alpha1, no `flux.container` means the image's own Flux.
            (Version::V1alpha2, "fluxRestful" | "fluxUser" | "fluxuser")
            | (Version::V1alpha1, "container") => {
                format!("{} == {}", is_on(self.new), is_on(self.old))
            }
            // `simple: false` alone asks for Fluxion. Clients with Go types send it for "not set", but always with a
            // queuePolicy. So `simple` may come or go only beside a queuePolicy.
            (_, "scheduler") => {
                let has = |side, field| format!("{side}{path}.?{field}.hasValue()");
                format!(
                    "({} == {} || ({} ? {} : {}))",
                    has(self.new, "simple"),
                    has(self.old, "simple"),
                    has(self.new, "simple"),
                    has(self.new, "queuePolicy"),
                    has(self.old, "queuePolicy"),
                )
            }
            _ => return,
        };
        self.conditions.push(condition);
    }

    /// Compares the values at `path`. `or`: CEL that replaces a missing value, or empty.
    fn compare(&mut self, path: &str, or: &str) {
        self.conditions
            .push(format!("[{}{path}{or}] == [{}{path}{or}]", self.new, self.old));
    }

    /// Compares lists of objects, index by index: Kubernetes 1.31 has no other way to walk along two lists. `most`: the
    /// limit of the list's length. The schema has no list of objects within another one: both would use the variable `i`.
    fn list(&mut self, items: &Value, path: &str, most: u64) {
        let (new, old) = (
            format!("{}{path}.orValue([])", self.new),
            format!("{}{path}.orValue([])", self.old),
        );
        let (here, there) = (
            format!("{}[i]", present(self.new, path)),
            format!("{}[i]", present(self.old, path)),
        );
        let mut inner = Comparison::new(&here, &there, self.version);
        inner.object(items, "");
        let is_same = format!("i >= {new}.size() || ({})", inner.expression());
        let each = if most <= ROW_LENGTH {
            format!("{}.all(i, {is_same})", numbers(most))
        } else {
            let rows = most.div_ceil(ROW_LENGTH);
            format!(
                "{}.all(row, {}.map(i, {ROW_LENGTH} * row + i).all(i, {is_same}))",
                numbers(rows),
                numbers(ROW_LENGTH)
            )
        };
        // `==` comes first: the order of a list with keys has no meaning, and the API server's `==` ignores it.
        self.conditions.push(format!(
            "([{new}] == [{old}] || {new}.size() == {old}.size() && {each})"
        ));
    }

    /// Compares maps of objects. The schema has no map of objects within another one: both would use the variable `k`.
    fn map(&mut self, values: &Value, path: &str) {
        let (here, there) = (
            format!("{}[k]", present(self.new, path)),
            format!("{}[k]", present(self.old, path)),
        );
        let mut inner = Comparison::new(&here, &there, self.version);
        inner.object(values, "");
        self.keys(path, "k", &inner.expression());
    }

    /// Compares maps of quantities.
    fn quantities(&mut self, path: &str) {
        let same = same_quantity(
            &format!("{}[q]", present(self.new, path)),
            &format!("{}[q]", present(self.old, path)),
        );
        self.keys(path, "q", &same);
    }

    /// Compares maps, key by key. `is_same`: CEL that compares the two values of the key in `variable`.
    fn keys(&mut self, path: &str, variable: &str, is_same: &str) {
        let (new, old) = (
            format!("{}{path}.orValue({{}})", self.new),
            format!("{}{path}.orValue({{}})", self.old),
        );
        // The API server knows the largest number of keys only of a plain selection.
        let keys = present(self.new, path);
        self.conditions.push(format!(
            "{new}.size() == {old}.size() && ({new}.size() == 0 || \
             {keys}.all({variable}, {variable} in {old} && ({is_same})))"
        ));
    }

    /// The CEL expression: whether all leaves are the same.
    fn expression(mut self) -> String {
        for (paths, zero) in [
            (&self.texts, "''"),
            (&self.booleans, "false"),
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

/// Whether values with this schema are quantities.
fn is_quantity(schema: &Value) -> bool {
    schema["x-kubernetes-int-or-string"] == true
}

/// The CEL expression: whether two quantities are written alike, where Go types write `4` as `"4"`. They also write
/// `"0.5"` as `"500m"`, but parsing both would exceed the API server's limit of costs.
fn same_quantity(new: &str, old: &str) -> String {
    let as_text = |value: &str| format!("type({value}) == int ? string(int({value})) : {value}");
    format!("[{}] == [{}]", as_text(new), as_text(old))
}

/// The CEL list of the numbers from 0 to `end` - 1.
fn numbers(end: u64) -> String {
    let all: Vec<String> = (0..end).map(|i| i.to_string()).collect();
    format!("[{}]", all.join(", "))
}

/// The CEL literal of a text.
fn literal(text: &Value) -> String {
    format!("'{}'", text.as_str().unwrap_or_default())
}

/// CEL's plain selection of a value: the path without its `?`. Only for a value that is known to exist, and as the
/// argument of `has`.
fn present(side: &str, path: &str) -> String {
    format!("{side}{}", path.replace(".?", "."))
}
