//! Subscribers, cancels and drops that race with the end: every callback is called exactly once or not at all, and everybody
//! is told the same.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;

use forebear::{CancelReason, Cancellation, Outcome, Request, Runtime, yield_now};

use crate::support::order::root;
use crate::support::{Count, Random, hold_thread_until, join_all, on_each, soaking, until};
use crate::{boo, told};

/// What was subscribed in one round, and what of it was called.
#[derive(Clone, Default)]
struct Tally(Arc<TallyOf>);

#[derive(Default)]
struct TallyOf {
    /// By kind: finished, failed, cancelled, done.
    subscribed: [AtomicUsize; 4],
    called: [AtomicUsize; 4],
    held: Count,
    told: Mutex<Vec<String>>,
}

impl Tally {
    fn subscribe(&self, request: &Request<u32>, kind: usize) {
        self.0.subscribed[kind].fetch_add(1, Ordering::Relaxed);
        // Called once: a second call would drop the probe twice.
        let (tally, probe) = (self.clone(), self.0.held.probe());
        let called = move |how: Option<String>| {
            tally.0.called[kind].fetch_add(1, Ordering::Relaxed);
            tally.0.told.lock().unwrap().extend(how);
            drop(probe);
        };
        match kind {
            0 => request.on_finished(move |value| called(Some(told(Outcome::Finished(value))))),
            1 => request.on_failed(move |failure| called(Some(told::<u32>(Outcome::Failed(failure))))),
            2 => request.on_cancelled(move || called(None)),
            _ => request.on_done(move |how| called(Some(told(how)))),
        };
    }

    /// Checks it when the request is over and all have subscribed.
    fn check(&self, request: &Request<u32>) {
        let how = request.outcome().unwrap();
        let group = match how {
            Outcome::Finished(_) => 0,
            Outcome::Failed(_) => 1,
            Outcome::Cancelled(_) => 2,
        };
        let count = |of: &[AtomicUsize; 4], kind: usize| of[kind].load(Ordering::Relaxed);
        for kind in 0..4 {
            let expected = if kind == 3 || kind == group { count(&self.0.subscribed, kind) } else { 0 };
            assert_eq!(count(&self.0.called, kind), expected, "of kind {kind}, {how:?}");
        }
        let all: usize = (0..4).map(|kind| count(&self.0.subscribed, kind)).sum();
        assert_eq!(self.0.held.get(), all, "dropped");
        let told_all = self.0.told.lock().unwrap();
        assert!(told_all.iter().all(|it| *it == told(how)), "{told_all:?}, {how:?}");
    }
}

fn rounds() -> u64 {
    if soaking() { 20_000 } else { 150 }
}

/// A request that begins to end when as many have come to the barrier.
fn ending(runtime: &Runtime, start: &Arc<Barrier>, how: usize) -> Request<u32> {
    let start = start.clone();
    root(runtime).build(move || {
        start.wait();
        match how {
            0 => 7,
            1 => boo(),
            2 => {
                Request::current().unwrap().abort(CancelReason::Other(1));
                7
            }
            _ => {
                yield_now().unwrap();
                7
            }
        }
    })
}

#[test]
fn subscribers_that_race_with_the_end_are_called_exactly_once() {
    let _not = crate::support::not_on(
        crate::support::Modes::Both,
        "its requests hold the thread, which alone could go on",
    );
    on_each(|runtime| {
        for seed in 0..rounds() {
            let mut random = Random::new(seed);
            let tally = Tally::default();
            let start = Arc::new(Barrier::new(4));
            let request = ending(runtime, &start, random.below(4));
            (0..random.below(4)).for_each(|_| tally.subscribe(&request, random.clone().below(4)));
            request.submit();
            thread::scope(|threads| {
                join_all([(); 3].map(|()| {
                    let mut random = Random::new(random.next());
                    let (request, tally, start) = (&request, &tally, &start);
                    threads.spawn(move || {
                        start.wait();
                        for _ in 0..20 {
                            tally.subscribe(request, random.below(4));
                            (0..random.below(30)).for_each(|_| std::hint::spin_loop());
                        }
                    })
                }));
            });
            until(|| request.is_done());
            tally.check(&request);
        }
    });
}

/// Requests that subscribe, from callbacks too.
#[test]
fn requests_and_callbacks_that_subscribe_while_it_ends_are_called_exactly_once() {
    on_each(|runtime| {
        for seed in 0..rounds() {
            let mut random = Random::new(seed);
            let tally = Tally::default();
            let how = random.below(3);
            let request = root(runtime).build(move || match how {
                0 => boo(),
                _ => {
                    yield_now().unwrap();
                    7
                }
            });
            let (me, also) = (request.clone(), tally.clone());
            request.on_done(move |_| {
                for kind in 0..8 {
                    also.subscribe(&me, kind % 4);
                    yield_now().unwrap();
                }
            });
            request.submit();
            let subscribers: Vec<_> = (0..4)
                .map(|_| {
                    let mut random = Random::new(random.next());
                    let (request, tally) = (request.clone(), tally.clone());
                    root(runtime).spawn(move || {
                        for _ in 0..10 {
                            tally.subscribe(&request, random.below(4));
                            if random.below(2) == 0 {
                                yield_now().unwrap();
                            }
                        }
                    })
                })
                .collect();
            for subscriber in subscribers {
                subscriber.take().unwrap();
            }
            until(|| request.is_done());
            tally.check(&request);
        }
    });
}

