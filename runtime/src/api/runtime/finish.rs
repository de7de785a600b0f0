//! The end of a runtime that a user requests: [`Runtime::finish`], [`Runtime::shutdown`], and what they return.
//!
//! # The protocol of shutdown
//!
//! 1. *Refuse.* The stage becomes *shut*, and the injector is closed. From now on a push of a root fails, and the pusher
//!    ends the root at once, as cancelled with [`CancelReason::Shutdown`](crate::CancelReason::Shutdown). The same happens to all requests that are made or
//!    submitted, outside or inside a request. The caller takes unstarted requests out of the shared queues.
//! 2. *Abort.* The stage becomes *swept*, and each thread that has requests is notified. At its next poll a worker aborts its private
//!    requests, those it has published, and those on its coroutines; a foreign thread aborts those that it runs. The caller aborts and ends what it
//!    took in step 1. The workers are signalled to stop.
//! 3. *Unwind.* A suspended request wakes with an error, and each further wait returns the same error. A running request gets it when it next
//!    waits or checks for a cancel. A request may see its target end aborted before its own worker has swept; if it fails by that error, it ends
//!    as aborted, too. A worker leaves when it has no request left; the last one also waits until no foreign thread runs a request of
//!    the runtime. Then its thread destroys its thread-locals, and exits. The caller waits for that until the grace is over by the runtime's clock.
//! 4. *Name.* When the grace is over, the stage becomes *given up*. A wait from outside for a request of this runtime returns
//!    [`WaitError::ShutDown`](forebear_context::error::WaitError::ShutDown). The caller gets the names of requests that have started and not ended, and of
//!    threads that have not exited ([`super::laggards`]).
//! 5. *Free.* The caller joins the threads that have exited, and returns the memory of all unused stacks to the system. The stack of a laggard and the
//!    thread of its worker stay, since there may be borrows into both. If the laggard ends after all, its worker leaves. The thread that calls
//!    again, or drops the last handle, then frees the rest.
//!
//! # Why nothing is missed
//!
//! A request that has not ended is unsubmitted, or on its way to a shared queue, or in a shared queue, or private, or claimed, or held.
//!
//! * *Unsubmitted*: a submit or a wait refuses it. Both read the stage, or find the shared queue closed.
//! * *On its way to the injector*: either the push finds the injector closed, or the push was first, and step 1 takes the request out: one exchange
//!   decides (E3). A child that enters past the inbox is checked under the injector's lock (E4).
//! * *Private or in a worker's shared queue*: the worker sweeps both in one go, and runs no request of its own between.
//!   A request that is made there later has a marked parent, and starts out cancelled. A worker that steals from a
//!   shared queue after its own sweep aborts what it has stolen. A worker that steals before its sweep sweeps the
//!   stolen requests with its own. Step 2 begins after the injector is closed, so no root arrives after a sweep.
//! * *Claimed*: it is on a stack of the claimer when the claimer sweeps. A foreign thread announces that it is about to run a request
//!   under the lock of its mailbox, and is notified under the same lock.
//!
//! * *Held*: what it is after is one of these, and its end refuses the request. Or it is after a completion, which nobody may ever complete. Step 1 takes all that
//!   is after completions, directly or not, and a thread that submits such a request later finds the runtime shut ([`crate::shared::completions`]). The
//!   completion itself has no code, and stays.
//!
//! All of these spare requests below a *shielded region*. The region's end delivers the mark of its request. If the request had no mark
//! by then, its own end aborts them: in a runtime that is shut a mark spreads by aborting, whatever demand there is.
//!
//! # Without threads
//!
//! In the synchronous and the seeded mode the caller drives its own seat until no request can continue, or the grace is over: it looks after each step. While
//! some requests have not ended, and a deadline of the runtime lies within the grace, the caller sleeps until that deadline and drives again. Then it names
//! what is left. It does not wait for the rest of the grace, since no other thread would use it. Requests on other threads' seats are aborted, and unwind when
//! those threads next use the runtime. A virtual clock advances as fast as it is driven, as far as the grace. What counts as the grace while
//! something is always ready stands in the head of `schedule/driver/limit.rs`.
//!
//! # What is not done
//!
//! The shutdown takes nothing from a laggard. All that it could touch, and all that could touch it, stays. So it may
//! still end when its wait does. A waiter *for* a laggard removes itself from the list, and returns an error.
//!
//! Arms of joins are no requests of their own: both run, in a marked request as in any.

use std::time::Duration;

use forebear_context::context::{Cause, Context, Reason, Ticket, with_foreign};
use forebear_context::shim::atomic::Ordering;

