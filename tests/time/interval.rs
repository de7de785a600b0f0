//! `interval`: ticks come at their times, do not drift, and what was missed comes as it was asked for.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::sync::mpsc;
use std::time::{Duration, Instant};

use cancelling::{asleep, ends_cancelled, on_each_clocked};
use forebear::channel::{RecvError, bounded};
use forebear::time::{Clock, Interval, ManualClock, MissedTickBehavior, after, interval, interval_at, now};
use forebear::{CancelReason, Cancellation, Cancelled, Request, Runtime, no_suspend, select, yield_now};
use support::order::root;
use support::{Come, in_both_worlds, on_each, until};

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

/// Somebody who waits for ten ticks, and tells when each came and when it was due.
fn waits(runtime: &Runtime, ticks: Interval, wait: Way) -> (Request<()>, mpsc::Receiver<(Instant, Instant)>) {
    let (tell, told) = mpsc::channel();
    let mut ticks = ticks;
    let request = root(runtime).try_spawn(move || {
        for _ in 0..10 {
            let due = wait(&mut ticks)?;
            tell.send((now(), due)).unwrap();
        }
        Ok(())
    });
    (request, told)
}

type Way = fn(&mut Interval) -> Result<Instant, Cancelled>;

/// Both ways to wait for a tick.
const WAYS: [Way; 2] = [
    |ticks| ticks.tick(),
    |ticks| {
        let (_send, never) = bounded::<()>(1);
        Ok(select! {
            told = &never => {
                assert_eq!(told, Err(RecvError::Cancelled), "nothing is sent");
                return Err(Cancelled::new());
            }
            due = ticks => due,
        })
    },
];

/// What they told: when each came, and when it was due, in seconds from the start.
fn seconds(start: Instant, told: &[(Instant, Instant)]) -> Vec<(u64, u64)> {
    told.iter().map(|(came, due)| ((*came - start).as_secs(), (*due - start).as_secs())).collect()
}

#[test]
fn the_first_tick_is_at_once_and_each_comes_at_its_time_and_not_before() {
    on_each_clocked(|runtime, clock| {
        for way in WAYS {
            let start = clock.now();
            let (request, told) = waits(runtime, runtime.enter(|| interval(SECOND)), way);
            assert_eq!(told.come().unwrap(), (start, start));
            for n in 1..10 {
                asleep(&request);
                clock.advance(SECOND - NANO);
                (0..5).for_each(|_| runtime.run(|| yield_now().unwrap()));
                assert!(told.try_recv().is_err());
                clock.advance(NANO);
                assert_eq!(told.come().unwrap(), (start + n * SECOND, start + n * SECOND));
            }
            request.take().unwrap();
        }
    });
}

#[test]
fn one_that_is_woken_late_does_not_move_those_that_follow() {
    on_each_clocked(|runtime, clock| {
        for behavior in [MissedTickBehavior::Burst, MissedTickBehavior::Delay, MissedTickBehavior::Skip] {
            for way in WAYS {
                let start = clock.now();
                let ticks = interval_at(start + SECOND, SECOND).with_missed_tick_behavior(behavior);
                let (request, told) = waits(runtime, ticks, way);
                asleep(&request);
                // It waited in time; the clock is what is late.
                clock.advance(SECOND + SECOND / 2);
                assert_eq!(told.come().unwrap().1, start + SECOND);
                asleep(&request);
                clock.advance(SECOND / 2);
                assert_eq!(told.come().unwrap(), (start + 2 * SECOND, start + 2 * SECOND), "{behavior:?}");
                request.abort(CancelReason::Asked);
                assert!(request.watch().is_err());
            }
        }
    });
}

/// Period 10, missed until 35.
fn misses(runtime: &Runtime, clock: &ManualClock, behavior: MissedTickBehavior, way: Way) -> Vec<(u64, u64)> {
    let start = clock.now();
    let mut ticks = interval_at(start, 10 * SECOND).with_missed_tick_behavior(behavior);
    runtime.enter(|| assert_eq!(way(&mut ticks).unwrap(), start));
    clock.advance(35 * SECOND);
    let (request, told) = waits(runtime, ticks, way);
    let mut all = Vec::new();
    // A second at a time, until enough have come; none comes between.
    while all.len() < 6 {
        // Not only about to wait: then time would pass it by.
        until(|| runtime.metrics().armed == 1);
        all.extend(told.try_iter());
        clock.advance(SECOND);
    }
    request.abort(CancelReason::Asked);
    let _ = request.watch();
    all.truncate(5);
    seconds(start, &all)
}

