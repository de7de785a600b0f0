//! A select as a wait: for requests, cancelled, by its urgency.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebear::channel::{RecvError, SendError, TrySendError, bounded};
use forebear::select::cancelled;
use forebear::sync::{Event, Mutex};
use forebear::time::after;
use forebear::{CancelReason, Cancellation, Priority, Request, WaitError, no_suspend, select};

use super::cancelling::{Gate, asleep, ends_cancelled};
use super::support::order::{self, on_one, open_beside_a_normal_one, root};
use super::support::{Flag, on_each};
use super::{LONG, support};

// ---- requests -------------------------------------------------------------------------------------------------------

#[test]
fn a_request_is_submitted_and_wanted_while_it_is_waited_for() {
    // The target begins when the select has left the one worker.
    on_one(|runtime, _| {
        let (sender, receiver) = bounded::<u32>(0);
        let gate = Gate::new(runtime);
        let shut = gate.request();
        let target = Request::builder().on(runtime).own_stack().try_build(move || {
            shut.wait()?;
            Ok(())
        });
        let theirs = target.clone();
        let select = root(runtime).spawn(move || {
            select! {
                done = &theirs => { done.unwrap(); 1 }
                n = &receiver => n.unwrap(),
            }
        });
        asleep(&select);
        asleep(&target);
        assert_eq!(target.cancel(), Cancellation::Vetoed);
        sender.send(2).unwrap();
        assert_eq!(*select.wait().unwrap(), 2);
        // The veto is remembered: when the one that wanted it goes, it is cancelled after all.
        ends_cancelled(&target);
    });
}

#[test]
fn requests_that_end_are_told_as_a_wait_would_tell() {
    on_each(|runtime| {
        let failing = runtime.spawn(|| -> u32 { std::panic::resume_unwind(Box::new("no")) });
        let error = select! { n = &failing => n.err() };
        assert!(matches!(error, Some(WaitError::Failed(_))), "{error:?}");
        let gone = root(runtime).spawn(|| Request::current().unwrap().abort(CancelReason::Other(3)));
        let error = select! { n = &gone => n.err() };
        assert!(matches!(error, Some(WaitError::TargetCancelled(CancelReason::Other(3)))), "{error:?}");
        let itself = Request::builder().on(runtime).spawn(|| {
            let me = Request::current().unwrap();
            let told = select! { done = &me => matches!(done, Err(WaitError::CircularWait(_))) };
            assert!(told);
        });
        itself.wait().unwrap();
        // Of many, whichever ends first; all of them end.
        let requests: Vec<_> = (0..4).map(|n| runtime.spawn(move || n)).collect();
        let mut left: BTreeSet<usize> = (0..4).collect();
        while !left.is_empty() {
            let of = |n: usize| left.contains(&n).then_some(&requests[n]);
            let n = select! {
                n = of(0) => *n.unwrap(),
                n = of(1) => *n.unwrap(),
                n = of(2) => *n.unwrap(),
                n = of(3) => *n.unwrap(),
            };
            assert!(left.remove(&n));
        }
    });
}

#[test]
fn requests_of_several_runtimes_may_stand_in_one_select() {
    on_each(|runtime| {
        let other = support::runtime(1);
        for round in 0..50 {
            let (here, there) = (runtime.spawn(move || round), other.spawn(move || round));
            let theirs = (here.clone(), there.clone());
            let select = runtime.spawn(move || {
                let mut got = Vec::new();
                let (mut one, mut two) = (Some(&theirs.0), Some(&theirs.1));
                while one.is_some() || two.is_some() {
                    select! {
                        n = one => { got.push(*n.unwrap()); one = None }
                        n = two => { got.push(*n.unwrap()); two = None }
                    }
                }
                got
            });
            assert_eq!(select.wait().unwrap(), &[round, round]);
        }
    });
}

// ---- cancellation ---------------------------------------------------------------------------------------------------

#[test]
fn a_cancel_ends_a_select_at_once_by_the_arm_that_can_say_so() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (sender, receiver) = bounded::<u32>(0);
        let flag = Flag::new();
        let target = gate.request();
        let ways: [Box<dyn FnOnce() -> u32 + Send>; 5] = [
            Box::new({
                let receiver = receiver.clone();
                move || {
                    select! {
                        n = &receiver => { n.unwrap(); 9 },
                        _ = cancelled() => 0,
                        () = after(LONG) => 9,
                    }
                }
            }),
            Box::new({
                let receiver = receiver.clone();
                move || {
                    select! {
                        () = after(LONG) => 9,
                        n = &receiver => { assert_eq!(n, Err(RecvError::Cancelled)); 1 }
                        n = &receiver => { n.unwrap(); 9 }
                    }
                }
            }),
            Box::new({
                let receiver = receiver.clone();
                let sender = sender.clone();
                move || {
                    select! {
                        sent = sender.send_arm(5) => { assert_eq!(sent, Err(SendError::Cancelled(5))); 2 }
                        n = &receiver => { n.unwrap(); 9 }
                    }
                }
            }),
            Box::new(move || {
                select! {
                    done = &target => { assert!(matches!(done, Err(WaitError::Cancelled))); 3 }
                }
            }),
            Box::new({
                let flag = flag.clone();
                move || {
                    struct Raises(Flag);
                    impl Drop for Raises {
                        fn drop(&mut self) {
                            self.0.raise();
                        }
                    }
                    let _raises = Raises(flag);
                    select! { () = after(LONG) => 9 }
                }
            }),
        ];
        for (n, way) in ways.into_iter().enumerate() {
            let got = Arc::new(Mutex::new(None));
            let told = got.clone();
            let request = root(runtime).spawn(move || *told.lock() = Some(way()));
            let _ = &request;
            asleep(&request);
            assert_eq!(request.cancel(), Cancellation::Marked);
            ends_cancelled(&request);
            let got = *got.lock();
            assert_eq!(got, (n < 4).then_some(n as u32));
        }
        flag.wait();
        assert_eq!(sender.try_send(1), Err(TrySendError::Full(1)));
    });
}

