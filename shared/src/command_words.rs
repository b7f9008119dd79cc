//! Splits a command into words by POSIX quoting. `$NAME` and `${NAME}` are kept as references to environment
//! variables.
//!
//! Nothing else of a shell: no globbing, no command substitution, no operators. `|`, `;`, `>`, `*` and `$(` reach the
//! program as text. `\$` is a literal `$`, inside double quotes too. Newlines separate words like blanks.
//!
//! Own code: crates that split words (shlex) return plain strings, in which a quoted `$NAME` looks like a
//! reference.

use serde::{Deserialize, Serialize};

/// One part of a word.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(rename_all = "lowercase")]
pub enum WordPart {
    /// Text as it is.
    Text(String),
    /// The value of an environment variable; empty if it is not set.
    Env(String),
}

/// One word of a command. Serialized as a plain string where it refers to no variable, else as its parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(all(test, feature = "crd"), derive(schemars::JsonSchema))]
#[serde(untagged)]
pub enum Word {
    Literal(String),
    Template(Vec<WordPart>),
}

impl Word {
    pub fn literal(text: impl Into<String>) -> Word {
        Word::Literal(text.into())
    }

    /// The word with every reference replaced by what `lookup` returns; None counts as empty.
    pub fn resolve(&self, lookup: impl Fn(&str) -> Option<String>) -> String {
        match self {
            Word::Literal(text) => text.clone(),
            Word::Template(parts) => parts
                .iter()
                .map(|part| match part {
                    WordPart::Text(text) => text.clone(),
                    WordPart::Env(name) => lookup(name).unwrap_or_default(),
                })
                .collect(),
        }
    }

    /// The word for people to read: references as `${NAME}`.
    pub fn display(&self) -> String {
        self.resolve(|name| Some(format!("${{{name}}}")))
    }
}

/// The words of a command, and what a shell would have read differently.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Words {
    pub words: Vec<Word>,
    /// Unquoted operators, expansions and comment signs that reach the program as text, in order, once each.
    pub shell_syntax: Vec<String>,
    /// For each line after the first, the index in `words` of its first word. `validate` warns of such lines, since all
    /// lines are one command. Lines that continue the line before are left out: after a backslash, or beginning with an
    /// option.
    pub line_starts: Vec<usize>,
}

/// The words of `text`, or what is wrong with its quoting.
pub fn split(text: &str) -> Result<Words, String> {
    Splitter::new(text, true).run()
}

/// The words of `text` where references make no sense (options of Flux, argv of hooks and services): every `$` stays
/// text, and before a name it counts as shell syntax if it is not quoted. Globs, `~` and `#` do not count: an option of
/// Flux may have them, such as `--output=a*`.
pub fn split_without_references(text: &str) -> Result<Words, String> {
    Splitter::new(text, false).run()
}

/// The words of [`split_without_references`] as texts.
pub fn split_literal(text: &str) -> Result<Vec<String>, String> {
    let words = split_without_references(text)?.words;
    Ok(words.iter().map(Word::display).collect())
}

/// As [`split_literal`]. Text that is not valid shell is split at blanks.
pub fn split_leniently(text: &str) -> Vec<String> {
    split_literal(text).unwrap_or_else(|_| text.split_whitespace().map(str::to_owned).collect())
}

/// Quotes and joins words, so that [`split`] returns the same words again, without references.
pub fn join<T: AsRef<str>>(words: &[T]) -> String {
    let is_plain = |text: &str| {
        !text.is_empty()
            && text
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "_-./:=,+@%".contains(c))
    };
    let quoted = |text: &str| {
        if is_plain(text) {
            text.to_owned()
        } else {
            format!("'{}'", text.replace('\'', r"'\''"))
        }
    };
    words
        .iter()
        .map(|word| quoted(word.as_ref()))
        .collect::<Vec<_>>()
        .join(" ")
}

/// How a letter of shell source is quoted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quote {
    None,
    Single,
    Double,
}

/// A letter of shell source outside of comments.
#[derive(Debug, Clone, Copy)]
pub struct SourceLetter {
    /// Its byte offset.
    pub at: usize,
    pub letter: char,
    /// Which quotes are open before it.
    pub quote: Quote,
    pub is_escaped: bool,
}

