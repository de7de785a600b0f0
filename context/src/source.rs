//! What one wait of several can wait for: the seam between `select!`, which knows no kinds, and the kinds.
//!
//! # Vocabulary
//!
//! * **source**: what stands on the right of an arm of a `select!`.
//! * **arm**: a source in the frame of the select, with the place by which it stands in a list.
//! * **chosen**: of all the lists that a select stands in, the one from which its wait was ended by a choice
//!   ([`Context::choose`]): what was handed over there must be had.
//!
//! # How a select goes
//!
//! It *looks* at its arms one by one. An arm that is ready takes what is there, and the select has it. If none is, the select begins
//! one wait, and every arm *enters* its list by the same ticket. An arm that finds at that moment that it need not wait says so; the
//! select then takes its wait back, if nobody has chosen it, and looks again. After the wait all arms *leave*. The one that was chosen
//! has its output; if none was, the select has what has *happened* to one while it waited, or looks again. So whatever ends a wait
//! without handing something over need not say which arm it meant.
//!
//! # Invariants
//!
//! * **A1** An arm stays where it is from [`enter`](Arm::enter) until it has left.
//! * **A2** What is handed over is handed over by a choice; so one arm at most is chosen in one wait, and the others, which refuse, are
//!   passed over by the thread that would have served them.
//! * **A3** An arm has its output when [`look`](Arm::look), [`leave`](Arm::leave) or [`cancel`](Arm::cancel) has said so, and it is
//!   asked for once.

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
    /// What the arm's pattern is matched with.
    type Output;
    /// The source in the frame of the select.
    #[doc(hidden)]
    type Arm: Output<Output = Self::Output>;
    /// The arm of this source.
    #[doc(hidden)]
    fn into_arm(self) -> Self::Arm;
}

/// How far an arm can tell that the request is cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tells {
    /// Not at all.
    No,
    /// Its output can say so.
    Output,
    /// That is all that it waits for.
    Only,
}

/// What an arm found on leaving its list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// Nothing, or what the next look will tell.
    Nothing,
    /// What it waits for has happened while it stood there, and it has its output; another may have been chosen.
    News,
    /// It was chosen, and has its output, which is to be had.
    Chosen,
}

/// See the module head.
///
/// # Safety
///
/// After [`leave`](Self::leave) nothing outside knows of the arm, and A2.
pub unsafe trait Arm {
    /// Takes what is there, if something is. True: it has its output.
    fn look(&mut self, context: &Context) -> bool;

    /// Stands in its list, by the ticket. False: it does not, for it may be ready now.
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
    unsafe fn leave(&mut self, context: &Context, cause: Cause) -> Left;

    /// When it will be ready without anybody's doing.
    fn deadline(&self) -> Option<Instant> {
        None
    }

    /// The request that it waits for, while it stands in that one's list: what has become more urgent passes that on.
    fn request(&self) -> Option<NonNull<()>> {
        None
    }

    /// Calls `with` with each request that it waits for, if that may be more than [one](Self::request).
    fn each_request(&self, with: &mut dyn FnMut(NonNull<()>)) {
        if let Some(request) = self.request() {
            with(request);
        }
    }

    /// Whether it can tell a cancellation.
    fn tells(&self) -> Tells;

    /// Has the output that tells one.
    fn cancel(&mut self) {}
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
    /// By the thread that the waiter is on, while its stack is left in that wait; or by any thread, while that wait is
    /// [held](crate::context::edge), if it was bound with nothing written to the row since.
    pub unsafe fn each_request(&self, with: &mut dyn FnMut(NonNull<()>)) {
        // SAFETY: by the contract of `new`; the stack is left, or does not go on while its wait is held, so nobody writes to the row.
        unsafe { (self.each)(self.row, with) };
    }
}

/// An arm with its output.
pub trait Output: Arm {
    /// What the arm's pattern is matched with.
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
    fn look(&mut self, context: &Context) -> bool {
        self.as_mut().is_some_and(|arm| arm.look(context))
    }

    unsafe fn enter(&mut self, context: &Context, ticket: Ticket) -> bool {
        // SAFETY: by contract.
        self.as_mut().is_none_or(|arm| unsafe { arm.enter(context, ticket) })
    }

    unsafe fn leave(&mut self, context: &Context, cause: Cause) -> Left {
        // SAFETY: by contract.
        self.as_mut().map_or(Left::Nothing, |arm| unsafe { arm.leave(context, cause) })
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

    fn tells(&self) -> Tells {
        self.as_ref().map_or(Tells::No, A::tells)
    }

    fn cancel(&mut self) {
        if let Some(arm) = self {
            arm.cancel();
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
