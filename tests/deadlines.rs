//! Deadlines of requests: what they abort and when, who inherits them, where they order, and that nothing of them stays.

#[path = "support/cancelling.rs"]
mod cancelling;
mod support;

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use cancelling::{Gate, asleep, ends_cancelled, on_each_clocked, was_cancelled};
use forebear::time::{Clock, ManualClock, now, sleep};
use forebear::{
    AnyRequest, CancelReason, Cancellation, Priority, Request, RequestBuilder, RequestPool, Runtime, State,
    WaitError, check_cancelled, is_cancelled, join, scope, shield, spawn, try_scope, try_spawn, yield_now,
};
use support::order::{Log, root};
use support::{
    Come, Count, Flag, Joined, Modes, hold_thread_until, hold_workers, in_both_worlds, not_on, on_each, until,
};

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

/// A root with a second to live, on a stack of its own.
fn limited(runtime: &Runtime) -> RequestBuilder {
    root(runtime).timeout(SECOND)
}

/// What a request that sleeps for ever is.
fn sleeps(builder: &RequestBuilder) -> Request<()> {
    let request = builder.try_spawn(|| Ok(sleep(Duration::MAX)?));
    asleep(&request);
    request
}

/// What the two counts of a request are, as its description tells.
fn counts(request: &AnyRequest) -> String {
    let text = format!("{request:?}");
    text[text.find("handles").expect("it tells them")..].to_owned()
}

/// Lets everything that is ready go on.
fn settle(runtime: &Runtime) {
    for _ in 0..5 {
        runtime.run(|| yield_now().unwrap());
    }
}

// ---- what a deadline does -----------------------------------------------------------------------------------------------

#[test]
fn a_request_is_aborted_when_its_deadline_comes_and_not_before() {
    on_each_clocked(|runtime, clock| {
        for describe in [
            |builder: RequestBuilder, _| builder.timeout(SECOND),
            |builder: RequestBuilder, now| builder.deadline(now + SECOND),
        ] {
            let request = sleeps(&describe(root(runtime), clock.now()));
            assert_eq!(request.deadline(), Some(clock.now() + SECOND));
            clock.advance(SECOND - NANO);
            settle(runtime);
            assert_eq!(request.state(), State::Suspended);
            clock.advance(NANO);
            assert_eq!(ends_cancelled(&request), CancelReason::Deadline);
        }
    });
}

#[test]
fn on_the_machines_own_clock_and_on_a_virtual_one_too() {
    on_each(|runtime| {
        let start = runtime.enter(now);
        let request = root(runtime).timeout(Duration::from_millis(3)).try_spawn(|| Ok(sleep(Duration::MAX)?));
        assert_eq!(ends_cancelled(&request), CancelReason::Deadline);
        assert!(runtime.enter(now) >= start + Duration::from_millis(3));
    });
}

#[test]
fn it_is_aborted_whoever_waits_for_it() {
    on_each_clocked(|runtime, clock| {
        let request = sleeps(&limited(runtime));
        let target = request.clone();
        let inside = root(runtime).spawn(move || target.wait().copied());
        asleep(&inside);
        let target = request.clone();
        let outside = thread::spawn(move || target.wait().copied());
        assert_eq!(request.cancel(), Cancellation::Vetoed);
        clock.advance(SECOND);
        let told = |answer| matches!(answer, Err(WaitError::TargetCancelled(CancelReason::Deadline)));
        assert!(told(inside.take().unwrap()) && told(outside.joined().unwrap()));
    });
}

#[test]
fn what_is_past_or_at_once_never_runs() {
    on_each_clocked(|runtime, clock| {
        let past = clock.now();
        clock.advance(SECOND);
        for builder in [root(runtime).timeout(Duration::ZERO), root(runtime).deadline(past)] {
            let (ended, dropped) = (Count::new(), Count::new());
            let (up, probe) = (ended.clone(), dropped.probe());
            let request = builder.build(move || {
                drop(probe);
                unreachable!("its time was over")
            });
            request.on_cancelled(move || _ = up.up());
            assert_eq!((request.state(), ended.get(), dropped.get()), (State::Cancelled, 1, 1));
            let submitted = builder.spawn(|| unreachable!("its time was over"));
            assert_eq!(ends_cancelled(&submitted), CancelReason::Deadline);
            assert!(request.deadline().is_some_and(|due| due <= clock.now()));
        }
    });
}

