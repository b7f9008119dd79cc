//! The least that has to be sent to turn one status into another: a JSON merge patch.

use flux_shared::crd::v1alpha2::MiniClusterStatus;
use serde_json::{Map, Value, json};

/// None: nothing differs.
pub fn patch(before: &MiniClusterStatus, after: &MiniClusterStatus) -> Option<Value> {
    if before == after {
        return None;
    }
    let (Ok(Value::Object(before)), Ok(Value::Object(after))) =
        (serde_json::to_value(before), serde_json::to_value(after))
    else {
        return None;
    };
    let mut changes = Map::new();
    for (key, value) in &after {
        if before.get(key) != Some(value) {
            changes.insert(key.clone(), value.clone());
        }
    }
    for key in before.keys().filter(|key| !after.contains_key(*key)) {
        changes.insert(key.clone(), Value::Null);
    }
    Some(json!({ "status": changes }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_differs_is_sent_and_what_went_is_null() {
        let before = MiniClusterStatus { size: 4, reason: Some("a".into()), ..MiniClusterStatus::default() };
        let after = MiniClusterStatus { size: 4, ready_size: 2, ..MiniClusterStatus::default() };
        assert_eq!(patch(&before, &after), Some(json!({ "status": { "readySize": 2, "reason": null } })));
        assert_eq!(patch(&after, &after.clone()), None);
    }
}
