//! Every operation that waits, in one table: a cancel ends each of them at once. And nothing public waits that is not in it.

#![allow(clippy::unit_arg, clippy::type_complexity, reason = "a table of ways to wait is read as a column")]

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "suspending/sources.rs"]
mod sources;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use cancelling::{Gate, asleep, ends_cancelled};
use forebear::channel::{Receiver, RecvTimeoutError, SendTimeoutError, Sender, bounded, oneshot, watch};
use forebear::sync::{
    Barrier, Condvar, Event, Latch, LazyLock, Mutex, Once, OnceLock, RawMutex, ReentrantMutex, RwLock,
    RwLockUpgradableReadGuard, Semaphore,
};
use forebear::time::{after, interval, now, sleep, sleep_until, timeout, try_timeout};
use forebear::{
    CancelReason, Cancellation, Error, OrUnwind, Request, RequestPool, RequestSet, Runtime, State,
    TimeoutError, WaitError, block_on, catch, check_cancelled, is_cancelled, join, scope, select, spawn,
    try_join, try_scope, try_spawn, wait_all, wait_first, yield_now,
};
use support::order::root;
use support::{Come, Count, Joined, on_each, until};

/// Waits by one operation for a gate that stays shut, until it is cancelled: with the error that says so.
type Way = fn(&Request<()>) -> Result<(), Error>;

/// What waits for something, suspended: by the name that the sources give it.
const WAITING: &[(&str, Way)] = &[
    ("Request::wait", |gate| Ok(*gate.wait()?)),
    ("Request::take", |gate| Ok(gate.clone().take()?)),
    ("Request::wait_timeout", |gate| Ok(*gate.wait_timeout(Duration::MAX)?)),
    ("Request::watch", |gate| Ok(*gate.watch()?)),
    ("Request::force", |gate| catch(|| *gate.force())),
    ("AnyRequest::wait", |gate| Ok(gate.to_untyped().wait()?)),
    ("AnyRequest::wait_timeout", |gate| Ok(gate.to_untyped().wait_timeout(Duration::MAX)?)),
    ("AnyRequest::watch", |gate| Ok(gate.to_untyped().watch()?)),
    ("RequestSet::wait_next", |gate| Ok(set(gate).wait_next().map(drop)?)),
    ("RequestSet::wait_next_timeout", |gate| Ok(set(gate).wait_next_timeout(Duration::MAX).map(drop)?)),
    ("wait_first", |gate| Ok(wait_first([gate]).map(drop)?)),
    ("wait_all", |gate| Ok(wait_all([gate]).map(drop)?)),
    // These wait for what they have begun: that is told, and they answer when it has ended.
    ("scope", |gate| catch(|| scope(|s| drop(s.spawn(|| gate.wait().copied()))))),
    ("try_scope", |gate| {
        Ok(try_scope(|s| {
            s.spawn(|| gate.wait().copied());
            Ok(())
        })?)
    }),
    ("join", |gate| {
        let (first, second) = join(|| gate.wait().copied(), || gate.wait().copied());
        first.and(second).map_err(Error::from)
    }),
    ("try_join", |gate| Ok(try_join(|| Ok(*gate.wait()?), || Ok(*gate.wait()?)).map(drop)?)),
    ("RequestPool::wait", |gate| Ok(pool(gate).wait()?)),
    ("RequestPool::wait_each", |gate| Ok(pool(gate).wait_each(|_, _| unreachable!("the gate is shut"))?)),
    ("RequestPool::try_wait_each", |gate| Ok(pool(gate).try_wait_each(|_, _| Ok(()))?)),
    ("RequestPool::collect", |gate| Ok(pool(gate).collect().map(drop)?)),
    ("timeout", |gate| Ok(timeout(LONG, || gate.wait().copied()).and_then(|told| told)?)),
    ("try_timeout", |gate| Ok(try_timeout(LONG, || Ok(*gate.wait()?))?)),
    ("Runtime::run", |gate| catch(|| Runtime::current().run(|| gate.wait().copied())).map(drop)),
    ("Runtime::try_run", |gate| Ok(Runtime::current().try_run(|| Ok(*gate.wait()?))?)),
];

/// The gate and a clone, to be waited for as they end.
fn set(gate: &Request<()>) -> RequestSet<()> {
    [gate.clone(), gate.clone()].into_iter().collect()
}

