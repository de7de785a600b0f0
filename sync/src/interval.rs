//! Waiting for instants at a fixed interval.

use std::time::{Duration, Instant};

use forebear_context::clock::deadline_after;
use forebear_context::context::{Cause, Context, Ticket, with_foreign};
use forebear_context::error::Cancelled;
use forebear_context::source::{Arm, LeaveResult, Output, ReportsCancel, Source};

use crate::here::with_context;
use crate::sleep;

/// What an [`Interval`] does with ticks whose time has passed before its user waited for them.
///
/// For a period of 10, a first tick at 0, and a user that takes until 35 over it:
///
/// | | ticks at |
/// |---|---|
/// | `Burst` | 0, then 10, 20 and 30, all at 35, then 40, 50 |
/// | `Delay` | 0, then 10 at 35, then 45, 55 |
/// | `Skip` | 0, then 10 at 35, then 40, 50 |
///
/// ```
/// use std::time::Duration;
/// use forebear::time::{MissedTickBehavior, interval_at, now};
///
/// // Two ticks are late already.
/// let (start, period) = (now() - Duration::from_secs(7), Duration::from_secs(5));
/// let mut ticks = interval_at(start, period).with_missed_tick_behavior(MissedTickBehavior::Skip);
/// assert_eq!(ticks.tick()?, start);
/// assert_eq!(ticks.next_tick(), Some(start + 2 * period));
/// # Ok::<(), forebear::Cancelled>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissedTickBehavior {
    /// They come all at once, until those that were missed are made up for: there are as many as time says.
    #[default]
    Burst,
    /// The late one comes at once, and the next a whole period after that: no two are nearer to each other than a period.
    Delay,
    /// The late one comes at once, and the next at the next multiple of the period from the first tick: the others are left out.
    Skip,
}

/// Ticks every `period`, the first at once; see [`Interval`].
///
/// # Panics
///
/// If the period is zero.
///
/// ```
/// use std::time::Duration;
/// use forebear::time::{interval, now};
///
/// let start = now();
/// let mut ticks = interval(Duration::from_millis(1));
/// for n in 0..3 {
///     let tick = ticks.tick()?;
///     assert!(now() >= tick && tick >= start + n * Duration::from_millis(1));
/// }
/// # Ok::<(), forebear::Cancelled>(())
/// ```
#[track_caller]
pub fn interval(period: Duration) -> Interval {
    interval_at(with_foreign(Context::now), period)
}

/// Ticks every `period`, the first at `start`.
///
/// # Panics
///
/// If the period is zero.
///
/// ```
/// use std::time::Duration;
/// use forebear::time::{interval_at, now};
///
/// let start = now() + Duration::from_millis(1);
/// let mut ticks = interval_at(start, Duration::from_secs(60));
/// assert_eq!(ticks.tick()?, start);
/// assert!(now() >= start);
/// # Ok::<(), forebear::Cancelled>(())
/// ```
#[track_caller]
pub fn interval_at(start: Instant, period: Duration) -> Interval {
    assert!(!period.is_zero(), "forebear: an interval whose period is zero");
    Interval { at: Some(start), period, missed: MissedTickBehavior::default() }
}

/// Ticks that are a period apart, on the runtime's clock. Made by [`interval`] and [`interval_at`].
///
/// It has no thread and no timer of its own: [`tick`](Self::tick) or a `select!` waits for a tick. Ticks do not drift: a waiter
/// that is woken late does not move those that follow. [`with_missed_tick_behavior`](Self::with_missed_tick_behavior) sets what happens to
/// ticks that are missed.
///
/// ```
/// use std::time::Duration;
/// use forebear::select;
/// use forebear::time::{MissedTickBehavior, after, interval};
///
/// let mut ticks = interval(Duration::from_millis(1)).with_missed_tick_behavior(MissedTickBehavior::Skip);
/// let end = after(Duration::from_millis(4));
/// let mut seen = 0;
/// loop {
///     select! {
///         _at = &mut ticks => seen += 1,
///         () = &end => break,
///     }
/// }
/// assert!(seen >= 1);
/// ```
#[derive(Clone, Debug)]
#[must_use = "a tick is received by a wait for it"]
pub struct Interval {
    /// When the next tick is due. `None`: later than an `Instant` can represent.
    at: Option<Instant>,
    period: Duration,
    missed: MissedTickBehavior,
}

impl Interval {
    /// What is to become of ticks that are missed; [`Burst`](MissedTickBehavior::Burst) unless it is said.
    pub fn with_missed_tick_behavior(mut self, behavior: MissedTickBehavior) -> Self {
        self.missed = behavior;
        self
    }

