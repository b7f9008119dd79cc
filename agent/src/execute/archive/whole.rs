//! Whether an archive is whole, by what its format itself says: every format that Flux writes puts something at the end
//! that is missing, or does not fit, if the writing was cut off.
//!
//! tar and gzip are read by their crates. The ends of bzip2, xz and zip are checked by hand: a crate for each would be
//! a decoder in every pod's binary, for a few bytes at the end of a file.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use flate2::bufread::GzDecoder;
use flux_shared::names::archive_suffix;

/// The magic number at the end of a bzip2 stream: 48 bits, at any bit.
const BZIP2_END: u64 = 0x1772_4538_5090;
const BLOCK: u64 = 512;

/// Checks that the file is whole, in the format that the suffix of `path` names.
pub fn check(file: &File, path: &Path) -> io::Result<()> {
    let length = file.metadata()?.len();
    if length == 0 {
        return Err(bad("nothing was written to it"));
    }
    let mut reader = BufReader::with_capacity(128 << 10, file);
    match archive_suffix(&path.to_string_lossy()) {
        Some(".tar") => tar(&mut reader),
        Some(".tgz" | ".tar.gz") => {
            let mut text = GzDecoder::new(reader);
            tar(&mut text)?;
            match text.into_inner().fill_buf()?.is_empty() {
                true => Ok(()),
                false => Err(bad("there is data after its end")),
            }
        }
        Some(".tar.bz2") => bzip2(&tail(&mut reader, length, 11)?),
        Some(".tar.xz") => xz(&mut reader, length),
        Some(".zip") => zip(&mut reader, length),
        _ => Err(bad("its format is not known")),
    }
}

/// Reads it all: at least one entry, every header and content to its end, then the two empty blocks.
fn tar(reader: &mut impl Read) -> io::Result<()> {
    let mut archive = tar::Archive::new(reader);
    let mut entries = 0_u64;
    for entry in archive.entries()? {
        entry?;
        entries += 1;
    }
    // The first empty block has been read, if it was there.
    let (rest, mut left, mut chunk) = (archive.into_inner(), 0, [0; 16 << 10]);
    loop {
        match rest.read(&mut chunk)? {
            0 => break,
            count if chunk[..count].iter().any(|byte| *byte != 0) => return Err(bad("there is data after its end")),
            count => left += count as u64,
        }
    }
    match (entries, left) {
        (_, ..BLOCK) => Err(bad("its end is missing")),
        (0, _) => Err(bad("it is empty")),
        _ => Ok(()),
    }
}

/// Looks for the magic number of the end, which only a checksum and the bits that fill the last byte follow.
fn bzip2(tail: &[u8]) -> io::Result<()> {
    let bits = tail.iter().fold(0_u128, |bits, byte| bits << 8 | u128::from(*byte));
    let is_end = (0..8).any(|fill| (bits >> (32 + fill)) as u64 & 0xffff_ffff_ffff == BZIP2_END);
    if is_end { Ok(()) } else { Err(bad("its end is missing")) }
}

/// Checks the footer and the index that it leads to, each by its checksum.
fn xz(reader: &mut (impl Read + Seek), length: u64) -> io::Result<()> {
    let footer = tail(reader, length, 12)?;
    let missing = || bad("its end is missing");
    let (sum, body) = footer.split_at_checked(4).ok_or_else(missing)?;
    if !body.ends_with(b"YZ") || !is_sum(&body[..6], sum) {
        return Err(missing());
    }
    let size = body.first_chunk().map_or(0, |bytes| (u64::from(u32::from_le_bytes(*bytes)) + 1) * 4);
    let index = tail(reader, length, 12 + size)?;
    let (index, sum) = index[..index.len() - 12].split_last_chunk::<4>().ok_or_else(missing)?;
    if index.first() == Some(&0) && is_sum(index, sum) { Ok(()) } else { Err(missing()) }
}

