//! The context of a thread that is no worker: parking blocks it.
//!
//! Before the thread blocks it checks the slot for about as long as a wake-up takes, if that has paid off lately ([`Retries`]). A waker signals the condition
//! only if the thread has blocked: a flag under the mutex says so.
//!
//! The slot is settled under a mutex, so the unlock is the last access of a waker. Once the waiter has taken that mutex
//! after the settling, it may end, and so may its thread (C1). A park always takes it: it goes through
//! [`block`](ForeignContext::block) until `block` has seen the wait settled, even if the slot is settled before. (A
//! nudge does not end the wait, and the wait may be settled right after one.) A waiter that only read the slot could
//! end while its waker is between settling and unlocking.

use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering}; // not modelled: a static, set once
use std::time::{Duration, Instant};

use super::{Alarm, Cause, Context, OwnerWait, Table, Ticket, current, set_current};
use crate::clock::deadline_after;
use crate::error::Cycle;
use crate::retries::Retries;
use crate::shim::atomic::AtomicU64;
use crate::shim::{Condvar, Mutex, MutexGuard, hint, mutant, time};

/// Between two checks of the slot.
const PAUSES: u32 = 4;
/// Checks of the slot in one retry: about 1.2 µs.
const CHECKS: u32 = 12;

/// A foreign thread's context, and what it blocks on.
#[repr(C)]
pub struct ForeignContext {
    context: Context,
    lock: Mutex<Owner>,
    settled: Condvar,
}

/// What a waker has to know of the thread.
#[derive(Debug, Default)]
struct Owner {
    /// It was nudged since it last looked.
    nudged: bool,
    /// It waits at the condition.
    blocked: bool,
}

static TABLE: Table = ForeignContext::TABLE;

impl ForeignContext {
    /// The table of a thread that no runtime knows. Its clock is the system's.
    pub const TABLE: Table = Table {
        prepare,
        finish,
        unpark,
        ready,
        in_request,
        requester,
        request_number,
        urgency,
        word,
        name,
        is_cancelled,
        refuse_wait,
        now,
        deadline,
        arm,
        disarm,
        wait_for_owner,
        take_cycle,
        gave_back,
        shares_thread,
        lost_share,
        give_way,
        is_alone,
        turn,
    };

    /// A context for the calling thread. Its owner keeps it in place and makes it current.
    #[must_use]
    pub fn new() -> ForeignContext {
        // SAFETY: this is the table of foreign contexts.
        unsafe { ForeignContext::with_table(&TABLE) }
    }

    /// The same for an owner that runs requests on foreign threads, whose table borrows
    /// [`block`](Self::block) and [`release`](Self::release).
    ///
    /// # Safety
    ///
    /// As [`Context::new`].
    #[must_use]
    pub unsafe fn with_table(table: &'static Table) -> ForeignContext {
        // SAFETY: by contract.
        let context = unsafe { Context::new(table) };
        ForeignContext { context, lock: Mutex::new(Owner::default()), settled: Condvar::new() }
    }

    /// The context proper. It is the first field, so a pointer to one is a pointer to the other.
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Blocks the thread until the wait is settled, or its deadline settles it, or it is [nudged](Self::nudge). True: it was settled,
    /// and the thread that settled it has finished with the context. False: the caller calls this again.
    ///
    /// # Safety
    ///
    /// `context` is the first field of a `ForeignContext`, and this is its thread.
    #[must_use = "a wait that is not over is gone on with"]
    pub unsafe fn block(context: &Context, deadline: Option<Instant>) -> bool {
        // SAFETY: by contract.
        unsafe { ForeignContext::block_until_look(context, deadline, None) }
    }

    /// As [`block`](Self::block), and returns at `look`, too. That does not settle the wait: the caller checks something, and calls this again.
    ///
    /// # Safety
    ///
    /// As [`block`](Self::block).
    #[must_use = "a wait that is not over is gone on with"]
    pub unsafe fn block_until_look(
        context: &Context,
        deadline: Option<Instant>,
        look: Option<Instant>,
    ) -> bool {
        // SAFETY: by contract and `repr(C)`.
        let this = unsafe { &*std::ptr::from_ref(context).cast::<ForeignContext>() };
        this.check_before_block();
        let mut guard = this.lock();
        let mut deadline = deadline;
        while context.is_waiting() && !std::mem::take(&mut guard.nudged) {
            let Some(at) = deadline.into_iter().chain(look).min() else {
                guard = this.sleep(guard, None);
                continue;
            };
            let left = at.saturating_duration_since(time::now());
            if !left.is_zero() {
                guard = this.sleep(guard, Some(left));
                continue;
            }
            if deadline != Some(at) {
                break;
            }
            let ticket = Ticket(context.slot_now() & !super::STATE);
            context.settle(ticket, Cause::TimedOut);
            // If that is refused the wait was chosen, and is about to be ended.
            deadline = None;
        }
        // Before the lock is given up: nobody settles it without.
        mutant!("nudge_ends_a_park", true, !context.is_waiting())
    }

