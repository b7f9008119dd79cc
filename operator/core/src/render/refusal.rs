//! Finds the fields of an overlay because of which the API server rejects an object, or which it drops. Pure.

use flux_shared::overlay::{identity, merge_key};
use flux_shared::validate::Problem;
use serde_json::Value;

use super::overlaid::AppliedOverlay;
use crate::previous_status::{MESSAGE_MAX, cut_middle};

/// The API server's answer to a dry run of creating an object.
#[derive(Debug)]
pub enum DryRun {
    /// Accepted: the object as it would be stored.
    Accepted(Value),
    /// Valid, but an object of this name exists. So how it would be stored is unknown.
    Exists,
    /// Refused, with these words.
    Refused(String),
}

/// The problem in an overlay, and the remedy. `answer` is about the object with the overlay. None also if a policy
/// denies the object: any field of it may be the cause.
pub fn problem(applied: &AppliedOverlay, answer: &DryRun) -> Option<Problem> {
    match answer {
        DryRun::Refused(words) if is_denial(words) => None,
        DryRun::Refused(words) => {
            let words = with_overlay_paths(&cut_middle(words, LONGEST), applied);
            Some(Problem::new(
                applied.field,
                format!("the API server rejects the pods with this overlay: {words}"),
            ))
        }
        DryRun::Exists => None,
        DryRun::Accepted(kept) => {
            let fields = left_out(kept, applied);
            let what = "the API server drops it silently, as it does with fields of a disabled feature, or a mutating webhook or policy of the cluster removes it: leave it out, or enable the feature";
            (!fields.is_empty()).then(|| Problem::new(fields.join(", "), what))
        }
    }
}

/// Whether a refusal is that of an admission webhook or a ValidatingAdmissionPolicy, not of the API server itself.
pub fn is_denial(words: &str) -> bool {
    let is_of_webhook = words.starts_with("admission webhook ") && words.contains("denied the request");
    let is_of_policy =
        words.contains(" is forbidden: ValidatingAdmissionPolicy ") && words.contains("denied request");
    is_of_webhook || is_of_policy
}

/// The longest message of the API server that is read, in characters. The message may name many thousand items. This is
/// more than a status has room for, since `with_overlay_paths` may drop its first words.
const LONGEST: usize = 8 * MESSAGE_MAX;

/// The API server's message with paths in the object replaced by paths in the overlay.
pub fn with_overlay_paths(words: &str, applied: &AppliedOverlay) -> String {
    let mut text = String::with_capacity(words.len());
    let mut rest = words;
    while let Some(start) = next_path(rest, applied) {
        let length = rest[start..].find(|c: char| !(c.is_ascii_alphanumeric() || ".[]_-/$".contains(c)));
        let path = rest[start..start + length.unwrap_or(rest.len() - start)].trim_end_matches('.');
        text.push_str(&rest[..start]);
        text.push_str(&path_in_overlay(path, applied).unwrap_or_else(|| path.to_owned()));
        rest = &rest[start + path.len()..];
    }
    text.push_str(rest);
    // A decoder's message begins with names of Go types, which mean nothing to the user.
    match text
        .find("strict decoding error: ")
        .or_else(|| text.find("json: cannot unmarshal "))
    {
        Some(at) => text.split_off(at),
        None => text,
    }
}

/// Position in `text` of the next path into the pod template.
fn next_path(text: &str, applied: &AppliedOverlay) -> Option<usize> {
    let starts: &[&str] = if applied.at.is_empty() {
        &["spec.", "metadata."]
    } else {
        &[applied.at]
    };
    let mut from = 0;
    loop {
        let found = starts.iter().filter_map(|start| text[from..].find(start)).min()? + from;
        // A path does not begin in the middle of another word. (It may follow the name of a Go type and a dot.)
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if !text[..found].ends_with(is_word) {
            return Some(found);
        }
        from = found + 1;
    }
}

