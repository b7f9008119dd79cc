//! Checks a spec against the shape of its version: finds unknown fields, missing fields, wrong types and values that are
//! too long, each with its path.
//!
//! The shapes are files in `shape/`, generated from the CRD's schema (`UPDATE=1 cargo test -p flux-shared --features
//! crd` renews them; a test fails if they are stale). So the agent, which is built without the schema, checks as the
//! API server does.
//!
//! The crate jsonschema is not used: it only says what is wrong with a document. This module removes what does not
//! fit, so that the rest can be parsed and checked too, and its messages suggest the name that was probably meant.
//!
//! In a shape, `{"a": …}` is an object with these fields (`"a!"`: required), `{"*": …}` a map, `[…]` a list, and a
//! string the name of a simple type.

use serde_json::{Map, Value};

use super::bounds;
use super::convert::Version;
use crate::problem::Problem;
use crate::suggest;

const V1ALPHA1: &str = include_str!("shape/v1alpha1.json");
const V1ALPHA2: &str = include_str!("shape/v1alpha2.json");

/// Removes unknown fields and values of a wrong type, so that the rest can be checked too; returns these and the other
/// problems.
pub fn check(spec: &mut Value, version: Version) -> Vec<Problem> {
    let mut problems = Vec::new();
    match of_spec(version) {
        Ok(shape) => {
            walk(
                spec,
                &Shape {
                    top: &shape,
                    here: &shape,
                },
                "spec",
                "spec",
                &mut problems,
            );
        }
        Err(error) => problems.push(Problem::new("spec", format!("cannot be checked: {error}"))),
    }
    problems
}

/// The shape of a version's spec.
fn of_spec(version: Version) -> Result<Value, serde_json::Error> {
    serde_json::from_str(match version {
        Version::V1alpha1 => V1ALPHA1,
        Version::V1alpha2 => V1ALPHA2,
    })
}

/// Why a field outside the spec is unknown, where only `fields` exist. It may be a field of the spec.
pub fn unknown_outside_spec(key: &str, fields: &[&str], version: Version) -> String {
    let fields = fields
        .iter()
        .map(|field| ((*field).to_owned(), Value::Null))
        .collect();
    unknown(key, &fields, &of_spec(version).unwrap_or_default())
}

struct Shape<'a> {
    /// The shape of the whole spec.
    top: &'a Value,
    /// The shape of the value at hand.
    here: &'a Value,
}