/// More members than may be active at once, each waiting for the gate.
fn pool(gate: &Request<()>) -> RequestPool<'_, Result<(), WaitError>> {
    let mut pool = RequestPool::new().max_active(2);
    (0..4).for_each(|_| _ = pool.add(|| gate.wait().copied()));
    pool
}

/// What waits in a queue of its own for something that does not happen.
const QUEUEING: &[(&str, fn() -> Result<(), Error>)] = &[
    ("Mutex::lock_or_cancelled", || Ok(HELD.lock_or_cancelled().map(drop)?)),
    ("Mutex::lock_timeout", || Ok(HELD.lock_timeout(LONG).map(drop)?)),
    ("RawMutex::lock_or_cancelled", || Ok(held_raw().lock_or_cancelled()?)),
    ("RawMutex::lock_timeout", || Ok(held_raw().lock_timeout(LONG)?)),
    ("ReentrantMutex::lock_or_cancelled", || Ok(HELD_AGAIN.lock_or_cancelled().map(drop)?)),
    ("ReentrantMutex::lock_timeout", || Ok(HELD_AGAIN.lock_timeout(LONG).map(drop)?)),
    ("RwLock::read_or_cancelled", || Ok(WRITTEN.read_or_cancelled().map(drop)?)),
    ("RwLock::read_timeout", || Ok(WRITTEN.read_timeout(LONG).map(drop)?)),
    ("RwLock::write_or_cancelled", || Ok(read().write_or_cancelled().map(drop)?)),
    ("RwLock::write_timeout", || Ok(read().write_timeout(LONG).map(drop)?)),
    ("RwLock::upgradable_read_or_cancelled", || Ok(WRITTEN.upgradable_read_or_cancelled().map(drop)?)),
    ("RwLock::upgradable_read_timeout", || Ok(WRITTEN.upgradable_read_timeout(LONG).map(drop)?)),
    ("RwLockUpgradableReadGuard::upgrade_or_cancelled", || {
        let lock = read();
        let told = RwLockUpgradableReadGuard::upgrade_or_cancelled(lock.upgradable_read());
        Ok(told.map(drop).map_err(|(_, error)| error)?)
    }),
    ("RwLockUpgradableReadGuard::upgrade_timeout", || {
        let lock = read();
        let told = RwLockUpgradableReadGuard::upgrade_timeout(lock.upgradable_read(), LONG);
        Ok(told.map(drop).map_err(|(_, error)| error)?)
    }),
    ("Condvar::wait", || Ok(Condvar::new().wait(&mut Mutex::new(()).lock())?)),
    ("Condvar::wait_while", || Ok(Condvar::new().wait_while(&mut Mutex::new(()).lock(), |()| true)?)),
    ("Condvar::wait_timeout", || Ok(Condvar::new().wait_timeout(&mut Mutex::new(()).lock(), LONG)?)),
    ("Condvar::wait_timeout_while", || {
        Ok(Condvar::new().wait_timeout_while(&mut Mutex::new(()).lock(), LONG, |()| true)?)
    }),
    ("Semaphore::acquire", || Ok(Semaphore::new(0).acquire().map(drop)?)),
    ("Semaphore::acquire_many", || Ok(Semaphore::new(1).acquire_many(2).map(drop)?)),
    ("Semaphore::acquire_timeout", || Ok(Semaphore::new(0).acquire_timeout(LONG).map(drop)?)),
    ("Semaphore::acquire_many_timeout", || Ok(Semaphore::new(1).acquire_many_timeout(2, LONG).map(drop)?)),
    ("Semaphore::acquire_owned", || Ok(Arc::new(Semaphore::new(0)).acquire_owned().map(drop)?)),
    ("Semaphore::acquire_many_owned", || Ok(Arc::new(Semaphore::new(1)).acquire_many_owned(2).map(drop)?)),
    ("Semaphore::acquire_many_owned_timeout", || {
        Ok(Arc::new(Semaphore::new(1)).acquire_many_owned_timeout(2, LONG).map(drop)?)
    }),
    ("sleep", || Ok(sleep(Duration::MAX)?)),
    ("sleep_until", || Ok(sleep_until(now() + Duration::from_secs(1 << 40))?)),
    ("Interval::tick", || {
        let mut ticks = interval(LONG);
        ticks.tick()?;
        Ok(ticks.tick().map(drop)?)
    }),
    ("block_on", || Ok(block_on(std::future::pending())?)),
    ("blocking", || Ok(blocks()?)),
    ("Event::wait", || Ok(Event::new().wait()?)),
    ("Event::wait_timeout", || Ok(Event::new().wait_timeout(LONG)?)),
    ("Latch::wait", || Ok(Latch::new(1).wait()?)),
    ("Latch::wait_timeout", || Ok(Latch::new(1).wait_timeout(LONG)?)),
    ("Once::wait", || Ok(Once::new().wait()?)),
    ("Once::wait_timeout", || Ok(Once::new().wait_timeout(LONG)?)),
    ("OnceLock::wait", || Ok(OnceLock::new().wait().copied()?)),
    ("OnceLock::wait_timeout", || Ok(OnceLock::new().wait_timeout(LONG).copied()?)),
    ("Barrier::wait", || Ok(Barrier::new(2).wait().map(drop)?)),
    ("Barrier::wait_timeout", || Ok(Barrier::new(2).wait_timeout(LONG).map(drop)?)),
    ("Sender::send", || Ok(full().0.send(())?)),
    ("Sender::send_timeout", || Ok(full().0.send_timeout((), LONG)?)),
    ("Receiver::recv", || Ok(empty().1.recv()?)),
    ("Receiver::recv_timeout", || Ok(empty().1.recv_timeout(LONG)?)),
    ("Receiver::iter", || catch(|| empty().1.iter().for_each(drop))),
    ("oneshot::Receiver::recv", || {
        let (_sender, receiver) = oneshot::channel();
        Ok(receiver.recv()?)
    }),
    ("oneshot::Receiver::recv_timeout", || {
        let (_sender, receiver) = oneshot::channel();
        Ok(receiver.recv_timeout(LONG)?)
    }),
    ("watch::Receiver::recv", || Ok(*watch::channel(()).1.recv()?)),
    ("watch::Receiver::recv_timeout", || Ok(*watch::channel(()).1.recv_timeout(LONG)?)),
];