/// A cancel that answers that it has marked the request is believed by everybody, and one that says it is over too.
#[test]
fn d11_cancels_that_race_with_the_end_agree_with_what_callbacks_are_told() {
    let _not = crate::support::not_on(
        crate::support::Modes::Both,
        "its requests hold the thread, which alone could go on",
    );
    on_each(|runtime| {
        for seed in 0..rounds() {
            let mut random = Random::new(seed);
            let tally = Tally::default();
            let start = Arc::new(Barrier::new(4));
            let request = ending(runtime, &start, if random.below(4) == 0 { 3 } else { 0 });
            (0..8).for_each(|n| tally.subscribe(&request, n % 4));
            request.submit();
            let answers = Mutex::new(Vec::new());
            thread::scope(|threads| {
                join_all([0, 1, 2].map(|n| {
                    let mut random = Random::new(random.next());
                    let (request, tally, start, answers) = (&request, &tally, &start, &answers);
                    threads.spawn(move || {
                        start.wait();
                        (0..random.below(300)).for_each(|_| std::hint::spin_loop());
                        let answer =
                            if n == 0 { request.abort(CancelReason::Aborted) } else { request.cancel() };
                        answers.lock().unwrap().push(answer);
                        tally.subscribe(request, n);
                    })
                }));
            });
            until(|| request.is_done());
            tally.check(&request);
            let cancelled = matches!(request.outcome(), Some(Outcome::Cancelled(_)));
            let marked = answers.lock().unwrap().contains(&Cancellation::Marked);
            let failed = matches!(request.outcome(), Some(Outcome::Failed(_)));
            // The one that yields unwraps the answer to that, and so fails: which was its own doing.
            assert!(cancelled == marked || failed && marked, "{request:?}: {answers:?}");
        }
    });
}

/// Started or not, whoever is first: cancels, waits and subscriptions of one that is queued.
#[test]
fn cancels_that_race_with_the_start_agree_with_what_callbacks_are_told() {
    on_each(|runtime| {
        for seed in 0..rounds() {
            let mut random = Random::new(seed);
            let (tally, ran) = (Tally::default(), Count::new());
            let up = ran.clone();
            let request = runtime.enter(|| {
                Request::new(move || {
                    up.up();
                    7
                })
            });
            (0..8).for_each(|n| tally.subscribe(&request, n % 4));
            let start = Barrier::new(3);
            thread::scope(|threads| {
                let (request, tally, start) = (&request, &tally, &start);
                let ways: [fn(&Request<u32>); 3] = [
                    |request| _ = request.submit(),
                    |request| _ = request.cancel(),
                    |request| _ = request.watch(),
                ];
                join_all(ways.map(|way| {
                    let lot = random.below(100);
                    threads.spawn(move || {
                        start.wait();
                        (0..lot).for_each(|_| std::hint::spin_loop());
                        way(request);
                        tally.subscribe(request, lot % 4);
                    })
                }));
            });
            assert!(request.is_done());
            tally.check(&request);
            let cancelled = matches!(request.outcome(), Some(Outcome::Cancelled(_)));
            assert!(ran.get() == 1 || cancelled && ran.get() == 0);
        }
    });
}

/// The last handles go while callbacks run: the value is dropped once, and every callback is called.
#[test]
fn handles_that_go_while_it_ends_leave_every_callback_called() {
    let _not = crate::support::not_on(
        crate::support::Modes::Both,
        "its requests hold the thread, which alone could go on",
    );
    on_each(|runtime| {
        for seed in 0..rounds() {
            let mut random = Random::new(seed);
            let (drops, called) = (Count::new(), Count::new());
            let start = Arc::new(Barrier::new(3));
            let (value, first) = (drops.probe(), start.clone());
            let request = root(runtime).build(move || {
                first.wait();
                value
            });
            let any = request.to_untyped();
            for _ in 0..3 {
                let (up, also, held) = (called.clone(), called.clone(), request.clone());
                request.on_finished(move |_| _ = up.up()).on_done(move |_| {
                    also.up();
                    drop(held);
                });
            }
            request.submit();
            thread::scope(|threads| {
                join_all([request.clone(), request].map(|handle| {
                    let (lot, start) = (random.below(200), &start);
                    threads.spawn(move || {
                        start.wait();
                        (0..lot).for_each(|_| std::hint::spin_loop());
                        drop(handle);
                    })
                }));
            });
            hold_thread_until(|| any.is_done());
            assert_eq!((called.get(), drops.get()), (6, 1));
        }
    });
}
