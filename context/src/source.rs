//! The traits between `select!`, which knows no kind of source, and the kinds.
//!
//! # Vocabulary
//!
//! * **source**: the expression of an arm of a `select!`: a receiver, an event, a request, a time.
//! * **arm**: a source in the frame of the select, with the node that it enters into a list.
//! * **chosen**: a thread that hands something over chooses the wait of one arm ([`Context::choose`]). The select must return what was handed over
//!   to that arm.
//!
//! # The steps of a select
//!
//! 1. It tries to *complete* its arms one by one. The first arm that is ready gives its output.
//! 2. If none is, the select begins one wait, and every arm *enters* its list with the same ticket. An arm that may be ready at that moment
//!    refuses to enter. Then the select takes its wait back, unless an arm was chosen, and begins anew with step 1.
//! 3. After the wait all arms *leave* their lists. If one was chosen, the select returns its output. Else it returns the output of one that was
//!    completed while it was listed, or begins anew with step 1. So a thread that ends a wait without handing something over need not name the arm.
//! 4. An arm that leaves may have been the last obstacle to a cancel. Then it *owes* the rest of that cancel until all arms have left, and the select
//!    *settles*. The reason: user code at the end of one request may wait for another, and that other is not cancelled while an arm still stands in
//!    its list. A worker would begin such an end at once, so it does not get it before.
//!
//! # Invariants
//!
//! * **A1** An arm stays at its address from [`enter`](Arm::enter) until it has left.
//! * **A2** A thread hands something over by a choice. So at most one arm is chosen in one wait. The other arms refuse, and a thread that would
//!   have served one of them serves the next waiter.
//! * **A3** An arm has its output when [`try_complete`](Arm::try_complete), [`leave`](Arm::leave) or [`cancel`](Arm::cancel) has reported it. The
//!   select takes it once.

use std::ptr::NonNull;
use std::time::Instant;

use crate::context::{Cause, Context, Ticket};

/// What an arm of a `select!` can wait for.
///
/// Sealed: it is implemented by forebear's own types only.
///
/// ```
/// use std::time::Duration;
/// use forebear::select;
/// use forebear::select::Source;
/// use forebear::time::after;
///
/// /// Whether `source` is ready now.
/// fn is_ready(source: impl Source) -> bool {
///     select! {
///         _ = source => true,
///         else => false,
///     }
/// }
/// assert!(is_ready(after(Duration::ZERO)));
/// assert!(!is_ready(after(Duration::from_secs(60))));
/// assert!(!is_ready(None::<forebear::time::After>)); // never ready
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be waited for in a `select!`",
    note = "sources are `&Receiver`, `sender.send_arm(item)`, `&Event`, `&Request`, `&mut RequestSet`, `after(duration)`, `&mut Interval`, `cancelled()`, or an `Option` of one"
)]
pub trait Source {
    /// The type that the arm's pattern matches.
    type Output;
    /// The source in the frame of the select.
    #[doc(hidden)]
    type Arm: Output<Output = Self::Output>;
    /// The arm of this source.
    #[doc(hidden)]
    fn into_arm(self) -> Self::Arm;
}

/// Whether an arm can report that the request is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportsCancel {
    /// Not at all.
    No,
    /// Its output can report it.
    Output,
    /// It waits for nothing else.
    Only,
}

/// What an arm found on leaving its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaveResult {
    /// Nothing, or what [`Arm::try_complete`] will find.
    Nothing,
    /// It was completed while it was listed, and has its output. Another arm may have been chosen.
    Completed,
    /// It was chosen, and has its output, which the select must return.
    Chosen,
    /// The same as `Nothing`, and a request is to be ended by [`Arm::settle`] when all arms have left.
    Owes,
}

/// See the module head.
///
/// # Safety
///
/// After [`leave`](Self::leave) nothing outside knows of the arm, and A2.
pub unsafe trait Arm {
    /// Completes the arm if it is ready. True: it has its output.
    fn try_complete(&mut self, context: &Context) -> bool;

    /// Enters its list, with the ticket. False: it has not entered, since it may be ready now.
    ///
    /// # Safety
    ///
    /// A1; the wait of the ticket has been begun by the context, which is the calling one, and `leave` is called.
    unsafe fn enter(&mut self, context: &Context, ticket: Ticket) -> bool;

    /// Leaves its list, if it has entered one.
    ///
    /// # Safety
    ///
    /// The wait by whose ticket it has entered is over, by this cause, on the calling context.
    unsafe fn leave(&mut self, context: &Context, cause: Cause) -> LeaveResult;

    /// When it will be ready by time alone.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// The request that it waits for, while it is in that request's list: a waiter that becomes more urgent passes its urgency on to it.
    fn request(&self) -> Option<NonNull<()>> {
        None
    }

    /// Calls `with` with each request that it waits for, if that may be more than [one](Self::request).
    fn each_request(&self, with: &mut dyn FnMut(NonNull<()>)) {
        if let Some(request) = self.request() {
            with(request);
        }
    }

