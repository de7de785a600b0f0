//! A request as the models have it: the shipped [`Word`] and [`WaitQueue`], and around them memory that loom watches.
//!
//! Nothing here decides anything. Each method calls the word's operations in the order in which
//! `wait.rs`, `finish.rs`, `request.rs`, `cell.rs` and `any.rs` in `runtime/src` call them, and touches, where those touch a header, callable, value or
//! list, a loom cell that stands for it. So a touch that no order covers is reported by loom itself, in whichever
//! execution it could happen.
//!
//! # What stands for what
//!
//! | in a model | in the runtime |
//! |---|---|
//! | [`Job::header`], written by its entry into a list, and by its end | the header's memory |
//! | `callable`, `value` | the body of the request's cell |
//! | `list` | the fields of the queue and of the nodes in it, which are plain cells that loom does not see |
//! | `calls`, `reason` | the list of callbacks and the reason of a cancel, in the side block |
//! | [`Waiter::frame`], written by its owner | the frame in which the owner's node lies |
//! | `listed` | the private queue of a worker, as far as this one entry goes; its owner's alone |
//!
//! # Invariants
//!
//! * **J1** Jobs and waiters stay in memory until the execution is over, whatever the model says of them: they are held
//!   by counts that loom does not see and that order nothing. So a touch after the end is a finding and never a fault.
//! * **J2** Loom runs one thread at a time and switches only at its own operations, so plain cells are not torn. Whether
//!   they *could* be is asked of the loom cell that stands beside them.

#![allow(dead_code, reason = "every test binary uses a part of it")]
#![allow(unreachable_pub, reason = "shared by several test binaries")]

mod calling;
mod cancelling;
mod counts;
mod listed;
mod listening;
mod locally;
mod waiter;
mod waiting;

use std::cell::Cell;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use forebear_context::context::WaitQueue;
use forebear_context::shim::atomic::AtomicPtr;
use forebear_context::shim::thread::{self, JoinHandle};
use forebear_context::shim::{self, UnsafeCell};
use forebear_runtime::model::raid::{HeaderPlace, Placed};
use forebear_runtime::model::word::{
    CANCELLED, FINISHED, LocalOwner, LocalState, MARKED, NEW_LOCAL, SUBMITTED, WAITERS, Word,
};

#[allow(unused_imports, reason = "every test binary uses a part of it")]
pub use self::calling::Call;
#[allow(unused_imports, reason = "as above")]
pub use self::cancelling::{FROM_PARENT, Region, told};
#[allow(unused_imports, reason = "as above")]
pub use self::counts::Took;
#[allow(unused_imports, reason = "as above")]
pub use self::listed::List;
#[allow(unused_imports, reason = "as above")]
pub use self::waiter::{BLOCKING, SPINNING, Waiter};
#[allow(unused_imports, reason = "as above")]
pub use self::waiting::{How, Left, told_left};
#[allow(unused_imports, reason = "as above")]
pub use forebear_loom_tests::{Answers, exhaust, explore, explore_long};

/// A thread that does `f` to what is shared.
pub fn with<S: 'static, T: 'static>(shared: &Arc<S>, f: impl FnOnce(&S) -> T + 'static) -> JoinHandle<T> {
    let shared = Arc::clone(shared);
    thread::spawn(move || f(&shared))
}

// ---- the request ---------------------------------------------------------------------------------------------------

/// One request. See the module head.
pub struct Job {
    pub word: Word,
    local: LocalState,
    local_owner: Arc<LocalOwner>,
    waiters: WaitQueue,
    list: UnsafeCell<()>,
    calls: UnsafeCell<Vec<Call>>,
    reason: UnsafeCell<Option<u32>>,
    callable: UnsafeCell<bool>,
    value: UnsafeCell<Option<u32>>,
    /// Whether it is there.
    header: UnsafeCell<bool>,
    /// Where waiters take turns, if they do.
    turns: Option<shim::Mutex<()>>,
    /// Whether children hold on to the header, and may ask for their parent.
    children: bool,
    notes: Notes,
    kept: Mutex<Vec<Arc<Waiter>>>,
    /// The private queue that it stands in, if others may raid that.
    listed_in: Option<Arc<List>>,
    place: Placed,
    next: AtomicPtr<Job>,
    /// What it stands behind; null: it stands in front. Its owner's.
    before: Cell<*const Job>,
}

