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

/// Whether somebody may wait for the difference: anything but numbers that still move, and their words.
pub fn is_telling(before: &MiniClusterStatus, after: &MiniClusterStatus) -> bool {
    let essence = |status: &MiniClusterStatus| {
        let conditions =
            status.conditions.iter().map(|it| (it.type_.clone(), it.status.clone(), it.observed_generation));
        let MiniClusterStatus { phase, maximum_size, exit_code, reason, completion_time, .. } = status.clone();
        (phase, maximum_size, exit_code, reason, completion_time, conditions.collect::<Vec<_>>())
    };
    essence(before) != essence(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_pods_alone_can_wait() {
        let before = MiniClusterStatus { size: 4, phase: Some("Pending".into()), ..MiniClusterStatus::default() };
        assert!(!is_telling(&before, &MiniClusterStatus { size: 5, ready_size: 2, ..before.clone() }));
        assert!(is_telling(&before, &MiniClusterStatus { phase: Some("Running".into()), ..before.clone() }));
    }

    #[test]
    fn only_what_differs_is_sent_and_what_went_is_null() {
        let before = MiniClusterStatus { size: 4, reason: Some("a".into()), ..MiniClusterStatus::default() };
        let after = MiniClusterStatus { size: 4, ready_size: 2, ..MiniClusterStatus::default() };
        assert_eq!(patch(&before, &after), Some(json!({ "status": { "readySize": 2, "reason": null } })));
        assert_eq!(patch(&after, &after.clone()), None);
    }
}
