//! Removes secrets from objects and texts. Pure.

use flux_shared::secret_names::{LEFT_OUT, ends_with_secret_word, is_secret, without_userinfo};
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

/// Text fields whose name sounds like a secret, but that only name a Secret or its namespace.
const HARMLESS_NAMES: [&str; 8] = [
    "secretName",
    "imagePullSecret",
    "curveCertSecret",
    "mungeSecret",
    "usersSecret",
    "fluxRestfulSecret",
    "secret",
    "secretNamespace",
];

/// Removes values of environments and HTTP headers, options of volume drivers, passwords, tokens and certificates from an
/// object, and metadata that is of no use.
pub fn object(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("managedFields");
            // This annotation repeats the whole object as text.
            map.remove("kubectl.kubernetes.io/last-applied-configuration");
            for (name, inner) in map.iter_mut() {
                match name.as_str() {
                    // Each driver has its own names for the options of a volume.
                    "environment" | "attributes" | "volumeAttributes" => redact_values(inner),
                    "flexVolume" => {
                        object(inner);
                        inner.get_mut("options").into_iter().for_each(redact_values);
                    }
                    "env" | "httpHeaders" => inner
                        .as_array_mut()
                        .into_iter()
                        .flatten()
                        .for_each(redact_variable),
                    "image" | "imageID" if inner.is_string() => {}
                    // A secret, although `is_secret` does not see that in its name.
                    "curveCert" => *inner = Value::from(LEFT_OUT),
                    name if !HARMLESS_NAMES.contains(&name) && is_secret(name) && inner.is_string() => {
                        *inner = Value::from(LEFT_OUT)
                    }
                    _ => object(inner),
                }
            }
        }
        Value::Array(list) => redact_list(list),
        Value::String(words) => *words = text(words),
        _ => {}
    }
}

/// Redacts the items of a list. Strings may be the words of a command, so the word after `--password` is a secret, and
/// the one after `--user` may have a password.
fn redact_list(list: &mut [Value]) {
    let mut extent = None;
    for item in list {
        let next = item.as_str().and_then(extent_of_next);
        match (extent, item.as_str()) {
            (Some(Extent::Password), Some(word)) => *item = without_password(word).into(),
            (Some(_), Some(_)) => *item = LEFT_OUT.into(),
            _ => object(item),
        }
        extent = next;
    }
}

/// How much of the word after this one is a secret on a command line. None: it is no secret.
fn extent_of_next(word: &str) -> Option<Extent<'static>> {
    let line = word.lines().last().unwrap_or_default();
    let ends_with_secret = |line: &str| redact_line(line).ends_with(LEFT_OUT);
    // Appends a word, to see whether it would be left out. If the line itself ends with a secret, no other one follows.
    if ends_with_secret(line) {
        None
    } else if ends_with_secret(&format!("{line} value")) {
        Some(Extent::Word)
    } else {
        ends_with_secret(&format!("{line} user:password")).then_some(Extent::Password)
    }
}

/// Removes the password of `USER:PASSWORD`. Two numbers are the ids of a user and a group.
fn without_password(word: &str) -> String {
    match word.split_once(':') {
        Some((user, password)) if [user, password].concat().contains(|c: char| !c.is_ascii_digit()) => {
            format!("{user}:{LEFT_OUT}")
        }
        _ => word.to_owned(),
    }
}

/// Removes all values of an object.
fn redact_values(map: &mut Value) {
    map.as_object_mut()
        .into_iter()
        .flat_map(|map| map.values_mut())
        .for_each(|value| *value = Value::from(LEFT_OUT));
}

/// Removes the value of an entry of a container's `env`, or of a probe's `httpHeaders`.
fn redact_variable(variable: &mut Value) {
    if let Some(value) = variable.get_mut("value") {
        *value = Value::from(LEFT_OUT);
    }
}

