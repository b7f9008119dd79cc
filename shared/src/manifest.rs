//! A MiniCluster as a person writes it: YAML (or JSON) text to the wire type, with the path of whatever does not fit.

use serde::Deserialize;
use serde_json::Value;

use crate::crd::v1alpha2::{GROUP, KIND, MiniClusterSpec, VERSION};
use crate::validate::Problem;

/// A MiniCluster read from text or from the API server.
#[derive(Debug, Clone, PartialEq)]
pub struct Manifest {
    pub name: String,
    /// Empty in the manifest: `default`.
    pub namespace: String,
    pub spec: MiniClusterSpec,
}

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
}

/// The first MiniCluster of `text` (other documents are passed over), or every problem with its shape.
pub fn parse(text: &str) -> Result<Manifest, Vec<Problem>> {
    // Of a key that stands there twice the last counts, as kubectl has it.
    let options = serde_saphyr::options! { duplicate_keys: serde_saphyr::DuplicateKeyPolicy::LastWins };
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
        let first_line = error.to_string().lines().next().unwrap_or_default().to_owned();
        vec![Problem::new("", format!("this is not YAML: {first_line}"))]
    })?;
    let document = documents
        .iter()
        .find(|document| document.get("kind").and_then(Value::as_str) == Some(KIND))
        .ok_or_else(|| vec![Problem::new("kind", format!("there is no document of kind {KIND}"))])?;
    from_value(document)
}

/// The MiniCluster of one parsed document.
pub fn from_value(document: &Value) -> Result<Manifest, Vec<Problem>> {
    let document: Document =
        serde_json::from_value(document.clone()).map_err(|error| vec![Problem::new("", error.to_string())])?;
    let mut problems = Vec::new();
    let wanted = format!("{GROUP}/{VERSION}");
    if document.api_version != wanted {
        problems.push(Problem::new("apiVersion", format!("is `{}`, must be {wanted}", document.api_version)));
    }
    if document.kind != KIND {
        problems.push(Problem::new("kind", format!("is `{}`, must be {KIND}", document.kind)));
    }
    if document.spec.is_null() {
        problems.push(Problem::new("spec", "is missing"));
        return Err(problems);
    }
    let name = match document.metadata.name.is_empty() && !document.metadata.generate_name.is_empty() {
        true => format!("{}xxxxx", document.metadata.generate_name),
        false => document.metadata.name,
    };
    match spec(&document.spec) {
        Ok(spec) if problems.is_empty() => {
            Ok(Manifest { name, namespace: document.metadata.namespace.unwrap_or_else(|| "default".into()), spec })
        }
        Ok(_) => Err(problems),
        Err(more) => {
            problems.extend(more);
            Err(problems)
        }
    }
}

/// The spec, with unknown fields refused: a client that validates strictly would refuse them too.
fn spec(value: &Value) -> Result<MiniClusterSpec, Vec<Problem>> {
    let mut unknown = Vec::new();
    let mut note = |path: serde_ignored::Path<'_>| unknown.push(clean(&path.to_string()));
    let mut track = serde_path_to_error::Track::new();
    let inner = serde_path_to_error::Deserializer::new(value, &mut track);
    let result = MiniClusterSpec::deserialize(serde_ignored::Deserializer::new(inner, &mut note));
    match result {
        Ok(spec) if unknown.is_empty() => Ok(spec),
        Ok(_) => Err(unknown
            .into_iter()
            .map(|path| Problem::new(format!("spec.{path}"), "no such field; check the spelling and the place"))
            .collect()),
        Err(error) => {
            let path = clean(&track.path().to_string());
            let field = if path == "." { "spec".to_owned() } else { format!("spec.{path}") };
            Err(vec![Problem::new(field, error.to_string())])
        }
    }
}

/// `containers.0.?.x` and `containers[0].x` become `containers[0].x`.
fn clean(path: &str) -> String {
    let mut out = String::new();
    for part in path.split('.').filter(|part| !part.is_empty() && *part != "?") {
        if part.bytes().all(|b| b.is_ascii_digit()) {
            out.push_str(&format!("[{part}]"));
        } else {
            if !out.is_empty() {
                out.push('.');
            }
            out.push_str(part);
        }
    }
    if out.is_empty() { ".".into() } else { out }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(text: &str) -> Vec<String> {
        parse(text).unwrap_err().iter().map(ToString::to_string).collect()
    }

    const HEAD: &str = "apiVersion: flux-framework.org/v1alpha2\nkind: MiniCluster\nmetadata: {name: a}\n";

    #[test]
    fn the_first_minicluster_of_several_documents_is_read() {
        let text = format!("kind: ConfigMap\n---\n{HEAD}spec:\n  size: 2\n  containers: [{{image: a}}]\n");
        let manifest = parse(&text).unwrap();
        assert_eq!((manifest.name.as_str(), manifest.namespace.as_str(), manifest.spec.size), ("a", "default", 2));
        assert_eq!(manifest.spec.tasks, 1);
    }

    #[test]
    fn what_does_not_fit_is_named_by_its_path() {
        let text = format!("{HEAD}spec:\n  containers:\n  - image: a\n    comand: x\n    commands: {{pres: y}}\n");
        let found = problems(&text);
        assert!(found[0].starts_with("spec.containers[0].comand: no such field"), "{found:?}");
        assert!(found[1].starts_with("spec.containers[0].commands.pres: no such field"), "{found:?}");
        let found = problems(&format!("{HEAD}spec:\n  size: four\n  containers: []\n"));
        assert!(found[0].starts_with("spec.size: "), "{found:?}");
        assert!(problems("a: [")[0].starts_with("this is not YAML"));
        let twice = parse(&format!("{HEAD}spec:\n  size: 2\n  size: 3\n  containers: []\n")).unwrap();
        assert_eq!(twice.spec.size, 3);
        assert!(problems("kind: Pod")[0].contains("kind MiniCluster"));
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_answered(text in "[ -~\n]{0,200}") {
            let _ = parse(&text);
        }
    }
}
