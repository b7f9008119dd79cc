//! Reads the table of mounts (/proc/self/mountinfo): the fifth and the sixth field of each line. A line of it:
//!
//! ```text
//! 36 35 98:0 /root /point rw,noatime shared:1 - ext3 /dev/root rw
//! ```
//!
//! Parsed by hand: `procfs` (0.18), which the operator uses, does not decode `\040` and the like in paths.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// The table of this process. Paths in it need not be UTF-8.
pub fn read() -> io::Result<Vec<u8>> {
    std::fs::read("/proc/self/mountinfo")
}

/// A mount point, and the options of the mount.
#[derive(Debug)]
pub struct MountEntry<'a> {
    pub point: PathBuf,
    pub options: &'a str,
}

/// The mounts of a table.
pub fn entries(table: &[u8]) -> impl Iterator<Item = MountEntry<'_>> {
    table.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut words = line.split(|byte| *byte == b' ').skip(4);
        Some(MountEntry {
            point: unescaped(words.next()?),
            options: str::from_utf8(words.next()?).ok()?,
        })
    })
}

/// The mounts at `top` and below it.
pub fn below<'a>(table: &'a [u8], top: &Path) -> impl Iterator<Item = MountEntry<'a>> {
    entries(table).filter(move |entry| entry.point.starts_with(top))
}

/// A path of the table, with its octal numbers for blanks, tabs, line ends and backslashes decoded.
fn unescaped(mut text: &[u8]) -> PathBuf {
    let known = [
        (b"\\040", b' '),
        (b"\\011", b'\t'),
        (b"\\012", b'\n'),
        (b"\\134", b'\\'),
    ];
    let mut path = Vec::new();
    while let Some((&byte, after)) = text.split_first() {
        let escaped = known.iter().find(|(number, _)| text.starts_with(*number));
        path.push(escaped.map_or(byte, |(_, letter)| *letter));
        text = escaped.map_or(after, |(number, _)| &text[number.len()..]);
    }
    OsString::from_vec(path).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_gives_place_and_options() {
        let table =
            b"36 35 98:0 / /mnt/a\\040b\\134040\xff ro,nosuid,relatime shared:1 - ext3 /dev/root rw\n36 35\n";
        let found: Vec<_> = entries(table).map(|entry| (entry.point, entry.options)).collect();
        let point = OsString::from_vec(b"/mnt/a b\\040\xff".into()).into();
        assert_eq!(found, [(point, "ro,nosuid,relatime")]);
    }
}
