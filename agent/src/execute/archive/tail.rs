//! Checks by the last bytes of a dump whether it is whole, without reading the rest or unpacking it.
//!
//! A broker's exit code is that of the first thing that failed. If that was the job, the exit code does not show
//! whether the later dump has succeeded. An interrupted dump, for example on a full volume, lacks its end.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use flux_shared::names::archive_suffix;

/// Size of a block of a tar, in bytes.
const BLOCK: u64 = 512;
/// The 48 bits before the checksum (32 bits) at the end of a bzip2 stream. They may begin in the middle of a byte.
const BZIP2_END: u128 = 0x1772_4538_5090;

/// Whether `file` ends as its format requires. The suffix of `path` tells the format. With an unknown suffix,
/// the file counts as whole.
pub fn is_whole(file: &File, path: &Path) -> io::Result<bool> {
    let size = file.metadata()?.len();
    Ok(match archive_suffix(&path.to_string_lossy()) {
        // Two blocks of zeros.
        Some(".tar") => {
            size.is_multiple_of(BLOCK) && last::<1024>(file, size)?.is_some_and(|end| end == [0; 1024])
        }
        // The size of the uncompressed tar, which is a multiple of the block size. Of 512 interrupted dumps,
        // one passes this test by chance.
        Some(".tgz" | ".tar.gz") => last::<4>(file, size)?.is_some_and(|end| {
            let tar_size = u64::from(u32::from_le_bytes(end));
            tar_size.is_multiple_of(BLOCK)
        }),
        // 11 bytes: these 48 bits, the checksum's 32, and up to 7 bits that fill the last byte.
        Some(".tar.bz2") => last::<11>(file, size)?.is_some_and(|end| {
            let bits = end
                .iter()
                .fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
            (0..8).any(|padding| bits >> (32 + padding) & 0xFFFF_FFFF_FFFF == BZIP2_END)
        }),
        // The magic bytes of the footer.
        Some(".tar.xz") => last::<2>(file, size)?.is_some_and(|end| &end == b"YZ"),
        // The end record of the central directory, which has 22 bytes if there is no comment.
        Some(".zip") => last::<22>(file, size)?.is_some_and(|end| end.starts_with(b"PK\x05\x06")),
        _ => true,
    })
}

/// The last `COUNT` bytes of the file, which has `size` bytes; none: it is shorter.
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
