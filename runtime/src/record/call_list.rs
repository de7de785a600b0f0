//! Lists of callbacks: what is to be called when a request ends, as the request keeps it. The head of [`crate::schedule::callbacks`] says which are
//! called when; invariants CB1 to CB3 are there.

use std::cell::{Cell, UnsafeCell};
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};

use forebear_context::context;
use forebear_context::error::{CancelReason, Failure};

use crate::record::fiber;
use crate::record::header::Header;
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
    /// In any case, and told nothing: no look at a failure.
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
struct CallbackNode {
    next: *mut CallbackNode,
    when: CallOn,
    end: End,
}

/// Takes the closure out and frees the node; then calls it, if there is something to call it with, else drops it.
type End = unsafe fn(NonNull<CallbackNode>, Option<(NonNull<Header>, CallWith<'_>)>);

#[repr(C)]
struct CallOf<F> {
    node: CallbackNode,
    f: F,
}

/// # Safety
///
/// Called once, with a node that `Call::new` has made as this type.
unsafe fn end<F: FnOnce(NonNull<Header>, CallWith<'_>)>(
    node: NonNull<CallbackNode>,
    with: Option<(NonNull<Header>, CallWith<'_>)>,
) {
    context::user_code();
    // SAFETY: by the caller, once: made by `Call::new` as this type.
    let CallOf { f, .. } = *unsafe { Box::from_raw(node.cast::<CallOf<F>>().as_ptr()) };
    if let Some((header, told)) = with {
        f(header, told);
    }
}

/// A callback that has not been called. Dropped, it drops the closure.
pub(crate) struct Call(NonNull<CallbackNode>);

// SAFETY: the closure is `Send`, by `new`; a node is its list's.
unsafe impl Send for Call {}

impl Call {
    /// One that is called with the request, and told how it ended, as far as `when` says.
    ///
    /// What the closure borrows the value's type may borrow, too: it is called while a handle of that type is held by somebody.
    pub(crate) fn new(when: CallOn, f: impl FnOnce(NonNull<Header>, CallWith<'_>) + Send) -> Call {
        fn node<F: FnOnce(NonNull<Header>, CallWith<'_>)>(when: CallOn, f: F) -> CallOf<F> {
            CallOf { node: CallbackNode { next: ptr::null_mut(), when, end: end::<F> }, f }
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
    pub(crate) unsafe fn call(self, header: NonNull<Header>, told: CallWith<'_>) {
        let node = ManuallyDrop::new(self).0;
        // SAFETY: once.
        unsafe { (node.as_ref().end)(node, Some((header, told))) };
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        // SAFETY: once.
        unsafe { (self.0.as_ref().end)(self.0, None) };
    }
}

/// Callbacks, first come first. Dropped by a loop.
pub(crate) struct Calls {
    head: *mut CallbackNode,
    tail: *mut CallbackNode,
}

impl Calls {
    pub(crate) const fn new() -> Calls {
        Calls { head: ptr::null_mut(), tail: ptr::null_mut() }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.head.is_null()
    }

    pub(crate) fn push(&mut self, call: Call) {
        let node = ManuallyDrop::new(call).0.as_ptr();
        // SAFETY: the tail lies in the list, whose nodes are the list's.
        match unsafe { self.tail.as_mut() } {
            Some(tail) => tail.next = node,
            None => self.head = node,
        }
        self.tail = node;
    }

    pub(crate) fn take_all(&mut self) -> Calls {
        std::mem::replace(self, Calls::new())
    }
}

impl Iterator for Calls {
    type Item = Call;

    fn next(&mut self) -> Option<Call> {
        let mut node = NonNull::new(self.head)?;
        // SAFETY: as in `push`.
        self.head = std::mem::replace(&mut unsafe { node.as_mut() }.next, ptr::null_mut());
        if self.head.is_null() {
            self.tail = ptr::null_mut();
        }
        Some(Call(node))
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        for call in self.by_ref() {
            drop_contained(call);
        }
    }
}

/// The callbacks that have not been called: in the side block, with the tail at hand.
pub(crate) struct Callbacks {
    calls: UnsafeCell<Calls>,
    /// The outcome does not change any more: the done-callbacks are being told, or there were none.
    pub stands: Cell<bool>,
    /// The life that it ends with, as those are told that are being called (CB3).
    pub told: Cell<u64>,
}

impl Default for Callbacks {
    fn default() -> Callbacks {
        Callbacks {
            calls: UnsafeCell::new(Calls::new()),
            stands: Cell::new(false),
            told: Cell::new(COMPLETING),
        }
    }
}

impl Callbacks {
    /// Appends.
    ///
    /// # Safety
    ///
    /// CB1.
    pub(crate) unsafe fn push(&self, call: Call) {
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
    pub(crate) unsafe fn take(&self) -> Calls {
        // SAFETY: CB1.
        unsafe { &mut *self.calls.get() }.take_all()
    }
}

/// A callback that is not called is dropped, whatever its captures do.
fn drop_contained(call: Call) {
    forebear_context::error::internal::drop_contained(call);
}

/// The life of a completing request, as the caller is to see it.
#[cold]
#[inline(never)]
pub(crate) fn life_for(h: &Header) -> u64 {
    // Not if an arm of a callback is on top: that may be on another thread (CB3).
    match fiber::get() {
        Some(fiber) if ptr::eq(fiber.request.get(), h) => h.side_or_new().callbacks.told.get(),
        _ => COMPLETING,
    }
}
