//! The curve certificate: read from the mounted Secret or derived from a seed. Its bytes have a type that cannot be
//! printed.

mod derived;

use std::io::ErrorKind;
use std::path::Path;

use flux_shared::exit::Category;

use crate::report::failure::{Failure, plain};

/// A certificate's bytes. Deliberately without Debug or Display.
pub struct CertificateBytes(Vec<u8>);

impl CertificateBytes {
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads the certificate at `path` and checks its form. A failure does not show the keys.
    pub fn read(path: &Path) -> Result<CertificateBytes, Failure> {
        let bytes = std::fs::read(path).map_err(|error| {
            let remedy = match error.kind() {
                ErrorKind::PermissionDenied => {
                    "set pod.securityContext.fsGroup, so that the container's user may read the Secret"
                }
                ErrorKind::NotFound => "is the Secret `<cluster>-curve` mounted in this container?",
                _ => "check the Secret's volume",
            };
            let cause = format!(
                "failed to read the curve certificate {}: {}",
                path.display(),
                plain(&error)
            );
            Failure::new(Category::CurveUnreadable, cause, remedy)
        })?;
        let text = std::str::from_utf8(&bytes).map_err(|_| malformed(path, "it is not text"))?;
        flux_shared::curve::Certificate::parse(text).map_err(|why| malformed(path, &why))?;
        Ok(CertificateBytes(bytes))
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
    fn bad_certificate_is_rejected_without_showing_its_keys() {
        let name = "    name = \"mc-0\"";
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("curve.cert");
        for text in [
            certificate(KEY, KEY, name),
            certificate(KEY, KEY, name).replace('\n', "\r\n"),
        ] {
            std::fs::write(&path, &text).unwrap();
            assert_eq!(
                CertificateBytes::read(&path)
                    .map_err(|failure| failure.to_string())
                    .unwrap()
                    .bytes(),
                text.as_bytes()
            );
        }
        for (text, word) in [
            (certificate("short", KEY, name), "public-key"),
            (certificate(KEY, &KEY.replace('r', "~"), name), "secret-key"),
            (certificate(KEY, KEY, "    keygen.hostname = \"mc-0\""), "name"),
            (String::new(), "name"),
        ] {
            std::fs::write(&path, &text).unwrap();
            let failure = CertificateBytes::read(&path).err().unwrap();
            assert!(failure.cause.contains(word), "{failure}");
            assert!(
                failure.category == Category::CurveUnreadable && !failure.to_string().contains(&KEY[..8])
            );
        }
    }

    #[test]
    fn a_missing_certificate_names_the_secret() {
        let failure = CertificateBytes::read(Path::new("/nonexistent/curve.cert"))
            .err()
            .unwrap();
        assert!(failure.remedy.contains("Secret"), "{failure}");
    }
}
