//! Quotes words as a person would type them in a shell: for display, and for the agent's scripts.

use flux_shared::command_words::{Word, WordPart};

/// `text` as one word of a shell.
pub fn quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%^".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// A word for display. Variables are shown as `${NAME}`.
pub fn word(word: &Word) -> String {
    let parts = match word {
        Word::Literal(text) => return quote(text),
        Word::Template(parts) => parts,
    };
    let inner: String = parts
        .iter()
        .map(|part| match part {
            WordPart::Env(name) => format!("${{{name}}}"),
            WordPart::Text(text) => text.chars().flat_map(escape).collect(),
        })
        .collect();
    format!("\"{inner}\"")
}

/// Escapes a character for double quotes.
fn escape(c: char) -> impl Iterator<Item = char> {
    let backslash = matches!(c, '"' | '\\' | '$' | '`').then_some('\\');
    backslash.into_iter().chain(std::iter::once(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quoted_words_are_split_into_themselves() {
        for text in [
            "plain",
            "",
            "two words",
            "it's",
            "$HOME",
            "a\"b",
            "-Sa=b",
            "*",
            "a\nb",
            "~",
        ] {
            let typed = word(&Word::literal(text));
            let back = flux_shared::command_words::split(&typed).unwrap().words;
            assert_eq!(back, [Word::literal(text)], "{typed}");
        }
        let template = flux_shared::command_words::split(r#""a $B \$c \"""#)
            .unwrap()
            .words;
        assert_eq!(word(&template[0]), r#""a ${B} \$c \"""#);
        assert_eq!(
            flux_shared::command_words::split(&word(&template[0]))
                .unwrap()
                .words,
            template
        );
    }
}
