//! The releases that a client could not send: a memory file for each connection, which the server sends with its welcome.
//!
//! # Why
//!
//! A stopped server does not read, and its queue in the kernel fills. A client that waited for room to release a timer
//! might wait beyond the deadline. Then its worker would be killed for a timer that it was about to release. So the
//! client writes such a release into this file, and returns.
//!
//! # Layout
//!
//! The file has [`SLOTS`] slots of [`SLOT`] bytes, which both sides use in turn, as a ring:
//!
//! | bytes | what |
//! | --- | --- |
//! | 0 to 3 | the length of the message; 0: the slot is free |
//! | 4 to 7 | zero |
//! | 8 to 15 | how many messages the client has sent on this connection before this release |
//! | from 16 | the release, as it would have been sent |
//!
//! The client writes the length last, and only into a slot that is free. The server sets the length to zero when it has taken the release.
//!
//! # Why no release is missed, and none undoes a later acquire
//!
//! * **R1** The client writes a release because the queue is full. When it has written it, it tries to send the release
//!   once more. If that succeeds, the server finds the release in the queue; finding it in the file too has no effect.
//!   If not, the queue was full *after* the release had been written, so the server reads messages after that. Each
//!   time it has read messages of a connection it reads that connection's file. Both happen before it kills a process:
//!   it first reads all that was sent before it read the time.
//! * **R2** The server knows for each timer by which message of which connection it was acquired. A release in the file stops a timer that was
//!   acquired on the same connection only if that message is among those that the client had sent before the release. The client counts what it sends under
//!   the lock under which it sends, so its count agrees with the server's.
//! * **R3** The server takes a release only when it has received as many messages as were sent before it. When the connection is closed it takes what there is.
//!
//! # What a hostile client can do
//!
//! It can write anything into its own file at any time. The size is sealed, so it can make the file neither longer nor shorter. The server copies what it reads, takes
//! at most one lap of the ring at a time, and refuses any other message. A release concerns the client's own process and can only stop timers.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use super::wire::{self, MAX_MESSAGE, Malformed};
use crate::expiry::{Scope, Signal};

/// As many as the timers that one process may have by default, so each of them can be released
/// through the file.
pub(crate) const SLOTS: usize = 1024;
/// The size of a slot, in bytes.
const SLOT: usize = HEAD + MAX_MESSAGE;
/// The bytes of a slot before the message.
const HEAD: usize = 16;
/// The bytes of the message's length.
const LENGTH: usize = 4;
/// The size of the file, in bytes.
const SIZE: u64 = (SLOTS * SLOT) as u64;

/// The client's end.
#[derive(Debug)]
pub(crate) struct Unsent {
    file: File,
    /// The next slot.
    next: usize,
}

/// The server's end.
#[derive(Debug)]
pub(crate) struct Backlog {
    file: File,
    /// The next slot.
    next: usize,
}

/// A release from the file.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WrittenRelease {
    pub(crate) scope: Scope,
    /// How many messages the client had sent before it.
    pub(crate) after: u64,
}

/// Whether this process may write up to the end of the file. Where its limit is lower, the kernel would answer a write by SIGXFSZ.
fn may_write() -> bool {
    getrlimit(Resource::Fsize).current.is_none_or(|limit| limit >= SIZE)
}

fn start_of(slot: usize) -> u64 {
    (slot * SLOT) as u64
}

impl Unsent {
    /// For the file that came with the welcome.
    pub(crate) fn new(file: OwnedFd) -> Unsent {
        Unsent { file: file.into(), next: 0 }
    }

    /// Writes a release, before which `sent` messages were sent. Answers whether there was room for
    /// it.
    pub(crate) fn write(&mut self, release: &[u8], sent: u64) -> bool {
        may_write() && self.try_write(release, sent).unwrap_or(false)
    }

    fn try_write(&mut self, release: &[u8], sent: u64) -> io::Result<bool> {
        let start = start_of(self.next);
        let mut length = [0; LENGTH];
        self.file.read_exact_at(&mut length, start)?;
        if length != [0; LENGTH] {
            return Ok(false);
        }
        let mut slot = [0; SLOT];
        slot[8..HEAD].copy_from_slice(&sent.to_le_bytes());
        slot[HEAD..][..release.len()].copy_from_slice(release);
        self.file.write_all_at(&slot[LENGTH..HEAD + release.len()], start + LENGTH as u64)?;
        self.file.write_all_at(&(release.len() as u32).to_le_bytes(), start)?;
        self.next = (self.next + 1) % SLOTS;
        Ok(true)
    }
}

impl Backlog {
    /// A new file, and its copy for the client.
    pub(crate) fn create() -> io::Result<(Backlog, OwnedFd)> {
        if !may_write() {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let name = "forebear-timers";
        let file = match memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
            // Kernels before 6.3 do not know this flag.
            Err(Errno::INVAL) => memfd_create(name, flags)?,
            file => file?,
        };
        ftruncate(&file, SIZE)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        let copy = file.try_clone()?;
        Ok((Backlog { file: file.into(), next: 0 }, copy))
    }