    /// The time between two ticks.
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::time::interval;
    ///
    /// assert_eq!(interval(Duration::from_secs(60)).period(), Duration::from_secs(60));
    /// ```
    #[must_use]
    pub fn period(&self) -> Duration {
        self.period
    }

    /// The time of the next tick; `None` if an `Instant` cannot represent it.
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::time::interval;
    ///
    /// let mut ticks = interval(Duration::from_secs(60));
    /// let first = ticks.tick()?; // at once
    /// assert_eq!(ticks.next_tick(), Some(first + Duration::from_secs(60)));
    /// # Ok::<(), forebear::Cancelled>(())
    /// ```
    #[must_use]
    pub fn next_tick(&self) -> Option<Instant> {
        self.at
    }

    /// Begins anew: the next tick is a period from now.
    ///
    /// ```
    /// use std::time::Duration;
    /// use forebear::time::{interval, now};
    ///
    /// let mut ticks = interval(Duration::from_secs(60));
    /// ticks.reset(); // without the tick at once
    /// assert!(ticks.next_tick() > Some(now()));
    /// ```
    pub fn reset(&mut self) {
        self.at = deadline_after(with_foreign(Context::now), self.period);
    }

    /// Waits for the next tick, and returns the time when it was due. If that time has passed, it does not wait, and checks whether the request is
    /// cancelled; then no tick is lost.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`Cancelled`].
    ///
    /// # Panics
    ///
    /// In a `no_suspend` region, if it would have to wait.
    #[inline(always)]
    #[track_caller]
    pub fn tick(&mut self) -> Result<Instant, Cancelled> {
        let at = self.at;
        let late = with_context!(|context| {
            let late = late(context, at);
            sleep::wait(context, |_| at).map(|()| late)
        });
        Ok(self.ticked(late?))
    }

    /// The next tick is due. `Some(now)` if it is late enough to count as missed. Returns when it was due.
    fn ticked(&mut self, late: Option<Instant>) -> Instant {
        let Some(at) = self.at else { unreachable!("a tick that never is") };
        self.at = match late {
            None => deadline_after(at, self.period),
            Some(now) => self.after_missed(at, now),
        };
        at
    }

    #[cold]
    fn after_missed(&self, at: Instant, now: Instant) -> Option<Instant> {
        match self.missed {
            MissedTickBehavior::Burst => deadline_after(at, self.period),
            MissedTickBehavior::Delay => deadline_after(now, self.period),
            MissedTickBehavior::Skip => {
                let over = (now - at).as_nanos() % self.period.as_nanos();
                // Less than a period, hence what a duration can hold.
                let over = Duration::new((over / 1_000_000_000) as u64, (over % 1_000_000_000) as u32);
                deadline_after(now, self.period - over)
            }
        }
    }
}

/// What time it is, if that is past.
fn late(context: &Context, at: Option<Instant>) -> Option<Instant> {
    let at = at?;
    Some(context.now()).filter(|now| *now > at)
}

/// The arm of an interval.
#[derive(Debug)]
pub struct IntervalArm<'a> {
    interval: &'a mut Interval,
    /// It has been waited for, so it is not missed.
    waited: bool,
    ticked: Option<Instant>,
}

impl<'a> Source for &'a mut Interval {
    type Output = Instant;
    type Arm = IntervalArm<'a>;

    fn into_arm(self) -> IntervalArm<'a> {
        IntervalArm { interval: self, waited: false, ticked: None }
    }
}

// SAFETY: nobody outside knows of it; the select's wait has the deadline.
unsafe impl Arm for IntervalArm<'_> {
    fn try_complete(&mut self, context: &Context) -> bool {
        let Some(at) = self.interval.at else { return false };
        let now = context.now();
        if now < at {
            return false;
        }
        let late = Some(now).filter(|now| *now > at && !self.waited);
        self.ticked = Some(self.interval.ticked(late));
        true
    }

    unsafe fn enter(&mut self, _: &Context, _: Ticket) -> bool {
        self.waited = true;
        true
    }

    unsafe fn leave(&mut self, _: &Context, _: Cause) -> LeaveResult {
        LeaveResult::Nothing
    }

    fn deadline(&self) -> Option<Instant> {
        self.interval.at
    }

    fn reports_cancel(&self) -> ReportsCancel {
        ReportsCancel::No
    }
}

impl Output for IntervalArm<'_> {
    type Output = Instant;

    fn output(&mut self) -> Instant {
        match self.ticked.take() {
            Some(at) => at,
            None => unreachable!("asked before it has ticked"),
        }
    }
}