/// The letters of shell source outside of comments. For notices: here-documents and quotes within `$(…)` are not told
/// apart from the text around them.
pub fn source_letters(text: &str) -> impl Iterator<Item = SourceLetter> {
    let (mut quote, mut is_escaped, mut in_comment, mut in_word) = (Quote::None, false, false, false);
    text.char_indices().filter_map(move |(at, letter)| {
        if in_comment {
            in_comment = letter != '\n';
            return None;
        }
        let read = SourceLetter {
            at,
            letter,
            quote,
            is_escaped: std::mem::take(&mut is_escaped),
        };
        let was_in_word =
            std::mem::replace(&mut in_word, !letter.is_whitespace() && !";&|()".contains(letter));
        if read.is_escaped {
            return Some(read);
        }
        match (quote, letter) {
            (Quote::None | Quote::Double, '\\') => is_escaped = true,
            (Quote::None, '\'') => quote = Quote::Single,
            (Quote::None, '"') => quote = Quote::Double,
            (Quote::Single, '\'') | (Quote::Double, '"') => quote = Quote::None,
            (Quote::None, '#') if !was_in_word => {
                in_comment = true;
                in_word = false;
                return None;
            }
            _ => {}
        }
        Some(read)
    })
}

struct Splitter<'a> {
    /// The text that is not read yet.
    chars: std::iter::Peekable<std::str::Chars<'a>>,
    out: Words,
    /// The parts of the current word. None: between words.
    word: Option<Vec<WordPart>>,
    /// `$NAME` is a reference. If false: as in [`split_without_references`].
    has_references: bool,
}