    /// Whether it can report a cancel.
    fn reports_cancel(&self) -> ReportsCancel;

    /// Completes the arm with the output that reports a cancel.
    fn cancel(&mut self) {}

    /// Gives up what it has submitted, if its select was cancelled. It stands in no list any more. True: as
    /// [`LeaveResult::Owes`].
    fn give_up(&mut self) -> bool {
        false
    }

    /// Every arm has left. Delivers a cancel for which this arm's demand was the last obstacle. A request that is to be ended
    /// goes to `ends`.
    fn settle(&mut self, ends: &mut Vec<NonNull<()>>) {
        let _ = ends;
    }

    /// Ends the requests of all arms, together: user code that one end calls may wait for another of them.
    ///
    /// # Safety
    ///
    /// `settle` of arms of this select has added each, and no other call has ended it.
    unsafe fn end_all(&mut self, ends: Vec<NonNull<()>>) {
        debug_assert!(ends.is_empty(), "arms that add none are not called");
    }
}

/// Calls back with every request that an arm of a row waits for.
pub type EachFn = unsafe fn(row: NonNull<()>, with: &mut dyn FnMut(NonNull<()>));

/// A wait for several, as those see it who follow it: the target of a wait whose reason is [`Reason::Select`](crate::context::Reason).
/// It lies in the frame of the select.
#[derive(Debug)]
pub struct Several {
    row: NonNull<()>,
    each: EachFn,
}

impl Several {
    /// `each` calls back with every request that an arm of `row` waits for.
    ///
    /// # Safety
    ///
    /// `row` is what `each` takes, and stays as long as a wait that has this for its target.
    pub unsafe fn new(row: NonNull<()>, each: EachFn) -> Several {
        Several { row, each }
    }

    /// Calls `with` with every request that is waited for.
    ///
    /// # Safety
    ///
    /// By the thread that the waiter is on, while its stack is left in that wait. Or by any thread while that wait is
    /// [held](crate::context::edge), if the row was not written to since the wait was bound.
    pub unsafe fn each_request(&self, with: &mut dyn FnMut(NonNull<()>)) {
        // SAFETY: by the contract of `new`; the stack is left, or does not go on while its wait is held, so nobody writes to the row.
        unsafe { (self.each)(self.row, with) };
    }
}

/// An arm with its output.
pub trait Output: Arm {
    /// The type that the arm's pattern matches.
    type Output;
    /// The output, once the arm has it (A3).
    fn output(&mut self) -> Self::Output;
}

// A source that may be absent, in which case its arm is never ready.

impl<S: Source> Source for Option<S> {
    type Output = S::Output;
    type Arm = Option<S::Arm>;

    fn into_arm(self) -> Self::Arm {
        self.map(S::into_arm)
    }
}

// SAFETY: the inner arm's.
unsafe impl<A: Arm> Arm for Option<A> {
    fn try_complete(&mut self, context: &Context) -> bool {
        self.as_mut().is_some_and(|arm| arm.try_complete(context))
    }

    unsafe fn enter(&mut self, context: &Context, ticket: Ticket) -> bool {
        // SAFETY: by contract.
        self.as_mut().is_none_or(|arm| unsafe { arm.enter(context, ticket) })
    }

    unsafe fn leave(&mut self, context: &Context, cause: Cause) -> LeaveResult {
        // SAFETY: by contract.
        self.as_mut().map_or(LeaveResult::Nothing, |arm| unsafe { arm.leave(context, cause) })
    }

    fn deadline(&self) -> Option<Instant> {
        self.as_ref().and_then(A::deadline)
    }

    fn request(&self) -> Option<NonNull<()>> {
        self.as_ref().and_then(A::request)
    }

    fn each_request(&self, with: &mut dyn FnMut(NonNull<()>)) {
        if let Some(arm) = self {
            arm.each_request(with);
        }
    }

    fn reports_cancel(&self) -> ReportsCancel {
        self.as_ref().map_or(ReportsCancel::No, A::reports_cancel)
    }

    fn cancel(&mut self) {
        if let Some(arm) = self {
            arm.cancel();
        }
    }

    fn give_up(&mut self) -> bool {
        self.as_mut().is_some_and(A::give_up)
    }

    fn settle(&mut self, ends: &mut Vec<NonNull<()>>) {
        if let Some(arm) = self {
            arm.settle(ends);
        }
    }

    unsafe fn end_all(&mut self, ends: Vec<NonNull<()>>) {
        if let Some(arm) = self {
            // SAFETY: by contract.
            unsafe { arm.end_all(ends) };
        }
    }
}

impl<A: Output> Output for Option<A> {
    type Output = A::Output;

    fn output(&mut self) -> A::Output {
        match self {
            Some(arm) => arm.output(),
            None => unreachable!("what is absent is never ready"),
        }
    }
}
