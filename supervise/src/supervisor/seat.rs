//! [`Seat`]: whether a session is over, and when its chief's place may be given up.
//!
//! A *writer* is a save or a turn of a service, from its beginning to its end. A session that is *left* is over at once, and nobody waits for its writers: the last of them gives the
//! place up. A session that is ended by a stop is waited for, and gives the place up itself.
//!
//! # The races
//!
//! * *A save against the leave.* A save is counted under the lock under which the session is left. So it is counted before, and the place stays until it has finished, or it is refused.
//! * *The last writer against the leave.* Each looks under the lock at what the other one has written there. The second of them takes the place out.
//! * *A watch that takes the place of a dead chief, against the end.* Both are done under the lock: it takes none after the end.
//!
//! The place is dropped without the lock: it makes calls of the system.

use std::sync::PoisonError;

use crate::shim::atomic::{AtomicBool, Ordering};
use crate::shim::{Mutex, MutexGuard};

/// See the module head. `P` is the chief's place.
pub(super) struct Seat<P> {
    /// Written under the lock.
    over: AtomicBool,
    state: Mutex<SeatState<P>>,
}

struct SeatState<P> {
    /// The chief's. `None` without a directory.
    place: Option<P>,
    writers: usize,
    /// Nobody waits: the last writer gives the place up.
    left: bool,
}

impl<P> SeatState<P> {
    /// The place, if it has to be given up now.
    fn given_up(&mut self) -> Option<P> {
        if self.left && self.writers == 0 { self.place.take() } else { None }
    }
}

impl<P> Seat<P> {
    pub(super) fn new(place: Option<P>) -> Seat<P> {
        Seat { over: AtomicBool::new(false), state: Mutex::new(SeatState { place, writers: 0, left: false }) }
    }

    /// Held for a few steps only, except where the place writes a line meanwhile. Nothing that is done under it can be left half done.
    fn lock(&self) -> MutexGuard<'_, SeatState<P>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Begins to write. `None`: the session is over.
    pub(super) fn begin(&self) -> Option<Writer<'_, P>> {
        #[cfg(mutant = "writer_counted_after_the_look")]
        if self.is_over() {
            return None;
        }
        let mut state = self.lock();
        #[cfg(not(mutant = "writer_counted_after_the_look"))]
        if self.is_over() {
            return None;
        }
        state.writers += 1;
        Some(Writer(self))
    }

    /// Does `f` with the place, if there is one.
    pub(super) fn with<R>(&self, f: impl FnOnce(&mut P) -> R) -> Option<R> {
        self.lock().place.as_mut().map(f)
    }

    /// Gives the session a place, and does `taken` with that. If the session is over, the place is dropped.
    pub(super) fn take_over(&self, place: P, taken: impl FnOnce()) {
        let mut state = self.lock();
        if !self.is_over() {
            state.place = Some(place);
            taken();
        }
    }

    /// The session is over, and somebody waits for what has begun. `over` is done with that.
    pub(super) fn end(&self, over: impl FnOnce()) {
        let _state = self.lock();
        self.over.store(true, Ordering::Release);
        over();
    }

    /// The session is over, as by [`end`](Self::end), and nobody waits: the place is given up as soon as nothing that has begun still writes. Does not suspend.
    pub(super) fn leave(&self, over: impl FnOnce()) {
        let mut state = self.lock();
        self.over.store(true, Ordering::Release);
        over();
        state.left = true;
        #[cfg(mutant = "left_while_a_save_writes")]
        let place = state.place.take();
        #[cfg(not(mutant = "left_while_a_save_writes"))]
        let place = state.given_up();
        drop(state);
        drop(place);
    }

    /// Takes the place out.
    pub(super) fn take(&self) -> Option<P> {
        self.lock().place.take()
    }
}

/// A save or a turn of a service. Dropped, it has ended.
pub(super) struct Writer<'a, P>(&'a Seat<P>);

impl<P> Drop for Writer<'_, P> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.writers -= 1;
        let place = state.given_up();
        drop(state);
        drop(place);
    }
}