impl<'a> Splitter<'a> {
    fn new(text: &'a str, has_references: bool) -> Splitter<'a> {
        Splitter {
            chars: text.chars().peekable(),
            out: Words::default(),
            word: None,
            has_references,
        }
    }

    fn run(mut self) -> Result<Words, String> {
        while let Some(c) = self.chars.next() {
            match c {
                '\n' => {
                    self.end_word();
                    self.out.line_starts.push(self.out.words.len());
                }
                c if c.is_whitespace() => self.end_word(),
                '\'' => self.single_quoted()?,
                '"' => self.double_quoted()?,
                '\\' => match self.chars.next() {
                    // The command goes on in the next line.
                    Some('\n') => {}
                    Some(escaped) => self.push(escaped),
                    None => self.push('\\'),
                },
                '$' => self.unquoted_dollar(),
                '*' | '?' | '~' | '#' => {
                    if self.is_expansion_or_comment(c) {
                        self.record_operator(c.encode_utf8(&mut [0; 4]));
                    }
                    self.push(c);
                }
                '&' if self.chars.next_if_eq(&'&').is_some() => {
                    self.record_operator("&&");
                    self.push('&');
                    self.push('&');
                }
                '|' if self.chars.next_if_eq(&'|').is_some() => {
                    self.record_operator("||");
                    self.push('|');
                    self.push('|');
                }
                '|' | ';' | '>' | '<' | '&' | '`' => {
                    self.record_operator(c.encode_utf8(&mut [0; 4]));
                    self.push(c);
                }
                c => self.push(c),
            }
        }
        self.end_word();
        self.drop_continued_lines();
        Ok(self.out)
    }

    /// Drops the starts of empty lines and of lines that begin with an option.
    fn drop_continued_lines(&mut self) {
        let Words {
            words, line_starts, ..
        } = &mut self.out;
        line_starts.dedup();
        // Index 0: only empty lines precede the first word.
        line_starts.retain(|start| {
            *start > 0
                && words
                    .get(*start)
                    .is_some_and(|word| !word.display().starts_with('-'))
        });
    }

    /// Whether a shell reads this letter, which is not quoted, as a glob, a home folder or a comment. (A `[` is more
    /// often text.)
    fn is_expansion_or_comment(&self, letter: char) -> bool {
        let begins_word = self.word.is_none();
        let next = self.chars.clone().next();
        self.has_references
            && match letter {
                '~' => begins_word && next.is_none_or(|next| next == '/' || next.is_whitespace()),
                '#' => begins_word,
                _ => true,
            }
    }

    fn record_operator(&mut self, operator: &str) {
        if !self.out.shell_syntax.iter().any(|known| known == operator) {
            self.out.shell_syntax.push(operator.to_owned());
        }
    }

    /// Adds a character of text to the current word.
    fn push(&mut self, c: char) {
        let parts = self.word.get_or_insert_default();
        match parts.last_mut() {
            Some(WordPart::Text(text)) => text.push(c),
            _ => parts.push(WordPart::Text(c.to_string())),
        }
    }

    fn end_word(&mut self) {
        let Some(mut parts) = self.word.take() else {
            return;
        };
        self.out.words.push(match parts.as_mut_slice() {
            [] => Word::Literal(String::new()),
            // Adjacent text is one part, by `push`.
            [WordPart::Text(text)] => Word::Literal(std::mem::take(text)),
            _ => Word::Template(parts),
        });
    }

    fn single_quoted(&mut self) -> Result<(), String> {
        self.word.get_or_insert_default();
        loop {
            match self.chars.next() {
                Some('\'') => return Ok(()),
                Some(c) => self.push(c),
                None => return Err("a single quote (') is not closed".into()),
            }
        }
    }

    fn double_quoted(&mut self) -> Result<(), String> {
        self.word.get_or_insert_default();
        loop {
            match self.chars.next() {
                Some('"') => return Ok(()),
                Some('\\') => match self.chars.next() {
                    // The command goes on in the next line.
                    Some('\n') => {}
                    Some(c @ ('$' | '"' | '\\' | '`')) => self.push(c),
                    Some(c) => {
                        self.push('\\');
                        self.push(c);
                    }
                    None => return Err("a double quote (\") is not closed".into()),
                },
                Some('$') => self.dollar(),
                Some(c) => self.push(c),
                None => return Err("a double quote (\") is not closed".into()),
            }
        }
    }

    /// Reads what follows a `$` outside of double quotes, where `$(` and `${NAME:-text}` are recorded as shell syntax,
    /// and `$NAME` if it is no reference. (Inside double quotes, such syntax is mostly for a shell that the command
    /// starts, as in `sh -c "echo $(hostname)"`.)
    fn unquoted_dollar(&mut self) {
        match self.chars.peek() {
            Some('(') => self.record_operator("$("),
            Some(c) if !self.has_references && (c.is_ascii_alphabetic() || matches!(c, '_' | '{')) => {
                self.record_operator("$");
            }
            _ => {}
        }
        self.dollar();
        // `dollar` leaves the brace of `${NAME:-text}` unread. A brace after a reference, as in `$NAME{`, is text.
        if self.has_references && self.chars.peek() == Some(&'{') && !self.ends_with_reference() {
            self.record_operator("${");
        }
    }

    fn ends_with_reference(&self) -> bool {
        self.word
            .as_deref()
            .is_some_and(|parts| matches!(parts.last(), Some(WordPart::Env(_))))
    }

    /// Reads what follows a `$`: adds a reference if it is a name, else the `$` as text.
    fn dollar(&mut self) {
        if !self.has_references {
            return self.push('$');
        }
        let mut ahead = self.chars.clone();
        let braced = ahead.next_if_eq(&'{').is_some();
        let mut name = String::new();
        while let Some(c) = ahead.next_if(|c| c.is_ascii_alphanumeric() || *c == '_') {
            name.push(c);
        }
        let is_name = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        if !is_name || (braced && ahead.next_if_eq(&'}').is_none()) {
            return self.push('$');
        }
        self.chars = ahead;
        self.word.get_or_insert_default().push(WordPart::Env(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn literal(text: &str) -> Vec<String> {
        split(text).unwrap().words.iter().map(Word::display).collect()
    }

    #[test]
    fn quoting_is_that_of_a_shell() {
        assert_eq!(literal(r#"sh -c "echo hi there""#), ["sh", "-c", "echo hi there"]);
        assert_eq!(
            literal("echo 'a  b' c\\ d \"\" e"),
            ["echo", "a  b", "c d", "", "e"]
        );
        assert_eq!(literal("a\nb\n\n c\n"), ["a", "b", "c"]);
        assert_eq!(literal("one\\\ntwo"), ["onetwo"]);
        assert_eq!(literal(r#""a\"b" 'it'"'"'s'"#), ["a\"b", "it's"]);
        assert_eq!(literal("ls *.txt ?"), ["ls", "*.txt", "?"]);
    }

    #[test]
    fn references_are_kept_and_escapes_are_text() {
        let words = split(r#"echo $HOME/x ${A}b '$C' \$D "$E \$F" $ $1 ${G:-1}"#)
            .unwrap()
            .words;
        let value = |name: &str| Some(format!("<{name}>"));
        let got: Vec<String> = words.iter().map(|w| w.resolve(value)).collect();
        assert_eq!(
            got,
            [
                "echo", "<HOME>/x", "<A>b", "$C", "$D", "<E> $F", "$", "$1", "${G:-1}"
            ]
        );
        assert_eq!(words[0], Word::literal("echo"));
    }

    #[test]
    fn shell_operators_are_text_and_are_reported_once() {
        let split = split("a | b && c > $(d) ; 'x|y' | z").unwrap();
        assert_eq!(split.shell_syntax, ["|", "&&", ">", "$(", ";"]);
        assert_eq!(split.words.len(), 11);
        let operators = |text: &str| super::split(text).unwrap().shell_syntax;
        assert_eq!(operators("a && b & c"), ["&&", "&"]);
        assert_eq!(operators("a && b | c && d"), ["&&", "|"]);
        assert_eq!(operators("a || b"), ["||"]);
        assert_eq!(operators("a&b&&c&&&d"), ["&", "&&"]);
        for expansion in ["${A:-1}", "b${X%y}", "${#x}"] {
            assert_eq!(operators(expansion), ["${"], "{expansion}");
        }
        assert_eq!(operators("${A} $A{b} '${A:-1}' \"${A:-1}\" \\${A:-1}"), [""; 0]);
        assert_eq!(operators("ls *.txt b*"), ["*"]);
        assert_eq!(operators("~/a ~ # b"), ["~", "#"]);
        assert_eq!(operators("ls '*.txt' \"?\" \\* a~b a#b ~user ''# [a]"), [""; 0]);
        assert_eq!(split_without_references("* ? ~ #").unwrap().shell_syntax, [""; 0]);
    }

    #[test]
    fn line_starts_leave_out_lines_that_continue_a_command() {
        let starts = |text: &str| split(text).unwrap().line_starts;
        assert_eq!(starts("\nflux submit hostname\n\nflux queue drain\n"), [3]);
        assert_eq!(starts("lmp -v x 8 \\\n  in.reaxc\n"), [0_usize; 0]);
        assert_eq!(starts("lmp -v x 8\n  -in in.reaxc\n"), [0_usize; 0]);
        assert_eq!(starts("sh -c 'a\nb'"), [0_usize; 0]);
    }

    #[test]
    fn open_quotes_are_errors() {
        assert!(split("echo 'a").is_err() && split("echo \"a").is_err() && split("echo \"a\\").is_err());
    }

    #[test]
    fn words_survive_toml_and_json() {
        #[derive(Serialize, Deserialize, PartialEq, Debug)]
        struct Holder {
            command: Vec<Word>,
        }
        let holder = Holder {
            command: split(r#"echo "$A b" c"#).unwrap().words,
        };
        let text = toml::to_string(&holder).unwrap();
        assert_eq!(toml::from_str::<Holder>(&text).unwrap(), holder);
        let json = serde_json::to_string(&holder).unwrap();
        assert_eq!(serde_json::from_str::<Holder>(&json).unwrap(), holder);
    }

    proptest::proptest! {
        #[test]
        fn joined_words_are_split_into_themselves(words in proptest::collection::vec("(?s).{0,12}", 0..6)) {
            proptest::prop_assert_eq!(literal(&join(&words)), words);
        }

        #[test]
        fn random_text_does_not_panic_and_plain_words_stay(text in ".{0,80}", plain in "[a-z0-9./=-]{1,12}") {
            let _ = split(&text);
            proptest::prop_assert_eq!(literal(&plain), [plain.clone()]);
        }
    }
}
