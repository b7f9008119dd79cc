//! Text from a cluster, made safe for a terminal.

use std::borrow::Cow;

/// The text without terminal codes: each control character except line breaks and tabs becomes U+FFFD. A job or a
/// user of the cluster can choose the text, and codes would change or hide what a terminal shows.
pub fn printable(text: &str) -> Cow<'_, str> {
    let is_code = |character: char| character.is_control() && !matches!(character, '\n' | '\t');
    if text.contains(is_code) {
        Cow::Owned(text.replace(is_code, "\u{fffd}"))
    } else {
        Cow::Borrowed(text)
    }
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn terminal_codes_become_replacement_characters() {
        let title = "\x1b]0;owned\x07a\rb\u{7f}c\u{9b}31m";
        assert_eq!(
            printable(title),
            "\u{fffd}]0;owned\u{fffd}a\u{fffd}b\u{fffd}c\u{fffd}31m"
        );
        let plain = "a line\n\tand 映像 ƒ";
        assert!(matches!(printable(plain), std::borrow::Cow::Borrowed(text) if text == plain));
    }
}
