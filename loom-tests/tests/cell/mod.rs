//! A request as the models have it: the shipped [`Word`] and [`WaitQueue`], and around them memory that loom watches.
//!
//! Nothing here decides anything. Each method calls the word's operations in the order in which
//! `runtime/src/{wait,run,request,cell,any}.rs` call them, and touches, where those touch a header, callable, value or
//! list, a loom cell that stands for it. So a touch that no order covers is reported by loom itself, in whichever
//! execution it could happen.
//!
//! # What stands for what
//!
//! | in a model | in the runtime |
//! |---|---|
//! | [`Job::header`], written once, by its end | the header's memory |
//! | `callable`, `value` | the body of the request's cell |
//! | `list` | the fields of the queue and of the nodes in it, which are plain cells that loom does not see |
//! | [`Waiter::frame`], written by its owner | the frame in which the owner's node lies |
//! | `listed` | the private list of a worker, as far as this one entry goes; its owner's alone |
//!
//! # Invariants
//!
//! * **J1** Jobs and waiters stay in memory until the execution is over, whatever the model says of them: they are held
//!   by counts that loom does not see and that order nothing. So a touch after the end is a finding and never a fault.
//! * **J2** Loom runs one thread at a time and switches only at its own operations, so plain cells are not torn. Whether
//!   they *could* be is asked of the loom cell that stands beside them.

#![allow(dead_code, reason = "every test binary uses a part of it")]
#![allow(unreachable_pub, reason = "shared by several test binaries")]

mod answers;
mod waiter;

use std::cell::Cell;
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use forebear_context::context::{Cause, Table, WaitQueue};
use forebear_context::shim::{self, UnsafeCell};
use forebear_runtime::model::word::{
    Bits, CANCELLED, FINISHED, HELD, HandleDrop, NEW, PRIVATE, SUBMITTED, WAITERS, Word,
};

#[allow(unused_imports, reason = "every test binary uses a part of it")]
pub use self::answers::{Answers, exhaust, explore};
#[allow(unused_imports, reason = "every test binary uses a part of it")]
pub use self::waiter::{BLOCKING, SPINNING, Waiter};

// ---- the request ---------------------------------------------------------------------------------------------------

