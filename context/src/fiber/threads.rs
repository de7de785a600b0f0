//! Fibers by OS threads in hand-off: one token, passed under a lock, says whose turn it is.
//!
//! Slow, and with thread-locals per fiber, but every tool that understands threads understands it. The token is passed
//! under a parking mutex, so there is a happens-before edge at every switch, as there is in program order with real
//! stacks. The memory given to [`Fiber::start`] is used for the context's control block only; frames live on the
//! thread's own stack, so an overflow is reported by std.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use super::{Body, StackMemory};
use crate::context::{self, Context};

type Next = Option<NonNull<Context>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    Thread,
    Fiber,
    /// The fiber's thread ends without going on.
    Over,
}

struct Hand {
    state: Mutex<(Turn, Option<usize>)>,
    passed: Condvar,
}

impl Hand {
    fn pass(&self, to: Turn, next: Next) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        *state = (to, next.map(|p| p.as_ptr() as usize));
        self.passed.notify_all();
    }

    /// Waits until it is `mine`; `Err` when the hand is over.
    fn await_turn(&self, mine: Turn) -> Result<Next, ()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        while state.0 != mine {
            if state.0 == Turn::Over {
                return Err(());
            }
            state = self.passed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        Ok(state.1.and_then(|p| NonNull::new(p as *mut Context)))
    }
}

/// One OS thread that runs only while it is its turn.
#[derive(Default)]
pub struct Fiber {
    hand: Cell<Option<NonNull<Hand>>>,
}

impl Fiber {
    /// A fiber without a stack.
    pub const fn none() -> Fiber {
        Fiber { hand: Cell::new(None) }
    }

    fn hand(&self) -> Arc<Hand> {
        let Some(hand) = self.hand.get() else { unreachable!("the fiber was never started") };
        // SAFETY: the pointer came from `Arc::into_raw` in `start` and its count is held until `reset`.
        unsafe {
            Arc::increment_strong_count(hand.as_ptr());
            Arc::from_raw(hand.as_ptr())
        }
    }

    /// Starts the thread; `body` runs at the first [`resume`](Self::resume).
    ///
    /// # Safety
    ///
    /// As the production backend's.
    pub unsafe fn start(&self, memory: StackMemory, body: Body, context: NonNull<Context>) {
        struct Sendable(NonNull<Context>);
        // SAFETY: F1 and F4: only one of the two threads touches the context at a time, by the token.
        unsafe impl Send for Sendable {}
        let hand = Arc::new(Hand { state: Mutex::new((Turn::Thread, None)), passed: Condvar::new() });
        let theirs = hand.clone();
        let sendable = Sendable(context);
        let spawned = std::thread::Builder::new()
            .name("forebear fiber".into())
            .stack_size((memory.base - memory.limit).max(1 << 20))
            .spawn(move || {
                let context = { sendable }.0;
                if theirs.await_turn(Turn::Fiber).is_err() {
                    return;
                }
                drop(theirs);
                // SAFETY: F3: the context outlives the fiber; this thread is the fiber.
                unsafe {
                    context::set_current(Some(context));
                    body(context)
                }
            });
        if let Err(error) = spawned {
            eprintln!("forebear: no thread for a fiber: {error}");
            std::process::abort();
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
        hand.pass(Turn::Fiber, None);
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
        if hand.await_turn(Turn::Fiber).is_err() {
            // The runtime is gone and the frames below are dead: this thread must neither return nor unwind.
            drop(hand);
            loop {
                std::thread::park();
            }
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

    /// Ends the thread if it never ran; otherwise leaves it parked for ever, as a stack that was not unwound is leaked.
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
    }
}

impl std::fmt::Debug for Fiber {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Fiber").field("started", &self.hand.get().is_some()).finish_non_exhaustive()
    }
}
