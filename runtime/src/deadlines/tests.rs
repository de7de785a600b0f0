//! The promises of the module head, on clocks of both kinds, with contexts of all three: a probe, which only notes that it
//! was woken; foreign threads; requests.

use std::cell::RefCell;
use std::ptr;
use std::sync::mpsc;
use std::thread;

use forebear_context::clock::{ManualClock, MonotonicClock};
use forebear_context::context::{ForeignContext, Reason, Table, with_foreign};
use forebear_context::lineage::NO_KEY;
use forebear_context::shim::atomic::AtomicU64;

use super::*;
use crate::alarms::Sleep;
use crate::attention::{LIMITS, OLDER};
use crate::{Request, Runtime, foreign, spawn};

const HOUR: Duration = Duration::from_secs(3600);
const TICK: Duration = Duration::from_millis(1);

fn on(clock: impl Clock + 'static) -> Deadlines {
    Deadlines::new(Arc::new(clock), "test", 2, false)
}

/// Waits for other threads. What never comes is a failure and not a hang.
#[track_caller]
fn eventually(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "it never came to that");
        thread::yield_now();
    }
}

/// A context that nobody is on. Waking it writes its name down.
#[repr(C)]
struct Probe {
    context: Context,
    name: u32,
    log: Arc<Mutex<Vec<u32>>>,
    /// Nobody may touch it any more.
    gone: AtomicBool,
}

const GONE: u32 = u32::MAX;

static PROBE: Table = Table {
    prepare: |_, _| unreachable!("nobody is on a probe"),
    finish: |_| {},
    unpark: probed,
    in_request: |_| false,
    urgency: |_| NO_KEY,
    word: |_| ptr::null(),
    name: |_, with| with("probe"),
    ..ForeignContext::TABLE
};

unsafe fn probed(context: NonNull<Context>, ticket: Ticket, cause: Cause) -> bool {
    // SAFETY: the first field of a probe; the log keeps its probes.
    let this = unsafe { context.cast::<Probe>().as_ref() };
    let won = this.context.settle(ticket, cause);
    // So that whoever does not wait for this is seen not to.
    thread::yield_now();
    this.log.lock().unwrap().push(if this.gone.load(Ordering::Relaxed) { GONE } else { this.name });
    won
}

/// What was written down, and the probes, which stay as long. To be made before the deadlines, hence dropped after them.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "they stay where they are when it grows")]
struct Log(Arc<Mutex<Vec<u32>>>, RefCell<Vec<Box<Probe>>>);

impl Log {
    fn probe(&self, name: u32) -> &Probe {
        let gone = AtomicBool::new(false);
        let made = Box::new(Probe { context: Context::new(&PROBE), name, log: self.0.clone(), gone });
        let at = ptr::from_ref(&*made);
        self.1.borrow_mut().push(made);
        // SAFETY: boxed, and dropped with `self` only.
        unsafe { &*at }
    }

    fn read(&self) -> Vec<u32> {
        self.0.lock().unwrap().clone()
    }
}

impl Probe {
    fn arm(&self, deadlines: &Deadlines, at: Instant) -> Alarm {
        let ticket = self.context.begin(Reason::None, ptr::null_mut());
        // SAFETY: the log keeps its probes until the deadlines are over.
        unsafe { deadlines.arm(at, NonNull::from(self).cast(), ticket) }
    }

    fn timed_out(&self) -> bool {
        !self.context.is_waiting() && self.context.cause() == Cause::TimedOut
    }
}

/// The caller waits until `at`; its ticket goes to `give` first.
fn wait_until(
    deadlines: &Deadlines,
    at: Option<Instant>,
    give: impl FnOnce(NonNull<Context>, Ticket),
) -> Cause {
    let strand = foreign::strand().unwrap();
    if let Some(worker) = strand.worker() {
        worker.reserve_carrier().unwrap();
    }
    let context = strand.context();
    let ticket = context.begin(Reason::None, ptr::null_mut());
    give(NonNull::from(context), ticket);
    // SAFETY: on the context's own stack, after `begin`.
    unsafe { park_until(deadlines, None, context, ticket, at) }
}

fn to_nobody(_: NonNull<Context>, _: Ticket) {}

fn has_thread(deadlines: &Deadlines) -> bool {
    deadlines.0.lock_thread().handle.is_some()
}

/// Waits for more and more ticks: on a busy machine a time may be over before it is armed, and that takes no thread.
#[track_caller]
fn until_it_has_a_thread(deadlines: &Deadlines, wait: impl Fn(u32)) {
    let waited = (0..10).find(|power| {
        wait(2 << power);
        has_thread(deadlines)
    });
    assert!(waited.is_some(), "no thread was started");
}