    /// Checks for a while whether there is a reason to return, as long as that has paid off lately.
    fn check_before_block(&self) {
        if cfg!(any(loom, shuttle)) {
            // A check changes nothing.
            return;
        }
        let mut retries = RETRIES.with(Cell::get);
        let mut tried = 0;
        while self.context.is_waiting() && !self.is_nudged() && retries.again(tried) {
            tried += 1;
            for _ in 0..CHECKS {
                if !self.context.is_waiting() {
                    retries.found();
                    break;
                }
                (0..PAUSES).for_each(|_| hint::spin_loop());
            }
        }
        RETRIES.with(|kept| kept.set(retries));
    }

    /// Whether it was nudged; false if a waker is at it just now.
    fn is_nudged(&self) -> bool {
        self.lock.try_lock().is_ok_and(|owner| owner.nudged)
    }

    fn lock(&self) -> MutexGuard<'_, Owner> {
        self.lock.lock().unwrap_or_else(|_| std::process::abort())
    }

    /// Waits at the condition, for so long at most.
    fn sleep<'a>(
        &'a self,
        mut owner: MutexGuard<'a, Owner>,
        left: Option<Duration>,
    ) -> MutexGuard<'a, Owner> {
        owner.blocked = !cfg!(mutant = "nobody_knows_who_is_blocked");
        let back = match left {
            None => self.settled.wait(owner).ok(),
            Some(left) => self.settled.wait_timeout(owner, left).ok().map(|(owner, _)| owner),
        };
        let mut owner = back.unwrap_or_else(|| std::process::abort());
        owner.blocked = false;
        owner
    }

    /// Signals the condition, if the thread waits there.
    fn rouse(&self, owner: &Owner) {
        if owner.blocked {
            self.settled.notify_one();
        }
    }

    /// Blocks the calling thread until it is nudged, or until then, whatever its wait. That a wait is settled does not end this.
    ///
    /// # Safety
    ///
    /// `context` is the first field of a `ForeignContext`, whose thread calls this.
    pub unsafe fn block_for_nudge(context: &Context, until: Instant) {
        // SAFETY: by contract and `repr(C)`.
        let this = unsafe { &*std::ptr::from_ref(context).cast::<ForeignContext>() };
        let mut guard = this.lock();
        while !std::mem::take(&mut guard.nudged) {
            let left = until.saturating_duration_since(time::now());
            if left.is_zero() {
                return;
            }
            guard = this.sleep(guard, Some(left));
        }
    }

    /// Has the thread return from [`block`](Self::block), now or when it next comes there, though its wait continues: the owner
    /// has something else to look at.
    ///
    /// # Safety
    ///
    /// `context` is the first field of a `ForeignContext` that is there.
    pub unsafe fn nudge(context: NonNull<Context>) {
        // SAFETY: by contract; `repr(C)`.
        let this = unsafe { context.cast::<ForeignContext>().as_ref() };
        let mut owner = this.lock();
        owner.nudged = true;
        this.rouse(&owner);
    }

    /// Settles the wait and wakes the thread, or refuses.
    ///
    /// # Safety
    ///
    /// C1, and `context` is the first field of a `ForeignContext`.
    pub unsafe fn release(context: NonNull<Context>, ticket: Ticket, cause: Cause) -> bool {
        // SAFETY: C1; `repr(C)`.
        let this = unsafe { context.cast::<ForeignContext>().as_ref() };
        let owner = this.lock();
        let won = this.context.settle(ticket, cause);
        // Loom switches at its own operations only, and would find nothing between these two.
        #[cfg(any(mutant = "settled_skips_prepare", mutant = "nudge_ends_a_park"))]
        crate::shim::thread::yield_now();
        if won {
            this.rouse(&owner);
        }
        drop(owner);
        won
    }

    /// Ends a wait that was chosen, and wakes the thread.
    ///
    /// # Safety
    ///
    /// As [`ready`](super::ready), and `context` is the first field of a `ForeignContext`.
    pub unsafe fn release_chosen(context: NonNull<Context>, ticket: Ticket) {
        // SAFETY: what was chosen does not go on before this; `repr(C)`.
        let this = unsafe { context.cast::<ForeignContext>().as_ref() };
        let owner = this.lock();
        // SAFETY: by contract.
        unsafe { this.context.settle_chosen(ticket) };
        this.rouse(&owner);
        drop(owner);
    }
}

