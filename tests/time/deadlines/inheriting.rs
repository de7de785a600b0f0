//! Whose it is besides: what a request makes inherits it.

use std::sync::mpsc;
use std::time::Duration;

use forebear::time::{Clock, sleep};
use forebear::{
    AnyRequest, CancelReason, Priority, Request, RequestBuilder, RequestPool, Runtime, State, WaitError,
    join, scope, shield, spawn, try_scope, try_spawn,
};

use super::cancelling;
use super::cancelling::{Gate, asleep, ends_cancelled, on_each_clocked, was_cancelled};
use super::support::order::root;
use super::support::{Come, on_each, until, visit_workers};
use super::{NANO, SECOND, armed, limited, settle};

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
    let any = parent.to_untyped();
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
            tell.send([sleeping.to_untyped(), queued.to_untyped()]).unwrap();
            let _ = closed.wait();
            tell.send([sleeping.to_untyped(), queued.to_untyped()]).unwrap();
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
        // The worker takes the entry back first, and then gives the family's link up.
        until(|| {
            visit_workers(runtime);
            armed(runtime) == 0 && format!("{parent:?}").contains("links: 1")
        });
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
