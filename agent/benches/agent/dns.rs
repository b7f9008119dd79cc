//! A DNS server for waiting followers.

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The address of the lead of the cluster `joined`. The leads of other clusters do not exist.
pub const LEAD: [u8; 4] = [127, 0, 0, 2];

/// Answers queries for the names of leads, and counts them.
pub fn serve() -> Arc<AtomicUsize> {
    let socket = UdpSocket::bind("127.0.0.1:53").unwrap();
    let count = Arc::new(AtomicUsize::new(0));
    let counted = count.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        while let Ok((length, from)) = socket.recv_from(&mut buffer) {
            counted.fetch_add(1, Ordering::Relaxed);
            if let Some(reply) = reply(&buffer[..length]) {
                let _ = socket.send_to(&reply, from);
            }
        }
    });
    count
}

/// The answer to a query: an address, NXDOMAIN (no such name), or none. The first label of the name in the query is
/// the lead's host name, `<cluster>-0`. A cluster without a lead is called after the way in which its lead is missing.
fn reply(question: &[u8]) -> Option<Vec<u8>> {
    // After a header of 12 bytes, the length of the name's first label, and the label.
    let length = usize::from(*question.get(12)?);
    let name = std::str::from_utf8(question.get(13..13 + length)?).ok()?;
    let address: Option<[u8; 4]> = match name.trim_end_matches("-0") {
        "silent" => return None,
        // Nobody listens there on the lead's port.
        "refused" => Some([127, 0, 0, 1]),
        "joined" => Some(LEAD),
        // In the network of silent addresses that `place` sets up.
        "dropped" => Some([198, 51, 100, 7]),
        _ => None,
    };
    let mut reply = question.to_vec();
    // Flags of a reply; the last four bits are 3 for NXDOMAIN.
    reply[2] = 0x81;
    reply[3] = if address.is_some() { 0x80 } else { 0x83 };
    if let Some(address) = address {
        // One answer, whatever type was asked for: the name at byte 12, type A, class IN, valid for 5 seconds, 4 bytes.
        reply[7] = 1;
        reply.extend([0xc0, 0x0c, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4]);
        reply.extend(address);
    }
    Some(reply)
}
