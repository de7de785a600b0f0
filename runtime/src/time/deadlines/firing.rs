//! Firing: what becomes of an entry when its time has come, and at the end. The head of [`super`] has the races.
//!
//! | entry | keeps | is fired | at the end of the runtime |
//! |---|---|---|---|
//! | `Wait` | nothing: the waiter disarms before its context goes (T2) | under the shard's lock (T3) | the wait ends, timed out; a sleep is cancelled |
//! | `Coroutine`, `Own` | nothing: the memory stays (T2) | in pieces of [`Going`], before the lock is given up | the wait ends, timed out |
//! | `Rests` | nothing | never: an `Own` that was taken back and stays in the wheel | nothing |
//! | `Request`, `Limit` | a link of the header (T4) | without the lock: an abort takes other locks | the link is given up |
//! | `Expiry` | a link of the header (T4) | without the lock | the link is given up |
//!
//! Firing runs no user code. Where an abort would have to (the captures of an unstarted request), it leaves that to a worker.

use std::ptr::NonNull;
use std::time::Instant;

use forebear_context::context::{Cause, Context, Reason, unpark};
use forebear_context::error::CancelReason;

use super::keeping::{BATCH, OWN_BATCH};
use crate::record::above::above;
use crate::record::header::Header;
use crate::shared::deadlines::{DeadlinesRecord, FiredEntry};
use crate::shared::going::Going;
use crate::stack::coroutine;
use crate::state::alarms::{self, DueWhen, Fire, Fired, Refused, Standing};

// SAFETY: a coroutine's memory stays, and before it is given back its alarm is dismissed. Where it stands is touched on its worker's thread, and
// under the lock of that worker's shard. Where a worker's requests stand lies in the worker's record, which stays until after `close`.
unsafe impl alarms::TimerEntry for FiredEntry {
    #[inline(always)]
    fn when(&self) -> DueWhen {
        match self {
            FiredEntry::Own(_, _, at) => DueWhen::At(*at),
            FiredEntry::Limit(header, _) => limit_of(*header),
            FiredEntry::Rests => DueWhen::Rests,
            _ => DueWhen::AsFiled,
        }
    }

    #[inline(always)]
    fn rests(&self) -> bool {
        matches!(self, FiredEntry::Rests)
    }

    #[inline(always)]
    fn rest(&mut self) {
        *self = FiredEntry::Rests;
    }

    #[inline]
    fn standing(&self) -> Option<NonNull<Standing>> {
        match self {
            // SAFETY: T2; it is a coroutine's.
            FiredEntry::Own(context, ..) => Some(unsafe { coroutine::alarm_of(*context) }),
            FiredEntry::Limit(_, standing) => Some(*standing),
            _ => None,
        }
    }
}

/// When the deadline of a request is due that is armed.
#[cold]
fn limit_of(header: NonNull<Header>) -> DueWhen {
    // SAFETY: T4: the entry's link.
    unsafe { header.as_ref() }.due().map_or(DueWhen::AsFiled, |due| DueWhen::At(due.at()))
}

impl FiredEntry {
    /// Whether it is the deadline of this request, in a worker's shard.
    #[inline(always)]
    pub(super) fn is_limit_of(&self, header: NonNull<Header>) -> bool {
        matches!(self, FiredEntry::Limit(of, ..) if *of == header)
    }
}

impl DeadlinesRecord {
    /// A batch of what is due on a worker, by that worker.
    pub(super) fn fire_own(&self, shard: usize, now: Instant) {
        if self.shards().may_be_due(shard, now) {
            self.shards().sees(shard, now);
            // SAFETY: it is the caller's own.
            unsafe {
                self.shards().fire_own(
                    shard,
                    now,
                    OWN_BATCH,
                    &mut FiringBatch(self, Going::new(Cause::TimedOut)),
                )
            };
        }
    }

    pub(super) fn fire_due(&self, now: Instant) {
        for shard in 0..self.shards().count() {
            while (self.jumps() || self.shards().may_be_due(shard, now)) && self.fire_some(shard, now, BATCH)
            {
            }
        }
    }

