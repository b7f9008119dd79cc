//! Finds the example of each field.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::Value;

use test_support::pages::{REPOSITORY, repository};
use test_support::repository::yaml_files;

/// Another name or place of a field, and the one that the examples use. Two fields have only their block there.
const TWINS: &[(&str, &str)] = &[
    (".fluxuser", ".fluxUser"),
    ("spec.containers[].fluxLogLevel", "spec.flux.logLevel"),
    ("spec.containers[].fluxOptionFlags", "spec.flux.optionFlags"),
    (".preBroker", ".brokerPre"),
    (".preWorker", ".workerPre"),
    ("spec.flux.leadBroker", "spec.flux.bursting.leadBroker"),
    (".leadBroker.hostlist", ".hostlist"),
    ("spec.containers[].existingVolumes", "spec.containers[].volumes"),
    (".cleanupMiniCluster", ".cleanup"),
    (".volumeName", ".volumeHandle"),
    ("spec.services", "spec.containers"),
    (".fluxUser.disable", ".fluxUser"),
    (".fluxRestful.disable", ".fluxRestful"),
];

/// The example that explains a field best, by the field's path. `Place` has the order.
pub struct Examples(BTreeMap<String, Place>);

/// Fields that the first example explains best.
const OF_HELLO_WORLD: &[&str] = &[
    "spec.size",
    "spec.containers",
    "spec.containers[].image",
    "spec.containers[].command",
];

/// The best place is the least one: of this version, about this field, with a comment above it, short.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    is_of_other_version: bool,
    is_about_other_field: bool,
    has_no_comment: bool,
    length: usize,
    file: PathBuf,
}

impl Examples {
    pub fn of(version: &str) -> Examples {
        let mut all = Examples(BTreeMap::new());
        for file in yaml_files(&repository().join("examples")) {
            let text = std::fs::read_to_string(&file).unwrap();
            for document in serde_saphyr::from_multiple::<Value>(&text).unwrap() {
                if document["kind"] == "MiniCluster" {
                    let file = file
                        .strip_prefix(repository().join("examples"))
                        .unwrap()
                        .to_owned();
                    let is_of_other_version =
                        document["apiVersion"] != format!("flux-framework.org/{version}");
                    let place = Place {
                        is_of_other_version,
                        is_about_other_field: true,
                        has_no_comment: true,
                        length: text.len(),
                        file,
                    };
                    all.add("spec", &document["spec"], &text, &place);
                }
            }
        }
        all
    }

    fn add(&mut self, path: &str, value: &Value, text: &str, place: &Place) {
        match value {
            Value::Object(map) => {
                for (name, inner) in map {
                    let has_no_comment = !is_explained(name, text);
                    // As a field of a block, and as a key of a map: the value does not show which one it is.
                    for path in [format!("{path}.{name}"), format!("{path}{{}}")] {
                        let place = Place {
                            is_about_other_field: !place.is_about(&path, name),
                            has_no_comment,
                            ..place.clone()
                        };
                        let best = self.0.entry(path.clone()).or_insert_with(|| place.clone());
                        *best = best.clone().min(place.clone());
                        self.add(&path, inner, text, &place);
                    }
                }
            }
            Value::Array(list) => list
                .iter()
                .for_each(|item| self.add(&format!("{path}[]"), item, text, place)),
            _ => {}
        }
    }

    /// A link to the example of a field: to the folder of a `minicluster.yaml`, to any other manifest itself. Empty if
    /// there is no example.
    pub fn link(&self, path: &str) -> String {
        let twin = TWINS.iter().fold(path.to_owned(), |path, (name, twin)| {
            if path.contains(name) {
                path.replace(name, twin)
            } else {
                path
            }
        });
        // First an example of this version, then any that sets the field.
        let own = [path, &twin]
            .into_iter()
            .find(|path| self.0.get(*path).is_some_and(|place| !place.is_of_other_version));
        let paths = own.into_iter().chain([path, &twin]);
        let Some(place) = paths.filter_map(|path| self.0.get(path)).next() else {
            return String::new();
        };
        let folder = place.file.parent().unwrap().display();
        match place.file.file_name().unwrap().to_str().unwrap() {
            "minicluster.yaml" => format!("[{folder}]({REPOSITORY}/tree/main/examples/{folder})"),
            file => {
                let name = file.trim_end_matches(".yaml");
                format!("[{folder}/{name}]({REPOSITORY}/blob/main/examples/{folder}/{file})")
            }
        }
    }
}

impl Place {
    /// Whether the file or its folder is named after the field: `min-size.yaml` and `minSize`. The first example is
    /// about the fields of `OF_HELLO_WORLD`.
    fn is_about(&self, path: &str, field: &str) -> bool {
        let plain = |name: &str| name.replace('-', "").to_lowercase();
        let mut names = [
            self.file.file_stem(),
            self.file.parent().and_then(Path::file_name),
        ]
        .into_iter()
        .flatten();
        names.any(|name| {
            let name = name.to_str().unwrap();
            plain(name) == plain(field) || name == "hello-world" && OF_HELLO_WORLD.contains(&path)
        })
    }
}

/// Whether the line above the field's is a comment.
fn is_explained(name: &str, text: &str) -> bool {
    let lines: Vec<&str> = text
        .lines()
        .map(|line| line.trim_start().trim_start_matches("- "))
        .collect();
    lines
        .windows(2)
        .any(|pair| pair[0].starts_with('#') && pair[1].starts_with(&format!("{name}:")))
}
