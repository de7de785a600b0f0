//! Waits in destructors that an unwind runs.
//!
//! std counts the panics of a thread, not of a stack. If a stack is left in the middle of an unwind, that count applies
//! to whatever runs next on the thread. `std::thread::panicking` is true there, and std locks that it releases are
//! poisoned. Our own `scope` and `join` catch the unwind before they wait; a user's destructor may not. Then
//!
//! * if no other request of this worker could run meanwhile, the thread *blocks* until the wait is over;
//! * otherwise, if the unwind carries an error of forebear's (mostly a cancel), the stack is suspended all the same,
//!   and the runtime warns once;
//! * otherwise it is a real panic, and the process ends with a message that names the request.
//!
//! Requests that are submitted while the thread blocks may be what the wait needs. Other workers take them. There may
//! be none, or all of them may block like this one. Then the stack is left after all if an error of ours unwinds it. A
//! real panic gives the wait one more second ([`PATIENCE`]), and then the process ends, with a message that names the
//! request. No other thread would ever run the new requests. A worker that blocks is not notified of work for any
//! worker, so it polls now and then ([`LOOK`]).
//!
//! Where the user's threads drive the worker, the fiber leaves, and the driver blocks (`driven/unwinding.rs`).
//!
//! Such a wait is shielded: it returns its result also in a cancelled request. While a stack of this worker is
//! suspended in an unwind, `panicking` says nothing about the others. So another stack counts as unwinding only if an
//! error of ours is known to unwind it.

use std::ptr::{self, NonNull};
use std::time::Duration;

use forebear_context::context::Reason;
use forebear_context::lineage::NO_KEY;
use forebear_context::shim::time;

use super::Worker;
use crate::record::fiber::{Fiber, LEFT_UNWINDING};
use crate::record::header::Header;
use crate::record::report;
use crate::stack::coroutine::Coroutine;
use crate::state::attention::{MESSAGE, RAISED};

/// How long something may wait for a worker that blocks in a panic, and that alone could run it.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
/// How often such a worker looks whether anything has come.
pub(super) const LOOK: Duration = Duration::from_millis(10);

impl Worker {
    /// Whom to enter when a fiber that unwinds leaves parked; `Err`: as any other.
    #[cold]
    pub(super) fn leave_unwinding(&self, fiber: &Fiber) -> Result<Option<NonNull<Coroutine>>, ()> {
        let alone = self.has_one_stack() && !self.has_drawable() && !self.has_unstarted();
        if !alone {
            self.leave_among_others(fiber);
        } else if self.is_given_up() {
            self.mark_left_unwinding(fiber);
        } else if self.driver.is_some() {
            return Ok(self.leave_alone(fiber));
        } else if self.block(fiber).is_ok() {
            return Ok(None);
        } else {
            self.leave_among_others(fiber);
        }
        Err(())
    }

    /// Other work of this worker is to run while the fiber, which unwinds, stands in its wait.
    pub(super) fn leave_among_others(&self, fiber: &Fiber) {
        let name = fiber.request().map_or("", Header::name);
        if !fiber.context().unwinding().get() {
            report::die(&format_args!(
                "a destructor waits in request '{name}' while a panic unwinds it, and other requests of this worker \
                 would have to run meanwhile: std cannot tell whose panic it is; do not wait in destructors, or catch \
                 the panic first"
            ));
        }
        if self.shared().unwind_waits.is_first_warning() {
            self.warn_later(format!(
                "a destructor waits in request '{name}' while an error unwinds it: meanwhile other requests of this \
                 worker find std::thread::panicking() true, and poison the std locks they let go of"
            ));
        }
        self.mark_left_unwinding(fiber);
    }

    fn mark_left_unwinding(&self, fiber: &Fiber) {
        self.add_left_unwinding(1);
        fiber.left.set(fiber.left.get() | LEFT_UNWINDING);
    }

    /// Whether there is anything that has not begun, and that this worker could take without another's help.
    pub(super) fn has_unstarted(&self) -> bool {
        self.has_private()
            || self.post.shared_queue.key() != NO_KEY
            || self.post.held.key() != NO_KEY
            // What was claimed by other ways may still stand there.
            || self.shared().injector.any_by_now(|root| root.word().load().is_unstarted())
    }

    /// Whether some of that is nobody else's.
    fn has_private(&self) -> bool {
        self.list.front().is_some() || self.put_aside.is_any()
    }

    /// The fiber was entered again.
    #[cold]
    pub(crate) fn back_unwinding(&self, fiber: &Fiber) {
        fiber.left.set(fiber.left.get() & !LEFT_UNWINDING);
        self.sub_left_unwinding(1);
    }

    /// Blocks the thread until the fiber may continue, nothing else of this worker having begun. `Err`: something else is to run first.
    fn block(&self, fiber: &Fiber) -> Result<(), ()> {
        let waits = &self.shared().unwind_waits;
        waits.begin_block();
        let mut since = None;
        let found = self.engine().wait_for_wake(
            || Some(self.keep_time(self.before_sleep_in(None)).map_or(LOOK, |left| left.min(LOOK))),
            || {
                self.collect_mail();
                if self.post.attention.get() & (RAISED | MESSAGE) != 0 {
                    self.attend(true);
                }
                if let Some(ready) = self.ready().pop(true) {
                    debug_assert!(ptr::eq(ready.as_ptr(), fiber), "nothing else has begun here");
                    return Some(Ok(()));
                }
                let nobody_else =
                    || self.has_private() || waits.blocked() == self.shared().worker_records().len();
                let stuck =
                    self.has_unstarted() && nobody_else() && fiber.context().waits_for().0 != Reason::Sleep;
                if !stuck {
                    since = None;
                    return None;
                }
                let since = *since.get_or_insert_with(time::now);
                (fiber.context().unwinding().get() || since.elapsed() > PATIENCE).then_some(Err(()))
            },
        );
        waits.end_block();
        found
    }
}
