//! Deadlines: what is to happen when a time has come. One [`Deadlines`] per runtime, on the runtime's clock.
//!
//! # Vocabulary
//!
//! * **entry**: an instant and what is due then: a wait to be ended with [`Cause::TimedOut`], or a request to be aborted, since its own
//!   deadline has come or a timer of its has expired ([`crate::expiry`]).
//! * **arm**, **disarm**: to put an entry in, to take it back.
//! * **fire**: to take what is due out and do it. Never runs user code.
//! * **keeper**: who fires.
//! * **container**: a timing wheel ([`forebear_timer`]), behind one lock. It tells the earliest instant exactly, and what is due at one
//!   instant comes out in order of arming. Arming and disarming take the same time however many are armed, and allocate nothing
//!   unless there are more than ever.
//!
//! # Who keeps the time
//!
//! | clock | of a carrier's wait, of a request | of a foreign thread's wait |
//! |---|---|---|
//! | moves by itself | the timer thread | that thread, which blocks no longer than that |
//! | stands still between jumps | whoever moves it, before the move returns | the same |
//!
//! The timer thread is started with the first entry, and sleeps until the earliest is due; it is told when an earlier one
//! is armed, not when one is disarmed: then it wakes once for nothing. A clock answers by [`Clock::subscribe`] which kind
//! it is; on one that jumps there is no thread at all, so a test that moves its clock knows that what was due has been
//! woken. If the system refuses the thread, each further arm tries again, and meanwhile workers that have nothing to do
//! keep the time ([`before_sleep`](Deadlines::before_sleep)): late under load, never lost.
//!
//! # The races
//!
//! *The timer against the waker.* Both settle the wait by its ticket; one wins, and makes the context ready, once. The
//! other is refused ([`forebear_context::context`]). That the wait may be settled before the waiter has parked is no
//! matter: it parks all the same, and `prepare` finds it settled.
//!
//! *The timer against the waiter that goes away.* A foreign context's memory goes with its thread, and the next wait of any
//! context is nothing for this timer. So a wait is ended while the lock is held under which its entry was taken out; and
//! disarming takes that lock. Either it finds the entry, and nobody else ever will; or the entry has been taken out, and
//! the unpark is over. Whoever has disarmed, whatever the answer, is rid of the timer.
//!
//! *Arming against a jump.* The clock shows the new time before it calls anybody, and firing takes the lock. Who arms on a
//! clock that jumps looks at it once more after the entry is in: either the jump's call finds the entry, or it had the
//! lock earlier, so the clock shows the new time to that look.
//!
//! *Arming against firing.* Who arms has looked at the clock before it takes the lock, and others may have fired later instants
//! meanwhile. Then the entry is late: it comes out before all that is later, behind what was late already.
//!
//! *Arming against the timer thread's sleep.* Both hold the lock, and the thread leaves word there until when it sleeps.
//!
//! *A request's deadline, or timer, against its end.* Aborting is too much to do under a lock: it takes other locks, and who ends a
//! request disarms. So a request's entry is taken out under the lock, and fired without it. It owns a link, hence the
//! header is there; whether anything is left to abort, the request's word decides ([`crate::due`]).
//!
//! # The end
//!
//! `close` comes when the workers are gone and before the stacks are unmapped. What is still armed then belongs to foreign
//! threads (no carrier waits any more): their waits end at once, and so does what is armed afterwards; requests are let go
//! of. The thread is joined. A jump of the clock that is under way may still call; it finds nothing.
//!
//! # Invariants
//!
//! * **T1** An entry is in the container, or is being fired by whoever took it out, or is over.
//! * **T2** The context of a wait's entry is valid until `disarm` has returned for it.
//! * **T3** A wait's entry is taken out and fired under one hold of the lock.
//! * **T4** A request's entry owns a link of its header. Whoever takes the entry out owns the link.
//! * **T5** While the lock is held nothing is called but `unpark`, whose own locks (a foreign context's, a parker's) are
//!   held by nobody who asks for this one, what raises attention words, and the `now` of a clock without jumps, which waits for nothing.

use std::fmt;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{PoisonError, Weak};
use std::time::{Duration, Instant};

