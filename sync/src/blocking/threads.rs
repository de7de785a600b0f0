//! The threads that make blocking calls.
//!
//! Calls stand in one queue, first in, first out. A thread is started when a call is queued and no thread is idle, up to the bound. A thread that takes a call out looks
//! at the rest in the same way: so calls that end quickly need few threads, and calls that wait for each other have one each. A thread without a call waits for
//! the next one for [`STAYS`], and then leaves. The last one stays.
//!
//! # When no thread can be started
//!
//! If other threads are there, the call stays in the queue. The first of them that has ended its call makes it, as when the bound is reached. If there is none, the
//! call is taken out of the queue, and refused with the system's error.
//!
//! # In a forked child
//!
//! The threads stay in the parent. Each call compares the number of the process, which is no part of what the lock protects: a thread of the parent may have had the lock at the moment
//! of the fork, and then it is never released in the child. The first call in the child makes new [`Threads`], with a lock and a queue of their own. The parent's stay in
//! memory, untouched: what is queued there is the parent's.
//!
//! # Invariants
//!
//! * **BT1** All is decided under one lock, a start of a thread too. So while there is no thread, no call is queued but the one whose start is tried.
//! * **BT2** A thread leaves only while no call is queued, and the last one never. So a call that was accepted is made when others have ended.
//! * **BT3** `idle` counts the threads that come to the queue before they do anything else: those that wait, those that were notified, those that were started.
//! * **BT4** [`THREADS`] is null or points to a `Threads` that is never freed.

use std::collections::VecDeque;
use std::ptr;
use std::sync::atomic::AtomicPtr; // not modelled: written once by each process
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError}; // not modelled: one lock, under which all is decided
use std::time::Duration;
use std::{io, process, thread};

/// How many threads there are at most, unless the environment says otherwise.
const MOST: usize = 500;
/// Says how many.
const VARIABLE: &str = "BLOCKING_MAX_THREADS";
/// So long a thread waits for a call before it leaves.
const STAYS: Duration = Duration::from_secs(10);

/// A call, and what tells its caller. It does not panic.
pub(super) type Call = Box<dyn FnOnce() + Send>;

/// The threads of the process, or of the process that it was forked from. BT4.
static THREADS: AtomicPtr<Threads> = AtomicPtr::new(ptr::null_mut());

struct Threads {
    /// Whose threads these are.
    process: u32,
    /// Those of the process that this one was forked from. Nobody reads it: it keeps them known to who looks for leaks.
    _parents: Option<&'static Threads>,
    state: Mutex<State>,
    /// For idle threads: a call is queued.
    came: Condvar,
    stays: Duration,
}

struct State {
    calls: VecDeque<Call>,
    idle: usize,
    all: usize,
    /// Read from the environment at the first call.
    most: Option<usize>,
}

/// When a call that was accepted begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Begins {
    /// A thread comes to it now.
    AtOnce,
    /// When calls have ended that were there before.
    AfterOthers,
}

/// Has the call made by one of the threads.
///
/// # Errors
///
/// The system's, if there is no thread and none could be started.
pub(super) fn make(call: Call) -> io::Result<Begins> {
    of_process(&THREADS, process::id()).make(call)
}

/// The threads of this process; new ones if those that are there are another process's. Takes no lock.
fn of_process(threads: &AtomicPtr<Threads>, process: u32) -> &'static Threads {
    loop {
        let seen = threads.load(Acquire);
        // SAFETY: BT4.
        let there: Option<&'static Threads> = unsafe { seen.as_ref() };
        if let Some(there) = there.filter(|there| there.process == process) {
            return there;
        }
        let new = Box::into_raw(Box::new(Threads::new(process, there, STAYS)));
        match threads.compare_exchange(seen, new, AcqRel, Acquire) {
            // SAFETY: made here, and never freed.
            Ok(_) => return unsafe { &*new },
            // SAFETY: made here, and nobody knows of it.
            Err(_) => drop(unsafe { Box::from_raw(new) }),
        }
    }
}

