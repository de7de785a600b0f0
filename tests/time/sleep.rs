//! `sleep`, `sleep_until` and `now`: they go by the runtime's clock, neither early nor late, and a cancel ends them.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::time::{Duration, Instant};

use cancelling::{asleep, ends_cancelled, on_each_clocked};
use forebear::time::{Clock, now, sleep, sleep_until};
use forebear::{CancelReason, Cancellation, Cancelled, Request, State, no_suspend, yield_now};
use support::order::root;
use support::{in_both_worlds, on_each};

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

#[test]
fn a_sleep_ends_when_its_time_has_come_and_not_before() {
    on_each_clocked(|runtime, clock| {
        let until = clock.now() + 2 * SECOND;
        let sleepers = [
            root(runtime).spawn(|| sleep(2 * SECOND).map(|()| now())),
            root(runtime).spawn(move || sleep_until(until).map(|()| now())),
        ];
        sleepers.iter().for_each(asleep);
        clock.advance(2 * SECOND - NANO);
        for _ in 0..5 {
            runtime.run(|| yield_now().unwrap());
        }
        assert!(sleepers.iter().all(|sleeper| sleeper.state() == State::Suspended));
        clock.advance(NANO);
        for sleeper in sleepers {
            assert_eq!(sleeper.take().unwrap(), Ok(until));
        }
    });
}

#[test]
fn a_thread_sleeps_too() {
    in_both_worlds(|| {
        let start = now();
        sleep(Duration::from_millis(2)).unwrap();
        assert!(now() - start >= Duration::from_millis(2));
    });
    // And one that no runtime knows.
    let start = Instant::now();
    sleep(Duration::from_millis(2)).unwrap();
    sleep_until(start + Duration::from_millis(4)).unwrap();
    assert!(now() - start >= Duration::from_millis(4));
}

#[test]
fn what_is_over_does_not_wait() {
    in_both_worlds(|| {
        no_suspend("what is over", || {
            sleep(Duration::ZERO).unwrap();
            sleep_until(now()).unwrap();
            sleep_until(now() - NANO).unwrap();
        });
    });
}

#[test]
fn for_ever_lasts_until_a_cancel() {
    on_each(|runtime| {
        let sleeper = root(runtime).try_spawn(|| Ok(sleep(Duration::MAX)?));
        asleep(&sleeper);
        assert_eq!(sleeper.cancel(), Cancellation::Marked);
        ends_cancelled(&sleeper);
    });
}

#[test]
fn a_cancelled_request_is_told_even_if_there_is_nothing_to_wait_for() {
    on_each(|runtime| {
        let request = root(runtime).spawn(|| {
            Request::current().unwrap().abort(CancelReason::Asked);
            assert!(matches!(sleep(Duration::ZERO), Err(Cancelled { .. })));
            assert!(matches!(sleep_until(now()), Err(Cancelled { .. })));
        });
        ends_cancelled(&request);
    });
}

#[test]
fn sleepers_wake_in_order_of_their_time() {
    let runtime = forebear::Runtime::builder().seeded(7).build().unwrap();
    let start = runtime.enter(now);
    let order = runtime.run(|| {
        let sleepers: Vec<_> =
            [3, 1, 2].map(|n| forebear::spawn(move || sleep(n * 3600 * SECOND).map(|()| now()))).into();
        sleepers.into_iter().map(|sleeper| sleeper.take().unwrap().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(order, [3, 1, 2].map(|n| start + n * 3600 * SECOND), "hours pass at once");
}