#[test]
fn for_ever_is_no_limit() {
    on_each_clocked(|runtime, clock| {
        let request = sleeps(&root(runtime).timeout(Duration::MAX));
        assert_eq!(request.deadline(), None);
        let far = sleeps(&root(runtime).timeout(Duration::from_secs(1 << 40)));
        clock.advance(Duration::from_secs(1 << 30));
        settle(runtime);
        assert_eq!((request.state(), far.state()), (State::Suspended, State::Suspended));
        clock.advance(Duration::from_secs(1 << 40));
        assert_eq!(ends_cancelled(&far), CancelReason::Deadline);
        assert_eq!(request.cancel(), Cancellation::Marked);
        ends_cancelled(&request);
    });
}

#[test]
fn of_two_the_nearer_one_counts() {
    on_each_clocked(|runtime, clock| {
        let start = clock.now();
        for (at, after, first) in [(1, 2, 1), (3, 2, 2)] {
            let request = root(runtime).deadline(start + at * SECOND).timeout(after * SECOND).build(|| ());
            assert_eq!(request.deadline(), Some(start + first * SECOND));
        }
    });
}

#[test]
fn it_counts_from_when_the_request_is_made() {
    on_each_clocked(|runtime, clock| {
        let builder = limited(runtime);
        clock.advance(SECOND);
        let request = builder.build(|| ());
        assert_eq!(request.deadline(), Some(clock.now() + SECOND));
        clock.advance(SECOND / 2);
        assert_eq!(builder.build(|| ()).deadline(), Some(clock.now() + SECOND));
        assert!(request.wait().is_ok());
    });
}

#[test]
fn what_has_not_started_ends_where_it_lies_and_a_worker_calls_back() {
    let _not = not_on(Modes::Synchronous, "it holds its workers");
    on_each_clocked(|runtime, clock| {
        let (tell, told) = mpsc::channel();
        let probes = Count::new();
        let make = |builder: &RequestBuilder, tell: mpsc::Sender<bool>| {
            let probe = probes.probe();
            let request = builder.build(move || drop(probe));
            let clocks = thread::current().id();
            request.on_cancelled(move || tell.send(thread::current().id() == clocks).unwrap());
            request
        };
        let held = hold_workers(runtime);
        let new = make(&limited(runtime), tell.clone());
        let queued = make(&limited(runtime), tell);
        queued.submit();
        clock.advance(SECOND);
        assert!(new.is_cancelled() && queued.is_cancelled());
        // The thread that moves the clock runs no code of theirs.
        assert!(probes.get() == 0 && !new.is_done() && !queued.is_done());
        held.release();
        assert_eq!(told.all().collect::<Vec<_>>(), [false, false]);
        assert_eq!(ends_cancelled(&new), CancelReason::Deadline);
        assert_eq!(ends_cancelled(&queued), CancelReason::Deadline);
        assert_eq!(probes.get(), 2);
    });
}

#[test]
fn an_unsubmitted_one_that_nobody_touches_ends_too() {
    on_each_clocked(|runtime, clock| {
        let request = limited(runtime).build(|| unreachable!("its time was over"));
        clock.advance(SECOND);
        until(|| request.is_done());
        assert_eq!(ends_cancelled(&request), CancelReason::Deadline);
    });
}

#[test]
fn a_private_child_that_has_not_started_ends_at_its_own_deadline() {
    let _not = not_on(Modes::Both, "it holds its worker");
    on_each_clocked(|runtime, clock| {
        let (go, started) = (Flag::new(), Flag::new());
        let (may, up) = (go.clone(), started.clone());
        let parent = root(runtime).spawn(move || {
            // Submitted, and still in the worker's private list if nobody is hungry.
            let child = Request::builder().timeout(SECOND).spawn(|| yield_now().is_ok());
            up.raise();
            hold_thread_until(|| may.is_up());
            child.wait().copied()
        });
        hold_thread_until(|| started.is_up());
        clock.advance(SECOND);
        go.raise();
        let answer = parent.take().unwrap();
        assert!(matches!(answer, Ok(true) | Err(WaitError::TargetCancelled(CancelReason::Deadline))));
    });
}

