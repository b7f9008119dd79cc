//! Kubernetes' strategic merge, on JSON: maps by their keys, lists of items with a key by that, and
//! directives.

use serde_json::{Map, Value};

type Object = Map<String, Value>;

/// Key with a directive for its object.
pub(super) const PATCH: &str = "$patch";
/// Key that lists the keys of its object to keep; others are removed.
pub(super) const RETAIN_KEYS: &str = "$retainKeys";

/// Lists of a pod whose items are merged by a key (`patchMergeKey` of Kubernetes' types); every other list is
/// replaced.
pub const MERGED_LISTS: [(&str, &str); 14] = [
    ("containers", "name"),
    ("initContainers", "name"),
    ("ephemeralContainers", "name"),
    ("volumes", "name"),
    ("imagePullSecrets", "name"),
    ("hostAliases", "ip"),
    ("topologySpreadConstraints", "topologyKey"),
    ("schedulingGates", "name"),
    ("resourceClaims", "name"),
    ("evictionResponders", "name"),
    ("env", "name"),
    ("ports", "containerPort"),
    ("volumeMounts", "mountPath"),
    ("volumeDevices", "devicePath"),
];

/// The merge key of a list, if its items are merged.
pub fn merge_key(list: &str) -> Option<&'static str> {
    MERGED_LISTS
        .iter()
        .find(|(name, _)| *name == list)
        .map(|(_, key)| *key)
}

/// Merges `over` into `below`. A value that is not an object replaces it.
pub(super) fn merge(below: Value, over: Value) -> Value {
    let mut merged = match (below, over) {
        (Value::Object(below), Value::Object(over)) => Value::Object(merge_maps(below, over)),
        (below, _) => below,
    };
    drop_nulls(&mut merged);
    merged
}

/// The `$patch` directive of an object.
pub(super) fn directive(value: &Value) -> Option<&str> {
    value.get(PATCH).and_then(Value::as_str)
}

fn merge_maps(mut below: Object, mut over: Object) -> Object {
    match over.shift_remove(PATCH).as_ref().and_then(Value::as_str) {
        Some("replace") => return without_directives(over),
        Some(_) => return Object::new(),
        None => {}
    }
    if let Some(Value::Array(keys)) = over.shift_remove(RETAIN_KEYS) {
        below.retain(|key, _| keys.iter().any(|kept| kept == key));
    }
    for (key, value) in over {
        match (below.get_mut(&key), value) {
            (_, Value::Null) => drop(below.shift_remove(&key)),
            (Some(Value::Object(old)), Value::Object(new)) => *old = merge_maps(std::mem::take(old), new),
            (Some(Value::Array(old)), Value::Array(new)) => {
                *old = match merge_key(&key) {
                    Some(by) => merge_lists(std::mem::take(old), new, by),
                    None => new,
                };
            }
            (_, value) if directive(&value).is_some() => drop(below.shift_remove(&key)),
            (_, value) => drop(below.insert(key, clean(value))),
        }
    }
    below
}

/// Merges lists by a key. Items of the overlay keep its order, and new ones come before those that it does
/// not name, as in Kubernetes.
fn merge_lists(mut below: Vec<Value>, over: Vec<Value>, by: &str) -> Vec<Value> {
    let (special, items): (Vec<Value>, Vec<Value>) =
        over.into_iter().partition(|item| directive(item).is_some());
    for gone in special.iter().filter(|item| directive(item) == Some("delete")) {
        below.retain(|item| item.get(by) != gone.get(by));
    }
    if special.iter().any(|item| directive(item) == Some("replace")) {
        return items.into_iter().map(fresh).collect();
    }
    let order: Vec<Option<Value>> = below.iter().map(|item| item.get(by).cloned()).collect();
    let mut touched: Vec<Value> = Vec::new();
    for item in items {
        let is_same = |other: &Value| other.get(by) == item.get(by);
        let (old, place) = match (touched.iter().position(is_same), below.iter().position(is_same)) {
            (Some(place), _) => (touched.remove(place), place),
            (None, Some(place)) => (below.remove(place), touched.len()),
            (None, None) => (Value::Null, touched.len()),
        };
        touched.insert(
            place,
            match (old, item) {
                (Value::Object(old), Value::Object(new)) => Value::Object(merge_maps(old, new)),
                (_, item) => fresh(item),
            },
        );
    }
    let rank = |item: &Value| order.iter().position(|key| key.as_ref() == item.get(by));
    let mut merged = Vec::new();
    let (mut kept, mut touched) = (below.into_iter().peekable(), touched.into_iter().peekable());
    loop {
        let kept_first = match (kept.peek(), touched.peek()) {
            (Some(left), Some(right)) => rank(left)
                .zip(rank(right))
                .is_some_and(|(left, right)| left < right),
            (left, _) => left.is_some(),
        };
        match if kept_first { kept.next() } else { touched.next() } {
            Some(item) => merged.push(item),
            None => return merged,
        }
    }
}

/// A new list item without its directives: there is nothing to remove, and replacements are taken as they
/// are.
fn fresh(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map
                .into_iter()
                .filter(|(key, value)| !key.starts_with('$') && directive(value) != Some("delete"));
            Value::Object(kept.map(|(key, value)| (key, fresh(value))).collect())
        }
        Value::Array(list) => Value::Array(
            list.into_iter()
                .filter(|item| directive(item).is_none())
                .map(fresh)
                .collect(),
        ),
        other => other,
    }
}

/// The value of a new field: Kubernetes leaves out whatever has a directive.
fn clean(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(without_directives(map)),
        Value::Array(list) => Value::Array(
            list.into_iter()
                .filter(|item| directive(item).is_none())
                .map(clean)
                .collect(),
        ),
        other => other,
    }
}

fn without_directives(map: Object) -> Object {
    let kept = map
        .into_iter()
        .filter(|(key, value)| !key.starts_with('$') && directive(value).is_none());
    kept.map(|(key, value)| (key, clean(value))).collect()
}

/// Removes fields that are null: they count as left out, and the API server drops them too.
pub fn drop_nulls(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.retain(|_, value| !value.is_null());
            map.values_mut().for_each(drop_nulls);
        }
        Value::Array(list) => list.iter_mut().for_each(drop_nulls),
        _ => {}
    }
}
