//! Cycles through lent stacks, joins, scopes and pools.

use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock};
use std::thread;

use forebear::{
    AnyRequest, CancelReason, OrUnwind, Request, RequestPool, State, WaitError, join, scope, shield,
};

use super::support::{Count, Flag, on_each, on_each_of, until};
use super::{Known, WORKERS, assert_goes_round, cycle, make, names};

/// `low` runs `high` on its own stack, and `other` waits for `low`.
#[test]
fn a_lent_stack_is_blocked_as_a_whole() {
    on_each_of(&WORKERS, |runtime| {
        let (known, waits) = (Known::new(), Flag::new());
        let (told, answers) = channel();
        let other = make(runtime, "other", {
            let (known, told) = (known.clone(), told.clone());
            move || told.send(cycle(known.get(0).wait())).unwrap()
        });
        let low = make(runtime, "low", {
            let (known, waits) = (known.clone(), waits.clone());
            move || {
                let high = Request::builder().name("high").build(move || {
                    known.get(1).submit();
                    until(|| known.get(1).state() == State::Suspended);
                    waits.raise();
                    told.send(cycle(known.get(1).wait())).unwrap();
                });
                high.wait().unwrap();
            }
        });
        known.set(&[low.clone(), other]);
        low.submit();
        low.wait().unwrap();
        assert!(waits.is_up());
        let told: Vec<_> = answers.iter().take(2).flatten().collect();
        assert_eq!(told.len(), 1, "{told:?}");
        assert_goes_round(&told[0], &["high", "other", "low"]);
    });
}

/// On one stack, with somebody between.
#[test]
fn who_waits_for_what_has_lent_it_its_stack_is_told_who_stands_between() {
    on_each(|runtime| {
        let (told, answers) = channel();
        let low = runtime.enter(|| {
            Request::builder().name("low").build(move || {
                let me = Request::current().unwrap();
                let middle = Request::builder().name("middle").build(move || {
                    let high =
                        Request::builder().name("high").build(move || told.send(cycle(me.wait())).unwrap());
                    high.wait().unwrap();
                });
                middle.wait().unwrap();
            })
        });
        low.wait().unwrap();
        let cycle = answers.recv().unwrap().expect("a cycle");
        assert_eq!(names(&cycle), ["high", "low", "middle", "high"]);
    });
}

/// The end of a join cannot give up: somebody else's wait is ended.
#[test]
fn a_cycle_through_a_stolen_arm_is_found_whoever_closes_it() {
    on_each_of(&[2, 4], |runtime| {
        for maker_last in [true, false] {
            let (known, stolen, asked) = (Known::new(), Flag::new(), Flag::new());
            let (told, answers) = channel();
            let helper = make(runtime, "helper", {
                let (known, told) = (known.clone(), told.clone());
                move || told.send(cycle(known.get(0).wait())).unwrap()
            });
            let maker = make(runtime, "maker", {
                let known = known.clone();
                move || {
                    let (stolen, asked) = (&stolen, &asked);
                    let known = &known;
                    join(
                        || {
                            // Until it is stolen, and then to the end of the join, sooner or later.
                            while !stolen.is_up() {
                                join(thread::yield_now, || ());
                            }
                            if maker_last {
                                until(|| asked.is_up() && known.get(1).state() == State::Suspended);
                            }
                        },
                        move || {
                            stolen.raise();
                            if !maker_last {
                                until(|| known.get(0).state() == State::Suspended);
                            }
                            known.get(1).submit();
                            asked.raise();
                            told.send(cycle(known.get(1).wait())).unwrap();
                        },
                    );
                }
            });
            known.set(&[maker.clone(), helper]);
            maker.submit();
            maker.wait().unwrap();
            let told: Vec<_> = answers.iter().take(2).flatten().collect();
            assert_eq!(told.len(), 1, "{told:?}");
            assert_goes_round(&told[0], &["maker", "helper"]);
        }
    });
}

/// A scope waits for its job, the job for `other`, and that for the request that the scope is in; with a second job beside.
/// `last` says whose wait comes last.
#[test]
fn a_cycle_through_a_scope_is_found_whoever_closes_it() {
    on_each_of(&WORKERS, |runtime| {
        for last in ["opener", "job", "other"] {
            let (known, job) = (Known::new(), Arc::new(OnceLock::<AnyRequest>::new()));
            let (told, answers) = channel();
            // Waits until all but `me` stand in their waits.
            let after_the_rest = {
                let (known, job) = (known.clone(), job.clone());
                move |me: &str| {
                    until(|| {
                        let is_suspended = |request: AnyRequest| request.state() == State::Suspended;
                        me != last
                            || (me == "opener" || is_suspended(known.get(0).to_untyped()))
                                && (me == "other" || is_suspended(known.get(1).to_untyped()))
                                && (me == "job" || job.get().cloned().is_some_and(is_suspended))
                    });
                }
            };
            let other = make(runtime, "other", {
                let (known, told, after_the_rest) = (known.clone(), told.clone(), after_the_rest.clone());
                move || {
                    after_the_rest("other");
                    told.send(cycle(known.get(0).wait())).unwrap();
                }
            });
            let opener = make(runtime, "opener", {
                let known = known.clone();
                move || {
                    scope(|s| {
                        let after_the_rest = &after_the_rest;
                        let handle = Request::builder().name("job").own_stack().spawn_in(s, move || {
                            after_the_rest("job");
                            told.send(cycle(known.get(1).wait())).unwrap();
                        });
                        s.spawn(|| ());
                        job.set(handle.to_untyped()).unwrap();
                        after_the_rest("opener");
                    });
                }
            });
            known.set(&[opener.clone(), other.clone()]);
            opener.submit();
            other.submit();
            opener.wait().unwrap();
            let told: Vec<_> = answers.iter().take(2).flatten().collect();
            assert_eq!(told.len(), 1, "{last}: {told:?}");
            assert_goes_round(&told[0], &["opener", "job", "other"]);
        }
    });
}

