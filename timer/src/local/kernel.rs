//! Two system calls that no safe crate offers in a usable form: which process has connected, and which has sent a
//! message.
//!
//! The kernel reports the process id 0 for a process of another pid namespace. rustix stores process ids in a type that cannot be 0, so
//! reading such an id through it would be undefined behaviour. Here ids are plain integers, and 0 becomes `None`.
//!
//! # Invariants
//!
//! * **K1** Each call is given pointers into locals that live until it returns, and their lengths in bytes.
//! * **K2** What the kernel writes into (`ucred`, bytes) is valid for any bits.
//! * **K3** A control message is read only if `CMSG_FIRSTHDR` or `CMSG_NXTHDR` has found that its header lies within
//!   what the kernel has written. Its payload is read only if its length says that it is complete. The buffer is
//!   aligned as a header must be.

#![allow(unsafe_code)]

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd};

/// The process at the other end, as the kernel reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sender {
    /// `None` if it is not visible from this pid namespace.
    pub(crate) pid: Option<i32>,
    pub(crate) uid: u32,
}

impl From<libc::ucred> for Sender {
    fn from(credentials: libc::ucred) -> Sender {
        Sender { pid: (credentials.pid > 0).then_some(credentials.pid), uid: credentials.uid }
    }
}

/// A received message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Received {
    /// How many bytes of the buffer it fills.
    pub(crate) len: usize,
    /// The message was longer than the buffer, or came with control data other than credentials. The kernel has
    /// discarded the rest.
    pub(crate) cut: bool,
    /// The sender, which `SO_PASSCRED` makes the kernel report. `None` at the end of the connection, where
    /// there is no message.
    pub(crate) sender: Option<Sender>,
}

/// The process that has connected.
pub(crate) fn connected(socket: BorrowedFd<'_>) -> io::Result<Sender> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let into = (&raw mut credentials).cast();
    // SAFETY: K1, K2.
    let done =
        unsafe { libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, into, &mut len) };
    if done == 0 { Ok(credentials.into()) } else { Err(io::Error::last_os_error()) }
}

/// Receives one message, without waiting.
pub(crate) fn receive(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<Received> {
    // Room for credentials and nothing more: the kernel drops descriptors that come along.
    #[repr(C)]
    union Control {
        _align: libc::cmsghdr,
        room: [u8; ROOM],
    }
    // SAFETY: computes.
    const ROOM: usize = unsafe { libc::CMSG_SPACE(size_of::<libc::ucred>() as u32) } as usize;

    let mut control = Control { room: [0; ROOM] };
    let mut bytes = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
    // SAFETY: null pointers and lengths of zero are valid in it.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &mut bytes;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = ROOM as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: K1, K2.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, flags) };
    let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
    Ok(Received {
        len,
        cut: message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0,
        sender: sender(&message),
    })
}

/// The credentials among the control messages.
fn sender(message: &libc::msghdr) -> Option<Sender> {
    // SAFETY: K3: `message` is as `recvmsg` has left it, and what it points to is alive in the caller's frame.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: K3.
    while let Some(found) = unsafe { header.as_ref() } {
        // SAFETY: computes.
        let whole = unsafe { libc::CMSG_LEN(size_of::<libc::ucred>() as u32) } as _;
        let wanted = found.cmsg_level == libc::SOL_SOCKET && found.cmsg_type == libc::SCM_CREDENTIALS;
        if wanted && found.cmsg_len == whole {
            // SAFETY: K3; K2; read as bytes, since a payload may stand anywhere.
            let credentials = unsafe { libc::CMSG_DATA(header).cast::<libc::ucred>().read_unaligned() };
            return Some(credentials.into());
        }
        // SAFETY: K3.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::sockopt::set_socket_passcred;
    use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};
    use std::os::fd::{AsFd, OwnedFd};

    fn pair() -> (OwnedFd, OwnedFd) {
        let kind = SocketType::SEQPACKET;
        let (one, other) = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
        set_socket_passcred(&one, true).unwrap();
        (one, other)
    }

    fn me() -> Sender {
        let pid = i32::try_from(std::process::id()).unwrap();
        Sender { pid: Some(pid), uid: rustix::process::geteuid().as_raw() }
    }

    #[test]
    fn a_message_says_who_sent_it_and_the_end_says_nobody() {
        let (one, other) = pair();
        let mut bytes = [0; 8];
        let nothing = receive(one.as_fd(), &mut bytes).unwrap_err();
        assert_eq!(nothing.kind(), io::ErrorKind::WouldBlock);
        for text in [&b"hello"[..], b"", b"farewell, and more than fits"] {
            send(&other, text, SendFlags::NOSIGNAL).unwrap();
            let received = receive(one.as_fd(), &mut bytes).unwrap();
            assert_eq!(received.sender, Some(me()));
            assert_eq!((received.len, received.cut), (text.len().min(8), text.len() > 8));
        }
        drop(other);
        let received = receive(one.as_fd(), &mut bytes).unwrap();
        assert_eq!((received.len, received.sender), (0, None));
    }

    #[test]
    fn who_connected_is_known() {
        assert_eq!(connected(pair().0.as_fd()).unwrap(), me());
    }

    #[test]
    fn descriptors_that_come_along_stay_out() {
        use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, sendmsg};
        let (one, other) = pair();
        let mut room = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut control = SendAncillaryBuffer::new(&mut room);
        let gifts = [one.as_fd(), other.as_fd()];
        assert!(control.push(SendAncillaryMessage::ScmRights(&gifts)));
        sendmsg(&other, &[io::IoSlice::new(b"take")], &mut control, SendFlags::NOSIGNAL).unwrap();
        let mut bytes = [0; 8];
        let received = receive(one.as_fd(), &mut bytes).unwrap();
        assert!(received.cut, "{received:?}");
        assert_eq!(received.sender, Some(me()));
    }
}