#[test]
fn a_request_may_move_the_clock_to_the_deadline_of_its_own_child() {
    on_each_clocked(|runtime, clock| {
        let time = clock.clone();
        let told = runtime.run(move || {
            let (new, queued) = (Count::new(), Count::new());
            let child = |dropped: &Count| {
                let probe = dropped.probe();
                Request::builder().own_stack().timeout(SECOND).build(move || drop(probe))
            };
            let [new, queued] = [child(&new), child(&queued)];
            queued.submit();
            time.advance(SECOND);
            [new.wait().copied(), queued.wait().copied()]
        });
        let ended = |answer: &Result<(), WaitError>| {
            matches!(answer, Err(WaitError::TargetCancelled(CancelReason::Deadline)))
        };
        // What was queued may have run.
        assert!(ended(&told[0]) && (ended(&told[1]) || told[1].is_ok()));
    });
}

#[test]
fn a_computation_that_asks_is_told() {
    let _not = not_on(Modes::Both, "it holds its worker");
    on_each_clocked(|runtime, clock| {
        // Every worker is stuck in one.
        let started = Count::new();
        let stuck: Vec<_> = (0..runtime.workers())
            .map(|_| {
                let started = started.clone();
                limited(runtime).spawn(move || {
                    started.up();
                    hold_thread_until(is_cancelled);
                    assert!(check_cancelled().is_err());
                })
            })
            .collect();
        hold_thread_until(|| started.get() == stuck.len());
        clock.advance(SECOND);
        stuck.iter().for_each(|stuck| assert_eq!(ends_cancelled(stuck), CancelReason::Deadline));
    });
}

#[test]
fn what_it_returns_after_that_is_cancelled_and_an_error_of_its_own_is_a_failure() {
    let _not = not_on(Modes::Both, "it holds its worker");
    on_each_clocked(|runtime, clock| {
        let over = clock.now() + SECOND;
        let value = limited(runtime).spawn(|| hold_thread_until(is_cancelled));
        let started = Flag::new();
        let up = started.clone();
        let error = limited(runtime).try_spawn(move || -> Result<(), forebear::Error> {
            up.raise();
            hold_thread_until(is_cancelled);
            Ok("x".parse::<u32>().map(drop)?)
        });
        until(|| clock.now() >= over || started.is_up() || runtime.workers() == 1);
        clock.set(over);
        assert_eq!(ends_cancelled(&value), CancelReason::Deadline);
        match error.wait() {
            Err(WaitError::Failed(_)) => assert!(started.is_up()),
            Err(WaitError::TargetCancelled(CancelReason::Deadline)) => assert!(!started.is_up()),
            other => panic!("{other:?}"),
        }
    });
}

#[test]
fn a_shielded_region_holds_it_back() {
    on_each_clocked(|runtime, clock| {
        let mut gate = Gate::new(runtime);
        let (closed, (tell, told)) = (gate.request(), mpsc::channel());
        let request = limited(runtime).spawn(move || {
            let inside = shield(|| closed.wait().copied());
            tell.send((inside.is_ok(), check_cancelled().is_err())).unwrap();
        });
        asleep(&request);
        clock.advance(SECOND);
        settle(runtime);
        assert!(request.is_cancelled() && request.state() == State::Suspended);
        gate.open();
        assert_eq!(told.come(), Ok((true, true)));
        assert_eq!(ends_cancelled(&request), CancelReason::Deadline);
    });
}

#[test]
fn the_first_mark_keeps_its_reason() {
    on_each_clocked(|runtime, clock| {
        let gate = Gate::new(runtime);
        let closed = gate.request();
        let request = limited(runtime).spawn(move || shield(|| closed.wait().copied()));
        asleep(&request);
        assert_eq!(request.abort(CancelReason::Other(7)), Cancellation::Marked);
        clock.advance(SECOND);
        drop(gate);
        assert_eq!(ends_cancelled(&request), CancelReason::Other(7));
    });
}

