//! The curve certificate as text, in CZMQ's ZPL format, as Flux accepts it (`cert_read` in its libzmqutil). But whether
//! the public key belongs to the secret key is not checked here. `Debug` leaves out the secret key.
//!
//! Own code: the format has two sections and three keys that matter, and the existing parser is part of CZMQ, a C
//! library.

use std::collections::BTreeSet;

/// Flux's limit on a line, in bytes. It reads the rest of a longer line as another line.
const MAX_LINE: usize = 255;
/// What Flux allows in keys, and in the values of the metadata, besides letters and digits.
const KEY_CHARACTERS: &str = "-.";
const VALUE_CHARACTERS: &str = ".-:+=^!/*?&<>()[]{}@%$# \t";

fn is_allowed(character: char, signs: &str) -> bool {
    character.is_ascii_alphanumeric() || signs.contains(character)
}

/// A certificate: a key pair in Z85 encoding, and a name, which Flux needs on brokers with children.
#[derive(Clone, PartialEq, Eq)]
pub struct Certificate {
    name: String,
    public_key: String,
    secret_key: String,
    /// The text that it was parsed from, which `to_text` returns unchanged. None: it was made from keys.
    text: Option<String>,
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "Certificate {{ name: {:?}, public_key: {:?}, secret_key: redacted }}",
            self.name, self.public_key
        )
    }
}

impl Certificate {
    /// The certificate with this key pair.
    pub fn from_keys(name: &str, public: &[u8; 32], secret: &[u8; 32]) -> Certificate {
        Certificate {
            name: name.to_owned(),
            public_key: z85::encode(public),
            secret_key: z85::encode(secret),
            text: None,
        }
    }

    pub fn public_key(&self) -> &str {
        &self.public_key
    }

    /// The text of the certificate file, with the secret key.
    pub fn to_text(&self) -> String {
        if let Some(text) = &self.text {
            return text.clone();
        }
        // `flux keygen` writes its host as `keygen.hostname`. Here, the certificate's name takes that place.
        format!(
            "#   ZeroMQ CURVE **Secret** Certificate\nmetadata\n    name = \"{}\"\n    keygen.hostname = \"{}\"\ncurve\n    public-key = \"{}\"\n    secret-key = \"{}\"\n",
            self.name, self.name, self.public_key, self.secret_key
        )
    }

