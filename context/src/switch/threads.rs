//! Fibers by OS threads in hand-off: one token, passed under a lock, says whose turn it is.
//!
//! Slow, and with thread-locals per fiber, but every tool that understands threads understands it. The memory given to
//! [`Switch::start`] is used for the context's control block only; frames live on the thread's own stack, so an overflow
//! is reported by std.
//!
//! # The hand-over
//!
//! | turn | who runs | who changes it |
//! |---|---|---|
//! | `Thread` | the worker's own thread | it, in `resume`: to `Switch`; in `reset`: to `Over` |
//! | `Switch` | the fiber's thread | it, in `leave`: to `Thread` |
//! | `Over` | nobody here | nobody |
//!
//! Exactly one of the two threads runs between two changes. The thread that waits for its turn sees all that the other
//! did before it passed the token, since both access it under one lock. With real stacks the program order of one
//! thread gives the same order. So a race that is found here is one between workers, and no race of production is
//! hidden. The lock is the shim's; in this build ThreadSanitizer follows it.
//!
//! # A fiber that is over
//!
//! A fiber whose frames are not needed any more (F3) is forgotten in production: its memory is used for another. A
//! thread cannot be forgotten, and thousands of threads that stay would be too many. So here it ends: [`Switch::leave`]
//! unwinds through the frames below up to the start of the thread. The payload is of a type of its own, and no panic
//! hook is called. Callers of [`Switch::reset`] make sure that these frames are a loop's alone, which has nothing to
//! drop. The thread accesses neither the context nor the stack memory any more, since both may be freed. It accesses
//! only the token, of which it has a count. Where panics abort, the thread stays parked instead.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::NonNull;
use std::sync::PoisonError;

use super::{Body, StackMemory};
use crate::context::{self, Context};
use crate::shim::{Arc, Condvar, Mutex, MutexGuard, thread};

type Next = Option<NonNull<Context>>;

/// Frames are several times as large under a sanitizer, and the memory is virtual until touched.
const LEAST_STACK: usize = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Thread,
    Switch,
    /// The fiber's thread does not continue.
    Over,
}

#[derive(Debug)]
struct Token {
    turn: Turn,
    /// Whom the worker enters next, said by a fiber that leaves.
    next: Next,
}

// SAFETY: the pointer is only carried; the worker that made it is the one that follows it (F1).
unsafe impl Send for Token {}

#[derive(Debug)]
struct Hand {
    token: Mutex<Token>,
    passed: Condvar,
}

impl Hand {
    fn lock(&self) -> MutexGuard<'_, Token> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pass(&self, turn: Turn, next: Next) {
        *self.lock() = Token { turn, next };
        // One of the two waits at most.
        self.passed.notify_one();
    }

    /// Waits until it is `mine`; `Err` when the fiber is over.
    fn await_turn(&self, mine: Turn) -> Result<Next, ()> {
        let mut token = self.lock();
        while token.turn != mine {
            if token.turn == Turn::Over {
                return Err(());
            }
            token = self.passed.wait(token).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(token.next.take())
    }
}

/// What the thread of a fiber that is over unwinds with.
struct Ended;

/// One OS thread that runs only while it is its turn.
#[derive(Default)]
pub struct Switch {
    /// A count of the hand from `start` to `reset`.
    hand: Cell<Option<NonNull<Hand>>>,
    thread: Cell<Option<thread::JoinHandle<()>>>,
}

impl Switch {
    /// A fiber without a stack.
    pub const fn none() -> Switch {
        Switch { hand: Cell::new(None), thread: Cell::new(None) }
    }

    /// The hand, by a count of one's own: the fiber's goes at `reset`, while its thread is still waiting in it.
    fn hand(&self) -> Arc<Hand> {
        let Some(hand) = self.hand.get() else { unreachable!("the fiber was never started") };
        // SAFETY: the pointer came from `Arc::into_raw` in `start`, whose count `reset` gives back; F1 and F2: nobody
        // resumes or leaves a fiber after its reset.
        unsafe { Arc::increment_strong_count(hand.as_ptr()) };
        // SAFETY: the count just taken.
        unsafe { Arc::from_raw(hand.as_ptr()) }
    }