/// What has happened to a job; for the check at the end, hence nothing that loom sees.
#[derive(Debug, Default)]
struct Notes {
    ran: AtomicU32,
    unrun: AtomicU32,
    made: AtomicU32,
    dropped: AtomicU32,
    taken: AtomicU32,
    terminal: AtomicU32,
    alone: AtomicU32,
    ended: AtomicU32,
    /// The life it ended with.
    life: AtomicU64,
    marked: AtomicU32,
    to_deliver: AtomicU32,
    delivered: AtomicU32,
    subscribed: AtomicU32,
    called_finished: AtomicU32,
    called_cancelled: AtomicU32,
}

// SAFETY: J1, J2: that is what the models are about.
unsafe impl Send for Job {}
// SAFETY: as above.
unsafe impl Sync for Job {}

impl Job {
    /// A request that has not been run, with the word `bits`.
    pub fn new(bits: u64) -> Arc<Job> {
        Job::with(bits, None, None)
    }

    /// A request that stands, or will stand, in a list that others may raid.
    pub fn in_list(bits: u64, list: &Arc<List>) -> Arc<Job> {
        let mut job = Job::new(bits);
        Arc::get_mut(&mut job).unwrap().listed_in = Some(Arc::clone(list));
        job
    }

    /// A local request of this owner's in such a list.
    pub fn local_in_list(local_owner: &Arc<LocalOwner>, list: &Arc<List>) -> Arc<Job> {
        let mut job = Job::local_of(local_owner);
        Arc::get_mut(&mut job).unwrap().listed_in = Some(Arc::clone(list));
        job
    }

    /// A local request of this owner's.
    pub fn local_of(local_owner: &Arc<LocalOwner>) -> Arc<Job> {
        let mut job = Job::new(NEW_LOCAL);
        Arc::get_mut(&mut job).unwrap().local_owner = Arc::clone(local_owner);
        job
    }

    /// The same, whose waiters take turns for the lock bit, so that only the finisher ever spins for it: two spinning
    /// threads may be scheduled for ever without the third. For models of three threads.
    pub fn with_turns(bits: u64) -> Arc<Job> {
        Job::with(bits, None, Some(shim::Mutex::new(())))
    }

    /// A request that has finished with a value; `bits` says so.
    pub fn finished(bits: u64) -> Arc<Job> {
        let job = Job::with(bits, Some(7), None);
        for note in [&job.notes.ran, &job.notes.made, &job.notes.terminal] {
            note.store(1, Relaxed);
        }
        job.notes.life.store(FINISHED, Relaxed);
        job
    }

    /// The same, with a child that knows the header and outlives it.
    pub fn finished_parent(bits: u64) -> Arc<Job> {
        let mut job = Job::finished(bits);
        Arc::get_mut(&mut job).unwrap().children = true;
        job
    }

    /// A request that was cancelled before it ran; `bits` says so.
    pub fn cancelled(bits: u64) -> Arc<Job> {
        let job = Job::new(bits);
        // SAFETY: J1.
        job.callable.with_mut(|there| unsafe { *there = false });
        for note in [&job.notes.unrun, &job.notes.terminal, &job.notes.marked] {
            note.store(1, Relaxed);
        }
        job.notes.life.store(CANCELLED, Relaxed);
        job
    }

    fn with(bits: u64, value: Option<u32>, turns: Option<shim::Mutex<()>>) -> Arc<Job> {
        Arc::new(Job {
            word: Word::new(bits),
            local: LocalState::new(),
            local_owner: Arc::new(LocalOwner::new(0)),
            waiters: WaitQueue::new(),
            list: UnsafeCell::new(()),
            calls: UnsafeCell::new(Vec::new()),
            reason: UnsafeCell::new(None),
            callable: UnsafeCell::new(value.is_none()),
            value: UnsafeCell::new(value),
            header: UnsafeCell::new(true),
            turns,
            children: false,
            notes: Notes::default(),
            kept: Mutex::default(),
            listed_in: None,
            place: Placed::new(HeaderPlace::Private),
            next: AtomicPtr::new(ptr::null_mut()),
            before: Cell::new(ptr::null()),
        })
    }