/// A blocking call that never returns.
#[cfg(feature = "blocking")]
fn blocks() -> Result<(), forebear::BlockingError> {
    forebear::blocking(|| {
        loop {
            std::thread::park();
        }
    })
}

/// Without the feature there is none.
#[cfg(not(feature = "blocking"))]
fn blocks() -> Result<(), forebear::Cancelled> {
    block_on(std::future::pending())
}

/// A channel that has no room; both its ends.
fn full() -> (Sender<()>, Receiver<()>) {
    bounded(0)
}

/// A channel that has nothing; both its ends.
fn empty() -> (Sender<()>, Receiver<()>) {
    bounded(1)
}

/// Never: in the seeded mode any other time comes when nobody else can go on.
const LONG: Duration = Duration::MAX;

/// A mutex that nobody lets go of, and that nobody holds who could be in a cycle.
static HELD: LazyLock<Mutex<()>> = LazyLock::new(|| {
    let mutex = Mutex::new(());
    std::thread::scope(|threads| _ = threads.spawn(|| std::mem::forget(mutex.lock())));
    mutex
});

/// The same.
static HELD_AGAIN: LazyLock<ReentrantMutex<()>> = LazyLock::new(|| {
    let mutex = ReentrantMutex::new(());
    std::thread::scope(|threads| _ = threads.spawn(|| std::mem::forget(mutex.lock())));
    mutex
});

/// The same, for good in the hand of one who writes.
static WRITTEN: LazyLock<RwLock<()>> = LazyLock::new(|| {
    let lock = RwLock::new(());
    std::thread::scope(|threads| _ = threads.spawn(|| std::mem::forget(lock.write())));
    lock
});

/// A lock that a thread has read which is over, so for good.
fn read() -> RwLock<()> {
    let lock = RwLock::new(());
    std::thread::scope(|threads| _ = threads.spawn(|| std::mem::forget(lock.read())));
    lock
}

fn held_raw() -> RawMutex {
    let lock = RawMutex::new();
    lock.lock();
    lock
}

/// Both tables.
fn waiting() -> impl Iterator<Item = (&'static str, impl Fn(&Request<()>) -> Result<(), Error> + Copy)> {
    let gated = WAITING.iter().map(|&(name, way)| (name, Some(way), None));
    let queueing = QUEUEING.iter().map(|&(name, way)| (name, None, Some(way)));
    gated.chain(queueing).map(|(name, gated, queueing)| {
        let way = move |gate: &Request<()>| match (gated, queueing) {
            (Some(way), _) => way(gate),
            (_, Some(way)) => way(),
            _ => unreachable!("one of the two"),
        };
        (name, way)
    })
}

