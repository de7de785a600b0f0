//! Lists of callbacks: what is to be called when a request ends, as the request keeps it. `H` is a request's header. The head of [`crate::schedule::callbacks`] says which are
//! called when; invariants CB1 to CB3 are there.
//!
//! # The life of a node
//!
//! [`Call::new`] allocates a node with the closure behind it, and forgets the closure's type: the node keeps one function that knows it. A node belongs to
//! one [`Call`], or to one list, which gives it back as a `Call`. A `Call` is consumed once: called, or dropped with the closure. The function takes the closure out
//! and frees the node *before* it calls, so a closure that unwinds or never returns leaks no node.
//!
//! A list has no lock of its own: the one of a request is guarded by CB1. Lists are dropped by a loop, and a panic of one closure's destructor does
//! not keep the others.

use std::cell::{Cell, UnsafeCell};
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};

use forebear_context::context;
use forebear_context::error::{CancelReason, Failure};

use crate::state::word::COMPLETING;

/// When a callback is called.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CallOn {
    /// With a value.
    Finished,
    /// With a failure.
    Failed,
    /// As cancelled.
    Cancelled,
    /// In any case.
    Done,
    /// In any case, without the outcome: the failure does not count as read.
    Over,
}

/// How a request ended, its type aside.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallWith<'a> {
    Finished,
    Failed(&'a Failure),
    Cancelled(CancelReason),
    /// No callback is called.
    Nothing,
}

/// A callback and its place in a list, in one allocation: what is known of it whatever its type, then the closure.
struct CallbackNode<H> {
    next: *mut CallbackNode<H>,
    when: CallOn,
    end: End<H>,
}

/// Takes the closure out and frees the node; then calls it, if there is something to call it with, else drops it.
type End<H> = unsafe fn(NonNull<CallbackNode<H>>, Option<(NonNull<H>, CallWith<'_>)>);

#[repr(C)]
struct CallOf<H, F> {
    node: CallbackNode<H>,
    f: F,
}

/// Calls the callback, or drops it without `with`, and frees the node.
///
/// # Safety
///
/// Called once, with a node that `Call::new` has made as this type.
unsafe fn end<H, F: FnOnce(NonNull<H>, CallWith<'_>)>(
    node: NonNull<CallbackNode<H>>,
    with: Option<(NonNull<H>, CallWith<'_>)>,
) {
    context::user_code();
    // SAFETY: by the caller, once: made by `Call::new` as this type.
    let CallOf { f, .. } = *unsafe { Box::from_raw(node.cast::<CallOf<H, F>>().as_ptr()) };
    if let Some((header, outcome)) = with {
        f(header, outcome);
    }
}

/// A callback that has not been called. Dropped, it drops the closure.
pub(crate) struct Call<H>(NonNull<CallbackNode<H>>);

// SAFETY: the closure is `Send`, by `new`; a node is its list's.
unsafe impl<H> Send for Call<H> {}

impl<H> Call<H> {
    /// One that is called with the request, and told how it ended, as far as `when` says.
    ///
    /// What the closure borrows the value's type may borrow, too: it is called while some thread has a handle of that type.
    pub(crate) fn new(when: CallOn, f: impl FnOnce(NonNull<H>, CallWith<'_>) + Send) -> Call<H> {
        fn node<H, F: FnOnce(NonNull<H>, CallWith<'_>)>(when: CallOn, f: F) -> CallOf<H, F> {
            CallOf { node: CallbackNode { next: ptr::null_mut(), when, end: end::<H, F> }, f }
        }
        let made = Box::into_raw(Box::new(node(when, f)));
        // SAFETY: from a box.
        Call(unsafe { NonNull::new_unchecked(made.cast()) })
    }

    pub(crate) fn when(&self) -> CallOn {
        // SAFETY: it is there until it is called or dropped.
        unsafe { self.0.as_ref() }.when
    }

    /// Calls it.
    ///
    /// # Safety
    ///
    /// CB2, CB3.
    pub(crate) unsafe fn call(self, header: NonNull<H>, outcome: CallWith<'_>) {
        let node = ManuallyDrop::new(self).0;
        // SAFETY: the node is there until its `end` is called.
        let end = unsafe { node.as_ref() }.end;
        // SAFETY: `end` is called here, once: `self` is not dropped.
        unsafe { end(node, Some((header, outcome))) };
    }
}

impl<H> Drop for Call<H> {
    fn drop(&mut self) {
        // SAFETY: the node is there until its `end` is called.
        let end = unsafe { self.0.as_ref() }.end;
        // SAFETY: `end` is called here, once: `call` would have forgotten `self`.
        unsafe { end(self.0, None) };
    }
}

/// Callbacks, first come first. Dropped by a loop.
pub(crate) struct Calls<H> {
    head: *mut CallbackNode<H>,
    tail: *mut CallbackNode<H>,
}

impl<H> Calls<H> {
    pub(crate) const fn new() -> Calls<H> {
        Calls { head: ptr::null_mut(), tail: ptr::null_mut() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head.is_null()
    }

    pub(crate) fn push(&mut self, call: Call<H>) {
        let node = ManuallyDrop::new(call).0.as_ptr();
        // SAFETY: the tail lies in the list, whose nodes are the list's.
        match unsafe { self.tail.as_mut() } {
            Some(tail) => tail.next = node,
            None => self.head = node,
        }
        self.tail = node;
    }

    pub(crate) fn take_all(&mut self) -> Calls<H> {
        std::mem::replace(self, Calls::new())
    }
}

impl<H> Iterator for Calls<H> {
    type Item = Call<H>;

    fn next(&mut self) -> Option<Call<H>> {
        let mut node = NonNull::new(self.head)?;
        // SAFETY: as in `push`.
        self.head = std::mem::replace(&mut unsafe { node.as_mut() }.next, ptr::null_mut());
        if self.head.is_null() {
            self.tail = ptr::null_mut();
        }
        Some(Call(node))
    }
}

impl<H> Drop for Calls<H> {
    #[inline]
    fn drop(&mut self) {
        for call in self.by_ref() {
            drop_contained(call);
        }
    }
}

/// The callbacks that have not been called: in the side block, with the tail at hand.
pub(crate) struct Callbacks<H> {
    calls: UnsafeCell<Calls<H>>,
    /// The outcome does not change any more: the done-callbacks are being told, or there were none.
    pub stands: Cell<bool>,
    /// The life that it ends with, as the callbacks get it (CB3).
    pub reported_life: Cell<u64>,
}

impl<H> Default for Callbacks<H> {
    fn default() -> Callbacks<H> {
        Callbacks {
            calls: UnsafeCell::new(Calls::new()),
            stands: Cell::new(false),
            reported_life: Cell::new(COMPLETING),
        }
    }
}

impl<H> Callbacks<H> {
    /// Appends.
    ///
    /// # Safety
    ///
    /// CB1.
    pub(crate) unsafe fn push(&self, call: Call<H>) {
        // SAFETY: CB1.
        unsafe { &mut *self.calls.get() }.push(call);
    }

    /// Whether there is none. By the thread that has the block alone.
    pub(crate) fn is_empty(&mut self) -> bool {
        self.calls.get_mut().is_empty()
    }

    /// Takes all.
    ///
    /// # Safety
    ///
    /// CB1.
    pub(crate) unsafe fn take(&self) -> Calls<H> {
        // SAFETY: CB1.
        unsafe { &mut *self.calls.get() }.take_all()
    }
}

/// A callback that is not called is dropped, whatever its captures do.
fn drop_contained<H>(call: Call<H>) {
    forebear_context::error::internal::drop_contained(call);
}
