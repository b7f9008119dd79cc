//! The table of mounts (/proc/self/mountinfo): two fields of each line. By hand: `procfs`, which the operator
//! has, leaves `\040` and the like in paths (0.18). `36 35 98:0 /root /point rw,noatime shared:1 - ext3
//! /dev/root rw`

use std::path::{Path, PathBuf};

/// The path of the table.
pub const FILE: &str = "/proc/self/mountinfo";

/// A mount point, and the options of the mount.
#[derive(Debug)]
pub struct Entry<'a> {
    pub point: PathBuf,
    pub options: &'a str,
}

/// The mounts of a table.
pub fn entries(table: &str) -> impl Iterator<Item = Entry<'_>> {
    table.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(4);
        Some(Entry {
            point: unescaped(words.next()?),
            options: words.next()?,
        })
    })
}

/// The mounts at `top` and below it.
pub fn below<'a>(table: &'a str, top: &Path) -> impl Iterator<Item = Entry<'a>> {
    entries(table).filter(move |entry| entry.point.starts_with(top))
}

/// A path of the table, where blanks, tabs, line ends and backslashes are octal numbers.
fn unescaped(text: &str) -> PathBuf {
    let known = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    known
        .iter()
        .fold(text.to_owned(), |text, (number, letter)| {
            text.replace(number, letter)
        })
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_gives_place_and_options() {
        let table = "36 35 98:0 / /mnt/a\\040b ro,nosuid,relatime shared:1 - ext3 /dev/root rw\n36 35\n";
        let found: Vec<_> = entries(table).map(|entry| (entry.point, entry.options)).collect();
        assert_eq!(found, [(PathBuf::from("/mnt/a b"), "ro,nosuid,relatime")]);
    }
}
