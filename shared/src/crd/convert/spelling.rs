//! Keeps the author's spelling if the other version cannot express it, such as `cleanupPods: false` in v1alpha2,
//! which means the same as no `cleanupPods`.
//!
//! An annotation of the converted object holds the differences between the original and what conversion back would
//! yield. So an object that is read and written back in the other version is stored as it was. Anybody can write such
//! an annotation, so it is applied only if the result converts to exactly the spec that it came with.

use serde_json::{Map, Value};

use super::{Version, convert_spec};

/// The API server's limit of all annotations of an object, in bytes. If the spelling's annotation would exceed this
/// limit, conversion keeps the object's meaning, but not its spelling.
const TOTAL_MAX: usize = 256 << 10;

/// Limit in bytes of an annotation that is written or applied (arbitrary). Without this limit and `DEPTH_MAX`, an
/// annotation could nest values deeper than the webhook's stack allows.
const LENGTH_MAX: usize = 16 << 10;
/// Most parts of a JSON pointer in an annotation (arbitrary); longer pointers are ignored.
const DEPTH_MAX: usize = 16;

/// Values of the original spec by JSON pointer. Null: the original lacks the field. Conversion changes only fields of
/// known names, without `/` and `~`: so nothing is escaped in the pointers.
type Differences = Map<String, Value>;

/// Name of the annotation with the spelling in this version.
fn annotation(version: Version) -> String {
    format!("flux-framework.org/{}-spelling", version.name())
}

/// Removes the annotation with the spelling in `version`, and returns its content. Empty: there is none that can be
/// used.
pub(super) fn take(object: &mut Map<String, Value>, version: Version) -> Differences {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return Differences::new();
    };
    let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) else {
        return Differences::new();
    };
    let Some(text) = annotations.shift_remove(&annotation(version)) else {
        return Differences::new();
    };
    if annotations.is_empty() {
        metadata.shift_remove("annotations");
    }
    text.as_str()
        .filter(|text| text.len() <= LENGTH_MAX)
        .and_then(|text| serde_json::from_str(text).ok())
        .unwrap_or_default()
}

/// Applies `differences` to a converted spec, unless the result would not convert back to `original`, the spec before
/// this conversion, in version `from`: in that case `original` was changed since, or the annotation is forged.
pub(super) fn restore(spec: &mut Value, differences: &Differences, original: &Value, from: Version) {
    if differences.is_empty() {
        return;
    }
    let mut restored = spec.clone();
    for (pointer, value) in differences {
        if pointer.matches('/').count() > DEPTH_MAX {
            continue;
        }
        let Some((parent, field)) = pointer.rsplit_once('/') else {
            continue;
        };
        let Some(block) = restored.pointer_mut(parent).and_then(Value::as_object_mut) else {
            continue;
        };
        if value.is_null() {
            block.shift_remove(field);
        } else {
            block.insert(field.to_owned(), value.clone());
        }
    }
    let mut back = restored.clone();
    convert_spec(&mut back, from);
    if back == *original {
        *spec = restored;
    }
}

/// Records the spelling of `original`, a spec of version `from`, in an annotation, if conversion back would change it.
pub(super) fn note(object: &mut Map<String, Value>, original: &Value, from: Version) {
    let Some(spec) = object.get("spec") else { return };
    let mut back = spec.clone();
    convert_spec(&mut back, from);
    let mut differences = Differences::new();
    collect(&back, original, "", &mut differences);
    if differences.is_empty() {
        return;
    }
    let text = Value::Object(differences).to_string();
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    let annotations = metadata
        .entry("annotations")
        .or_insert_with(|| Value::Object(Map::new()));
    let Some(annotations) = annotations.as_object_mut() else {
        return;
    };
    let length = |(key, value): (&String, &Value)| key.len() + value.as_str().map_or(0, str::len);
    let total: usize = annotations.iter().map(length).sum();
    let name = annotation(from);
    if text.len() <= LENGTH_MAX && total + name.len() + text.len() <= TOTAL_MAX {
        annotations.insert(name, text.into());
    }
}

/// Adds to `out` what must change in `value` to make it `wanted`. `at` is the JSON pointer to `value`.
fn collect(value: &Value, wanted: &Value, at: &str, out: &mut Differences) {
    match (value, wanted) {
        (Value::Object(block), Value::Object(wanted)) => {
            for (field, wanted) in wanted {
                let at = format!("{at}/{field}");
                match block.get(field) {
                    Some(value) => collect(value, wanted, &at, out),
                    // Null means the same as no field, and `Differences` cannot hold it.
                    None if wanted.is_null() => {}
                    None => {
                        out.insert(at, wanted.clone());
                    }
                }
            }
            let added = block.keys().filter(|field| !wanted.contains_key(*field));
            out.extend(added.map(|field| (format!("{at}/{field}"), Value::Null)));
        }
        (Value::Array(list), Value::Array(wanted)) if list.len() == wanted.len() => {
            for (i, (value, wanted)) in list.iter().zip(wanted).enumerate() {
                collect(value, wanted, &format!("{at}/{i}"), out);
            }
        }
        _ if value == wanted => {}
        _ => {
            out.insert(at.to_owned(), wanted.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Each value is almost as deep as serde_json parses, and its pointer leads to the bottom of the value before.
    fn nested(chunks: usize) -> Differences {
        let deep = |field: &str| {
            let mut value = json!({});
            for _ in 0..120 {
                value = json!({ field: value });
            }
            value
        };
        (0..chunks)
            .map(|chunk| ("/x".repeat(1 + chunk * 121), deep("x")))
            .collect()
    }

    #[test]
    fn forged_annotation_does_not_nest_deeper_than_the_stack() {
        let restore = || {
            let mut spec = json!({ "size": 1 });
            let original = spec.clone();
            restore(&mut spec, &nested(400), &original, Version::V1alpha1);
            assert_eq!(spec, original);
        };
        let thread = std::thread::Builder::new().stack_size(512 << 10);
        thread.spawn(restore).unwrap().join().unwrap();
    }

    #[test]
    fn long_annotation_is_dropped() {
        let take = |length: usize| {
            let text = format!("{{\"/a\":\"{}\"}}", "x".repeat(length));
            let object = json!({ "metadata": { "annotations": { (annotation(Version::V1alpha1)): text } } });
            let Value::Object(mut object) = object else {
                unreachable!()
            };
            let differences = take(&mut object, Version::V1alpha1);
            assert_eq!(object["metadata"], json!({}), "it is gone in any case");
            differences.len()
        };
        assert_eq!(take(10), 1);
        assert_eq!(take(LENGTH_MAX), 0);
    }
}
