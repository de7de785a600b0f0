//! Waiting for a request in a model, and leaving: `wait.rs`.

use std::cell::Cell;
use std::sync::Arc;

use forebear_context::context::{Cause, Table};
use forebear_runtime::model::word::{Bits, Cancel, Demand, FINISHED, HELD, NEW, PRIVATE, WAITERS};

use super::{BLOCKING, Job, Waiter};

impl Job {
    /// A waiter for this request.
    pub fn waiter(&self, table: &'static Table) -> Arc<Waiter> {
        let waiter = Waiter::new(table);
        self.kept.lock().unwrap().push(Arc::clone(&waiter));
        waiter
    }

    /// `wait::until_over`, and how it went. `lends`: the waiter runs what has not started; with `listed`, its own
    /// worker's private queue, it takes the entry out of there.
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
                let claimed = match bits.life() {
                    NEW => self.word.claim_new(),
                    _ => self.word.claim_by_waiter(own.is_some()).is_ok(),
                };
                if claimed {
                    if let Some(listed) = own {
                        self.take_out(listed);
                    }
                    self.execute(false);
                    how = How::Ran;
                }
                continue;
            }
            assert_ne!(bits.life(), NEW, "the models that begin with a new one lend");
            if !self.stand(waiter) {
                continue;
            }
            self.park(waiter);
            return How::Parked;
        }
    }

    /// A thread's wait by a handle that it lets go of then: it lends its stack if nobody has started the request.
    pub fn wait_and_go(&self) -> How {
        let how = self.wait(&self.waiter(&BLOCKING), true, None);
        self.drop_handle();
        how
    }

    /// Parks a waiter that stands in the list, until it is woken.
    pub fn park(&self, waiter: &Waiter) {
        assert_eq!(self.park_or_leave(waiter), Left::Woken);
    }

    /// The same of one that may be cancelled meanwhile, when it leaves, and asks.
    pub fn park_or_leave(&self, waiter: &Waiter) -> Left {
        // SAFETY: on the context's own thread, after `begin`.
        match unsafe { waiter.context().park(None) } {
            Cause::Woken => {
                waiter.leave_frame();
                self.touch();
                assert!(self.word.load().is_terminal(), "woken before the end");
                Left::Woken
            }
            cause => self.leave_settled(waiter, cause),
        }
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
        let _turn = self.turn();
        self.touch();
        let locked = self.word.lock();
        if locked.is_ok_and(|bits| bits.life() == NEW) {
            // A pool that held it back has let go of it.
            self.word.unlock(|bits| bits);
        }
        if locked.map_or(true, |bits| bits.life() == NEW) {
            // SAFETY: C2: by the thread that stands for its stack; begun above, and not parked.
            unsafe { waiter.context().abandon(waiter.ticket()) };
            waiter.leave_frame();
            return false;
        }
        // SAFETY: Q1: the lock is ours; Q2, J1.
        self.list.with_mut(|_| unsafe { self.waiters.push(waiter.node()) });
        self.touch();
        self.word.unlock(|bits| Bits(bits.0 | WAITERS));
        true
    }

    /// A waiter that stands in the list does not want to wait any longer: its time is up, or it is cancelled.
    pub fn leave(&self, waiter: &Waiter, cause: Cause) -> Left {
        if !waiter.context().settle(waiter.ticket(), cause) {
            self.park(waiter);
            return Left::Woken;
        }
        self.leave_settled(waiter, cause)
    }

    fn leave_settled(&self, waiter: &Waiter, cause: Cause) -> Left {
        let turn = self.turn();
        self.touch();
        let answer = self.word.leave(cause == Cause::Cancelled, |scan| {
            self.touch();
            // SAFETY: Q1: the lock is ours; Q2: it stands in the list.
            self.list.with_mut(|_| unsafe { self.waiters.unlink(waiter.node()) });
            if scan || self.waiters.is_empty() { self.demand() } else { Demand::Live }
        });
        drop(turn);
        let left = match answer {
            Ok(answer) => Left::Unlinked(self.act(answer)),
            Err(_) => {
                waiter.node().await_release();
                Left::Released
            }
        };
        waiter.leave_frame();
        left
    }

    /// What stands in the list. By the holder of the lock.
    pub(super) fn demand(&self) -> Demand {
        // SAFETY: Q1: the lock is ours; Q2: whoever stands in the list is there.
        let wanted = self.list.with_mut(|_| unsafe {
            self.waiters
                .find_to_front(|node| node.context().is_none_or(|context| Waiter::of(context).is_demand()))
        });
        match wanted {
            true => Demand::Live,
            false if self.waiters.is_empty() => Demand::Nobody,
            false => Demand::Idle,
        }
    }

    /// `Request::get`, of a request that is known to have finished.
    pub fn read(&self) {
        self.touch();
        assert_eq!(self.word.load().life(), FINISHED);
        // SAFETY: J1.
        self.value.with(|value| assert_eq!(unsafe { *value }, Some(7), "a value that is not there"));
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
    /// It took its node out, and that came to this.
    Unlinked(Cancel),
    /// The finisher had its node, and let go of it.
    Released,
    /// The end came first.
    Woken,
}

/// A name for how a waiter left, and what its leaving came to.
pub fn told_left(left: Left) -> &'static str {
    match left {
        Left::Unlinked(Cancel::Ended) => "left, ended it",
        Left::Unlinked(Cancel::Marked) => "left, marked it",
        Left::Unlinked(Cancel::MarkedShielded) => "left, marked it, shielded",
        Left::Unlinked(Cancel::Vetoed) => "left, others stay",
        Left::Unlinked(Cancel::AlreadyMarked) => "left, already marked",
        Left::Unlinked(Cancel::TooLate) => "left, too late",
        Left::Unlinked(Cancel::Unasked) => "left",
        Left::Released => "released",
        Left::Woken => "woken",
    }
}
