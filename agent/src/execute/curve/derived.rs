//! Derives a curve certificate by HKDF-SHA256 (RFC 5869) from a secret seed and from values that identify the
//! job. Each pod of the job gets the same certificate, and another job gets another one. Only the seed is
//! secret.

use std::path::Path;

use flux_shared::curve;
use flux_shared::exit::Category;
use hkdf::Hkdf;
use sha2::Sha256;
use x25519_dalek::{PublicKey, StaticSecret};

use super::CertificateBytes;
use crate::report::failure::{Failure, plain};

/// The purpose of the key, so that another use of the same seed gets other bytes.
const SALT: &[u8] = b"flux-agent curve certificate 1";
/// Minimum length of a seed, in bytes: the length of a key.
const MIN_SEED_LENGTH: usize = 32;

impl CertificateBytes {
    /// Derives a certificate. `path`: the file with the seed. `name`: the name in the certificate. `job_values`: the
    /// values that identify the job.
    pub fn derive(path: &Path, name: &str, job_values: &[String]) -> Result<CertificateBytes, Failure> {
        let seed = std::fs::read(path).map_err(|error| {
            let cause = format!("failed to read the seed {}: {}", path.display(), plain(&error));
            Failure::new(
                Category::CurveUnreadable,
                cause,
                "mount a Secret with the key `seed`, readable by the container's user",
            )
        })?;
        if seed.len() < MIN_SEED_LENGTH {
            let cause = format!(
                "failed to use the seed {}: it has {} bytes, but needs at least {MIN_SEED_LENGTH}",
                path.display(),
                seed.len()
            );
            return Err(Failure::new(
                Category::CurveUnreadable,
                cause,
                "create one with `openssl rand -hex 32`",
            ));
        }
        let text = certificate_text(&seed, name, job_values)
            .map_err(|why| Failure::internal(format!("failed to derive a key: {why}")))?;
        Ok(CertificateBytes(text.into_bytes()))
    }
}

/// The text of the certificate that is derived from these values.
fn certificate_text(seed: &[u8], name: &str, job_values: &[String]) -> Result<String, hkdf::InvalidLength> {
    let mut bytes = [0; 32];
    Hkdf::<Sha256>::new(Some(SALT), seed).expand(&info(job_values), &mut bytes)?;
    let secret = StaticSecret::from(bytes);
    let public = PublicKey::from(&secret);
    Ok(curve::Certificate::from_keys(name, public.as_bytes(), secret.as_bytes()).to_text())
}

/// The input of HKDF that identifies the job: the length of each value (8 bytes, big-endian), then the value.
/// So different lists always give different bytes.
fn info(job_values: &[String]) -> Vec<u8> {
    job_values
        .iter()
        .flat_map(|value| {
            (value.len() as u64)
                .to_be_bytes()
                .into_iter()
                .chain(value.bytes())
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: &[u8] = b"0123456789abcdef0123456789abcdef";

    fn text(seed: &[u8], job_values: &[&str]) -> String {
        let job_values: Vec<String> = job_values.iter().map(|value| (*value).to_owned()).collect();
        certificate_text(seed, "job-0", &job_values).unwrap()
    }

    #[test]
    fn derived_certificate_is_per_job_and_same_in_all_its_pods() {
        let own = text(SEED, &["job", "uid", "0"]);
        assert_eq!(own, text(SEED, &["job", "uid", "0"]));
        let other = SEED.iter().rev().copied().collect::<Vec<u8>>();
        let others = [
            text(SEED, &["job", "uid", "1"]),
            text(SEED, &["job", "uie", "0"]),
            text(SEED, &["job", "uid0"]),
            text(SEED, &["jobuid", "0"]),
            text(&other, &["job", "uid", "0"]),
        ];
        let keys = |text: &str| {
            text.split('"')
                .filter(|part| part.len() == 40)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        for other in others {
            assert!(
                keys(&own)
                    .iter()
                    .zip(keys(&other))
                    .all(|(one, other)| *one != other)
                    && keys(&other).len() == 2
            );
        }
    }

    /// By an independent implementation: Python's hmac, and the X25519 of `cryptography`.
    #[test]
    fn derived_keys_equal_those_of_another_implementation() {
        assert_eq!(text(SEED, &["job", "uid", "0"]), include_str!("derived.cert"));
    }

    #[test]
    fn derived_certificate_is_a_valid_flux_certificate() {
        assert!(curve::Certificate::parse(&text(SEED, &[])).is_ok());
    }

    #[test]
    fn missing_or_short_seed_is_rejected_without_showing_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("seed");
        let why = |path: &Path| CertificateBytes::derive(path, "job-0", &[]).err().unwrap();
        let missing = why(&path);
        assert!(
            missing.category == Category::CurveUnreadable && missing.cause.contains("seed"),
            "{missing}"
        );
        std::fs::write(&path, "hunter2").unwrap();
        let short = why(&path);
        assert!(
            short.cause.contains("7 bytes") && !short.to_string().contains("hunter2"),
            "{short}"
        );
        std::fs::write(&path, SEED).unwrap();
        assert!(CertificateBytes::derive(&path, "job-0", &[]).is_ok());
    }
}
