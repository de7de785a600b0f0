//! Threads for the models of locks and channels: contexts that block as foreign threads do, and whose waits with a limit others end.
//!
//! Time does not pass in a model. A wait with a limit is *armed* with a party; whoever calls [`Party::end_wait`] is its timer, or its
//! canceller. As with a real timer, disarming waits until that is done with the context. Every look at the clock finds it a
//! millisecond later. A party is never alone: it does not look for a held lock, unless a model gives it another table. One that [shows](Party::shown)
//! its words takes the short ways of a worker's stack.

#![allow(dead_code, reason = "every model uses a part of it")]

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use forebear_context::context::{Alarm, Cause, Context, ForeignContext, Table, Ticket, set_current, unpark};
use forebear_context::shim::atomic::{AtomicU32, AtomicU64};
use forebear_context::shim::{Arc, Mutex};

/// One thread's context.
#[repr(C)]
pub(crate) struct Party {
    foreign: ForeignContext,
    armed: Mutex<Option<Ticket>>,
    looks: Cell<u32>,
    meanwhile: Cell<Option<Box<dyn FnOnce()>>>,
    /// What a party shows: its attention and its urgency.
    words: Option<(AtomicU32, AtomicU64)>,
}

// SAFETY: the cells are its own thread's; the rest is behind locks, or made for others to touch.
unsafe impl Send for Party {}
// SAFETY: as above.
unsafe impl Sync for Party {}

/// A party's.
pub(crate) const TABLE: Table = Table { prepare, now, arm, disarm, is_alone, ..ForeignContext::TABLE };
static SHARED: Table = TABLE;

impl Party {
    /// A thread of its own, or (`place` is not 0) one of several stacks that say they are of one worker.
    pub(crate) fn new(place: usize) -> Arc<Party> {
        // SAFETY: the table is for a party.
        let party = unsafe { Party::with_table(&SHARED) };
        party.foreign.context().place().set(place);
        party
    }

    /// One that shows its words: no cancel concerns it, and its urgency is `key`.
    pub(crate) fn shown(key: u64) -> Arc<Party> {
        // SAFETY: the table is for a party.
        let foreign = unsafe { ForeignContext::with_table(&SHARED) };
        let words = Some((AtomicU32::new(0), AtomicU64::new(key)));
        let party = Arc::new(Party { words, ..Party::around(foreign) });
        if let Some((attention, urgency)) = &party.words {
            // SAFETY: the words stay as long as the context, and nothing runs there yet.
            unsafe { party.context().show(NonNull::from(attention), NonNull::from(urgency)) };
        }
        party
    }

    /// One with a table of the model's own.
    ///
    /// # Safety
    ///
    /// As [`ForeignContext::with_table`]; the context is the first field of a party.
    pub(crate) unsafe fn with_table(table: &'static Table) -> Arc<Party> {
        // SAFETY: by contract.
        let foreign = unsafe { ForeignContext::with_table(table) };
        Arc::new(Party::around(foreign))
    }

    fn around(foreign: ForeignContext) -> Party {
        let armed = Mutex::new(None);
        Party { foreign, armed, looks: Cell::new(0), meanwhile: Cell::new(None), words: None }
    }

    /// Has its thread call `f` in its next wait, before it sleeps. So others can be had to meet this one in its wait without
    /// a third thread: two that spin for one lock may be scheduled for ever without the third.
    pub(crate) fn meanwhile(&self, f: impl FnOnce() + 'static) {
        self.meanwhile.set(Some(Box::new(f)));
    }

    /// Its context.
    pub(crate) fn context(&self) -> &Context {
        self.foreign.context()
    }

    /// Calls `f` on the calling thread as on this party's stack.
    pub(crate) fn on<R>(&self, f: impl FnOnce() -> R) -> R {
        // SAFETY: it is taken back below, before this can go.
        unsafe { set_current(Some(NonNull::from(self.foreign.context()))) };
        let result = f();
        // SAFETY: no context is always valid.
        unsafe { set_current(None) };
        result
    }

    /// Ends the wait with a limit that goes on here, if one does. Whether it did.
    pub(crate) fn end_wait(&self, cause: Cause) -> bool {
        let mut armed = self.armed.lock().unwrap();
        // SAFETY: C1: the context is there until it has been disarmed, which takes the lock.
        armed
            .take()
            .is_some_and(|ticket| unsafe { unpark(NonNull::from(self.foreign.context()), ticket, cause) })
    }
}

fn of(context: &Context) -> &Party {
    // SAFETY: this table is given to parties only, whose first field begins with the context.
    unsafe { &*std::ptr::from_ref(context).cast::<Party>() }
}

unsafe fn prepare(context: &Context, deadline: Option<Instant>) -> Option<NonNull<Context>> {
    if let Some(meanwhile) = of(context).meanwhile.take() {
        meanwhile();
        // SAFETY: the calling context, which is there until its wait is over.
        unsafe { set_current(Some(NonNull::from(context))) };
    }
    // SAFETY: by the table.
    unsafe { (ForeignContext::TABLE.prepare)(context, deadline) }
}

unsafe fn now(context: &Context) -> Instant {
    static BEGIN: OnceLock<Instant> = OnceLock::new();
    let looks = &of(context).looks;
    looks.set(looks.get() + 1);
    *BEGIN.get_or_init(Instant::now) + Duration::from_millis(looks.get().into())
}

unsafe fn arm(context: &Context, ticket: Ticket, _: Instant) -> Alarm {
    *of(context).armed.lock().unwrap() = Some(ticket);
    Alarm { number: 0, own: None }
}

unsafe fn disarm(context: &Context, _: Alarm) {
    of(context).armed.lock().unwrap().take();
}

unsafe fn is_alone(_: &Context) -> bool {
    false
}