impl<'a> Shape<'a> {
    fn at(&self, here: &'a Value) -> Shape<'a> {
        Shape { top: self.top, here }
    }
}

/// Removes and reports the parts of `value` that do not fit. Returns false if `value` as a whole does not fit: the
/// caller then removes it. A list does not fit if one of its items does not. (If only that item were removed, later
/// checks would report wrong indices of the other items.) `name`: the field that the value belongs to, as in `bounds`.
fn walk(value: &mut Value, shape: &Shape, path: &str, name: &str, problems: &mut Vec<Problem>) -> bool {
    if let Some(why) = too_long(value, shape.here, name) {
        problems.push(Problem::new(path, why));
    }
    if matches!(shape.here.as_str(), Some("int32" | "int64" | "quantity"))
        && let Some(whole) = whole(value)
    {
        *value = whole.into();
    }
    match (value, shape.here) {
        (Value::Object(map), Value::Object(fields)) => {
            map.retain(|key, value| {
                let (inner, below, name) = match (
                    fields.get("*"),
                    fields.get(key).or_else(|| fields.get(&format!("{key}!"))),
                ) {
                    (Some(inner), _) => (inner, format!("{path}[{key}]"), name),
                    (None, Some(inner)) => (inner, format!("{path}.{key}"), key.as_str()),
                    (None, None) => {
                        problems.push(Problem::new(
                            format!("{path}.{key}"),
                            unknown(key, fields, shape.top),
                        ));
                        return false;
                    }
                };
                walk(value, &shape.at(inner), &below, name, problems)
            });
            let required = fields.keys().filter_map(|field| field.strip_suffix('!'));
            for field in required.filter(|field| !map.contains_key(*field)) {
                let below = format!("{path}.{field}");
                // The loop above may have removed the field, and reported it or a part of it.
                if !problems.iter().any(|problem| problem.is_within(&below)) {
                    problems.push(Problem::new(below, "is needed"));
                }
            }
        }
        (Value::Array(list), Value::Array(shapes)) => {
            for (i, value) in list.iter_mut().enumerate() {
                let inner = shape.at(shapes.first().unwrap_or(&Value::Null));
                if !walk(value, &inner, &format!("{path}[{i}]"), name, problems) {
                    return false;
                }
            }
        }
        (value, Value::String(wanted)) if is_a(value, wanted) => {}
        (value, wanted) => {
            let is_unquoted = matches!(value, Value::Bool(_) | Value::Number(_));
            let is_whole = value.is_i64() || value.is_u64();
            let hint = match wanted.as_str() {
                Some("string" | "quantity") if is_unquoted => " (quote it)",
                Some("int32") if is_whole => " of 32 bits",
                Some("int64") if is_whole => " of 64 bits",
                _ => "",
            };
            let message = format!("is {}, must be {}{hint}", describe(value), describe_shape(wanted));
            problems.push(Problem::new(path, message));
            return false;
        }
    }
    true
}

/// Why the API server rejects the value, if it is longer than the CRD allows.
fn too_long(value: &Value, shape: &Value, name: &str) -> Option<String> {
    let (length, most, unit) = match (value, shape) {
        (Value::Object(map), Value::Object(fields)) if fields.contains_key("*") => {
            (map.len(), bounds::most_keys(name), "entries")
        }
        (Value::Array(list), Value::Array(_)) => (list.len(), bounds::most_items(name), "items"),
        (Value::String(text), Value::String(type_)) => {
            let most = match type_.as_str() {
                "string" => bounds::longest(name),
                "quantity" => bounds::LONGEST_QUANTITY,
                _ => return None,
            };
            (text.chars().count(), most, "characters")
        }
        _ => return None,
    };
    (length > most).then(|| format!("has {length} {unit}, but at most {most} are allowed"))
}

/// The hint for an unknown field: the nearest name, or where a field of this name is.
fn unknown(key: &str, fields: &Map<String, Value>, top: &Value) -> String {
    let names = fields.keys().map(|field| field.trim_end_matches('!'));
    if let Some(name) = suggest::nearest(key, names) {
        return format!("no such field; did you mean {name}?");
    }
    match place_of(key, top, "spec") {
        Some(place) => format!("no such field here; did you mean {place}?"),
        None => "no such field; check the spelling and the place".into(),
    }
}

/// The path of a field with this name, of several the one nearest to the top.
fn place_of(key: &str, shape: &Value, path: &str) -> Option<String> {
    let mut level = vec![(path.to_owned(), shape)];
    while !level.is_empty() {
        let mut below = Vec::new();
        for (path, shape) in level {
            match shape {
                Value::Object(fields) => {
                    for (name, inner) in fields {
                        let name = name.trim_end_matches('!');
                        if name == key {
                            return Some(format!("{path}.{key}"));
                        }
                        below.push((format!("{path}.{name}"), inner));
                    }
                }
                Value::Array(shapes) => below.extend(shapes.iter().map(|inner| (format!("{path}[]"), inner))),
                _ => {}
            }
        }
        level = below;
    }
    None
}

/// The integer that is written as a float, such as `2.0` or `1e1`. The API server accepts and stores it as an integer.
fn whole(value: &Value) -> Option<i64> {
    // Floats beyond this do not have every integer.
    const MOST: f64 = (1_u64 << 53) as f64;
    if !value.is_f64() {
        return None;
    }
    let number = value.as_f64()?;
    (number.fract() == 0.0 && number.abs() <= MOST).then_some(number as i64)
}

/// Whether the value has the simple type `wanted`.
fn is_a(value: &Value, wanted: &str) -> bool {
    match wanted {
        "string" => value.is_string(),
        "int32" => value.as_i64().is_some_and(|number| i32::try_from(number).is_ok()),
        "int64" => value.is_i64(),
        "number" => value.is_number(),
        "boolean" => value.is_boolean(),
        // Kubernetes accepts fractions here only as text.
        "quantity" => value.is_string() || value.is_i64() || value.is_u64(),
        // "any"
        _ => true,
    }
}

pub fn describe(value: &Value) -> String {
    match value {
        Value::Null => "empty (leave it out)".into(),
        Value::Bool(value) => format!("the boolean {value}"),
        Value::Number(number) => format!("the number {number}"),
        Value::String(text) => format!("the text `{}`", text.chars().take(40).collect::<String>()),
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
    }
}

fn describe_shape(shape: &Value) -> String {
    match shape {
        Value::Object(fields) if fields.contains_key("*") => "a map of names to values".into(),
        Value::Object(_) => "an object".into(),
        Value::Array(_) => "a list".into(),
        Value::String(name) if name == "int32" || name == "int64" => "an integer".into(),
        Value::String(name) => format!("a {name}"),
        _ => "something else".into(),
    }
}

#[cfg(all(test, feature = "crd"))]
mod tests {
    use super::*;
    use crate::crd::definition::{Conversion, WebhookClient, definition};
    use serde_json::json;