    /// Takes the next release, if the client had sent no more than `received` messages before it.
    pub(crate) fn take(&mut self, received: u64) -> Result<Option<WrittenRelease>, Malformed> {
        let start = start_of(self.next);
        let mut slot = [0; SLOT];
        // Its size is sealed: only a machine that fails cannot read it.
        let read = |into: &mut [u8], at| self.file.read_exact_at(into, at).is_ok();
        if !read(&mut slot[..LENGTH], start) {
            return Ok(None);
        }
        let len = u32::from_le_bytes([slot[0], slot[1], slot[2], slot[3]]) as usize;
        if len == 0 {
            return Ok(None);
        }
        let end = HEAD.checked_add(len).filter(|end| *end <= SLOT).ok_or(Malformed)?;
        // Read after the length, which the client wrote last.
        if !read(&mut slot[LENGTH..end], start + LENGTH as u64) {
            return Ok(None);
        }
        let (head, message) = (&slot[..HEAD], &slot[HEAD..end]);
        let after = u64::from_le_bytes(head[8..].try_into().map_err(|_| Malformed)?);
        let request = wire::parse_request(message)?;
        if request.deadline.is_some() || request.signal != Signal::Default || head[LENGTH..8] != [0; 4] {
            return Err(Malformed);
        }
        if after > received {
            return Ok(None);
        }
        if may_write() {
            // If it fails, the slot is never free again, and its client has one slot less.
            _ = self.file.write_all_at(&[0; LENGTH], start);
        }
        self.next = (self.next + 1) % SLOTS;
        Ok(Some(WrittenRelease { scope: request.scope, after }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Backlog, Unsent) {
        let (backlog, file) = Backlog::create().unwrap();
        (backlog, Unsent::new(file))
    }

    fn release(name: &str) -> Vec<u8> {
        wire::encode_request(&name.into(), None, Signal::Default).ok().unwrap().bytes().to_vec()
    }

    fn written(name: &str, after: u64) -> Result<Option<WrittenRelease>, Malformed> {
        Ok(Some(WrittenRelease { scope: name.into(), after }))
    }

    #[test]
    fn what_is_written_is_taken_once_in_order_and_its_slot_is_used_again() {
        let (mut backlog, mut unsent) = pair();
        for lap in 0..3 {
            for number in 0..SLOTS {
                assert!(unsent.write(&release(&format!("{lap}.{number}")), number as u64));
            }
            assert!(!unsent.write(&release("one more"), 0), "the file is full");
            for number in 0..SLOTS {
                let taken = backlog.take(SLOTS as u64);
                assert_eq!(taken, written(&format!("{lap}.{number}"), number as u64));
            }
            assert_eq!(backlog.take(0), Ok(None));
        }
    }

    #[test]
    fn what_comes_after_messages_that_were_not_heard_stays() {
        let (mut backlog, mut unsent) = pair();
        assert!(unsent.write(&release("scope"), 7));
        assert_eq!(backlog.take(6), Ok(None));
        assert_eq!(backlog.take(7), written("scope", 7));
        assert_eq!(backlog.take(u64::MAX), Ok(None));
    }

    #[test]
    fn what_is_no_release_is_malformed() {
        let acquire = wire::encode_request(&"scope".into(), Some(7), Signal::Default).ok().unwrap();
        let signal = wire::encode_request(&"scope".into(), None, Signal::LogOnly).ok().unwrap();
        for message in [acquire.bytes(), signal.bytes(), b"x", &[0xff; 512]] {
            let (mut backlog, mut unsent) = pair();
            assert!(unsent.write(message, 0));
            assert_eq!(backlog.take(0), Err(Malformed), "{message:?}");
        }
        for (length, place) in [(0xffff_ffff_u32, 0), (513, 0), (24, 4), (24, 7)] {
            let (mut backlog, mut unsent) = pair();
            assert!(unsent.write(&release(""), 0));
            unsent.file.write_all_at(&length.to_le_bytes(), 0).unwrap();
            if place > 0 {
                unsent.file.write_all_at(&[1], place).unwrap();
            }
            assert_eq!(backlog.take(0), Err(Malformed), "{length} {place}");
        }
    }

    #[test]
    fn a_client_can_change_neither_the_size_nor_the_seals_of_its_file() {
        let (_backlog, unsent) = pair();
        assert!(ftruncate(&unsent.file, 0).is_err());
        assert!(ftruncate(&unsent.file, SIZE + 1).is_err());
        assert!(unsent.file.write_all_at(b"x", SIZE).is_err());
        assert!(fcntl_add_seals(&unsent.file, SealFlags::WRITE).is_err());
    }
}
