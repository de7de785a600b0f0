//! Wakes the server's thread from its wait for sockets: an eventfd that any thread can write to, and the two reasons to wake it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Wake;

use forebear_context::shim::atomic::{AtomicBool, Ordering};
use rustix::event::{EventfdFlags, eventfd};

/// An eventfd with two flags. A thread sets a flag, then writes the eventfd; the server reads the
/// eventfd, then takes the flags.
#[derive(Debug)]
pub(crate) struct WakeUp {
    descriptor: OwnedFd,
    /// [`RequestQueue::get`](crate::expiry::RequestQueue::get) is to return.
    woken: AtomicBool,
    /// A worker was sent a signal that is to end it.
    ending: AtomicBool,
}

impl WakeUp {
    pub(crate) fn new() -> io::Result<WakeUp> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(WakeUp { descriptor, woken: AtomicBool::new(false), ending: AtomicBool::new(false) })
    }

    pub(crate) fn note_signalled(&self) {
        self.ending.store(true, Ordering::Release);
        self.signal();
    }

    /// Whether a worker was sent such a signal since the last call.
    pub(crate) fn take_signalled(&self) -> bool {
        self.ending.swap(false, Ordering::Acquire)
    }

    /// Whether the wait is to end. Resets that.
    pub(crate) fn take_woken(&self) -> bool {
        self.woken.swap(false, Ordering::Acquire)
    }

    /// Resets the eventfd. To be called before the flags are taken: a thread that sets a flag
    /// afterwards writes the eventfd again.
    pub(crate) fn drain(&self) {
        let mut count = [0; 8];
        // It may not have been written.
        _ = rustix::io::read(&self.descriptor, &mut count);
    }

    fn signal(&self) {
        // It fails only if the counter would overflow; then it is readable already.
        _ = rustix::io::write(&self.descriptor, &1u64.to_ne_bytes());
    }
}

impl Wake for WakeUp {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.signal();
    }
}

impl AsFd for WakeUp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
