//! Destructors of captures, of values, of items and of errors.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use forebear::channel;
use forebear::pool::{FifoQueue, Job, Leftover, ThreadPool, ThreadPoolBuilder};
use forebear::sync::Event;
use forebear::{
    CancelReason, Completer, Request, RequestPool, Runtime, ShutdownError, State, WaitError, join, scope,
    shield, spawn, then_all, yield_now,
};

use crate::support::{Count, Kind, Probe, Watchdog, in_both_worlds, on_each, until};

/// Calls its closure when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Waits in each way that suspends.
fn waits_in_each_way() {
    assert_eq!(Request::builder().own_stack().build(|| 1).wait().copied().unwrap(), 1);
    assert_eq!(spawn(|| 2).take().unwrap(), 2);
    yield_now().unwrap();
    join(|| yield_now().unwrap(), || yield_now().unwrap());
    scope(|s| drop(s.spawn(|| yield_now().unwrap())));
    let mut pool = RequestPool::new();
    pool.add(|| yield_now().unwrap());
    pool.wait().unwrap();
}

/// The parent is cancelled while its children are queued, and stays suspended: another stack of the loop's drops what they have
/// captured.
#[test]
fn a_wait_in_the_destructor_of_a_request_that_never_started_is_woken() {
    on_each(|runtime| {
        const CHILDREN: usize = 20;
        let (told, tells) = mpsc::channel();
        let all = Arc::new(Event::new());
        let parent = runtime.enter(|| {
            let all = all.clone();
            Request::new(move || {
                let left = Arc::new(AtomicUsize::new(CHILDREN));
                let children: Vec<_> = (0..CHILDREN)
                    .map(|n| {
                        let (told, all, left) = (told.clone(), all.clone(), left.clone());
                        let captured = OnDrop(move || {
                            // Without workers some have begun, and are cancelled.
                            shield(waits_in_each_way);
                            told.send(n).unwrap();
                            if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                                all.set();
                            }
                        });
                        Request::builder().own_stack().build(move || drop(captured))
                    })
                    .collect();
                for child in &children {
                    child.submit();
                }
                Request::current().unwrap().cancel();
                shield(|| all.wait()).unwrap();
            })
        });
        parent.submit();
        assert!(parent.watch().is_err(), "it was cancelled");
        let mut came: Vec<_> = tells.try_iter().collect();
        came.sort_unstable();
        assert_eq!(came, (0..CHILDREN).collect::<Vec<_>>());
    });
}

/// Panics when it is dropped, and counts that.
struct Panics(Count);

impl Drop for Panics {
    fn drop(&mut self) {
        self.0.up();
        panic!("a destructor panics on purpose");
    }
}

const MANY: usize = 5;