#[test]
fn a_foreign_thread_that_runs_it_is_told() {
    on_each_clocked(|runtime, clock| {
        let started = Flag::new();
        let up = started.clone();
        let request = Request::builder().on(runtime).timeout(SECOND).build(move || {
            up.raise();
            sleep(Duration::MAX).is_err()
        });
        let runs = request.clone();
        let thread = thread::spawn(move || drop(runs.wait().copied()));
        started.wait();
        clock.advance(SECOND);
        thread.joined().unwrap();
        assert_eq!(ends_cancelled(&request), CancelReason::Deadline);
    });
}

// ---- no trace -----------------------------------------------------------------------------------------------------------

#[test]
fn one_that_ends_before_its_deadline_leaves_no_trace() {
    on_each_clocked(|runtime, clock| {
        let plain = root(runtime).spawn(|| 1);
        plain.wait().unwrap();
        let before = counts(&plain.any());
        for round in 0..3 {
            let builder = limited(runtime);
            let value = builder.spawn(|| 1);
            value.wait().unwrap();
            let called = builder.build(|| 1);
            called.on_finished(|one| assert_eq!(*one, 1));
            called.wait().unwrap();
            let failed = builder.spawn(|| -> u32 { std::panic::resume_unwind(Box::new(1)) });
            assert!(failed.wait().is_err());
            let cancelled = builder.build(|| 1);
            cancelled.cancel();
            for over in [&value, &called, &failed, &cancelled] {
                assert_eq!(counts(&over.any()), before, "round {round}: {over:?}");
            }
            drop(builder.build(|| 1));
            assert_eq!(armed(runtime), 0, "round {round}");
            clock.advance(2 * SECOND);
            assert!(value.is_done() && !value.is_cancelled());
            assert_eq!(value.take().unwrap(), 1);
        }
    });
}

/// How much is armed on the clock of the runtime.
fn armed(runtime: &Runtime) -> usize {
    runtime.metrics().armed
}

// ---- inheriting ---------------------------------------------------------------------------------------------------------

#[test]
fn children_inherit_the_nearer_one() {
    on_each_clocked(|runtime, clock| {
        let start = clock.now();
        let parent = root(runtime).timeout(2 * SECOND).spawn(|| {
            let due = |builder: RequestBuilder| builder.build(|| ()).deadline();
            let grandchild = spawn(|| spawn(|| ()).deadline()).take().unwrap();
            let mut pooled = RequestPool::new();
            pooled.add(|| Request::current().unwrap().deadline());
            let pooled = pooled.collect().unwrap()[0];
            let scoped = scope(|s| s.spawn(|| Request::current().unwrap().deadline()).take().unwrap());
            let armed = join(|| (), || Request::current().unwrap().deadline()).1;
            [
                Request::new(|| ()).deadline(),
                grandchild,
                pooled,
                scoped,
                armed,
                due(Request::builder().priority(Priority::URGENT)),
                due(Request::builder().timeout(9 * SECOND)),
                due(Request::builder().timeout(SECOND)),
                due(Request::builder().detached()),
                due(Request::builder().detached().timeout(9 * SECOND)),
            ]
        });
        let told = parent.take().unwrap();
        let inherited = Some(start + 2 * SECOND);
        assert_eq!(told[..7], [inherited; 7]);
        assert_eq!(told[7..], [Some(start + SECOND), None, Some(start + 9 * SECOND)]);
    });
}

/// A parent with a deadline that leaves something behind and ends, and its deadline.
fn leaves<T: Send + 'static>(
    runtime: &Runtime,
    leave: impl FnOnce() -> T + Send + 'static,
) -> (T, AnyRequest) {
    let parent = limited(runtime).spawn(leave);
    let any = parent.any();
    (parent.take().unwrap(), any)
}