    /// Fires at most so many of what is due in a shard; false if nothing more is.
    pub(super) fn fire_some(&self, shard: usize, now: Instant, most: usize) -> bool {
        match self.shards().fire(shard, now, most, &mut FiringBatch(self, Going::new(Cause::TimedOut))) {
            Fired::All => false,
            Fired::Some => true,
            Fired::But(entry) => {
                if let FiredEntry::Limit(..) = entry {
                    self.settle_limits_of(shard);
                }
                fire(entry);
                true
            }
        }
    }
}

/// What a batch of entries is done by.
struct FiringBatch<'a>(&'a DeadlinesRecord, Going);

impl Fire<FiredEntry> for FiringBatch<'_> {
    #[inline]
    fn fire(&mut self, entry: FiredEntry) -> Option<FiredEntry> {
        match entry {
            // SAFETY: T2; the slab is unmapped after `close`, which takes the lock.
            FiredEntry::Coroutine(context, ticket) | FiredEntry::Own(context, ticket, _) => unsafe {
                self.1.add(context, ticket);
            },
            FiredEntry::Wait(..) => {
                // In order.
                self.1.go();
                fire(entry);
            }
            FiredEntry::Request(_) => {
                self.0.uncount_requests();
                return Some(entry);
            }
            FiredEntry::Rests => {}
            FiredEntry::Limit(..) | FiredEntry::Expiry(_) => return Some(entry),
        }
        None
    }

    fn done(&mut self) {
        self.1.go();
    }
}

/// Does what is due. A wait's entry comes with the lock under which it was taken out (T3), unless it never was in a
/// shard, when its waiter is the caller.
pub(super) fn fire(entry: FiredEntry) {
    match entry {
        FiredEntry::Wait(context, ticket)
        | FiredEntry::Coroutine(context, ticket)
        | FiredEntry::Own(context, ticket, _) => {
            // SAFETY: T2. If it is refused somebody else was first, and all is well.
            unsafe { unpark(context, ticket, Cause::TimedOut) };
        }
        FiredEntry::Rests => {}
        // SAFETY: T4.
        FiredEntry::Request(header) | FiredEntry::Limit(header, ..) => unsafe { expired(header) },
        // SAFETY: T4. It has started, so nothing is ended here.
        FiredEntry::Expiry(header) => unsafe {
            (above().abort)(header, CancelReason::Expired);
            let_go(header);
        },
    }
}

/// Does what could not be armed.
pub(super) fn refuse(refused: Refused<FiredEntry>) {
    match refused {
        Refused::Due(entry) => fire(entry),
        Refused::Closed(entry) => give_up(entry),
    }
}

/// Does away with an entry at the end of the runtime: a wait ends, early, and a request is left alone. Called as [`fire`] is.
pub(super) fn give_up(entry: FiredEntry) {
    match entry {
        // SAFETY: T2: as in `fire`.
        FiredEntry::Wait(context, ticket) if is_sleep(unsafe { context.as_ref() }) => unsafe {
            unpark(context, ticket, Cause::Cancelled);
        },
        FiredEntry::Wait(..) | FiredEntry::Coroutine(..) | FiredEntry::Own(..) | FiredEntry::Rests => {
            fire(entry)
        }
        // SAFETY: T4.
        FiredEntry::Request(header) | FiredEntry::Limit(header, ..) | FiredEntry::Expiry(header) => unsafe {
            let_go(header);
        },
    }
}

/// Whether it waits for nothing but the time.
fn is_sleep(context: &Context) -> bool {
    context.waits_for().0 == Reason::Sleep
}

/// The request's own deadline has come. On any thread, without the lock; runs no user code.
///
/// # Safety
///
/// The link is the callee's.
unsafe fn expired(header: NonNull<Header>) {
    // SAFETY: the callee's link keeps the header for the abort, and is released after it.
    unsafe {
        (above().limit_comes)(header);
        let_go(header);
    }
}

/// Gives up an entry's link.
///
/// # Safety
///
/// The link is the callee's.
pub(super) unsafe fn let_go(header: NonNull<Header>) {
    // SAFETY: the callee's link keeps the header until it is released; W4: if it was the last count, this thread alone knows the header,
    // and ends it.
    unsafe {
        if !header.as_ref().word().release_link() {
            return;
        }
        match header.as_ref().failure() {
            // It is a user's, and so is what its destructor does.
            Some(_) => (above().leave_end)(header),
            None => crate::record::arena::end(header),
        }
    }
}
