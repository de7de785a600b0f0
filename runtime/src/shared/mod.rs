//! The record of one runtime: what its workers, its foreign threads and its handles share.
//!
//! It outlives everything that points at it: handles of the runtime, threads, and arenas that still have headers each
//! hold a count. The stacks are unmapped earlier: when the last handle is dropped and the threads are joined.
//!
//! # Who may touch what
//!
//! | field | by whom |
//! |---|---|
//! | `record` | all layers, as a [`RuntimeRecord`] |
//! | `name`, `at_a_time`, `default_class`, `default_need`, `foreign_direct`, `late_end`, `driven`, `calls` | any thread reads them; they do not change |
//! | `workers`, `handle` | written once, before any other thread knows the runtime; read through methods |
//! | `born`, `groups`, `completions` | the modules of this folder |
//! | all others | any thread, by the methods of the field's type, which say what they order |

use std::any::Any;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::{OnceLock, Weak};

use forebear_context::error::StackError;
use forebear_context::lineage::NO_KEY;
use forebear_context::shim::atomic::{Ordering, fence};
use forebear_context::shim::{Arc, mutant};
use forebear_pool::{Generation, Signals};

use crate::record::any::AnyRequest;
use crate::record::arena::{Arena, Depot};
use crate::record::fiber::Fiber;
use crate::record::header::Header;
use crate::record::hooks::Hooks;
use crate::record::runtime::{Counts, RuntimeRecord};
use crate::record::scope_core::ScopeCore;
use crate::shared::completions::Completions;
use crate::shared::counts::{Departure, Totals, UnwindWaits, Watchers};
use crate::shared::deadlines::Deadlines;
use crate::shared::driven::{Driven, Seat};
use crate::shared::ending::Ending;
use crate::shared::futures::Futures;
use crate::shared::late_end::{LateEnd, LateStep};
use crate::shared::sightings::Sightings;
use crate::shared::survey::Survey;
use crate::shared::worker::WorkerRecord;
use crate::shared::workers::{WorkerRecords, Workers};
use crate::stack::Class;
use crate::stack::slab::Slab;
use crate::state::attention::OLDER;
use crate::state::shared_queue::{Injector, Pushed};
use crate::state::visits::Visits;

pub(crate) mod by_address;
pub(crate) mod completions;
pub(crate) mod counts;
pub(crate) mod deadlines;
pub(crate) mod driven;
pub(crate) mod ending;
pub(crate) mod exit_calls;
pub(crate) mod futures;
pub(crate) mod generation;
pub(crate) mod going;
pub(crate) mod late_end;
pub(crate) mod parked;
pub(crate) mod post;
mod scan;
pub(crate) mod sightings;
pub(crate) mod survey;
pub(crate) mod thread;
pub(crate) mod worker;
pub(crate) mod workers;

pub(crate) use self::scan::{Best, Groups, ScanTurns};

/// So many workers are told of one older root: on a machine with many cores its pusher would write to as many cache lines for each, while one worker takes it.
const TOLD_AT_MOST: usize = 8;

/// See the module head.
pub(crate) struct Shared {
    /// What the records need of it.
    record: RuntimeRecord,
    pub name: String,
    pub injector: Injector<Header>,
    /// The words that the workers' shared queues share, if there are many.
    groups: Groups,
    pub deadlines: Deadlines,
    pub ending: Ending,
    /// Which process made it; see [crate::shared::generation].
    born: Generation,
    pub slab: Slab,
    pub survey: Survey,
    pub sightings: Sightings,
    /// Threads that wake a worker from outside.
    pub visits: Visits,
    /// The waiters from outside by a future.
    pub futures: Futures,
    /// What dependents are after and no worker brings about.
    completions: Completions,
    workers: OnceLock<Workers>,
    /// There are no worker threads: other threads drive its workers, which are seats then.
    pub driven: Option<Driven>,
    pub departure: Departure,
    pub watchers: Watchers,
    pub unwind_waits: UnwindWaits,
    pub totals: Totals,
    /// How many workers can run at a time.
    pub at_a_time: usize,
    pub default_class: Class,
    /// What a request is guaranteed unless it asks otherwise, in pages.
    pub default_need: u16,
    /// Whether foreign threads run unstarted requests they wait for themselves.
    pub foreign_direct: bool,
    pub late_end: LateEnd,
    /// How its workers answer a dump, and what its last handle does if the end takes long. Given by `api/runtime/build.rs`.
    pub calls: UpperCalls,
    /// The handle that users hold, so that the current runtime can be asked for.
    handle: OnceLock<Weak<dyn Any + Send + Sync>>,
}