use forebear_context::clock::{Clock, Subscription, deadline_after};
use forebear_context::context::{Alarm, Cause, Context, Ticket, unpark};
use forebear_context::error::CancelReason;
use forebear_context::shim::atomic::{AtomicBool, AtomicUsize, Ordering};
use forebear_context::shim::thread::{Builder, JoinHandle};
use forebear_context::shim::{Arc, Condvar, Mutex, MutexGuard, time};
use forebear_timer::{Key, Wheel};

use crate::cancel;
use crate::driver::Driven;
use crate::header::Header;
use crate::hooks;
use crate::strand::{self, Strand};

#[cfg(test)]
mod tests;

/// How many entries are fired under one hold of the lock, so that those who arm and disarm are not kept waiting.
const BATCH: usize = 128;

/// See the module head.
pub(crate) struct Deadlines(Arc<Inner>);

struct Inner {
    clock: Arc<dyn Clock>,
    /// Whether the clock stands still between jumps, and calls [`Inner::fire_due`] at each.
    jumps: bool,
    /// The name of the timer thread.
    name: String,
    state: Mutex<State>,
    /// Told to the timer thread: an earlier entry is there, or the end.
    told: Condvar,
    /// How many requests are armed. Written under the lock.
    requests: AtomicUsize,
    /// The timer thread could not be started: workers keep the time.
    unattended: AtomicBool,
    #[cfg(test)]
    refuse_thread: AtomicBool,
}

struct State {
    /// Those of one instant fire in order of arming.
    entries: Wheel<Entry>,
    sleep: Sleep,
    thread: Option<JoinHandle<()>>,
    subscription: Option<Subscription>,
    closed: bool,
}

/// What the timer thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sleep {
    /// It will look before it sleeps, or there is no thread.
    Awake,
    Until(Instant),
    UntilTold,
}

enum Entry {
    Wait(NonNull<Context>, Ticket),
    /// With a link (T4).
    Request(NonNull<Header>),
    /// An expiration timer of a request that runs ([`crate::expiry`]). With a link (T4).
    Expiry(NonNull<Header>),
}

// SAFETY: a ticket is there to be used by other threads, on a context that is valid by T2; a link may be given up by any
// thread (T4).
unsafe impl Send for Entry {}

impl Deadlines {
    /// Nothing armed, on `clock`, for the runtime of that name.
    pub(crate) fn new(clock: Arc<dyn Clock>, runtime: &str) -> Deadlines {
        Deadlines(Arc::new_cyclic(|inner| {
            let inner: Weak<Inner> = inner.clone();
            let subscription = clock.subscribe(Box::new(move |now| {
                // Not there yet, or no more: then nothing is armed.
                if let Some(inner) = inner.upgrade() {
                    inner.fire_due(now);
                }
            }));
            Inner {
                clock,
                jumps: subscription.is_some(),
                name: format!("{runtime} timer"),
                state: Mutex::new(State {
                    entries: Wheel::new(time::now()),
                    sleep: Sleep::Awake,
                    thread: None,
                    subscription,
                    closed: false,
                }),
                told: Condvar::new(),
                requests: AtomicUsize::new(0),
                unattended: AtomicBool::new(false),
                #[cfg(test)]
                refuse_thread: AtomicBool::new(false),
            }
        }))
    }

    /// The time on the runtime's clock.
    pub(crate) fn now(&self) -> Instant {
        self.0.now()
    }

    /// The instant `timeout` from now; `None` if it is too far off to be told, which means never.
    pub(crate) fn after(&self, timeout: Duration) -> Option<Instant> {
        deadline_after(self.now(), timeout)
    }

    /// Sees to it that the wait which `ticket` names ends with [`Cause::TimedOut`] at `at`, or before this returns if that
    /// is past, unless it has ended otherwise.
    ///
    /// # Safety
    ///
    /// T2: the context stays valid until the answer was given to [`disarm`](Self::disarm) and that has returned.
    #[cold]
    #[inline(never)]
    pub(crate) unsafe fn arm(&self, at: Instant, context: NonNull<Context>, ticket: Ticket) -> Alarm {
        self.0.arm(at, Entry::Wait(context, ticket), || ())
    }

