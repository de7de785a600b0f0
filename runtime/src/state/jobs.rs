//! The count of a scope's jobs, and the wake-up of the scope that waits for them.
//!
//! # Vocabulary
//!
//! * **owner**: the fiber that opened the scope, and that waits for the jobs.
//! * **spawner**: the fiber that spawns a job; null in a thread that has no fiber.
//! * **fast spawn**: a spawn by the owner that needs nothing but the count.
//!
//! # How jobs are counted
//!
//! The owner counts its spawns in a plain cell, until it begins to wait. All other spawns are counted by an increment of the shared count. A job that ends
//! decrements the shared count, on whatever thread it ends. So the shared count begins at [`FAR`], above all that it can fall to. When the
//! owner begins to wait it subtracts `FAR` and adds the plain count. From then on the shared count is the number of jobs that are left, and
//! the decrement that brings it to zero wakes the owner.
//!
//! An owner that finds as many decrements as spawns does not wait. Nobody but the owner and its jobs can spawn, so then no job can come.
//!
//! The word `fast` names the owner while fast spawns are allowed. Otherwise it is [`NOBODY`]: in a scope that keeps its
//! jobs, in one that is stopped, and after the owner has begun to wait. `NOBODY` is the address of no fiber, and it is
//! not null: a spawner without a fiber compares unequal to it.
//!
//! The owner can spawn after it has begun to wait: a destructor that runs on the owner's stack inside the wait may do it. That spawn is
//! counted by an increment, since the plain count has been *closed*. The job whose captures are dropped is not counted down yet, so the shared
//! count is not zero.
//!
//! # Invariants
//!
//! * **JC1** The plain count, and whether it is closed, is accessed by the owner only.
//! * **JC2** A thread that counts a job ensures that the scope is not over meanwhile. Either the body is not over, or a
//!   job that is not counted down yet holds the reference to the scope.
//! * **JC3** The decrement of a job is its thread's last access to anything that the job borrows, and to the scope. The one that brings the
//!   count to zero accesses the scope once more, to wake the owner; the owner does not return before that wake-up.
//! * **JC4** `waiter` is written before the owner's subtraction, and read after the decrement to zero. All of these are read-modify-writes
//!   of one word with acquire and release, so the decrement to zero sees `waiter`, and the owner sees all that the jobs did.

use std::fmt;
use std::ptr::{self, NonNull};

use forebear_context::context::{Cause, Context, Ticket, unpark};
use forebear_context::shim::atomic::{AtomicI64, AtomicPtr, Ordering};
use forebear_context::shim::{UnsafeCell, mutant};

/// What the shared count begins with.
const FAR: i64 = 1 << 40;

/// The address of no fiber; fibers are aligned.
const NOBODY: *mut () = mutant!("nobody_is_null", ptr::null_mut(), ptr::without_provenance_mut(1));

/// On a cache line of its own: jobs that end on other threads write here, while the body accesses what stands beside it.
#[repr(align(64))]
struct OwnLine<T>(T);

/// See the module head.
pub struct Jobs {
    /// See the module head.
    count: OwnLine<AtomicI64>,
    /// The owner's spawns.
    here: UnsafeCell<i64>,
    /// The owner has begun to wait.
    is_closed: UnsafeCell<bool>,
    /// The owner that spawns fast, or [`NOBODY`].
    fast: AtomicPtr<()>,
    /// The waiter that the last job wakes.
    waiter: UnsafeCell<Option<(NonNull<Context>, Ticket)>>,
}

// SAFETY: JC1 for `here`, JC4 for `waiter`; the rest is atomic.
unsafe impl Sync for Jobs {}

impl Jobs {
    /// No jobs yet. `fast` is the owner, if it may spawn fast.
    #[inline(always)]
    pub fn new(fast: Option<NonNull<()>>) -> Jobs {
        Jobs {
            count: OwnLine(AtomicI64::new(FAR)),
            here: UnsafeCell::new(0),
            is_closed: UnsafeCell::new(false),
            fast: AtomicPtr::new(fast.map_or(NOBODY, NonNull::as_ptr)),
            waiter: UnsafeCell::new(None),
        }
    }

    /// Whether a spawn by `spawner` is a fast one. The spawner is the caller.
    #[inline(always)]
    fn is_fast(&self, spawner: *const ()) -> bool {
        ptr::eq(spawner, self.fast.load(Ordering::Relaxed))
    }

    /// Adds to the plain count.
    ///
    /// # Safety
    ///
    /// JC1.
    #[inline(always)]
    unsafe fn add_here(&self, jobs: i64) {
        // SAFETY: by contract.
        self.here.with_mut(|here| unsafe { *here += jobs });
    }

