//! Checks whether an overlay can be merged: directives are where they have an effect, and list items have their merge
//! key.

use serde_json::{Map, Value};

use super::strategic_merge::{PATCH, RETAIN_KEYS, merge_key};
use crate::problem::Problem;

/// Most items in all merged lists and keys in all `$retainKeys`, together (arbitrary): the merge compares each with the
/// others of its list.
const ITEMS_MAX: usize = 5000;

/// Everything in the overlay that cannot be merged.
pub(super) fn problems(field: &str, overlay: &Value) -> Vec<Problem> {
    let count = compared("", overlay);
    if count > ITEMS_MAX {
        let message = format!("has {count} items in lists that are merged, and {ITEMS_MAX} is the limit");
        return vec![Problem::new(field, message)];
    }
    let mut problems = Vec::new();
    match overlay {
        Value::Object(map) => check_object(field, map, true, &mut problems),
        _ => problems.push(Problem::new(
            field,
            "must be an object with metadata and spec, as a Job's template has them",
        )),
    }
    problems
}

/// Number of items and keys that the merge compares with others, in the value of the field `name` (empty: the whole
/// overlay, or an item of a list).
fn compared(name: &str, value: &Value) -> usize {
    match value {
        Value::Object(map) => map.iter().map(|(key, inner)| compared(key, inner)).sum(),
        Value::Array(list) => {
            let is_compared = merge_key(name).is_some() || name == RETAIN_KEYS;
            let here = if is_compared { list.len() } else { 0 };
            here + list.iter().map(|item| compared("", item)).sum::<usize>()
        }
        _ => 0,
    }
}

/// Checks the value of the field `name` (empty: an item of a list). `merges`: the value is merged; false below a
/// list that is replaced, where directives have no effect.
fn check_value(path: &str, name: &str, value: &Value, merges: bool, problems: &mut Vec<Problem>) {
    match value {
        Value::Object(map) => check_object(path, map, merges, problems),
        Value::Array(list) => match merge_key(name) {
            Some(key) if merges => check_items(path, list, key, problems),
            _ => {
                for (i, item) in list.iter().enumerate() {
                    check_value(&format!("{path}[{i}]"), "", item, false, problems);
                }
            }
        },
        _ => {}
    }
}

/// Checks a list whose items are merged by `key`.
fn check_items(path: &str, list: &[Value], key: &str, problems: &mut Vec<Problem>) {
    for (i, item) in list.iter().enumerate() {
        let path = format!("{path}[{i}]");
        let Value::Object(map) = item else {
            problems.push(Problem::new(path, "must be an object"));
            continue;
        };
        // `$patch: replace` in an item replaces the whole list, so this item needs no key.
        let replaces = map.get(PATCH).is_some_and(|directive| directive == "replace");
        if !replaces
            && !map
                .get(key)
                .is_some_and(|value| value.is_string() || value.is_number())
        {
            problems.push(Problem::new(
                format!("{path}.{key}"),
                format!("is needed: items are merged by their {key}"),
            ));
        }
        check_object(&path, map, true, problems);
    }
}

/// Checks the fields and directives of an object.
fn check_object(path: &str, map: &Map<String, Value>, merges: bool, problems: &mut Vec<Problem>) {
    for (key, inner) in map {
        let below = format!("{path}.{key}");
        if !key.starts_with('$') {
            check_value(&below, key, inner, merges, problems);
            continue;
        }
        let is_known = match key.as_str() {
            PATCH => inner == "replace" || inner == "delete",
            RETAIN_KEYS => {
                let keys = inner.as_array().map(Vec::as_slice).unwrap_or_default();
                // As in Kubernetes, `$retainKeys` must name every key that the overlay sets beside it.
                let is_kept = |key: &String| keys.iter().any(|kept| kept == key);
                inner.is_array()
                    && map
                        .iter()
                        .all(|(key, value)| key.starts_with('$') || value.is_null() || is_kept(key))
            }
            _ => false,
        };
        if !merges {
            problems.push(Problem::new(
                below,
                "has no effect here: this list is replaced, not merged",
            ));
        } else if !is_known {
            problems.push(Problem::new(
                below,
                "is not supported: directives are `$patch: replace`, `$patch: delete`, and $retainKeys with all keys beside it",
            ));
        }
    }
}
