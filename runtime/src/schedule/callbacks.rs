//! Callbacks: what is called when a request ends.
//!
//! # From the callable's return to the end
//!
//! A request with callbacks is *completing* from its callable's return until the last callback has. It is terminal for
//! nobody but its own callbacks: waiters wait on, and a new subscriber is appended. The finisher takes what has been
//! subscribed, a batch at a time, under the word's lock, and calls without it; it goes terminal by an exchange that fails
//! while there is more.
//!
//! Callbacks run on the finisher's thread with the request on top of the fiber, so `Request::current()` is the request,
//! and they may wait, create and cancel. A subscriber to a request that is over calls the callback at once.
//!
//! For them, and for nobody else, the request has ended as they are told ([`life_for`]): a wait for it answers at once. What
//! would have to wait for their own end, a `take`, or a wait by a request that they wait for, is circular.
//!
//! # Which are called
//!
//! Exactly one group (finished, failed, cancelled) in order of subscription, then the done-callbacks in theirs, since they
//! are told the outcome. A panicking success callback skips the other success callbacks and makes the outcome a failure,
//! as long as it is not settled; then, and in every other callback, a panic goes to the hook and changes nothing. It is
//! settled when all there are of the group have been called. Until then the callbacks of failure are kept.
//!
//! # Invariants
//!
//! * **CB1** The list belongs to the holder of the word's lock while the request is not terminal, and is empty from the
//!   terminal exchange on.
//! * **CB2** A callback that takes the value is made by a handle of the value's type, and called only while the outcome is
//!   *finished*, when the value is in its place.
//! * **CB3** What the callbacks are told belongs to the thread that calls them, while it does. A value that they were lent
//!   stays for as long as a handle, whatever the outcome is in the end.

use std::cell::{Cell, UnsafeCell};
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

use forebear_context::context;
use forebear_context::error::{CancelReason, Failure};