use super::drive::{drive_within, has_left};
use super::laggards;
use super::late::{say_that_it_is_endless, say_who_is_left};
use super::shutdown_error::ShutdownError;
use super::{Runtime, RuntimeHandle};
use crate::cancel;
use crate::foreign;
use crate::record::dropping;
use crate::record::fiber::{self, Fiber};
use crate::record::header::Header;
use crate::record::no_suspend;
use crate::shared::ending::Stage;
use crate::shared::late_end::QUIET;
use crate::shared::parked;
use crate::shared::worker::OnRecord;
use crate::shared::{OfRuntime, Shared};
use crate::time::deadlines::park_until;

/// How often the search is repeated if something has not ended and the search finds no name for it. A thread in the
/// middle of dropping an unstarted request has no name, and an exiting thread needs a moment.
const LOOKS: usize = 20;
/// How long each of those looks waits for the exits of all threads. The caller sleeps meanwhile: where many threads are ready each turn of the
/// processor takes long, and a caller that yielded would wait for as many turns as it looks.
const LOOK_WAITS: Duration = Duration::from_millis(1);

impl Runtime {
    /// Lets the work end that was submitted, and then the runtime: for `grace` at most, by the runtime's clock. What is left then is
    /// [shut down](Self::shutdown), and given the same grace again to unwind. What the grace is in a [seeded](crate::RuntimeBuilder::seeded) runtime is said
    /// there. Without workers the calling thread drives the runtime meanwhile, as in `shutdown`.
    ///
    /// A warning names what is aborted. If the grace is endless, a warning names after a second of the caller's clock for what this waits. Both go
    /// to [`RuntimeBuilder::on_warning`](crate::RuntimeBuilder::on_warning).
    ///
    /// A submitted request that is declared to be after others is such work, also if that is a [completion](crate::Completer) which has yet to come.
    ///
    /// Meanwhile work is taken on as before, as long as there is some; afterwards what is made or submitted is cancelled
    /// with [`CancelReason::Shutdown`](crate::CancelReason::Shutdown). `Duration::MAX` waits for ever. Suspends a request of another runtime, blocks a
    /// foreign thread; not a cancellation point.
    ///
    /// # Errors
    ///
    /// As [`shutdown`](Self::shutdown). Work that had to be aborted, and ended, is no error here: its waiters get one.
    ///
    /// # Panics
    ///
    /// In a forked child, if the runtime was built in the parent.
    ///
    /// ```
    /// use forebear::Runtime;
    /// use std::time::Duration;
    ///
    /// let runtime = Runtime::builder().workers(1).build()?;
    /// let sum = runtime.spawn(|| (1..=100).sum::<u32>());
    /// runtime.finish(Duration::from_secs(60))?;
    /// assert_eq!(sum.get(), Some(&5050));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn finish(&self, grace: Duration) -> Result<(), ShutdownError> {
        let shared = self.shared();
        self.enter_end()?;
        if shared.driven.is_some() {
            drive_within(shared, grace, "finish");
            if has_left(shared) {
                let what = format!(
                    "Runtime::finish of runtime '{}' aborts the requests that cannot continue, or did not end within the grace period",
                    shared.name
                );
                say_who_is_left(shared, &what, ENDED);
            }
            return self.shutdown(grace);
        }
        shared.ending.begin();
        shared.signals.stop();
        if !await_quiet(shared, grace, "finish") {
            let what = format!(
                "Runtime::finish of runtime '{}' aborts the requests that did not end within the grace period",
                shared.name
            );
            say_who_is_left(shared, &what, ENDED);
        }
        // Also if it was quiet. Nothing but this makes it refuse what a plain thread runs by itself, and a plain thread may have begun that meanwhile.
        self.shutdown(grace)
    }

    /// Ends the runtime: refuses new work, aborts all there is, and waits until everything has ended, for `grace` at most, by the
    /// runtime's clock.
    ///
    /// A wait for a request of this runtime answers
    /// [`TargetCancelled`](forebear_context::error::WaitError::TargetCancelled) with [`CancelReason::Shutdown`](crate::CancelReason::Shutdown). What runs
    /// below a [`shield`](crate::shield()) continues until the region ends. What had not started is ended on the calling thread,
    /// its callbacks too. What is made or submitted afterwards is cancelled at once.
    ///
    /// A request that does not end in time is a *laggard*. Its stack and the thread of its worker stay, since others may have
    /// borrowed from them; so does a scope that waits for one. Any other wait for it from outside the runtime returns
    /// [`ShutDown`](forebear_context::error::WaitError::ShutDown). A laggard may still end later; a further call
    /// waits for that, and returns what is left then. Several may call at once. With a grace of zero all is named that has not ended
    /// on the spot.
    ///
    /// The thread of a worker that destroys its thread-locals is waited for and named in the same way. Work that had not started ends on the calling
    /// thread, and the grace does not limit its destructors and callbacks.
    ///
    /// [`Metrics::shut_down`](crate::Metrics::shut_down) counts what had started and not ended. If the grace is endless, a warning
    /// names after a second of the caller's clock for what this waits.
    ///
    /// A runtime without workers is driven by the calling thread meanwhile. It waits for the deadlines within the grace, and returns before the grace is over
    /// if nothing is left, or nothing but others could end what is left. It looks at the clock between two steps of requests, so it returns also while
    /// something can always continue. A step that is long holds it up. What has begun there may take some steps whatever the grace, for 20 ms more at most.
    /// The grace of a [seeded](crate::RuntimeBuilder::seeded) runtime is virtual time and a number of steps. A request that another thread runs gets no
    /// real time by it, and may be a laggard at once.
    ///
    /// Suspends a request of another runtime, blocks a foreign thread; not a cancellation point.
    ///
    /// # Errors
    ///
    /// [`ShutdownError::Laggards`] names what has not ended. [`ShutdownError::Inside`] if it is called inside a request of this runtime, callbacks
    /// included, or in a destructor that the end of such a request calls. The same holds in a destructor of a thread-local of one of its workers.
    /// Then nothing is done.
    ///
    /// # Panics
    ///
    /// In a forked child, if the runtime was built in the parent.
    ///
    /// ```
    /// use forebear::{CancelReason, Runtime, WaitError, yield_now};
    /// use std::time::Duration;
    ///
    /// let runtime = Runtime::builder().workers(1).build()?;
    /// let service = runtime.spawn(|| while yield_now().is_ok() {});
    /// runtime.shutdown(Duration::from_secs(60))?;
    /// assert!(matches!(service.wait(), Err(WaitError::TargetCancelled(CancelReason::Shutdown))));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shutdown(&self, grace: Duration) -> Result<(), ShutdownError> {
        let shared = self.shared();
        self.enter_end()?;
        let unstarted = shared.refuse_and_sweep();
        if shared.driven.is_some() {
            cancel::abort_unstarted(unstarted);
            drive_within(shared, grace, "shutdown");
            let laggards = laggards::find(shared);
            return if laggards.is_empty() { Ok(()) } else { Err(ShutdownError::Laggards { laggards }) };
        }
        shared.signals.stop();
        cancel::abort_unstarted(unstarted);
        // 3.
        if await_quiet(shared, grace, "shutdown") {
            self.0.close();
            return Ok(());
        }
        // 4.
        shared.ending.advance(Stage::GivenUp);
        parked::give_up(shared);
        shared.futures.give_up();
        let mut looks = 0;
        let laggards = loop {
            let mut laggards = laggards::find(shared);
            if shared.ending.is_quiet() {
                // They have ended this moment.
                self.0.close();
                return Ok(());
            }
            let mut exiting = laggards::exiting(shared);
            looks += 1;
            if !laggards.is_empty() && exiting.is_empty() {
                break laggards;
            }
            if looks == LOOKS {
                laggards.append(&mut exiting);
                if laggards.is_empty() {
                    laggards = laggards::unseen(shared, &self.states());
                }
                break laggards;
            }
            // Nothing is left but a worker that is about to go, or a thread that is about to exit.
            shared.ending.exits_within(LOOK_WAITS);
        };
        // 5.
        self.0.close_what_is_over();
        Err(ShutdownError::Laggards { laggards })
    }
}

