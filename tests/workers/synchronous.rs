//! The synchronous mode: no worker threads; what is submitted runs at once, on the thread that submits it.

#[path = "../support/mod.rs"]
mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use forebear::sync::Event;
use forebear::time::sleep;
use forebear::{
    CancelReason, Request, RequestPool, Runtime, State, WaitError, join, no_suspend, scope, shield, spawn,
    try_spawn, yield_now,
};
use support::{Count, Flag, Watchdog};

fn synchronous() -> Runtime {
    Runtime::builder().workers(0).name("synchronous").build().expect("nothing to be refused")
}

/// What happened, in order. Clones are the same trace.
#[derive(Clone, Default)]
struct Trace(Arc<Mutex<Vec<&'static str>>>);

impl Trace {
    fn note(&self, what: &'static str) {
        self.0.lock().unwrap().push(what);
    }

    fn so_far(&self) -> String {
        self.0.lock().unwrap().join(" ")
    }
}

/// A request that suspends at once and ends when `free` is up.
fn suspended(free: &Flag) -> Request<()> {
    let free = free.clone();
    spawn(move || free.wait())
}

#[test]
fn it_has_no_workers() {
    let runtime = synchronous();
    assert_eq!(runtime.workers(), 0);
    assert_eq!(runtime.enter(|| forebear::parallelism().get()), 1);
    let here = thread::current().id();
    assert_eq!(runtime.run(|| thread::current().id()), here);
}

#[test]
fn a_submit_runs_the_request_before_it_returns() {
    let _dog = Watchdog::new("");
    let runtime = synchronous();
    runtime.enter(|| {
        let ran = Count::new();
        let counts = ran.clone();
        let request = Request::new(move || counts.up());
        assert_eq!(ran.get(), 0);
        request.submit();
        assert_eq!(ran.get(), 1);
        assert_eq!(request.state(), State::Finished);
        let counts = ran.clone();
        assert!(spawn(move || counts.up()).is_done());
        let counts = ran.clone();
        assert!(Request::builder().own_stack().spawn(move || counts.up()).is_done());
        assert_eq!(ran.get(), 3);
    });
}

#[test]
fn a_submit_returns_when_the_request_suspends() {
    let _dog = Watchdog::new("");
    let runtime = synchronous();
    runtime.enter(|| {
        let trace = Trace::default();
        let gate = Flag::new();
        let (up, notes) = (gate.clone(), trace.clone());
        let sleeper = spawn(move || {
            notes.note("begun");
            up.wait();
            notes.note("over");
        });
        trace.note("back");
        assert!(!sleeper.is_done());
        gate.raise();
        sleeper.wait().unwrap();
        assert_eq!(trace.so_far(), "begun back over");
    });
}

#[test]
fn nested_submits_run_innermost_first() {
    let _dog = Watchdog::new("");
    let trace = Trace::default();
    synchronous().run(|| {
        trace.note("(1");
        let (second, third) = (trace.clone(), trace.clone());
        let two = spawn(move || {
            second.note("(2");
            let three = spawn(move || {
                third.note("(3");
                yield_now().unwrap();
                third.note("3)");
            });
            second.note("-2-");
            three.wait().unwrap();
            second.note("2)");
        });
        trace.note("-1-");
        two.wait().unwrap();
        trace.note("1)");
    });
    assert_eq!(trace.so_far(), "(1 (2 (3 -2- -1- 3) 2) 1)");
}

#[test]
fn a_deep_recursion_of_submits_completes() {
    fn down(n: u32) -> u32 {
        if n == 0 { 0 } else { spawn(move || down(n - 1)).take().unwrap() + 1 }
    }
    let _dog = Watchdog::new("");
    assert_eq!(synchronous().run(|| down(5_000)), 5_000);
    let runtime = synchronous();
    assert_eq!(runtime.enter(|| down(1_000)), 1_000);
}

#[test]
fn scopes_joins_and_pools_keep_their_promises() {
    fn fib(n: u64) -> u64 {
        if n < 2 {
            return n;
        }
        let (a, b) = join(|| fib(n - 1), || fib(n - 2));
        a + b
    }
    let _dog = Watchdog::new("");
    let body = || {
        assert_eq!(fib(12), 144);
        let mut parts = [0; 8];
        scope(|s| {
            for (n, part) in parts.iter_mut().enumerate() {
                s.spawn(move || {
                    yield_now().unwrap();
                    *part = n;
                });
            }
        });
        assert_eq!(parts, [0, 1, 2, 3, 4, 5, 6, 7]);
        let active = AtomicUsize::new(0);
        let mut pool = RequestPool::new().max_active(3);
        for n in 0..20 {
            let active = &active;
            pool.add(move || {
                assert!(active.fetch_add(1, Ordering::Relaxed) < 3);
                yield_now().unwrap();
                active.fetch_sub(1, Ordering::Relaxed);
                n
            });
        }
        assert_eq!(pool.collect().unwrap().into_iter().sum::<i32>(), 190);
    };
    let runtime = synchronous();
    runtime.enter(body);
    runtime.run(body);
}

/// What is submitted has failed when `submit` returns, which is told as ever: to who waits, else to the hook.
#[test]
fn a_submit_of_what_fails_returns_and_who_waits_is_told() {
    let _dog = Watchdog::new("");
    let unseen = Count::new();
    let counts = unseen.clone();
    let builder = Runtime::builder().workers(0).on_unhandled_failure(move |_| _ = counts.up());
    let runtime = builder.build().unwrap();
    runtime.enter(|| {
        let fails = || Request::<u32>::new(|| std::panic::resume_unwind(Box::new("no")));
        let request = fails();
        assert_eq!(request.submit().state(), State::Failed);
        assert!(matches!(request.wait(), Err(WaitError::Failed(_))));
        drop(request);
        assert_eq!(unseen.get(), 0);
        fails().submit();
        assert_eq!(unseen.get(), 1);
    });
}

#[test]
fn callbacks_run_before_the_submit_returns() {
    let _dog = Watchdog::new("");
    let runtime = synchronous();
    runtime.enter(|| {
        let calls = Count::new();
        let counts = calls.clone();
        let request = Request::new(|| 7);
        request.on_finished(move |seven| {
            assert_eq!(*seven, 7);
            counts.up();
        });
        request.submit();
        assert_eq!(calls.get(), 1);
    });
}

#[test]
fn cancelling_wakes_what_is_suspended() {
    let _dog = Watchdog::new("");
    let runtime = synchronous();
    runtime.enter(|| {
        let free = Flag::new();
        let target = suspended(&free);
        let waits = target.clone();
        let waiter = spawn(move || waits.wait().copied());
        assert_eq!(waiter.state(), State::Suspended);
        waiter.abort(CancelReason::Other(3));
        assert!(matches!(waiter.wait(), Err(WaitError::TargetCancelled(CancelReason::Other(3)))));
        assert!(!target.is_done());
        free.raise();
        target.wait().unwrap();
        let shielded = spawn(|| shield(|| yield_now().is_ok()));
        shielded.abort(CancelReason::Aborted);
        assert!(matches!(shielded.wait(), Err(WaitError::TargetCancelled(_))));
    });
}

#[test]
fn time_outs_go_by_the_clock() {
    let _dog = Watchdog::new("");
    let runtime = synchronous();
    runtime.enter(|| {
        let free = Flag::new();
        let target = suspended(&free);
        assert!(matches!(target.wait_timeout(Duration::from_millis(2)), Err(WaitError::TimedOut)));
        let inner = target.clone();
        let waiter = spawn(move || inner.wait_timeout(Duration::from_millis(2)).copied());
        assert!(matches!(waiter.wait().unwrap(), Err(WaitError::TimedOut)));
        free.raise();
        target.wait().unwrap();
    });
}

// ---- what nothing can end -----------------------------------------------------------------------------------------------

/// What a wait was answered.
type Told = Request<Result<(), WaitError>>;

/// Two requests that wait for each other, the second of which is told.
fn cycle() -> (Told, Told) {
    let (to_a, for_a) = std::sync::mpsc::channel::<Told>();
    let b = Request::builder().name("b").build(move || for_a.recv().unwrap().wait().map(drop));
    let waits = b.clone();
    let go = Flag::new();
    let went = go.clone();
    let a = Request::builder().name("a").spawn(move || {
        went.wait();
        waits.wait().map(drop)
    });
    to_a.send(a.clone()).unwrap();
    b.submit();
    go.raise();
    (a, b)
}

#[test]
fn a_wait_that_nothing_can_end_names_its_cycle() {
    let _dog = Watchdog::new("");
    let body = || {
        let (a, b) = cycle();
        a.wait().unwrap().as_ref().unwrap_or(&());
        b.wait().unwrap().as_ref().unwrap_or(&());
        let told: Vec<_> = [&a, &b].into_iter().filter_map(|one| one.get().unwrap().as_ref().err()).collect();
        let [WaitError::CircularWait(cycle)] = told[..] else { panic!("{told:?}") };
        let mut names: Vec<_> = cycle.names().collect();
        names.dedup();
        assert!(matches!(names[..], ["a", "b", "a"] | ["b", "a", "b"]), "{names:?}");
    };
    let runtime = synchronous();
    runtime.enter(body);
    runtime.run(body);
}

#[test]
fn a_job_that_waits_for_who_waits_for_its_scope_is_told() {
    let _dog = Watchdog::new("");
    let runtime = synchronous();
    let outer = Request::builder().name("outer").on(&runtime).build(|| {
        let me = Request::current().unwrap();
        let told = Mutex::new(None);
        scope(|s| {
            s.spawn(|| {
                yield_now().unwrap();
                *told.lock().unwrap() = me.wait().err();
            });
        });
        told.into_inner().unwrap()
    });
    let Some(WaitError::CircularWait(cycle)) = outer.take().unwrap() else { panic!("it was not told") };
    assert!(cycle.names().any(|name| name == "outer"), "{cycle}");
}

/// Not so a sleep for ever: a thread that has never used the runtime may still cancel it.
#[test]
fn who_waits_for_what_sleeps_for_ever_waits_until_another_thread_cancels_it() {
    let _dog = Watchdog::new("");
    let runtime = synchronous();
    let sleeper = runtime.spawn(|| sleep(Duration::MAX).is_err());
    let (asked, ask) = mpsc::channel();
    std::thread::scope(|threads| {
        let target = sleeper.clone();
        threads.spawn(move || {
            ask.recv().unwrap();
            target.cancel()
        });
        // Now the waiter stands there, or is about to.
        asked.send(()).unwrap();
        let told = runtime.run(|| sleeper.watch());
        assert!(matches!(told, Err(WaitError::TargetCancelled(_))), "{told:?}");
    });
}

/// The thread that keeps the time claims it, and may not call what the user has left with it. The one thread that drives sleeps.
#[test]
fn what_ends_unstarted_at_its_deadline_is_ended_by_a_thread_that_waits_for_it() {
    let _dog = Watchdog::new("");
    let runtime = synchronous();
    let (completer, input) = runtime.enter(|| Request::<u32>::completer("input"));
    let late =
        runtime.enter(|| Request::builder().timeout(Duration::from_millis(20)).then(&input, |input| *input));
    let answer = late.wait();
    assert!(matches!(answer, Err(WaitError::TargetCancelled(CancelReason::Deadline))), "{answer:?}");
    drop(completer);
}

#[test]
fn a_failure_that_is_a_cycle_travels_as_one() {
    let _dog = Watchdog::new("");
    let runtime = synchronous();
    let outcome = runtime.try_run(|| {
        let (a, _b) = cycle();
        Ok(a.wait()?.clone()?)
    });
    if let Err(error) = outcome {
        assert!(error.downcast_ref::<WaitError>().is_some());
    }
    assert_eq!(runtime.run(|| try_spawn(|| Ok(3)).take().unwrap()), 3);
}

// ---- threads ------------------------------------------------------------------------------------------------------------

#[test]
fn two_threads_use_one_runtime_each_with_what_it_submits() {
    let _dog = Watchdog::new("");
    let runtime = synchronous();
    thread::scope(|threads| {
        let both: Vec<_> = (0..2)
            .map(|_| {
                threads.spawn(|| {
                    let here = thread::current().id();
                    for _ in 0..200 {
                        let runs_on = runtime.spawn(move || {
                            let before = thread::current().id();
                            yield_now().unwrap();
                            (before, thread::current().id())
                        });
                        assert_eq!(runs_on.take().unwrap(), (here, here));
                    }
                })
            })
            .collect();
        support::join_all(both);
    });
}

#[test]
fn a_thread_waits_for_what_another_has_suspended() {
    let _dog = Watchdog::new("");
    let runtime = synchronous();
    let free = Flag::new();
    let request = runtime.enter(|| suspended(&free));
    let theirs = request.clone();
    let waiter = thread::spawn(move || theirs.wait().copied());
    free.raise();
    while !request.is_done() {
        yield_now().unwrap();
    }
    waiter.join().unwrap().unwrap();
}

#[test]
fn more_threads_than_seats_take_turns() {
    let _dog = Watchdog::new("");
    let runtime = synchronous();
    let done = Count::new();
    thread::scope(|threads| {
        let all: Vec<_> = (0..80)
            .map(|n| {
                let (runtime, done) = (&runtime, &done);
                threads.spawn(move || {
                    assert_eq!(runtime.run(|| spawn(move || n * 2).take().unwrap()), n * 2);
                    done.up();
                })
            })
            .collect();
        support::join_all(all);
    });
    assert_eq!(done.get(), 80);
}

/// It has one in another runtime, so it drives there while it waits.
#[test]
fn a_thread_that_has_a_seat_elsewhere_takes_one_that_comes_free() {
    let _dog = Watchdog::new("");
    let (runtime, other) = (synchronous(), synchronous());
    other.run(|| ());
    // As many as there are seats.
    let seated = &Barrier::new(33);
    let ran = Flag::new();
    thread::scope(|threads| {
        for _ in 0..32 {
            let (runtime, ran) = (&runtime, &ran);
            threads.spawn(move || {
                runtime.run(|| ());
                seated.wait();
                seated.wait();
                // Until the other thread waits.
                while runtime.dump().threads.is_empty() && !ran.is_up() {
                    thread::yield_now();
                }
            });
        }
        seated.wait();
        let runs = ran.clone();
        let queued = runtime.spawn(move || runs.raise());
        seated.wait();
        // Not by `wait`, which would run it without a seat.
        queued.wait_timeout(Duration::from_secs(50)).unwrap();
    });
}

/// Its time is over before the thread has begun to drive.
#[test]
fn a_timed_wait_lets_what_is_ready_take_a_step_however_short_it_is() {
    let _dog = Watchdog::new("");
    let runtime = synchronous();
    let wait = |inside: bool, request: &Request<()>, timeout: Duration| {
        let wait = || request.wait_timeout(timeout).is_ok();
        if inside { runtime.enter(wait) } else { wait() }
    };
    for inside in [false, true] {
        let event = Arc::new(Event::new());
        let theirs = event.clone();
        let request = runtime.spawn(move || theirs.wait().unwrap());
        event.set();
        assert!(!(0..100).any(|_| wait(inside, &request, Duration::ZERO)), "a time-out of zero only looks");
        assert!((0..3).any(|_| wait(inside, &request, Duration::from_nanos(1))));
    }
}

/// The thread has no seat there, and another thread's request is suspended there.
#[test]
fn what_is_queued_where_the_last_handle_has_gone_is_run_by_a_thread_that_waits() {
    let _dog = Watchdog::new("");
    let runtime = synchronous();
    let queued = Arc::new(runtime.enter(|| Request::new(|| thread::current().id())));
    runtime.run(|| ());
    let (submit, done) = (Flag::new(), Flag::new());
    let (tell, told) = mpsc::channel();
    let other = {
        let (runtime, queued) = (runtime.clone(), queued.clone());
        let (submit, done) = (submit.clone(), done.clone());
        thread::spawn(move || {
            let event = Arc::new(Event::new());
            let theirs = event.clone();
            let suspended = runtime.spawn(move || theirs.wait().unwrap());
            drop(runtime);
            tell.send(()).unwrap();
            support::hold_thread_until(|| submit.is_up());
            // It is queued, and this thread does not drive.
            no_suspend("region", || _ = queued.submit());
            tell.send(()).unwrap();
            support::hold_thread_until(|| done.is_up());
            event.set();
            suspended.wait().unwrap();
        })
    };
    told.recv().unwrap();
    // It gives the seat back, since nothing is left there.
    drop(runtime);
    submit.raise();
    told.recv().unwrap();
    // Not by `wait`, which would run it without a seat.
    assert_eq!(queued.wait_timeout(Duration::from_secs(50)).ok(), Some(&thread::current().id()));
    done.raise();
    other.join().unwrap();
}

// What a thread leaves behind that exits: `tests/process/exits/threads.rs`.

// ---- the end ------------------------------------------------------------------------------------------------------------

#[test]
fn the_last_handle_drives_what_is_suspended_to_its_end() {
    let _dog = Watchdog::new("");
    let ran = Count::new();
    let runtime = synchronous();
    let requests: Vec<_> = (0..10)
        .map(|_| {
            let ran = ran.clone();
            runtime.spawn(move || {
                for _ in 0..3 {
                    yield_now().unwrap();
                }
                ran.up();
            })
        })
        .collect();
    assert_eq!(ran.get(), 0);
    drop(runtime);
    assert_eq!(ran.get(), 10);
    assert!(requests.iter().all(Request::is_done));
}

#[test]
fn the_last_handle_may_go_inside() {
    let _dog = Watchdog::new("");
    let runtime = synchronous();
    let inner = runtime.clone();
    let hold = Flag::new();
    let free = hold.clone();
    let request = runtime.spawn(move || {
        free.wait();
        drop(inner);
        spawn(|| 7).take().unwrap()
    });
    drop(runtime);
    hold.raise();
    assert_eq!(request.take().unwrap(), 7);
}

/// No code waits for the rest then: it goes on when the thread next waits, for whatever that is.
#[test]
fn what_is_left_when_the_last_handle_goes_inside_is_run_in_the_next_waits_of_the_thread() {
    struct Value(Count);
    impl Drop for Value {
        fn drop(&mut self) {
            self.0.up();
        }
    }
    let seeded = (0..10).map(|seed| Runtime::builder().seeded(seed).build().expect("nothing to be refused"));
    for runtime in std::iter::once(synchronous()).chain(seeded) {
        let _dog = Watchdog::new("");
        let (dropped, go) = (Count::new(), Arc::new(Event::new()));
        let last = Arc::new(Mutex::new(None::<Runtime>));
        let request = runtime.spawn({
            let (dropped, go, last) = (dropped.clone(), go.clone(), last.clone());
            move || {
                let value = || Value(dropped.clone());
                let (suspended, sleeps, yields, unstarted) = (value(), value(), value(), value());
                drop(spawn(move || (go.wait(), suspended).1));
                drop(spawn(move || (sleep(Duration::from_millis(1)), sleeps).1));
                drop(spawn(move || (yield_now(), yields).1));
                drop(last.lock().unwrap().take());
                drop(spawn(move || unstarted));
            }
        });
        *last.lock().unwrap() = Some(runtime);
        request.wait().unwrap();
        go.set();
        while dropped.get() < 4 {
            let _ = Event::new().wait_timeout(Duration::from_millis(1));
        }
    }
}

#[test]
fn a_wait_returns_though_something_is_always_ready_where_the_last_handle_has_gone() {
    let seeded = (0..5).map(|seed| Runtime::builder().seeded(seed).build().expect("nothing to be refused"));
    for runtime in std::iter::once(synchronous()).chain(seeded) {
        let _dog = Watchdog::new("");
        let end = Flag::new();
        let ends = end.clone();
        let last = Arc::new(Mutex::new(None::<Runtime>));
        let theirs = last.clone();
        let request = runtime.spawn(move || {
            yield_now().unwrap();
            drop(spawn(move || while !ends.is_up() && yield_now().is_ok() {}));
            drop(theirs.lock().unwrap().take());
        });
        *last.lock().unwrap() = Some(runtime);
        request.wait().unwrap();
        end.raise();
    }
}

#[test]
fn what_must_not_suspend_is_not_left_by_a_submit() {
    let _dog = Watchdog::new("");
    synchronous().run(|| {
        let ran = Count::new();
        let counts = ran.clone();
        let request = no_suspend("region", || {
            let request = spawn(move || counts.up());
            assert_eq!(ran.get(), 0);
            request
        });
        request.wait().unwrap();
        assert_eq!(ran.get(), 1);
    });
}

/// While the thread has nothing to run it gives back stacks, every 2 ms. That must not end its own wait: the scope would return over its job.
#[test]
fn a_wait_of_the_driving_thread_outlasts_the_release_of_spare_stacks() {
    let _dog = Watchdog::new("");
    let runtime = synchronous();
    runtime.enter(|| {
        let go = Arc::new(Event::new());
        let wait_for = |go: &Arc<Event>| {
            let go = go.clone();
            Request::builder().own_stack().spawn(move || go.wait().unwrap())
        };
        let peak: Vec<_> = (0..2_000).map(|_| wait_for(&go)).collect();
        go.set();
        peak.iter().for_each(|one| assert!(one.wait().is_ok()));
        let (last, is_set) = (Event::new(), Flag::new());
        thread::scope(|threads| {
            threads.spawn(|| {
                // The time is what this is about.
                let began = Instant::now();
                support::hold_thread_until(|| began.elapsed() > Duration::from_millis(50));
                is_set.raise();
                last.set();
            });
            scope(|s| _ = s.spawn(|| last.wait().unwrap()));
            assert!(is_set.is_up(), "the scope has returned over its job");
        });
    });
}
