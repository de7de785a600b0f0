//! The record of a worker: what the layers below the scheduler know of it. The scheduler's own record of it begins with this one
//! ([`crate::schedule::worker`]); so what stands here says what a cancel, a raise, a deadline and a waker do with a worker.
//!
//! # Who may touch what
//!
//! | field | by whom |
//! |---|---|
//! | `index`, `need_pages`, `shared`, `arena` | any thread reads them; they do not change |
//! | `post` | any thread; its own head says how |
//! | `list` | the worker's thread; others read it under the raid's guard ([`crate::state::raid`]) |
//! | `limit_alarm` | under the lock of its shard ([`crate::time::deadlines`]) |
//! | all others | the worker's thread alone (V1) |
//!
//! What other workers read with each pick lies in `post`, whose cache lines hold nothing else. `index` does not: it lies beside the front of `list`, which
//! the worker writes with each request. A pick that reads it fetches that line from the other core (decision 0120).

use std::cell::{Cell, UnsafeCell};
use std::ptr::NonNull;

use forebear_context::lineage::NO_KEY;
use forebear_context::shim::Arc;
use forebear_context::shim::atomic::Ordering;
use forebear_context::shim::mutant;

use super::Shared;
use super::post::Post;
use crate::record::arena::Arena;
use crate::record::fiber::Fiber;
use crate::record::header::{Header, HeaderPlace};
use crate::record::private_queue::PrivateQueue;
use crate::record::put_aside::PutAside;
use crate::record::side::Side;
use crate::stack::ready::Ready;
use crate::state::alarms::Standing;
use crate::state::attention::{Attention, DRIVEN, MARKS, MESSAGE, OLDER, RAIDED, SHUT};
use crate::state::estimated_clock::{self, EstimatedClock};
use crate::state::word::Cancel;

/// After so many scheduling points a busy worker reads the clock.
const PERIOD: u32 = 16;

/// How many scheduling points are left until the worker reads the clock. Zero as long as no timer is armed here, so that a worker
/// without timers pays for one read of a cell.
#[derive(Default)]
pub(crate) struct ClockCountdown(Cell<u32>);

impl ClockCountdown {
    /// Whether a timer may be armed here.
    #[inline(always)]
    pub(crate) fn is_running(&self) -> bool {
        self.0.get() != 0
    }

    /// A scheduling point, while it is running. Answers whether the clock is to be read.
    pub(crate) fn step(&self) -> bool {
        let left = self.0.get() - 1;
        self.0.set(left);
        left == 0
    }

    /// Whether the next scheduling point reads the clock.
    #[inline(always)]
    pub(crate) fn is_last(&self) -> bool {
        self.0.get() == 1
    }

    /// A scheduling point that is not the last.
    #[inline(always)]
    pub(crate) fn step_on(&self) {
        self.0.set(self.0.get().saturating_sub(1));
    }

    /// The clock was read. Begins again if a timer is still armed here.
    pub(crate) fn restart(&self, armed: bool) {
        self.0.set(if armed { PERIOD } else { 0 });
    }

    /// The next scheduling point reads the clock.
    #[inline]
    pub(crate) fn shorten(&self) {
        self.0.set(1);
    }
}

/// See the module head.
pub(crate) struct WorkerRecord {
    pub index: usize,
    /// What a request is guaranteed unless it asks otherwise, in pages: the runtime's, close at hand.
    pub need_pages: u16,
    shared: *const Shared,
    arena: *const Arena,
    pub list: PrivateQueue,
    ready: UnsafeCell<Ready>,
    /// What `post.running` holds.
    running: Cell<u64>,
    /// What the loop is to end, to drop and to warn of.
    pub put_aside: PutAside,
    /// Cancelled requests that have started here and are not over.
    marked: Cell<usize>,
    /// Fibers that have suspended in the middle of an unwind.
    left_unwinding: Cell<usize>,
    /// It has aborted what is on it, since the runtime is shut down.
    swept: Cell<bool>,
    /// See `schedule/worker/alarm.rs`.
    pub clock_countdown: ClockCountdown,
    /// Where the entry for the deadlines of the requests made here stands.
    pub limit_alarm: Standing,
    /// What time it is, for time-outs that begin here.
    pub estimated_clock: EstimatedClock,
    pub post: Post,
}

