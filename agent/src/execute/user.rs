//! Adds a user and its group to /etc/passwd and /etc/group as text, without useradd and NSS.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

use flux_shared::exit::Category;

use crate::files::Files;
use crate::report::failure::{Failure, MORE_ROOM, plain};

/// Adds the missing lines. The line in /etc/passwd comes last, since a user who is in that file counts as created.
pub fn ensure(files: &Files, name: &str, uid: u32, gid: u32, home: &str) -> Result<(), Failure> {
    ensure_line(&files.at("/etc/group"), name, &format!("{name}:x:{gid}:"))?;
    ensure_line(
        &files.at("/etc/passwd"),
        name,
        &format!("{name}:x:{uid}:{gid}::{home}:/bin/sh"),
    )
}

fn ensure_line(path: &Path, name: &str, line: &str) -> Result<(), Failure> {
    append_missing(path, name, line).map_err(|error| {
        let cause = format!(
            "failed to add the user {name} to {}: {}",
            path.display(),
            plain(&error)
        );
        let remedy = match error.raw_os_error() {
            Some(libc::EROFS) => "use an image that has the user, or set readOnlyRootFilesystem: false",
            Some(libc::ENOSPC | libc::EDQUOT) => MORE_ROOM,
            _ => "run the container as root, or leave out fluxUser and use its own user",
        };
        Failure::new(Category::UserFailed, cause, remedy).passing_as(&error)
    })
}

fn append_missing(path: &Path, name: &str, line: &str) -> io::Result<()> {
    // The real names of users in the file may be in any encoding.
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
        bytes => String::from_utf8_lossy(&bytes?).into_owned(),
    };
    if text.lines().any(|known| known.split(':').next() == Some(name)) {
        return Ok(());
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent)?;
    }
    // Appended, since nothing can be renamed over a mounted file. If a full volume cuts the line off, the
    // file gets its old length back: a part of the line would count as the user.
    let begin = if text.is_empty() || text.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    let mut file = OpenOptions::new().append(true).create(true).open(path)?;
    let old_length = file.metadata()?.len();
    file.write_all(format!("{begin}{line}\n").as_bytes())
        .inspect_err(|_| {
            let _ = file.set_len(old_length);
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_added_once_and_a_known_name_is_left_alone() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        fs::write(root.path().join("etc/passwd"), "root:x:0:0::/root:/bin/sh").unwrap();
        let files = Files::new(root.path(), "lead");
        for _ in 0..2 {
            ensure(&files, "flux", 1000, 1000, "/home/flux").unwrap();
            ensure(&files, "root", 7, 7, "/").unwrap();
        }
        let passwd = fs::read_to_string(root.path().join("etc/passwd")).unwrap();
        assert_eq!(
            passwd,
            "root:x:0:0::/root:/bin/sh\nflux:x:1000:1000::/home/flux:/bin/sh\n"
        );
        let group = fs::read_to_string(root.path().join("etc/group")).unwrap();
        assert_eq!(group, "flux:x:1000:\nroot:x:7:\n");
    }

    #[test]
    fn user_is_added_and_bytes_kept_when_passwd_is_not_utf8() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("etc")).unwrap();
        let old = b"root:x:0:0::/root:/bin/sh\njose:x:7:7:Jos\xe9:/:/bin/sh\n";
        fs::write(root.path().join("etc/passwd"), old).unwrap();
        fs::write(root.path().join("etc/group"), b"gr\xfcn:x:8:\n").unwrap();
        let files = Files::new(root.path(), "lead");
        ensure(&files, "flux", 1000, 1000, "/home/flux").unwrap();
        ensure(&files, "jose", 9, 9, "/").unwrap();
        let want = [old.as_slice(), b"flux:x:1000:1000::/home/flux:/bin/sh\n"].concat();
        assert_eq!(fs::read(root.path().join("etc/passwd")).unwrap(), want);
    }
}
