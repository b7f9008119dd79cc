//! The JSON patch that turns one status into another: whole fields of the status, as few as differ.
//!
//! By hand: the crate json-patch descends into lists and names conditions by their index, which is another
//! condition's by the time the patch arrives if somebody else has written the status.

use std::collections::BTreeMap;

use flux_shared::crd::v1alpha2::MiniClusterStatus;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::target::Target;

/// The patch; None if nothing differs. The API server refuses it if another MiniCluster has the name by now.
/// The first status after the Job was created is also refused if the spec has changed: from that status on
/// edits are refused, so the spec must still be the one that the Job was created from. (In a merge patch of a
/// status, the API server would ignore the uid.)
pub fn patch(target: &Target, before: &MiniClusterStatus, after: &MiniClusterStatus) -> Option<Value> {
    let changes = changes(before, after)?;
    let mut operations = vec![json!({ "op": "test", "path": "/metadata/uid", "value": target.uid })];
    if before.maximum_size.is_none() && after.maximum_size.is_some() {
        operations.push(json!({ "op": "test", "path": "/metadata/generation", "value": target.generation }));
    }
    if !target.has_status {
        operations.push(json!({ "op": "add", "path": "/status", "value": {} }));
    }
    operations.extend(changes.into_iter().map(|(key, value)| match value {
        Value::Null => json!({ "op": "remove", "path": format!("/status/{key}") }),
        value => json!({ "op": "add", "path": format!("/status/{key}"), "value": value }),
    }));
    Some(Value::Array(operations))
}

/// The fields that differ; null for a field that was removed.
fn changes(before: &MiniClusterStatus, after: &MiniClusterStatus) -> Option<BTreeMap<String, Value>> {
    if before == after {
        return None;
    }
    let (before, after) = (fields(before)?, fields(after)?);
    let differs = |key: &str, text: &RawValue| before.get(key).is_none_or(|it| it.get() != text.get());
    let changed = after.iter().filter(|(key, text)| differs(key, text));
    let changed =
        changed.filter_map(|(key, text)| Some((key.clone(), serde_json::from_str(text.get()).ok()?)));
    let removed = before
        .keys()
        .filter(|key| !after.contains_key(*key))
        .map(|key| (key.clone(), Value::Null));
    Some(changed.chain(removed).collect())
}

/// The fields of a status as JSON texts: only those that differ become values.
fn fields(status: &MiniClusterStatus) -> Option<BTreeMap<String, Box<RawValue>>> {
    serde_json::from_str(&serde_json::to_string(status).ok()?).ok()
}

/// Whether somebody may wait for the difference: anything but numbers that still change, and messages with
/// them.
pub fn is_telling(before: &MiniClusterStatus, after: &MiniClusterStatus) -> bool {
    let essence = |status: &MiniClusterStatus| {
        let conditions = status
            .conditions
            .iter()
            .map(|it| (it.type_.clone(), it.status.clone(), it.observed_generation));
        let MiniClusterStatus {
            phase,
            maximum_size,
            exit_code,
            reason,
            completion_time,
            ..
        } = status.clone();
        let restarts = (status.restart_count, status.lost_pods.len());
        (
            phase,
            maximum_size,
            exit_code,
            reason,
            completion_time,
            restarts,
            conditions.collect::<Vec<_>>(),
        )
    };
    essence(before) != essence(after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_of_pods_alone_can_wait() {
        let before = MiniClusterStatus {
            size: 4,
            phase: Some("Pending".into()),
            ..MiniClusterStatus::default()
        };
        assert!(!is_telling(
            &before,
            &MiniClusterStatus {
                size: 5,
                ready_size: 2,
                ..before.clone()
            }
        ));
        assert!(is_telling(
            &before,
            &MiniClusterStatus {
                phase: Some("Running".into()),
                ..before.clone()
            }
        ));
    }

    #[test]
    fn only_what_differs_is_sent_and_only_to_the_same_object() {
        let before = MiniClusterStatus {
            size: 4,
            reason: Some("a".into()),
            ..MiniClusterStatus::default()
        };
        let after = MiniClusterStatus {
            size: 4,
            ready_size: 2,
            ..MiniClusterStatus::default()
        };
        let mut target = crate::testing::target("uid", &before);
        let sent = patch(&target, &before, &after);
        assert_eq!(
            sent,
            Some(json!([
                { "op": "test", "path": "/metadata/uid", "value": "uid" },
                { "op": "add", "path": "/status/readySize", "value": 2 },
                { "op": "remove", "path": "/status/reason" },
            ]))
        );
        assert_eq!(patch(&target, &after, &after.clone()), None);

        target.has_status = false;
        let made = MiniClusterStatus {
            size: 4,
            maximum_size: Some(4),
            ..MiniClusterStatus::default()
        };
        let first = patch(
            &target,
            &MiniClusterStatus {
                size: 4,
                ..MiniClusterStatus::default()
            },
            &made,
        );
        assert_eq!(
            first,
            Some(json!([
                { "op": "test", "path": "/metadata/uid", "value": "uid" },
                { "op": "test", "path": "/metadata/generation", "value": 1 },
                { "op": "add", "path": "/status", "value": {} },
                { "op": "add", "path": "/status/maximumSize", "value": 4 },
            ]))
        );
    }
}
