//! A random curve certificate. The only place with a random source.
#![expect(clippy::disallowed_methods, reason = "the operating system's random source")]

use flux_shared::curve::Certificate;
use x25519_dalek::{PublicKey, StaticSecret};

/// The operating system gave no random bytes.
#[derive(Debug, thiserror::Error)]
#[error("failed to get random bytes: {0}")]
pub struct KeyError(getrandom::Error);

/// A certificate that nobody has seen. `name` is for Flux: a broker with children wants one.
pub fn certificate(name: &str) -> Result<Certificate, KeyError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(KeyError)?;
    let secret = StaticSecret::from(bytes);
    let public = PublicKey::from(&secret);
    Ok(Certificate::from_keys(name, public.as_bytes(), secret.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_certificates_differ_and_both_can_be_read() {
        let (one, two) = (certificate("mc-0").unwrap(), certificate("mc-0").unwrap());
        assert_ne!(one, two);
        assert_eq!(Certificate::parse(&one.to_text()).unwrap(), one);
    }
}
