//! Recognises the names of environment variables, fields and options that hold secrets. Their values are left out of
//! output that people hand on, such as a debug bundle.

/// Text in place of a secret value.
pub const LEFT_OUT: &str = "(left out)";

/// Words in names of secrets, in lower case, without `-` and `_`.
const WORDS: [&str; 7] = [
    "password",
    "passwd",
    "token",
    "secret",
    "apikey",
    "credential",
    "private",
];

/// Whether a value is a secret by its name alone: `DB_PASSWORD`, `api-key`, `accessToken`.
pub fn is_secret(name: &str) -> bool {
    let name = normalized(name);
    WORDS.iter().any(|word| name.contains(word))
}

/// Whether the name ends with the word that makes it a secret: `password` and `PRIVATE_KEY` do, `tokens` does not.
/// In a line such as `password: a b c`, a debug bundle leaves out the rest of the line. In `tokens: 5, time: 3 ms`, it
/// leaves out one word.
pub fn ends_with_secret_word(name: &str) -> bool {
    let name = normalized(name);
    WORDS.iter().any(|word| name.ends_with(word)) || (is_secret(&name) && name.ends_with("key"))
}

/// In lower case, without `-` and `_`.
fn normalized(name: &str) -> String {
    name.to_lowercase().replace(['-', '_'], "")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secret_names_are_recognised_in_any_spelling() {
        for name in [
            "DB_PASSWORD",
            "--api-key",
            "accessToken",
            "AWS_SECRET_ACCESS_KEY",
            "PRIVATE_KEY",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in ["PATH", "FLUX_OPTION_FLAGS", "HOME", "KEY", "PASS"] {
            assert!(!is_secret(name), "{name}");
        }
    }
}
