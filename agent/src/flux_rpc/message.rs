//! Encodes requests and decodes replies: messages of Flux RFC 3, framed on the socket as in flux-core's
//! `librouter/sendfd.c` and `usock.c` (the same in every release since 0.12). Written by hand because there is no crate
//! for it, and a static program cannot link to libflux.
//!
//! ```text
//! broker to client, once: one byte (0, or the errno of a refusal)
//! each message:           head (magic, length), frames (each with length, bytes)
//! frames:                 end of route (empty), topic, payload (JSON with a NUL), header (20 bytes)
//! ```

use std::io;
use std::time::Duration;

use serde_json::Value;

/// How long to wait for one reply of a broker.
pub(super) const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// Begins the head of a message. It has the machine's byte order in flux-core, but the length after it is big-endian.
const MAGIC: [u8; 4] = 0xffee_0012_u32.to_ne_bytes();
/// Bytes of the frame with the header.
const HEADER_LENGTH: usize = 20;
/// The message type of a request.
const REQUEST: u8 = 1;
/// Flag of a message with a payload.
const HAS_PAYLOAD: u8 = 0b10;
/// Flags of a message with a topic, a payload and a route.
const REQUEST_FLAGS: u8 = 0b1001 | HAS_PAYLOAD;
/// Flag of a request that may get more than one reply.
const STREAMING: u8 = 0x40;
/// As a rank: the broker at the other end of the socket. As a user: the broker fills it in.
pub const ANY: u32 = u32::MAX;
/// Bytes before the frames of a message: magic and length.
pub const HEAD_LENGTH: usize = 8;
/// In place of the length of a frame: the length follows, in four bytes.
const LONG_FRAME: u8 = 255;
/// Longest message that is accepted, in bytes. Every real reply is shorter.
const LONGEST_MESSAGE: usize = 64 << 20;

/// Why a request got no usable reply. In the messages, "it" is the broker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    #[error("its socket {0} does not exist: it has not started, or has ended")]
    NoSocket(String),
    #[error("connection refused at its socket: it has ended")]
    Ended,
    #[error("permission denied ({0}): only the user that runs Flux may ask")]
    Refused(String),
    #[error("no answer within {} s: it is suspended or very busy", ANSWER_TIMEOUT.as_secs())]
    Slow,
    #[error("it returned an error: {0}")]
    Answer(String),
    #[error("failed to communicate with it: {0}")]
    Protocol(String),
}

/// The text of a Linux error number.
pub(super) fn errno_text(errno: u32) -> String {
    crate::report::failure::plain(&io::Error::from_raw_os_error(errno.cast_signed()))
}

/// The bytes of a request. `rank`: the broker that shall answer. `payload`: JSON.
pub fn request(rank: u32, topic: &str, payload: &str) -> Vec<u8> {
    message(rank, topic, payload, REQUEST_FLAGS)
}

/// The bytes of a request that gets more than one reply.
pub fn stream_request(rank: u32, topic: &str, payload: &str) -> Vec<u8> {
    message(rank, topic, payload, REQUEST_FLAGS | STREAMING)
}

fn message(rank: u32, topic: &str, payload: &str, flags: u8) -> Vec<u8> {
    // Magic byte and version of RFC 3, message type, flags.
    let mut header = vec![0x8e, 1, REQUEST, flags];
    // User and role (the broker fills in both), rank, match tag. One tag is enough: nothing here reads the tag of a
    // reply, since replies are told apart by their content or order.
    for word in [ANY, 0, rank, 1] {
        header.extend(word.to_be_bytes());
    }
    let mut message = Vec::new();
    for part in [
        b"",
        topic.as_bytes(),
        &[payload.as_bytes(), b"\0"].concat(),
        &header,
    ] {
        push_frame(&mut message, part);
    }
    let length = (message.len() as u32).to_be_bytes();
    [&MAGIC, &length, message.as_slice()].concat()
}

/// Appends a frame, with its length in the form that `frames` reads.
fn push_frame(message: &mut Vec<u8>, frame: &[u8]) {
    match u8::try_from(frame.len()) {
        Ok(length) if length < LONG_FRAME => message.push(length),
        _ => {
            message.push(LONG_FRAME);
            message.extend((frame.len() as u32).to_be_bytes());
        }
    }
    message.extend_from_slice(frame);
}

/// Length in bytes of the frames that follow `head`. None if `head` is not valid, or the message is too long.
pub fn length(head: [u8; HEAD_LENGTH]) -> Option<usize> {
    let (magic, length) = head.split_at(4);
    let length = u32::from_be_bytes(length.try_into().ok()?) as usize;
    (magic == MAGIC && length <= LONGEST_MESSAGE).then_some(length)
}

/// A broker's reply to a request.
#[derive(Debug, PartialEq)]
pub enum BrokerReply {
    Payload(Value),
    /// The broker returned an error: its text, or the text of its errno.
    Error(String),
}

/// The reply in a message; none if it is not a valid one.
pub fn parse_reply(message: &[u8]) -> Option<BrokerReply> {
    let mut frames = frames(message)?;
    let header = frames.pop().filter(|header| header.len() == HEADER_LENGTH)?;
    // A response has its errno where a request has its rank.
    let errno = u32::from_be_bytes(header[12..16].try_into().ok()?);
    let has_payload = header[3] & HAS_PAYLOAD != 0;
    let payload = if has_payload {
        frames.pop().unwrap_or_default()
    } else {
        Default::default()
    };
    let payload = payload.strip_suffix(b"\0").unwrap_or(payload);
    Some(match errno {
        0 if payload.is_empty() => BrokerReply::Payload(Value::Null),
        0 => BrokerReply::Payload(serde_json::from_str(std::str::from_utf8(payload).ok()?).ok()?),
        // The payload of an error is its text, if it has one.
        _ if payload.is_empty() => BrokerReply::Error(errno_text(errno)),
        _ => BrokerReply::Error(String::from_utf8_lossy(payload).into_owned()),
    })
}

