//! The promises of `forebear_context::clock`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use forebear_context::clock::{Clock, ManualClock, MonotonicClock, Subscription, deadline_after};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn clocks_can_be_shared_behind_the_trait() {
    fn check<T: Clock + Clone + Default + 'static>() {}
    check::<ManualClock>();
    check::<MonotonicClock>();
    fn shared<T: Send + Sync + 'static>() {}
    shared::<Subscription>();
    let both: [Arc<dyn Clock>; 2] = [Arc::new(MonotonicClock), Arc::new(ManualClock::new())];
    for clock in both {
        assert!(!format!("{clock:?}").is_empty());
        assert!(clock.now() <= clock.now());
    }
}

#[test]
fn the_monotonic_clock_is_the_systems_and_never_jumps() {
    let before = Instant::now();
    let now = MonotonicClock.now();
    assert!(before <= now && now <= Instant::now());
    assert!(MonotonicClock.subscribe(Box::new(|_| ())).is_none());
}

#[test]
fn a_manual_clock_stands_still_until_it_is_moved() {
    let at = Instant::now();
    let clock = ManualClock::starting_at(at);
    assert_eq!(clock.now(), at);
    assert_eq!(clock.advance(SECOND), at + SECOND);
    assert_eq!(clock.now(), at + SECOND);
    assert_eq!(clock.set(at + 3 * SECOND), at + 3 * SECOND);
    assert_eq!(clock.now(), at + 3 * SECOND);
}

#[test]
fn a_manual_clock_never_goes_backwards() {
    let clock = ManualClock::new();
    let start = clock.now();
    clock.advance(2 * SECOND);
    assert_eq!(clock.set(start + SECOND), start + 2 * SECOND);
    assert_eq!(clock.now(), start + 2 * SECOND);
}

#[test]
fn a_clone_is_the_same_clock() {
    let clock = ManualClock::new();
    let (start, clone) = (clock.now(), clock.clone());
    clone.advance(SECOND);
    assert_eq!(clock.now(), start + SECOND);
}

#[test]
fn moves_from_several_threads_add_up() {
    let clock = ManualClock::new();
    let (start, begin) = (clock.now(), Barrier::new(2));
    thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                begin.wait();
                (0..1000).for_each(|_| _ = clock.advance(SECOND));
            });
        }
    });
    assert_eq!(clock.now(), start + 2000 * SECOND);
}

#[test]
fn time_saturates_at_the_end_of_all_instants() {
    let clock = ManualClock::new();
    let end = clock.advance(Duration::MAX);
    assert_eq!(end.checked_add(Duration::from_nanos(1)), None);
    assert_eq!(clock.advance(SECOND), end);
    assert_eq!(deadline_after(end, SECOND), None);
}

#[test]
fn a_deadline_too_far_off_is_never() {
    let now = Instant::now();
    assert_eq!(deadline_after(now, SECOND), Some(now + SECOND));
    assert_eq!(deadline_after(now, Duration::ZERO), Some(now));
    assert_eq!(deadline_after(now, Duration::MAX), None);
}

#[test]
fn subscribers_are_called_after_the_time_has_changed_and_sleepers_before_callbacks() {
    let clock = ManualClock::new();
    let start = clock.now();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let note = |who: &'static str| {
        let (seen, same) = (seen.clone(), clock.clone());
        move |now: Instant| seen.lock().unwrap().push((who, now - start, same.now() == now))
    };
    let sleeper = |who| Clock::subscribe(&clock, Box::new(note(who))).expect("it jumps");
    let _third = clock.on_advance(note("third"));
    let _first = sleeper("first");
    let _fourth = clock.on_advance(note("fourth"));
    let _second = sleeper("second");
    for (move_on, after) in [(SECOND, 1), (5 * SECOND, 6)] {
        clock.advance(move_on);
        let wanted = ["first", "second", "third", "fourth"].map(|who| (who, after * SECOND, true));
        assert_eq!(std::mem::take(&mut *seen.lock().unwrap()), wanted);
    }
    clock.set(start + 7 * SECOND);
    assert_eq!(seen.lock().unwrap().len(), 4);
}

#[test]
fn a_dropped_subscription_is_called_no_more_and_frees_its_callback() {
    let clock = ManualClock::new();
    let calls = Arc::new(AtomicUsize::new(0));
    let count = |calls: &Arc<AtomicUsize>| {
        let calls = calls.clone();
        move |_| _ = calls.fetch_add(1, Ordering::Relaxed)
    };
    let other = Arc::new(AtomicUsize::new(0));
    let _before = clock.on_advance(count(&other));
    let subscription = clock.on_advance(count(&calls));
    let _after = clock.on_advance(count(&other));
    clock.advance(SECOND);
    drop(subscription);
    clock.advance(SECOND);
    assert_eq!(calls.load(Ordering::Relaxed), 1);
    assert_eq!(other.load(Ordering::Relaxed), 4);
    assert_eq!(Arc::strong_count(&calls), 1);
}

#[test]
fn a_callback_may_read_move_subscribe_and_unsubscribe() {
    let clock = ManualClock::new();
    let start = clock.now();
    let own: Arc<OnceLock<Mutex<Option<Subscription>>>> = Arc::default();
    let added = Arc::new(Mutex::new(None));
    let callback = {
        let (clock, own, added) = (clock.clone(), own.clone(), added.clone());
        move |now: Instant| {
            assert_eq!(clock.now(), now);
            // Gone first, or the move below would call it again.
            drop(own.get().expect("set before the clock moves").lock().unwrap().take());
            clock.advance(SECOND);
            *added.lock().unwrap() = Some(clock.on_advance(|_| ()));
        }
    };
    let subscription = clock.on_advance(callback);
    assert!(own.set(Mutex::new(Some(subscription))).is_ok());
    clock.advance(SECOND);
    assert_eq!(clock.now(), start + 2 * SECOND);
    assert!(added.lock().unwrap().is_some());
}

#[test]
fn a_callbacks_destructor_may_use_the_clock() {
    struct Reads(ManualClock);
    impl Drop for Reads {
        fn drop(&mut self) {
            self.0.now();
        }
    }
    let clock = ManualClock::new();
    let reads = Reads(clock.clone());
    let subscription = clock.on_advance(move |_| _ = &reads);
    drop(subscription);
    clock.advance(SECOND);
}

#[test]
fn a_subscription_does_not_keep_the_clock_alive() {
    let held = Arc::new(());
    let clock = ManualClock::new();
    let mine = held.clone();
    let subscription = clock.on_advance(move |_| _ = &mine);
    drop(clock);
    assert_eq!(Arc::strong_count(&held), 1);
    drop(subscription);
}
