//! Hints: the order of what is queued, in front of its age.
//!
//! These tests hold the only worker of a runtime, queue what they want to see ordered, let go, and read the
//! [`Log`](support::order::Log).

#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebear::{Priority, Request, RequestBuilder, RequestPool, Runtime, State, scope, spawn};
use support::order::{Log, on_one};
use support::{Random, fitting, hold_workers, on_each, until};

/// A description of a root.
fn root(runtime: &Runtime) -> RequestBuilder {
    Request::builder().on(runtime)
}

/// A request that notes its name.
fn noting(builder: &RequestBuilder, log: &Log, name: impl ToString) -> Request<()> {
    let (log, name) = (log.clone(), name.to_string());
    builder.spawn(move || log.note(name))
}

/// Waits without wanting, so that nothing is run out of turn.
fn await_all(requests: &[Request<()>]) {
    requests.iter().for_each(|request| until(|| request.is_done()));
}

#[test]
fn queued_roots_go_by_their_hints_in_front_of_their_age() {
    on_one(|runtime, log| {
        let held = hold_workers(runtime);
        let roots: Vec<_> = [3, i64::MAX, -2, 3, i64::MIN, 0]
            .map(|hint| noting(&root(runtime).order_hint(hint), &log, hint))
            .into();
        held.release();
        await_all(&roots);
        let expected = [i64::MIN, -2, 0, 3, 3, i64::MAX].map(|hint| hint.to_string());
        assert_eq!(log.told(), expected);
    });
}

#[test]
fn among_equal_hints_the_older_goes_first() {
    on_one(|runtime, log| {
        let held = hold_workers(runtime);
        let roots: Vec<_> = (0..5)
            .map(|n| noting(&root(runtime).order_hint(n % 2), &log, format!("{}.{n}", n % 2)))
            .collect();
        held.release();
        await_all(&roots);
        log.check(&["0.0", "0.2", "0.4", "1.1", "1.3"]);
    });
}

#[test]
fn a_hint_changes_nothing_between_priorities_deadlines_and_those_without_a_hint() {
    on_one(|runtime, log| {
        let held = hold_workers(runtime);
        let hint = |hint| root(runtime).order_hint(hint);
        let roots = [
            noting(&hint(9), &log, "third of three"),
            noting(&root(runtime), &log, "without"),
            noting(&hint(-9).priority(Priority::BACKGROUND), &log, "background"),
            noting(&hint(5), &log, "second of three"),
            noting(&hint(1), &log, "first of three"),
            noting(&hint(7).priority(Priority::URGENT), &log, "urgent"),
        ];
        held.release();
        await_all(&roots);
        // Those of one group share the places of their ages.
        log.check(&[
            "urgent",
            "first of three",
            "without",
            "second of three",
            "third of three",
            "background",
        ]);
    });
}

#[test]
fn queued_siblings_go_by_their_hints_and_leave_others_where_they_are() {
    on_one(|runtime, log| {
        let parents: Vec<_> = ["a", "b"]
            .into_iter()
            .map(|name| {
                let log = log.clone();
                root(runtime).build(move || {
                    for hint in [2, 3, 1] {
                        noting(&Request::builder().order_hint(hint), &log, format!("{name}{hint}"));
                    }
                })
            })
            .collect();
        let held = hold_workers(runtime);
        parents.iter().for_each(|parent| _ = parent.submit());
        held.release();
        until(|| log.told().len() == 6);
        log.check(&["a1", "a2", "a3", "b1", "b2", "b3"]);
    });
}

#[test]
fn what_has_started_goes_by_its_age() {
    on_one(|runtime, log| {
        let held = hold_workers(runtime);
        let gate = support::order::Gate::new(runtime);
        let (older, younger) = (gate.request.to_untyped(), gate.request.to_untyped());
        let waits = |hint, gate: forebear::AnyRequest, name: &'static str| {
            let log = log.clone();
            root(runtime).order_hint(hint).spawn(move || {
                log.note(format!("{name} starts"));
                gate.wait().unwrap();
                log.note(format!("{name} goes on"));
            })
        };
        let roots = [waits(2, older, "older"), waits(1, younger, "younger")];
        held.release();
        roots.iter().for_each(|request| until(|| request.state() == State::Suspended));
        let held = hold_workers(runtime);
        gate.open();
        held.release();
        await_all(&roots);
        log.check(&["younger starts", "older starts", "older goes on", "younger goes on"]);
    });
}

#[test]
fn the_newest_goes_first_where_that_is_asked_for() {
    on_one(|runtime, log| {
        let held = hold_workers(runtime);
        let newest = root(runtime).newest_first();
        let roots: Vec<_> = (0..4).map(|n| noting(&newest, &log, n)).collect();
        held.release();
        await_all(&roots);
        log.check(&["3", "2", "1", "0"]);
    });
}

#[test]
fn a_viewer_ranks_what_waits_anew_when_the_user_moves() {
    on_one(|runtime, log| {
        let held = hold_workers(runtime);
        let tiles: Vec<_> = (0..8).map(|at| noting(&root(runtime).order_hint(at), &log, at)).collect();
        // To the tile 5, from outside any request, and by either handle.
        for (at, tile) in tiles.iter().enumerate() {
            let distance = (at as i64 - 5).abs();
            assert!(if at % 2 == 0 {
                tile.set_order_hint(distance)
            } else {
                tile.to_untyped().set_order_hint(distance)
            });
        }
        held.release();
        await_all(&tiles);
        log.check(&["5", "4", "6", "3", "7", "2", "1", "0"]);
        assert!(tiles.iter().all(|tile| !tile.set_order_hint(0)), "over");
    });
}