/// Whether a request of the runtime, which it would have to wait for, runs on `fiber`, or is being ended there by user code.
pub(super) fn is_inside(fiber: &Fiber, shared: &Shared) -> bool {
    if fiber.worker_record().is_some_and(|worker| std::ptr::eq(worker.shared(), shared)) {
        return true;
    }
    let mut ends_here = false;
    dropping::each_ended_on(fiber, |h, _| {
        // SAFETY: M3: it is not over.
        let arena = unsafe { h.arena.get().as_ref() };
        ends_here |= arena.is_some_and(|arena| std::ptr::eq(arena.shared(), shared));
    });
    if ends_here {
        return true;
    }
    let mut at: Option<&Header> = fiber.request();
    while let Some(frame) = at {
        // SAFETY: what ran somewhere keeps that arena and its record (M3).
        let ran_on = unsafe { frame.ran_on.load(Ordering::Relaxed).as_ref() };
        if ran_on.is_some_and(|arena| std::ptr::eq(arena.shared(), shared))
            && !frame.bare.load().is_terminal()
        {
            return true;
        }
        // SAFETY: what is below another on a stack is not over.
        at = unsafe { frame.lender.get().as_ref() };
    }
    false
}

/// What follows the names of those that are aborted.
const ENDED: &str = "A wait for one of them reports that a shutdown cancelled it";

