//! An estimate of the current time: the start of a time-out, without a reading of the system's clock.
//!
//! A time-out is a duration, so its deadline needs the current time. The system's clock takes most of what a time-out costs that
//! never fires. The processor's own counter, from which that clock is made, takes less than half.
//!
//! # Vocabulary
//!
//! * **ticks**: the counter of the processor, which all its cores have in common.
//! * **mark**: a reading of both: the ticks first, the clock after them.
//! * **torn**: a mark whose two readings are too far from each other; it is not used.
//! * **rate**: nanoseconds a tick, from two marks.
//! * **span**: for how many ticks a mark serves; between a quarter and a half of a millisecond.
//!
//! # The promise
//!
//! The estimate is never before the current time, so no time-out fires early. It is a microsecond or two late at most.
//!
//! # The argument
//!
//! The clock of a mark is read after its ticks. So the time since then is at most the ticks since, times the true rate. The known rate
//! is off by the tear of two marks that are a span apart ([`TORN`] of [`SPAN`], one in 2,048). It is also off by how much the system
//! slews its clock to correct it (one in 2,000, to either side). Both together are less than what the estimate adds:
//! one tick in 512.
//!
//! The system's clock is made from the same counter. What happens to the counter (the thread is moved, the machine is halted or
//! migrated) happens to the clock alike, so the estimate stays beside the clock. Ticks before the mark, or more than a span after it, are not used.
//!
//! The system may slew a clock that is far off by more, up to a twelfth, until it is right. The estimate adapts within one span. In the first
//! span of such a correction it may be early by up to thirty microseconds.
//! # Where it is used
//!
//! For runtimes on the system's clock, on x86-64 under Linux, if the kernel's own clock uses the counter. The kernel
//! uses it only if it runs evenly, and the same on all processors. A worker asks the kernel which clock it uses before its first
//! estimate. Elsewhere the clock is read each time. The cells are a worker's (V1).

use std::cell::Cell;
use std::time::{Duration, Instant};

/// A time-out that is shorter begins by the clock: it would notice what is put on top.
pub(crate) const SHORT: Duration = Duration::from_micros(100);

/// For how many ticks a mark serves.
const SPAN: u64 = 1 << 20;

/// Two marks that are so many spans apart tell no rate: who asks so seldom may as well read the clock.
const FAR: u64 = 16;

/// So many ticks may lie between the two readings of a mark.
const TORN: u64 = 1 << 9;

/// What part of the ticks is put on top, as a shift.
const ON_TOP: u32 = 9;

/// Nanoseconds a tick are counted in parts of `1 << RATE`.
const RATE: u32 = 32;

/// The rates of counters of 125 MHz and of 32 GHz; what is not between them is none.
const RATES: std::ops::RangeInclusive<u64> = 1 << 27..=1 << 35;

/// See the module head.
#[derive(Debug)]
pub(crate) struct EstimatedClock {
    is_on: Cell<bool>,
    /// Whether the counter may be used. `None`: that was asked.
    may_be_used: Cell<Option<fn() -> bool>>,
    /// The last mark.
    ticks: Cell<u64>,
    time: Cell<Option<Instant>>,
    /// For how many ticks more it serves: none before the rate is known.
    serves: Cell<u64>,
    rate: Cell<u64>,
}

impl EstimatedClock {
    /// One that has not been asked yet; if it is not on, it has the clock read each time. It calls `may_be_used` before its first estimate.
    pub(crate) fn new(is_on: bool, may_be_used: fn() -> bool) -> EstimatedClock {
        EstimatedClock {
            is_on: Cell::new(is_on),
            may_be_used: Cell::new(Some(may_be_used)),
            ticks: Cell::new(0),
            time: Cell::new(None),
            serves: Cell::new(0),
            rate: Cell::new(0),
        }
    }

