//! Kubernetes' strategic merge patch on JSON. Objects are merged key by key, and some lists by a key of their items;
//! other values are replaced. Directives delete or replace.

use serde_json::{Map, Value};

type Object = Map<String, Value>;

/// Key with the directive for its object: `delete` or `replace`.
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

/// The merge key of the list with this name. None: the list is replaced.
pub fn merge_key(list: &str) -> Option<&'static str> {
    MERGED_LISTS
        .iter()
        .find(|(name, _)| *name == list)
        .map(|(_, key)| *key)
}

/// The values by which an item of a list with the merge key `key` is found. A port has also its protocol, and a spread
/// constraint its `whenUnsatisfiable`, as in a server-side apply. (`kubectl patch` merges ports of two protocols into
/// one.)
pub fn identity<'a>(item: &'a Value, key: &str) -> [Option<&'a Value>; 2] {
    let second = match key {
        // TCP is the default.
        "containerPort" => item
            .get("protocol")
            .filter(|protocol| !protocol.is_null() && *protocol != "TCP"),
        "topologyKey" => item.get("whenUnsatisfiable"),
        _ => None,
    };
    [item.get(key), second]
}

/// Merges `over` into `below` and drops nulls. Both must be objects; otherwise `below` is kept.
pub(super) fn merge(below: Value, over: Value) -> Value {
    let mut merged = match (below, over) {
        (Value::Object(below), Value::Object(over)) => Value::Object(merge_maps(below, over)),
        (below, _) => below,
    };
    drop_nulls(&mut merged);
    merged
}

/// The `$patch` directive of an object, if it has one.
pub(super) fn directive(value: &Value) -> Option<&str> {
    value.get(PATCH).and_then(Value::as_str)
}

fn merge_maps(mut below: Object, mut over: Object) -> Object {
    match over.shift_remove(PATCH).as_ref().and_then(Value::as_str) {
        Some("replace") => return without_directives(over),
        // `delete`, the only other directive that `forms` accepts. It leaves an empty object.
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
            // In the last two cases there is nothing to merge: the old field is missing, is no object, or is of another
            // type. With a directive, the new one is dropped, as in `new_field`, and the old one is removed.
            (_, value) if directive(&value).is_some() => drop(below.shift_remove(&key)),
            (_, value) => drop(below.insert(key, new_field(value))),
        }
    }
    below
}

/// Merges lists by the key `by`. As in Kubernetes, items that the overlay names keep the overlay's order, and a new item
/// comes as early as this order allows.
fn merge_lists(mut below: Vec<Value>, over: Vec<Value>, by: &str) -> Vec<Value> {
    let (directives, items): (Vec<Value>, Vec<Value>) =
        over.into_iter().partition(|item| directive(item).is_some());
    for deleted in directives.iter().filter(|item| directive(item) == Some("delete")) {
        below.retain(|item| identity(item, by) != identity(deleted, by));
    }
    if directives.iter().any(|item| directive(item) == Some("replace")) {
        return items.into_iter().map(new_item).collect();
    }
    // The keys before the merge.
    let order: Vec<[Option<Value>; 2]> = below
        .iter()
        .map(|item| identity(item, by).map(Option::<&Value>::cloned))
        .collect();
    // Items that the overlay names; `below` keeps the others.
    let mut touched: Vec<Value> = Vec::new();
    for item in items {
        let is_same = |other: &Value| identity(other, by) == identity(&item, by);
        let (old, place) = match (touched.iter().position(is_same), below.iter().position(is_same)) {
            // The overlay has named this item before.
            (Some(place), _) => (touched.remove(place), place),
            (None, Some(place)) => (below.remove(place), touched.len()),
            (None, None) => (Value::Null, touched.len()),
        };
        touched.insert(
            place,
            match (old, item) {
                (Value::Object(old), Value::Object(new)) => Value::Object(merge_maps(old, new)),
                (_, item) => new_item(item),
            },
        );
    }
    let rank = |item: &Value| {
        let identity = identity(item, by);
        order
            .iter()
            .position(|other| other.each_ref().map(Option::as_ref) == identity)
    };
    let mut merged = Vec::new();
    let (mut kept, mut touched) = (below.into_iter().peekable(), touched.into_iter().peekable());
    // Merges the two lists: of their first items, the one that came first in `below` is next. A new item has no rank,
    // and comes before.
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

/// A new list item without directives. Kubernetes' merge has no rule for them here: kubectl leaves them in, and the API
/// server takes them for unknown fields. So each has its plain meaning, unlike in `new_field`: fields with
/// `$patch: delete` are dropped, those with `$patch: replace` are kept, and items of its lists are dropped with either.
fn new_item(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map
                .into_iter()
                .filter(|(key, value)| !key.starts_with('$') && directive(value) != Some("delete"));
            Value::Object(kept.map(|(key, value)| (key, new_item(value))).collect())
        }
        Value::Array(list) => Value::Array(
            list.into_iter()
                .filter(|item| directive(item).is_none())
                .map(new_item)
                .collect(),
        ),
        other => other,
    }
}

/// The value of a new field without directives. Fields and items with a directive are dropped, as in Kubernetes.
fn new_field(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(without_directives(map)),
        Value::Array(list) => Value::Array(
            list.into_iter()
                .filter(|item| directive(item).is_none())
                .map(new_field)
                .collect(),
        ),
        other => other,
    }
}

fn without_directives(map: Object) -> Object {
    let kept = map
        .into_iter()
        .filter(|(key, value)| !key.starts_with('$') && directive(value).is_none());
    kept.map(|(key, value)| (key, new_field(value))).collect()
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