/// Waits until the runtime is quiet; false if the grace is over before. With an endless grace, reports after a while what `call` waits for.
fn await_quiet(shared: &Shared, grace: Duration, call: &str) -> bool {
    let until = shared.deadlines.after(grace);
    // A thread whose locals are being destroyed has a context for the call.
    let _ = foreign::fiber();
    with_foreign(|context| {
        if until.is_none() {
            let word = context.deadline(QUIET);
            // SAFETY: on the context's own stack, after `begin`, with the ticket of that.
            if await_quiet_once(shared, context, |ticket| unsafe { context.park_until(ticket, word) }) {
                return true;
            }
            say_that_it_is_endless(shared, call);
        }
        await_quiet_once(shared, context, |ticket| {
            // SAFETY: on the context's own stack, after `begin`; the caller holds the record.
            unsafe { park_until(&shared.deadlines, shared.driven.as_ref(), context, ticket, until) }
        })
    })
}

/// One wait for that, which `park` parks.
fn await_quiet_once(shared: &Shared, context: &Context, park: impl FnOnce(Ticket) -> Cause) -> bool {
    // SAFETY: C2: this is the context's own stack; C4: for nothing that is followed, and nothing unwinds before it is parked or taken back.
    let ticket = unsafe { context.begin(Reason::Runtime, std::ptr::null_mut()) };
    // SAFETY: EN1: taken back below; nothing in between unwinds.
    if !unsafe { shared.ending.wait(context, ticket) } {
        // SAFETY: C2: begun just now, and not parked.
        unsafe { context.abandon(ticket) };
        return true;
    }
    let cause = park(ticket);
    shared.ending.leave(context);
    cause == Cause::Woken || shared.ending.is_quiet()
}

impl Runtime {
    /// Whether the end of the runtime may be waited for here.
    #[track_caller]
    fn enter_end(&self) -> Result<(), ShutdownError> {
        let shared = self.shared();
        shared.check_process();
        if fiber::get().is_some_and(|fiber| is_inside(fiber, shared)) || self.0.is_on_a_worker() {
            return Err(ShutdownError::Inside);
        }
        if let Some(fiber) = foreign::fiber()
            && fiber.context().no_suspend().get() > 0
        {
            no_suspend::refuse(fiber, "the end of a runtime");
        }
        Ok(())
    }
}

impl RuntimeHandle {
    /// Whether this is the thread of one of its workers. The thread that ends the runtime joins it. So it is too when the worker has left its loop, and
    /// the destructors of the thread's locals run.
    pub(super) fn is_on_a_worker(&self) -> bool {
        self.engine.as_ref().is_some_and(|engine| engine.current_worker().is_some())
    }

    /// The runtime is quiet: joins its threads and gives everything back. Once.
    pub(super) fn close(&self) {
        let Some(engine) = &self.engine else { return };
        self.shared.ending.close_once(|| {
            engine.join();
            // SAFETY: the threads are gone.
            unsafe { self.shared.close() };
            true
        });
    }

    /// Some have not ended: joins the threads that have exited, and releases what belongs to no
    /// thread.
    fn close_what_is_over(&self) {
        let Some(engine) = &self.engine else { return };
        self.shared.ending.close_once(|| {
            let exited = self.shared.ending.workers_exited();
            engine.join_some(|worker| exited[worker]);
            // The timer stays: laggards may wait for a time, and so may who calls again.
            self.shared.slab.trim_all();
            false
        });
    }
}

impl Shared {
    /// Steps 1 and 2. What is answered is to be aborted.
    pub(super) fn refuse_and_sweep(&self) -> cancel::Unstarted {
        self.ending.begin();
        self.totals.note_shut_down(laggards::count(self));
        // 1.
        self.ending.advance(Stage::Shut);
        let unstarted = cancel::take_unstarted(self);
        // 2.
        self.ending.advance(Stage::Swept);
        self.stir();
        unstarted
    }

    /// Makes every thread check whether it has requests to abort.
    fn stir(&self) {
        for worker in self.worker_records().iter() {
            worker.stir_up();
            self.wake(worker.index);
        }
        for arena in self.depot.foreign() {
            // SAFETY: arenas stay as long as the record.
            unsafe { arena.as_ref() }.owner_mailbox.stir();
        }
    }
}
