//! What callbacks hold is given back: each callback as soon as it has been called, or it is known that it will not be.

use std::sync::mpsc::channel;

use forebear::{Request, spawn};

use crate::support::order::{Log, root};
use crate::support::{Count, in_both_worlds, on_each, runtime, until};
use crate::{at_each_end, boo, note_all};

/// Subscribes every kind of callback, each with something whose drop is counted.
fn hold_all(request: &Request<u32>, drops: &Count) {
    let [a, b, c, d] = [(); 4].map(|()| drops.probe());
    request
        .on_finished(move |_| drop(a))
        .on_failed(move |_| drop(b))
        .on_cancelled(move || drop(c))
        .on_done(move |_| drop(d));
}

#[test]
fn what_callbacks_hold_is_dropped_by_the_end_called_or_not() {
    at_each_end(|_, request, bring| {
        let drops = Count::new();
        (0..3).for_each(|_| hold_all(&request, &drops));
        let any = request.to_untyped();
        assert_eq!(drops.get(), 0);
        bring(request);
        assert_eq!(drops.get(), 12);
        drop(any);
        assert_eq!(drops.get(), 12);
    });
}

/// Also what is not to be called goes before the done-callbacks are told.
#[test]
fn what_a_callback_holds_is_dropped_when_it_has_been_called() {
    at_each_end(|_, request, bring| {
        let (drops, log) = (Count::new(), Log::default());
        let holds = || {
            let (probe, drops, log) = (drops.probe(), drops.clone(), log.clone());
            move || {
                log.note(format!("{}", drops.get()));
                drop(probe);
            }
        };
        let [a, b, c] = [holds(), holds(), holds()];
        request.on_done(move |_| a()).on_done(move |_| b()).on_done(move |_| c());
        (0..3).for_each(|_| hold_all(&request, &drops));
        bring(request);
        log.check(&["9", "10", "11"]);
        assert_eq!(drops.get(), 15);
    });
    in_both_worlds(|| {
        let (drops, log, request) = (Count::new(), Log::default(), Request::new(|| 7));
        for _ in 0..3 {
            let (probe, drops, log) = (drops.probe(), drops.clone(), log.clone());
            request.on_finished(move |_| {
                log.note(format!("{}", drops.get()));
                drop(probe);
            });
        }
        assert_eq!(request.wait().unwrap(), &7);
        log.check(&["0", "1", "2"]);
    });
}

/// In the original a callback that raised kept them all.
#[test]
fn d24_what_callbacks_hold_is_dropped_though_one_panics() {
    on_each(|runtime| {
        let panics = || std::panic::resume_unwind(Box::new("callback"));
        for fails in [false, true] {
            let drops = Count::new();
            let request = root(runtime).build(move || if fails { boo() } else { 7 });
            hold_all(&request, &drops);
            let [a, b, c] = [(); 3].map(|()| drops.probe());
            request.on_finished(move |_| {
                let _held = a;
                panics()
            });
            request.on_failed(move |_| {
                let _held = b;
                panics()
            });
            hold_all(&request, &drops);
            request.on_done(move |_| {
                let _held = c;
                panics()
            });
            hold_all(&request, &drops);
            assert!(request.wait().is_err());
            assert_eq!(drops.get(), 15);
        }
    });
}

/// The callable and what it captured are gone before the first callback runs; the frames of one that failed too.
#[test]
fn d24_what_the_callable_held_is_dropped_before_callbacks_run() {
    in_both_worlds(|| {
        for fails in [false, true] {
            let drops = Count::new();
            let (captured, local) = (drops.probe(), drops.clone());
            let request = Request::new(move || {
                let _local = local.probe();
                let _captured = &captured;
                if fails { boo() } else { 7 }
            });
            let (send, found) = channel();
            let dropped = drops.clone();
            request.on_done(move |_| send.send(dropped.get()).unwrap());
            assert_eq!(request.wait().is_err(), fails);
            assert_eq!(found.try_recv(), Ok(2));
        }
        // One that never ran.
        let drops = Count::new();
        let (captured, dropped) = (drops.probe(), drops.clone());
        let request = Request::new(move || drop(captured));
        let (send, found) = channel();
        request.on_cancelled(move || send.send(dropped.get()).unwrap()).cancel();
        assert_eq!(found.try_recv(), Ok(1));
    });
}

#[test]
fn what_a_late_callback_holds_is_dropped_when_the_subscription_returns() {
    in_both_worlds(|| {
        let drops = Count::new();
        let (good, bad, gone) = (Request::new(|| 7), Request::new(boo), Request::new(|| 7));
        let _ = (good.wait(), bad.wait(), gone.cancel());
        for (n, request) in [&good, &bad, &gone].into_iter().enumerate() {
            hold_all(request, &drops);
            assert_eq!(drops.get(), 4 * (n + 1));
        }
    });
}

