//! Writes Kubernetes objects as a stream of YAML documents.

use serde::Serialize;

/// Why an object could not be written.
#[derive(Debug, thiserror::Error)]
#[error("failed to write YAML")]
pub struct YamlError(#[from] serde_saphyr::ser::Error);

/// One document, without a separator. Long text is not folded: it stays in one line or in a literal block, so
/// that readers see its line ends.
pub fn document(object: &impl Serialize) -> Result<String, YamlError> {
    let options = serde_saphyr::ser_options! { min_fold_chars: usize::MAX, compact_list_indent: true };
    let mut text = serde_saphyr::to_string_with_options(object, options)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// The documents with a separator (`---`) between each two.
pub fn stream(documents: impl IntoIterator<Item = String>) -> String {
    documents.into_iter().collect::<Vec<_>>().join("---\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_that_yaml_1_1_or_1_2_would_misread_is_quoted() {
        for text in [
            "yes",
            "no",
            "on",
            "off",
            "y",
            "n",
            "1e3",
            "0x1f",
            "0o17",
            "017",
            "1_000",
            "null",
            "~",
            "1:30",
            "2026-01-01",
            "",
            " a",
            "a: b",
            "#a",
            "=",
            "<<",
        ] {
            let written = document(&serde_json::json!({ "a": text })).unwrap();
            let value = written
                .trim_end()
                .strip_prefix("a: ")
                .unwrap_or_default()
                .to_owned();
            assert!(value.starts_with(['"', '\'']), "{text} is written as {value}");
        }
    }

    #[test]
    fn long_lines_and_blocks_survive() {
        let long = format!("{} end", "word ".repeat(100));
        let value = serde_json::json!({ "a": long, "b": "x: 1\n\n  y: '$HOME'\n", "c": "\ttab\n", "d": ["trailing \n"] });
        let written = document(&value).unwrap();
        let back: serde_json::Value = serde_saphyr::from_str(&written).unwrap();
        assert_eq!(back, value, "{written}");
    }
}
