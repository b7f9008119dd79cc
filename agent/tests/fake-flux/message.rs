//! Flux's messages on the local socket, as far as the agent uses them (agent/src/flux_rpc/message.rs describes
//! the format). Anything else on the socket is a line in the fake Flux's own protocol.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;

const MAGIC: [u8; 4] = 0xffee_0012_u32.to_ne_bytes();
/// Prefix of the topic of a message.
pub const MESSAGE: &str = "message ";
/// ENOSYS.
const NO_SERVICE: u32 = 38;

/// A client's request: a line, or `message TOPIC`, a line break and the payload.
pub fn request(stream: &UnixStream) -> Option<String> {
    let mut reader = BufReader::new(stream);
    if reader.fill_buf().ok()?.first() != Some(&MAGIC[0]) {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        return Some(line.trim().to_owned()).filter(|line| !line.is_empty());
    }
    let mut head = [0; 8];
    reader.read_exact(&mut head).ok()?;
    let mut message = vec![0; u32::from_be_bytes(head[4..].try_into().ok()?) as usize];
    reader.read_exact(&mut message).ok()?;
    // The end of an empty route, the topic, and the payload with a NUL.
    let (_, rest) = frame(&message)?;
    let (topic, rest) = frame(rest)?;
    let payload = frame(rest)?.0.strip_suffix(b"\0")?;
    Some(format!(
        "{MESSAGE}{}\n{}",
        String::from_utf8_lossy(topic),
        String::from_utf8_lossy(payload)
    ))
}

/// The first frame of a message, and what follows it.
fn frame(message: &[u8]) -> Option<(&[u8], &[u8])> {
    match message.split_first()? {
        (255, rest) => {
            let (length, rest) = rest.split_first_chunk::<4>()?;
            rest.split_at_checked(u32::from_be_bytes(*length) as usize)
        }
        (length, rest) => rest.split_at_checked(usize::from(*length)),
    }
}

/// The topic and the payload of a request, if it is a message.
pub fn parts(request: &str) -> Option<(&str, &str)> {
    request.strip_prefix(MESSAGE)?.split_once('\n')
}

/// The bytes of an answer. Without a payload, it says that there is no such service.
pub fn answer(topic: &str, payload: Option<&str>) -> Vec<u8> {
    let errno = if payload.is_some() { 0 } else { NO_SERVICE };
    // Magic byte, version, type (a response), flags (route and topic, with or without a payload).
    let mut header = vec![0x8e, 1, 2, if payload.is_some() { 0b1011 } else { 0b1001 }];
    // User, role (owner and local), errno, match tag (that of the agent's requests).
    for word in [0, 5, errno, 1] {
        header.extend(word.to_be_bytes());
    }
    let payload = payload.map(|payload| [payload.as_bytes(), b"\0"].concat());
    let mut message = Vec::new();
    for frame in [Some(Vec::new()), Some(topic.into()), payload, Some(header)]
        .into_iter()
        .flatten()
    {
        message.push(255);
        message.extend(u32::try_from(frame.len()).unwrap_or_default().to_be_bytes());
        message.extend(frame);
    }
    let length = u32::try_from(message.len()).unwrap_or_default().to_be_bytes();
    [&MAGIC, length.as_slice(), &message].concat()
}