/// One request. See the module head.
pub struct Job {
    pub word: Word,
    waiters: WaitQueue,
    list: UnsafeCell<()>,
    callable: UnsafeCell<bool>,
    value: UnsafeCell<Option<u32>>,
    /// Whether it is there.
    header: UnsafeCell<bool>,
    /// Where waiters take turns, if they do.
    turns: Option<shim::Mutex<()>>,
    notes: Notes,
    kept: Mutex<Vec<Arc<Waiter>>>,
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
        job
    }

    /// A request that was cancelled before it ran; `bits` says so.
    pub fn cancelled(bits: u64) -> Arc<Job> {
        let job = Job::new(bits);
        // SAFETY: J1.
        job.callable.with_mut(|there| unsafe { *there = false });
        for note in [&job.notes.unrun, &job.notes.terminal] {
            note.store(1, Relaxed);
        }
        job
    }

    fn with(bits: u64, value: Option<u32>, turns: Option<shim::Mutex<()>>) -> Arc<Job> {
        Arc::new(Job {
            word: Word::new(bits),
            waiters: WaitQueue::new(),
            list: UnsafeCell::new(()),
            callable: UnsafeCell::new(value.is_none()),
            value: UnsafeCell::new(value),
            header: UnsafeCell::new(true),
            turns,
            notes: Notes::default(),
            kept: Mutex::default(),
        })
    }

    /// Reads of the header; before every operation on its word.
    pub fn touch(&self) {
        // SAFETY: J1.
        self.header.with(|there| assert!(unsafe { *there }, "a header touched after its end"));
    }

    /// `home::end`.
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
    fn execute_with(&self, runner_link: bool, during: impl FnOnce()) {
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

    /// `run::finish`.
    fn finish(&self, life: u64, runner_link: bool) {
        self.touch();
        let (before, after) = self.word.finish(runner_link, |bits| {
            if bits.handles() == 0 {
                self.drop_value();
            }
            self.touch();
            life
        });
        self.notes.terminal.fetch_add(1, Relaxed);
        if before.has(WAITERS) {
            self.touch();
            // SAFETY: Q1: terminal, so the list is ours.
            let list = self.list.with_mut(|_| unsafe { self.waiters.take() });
            // SAFETY: as above.
            unsafe { list.wake_all() };
        }
        if after.is_forgotten() {
            self.end();
        }
    }

    // ---- entries: `worker.rs` --------------------------------------------------------------------------------------

    /// What a worker does with an entry it took off a shelf. True: it ran it.
    pub fn run_entry(&self) -> bool {
        self.touch();
        if self.word.claim_by_queue() {
            self.execute(true);
            return true;
        }
        self.release_link();
        false
    }

    /// What a worker does with an entry it popped from its private list. True: it ran it.
    pub fn run_popped(&self) -> bool {
        self.run_popped_with(|| {})
    }

    /// The same; `during` is the callable's own doing.
    pub fn run_popped_with(&self, during: impl FnOnce()) -> bool {
        self.touch();
        if self.word.claim_popped() {
            self.execute_with(true, during);
            return true;
        }
        self.release_link();
        false
    }

    // ---- counts: `request.rs` and `any.rs` -------------------------------------------------------------------------

    /// The drop of an untyped handle, or of a shell.
    pub fn release_link(&self) {
        self.touch();
        if self.word.release_link() {
            self.end();
        }
    }

    /// The drop of a handle.
    pub fn drop_handle(&self) -> HandleDrop {
        self.touch();
        let bits = self.word.load();
        if bits.life() == FINISHED && bits.is_sole_handle() {
            // `end_alone`.
            self.drop_value();
            self.end();
            return HandleDrop::TerminalAlone;
        }
        self.touch();
        let answer = self.word.drop_handle();
        match answer {
            HandleDrop::NotLast | HandleDrop::Running => {}
            HandleDrop::Unstarted => self.end_claimed(),
            HandleDrop::Terminal | HandleDrop::TerminalAlone => {
                self.touch();
                let _ = self.word.load();
                self.drop_value();
                self.touch();
                if answer == HandleDrop::TerminalAlone || self.word.release_link() {
                    self.end();
                }
            }
        }
        answer
    }

    /// The drop of a handle by the worker in whose private list the request stands, or stood. True: it was let go by a
    /// plain store. (The runtime looks at the word before, to save a call; the look in here must do alone.)
    pub fn drop_own_handle(&self) -> bool {
        self.touch();
        if self.word.drop_sole() {
            return true;
        }
        self.drop_handle();
        false
    }

    /// `Request::get`, of a request that is known to have finished.
    pub fn read(&self) {
        self.touch();
        assert_eq!(self.word.load().life(), FINISHED);
        // SAFETY: J1.
        self.value.with(|value| assert_eq!(unsafe { *value }, Some(7), "a value that is not there"));
    }

    // ---- waiting: `wait.rs` ----------------------------------------------------------------------------------------

    /// A waiter for this request.
    pub fn waiter(&self, table: &'static Table) -> Arc<Waiter> {
        let waiter = Waiter::new(table);
        self.kept.lock().unwrap().push(Arc::clone(&waiter));
        waiter
    }

    /// `wait::until_over`, and how it went. `lends`: the waiter runs what has not started; with `listed`, its own
    /// worker's private list, it takes the entry out of there.
    pub fn wait(&self, waiter: &Waiter, lends: bool, listed: Option<&Cell<bool>>) -> How {
        let mut how = How::Over;
        loop {
            self.touch();
            let bits = self.word.load();
            if bits.is_terminal() {
                return how;
            }
            if lends && bits.is_unstarted() && bits.life() != HELD {
                let own = listed.filter(|_| bits.has(PRIVATE));
                self.touch();
                if self.word.claim_by_waiter(own.is_some()).is_ok() {
                    if let Some(listed) = own {
                        assert!(listed.replace(false), "a private entry that is not in its list");
                    }
                    self.execute(false);
                    how = How::Ran;
                }
                continue;
            }
            assert_ne!(bits.life(), NEW, "the models that begin with a new one lend");
            if !self.stand(waiter) {
                return how;
            }
            self.park(waiter);
            return How::Parked;
        }
    }

    /// Parks a waiter that stands in the list, until it is woken.
    pub fn park(&self, waiter: &Waiter) {
        // SAFETY: on the context's own thread, after `begin`.
        assert_eq!(unsafe { waiter.context().park(None) }, Cause::Woken);
        waiter.leave_frame();
        self.touch();
        assert!(self.word.load().is_terminal(), "woken before the end");
    }

    /// One more entry, for the same request, if it has not started. By a holder of a handle.
    pub fn enter_again(&self) -> bool {
        self.touch();
        let unstarted = self.word.load().is_unstarted();
        if unstarted {
            self.touch();
            self.word.add_link();
        }
        unstarted
    }

    /// Begins a wait and stands in the list. False: it is over.
    pub fn stand(&self, waiter: &Waiter) -> bool {
        waiter.begin();
        let _turn = self.turns.as_ref().map(|turns| turns.lock().unwrap());
        self.touch();
        if self.word.lock().is_err() {
            waiter.context().abandon(waiter.ticket());
            waiter.leave_frame();
            return false;
        }
        // SAFETY: Q1: the lock is ours; Q2, J1.
        self.list.with_mut(|_| unsafe { self.waiters.push(waiter.node()) });
        self.touch();
        self.word.unlock(|bits| Bits(bits.0 | WAITERS));
        true
    }

    /// A waiter that stands in the list does not want to wait any longer.
    pub fn leave(&self, waiter: &Waiter) -> Left {
        if !waiter.context().settle(waiter.ticket(), Cause::TimedOut) {
            self.park(waiter);
            return Left::Woken;
        }
        let _turn = self.turns.as_ref().map(|turns| turns.lock().unwrap());
        self.touch();
        let left = if self.word.lock().is_ok() {
            // SAFETY: Q1: the lock is ours; Q2: it stands in the list.
            self.list.with_mut(|_| unsafe { self.waiters.unlink(waiter.node()) });
            self.touch();
            self.word.unlock(|bits| {
                // The lock is still ours.
                if self.waiters.is_empty() { Bits(bits.0 & !WAITERS) } else { bits }
            });
            Left::Unlinked
        } else {
            waiter.node().await_release();
            Left::Released
        };
        waiter.leave_frame();
        left
    }

    // ---- taking: `request.rs` --------------------------------------------------------------------------------------

    /// `Request::take` by the worker in whose private list it is; `during` is the callable's own doing.
    pub fn take(&self, waiter: &Waiter, listed: &Cell<bool>, during: impl FnOnce()) -> Took {
        self.touch();
        if !self.word.claim_sole() {
            self.wait(waiter, true, Some(listed));
            return self.take_over();
        }
        assert!(listed.replace(false), "a sole entry that is not in its list");
        let value = self.call();
        during();
        self.touch();
        if self.word.is_still_sole() {
            self.end();
            self.notes.alone.fetch_add(1, Relaxed);
            self.notes.taken.fetch_add(1, Relaxed);
            return Took::Alone;
        }
        self.put_value(value);
        self.finish(FINISHED, false);
        self.take_over()
    }

    /// `take_over`: the end of a take whose target is over.
    pub fn take_over(&self) -> Took {
        self.touch();
        let bits = self.word.load();
        assert_eq!(bits.life(), FINISHED);
        if bits.handles() > 1 {
            self.drop_handle();
            return Took::Shared;
        }
        // SAFETY: J1.
        let value = self.value.with_mut(|value| unsafe { (*value).take() });
        assert_eq!(value, Some(7), "a value that is not there");
        self.notes.taken.fetch_add(1, Relaxed);
        self.drop_handle();
        Took::Value
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

/// How a wait went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// It was over, or was when the waiter wanted to stand in the list.
    Over,
    /// The waiter ran it itself.
    Ran,
    /// The waiter stood in the list and was woken.
    Parked,
}

/// How a waiter left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// It took its node out.
    Unlinked,
    /// The finisher had its node, and let go of it.
    Released,
    /// The end came first.
    Woken,
}

/// How a take went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Took {
    /// Without an exchange, to the end.
    Alone,
    /// At the terminal state, as the only handle.
    Value,
    /// There were other handles.
    Shared,
}
