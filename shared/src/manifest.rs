//! Parses MiniClusters from YAML or JSON. Problems have the path of their field. Both versions are read; v1alpha1 is
//! converted to v1alpha2.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::Value;

use crate::crd::convert::{Version, convert_spec};
use crate::crd::shape;
use crate::crd::v1alpha2::{KIND, MiniClusterSpec};
use crate::names;
use crate::overlay::drop_nulls;
use crate::problem::{Notice, Problem};
use crate::queueing::Queueing;
use crate::suggest;
use crate::validate::{label_problems, validate};

pub use crate::validate::Manifest;

mod keys;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    #[serde(default)]
    api_version: String,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    spec: Value,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    #[serde(default)]
    name: String,
    #[serde(default)]
    generate_name: String,
    #[serde(default)]
    namespace: Option<String>,
    #[serde(default)]
    labels: Value,
    #[serde(default)]
    annotations: Value,
}

/// Parses the first MiniCluster in `text` (other kinds of documents are skipped). The error has all problems found.
pub fn parse(text: &str) -> Result<Manifest, Vec<Problem>> {
    from_value(&documents(text)?[0])
}

/// Like [`parse`], with the notices about the text as a whole.
pub fn parse_and_note(text: &str) -> Result<(Manifest, Vec<Notice>), Vec<Problem>> {
    let documents = documents(text)?;
    let manifest = from_value(&documents[0])?;
    let mut notices = notices(text);
    let count = documents.len();
    if count > 1 {
        let name = &manifest.name;
        let message = format!("the file has {count} MiniClusters: only the first one, {name}, is used");
        notices.insert(0, Notice::new("", message));
    }
    Ok((manifest, notices))
}

/// The documents of all MiniClusters in `text`, at least one, including those that are items of a List. Other kinds of
/// documents are skipped.
pub fn documents(text: &str) -> Result<Vec<Value>, Vec<Problem>> {
    if text.len() > MOST_BYTES {
        let bytes = text.len();
        return Err(vec![Problem::new(
            "",
            format!("has {bytes} bytes, must have {MOST_BYTES} at most"),
        )]);
    }
    // As in kubectl, the last of duplicate keys counts, and 010 is octal: 8. `keys` reports what differs.
    let options = serde_saphyr::options! { duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins, legacy_octal_numbers: true };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
        vec![Problem::new(
            "",
            format!("this is not YAML: {}", first_line(&error)),
        )]
    })?;
    // Each with the number of its YAML document and, if that is a List, the number of the item in it (else 0).
    let documents: Vec<((usize, usize), Value)> = documents
        .into_iter()
        .enumerate()
        .flat_map(|(number, document)| {
            let items = items(document).into_iter().enumerate();
            items.map(move |(item, document)| ((number, item), document))
        })
        .collect();
    let text_of = |document: &Value, key: &str| document.get(key).and_then(Value::as_str).map(str::to_owned);
    let misspelt = documents
        .iter()
        .filter_map(|(_, document)| text_of(document, "kind"))
        .find(|kind| resembles_minicluster(kind));
    // A misspelt kind of our API group counts as a MiniCluster, so that it is reported and not skipped, even beside
    // valid documents.
    let is_minicluster = |document: &Value| {
        let is_of_group = text_of(document, "apiVersion").is_some_and(|version| version.starts_with(GROUP));
        text_of(document, "kind")
            .is_some_and(|kind| kind == KIND || is_of_group && resembles_minicluster(&kind))
    };
    let (places, miniclusters): (BTreeSet<(usize, usize)>, Vec<Value>) = documents
        .into_iter()
        .filter(|(_, document)| is_minicluster(document))
        .unzip();
    match (miniclusters.is_empty(), misspelt) {
        (true, Some(kind)) => Err(vec![Problem::new(
            "kind",
            format!("is `{kind}`: there is no document of kind {KIND}; did you mean {KIND}?"),
        )]),
        (true, None) => Err(vec![Problem::new(
            "kind",
            format!("there is no document of kind {KIND}"),
        )]),
        (false, _) => {
            let nodes = keys::documents(text);
            let numbers: BTreeSet<usize> = places.iter().map(|(number, _)| *number).collect();
            let misread: Vec<Problem> = numbers
                .iter()
                .filter_map(|number| {
                    let has_item = |item| places.contains(&(*number, item));
                    Some(keys::misread(nodes.get(*number)?, has_item, text))
                })
                .flatten()
                .collect();
            if misread.is_empty() {
                Ok(miniclusters)
            } else {
                Err(misread)
            }
        }
    }
}

