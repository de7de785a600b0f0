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
