//! Regions and the arms of joins.

use super::*;

#[test]
fn a_region_in_an_arm_shelters_that_arm() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let shut = Gate::new(runtime);
        let (inside, closed) = (gate.request(), shut.request());
        let (tell, told) = mpsc::channel();
        let (tell_first, tell_second) = (tell.clone(), tell);
        let both = Count::new();
        let (a, b) = (both.clone(), both.clone());
        let request = root(runtime).spawn(move || {
            join(
                || {
                    a.up();
                    a.wait_for(2);
                    tell_first.send(("bare", closed.wait().copied())).unwrap();
                },
                || {
                    b.up();
                    b.wait_for(2);
                    // What is made here is made by the arm.
                    let child = shield(|| {
                        let sheltered = inside.clone();
                        let child = Request::builder().own_stack().spawn(move || sheltered.wait().copied());
                        child.take().and_then(|answer| answer)
                    });
                    tell_second.send(("sheltered", child)).unwrap();
                    assert!(is_cancelled());
                },
            );
        });
        until(|| both.get() == 2);
        asleep(&request);
        request.cancel();
        for _ in 0..10 {
            runtime.run(|| yield_now().unwrap());
        }
        let early: Vec<_> = told.try_iter().collect();
        assert!(early.iter().all(|(who, answer)| *who == "bare" && answer.is_err()), "{early:?}");
        gate.open();
        let rest: Vec<_> = early.into_iter().chain(told.all()).collect();
        assert!(matches!(rest.iter().find(|(who, _)| *who == "bare"), Some((_, Err(WaitError::Cancelled)))));
        assert!(matches!(rest.iter().find(|(who, _)| *who == "sheltered"), Some((_, Ok(())))), "{rest:?}");
        ends_cancelled(&request);
    });
}

#[test]
fn what_an_arm_makes_in_its_own_region_is_not_born_cancelled() {
    on_each_of(&[2, 4], |runtime| {
        let begun = Flag::new();
        let started = begun.clone();
        let (tell, told) = mpsc::channel();
        let request = root(runtime).spawn(move || {
            let done = Flag::new();
            join(
                || {
                    while !begun.is_up() {
                        join(|| (), || ());
                    }
                    hold_thread_until(|| done.is_up());
                },
                || {
                    begun.raise();
                    hold_thread_until(is_cancelled);
                    let born = shield(|| {
                        [spawn(|| 7), Request::builder().own_stack().spawn(|| 7)].map(Request::take)
                    });
                    done.raise();
                    tell.send(born).unwrap();
                },
            );
        });
        until(|| started.is_up());
        request.cancel();
        let born = told.come().unwrap();
        assert!(matches!(born, [Ok(7), Ok(7)]), "{born:?}");
        ends_cancelled(&request);
    });
}

/// The other arm begins while the first one is suspended in its region.
#[test]
fn a_region_in_an_arm_does_not_shelter_an_arm_that_begins_meanwhile() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let request = runtime.spawn(|| {
        Request::current().unwrap().abort(CancelReason::Asked);
        let (other_is_over, never) = (Event::new(), Event::new());
        let (first, second) = join(
            || shield(|| other_is_over.wait_timeout(LONG)),
            || {
                let refused = never.wait_timeout(LONG);
                other_is_over.set();
                refused
            },
        );
        assert!(first.is_ok(), "{first:?}");
        assert!(matches!(second, Err(TimeoutError::Cancelled)), "{second:?}");
    });
    // With a limit, so that this thread does not run it.
    let ended = request.wait_timeout(LONG).copied();
    assert!(matches!(ended, Err(WaitError::TargetCancelled(CancelReason::Asked))), "{ended:?}");
}

/// A join whose first closure waits in a region for what the second one does once its own wait is refused. `begun` counts the closures that are about to wait.
fn region_waits_for_the_other_arm(begun: &Count) {
    let (refused, never) = (Event::new(), Event::new());
    let (first, second) = join(
        || {
            shield(|| {
                begun.up();
                refused.wait_timeout(LONG)
            })
        },
        || {
            begun.up();
            let wait = never.wait_timeout(LONG);
            assert!(is_cancelled());
            assert!(matches!(spawn(|| 7).take(), Err(WaitError::Cancelled)), "made by what is cancelled");
            refused.set();
            wait
        },
    );
    assert!(first.is_ok(), "{first:?}");
    assert!(matches!(second, Err(TimeoutError::Cancelled)), "{second:?}");
}

#[test]
fn the_other_arm_hears_of_a_cancel_that_comes_in_the_region() {
    on_each_of(&[1, 2, 4], |runtime| {
        let begun = Count::new();
        let both = begun.clone();
        let request = root(runtime).spawn(move || region_waits_for_the_other_arm(&both));
        until(|| begun.get() == 2);
        assert_eq!(request.cancel(), Cancellation::Marked);
        ends_cancelled(&request);
    });
}

