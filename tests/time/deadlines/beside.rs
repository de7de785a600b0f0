//! Beside all else: direct execution, order, and races with ends and cancels.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forebear::time::{Clock, ManualClock};
use forebear::{CancelReason, Priority, Request, RequestBuilder, Runtime, WaitError, spawn};

use super::cancelling::{Gate, asleep, ends_cancelled, on_each_clocked};
use super::support::order::{Log, root};
use super::support::{Count, Modes, hold_workers, in_both_worlds, not_on, until, visit_workers};
use super::{SECOND, armed, limited, support};

// ---- direct execution -----------------------------------------------------------------------------------------------

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

// ---- order ----------------------------------------------------------------------------------------------------------

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

// ---- races ----------------------------------------------------------------------------------------------------------

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
                visit_workers(runtime);
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
        let text = format!("{limited:?} {:?}", limited.to_untyped());
        assert_eq!(text.matches("deadline").count(), 2, "{text}");
        let plain = Request::builder().name("plain").build(|| ());
        assert_eq!(plain.deadline(), None);
        assert!(!format!("{plain:?}").contains("deadline"));
    });
}
