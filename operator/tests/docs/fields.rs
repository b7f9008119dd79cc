//! The reference of the fields, generated from the CRD: what `kubectl explain` shows, what the API server
//! rejects, what can change, and an example.

use std::sync::LazyLock;

use flux_shared::crd::FIXED;
use flux_shared::crd::definition::{Conversion, WebhookClient, definition};
use serde_json::Value;

use test_support::pages::is_committed;

use super::examples::Examples;
use super::readers::Readers;

static READERS: LazyLock<Readers> = LazyLock::new(Readers::found);

fn schema(version: &str) -> Value {
    // Without a webhook, the definition has no v1alpha1. The address is not used.
    let client = WebhookClient::Url("https://127.0.0.1/convert".into());
    let crd = serde_json::to_value(
        definition(&Conversion::Webhook {
            client,
            ca_bundle: Vec::new(),
        })
        .unwrap(),
    )
    .unwrap();
    let versions = crd["spec"]["versions"].as_array().unwrap();
    versions.iter().find(|entry| entry["name"] == version).unwrap()["schema"]["openAPIV3Schema"].clone()
}

fn cell(text: &str) -> String {
    text.split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
        .replace('|', "\\|")
}

fn number(value: &Value) -> String {
    value
        .as_f64()
        .map_or_else(|| value.to_string(), |number| format!("{number:.0}"))
}

/// The units of numbers, by the suffix of the field's name. `ogLevel` is for `logLevel` and `fluxLogLevel`.
const UNITS: &[(&str, &str)] = &[
    ("Seconds", "seconds"),
    ("SecondsAfterFinished", "seconds"),
    ("metricsPort", "TCP port"),
    ("backoffLimit", "restarts"),
    ("maxRestarts", "restarts"),
    ("size", "pods"),
    ("Size", "pods"),
    ("tasks", "tasks"),
    ("cores", "cores"),
    ("port", "TCP port"),
    ("ports[]", "TCP port"),
    ("uid", "user id"),
    ("ogLevel", "level"),
];

fn unit(path: &str) -> Option<&'static str> {
    UNITS
        .iter()
        .find(|(end, _)| path.ends_with(end))
        .map(|(_, unit)| *unit)
}

/// The type of a value, with its limits.
fn kind(schema: &Value, path: &str) -> String {
    let name = path.rsplit('.').next().unwrap_or_default();
    if matches!(name, "securityContext" | "podTemplate" | "servicesPodTemplate") {
        return "Kubernetes' own type".into();
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return match name {
            "capacity" | "emptyDirSizeLimit" => "quantity (bytes, `1Gi`)".into(),
            _ => "quantity (`500m`, `1Gi`)".into(),
        };
    }
    let bounds = match (&schema["minimum"], &schema["maximum"]) {
        (Value::Null, Value::Null) => String::new(),
        (low, high) => format!(", {} to {}", number(low), number(high)),
    };
    let shape = match schema["type"].as_str().unwrap_or_default() {
        "object" if schema["additionalProperties"].is_object() => {
            let most = format!(", {} at most", schema["maxProperties"]);
            if schema["additionalProperties"]["properties"].is_object() {
                format!("map of [{name}](#{}){most}", anchor(&format!("{path}{{}}")))
            } else {
                format!("map of {}{most}", kind(&schema["additionalProperties"], ""))
            }
        }
        "object" => format!("[{name}](#{})", anchor(path)),
        "array" if schema["items"]["properties"].is_object() => {
            format!(
                "list of [{name}](#{}), {} at most",
                anchor(&format!("{path}[]")),
                schema["maxItems"]
            )
        }
        "array" => format!(
            "list of {}, {} at most",
            kind(&schema["items"], &format!("{path}[]")),
            schema["maxItems"]
        ),
        "string" if schema["enum"].is_array() => {
            // An enum of the spec also has the empty text, which counts as not set.
            let values = schema["enum"]
                .as_array()
                .unwrap()
                .iter()
                .filter_map(Value::as_str)
                .filter(|value| !value.is_empty());
            values
                .map(|value| format!("`{value}`"))
                .collect::<Vec<_>>()
                .join(", ")
        }
        "integer" if path.starts_with("spec") => {
            let unit = unit(path).unwrap_or_else(|| panic!("{path} has no unit: name it in UNITS"));
            format!("integer ({unit})")
        }
        "string" if name.ends_with("Timeout") => "duration (`5s`, `2m`)".into(),
        other => other.to_owned(),
    };
    let pattern = schema["pattern"]
        .as_str()
        .map(|pattern| format!(", matching `{}`", pattern.replace('|', "\\|")));
    shape + &bounds + &pattern.unwrap_or_default()
}