impl Default for ForeignContext {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for ForeignContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.context.fmt(f)
    }
}

impl Context {
    /// Whether this was made for one call of a thread that no runtime knows, and goes with the call.
    #[inline]
    pub fn is_of_unknown_thread(&self) -> bool {
        std::ptr::eq(self.table(), &raw const TABLE)
    }

    fn slot_now(&self) -> u64 {
        self.slot.load(crate::shim::atomic::Ordering::Relaxed)
    }
}

/// # Safety
///
/// As [`Table::prepare`].
unsafe fn prepare(context: &Context, deadline: Option<Instant>) -> Option<NonNull<Context>> {
    // Until it was seen settled under the lock (C1), also after a nudge.
    // SAFETY: this table is given to foreign contexts only; `prepare` is called on the context's own thread.
    while !unsafe { ForeignContext::block(context, deadline) } {}
    None
}

/// # Safety
///
/// As [`Table::finish`].
unsafe fn finish(_: &Context) {}

/// # Safety
///
/// As [`Table::unpark`].
unsafe fn unpark(context: NonNull<Context>, ticket: Ticket, cause: Cause) -> bool {
    // SAFETY: this table is given to foreign contexts only; C1 by the caller.
    unsafe { ForeignContext::release(context, ticket, cause) }
}

/// # Safety
///
/// As [`Table::ready`].
unsafe fn ready(context: NonNull<Context>, ticket: Ticket) {
    // SAFETY: this table is given to foreign contexts only; by the caller.
    unsafe { ForeignContext::release_chosen(context, ticket) }
}

/// # Safety
///
/// As [`Table::is_cancelled`].
unsafe fn is_cancelled(_: &Context) -> bool {
    false
}

/// # Safety
///
/// As [`Table::refuse_wait`].
unsafe fn refuse_wait(_: &Context, _: &str) -> Option<String> {
    None
}

/// # Safety
///
/// As [`Table::now`].
unsafe fn now(_: &Context) -> Instant {
    time::now()
}

/// # Safety
///
/// As [`Table::deadline`].
unsafe fn deadline(_: &Context, timeout: Duration) -> Option<Instant> {
    deadline_after(time::now(), timeout)
}

/// # Safety
///
/// As [`Table::arm`].
unsafe fn arm(_: &Context, _: Ticket, at: Instant) -> Alarm {
    Alarm { number: 0, own: Some(at) }
}

/// # Safety
///
/// As [`Table::disarm`].
unsafe fn disarm(_: &Context, _: Alarm) {}

/// # Safety
///
/// As [`Table::wait_for_owner`].
unsafe fn wait_for_owner(_: &Context, _: Ticket, _: &OwnerWait, _: bool) -> Option<Cycle> {
    None
}

/// # Safety
///
/// As [`Table::take_cycle`].
unsafe fn take_cycle(_: &Context, _: Ticket) -> Option<Cycle> {
    None
}

/// # Safety
///
/// As [`Table::gave_back`].
unsafe fn gave_back(_: &Context) {}

/// # Safety
///
/// As [`Table::shares_thread`].
unsafe fn shares_thread(_: &Context, _: NonNull<Context>) -> bool {
    false
}

/// Such a thread has one stack.
///
/// # Safety
///
/// As [`Table::lost_share`].
unsafe fn lost_share(_: &Context, _: NonNull<Context>, _: NonNull<()>) {}

/// The system shares the processor among threads.
///
/// # Safety
///
/// As [`Table::give_way`].
unsafe fn give_way(_: &Context) -> Option<NonNull<Context>> {
    None
}

/// Other threads are the system's to run.
///
/// # Safety
///
/// As [`Table::is_alone`].
unsafe fn is_alone(_: &Context) -> bool {
    true
}

#[cfg(not(loom))]
crate::shim::thread_local! {
    static TURNS: Cell<u64> = const { Cell::new(0) };
    static RETRIES: Cell<Retries> = const { Cell::new(Retries::new()) };
}
#[cfg(loom)]
crate::shim::thread_local! {
    static TURNS: Cell<u64> = Cell::new(0);
    static RETRIES: Cell<Retries> = Cell::new(Retries::new());
}

/// # Safety
///
/// As [`Table::turn`].
unsafe fn turn(_: &Context) -> u64 {
    TURNS.with(|turns| turns.replace(turns.get() + 1))
}

