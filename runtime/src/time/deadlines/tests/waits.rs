//! Waits of foreign threads and of requests.

use super::*;
use crate::shared::Shared;

#[test]
fn a_foreign_thread_waits_by_a_clock_that_is_moved() {
    let clock = ManualClock::new();
    let deadlines = on(clock.clone());
    let at = clock.now() + HOUR;
    thread::scope(|s| {
        let waiter = s.spawn(|| wait_until(&deadlines, Some(at), to_nobody));
        eventually(|| deadlines.next() == Some(at));
        clock.advance(HOUR - TICK);
        assert!(!waiter.is_finished());
        clock.advance(TICK);
        assert_eq!(waiter.join().unwrap(), Cause::TimedOut);
    });
    assert_eq!(armed(&deadlines), 0);
}

#[test]
fn a_foreign_thread_keeps_its_own_time_on_a_clock_that_moves_by_itself() {
    let deadlines = on_its_own();
    let at = deadlines.now() + TICK;
    assert_eq!(wait_until(&deadlines, Some(at), to_nobody), Cause::TimedOut);
    assert!(deadlines.now() >= at, "not earlier");
    assert!(!has_thread(&deadlines));
    let woken = wait_until(&deadlines, Some(at + HOUR), |context, ticket| {
        // SAFETY: it is this thread's own.
        assert!(unsafe { unpark(context, ticket, Cause::Woken) });
    });
    assert_eq!(woken, Cause::Woken);
}

#[test]
fn a_context_that_no_runtime_knows_is_timed_out_too() {
    let (clock, deadlines) = (ManualClock::new(), on_its_own());
    let manual = on(clock.clone());
    thread::scope(|s| {
        s.spawn(|| {
            with_foreign(|context| {
                // SAFETY: C2: this is the thread's own context; C4: for nothing that is followed, and it is parked below.
                let ticket = unsafe { context.begin(Reason::None, ptr::null_mut()) };
                let at = deadlines.now() + TICK;
                // SAFETY: on the thread's own context, after `begin`.
                let cause = unsafe { park_until(&deadlines, None, context, ticket, Some(at)) };
                assert_eq!(cause, Cause::TimedOut);
                // SAFETY: as above.
                let ticket = unsafe { context.begin(Reason::None, ptr::null_mut()) };
                let at = clock.now() + TICK;
                // SAFETY: as above.
                assert_eq!(unsafe { park_until(&manual, None, context, ticket, Some(at)) }, Cause::TimedOut);
            });
        });
        eventually(|| manual.next().is_some());
        clock.advance(TICK);
    });
}

#[test]
fn a_request_waits_by_the_clock_its_runtime_was_built_with() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().workers(1).clock(clock.clone()).build().unwrap();
    let shared = runtime.shared().clone();
    let at = clock.now() + HOUR;
    let waiters: Vec<_> = (0..100)
        .map(|_| {
            let shared = shared.clone();
            runtime.spawn(move || wait_until(&shared.deadlines, Some(at), to_nobody))
        })
        .collect();
    eventually(|| armed(&shared.deadlines) == 100);
    assert!(waiters.iter().all(|waiter| !waiter.is_done()));
    clock.advance(HOUR);
    assert!(waiters.into_iter().all(|waiter| waiter.take().unwrap() == Cause::TimedOut));
    assert_eq!(
        runtime.run(move || wait_until(&shared.deadlines, Some(at), to_nobody)),
        Cause::TimedOut,
        "past"
    );
}

#[test]
fn a_request_woken_in_time_leaves_nothing_armed() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let shared = runtime.shared().clone();
    let cause = runtime.run(|| {
        let at = shared.deadlines.after(HOUR);
        wait_until(&shared.deadlines, at, |context, ticket| {
            let (context, ticket) = (context.as_ptr().expose_provenance(), ticket);
            spawn(move || {
                let context = NonNull::new(ptr::with_exposed_provenance_mut(context)).unwrap();
                // SAFETY: a coroutine's context stays.
                unsafe { unpark(context, ticket, Cause::Woken) }
            });
        })
    });
    assert_eq!(cause, Cause::Woken);
    assert_eq!(armed(&shared.deadlines), 0);
}

#[test]
fn a_wait_that_its_waker_and_the_timer_end_at_once_ends_once() {
    const ROUNDS: u64 = 5_000;
    let clock = ManualClock::new();
    let runtime = Runtime::builder().workers(1).clock(clock.clone()).build().unwrap();
    let shared = runtime.shared().clone();
    let round = AtomicU64::new(0);
    let ticket_of_round = Mutex::new(None);
    let (moved, waked) = (AtomicU64::new(0), AtomicU64::new(0));
    let wakes_that_won = AtomicU64::new(0);
    let spin = |times: u64| (0..times % 512).for_each(|_| std::hint::spin_loop());
    let mut woken = 0;
    thread::scope(|s| {
        s.spawn(|| {
            for n in 1..=ROUNDS {
                eventually(|| round.load(Ordering::Acquire) == n);
                spin(n * 7);
                clock.advance(TICK);
                moved.store(n, Ordering::Release);
            }
        });
        s.spawn(|| {
            for n in 1..=ROUNDS {
                eventually(|| round.load(Ordering::Acquire) == n);
                spin(n * 11);
                let (context, ticket) = ticket_of_round.lock().unwrap().take().unwrap();
                let context = NonNull::new(ptr::with_exposed_provenance_mut(context)).unwrap();
                // SAFETY: a coroutine's context stays.
                let won = unsafe { unpark(context, ticket, Cause::Woken) };
                wakes_that_won.fetch_add(u64::from(won), Ordering::Relaxed);
                waked.store(n, Ordering::Release);
            }
        });
        runtime.run(|| {
            for n in 1..=ROUNDS {
                let at = clock.now() + TICK;
                let cause = wait_until(&shared.deadlines, Some(at), |context, ticket| {
                    *ticket_of_round.lock().unwrap() = Some((context.as_ptr().expose_provenance(), ticket));
                    round.store(n, Ordering::Release);
                });
                woken += u64::from(cause == Cause::Woken);
                eventually(|| moved.load(Ordering::Acquire) == n && waked.load(Ordering::Acquire) == n);
                assert_eq!(wakes_that_won.load(Ordering::Relaxed), woken, "round {n}: {cause:?}");
            }
        });
    });
    assert_eq!(armed(&shared.deadlines), 0);
    println!("{woken} of {ROUNDS} woken");
}

