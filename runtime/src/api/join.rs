//! [`join`]: two closures, perhaps in parallel, without an allocation.
//!
//! The second branch lies in the caller's frame and stands in its fiber's list of branches
//! ([`crate::schedule::branches`]). Mostly no worker is hungry, the first branch returns, and the second runs as a
//! plain call. If it was published meanwhile, the thread that claims its node runs it. That is the joiner, or a thief,
//! for which the joiner then waits.
//!
//! A join looks at the attention word once, before its first branch. There it publishes for the hungry, and suspends if something older is ready
//! (decision 0145).
//!
//! The frame is lent from when the branch is listed until it has run (AR1). The first closure's unwind is caught. Any other unwind ends the process
//! ([`Lent`]): in the wait for the thief, and while the worker publishes.

use std::any::Any;
use std::cell::UnsafeCell; // not modelled: a branch is touched by its one claimer
use std::mem::{ManuallyDrop, needs_drop};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use forebear_context::error::internal::{caught, drop_contained, resume};
use forebear_context::error::{Error, WaitError};

use crate::api::origin;
use crate::api::scope::into_wait_error;
use crate::foreign;
use crate::record::arena;
use crate::record::branch_list::Branch;
use crate::record::callback;
use crate::record::fiber::{self, Fiber};
use crate::record::header::Header;
use crate::schedule::branches;
use crate::schedule::wait;
use crate::schedule::worker::OnWorker;
use crate::schedule::yielding;
use crate::stack::lent::Lent;
use crate::state::attention::{HUNGRY, OLDER};
use crate::state::word::FINISHED;

/// A second branch in its frame.
#[repr(C)]
struct JoinBranch<B, R> {
    branch: Branch<Header>,
    body: UnsafeCell<BranchBody<B, R>>,
}

union BranchBody<B, R> {
    job: ManuallyDrop<B>,
    result: ManuallyDrop<std::thread::Result<R>>,
}

impl<B: FnOnce() -> R, R> JoinBranch<B, R> {
    /// Takes the job. Once, by the owner of the branch (AR1).
    ///
    /// # Safety
    ///
    /// Called once, by the stack or worker that runs the branch (AR1).
    #[inline(always)]
    unsafe fn job(&self) -> B {
        // SAFETY: AR1: the caller runs the branch, so no other thread touches the body, and the callable has not been taken.
        unsafe { ManuallyDrop::take(&mut (*self.body.get()).job) }
    }

    /// Takes the result that [`run`] has stored.
    ///
    /// # Safety
    ///
    /// Called once, after [`run`] has returned.
    unsafe fn result(&self) -> std::thread::Result<R> {
        // SAFETY: `run` has returned, so the body holds the result and no other thread touches it; it is taken once, by contract.
        unsafe { ManuallyDrop::take(&mut (*self.body.get()).result) }
    }
}

/// Runs the branch for its node and stores the result.
///
/// # Safety
///
/// `branch` leads to a `JoinBranch<B, R>` whose frame stays, and whose node this thread has claimed (AR1).
unsafe fn run<B: FnOnce() -> R, R>(branch: *const Branch<Header>) {
    // SAFETY: AR1: made by `join` with these types; claimed, so run once.
    unsafe {
        let this = &*branch.cast::<JoinBranch<B, R>>();
        let job = this.job();
        let result = catch_unwind(AssertUnwindSafe(job));
        if result.is_err() {
            caught();
        }
        (*this.body.get()).result = ManuallyDrop::new(result);
    }
}

