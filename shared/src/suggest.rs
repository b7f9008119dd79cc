//! Suggests a known name for a misspelt one.

/// The nearest of `names`, ignoring case: at most two letters away, or one if `word` has fewer than five letters.
/// None: no name is that near. Names of one or two letters are never suggested.
pub fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let max_distance = if word.len() < 5 { 1 } else { 2 };
    let word = word.to_ascii_lowercase();
    let distances = names.map(|name| (distance(&word, &name.to_ascii_lowercase()), name));
    distances
        .filter(|(distance, name)| *distance <= max_distance && name.len() > 2)
        .min()
        .map(|(_, name)| name)
}

/// Number of letters inserted, removed, replaced or swapped. Words whose lengths differ by more than two are not
/// compared: the result is `usize::MAX`. Their distance is larger than two, so `nearest` never takes them.
fn distance(one: &str, other: &str) -> usize {
    match one.chars().count().abs_diff(other.chars().count()) {
        0..=2 => strsim::osa_distance(one, other),
        _ => usize::MAX,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_name_has_a_nearest_name_and_strange_name_none() {
        let names = ["tasks", "size", "maxSize", "command", "commands", "flux"];
        let found = |word: &str| nearest(word, names.into_iter());
        for (word, meant) in [
            ("task", "tasks"),
            ("Size", "size"),
            ("maxsize", "maxSize"),
            ("comand", "command"),
        ] {
            assert_eq!(found(word), Some(meant), "{word}");
        }
        assert_eq!(found("tsaks"), Some("tasks"));
        assert_eq!(
            (found("replicas"), found("x"), found("nodes")),
            (None, None, None)
        );
    }
}