fn sleeps(deadlines: &Deadlines) -> Sleep {
    deadlines.0.shards.sleep()
}

fn until(deadlines: &Deadlines, at: Instant) -> Sleep {
    Sleep::Until(deadlines.0.shards.nanos(at))
}

fn armed(deadlines: &Deadlines) -> usize {
    deadlines.0.shards.armed()
}

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
    assert!(deadlines.disarm(first), "taken back in time");
    clock.advance(HOUR);
    assert_eq!(log.read(), [2]);
    assert!(!deadlines.disarm(second), "it had fired");
}

#[test]
fn a_deadline_that_is_past_fires_before_arm_returns() {
    let log = Log::default();
    for deadlines in [on(ManualClock::new()), on(MonotonicClock)] {
        let probe = log.probe(0);
        let armed = probe.arm(&deadlines, deadlines.now());
        assert!(probe.timed_out());
        assert!(!deadlines.disarm(armed) && !has_thread(&deadlines));
    }
}

#[test]
fn a_fired_deadline_of_an_earlier_wait_does_not_end_the_next() {
    let clock = ManualClock::new();
    let (log, deadlines) = (Log::default(), on(clock.clone()));
    let probe = log.probe(0);
    let _armed = probe.arm(&deadlines, clock.now() + TICK);
    let next = probe.context.begin(Reason::None, ptr::null_mut());
    clock.advance(TICK);
    assert_eq!(log.read(), [0], "it fired");
    assert!(probe.context.is_waiting(), "and was refused");
    probe.context.abandon(next);
}

#[test]
fn an_earlier_deadline_wakes_the_timer_thread() {
    let (log, deadlines) = (Log::default(), on(MonotonicClock));
    let (late, soon) = (log.probe(1), log.probe(2));
    let at = deadlines.now() + HOUR;
    let _late = late.arm(&deadlines, at);
    eventually(|| sleeps(&deadlines) == until(&deadlines, at));
    let _soon = soon.arm(&deadlines, deadlines.now() + TICK);
    eventually(|| soon.timed_out());
    eventually(|| sleeps(&deadlines) == until(&deadlines, at));
    assert!(late.context.is_waiting());
    deadlines.close();
}

#[test]
fn the_timer_thread_sleeps_on_when_nothing_is_armed_and_wakes_for_the_next() {
    let (log, deadlines) = (Log::default(), on(MonotonicClock));
    for name in 0..3 {
        let probe = log.probe(name);
        let armed = probe.arm(&deadlines, deadlines.now() + TICK);
        eventually(|| probe.timed_out());
        eventually(|| sleeps(&deadlines) == Sleep::UntilTold);
        deadlines.disarm(armed);
    }
}

#[test]
fn a_hundred_thousand_armed_and_disarmed_leave_nothing() {
    for (deadlines, handles) in [(on(MonotonicClock), 2), (on(ManualClock::new()), 1)] {
        let log = Log::default();
        let (probe, start) = (log.probe(0), deadlines.now() + HOUR);
        let ticket = probe.context.begin(Reason::None, ptr::null_mut());
        let all: Vec<Alarm> = (0..100_000_u64)
            .map(|n| {
                let at = start + Duration::from_nanos(n.wrapping_mul(0x9e37_79b9) % 1_000_000);
                // SAFETY: the log keeps it.
                unsafe { deadlines.arm(at, NonNull::from(probe).cast(), ticket) }
            })
            .collect();
        assert_eq!(armed(&deadlines), 100_000);
        assert!(all.into_iter().all(|armed| deadlines.disarm(armed)));
        assert_eq!(armed(&deadlines), 0);
        assert!(log.read().is_empty());
        assert_eq!(Arc::strong_count(&deadlines.0), handles, "one thread at most");
    }
}

/// A clock that jumps, and does so once right after somebody has looked at it.
#[derive(Debug)]
struct JumpsAfterALook(ManualClock, Mutex<Option<Duration>>);

impl Clock for JumpsAfterALook {
    fn now(&self) -> Instant {
        let seen = self.0.now();
        let jump = self.1.lock().unwrap().take();
        if let Some(by) = jump {
            self.0.advance(by);
        }
        seen
    }

    fn subscribe(&self, callback: Box<dyn Fn(Instant) + Send + Sync>) -> Option<Subscription> {
        self.0.subscribe(callback)
    }
}