/// Removes keys and certificates in PEM, passwords and tokens of URLs, and values that a text names as secrets:
/// `NAME=value`, `--name value`, `name: value`, `--user name:value`. `-pVALUE` does not name one: the same letter is a port
/// of other programs.
pub fn text(text: &str) -> String {
    let without_pem = without_pem(text);
    let lines = without_pem.split_inclusive('\n').map(|line| {
        // A log that was read with timestamps has one before each line.
        let (time, line) = line
            .split_once(' ')
            .filter(|(word, _)| word.parse::<Timestamp>().is_ok())
            .map_or(("", line), |(time, _)| line.split_at(time.len() + 1));
        format!("{time}{}", without_userinfo(&redact_line(line)))
    });
    lines.collect()
}

/// Replaces each block from `-----BEGIN …` to `-----END …-----`. If the end is missing, as in the last lines of a log,
/// the lines that may be a part of the block are removed.
fn without_pem(text: &str) -> String {
    const DASHES: &str = "-----";
    let (mut clean, mut rest) = (String::with_capacity(text.len()), text);
    while let Some((before, block)) = rest.split_once("-----BEGIN ") {
        clean.push_str(before);
        clean.push_str(LEFT_OUT);
        let this_block = block.find("-----BEGIN ").map_or(block, |next| &block[..next]);
        let end = this_block.find("-----END ").map(|end| {
            let label = end + "-----END ".len();
            let after = this_block[label..].find(DASHES);
            after.map_or(this_block.len(), |after| label + after + DASHES.len())
        });
        let is_of_block = |line: &&str| {
            !line
                .trim()
                .contains(|c: char| !(c.is_ascii_alphanumeric() || "+/=".contains(c)))
        };
        // The first line is the rest of the line with `BEGIN`.
        let length = || {
            let mut lines = this_block.split_inclusive('\n');
            let first = lines.next().map_or(0, str::len);
            first + lines.take_while(is_of_block).map(str::len).sum::<usize>()
        };
        rest = &block[end.unwrap_or_else(length)..];
    }
    clean + rest
}

/// Options of curl without a value, which may stand before `u` in one word: `-su`.
const FLAGS: &str = "fgikLsSv";

/// Whether this is curl's option of a user with a password: `-u`, `--user`, `--proxy-user`.
fn is_user_option(name: &str) -> bool {
    let flags = name
        .strip_prefix('-')
        .and_then(|letters| letters.strip_suffix(['u', 'U']));
    matches!(name, "--user" | "--proxy-user")
        || flags.is_some_and(|flags| flags.chars().all(|flag| FLAGS.contains(flag)))
}

/// Schemes of the HTTP header `Authorization` that are kept before the secret.
const SCHEMES: [&str; 3] = ["bearer", "basic", "token"];

/// Removes the value after each name with an `Extent`. The text between names is copied as it is.
fn redact_line(line: &str) -> String {
    let is_name_char = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    let (mut clean, mut rest) = (String::with_capacity(line.len()), line);
    while let Some(first) = rest.chars().next() {
        let end = if is_name_char(first) {
            rest.find(|c| !is_name_char(c)).unwrap_or(rest.len())
        } else {
            first.len_utf8()
        };
        let (name, after) = rest.split_at(end);
        let before = clean.len();
        clean.push_str(name);
        rest = after;
        if is_name_char(first)
            && !is_of_image_or_volume(name, &clean[..before], rest)
            && let Some(extent) = Extent::of(name, &clean[..before])
        {
            // In quotes or brackets, a quote, a comma or a bracket ends the value, too.
            let is_inside = clean[..before].contains(['"', '\'', '{', '[']);
            rest = redact_value(extent, is_inside, rest, &mut clean);
        }
    }
    clean
}