/// What drops so many values of the user's, each of which raises the count.
type Row = (&'static str, fn(&Count));

fn fifo() -> ThreadPoolBuilder<FifoQueue<Job>> {
    ThreadPool::builder().queue(FifoQueue::new())
}

/// A pool whose only worker is busy goes with its tasks.
fn drop_with_tasks(count: &Count, builder: ThreadPoolBuilder<FifoQueue<Job>>) {
    let pool = builder.workers(1).build().unwrap();
    let (began, begins) = mpsc::channel();
    let (go, goes) = mpsc::channel::<()>();
    let held = pool.submit(Box::new(move || {
        began.send(()).unwrap();
        let _ = goes.recv();
    }));
    assert!(held.is_ok());
    begins.recv().unwrap();
    for _ in 0..MANY {
        let panics = Panics(count.clone());
        assert!(pool.submit(Box::new(move || drop(panics))).is_ok());
    }
    drop(pool);
    drop(go);
}

const DROP_SEVERAL: [Row; 9] = [
    ("a channel without a receiver", |count| {
        let (sender, receiver) = channel::unbounded();
        (0..MANY).for_each(|_| assert!(sender.send(Panics(count.clone())).is_ok()));
        drop(receiver);
    }),
    ("a bounded channel without a receiver", |count| {
        let (sender, receiver) = channel::bounded(MANY);
        (0..MANY).for_each(|_| assert!(sender.send(Panics(count.clone())).is_ok()));
        drop(receiver);
    }),
    ("a thread pool that is dropped with tasks", |count| drop_with_tasks(count, fifo())),
    ("the hook for the tasks of a thread pool, which drops them", |count| {
        drop_with_tasks(count, fifo().on_leftover(drop));
    }),
    ("the hook for the tasks of a thread pool, which panics", |count| {
        let hook = |tasks: Leftover<Job>| panic!("{} tasks", tasks.len());
        drop_with_tasks(count, fifo().on_leftover(hook));
    }),
    ("the hook for the tasks of a thread pool, which takes one", |count| {
        let hook = |tasks: Leftover<Job>| {
            let mut tasks = tasks.into_iter();
            let _ = catch_unwind(AssertUnwindSafe(|| drop(tasks.next())));
        };
        drop_with_tasks(count, fifo().on_leftover(hook));
    }),
    ("a pool of requests that nobody waits for", |count| {
        let mut pool = RequestPool::new();
        for _ in 0..MANY {
            let panics = Panics(count.clone());
            pool.add(move || drop(panics));
        }
        drop(pool);
    }),
    ("a pool of requests of which one fails", |count| {
        let mut pool = RequestPool::new().max_active(1);
        pool.try_add(|| Err(std::fmt::Error.into()));
        for _ in 0..MANY {
            let panics = Panics(count.clone());
            pool.add(move || drop(panics));
        }
        assert!(pool.wait().is_err());
    }),
    ("the values of a pool of which one fails", |count| {
        let mut pool = RequestPool::new().max_active(1);
        for _ in 0..MANY {
            let count = count.clone();
            pool.add(move || Panics(count));
        }
        pool.try_add(|| Err(std::fmt::Error.into()));
        assert!(pool.collect().is_err());
    }),
];

/// A collection of std's would end the process at the second.
#[test]
fn destructors_that_panic_one_after_the_other_end_no_process_and_spare_no_value() {
    in_both_worlds(|| {
        for (what, drop_several) in DROP_SEVERAL {
            let count = Count::new();
            let _ = catch_unwind(AssertUnwindSafe(|| drop_several(&count)));
            assert_eq!(count.get(), MANY, "{what}");
        }
    });
}

/// An error that counts its drop.
#[derive(Debug)]
struct Counted(#[allow(dead_code, reason = "it is dropped")] Probe);

impl std::fmt::Display for Counted {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("counted")
    }
}

impl std::error::Error for Counted {}

#[test]
fn a_pool_whose_values_panic_when_they_are_dropped_answers_its_failure_and_leaks_nothing() {
    in_both_worlds(|| {
        let (count, errors) = (Count::new(), Count::new());
        let mut pool = RequestPool::new().max_active(1);
        for _ in 0..MANY {
            let count = count.clone();
            pool.add(move || Panics(count));
        }
        let error = Counted(errors.probe());
        pool.try_add(|| Err(error.into()));
        let answer = catch_unwind(AssertUnwindSafe(|| pool.collect().map(drop)));
        assert!(matches!(&answer, Ok(Err(WaitError::Failed(_)))), "{answer:?}");
        assert_eq!((count.get(), errors.get()), (MANY, 0));
        drop(answer);
        until(|| errors.get() == 1);
    });
}

/// Declares what is after `input`, with captures that panic when they are dropped.
type Follow = fn(&Request<u32>, Panics) -> Request<()>;

const FOLLOW: [(&str, Follow); 9] = [
    ("then", |input, captured| input.then(move |_| drop(captured))),
    ("try_then", |input, captured| {
        input.try_then(move |_| {
            drop(captured);
            Ok(())
        })
    }),
    ("into_then", |input, captured| input.clone().into_then(move |_| drop(captured))),
    ("then_all", |input, captured| then_all((input, input), move |_| drop(captured))),
    ("after one", |input, captured| Request::builder().after(input).build(move || drop(captured))),
    ("after two", |input, captured| Request::builder().after_all([input; 2]).build(move || drop(captured))),
    ("after many", |input, captured| {
        Request::builder().after_all([input; MANY]).build(move || drop(captured))
    }),
    ("after one, and then", |input, captured| {
        Request::builder().after(input).then(input, move |_| drop(captured))
    }),
    ("after one, and then with", |input, captured| {
        Request::builder().after(input).then_with(input, move |_| drop(captured))
    }),
];

/// rustc leaks the result of a function that is left by the panic of a destructor.
#[test]
fn a_dependent_whose_captures_panic_leaks_nothing_of_the_failure_it_ends_by() {
    in_both_worlds(|| {
        for (what, follow) in FOLLOW {
            let (count, errors) = (Count::new(), Count::new());
            let error = Counted(errors.probe());
            let input = Request::try_new(|| Err(error.into()));
            let dependent = follow(&input, Panics(count.clone()));
            let answer = dependent.wait().map(drop);
            assert!(matches!(answer, Err(WaitError::Failed(_))), "{what}: {answer:?}");
            assert_eq!((count.get(), errors.get()), (1, 0), "{what}");
            drop((answer, dependent, input));
            until(|| errors.get() == 1);
        }
    });
}

/// The same while a panic unwinds already.
#[test]
fn destructors_that_panic_while_a_panic_unwinds_end_no_process() {
    in_both_worlds(|| {
        let count = Count::new();
        let unwound = catch_unwind(AssertUnwindSafe(|| {
            let (sender, _receiver) = channel::unbounded();
            (0..MANY).for_each(|_| assert!(sender.send(Panics(count.clone())).is_ok()));
            panic!("unwinds");
        }));
        let payload = unwound.unwrap_err();
        assert_eq!(payload.downcast_ref(), Some(&"unwinds"));
        assert_eq!(count.get(), MANY);
    });
}

/// Ends a request on this thread, and drops `owned` by that. The request is after a completion, which has this completer.
type EndsWith = fn(Runtime, Completer<Runtime>, Request<Runtime>) -> (Request<bool>, Box<dyn FnOnce()>);

/// A request that waits for another one and is suspended. It answers whether the other came to no value.
fn waiter<T: Send + 'static>(runtime: &Runtime, awaited: &Request<T>) -> Request<bool> {
    let any = awaited.to_untyped();
    let waiter = Request::builder().name("waiter").own_stack().on(runtime).spawn(move || any.wait().is_err());
    until(|| waiter.state() == State::Suspended);
    waiter
}

