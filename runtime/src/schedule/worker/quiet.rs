//! When a worker gives stacks that lie free back, and their memory to the system: when all has been quiet for a while.
//!
//! What ends is often followed by more that ends, or by something that wants a stack again; and giving back interrupts the other
//! processors too ([`crate::stack::slab`]). A worker whose next task comes in ten microseconds must not spend a hundred on that. So a
//! worker that has nothing to do sleeps for [`QUIET`] first, and then goes on in pieces, looking for work after each. Where it never gets as
//! quiet as that, one piece now and then keeps what a peak has left from staying for ever.
//!
//! A worker keeps stacks and cells for the next requests. It releases them later, if none was taken between two checks
//! that are [`LOOK`] apart. It checks stacks itself ([`super::coroutines`]). Cells it gives to the runtime's stock at
//! once, which checks them ([`crate::record::arena`]).
//!
//! Nothing is read from the clock while little lies free, and nobody who sleeps is woken for this, unless by a thread that is no worker and
//! gives much away.

use std::cell::Cell;
use std::time::{Duration, Instant};

use forebear_context::shim::time;

use super::Worker;
use crate::record::arena::LOOK;

/// Since when this worker has had nothing to do, and when it last gave something back.
#[derive(Default)]
pub(super) struct Quiet {
    since: Cell<Option<Instant>>,
    last: Cell<Option<Instant>>,
    /// How much it had done by then.
    done: Cell<u64>,
    /// When it last looked what nobody takes.
    looked: Cell<Option<Instant>>,
}

/// After so long nothing is expected to come soon.
const QUIET: Duration = Duration::from_millis(2);
/// However busy it is, it gives something back after so long.
const NOW_AND_THEN: Duration = Duration::from_millis(50);
/// Calls of the system in a piece.
const CALLS: usize = 32;

impl Worker {
    /// The worker has nothing to do: gives back a piece, if it is time to. Answers after how long it is to be asked again, if there is
    /// more.
    #[inline]
    pub(crate) fn trim_if_quiet(&self) -> Option<Duration> {
        let (slab, stock) = (&self.shared().slab, &self.shared().depot.stock);
        let look = if self.has_spare() { self.look_what_is_spare() } else { None };
        let cells = stock.is_to_be_inspected().then(|| stock.inspect(time::now()));
        let trim = if slab.is_to_be_trimmed() { self.trim_by_the_clock() } else { None };
        look.into_iter().chain(cells).chain(trim).min()
    }

    fn has_spare(&self) -> bool {
        self.has_coroutines_to_retire() || self.arena().has_spare_cells()
    }

    /// A worker without a thread returns all its coroutines with its seat, so it has none to retire.
    fn has_coroutines_to_retire(&self) -> bool {
        self.driver.is_none() && self.has_spare_coroutines()
    }

    #[cold]
    fn look_what_is_spare(&self) -> Option<Duration> {
        let (looked, now) = (&self.quiet.looked, time::now());
        match looked.get().map(|last| LOOK.saturating_sub(now - last)) {
            Some(left) if !left.is_zero() => Some(left),
            Some(_) if self.has_coroutines_to_retire() && !self.retire_unused() => Some(Duration::ZERO),
            _ => {
                looked.set(Some(now));
                self.arena().give_spare_cells();
                self.has_spare().then_some(LOOK)
            }
        }
    }

    #[cold]
    fn trim_by_the_clock(&self) -> Option<Duration> {
        let (quiet, slab, now) = (&self.quiet, &self.shared().slab, time::now());
        let done = self.started.get() + self.ready().picks();
        let since = match quiet.since.get() {
            Some(since) if quiet.done.get() == done => since,
            _ => now,
        };
        quiet.since.set(Some(since));
        quiet.done.set(done);
        let last = quiet.last.get().unwrap_or(now);
        quiet.last.set(Some(last));
        let left = QUIET.saturating_sub(now - since);
        let mut again = left;
        if left.is_zero() || now - last >= NOW_AND_THEN {
            quiet.last.set(Some(now));
            if !slab.trim_some(CALLS) {
                // Other workers are trimming all there is.
                again = QUIET;
            }
        }
        slab.is_to_be_trimmed().then_some(again)
    }
}
