//! What wakes the server's thread out of its wait for sockets: a descriptor that can be written to from any thread, and what it is
//! rung for.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Wake;

use forebear_context::shim::atomic::{AtomicBool, Ordering};
use rustix::event::{EventfdFlags, eventfd};

/// See the module head.
#[derive(Debug)]
pub(crate) struct Bell {
    descriptor: OwnedFd,
    /// The wait is to end.
    woken: AtomicBool,
    /// A worker was sent what is to end it.
    ending: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> io::Result<Bell> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Bell { descriptor, woken: AtomicBool::new(false), ending: AtomicBool::new(false) })
    }

    pub(crate) fn somebody_ends(&self) {
        self.ending.store(true, Ordering::Release);
        self.ring();
    }

    /// Whether somebody was sent what is to end it, since this was last asked.
    pub(crate) fn take_ending(&self) -> bool {
        self.ending.swap(false, Ordering::Acquire)
    }

    /// Whether the wait is to end; that is over then.
    pub(crate) fn take_woken(&self) -> bool {
        self.woken.swap(false, Ordering::Acquire)
    }

    /// It was heard. To be called before the words are looked at: what is said afterwards rings again.
    pub(crate) fn quieten(&self) {
        let mut count = [0; 8];
        // That it was not rung is as good.
        _ = rustix::io::read(&self.descriptor, &mut count);
    }

    fn ring(&self) {
        // It can only fail when it has been rung 2^64 times unheard; then it rings already.
        _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.ring();
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