fn anchor(path: &str) -> String {
    path.chars()
        .filter(|letter| letter.is_ascii_alphanumeric())
        .map(|letter| letter.to_ascii_lowercase())
        .collect()
}

/// The default, and the rest of the description. `Default: x.` and `x (default)` in the description count as
/// the default.
fn default(schema: &Value, is_needed: bool) -> (String, String) {
    let text = cell(schema["description"].as_str().unwrap_or_default());
    let named = text
        .split_once(" (default)")
        .and_then(|(before, _)| before.rsplit(' ').next())
        .map(|word| format!("`{word}`"));
    let in_text = text.find("Default: ").map(|at| {
        let rest = &text[at + "Default: ".len()..];
        let end = rest.find(". ").unwrap_or(rest.len());
        let left = format!("{}{}", &text[..at], rest[end..].trim_start_matches(". "));
        (
            rest[..end].trim_end_matches('.').to_owned(),
            left.trim_end().to_owned(),
        )
    });
    match (&schema["default"], schema["type"].as_str(), in_text, named) {
        _ if is_needed => ("needed".into(), text),
        (Value::Null, _, Some((default, left)), _) => (default, left),
        (Value::Null, _, None, Some(named)) => (named, text),
        (Value::Null, Some("boolean"), None, None) => ("`false`".into(), text),
        (Value::Null, ..) => ("none".into(), text),
        (Value::String(value), ..) => (format!("`{value}`"), text),
        (value, ..) => (format!("`{value}`"), text),
    }
}

/// If a top-level field of the spec is immutable, so are all fields in it.
fn can_change(path: &str) -> &'static str {
    let top = path
        .trim_start_matches("spec.")
        .split(['.', '[', '{'])
        .next()
        .unwrap_or_default();
    if FIXED.contains(&top) { "no" } else { "yes" }
}

struct Page<'a> {
    text: String,
    examples: &'a Examples,
    readers: &'a Readers,
    /// Fields of the spec with an empty cell, such as those without a reader or an example.
    unknown: Vec<String>,
}

