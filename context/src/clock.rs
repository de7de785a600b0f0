//! What time it is: for the runtime, its timers, and tests.
//!
//! Time is `std::time::Instant` everywhere, so what users compute deadlines with is what they know. A
//! [`Clock`] says which `Instant` is now. [`MonotonicClock`] is the system's. [`ManualClock`] stands still
//! until somebody moves it; a *seeded* runtime and every test of something timed run on one.
//!
//! A timer that sleeps until its next deadline needs no notice that the system's clock has moved: it moves
//! by itself. A manual one does not, hence [`Clock::subscribe`]: a sleeper on a clock asks to be called
//! when it jumps, and then looks again. The race to prevent is a jump between the look and the sleep. The
//! clock shows the new time *before* it calls subscribers, so a subscriber that subscribes first, reads
//! second, and whose callback leaves a token for its sleep, misses none.
//!
//! One lock guards the time and the list of subscribers of a [`ManualClock`]; callbacks run without it, so
//! they may read, move, subscribe and unsubscribe.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::error::internal::drop_contained;
use crate::shim::{Mutex, MutexGuard, time};

/// A source of time.
///
/// ```
/// use forebear::time::{Clock, ManualClock};
/// use std::time::Duration;
///
/// fn seconds_left(clock: &dyn Clock, deadline: std::time::Instant) -> u64 {
///     deadline.saturating_duration_since(clock.now()).as_secs()
/// }
/// let clock = ManualClock::new();
/// let deadline = clock.now() + Duration::from_secs(5);
/// clock.advance(Duration::from_secs(2));
/// assert_eq!(seconds_left(&clock, deadline), 3);
/// ```
pub trait Clock: Send + Sync + fmt::Debug {
    /// The time. Never goes backwards, never waits for anything, and uses nothing of a runtime's but its time. A runtime calls it
    /// where it holds no lock and has begun no wait; if it waits, makes or runs a request, or panics, the process ends with a message.
    fn now(&self) -> Instant;

    /// Has `callback` called with the new time whenever the clock jumps, until the [`Subscription`] is
    /// dropped.
    ///
    /// `None` if the clock moves by itself and never jumps: then wait in real time.
    fn subscribe(&self, callback: Box<dyn Fn(Instant) + Send + Sync>) -> Option<Subscription> {
        drop(callback);
        None
    }
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Instant {
        (**self).now()
    }

    fn subscribe(&self, callback: Box<dyn Fn(Instant) + Send + Sync>) -> Option<Subscription> {
        (**self).subscribe(callback)
    }
}

/// The instant `after` from `now`; `None` if an `Instant` cannot express it, which means never.
///
/// ```
/// use forebear_context::clock::deadline_after;
/// use std::time::{Duration, Instant};
///
/// let now = Instant::now();
/// assert_eq!(deadline_after(now, Duration::from_secs(1)), Some(now + Duration::from_secs(1)));
/// assert_eq!(deadline_after(now, Duration::MAX), None);
/// ```
#[inline]
#[must_use]
pub fn deadline_after(now: Instant, after: Duration) -> Option<Instant> {
    now.checked_add(after)
}

/// The system's monotonic clock: the default of a runtime.
///
/// ```
/// use forebear::time::{Clock, MonotonicClock};
///
/// let start = MonotonicClock.now();
/// assert!(MonotonicClock.now() >= start);
/// assert!(MonotonicClock.subscribe(Box::new(|_| ())).is_none()); // it never jumps
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct MonotonicClock;

impl Clock for MonotonicClock {
    #[inline]
    fn now(&self) -> Instant {
        time::now()
    }
}

/// A clock that stands still until it is moved. Clones are handles of the same clock.
///
/// ```
/// use forebear::time::{Clock, ManualClock};
/// use std::time::Duration;
///
/// let clock = ManualClock::new();
/// let (start, same) = (clock.now(), clock.clone());
/// same.advance(Duration::from_millis(10));
/// assert_eq!(clock.now() - start, Duration::from_millis(10));
/// ```
#[derive(Clone)]
pub struct ManualClock(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
}

struct State {
    now: Instant,
    /// The number of the next subscriber, so that each can be found again.
    next: u64,
    /// In the order in which they are called: those of [`Clock::subscribe`], then those of [`ManualClock::on_advance`].
    subscribers: Vec<Subscriber>,
}

struct Subscriber {
    number: u64,
    /// It came by [`Clock::subscribe`], as a runtime does.
    is_sleeper: bool,
    callback: Callback,
}

type Callback = Arc<dyn Fn(Instant) + Send + Sync>;

impl ManualClock {
    /// A clock that stands at the present time of the system.
    #[must_use]
    pub fn new() -> Self {
        ManualClock::starting_at(time::now())
    }

    /// A clock that stands at `at`.
    ///
    /// ```
    /// use std::time::{Duration, Instant};
    /// use forebear::time::{Clock, ManualClock};
    ///
    /// let start = Instant::now();
    /// let clock = ManualClock::starting_at(start);
    /// clock.advance(Duration::from_secs(1));
    /// assert_eq!(clock.now(), start + Duration::from_secs(1));
    /// ```
    #[must_use]
    pub fn starting_at(at: Instant) -> Self {
        let state = State { now: at, next: 0, subscribers: Vec::new() };
        ManualClock(Arc::new(Shared { state: Mutex::new(state) }))
    }