/// They are kept by the request and not by who subscribed, nor by what was there before.
#[test]
fn callbacks_of_a_request_that_nobody_holds_are_called_and_dropped() {
    on_each(|runtime| {
        let (drops, log) = (Count::new(), Log::default());
        for _ in 0..20 {
            let request = root(runtime).build(|| 7);
            hold_all(&request, &drops);
            note_all(&request, &log);
            request.submit();
        }
        until(|| log.told().len() == 40);
        drops.wait_for(80);
    });
}

/// No value is kept for callbacks that do not look at it: it goes with the last handle, before or after.
#[test]
fn the_value_lives_while_callbacks_are_told_it_and_no_longer() {
    on_each(|runtime| {
        let drops = Count::new();
        let value = drops.probe();
        let request = root(runtime).build(move || value);
        let (send, found) = channel();
        let [a, b] = [(); 2].map(|()| (send.clone(), drops.clone()));
        request
            .on_finished(move |_| a.0.send(a.1.get()).unwrap())
            .on_done(move |_| b.0.send(b.1.get()).unwrap());
        let any = request.to_untyped();
        request.submit();
        drop(request);
        any.wait().unwrap();
        assert_eq!((found.try_recv(), found.try_recv(), drops.get()), (Ok(0), Ok(0), 1));
    });
}

/// Each in its turn, and none of them on top of another.
#[test]
fn a_hundred_thousand_callbacks_are_called_in_order_and_dropped() {
    const MANY: usize = 100_000;
    // The first half are for a success, the others for any end.
    let subscribe = |request: &Request<u32>, calls: &Count, drops: &Count, skipped: usize| {
        for n in 0..MANY {
            let (calls, probe) = (calls.clone(), drops.probe());
            let called = move || {
                // One that comes out of order does not count, and so all the rest do not.
                if calls.get() + skipped == n {
                    calls.up();
                }
                drop(probe);
            };
            match n < MANY / 2 {
                true => request.on_finished(move |_| called()),
                false => request.on_done(move |_| called()),
            };
        }
    };
    on_each(|runtime| {
        let (calls, drops) = (Count::new(), Count::new());
        let request = root(runtime).build(|| 7);
        subscribe(&request, &calls, &drops, 0);
        assert_eq!(request.wait().unwrap(), &7);
        assert_eq!((calls.get(), drops.get()), (MANY, MANY));
        // On the stack of whoever cancels.
        let (calls, drops) = (Count::new(), Count::new());
        let request = runtime.enter(|| Request::new(|| 7));
        subscribe(&request, &calls, &drops, MANY / 2);
        runtime.run(|| _ = request.cancel());
        assert_eq!((calls.get(), drops.get()), (MANY / 2, MANY));
    });
}

#[test]
fn callbacks_that_subscribe_the_next_a_hundred_thousand_times_come_to_an_end() {
    fn next(request: forebear::AnyRequest, calls: Count, left: usize) {
        calls.up();
        if left > 1 {
            let again = request.clone();
            request.on_done(move |_| next(again, calls, left - 1));
        }
    }
    let runtime = runtime(1);
    let calls = Count::new();
    let request = root(&runtime).build(|| 7);
    let (me, up) = (request.to_untyped(), calls.clone());
    request.on_done(move |_| next(me, up, 100_000));
    assert_eq!(request.take().unwrap(), 7);
    assert_eq!(calls.get(), 100_000);
}

/// Callbacks and what they hold come and go with the requests.
#[cfg(target_os = "linux")]
#[test]
fn callbacks_take_no_more_memory_in_the_end() {
    use crate::support::{Watchdog, again_in_child, is_child, resident};
    const NAME: &str = "freed::callbacks_take_no_more_memory_in_the_end";
    let _dog = Watchdog::new("");
    if !is_child(NAME) {
        let (ok, told) = again_in_child(NAME, ("ALONE", "1"), "");
        assert!(ok, "{told}");
        return;
    }
    let runtime = runtime(2);
    let round = || {
        for end in crate::ENDS {
            let request = (end.make)();
            for _ in 0..10 {
                let big = vec![1_u8; 100];
                request.on_finished(|_| ()).on_failed(|_| ()).on_cancelled(|| ()).on_done(move |_| drop(big));
            }
            // Held by its own callbacks until it ends.
            let me = request.to_untyped();
            request.on_done(move |_| drop(me));
            (end.bring)(request);
            spawn(|| ()).take().unwrap();
        }
    };
    let mut early = 0;
    for n in 0..3_000 {
        if n == 500 {
            early = resident();
        }
        runtime.run(round);
        runtime.enter(round);
    }
    let late = resident();
    assert!(late < early + (6 << 20), "{early} bytes when warm, {late} at the end");
}