/// Both happen before it goes on. What had been handed to an arm would be lost; of an event nothing is.
#[test]
fn a_select_that_is_cancelled_when_an_event_has_woken_it_tells_of_the_cancel() {
    on_one(|runtime, _| {
        for says_so in [true, false] {
            let event = Arc::new(Event::new());
            let (theirs, told) = (event.clone(), Arc::new(Mutex::new(None)));
            let tells = told.clone();
            let request = root(runtime).spawn(move || {
                let is_told = if says_so {
                    select! { happened = &*theirs => happened.is_err(), _ = cancelled() => true }
                } else {
                    select! { happened = &*theirs => happened.is_err() }
                };
                *tells.lock() = Some(is_told);
            });
            asleep(&request);
            let theirs = request.clone();
            let both = root(runtime).spawn(move || {
                event.set();
                theirs.cancel()
            });
            assert_eq!(both.take().unwrap(), Cancellation::Marked);
            ends_cancelled(&request);
            assert_eq!(*told.lock(), Some(true));
        }
    });
}

#[test]
fn in_a_cancelled_request_a_select_takes_nothing() {
    on_each(|runtime| {
        let (sender, receiver) = bounded(1);
        sender.send(1).unwrap();
        let theirs = receiver.clone();
        let request = root(runtime).spawn(move || {
            Request::current().unwrap().abort(CancelReason::Asked);
            select! { n = &theirs => assert_eq!(n, Err(RecvError::Cancelled)) }
            select! { n = &theirs => _ = n.unwrap(), _ = cancelled() => () }
        });
        ends_cancelled(&request);
        assert_eq!(receiver.try_recv(), Ok(1));
    });
}

// ---- order ----------------------------------------------------------------------------------------------------------

#[test]
fn a_select_stands_by_its_urgency() {
    on_one(|runtime, _| {
        let (sender, receiver) = bounded(0);
        let wait = |priority| {
            let receiver = receiver.clone();
            let request = root(runtime).priority(priority).spawn(move || {
                select! {
                    n = &receiver => n.unwrap(),
                    () = after(LONG) => unreachable!(),
                }
            });
            asleep(&request);
            request
        };
        let normal = wait(Priority::NORMAL);
        let urgent = wait(Priority::URGENT);
        // The last has come to its wait when something else can run.
        runtime.spawn(|| ()).wait().unwrap();
        sender.try_send(1).unwrap();
        sender.try_send(2).unwrap();
        assert_eq!((*urgent.wait().unwrap(), *normal.wait().unwrap()), (1, 2));
    });
}

#[test]
fn who_waits_for_a_select_makes_all_that_it_waits_for_more_urgent() {
    on_one(|runtime, log| {
        let gate = order::Gate::new(runtime);
        let targets = ["first", "second"].map(|name| {
            let (log, gate) = (log.clone(), gate.request.clone());
            let target = root(runtime).priority(Priority::BACKGROUND).spawn(move || {
                gate.wait().unwrap();
                log.note(name);
            });
            asleep(&target);
            target
        });
        let selecting = {
            let (log, targets) = (log.clone(), targets.clone());
            root(runtime).priority(Priority::BACKGROUND).spawn(move || {
                select! {
                    first = &targets[0] => first.unwrap(),
                    second = &targets[1] => second.unwrap(),
                    () = after(LONG) => unreachable!(),
                };
                log.note("select");
            })
        };
        asleep(&selecting);
        let waiter = {
            let (log, selecting) = (log.clone(), selecting.clone());
            root(runtime).priority(Priority::URGENT).spawn(move || {
                selecting.wait().unwrap();
                log.note("urgent");
            })
        };
        asleep(&waiter);
        open_beside_a_normal_one(runtime, &log, gate, &[&waiter, &targets[0], &targets[1]]);
        log.check(&["first", "second", "select", "urgent", "normal"]);
    });
}

#[test]
fn where_nothing_may_wait_it_panics_by_name() {
    on_each(|runtime| {
        let request = runtime.spawn(|| {
            let (_sender, receiver) = bounded::<u32>(0);
            let wait = || no_suspend("the region", || select! { n = &receiver => n.is_ok() });
            let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(wait)).unwrap_err();
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
            assert!(text.contains("the region") && text.contains("select!"), "{text}");
        });
        request.wait().unwrap();
    });
}