#[test]
fn children_of_all_kinds_end_with_their_parent() {
    on_each_clocked(|runtime, clock| {
        let gate = Gate::new(runtime);
        let closed = gate.request();
        let (tell, told) = mpsc::channel();
        let parent = limited(runtime).spawn(move || {
            let sleeping = Request::builder().own_stack().try_spawn(|| Ok(sleep(Duration::MAX)?));
            asleep(&sleeping);
            let queued = spawn(|| ());
            tell.send([sleeping.any(), queued.any()]).unwrap();
            let _ = closed.wait();
            tell.send([sleeping.any(), queued.any()]).unwrap();
        });
        let [sleeping, queued] = told.come().unwrap();
        asleep(&parent);
        clock.advance(SECOND);
        assert_eq!(ends_cancelled(&parent), CancelReason::Deadline);
        assert_eq!(was_cancelled(&sleeping), CancelReason::Deadline);
        until(|| queued.is_done());
    });
}

#[test]
fn a_child_that_outlives_its_parent_still_has_its_deadline() {
    on_each_clocked(|runtime, clock| {
        let (child, parent) = leaves(runtime, || {
            let child = Request::builder().own_stack().try_spawn(|| {
                // A grandchild inherits as well.
                let below = Request::builder().own_stack().try_spawn(|| Ok(sleep(Duration::MAX)?));
                asleep(&below);
                drop(below);
                Ok(sleep(Duration::MAX)?)
            });
            asleep(&child);
            child
        });
        assert!(parent.is_done() && armed(runtime) == 1);
        assert_eq!(child.deadline(), Some(clock.now() + SECOND));
        clock.advance(SECOND - NANO);
        settle(runtime);
        assert_eq!(child.state(), State::Suspended);
        clock.advance(NANO);
        assert_eq!(ends_cancelled(&child), CancelReason::Deadline);
        // It was over, and has ended as it has ended.
        assert!(!parent.is_cancelled() && parent.state() == State::Finished);
        assert_eq!(armed(runtime), 0);
    });
}

#[test]
fn so_it_has_where_time_moves_by_itself() {
    on_each(|runtime| {
        let parent = root(runtime).timeout(Duration::from_millis(3)).spawn(|| {
            let left = spawn(|| Request::builder().own_stack().try_spawn(|| Ok(sleep(Duration::MAX)?)));
            // Not if the time was over by then.
            left.take().ok()
        });
        let due = parent.deadline();
        match parent.take() {
            Ok(left) => {
                let left = left.unwrap();
                assert_eq!(left.deadline(), due);
                assert_eq!(ends_cancelled(&left), CancelReason::Deadline);
            }
            // On a busy machine the time may be over before.
            Err(error) => assert!(matches!(error, WaitError::TargetCancelled(CancelReason::Deadline))),
        }
    });
}

#[test]
fn what_a_pool_holds_back_ends_at_its_deadline_too() {
    on_each_clocked(|runtime, clock| {
        let mut gate = Gate::new(runtime);
        let closed = gate.request();
        let limited = limited(runtime).build(|| unreachable!("its time was over"));
        let (held, (tell, told)) = (limited.clone(), mpsc::channel());
        let pool = root(runtime).spawn(move || {
            let mut pool = RequestPool::new().max_active(1);
            pool.add(|| drop(shield(|| closed.wait().copied())));
            pool.include(held);
            tell.send(()).unwrap();
            pool.wait()
        });
        told.come().unwrap();
        asleep(&pool);
        assert_eq!(limited.state(), State::Queued);
        clock.advance(SECOND);
        assert_eq!(ends_cancelled(&limited), CancelReason::Deadline);
        gate.open();
        assert!(pool.wait().is_ok(), "the pool is over, whatever it tells");
    });
}

#[test]
fn a_deadline_goes_with_the_last_of_the_family() {
    on_each_clocked(|runtime, _| {
        let mut gate = Gate::new(runtime);
        let closed = gate.request();
        let (child, parent) = leaves(runtime, move || {
            let child = Request::builder().own_stack().spawn(move || drop(closed.wait()));
            asleep(&child);
            child
        });
        assert!(parent.is_done() && armed(runtime) == 1);
        gate.open();
        child.take().unwrap();
        until(|| {
            settle(runtime);
            armed(runtime) == 0
        });
        assert!(format!("{parent:?}").contains("links: 1"), "{parent:?}");
    });
}