/// The API group, with the `/` that precedes the version.
const GROUP: &str = "flux-framework.org/";

/// Limit in bytes of a text to parse (arbitrary). The API server accepts 3 MiB in one request.
const MOST_BYTES: usize = 8 * 1024 * 1024;

/// The items of a List, as `kubectl get -o yaml` prints it, or the document itself.
fn items(mut document: Value) -> Vec<Value> {
    let is_list = document
        .get("kind")
        .and_then(Value::as_str)
        .is_some_and(|kind| kind.ends_with("List"));
    if is_list && let Some(Value::Array(items)) = document.get_mut("items") {
        return std::mem::take(items);
    }
    vec![document]
}

/// Notices about keys of mappings in `text` that silently lose their value. Problems may exist because of that.
pub fn notices(text: &str) -> Vec<Notice> {
    if text.len() > MOST_BYTES {
        return Vec::new();
    }
    let nodes = keys::documents(text);
    duplicate_key(text)
        .into_iter()
        .chain(nodes.iter().flat_map(keys::overridden))
        .collect()
}

/// A notice about the first duplicate key in a mapping of `text`, if there is one: kubectl and [`documents`] silently
/// use the last value.
fn duplicate_key(text: &str) -> Option<Notice> {
    let options = serde_saphyr::options! { duplicate_keys: serde_saphyr::DuplicateKeyPolicy::Error, legacy_octal_numbers: true };
    let error = serde_saphyr::from_multiple_with_options::<Value>(text, options).err()?;
    let message = first_line(&error);
    // Without the parser's advice, which is for programmers.
    let message = message
        .split(", set DuplicateKeyPolicy")
        .next()
        .unwrap_or_default();
    // `documents` reports other errors.
    message
        .contains("duplicate")
        .then(|| Notice::new("", format!("{message}: only the last of them counts")))
}

fn first_line(error: &serde_saphyr::Error) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.strip_prefix("error: ").unwrap_or(line).to_owned()
}

/// Whether the kind is MiniCluster, perhaps misspelt.
fn resembles_minicluster(kind: &str) -> bool {
    suggest::nearest(kind, [KIND].into_iter()).is_some()
}

/// Converts a document to a MiniCluster. The error has all problems found.
pub fn from_value(document: &Value) -> Result<Manifest, Vec<Problem>> {
    let version = document["apiVersion"].as_str().and_then(Version::of);
    let mut problems = problems_outside_spec(document, version.unwrap_or(Version::V1alpha2));
    let mut fields = document.clone();
    drop_nulls_outside(&["spec"], &mut fields);
    let Ok(document) = serde_json::from_value::<Document>(fields) else {
        // A value outside the spec has a wrong type, which has been reported.
        return Err(problems);
    };
    if version.is_none() {
        let known = [Version::V1alpha2, Version::V1alpha1]
            .map(Version::api_version)
            .join(" or ");
        problems.push(Problem::new(
            "apiVersion",
            format!("is `{}`, must be {known}", document.api_version),
        ));
    }
    if document.kind != KIND {
        let remedy = if resembles_minicluster(&document.kind) {
            format!("; did you mean {KIND}?")
        } else {
            format!(", must be {KIND}")
        };
        problems.push(Problem::new("kind", format!("is `{}`{remedy}", document.kind)));
    }
    if document.spec.is_null() {
        problems.push(Problem::new("spec", "is missing"));
        return Err(problems);
    }
    let name = if document.metadata.name.is_empty() && !document.metadata.generate_name.is_empty() {
        // The API server appends five characters.
        format!("{}xxxxx", document.metadata.generate_name)
    } else {
        document.metadata.name
    };
    // An empty one counts as missing, as in kubectl.
    let namespace = document
        .metadata
        .namespace
        .filter(|namespace| !namespace.is_empty())
        .unwrap_or_else(|| "default".into());
    let (labels, annotations) = (
        texts(&document.metadata.labels),
        texts(&document.metadata.annotations),
    );
    let queueing = Queueing::of(Some(&labels), Some(&annotations));
    // In v1alpha1 a missing `cleanup` means true.
    let sets_cleanup = document.spec.get("cleanup").is_some_and(|value| !value.is_null());
    let cleans_by_default = version == Some(Version::V1alpha1) && !sets_cleanup;
    // An unknown version has been reported above. The rest is then checked as v1alpha2.
    let (spec, misfits) = spec(document.spec, version.unwrap_or(Version::V1alpha2));
    problems.extend(misfits);
    let Some(spec) = spec else {
        return Err(problems);
    };
    let manifest = Manifest {
        name,
        namespace,
        queueing,
        cleans_by_default,
        maximum_size: None,
        spec,
    };
    if problems.is_empty() {
        return Ok(manifest);
    }
    // The rest is validated too, so that a value that does not fit hides no other problems.
    let others = validate(&manifest).err().unwrap_or_default();
    let is_independent = |other: &Problem| !may_follow_from(other, &problems);
    let others: Vec<Problem> = others.into_iter().filter(is_independent).collect();
    problems.extend(others);
    Err(problems)
}