/// It is built on the stack, and a page of the stack that was touched stays. Tables of which few runtimes need much are on the heap.
#[cfg(not(any(loom, shuttle, forebear_threads)))]
const _: () = assert!(size_of::<Shared>() <= 3 << 10);

/// What a runtime is made with.
pub(crate) struct Settings {
    pub name: String,
    pub workers: usize,
    pub at_a_time: usize,
    pub default_class: Class,
    pub default_need: u16,
    pub max_stacks: usize,
    pub late_end: LateEnd,
    pub foreign_direct: bool,
    pub hooks: Hooks,
    pub deadlines: Deadlines,
    pub driven: Option<Driven>,
    pub calls: UpperCalls,
}

/// What the runtime's own threads call of the layers above the scheduler.
#[derive(Clone, Copy)]
pub(crate) struct UpperCalls {
    /// Answers those who have asked this worker for a dump. On the worker's thread.
    pub answer_dumps: fn(&WorkerRecord),
    /// Puts what the seeded mode has drawn and not begun into the worker's shared queue again, where a sweep finds it.
    pub put_back_drawn: fn(&WorkerRecord),
    /// The calling thread has taken this seat.
    pub sit_down: fn(&WorkerRecord) -> Result<(), StackError>,
    /// The calling thread exits: what has begun on these seats, which are all it has, is cancelled and continues until it has ended.
    pub end_begun: fn(&[Seat], &Fiber),
    /// The calling thread exits, and leaves this seat behind.
    pub leave_seat: fn(&Seat),
    /// The end has been waited for long enough: says for whom, and does what the setting asks for.
    pub settle_late: fn(&Shared) -> LateStep,
    /// The calling thread has waited long for this scope, some of whose jobs are these: says for whom it waits, if none can go on. Returns whether to check
    /// again later. The runtime is one of theirs.
    pub check_scope: fn(&ScopeCore, &[AnyRequest], &Shared) -> bool,
}

impl Shared {
    /// The record of a runtime whose workers have yet to be made. Not inlined: its frame, with the record in it, is gone before the workers are made.
    #[inline(never)]
    pub(crate) fn new(settings: Settings) -> Arc<Shared> {
        let is_driven = settings.driven.is_some();
        Arc::new(Shared {
            record: RuntimeRecord {
                depot: Depot::default(),
                signals: Signals::new(settings.workers),
                hooks: settings.hooks,
                is_driven,
                counts: Counts { take: take_count, give_back: give_back_count },
            },
            deadlines: settings.deadlines,
            name: settings.name,
            ending: Ending::new(if settings.driven.is_some() { 0 } else { settings.workers }),
            born: Generation::of_process(),
            injector: Injector::new(),
            groups: Groups::new(settings.workers),
            slab: Slab::new(settings.max_stacks, settings.default_class),
            survey: Survey::default(),
            sightings: Sightings::default(),
            visits: Visits::new(),
            futures: Futures::default(),
            completions: Completions::default(),
            workers: OnceLock::new(),
            driven: settings.driven,
            departure: Departure::new(settings.workers),
            watchers: Watchers::default(),
            unwind_waits: UnwindWaits::default(),
            totals: Totals::default(),
            at_a_time: settings.at_a_time,
            default_class: settings.default_class,
            default_need: settings.default_need,
            foreign_direct: settings.foreign_direct,
            late_end: settings.late_end,
            calls: settings.calls,
            handle: OnceLock::new(),
        })
    }

    /// It has these workers. Once, before any other thread knows it.
    pub(crate) fn set_workers(&self, workers: Workers) {
        let _ = self.workers.set(workers);
    }

    /// Users hold this handle. Once, before any other thread knows the runtime.
    pub(crate) fn set_handle(&self, handle: Weak<dyn Any + Send + Sync>) {
        let _ = self.handle.set(handle);
    }