#[test]
fn what_was_made_and_not_submitted_has_it_still() {
    on_each_clocked(|runtime, clock| {
        let (unsubmitted, _) = leaves(runtime, || [(); 3].map(|()| Request::new(|| ())));
        // Through one that is over and has no deadline of its own.
        let (below, _) = leaves(runtime, || spawn(|| Request::new(|| ())).take().unwrap());
        let [a, b, c] = unsubmitted;
        assert!(a.wait().is_ok());
        clock.advance(SECOND);
        settle(runtime);
        b.submit();
        assert_eq!(ends_cancelled(&b), CancelReason::Deadline);
        assert!(matches!(c.wait(), Err(WaitError::TargetCancelled(CancelReason::Deadline))));
        assert!(matches!(below.wait(), Err(WaitError::TargetCancelled(CancelReason::Deadline))));
    });
}

#[test]
fn what_callbacks_make_inherits_it_too() {
    on_each_clocked(|runtime, clock| {
        let (tell, told) = mpsc::channel();
        let parent = limited(runtime).build(|| ());
        parent.on_finished(move |()| {
            let child = Request::builder().own_stack().try_spawn(|| Ok(sleep(Duration::MAX)?));
            asleep(&child);
            tell.send(child).unwrap();
        });
        parent.submit();
        let child = told.come().unwrap();
        parent.wait().unwrap();
        clock.advance(SECOND);
        assert_eq!(ends_cancelled(&child), CancelReason::Deadline);
    });
}

#[test]
fn what_callbacks_make_after_it_came_ends_too() {
    on_each_clocked(|runtime, clock| {
        let mut gate = Gate::new(runtime);
        let (closed, (tell, told)) = (gate.request(), mpsc::channel());
        let parent = limited(runtime).build(|| ());
        parent.on_finished(move |()| {
            // From here on the parent is not to be cancelled any more.
            closed.wait().unwrap();
            let endless = || Ok(sleep(Duration::MAX)?);
            tell.send([try_spawn(endless), Request::builder().own_stack().try_spawn(endless)]).unwrap();
        });
        parent.submit();
        asleep(&parent);
        clock.advance(SECOND);
        settle(runtime);
        gate.open();
        let made = told.come().unwrap();
        made.iter().for_each(|child| assert_eq!(ends_cancelled(child), CancelReason::Deadline));
        assert!(parent.wait().is_ok() && !parent.is_cancelled());
    });
}

#[test]
fn a_child_that_others_want_is_spared() {
    on_each_clocked(|runtime, clock| {
        let gate = Gate::new(runtime);
        let (closed, (tell, told)) = (gate.request(), mpsc::channel());
        let parent = limited(runtime).spawn(move || {
            let child = Request::builder().own_stack().spawn(move || drop(closed.wait()));
            tell.send(child.clone()).unwrap();
            child.wait().copied()
        });
        let child = told.come().unwrap();
        let wanted = cancelling::waiter(runtime, &child);
        asleep(&parent);
        clock.advance(SECOND);
        assert_eq!(ends_cancelled(&parent), CancelReason::Deadline);
        settle(runtime);
        assert!(!child.is_cancelled());
        drop(gate);
        assert!(wanted.take().unwrap().is_ok());
    });
}

#[test]
fn one_that_is_detached_inherits_nothing() {
    on_each_clocked(|runtime, clock| {
        let gate = Gate::new(runtime);
        let closed = gate.request();
        let (tell, told) = mpsc::channel();
        let parent = limited(runtime).try_spawn(move || {
            let away = Request::builder().detached().own_stack().spawn(move || drop(closed.wait()));
            tell.send(away).unwrap();
            Ok(sleep(Duration::MAX)?)
        });
        let away = told.come().unwrap();
        asleep(&parent);
        clock.advance(SECOND);
        ends_cancelled(&parent);
        settle(runtime);
        assert!(away.deadline().is_none() && !away.is_cancelled());
        drop(gate);
        away.wait().unwrap();
    });
}