// SAFETY: V1: others touch what is made for it, by the table of the module head.
unsafe impl Sync for WorkerRecord {}
// SAFETY: the record moves before its thread begins.
unsafe impl Send for WorkerRecord {}

impl WorkerRecord {
    /// The record of worker number `index`.
    ///
    /// # Safety
    ///
    /// It becomes the first field of a worker of the scheduler's (WR1, in [`super::workers`]).
    pub(crate) unsafe fn new(index: usize, shared: &Arc<Shared>) -> WorkerRecord {
        let attention = Attention::new();
        if shared.driven.is_some() {
            attention.raise(DRIVEN);
        }
        WorkerRecord {
            index,
            need_pages: shared.default_need,
            shared: Arc::as_ptr(shared),
            // SAFETY: RR1; the caller's count.
            arena: unsafe { shared.depot.open_for(shared.record_ptr(), index as u32) }.as_ptr(),
            list: PrivateQueue::new(),
            ready: UnsafeCell::default(),
            running: Cell::new(NO_KEY),
            put_aside: PutAside::new(),
            marked: Cell::new(0),
            left_unwinding: Cell::new(0),
            swept: Cell::new(false),
            clock_countdown: ClockCountdown::default(),
            limit_alarm: Standing::default(),
            estimated_clock: EstimatedClock::new(shared.deadlines.estimates(), estimated_clock::may_be_used),
            post: Post::new(attention, shared.groups.shared_queue(index)),
        }
    }

    /// The runtime's record.
    #[inline(always)]
    pub(crate) fn shared(&self) -> &Shared {
        // SAFETY: the record holds its workers.
        unsafe { &*self.shared }
    }

    /// Where this worker's requests are made.
    #[inline(always)]
    pub(crate) fn arena(&self) -> &Arena {
        // SAFETY: M3; arenas stay until the record goes.
        unsafe { &*self.arena }
    }
}

/// What runs and what is ready. On the worker's thread.
impl WorkerRecord {
    #[allow(clippy::mut_from_ref, reason = "V1, and no caller keeps it over another call")]
    #[inline(always)]
    pub(crate) fn ready(&self) -> &mut Ready {
        // SAFETY: V1; every use ends before the next begins.
        unsafe { &mut *self.ready.get() }
    }

    /// The root key of the request that it runs; [`NO_KEY`] while it searches for work.
    #[inline(always)]
    pub(crate) fn running(&self) -> u64 {
        self.running.get()
    }

    #[inline(always)]
    pub(crate) fn set_running(&self, key: u64) {
        if self.running.get() != key {
            self.running.set(key);
            self.post.set_running_key(key);
        }
    }

    /// It runs what has this root key from now on. Who makes something older ready reads what a worker runs, and raises [`OLDER`] if that is younger. It may have
    /// read what this worker ran before, or that it searched, after this worker had looked at its mail and at the roots. So this looks once more if what ran was older:
    /// of two that each write before they read, one sees what the other has written ([`Post::begin_running_key`]).
    #[inline(always)]
    pub(crate) fn begin_running(&self, key: u64) {
        let before = self.running.get();
        if self.will_run(key) {
            self.look_once_more(before, key);
        }
    }

    /// Says so, without the look. Answers whether a look is due: of the mail, the roots and the attention word, after this.
    #[inline(always)]
    pub(crate) fn will_run(&self, key: u64) -> bool {
        let before = self.running.get();
        if before == key {
            return false;
        }
        self.running.set(key);
        // NO_KEY counts as the oldest here: nobody tells a worker that searches.
        const { assert!(NO_KEY == u64::MAX) };
        let is_younger = key >= before.wrapping_add(1);
        if is_younger {
            self.post.begin_running_key(key);
        } else {
            self.post.set_running_key(key);
        }
        is_younger
    }

    #[inline(never)]
    fn look_once_more(&self, before: u64, key: u64) {
        mutant!("begins_without_a_look", return);
        if self.post.mailbox.is_empty() && self.shared().injector.key_shortly() == NO_KEY {
            return;
        }
        self.judge_what_has_come(before, key);
    }