    /// Sees to it that the request's deadline comes at `at`, or before this returns if that is past. See [`cancel::limit_comes`].
    /// Answers the entry's number. If it is the first request that is armed, `first` is called before this returns and before
    /// another is armed; it takes no locks.
    ///
    /// # Safety
    ///
    /// T4: the link is given away.
    pub(crate) unsafe fn arm_request(
        &self,
        at: Instant,
        header: NonNull<Header>,
        first: impl FnOnce(),
    ) -> u64 {
        self.0.arm(at, Entry::Request(header), first).number
    }

    /// Sees to it that the request, which has started, is aborted with [`CancelReason::Expired`] at `at`, or before this returns if that
    /// is past.
    ///
    /// # Safety
    ///
    /// T4: the link is given away.
    pub(crate) unsafe fn arm_expiry(&self, at: Instant, header: NonNull<Header>) -> u64 {
        self.0.arm(at, Entry::Expiry(header), || ()).number
    }

    /// Takes a request's entry back by its number. True: it had not fired, and the link is the caller's again.
    pub(crate) fn disarm_request(&self, number: u64) -> bool {
        self.0.disarm(number)
    }

    /// Whether any request is armed.
    pub(crate) fn has_requests(&self) -> bool {
        self.0.requests.load(Ordering::Relaxed) != 0
    }

    /// Takes a wait's entry back. When this returns the timer has done with the context and never touches it again. True: it had
    /// not fired.
    #[cold]
    #[inline(never)]
    pub(crate) fn disarm(&self, alarm: Alarm) -> bool {
        self.0.disarm(alarm.number)
    }

    /// Fires all that is due at `now`, in order. On any thread.
    pub(crate) fn fire_due(&self, now: Instant) {
        self.0.fire_due(now);
    }

    /// How many entries there are.
    pub(crate) fn armed(&self) -> usize {
        self.0.lock().entries.len()
    }

    /// When the earliest entry is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.lock().entries.earliest()
    }

    /// Whether workers keep the time, since there is no timer thread.
    pub(crate) fn is_unattended(&self) -> bool {
        self.0.unattended.load(Ordering::Relaxed)
    }

    /// A worker is about to sleep for `tick`: answers how long it may, if it must keep the time.
    #[inline]
    pub(crate) fn before_sleep(&self, tick: Option<Duration>) -> Option<Duration> {
        // Whoever armed for a carrier of this worker did so on this very thread; who armed for a request wakes somebody.
        if self.is_unattended() { self.keep_instead(tick) } else { tick }
    }

    #[cold]
    fn keep_instead(&self, tick: Option<Duration>) -> Option<Duration> {
        let now = self.now();
        self.fire_due(now);
        let left = self.next().map(|at| at.saturating_duration_since(now));
        left.into_iter().chain(tick).min()
    }

    /// The end; see the module head. Idempotent.
    pub(crate) fn close(&self) {
        let mut requests = Vec::new();
        let (thread, subscription) = {
            let mut state = self.0.lock();
            state.closed = true;
            self.0.told.notify_one();
            self.0.requests.store(0, Ordering::Relaxed);
            for entry in state.entries.take_all() {
                match entry {
                    Entry::Wait(..) => give_up(entry),
                    Entry::Request(_) | Entry::Expiry(_) => requests.push(entry),
                }
            }
            (state.thread.take(), state.subscription.take())
        };
        drop(subscription);
        requests.into_iter().for_each(give_up);
        if let Some(thread) = thread {
            // It has no panics of its own to tell of: it aborts.
            let _ = thread.join();
        }
    }

    /// How the waiter on this thread is to wait until `at`: with an entry, or by itself until the system's time answered.
    ///
    /// # Safety
    ///
    /// As [`arm`](Self::arm); on the context's own stack.
    #[cold]
    #[inline(never)]
    unsafe fn keep_for(&self, at: Instant, context: &Context, ticket: Ticket) -> Alarm {
        let foreign = strand::get().and_then(Strand::worker).is_none();
        if foreign && !self.0.jumps {
            let left = at.saturating_duration_since(self.now());
            Alarm { at, number: 0, own: deadline_after(time::now(), left) }
        } else {
            // SAFETY: by contract.
            unsafe { self.arm(at, NonNull::from(context), ticket) }
        }
    }
}