/// The path in the overlay for a path in the object. Items of lists are matched by their merge keys. None: the overlay
/// lacks the named field, which the object has, or the named item of a list with a merge key.
fn path_in_overlay(path: &str, applied: &AppliedOverlay) -> Option<String> {
    let below = path.strip_prefix(applied.at)?.trim_start_matches('.');
    let (mut sent, mut overlay) = (applied.template_in(&applied.sent), Some(&applied.overlay));
    let mut path = applied.field.to_owned();
    // The API server leaves out `metadata` in the paths of a template's labels and annotations.
    if ["labels", "annotations"]
        .iter()
        .any(|name| below.starts_with(name))
    {
        return Some(format!("{path}.metadata.{below}"));
    }
    // A key in brackets may contain dots, as in `limits[nvidia.com/gpu]`.
    let mut is_in_brackets = false;
    let is_between_steps = |c: char| {
        match c {
            '[' => is_in_brackets = true,
            ']' => is_in_brackets = false,
            _ => {}
        }
        c == '.' && !is_in_brackets
    };
    for step in below.split(is_between_steps).filter(|step| !step.is_empty()) {
        let name = step.split('[').next().unwrap_or(step);
        path.push_str(&format!(".{name}"));
        (sent, overlay) = (
            sent.and_then(|value| value.get(name)),
            overlay.and_then(|value| value.get(name)),
        );
        // A field that the object lacks, too, may be one that the overlay needs.
        if sent.is_some() && overlay.is_none() {
            return None;
        }
        for index in step.split('[').skip(1).map(|part| part.trim_end_matches(']')) {
            // If it is no number, it is the key of a map, as in `limits[cpu]`.
            let Ok(number) = index.parse::<usize>() else {
                path.push_str(&format!("[{index}]"));
                continue;
            };
            let item = sent.and_then(|list| list.get(number));
            let place = match merge_key(name) {
                Some(key) => overlay?
                    .as_array()?
                    .iter()
                    .position(|entry| item.is_some_and(|item| identity(entry, key) == identity(item, key)))?,
                None => number,
            };
            path.push_str(&format!("[{place}]"));
            (sent, overlay) = (item, overlay.and_then(|list| list.get(place)));
        }
    }
    Some(path)
}

/// Paths of the overlay's fields that the API server would drop silently, as it does with fields of disabled features.
/// `kept`: the object that it would store.
pub fn left_out(kept: &Value, applied: &AppliedOverlay) -> Vec<String> {
    let mut missing = Vec::new();
    compare(
        applied.field,
        "",
        &applied.overlay,
        applied.template_in(kept).unwrap_or(&Value::Null),
        &mut missing,
    );
    missing
}

/// Adds the paths of the fields in `mine` that `kept` lacks to `missing`. `path` is the path of `mine`. `name` is its
/// key, which determines the merge key of a list.
fn compare(path: &str, name: &str, mine: &Value, kept: &Value, missing: &mut Vec<String>) {
    // `$patch` and other keys that begin with `$` are directives of a strategic merge patch, not fields of the object.
    match mine {
        Value::Object(map) if !map.contains_key("$patch") => {
            for (key, value) in map
                .iter()
                .filter(|(key, value)| !key.starts_with('$') && has_values(value))
            {
                let below = format!("{path}.{key}");
                match kept.get(key) {
                    Some(kept) => compare(&below, key, value, kept, missing),
                    None => missing.push(below),
                }
            }
        }
        Value::Array(list) => {
            let kept_items = kept.as_array().map_or(&[][..], Vec::as_slice);
            for (index, item) in list
                .iter()
                .enumerate()
                .filter(|(_, item)| item.get("$patch").is_none())
            {
                let found = match merge_key(name) {
                    Some(key) => kept_items
                        .iter()
                        .find(|kept_item| identity(kept_item, key) == identity(item, key)),
                    // If no candidate has all fields of the item, the one at the same index shows which are missing.
                    None => {
                        let others = near(kept_items, index, kept_items.len().saturating_sub(list.len()));
                        kept_items
                            .get(index)
                            .into_iter()
                            .chain(others)
                            .find(|kept_item| contains(kept_item, item))
                            .or(kept_items.get(index))
                    }
                };
                let path = format!("{path}[{index}]");
                match found {
                    Some(found) => compare(&path, "", item, found, missing),
                    None => missing.push(path),
                }
            }
        }
        _ => {}
    }
}

/// The items of `list` that may be the one that was sent at index `place`. The list has no merge key, and a webhook has
/// added `more` items.
fn near(list: &[Value], place: usize, more: usize) -> &[Value] {
    /// In a list up to this length (a rough bound), all items are candidates. In a very long one that takes too long.
    const SHORT: usize = 32;
    if list.len() <= SHORT {
        list
    } else {
        list.get(place..=place.saturating_add(more).min(list.len() - 1))
            .unwrap_or_default()
    }
}

/// Whether no field of `mine` is missing in `kept`. Values are not compared: a field that the API server
/// drops is dropped from all items.
fn contains(kept: &Value, mine: &Value) -> bool {
    let mut missing = Vec::new();
    compare("", "", mine, kept, &mut missing);
    missing.is_empty()
}