    /// Starts the thread; `body` runs at the first [`resume`](Self::resume). Aborts the process if the system refuses a
    /// thread.
    ///
    /// # Safety
    ///
    /// As the production backend's.
    pub unsafe fn start(&self, memory: StackMemory, body: Body, context: NonNull<Context>) {
        struct Sendable(NonNull<Context>);
        // SAFETY: F1 and F4: only one of the two threads touches the context at a time, by the token.
        unsafe impl Send for Sendable {}
        let token = Mutex::new(Token { turn: Turn::Thread, next: None });
        let hand = Arc::new(Hand { token, passed: Condvar::new() });
        let theirs = hand.clone();
        let sendable = Sendable(context);
        // Named as the worker that it is a part of.
        let name = thread::current().name().unwrap_or("forebear fiber").to_owned();
        let spawned = thread::Builder::new()
            .name(name)
            .stack_size((memory.base - memory.limit).max(LEAST_STACK))
            .spawn(move || {
                let context = { sendable }.0;
                if theirs.await_turn(Turn::Switch).is_err() {
                    return;
                }
                drop(theirs);
                // SAFETY: F3: the context outlives the fiber, and this thread is the fiber.
                unsafe { context::set_current(Some(context)) };
                // SAFETY: the body is given the context it was started with. It does not return.
                let Err(payload) = catch_unwind(AssertUnwindSafe(|| unsafe { body(context) }));
                if !payload.is::<Ended>() {
                    // A body does not unwind, as it could not out of a coroutine of its own.
                    eprintln!("forebear: a fiber's body panicked; the process ends");
                    std::process::abort();
                }
                // SAFETY: no context is always valid.
                unsafe { context::set_current(None) };
            });
        match spawned {
            Ok(thread) => self.thread.set(Some(thread)),
            Err(error) => {
                eprintln!("forebear: no thread for a fiber: {error}");
                std::process::abort();
            }
        }
        self.hand.set(NonNull::new(Arc::into_raw(hand).cast_mut()));
    }

    /// Lets the fiber run until it leaves.
    ///
    /// # Safety
    ///
    /// F1.
    pub unsafe fn resume(&self) -> Next {
        let hand = self.hand();
        hand.pass(Turn::Switch, None);
        // Only the worker ends a fiber, and it is here.
        hand.await_turn(Turn::Thread).unwrap_or(None)
    }

    /// Hands the token back. Returns when resumed.
    ///
    /// # Safety
    ///
    /// F2.
    pub unsafe fn leave(&self, next: Next) {
        let hand = self.hand();
        hand.pass(Turn::Thread, next);
        if hand.await_turn(Turn::Switch).is_err() {
            drop(hand);
            end_thread();
        }
    }

    /// Calls `f`: the fiber's stack is a thread's own.
    ///
    /// # Safety
    ///
    /// As the production backend's.
    pub unsafe fn on_thread_stack(&self, f: &mut dyn FnMut()) {
        f();
    }

    /// Lets the thread end, and waits for that; see the module head.
    ///
    /// # Safety
    ///
    /// F1, F3.
    pub unsafe fn reset(&self) {
        if let Some(hand) = self.hand.take() {
            // SAFETY: the count taken in `start`.
            let hand = unsafe { Arc::from_raw(hand.as_ptr()) };
            hand.pass(Turn::Over, None);
        }
        if let Some(thread) = self.thread.take()
            && cfg!(panic = "unwind")
        {
            // It waits for its turn, which it was just told does not come; nothing else keeps it.
            if thread.join().is_err() {
                eprintln!("forebear: the thread of a fiber panicked; the process ends");
                std::process::abort();
            }
        }
    }
}

/// See the module head, at the end.
fn end_thread() -> ! {
    if cfg!(panic = "unwind") {
        resume_unwind(Box::new(Ended));
    }
    loop {
        thread::park();
    }
}

impl std::fmt::Debug for Switch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Switch").field("started", &self.hand.get().is_some()).finish_non_exhaustive()
    }
}
