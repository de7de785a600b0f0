//! [`Delayed`]: the thread that waits for the delay between a stop and the cancel of its workers.
//!
//! # The race
//!
//! *A clear against the thread of its stop.* The thread looks whether its stop still stands, then parks, and looks again whenever it is woken. The thread that begins a stop starts it and
//! notes its handle under one lock. A thread that clears the stop changes the board first, and then takes the handle under that lock and unparks. So if it finds no handle, the
//! thread starts after the change, and sees it. If it finds the handle, the unpark ends the park, also one that has not begun.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread::{self, Thread};
use std::time::Instant;

use super::{Coordinator, CoordinatorShared};

/// The thread, if there is one. At most one for each coordinator waits: the others have been woken to end.
#[derive(Default)]
pub(super) struct Delayed(Mutex<Option<Thread>>);

impl Delayed {
    /// Stops the members of this coordinator when its delay is over, unless the stop of this number is cleared before. At once if no thread can be started.
    pub(super) fn reach_later(shared: &Arc<CoordinatorShared>, epoch: u64) {
        let (weak, end) = (Arc::downgrade(shared), Instant::now().checked_add(shared.cancel_after));
        let mut waiting = shared.delayed.lock();
        let later = thread::Builder::new()
            .name("coordinator: cancel".into())
            .spawn(move || wait_and_reach(&weak, end, epoch));
        let started = later.map(|handle| waiting.replace(handle.thread().clone()));
        drop(waiting);
        match started {
            Ok(before) => before.iter().for_each(Thread::unpark),
            Err(_) => Coordinator(shared.clone()).reach_members(epoch), // early rather than never
        }
    }

    /// Has the thread look whether its stop still stands. Called after the board has been changed.
    pub(super) fn wake(&self) {
        self.lock().take().iter().for_each(Thread::unpark);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Thread>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// `end`: none is farther off than any thread waits.
fn wait_and_reach(coordinator: &Weak<CoordinatorShared>, end: Option<Instant>, epoch: u64) {
    loop {
        // Held for this look only: a thread that waits keeps no coordinator.
        let Some(shared) = coordinator.upgrade() else { return };
        if !shared.board.stands(epoch) {
            return;
        }
        let left = end.map(|end| end.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Coordinator(shared).reach_members(epoch);
        }
        drop(shared);
        match left {
            Some(left) => thread::park_timeout(left),
            None => thread::park(),
        }
    }
}