impl Threads {
    fn new(process: u32, parents: Option<&'static Threads>, stays: Duration) -> Threads {
        let state = State { calls: VecDeque::new(), idle: 0, all: 0, most: None };
        Threads { process, _parents: parents, state: Mutex::new(state), came: Condvar::new(), stays }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make(&'static self, call: Call) -> io::Result<Begins> {
        let mut state = self.lock();
        state.calls.push_back(call);
        let may_start_more = match self.grow(&mut state) {
            Err(error) if state.all == 0 => {
                // BT1: its own.
                let refused = state.calls.pop_back();
                drop(state);
                // It is the user's closure, whose destructor may make a call.
                drop(refused);
                return Err(error);
            }
            // BT2: one of the others makes it.
            Err(_) => false,
            Ok(()) => state.most.is_none_or(|most| state.all < most),
        };
        // BT3. A thread that comes starts the next, if it may.
        let begins = match may_start_more || state.calls.len() <= state.idle {
            true => Begins::AtOnce,
            false => Begins::AfterOthers,
        };
        drop(state);
        self.came.notify_one();
        Ok(begins)
    }

    /// Starts a thread if there are calls, no thread comes to them, and there may be more.
    fn grow(&'static self, state: &mut State) -> io::Result<()> {
        let most = *state.most.get_or_insert_with(most);
        if state.calls.is_empty() || state.idle > 0 || state.all >= most {
            return Ok(());
        }
        thread::Builder::new().name("forebear blocking".into()).spawn(|| self.serve())?;
        state.all += 1;
        // BT3.
        state.idle += 1;
        Ok(())
    }

    /// What a thread does.
    fn serve(&'static self) {
        let mut state = self.lock();
        loop {
            state.idle -= 1;
            while let Some(call) = state.calls.pop_front() {
                // If it fails, this thread or another makes the rest.
                _ = self.grow(&mut state);
                drop(state);
                call();
                state = self.lock();
            }
            state.idle += 1;
            let waited = self.came.wait_timeout(state, self.stays);
            let (locked, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            state = locked;
            if waited.timed_out() && state.leave() {
                return;
            }
        }
    }
}

impl State {
    /// A thread has had no call for long enough: whether it may leave. A call may have come since. BT2.
    fn leave(&mut self) -> bool {
        let leaves = self.calls.is_empty() && self.all > 1;
        if leaves {
            self.all -= 1;
            self.idle -= 1;
        }
        leaves
    }
}

/// How many threads there may be.
fn most() -> usize {
    let told = std::env::var(VARIABLE).ok().and_then(|told| told.parse().ok());
    told.map_or(MOST, |told: usize| told.max(1))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::{Arc, Barrier, mpsc};
    use std::time::Instant;

    use super::*;

    fn threads(stays: Duration) -> &'static Threads {
        Box::leak(Box::new(Threads::new(process::id(), None, stays)))
    }

    #[test]
    fn threads_without_a_call_leave_but_the_last() {
        let threads = threads(Duration::from_millis(1));
        let (many, begun) = (8, Arc::new(Barrier::new(9)));
        for _ in 0..many {
            let begun = begun.clone();
            threads.make(Box::new(move || _ = begun.wait())).unwrap();
        }
        begun.wait();
        let limit = Instant::now() + Duration::from_secs(60);
        while threads.lock().all > 1 {
            assert!(Instant::now() < limit, "{} threads stay", threads.lock().all);
            thread::yield_now();
        }
        let (send, made) = mpsc::channel();
        threads.make(Box::new(move || send.send(()).unwrap())).unwrap();
        made.recv_timeout(Duration::from_secs(60)).unwrap();
    }

    #[test]
    fn a_thread_stays_for_a_call_that_is_queued_and_the_last_one_always() {
        let mut state = State { calls: VecDeque::new(), idle: 2, all: 2, most: None };
        state.calls.push_back(Box::new(|| ()));
        assert!(!state.leave(), "no other thread may look at the queue");
        state.calls.clear();
        assert!(state.leave() && (state.idle, state.all) == (1, 1));
        assert!(!state.leave(), "none could be started for the next call");
    }

    /// The parent's threads are busy, a call of its stands in the queue, and one of its threads has the lock at the moment of the fork.
    #[test]
    fn a_call_in_a_forked_child_does_not_wait_for_the_parents_threads_or_lock() {
        let (parent, child) = (process::id(), process::id() + 1);
        let slot = AtomicPtr::new(ptr::null_mut());
        let parents = of_process(&slot, parent);
        let mut lock = parents.lock();
        (lock.idle, lock.all) = (3, 3);
        lock.calls.push_back(Box::new(|| panic!("a call of the parent")));
        let (send, made) = mpsc::channel();
        thread::scope(|scope| {
            scope.spawn(|| of_process(&slot, child).make(Box::new(move || send.send(()).unwrap())).unwrap());
            let answer = made.recv_timeout(Duration::from_secs(60));
            // Before the answer is judged: else a call that waits for the lock keeps the scope waiting.
            lock.calls.clear();
            drop(lock);
            answer.expect("nobody makes the call");
        });
        assert_eq!(of_process(&slot, child).lock().all, 1);
        assert!(ptr::eq(of_process(&slot, child), of_process(&slot, child)));
    }

    #[test]
    fn no_call_is_lost_while_threads_leave() {
        // They leave as soon as they find nothing.
        let threads = threads(Duration::ZERO);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let (send, made) = mpsc::channel();
                        threads.make(Box::new(move || send.send(()).unwrap())).unwrap();
                        made.recv_timeout(Duration::from_secs(60)).expect("the call is lost");
                    }
                });
            }
        });
    }
}