/// Checks the record at the end and the list of entries that it leads to.
fn zip(reader: &mut (impl Read + Seek), length: u64) -> io::Result<()> {
    let missing = || bad("its end is missing");
    let end = tail(reader, length, 22)?;
    let number = |at: usize| end.get(at..at + 4)?.first_chunk().map(|bytes| u64::from(u32::from_le_bytes(*bytes)));
    let (Some(size), Some(offset)) = (number(12), number(16)) else { return Err(missing()) };
    if !end.starts_with(b"PK\x05\x06") {
        return Err(missing());
    }
    if size == 0 {
        return Err(bad("it is empty"));
    }
    // Values that are too large for these fields are in a ZIP64 record, whose locator stands just before this one.
    let is_large = u64::from(u32::MAX) == offset || u64::from(u32::MAX) == size;
    if !is_large && offset + size > length - 22 {
        return Err(missing());
    }
    let (at, magic) = if is_large { (length.saturating_sub(42), b"PK\x06\x07") } else { (offset, b"PK\x01\x02") };
    let mut found = [0; 4];
    reader.seek(SeekFrom::Start(at))?;
    reader.read_exact(&mut found)?;
    if found == *magic { Ok(()) } else { Err(missing()) }
}

/// The last `count` bytes, or all.
fn tail(reader: &mut (impl Read + Seek), length: u64, count: u64) -> io::Result<Vec<u8>> {
    // No valid end or index is this long.
    if count > 64 << 20 {
        return Err(bad("its end is invalid"));
    }
    reader.seek(SeekFrom::Start(length.saturating_sub(count)))?;
    let mut bytes = Vec::new();
    reader.take(count).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn is_sum(bytes: &[u8], sum: &[u8]) -> bool {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum().to_le_bytes() == sum
}

fn bad(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// Dumps that Flux 0.88 (libarchive 3.6) wrote, of one job.
    const SAMPLES: [(&str, &[u8]); 6] = [
        ("a.tar", include_bytes!("samples/dump.tar")),
        ("a.tgz", include_bytes!("samples/dump.tgz")),
        ("a.tar.gz", include_bytes!("samples/dump.tgz")),
        ("a.tar.bz2", include_bytes!("samples/dump.tar.bz2")),
        ("a.tar.xz", include_bytes!("samples/dump.tar.xz")),
        ("a.zip", include_bytes!("samples/dump.zip")),
    ];

    fn is_whole(name: &str, bytes: &[u8]) -> bool {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        check(&file, Path::new(name)).is_ok()
    }

    #[test]
    fn what_flux_writes_is_whole_and_any_beginning_of_it_is_not() {
        for (name, bytes) in SAMPLES {
            assert!(is_whole(name, bytes), "{name}");
            let step = if bytes.len() > 4096 { 61 } else { 7 };
            for length in (0..bytes.len() - 600).step_by(step).chain(bytes.len().saturating_sub(600)..bytes.len()) {
                assert!(!is_whole(name, &bytes[..length]), "{name}: {length} of {} bytes", bytes.len());
            }
        }
    }

    #[test]
    fn a_hole_in_a_compressed_dump_and_what_follows_its_end_are_seen() {
        let (_, tgz) = SAMPLES[1];
        for at in [tgz.len() / 3, tgz.len() / 2, tgz.len() - 6] {
            let mut broken = tgz.to_vec();
            broken[at] ^= 0x10;
            assert!(!is_whole("a.tgz", &broken), "{at}");
        }
        assert!(!is_whole("a.tgz", &[tgz, b"more"].concat()));
        assert!(!is_whole("a.tar", &[0; 1024]), "no entries");
        assert!(!is_whole("a.tar", b"state of the last run"));
        assert!(!is_whole("a.cpio", tgz), "a format that is not ours");
    }

    #[test]
    fn a_tar_that_is_cut_between_two_entries_is_not_whole_even_after_zeros() {
        let mut builder = tar::Builder::new(Vec::new());
        for name in ["one", "two"] {
            let mut header = tar::Header::new_ustar();
            header.set_size(2048);
            header.set_cksum();
            builder.append_data(&mut header, name, [0; 2048].as_slice()).unwrap();
        }
        let whole = builder.into_inner().unwrap();
        assert!(is_whole("a.tar", &whole));
        assert!(!is_whole("a.tar", &whole[..512 + 2048]), "after the first entry, whose last 1024 bytes are 0");
    }
}
