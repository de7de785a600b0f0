//! A cancel ends every kind of wait, whenever it comes: before the wait, as it begins, and while it lasts.

use std::sync::Arc;

use forebear_context::shim::thread::yield_now;
use forebear_loom_tests::roam;
use forebear_runtime::{
    CancelReason, Cancellation, Completer, Request, RequestPool, RequestSet, Runtime, WaitError, spawn,
    try_scope, wait_all, wait_first,
};
use forebear_sync::channel::{self, Receiver, Sender};
use forebear_sync::{Barrier, Condvar, Event, Latch, Mutex, Semaphore, block_on, select, sleep};

use crate::support::{Count, LONG, Ledger, draw, finish, pause, runtime, thread, until_cancelled};

/// What is waited for. None of it comes before the cancelled request is over.
struct Things {
    event: Event,
    latch: Latch,
    barrier: Barrier,
    semaphore: Semaphore,
    mutex: Mutex<()>,
    condvar: Condvar,
    empty: Receiver<()>,
    full: Sender<()>,
    /// It goes on until it is cancelled.
    running: Request<()>,
    completion: Request<()>,
    /// After the completion, and submitted; the wait for it looks at what it is after.
    dependent: Request<()>,
}

/// What keeps the things from coming: the other ends.
type Others = (Completer<()>, Sender<()>, Receiver<()>);

fn things(runtime: &Runtime) -> (Arc<Things>, Others) {
    runtime.enter(|| {
        let begun = Count::default();
        let its = begun.clone();
        let running = spawn(move || {
            its.up();
            until_cancelled();
        });
        // What has not begun could run on its waiter's stack.
        while begun.get() == 0 {
            yield_now();
        }
        let (completer, completion) = Request::completer("completion");
        let dependent = completion.then(|()| ()).then(|()| ());
        dependent.submit();
        let (sends, empty) = channel::unbounded();
        let (full, receives) = channel::bounded(1);
        full.send(()).unwrap();
        let things = Things {
            event: Event::new(),
            latch: Latch::new(1),
            barrier: Barrier::new(2),
            semaphore: Semaphore::new(0),
            mutex: Mutex::new(()),
            condvar: Condvar::new(),
            empty,
            full,
            running,
            completion,
            dependent,
        };
        (Arc::new(things), (completer, sends, receives))
    })
}

/// Ends when the request is cancelled; the answer is the wait's.
type Wait = fn(&Arc<Things>);

const WAITS: &[(&str, Wait)] = &[
    ("event", |of| _ = of.event.wait()),
    ("event, limited", |of| _ = of.event.wait_timeout(LONG)),
    ("latch", |of| _ = of.latch.wait()),
    ("barrier", |of| _ = of.barrier.wait()),
    ("permit", |of| _ = of.semaphore.acquire()),
    ("condition", |of| _ = of.condvar.wait(&mut of.mutex.lock())),
    ("receive", |of| _ = of.empty.recv()),
    ("send", |of| _ = of.full.send(())),
    ("running", |of| _ = of.running.wait()),
    ("running, limited", |of| _ = of.running.wait_timeout(LONG)),
    ("completion", |of| _ = of.completion.wait()),
    ("dependent", |of| _ = of.dependent.wait()),
    ("dependent, limited", |of| _ = of.dependent.wait_timeout(LONG)),
    ("new dependent", |of| _ = of.completion.then(|()| ()).then(|()| ()).wait()),
    ("dependent, given up", |of| _ = of.completion.then(|()| ()).take()),
    ("all", |of| _ = wait_all([&of.running, &of.dependent])),
    ("first", |of| _ = wait_first([&of.dependent, &of.completion])),
    ("set", |of| {
        let mut set = RequestSet::new();
        set.insert(of.completion.clone());
        set.insert(of.dependent.clone());
        _ = set.wait_next();
    }),
    ("select", |of| {
        select! {
            _ = &of.event => {},
            _ = &of.empty => {},
            _ = &of.dependent => {},
        }
    }),
    ("sleep", |_| _ = sleep(LONG)),
    ("future", |of| _ = block_on(async { of.dependent.clone().await.map(|_| ()) })),
    ("child", |of| {
        let of = of.clone();
        _ = spawn(move || _ = of.dependent.wait()).wait();
    }),
    // Not by `scope`, which unwinds: in shuttle all threads are one to the standard library's count of panics.
    ("job", |of| {
        _ = try_scope(|jobs| {
            jobs.spawn(|| _ = of.dependent.wait());
            Ok(())
        });
    }),
    ("member", |of| {
        let mut pool = RequestPool::new().max_active(1);
        pool.add(|| _ = of.event.wait());
        pool.add(|| _ = of.dependent.wait());
        _ = pool.wait();
    }),
    ("yields", |_| until_cancelled()),
];

#[test]
fn a_cancel_ends_every_kind_of_wait() {
    let names: Vec<&str> = WAITS.iter().map(|(name, _)| *name).chain(["before", "in it"]).collect();
    roam(1, &names, |answers| {
        let (runtime, ledger, begun) = (runtime(1 + draw(2)), Ledger::default(), Count::default());
        let (things, others) = things(&runtime);
        let (name, wait) = WAITS[draw(WAITS.len())];
        answers.note(name);
        let is_child = draw(3) == 0;
        let body = {
            let (things, begun, probe) = (things.clone(), begun.clone(), ledger.probe());
            move || {
                let _probe = probe;
                begun.up();
                wait(&things);
            }
        };
        let waits = runtime.spawn(move || match is_child {
            true => _ = spawn(body).wait(),
            false => body(),
        });
        let canceller = thread({
            let (waits, begun) = (waits.to_untyped(), begun.clone());
            move || {
                // Mostly it has begun.
                while draw(100) != 0 && begun.get() == 0 {
                    yield_now();
                }
                pause(150);
                match draw(2) {
                    0 => assert_eq!(waits.cancel(), Cancellation::Marked, "nobody else wants it"),
                    _ => _ = waits.abort(CancelReason::Asked),
                }
            }
        });
        canceller.join().unwrap();
        assert!(matches!(waits.watch(), Err(WaitError::TargetCancelled(CancelReason::Asked))), "{name}");
        answers.note(if begun.get() == 0 { "before" } else { "in it" });
        things.running.abort(CancelReason::Asked);
        others.0.complete(()).unwrap();
        drop((others.1, others.2, things, waits));
        finish(&runtime);
        assert_eq!(ledger.alive(), 0, "{name}");
    });
}
