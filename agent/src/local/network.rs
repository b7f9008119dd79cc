//! The pods' network: the loopback interface of a network namespace of their own, with an address for each
//! pod.
//!
//! By messages to the kernel (rtnetlink): no `ip` program is needed.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use flux_shared::exit::Category;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

use crate::report::failure::{Failure, plain};
use crate::system::netlink;

// Numbers from the kernel's headers.
/// RTM_NEWLINK, a type of message.
const NEW_LINK: u16 = 16;
/// RTM_NEWADDR, a type of message.
const NEW_ADDRESS: u16 = 20;
/// The flag NLM_F_ACK.
const WITH_ANSWER: u16 = 4;
/// The flag NLM_F_CREATE.
const CREATE: u16 = 0x400;
/// The flag IFF_UP of an interface.
const IS_UP: u32 = 1;
/// The attribute IFA_ADDRESS.
const ADDRESS: u16 = 1;
/// The attribute IFA_LOCAL.
const LOCAL: u16 = 2;
/// The address family AF_INET.
const INET: u8 = 2;
/// The index of the loopback interface: the first one of every namespace.
const LOOPBACK: u32 = 1;

/// The address of the pod with this index. It exists only in the network namespace of the run.
pub fn address(index: u32) -> Ipv4Addr {
    // 10.9.0.1 for pod 0. Not 127.x.x.x, which the agent does not take for a pod's own address.
    let [_, _, high, low] = (index + 1).to_be_bytes();
    Ipv4Addr::new(10, 9, high, low)
}

/// Brings the loopback interface up, with the addresses of `size` pods.
pub fn up(size: u32) -> Result<(), Failure> {
    let all = || {
        let socket = socket(
            AddressFamily::Netlink,
            SockType::Raw,
            SockFlag::SOCK_CLOEXEC,
            SockProtocol::NetlinkRoute,
        )?;
        ask(&socket, &link_up())?;
        (0..size).try_for_each(|index| ask(&socket, &new_address(address(index))))
    };
    all().map_err(|error| {
        let cause = format!("failed to set up the pods' network: {}", plain(&error));
        Failure::new(Category::Internal, cause, "run it as root")
    })
}

/// `struct ifinfomsg`: family, padding, type, index, flags, change.
fn link_up() -> Vec<u8> {
    let mut body = vec![0; 4];
    for word in [LOOPBACK, IS_UP, IS_UP] {
        body.extend(word.to_ne_bytes());
    }
    netlink::request(NEW_LINK, WITH_ANSWER, &body)
}

/// `struct ifaddrmsg`: family, prefix, flags, scope, index. Then two attributes with the address: length, type, value.
fn new_address(address: Ipv4Addr) -> Vec<u8> {
    let mut body = vec![INET, 32, 0, 0];
    body.extend(LOOPBACK.to_ne_bytes());
    for kind in [LOCAL, ADDRESS] {
        // The length of the attribute: itself, the type and the address.
        body.extend(8_u16.to_ne_bytes());
        body.extend(kind.to_ne_bytes());
        body.extend(address.octets());
    }
    netlink::request(NEW_ADDRESS, WITH_ANSWER | CREATE, &body)
}

/// Sends a message, and reads the kernel's answer.
fn ask(socket: &OwnedFd, message: &[u8]) -> io::Result<()> {
    send(socket.as_raw_fd(), message, MsgFlags::empty())?;
    let mut answer = [0; 1024];
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    let answer = netlink::first(&answer[..length])?.filter(|answer| answer.kind == netlink::ERROR);
    match answer.and_then(|answer| answer.error()) {
        Some(0) => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(error)),
        None => Err(io::Error::other("the kernel's answer is not understood")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_pod_has_an_address() {
        assert_eq!(address(0).to_string(), "10.9.0.1");
        assert_eq!(address(254).to_string(), "10.9.0.255");
        assert_eq!(address(255).to_string(), "10.9.1.0");
    }

    #[test]
    fn messages_have_the_kernels_layout() {
        let message = new_address(Ipv4Addr::new(10, 9, 0, 1));
        assert_eq!(message.len(), 40);
        assert_eq!(message[..4], 40_u32.to_ne_bytes());
        assert_eq!(message[28..32], [10, 9, 0, 1]);
        assert_eq!(link_up().len(), 32);
    }
}
