//! Random curve certificates, passwords and keys of MiniClusters.

use flux_operator_core::render::Generated;
use flux_shared::curve::Certificate;
use flux_shared::names;
use flux_shared::validate::ValidMiniCluster;
use x25519_dalek::{PublicKey, StaticSecret};

/// The operating system gave no random bytes.
#[derive(Debug, thiserror::Error)]
#[error("failed to get random bytes: {0}")]
pub struct RandomError(getrandom::Error);

/// A new certificate. `name` is written into its metadata, where brokers that have children expect one. Flux only
/// logs it.
pub fn certificate(name: &str) -> Result<Certificate, RandomError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(RandomError)?;
    let secret = StaticSecret::from(bytes);
    let public = PublicKey::from(&secret);
    Ok(Certificate::from_keys(name, public.as_bytes(), secret.as_bytes()))
}

/// The characters of a random word, without those that look alike. There are 32, so that `byte % 32` makes
/// each equally likely.
const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
/// Number of characters in a random word. Each is one of 32, so it has 5 random bits: 160 in all.
const WORD_LENGTH: usize = 32;

/// All random values that a MiniCluster may need.
pub fn generate(cluster: &ValidMiniCluster) -> Result<Generated, RandomError> {
    // One for each user's password, and two for the Flux RESTful API: its key and its token.
    let words = (0..cluster.users.len() + 2)
        .map(|_| word())
        .collect::<Result<_, _>>()?;
    // Any name would do. The certificate has that of the lead's host, pod 0.
    Ok(Generated::new(
        certificate(&names::host(&cluster.name, 0))?,
        words,
    ))
}

/// A random password, key or token.
fn word() -> Result<String, RandomError> {
    let mut bytes = [0; WORD_LENGTH];
    getrandom::fill(&mut bytes).map_err(RandomError)?;
    Ok(bytes
        .iter()
        .map(|byte| char::from(ALPHABET[usize::from(byte % 32)]))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_certificates_differ_and_both_can_be_read() {
        let (one, two) = (certificate("mc-0").unwrap(), certificate("mc-0").unwrap());
        assert_ne!(one, two);
        assert_eq!(
            Certificate::parse(&one.to_text()).unwrap().to_text(),
            one.to_text()
        );
    }

    #[test]
    fn words_differ_and_can_be_typed() {
        let (one, two) = (word().unwrap(), word().unwrap());
        assert_ne!(one, two);
        assert!(
            one.len() == WORD_LENGTH && one.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()),
            "{one}"
        );
    }
}