/// Whether the name is a part of an image's (`private.example:5000/app`, `ghcr.io/me/token-service:v1`), or that of a volume
/// in the kubelet's words (`volume "token" : …`). No secret follows these.
fn is_of_image_or_volume(name: &str, before: &str, after: &str) -> bool {
    let port = after.strip_prefix(':').and_then(|after| after.split_once('/'));
    let is_registry = name.contains('.')
        && port.is_some_and(|(port, _)| !port.is_empty() && port.chars().all(|c| c.is_ascii_digit()));
    let word = before
        .rsplit([' ', '\t', '"', '\'', '='])
        .next()
        .unwrap_or_default();
    let is_repository = word.ends_with('/')
        && word
            .split_once('/')
            .is_some_and(|(host, _)| host.contains('.') && !host.starts_with('.'));
    is_registry || is_repository || before.ends_with("volume \"")
}

/// How far a value reaches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Extent<'a> {
    /// A word.
    Word,
    /// A word; the name is an option such as `--token`, so a blank may separate the value from it.
    Argument,
    /// As `Argument`, but only what follows the first colon of the word.
    Password,
    /// The rest of the line, if a blank precedes the value, as in `name: a b`. Otherwise a word.
    Line,
    /// The rest of the line or, if this quote precedes the name, the rest of the quoted text.
    Header(Option<&'a str>),
}

/// The quotes of a text: in JSON that is itself in a string, a backslash precedes each quote.
const QUOTES: [&str; 3] = [r#"\""#, "\"", "'"];

impl Extent<'_> {
    /// The extent of the value of this name. None: it is no secret. `before`: the line before the name.
    fn of(name: &str, before: &str) -> Option<Self> {
        let lower = name.to_lowercase();
        // `is_secret` does not accept the names of these HTTP headers.
        if lower.ends_with("authorization") || matches!(lower.as_str(), "cookie" | "set-cookie") {
            return Some(Extent::Header(
                QUOTES.into_iter().find(|quote| before.ends_with(quote)),
            ));
        }
        if is_user_option(name) {
            return Some(Extent::Password);
        }
        // Names of errors and programs: `NoCredentialsError`, `tokenizer`.
        let is_no_value = ["error", "exception", "izer"]
            .iter()
            .any(|end| lower.ends_with(end));
        if !is_secret(name) || is_no_value {
            return None;
        }
        Some(if name.starts_with('-') {
            Extent::Argument
        } else if before.trim_start_matches([' ', '\t', '-']).is_empty() && ends_with_secret_word(name) {
            // As in YAML: the line is a name and its value.
            Extent::Line
        } else {
            Extent::Word
        })
    }
}

/// The length of a quoted value that `text` begins with, up to `quote`. A quote with a backslash is part of the value.
fn quoted_length(text: &str, quote: &str) -> usize {
    // How many backslashes write one backslash of the value: two, or four in JSON that is itself in a string.
    // Backslashes beyond a multiple of this make the quote a part of the value.
    let per_backslash = if quote.starts_with('\\') { 4 } else { 2 };
    let is_end = |at: &usize| {
        let before = text.get(..*at).unwrap_or_default();
        (before.len() - before.trim_end_matches('\\').len()).is_multiple_of(per_backslash)
    };
    let mut quotes = text.match_indices(quote).map(|(at, _)| at);
    // Without an end, the text was cut off.
    quotes.find(is_end).unwrap_or_else(|| line_length(text))
}

fn line_length(text: &str) -> usize {
    text.find(['\n', '\r']).unwrap_or(text.len())
}