    /// Whoever wants the lock bit takes this first.
    fn turn(&self) -> Option<shim::MutexGuard<'_, ()>> {
        self.turns.as_ref().map(|turns| turns.lock().unwrap())
    }

    /// Reads of the header; before every operation on its word.
    pub fn touch(&self) {
        // SAFETY: J1.
        self.header.with(|there| assert!(unsafe { *there }, "a header touched after its end"));
    }

    /// `arena::end`.
    pub fn end(&self) {
        // SAFETY: J1.
        self.header.with_mut(|there| unsafe { *there = false });
        self.notes.ended.fetch_add(1, Relaxed);
    }

    /// Whether it ended without going terminal, since nobody knew of it.
    pub fn ended_alone(&self) -> bool {
        self.notes.alone.load(Relaxed) > 0
    }

    /// Checks that everything happened, and once. After all threads are joined.
    pub fn check(&self) {
        let n = &self.notes;
        let (ran, unrun) = (n.ran.load(Relaxed), n.unrun.load(Relaxed));
        assert_eq!(ran + unrun, 1, "callable run {ran} times, dropped unrun {unrun} times");
        assert_eq!(n.terminal.load(Relaxed) + n.alone.load(Relaxed), 1, "times terminal");
        let (made, dropped, taken) = (n.made.load(Relaxed), n.dropped.load(Relaxed), n.taken.load(Relaxed));
        assert_eq!((made, dropped + taken), (ran, made), "values made; dropped {dropped}, taken {taken}");
        assert_eq!(n.ended.load(Relaxed), 1, "headers ended");

        let marked = n.marked.load(Relaxed);
        assert!(marked <= 1, "marked {marked} times");
        if n.terminal.load(Relaxed) == 1 {
            let life = if marked == 1 { CANCELLED } else { FINISHED };
            assert_eq!(n.life.load(Relaxed), life, "the outcome, by who was told of the mark");
        }
        assert_eq!(n.delivered.load(Relaxed), n.to_deliver.load(Relaxed), "marks delivered");
        let called = [n.called_cancelled.load(Relaxed), n.called_finished.load(Relaxed)];
        let subscribed = n.subscribed.load(Relaxed);
        let expected = if marked == 1 { [subscribed, 0] } else { [0, subscribed] };
        assert_eq!(called, expected, "callbacks told of a cancel, and of a value");
    }

    /// How many callbacks have been called.
    pub fn called(&self) -> u32 {
        self.notes.called_cancelled.load(Relaxed) + self.notes.called_finished.load(Relaxed)
    }

    /// Whether a reason was noted. After all threads are joined.
    pub fn had_reason(&self) -> bool {
        self.reason().is_some()
    }

    /// Whether it was marked. After all threads are joined.
    pub fn was_marked(&self) -> bool {
        self.notes.marked.load(Relaxed) == 1
    }

    // ---- running: `run.rs` and `cell.rs` ---------------------------------------------------------------------------

    /// The callable: moved out, and a value made.
    fn call(&self) -> u32 {
        // SAFETY: J1.
        let there = self.callable.with_mut(|there| unsafe { ptr::replace(there, false) });
        assert!(there, "a callable that is not there any more");
        self.notes.ran.fetch_add(1, Relaxed);
        self.notes.made.fetch_add(1, Relaxed);
        7
    }

    fn put_value(&self, value: u32) {
        // SAFETY: J1.
        self.value.with_mut(|place| unsafe { *place = Some(value) });
    }

    /// `cell::drop_value_contained`.
    fn drop_value(&self) {
        // SAFETY: J1.
        if self.value.with_mut(|value| unsafe { (*value).take() }).is_some() {
            self.notes.dropped.fetch_add(1, Relaxed);
        }
    }

    /// `run::execute`: by the claimer.
    pub fn execute(&self, runner_link: bool) {
        self.execute_with(runner_link, || {});
    }

    /// The same; `during` is the callable's own doing.
    pub fn execute_with(&self, runner_link: bool, during: impl FnOnce()) {
        self.touch();
        let value = self.call();
        during();
        self.put_value(value);
        self.touch();
        if runner_link && self.word.is_popped_sole() {
            // `run::end_sole`.
            self.drop_value();
            self.notes.alone.fetch_add(1, Relaxed);
            self.end();
        } else {
            self.finish(FINISHED, runner_link);
        }
    }

    /// `cell::end_claimed`: by the claimer, who holds the runner's link.
    fn end_claimed(&self) {
        self.touch();
        // SAFETY: J1.
        let there = self.callable.with_mut(|there| unsafe { ptr::replace(there, false) });
        assert!(there, "a callable that is not there any more");
        self.notes.unrun.fetch_add(1, Relaxed);
        self.finish(CANCELLED, true);
    }

    /// `finish::finish`; `life` unless it is marked.
    fn finish(&self, life: u64, runner_link: bool) {
        let (before, after) = loop {
            self.touch();
            let tried = self.word.try_finish(runner_link, |bits| {
                if bits.has(MARKED) {
                    self.reason();
                }
                if bits.handles() == 0 || bits.has(MARKED) {
                    self.drop_value();
                }
                self.touch();
                Some(if bits.has(MARKED) { CANCELLED } else { life })
            });
            match tried {
                Ok(ended) => break ended,
                Err(_) => self.call_batch(),
            }
        };
        self.notes.terminal.fetch_add(1, Relaxed);
        self.notes.life.store(after.life(), Relaxed);
        if before.has(WAITERS) {
            self.touch();
            // SAFETY: Q1: terminal, so the list is ours.
            let list = self.list.with_mut(|_| unsafe { self.waiters.take() });
            // SAFETY: as above.
            unsafe { list.wake_all() }.notify(life);
        }
        if after.is_forgotten() {
            self.end();
        }
    }

    // ---- entries: `worker.rs` --------------------------------------------------------------------------------------

    /// What a worker does with an entry it took from a shared queue. True: it ran it.
    pub fn run_entry(&self) -> bool {
        self.touch();
        if self.word.claim_by_queue() {
            self.execute(true);
            return true;
        }
        self.release_link();
        false
    }

    /// What a worker does with an entry it popped from its private queue. True: it ran it.
    pub fn run_popped(&self) -> bool {
        self.run_popped_with(|| {})
    }

    /// The same; `during` is the callable's own doing.
    pub fn run_popped_with(&self, during: impl FnOnce()) -> bool {
        self.touch();
        if self.word.claim_detached() || self.word.claim_by_queue() {
            self.execute_with(true, during);
            return true;
        }
        self.release_link();
        false
    }

    /// What a pool does with a member that it admits: it goes to a queue, where a worker finds it. True: it was run.
    pub fn admit(&self) -> bool {
        self.touch();
        if self.word.admit(0) {
            return self.run_entry();
        }
        self.release_link();
        false
    }

    /// What a waiter does that may lend its stack, as long as it need not park. True: it ran it.
    pub fn run_here(&self) -> bool {
        self.touch();
        let claimed = self.word.claim_by_waiter(false).is_ok();
        if claimed {
            self.execute(false);
        }
        claimed
    }

    /// What a pool does at first with a request that is included: it holds it back, if it is new.
    pub fn hold(&self) -> bool {
        self.touch();
        self.word.hold(|| self.touch())
    }

    /// What a pool does with one that it has held back and will not run. True: somebody wanted it, so it was run.
    pub fn let_go(&self) -> bool {
        self.touch();
        !self.word.let_go() && self.admit()
    }

    /// `Request::submit`, for a queue that others look into. True: the entry is the caller's to push.
    pub fn submit(&self) -> bool {
        self.touch();
        self.word.submit(SUBMITTED)
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("notes", &self.notes).finish_non_exhaustive()
    }
}