#[test]
fn missed_ticks_come_in_a_burst_unless_it_is_said() {
    assert_eq!(MissedTickBehavior::default(), MissedTickBehavior::Burst);
    on_each_clocked(|runtime, clock| {
        for way in WAYS {
            let told = misses(runtime, clock, MissedTickBehavior::Burst, way);
            assert_eq!(told, [(35, 10), (35, 20), (35, 30), (40, 40), (50, 50)]);
        }
    });
}

#[test]
fn or_each_a_period_after_the_late_one() {
    on_each_clocked(|runtime, clock| {
        for way in WAYS {
            let told = misses(runtime, clock, MissedTickBehavior::Delay, way);
            assert_eq!(told, [(35, 10), (45, 45), (55, 55), (65, 65), (75, 75)]);
        }
    });
}

#[test]
fn or_are_skipped_to_the_next_multiple() {
    on_each_clocked(|runtime, clock| {
        for way in WAYS {
            let told = misses(runtime, clock, MissedTickBehavior::Skip, way);
            assert_eq!(told, [(35, 10), (40, 40), (50, 50), (60, 60), (70, 70)]);
        }
    });
}

#[test]
fn a_reset_begins_a_period_from_now() {
    on_each_clocked(|runtime, clock| {
        runtime.enter(|| {
            let mut ticks = interval(10 * SECOND);
            ticks.tick().unwrap();
            clock.advance(35 * SECOND);
            ticks.reset();
            assert_eq!(ticks.next_tick(), Some(now() + 10 * SECOND));
            assert_eq!(ticks.period(), 10 * SECOND);
        });
    });
}

#[test]
fn on_the_machines_own_clock_and_on_a_virtual_one_too() {
    in_both_worlds(|| {
        let start = now();
        let mut ticks = interval(Duration::from_millis(1));
        for n in 0..5 {
            let due = ticks.tick().unwrap();
            assert!(now() >= due && due >= start + n * Duration::from_millis(1));
        }
    });
    // And a thread that no runtime knows.
    let mut ticks = interval(Duration::from_millis(1));
    assert!(ticks.tick().unwrap() < ticks.tick().unwrap());
}

#[test]
fn a_cancel_ends_a_wait_for_a_tick_and_the_tick_is_not_lost() {
    on_each(|runtime| {
        let request = root(runtime).try_spawn(|| {
            let mut ticks = interval(Duration::MAX);
            let first = ticks.next_tick();
            ticks.tick()?;
            Request::current().unwrap().abort(CancelReason::Asked);
            ticks = interval_at(first.unwrap(), SECOND);
            assert!(ticks.tick().is_err());
            assert_eq!(ticks.next_tick(), first);
            Ok(())
        });
        ends_cancelled(&request);
        let request = root(runtime).try_spawn(|| {
            let mut ticks = interval(Duration::MAX);
            ticks.tick()?;
            Ok(ticks.tick().map(drop)?)
        });
        asleep(&request);
        assert_eq!(request.cancel(), Cancellation::Marked);
        ends_cancelled(&request);
    });
}

#[test]
fn what_is_due_does_not_wait() {
    in_both_worlds(|| {
        let mut ticks = interval_at(now() - 3 * SECOND, SECOND);
        no_suspend("what is due", || (0..3).for_each(|_| assert!(ticks.tick().unwrap() < now())));
    });
}

#[test]
fn of_several_sources_the_first_comes() {
    on_each(|runtime| {
        runtime.run(|| {
            let mut ticks = interval(Duration::from_millis(2));
            ticks.tick().unwrap();
            let late = after(Duration::MAX);
            select! {
                () = &late => unreachable!("it never is"),
                due = &mut ticks => assert!(now() >= due),
            }
            let mut absent: Option<&mut Interval> = None;
            select! {
                _ = absent.take() => unreachable!("it is absent"),
                () = after(Duration::ZERO) => (),
            }
        });
    });
}

#[test]
#[should_panic(expected = "period is zero")]
fn a_period_of_zero_is_refused() {
    let _ = interval(Duration::ZERO);
}