/// The fields of a MiniCluster.
const FIELDS: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];

/// The fields of Kubernetes' ObjectMeta.
const METADATA_FIELDS: [&str; 15] = [
    "annotations",
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generateName",
    "generation",
    "labels",
    "managedFields",
    "name",
    "namespace",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];

/// The problems with a document outside its spec: unknown fields, and wrong types and values of the fields that are
/// read here. The API server rejects them, unknown fields only if field validation is strict.
fn problems_outside_spec(document: &Value, version: Version) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut expect = |path: String, value: &Value, fits: bool, wanted: &str| {
        if !fits && !value.is_null() {
            let is_unquoted = wanted == "a string" && (value.is_number() || value.is_boolean());
            let hint = if is_unquoted { " (quote it)" } else { "" };
            let message = format!("is {}, must be {wanted}{hint}", shape::describe(value));
            problems.push(Problem::new(path, message));
        }
    };
    let metadata = &document["metadata"];
    expect(String::new(), document, document.is_object(), "an object");
    expect("metadata".into(), metadata, metadata.is_object(), "an object");
    for field in ["apiVersion", "kind"] {
        let value = &document[field];
        expect(field.into(), value, value.is_string(), "a string");
    }
    for field in ["name", "generateName", "namespace"] {
        let value = &metadata[field];
        expect(format!("metadata.{field}"), value, value.is_string(), "a string");
    }
    for field in ["labels", "annotations"] {
        let map = &metadata[field];
        expect(format!("metadata.{field}"), map, map.is_object(), "an object");
        for (key, value) in map.as_object().into_iter().flatten() {
            let path = format!("metadata.{field}[{key}]");
            expect(path, value, value.is_string(), "a string");
        }
    }
    for (key, value) in texts(&metadata["labels"]) {
        problems.extend(label_problems("metadata.labels", &key, &value));
    }
    for key in texts(&metadata["annotations"]).into_keys() {
        if !names::is_annotation_key(&key) {
            problems.push(Problem::new(
                format!("metadata.annotations[{key}]"),
                "is not an annotation's key",
            ));
        }
    }
    let namespace = metadata["namespace"].as_str().unwrap_or_default();
    if !namespace.is_empty() && !names::is_dns_label(namespace) {
        problems.push(Problem::new(
            "metadata.namespace",
            format!("`{namespace}` is not a namespace's name: 63 lower case letters, digits and `-` at most"),
        ));
    }
    for (path, object, fields) in [
        ("", document, FIELDS.as_slice()),
        ("metadata.", metadata, &METADATA_FIELDS),
    ] {
        let keys = object.as_object().into_iter().flatten().map(|(key, _)| key);
        for key in keys.filter(|key| !fields.contains(&key.as_str())) {
            let why = shape::unknown_outside_spec(key, fields, version);
            problems.push(Problem::new(format!("{path}{key}"), why));
        }
    }
    problems
}