#[test]
fn a_hint_is_set_before_the_submission_and_refused_after_the_start() {
    on_one(|runtime, log| {
        let made: Vec<_> = ["a", "b"]
            .map(|name| {
                let log = log.clone();
                root(runtime).order_hint(0).build(move || {
                    log.note(name);
                    Request::current().unwrap().set_order_hint(-1)
                })
            })
            .into();
        assert!(made[1].set_order_hint(-1));
        let held = hold_workers(runtime);
        made.iter().for_each(|request| _ = request.submit());
        held.release();
        made.iter().for_each(|request| until(|| request.is_done()));
        log.check(&["b", "a"]);
        assert!(made.into_iter().all(|request| !request.take().unwrap()), "it runs");
        assert!(!spawn(|| ()).set_order_hint(1), "made without");
        assert!(!Request::ready(1).set_order_hint(1), "over from the beginning");
        let cancelled = root(runtime).order_hint(1).build(|| ());
        cancelled.cancel();
        assert!(!cancelled.set_order_hint(2));
    });
}

#[test]
fn what_is_after_others_goes_by_its_hint_when_it_is_ready() {
    on_one(|runtime, log| {
        let held = hold_workers(runtime);
        let first = root(runtime).spawn(|| ());
        let after: Vec<_> =
            [3, 1, 2].map(|hint| noting(&root(runtime).after(&first).order_hint(hint), &log, hint)).into();
        assert!(after[2].set_order_hint(4));
        held.release();
        await_all(&after);
        log.check(&["1", "3", "2"]);
    });
}

#[test]
fn whoever_takes_them_each_runs_once_in_any_kind_of_runtime() {
    on_each(|runtime| {
        let count = Arc::new(AtomicUsize::new(0));
        let n = fitting(2000);
        let mut random = Random::new(16);
        let parent = {
            let count = count.clone();
            root(runtime).spawn(move || {
                let handles = std::sync::Mutex::new(Vec::new());
                scope(|s| {
                    for at in 0..n {
                        let builder = Request::builder();
                        let builder = match random.below(4) {
                            0 => builder.newest_first(),
                            1 => builder,
                            _ => builder.order_hint(random.below(10) as i64),
                        };
                        let builder = if random.below(8) == 0 { builder.own_stack() } else { builder };
                        let count = &count;
                        let job = builder.spawn_in(s, move || count.fetch_add(1, Ordering::Relaxed));
                        match random.below(5) {
                            0 => _ = job.cancel(),
                            1 => _ = job.wait(),
                            2 => _ = job.set_order_hint(at as i64),
                            3 => handles.lock().unwrap().push(job),
                            _ => {}
                        }
                    }
                });
                handles.into_inner().unwrap().iter().filter(|job| job.wait().is_ok()).count()
            })
        };
        let kept = parent.take().unwrap();
        let ran = count.load(Ordering::Relaxed);
        assert!(ran >= kept && ran <= n, "{kept} of {ran}");
    });
}

#[test]
fn a_shutdown_ends_what_has_a_hint() {
    on_one(|runtime, log| {
        let held = hold_workers(runtime);
        let roots: Vec<_> = (0..3).map(|hint| noting(&root(runtime).order_hint(hint), &log, hint)).collect();
        let ends = {
            let runtime = runtime.clone();
            std::thread::spawn(move || runtime.shutdown(std::time::Duration::from_secs(60)))
        };
        await_all(&roots);
        assert!(roots.iter().all(|request| request.is_cancelled() && !request.set_order_hint(-1)));
        held.release();
        _ = ends.join().unwrap();
        log.check(&[]);
    });
}

/// In the synchronous mode several are queued at once only when they become ready at once.
#[test]
fn without_workers_what_becomes_ready_at_once_goes_by_its_hint() {
    let _dog = support::Watchdog::new("");
    let runtime = Runtime::builder().workers(0).build().unwrap();
    let log = Log::default();
    runtime.enter(|| {
        let (completer, input) = Request::<()>::completer("input");
        let after: Vec<_> =
            [3, 1, 2].map(|hint| noting(&root(&runtime).after(&input).order_hint(hint), &log, hint)).into();
        assert!(after[2].set_order_hint(4));
        completer.complete(()).unwrap();
        await_all(&after);
    });
    log.check(&["1", "3", "2"]);
}

/// A pool begins what it holds back in the order of adding, whatever the hints say, and nothing is lost.
#[test]
fn what_a_pool_holds_back_goes_in_the_order_of_adding() {
    on_one(|runtime, log| {
        let told = log.clone();
        runtime.run(move || {
            let requests: Vec<_> = [3, 1, 2]
                .map(|hint| {
                    let log = told.clone();
                    Request::builder().order_hint(hint).build(move || log.note(hint.to_string()))
                })
                .into();
            let mut pool: RequestPool<'_, ()> = RequestPool::new().max_active(1);
            requests.iter().for_each(|request| _ = pool.include(request.clone()));
            assert!(requests[2].set_order_hint(-1));
            pool.wait().unwrap();
        });
        log.check(&["3", "1", "2"]);
    });
}

/// What a pool has admitted all at once is queued, and its hints count.
#[test]
fn what_a_pool_has_admitted_goes_by_its_hint() {
    on_one(|runtime, log| {
        let told = log.clone();
        runtime.run(move || {
            let requests: Vec<_> = [3, 1, 2]
                .map(|hint| {
                    let log = told.clone();
                    Request::builder().order_hint(hint).own_stack().build(move || log.note(hint.to_string()))
                })
                .into();
            let mut pool: RequestPool<'_, ()> = RequestPool::new().max_active(3);
            requests.iter().for_each(|request| _ = pool.include(request.clone()));
            pool.wait().unwrap();
        });
        log.check(&["1", "2", "3"]);
    });
}