impl Drop for Deadlines {
    fn drop(&mut self) {
        self.close();
    }
}

impl fmt::Debug for Deadlines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (armed, next, sleep) = {
            let mut state = self.0.lock();
            (state.entries.len(), state.entries.earliest(), state.sleep)
        };
        f.debug_struct("Deadlines")
            .field("clock", &self.0.clock)
            .field("armed", &armed)
            .field("next", &next)
            .field("sleep", &sleep)
            .finish_non_exhaustive()
    }
}

impl Inner {
    /// Somebody's code; and a waiter that has linked its node must not unwind.
    fn now(&self) -> Instant {
        catch_unwind(AssertUnwindSafe(|| self.clock.now()))
            .unwrap_or_else(|_| hooks::die(&"the clock of its runtime has panicked"))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No user code runs while it is held, so nothing can be left half-done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arm(self: &Arc<Self>, at: Instant, entry: Entry, first_request: impl FnOnce()) -> Alarm {
        let gone = Alarm { at, number: 0, own: None };
        let now = self.now();
        if at <= now {
            fire(entry);
            return gone;
        }
        let armed = {
            let mut state = self.lock();
            if state.closed {
                drop(state);
                give_up(entry);
                return gone;
            }
            if state.entries.is_empty() {
                // It moves for nothing now, and what comes next lies as low as can be.
                state.entries.advance(now);
            }
            if let Entry::Request(_) = entry
                && self.requests.fetch_add(1, Ordering::Relaxed) == 0
            {
                first_request();
            }
            let number = state.entries.insert(at, entry).number();
            if !self.jumps {
                self.attend(&mut state, at);
            }
            Alarm { at, number, own: None }
        };
        if self.jumps {
            let now = self.now();
            if at <= now {
                self.fire_due(now);
            }
        }
        armed
    }

    fn disarm(&self, number: u64) -> bool {
        // Not even the lock for what never was in the container.
        let Some(key) = Key::from_number(number) else { return false };
        let mut state = self.lock();
        let entry = state.entries.remove(key);
        if let Some(Entry::Request(_)) = entry {
            self.requests.fetch_sub(1, Ordering::Relaxed);
        }
        entry.is_some()
    }

    /// Sees to it that there is a timer thread, and that it does not sleep longer than until `at`.
    fn attend(self: &Arc<Self>, state: &mut State, at: Instant) {
        if state.thread.is_none() {
            match self.start() {
                Ok(thread) => state.thread = Some(thread),
                Err(_) => return self.unattended.store(true, Ordering::Relaxed),
            }
            self.unattended.store(false, Ordering::Relaxed);
        }
        let oversleeps = match state.sleep {
            Sleep::Awake => false,
            Sleep::Until(wakes) => at < wakes,
            Sleep::UntilTold => true,
        };
        if oversleeps {
            // Told once; whoever arms before it has looked need not tell it again.
            state.sleep = Sleep::Awake;
            self.told.notify_one();
        }
    }

    fn start(self: &Arc<Self>) -> io::Result<JoinHandle<()>> {
        #[cfg(test)]
        if self.refuse_thread.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let inner = self.clone();
        Builder::new().name(self.name.clone()).spawn(move || {
            if catch_unwind(AssertUnwindSafe(|| inner.keep())).is_err() {
                hooks::die(&"its timer has panicked");
            }
        })
    }

    /// The timer thread.
    fn keep(&self) {
        let mut state = self.lock();
        while !state.closed {
            state = match state.entries.earliest() {
                None => {
                    state.sleep = Sleep::UntilTold;
                    self.told.wait(state).unwrap_or_else(PoisonError::into_inner)
                }
                Some(at) => {
                    let now = self.now();
                    if at <= now {
                        drop(state);
                        self.fire_due(now);
                        self.lock()
                    } else {
                        state.entries.advance(now);
                        state.sleep = Sleep::Until(at);
                        let waited = self.told.wait_timeout(state, at - now);
                        waited.unwrap_or_else(PoisonError::into_inner).0
                    }
                }
            };
            state.sleep = Sleep::Awake;
        }
    }

    fn fire_due(&self, now: Instant) {
        while self.fire_some(now) {}
    }

    /// Fires a batch of what is due; false if nothing more is.
    fn fire_some(&self, now: Instant) -> bool {
        let mut state = self.lock();
        for _ in 0..BATCH {
            let Some(entry) = state.entries.pop_due(now) else { return false };
            if let Entry::Request(_) = entry {
                self.requests.fetch_sub(1, Ordering::Relaxed);
            }
            if !matches!(entry, Entry::Wait(..)) {
                // Never under the lock.
                drop(state);
                fire(entry);
                return true;
            }
            // T3.
            fire(entry);
        }
        true
    }
}

/// Does what is due. A wait's entry comes with the lock under which it was taken out (T3), unless it never was in the
/// container, when its waiter is the caller.
fn fire(entry: Entry) {
    match entry {
        // SAFETY: T2. If it is refused somebody else was first, and all is well.
        Entry::Wait(context, ticket) => unsafe {
            unpark(context, ticket, Cause::TimedOut);
        },
        // SAFETY: T4.
        Entry::Request(header) => unsafe { expired(header) },
        // SAFETY: T4. It has started, so nothing is ended here.
        Entry::Expiry(header) => unsafe {
            cancel::abort(header, CancelReason::Expired);
            let_go(header);
        },
    }
}

/// Does away with an entry at the end of the runtime: a wait ends, a request is left alone. Called as [`fire`] is.
fn give_up(entry: Entry) {
    match entry {
        Entry::Wait(..) => fire(entry),
        // SAFETY: T4.
        Entry::Request(header) | Entry::Expiry(header) => unsafe { let_go(header) },
    }
}

/// The request's own deadline has come. On any thread, without the lock; runs no user code.
///
/// # Safety
///
/// The link is the callee's.
unsafe fn expired(header: NonNull<Header>) {
    // SAFETY: by contract.
    unsafe {
        cancel::limit_comes(header);
        let_go(header);
    }
}

/// Gives up an entry's link.
///
/// # Safety
///
/// The link is the callee's.
unsafe fn let_go(header: NonNull<Header>) {
    // SAFETY: by contract; W4.
    unsafe {
        if header.as_ref().word.release_link() {
            crate::home::end(header);
        }
    }
}

/// Sees to it that the wait ends at `at`, by an entry or by the thread itself, and that a runtime without threads has its time pass.
///
/// # Safety
///
/// As [`Deadlines::arm`]; on the context's own stack.
#[cold]
pub(crate) unsafe fn keep(
    deadlines: &Deadlines,
    driven: Option<&Driven>,
    at: Instant,
    context: &Context,
    ticket: Ticket,
) -> Alarm {
    // SAFETY: by contract.
    let kept = unsafe { deadlines.keep_for(at, context, ticket) };
    if let Some(driven) = driven {
        driven.deadline_came();
    }
    kept
}

/// Parks the context until the wait that `ticket` names is settled, at the latest at `at` on the clock of `deadlines`, and
/// answers why it goes on. When it returns no timer knows of the wait. `driven` is the runtime's record of its drivers, if it
/// has no threads.
///
/// The one way to wait with a time-out, for requests and for foreign threads. To be inlined into the public method that
/// waits, as [`Context::park`] is; without `at` it is that and nothing more.
///
/// # Safety
///
/// As [`Context::park`]. The record of the runtime stays until this returns.
#[inline(always)]
pub(crate) unsafe fn park_until(
    deadlines: &Deadlines,
    driven: Option<&Driven>,
    context: &Context,
    ticket: Ticket,
    at: Option<Instant>,
) -> Cause {
    // SAFETY: T2: this context is here at least until `disarm` has returned, below; nothing in between unwinds.
    let kept = at.map(|at| unsafe { keep(deadlines, driven, at, context, ticket) });
    // SAFETY: by contract.
    let cause = unsafe { context.park(kept.as_ref().and_then(|alarm| alarm.own)) };
    if let Some(alarm) = kept {
        deadlines.disarm(alarm);
    }
    cause
}