/// Removes nulls, which count as missing, but none within the fields `kept` of the object.
fn drop_nulls_outside(kept: &[&str], value: &mut Value) {
    let fields: Vec<Option<Value>> = kept
        .iter()
        .map(|name| value.get_mut(*name).map(Value::take))
        .collect();
    drop_nulls(value);
    for (name, field) in kept.iter().zip(fields) {
        if let (Some(field), Some(object)) = (field.filter(|field| !field.is_null()), value.as_object_mut()) {
            object.insert((*name).to_owned(), field);
        }
    }
}

/// The entries of a map whose values are texts. The API server rejects others.
fn texts(map: &Value) -> BTreeMap<String, String> {
    let text = |(key, value): (&String, &Value)| Some((key.clone(), value.as_str()?.to_owned()));
    map.as_object().into_iter().flatten().filter_map(text).collect()
}

/// Whether a problem may exist only because a value that did not fit (in `misfits`) was removed: it is about the same
/// field, or about something missing.
fn may_follow_from(problem: &Problem, misfits: &[Problem]) -> bool {
    let is_about = |misfit: &Problem| misfit.is_within(&problem.field) || problem.is_within(&misfit.field);
    // The messages about something missing have one of these words. (So have some about a value: these problems are shown once
    // the misfits are mended.)
    let misses = ["needs", "is needed", "at least", "exactly one"]
        .iter()
        .any(|word| problem.message.contains(word));
    misses || misfits.iter().any(is_about)
}

/// The spec as v1alpha2, without the values that do not fit the schema of its version, and the problems with those
/// values. (The API server rejects unknown fields only if field validation is strict.)
fn spec(mut value: Value, version: Version) -> (Option<MiniClusterSpec>, Vec<Problem>) {
    // Overlays keep their nulls. Elsewhere null means that the field is missing.
    drop_nulls_outside(&OVERLAYS, &mut value);
    let mut problems = shape::check(&mut value, version);
    if version == Version::V1alpha1 {
        convert_spec(&mut value, Version::V1alpha2);
    }
    match serde_json::from_value(value) {
        Ok(spec) => (Some(spec), problems),
        Err(error) => {
            // If there are problems, the cause may be a value that `shape::check` has removed and reported.
            if problems.is_empty() {
                problems.push(Problem::new("spec", error.to_string()));
            }
            (None, problems)
        }
    }
}

