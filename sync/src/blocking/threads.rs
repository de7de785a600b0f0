//! The threads that make blocking calls.
//!
//! Calls stand in one queue, first in, first out. A thread is started when a call is queued and no thread is idle, up to the bound. Whoever takes a call out looks
//! at the rest in the same way: so calls that end quickly need few threads, and calls that wait for each other have one each. A thread that has no call waits for
//! the next one, for good.
//!
//! # When no thread can be started
//!
//! If other threads are there, the call stays in the queue. The first of them that has ended its call makes it, as when the bound is reached. If there is none, the
//! call is taken out of the queue, and refused with the system's error.
//!
//! # Invariants
//!
//! * **BT1** All is decided under one lock, a start of a thread too. So while there is no thread, no call is queued but the one whose start is tried.
//! * **BT2** A thread never leaves, so a call that was accepted is made when others have ended.
//! * **BT3** `idle` counts the threads that come to the queue before they do anything else: those that wait, those that were notified, those that were started.

use std::collections::VecDeque;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError}; // not modelled: one lock, under which all is decided
use std::thread;

/// How many threads there are at most, unless the environment says otherwise.
const MOST: usize = 500;
/// Says how many.
const VARIABLE: &str = "BLOCKING_MAX_THREADS";

/// A call, and what tells its caller. It does not panic.
pub(super) type Call = Box<dyn FnOnce() + Send>;

/// The threads of the process.
static THREADS: Threads = Threads {
    state: Mutex::new(State { calls: VecDeque::new(), idle: 0, all: 0, most: None }),
    came: Condvar::new(),
};

struct Threads {
    state: Mutex<State>,
    /// For idle threads: a call is queued.
    came: Condvar,
}

struct State {
    calls: VecDeque<Call>,
    idle: usize,
    all: usize,
    /// Read from the environment at the first call.
    most: Option<usize>,
}

/// Has the call made by one of the threads.
///
/// # Errors
///
/// The system's, if there is no thread and none could be started.
pub(super) fn make(call: Call) -> io::Result<()> {
    THREADS.make(call)
}

impl Threads {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make(&'static self, call: Call) -> io::Result<()> {
        let mut state = self.lock();
        state.calls.push_back(call);
        match self.grow(&mut state) {
            Err(error) if state.all == 0 => {
                // BT1: its own.
                let refused = state.calls.pop_back();
                drop(state);
                // It is the user's closure, whose destructor may make a call.
                drop(refused);
                return Err(error);
            }
            // BT2: one of the others makes it.
            Ok(()) | Err(_) => drop(state),
        }
        self.came.notify_one();
        Ok(())
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
            state = self.came.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// How many threads there may be.
fn most() -> usize {
    let told = std::env::var(VARIABLE).ok().and_then(|told| told.parse().ok());
    told.map_or(MOST, |told: usize| told.max(1))
}
