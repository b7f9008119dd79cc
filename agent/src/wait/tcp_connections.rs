//! The kernel's answers about TCP connections of this network namespace (sock_diag(7), netlink).
//!
//! To list the connections to a port, the kernel walks through the table of the whole node, as for /proc/net/tcp: some
//! milliseconds. A known connection is looked up by its identity: some microseconds.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

use crate::system::netlink;

/// Numbers of <linux/netlink.h>, <linux/sock_diag.h> and the kernel's TCP.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_DONE: u16 = 3;
const NLM_F_DUMP: u16 = 0x300;
const IPPROTO_TCP: u8 = 6;
const TCP_ESTABLISHED: u8 = 1;
const FAMILIES: [u8; 2] = [nix::libc::AF_INET as u8, nix::libc::AF_INET6 as u8];
/// Bytes of a connection's name, and of what stands before the name in an answer.
const NAME: usize = 48;
const BEFORE_NAME: usize = 4;
/// Largest part of an answer.
const PART: usize = 32 << 10;

/// An established connection: its family, and its name as the kernel has it (ports, addresses, interface and a number
/// that no other connection has).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connection {
    family: u8,
    name: [u8; NAME],
}

/// The established connections to remote port `port`. The error: this kernel does not say.
pub fn established_to(port: u16) -> io::Result<Vec<Connection>> {
    let mut name = [0; NAME];
    name[2..4].copy_from_slice(&port.to_be_bytes());
    let [old, new] = FAMILIES.map(|family| ask(NLM_F_DUMP, Connection { family, name }));
    let mut found = old?;
    // A kernel without IPv6 has none.
    found.extend(new.unwrap_or_default());
    Ok(found)
}

/// Whether the connection is still established.
pub fn is_established(connection: Connection) -> bool {
    ask(0, connection).is_ok_and(|found| found.contains(&connection))
}

/// The established connections that the kernel answers with to a request for `wanted`.
fn ask(flags: u16, wanted: Connection) -> io::Result<Vec<Connection>> {
    let socket =
        socket(AddressFamily::Netlink, SockType::Datagram, SockFlag::SOCK_CLOEXEC, SockProtocol::NetlinkSockDiag)?;
    send(socket.as_raw_fd(), &request(flags, wanted), MsgFlags::empty())?;
    let (mut found, mut part) = (Vec::new(), vec![0; PART]);
    loop {
        let more = take(receive(&socket, &mut part)?, &mut found)?;
        if !more || flags & NLM_F_DUMP == 0 {
            return Ok(found);
        }
    }
}

/// The kernel has answered before the request's call returns: there is nothing to wait for.
fn receive<'a>(socket: &OwnedFd, part: &'a mut [u8]) -> io::Result<&'a [u8]> {
    let length = recv(socket.as_raw_fd(), part, MsgFlags::MSG_DONTWAIT)?;
    Ok(&part[..length])
}

fn request(flags: u16, wanted: Connection) -> Vec<u8> {
    let mut body = vec![wanted.family, IPPROTO_TCP, 0, 0];
    body.extend((1_u32 << TCP_ESTABLISHED).to_ne_bytes());
    body.extend(wanted.name);
    netlink::request(SOCK_DIAG_BY_FAMILY, flags, &body)
}

/// Adds the established connections of one part of an answer; whether another part follows.
fn take(mut part: &[u8], found: &mut Vec<Connection>) -> io::Result<bool> {
    while let Some((message, rest)) = netlink::next(part)? {
        match message.kind {
            NLMSG_DONE => return Ok(false),
            netlink::ERROR => return Err(io::Error::from_raw_os_error(message.error().unwrap_or_default())),
            SOCK_DIAG_BY_FAMILY => {
                let name = message.body.get(BEFORE_NAME..).and_then(<[u8]>::first_chunk);
                let name = *name.ok_or_else(|| io::Error::other("a connection without its identity"))?;
                if message.body[1] == TCP_ESTABLISHED {
                    found.push(Connection { family: message.body[0], name });
                }
            }
            _ => {}
        }
        part = rest;
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_connection_is_found_and_looked_up_as_long_as_it_stands_by_either_family() {
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                assert!(address.starts_with('['), "a host without IPv6 has still IPv4");
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            assert_eq!(established_to(port).unwrap(), [], "{address}: nobody but a listener");
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            let found = established_to(port).unwrap();
            assert_eq!(found.len(), 1, "{address}: its own end alone, not the accepted one");
            assert!(is_established(found[0]));
            drop(accepted);
            assert!(!is_established(found[0]), "{address}: the other end has closed");
            drop(stream);
            let again = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            assert!(
                !is_established(found[0]) && is_established(established_to(port).unwrap()[0]),
                "{address}: another one"
            );
            drop(again);
        }
    }

    #[test]
    fn an_ipv4_address_of_a_socket_of_ipv6_is_found() {
        let Ok(listener) = TcpListener::bind("[::]:0") else { return };
        let port = listener.local_addr().unwrap().port();
        let _stream = TcpStream::connect(format!("[::ffff:127.0.0.1]:{port}")).unwrap();
        let found = established_to(port).unwrap();
        assert!(found.len() == 1 && is_established(found[0]), "{found:?}");
    }

    #[test]
    fn refusals_and_answers_that_are_cut_off_are_errors() {
        let mut refusal = 36_u32.to_ne_bytes().to_vec();
        refusal.extend(netlink::ERROR.to_ne_bytes());
        refusal.extend([0; 10]);
        refusal.extend((-2_i32).to_ne_bytes());
        refusal.extend([0; 16]);
        let error = take(&refusal, &mut Vec::new()).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(2));
        assert!(take(&refusal[..20], &mut Vec::new()).is_err());
        refusal[..4].copy_from_slice(&0_u32.to_ne_bytes());
        assert!(take(&refusal, &mut Vec::new()).is_err(), "no length at all");
        let mut short = 24_u32.to_ne_bytes().to_vec();
        short.extend(SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        short.extend([1; 18]);
        assert!(take(&short, &mut Vec::new()).is_err());
    }
}