/// The pod overlays. In them, null has a meaning: it removes the value that the operator renders.
const OVERLAYS: [&str; 2] = ["podTemplate", "servicesPodTemplate"];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::validate_and_note;

    /// In an overlay, null removes the value that the operator renders.
    #[test]
    fn null_is_kept_only_in_pod_overlays() {
        let text = "{apiVersion: flux-framework.org/v1alpha2, kind: MiniCluster, metadata: {name: a}, \
            spec: {size: null, podTemplate: {spec: {affinity: null}}, servicesPodTemplate: null, containers: [{image: b}]}}";
        let spec = parse(text).unwrap().spec;
        assert_eq!((spec.size, spec.services_pod_template), (1, None));
        assert_eq!(
            spec.pod_template,
            Some(serde_json::json!({ "spec": { "affinity": null } }))
        );
    }

    fn problems(text: &str) -> Vec<String> {
        parse(text).unwrap_err().iter().map(ToString::to_string).collect()
    }

    const HEAD: &str = "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {name: a}\n";

    #[test]
    fn the_first_minicluster_of_several_documents_is_read() {
        let text = format!("kind: ConfigMap\n---\n{HEAD}spec:\n  size: 2\n  containers: [{{image: a}}]\n");
        let manifest = parse(&text).unwrap();
        assert_eq!(
            (
                manifest.name.as_str(),
                manifest.namespace.as_str(),
                manifest.spec.size
            ),
            ("a", "default", 2)
        );
        assert_eq!(manifest.spec.tasks, 1);
    }

    #[test]
    fn empty_namespace_counts_as_missing() {
        let head = HEAD.replace("name: a", "name: a, namespace: ''");
        let manifest = parse(&format!("{head}spec: {{containers: [{{image: a}}]}}\n")).unwrap();
        assert_eq!(manifest.namespace, "default");
    }

    #[test]
    fn fields_outside_the_spec_are_checked() {
        let spec = "spec: {containers: [{image: a}]}\n";
        let of_metadata = |metadata: &str| problems(&(HEAD.replace("{name: a}", metadata) + spec));
        for (metadata, wanted) in [
            ("[a]", "metadata: is a list, must be an object"),
            (
                "{name: 7}",
                "metadata.name: is the number 7, must be a string (quote it)",
            ),
            (
                "{name: a, labels: {cost-center: 1234}}",
                "metadata.labels[cost-center]: is the number 1234, must be a string (quote it)",
            ),
            (
                "{name: a, annotations: [b]}",
                "metadata.annotations: is a list, must be an object",
            ),
            (
                "{name: a, lables: {b: c}}",
                "metadata.lables: no such field; did you mean labels?",
            ),
            (
                "{name: a, labels: {team: my team}}",
                "metadata.labels[team]: `my team` is not a label's value: 63 letters, digits, `-`, `_`, `.` at most",
            ),
            (
                "{name: a, labels: {kueue.x-k8s.io/queue-name: a b}}",
                "metadata.labels[kueue.x-k8s.io/queue-name]: `a b` is not a label's value: \
                 63 letters, digits, `-`, `_`, `.` at most",
            ),
            (
                "{name: a, labels: {My.Site/team: b}}",
                "metadata.labels[My.Site/team]: is not a label's key",
            ),
            (
                "{name: a, annotations: {my key: c d}}",
                "metadata.annotations[my key]: is not an annotation's key",
            ),
            (
                "{name: a, namespace: My_Team}",
                "metadata.namespace: `My_Team` is not a namespace's name: \
                 63 lower case letters, digits and `-` at most",
            ),
            (
                "{name: a, size: 4}",
                "metadata.size: no such field here; did you mean spec.size?",
            ),
        ] {
            assert_eq!(of_metadata(metadata), [wanted]);
        }
        assert_eq!(
            problems(&format!("{HEAD}{spec}archive: {{path: /a.tar}}\nspecs: {{}}\n")),
            [
                "archive: no such field here; did you mean spec.archive?",
                "specs: no such field; did you mean spec?"
            ]
        );
        let of_server = "{name: a, labels: {b: , site.org/Team: A_b.c}, annotations: {My.Site/A: d e}, uid: c, \
                         generation: 2, creationTimestamp: null, managedFields: [{manager: d}], \
                         ownerReferences: [{uid: e}]}";
        assert!(parse(&(HEAD.replace("{name: a}", of_server) + spec + "status: {phase: Running}\n")).is_ok());
        let without = HEAD.replace("metadata: {name: a}", "metadata:");
        assert_eq!(parse(&(without + spec)).unwrap().name, "");
    }

    #[test]
    fn list_is_read_item_by_item() {
        let item = |kind: &str| {
            format!(
                "{{apiVersion: flux-framework.org/v1alpha2, kind: {kind}, metadata: {{name: a}}, spec: {{containers: [{{image: b}}]}}}}"
            )
        };
        for list in ["List", "MiniClusterList"] {
            let text = format!(
                "kind: {list}\nitems: [{}, {}, {{kind: Pod}}]\n",
                item("MiniCluster"),
                item("MiniCluster")
            );
            assert_eq!(documents(&text).unwrap().len(), 2, "{list}");
        }
        assert!(problems("kind: List\nitems: [{kind: Pod}]")[0].contains("no document of kind MiniCluster"));
    }

    #[test]
    fn misread_key_is_reported_only_in_miniclusters() {
        let pod = "kind: ConfigMap\ndata: {N: x}\n---\n";
        let text = |key: &str| {
            format!("{pod}{HEAD}spec:\n  containers:\n  - image: a\n    environment: {{{key}: '1'}}\n")
        };
        let found = problems(&text("N"));
        assert_eq!(
            found,
            ["spec.containers[0].environment: kubectl reads the key `N` in line 10 as `false`: quote it"]
        );
        assert!(parse(&text("'N'")).is_ok());
        let list =
            "kind: List\nitems: [{kind: ConfigMap, data: {on: x}}, {kind: MiniCluster, spec: {no: 1}}]\n";
        let found = problems(list);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("items[1].spec: kubectl reads the key `no`"));
    }

    #[test]
    fn first_of_several_and_lost_values_are_noted() {
        let spec = "spec: &spec {size: 2, size: 3, containers: [{image: a}]}\n";
        let lines = |text: &str| -> Vec<String> {
            let (_, notices) = parse_and_note(text).unwrap();
            notices.iter().map(ToString::to_string).collect()
        };
        let found = lines(&format!(
            "{HEAD}{spec}---\n{HEAD}spec: {{containers: [{{image: a}}]}}\n"
        ));
        assert_eq!(
            found[0],
            "the file has 2 MiniClusters: only the first one, a, is used"
        );
        assert!(found.len() == 2 && found[1].contains("duplicate"), "{found:?}");
        let single = format!("{HEAD}spec: {{<<: {{size: 2}}, containers: [{{image: a}}]}}\n");
        assert_eq!(lines(&single), [""; 0]);
    }

    #[test]
    fn duplicate_key_is_found_with_its_line() {
        let twice = duplicate_key("spec:\n  size: 2\n  size: 3\n")
            .unwrap()
            .to_string();
        assert!(
            twice.starts_with("line 3 ") && twice.contains("size") && twice.contains("only the last"),
            "{twice}"
        );
        assert!(duplicate_key("a: {size: 2}\nb: {size: 3}\n---\na: 1\n").is_none());
    }

    #[test]
    fn missing_name_and_too_long_text_are_reported() {
        let nameless = HEAD.replace("{name: a}", "{}") + "spec: {containers: [{image: a}]}\n";
        let problem = validate(&parse(&nameless).unwrap()).unwrap_err()[0].to_string();
        assert!(problem.starts_with("metadata.name: is missing"), "{problem}");
        let long = "#".repeat(MOST_BYTES + 1);
        assert!(problems(&long)[0].contains("must have 8388608 at most"));
    }

    #[test]
    fn unknown_or_wrong_field_is_named_by_its_path() {
        let text =
            format!("{HEAD}spec:\n  containers:\n  - image: a\n    comand: x\n    commands: {{pres: y}}\n");
        let found = problems(&text);
        assert_eq!(
            found[0],
            "spec.containers[0].comand: no such field; did you mean command?"
        );
        assert_eq!(
            found[1],
            "spec.containers[0].commands.pres: no such field; did you mean pre?"
        );
        let found = problems(&format!("{HEAD}spec:\n  size: four\n  containers: []\n"));
        assert!(found[0].starts_with("spec.size: "), "{found:?}");
        let deep = "spec:\n  containers: [{image: a}, {image: b, volumes: {a/b: {path: /x, readOnly: 7}}}]\n";
        let found = problems(&format!("{HEAD}{deep}"));
        assert!(
            found[0]
                .starts_with("spec.containers[1].volumes[a/b].readOnly: is the number 7, must be a boolean"),
            "{found:?}"
        );
        let found = problems(&format!("{HEAD}spec: {{size: 2}}\n"));
        assert!(found[0].starts_with("spec.containers: is needed"), "{found:?}");
        assert!(problems("a: [")[0].starts_with("this is not YAML: line "));
    }

    #[test]
    fn empty_value_is_missing_and_last_duplicate_counts() {
        let empty = "spec:\n  flux:\n  logging: {quiet: }\n  containers: [{image: a, command: , environment: {A: }}]\n";
        assert_eq!(
            parse(&format!("{HEAD}{empty}")).unwrap().spec.containers[0].command,
            None
        );
        let twice = parse(&format!("{HEAD}spec:\n  size: 2\n  size: 3\n  containers: []\n")).unwrap();
        assert_eq!(twice.spec.size, 3);
    }

    #[test]
    fn misspelt_kind_is_reported_even_beside_a_correct_one() {
        assert!(problems("kind: Pod")[0].contains("kind MiniCluster"));
        assert!(problems("kind: Minicluster")[0].ends_with("did you mean MiniCluster?"));
        let misspelt =
            HEAD.replace("MiniCluster", "Minicluster") + "spec: {size: 0, containers: [{image: a}]}\n";
        let wanted = [
            "kind: is `Minicluster`; did you mean MiniCluster?",
            "spec.size: must be 1 to 10000",
        ];
        assert_eq!(problems(&misspelt), wanted);
        // In another API group, the kind may have that name.
        let right = format!("{HEAD}spec: {{containers: [{{image: a}}]}}\n---\n");
        assert_eq!(documents(&format!("{right}{misspelt}")).unwrap().len(), 2);
        let strange = misspelt.replace("flux-framework.org", "example.org");
        assert_eq!(documents(&format!("{right}{strange}")).unwrap().len(), 1);
    }

    #[test]
    fn wrong_type_hides_no_wrong_value_and_adds_no_problem() {
        let text = "spec:\n  task: 4\n  size: 0\n  image: b\n  deadlineSeconds: soon\n  containers:\n  - {image: a, comand: x, batch: true, cores: -1}\n";
        let found = problems(&format!("{HEAD}{text}"));
        let wanted = [
            "spec.task: no such field; did you mean tasks?",
            "spec.image: no such field here; did you mean spec.containers[].image?",
            "spec.deadlineSeconds: is the text `soon`, must be an integer",
            "spec.containers[0].comand: no such field; did you mean command?",
            "spec.size: must be 1 to 10000",
            "spec.containers[0].cores: must be 1 to 65536; leave it out for the cores that the container may use",
        ];
        assert_eq!(found, wanted);
    }

    #[test]
    fn required_field_is_not_missed_when_an_item_has_a_wrong_type() {
        let found = problems(&format!("{HEAD}spec: {{containers: [foo]}}\n"));
        assert_eq!(
            found,
            ["spec.containers[0]: is the text `foo`, must be an object"]
        );
        // `containersx` is no part of `containers`.
        let found = problems(&format!("{HEAD}spec: {{containersx: []}}\n"));
        assert_eq!(found.len(), 2, "{found:?}");
        assert_eq!(found[1], "spec.containers: is needed");
    }

    #[test]
    fn v1alpha1_is_converted_and_checked_by_its_own_field_names() {
        let head = HEAD.replace("v1alpha2", "v1alpha1");
        let manifest = parse(&format!(
            "{head}spec:\n  containers: [{{image: a, command: b}}]\n"
        ))
        .unwrap();
        assert!(manifest.spec.cleanup_pods);
        assert!(manifest.spec.flux.unwrap().container.unwrap().disable);
        let found = problems(&format!(
            "{head}spec:\n  cleanupPods: true\n  containers: [{{image: a}}]\n"
        ));
        assert!(
            found[0].starts_with("spec.cleanupPods: no such field"),
            "{found:?}"
        );
        let found = problems(&HEAD.replace("v1alpha2", "v1"));
        assert!(
            found[0].starts_with("apiVersion: is `flux-framework.org/v1`"),
            "{found:?}"
        );
    }

    #[test]
    fn v1alpha1_without_cleanup_notes_that_the_output_is_deleted() {
        let notes = |spec: &str| -> Vec<String> {
            let manifest = parse(&format!("{}{spec}", HEAD.replace("v1alpha2", "v1alpha1"))).unwrap();
            validate_and_note(&manifest)
                .unwrap()
                .notices
                .iter()
                .map(ToString::to_string)
                .collect()
        };
        let found = notes("spec:\n  containers: [{image: a, command: b}]\n");
        assert!(
            found.len() == 1 && found[0].starts_with("spec.cleanup: is not set"),
            "{found:?}"
        );
        assert_eq!(
            notes("spec:\n  cleanup: true\n  containers: [{image: a, command: b}]\n"),
            [""; 0]
        );
        assert_eq!(
            notes("spec:\n  interactive: true\n  containers: [{image: a}]\n"),
            [""; 0]
        );
    }

    #[test]
    fn numbers_are_read_as_kubectl_reads_them() {
        for (written, size) in [("010", 8), ("0x10", 16), ("0o10", 8), ("2.0", 2), ("1e1", 10)] {
            let text = format!(
                "{HEAD}spec:\n  size: {written}\n  containers: [{{image: a, resources: {{limits: {{cpu: {written}}}}}}}]\n"
            );
            assert_eq!(parse(&text).unwrap().spec.size, size, "{written}");
        }
        for written in ["2.5", "1e18", "1e300", ".nan", ".inf", "-1e300"] {
            let text = format!("{HEAD}spec:\n  size: {written}\n  containers: [{{image: a}}]\n");
            assert!(parse(&text).is_err(), "{written}");
        }
    }

    proptest::proptest! {
        #[test]
        fn random_text_is_parsed_or_rejected_without_panic(text in "[ -~\n]{0,200}") {
            let _ = parse(&text);
        }
    }
}
