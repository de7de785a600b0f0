//! What a worker has put aside for its loop: requests to end, values to drop, and a warning. Each of them runs user
//! code. That may not run where it was put aside: in the middle of a wait, or while the worker handles messages or
//! publishes.
//!
//! All of it is touched by the worker's own thread alone (V1). While there is any, the worker's attention word says so.

use std::cell::{Cell, UnsafeCell};
use std::ptr::NonNull;

use crate::record::drop_queue::DropQueues;
use crate::record::header::Header;
use crate::record::side::Side;

/// See the module head.
pub(crate) struct PutAside {
    /// Each claimed, with the runner's link.
    requests: UnsafeCell<Vec<NonNull<Header>>>,
    /// What stacks of this worker have put off to the end of a destructor; for the loop if they wait there.
    pub put_off: DropQueues<Header>,
    #[allow(clippy::vec_box, reason = "they are on their way to where boxes go")]
    late: UnsafeCell<Vec<Box<Side>>>,
    warning: Cell<Option<String>>,
    warns: Cell<bool>,
    /// Nothing of the user's may be dropped: the worker is in the middle of something.
    holds: Cell<bool>,
}

impl PutAside {
    /// Nothing.
    pub(crate) fn new() -> PutAside {
        PutAside {
            requests: UnsafeCell::default(),
            put_off: DropQueues::new(),
            late: UnsafeCell::default(),
            warning: Cell::new(None),
            warns: Cell::new(false),
            holds: Cell::new(false),
        }
    }

    /// These are to be ended.
    pub(crate) fn add(&self, requests: Vec<NonNull<Header>>) {
        // SAFETY: V1.
        unsafe { &mut *self.requests.get() }.extend(requests);
    }

    /// The next that is to be ended.
    pub(crate) fn next(&self) -> Option<NonNull<Header>> {
        // SAFETY: V1.
        unsafe { &mut *self.requests.get() }.pop().or_else(|| self.put_off.take())
    }

    /// Takes all that are to be ended, since the worker's stacks are left behind.
    pub(crate) fn take_all(&self) -> Vec<NonNull<Header>> {
        // SAFETY: V1.
        let mut all = std::mem::take(unsafe { &mut *self.requests.get() });
        all.extend(std::iter::from_fn(|| self.put_off.take()));
        self.put_off.forget();
        all
    }

    /// Calls `with` for each that is to be ended.
    pub(crate) fn each(&self, with: impl FnMut(&Header)) {
        // SAFETY: V1.
        let requests = unsafe { &*self.requests.get() };
        // SAFETY: claimed, with the runner's link, until the loop takes them.
        requests.iter().map(|header| unsafe { header.as_ref() }).for_each(with);
    }

    /// This is to be dropped.
    pub(crate) fn drop_later(&self, side: Box<Side>) {
        // SAFETY: V1.
        unsafe { &mut *self.late.get() }.push(side);
    }

    /// The next that is to be dropped.
    pub(crate) fn next_late(&self) -> Option<Box<Side>> {
        // SAFETY: V1.
        unsafe { &mut *self.late.get() }.pop()
    }

    /// Whether anything is to be dropped.
    pub(crate) fn has_late(&self) -> bool {
        // SAFETY: V1.
        !unsafe { &*self.late.get() }.is_empty()
    }

    /// There is something to warn of.
    pub(crate) fn warn_later(&self, what: String) {
        self.warning.set(Some(what));
        self.warns.set(true);
    }

    /// Whether there is.
    pub(crate) fn warns(&self) -> bool {
        self.warns.get()
    }

    /// What it is.
    pub(crate) fn take_warning(&self) -> Option<String> {
        self.warns.set(false);
        self.warning.take()
    }

    /// Whether there is anything at all.
    pub(crate) fn is_any(&self) -> bool {
        // SAFETY: V1.
        let ends = !unsafe { &*self.requests.get() }.is_empty();
        self.warns() || self.has_late() || ends || !self.put_off.is_empty()
    }

    /// Calls `f`, in which nothing of the user's is dropped.
    pub(crate) fn hold_back<R>(&self, f: impl FnOnce() -> R) -> R {
        let before = self.holds.replace(true);
        let result = f();
        self.holds.set(before);
        result
    }

    /// Whether `hold_back` calls.
    pub(crate) fn holds_back(&self) -> bool {
        self.holds.get()
    }
}