/// Wakes itself, on the stack it is called on.
fn wakes_itself(context: NonNull<Context>, ticket: Ticket) {
    // SAFETY: it is this stack's own.
    assert!(unsafe { unpark(context, ticket, Cause::Woken) });
}

/// A runtime with one worker, and its record.
fn one_worker() -> (Runtime, Arc<Shared>) {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let shared = runtime.shared().clone();
    (runtime, shared)
}

#[test]
fn the_alarm_of_a_request_stays_for_its_next_wait_and_ends_no_wait_but_the_one_it_was_armed_for() {
    let (runtime, shared) = one_worker();
    let here = shared.clone();
    let request = Request::builder().on(&runtime).own_stack().build(move || {
        let deadlines = &here.deadlines;
        let wait = |after: Duration, give: fn(NonNull<Context>, Ticket)| {
            let at = deadlines.now() + after;
            (at, wait_until(deadlines, Some(at), give))
        };
        let rests = || (deadlines.record().shards().armed(), deadlines.record().shards().resting(0));
        for round in 1..50 {
            // Later: it is not filed anew. Sooner: it is.
            for after in [TICK * 2, HOUR, TICK * 3, HOUR * 2] {
                let (at, cause) = wait(after, wakes_itself);
                assert_eq!(cause, Cause::Woken);
                // This thread may not have run for longer than that: then it came up and is gone.
                assert!(rests() == (0, 1) || rests() == (0, 0) && deadlines.now() >= at, "{:?}", rests());
            }
            // It comes up while this lasts, and is filed anew; and is taken back by who was woken.
            if round % 8 == 0 {
                let (at, there) = (deadlines.now() + HOUR, here.clone());
                let (gives, given) = mpsc::channel::<(usize, Ticket)>();
                let waker = thread::spawn(move || {
                    let (context, ticket) = given.recv().unwrap();
                    eventually(|| there.deadlines.next() == Some(at));
                    let context = NonNull::new(ptr::with_exposed_provenance_mut(context)).unwrap();
                    // SAFETY: a coroutine's, whose memory stays.
                    unsafe { unpark(context, ticket, Cause::Woken) }
                });
                let cause = wait_until(deadlines, Some(at), |context, ticket| {
                    gives.send((context.as_ptr().expose_provenance(), ticket)).unwrap();
                });
                assert_eq!((cause, waker.join().unwrap()), (Cause::Woken, true));
                assert_eq!(rests(), (0, 1));
            }
            let (at, cause) = wait(TICK * (round % 7), to_nobody);
            assert_eq!((cause, deadlines.now() >= at), (Cause::TimedOut, true));
            assert_eq!(deadlines.record().shards().armed(), 0);
        }
    });
    request.take().unwrap();
}

#[test]
fn an_alarm_goes_with_the_stack_it_stands_on() {
    let (runtime, shared) = one_worker();
    let sleepers: Vec<_> = (0..3_000)
        .map(|_| {
            let shared = shared.clone();
            runtime.spawn(move || {
                wait_until(&shared.deadlines, Some(shared.deadlines.now() + HOUR), |context, ticket| {
                    WAITING.lock().unwrap().push((context.as_ptr().expose_provenance(), ticket));
                })
            })
        })
        .collect();
    eventually(|| armed(&shared.deadlines) == 3_000);
    for (context, ticket) in WAITING.lock().unwrap().drain(..) {
        let context = NonNull::new(ptr::with_exposed_provenance_mut(context)).unwrap();
        // SAFETY: a coroutine's, whose memory stays.
        assert!(unsafe { unpark(context, ticket, Cause::Woken) });
    }
    assert!(sleepers.into_iter().all(|sleeper| sleeper.take().unwrap() == Cause::Woken));
    // Only so many stacks are kept.
    let rest = shared.deadlines.record().shards().resting(0);
    assert!((1..=1_100).contains(&rest), "{rest} rest");
    assert_eq!(armed(&shared.deadlines), 0);
    drop(runtime);
    assert_eq!(shared.deadlines.record().shards().resting(0), 0);
}

static WAITING: Mutex<Vec<(usize, Ticket)>> = Mutex::new(Vec::new());

#[test]
fn a_request_waits_by_the_clock_of_another_runtime() {
    let ((here, _), (_there, other)) = (one_worker(), one_worker());
    let own = here.shared().clone();
    let request = Request::builder().on(&here).own_stack().build(move || {
        for _ in 0..20 {
            for deadlines in [&other.deadlines, &own.deadlines] {
                assert_eq!(wait_until(deadlines, Some(deadlines.now() + HOUR), wakes_itself), Cause::Woken);
                let at = deadlines.now() + TICK / 4;
                assert_eq!(wait_until(deadlines, Some(at), to_nobody), Cause::TimedOut);
                assert!(deadlines.now() >= at, "not earlier");
            }
        }
        assert_eq!(armed(&other.deadlines), 0);
    });
    request.take().unwrap();
}