/// # Safety
///
/// As [`Table::in_request`].
unsafe fn in_request(_: &Context) -> bool {
    false
}

/// # Safety
///
/// As [`Table::requester`].
unsafe fn requester(_: &Context) -> usize {
    0
}

/// # Safety
///
/// As [`Table::request_number`].
unsafe fn request_number(_: &Context) -> u64 {
    0
}

/// # Safety
///
/// As [`Table::urgency`].
unsafe fn urgency(_: &Context) -> u64 {
    crate::lineage::NO_KEY
}

/// # Safety
///
/// As [`Table::word`].
unsafe fn word(_: &Context) -> *const AtomicU64 {
    std::ptr::null()
}

/// # Safety
///
/// As [`Table::name`].
unsafe fn name(_: &Context, with: &mut dyn FnMut(&str)) {
    match std::thread::current().name() {
        Some(name) => with(name),
        None => with("unnamed thread"),
    }
}

/// What a runtime does for the threads that are not its own.
#[derive(Debug)]
pub struct ForeignThreads {
    /// Makes a context for a thread that has none, and makes it current.
    pub provide: fn() -> Option<NonNull<Context>>,
    /// Gives back what the calling thread holds of runtimes, except its context.
    pub give_back: fn(),
}

/// Set by the first runtime, for good: what a thread of the user's waits by is a runtime's to know then.
static PROVIDER: AtomicPtr<ForeignThreads> = AtomicPtr::new(std::ptr::null_mut());

/// From now on a thread that has no context gets its own from `provider`. The first call counts.
///
/// # Safety
///
/// What [`ForeignThreads::provide`] answers is current, and stays so and valid until the thread ends.
pub unsafe fn provide_foreign(provider: &'static ForeignThreads) {
    let _ = PROVIDER.compare_exchange(
        std::ptr::null_mut(),
        std::ptr::from_ref(provider).cast_mut(),
        Ordering::Release,
        Ordering::Relaxed,
    );
}

/// Set by the first that asks, for good: see [`when_known`].
static KNOWN: AtomicPtr<fn(NonNull<Context>)> = AtomicPtr::new(std::ptr::null_mut());

/// From now on `call` is called on each thread that gets its own context, when that is current. It runs no code of the user's. The first call counts.
pub fn when_known(call: &'static fn(NonNull<Context>)) {
    let call = std::ptr::from_ref(call).cast_mut();
    let _ = KNOWN.compare_exchange(std::ptr::null_mut(), call, Ordering::Release, Ordering::Relaxed);
}

/// The calling thread has got its own context, which is current and stays so until the thread ends. Called by the provider.
pub fn is_known_now(context: NonNull<Context>) {
    // SAFETY: null, or what `when_known` has put there: a static.
    if let Some(call) = unsafe { KNOWN.load(Ordering::Acquire).as_ref() } {
        call(context);
    }
}

fn provider() -> Option<&'static ForeignThreads> {
    // SAFETY: null, or what `provide_foreign` has put there: a static.
    unsafe { PROVIDER.load(Ordering::Acquire).as_ref() }
}

/// The calling thread may stay idle for good: gives back what it holds of runtimes, so that nothing of theirs waits for it.
///
/// On the thread's own stack, outside of any wait. Destructors of the user's may be called.
pub fn give_back_foreign() {
    if let Some(provider) = provider() {
        (provider.give_back)();
    }
}

/// Calls `f` with the current context, or with one made for the call if this thread has none.
#[inline(always)]
pub fn with_foreign<R>(f: impl FnOnce(&Context) -> R) -> R {
    match lasting() {
        // SAFETY: the current context is valid, by the contract of `set_current`.
        Some(context) => f(unsafe { context.as_ref() }),
        None => with_made(f),
    }
}

/// The current context, or the thread's own if a runtime gives it one now. `None` on a thread that no runtime knows, and while the locals of the
/// thread are destroyed.
#[inline(always)]
pub fn lasting() -> Option<NonNull<Context>> {
    current().or_else(provided)
}

#[cold]
fn provided() -> Option<NonNull<Context>> {
    provider().and_then(|provider| (provider.provide)())
}

#[cold]
fn with_made<R>(f: impl FnOnce(&Context) -> R) -> R {
    let made = ForeignContext::new();
    // SAFETY: it is taken back below, before `made` goes; `f` cannot unwind past the guard.
    unsafe { set_current(Some(NonNull::from(&made.context))) };
    struct Back;
    impl Drop for Back {
        fn drop(&mut self) {
            // SAFETY: no context is always valid.
            unsafe { set_current(None) };
        }
    }
    let _back = Back;
    f(&made.context)
}
