//! What a program needs of its host: architecture, loader, C library. Pure.
//!
//! Parsed by hand, since little is needed: four fields of a header, one segment, and the newest version of glibc, by a
//! search for names of versions. Crates for ELF (`object`, `goblin`) read the whole format.

/// Machines that an image may be built for: ELF's number (`e_machine`), and Rust's name (`std::env::consts::ARCH`).
const MACHINES: [(u16, &str); 4] = [
    (62, "x86_64"),
    (183, "aarch64"),
    (243, "riscv64"),
    (21, "powerpc64"),
];
/// The type of the segment with the loader's path (PT_INTERP).
const LOADER_SEGMENT: u32 = 3;
/// What the names of glibc's versions begin with.
const GLIBC_PREFIX: &[u8] = b"GLIBC_2.";

/// What the headers of an ELF file name.
#[derive(Debug, PartialEq, Eq)]
pub struct Needs {
    pub machine: &'static str,
    /// Path of the dynamic loader; none for a static program or a library.
    pub loader: Option<String>,
}

/// What the program with the bytes `file` needs. None: they are no ELF file (a script), or cut off. Only 64-bit
/// little-endian files are read: the agent is built for no other nodes.
pub fn needs(file: &[u8]) -> Option<Needs> {
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let number = |at: usize, length: usize| -> Option<usize> {
        let bytes = file.get(at..at.checked_add(length)?)?;
        Some(
            bytes
                .iter()
                .rev()
                .fold(0, |sum, byte| sum << 8 | usize::from(*byte)),
        )
    };
    // e_machine
    let machine = number(18, 2)?;
    let machine = MACHINES
        .iter()
        .find(|(known, _)| usize::from(*known) == machine)
        .map_or("unknown", |(_, name)| name);
    // The table of segments: e_phoff, e_phentsize, e_phnum.
    let (table, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let mut loader = None;
    for segment in (0..count).filter_map(|index| table.checked_add(index * size)) {
        if number(segment, 4)? == LOADER_SEGMENT as usize {
            // p_offset and p_filesz
            let begin = number(segment + 8, 8)?;
            let text = file.get(begin..begin.checked_add(number(segment + 32, 8)?)?)?;
            loader = Some(String::from_utf8_lossy(text).trim_end_matches('\0').to_owned());
        }
    }
    Some(Needs { machine, loader })
}

/// N of the newest `GLIBC_2.N` that a file names: the version of the C library, or the one that a program needs.
pub fn newest_glibc(file: &[u8]) -> Option<u32> {
    let mut newest = None;
    let mut rest = file;
    while let Some(at) = rest
        .windows(GLIBC_PREFIX.len())
        .position(|window| window == GLIBC_PREFIX)
    {
        rest = &rest[at + GLIBC_PREFIX.len()..];
        // No version has an N of more than three digits.
        let digits = rest.iter().take(3).take_while(|byte| byte.is_ascii_digit());
        newest = newest.max(digits.fold(None, |sum, byte| {
            Some(sum.unwrap_or(0) * 10 + u32::from(byte - b'0'))
        }));
    }
    newest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_own_program_is_understood() {
        let own = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let needs = needs(&own).unwrap();
        assert_eq!(needs.machine, std::env::consts::ARCH);
        assert!(
            needs
                .loader
                .is_none_or(|loader| std::path::Path::new(&loader).exists())
        );
    }

    #[test]
    fn newest_glibc_version_in_a_file_counts() {
        assert_eq!(
            newest_glibc(b"..GLIBC_2.4\0GLIBC_2.34\0GLIBC_2.2.5\0GLIBC_PRIVATE"),
            Some(34)
        );
        assert_eq!(newest_glibc(b"GLIBC_2."), None);
        assert_eq!(newest_glibc(b"musl"), None);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_answered(mut bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..200)) {
            let _ = needs(&bytes);
            bytes.splice(..0, *b"\x7fELF\x02\x01");
            let _ = needs(&bytes);
        }
    }
}
