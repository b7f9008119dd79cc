//! No field is accepted and ignored. Every leaf of the CRD's schema is set to each of several values: the
//! objects must differ, or validation must refuse the value and name the field. Leaves of containers are
//! tried on the container that runs Flux, on a sidecar and on a service.

use flux_shared::validate::Problem;
use serde_json::Value;

use test_support::field_values::{
    COMPANIONS, MUST_BE_VALID, SURROUNDINGS, all_leaves, around, base, effects, merge, patch, values,
};

/// `spec.containers[0].x[key]` as this test writes it: `containers.0.x.key`.
fn plain(field: &str) -> String {
    field
        .trim_start_matches("spec.")
        .replace('[', ".")
        .replace(']', "")
}

/// Whether one of the problems is about the leaf: the field itself, a field that contains it, or one beside
/// it.
fn names(problems: &[Problem], path: &str) -> bool {
    let parent = path.rsplit_once('.').map_or("", |(parent, _)| parent);
    problems.iter().any(|problem| {
        let field = plain(&problem.field);
        !field.is_empty() && (path.starts_with(&field) || !parent.is_empty() && field.starts_with(parent))
    })
}

/// Why the leaf is dead. None if it is not.
fn dead(path: &str, schema: &Value) -> Option<String> {
    let (around, must_be_valid) = around(path);
    let values = values(path, schema);
    let mut seen = Vec::new();
    for value in &values {
        let mut spec = around.clone();
        merge(&mut spec, &patch(path, value.clone()));
        match effects(&spec) {
            Ok(objects) if seen.contains(&objects) => {}
            Ok(objects) => seen.push(objects),
            Err(problems) if must_be_valid => return Some(format!("{value} is refused: {problems:?}")),
            Err(problems) if names(&problems, path) => return None,
            Err(problems) => return Some(format!("{value} is refused without its name: {problems:?}")),
        }
    }
    (seen.len() < values.len()).then(|| format!("of {values:?} some make no difference"))
}

#[test]
fn every_field_makes_a_difference_or_is_refused() {
    let all = all_leaves();
    let dead: Vec<String> = all
        .iter()
        .filter_map(|(path, schema)| dead(path, schema).map(|why| format!("{path}: {why}")))
        .collect();
    assert!(
        dead.is_empty(),
        "{} of {} are dead:\n{}",
        dead.len(),
        all.len(),
        dead.join("\n")
    );
}

#[test]
fn the_base_is_valid_and_every_context_belongs_to_a_leaf() {
    effects(&base()).unwrap();
    let all = all_leaves();
    for (suffix, _) in COMPANIONS {
        // The `|` of an entry stands for a dot of the leaf's path: the patch is for the object before it.
        assert!(
            all.iter()
                .any(|(path, _)| path.ends_with(&suffix.replace('|', "."))),
            "{suffix}"
        );
    }
    for (start, _) in SURROUNDINGS {
        assert!(all.iter().any(|(path, _)| path.starts_with(start)), "{start}");
    }
    for leaf in MUST_BE_VALID {
        assert!(all.iter().any(|(path, _)| path == leaf), "{leaf}");
    }
}