    fn shape_of(schema: &Value) -> Value {
        if schema["x-kubernetes-int-or-string"] == true {
            return json!("quantity");
        }
        if let Some(properties) = schema["properties"].as_object() {
            let required = |name: &String| {
                schema["required"]
                    .as_array()
                    .is_some_and(|all| all.contains(&json!(name)))
            };
            let key = |name: &String| {
                if required(name) {
                    format!("{name}!")
                } else {
                    name.clone()
                }
            };
            return properties
                .iter()
                .map(|(name, property)| (key(name), shape_of(property)))
                .collect();
        }
        match schema["type"].as_str() {
            Some("object") if schema["additionalProperties"].is_object() => {
                json!({ "*": shape_of(&schema["additionalProperties"]) })
            }
            Some("array") => json!([shape_of(&schema["items"])]),
            Some("integer") => schema["format"].clone(),
            Some(name @ ("string" | "number" | "boolean")) => json!(name),
            _ => json!("any"),
        }
    }

    /// The definition with both versions.
    fn both() -> Value {
        let client = WebhookClient::Url("https://localhost".into());
        let conversion = Conversion::Webhook {
            client,
            ca_bundle: Vec::new(),
        };
        serde_json::to_value(definition(&conversion).unwrap()).unwrap()
    }

    /// A value of this schema's type.
    fn value_of(schema: &Value) -> Value {
        match schema["type"].as_str() {
            Some("object") => json!({}),
            Some("array") => json!([]),
            Some("integer") => json!(1),
            Some("boolean") => json!(true),
            _ => json!("a"),
        }
    }

    /// Gets the path, the unit, the bound, and a function that builds a spec whose value has a given length.
    type Check<'a> = dyn FnMut(&str, &str, u64, &dyn Fn(u64) -> Value) + 'a;

    /// Calls `check` for each bound below `schema`. `around` builds a spec from a value of `schema`.
    fn bounded(path: &str, schema: &Value, around: &dyn Fn(Value) -> Value, check: &mut Check<'_>) {
        let (items, values) = (&schema["items"], &schema["additionalProperties"]);
        if let Some(most) = schema["maxLength"].as_u64() {
            check(path, "characters", most, &|length| {
                around(json!("é".repeat(length as usize)))
            });
        }
        if let Some(most) = schema["maxItems"].as_u64() {
            check(path, "items", most, &|length| {
                around((0..length).map(|_| value_of(items)).collect())
            });
        }
        if values.is_object()
            && let Some(most) = schema["maxProperties"].as_u64()
        {
            let map = |length| (0..length).map(|i| (format!("k{i}"), value_of(values))).collect();
            check(path, "entries", most, &|length| {
                around(Value::Object(map(length)))
            });
        }
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            bounded(
                &format!("{path}.{name}"),
                field,
                &|value| around(json!({ name: value })),
                check,
            );
        }
        if items.is_object() {
            bounded(
                &format!("{path}[0]"),
                items,
                &|value| around(json!([value])),
                check,
            );
        }
        if values.is_object() {
            bounded(
                &format!("{path}[k]"),
                values,
                &|value| around(json!({ "k": value })),
                check,
            );
        }
    }

    #[test]
    fn every_bound_of_the_schema_is_checked() {
        let crd = both();
        for (version, schema) in [Version::V1alpha2, Version::V1alpha1]
            .into_iter()
            .zip(crd["spec"]["versions"].as_array().unwrap())
        {
            assert_eq!(schema["name"], version.name());
            let spec = &schema["schema"]["openAPIV3Schema"]["properties"]["spec"];
            let (mut count, mut wrong) = (0, Vec::new());
            bounded("spec", spec, &|value| value, &mut |path, unit, most, build| {
                count += 1;
                let is_rejected = |length| {
                    let long = format!("has {length} {unit}, but at most {most} are allowed");
                    let problems = super::check(&mut build(length), version);
                    problems
                        .iter()
                        .any(|problem| problem.field == path && problem.message == long)
                };
                if is_rejected(most) || !is_rejected(most + 1) {
                    wrong.push(format!("{path}: {most} {unit}"));
                }
            });
            // With far fewer, the schema was not walked.
            assert!(count > 250, "{count}");
            assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        }
    }

    #[test]
    fn the_shapes_are_those_of_the_schema() {
        let crd = both();
        for version in crd["spec"]["versions"].as_array().unwrap() {
            let spec = &version["schema"]["openAPIV3Schema"]["properties"]["spec"];
            let text = serde_json::to_string(&shape_of(spec)).unwrap() + "\n";
            let name = version["name"].as_str().unwrap();
            let file = format!("{}/src/crd/shape/{name}.json", env!("CARGO_MANIFEST_DIR"));
            if std::env::var_os("UPDATE").is_some() {
                std::fs::write(&file, &text).unwrap();
            }
            let current = std::fs::read_to_string(&file).unwrap_or_default();
            assert!(current == text, "{file} is stale: renew it with `make generate`");
        }
    }
}