    /// The handle that users hold; none if the last one was dropped.
    pub(crate) fn handle(&self) -> Option<std::sync::Arc<dyn Any + Send + Sync>> {
        self.handle.get().and_then(Weak::upgrade)
    }

    /// All workers.
    #[inline(always)]
    pub(crate) fn worker_records(&self) -> WorkerRecords<'_> {
        self.workers.get().map_or(WorkerRecords::NONE, Workers::records)
    }

    /// How many threads of its own it has.
    pub(crate) fn threads(&self) -> usize {
        if self.driven.is_some() { 0 } else { self.worker_records().len() }
    }

    /// Says that there is something for worker number `index`. After it is visible.
    #[inline]
    pub(crate) fn wake(&self, index: usize) {
        match &self.driven {
            None => self.signals.wake(index),
            Some(driven) => driven.nudge(index),
        }
    }

    /// All workers but number `index`.
    #[inline(always)]
    pub(crate) fn other_records(&self, index: usize) -> impl Iterator<Item = &WorkerRecord> {
        self.worker_records().iter_from(index).skip(1)
    }

    /// Whether no worker will poll again.
    pub(crate) fn is_over(&self) -> bool {
        self.departure.is_over()
    }

    /// Gives away an entry that a thread has not begun which leaves this runtime without workers. Its request may have another entry, which may be on its
    /// way through the injector's inbox, so this one goes past that. As [`push_root`](Self::push_root).
    #[must_use]
    pub(crate) fn push_unbegun(&self, header: ptr::NonNull<Header>) -> bool {
        // SAFETY: the caller's link.
        let may_still = || ending::may_still(unsafe { header.as_ref() });
        let is_pushed = self.injector.push_past_inbox(header, may_still) != Pushed::Closed;
        if is_pushed && let Some(driven) = &self.driven {
            driven.nudge_all();
        }
        is_pushed
    }

    /// Pushes a root into the injector, and notifies a worker. The entry's link goes with it.
    ///
    /// Answers false if the runtime is over: the entry is still the caller's.
    #[must_use]
    #[inline]
    pub(crate) fn push_root(&self, header: ptr::NonNull<Header>) -> bool {
        // SAFETY: the caller's link.
        let lineage = &unsafe { header.as_ref() }.lineage;
        let key = lineage.key();
        let pushed = if lineage.parent().is_null() {
            self.injector.push(header)
        } else {
            // Its links are its family's.
            // SAFETY: the caller's link.
            let pushed =
                self.injector.push_past_inbox(header, || ending::may_still(unsafe { header.as_ref() }));
            // Between what it has written there and the look at what the workers run, as the exchange of a push is.
            fence(Ordering::SeqCst);
            pushed
        };
        if pushed == Pushed::Closed {
            return false;
        }
        if let Some(driven) = &self.driven {
            driven.nudge_all();
            return true;
        }
        if pushed == Pushed::First && self.signals.notify_any() {
            mutant!("a_woken_worker_takes_it", return true);
        }
        // After a wake-up, too. Who was woken may stand in the list of sleepers still, and have found something younger before this came.
        self.raise_older(key);
        true
    }

    /// Tells workers that run something younger than `key` that a root of that key may be taken: the first that comes to a scheduling point takes it. Tells none while a
    /// worker searches. That one finds the root; or it finds something else, and looks again ([`WorkerRecord::begin_running`]).
    pub(crate) fn raise_older(&self, key: u64) {
        let mut is_older = false;
        for worker in self.worker_records().iter() {
            let running = worker.post.running_key();
            if running == NO_KEY {
                return;
            }
            is_older |= running > key;
        }
        if is_older {
            self.tell_younger(key);
        }
    }

    #[cold]
    fn tell_younger(&self, key: u64) {
        let runs_younger = |worker: &&WorkerRecord| (key + 1..NO_KEY).contains(&worker.post.running_key());
        for worker in self.worker_records().iter().filter(runs_younger).take(TOLD_AT_MOST) {
            worker.post.attention.raise(OLDER);
        }
    }

    /// A worker takes up a root, and has passed over what it ran before, which is younger. Who pushed the root may have told no more than some workers, so this tells
    /// others of the next root.
    pub(crate) fn tell_of_next_root(&self, before: u64) {
        let next = self.injector.key();
        if next < before {
            self.raise_older(next);
        }
    }

    /// The end of a runtime without threads, whose work is over: false if a root has come meanwhile.
    pub(crate) fn end_driven(&self) -> bool {
        let closed = self.injector.close_if_empty();
        if closed {
            self.departure.set_over();
        }
        closed
    }

    /// So many stacks of this runtime are abandoned: they and this record stay for ever.
    pub(crate) fn keep_stacks(&self, count: usize) {
        if self.totals.count_left_behind(count) {
            std::mem::forget(self.arc());
        }
    }

    /// A count of this record.
    pub(crate) fn arc(&self) -> Arc<Shared> {
        // SAFETY: records are made by `new`, in an `Arc`.
        unsafe {
            Arc::increment_strong_count(self);
            Arc::from_raw(self)
        }
    }

    /// Whether something has not ended that was submitted: a snapshot.
    pub(crate) fn has_work(&self) -> bool {
        let busy = |worker: &WorkerRecord| worker.post.is_busy();
        self.ending.has_foreign() || self.has_unstarted() || self.worker_records().iter().any(busy)
    }

    /// Whether something has not started that was submitted: a snapshot.
    pub(crate) fn has_unstarted(&self) -> bool {
        // What was claimed elsewhere may stand there still.
        let unstarted = |header: &Header| header.word().load().is_unstarted();
        let shown = |worker: &WorkerRecord| {
            worker.post.shared_queue.any(unstarted)
                || worker.post.held.any(unstarted)
                || worker.post.private_key() != NO_KEY
        };
        self.injector.any(unstarted) || self.worker_records().iter().any(shown)
    }
}