/// Two scopes, each of which waits for a job that waits for the request that the other is in.
#[test]
fn a_cycle_through_two_scopes_is_found() {
    on_each(|runtime| {
        for _ in 0..20 {
            let (known, ready) = (Known::new(), Count::new());
            let (told, answers) = channel();
            let opener = |me: usize| {
                let (known, told, ready) = (known.clone(), told.clone(), ready.clone());
                make(runtime, ["a", "b"][me], move || {
                    scope(|s| {
                        let ready = &ready;
                        Request::builder().name(["of a", "of b"][me]).own_stack().spawn_in(s, move || {
                            ready.up();
                            ready.wait_for(2);
                            told.send(cycle(known.get(1 - me).wait())).unwrap();
                        });
                    });
                })
            };
            let requests = [opener(0), opener(1)];
            drop(told);
            known.set(&requests);
            requests.iter().for_each(|request| _ = request.submit());
            requests.iter().for_each(|request| _ = request.wait().unwrap());
            let told: Vec<_> = answers.iter().flatten().collect();
            assert_eq!(told.len(), 1, "{told:?}");
            assert_goes_round(&told[0], &["a", "of a", "b", "of b"]);
        }
    });
}

/// No wait for a pool returns before its members are over, so none of them may wait for who waits for the pool.
#[test]
fn a_member_of_a_pool_that_waits_for_the_pools_waiter_is_told() {
    on_each_of(&WORKERS, |runtime| {
        for through in [false, true] {
            let (known, begun) = (Known::new(), Flag::new());
            let helper = make(runtime, "helper", {
                let known = known.clone();
                // It may be the one that is told; then it is the member's failure.
                move || known.get(0).wait().map(drop).or_unwind()
            });
            let waiter = make(runtime, "waiter", {
                let known = known.clone();
                move || {
                    let mut pool = RequestPool::new();
                    let (known, begun) = (&known, &begun);
                    pool.try_add(move || {
                        begun.raise();
                        until(|| known.get(0).state() == State::Suspended);
                        Ok(known.get(usize::from(through)).submit().wait().copied()?)
                    });
                    pool.try_add(move || {
                        begun.wait();
                        Ok(())
                    });
                    // Whose wait closes the cycle is told: the member's, or the pool's for the member.
                    let told = pool.wait().unwrap_err();
                    let told = match &told {
                        WaitError::Failed(failure) => failure.downcast_ref().unwrap_or(&told),
                        told => told,
                    };
                    let WaitError::CircularWait(cycle) = told else { panic!("{told:?}") };
                    let names = cycle.names().collect::<Vec<_>>();
                    assert!(names.contains(&"waiter"), "{cycle}");
                    assert_eq!(names.contains(&"helper"), through, "{cycle}");
                }
            });
            known.set(&[waiter.clone(), helper.clone()]);
            waiter.submit();
            waiter.wait().unwrap();
            let _ = helper.wait();
        }
    });
}

/// A pool that is stopped waits for what has begun, and a cancel does not end that wait.
#[test]
fn a_member_that_waits_shielded_for_the_cancelled_waiter_of_its_pool_is_told() {
    struct Gone(Flag);
    impl Drop for Gone {
        fn drop(&mut self) {
            self.0.raise();
        }
    }
    on_each_of(&WORKERS, |runtime| {
        let (known, told) = (Known::new(), Count::new());
        let (begun, stopped) = (Flag::new(), Flag::new());
        let waiter = make(runtime, "waiter", {
            let (known, told, begun, stopped) = (known.clone(), told.clone(), begun.clone(), stopped.clone());
            move || {
                let mut pool = RequestPool::new().max_active(1);
                let (held, known, told) = (Gone(stopped.clone()), &known, &told);
                pool.add(move || {
                    shield(|| {
                        begun.raise();
                        until(|| stopped.is_up());
                        if cycle(known.get(0).wait()).is_some() {
                            told.up();
                        }
                    });
                });
                // Held back until the pool is stopped.
                pool.add(move || drop(held));
                assert!(pool.wait().is_err());
            }
        });
        known.set(std::slice::from_ref(&waiter));
        waiter.submit();
        until(|| begun.is_up() && waiter.state() == State::Suspended);
        waiter.abort(CancelReason::Other(1));
        assert!(matches!(waiter.wait(), Err(WaitError::TargetCancelled(_))));
        assert_eq!(told.get(), 1);
    });
}
