//! Matches printed lines against documentation.

/// Whether a line matches the line `shown`, where `...` matches any text.
pub fn matches(shown: &str, line: &str) -> bool {
    let Some((start, rest)) = shown.split_once("...") else {
        return shown == line;
    };
    let Some(mut left) = line.strip_prefix(start) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split("...").collect();
    let end = parts.pop().unwrap_or_default();
    for part in parts {
        let Some(at) = left.find(part) else { return false };
        left = &left[at + part.len()..];
    }
    left.ends_with(end)
}