const ENDS: [(&str, EndsWith, bool); 2] = [
    (
        "captures of a request that never starts",
        |runtime, completer, answer| {
            let last = runtime.clone();
            let after = Request::builder().on(&runtime).after(&answer).build(move || drop(last));
            after.submit();
            let waiter = waiter(&runtime, &after);
            drop(runtime);
            let end = move || {
                _ = after.abort(CancelReason::Aborted);
                drop((completer, answer));
            };
            (waiter, Box::new(end))
        },
        true,
    ),
    (
        "a value that nobody gets",
        |runtime, completer, answer| {
            let waiter = waiter(&runtime, &answer);
            drop(answer);
            (waiter, Box::new(move || assert!(completer.complete(runtime).is_ok())))
        },
        false,
    ),
];

/// The end of the runtime waits for a request, which waits for the one whose end drops the handle.
#[test]
fn what_the_end_of_a_request_drops_may_own_the_last_handle_of_its_runtime() {
    for kind in [Kind::Workers(1), Kind::Workers(2), Kind::Synchronous] {
        for (what, ends_with, comes_to_nothing) in ENDS {
            let _dog = Watchdog::new(format_args!("{what}, {kind:?}"));
            let runtime = kind.build();
            let (completer, answer) = runtime.enter(|| Request::completer("answer"));
            let (waiter, end) = ends_with(runtime, completer, answer);
            end();
            assert_eq!(waiter.take().unwrap(), comes_to_nothing, "{what}, {kind:?}");
        }
    }
}

#[test]
fn captures_of_a_request_that_never_starts_may_not_end_its_runtime() {
    for kind in [Kind::Workers(1), Kind::Synchronous] {
        let _dog = Watchdog::new(format_args!("{kind:?}"));
        let runtime = kind.build();
        let (tell, told) = mpsc::channel();
        let ends = runtime.clone();
        let captured = OnDrop(move || {
            let answers = [ends.shutdown(Duration::MAX), ends.finish(Duration::MAX)];
            tell.send(answers.into_iter().all(|answer| matches!(answer, Err(ShutdownError::Inside))))
                .unwrap();
        });
        drop(runtime.enter(|| Request::new(move || drop(captured))));
        assert!(told.recv().unwrap(), "{kind:?}");
        assert_eq!(runtime.run(|| 7), 7);
    }
}
