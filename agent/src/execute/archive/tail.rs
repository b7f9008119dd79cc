//! Whether a dump ends as a whole one does, by its last bytes, without reading or unpacking it.
//!
//! A broker ends with the code of the first thing that failed: if that was the job, nobody says whether the
//! dump after it went well. A dump that was broken off, on a full volume for example, lacks its end.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use flux_shared::names::archive_suffix;

/// Bytes of a tar's unit.
const BLOCK: u64 = 512;
/// What ends a bzip2 stream, before its checksum; it begins at any bit.
const BZIP2_END: u128 = 0x1772_4538_5090;

/// Whether the file at `path` ends as its format, known by its suffix, demands.
pub fn is_whole(file: &File, path: &Path) -> io::Result<bool> {
    let size = file.metadata()?.len();
    Ok(match archive_suffix(&path.to_string_lossy()) {
        // Two empty blocks.
        Some(".tar") => {
            size.is_multiple_of(BLOCK) && last::<1024>(file, size)?.is_some_and(|end| end == [0; 1024])
        }
        // The size of what is packed, and a tar's is of whole blocks: chance would have it so once in 512
        // times.
        Some(".tgz" | ".tar.gz") => last::<4>(file, size)?.is_some_and(|end| {
            let packed = u64::from(u32::from_le_bytes(end));
            packed.is_multiple_of(BLOCK)
        }),
        Some(".tar.bz2") => last::<11>(file, size)?.is_some_and(|end| {
            let bits = end
                .iter()
                .fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
            (0..8).any(|unused| bits >> (32 + unused) & 0xFFFF_FFFF_FFFF == BZIP2_END)
        }),
        Some(".tar.xz") => last::<2>(file, size)?.is_some_and(|end| &end == b"YZ"),
        // The end of the central directory, without a comment.
        Some(".zip") => last::<22>(file, size)?.is_some_and(|end| end.starts_with(b"PK\x05\x06")),
        _ => true,
    })
}

/// The last bytes of the file; none: it is shorter.
fn last<const COUNT: usize>(file: &File, size: u64) -> io::Result<Option<[u8; COUNT]>> {
    let Some(begin) = size.checked_sub(COUNT as u64) else {
        return Ok(None);
    };
    let mut end = [0; COUNT];
    file.read_exact_at(&mut end, begin)?;
    Ok(Some(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dump_of_every_format_is_whole_until_its_end_is_cut_off() {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in [
            ("dump.tar", include_bytes!("samples/dump.tar").as_slice()),
            ("dump.tgz", include_bytes!("samples/dump.tgz")),
            ("dump.tar.bz2", include_bytes!("samples/dump.tar.bz2")),
            ("dump.tar.xz", include_bytes!("samples/dump.tar.xz")),
            ("dump.zip", include_bytes!("samples/dump.zip")),
        ] {
            let path = folder.path().join(name);
            let is_whole = |length: usize| {
                std::fs::write(&path, &bytes[..length]).unwrap();
                is_whole(&File::open(&path).unwrap(), &path).unwrap()
            };
            assert!(is_whole(bytes.len()), "{name}");
            for length in [
                bytes.len() - 1,
                bytes.len() - 7,
                bytes.len() / 2,
                bytes.len() / 2 + 3,
                1,
                0,
            ] {
                assert!(!is_whole(length), "{name} of {length} bytes");
            }
        }
    }
}
