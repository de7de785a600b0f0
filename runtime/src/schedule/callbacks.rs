//! Callbacks: closures that are called when a request ends.
//!
//! # From the callable's return to the end
//!
//! A request with callbacks is *completing* from the return of its callable until the last callback has returned. It is not terminal yet:
//! its waiters wait, and a new callback is appended to the list. The finisher takes the list, a batch at a time, under the word's lock, and calls
//! the callbacks without the lock. It makes the request terminal by an exchange that fails while the list has more.
//!
//! Callbacks run on the finisher's thread with the request on top of the fiber, so `Request::current()` is the request,
//! and they may wait, create and cancel. A subscriber to a request that is over calls the callback at once.
//!
//! For its own callbacks, and for no other code, the request has already ended with the outcome that they receive
//! ([`life_here`](crate::record::header::Header::life_here)): a wait for it returns at once. A `take`, or a wait by a request that the callbacks
//! wait for, would have to wait for the callbacks' own end, and is circular.
//!
//! # Which are called
//!
//! Exactly one group (finished, failed, cancelled) in order of subscription, and then the done-callbacks in theirs, since they
//! receive the outcome. A panicking success callback skips the other success callbacks, and makes the outcome a failure unless the outcome is
//! settled. Any other panic in a callback goes to the hook and changes nothing. The outcome is settled when all callbacks of the group have been
//! called. Until then the failure callbacks are kept.
//!
//! # Invariants
//!
//! * **CB1** The list belongs to the holder of the word's lock while the request is not terminal, and is empty from the
//!   terminal exchange on.
//! * **CB2** Only a handle of the value's type makes a callback that takes the value. It is called only while the outcome is
//!   *finished*, when the value is in its place.
//! * **CB3** The arguments of the callbacks belong to the thread that calls them, during the call. A value that they were lent
//!   stays for as long as a handle, whatever the outcome is in the end.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use crate::cancel;
use crate::record::call_list;
pub(crate) use crate::record::call_list::{CallOn, CallWith};
use crate::record::fiber::{self, Fiber};
use crate::record::header::Header;
use crate::record::no_value::NoValue;
use crate::record::report;
use crate::schedule::worker::OnWorker;
use crate::schedule::{finish, run};
use crate::state::word::{Bits, CANCELLED, FAILED, FINISHED, MARKED};

/// A callback that has not been called.
pub(crate) type Call = call_list::Call<Header>;
/// Callbacks, first come first.
type Calls = call_list::Calls<Header>;

/// Subscribes the callback, or calls it at once if the request is over.
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

/// Calls the callback if it is for this outcome.
///
/// # Safety
///
/// The outcome does not change any more, and the failure or value is in place. CB2.
unsafe fn call_now(header: NonNull<Header>, call: Call, life: u64) {
    // SAFETY: by contract.
    let h = unsafe { header.as_ref() };
    let outcome = match (call.when(), life) {
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
                report::aside_panicked(h, payload);
            }
            return;
        }
    };
    // SAFETY: by contract.
    unsafe { call.call(header, outcome) };
}

/// Calls the callbacks of a request whose callable has returned, and returns the outcome. `decide` makes it from the marks, which do not
/// change from here on; a panic may change it. The caller makes the request terminal with it, or calls this again with that answer.
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
    // A cancelled request may not wait in its callbacks either, unless it shields the waits.
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
            report::aside_panicked(h, payload);
        }
    };
    run::on_top(header, || {
        loop {
            let mut batch = Calls::new();
            // SAFETY: CB1: under the lock.
            let bits = h.word().complete(|| batch = unsafe { side.callbacks.take() });
            let life = life.get_or_insert_with(|| decide(bits));
            side.callbacks.reported_life.set(*life);
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
                            side.callbacks.reported_life.set(FAILED);
                            failed.take_all().for_each(|call| call_aside(call, FAILED));
                        }
                    }
                    _ => call_aside(call, *life),
                }
            }
            if h.word().load().has(crate::state::word::CALLBACKS) {
                continue;
            }
            // From here on a success is final, so the failure callbacks are dropped.
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
