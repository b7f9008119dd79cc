//! The reference of the fields, made from the CustomResourceDefinition: what `kubectl explain` knows, with what the API server
//! refuses, what can change, and an example.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use flux_shared::crd::FIXED;
use flux_shared::crd::definition::{Conversion, WebhookClient, definition};
use serde_json::Value;

use test_support::pages::{is_committed, repository};

fn schema(version: &str) -> Value {
    let client = WebhookClient::Url("https://127.0.0.1/convert".into());
    let crd =
        serde_json::to_value(definition(&Conversion::Webhook { client, ca_bundle: Vec::new() }).unwrap()).unwrap();
    let versions = crd["spec"]["versions"].as_array().unwrap();
    versions.iter().find(|it| it["name"] == version).unwrap()["schema"]["openAPIV3Schema"].clone()
}

/// The examples of a version that set a field, by its path: the folder with the shortest manifest.
struct Examples(BTreeMap<String, (usize, String)>);

impl Examples {
    fn of(version: &str) -> Examples {
        let mut files = Vec::new();
        collect(&repository().join("examples"), &mut files);
        let mut all = Examples(BTreeMap::new());
        for file in files {
            let text = std::fs::read_to_string(&file).unwrap();
            for document in serde_saphyr::from_multiple::<Value>(&text).unwrap() {
                if document["apiVersion"] == format!("flux-framework.org/{version}")
                    && document["kind"] == "MiniCluster"
                {
                    let folder = file.parent().unwrap().strip_prefix(repository()).unwrap();
                    all.add("spec", &document["spec"], (text.len(), folder.display().to_string()));
                }
            }
        }
        all
    }

    fn add(&mut self, path: &str, value: &Value, place: (usize, String)) {
        match value {
            Value::Object(map) => {
                for (name, inner) in map {
                    for path in [format!("{path}.{name}"), format!("{path}{{}}")] {
                        let best = self.0.entry(path.clone()).or_insert_with(|| place.clone());
                        *best = best.clone().min(place.clone());
                        self.add(&path, inner, place.clone());
                    }
                }
            }
            Value::Array(list) => list.iter().for_each(|inner| self.add(&format!("{path}[]"), inner, place.clone())),
            _ => {}
        }
    }

    fn link(&self, path: &str) -> String {
        let found = self.0.get(path).or_else(|| self.0.get(&path.replace("spec.services", "spec.containers")));
        found.map_or(String::new(), |(_, folder)| {
            format!(" ([{}](../../{folder}))", folder.trim_start_matches("examples/"))
        })
    }
}

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    let mut entries: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for path in entries {
        match path.is_dir() {
            true => collect(&path, files),
            false if path.extension().is_some_and(|ending| ending == "yaml") => files.push(path),
            false => {}
        }
    }
}

fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn number(value: &Value) -> String {
    value.as_f64().map_or_else(|| value.to_string(), |number| format!("{number:.0}"))
}

/// How a value is written, with its bounds.
fn kind(schema: &Value, path: &str) -> String {
    let name = path.rsplit('.').next().unwrap_or_default();
    if name.ends_with("ecurityContext") || name.ends_with("odTemplate") {
        return "as Kubernetes has it".into();
    }
    if schema["x-kubernetes-int-or-string"] == true {
        return "quantity".into();
    }
    let bounds = match (&schema["minimum"], &schema["maximum"]) {
        (Value::Null, Value::Null) => String::new(),
        (low, high) => format!(", {} to {}", number(low), number(high)),
    };
    let shape = match schema["type"].as_str().unwrap_or_default() {
        "object" if schema["additionalProperties"].is_object() => {
            let most = format!(", {} at most", schema["maxProperties"]);
            match schema["additionalProperties"]["properties"].is_object() {
                true => format!("map of [{name}](#{}){most}", anchor(&format!("{path}{{}}"))),
                false => format!("map of {}{most}", kind(&schema["additionalProperties"], "")),
            }
        }
        "object" => format!("[{name}](#{})", anchor(path)),
        "array" if schema["items"]["properties"].is_object() => {
            format!("list of [{name}](#{}), {} at most", anchor(&format!("{path}[]")), schema["maxItems"])
        }
        "array" => format!("list of {}, {} at most", kind(&schema["items"], ""), schema["maxItems"]),
        "string" if schema["enum"].is_array() => {
            let values =
                schema["enum"].as_array().unwrap().iter().filter_map(Value::as_str).filter(|value| !value.is_empty());
            values.map(|value| format!("`{value}`")).collect::<Vec<_>>().join(", ")
        }
        other => other.to_owned(),
    };
    let pattern = schema["pattern"].as_str().map(|pattern| format!(", matching `{}`", pattern.replace('|', "\\|")));
    shape + &bounds + &pattern.unwrap_or_default()
}