#[test]
fn scopes_and_pools_in_it_end() {
    on_each_clocked(|runtime, clock| {
        let (tell, told) = mpsc::channel();
        let in_scope = tell.clone();
        let scoped = limited(runtime).spawn(move || {
            let answer = try_scope(|s| {
                s.try_spawn(|| Ok(sleep(Duration::MAX)?));
                Ok(())
            });
            in_scope.send(matches!(answer, Err(WaitError::Cancelled))).unwrap();
        });
        asleep(&scoped);
        let pooled = limited(runtime).spawn(move || {
            let mut pool = RequestPool::new().max_active(2);
            (0..4).for_each(|_| _ = pool.try_add(|| Ok(sleep(Duration::MAX)?)));
            tell.send(matches!(pool.wait(), Err(WaitError::Cancelled))).unwrap();
        });
        asleep(&pooled);
        clock.advance(SECOND);
        assert_eq!(told.all().collect::<Vec<_>>(), [true, true]);
        assert_eq!(ends_cancelled(&scoped), CancelReason::Deadline);
        assert_eq!(ends_cancelled(&pooled), CancelReason::Deadline);
    });
}

// ---- direct execution ---------------------------------------------------------------------------------------------------

#[test]
fn a_waiter_with_a_deadline_does_not_lend_its_stack_to_what_has_not_inherited_it() {
    let _not = not_on(Modes::Synchronous, "a submit runs the target first");
    on_each_clocked(|runtime, clock| {
        let lent = |due: Option<Duration>, of_target: Option<Duration>, own: bool| {
            let with = |builder: RequestBuilder, due: Option<Duration>| match due {
                Some(after) => builder.timeout(after),
                None => builder,
            };
            let before = runtime.metrics().direct;
            let target = with(Request::builder().on(runtime), of_target);
            let foreign = (!own).then(|| target.build(|| ()));
            let asks = with(root(runtime), due).spawn(move || match foreign {
                Some(target) => target.wait().copied().unwrap(),
                None => target.build(|| ()).wait().copied().unwrap(),
            });
            asks.watch().unwrap();
            runtime.metrics().direct - before == 1
        };
        let (near, far) = (Some(SECOND), Some(2 * SECOND));
        assert!(lent(None, None, false), "nobody has one");
        assert!(lent(None, near, false), "only the target has one");
        assert!(!lent(near, None, false), "it would keep its waiter past that");
        assert!(!lent(near, far, false), "it still might");
        assert!(lent(far, near, false), "it has a nearer one");
        assert!(lent(near, None, true), "a child inherits it");
        // When none is left all is as before.
        clock.advance(9 * SECOND);
        assert!(lent(None, None, false));
    });
}

#[test]
fn a_waiter_with_a_deadline_goes_on_when_it_comes_though_its_target_runs_on() {
    on_each_clocked(|runtime, clock| {
        let gate = Gate::new(runtime);
        let closed = gate.request();
        let target = Request::builder().on(runtime).build(move || drop(closed.wait()));
        let wanted = target.clone();
        let waiter = limited(runtime).spawn(move || wanted.wait().copied());
        asleep(&waiter);
        clock.advance(SECOND);
        assert_eq!(ends_cancelled(&waiter), CancelReason::Deadline);
        drop(gate);
    });
}

// ---- order --------------------------------------------------------------------------------------------------------------

#[test]
fn among_roots_of_one_priority_the_nearest_deadline_goes_first_and_then_the_oldest() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().workers(1).clock(clock.clone()).build().unwrap();
    let log = Log::default();
    let held = hold_workers(&runtime);
    let submit = |name: &'static str, builder: RequestBuilder| {
        let log = log.clone();
        builder.name(name).spawn(move || log.note(name))
    };
    let at = |seconds| clock.now() + seconds * SECOND;
    let all = [
        submit("old", root(&runtime)),
        submit("urgent", root(&runtime).priority(Priority::URGENT)),
        submit("late", root(&runtime).deadline(at(9))),
        submit("background, soon", root(&runtime).priority(Priority::BACKGROUND).deadline(at(1))),
        submit("soon", root(&runtime).deadline(at(3))),
        submit("young", root(&runtime)),
        submit("same, younger", root(&runtime).deadline(at(9))),
        submit("urgent, late", root(&runtime).priority(Priority::URGENT).timeout(20 * SECOND)),
    ];
    held.release();
    all.iter().for_each(|one| assert!(one.watch().is_ok()));
    let expected =
        ["urgent, late", "urgent", "soon", "late", "same, younger", "old", "young", "background, soon"];
    log.check(&expected);
}

