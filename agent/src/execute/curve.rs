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

    /// Reads the certificate at `path` and checks its form, but not that its keys are a pair. A failure does not show
    /// the keys.
    pub fn read(path: &Path) -> Result<CertificateBytes, Failure> {
        let bytes = std::fs::read(path).map_err(|error| {
            let remedy = match error.kind() {
                ErrorKind::PermissionDenied => {
                    "set pod.securityContext.fsGroup, so that the container's user may read the Secret"
                }
                ErrorKind::NotFound => {
                    "is a Secret with the key `curve.cert` mounted here? Without the operator: `--key-from-env`"
                }
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
        "replace the key `curve.cert` of the Secret (flux.curveCertSecret) by a file of `flux keygen --name=NAME`",
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
            // As `flux keygen --name=my_cluster` writes it.
            (
                certificate(KEY, KEY, "    name = \"my_cluster\""),
                "'_', which Flux rejects",
            ),
            (String::new(), "name"),
        ] {
            std::fs::write(&path, &text).unwrap();
            let failure = CertificateBytes::read(&path).err().unwrap();
            assert!(failure.cause.contains(word), "{failure}");
            // The operator writes no malformed certificate, so the Secret is one of the user, which nothing recreates.
            assert!(!failure.remedy.contains("delete"), "{failure}");
            assert!(failure.remedy.contains("flux.curveCertSecret"), "{failure}");
            assert!(
                failure.category == Category::CurveUnreadable && !failure.to_string().contains(&KEY[..8])
            );
        }
    }

    #[test]
    fn missing_certificate_names_key_and_option() {
        let failure = CertificateBytes::read(Path::new("/nonexistent/curve.cert"))
            .err()
            .unwrap();
        for words in ["Secret with the key `curve.cert`", "--key-from-env"] {
            assert!(failure.remedy.contains(words), "{failure}");
        }
    }
}