impl Page<'_> {
    /// A section of the fields of `schema`, then those of the blocks in it.
    fn section(&mut self, path: &str, schema: &Value) {
        self.text += &format!(
            "\n## `{path}`\n\n<a id=\"{}\"></a>{}\n",
            anchor(path),
            cell(schema["description"].as_str().unwrap_or_default())
        );
        if path == "spec.services[]" {
            self.text += "\nThe fields are those of [spec.containers](#speccontainers). Fields about Flux are rejected here.\n";
            return self.refusals(schema);
        }
        let needed: Vec<&str> = schema["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let is_spec = path.starts_with("spec");
        let columns: &[&str] = if is_spec {
            &[
                "field",
                "type",
                "default",
                "read by",
                "can change",
                "meaning",
                "example",
            ]
        } else {
            &["field", "type", "default", "meaning"]
        };
        self.text += &format!(
            "\n| {} |\n|{}\n",
            columns.join(" | "),
            " --- |".repeat(columns.len())
        );
        let mut inner = Vec::new();
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let below = format!("{path}.{name}");
            let is_needed = needed.contains(&name.as_str()) && field["default"].is_null();
            let (default, meaning) = default(field, is_needed);
            let mut cells = vec![format!("`{name}`"), kind(field, &below), default];
            if is_spec {
                cells.extend([self.readers.of(&below), can_change(&below).into()]);
            }
            cells.push(meaning);
            if is_spec {
                cells.push(self.examples.link(&below));
                if cells.iter().any(String::is_empty) {
                    self.unknown.push(below.clone());
                }
            }
            self.text += &format!("| {} |\n", cells.join(" | "));
            // The cell of the type says that Kubernetes defines this field, so it gets no section.
            if name == "securityContext" {
                continue;
            }
            for (suffix, block) in [
                ("", field),
                ("[]", &field["items"]),
                ("{}", &field["additionalProperties"]),
            ] {
                if block["properties"].is_object() {
                    inner.push((format!("{below}{suffix}"), block.clone()));
                }
            }
        }
        self.refusals(schema);
        inner.iter().for_each(|(path, schema)| self.section(path, schema));
    }

    /// What the API server rejects at this field, and at the lists and maps directly below it.
    fn refusals(&mut self, schema: &Value) {
        let mut lines = Vec::new();
        let mut add_rules = |place: &str, schema: &Value| {
            for rule in schema["x-kubernetes-validations"]
                .as_array()
                .into_iter()
                .flatten()
            {
                let field = rule["fieldPath"]
                    .as_str()
                    .unwrap_or_default()
                    .trim_start_matches('.');
                let name = [place, field]
                    .into_iter()
                    .filter(|part| !part.is_empty())
                    .collect::<Vec<_>>()
                    .join(".");
                let message = rule["message"].as_str().unwrap_or_default();
                let name = if name.is_empty() {
                    String::new()
                } else {
                    format!("`{name}`: ")
                };
                lines.push(format!("- {name}{}\n", cell(message)));
            }
        };
        add_rules("", schema);
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            if field["items"].is_object() || field["additionalProperties"].is_object() {
                add_rules(name, field);
            }
        }
        if !lines.is_empty() {
            self.text += &format!(
                "\nThe API server rejects what breaks one of these rules:\n\n{}",
                lines.concat()
            );
        }
    }
}

fn page(version: &str, words: &str) -> String {
    let root = schema(version);
    let examples = Examples::of(version);
    let mut page = Page {
        text: String::new(),
        examples: &examples,
        readers: &READERS,
        unknown: Vec::new(),
    };
    page.text = format!(
        "# Fields of {version}\n\n<!-- made from the CustomResourceDefinition by `make generate` -->\n\n{words} `kubectl explain \
         minicluster.spec --api-version=flux-framework.org/{version}` says the same.\n\n\
         **Read by:** which component uses the field. *agent*: `flux-agent` in each pod, which follows it and passes it to Flux. *Job*, *pods*, \
         *Service*, *volume*: Kubernetes, through the objects of that kind that the operator makes. *operator*: the operator itself, during \
         the life of the MiniCluster and after its end. (A test sets each field to several values and observes where they make a difference.)\n\n\
         **Can change:** a field that cannot is fixed once the \
         Job has been created (`status.maximumSize` is set); the API server then rejects an edit: *cannot change once the Job has \
         been created: delete and recreate the MiniCluster*. `size` \
         cannot exceed the larger of `size` and `maxSize` at creation, and `maxSize` must not be smaller than `size`.\n\n\
         **Example:** the shortest one that explains the field. **Default:** *none* means that the field has no default value. \
         In addition to the API server's checks, the operator checks each value: `flux-operator validate FILE` lists every problem.\n\n\
         `metadata.name` has at most 54 characters: lower case letters, digits and `-`. It must not begin or end with `-`.\n"
    );
    page.section("spec", &root["properties"]["spec"]);
    page.section("status", &root["properties"]["status"]);
    assert!(
        page.unknown.is_empty(),
        "fields of {version} of which something is not known: {:#?}",
        page.unknown
    );
    page.text
}

#[test]
fn the_fields_of_v1alpha2_are_those_of_its_schema() {
    let words = "The stored version. Every object can be read and written as either version.";
    is_committed("v1alpha2.md", &page("v1alpha2", words));
}

#[test]
fn the_fields_of_v1alpha1_are_those_of_its_schema() {
    let words = "The older version, served by a conversion webhook: Flux comes with the image and runs as user `flux`, and service \
                 account tokens are mounted. [v1alpha2](v1alpha2.md) has the same fields under the same names, except \
                 `cleanup`, which is `cleanupPods` there, and `cleanupMiniCluster`, which is `cleanup` there.";
    is_committed("v1alpha1.md", &page("v1alpha1", words));
}
