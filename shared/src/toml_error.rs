//! Error messages about TOML that a user wrote.

/// The error of parsing `text`, on one line: the line and column, both from 1, if they are known, and the message.
pub(crate) fn one_line(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let place = before.map(|before| {
        let line_begin = before.rfind('\n').map_or(0, |at| at + 1);
        let (line, column) = (
            before.matches('\n').count() + 1,
            before[line_begin..].chars().count() + 1,
        );
        format!("line {line}, column {column}: ")
    });
    format!(
        "{}{}",
        place.unwrap_or_default(),
        error.message().replace('\n', " ")
    )
}
