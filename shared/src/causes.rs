//! An error and its sources in one line.

use std::error::Error;
use std::ops::ControlFlow::{self, Break, Continue};

/// The messages of the error and its sources, joined by `: `. The message of many errors includes that of their
/// source: a message that is already in the line is left out.
pub fn causes(error: &(dyn Error + 'static)) -> String {
    causes_by(error, |error| Continue(error.to_string()))
}

/// Like [`causes`], with the message that `describe` returns for each error. After `Break`, further sources are left
/// out.
pub fn causes_by(
    error: &(dyn Error + 'static),
    describe: impl Fn(&(dyn Error + 'static)) -> ControlFlow<String, String>,
) -> String {
    let mut text = String::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let (more, source) = match describe(error) {
            Continue(more) => (more, error.source()),
            Break(more) => (more, None),
        };
        if !text.contains(&more) {
            let colon = if text.is_empty() { "" } else { ": " };
            text = text + colon + &more;
        }
        next = source;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Failure {
        #[error("failed to {0}")]
        To(&'static str, #[source] Box<Failure>),
        #[error("{0} ({1}), by this machine")]
        Quotes(&'static str, #[source] Box<Failure>),
        #[error("{0}")]
        Plain(&'static str),
    }

    #[test]
    fn each_source_appears_once_as_described() {
        let quotes = || Box::new(Failure::Quotes("no way", Box::new(Failure::Plain("refused"))));
        assert_eq!(
            causes(&Failure::To("send", quotes())),
            "failed to send: no way (refused), by this machine"
        );
        let error = Failure::To("send", Box::new(Failure::To("connect", quotes())));
        let words = |error: &(dyn Error + 'static)| match error.to_string() {
            text if text.contains("connect") => Break("no network".to_owned()),
            text => Continue(text.to_uppercase()),
        };
        assert_eq!(causes_by(&error, words), "FAILED TO SEND: no network");
        assert_eq!(causes(&Failure::Plain("refused")), "refused");
    }
}