    #[cold]
    fn judge_what_has_come(&self, before: u64, key: u64) {
        if self.post.attention.get() & DRIVEN != 0 {
            return;
        }
        let roots = self.shared().injector.key();
        if !self.post.mailbox.is_empty() || roots < key {
            self.post.attention.raise(OLDER);
        } else if before == NO_KEY && roots != NO_KEY {
            // Its pusher may have told nobody, as this worker searched.
            self.shared().raise_older(roots);
        }
    }

    /// A fiber of this worker may continue. Short, and calls nothing, if no other is ready.
    #[inline(always)]
    pub(crate) fn make_ready(&self, fiber: NonNull<Fiber>) {
        if !self.ready().push_only(fiber) {
            return self.make_ready_beside(fiber);
        }
        // SAFETY: K3.
        let key = unsafe { fiber.as_ref() }.urgency.load(Ordering::Relaxed);
        self.tell_of(key);
    }

    #[inline(never)]
    fn make_ready_beside(&self, fiber: NonNull<Fiber>) {
        self.ready().push_another(fiber);
        // SAFETY: K3.
        let key = unsafe { fiber.as_ref() }.urgency.load(Ordering::Relaxed);
        self.tell_of(key);
    }

    /// Fibers of this worker may continue, the earliest first.
    pub(crate) fn make_all_ready(&self, fibers: &[NonNull<Fiber>]) {
        let Some((latest, before)) = fibers.split_last() else { return };
        // SAFETY: K3.
        let keys = fibers.iter().map(|fiber| unsafe { fiber.as_ref() }.urgency.load(Ordering::Relaxed));
        let key = keys.min().unwrap_or(NO_KEY);
        self.ready().push_arrived(*latest, before.iter().rev().copied());
        self.tell_of(key);
    }

    /// A fiber of this worker, which is left, has become more urgent: if it is ready, it gets the place that goes with that.
    #[cold]
    pub(crate) fn raise_ready(&self, fiber: NonNull<Fiber>) {
        // SAFETY: K3.
        let s = unsafe { fiber.as_ref() };
        if s.context().is_waiting() {
            return;
        }
        self.ready().raise(fiber);
        self.tell_of(s.urgency.load(Ordering::Relaxed));
    }

    /// Something of that key has become ready here.
    fn tell_of(&self, key: u64) {
        if key < self.running.get() {
            self.post.attention.raise(OLDER);
        }
    }

    /// Whether a stack of this worker stands still in an unwind.
    pub(crate) fn has_left_unwinding(&self) -> bool {
        self.left_unwinding.get() != 0
    }

    /// So many fibers of it have suspended in the middle of an unwind.
    pub(crate) fn add_left_unwinding(&self, fibers: usize) {
        self.left_unwinding.set(self.left_unwinding.get() + fibers);
    }

    /// So many of them have resumed.
    pub(crate) fn sub_left_unwinding(&self, fibers: usize) {
        self.left_unwinding.set(self.left_unwinding.get() - fibers);
    }

    /// They are abandoned.
    pub(crate) fn clear_left_unwinding(&self) {
        self.left_unwinding.set(0);
    }

    /// A timer was armed here.
    #[inline]
    pub(crate) fn note_alarm(&self) {
        if !self.clock_countdown.is_running() {
            self.clock_countdown.restart(true);
        }
    }
}

/// The owner's side of a raid ([`crate::state::raid`]). On the worker's thread.
impl WorkerRecord {
    /// Begins to touch an entry of the private queue, for a plain store into its word (RD1). False: there was a raid, and nothing was done.
    #[inline(always)]
    pub(crate) fn begins_to_touch(&self, h: &Header) -> bool {
        h.place.touch(|| self.post.attention.get() & RAIDED == 0)
    }

    /// The same in any case: settles first if there was a raid.
    #[inline(always)]
    pub(crate) fn touch(&self, h: &Header) {
        while !self.begins_to_touch(h) {
            self.settle_raid();
        }
    }

    /// Takes a request out of the private queue.
    #[inline(always)]
    pub(crate) fn take_out(&self, h: &Header) {
        self.touch(h);
        self.list.unlink(h);
    }