    /// Parses a certificate file. The error says what is wrong, and contains no key.
    pub fn parse(text: &str) -> Result<Certificate, String> {
        let mut section = "";
        let (mut name, mut public, mut secret) = (None, None, None);
        let mut keys = BTreeSet::new();
        for (number, line) in text.lines().enumerate() {
            if line.len() > MAX_LINE {
                return Err(format!("line {}: longer than {MAX_LINE} bytes", number + 1));
            }
            let content = line.trim_ascii();
            if content.is_empty() || content.starts_with('#') {
                continue;
            }
            if !line.starts_with([' ', '\t']) {
                section = match content {
                    "metadata" | "curve" => content,
                    _ => return Err(format!("line {}: expected `metadata` or `curve`", number + 1)),
                };
                continue;
            }
            let (key, value) = content
                .split_once('=')
                .ok_or_else(|| format!("line {}: expected key = \"value\"", number + 1))?;
            let key = key.trim_ascii();
            if key.is_empty() || !key.chars().all(|c| is_allowed(c, KEY_CHARACTERS)) {
                let why = "a key may have only letters, digits, `-` and `.`";
                return Err(format!("line {}: {why}", number + 1));
            }
            let value = value
                .trim_ascii()
                .strip_prefix('"')
                .and_then(|v| v.strip_suffix('"'));
            let value =
                value.ok_or_else(|| format!("line {}: the value is not in double quotes", number + 1))?;
            if !keys.insert((section, key)) {
                return Err(format!("line {}: duplicate key", number + 1));
            }
            let rejected = value.chars().find(|c| !is_allowed(*c, VALUE_CHARACTERS));
            if section == "metadata"
                && let Some(rejected) = rejected
            {
                let why = format!("the value of {key} has {rejected:?}, which Flux rejects");
                return Err(format!("line {}: {why}", number + 1));
            }
            let place = match (section, key) {
                ("metadata", "name") => &mut name,
                ("curve", "public-key") => &mut public,
                ("curve", "secret-key") => &mut secret,
                ("metadata", _) => continue,
                _ => return Err(format!("line {}: unknown key", number + 1)),
            };
            *place = Some(value.to_owned());
        }
        let key = |value: Option<String>, what: &str| {
            let value = value.ok_or_else(|| format!("curve has no {what}"))?;
            match z85::decode(&value) {
                Ok(bytes) if bytes.len() == 32 => Ok(value),
                _ => Err(format!("{what} is not a key of 40 Z85 characters")),
            }
        };
        Ok(Certificate {
            name: name.ok_or("metadata has no name, which a broker with children needs")?,
            public_key: key(public, "public-key")?,
            secret_key: key(secret, "secret-key")?,
            text: Some(text.to_owned()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_survives_its_text() {
        let certificate = Certificate::from_keys("mc-0", &[7; 32], &[9; 32]);
        let text = certificate.to_text();
        let other = text.replace("metadata", "# of another cluster\nmetadata\n    time = \"1\"");
        for text in [text, other] {
            assert_eq!(
                Certificate::parse(&text).unwrap().to_text(),
                text,
                "byte for byte"
            );
        }
    }

    #[test]
    fn debug_and_errors_hold_no_secret() {
        let certificate = Certificate::from_keys("mc-0", &[7; 32], &[9; 32]);
        let secret = z85::encode([9; 32]);
        assert!(!format!("{certificate:?}").contains(&secret));
        let short = certificate.to_text().replace(&secret, &secret[..39]);
        let error = Certificate::parse(&short).unwrap_err();
        assert!(error.contains("secret-key") && !error.contains(&secret[..20]));
    }

    #[test]
    fn malformed_curve_certificate_is_rejected() {
        for bad in [
            "",
            "[exec]\n",
            "metadata\n    name = \"a\"\n",
            "curve\n  public-key = x\n",
            "curve\n  a = \"b\"\n",
        ] {
            assert!(Certificate::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn metadata_that_flux_rejects_is_rejected() {
        let text = Certificate::from_keys("mc-0", &[7; 32], &[9; 32]).to_text();
        let with = |metadata: &str| {
            Certificate::parse(&text.replace("metadata\n", &format!("metadata\n{metadata}\n")))
        };
        let line = |length: usize| format!("    a = \"{}\"", "b".repeat(length - "    a = \"\"".len()));
        for good in ["    a.b-1 = \"1 (a)\t#%\"", "    a = \"\"", &line(255)] {
            assert!(with(good).is_ok(), "{good}");
        }
        for (bad, words) in [
            ("    user = \"ada_l\"", "the value of user"),
            ("    user = \"ad\u{e4}\"", "the value of user"),
            ("    user = \"a\"b\"", "the value of user"),
            ("    user_id = \"1\"", "a key may"),
            ("    = \"1\"", "a key may"),
            ("    a = \u{a0}\"1\"", "double quotes"),
            ("    a = \"1\"\n    a = \"1\"", "duplicate key"),
            ("    name = \"mc-1\"", "duplicate key"),
            (&line(256), "longer than 255"),
            (&format!("#{}", "a".repeat(255)), "longer than 255"),
        ] {
            let error = with(bad).unwrap_err();
            assert!(error.contains(words), "{bad}: {error}");
        }
        let error = Certificate::parse(&text.replacen("mc-0", "my_cluster", 1)).unwrap_err();
        assert!(error.contains("the value of name"), "{error}");
    }
}
