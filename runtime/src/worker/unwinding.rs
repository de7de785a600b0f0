//! Waits in destructors that an unwind runs.
//!
//! std counts the panics of a thread, not of a stack. A stack that is left in the middle of an unwind leaves that count
//! behind for whatever runs next: `std::thread::panicking` is true there, and locks that it lets go of are poisoned. Our own
//! `scope` and `join` catch the unwind before they wait; a destructor of the user's may not. Then
//!
//! * if nothing else is on this worker that could run meanwhile, the thread blocks until the wait is over;
//! * else, if an error of ours travels (a cancel, mostly), the stack is left all the same, and the runtime warns once;
//! * else it is a real panic, and the process is ended by name.
//!
//! Such a wait is shielded: it answers what it waited for also in a cancelled request. While a stack of this worker stands
//! still in an unwind, `panicking` tells nothing about the others, so they are believed to be in one only if an error is
//! known to travel on them.

use std::ptr::{self, NonNull};

use forebear_context::lineage::NO_KEY;
use forebear_context::shim::atomic::Ordering;

use super::Worker;
use crate::attention::{NOTICE, RAISED};
use crate::carrier::Carrier;
use crate::header::Header;
use crate::hooks;
use crate::strand::{LEFT_UNWINDING, Strand};

/// Whether what runs on the strand is called by an unwind.
#[inline]
pub(crate) fn is_unwinding(strand: &Strand) -> bool {
    std::thread::panicking()
        && (strand.context().unwinding().get()
            || strand.worker().is_none_or(|worker| worker.left_unwinding.get() == 0))
}

impl Worker {
    /// Whom to enter when a strand that unwinds leaves parked; `Err`: as any other.
    #[cold]
    pub(super) fn leave_unwinding(&self, strand: &Strand) -> Result<Option<NonNull<Carrier>>, ()> {
        let shared = self.shared();
        let alone = self.busy_carriers.get() <= 1
            && self.list.front().is_none()
            && self.post.shelf.key() == NO_KEY
            && shared.roots.key() == NO_KEY
            && !self.has_put_aside();
        if alone && self.driver.is_none() {
            return Ok(self.block(strand));
        }
        let name = strand.request().map_or("", Header::name);
        if !alone && !strand.context().unwinding().get() {
            hooks::die(&format_args!(
                "a destructor waits in request '{name}' while a panic unwinds it, and other requests of this worker would \
                 have to run meanwhile: std cannot tell whose panic it is; do not wait in destructors, or catch the panic \
                 first"
            ));
        }
        if !alone && !shared.warned_of_unwind.swap(true, Ordering::Relaxed) {
            hooks::warn(
                shared,
                &format!(
                    "a destructor waits in request '{name}' while an error unwinds it: meanwhile other requests of this \
                     worker find std::thread::panicking() true, and poison the std locks they let go of"
                ),
            );
        }
        self.left_unwinding.set(self.left_unwinding.get() + 1);
        strand.left.set(strand.left.get() | LEFT_UNWINDING);
        Err(())
    }

    /// The strand was entered again.
    #[cold]
    pub(crate) fn back_unwinding(&self, strand: &Strand) {
        strand.left.set(strand.left.get() & !LEFT_UNWINDING);
        self.left_unwinding.set(self.left_unwinding.get() - 1);
    }

    /// Blocks the thread until the strand may go on. Nothing else of this worker has begun.
    fn block(&self, strand: &Strand) -> Option<NonNull<Carrier>> {
        self.engine().wait_for_wake(
            || self.keep_time(self.before_sleep_in(None)),
            || {
                self.collect_mail();
                if self.post.attention.get() & (RAISED | NOTICE) != 0 {
                    self.attend(true);
                }
                let ready = self.ready().pop(true)?;
                debug_assert!(ptr::eq(ready.as_ptr(), strand), "nothing else has begun here");
                Some(None)
            },
        )
    }
}