/// Splits a message into its frames. A length of 255 or more takes five bytes: 255, then the length in four bytes.
/// None if the message is cut off.
fn frames(message: &[u8]) -> Option<Vec<&[u8]>> {
    let mut frames = Vec::new();
    let mut rest = message;
    while let Some((&first, after)) = rest.split_first() {
        let (length, after) = match first {
            LONG_FRAME => {
                let (length, after) = after.split_first_chunk::<4>()?;
                (u32::from_be_bytes(*length) as usize, after)
            }
            length => (length.into(), after),
        };
        let (frame, after) = after.split_at_checked(length)?;
        frames.push(frame);
        rest = after;
    }
    Some(frames)
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use test_support::mutate;

    use super::*;

    /// A response as flux-core 0.88 sends it, but with the long form for the length of any payload.
    fn response(errno: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut header = vec![0x8e, 1, 2, flags];
        for word in [0, 5, errno, 1] {
            header.extend(word.to_be_bytes());
        }
        let mut message = vec![0, 3];
        message.extend_from_slice(b"a.b");
        if flags & 2 != 0 {
            message.push(255);
            message.extend((payload.len() as u32).to_be_bytes());
            message.extend_from_slice(payload);
        }
        message.push(20);
        message.extend(header);
        message
    }

    #[test]
    fn reply_is_json_or_an_error_text() {
        let state = parse_reply(&response(0, 0b1011, b"{\"state\":\"run\"}\0"));
        assert_eq!(state, Some(BrokerReply::Payload(json!({ "state": "run" }))));
        let empty = parse_reply(&response(0, 0b1001, b""));
        assert_eq!(empty, Some(BrokerReply::Payload(Value::Null)));
        let refusal = parse_reply(&response(1, 0b1001, b""));
        assert_eq!(
            refusal,
            Some(BrokerReply::Error("operation not permitted".into()))
        );
        let refusal = parse_reply(&response(38, 0b1011, b"no such service\0"));
        assert_eq!(refusal, Some(BrokerReply::Error("no such service".into())));
    }

    #[test]
    fn request_is_framed_as_flux_does() {
        let bytes = request(ANY, "state-machine.get", "{}");
        let (head, message) = bytes.split_at(8);
        // The length: frames of 0, 17, 3 and 20 bytes, and one byte before each.
        assert_eq!(head, [0x12, 0, 0xee, 0xff, 0, 0, 0, 40 + 4]);
        let frames = frames(message).unwrap();
        assert_eq!(frames[..3], [b"".as_slice(), b"state-machine.get", b"{}\0"]);
        assert_eq!(
            frames[3],
            [
                &[0x8e, 1, 1, 11][..],
                &[255; 4],
                &[0; 4],
                &[255; 4],
                &[0, 0, 0, 1]
            ]
            .concat()
        );
    }

    #[test]
    fn request_frames_are_read_back_when_long() {
        for payload_length in [0, 253, 254, 255, 256, 70_000] {
            let payload = "x".repeat(payload_length);
            let bytes = request(ANY, "resource.drain", &payload);
            let (head, message) = bytes.split_first_chunk::<HEAD_LENGTH>().unwrap();
            assert_eq!(length(*head), Some(message.len()));
            let frames = frames(message).unwrap();
            let with_nul = payload + "\0";
            assert_eq!(
                frames[..3],
                [b"".as_slice(), b"resource.drain", with_nul.as_bytes()]
            );
            assert_eq!(
                (frames.len(), frames[3].len()),
                (4, HEADER_LENGTH),
                "{payload_length}"
            );
        }
        // 255 takes the long form: in one byte, it would be read as the mark of this form.
        let length_bytes = |length| {
            let mut message = Vec::new();
            push_frame(&mut message, &vec![0; length]);
            message[..message.len() - length].to_vec()
        };
        assert_eq!(length_bytes(254), [254]);
        assert_eq!(length_bytes(255), [255, 0, 0, 0, 255]);
        assert_eq!(length_bytes(70_000), [255, 0, 1, 0x11, 0x70]);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_parsed_without_panic(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..80)) {
            let _ = parse_reply(&bytes);
        }
    }

    #[test]
    fn any_broker_response_is_parsed_without_panic() {
        let mut understood = 0;
        mutate::for_a_while(2, |dice| {
            let deep = ["[", "{\"a\":", "0,", "x"][dice.roll(4)].repeat(1 << dice.roll(16));
            let payload =
                ["{\"state\":\"run\",\"set\":[0,1.5,null]}\0", "", "null\0", &deep][dice.roll(4)].to_owned();
            let mut bytes = response([0, 1, 38, u32::MAX][dice.roll(4)], 0b1011, payload.as_bytes());
            for _ in 0..dice.roll(4) {
                let at = dice.roll(bytes.len());
                match dice.roll(4) {
                    0 => bytes.truncate(at),
                    1 => bytes[at] = *dice.pick(&[0, 1, 20, 127, 254, 255]),
                    2 => drop(bytes.splice(at..at, vec![*dice.pick(&[0, 255, b'{']); 1 << dice.roll(12)])),
                    _ => drop(bytes.remove(at)),
                }
                if bytes.is_empty() {
                    break;
                }
            }
            understood += usize::from(matches!(parse_reply(&bytes), Some(BrokerReply::Payload(_))));
            let head: Vec<u8> = bytes.iter().copied().chain([0; 8]).take(8).collect();
            let _ = length(head.try_into().unwrap());
        });
        assert!(understood > 5, "only {understood} were understood");
    }
}
