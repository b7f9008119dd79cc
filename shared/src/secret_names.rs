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
    let words = normalized(name);
    has_secret_end(name) || WORDS.iter().any(|word| words.contains(word))
}

fn has_secret_end(name: &str) -> bool {
    let name = name.to_lowercase().replace('-', "_");
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

/// Replaces the user and the password, or the token, of each URL: `https://user:password@host`.
pub fn without_userinfo(text: &str) -> String {
    const SLASHES: &str = "://";
    let (mut clean, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((scheme, after)) = rest.split_once(SLASHES) {
        clean.extend([scheme, SLASHES]);
        let end = after.find(|c: char| c.is_whitespace() || "\"'".contains(c));
        let (url, behind) = after.split_at(end.unwrap_or(after.len()));
        let scheme = scheme.to_lowercase();
        let is_http = scheme.ends_with("http") || scheme.ends_with("https");
        // A password may have any letter. In `docker-pullable://nginx@sha256:…`, there is none.
        let userinfo = url
            .rsplit_once('@')
            .filter(|(_, host)| !host.starts_with("sha256:"))
            .map(|(before, _)| before)
            .filter(|before| before.contains(':') || is_http && !before.contains('/'));
        match userinfo {
            Some(userinfo) => {
                clean.push_str(LEFT_OUT);
                rest = &after[userinfo.len()..];
            }
            None => {
                clean.push_str(url);
                rest = behind;
            }
        }
    }
    clean + rest
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
            "--db-pass",
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

    #[test]
    fn url_has_no_user_and_no_password() {
        for (text, clean) in [
            (
                "git clone https://ann:hunter2@host/x && git clone 'http://hunter2@host'",
                "git clone https://(left out)@host/x && git clone 'http://(left out)@host'",
            ),
            (
                "postgres://ann:hun@ter2@db:5432/x",
                "postgres://(left out)@db:5432/x",
            ),
            ("https://ann:hun/t?er#2@host", "https://(left out)@host"),
            (
                "ssh://git@host/x docker-pullable://nginx@sha256:1",
                "ssh://git@host/x docker-pullable://nginx@sha256:1",
            ),
            (
                "tcp://10.0.0.1:8050 https://host/@scope/x",
                "tcp://10.0.0.1:8050 https://host/@scope/x",
            ),
            ("://@", "://@"),
        ] {
            assert_eq!(without_userinfo(text), clean);
        }
    }
}