/// The same where the cancel comes from the request's own deadline, and where it spreads from the parent.
#[test]
fn the_other_arm_hears_of_a_deadline_and_of_an_ancestors_cancel_in_the_region() {
    on_each_of(&[1, 2], |runtime| {
        let timed = root(runtime).timeout(Duration::from_millis(20));
        let timed = timed.spawn(|| region_waits_for_the_other_arm(&Count::new()));
        assert_eq!(ends_cancelled(&timed), CancelReason::Deadline);

        let begun = Count::new();
        let both = begun.clone();
        let (tell, told) = mpsc::channel();
        let parent = root(runtime).spawn(move || {
            let child = Request::builder().own_stack().spawn(move || region_waits_for_the_other_arm(&both));
            tell.send(child.clone()).unwrap();
            child.wait().copied()
        });
        let child = told.come().unwrap();
        until(|| begun.get() == 2);
        assert_eq!(parent.cancel(), Cancellation::Marked);
        ends_cancelled(&parent);
        assert_eq!(ends_cancelled(&child), CancelReason::Parent);
    });
}

/// The maker of the region's other arm is an arm itself.
#[test]
fn the_other_arm_of_a_region_inside_an_arm_hears_of_the_cancel() {
    on_each_of(&[1, 2], |runtime| {
        let begun = Count::new();
        let inner = begun.clone();
        let request = root(runtime).spawn(move || {
            let never = Event::new();
            let (first, ()) = join(|| never.wait_timeout(LONG), || region_waits_for_the_other_arm(&inner));
            assert!(matches!(first, Err(TimeoutError::Cancelled)), "{first:?}");
        });
        until(|| begun.get() == 2);
        assert_eq!(request.cancel(), Cancellation::Marked);
        ends_cancelled(&request);
    });
}

/// An arm cancels its own request while the other one is in a region.
#[test]
fn an_arm_that_cancels_its_request_beside_a_region_is_refused_at_once() {
    on_each_of(&[1, 2], |runtime| {
        let request = root(runtime).spawn(|| {
            let (refused, begun, never) = (Event::new(), Event::new(), Event::new());
            let (first, second) = join(
                || {
                    shield(|| {
                        begun.set();
                        refused.wait_timeout(LONG)
                    })
                },
                || {
                    begun.wait().unwrap();
                    cancel_me();
                    let wait = never.wait_timeout(LONG);
                    refused.set();
                    wait
                },
            );
            assert!(first.is_ok(), "{first:?}");
            assert!(matches!(second, Err(TimeoutError::Cancelled)), "{second:?}");
        });
        ends_cancelled(&request);
    });
}

/// The maker of the inner arms is an arm, and not the request.
#[test]
fn a_region_in_an_arm_shelters_the_arms_of_a_join_inside() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let request = runtime.spawn(|| {
        let [outer, inner, never] = [(); 3].map(|()| Event::new());
        let (first, second) = join(
            // Suspended, so the other arm runs on a stack of its own.
            || outer.wait_timeout(LONG),
            || {
                shield(|| {
                    Request::current().unwrap().abort(CancelReason::Asked);
                    join(
                        || inner.wait_timeout(LONG),
                        || {
                            let waited = (is_cancelled(), never.wait_timeout(Duration::from_millis(1)));
                            inner.set();
                            waited
                        },
                    )
                })
            },
        );
        assert!(matches!(first, Err(TimeoutError::Cancelled)), "{first:?}");
        assert!(matches!(second, (Ok(()), (false, Err(TimeoutError::TimedOut)))), "{second:?}");
    });
    // With a limit, so that this thread does not run it.
    let ended = request.wait_timeout(LONG).copied();
    assert!(matches!(ended, Err(WaitError::TargetCancelled(CancelReason::Asked))), "{ended:?}");
}

/// A join inside a region: both arms are sheltered, also the one that another worker takes.
#[test]
fn arms_made_in_a_region_are_sheltered() {
    on_each(|runtime| {
        let request = root(runtime).spawn(|| {
            shield(|| {
                cancel_me();
                let both = Count::new();
                join(
                    || {
                        both.up();
                        both.wait_for(2);
                        assert!(!is_cancelled() && yield_now().is_ok());
                        assert_eq!(spawn(|| 1).take().unwrap(), 1);
                    },
                    || {
                        both.up();
                        both.wait_for(2);
                        assert!(!is_cancelled() && yield_now().is_ok());
                        assert_eq!(spawn(|| 2).take().unwrap(), 2);
                    },
                );
            });
            assert!(is_cancelled());
        });
        ends_cancelled(&request);
    });
}

/// A region in one arm does not take from the other what it has been told.
#[test]
fn a_region_in_one_arm_does_not_un_cancel_the_other() {
    on_each_of(&[2, 4], |runtime| {
        let [begun, told, open, close] = [(); 4].map(|()| Flag::new());
        let started = begun.clone();
        let request = root(runtime).spawn(move || {
            join(
                || {
                    // Each fork offers the other arm to a hungry worker; this one keeps its thread.
                    while !begun.is_up() {
                        join(|| (), || ());
                    }
                    hold_thread_until(|| told.is_up());
                    shield(|| {
                        open.raise();
                        hold_thread_until(|| close.is_up());
                    });
                },
                || {
                    begun.raise();
                    hold_thread_until(is_cancelled);
                    told.raise();
                    hold_thread_until(|| open.is_up());
                    let still = is_cancelled();
                    close.raise();
                    assert!(still, "cancelled, and then not");
                },
            );
        });
        until(|| started.is_up());
        request.cancel();
        ends_cancelled(&request);
    });
}