    /// Counts a job that `spawner`, the caller, is about to spawn, if that is a fast spawn. False: the job is not counted.
    ///
    /// # Safety
    ///
    /// JC2; `spawner` is the caller's fiber.
    #[inline(always)]
    pub unsafe fn count_fast(&self, spawner: *const ()) -> bool {
        let fast = self.is_fast(spawner);
        if fast {
            // SAFETY: JC1: the caller is the owner.
            unsafe { self.add_here(1) };
        }
        fast
    }

    /// Counts a job that the caller is about to spawn. `by_owner`: the caller is the owner.
    ///
    /// # Safety
    ///
    /// JC2; `by_owner` is true only for the owner.
    pub unsafe fn count(&self, by_owner: bool) {
        // SAFETY: JC1: the caller is the owner.
        let is_closed = || self.is_closed.with(|closed| unsafe { *closed });
        if by_owner && !mutant!("owner_counts_in_a_closed_cell", false, is_closed()) {
            // SAFETY: as above.
            unsafe { self.add_here(1) };
        } else {
            // JC2: the count is not zero, so nothing has to be ordered here.
            self.count.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Takes back the count of a job: it was taken by value, and its value with it, or could not be made. The caller is on `fiber`.
    ///
    /// # Safety
    ///
    /// JC3; `fiber` is the caller's.
    #[inline]
    pub unsafe fn taken(&self, fiber: *const ()) {
        if self.is_fast(fiber) {
            // SAFETY: JC1: the caller is the owner.
            unsafe { self.add_here(-1) };
        } else {
            // SAFETY: by contract.
            unsafe { self.done(1) };
        }
    }

    /// So many jobs are over, and nothing of them is left that may borrow.
    ///
    /// # Safety
    ///
    /// JC3.
    #[inline(always)]
    pub unsafe fn done(&self, jobs: i64) {
        let order = mutant!("job_done_relaxed", Ordering::Relaxed, Ordering::AcqRel);
        if self.count.0.fetch_sub(jobs, order) == jobs {
            // SAFETY: the count is zero by this decrement.
            unsafe { self.wake() };
        }
    }

    /// Wakes the scope's owner, if it waits.
    ///
    /// # Safety
    ///
    /// The caller has brought the count to zero.
    #[cold]
    unsafe fn wake(&self) {
        // SAFETY: JC4.
        let waiter = self.waiter.with(|waiter| unsafe { *waiter });
        if let Some((context, ticket)) = waiter {
            // SAFETY: JC3: the owner waits for this wake-up, so its context is there.
            unsafe { unpark(context, ticket, Cause::Woken) };
        }
    }

    /// No spawn is a fast one from now on. By anybody, while the scope is there.
    pub fn stop_fast(&self) {
        self.fast.store(NOBODY, Ordering::Relaxed);
    }

    /// Whether any job was counted and not taken.
    ///
    /// # Safety
    ///
    /// By the owner, before it waits.
    #[inline(always)]
    pub unsafe fn are_any(&self) -> bool {
        // SAFETY: JC1.
        self.here.with(|here| unsafe { *here }) != 0 || self.count.0.load(Ordering::Relaxed) != FAR
    }

    /// Whether all jobs are over that were counted so far. If no other is spawned, the owner need not wait: it sees all that the jobs did.
    ///
    /// # Safety
    ///
    /// By the owner, before it waits.
    #[inline(always)]
    pub unsafe fn are_over(&self) -> bool {
        let order = mutant!("jobs_over_relaxed", Ordering::Relaxed, Ordering::Acquire);
        // SAFETY: JC1.
        let here = self.here.with(|here| unsafe { *here });
        // JC4: the load sees the last decrement, and so all before it. Above zero no decrement has its thread access the scope once more.
        self.count.0.load(order) + here == FAR
    }

    /// The owner begins to wait, under this ticket of its context. True: all jobs are over, and nobody uses the ticket. False: the last
    /// job wakes the owner.
    ///
    /// # Safety
    ///
    /// By the owner, once. If the answer is false it does not return before it was woken.
    #[inline(always)]
    pub unsafe fn close(&self, context: &Context, ticket: Ticket) -> bool {
        mutant!("owner_counts_on", (), self.stop_fast());
        // SAFETY: JC4: nobody reads it before the subtraction.
        self.waiter.with_mut(|waiter| unsafe { *waiter = Some((NonNull::from(context), ticket)) });
        // SAFETY: JC1.
        self.is_closed.with_mut(|closed| unsafe { *closed = true });
        // SAFETY: JC1.
        let rest = FAR - self.here.with(|here| unsafe { *here });
        self.count.0.fetch_sub(rest, Ordering::AcqRel) == rest
    }
}

impl fmt::Debug for Jobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Jobs").finish_non_exhaustive()
    }
}