#[test]
fn a_childs_own_deadline_never_orders() {
    let clock = ManualClock::new();
    let runtime = Runtime::builder().workers(1).clock(clock).build().unwrap();
    let log = Log::default();
    let (children, note) = (log.clone(), log.clone());
    let parent = root(&runtime).spawn(move || {
        let child = |name: &'static str, builder: RequestBuilder| {
            let log = children.clone();
            builder.spawn(move || log.note(name))
        };
        drop(child("first", Request::builder()));
        drop(child("second", Request::builder().timeout(SECOND)));
        drop(child("third", Request::builder()));
        note.note("parent");
    });
    parent.watch().unwrap();
    until(|| log.told().len() == 4);
    log.check(&["parent", "first", "second", "third"]);
}

// ---- races --------------------------------------------------------------------------------------------------------------

/// Whichever comes first: each request ends once, as one of both, and nothing stays armed.
#[test]
fn deadline_end_and_cancel_at_once_leave_nothing_behind() {
    on_each_clocked(|runtime, clock| {
        for round in 0..60 {
            let mut random = support::Random::new(round);
            let ends = Arc::new(Count::new());
            let start = clock.now();
            let requests: Vec<_> = (0..12)
                .map(|n| {
                    let builder = root(runtime).deadline(start + (n % 3 + 1) * SECOND);
                    let turns = random.below(200);
                    let request = builder.build(move || {
                        let child = spawn(move || (0..turns).for_each(|_| std::hint::spin_loop()));
                        if n % 2 == 0 {
                            drop(child.take());
                        }
                    });
                    let ends = ends.clone();
                    request.on_done(move |_| _ = ends.up());
                    request
                })
                .collect();
            let chosen: Vec<_> = requests.iter().filter(|_| random.below(4) == 0).cloned().collect();
            let begin = std::sync::Barrier::new(3);
            let turns = [(); 3].map(|()| random.below(50));
            thread::scope(|threads| {
                let (begin, requests, chosen) = (&begin, &requests, &chosen);
                let wait = move |turns| {
                    begin.wait();
                    (0..turns).for_each(|_| std::hint::spin_loop());
                };
                let time = threads.spawn(move || {
                    wait(turns[0]);
                    (0..3).for_each(|_| _ = clock.advance(SECOND));
                });
                let submits = threads.spawn(move || {
                    wait(turns[1]);
                    requests.iter().for_each(|request| _ = request.submit());
                });
                let cancels = threads.spawn(move || {
                    wait(turns[2]);
                    chosen.iter().for_each(|request| _ = request.cancel());
                });
                support::join_all([time, submits, cancels]);
            });
            for request in &requests {
                match request.watch() {
                    Ok(()) => assert!(!request.is_cancelled()),
                    Err(WaitError::TargetCancelled(_)) => assert!(request.is_cancelled()),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(ends.get(), requests.len());
            drop(requests);
            drop(chosen);
            until(|| {
                settle(runtime);
                armed(runtime) == 0
            });
        }
    });
}

#[test]
fn the_end_of_a_runtime_lets_go_of_what_is_armed() {
    on_each_clocked(|runtime, _| {
        let probes = Count::new();
        let probe = probes.probe();
        let kept = limited(runtime).build(move || drop(probe));
        assert!(runtime.shutdown(SECOND).is_ok());
        drop(kept);
        assert_eq!(probes.get(), 1);
    });
}

#[test]
fn a_description_tells_the_deadline() {
    in_both_worlds(|| {
        let limited = Request::builder().name("limited").timeout(SECOND).build(|| ());
        let text = format!("{limited:?} {:?}", limited.any());
        assert_eq!(text.matches("deadline").count(), 2, "{text}");
        let plain = Request::builder().name("plain").build(|| ());
        assert_eq!(plain.deadline(), None);
        assert!(!format!("{plain:?}").contains("deadline"));
    });
}
