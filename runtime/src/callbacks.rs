//! Callbacks: what is called when a request ends.
//!
//! # From the callable's return to the end
//!
//! A request with callbacks is *completing* from its callable's return until the last callback has. It is terminal for
//! nobody but its own callbacks: who waits waits on, who subscribes is appended. The finisher takes what has been
//! subscribed, a batch at a time, under the word's lock, and calls without it; it goes terminal by an exchange that fails
//! while there is more.
//!
//! Callbacks run on the finisher's thread with the request on top of the strand, so `Request::current()` is the request,
//! and they may wait, create and cancel. Whoever subscribes to a request that is over calls on the spot.
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
//! * **B1** The list belongs to the holder of the word's lock while the request is not terminal, and is empty from the
//!   terminal exchange on.
//! * **B2** A callback that takes the value is made by a handle of the value's type, and called only while the outcome is
//!   *finished*, when the value is in its place.
//! * **B3** What the callbacks are told belongs to the thread that calls them, while it does. A value that they were lent
//!   stays for as long as a handle, whatever the outcome is in the end.

use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::{self, NonNull};

use forebear_context::error::{CancelReason, Failure};

use crate::cancel;
use crate::header::{Ending, Header};
use crate::hooks;
use crate::run;
use crate::strand::{self, Strand};
use crate::word::{Bits, CANCELLED, COMPLETING, FAILED, FINISHED, MARKED};

/// What a callback takes, and what it is.
pub(crate) enum Call {
    Finished(Box<dyn FnOnce(NonNull<Header>) + Send>),
    Failed(Box<dyn FnOnce(&Failure) + Send>),
    Cancelled(Box<dyn FnOnce() + Send>),
    Done(Box<DoneFn>),
    /// However it ended, and told nothing: no look at a failure.
    Over(Box<dyn FnOnce(NonNull<Header>) + Send>),
}

