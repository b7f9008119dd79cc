//! Messages to the kernel and its answers (netlink(7)): the header that all of them have. Written by hand: there are
//! two kinds of requests, with a few fixed fields each. Crates for netlink have the types of a whole family, and most
//! have a socket of their own.

use std::io;

/// Bytes of a header: length, type, flags, sequence, port.
const HEADER: usize = 16;
/// The flag NLM_F_REQUEST.
const REQUEST: u16 = 1;
/// NLMSG_ERROR, the type of an answer with an errno.
pub const ERROR: u16 = 2;

/// One of the kernel's messages.
#[derive(Debug, Clone, Copy)]
pub struct Message<'a> {
    pub kind: u16,
    pub body: &'a [u8],
}

impl Message<'_> {
    /// The errno that an answer of type `ERROR` begins with; 0: all went well.
    pub fn error(&self) -> Option<i32> {
        // The kernel sends the errno as a negative number.
        self.body.first_chunk().map(|number| -i32::from_ne_bytes(*number))
    }
}

/// A request of the type `kind` with this body, as bytes.
pub fn request(kind: u16, flags: u16, body: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(HEADER + body.len())
        .unwrap_or_default()
        .to_ne_bytes()
        .to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((REQUEST | flags).to_ne_bytes());
    // Sequence and port.
    bytes.extend([0; 8]);
    bytes.extend(body);
    bytes
}

/// The first message of an answer. None: there is none.
pub fn first(answer: &[u8]) -> io::Result<Option<Message<'_>>> {
    let Some(header) = answer.first_chunk::<HEADER>() else {
        return Ok(None);
    };
    let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
    let kind = u16::from_ne_bytes([header[4], header[5]]);
    let broken = || io::Error::other("an answer of the kernel that is cut off");
    let body = answer.get(HEADER..length).ok_or_else(broken)?;
    Ok(Some(Message { kind, body }))
}
