//! The name that was meant, where one is misspelt.

/// The nearest of `names`: the same in other letters' cases, or few letters away.
pub fn nearest<'a>(word: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let most = if word.len() < 5 { 1 } else { 2 };
    let word = word.to_ascii_lowercase();
    let distances = names.map(|name| (distance(&word, &name.to_ascii_lowercase()), name));
    distances.filter(|(distance, name)| *distance <= most && name.len() > 2).min().map(|(_, name)| name)
}

/// Letters that are put in, left out, or replaced; two that changed places count once.
fn distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    if one.len().abs_diff(other.len()) > 2 {
        return usize::MAX;
    }
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (i, letter) in one.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, its) in other.iter().enumerate() {
            let replaced = last[j] + usize::from(letter != its);
            let mut best = replaced.min(last[j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *letter == other[j - 1] && one[i - 1] == *its {
                best = best.min(before[j - 1] + 1);
            }
            row.push(best);
        }
        before = std::mem::replace(&mut last, row);
    }
    last[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_name_is_found_and_a_strange_one_is_not() {
        let names = ["tasks", "size", "maxSize", "command", "commands", "flux"];
        let found = |word: &str| nearest(word, names.into_iter());
        for (word, meant) in [("task", "tasks"), ("Size", "size"), ("maxsize", "maxSize"), ("comand", "command")] {
            assert_eq!(found(word), Some(meant), "{word}");
        }
        assert_eq!(found("tsaks"), Some("tasks"));
        assert_eq!((found("replicas"), found("x"), found("nodes")), (None, None, None));
    }
}
