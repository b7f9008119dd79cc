//! The archive, read and written like Flux does: the state is loaded before the instance comes up, and dumped
//! at its end, even if the instance failed.
//!
//! `FAKE_FLUX_DUMP` has words: `writes=N` (in at most N writes), `die=K` (killed before the Kth), `pause=MS` (after
//! each), `fail` (the dump fails before its last write).

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::time::Duration;

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;

/// The only entry: a line for each start, and the lines of `waiting`.
const STARTS: &str = "starts";

/// The content of the archive at `path`, from earlier starts. Fails if there is no archive, as with Flux.
pub fn restore(path: &str) -> Result<String, String> {
    let file = File::open(path).map_err(|error| error.to_string())?;
    let mut archive = tar::Archive::new(GzDecoder::new(file));
    let mut text = String::new();
    for entry in archive.entries().map_err(|error| error.to_string())? {
        let mut entry = entry.map_err(|error| error.to_string())?;
        entry
            .read_to_string(&mut text)
            .map_err(|error| error.to_string())?;
    }
    if text.is_empty() {
        Err("nothing is in it".into())
    } else {
        Ok(text)
    }
}

/// Dumps `state`. None: the restore has failed. Then this creates an empty file and fails, as flux-dump does if the
/// broker's content store has no checkpoint of the key-value store.
pub fn dump(path: &str, state: Option<&str>) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("flux-dump: {error}");
    let mut file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .map_err(failed)?;
    let state = state.ok_or("flux-dump: error fetching checkpoints: No such file or directory")?;
    let wanted = std::env::var("FAKE_FLUX_DUMP").unwrap_or_default();
    let number = |name: &str| {
        wanted
            .split(' ')
            .find_map(|word| word.strip_prefix(name)?.parse::<usize>().ok())
    };
    let bytes = packed(state);
    let size = bytes.len().div_ceil(number("writes=").unwrap_or(1)).max(1);
    let pieces: Vec<&[u8]> = bytes.chunks(size).collect();
    for (at, piece) in pieces.iter().enumerate() {
        if number("die=") == Some(at + 1) {
            let _ = nix::sys::signal::raise(nix::sys::signal::SIGKILL);
        }
        if at + 1 == pieces.len() && wanted.split(' ').any(|word| word == "fail") {
            return Err("flux-dump: starts: missing blobref 0: No such file or directory".into());
        }
        file.write_all(piece).map_err(failed)?;
        std::thread::sleep(Duration::from_millis(number("pause=").unwrap_or(0) as u64));
    }
    Ok(())
}

fn packed(state: &str) -> Vec<u8> {
    let mut archive = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    let mut header = tar::Header::new_ustar();
    header.set_size(state.len() as u64);
    header.set_mode(0o644);
    header.set_cksum();
    archive
        .append_data(&mut header, STARTS, state.as_bytes())
        .unwrap();
    archive.into_inner().unwrap().finish().unwrap()
}
