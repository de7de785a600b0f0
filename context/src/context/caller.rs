//! Who calls, as a number: the request, or outside any request the thread.
//!
//! Numbers are never used again in a process, so one that outlives its owner names nobody else. A forked child goes on counting where
//! its parent was.

use std::cell::Cell;
use std::num::NonZeroU64;

use super::current;
use crate::shim::atomic::Ordering;

/// Who calls. Equal if and only if it is the same request, without the arms of its joins that run on other stacks; the same of these arms; or the same thread
/// outside any request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Caller {
    /// The request of this number. A region with a limit, and an arm of a join on the stack of its `join`, count as the request that called them. A request
    /// that is run on its waiter's stack counts as itself, and an arm on another stack has a number of its own.
    Request(NonZeroU64),
    /// A thread, outside any request, by its number.
    Thread(NonZeroU64),
}

/// The caller of this function. Does not suspend.
pub fn caller() -> Caller {
    let request = current().map_or(0, |here| {
        // SAFETY: the current context is valid, by the contract of `set_current`.
        let here = unsafe { here.as_ref() };
        // SAFETY: this is the stack of the context, as the table asks.
        unsafe { (here.table().request_number)(here) }
    });
    NonZeroU64::new(request).map_or_else(|| Caller::Thread(this_thread()), Caller::Request)
}

/// The number of the calling thread, which no other thread has or has had. Also while the thread's locals are destroyed.
#[must_use]
pub fn this_thread() -> NonZeroU64 {
    static LAST: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0); // not modelled: it only counts
    thread_local!(static NUMBER: Cell<Option<NonZeroU64>> = const { Cell::new(None) });
    NUMBER.with(|number| {
        let known = number.get();
        let known =
            known.unwrap_or_else(|| NonZeroU64::MIN.saturating_add(LAST.fetch_add(1, Ordering::Relaxed)));
        number.set(Some(known));
        known
    })
}