/// What looks, and lets go for a moment at most.
const LOOKING: &[(&str, fn() -> Result<(), Error>)] =
    &[("yield_now", || Ok(yield_now()?)), ("check_cancelled", || Ok(check_cancelled()?))];

/// What waits and is no cancellation point. A runtime's end is waited for to the end of its grace; `tests/workers/shutdown` has them. A
/// lock is had in the end, since its holder lets go of it; and so is what somebody makes.
const UNMOVED: &[&str] = &[
    "Runtime::finish",
    "Runtime::shutdown",
    "Mutex::lock",
    "RawMutex::lock",
    "ReentrantMutex::lock",
    "RwLock::read",
    "RwLock::write",
    "RwLock::upgradable_read",
    "RwLockUpgradableReadGuard::upgrade",
    "Once::call_once",
    "OnceLock::set",
    "OnceLock::get_or_init",
    "OnceLock::get_or_try_init",
    "LazyLock::force",
];

// ---- the table ----------------------------------------------------------------------------------------------------------

#[test]
fn a_cancel_ends_each_of_them_at_once() {
    on_each(|runtime| {
        for (name, way) in waiting() {
            let gate = Gate::new(runtime);
            let closed = gate.request();
            let (tell, told) = mpsc::channel();
            let request = root(runtime).name(name).try_spawn(move || {
                let answer = way(&closed);
                tell.send(answer.as_ref().err().map(Error::is_cancelled)).unwrap();
                answer
            });
            asleep(&request);
            assert_eq!(request.cancel(), Cancellation::Marked, "{name}");
            // The gate is shut all the while.
            assert_eq!(told.come().unwrap(), Some(true), "{name}");
            ends_cancelled(&request);
        }
    });
}

#[test]
fn in_a_cancelled_request_each_of_them_answers_without_waiting() {
    on_each(|runtime| {
        for (name, way) in waiting() {
            let gate = Gate::new(runtime);
            let closed = gate.request();
            let request = root(runtime).name(name).spawn(move || {
                Request::current().unwrap().abort(forebear::CancelReason::Asked);
                for _ in 0..3 {
                    let answer = way(&closed);
                    assert!(answer.is_err_and(|error| error.is_cancelled()), "{name}");
                }
            });
            ends_cancelled(&request);
        }
    });
}

#[test]
fn each_of_them_ends_at_once_in_a_foreign_thread_that_runs_the_request() {
    on_each(|runtime| {
        for (name, way) in waiting() {
            let gate = Gate::new(runtime);
            let closed = gate.request();
            let (tell, told) = mpsc::channel();
            let request = Request::builder().name(name).on(runtime).try_build(move || {
                tell.send(()).unwrap();
                way(&closed)
            });
            let runs = request.clone();
            let thread = std::thread::spawn(move || drop(runs.wait().copied()));
            told.come().unwrap();
            assert_eq!(request.abort(forebear::CancelReason::Asked), Cancellation::Marked, "{name}");
            thread.joined().unwrap();
            ends_cancelled(&request);
        }
    });
}

#[test]
fn what_only_looks_finds_a_cancel_too() {
    let _not = support::not_on(support::Modes::Both, "its requests hold the thread, which alone could go on");
    on_each(|runtime| {
        for &(name, look) in LOOKING {
            let request = root(runtime).name(name).try_spawn(move || -> Result<(), Error> {
                loop {
                    look()?;
                }
            });
            until(|| request.state() != State::Queued);
            assert_eq!(request.cancel(), Cancellation::Marked, "{name}");
            ends_cancelled(&request);
        }
    });
}

/// And with an unwind, for code that has no `Result` to return.
#[test]
fn each_of_them_may_unwind() {
    on_each(|runtime| {
        for (name, way) in waiting() {
            let gate = Gate::new(runtime);
            let closed = gate.request();
            let request = root(runtime).name(name).spawn(move || way(&closed).or_unwind());
            asleep(&request);
            request.cancel();
            ends_cancelled(&request);
        }
    });
}

// ---- with a time-out of zero --------------------------------------------------------------------------------------------