    /// The time, by the counter that `ticks` reads and the clock that `read` does.
    #[inline]
    pub(crate) fn now(&self, ticks: impl Fn() -> u64, read: impl FnOnce() -> Instant) -> Instant {
        if !self.is_on.get() {
            return read();
        }
        let now = ticks();
        let since = now.wrapping_sub(self.ticks.get());
        match self.time.get() {
            Some(time) if since < self.serves.get() => {
                let since = since + (since >> ON_TOP);
                time + Duration::from_nanos(((since * self.rate.get()) >> RATE) + 1)
            }
            _ => self.mark(now, ticks, read),
        }
    }

    /// Reads the clock, `ticks` having been read before, and takes the two for a mark where that is of use.
    #[cold]
    #[inline(never)]
    fn mark(&self, ticks: u64, ticks_now: impl Fn() -> u64, read: impl FnOnce() -> Instant) -> Instant {
        let time = read();
        let since = ticks.wrapping_sub(self.ticks.get());
        let before = self.time.get();
        if before.is_some() && since < SPAN {
            // The first of two, whose second is to come.
            return time;
        }
        if ticks_now().wrapping_sub(ticks) > TORN {
            return time;
        }
        let rate = before
            .filter(|_| since <= FAR * SPAN)
            .and_then(|before| u64::try_from(time.saturating_duration_since(before).as_nanos()).ok())
            .and_then(|passed| passed.checked_mul(1 << RATE))
            .map(|passed| passed / since)
            .filter(|rate| RATES.contains(rate))
            .filter(|_| self.is_allowed());
        self.ticks.set(ticks);
        self.time.set(Some(time));
        self.rate.set(rate.unwrap_or_default());
        self.serves.set(if rate.is_some() { SPAN } else { 0 });
        time
    }

    /// Whether it may estimate. It asks once, when it knows a rate: a runtime that never does need not read the file before its first
    /// request.
    fn is_allowed(&self) -> bool {
        if let Some(may_be_used) = self.may_be_used.take() {
            self.is_on.set(may_be_used());
        }
        self.is_on.get()
    }
}

