//! Arming, firing and taking back, on probes; and the end.

use super::*;

#[test]
fn one_jump_fires_all_that_is_due_in_order_of_time_and_then_of_arming() {
    let clock = ManualClock::new();
    let (log, deadlines, start) = (Log::default(), on(clock.clone()), clock.now());
    let probes: Vec<_> = (0..4).map(|name| log.probe(name)).collect();
    let _armed: Vec<_> =
        probes.iter().zip([3, 1, 2, 1]).map(|(p, ticks)| p.arm(&deadlines, start + TICK * ticks)).collect();
    assert_eq!(deadlines.next(), Some(start + TICK));
    clock.advance(TICK * 2);
    assert_eq!(log.read(), [1, 3, 2], "before `advance` returns");
    assert!(probes[0].context.is_waiting());
    clock.advance(TICK);
    assert_eq!(log.read(), [1, 3, 2, 0]);
    assert!(probes.iter().all(|probe| probe.timed_out()));
    assert!(deadlines.next().is_none() && !has_thread(&deadlines));
}

#[test]
fn more_than_a_batch_fires_at_once() {
    let clock = ManualClock::new();
    let (log, deadlines) = (Log::default(), on(clock.clone()));
    let probes: Vec<_> = (0..BATCH as u32 * 3 + 1).map(|name| log.probe(name)).collect();
    let _armed: Vec<_> = probes.iter().map(|p| p.arm(&deadlines, clock.now() + TICK)).collect();
    clock.advance(TICK);
    assert!(log.read().into_iter().eq(0..BATCH as u32 * 3 + 1));
}

#[test]
fn a_disarmed_deadline_does_not_fire() {
    let clock = ManualClock::new();
    let (log, deadlines) = (Log::default(), on(clock.clone()));
    let (one, two) = (log.probe(1), log.probe(2));
    let at = clock.now() + TICK;
    let (first, second) = (one.arm(&deadlines, at), two.arm(&deadlines, at));
    assert!(disarm(&deadlines, first), "taken back in time");
    clock.advance(HOUR);
    assert_eq!(log.read(), [2]);
    assert!(!disarm(&deadlines, second), "it had fired");
}

#[test]
fn a_deadline_that_is_past_fires_before_arm_returns() {
    let log = Log::default();
    for deadlines in [on(ManualClock::new()), on(MonotonicClock), on_its_own()] {
        let probe = log.probe(0);
        let armed = probe.arm(&deadlines, deadlines.now());
        assert!(probe.timed_out());
        assert!(!disarm(&deadlines, armed) && !has_thread(&deadlines));
    }
}

#[test]
fn a_fired_deadline_of_an_earlier_wait_does_not_end_the_next() {
    let clock = ManualClock::new();
    let (log, deadlines) = (Log::default(), on(clock.clone()));
    let probe = log.probe(0);
    let _armed = probe.arm(&deadlines, clock.now() + TICK);
    let next = probe.begin(Reason::None);
    clock.advance(TICK);
    assert_eq!(log.read(), [0], "it fired");
    assert!(probe.context.is_waiting(), "and was refused");
    // SAFETY: C2: it is the wait that was begun last, and it is not parked.
    unsafe { probe.context.abandon(next) };
}

#[test]
fn a_hundred_thousand_armed_and_disarmed_leave_nothing() {
    for (deadlines, handles) in [(on(MonotonicClock), 2), (on_its_own(), 2), (on(ManualClock::new()), 1)] {
        let log = Log::default();
        let (probe, start) = (log.probe(0), deadlines.now() + HOUR);
        let ticket = probe.begin(Reason::None);
        let all: Vec<Alarm> = (0..100_000_u64)
            .map(|n| {
                let at = start + Duration::from_nanos(n.wrapping_mul(0x9e37_79b9) % 1_000_000);
                // SAFETY: the log keeps it.
                unsafe { deadlines.arm(at, NonNull::from(probe).cast(), ticket) }
            })
            .collect();
        assert_eq!(armed(&deadlines), 100_000);
        assert!(all.into_iter().all(|armed| disarm(&deadlines, armed)));
        assert_eq!(armed(&deadlines), 0);
        assert!(log.read().is_empty());
        assert_eq!(Arc::strong_count(deadlines.record()), handles, "one thread at most");
    }
}

#[test]
fn a_jump_while_a_deadline_is_armed_is_not_missed() {
    let clock = ManualClock::new();
    let (log, deadlines) = (Log::default(), on(clock.clone()));
    for round in 0..500 {
        let (probe, at, both) = (log.probe(round), clock.now() + TICK, Barrier::new(2));
        thread::scope(|s| {
            s.spawn(|| {
                both.wait();
                clock.advance(TICK);
            });
            both.wait();
            (0..round % 64).for_each(|_| std::hint::spin_loop());
            let armed = probe.arm(&deadlines, at);
            eventually(|| clock.now() >= at);
            // The jump's call may be under way.
            eventually(|| probe.timed_out());
            assert!(!disarm(&deadlines, armed));
        });
    }
}

#[test]
fn who_has_disarmed_is_rid_of_the_timer() {
    let clock = ManualClock::new();
    let (log, deadlines, over) = (Log::default(), on(clock.clone()), AtomicBool::new(false));
    thread::scope(|s| {
        s.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                clock.advance(Duration::from_nanos(1));
            }
        });
        for name in 0..5_000 {
            let probe = log.probe(name);
            let armed = probe.arm(&deadlines, clock.now() + Duration::from_nanos(2));
            (0..name % 256).for_each(|_| std::hint::spin_loop());
            disarm(&deadlines, armed);
            probe.gone.store(true, Ordering::Relaxed);
        }
        over.store(true, Ordering::Relaxed);
    });
    let log = log.read();
    assert!(!log.is_empty(), "some were late");
    assert!(!log.contains(&GONE));
}

#[test]
fn whatever_is_armed_at_the_end_ends_then() {
    let clock = ManualClock::new();
    let (log, deadlines) = (Log::default(), Arc::new(on(clock.clone())));
    let at = clock.now() + HOUR;
    let of_waiter = deadlines.clone();
    let waiter = thread::spawn(move || wait_until(&of_waiter, Some(at), to_nobody));
    eventually(|| deadlines.next() == Some(at));
    deadlines.close();
    eventually(|| waiter.is_finished());
    assert_eq!(waiter.join().unwrap(), Cause::TimedOut);
    let probe = log.probe(0);
    let armed = probe.arm(&deadlines, at);
    assert!(probe.timed_out() && !disarm(&deadlines, armed), "and afterwards at once");
    clock.advance(HOUR);
    assert_eq!(log.read(), [0]);
}

/// It is not its time yet: who answers nothing but that it is must not.
#[test]
fn a_sleep_that_is_armed_at_the_end_is_refused() {
    let (log, deadlines) = (Log::default(), on(ManualClock::new()));
    let at = deadlines.now() + HOUR;
    let sleeper = |name| {
        let probe = log.probe(name);
        let ticket = probe.begin(Reason::Sleep);
        // SAFETY: the log keeps it.
        (probe, unsafe { deadlines.arm(at, NonNull::from(probe).cast(), ticket) })
    };
    let (armed, _) = sleeper(0);
    deadlines.close();
    assert!(!armed.context.is_waiting() && armed.context.cause() == Cause::Cancelled);
    let (later, _) = sleeper(1);
    assert!(!later.context.is_waiting() && later.context.cause() == Cause::Cancelled);
}
