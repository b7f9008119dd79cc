//! Sets a user's password: writes its SHA-512 crypt hash to /etc/shadow. The image needs no `openssl` or `chpasswd`.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;

use flux_agent_plan::plan::{Mode, Owner};
use flux_shared::exit::Category;
use sha_crypt::{PasswordHash, PasswordHasher, PasswordVerifier, ShaCrypt, password_hash};

use crate::files::Files;
use crate::report::failure::{Failure, plain};

const SHADOW: &str = "/etc/shadow";
/// Length of a salt, in bytes. In the hash it has 16 letters, the most that crypt(3) takes.
const SALT_LENGTH: usize = 12;

/// Gives `user` the password in the file `source`, unless it is theirs already.
pub fn ensure(files: &Files, user: &str, source: &str) -> Result<(), Failure> {
    let failed = |what: &str, error: &io::Error| {
        let cause = format!("failed to {what}: {}", plain(error));
        let remedy = "run the container as root, or leave out users";
        Failure::new(Category::UserFailed, cause, remedy).passing_as(error)
    };
    let shadow = files.at(SHADOW);
    let (text, mode, owner) = match fs::read(&shadow) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => (
            Vec::new(),
            Mode(0o600),
            Owner {
                uid: nix::unistd::geteuid().as_raw(),
                gid: nix::unistd::getegid().as_raw(),
            },
        ),
        result => {
            let unreadable = |error: io::Error| failed(&format!("read {}", shadow.display()), &error);
            let data = fs::metadata(&shadow).map_err(unreadable)?;
            let owner = Owner {
                uid: data.uid(),
                gid: data.gid(),
            };
            (result.map_err(unreadable)?, Mode(data.mode() & 0o7777), owner)
        }
    };
    let password = fs::read(files.at(source))
        .map_err(|error| failed(&format!("read the password of {user}"), &error))?;
    if has_password(&text, user, &password) {
        return Ok(());
    }
    let salt = salt().map_err(|error| failed("get random bytes", &error))?;
    let hash = hash(&password, &salt)
        .map_err(|error| Failure::internal(format!("failed to hash the password of {user}: {error}")))?;
    let text = with_password(&text, user, hash.as_str());
    files.ensure_file(SHADOW, mode, owner, &text)
}

/// Whether the user has this password already, for example from an earlier run.
fn has_password(shadow: &[u8], user: &str, password: &[u8]) -> bool {
    let mut lines = shadow.split(|byte| *byte == b'\n');
    let rest = lines.find_map(|line| line.strip_prefix(user.as_bytes())?.strip_prefix(b":"));
    let hash = rest.and_then(|rest| str::from_utf8(rest.split(|byte| *byte == b':').next()?).ok());
    hash.is_some_and(|hash| ShaCrypt::SHA512.verify_password(password, hash).is_ok())
}

/// The text of the shadow file with the user's hash, in the user's line or in a new one at the end.
fn with_password(shadow: &[u8], user: &str, hash: &str) -> Vec<u8> {
    let mut found = false;
    let mut text = Vec::new();
    for line in shadow.split_inclusive(|byte| *byte == b'\n') {
        let line = line.strip_suffix(b"\n").unwrap_or(line);
        let mut fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
        if fields.first() == Some(&user.as_bytes()) && fields.len() > 1 {
            fields[1] = hash.as_bytes();
            found = true;
        }
        text.extend(fields.join(&b':'));
        text.push(b'\n');
    }
    if !found {
        // After the hash: day of the last change (empty), minimum and maximum age in days, days of warning.
        text.extend(format!("{user}:{hash}::0:99999:7:::\n").into_bytes());
    }
    text
}

fn salt() -> io::Result<[u8; SALT_LENGTH]> {
    let mut bytes = [0; SALT_LENGTH];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// The hash in the form of /etc/shadow.
fn hash(password: &[u8], salt: &[u8; SALT_LENGTH]) -> password_hash::Result<PasswordHash> {
    ShaCrypt::SHA512.hash_password_with_salt(password, salt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn password_is_set_once_and_replaces_a_lock_or_another() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("etc")).unwrap();
        fs::write(
            root.path().join("etc/shadow"),
            "root:*:19000:0:99999:7:::\nada:!:19000:0:99999:7:::\neve:$6$x$y:1::::::\n",
        )
        .unwrap();
        fs::write(root.path().join("secret"), "butter").unwrap();
        let files = Files::new(root.path(), "lead");
        let text = || fs::read_to_string(root.path().join("etc/shadow")).unwrap();
        let all = || {
            ["ada", "bob", "eve"]
                .iter()
                .for_each(|user| ensure(&files, user, "/secret").unwrap())
        };
        all();
        let once = text();
        all();
        let text = text();
        assert_eq!(text, once);
        let hash = |user: &str| {
            let line = text
                .lines()
                .find(|line| line.starts_with(&format!("{user}:")))
                .unwrap();
            line.split(':').nth(1).unwrap().to_owned()
        };
        assert_eq!(text.lines().count(), 4);
        assert_eq!(hash("root"), "*");
        for user in ["ada", "bob", "eve"] {
            let hash = hash(user);
            assert!(
                has_password(format!("x:{hash}:").as_bytes(), "x", b"butter"),
                "{hash}"
            );
        }
        assert_ne!(hash("ada"), hash("bob"));
        assert!(!text.contains("butter"));
    }

    /// Another implementation of crypt(3) has made the hash.
    #[test]
    fn a_password_that_another_program_has_set_stays() {
        let hash = "$6$0123456789abcdef$Mw54KrNiWx/eWJYYyVUlXr0V6JJlU4AaYXO4YlGVeg4wq182KRR9x7bHdVsMnnyKMHGRwvXyOO3eXhtDOG1mg1";
        assert!(has_password(
            format!("ada:{hash}:1::::::").as_bytes(),
            "ada",
            b"butter"
        ));
        assert!(!has_password(
            format!("ada:{hash}:1::::::").as_bytes(),
            "ada",
            b"margarine"
        ));
        assert!(!has_password(b"ada:!:1::::::", "ada", b"butter"));
    }

    #[test]
    fn password_keeps_bytes_when_shadow_is_not_utf8() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("etc")).unwrap();
        let old = b"jos\xe9:*:19000::::::\n";
        fs::write(root.path().join("etc/shadow"), old).unwrap();
        fs::write(root.path().join("secret"), "butter").unwrap();
        ensure(&Files::new(root.path(), "lead"), "ada", "/secret").unwrap();
        let text = fs::read(root.path().join("etc/shadow")).unwrap();
        assert!(text.starts_with(old) && has_password(&text, "ada", b"butter"));
    }

    #[test]
    fn shadow_file_is_created_readable_by_root_only() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("secret"), "x").unwrap();
        ensure(&Files::new(root.path(), "lead"), "ada", "/secret").unwrap();
        assert_eq!(
            fs::metadata(root.path().join("etc/shadow")).unwrap().mode() & 0o7777,
            0o600
        );
    }
}