    /// Asks for the cancel of a request by `ask`, which calls [`Word::cancel_private`](crate::state::word::Word::cancel_private), and takes the
    /// request out of the private queue if that has ended it. A request that has left the list meanwhile is not asked: the cancel that took
    /// it out has reached it, or its start looks for a cancel.
    pub(crate) fn cancel_listed(&self, h: &Header, ask: impl FnOnce() -> Cancel) -> Cancel {
        if h.place.get() != HeaderPlace::Private {
            return Cancel::Unasked;
        }
        self.touch(h);
        let answer = ask();
        if answer == Cancel::Ended {
            self.list.unlink(h);
        } else {
            h.place.restore();
        }
        answer
    }

    /// There was a raid: waits until it is over.
    #[cold]
    #[inline(never)]
    pub(crate) fn settle_raid(&self) {
        // A raider that was left behind in the parent process is not there to end its raid.
        self.post.raids.settle(&self.post.attention, || self.shared().is_inherited());
    }
}

/// Cancelled requests, and what is put aside for the loop. On the worker's thread.
impl WorkerRecord {
    /// So many more cancelled requests run here.
    pub(crate) fn count_marked(&self, more: isize) {
        let marked = self.marked.get().wrapping_add_signed(more);
        self.marked.set(marked);
        if marked == 0 {
            self.post.attention.clear(MARKS);
        } else if more > 0 {
            self.post.attention.raise(MARKS);
        }
    }

    /// The worker aborts what is on it, now; false if it has done so. From now on it refuses new work.
    pub(crate) fn begins_sweep(&self) -> bool {
        self.post.attention.raise(SHUT);
        !self.swept.replace(true)
    }

    /// Whether it has done so.
    pub(crate) fn has_swept(&self) -> bool {
        self.swept.get()
    }

    /// The loop is to end these: each claimed, with the runner's link.
    pub(crate) fn put_aside(&self, requests: Vec<NonNull<Header>>) {
        if !requests.is_empty() {
            self.put_aside.add(requests);
            self.post.attention.raise(MESSAGE);
        }
    }

    /// Whether nothing of the user's may be dropped on `fiber`, which is this worker's and current.
    pub(crate) fn holds_back(&self, fiber: &Fiber) -> bool {
        self.put_aside.holds_back() || fiber.context().is_waiting()
    }

    /// The loop is to drop this.
    #[cold]
    pub(crate) fn drop_later(&self, side: Box<Side>) {
        self.put_aside.drop_later(side);
        self.post.attention.raise(MESSAGE);
    }

    /// A stack of this worker has put something off ([`DropQueues`](crate::record::drop_queue::DropQueues)). If it waits before it gets there, the loop does it.
    pub(crate) fn has_put_off(&self) {
        self.post.attention.raise(MESSAGE);
    }

    /// Answers those who have asked this worker for a dump.
    #[inline]
    pub(crate) fn answer_dumps(&self) {
        if self.post.asked.are_any() {
            (self.shared().calls.answer_dumps)(self);
        }
    }
}

/// By anybody.
impl WorkerRecord {
    /// Has the worker look whether it is to sweep.
    pub(crate) fn stir_up(&self) {
        self.post.attention.raise(MESSAGE);
    }

    /// Whether something stands in its private queue. A snapshot.
    pub(crate) fn keeps_something(&self) -> bool {
        !self.list.first().load(Ordering::Relaxed).is_null()
    }
}

impl std::fmt::Debug for WorkerRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker").field("index", &self.index).finish_non_exhaustive()
    }
}

/// Of a stack: the record of its worker.
pub(crate) trait OnRecord {
    /// The record of the worker, unless this is a foreign thread.
    fn worker_record(&self) -> Option<&WorkerRecord>;
}

impl OnRecord for Fiber {
    #[inline(always)]
    fn worker_record(&self) -> Option<&WorkerRecord> {
        // SAFETY: a coroutine's worker outlives it.
        unsafe { self.worker.cast::<WorkerRecord>().as_ref() }
    }
}

/// Whether what runs on the fiber is called by an unwind.
#[inline]
pub(crate) fn is_unwinding(fiber: &Fiber) -> bool {
    std::thread::panicking()
        && (fiber.context().unwinding().get()
            || fiber.worker_record().is_none_or(|worker| !worker.has_left_unwinding()))
}