#[test]
fn a_jump_while_a_deadline_is_armed_is_not_missed() {
    let clock = ManualClock::new();
    let (log, deadlines) = (Log::default(), on(JumpsAfterALook(clock.clone(), Mutex::new(Some(TICK)))));
    let probe = log.probe(0);
    let armed = probe.arm(&deadlines, clock.now() + TICK);
    assert!(probe.timed_out());
    assert!(!deadlines.disarm(armed));
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
            deadlines.disarm(armed);
            probe.gone.store(true, Ordering::Relaxed);
        }
        over.store(true, Ordering::Relaxed);
    });
    let log = log.read();
    assert!(!log.is_empty(), "some were late");
    assert!(!log.contains(&GONE));
}

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
    let deadlines = on(MonotonicClock);
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
    let (clock, deadlines) = (ManualClock::new(), on(MonotonicClock));
    let manual = on(clock.clone());
    thread::scope(|s| {
        s.spawn(|| {
            with_foreign(|context| {
                let ticket = context.begin(Reason::None, ptr::null_mut());
                let at = deadlines.now() + TICK;
                // SAFETY: on the thread's own context, after `begin`.
                let cause = unsafe { park_until(&deadlines, None, context, ticket, Some(at)) };
                assert_eq!(cause, Cause::TimedOut);
                let ticket = context.begin(Reason::None, ptr::null_mut());
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
                // SAFETY: a carrier's context stays.
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
                // SAFETY: a carrier's context stays.
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

#[test]
fn the_timer_thread_ends_with_its_runtime() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let shared = runtime.shared().clone();
    until_it_has_a_thread(&shared.deadlines, |ticks| {
        runtime.run(|| {
            let at = shared.deadlines.after(TICK * ticks);
            assert_eq!(wait_until(&shared.deadlines, at, to_nobody), Cause::TimedOut);
        });
    });
    assert_eq!(Arc::strong_count(&shared.deadlines.0), 2, "ours and the thread's");
    drop(runtime);
    assert_eq!(Arc::strong_count(&shared.deadlines.0), 1);
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
    assert!(probe.timed_out() && !deadlines.disarm(armed), "and afterwards at once");
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
        let ticket = probe.context.begin(Reason::Sleep, ptr::null_mut());
        // SAFETY: the log keeps it.
        (probe, unsafe { deadlines.arm(at, NonNull::from(probe).cast(), ticket) })
    };
    let (armed, _) = sleeper(0);
    deadlines.close();
    assert!(!armed.context.is_waiting() && armed.context.cause() == Cause::Cancelled);
    let (later, _) = sleeper(1);
    assert!(!later.context.is_waiting() && later.context.cause() == Cause::Cancelled);
}

#[test]
fn without_a_timer_thread_idle_workers_keep_the_time() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let shared = runtime.shared().clone();
    shared.deadlines.0.refuse_thread.store(true, Ordering::Relaxed);
    let wait = |ticks: u32| {
        let (shared, at) = (shared.clone(), shared.deadlines.now() + TICK * ticks);
        // Not on the stack of this thread, which keeps its own time.
        Request::builder()
            .on(&runtime)
            .own_stack()
            .spawn(move || (wait_until(&shared.deadlines, Some(at), to_nobody), at <= shared.deadlines.now()))
    };
    let waiters: Vec<_> = [20, 5, 10].map(wait).into();
    assert!(waiters.into_iter().all(|waiter| waiter.take().unwrap() == (Cause::TimedOut, true)));
    assert!(!has_thread(&shared.deadlines));
    shared.deadlines.0.refuse_thread.store(false, Ordering::Relaxed);
    until_it_has_a_thread(&shared.deadlines, |ticks| {
        assert_eq!(wait(ticks).take().unwrap(), (Cause::TimedOut, true));
    });
    assert!(!shared.deadlines.0.unattended.load(Ordering::Relaxed));
}

#[test]
fn code_without_a_scheduling_point_is_told_that_an_older_sleeper_is_due() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let shared = runtime.shared().clone();
    let told = |ticks| {
        let at = shared.deadlines.now() + TICK * ticks;
        let here = shared.clone();
        let sleeper = runtime.spawn(move || wait_until(&here.deadlines, Some(at), to_nobody));
        eventually(|| armed(&shared.deadlines) == 1 || sleeper.is_done());
        let here = shared.clone();
        // Not on the stack of this thread.
        let busy = Request::builder().on(&runtime).own_stack().spawn(move || {
            // Held up until then, it proves nothing.
            (here.deadlines.now() < at).then(|| {
                eventually(|| here.workers()[0].post.attention.get() & OLDER != 0);
                here.deadlines.now() >= at
            })
        });
        let told = busy.take().unwrap();
        assert_eq!(sleeper.take().unwrap(), Cause::TimedOut);
        told
    };
    assert_eq!([20, 200, 2000].into_iter().find_map(told), Some(true));
}

#[test]
fn a_request_entry_holds_a_link_until_it_fires_is_taken_back_or_the_runtime_ends() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().workers(1).clock(clock.clone()).build().unwrap();
    let shared = runtime.shared().clone();
    let request = runtime.enter(|| Request::new(|| ()));
    let links = || request.header().word().load().links();
    let before = links();
    assert!(!shared.deadlines.has_requests());
    let arm = |after: Duration| {
        request.header().word().add_link();
        // SAFETY: with that link.
        unsafe { shared.deadlines.arm_request(clock.now() + after, NonNull::from(request.header()), || ()) }
    };
    let fired = arm(TICK);
    assert_eq!(links(), before + 1);
    assert!(shared.deadlines.has_requests());
    clock.advance(TICK);
    assert_eq!(links(), before);
    assert!(!shared.deadlines.disarm_request(fired) && !shared.deadlines.has_requests());
    let _past = arm(Duration::ZERO);
    assert_eq!(links(), before);
    let armed = arm(TICK);
    assert!(shared.deadlines.disarm_request(armed) && !shared.deadlines.has_requests());
    assert_eq!(links(), before + 1, "it is ours again");
    assert!(!request.header().word().release_link());
    let _armed = arm(TICK);
    drop(runtime);
    assert_eq!(links(), before);
    assert!(!shared.deadlines.has_requests());
}

/// A link, on its way to another thread.
struct Link(NonNull<Header>);

// SAFETY: a link may be given up by any thread (T4).
unsafe impl Send for Link {}

impl Link {
    fn let_go(self) {
        // SAFETY: the link's.
        unsafe { let_go(self.0) }
    }
}

/// Tells where it is dropped.
struct Tells(mpsc::Sender<thread::ThreadId>);

impl Drop for Tells {
    fn drop(&mut self) {
        let _ = self.0.send(thread::current().id());
    }
}

#[test]
fn what_a_request_has_failed_with_is_dropped_by_a_worker_if_the_timers_link_is_the_last() {
    let (tells, dropped) = mpsc::channel();
    let runtime = Runtime::builder().workers(1).on_unseen_failure(|_| ()).build().unwrap();
    let worker = runtime.run(|| thread::current().id());
    let failing: Request<()> =
        Request::builder().on(&runtime).own_stack().build(move || std::panic::panic_any(Tells(tells)));
    let link = Link(NonNull::from(failing.header()));
    failing.header().word().add_link();
    assert!(failing.wait().is_err());
    drop(failing);
    // The loop may still be on its way out of the request.
    runtime.run(|| ());
    assert!(dropped.try_recv().is_err(), "a link keeps it");
    // As the timer thread does, which is no thread of the runtime's.
    thread::spawn(move || link.let_go()).join().unwrap();
    assert_eq!(dropped.recv_timeout(Duration::from_secs(60)), Ok(worker));
}

#[test]
fn waits_look_for_deadlines_while_there_are_some_and_no_longer() {
    let runtime = Runtime::builder().workers(2).build().unwrap();
    let shared = runtime.shared().clone();
    let look =
        || shared.workers().iter().map(|worker| worker.post.attention.get() & LIMITS).collect::<Vec<_>>();
    assert_eq!(look(), [0, 0]);
    let limited = runtime.enter(|| Request::builder().timeout(HOUR).build(|| ()));
    assert_eq!(look(), [LIMITS, LIMITS]);
    limited.wait().unwrap();
    // The next wait on each finds none left.
    let wait = || spawn(|| spawn(|| ()).take().unwrap()).take().unwrap();
    eventually(|| {
        runtime.run(wait);
        look().contains(&0)
    });
}

#[test]
fn without_a_thread_a_worker_that_sleeps_is_woken_to_keep_the_time_of_a_request() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let shared = runtime.shared().clone();
    shared.deadlines.0.refuse_thread.store(true, Ordering::Relaxed);
    for _ in 0..5 {
        let limited = runtime.enter(|| Request::builder().timeout(TICK * 5).build(|| ()));
        eventually(|| limited.is_done());
    }
    assert!(!has_thread(&shared.deadlines));
}