/// Replaces the value at the beginning of `text`, which follows a secret's name. Returns the rest of the text.
/// `is_inside`: the name is in quotes or brackets.
fn redact_value<'a>(extent: Extent, is_inside: bool, text: &'a str, clean: &mut String) -> &'a str {
    let is_option = matches!(extent, Extent::Argument | Extent::Password);
    // In a list of quoted words, a comma separates the value from the option.
    let is_quoted = is_option && text.starts_with(['"', '\'', '\\']);
    let is_separator = |c: char| {
        matches!(c, ' ' | '\t' | '"' | '\'' | '\\' | '=' | '[' | '(' | '{')
            || is_quoted && c == ','
            // A user without a name: `-u :token`.
            || extent != Extent::Password && c == ':'
    };
    let (gap, mut rest) = text.split_at(text.find(|c| !is_separator(c)).unwrap_or(text.len()));
    // Without a separator, the name is a word of a sentence, and no value follows it.
    if !(gap.contains(['=', ':']) || (is_option && gap.contains([' ', '\t', ',']))) {
        return text;
    }
    // Another option follows, and no value.
    let is_next_option = rest.starts_with("--") && gap.ends_with([' ', '\t']);
    if is_option && is_next_option {
        return text;
    }
    // All values of a list.
    if let Some(at) = gap.find('[') {
        let (before, list) = text.split_at(at + 1);
        clean.push_str(before);
        clean.push_str(LEFT_OUT);
        let end = list.find(']').unwrap_or_else(|| line_length(list));
        return list.get(end..).unwrap_or_default();
    }
    clean.push_str(gap);
    // The value was removed already, for example a block in PEM by `without_pem`.
    if rest.starts_with(LEFT_OUT) {
        return rest;
    }
    if let Extent::Header(_) = extent {
        let word = rest.split([' ', '\n', '\r']).next().unwrap_or_default();
        if SCHEMES.contains(&word.to_lowercase().as_str()) {
            let (scheme, after) = rest.split_at(word.len());
            clean.push_str(scheme);
            rest = after.strip_prefix(' ').unwrap_or(after);
            clean.push_str(&after[..after.len() - rest.len()]);
        }
    }
    // A quoted value may have blanks.
    let own_quote = QUOTES.into_iter().find(|quote| gap.ends_with(quote));
    let quote = match extent {
        // `"Authorization": …` is a name in quotes, and `"Authorization: …"` is the whole header in them.
        Extent::Header(around) => own_quote.or(around.filter(|quote| !gap.starts_with(quote))),
        _ => own_quote,
    };
    let is_line =
        matches!(extent, Extent::Header(_)) || (extent == Extent::Line && gap.ends_with([' ', '\t']));
    let end = match quote {
        Some(quote) => quoted_length(rest, quote),
        None if is_line => line_length(rest),
        None => {
            let is_end = |c: char| {
                matches!(c, ' ' | '\t' | '\n' | '\r')
                    || is_inside && matches!(c, '"' | '\'' | '\\' | ',' | ';' | '}' | ']')
            };
            rest.find(is_end).unwrap_or(rest.len())
        }
    };
    if extent == Extent::Password {
        // Only the password may be in quotes: `-u bob:'a b'`.
        let quoted = rest.split_once(':').and_then(|(user, password)| {
            let quote = QUOTES.into_iter().find(|quote| password.starts_with(quote))?;
            let is_word = own_quote.is_none() && !user.contains([' ', '\t', '"', '\'']);
            is_word.then(|| password.split_at(quote.len()))
        });
        if let Some((quote, password)) = quoted {
            let before = rest.len() - password.len();
            clean.push_str(rest.get(..before).unwrap_or_default());
            clean.push_str(LEFT_OUT);
            return password.get(quoted_length(password, quote)..).unwrap_or_default();
        }
        clean.push_str(&without_password(rest.get(..end).unwrap_or_default()));
    } else if end > 0 {
        clean.push_str(LEFT_OUT);
    }
    rest.get(end..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn no_secret_of_an_object_is_left() {
        let mut value = json!({
            "metadata": { "name": "mc", "managedFields": [{}],
                "annotations": { "kubectl.kubernetes.io/last-applied-configuration": "hunter2", "a/b": "kept" } },
            "spec": {
                "users": [{ "name": "ann", "password": "hunter2" }],
                "flux": { "curveCert": "hunter2", "mungeSecret": "munge" },
                "fluxRestful": { "secretKey": "hunter2", "token": "hunter2", "username": "ann" },
                "containers": [{
                    "image": "private:5000/token:v1", "environment": { "ANY": "hunter2" }, "secrets": { "TOKEN": { "name": "s", "key": "k" } },
                    "command": "run --db-password hunter2 --api-key=hunter2 --token=hunter2 MY_PASSWORD=hunter2 x",
                    "env": [{ "name": "A", "value": "hunter2" }, { "name": "B", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }],
                    "volumes": { "v": { "secretName": "s" } },
                }],
                "podTemplate": { "spec": {
                    "containers": [{
                        "livenessProbe": { "httpGet": { "port": 80, "httpHeaders": [{ "name": "X-Auth", "value": "hunter2" }] } },
                        "lifecycle": { "preStop": { "httpGet": { "httpHeaders": [{ "name": "Cookie", "value": "a=hunter2" }] } } },
                    }],
                    "volumes": [
                        { "csi": { "driver": "d", "volumeAttributes": { "accountKey": "hunter2" } } },
                        { "flexVolume": { "driver": "d", "options": { "accountKey": "hunter2" }, "secretRef": { "name": "s" } } },
                    ],
                    "dnsConfig": { "options": [{ "name": "ndots", "value": "2" }] },
                } },
            },
        });
        object(&mut value);
        let text = value.to_string();
        assert!(
            !text.contains("hunter2") && !text.contains("managedFields"),
            "{value:#}"
        );
        assert_eq!(value["spec"]["users"][0]["name"], "ann");
        assert_eq!(value["spec"]["containers"][0]["image"], "private:5000/token:v1");
        assert_eq!(value["spec"]["flux"]["mungeSecret"], "munge");
        assert_eq!(value["spec"]["containers"][0]["secrets"]["TOKEN"]["name"], "s");
        assert_eq!(
            value["spec"]["containers"][0]["env"][1]["valueFrom"]["secretKeyRef"]["name"],
            "s"
        );
        assert_eq!(value["metadata"]["annotations"]["a/b"], "kept");
        let pod = &value["spec"]["podTemplate"]["spec"];
        let header = &pod["containers"][0]["livenessProbe"]["httpGet"]["httpHeaders"][0];
        assert_eq!(header, &json!({ "name": "X-Auth", "value": LEFT_OUT }));
        assert_eq!(pod["volumes"][1]["flexVolume"]["secretRef"]["name"], "s");
        assert_eq!(pod["dnsConfig"]["options"][0]["value"], "2");
        assert!(
            value["spec"]["containers"][0]["command"]
                .as_str()
                .unwrap()
                .starts_with("run --db-password (left out) ")
        );
    }

    #[test]
    fn secret_of_a_command_list_is_left_out() {
        let mut value = json!({ "lifecycle": { "postStart": { "exec": { "command":
            ["login", "--password", "hunter2 two", "--user", "ann", "--token=hunter2", "next", "--api-key:", "hunter2",
                "-H", "Authorization: Bearer hunter2", "Authorization: Bearer", "hunter2", "sh -c 'x --secret hunter2'", "end"] } } } });
        object(&mut value);
        assert_eq!(
            value["lifecycle"]["postStart"]["exec"]["command"],
            json!([
                "login",
                "--password",
                LEFT_OUT,
                "--user",
                "ann",
                "--token=(left out)",
                "next",
                "--api-key:",
                LEFT_OUT,
                "-H",
                "Authorization: Bearer (left out)",
                "Authorization: Bearer",
                LEFT_OUT,
                "sh -c 'x --secret (left out)'",
                "end"
            ])
        );
    }

    #[test]
    fn password_of_a_user_option_is_left_out() {
        for line in [
            "curl -u bob:hunter2 host",
            "curl -su 'bob:hunter2' host",
            "curl --user=bob:hunter2 host && x",
            "curl --proxy-user \"bob:hunter2\" host",
            "curl -u :hunter2",
            "curl -H 'A: b' -u bob:'hunter2' host",
            r#"exec ["curl", "-u", "bob:hunter2"]: no such file"#,
            r#"{\"command\":[\"curl\",\"-u\",\"bob:hunter2\"]}"#,
        ] {
            assert_eq!(text(line), line.replace("hunter2", LEFT_OUT));
        }
        assert_eq!(text("-u 'bob:hunter2 two' x"), "-u 'bob:(left out)' x");
        assert_eq!(text("-u bob:\"hunter2 two\" x"), "-u bob:\"(left out)\" x");
        for line in [
            "docker run -u 1000:1000 --user 1000 app",
            "id -u; date -u",
            "-u: a user:group",
            "sort -u",
        ] {
            assert_eq!(text(line), line);
        }
        let mut list = json!([
            "curl",
            "-u",
            "bob:hunter2 two",
            "--user",
            "ann",
            "-u",
            "1000:1000",
            "host:80"
        ]);
        object(&mut list);
        let wanted = json!([
            "curl",
            "-u",
            "bob:(left out)",
            "--user",
            "ann",
            "-u",
            "1000:1000",
            "host:80"
        ]);
        assert_eq!(list, wanted);
    }

    #[test]
    fn secret_of_a_list_in_a_text_is_left_out() {
        for line in [
            r#"exec ["login", "--password", "hunter2"]: no such file"#,
            r#"{"command":["login","--password","hunter2"]}"#,
            "login --password 'hunter2' --user ann",
            r#"{\"command\":[\"login\",\"--password\",\"hunter2\"]}"#,
        ] {
            let clean = text(line);
            assert_eq!(clean, line.replace("hunter2", LEFT_OUT));
        }
        assert_eq!(
            text("login --password 'hunter2 two' x"),
            "login --password '(left out)' x"
        );
        let last = r#"["--password"], next"#;
        assert_eq!(text(last), last);
    }

    #[test]
    fn nothing_of_a_value_with_blanks_or_quotes_is_left() {
        for (line, clean) in [
            ("Authorization: token hunter2", "Authorization: token (left out)"),
            (
                "Authorization: BEARER hunter2 hunter2",
                "Authorization: BEARER (left out)",
            ),
            ("Authorization=hunter2 hunter2", "Authorization=(left out)"),
            (
                r#"Authorization: Digest username="a", response="hunter2""#,
                "Authorization: (left out)",
            ),
            (
                "Proxy-Authorization: Basic hunter2",
                "Proxy-Authorization: Basic (left out)",
            ),
            (
                "curl -H 'Authorization: Digest a=1, b=hunter2' host",
                "curl -H 'Authorization: (left out)' host",
            ),
            (
                r#"curl -H "Authorization: Digest a=\"hunter2\", b=hunter2" host"#,
                r#"curl -H "Authorization: (left out)" host"#,
            ),
            (
                r#"{"Authorization":["Bearer hunter2","Basic hunter2"],"n":1}"#,
                r#"{"Authorization":[(left out)],"n":1}"#,
            ),
            (
                "map[Authorization:[Bearer hunter2] Accept:[x]]",
                "map[Authorization:[(left out)] Accept:[x]]",
            ),
            (
                r#""tokens": ["hunter2","hunter2"], x"#,
                r#""tokens": [(left out)], x"#,
            ),
            (
                r#"{"password":"hunter2\"hunter2","n":1}"#,
                r#"{"password":"(left out)","n":1}"#,
            ),
            (
                r#"{"password":"hunter2\\","n":1}"#,
                r#"{"password":"(left out)","n":1}"#,
            ),
            (
                r#"{\"password\":\"hunter2\\\"hunter2\",\"n\":1}"#,
                r#"{\"password\":\"(left out)\",\"n\":1}"#,
            ),
            (r#"{"password":"hunter2 cut"#, r#"{"password":"(left out)"#),
            ("token='hunter2\nnext", "token='(left out)\nnext"),
            (
                "SECRET_URL=https://ann:hunter2@host/x?sig=hunter2",
                "SECRET_URL=(left out)",
            ),
            (
                "git clone https://ann:hunter2@host",
                "git clone https://(left out)@host",
            ),
            (
                "curl -H 'Cookie: a=1; session=hunter2' host",
                "curl -H 'Cookie: (left out)' host",
            ),
            ("SMTP_PASS: two hunter2", "SMTP_PASS: (left out)"),
            ("  password: two hunter2", "  password: (left out)"),
            ("- password: don't hunter2", "- password: (left out)"),
            (
                "2026-01-01T00:00:00.1Z password: two hunter2",
                "2026-01-01T00:00:00.1Z password: (left out)",
            ),
            (
                "login with password: hunter2 failed",
                "login with password: (left out) failed",
            ),
            ("PASSWORD=ab,hunter2\"; x", "PASSWORD=(left out) x"),
            (
                "login --password= --token hunter2 x",
                "login --password= --token (left out) x",
            ),
            // `tokens` may name secrets, so a count of tokens is removed, too.
            ("tokens: 5, latency: 3 ms", "tokens: (left out) latency: 3 ms"),
            // What is no secret stays.
            (
                r#"Failed to pull image "private-registry.corp:5000/app:1": not found"#,
                r#"Failed to pull image "private-registry.corp:5000/app:1": not found"#,
            ),
            (
                r#"Back-off pulling image "ghcr.io/me/token-service:v1""#,
                r#"Back-off pulling image "ghcr.io/me/token-service:v1""#,
            ),
            (
                r#"MountVolume.SetUp failed for volume "credentials" : secret "db" not found"#,
                r#"MountVolume.SetUp failed for volume "credentials" : secret "db" not found"#,
            ),
            // But a path is no image.
            ("/etc/a.d/token:hunter2", "/etc/a.d/token:(left out)"),
            (
                "NoCredentialsError: Unable to locate",
                "NoCredentialsError: Unable to locate",
            ),
            ("tokenizer: loading from disk", "tokenizer: loading from disk"),
        ] {
            assert_eq!(text(line), clean);
        }
    }

    #[test]
    fn nothing_of_a_key_in_pem_is_left() {
        let key = "-----BEGIN PRIVATE KEY-----\nhunter2/+=\nhunter2\n-----END PRIVATE KEY-----";
        let one_line = key.replace('\n', "\\n");
        for (before, after) in [
            ("", ""),
            ("key: ", "\nthe end"),
            ("tls.key: |\n  ", "\nthe end\n"),
        ] {
            for key in [key, &one_line] {
                let clean = text(&format!("{before}{key}{after}"));
                assert_eq!(clean, format!("{before}{LEFT_OUT}{after}"));
            }
        }
        let two = text(&format!("{key}\nbetween\n{key}\n"));
        assert_eq!(two, format!("{LEFT_OUT}\nbetween\n{LEFT_OUT}\n"));
        // The end is missing.
        let cut = text("a\n-----BEGIN PRIVATE KEY-----\nhunter2\nhunter2\nits last line\n");
        assert_eq!(cut, format!("a\n{LEFT_OUT}its last line\n"));
        assert_eq!(text("-----BEGIN PRIVATE KEY-----\nhunter2"), LEFT_OUT);
        let twice = text("-----BEGIN A-----\nhunter2\n-----BEGIN A-----\nhunter2\n-----END A-----\n");
        assert_eq!(twice, format!("{LEFT_OUT}{LEFT_OUT}\n"));
    }

    #[test]
    fn log_keeps_all_but_the_values_of_secret_names() {
        let log = "step 1: a = b\npassword: hunter2\nAuthorization: Bearer hunter2\n{\"token\":\"hunter2\",\"n\":1}\nexport TOKEN='hunter2'; go\n";
        let clean = text(log);
        assert!(!clean.contains("hunter2"), "{clean}");
        assert!(
            clean.starts_with("step 1: a = b\npassword: (left out)\n") && clean.ends_with("; go\n"),
            "{clean}"
        );
        assert_eq!(text("no secret here\n\nthe end"), "no secret here\n\nthe end");
    }
}
