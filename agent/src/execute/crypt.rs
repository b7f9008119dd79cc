//! SHA-512 crypt, the `$6$` of /etc/shadow (Drepper, "Unix crypt using SHA-256 and SHA-512", 2007), with its usual number
//! of rounds.

use sha2::{Digest, Sha512};

const ROUNDS: usize = 5000;
/// Bytes of a digest.
const LENGTH: usize = 64;
/// Longest salt.
const SALT: usize = 16;
const LETTERS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// The letter of a salt that stands for the low six bits.
pub fn letter(bits: u8) -> char {
    char::from(LETTERS[usize::from(bits & 0x3f)])
}

/// The hash as it stands in /etc/shadow. A salt longer than 16 bytes is cut.
pub fn sha512(password: &[u8], salt: &str) -> String {
    let salt = &salt.as_bytes()[..salt.len().min(SALT)];
    let inner = digest([password, salt, password]);
    let mut first = Sha512::new();
    first.update(password);
    first.update(salt);
    first.update(repeated(&inner, password.len()));
    let mut bits = password.len();
    while bits > 0 {
        if bits & 1 == 1 {
            first.update(inner)
        } else {
            first.update(password)
        }
        bits >>= 1;
    }
    let mut running: [u8; LENGTH] = first.finalize().into();

    let passwords = digest(std::iter::repeat_n(password, password.len()));
    let passwords = repeated(&passwords, password.len());
    let salts = digest(std::iter::repeat_n(salt, 16 + usize::from(running[0])));
    let salts = repeated(&salts, salt.len());
    for round in 0..ROUNDS {
        let is_odd = round % 2 == 1;
        let mut hash = Sha512::new();
        if is_odd {
            hash.update(&passwords)
        } else {
            hash.update(running)
        }
        if round % 3 != 0 {
            hash.update(&salts);
        }
        if round % 7 != 0 {
            hash.update(&passwords);
        }
        if is_odd {
            hash.update(running)
        } else {
            hash.update(&passwords)
        }
        running = hash.finalize().into();
    }
    format!("$6${}${}", String::from_utf8_lossy(salt), encoded(&running))
}

fn digest<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> [u8; LENGTH] {
    let mut hash = Sha512::new();
    parts.into_iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}

/// So many bytes, the digest again and again.
fn repeated(digest: &[u8; LENGTH], length: usize) -> Vec<u8> {
    digest.iter().copied().cycle().take(length).collect()
}

/// Groups of three bytes, 21 apart, in an order that turns with each; the last byte alone.
fn encoded(digest: &[u8; LENGTH]) -> String {
    let mut text = String::new();
    let (mut a, mut b, mut c) = (0, 21, 42);
    for _ in 0..21 {
        put(&mut text, u32::from_be_bytes([0, digest[a], digest[b], digest[c]]), 4);
        (a, b, c) = (b + 1, c + 1, a + 1);
    }
    put(&mut text, u32::from(digest[LENGTH - 1]), 2);
    text
}

/// The low bits first, six a letter.
fn put(text: &mut String, mut bits: u32, letters: usize) {
    for _ in 0..letters {
        text.push(letter(bits.to_le_bytes()[0]));
        bits >>= 6;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made by crypt(3) of another implementation.
    #[test]
    fn hashes_are_those_of_crypt() {
        for (password, salt, hash) in KNOWN {
            assert_eq!(sha512(password.as_bytes(), salt), *hash);
        }
    }

    const KNOWN: &[(&str, &str, &str)] = &[
        (
            "Hello world!",
            "saltstring",
            "$6$saltstring$svn8UoSVapNtMuq1ukKS4tPQd8iKwSMHWjl/O817G3uBnIFNjnQJuesI68u4OTLiBFdcbYEdFCoEOfaS35inz1",
        ),
        (
            "",
            "abcdefgh",
            "$6$abcdefgh$v7sYNA18/BerGOYQLppYLyjH4yJilp8kqe/ef3KYMK9hOIdzH1yzcmP74Ay.m51y1jP3QqxM7Jl75S4CxDhBq.",
        ),
        (
            "butter",
            "0123456789abcdef",
            "$6$0123456789abcdef$Mw54KrNiWx/eWJYYyVUlXr0V6JJlU4AaYXO4YlGVeg4wq182KRR9x7bHdVsMnnyKMHGRwvXyOO3eXhtDOG1mg1",
        ),
        (
            "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
            "./AZaz09",
            "$6$./AZaz09$KTO4nekh0GtSMC2ezugQiwx24JdDV9tf/tX/EykvwD7PW9hBDV7He7.S.ShIz9wTJZaOCi0JgJ36ak/JU7wnT.",
        ),
        (
            "pässwört",
            "x",
            "$6$x$IWsZGOaSFtc4c/i9B22AORG4nUH8kKvUtFWs29D1XcphOkcw9OXPfCnNt6cP.ANtYb.pIRFR73x2KfSf4CyHT/",
        ),
    ];
}