    /// Moves the clock on by `by`, or as far as an `Instant` reaches; then calls the subscribers. Returns the
    /// new time.
    ///
    /// Moving by zero calls them too. The runtimes on this clock come first, so a callback may wait for what sleeps until the new time. The
    /// callbacks follow in the order of their subscription. A panic of one reaches the caller when all have been called.
    pub fn advance(&self, by: Duration) -> Instant {
        self.0.jump(|now| saturating_add(now, by))
    }

    /// Moves the clock to `at`, then calls the subscribers. Returns the new time.
    ///
    /// The clock never goes backwards: if `at` is past, the time stays.
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::time::{Clock, ManualClock};
    ///
    /// let clock = ManualClock::new();
    /// let start = clock.now();
    /// assert_eq!(clock.set(start + Duration::from_secs(1)), start + Duration::from_secs(1));
    /// assert_eq!(clock.set(start), start + Duration::from_secs(1));
    /// ```
    pub fn set(&self, at: Instant) -> Instant {
        self.0.jump(|now| now.max(at))
    }

    /// Has `callback` called with the new time after every move, on the thread that moves, until the
    /// [`Subscription`] is dropped.
    ///
    /// No lock is held meanwhile. Two threads that move the clock at once may call with their times in either
    /// order; [`now`](Clock::now) is right in both.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use std::time::Duration;
    /// use forebear::time::ManualClock;
    ///
    /// let (send, seen) = mpsc::channel();
    /// let clock = ManualClock::new();
    /// let subscription = clock.on_advance(move |now| send.send(now).unwrap());
    /// let then = clock.advance(Duration::from_secs(1));
    /// assert_eq!(seen.recv(), Ok(then));
    /// drop(subscription);
    /// clock.advance(Duration::from_secs(1));
    /// assert!(seen.recv().is_err()); // the callback is dropped, and its sender with it
    /// ```
    pub fn on_advance(&self, callback: impl Fn(Instant) + Send + Sync + 'static) -> Subscription {
        self.0.add(false, Arc::new(callback), Arc::downgrade(&self.0))
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        ManualClock::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        self.0.lock().now
    }

    fn subscribe(&self, callback: Box<dyn Fn(Instant) + Send + Sync>) -> Option<Subscription> {
        Some(self.0.add(true, Arc::from(callback), Arc::downgrade(&self.0)))
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (now, subscribers) = {
            let state = self.0.lock();
            (state.now, state.subscribers.len())
        };
        f.debug_struct("ManualClock").field("now", &now).field("subscribers", &subscribers).finish()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // No user code runs while it is held, so nothing can be left half-done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn jump(&self, to: impl FnOnce(Instant) -> Instant) -> Instant {
        let (now, callbacks) = {
            let mut state = self.lock();
            state.now = to(state.now);
            let callbacks: Vec<Callback> =
                state.subscribers.iter().map(|subscriber| subscriber.callback.clone()).collect();
            (state.now, callbacks)
        };
        let mut first = None;
        for callback in callbacks {
            // The others have to hear of it, too: a runtime's deadlines may be due.
            if let Err(payload) = catch_unwind(AssertUnwindSafe(move || callback(now))) {
                match first {
                    None => first = Some(payload),
                    Some(_) => drop_contained(payload),
                }
            }
        }
        if let Some(payload) = first {
            resume_unwind(payload);
        }
        now
    }

    fn add(&self, is_sleeper: bool, callback: Callback, clock: Weak<Shared>) -> Subscription {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        let sleepers = state.subscribers.partition_point(|subscriber| subscriber.is_sleeper);
        let at = if is_sleeper { sleepers } else { state.subscribers.len() };
        state.subscribers.insert(at, Subscriber { number, is_sleeper, callback });
        Subscription { clock, number }
    }
}

/// A callback's place in the list of a clock. Dropping it removes the callback.
///
/// A call that has begun on another thread may still be running, or about to, when the drop returns. A subscription does
/// not keep the clock alive.
///
/// ```
/// use std::time::{Duration, Instant};
/// use forebear::time::{Clock, ManualClock, Subscription};
///
/// /// A clock that counts as `inner` does.
/// #[derive(Debug)]
/// struct Wrapped(ManualClock);
///
/// impl Clock for Wrapped {
///     fn now(&self) -> Instant {
///         self.0.now()
///     }
///     fn subscribe(&self, callback: Box<dyn Fn(Instant) + Send + Sync>) -> Option<Subscription> {
///         self.0.subscribe(callback)
///     }
/// }
/// let clock = Wrapped(ManualClock::new());
/// let (start, subscription) = (clock.now(), clock.subscribe(Box::new(|_| ())));
/// clock.0.advance(Duration::from_secs(1));
/// assert!(subscription.is_some() && clock.now() > start);
/// ```
#[must_use = "dropping it unsubscribes at once"]
pub struct Subscription {
    clock: Weak<Shared>,
    number: u64,
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let Some(clock) = self.clock.upgrade() else { return };
        // The callback's own destructor is user code: it runs when the lock is free again.
        let removed = {
            let mut state = clock.lock();
            let place = state.subscribers.iter().position(|subscriber| subscriber.number == self.number);
            place.map(|place| state.subscribers.remove(place))
        };
        drop(removed);
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscription").field("number", &self.number).finish_non_exhaustive()
    }
}

/// `now + by`, or the last `Instant` there is, which std does not name: so it is approached by halves.
fn saturating_add(now: Instant, by: Duration) -> Instant {
    if let Some(at) = now.checked_add(by) {
        return at;
    }
    let (mut at, mut step) = (now, by);
    while !step.is_zero() {
        match at.checked_add(step) {
            Some(further) => at = further,
            None => step /= 2,
        }
    }
    at
}