use crate::cancel;
use crate::record::header::{Header, NoValue};
use crate::record::hooks;
use crate::schedule::{finish, run};
use crate::stack::fiber::{self, Fiber};
use crate::state::word::{Bits, CANCELLED, COMPLETING, FAILED, FINISHED, MARKED};

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
    /// Who is told nothing.
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

    fn when(&self) -> CallOn {
        // SAFETY: it is there until it is called or dropped.
        unsafe { self.0.as_ref() }.when
    }

    /// Calls it.
    ///
    /// # Safety
    ///
    /// CB2, CB3.
    unsafe fn call(self, header: NonNull<Header>, told: CallWith<'_>) {
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
struct Calls {
    head: *mut CallbackNode,
    tail: *mut CallbackNode,
}

impl Calls {
    const fn new() -> Calls {
        Calls { head: ptr::null_mut(), tail: ptr::null_mut() }
    }

    fn is_empty(&self) -> bool {
        self.head.is_null()
    }

    fn push(&mut self, call: Call) {
        let node = ManuallyDrop::new(call).0.as_ptr();
        // SAFETY: the tail lies in the list, whose nodes are the list's.
        match unsafe { self.tail.as_mut() } {
            Some(tail) => tail.next = node,
            None => self.head = node,
        }
        self.tail = node;
    }

    fn take_all(&mut self) -> Calls {
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
    stands: Cell<bool>,
    /// The life that it ends with, as those are told that are being called (CB3).
    told: Cell<u64>,
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
    unsafe fn push(&self, call: Call) {
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
    unsafe fn take(&self) -> Calls {
        // SAFETY: CB1.
        unsafe { &mut *self.calls.get() }.take_all()
    }
}

/// A callback that is not called is dropped, whatever its captures do.
fn drop_contained(call: Call) {
    forebear_context::error::internal::drop_contained(call);
}

/// Subscribes, or calls on the spot if the request is over.
///
/// # Safety
///
/// The caller has a count of the request, a handle for [`CallOn::Finished`] (CB2).
pub(crate) unsafe fn subscribe(header: NonNull<Header>, call: Call) {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let side = h.side_or_new();
    let mut call = Some(call);
    let pushed = h.word().subscribe(|| {
        if let Some(call) = call.take() {
            // SAFETY: CB1: under the lock.
            unsafe { side.callbacks.push(call) };
        }
    });
    if pushed.is_err()
        && let Some(call) = call
    {
        // An error in a callback that is called late reaches the one who subscribes.
        // SAFETY: terminal; CB2.
        unsafe { call_now(header, call, h.word().load().life()) };
    }
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

/// Calls it if the outcome is its.
///
/// # Safety
///
/// The outcome stands: failure or value are in place. CB2.
unsafe fn call_now(header: NonNull<Header>, call: Call, life: u64) {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let told = match (call.when(), life) {
        (CallOn::Over, _) => CallWith::Nothing,
        (CallOn::Finished | CallOn::Done, FINISHED) => CallWith::Finished,
        (CallOn::Cancelled | CallOn::Done, CANCELLED) => CallWith::Cancelled(cancel::reason(h)),
        (CallOn::Failed, FAILED) | (CallOn::Done, _) => {
            h.word().mark_seen();
            match h.failure() {
                Some(failure) => CallWith::Failed(failure),
                None => unreachable!("a failed request has a failure"),
            }
        }
        _ => {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(call))) {
                hooks::aside_panicked(h, payload);
            }
            return;
        }
    };
    // SAFETY: by contract.
    unsafe { call.call(header, told) };
}

/// Calls what has been subscribed to a request whose callable has returned, and answers the outcome: what `decide` makes of
/// the marks, which do not change from here on, unless a panic has changed it. The caller goes terminal with it, or calls
/// again with what was answered.
///
/// # Safety
///
/// W1: the caller claimed the request; value or failure are in place.
#[cold]
#[inline(never)]
pub(crate) unsafe fn run(header: NonNull<Header>, decide: &mut dyn FnMut(Bits) -> u64) -> u64 {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let side = h.side_or_new();
    // Also in its callbacks a cancelled request is refused its waits, unless it shields them.
    let worker = fiber::get().and_then(Fiber::worker).filter(|_| h.word().load().has(MARKED));
    if let Some(worker) = worker {
        worker.count_marked(1);
    }
    let mut life = None;
    let mut failed = Calls::new();
    let mut done = Calls::new();
    let call_contained = |call: Call, life: u64| {
        // SAFETY: by contract.
        catch_unwind(AssertUnwindSafe(|| unsafe { call_now(header, call, life) }))
    };
    let call_aside = |call: Call, life: u64| {
        if let Err(payload) = call_contained(call, life) {
            hooks::aside_panicked(h, payload);
        }
    };
    run::on_top(header, || {
        loop {
            let mut batch = Calls::new();
            // SAFETY: CB1: under the lock.
            let bits = h.word().complete(|| batch = unsafe { side.callbacks.take() });
            let life = life.get_or_insert_with(|| decide(bits));
            side.callbacks.told.set(*life);
            if batch.is_empty() && done.is_empty() {
                return;
            }
            for call in batch {
                let open = *life == FINISHED && !side.callbacks.stands.get();
                match call.when() {
                    CallOn::Done | CallOn::Over => done.push(call),
                    CallOn::Failed if open => failed.push(call),
                    CallOn::Finished if open => {
                        if let Err(payload) = call_contained(call, FINISHED) {
                            // SAFETY: W1; the value lives on beside the failure.
                            unsafe { finish::set_failure(h, NoValue::Panic(payload)) };
                            *life = FAILED;
                            side.callbacks.told.set(FAILED);
                            failed.take_all().for_each(|call| call_aside(call, FAILED));
                        }
                    }
                    _ => call_aside(call, *life),
                }
            }
            if h.word().load().has(crate::state::word::CALLBACKS) {
                continue;
            }
            // From here on it is a success for good, if it is one: the callbacks of failure are dropped.
            side.callbacks.stands.set(true);
            failed.take_all().for_each(|call| call_aside(call, *life));
            done.take_all().for_each(|call| call_aside(call, *life));
        }
    });
    if let Some(worker) = worker {
        worker.count_marked(-1);
    }
    life.unwrap_or(FINISHED)
}