/// Runs both closures, in parallel if another worker has nothing to do, and returns both values.
///
/// Both always run. The first stays on this stack, so it need not be `Send`; either may wait, also for what the other
/// does, and also on one worker. Costs a few nanoseconds if no worker takes the second. In a foreign thread the second
/// is offered to the runtime at once, which costs more: a tight recursion begins in [`Runtime::run`](crate::Runtime::run).
///
/// A worker offers the second to others when it comes to a fork, a spawn or another scheduling point after they have run out of work. So do not let the first poll in a loop, without any of these, for what the
/// second does: the second might never begin. A wait of forebear is a scheduling point.
///
/// Suspends before the first closure if something older is ready on this worker, and continues after that. It also suspends while another worker runs
/// the second.
///
/// Adds no cancellation point of its own: a tree of joins that is cancelled runs to its end. Leaves that take long call
/// [`check_cancelled`](crate::check_cancelled), and pass the error on by [`try_join`].
///
/// # Panics
///
/// With the panic of the first closure, else with the second's; both have run by then. The value of the other closure has been dropped.
///
/// ```
/// use forebear::join;
///
/// fn sum(numbers: &[u64]) -> u64 {
///     if numbers.len() < 4 {
///         return numbers.iter().sum();
///     }
///     let (left, right) = numbers.split_at(numbers.len() / 2);
///     let (a, b) = join(|| sum(left), || sum(right));
///     a + b
/// }
/// assert_eq!(sum(&[1; 100]), 100);
/// ```
#[inline(always)]
pub fn join<A, B, RA, RB>(a: A, b: B) -> (RA, RB)
where
    A: FnOnce() -> RA,
    B: FnOnce() -> RB + Send,
    RB: Send,
{
    if let Some(fiber) = fiber::get()
        && let Some(worker) = fiber.worker()
    {
        let branch = JoinBranch::<B, RB> {
            branch: Branch::new(fiber.request.get(), run::<B, RB>),
            body: UnsafeCell::new(BranchBody { job: ManuallyDrop::new(b) }),
        };
        // SAFETY: AR1: this frame does not end before the branch has run.
        unsafe { fiber.branches.push(&branch.branch) };
        if worker.post.attention.get() & (HUNGRY | OLDER) != 0 {
            yielding::attend_join(worker, fiber);
        }
        let first = catch_unwind(AssertUnwindSafe(a));
        if branch.branch.node.get().is_null() {
            // SAFETY: AR2: private, hence the newest.
            unsafe { fiber.branches.pop(&branch.branch) };
            // SAFETY: AR1: private, so it is ours.
            let job = unsafe { branch.job() };
            return match first {
                Ok(first) => second_after(first, job),
                Err(payload) => unwind_after(job, payload),
            };
        }
        // SAFETY: AR1, AR3: published from this fiber.
        return unsafe { join_published(fiber, &branch, first) };
    }
    join_foreign(a, b)
}

/// Runs the second branch after the first has returned. If it panics, the first value is dropped before that panic continues.
#[inline(always)]
fn second_after<A, B: FnOnce() -> R, R>(first: A, job: B) -> (A, R) {
    if const { !needs_drop::<A>() } {
        return (first, job());
    }
    match catch_unwind(AssertUnwindSafe(job)) {
        Ok(second) => (first, second),
        Err(payload) => unwind_without(first, payload),
    }
}

/// Runs the second branch after the first has panicked.
#[cold]
#[inline(never)]
fn unwind_after<B: FnOnce() -> R, R>(job: B, payload: Box<dyn Any + Send>) -> ! {
    caught();
    unwind_without(catch_unwind(AssertUnwindSafe(job)), payload)
}

/// The panic of one branch continues. What the other one has come to is not returned. It is not dropped by the unwind: its destructor may wait, or panic. If
/// it is a panic, the panic hook has seen both.
#[cold]
#[inline(never)]
fn unwind_without<T>(other: T, payload: Box<dyn Any + Send>) -> ! {
    drop_contained(other);
    resume(payload)
}