/// Whether Go always serializes the value: it may leave out zero and empty values. A map with the directive `$patch`
/// counts as empty, although `$patch: replace` sets fields: fields in such a map are not checked.
fn has_values(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => false,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => list.iter().any(has_values),
        Value::Object(map) => !map.contains_key("$patch") && map.values().any(has_values),
        Value::Bool(true) => true,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn applied() -> AppliedOverlay {
        AppliedOverlay {
            field: "spec.podTemplate",
            overlay: json!({ "spec": { "containers": [{ "name": "app", "env": [{ "name": "B", "vaule": "x" }] }], "hostNetwrok": true } }),
            at: "spec.template",
            sent: json!({ "spec": { "template": { "spec": { "containers": [
                { "name": "app", "env": [{ "name": "A" }, { "name": "B" }], "ports": [{ "containerPort": 1 }] },
            ] } } } }),
        }
    }

    #[test]
    fn refusal_names_the_field_in_the_overlay() {
        let translated = |words: &str| with_overlay_paths(words, &applied());
        assert_eq!(
            translated(
                r#"Job in version "v1" cannot be handled as a Job: strict decoding error: unknown field "spec.template.spec.containers[0].env[1].vaule", unknown field "spec.template.spec.hostNetwrok""#
            ),
            r#"strict decoding error: unknown field "spec.podTemplate.spec.containers[0].env[0].vaule", unknown field "spec.podTemplate.spec.hostNetwrok""#
        );
        assert_eq!(
            translated(
                "Job in version \"v1\" cannot be handled as a Job: json: cannot unmarshal string into Go struct field PodSpec.spec.template.spec.hostNetwork of type bool"
            ),
            "json: cannot unmarshal string into Go struct field PodSpec.spec.podTemplate.spec.hostNetwork of type bool"
        );
        // What is not the overlay's keeps its name.
        let ours = "spec.template.spec.containers[0].ports[0].containerPort: Invalid value: 1";
        assert_eq!(translated(ours), ours);
        let runtime_class = "spec.template.spec.runtimeClassName: Invalid value: \"x\"";
        let mut with_ours = applied();
        with_ours.sent["spec"]["template"]["spec"]["runtimeClassName"] = "x".into();
        assert_eq!(with_overlay_paths(runtime_class, &with_ours), runtime_class);
        // The API server writes no dot before the key of a map.
        assert_eq!(
            translated("spec.template.spec.overhead[nvidia.com/gpu]: Invalid value: 2"),
            "spec.podTemplate.spec.overhead[nvidia.com/gpu]: Invalid value: 2"
        );
        // A field that is missing in both may be one that the overlay needs.
        assert_eq!(
            translated("a: spec.template.spec.nodeName: no. b"),
            "a: spec.podTemplate.spec.nodeName: no. b"
        );
    }

    #[test]
    fn fields_dropped_from_an_overlay_are_named() {
        let overlay = json!({ "spec": {
            "hostNetwork": false, "schedulingGroup": { "podGroupName": "g" }, "tolerations": [{ "key": "a" }], "affinity": null,
            "containers": [{ "name": "app", "env": [{ "name": "B", "$patch": "delete" }], "resources": { "claims": [{ "name": "c" }] } }],
        } });
        let kept = json!({ "spec": { "template": { "spec": {
            "tolerations": [{ "key": "a" }], "containers": [{ "name": "other" }, { "name": "app", "resources": {} }],
        } } } });
        let applied = AppliedOverlay { overlay, ..applied() };
        assert_eq!(
            left_out(&kept, &applied),
            [
                "spec.podTemplate.spec.schedulingGroup",
                "spec.podTemplate.spec.containers[0].resources.claims"
            ]
        );
    }

    #[test]
    fn policy_denial_is_not_a_problem_of_the_overlay() {
        let problem = |words: &str| problem(&applied(), &DryRun::Refused(words.into()));
        for denial in [
            r#"admission webhook "validate.kyverno.svc-fail" denied the request: images must come from registry.site"#,
            r#"admission webhook "a.example" denied the request without explanation"#,
            r#"jobs.batch "mc" is forbidden: ValidatingAdmissionPolicy 'images' with binding 'all' denied request: no"#,
        ] {
            assert_eq!(problem(denial), None, "{denial}");
        }
        let quoted = r#"Job.batch "mc" is invalid: spec.template.spec.hostNetwork: Invalid value: "denied the request""#;
        assert!(problem(quoted).is_some());
    }

    /// The second key of a port is its protocol, that of a spread constraint its `whenUnsatisfiable`
    /// ([`overlay::identity`](flux_shared::overlay::identity)).
    #[test]
    fn items_with_the_same_merge_key_are_told_apart_by_a_second() {
        let constraint = |when: &str| json!({ "topologyKey": "zone", "whenUnsatisfiable": when });
        let mut with_labels = constraint("ScheduleAnyway");
        with_labels["matchLabelKeys"] = json!(["a"]);
        let constraints = json!([constraint("DoNotSchedule"), with_labels]);
        let ports = json!([{ "containerPort": 53, "protocol": "UDP", "hostIP": "x" }, { "containerPort": 53, "name": "y" }]);
        let spec = |ports: &Value| json!({ "topologySpreadConstraints": constraints, "containers": [{ "name": "app", "ports": ports }] });
        // The API server adds the protocol that is left out.
        let sent = json!([{ "containerPort": 80, "protocol": "TCP" }, { "containerPort": 53, "protocol": "TCP", "name": "y" },
            { "containerPort": 53, "protocol": "UDP", "hostIP": "x" }]);
        let sent = json!({ "spec": { "template": { "spec": spec(&sent) } } });
        let applied = AppliedOverlay {
            overlay: json!({ "spec": spec(&ports) }),
            sent: sent.clone(),
            ..applied()
        };
        assert_eq!(left_out(&sent, &applied), Vec::<String>::new());
        assert_eq!(
            with_overlay_paths("spec.template.spec.containers[0].ports[2].hostIP: no", &applied),
            "spec.podTemplate.spec.containers[0].ports[0].hostIP: no"
        );
    }

    /// What is left out of a list without a key, of tolerations as a webhook may have changed them.
    fn left_out_of_tolerations(mine: &Value, kept: &Value) -> Vec<String> {
        let kept = json!({ "spec": { "template": { "spec": { "tolerations": kept } } } });
        left_out(
            &kept,
            &AppliedOverlay {
                overlay: json!({ "spec": { "tolerations": mine } }),
                ..applied()
            },
        )
    }

    #[test]
    fn webhook_additions_to_a_keyless_list_hide_no_dropped_item() {
        let (mine, theirs) = (
            json!({ "key": "mine", "operator": "Exists" }),
            json!({ "operator": "Exists" }),
        );
        for kept in [json!([theirs, mine]), json!([mine, theirs]), json!([mine])] {
            assert_eq!(
                left_out_of_tolerations(&json!([mine]), &kept),
                Vec::<String>::new(),
                "{kept}"
            );
        }
        let dropped = "spec.podTemplate.spec.tolerations[0]";
        assert_eq!(left_out_of_tolerations(&json!([mine]), &json!([])), [dropped]);
        assert_eq!(
            left_out_of_tolerations(&json!([mine]), &json!([theirs])),
            [format!("{dropped}.key")]
        );
        assert_eq!(
            left_out_of_tolerations(&json!([{ "new": { "a": 1 } }, mine]), &json!([theirs, {}, mine])),
            [format!("{dropped}.new")]
        );
    }

    #[test]
    fn long_list_is_compared_in_little_time() {
        let item = |number: usize| json!({ "key": number.to_string(), "operator": "Exists" });
        let mine: Vec<Value> = (0..20_000).map(item).collect();
        let mut kept = mine.clone();
        kept.insert(0, json!({ "operator": "Exists" }));
        let begin = std::time::Instant::now();
        assert_eq!(
            left_out_of_tolerations(&json!(mine), &json!(kept)),
            Vec::<String>::new()
        );
        let none: Vec<Value> = (0..20_000).map(|_| json!({})).collect();
        assert_eq!(left_out_of_tolerations(&json!(mine), &json!(none)).len(), 40_000);
        assert!(
            begin.elapsed() < std::time::Duration::from_secs(10),
            "{:?}",
            begin.elapsed()
        );
    }

    #[test]
    fn refusal_of_many_thousand_items_is_reported_in_little_time() {
        let applied = AppliedOverlay {
            field: "spec.servicesPodTemplate",
            at: "",
            ..applied()
        };
        let item = |number| {
            format!(
                "spec.tolerations[{number}].key: Invalid value: \"%\": name part must consist of alphanumeric characters, "
            )
        };
        let words: String = (0..50_000).map(item).collect();
        let begin = std::time::Instant::now();
        let message = problem(&applied, &DryRun::Refused(words)).unwrap().message;
        assert!(
            message.contains("spec.servicesPodTemplate.spec.tolerations[0].key: Invalid value"),
            "{message}"
        );
        assert!(
            begin.elapsed() < std::time::Duration::from_secs(10),
            "{:?}",
            begin.elapsed()
        );
    }
}
