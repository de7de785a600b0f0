//! What other threads pass to the thread of a run, and the bell that wakes it.
//!
//! The thread waits in `poll`, for the ends of its workers and for the bell, an eventfd. Another thread puts its message into the mail first, and rings then; so
//! the thread, which reads the bell before it takes the mail, misses nothing.

use std::io;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};

/// See the module head.
#[derive(Debug)]
pub(super) struct Inbox {
    mail: Mutex<Mail>,
    bell: OwnedFd,
}

/// What has come since the thread of the run looked last.
#[derive(Debug, Default)]
pub(super) struct Mail {
    /// The run is to end.
    pub(super) stop: bool,
    /// The group is to have so many workers.
    pub(super) resize: Option<usize>,
    /// Signals that this process was sent, in their order.
    pub(super) signals: Vec<i32>,
    /// Timers that have expired.
    pub(super) expired: Vec<Expired>,
    /// What the timer server could not do, a line each.
    pub(super) timers_failed: Vec<String>,
}

/// A timer has expired.
#[derive(Clone, Debug)]
pub(super) struct Expired {
    /// Whose it is.
    pub(super) pid: u32,
    /// The process group that this process belonged to. A worker leads its own.
    pub(super) leader: Option<i32>,
    pub(super) scope: String,
    /// Whether the process is ended for it.
    pub(super) ends: bool,
}

impl Inbox {
    pub(super) fn new() -> io::Result<Inbox> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Inbox { mail: Mutex::new(Mail::default()), bell })
    }

    /// Puts something into the mail, and wakes the thread.
    pub(super) fn tell(&self, put: impl FnOnce(&mut Mail)) {
        put(&mut self.mail());
        // It refuses only when the count is full, and then the thread is woken already.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// All that has come since the last call.
    pub(super) fn take(&self) -> Mail {
        let mut count = [0; 8];
        // Nothing to read: no other thread has rung.
        let _ = rustix::io::read(&self.bell, &mut count);
        mem::take(&mut *self.mail())
    }

    fn mail(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bell: readable when there is mail.
impl AsFd for Inbox {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    fn rings(inbox: &Inbox) -> bool {
        let mut bell = [PollFd::new(inbox, PollFlags::IN)];
        poll(&mut bell, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
    }

    #[test]
    fn the_bell_rings_until_the_mail_is_taken() {
        let inbox = Inbox::new().unwrap();
        assert!(!rings(&inbox));
        inbox.tell(|mail| mail.stop = true);
        inbox.tell(|mail| mail.signals.push(15));
        assert!(rings(&inbox));
        let mail = inbox.take();
        assert!(mail.stop && mail.signals == [15] && !rings(&inbox) && !inbox.take().stop);
    }
}
