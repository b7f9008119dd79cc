//! Guesses whether a file is TOML, or YAML or JSON. The text may be invalid in each format.

/// Whether the first line that is neither blank nor a comment looks like TOML: the head of a table, or a key
/// before `=`. Later lines are ignored, since a text value can contain lines of any format.
pub(crate) fn is_toml(text: &str) -> bool {
    // The byte order mark.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.lines().map(str::trim);
    let Some(first) = lines.find(|line| !line.is_empty() && !line.starts_with('#')) else {
        // An empty file is valid TOML.
        return true;
    };
    first.starts_with('[')
        || first
            .split_once('=')
            .is_some_and(|(key, _)| is_key(key.trim_end()))
}

/// Whether the text looks like a bare, quoted or dotted key of TOML. (Lines of YAML and JSON can contain `=` too, after
/// other text.)
fn is_key(text: &str) -> bool {
    let is_closed = |quote: char| text.matches(quote).count().is_multiple_of(2);
    !text.is_empty()
        && is_closed('"')
        && is_closed('\'')
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_-.\"'".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_line_with_content_tells_toml_from_yaml_and_json() {
        for text in [
            "",
            "# nothing\n",
            "\n # mine\n\n  a = 1\nkind: Job\n",
            "[a]\n",
            "a.'b'.\"c\"=\"kind: Job\"",
            "kind = 'a: b'",
            "\u{feff}kind = 'a'",
        ] {
            assert!(is_toml(text), "{text}");
        }
        for text in [
            "---\na = 1\n",
            "# mine\nshell: |\n  a = 1\n  [b]\n",
            "{\"a\": \"b=c\"}",
            "{\"a\":\n[b]}",
            "- A = 1\n",
            "\"a = 1\": 2\n",
            "a: b = c\n",
            "some words\n",
        ] {
            assert!(!is_toml(text), "{text}");
        }
    }
}
