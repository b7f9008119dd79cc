//! The curve certificate: read from the mounted Secret, its form checked, handed on as bytes that nothing can print.

mod derived;

use std::io::ErrorKind;
use std::path::Path;

use flux_shared::exit::Category;

use crate::report::failure::{Failure, plain};

/// A certificate's bytes. Deliberately without Debug or Display.
pub struct Certificate(Vec<u8>);

impl Certificate {
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The checked certificate in `path`.
    pub fn read(path: &Path) -> Result<Certificate, Failure> {
        let bytes = std::fs::read(path).map_err(|error| {
            let remedy = match error.kind() {
                ErrorKind::PermissionDenied => {
                    "set pod.securityContext.fsGroup, so that the container's user may read the Secret"
                }
                ErrorKind::NotFound => "is the Secret `<cluster>-curve` mounted in this container?",
                _ => "check the Secret's volume",
            };
            let cause = format!("failed to read the curve certificate {}: {}", path.display(), plain(&error));
            Failure::new(Category::CurveUnreadable, cause, remedy)
        })?;
        let text = std::str::from_utf8(&bytes).map_err(|_| malformed(path, "it is not text"))?;
        check(text).map_err(|why| malformed(path, why))?;
        Ok(Certificate(bytes))
    }
}

fn malformed(path: &Path, why: &str) -> Failure {
    let cause = format!("failed to use the curve certificate {}: {why}", path.display());
    Failure::new(
        Category::CurveUnreadable,
        cause,
        "use one from `flux keygen`, or delete the Secret: the operator creates a new one",
    )
}

/// Checks what Flux requires: two keys of 40 characters, and a name, for the brokers that have children.
fn check(text: &str) -> Result<(), &'static str> {
    let (mut section, mut public, mut secret, mut name) = ("", false, false, false);
    for line in text.lines().map(|line| line.trim_end_matches('\r')) {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        if !line.starts_with([' ', '\t']) {
            section = line.trim_end();
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { return Err("a line is not `key = \"value\"`") };
        let value = value.trim().trim_matches('"');
        match (section, key.trim()) {
            ("curve", "public-key") => public = is_key(value),
            ("curve", "secret-key") => secret = is_key(value),
            ("metadata", "name") => name = true,
            _ => {}
        }
    }
    match (public, secret, name) {
        (true, true, true) => Ok(()),
        (false, ..) => Err("it has no public-key of 40 Z85 characters in its section curve"),
        (_, false, _) => Err("it has no secret-key of 40 Z85 characters in its section curve"),
        (.., false) => Err("it has no name in its section metadata"),
    }
}

fn is_key(text: &str) -> bool {
    text.len() == 40
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-:+=^!/*?&<>()[]{}@%$#".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";

    fn certificate(public: &str, secret: &str, metadata: &str) -> String {
        format!(
            "#  comment\nmetadata\n{metadata}\ncurve\n    public-key = \"{public}\"\n    secret-key = \"{secret}\"\n"
        )
    }

    #[test]
    fn what_flux_would_refuse_is_refused_here_without_showing_it() {
        let name = "    name = \"mc-0\"";
        assert_eq!(check(&certificate(KEY, KEY, name)), Ok(()));
        assert_eq!(check(&certificate(KEY, KEY, name).replace('\n', "\r\n")), Ok(()));
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("curve.cert");
        for (text, word) in [
            (certificate("short", KEY, name), "public-key"),
            (certificate(KEY, &KEY.replace('r', "~"), name), "secret-key"),
            (certificate(KEY, KEY, "    keygen.hostname = \"mc-0\""), "name"),
            (String::new(), "public-key"),
        ] {
            std::fs::write(&path, &text).unwrap();
            let failure = Certificate::read(&path).err().unwrap();
            assert!(failure.cause.contains(word), "{failure}");
            assert!(failure.category == Category::CurveUnreadable && !failure.to_string().contains(&KEY[..8]));
        }
    }

    #[test]
    fn a_missing_certificate_names_the_secret() {
        let failure = Certificate::read(Path::new("/nonexistent/curve.cert")).err().unwrap();
        assert!(failure.remedy.contains("Secret"), "{failure}");
    }
}