fn anchor(path: &str) -> String {
    path.chars().filter(|letter| letter.is_ascii_alphanumeric()).map(|letter| letter.to_ascii_lowercase()).collect()
}

fn default(schema: &Value, is_needed: bool) -> String {
    match (&schema["default"], schema["type"].as_str()) {
        _ if is_needed => "needed".into(),
        (Value::Null, Some("boolean")) => "`false`".into(),
        (Value::Null, _) => String::new(),
        (Value::String(text), _) => format!("`{text}`"),
        (value, _) => format!("`{value}`"),
    }
}

struct Page<'a> {
    text: String,
    examples: &'a Examples,
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
            self.text +=
                "\nThe fields are those of [spec.containers](#speccontainers). Those about Flux are refused here.\n";
            return self.refusals(schema);
        }
        let needed: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let is_top = path == "spec";
        let (head, line) = if is_top { (" can change |", " --- |") } else { ("", "") };
        self.text += &format!("\n| field | type | default |{head} meaning |\n| --- | --- | --- |{line} --- |\n");
        let mut inner = Vec::new();
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let below = format!("{path}.{name}");
            let change = match (is_top, FIXED.contains(&name.as_str())) {
                (false, _) => "",
                (true, true) => " no |",
                (true, false) => " yes |",
            };
            let meaning = cell(field["description"].as_str().unwrap_or_default());
            let is_needed = needed.contains(&name.as_str()) && field["default"].is_null();
            self.text += &format!(
                "| `{name}` | {} | {} |{change} {meaning}{} |\n",
                kind(field, &below),
                default(field, is_needed),
                self.examples.link(&below)
            );
            if name.ends_with("ecurityContext") {
                continue;
            }
            for (suffix, block) in [("", field), ("[]", &field["items"]), ("{}", &field["additionalProperties"])] {
                if block["properties"].is_object() {
                    inner.push((format!("{below}{suffix}"), block.clone()));
                }
            }
        }
        self.refusals(schema);
        inner.iter().for_each(|(path, schema)| self.section(path, schema));
    }

    /// What the API server refuses here, and at the lists and maps right below.
    fn refusals(&mut self, schema: &Value) {
        let mut lines = Vec::new();
        let mut take = |place: &str, schema: &Value| {
            for rule in schema["x-kubernetes-validations"].as_array().into_iter().flatten() {
                let field = rule["fieldPath"].as_str().unwrap_or_default().trim_start_matches('.');
                let name = [place, field].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(".");
                let message = rule["message"].as_str().unwrap_or_default();
                let name = if name.is_empty() { String::new() } else { format!("`{name}`: ") };
                lines.push(format!("- {name}{}\n", cell(message)));
            }
        };
        take("", schema);
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            if field["items"].is_object() || field["additionalProperties"].is_object() {
                take(name, field);
            }
        }
        if !lines.is_empty() {
            self.text += &format!("\nThe API server refuses otherwise, with these words:\n\n{}", lines.concat());
        }
    }
}

fn page(version: &str, words: &str) -> String {
    let root = schema(version);
    let examples = Examples::of(version);
    let mut page = Page { text: String::new(), examples: &examples };
    page.text = format!(
        "# Fields of {version}\n\n<!-- made from the CustomResourceDefinition by `make generate` -->\n\n{words} `kubectl explain \
         minicluster.spec --api-version=flux-framework.org/{version}` says the same.\n\nA field that cannot change is fixed once the \
         cluster has been made (`status.maximumSize` is set); the API server then refuses an edit: *cannot change once the cluster has \
         been made: delete the MiniCluster and create it anew*. What stands in a block that cannot change cannot, either. `size` \
         cannot exceed what the cluster was made for (the larger of `size` and `maxSize` then). A link after a field leads to its shortest \
         example. Beside what the API server refuses, the operator checks each value: `flux-operator validate FILE` tells all.\n\n\
         `metadata.name` has 54 characters at most: lower case letters, digits and `-`, beginning with a letter.\n"
    );
    page.section("spec", &root["properties"]["spec"]);
    page.section("status", &root["properties"]["status"]);
    page.text
}

#[test]
fn the_fields_of_v1alpha2_are_those_of_its_schema() {
    let words = "The version that is stored. Every object can be read and written as either version.";
    is_committed("v1alpha2.md", &page("v1alpha2", words));
}

#[test]
fn the_fields_of_v1alpha1_are_those_of_its_schema() {
    let words = "The version of 2023, served by a conversion webhook: Flux comes with the image, runs as user `flux`, and tokens \
                 of service accounts are mounted. [v1alpha2](v1alpha2.md) has the same fields under the same names, but for \
                 `cleanup`, which is `cleanupPods` there, and `cleanupMiniCluster`, which is `cleanup` there.";
    is_committed("v1alpha1.md", &page("v1alpha1", words));
}
