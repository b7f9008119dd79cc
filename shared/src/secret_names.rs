//! Recognises the names of environment variables, fields and options that hold secrets. Their values are left out of
//! output that people hand on, such as a debug bundle.

/// Text in place of a secret value.
pub const LEFT_OUT: &str = "(left out)";

/// Words in names of secrets, in lower case, without `-` and `_`.
const WORDS: [&str; 8] = [
    "password",
    "passphrase",
    "passwd",
    "token",
    "secret",
    "apikey",
    "credential",
    "private",
];

/// Ends of names of secrets, in lower case. A name of such a word alone is another thing: `PWD` is a folder.
const ENDS: [&str; 2] = ["_pass", "_pwd"];

/// Whether a value is a secret by its name alone: `DB_PASSWORD`, `MYSQL_PWD`, `api-key`, `accessToken`.
pub fn is_secret(name: &str) -> bool {
    has_secret_end(name) || WORDS.iter().any(|word| normalized(name).contains(word))
}

fn has_secret_end(name: &str) -> bool {
    let name = name.to_lowercase();
    ENDS.iter().any(|end| name.ends_with(end))
}

/// Whether the name ends with the word that makes it a secret: `password` and `PRIVATE_KEY` do, `tokens` does not.
/// In a line such as `password: a b c`, a debug bundle leaves out the rest of the line. In `tokens: 5, time: 3 ms`, it
/// leaves out one word.
pub fn ends_with_secret_word(name: &str) -> bool {
    let words = normalized(name);
    has_secret_end(name)
        || WORDS.iter().any(|word| words.ends_with(word))
        || (is_secret(name) && words.ends_with("key"))
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
            "MYSQL_PWD",
            "SMTP_PASS",
            "--passphrase",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in [
            "PATH",
            "FLUX_OPTION_FLAGS",
            "HOME",
            "KEY",
            "PASS",
            "PWD",
            "OLDPWD",
        ] {
            assert!(!is_secret(name), "{name}");
        }
    }
}