impl Deref for Shared {
    type Target = RuntimeRecord;

    #[inline(always)]
    fn deref(&self) -> &RuntimeRecord {
        &self.record
    }
}

impl Shared {
    /// The part of it that the records know, from which all of it may be reached (RR1).
    #[inline(always)]
    pub(crate) fn record_ptr(&self) -> NonNull<RuntimeRecord> {
        // SAFETY: a field's address.
        unsafe { NonNull::from(self).byte_add(std::mem::offset_of!(Shared, record)).cast() }
    }

    /// The runtime of a part that the records know; none of null.
    ///
    /// # Safety
    ///
    /// The runtime's record is there for `'a`.
    #[inline(always)]
    pub(crate) unsafe fn of_ptr<'a>(record: *const RuntimeRecord) -> Option<&'a Shared> {
        // SAFETY: RR1: a record begins a whole one; by contract it is there for `'a`.
        NonNull::new(record.cast_mut()).map(|record| unsafe { whole(record).as_ref() })
    }
}

/// The runtime's record, of which this is the part that lower layers know.
///
/// # Safety
///
/// RR1.
#[inline(always)]
unsafe fn whole(record: NonNull<RuntimeRecord>) -> NonNull<Shared> {
    // SAFETY: by contract.
    unsafe { record.byte_sub(std::mem::offset_of!(Shared, record)).cast() }
}

/// Adds a count of the runtime's record.
///
/// # Safety
///
/// As [`Counts::take`].
unsafe fn take_count(record: NonNull<RuntimeRecord>) {
    // SAFETY: by contract; records are made by `new`, in an `Arc`.
    unsafe { Arc::increment_strong_count(whole(record).as_ptr()) };
}

/// Gives up a count of the runtime's record.
///
/// # Safety
///
/// As [`Counts::give_back`].
unsafe fn give_back_count(record: NonNull<RuntimeRecord>) {
    // SAFETY: RR1: the record begins a whole one, in an `Arc`; the caller gives back a count that it has.
    unsafe { Arc::decrement_strong_count(whole(record).as_ptr()) };
}

/// Of an arena: its runtime.
pub(crate) trait OfRuntime {
    /// The runtime it is a part of. Valid while the arena has an owner or headers (M3).
    fn shared(&self) -> &Shared;
}

impl OfRuntime for Arena {
    #[inline(always)]
    fn shared(&self) -> &Shared {
        // SAFETY: RR1: the record begins a whole one; M3: it is there while the arena has an owner or headers.
        unsafe { whole(self.runtime_ptr()).as_ref() }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("name", &self.name).finish_non_exhaustive()
    }
}