/// The processor's counter.
#[inline(always)]
pub(crate) fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every processor of this kind has the counter.
    unsafe {
        std::arch::x86_64::_rdtsc()
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

/// Whether the system's clock goes by the processor's counter. Reads a file.
pub(crate) fn may_be_used() -> bool {
    #[cfg(not(all(target_arch = "x86_64", target_os = "linux", not(any(loom, shuttle, miri)))))]
    return false;
    #[cfg(all(target_arch = "x86_64", target_os = "linux", not(any(loom, shuttle, miri))))]
    std::fs::read("/sys/devices/system/clocksource/clocksource0/current_clocksource")
        .is_ok_and(|name| name.trim_ascii() == b"tsc")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A counter of 3 GHz and a clock that goes by it, bent by so many parts in a million.
    struct Machine {
        ticks: Cell<u64>,
        bend: Cell<i64>,
        time: Cell<Instant>,
        /// Ticks that pass between the two readings of a mark.
        tear: Cell<u64>,
        read: Cell<u32>,
    }

    impl Machine {
        fn new() -> Machine {
            let (ticks, bend) = (Cell::new(u64::MAX - SPAN), Cell::new(0));
            Machine { ticks, bend, time: Cell::new(Instant::now()), tear: Cell::new(90), read: Cell::new(0) }
        }

        fn goes_on(&self, ticks: u64) {
            self.ticks.set(self.ticks.get().wrapping_add(ticks));
            let nanos = ticks as f64 / 3.0 * (1.0 + self.bend.get() as f64 / 1e6);
            self.time.set(self.time.get() + Duration::from_nanos(nanos.round() as u64));
        }

        /// The answer, and whether the clock was read for it.
        fn asks(&self, estimated_clock: &EstimatedClock) -> (Instant, bool) {
            let before = self.read.get();
            let estimate = estimated_clock.now(
                || self.ticks.get(),
                || {
                    self.read.set(self.read.get() + 1);
                    self.goes_on(self.tear.get());
                    self.time.get()
                },
            );
            (estimate, self.read.get() != before)
        }

        /// Asks until it estimates.
        fn settles_rate(&self, estimated_clock: &EstimatedClock) {
            for _ in 0..10 {
                self.goes_on(SPAN / 2);
                if !self.asks(estimated_clock).1 {
                    return;
                }
            }
            panic!("it is asked often, and reads the clock each time");
        }
    }

    #[test]
    fn it_is_never_before_now_and_little_after_it_however_the_clock_is_bent() {
        for (first, then) in [(0, 0), (500, -500), (-500, 500), (500, 500)] {
            let (machine, estimated_clock) = (Machine::new(), EstimatedClock::new(true, || true));
            machine.bend.set(first);
            machine.settles_rate(&estimated_clock);
            let mut estimated = 0;
            for n in 0..10_000_u64 {
                if n == 5_000 {
                    machine.bend.set(then);
                }
                machine.goes_on(1_000 + n * 7_919 % 60_000);
                machine.tear.set(n * 31 % (TORN - 1));
                let (estimate, read) = machine.asks(&estimated_clock);
                let now = machine.time.get();
                assert!(estimate >= now, "{:?} too early, {first} {then}", now - estimate);
                assert!(estimate - now <= Duration::from_micros(2), "{:?} late", estimate - now);
                estimated += u32::from(!read);
            }
            assert!(estimated > 9_000, "{estimated}");
        }
    }

    #[test]
    fn who_asks_seldom_has_the_clock_read() {
        let (machine, estimated_clock) = (Machine::new(), EstimatedClock::new(true, || true));
        for _ in 0..100 {
            machine.goes_on((FAR + 1) * SPAN);
            assert_eq!(machine.asks(&estimated_clock), (machine.time.get(), true));
        }
    }

    #[test]
    fn a_counter_that_jumps_is_not_used() {
        for jump in [u64::MAX / 2, 1_u64.wrapping_neg() - SPAN, 5 * SPAN] {
            let (machine, estimated_clock) = (Machine::new(), EstimatedClock::new(true, || true));
            machine.settles_rate(&estimated_clock);
            machine.ticks.set(machine.ticks.get().wrapping_add(jump));
            assert!(machine.asks(&estimated_clock).1, "{jump}");
        }
    }

    #[test]
    fn a_torn_mark_is_not_used() {
        let (machine, estimated_clock) = (Machine::new(), EstimatedClock::new(true, || true));
        machine.tear.set(TORN + 1);
        for _ in 0..100 {
            machine.goes_on(SPAN / 2);
            assert!(machine.asks(&estimated_clock).1);
        }
        machine.tear.set(90);
        machine.settles_rate(&estimated_clock);
    }

    #[test]
    fn on_this_machine_it_is_never_before_now_and_little_after_it() {
        if !may_be_used() {
            println!("not tried: the clock of this machine does not go by the processor's counter");
            return;
        }
        let (estimated_clock, estimated) = (EstimatedClock::new(true, || true), Cell::new(1_000_000));
        for _ in 0..1_000_000 {
            let before = Instant::now();
            let estimate = estimated_clock.now(ticks, || {
                estimated.set(estimated.get() - 1);
                Instant::now()
            });
            assert!(estimate >= before, "{:?} too early", before - estimate);
            assert!(estimate <= Instant::now() + Duration::from_micros(10));
        }
        assert!(estimated.get() > 0, "it has read the clock each time");
    }

    #[test]
    fn where_it_is_off_the_clock_is_read() {
        let (machine, estimated_clock) = (Machine::new(), EstimatedClock::new(false, || true));
        for _ in 0..100 {
            machine.goes_on(SPAN / 2);
            assert!(machine.asks(&estimated_clock).1);
        }
    }

    #[test]
    fn where_the_counter_may_not_be_used_the_clock_is_read_and_that_is_asked_once() {
        thread_local!(static ASKED: Cell<u32> = const { Cell::new(0) });
        let refuses = || {
            ASKED.set(ASKED.get() + 1);
            false
        };
        let (machine, estimated_clock) = (Machine::new(), EstimatedClock::new(true, refuses));
        assert_eq!(ASKED.get(), 0, "it is asked only when there is something to estimate");
        for _ in 0..100 {
            machine.goes_on(SPAN / 2);
            assert!(machine.asks(&estimated_clock).1);
        }
        assert_eq!(ASKED.get(), 1);
    }
}