/// The end of a join whose second branch was published.
///
/// # Safety
///
/// AR3: on the fiber of the join, whose link to the node has not been given up; the branch was published.
#[cold]
#[inline(never)]
unsafe fn join_published<B: FnOnce() -> RB, RA, RB>(
    fiber: &Fiber,
    branch: &JoinBranch<B, RB>,
    first: std::thread::Result<RA>,
) -> (RA, RB) {
    // SAFETY: AR3: the joiner's link.
    let node = unsafe { NonNull::new_unchecked(branch.branch.node.get().cast_mut()) };
    // SAFETY: as above.
    let h = unsafe { node.as_ref() };
    let second = if h.word().claim_by_waiter(false).is_ok() {
        // SAFETY: AR1: claimed by us.
        let result = catch_unwind(AssertUnwindSafe(unsafe { branch.job() }));
        h.word().finish(false, |_| FINISHED);
        result
    } else {
        // SAFETY: the joiner's link keeps the node for the wait; the branch lies in this frame.
        unsafe {
            let lent = Lent::to(|| "the second branch of a join");
            wait::until_over_at_any_rate(fiber, node);
            lent.given_back();
            // AR1: terminal, so it has been run and its result stored.
            branch.result()
        }
    };
    if h.word().release_link() {
        // SAFETY: W4.
        unsafe { arena::end(node) };
    }
    match (first, second) {
        (Ok(first), Ok(second)) => (first, second),
        (Err(payload), second) => unwind_without(second, payload),
        (Ok(first), Err(payload)) => unwind_without(first, payload),
    }
}

/// In a foreign thread no worker would read a list of branches: the second branch is published at once.
#[cold]
#[inline(never)]
fn join_foreign<A, B, RA, RB>(a: A, b: B) -> (RA, RB)
where
    A: FnOnce() -> RA,
    B: FnOnce() -> RB + Send,
    RB: Send,
{
    // Without a fiber nobody could be waited for, nor inside a callback or a region that must not suspend (AR4).
    let may_wait = |fiber: &Fiber| fiber.context().no_suspend().get() == 0;
    if !foreign::fiber().is_some_and(may_wait) || callback::is_inside() {
        return match catch_unwind(AssertUnwindSafe(a)) {
            Ok(first) => second_after(first, b),
            Err(payload) => unwind_after(b, payload),
        };
    }
    let origin = origin::here(None);
    let maker = origin.maker.map_or(std::ptr::null(), std::ptr::from_ref);
    let branch = JoinBranch::<B, RB> {
        branch: Branch::new(maker, run::<B, RB>),
        body: UnsafeCell::new(BranchBody { job: ManuallyDrop::new(b) }),
    };
    // SAFETY: AR1: this frame stays; AR3: the maker, if any, runs on this thread; M1.
    unsafe {
        let lent = Lent::to(|| "the second branch of a join");
        let (_, node) = branches::make_node(origin.arena, &branch.branch, origin.shared.default_need);
        if !origin.shared.push_root(node) && node.as_ref().word().release_link() {
            unreachable!("the joiner holds a link");
        }
        lent.given_back();
        let first = catch_unwind(AssertUnwindSafe(a));
        join_published(origin.fiber, &branch, first)
    }
}

/// As [`join`], for closures that may return an error. Both always run, so a tree of these ends early if its leaves call
/// [`check_cancelled`](crate::check_cancelled).
///
/// # Errors
///
/// The first closure's error, else the second's.
///
/// # Panics
///
/// As [`join`].
///
/// ```
/// use forebear::try_join;
/// let pair = try_join(|| Ok("1".parse::<u8>()?), || Ok("2".parse::<u8>()?))?;
/// assert_eq!(pair, (1, 2));
/// # Ok::<(), forebear::WaitError>(())
/// ```
#[inline(always)]
pub fn try_join<A, B, RA, RB>(a: A, b: B) -> Result<(RA, RB), WaitError>
where
    A: FnOnce() -> Result<RA, Error>,
    B: FnOnce() -> Result<RB, Error> + Send,
    RB: Send,
{
    match join(a, move || b().map_err(SendError)) {
        (Ok(a), Ok(b)) => Ok((a, b)),
        (Err(error), _) | (_, Err(SendError(error))) => Err(into_wait_error(error)),
    }
}

/// An error of the second branch on its way to the joiner.
struct SendError(Error);