type DoneFn = dyn FnOnce(NonNull<Header>, Told<'_>) + Send;

/// How a request ended, its type aside.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Told<'a> {
    Finished,
    Failed(&'a Failure),
    Cancelled(CancelReason),
}

struct Node {
    call: Call,
    next: Option<Box<Node>>,
}

/// The callbacks that have not been called: in the side block, with the tail at hand.
pub(crate) struct Callbacks {
    head: UnsafeCell<Option<Box<Node>>>,
    tail: Cell<*mut Node>,
    /// The outcome does not change any more: the done-callbacks are being told, or there were none.
    stands: Cell<bool>,
    /// The life that it ends with, as those are told that are being called (B3).
    told: Cell<u64>,
}

impl Default for Callbacks {
    fn default() -> Callbacks {
        Callbacks {
            head: UnsafeCell::new(None),
            tail: Cell::new(ptr::null_mut()),
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
    /// B1.
    unsafe fn push(&self, mut node: Box<Node>) {
        let at: *mut Node = &mut *node;
        // SAFETY: B1; the tail lies in the list.
        unsafe {
            match self.tail.replace(at).as_mut() {
                Some(tail) => tail.next = Some(node),
                None => *self.head.get() = Some(node),
            }
        }
    }

    /// Takes all.
    ///
    /// # Safety
    ///
    /// B1.
    unsafe fn take(&self) -> Batch {
        self.tail.set(ptr::null_mut());
        // SAFETY: B1.
        Batch(unsafe { (*self.head.get()).take() })
    }
}

impl Drop for Callbacks {
    fn drop(&mut self) {
        drop(Batch(self.head.get_mut().take()));
    }
}

/// Callbacks taken out, first come first. Dropped by a loop.
struct Batch(Option<Box<Node>>);

impl Iterator for Batch {
    type Item = Call;

    fn next(&mut self) -> Option<Call> {
        let mut node = self.0.take()?;
        self.0 = node.next.take();
        Some(node.call)
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        for call in self.by_ref() {
            drop_contained(call);
        }
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
/// The caller has a count of the request, a handle for [`Call::Finished`] (B2).
pub(crate) unsafe fn subscribe(header: NonNull<Header>, call: Call) {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let side = h.side_or_new();
    let mut node = Some(Box::new(Node { call, next: None }));
    let pushed = h.word().subscribe(|| {
        if let Some(node) = node.take() {
            // SAFETY: B1: under the lock.
            unsafe { side.callbacks.push(node) };
        }
    });
    if pushed.is_err()
        && let Some(node) = node
    {
        // An error in a callback that is called late reaches the one who subscribes.
        // SAFETY: terminal; B2.
        unsafe { call_now(header, node.call, h.word().load().life()) };
    }
}

/// The life of a completing request, as the caller is to see it.
#[cold]
#[inline(never)]
pub(crate) fn life_for(h: &Header) -> u64 {
    // Not if an arm of a callback is on top: that may be on another thread (B3).
    match strand::get() {
        Some(strand) if ptr::eq(strand.request.get(), h) => h.side_or_new().callbacks.told.get(),
        _ => COMPLETING,
    }
}

/// Calls it if the outcome is its.
///
/// # Safety
///
/// The outcome stands: failure or value are in place. B2.
unsafe fn call_now(header: NonNull<Header>, call: Call, life: u64) {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    match (call, life) {
        (Call::Finished(f), FINISHED) => f(header),
        (Call::Failed(f), FAILED) => {
            h.word().mark_seen();
            if let Some(failure) = h.failure() {
                f(failure);
            }
        }
        (Call::Cancelled(f), CANCELLED) => f(),
        (Call::Over(f), _) => f(header),
        (Call::Done(f), FINISHED) => f(header, Told::Finished),
        (Call::Done(f), CANCELLED) => f(header, Told::Cancelled(cancel::reason(h))),
        (Call::Done(f), _) => {
            h.word().mark_seen();
            if let Some(failure) = h.failure() {
                f(header, Told::Failed(failure));
            }
        }
        (other, _) => {
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| drop(other))) {
                hooks::aside_panicked(h, payload);
            }
        }
    }
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
    let worker = strand::get().and_then(Strand::worker).filter(|_| h.word().load().has(MARKED));
    if let Some(worker) = worker {
        worker.count_marked(1);
    }
    let mut life = None;
    let mut failed = Vec::new();
    let mut done = Vec::new();
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
            let mut batch = Batch(None);
            // SAFETY: B1: under the lock.
            let bits = h.word().complete(|| batch = unsafe { side.callbacks.take() });
            let life = life.get_or_insert_with(|| decide(bits));
            side.callbacks.told.set(*life);
            if batch.0.is_none() && done.is_empty() {
                return;
            }
            for call in batch {
                let open = *life == FINISHED && !side.callbacks.stands.get();
                match call {
                    Call::Done(_) | Call::Over(_) => done.push(call),
                    Call::Failed(_) if open => failed.push(call),
                    Call::Finished(_) if open => {
                        if let Err(payload) = call_contained(call, FINISHED) {
                            // SAFETY: W1; the value lives on beside the failure.
                            unsafe { run::set_failure(h, Ending::Panic(payload)) };
                            *life = FAILED;
                            side.callbacks.told.set(FAILED);
                            std::mem::take(&mut failed).into_iter().for_each(|call| call_aside(call, FAILED));
                        }
                    }
                    call => call_aside(call, *life),
                }
            }
            if h.word().load().has(crate::word::CALLBACKS) {
                continue;
            }
            // From here on it is a success for good, if it is one: the callbacks of failure are dropped.
            side.callbacks.stands.set(true);
            std::mem::take(&mut failed).into_iter().for_each(|call| call_aside(call, *life));
            std::mem::take(&mut done).into_iter().for_each(|call| call_aside(call, *life));
        }
    });
    if let Some(worker) = worker {
        worker.count_marked(-1);
    }
    life.unwrap_or(FINISHED)
}
