//! A random curve certificate, passwords and keys. The only place with a random source.

use flux_operator_core::render::Generated;
use flux_shared::curve::Certificate;
use flux_shared::names;
use flux_shared::validate::ValidMiniCluster;
use x25519_dalek::{PublicKey, StaticSecret};

/// The operating system gave no random bytes.
#[derive(Debug, thiserror::Error)]
#[error("failed to get random bytes: {0}")]
pub struct RandomError(getrandom::Error);

/// A new certificate. `name` goes into its metadata, where brokers with children want one.
pub fn certificate(name: &str) -> Result<Certificate, RandomError> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes).map_err(RandomError)?;
    let secret = StaticSecret::from(bytes);
    let public = PublicKey::from(&secret);
    Ok(Certificate::from_keys(name, public.as_bytes(), secret.as_bytes()))
}

/// Letters and digits that are not mistaken for each other; 32, so that each is equally likely for a random
/// byte.
const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
/// Letters of a word, 160 bits in all.
const WORD: usize = 32;

/// Everything random that a cluster may need.
pub fn generate(cluster: &ValidMiniCluster) -> Result<Generated, RandomError> {
    // One for each user, and two for the Flux RESTful API.
    let words = (0..cluster.users.len() + 2)
        .map(|_| word())
        .collect::<Result<_, _>>()?;
    Ok(Generated::new(
        certificate(&names::host(&cluster.name, 0))?,
        words,
    ))
}

fn word() -> Result<String, RandomError> {
    let mut bytes = [0; WORD];
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
            one.len() == WORD && one.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit()),
            "{one}"
        );
    }
}