/// Each operation that has a time-out, with one of zero: it looks. By the name that the sources give it.
const POLLS: &[(&str, fn() -> bool)] = &[
    ("Request::wait_timeout", || look_at_endless(|request| is_late(request.wait_timeout(ZERO)))),
    ("AnyRequest::wait_timeout", || {
        look_at_endless(|request| is_late(request.to_untyped().wait_timeout(ZERO)))
    }),
    ("RequestSet::wait_next_timeout", || {
        let (_completer, answer) = Request::<()>::completer("never");
        timed_out(RequestSet::from_iter([answer]).wait_next_timeout(ZERO))
    }),
    ("Mutex::lock_timeout", || timed_out(HELD.lock_timeout(ZERO))),
    ("RawMutex::lock_timeout", || timed_out(held_raw().lock_timeout(ZERO))),
    ("ReentrantMutex::lock_timeout", || timed_out(HELD_AGAIN.lock_timeout(ZERO))),
    ("RwLock::read_timeout", || timed_out(WRITTEN.read_timeout(ZERO))),
    ("RwLock::write_timeout", || timed_out(read().write_timeout(ZERO))),
    ("RwLock::write_timeout", || timed_out(WRITTEN.write_timeout(ZERO))),
    ("RwLock::upgradable_read_timeout", || timed_out(WRITTEN.upgradable_read_timeout(ZERO))),
    ("RwLockUpgradableReadGuard::upgrade_timeout", || {
        let lock = read();
        let told = RwLockUpgradableReadGuard::upgrade_timeout(lock.upgradable_read(), ZERO);
        timed_out(told.map_err(|(_, error)| error))
    }),
    ("Condvar::wait_timeout", || timed_out(Condvar::new().wait_timeout(&mut Mutex::new(()).lock(), ZERO))),
    ("Condvar::wait_timeout_while", || {
        timed_out(Condvar::new().wait_timeout_while(&mut Mutex::new(()).lock(), ZERO, |()| true))
    }),
    ("Semaphore::acquire_timeout", || timed_out(Semaphore::new(0).acquire_timeout(ZERO))),
    ("Semaphore::acquire_many_timeout", || timed_out(Semaphore::new(1).acquire_many_timeout(2, ZERO))),
    ("Semaphore::acquire_many_owned_timeout", || {
        timed_out(Arc::new(Semaphore::new(1)).acquire_many_owned_timeout(2, ZERO))
    }),
    ("Event::wait_timeout", || timed_out(Event::new().wait_timeout(ZERO))),
    ("Latch::wait_timeout", || timed_out(Latch::new(1).wait_timeout(ZERO))),
    ("Once::wait_timeout", || timed_out(Once::new().wait_timeout(ZERO))),
    ("OnceLock::wait_timeout", || timed_out(OnceLock::<()>::new().wait_timeout(ZERO))),
    ("Barrier::wait_timeout", || timed_out(Barrier::new(2).wait_timeout(ZERO))),
    ("Sender::send_timeout", || {
        matches!(full().0.send_timeout((), ZERO), Err(SendTimeoutError::TimedOut(())))
    }),
    ("Receiver::recv_timeout", || matches!(empty().1.recv_timeout(ZERO), Err(RecvTimeoutError::TimedOut))),
    ("oneshot::Receiver::recv_timeout", || {
        let (_sender, receiver) = oneshot::channel::<()>();
        matches!(receiver.recv_timeout(ZERO), Err(RecvTimeoutError::TimedOut))
    }),
    ("watch::Receiver::recv_timeout", || {
        let (_sender, mut receiver) = watch::channel(());
        let _seen = receiver.try_recv();
        matches!(receiver.recv_timeout(ZERO), Err(RecvTimeoutError::TimedOut))
    }),
    ("sleep", || sleep(ZERO).is_ok()),
    ("sleep_until", || sleep_until(now()).is_ok()),
    ("select!", || {
        let (_sender, receiver) = empty();
        select! { () = after(ZERO) => true, _ = &receiver => false }
    }),
];

const ZERO: Duration = Duration::ZERO;

/// Looks at a request that another worker may have begun, and that does not end before the look is over.
fn look_at_endless(look: fn(&Request<()>) -> bool) -> bool {
    let request = Request::try_new(|| Ok(Event::new().wait()?));
    let seen = look(&request);
    let _ = request.abort(CancelReason::Aborted);
    seen
}

/// What is made when it is first asked for is made here: whoever comes second would wait for who makes it.
fn made() {
    LazyLock::force(&HELD);
    LazyLock::force(&HELD_AGAIN);
    LazyLock::force(&WRITTEN);
}

fn is_late<T>(answer: Result<T, WaitError>) -> bool {
    matches!(answer, Err(WaitError::TimedOut))
}

fn timed_out<T>(answer: Result<T, TimeoutError>) -> bool {
    matches!(answer, Err(TimeoutError::TimedOut))
}

