//! Access to optional blocks of a JSON object. `null` counts as missing.

use serde_json::{Map, Value};

/// A JSON object with fields, such as the spec or `flux`.
pub(super) type Block = Map<String, Value>;

/// Whether the field is missing or null.
pub(super) fn is_missing(block: &Block, name: &str) -> bool {
    block.get(name).is_none_or(Value::is_null)
}

/// The block of this name, if there is one.
pub(super) fn object<'a>(block: &'a Block, name: &str) -> Option<&'a Block> {
    block.get(name).and_then(Value::as_object)
}

/// The block of this name, mutable.
pub(super) fn object_mut<'a>(block: &'a mut Block, name: &str) -> Option<&'a mut Block> {
    block.get_mut(name).and_then(Value::as_object_mut)
}

/// Adds the default of each field that is missing.
pub(super) fn fill(block: &mut Block, defaults: &[(&str, Value)]) {
    for (name, value) in defaults {
        if is_missing(block, name) {
            block.insert((*name).to_owned(), value.clone());
        }
    }
}

/// Whether every field of the block is null or has its value in `defaults`.
pub(super) fn has_only(block: &Block, defaults: &[(&str, Value)]) -> bool {
    block.iter().all(|(name, value)| {
        value.is_null()
            || defaults
                .iter()
                .any(|(known, default)| known == name && default == value)
    })
}

/// Whether a boolean field is true.
pub(super) fn is_true(block: &Block, name: &str) -> bool {
    block.get(name) == Some(&Value::Bool(true))
}

/// Whether a text field is given and not blank.
pub(super) fn has_text(block: &Block, name: &str) -> bool {
    block
        .get(name)
        .and_then(Value::as_str)
        .is_some_and(|text| !text.trim().is_empty())
}