/// The worker has something that is ready to go on, something that has not started, and the target: nothing of it is let go on.
#[test]
fn a_time_out_of_zero_looks_and_does_not_give_the_worker_away() {
    made();
    let _dog = support::Watchdog::new("one worker");
    let runtime = support::runtime(1);
    let others = Count::new();
    let (turns, starts) = (others.clone(), others.clone());
    // On the worker: beside this thread the worker would run the others.
    let poller = Request::builder().on(&runtime).own_stack().try_spawn(move || {
        let ready = try_spawn(move || -> Result<(), Error> {
            loop {
                turns.up();
                yield_now()?;
            }
        });
        until(|| yield_now().is_err() || others.get() > 0);
        let _unstarted = spawn(move || starts.up());
        for (name, look) in POLLS {
            let before = others.get();
            for _ in 0..3 {
                assert!(look(), "{name} finds nothing");
            }
            assert_eq!(others.get(), before, "{name} gave its worker away");
        }
        ready.cancel();
        Ok(())
    });
    poller.take().unwrap();
}

/// In a region that must not suspend, a look is no wait.
#[test]
fn a_time_out_of_zero_is_no_wait_for_who_must_not_suspend() {
    made();
    on_each(|runtime| {
        let polls = runtime.spawn(|| {
            forebear::no_suspend("polls", || {
                POLLS.iter().filter(|(_, look)| !look()).map(|(name, _)| *name).collect::<Vec<_>>()
            })
        });
        assert_eq!(polls.take().unwrap(), [""; 0]);
    });
}

/// The panic is where the caller called what waits, not inside the library.
#[test]
fn a_region_that_must_not_suspend_refuses_each_of_them_where_it_is_called() {
    on_each(|runtime| {
        let mut elsewhere = Vec::new();
        // That of an iterator is where its step is called: in this case in std.
        for (name, way) in waiting().filter(|(name, _)| *name != "Receiver::iter") {
            let gate = Gate::new(runtime);
            let closed = gate.request();
            let request = root(runtime).name(name).own_stack().spawn(move || {
                _ = forebear::no_suspend("the region", || way(&closed));
            });
            let Err(WaitError::Failed(failure)) = request.wait() else { panic!("{name} is not refused") };
            let at = failure.location().unwrap();
            if !at.file().ends_with("suspending.rs") && !at.file().ends_with("sources.rs") {
                elsewhere.push(format!("{name}: {at}"));
            }
        }
        assert!(elsewhere.is_empty(), "{elsewhere:#?}");
    });
}

/// Without workers nobody runs the target of a look; the next wait does.
#[test]
fn a_time_out_of_zero_submits_its_target_and_does_not_run_it() {
    let _dog = support::Watchdog::new("no worker");
    let runtime = Runtime::builder().workers(0).build().unwrap();
    let target = runtime.enter(|| Request::new(|| 7));
    for _ in 0..3 {
        assert!(is_late(target.wait_timeout(ZERO)));
        assert_eq!(target.state(), State::Queued);
    }
    assert_eq!(target.wait_timeout(Duration::from_secs(600)).unwrap(), &7);
    assert_eq!(target.wait_timeout(ZERO).unwrap(), &7);
}

#[test]
fn every_operation_that_has_a_time_out_is_among_the_polls() {
    let polls: BTreeSet<_> = POLLS.iter().map(|(name, _)| *name).collect();
    for (name, _) in waiting().filter(|(name, _)| name.contains("_timeout")) {
        assert!(polls.contains(name) || name == "try_timeout", "{name} is not polled");
    }
}

/// A wait for what has not begun, on every way: what is born cancelled is waited for by nobody.
#[test]
fn none_of_them_lets_a_target_begin_in_a_cancelled_request() {
    let ways: &[fn(Request<()>) -> Option<WaitError>] = &[
        |target| target.wait().err(),
        |target| target.take().err(),
        |target| target.wait_timeout(Duration::MAX).err(),
        |target| target.watch().err(),
        |target| target.to_untyped().wait().err(),
    ];
    on_each(|runtime| {
        for way in ways {
            let request = root(runtime).spawn(move || {
                let early = Request::new(|| unreachable!("nobody waits for it"));
                let queued = spawn(|| ());
                drop(queued);
                Request::current().unwrap().abort(forebear::CancelReason::Asked);
                assert!(is_cancelled());
                assert!(matches!(way(early), Some(WaitError::Cancelled)));
            });
            ends_cancelled(&request);
        }
    });
}
