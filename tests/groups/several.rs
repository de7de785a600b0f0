//! Waiting for several requests: the first, all, and one after the other as they end.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::sync::{Arc, OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use cancelling::{Gate, asleep, ends_cancelled, on_each_clocked, waiter};
use forebear::time::timeout;
use forebear::{
    CancelReason, Cancellation, Cancelled, Completer, Error, Request, RequestSet, Runtime, ShutdownError,
    TimeoutError, WaitError, no_suspend, spawn, try_scope, wait_all, wait_first, yield_now,
};
use support::order::root;
use support::{Come, Flag, Joined, Modes, fitting, in_both_worlds, not_on, on_each, on_each_of, until};

const SECOND: Duration = Duration::from_secs(1);

type Promised = (Vec<Option<Completer<usize>>>, Vec<Request<usize>>);

fn promised(runtime: &Runtime, n: usize) -> Promised {
    runtime.enter(|| (0..n).map(|_| Request::completer("answer")).map(|(c, r)| (Some(c), r)).unzip())
}

fn complete(completers: &mut [Option<Completer<usize>>], at: usize) {
    completers[at].take().unwrap().complete(at).unwrap();
}

#[test]
fn a_set_gives_its_requests_in_the_order_in_which_they_end() {
    in_both_worlds(|| {
        let (mut completers, answers) = promised(&Runtime::current(), 10);
        let mut set: RequestSet<usize> = answers.into_iter().collect();
        assert_eq!(set.len(), 10);
        assert!(set.try_next().is_none());
        let order = [3, 1, 4, 5, 9, 2, 6, 8, 7, 0];
        for at in order {
            complete(&mut completers, at);
        }
        for at in order {
            let (number, request) = set.wait_next().unwrap().unwrap();
            assert_eq!((number, request.take().unwrap()), (at, at));
        }
        assert!(set.wait_next().unwrap().is_none() && set.is_empty());
    });
}

#[test]
fn a_wait_for_the_next_goes_on_when_one_ends() {
    on_each(|runtime| {
        let (mut completers, answers) = promised(runtime, 3);
        let (told, numbers) = mpsc::channel();
        let request = root(runtime).spawn(move || {
            for (number, answer) in RequestSet::from_iter(answers) {
                told.send((number, answer.take().unwrap())).unwrap();
            }
        });
        for at in [2, 0, 1] {
            asleep(&request);
            complete(&mut completers, at);
            support::until(|| !matches!(request.state(), forebear::State::Queued));
            assert_eq!(support::Come::come(&numbers).unwrap(), (at, at));
        }
        request.take().unwrap();
    });
}

#[test]
fn requests_are_put_in_between_two_waits() {
    in_both_worlds(|| {
        let mut set = RequestSet::new();
        let mut values: Vec<usize> = Vec::new();
        for n in 0..3 {
            values.push(10 * n);
            assert_eq!(set.insert(Request::new(move || 10 * n)), n);
        }
        let mut seen = 0;
        while let Some((number, request)) = set.wait_next().unwrap() {
            assert_eq!(request.take().unwrap(), values[number]);
            seen += 1;
            if values.len() < 20 {
                // What is put in late has a number of its own, though it has another's place.
                let value = values.len() * 7;
                values.push(value);
                assert_eq!(set.insert(spawn(move || value)), values.len() - 1);
            }
        }
        assert_eq!(seen, 20);
    });
}

#[test]
fn failures_and_cancels_come_out_like_any_end() {
    on_each(|runtime| {
        let bad = root(runtime).try_build::<u32>(|| Err(Error::other("no")));
        let never = root(runtime).build(|| 1);
        never.cancel();
        let mut set = RequestSet::from_iter([bad, never, Request::ready(7)]);
        let mut ends = [None, None, None];
        while let Some((number, request)) = set.wait_next().unwrap() {
            ends[number] = Some(request.take());
        }
        let [bad, never, ready] = ends.map(Option::unwrap);
        assert!(matches!(bad, Err(WaitError::Failed(_))));
        assert!(matches!(never, Err(WaitError::TargetCancelled(_))));
        assert_eq!(ready.unwrap(), 7);
    });
}

#[test]
fn a_set_wants_its_requests_until_it_is_dropped() {
    on_each_of(&[1, 2], |runtime| {
        let (_completers, answers) = promised(runtime, 2);
        let set: RequestSet<usize> = answers.iter().cloned().collect();
        assert_eq!(answers[0].cancel(), forebear::Cancellation::Vetoed);
        drop(set);
        ends_cancelled(&answers[0]);
        assert!(!answers[1].is_cancelled());
        RequestSet::from_iter([answers[1].clone()]).cancel();
        ends_cancelled(&answers[1]);
    });
}

#[test]
fn a_cancelled_request_goes_on_at_once_and_its_members_with_it() {
    on_each(|runtime| {
        let (give, child) = mpsc::channel();
        let request = root(runtime).try_build(move || {
            let child = spawn(|| while yield_now().is_ok() {});
            give.send(child.to_untyped()).unwrap();
            let mut set = RequestSet::from_iter([child]);
            set.wait_next()?;
            Ok(())
        });
        request.submit();
        asleep(&request);
        let child = child.recv().unwrap();
        request.abort(CancelReason::Asked);
        ends_cancelled(&request);
        cancelling::was_cancelled(&child);
        // And it waits no more.
        let late = root(runtime).spawn(|| {
            Request::current().unwrap().abort(CancelReason::Asked);
            let mut set = RequestSet::from_iter([Request::ready(1)]);
            assert!(matches!(set.wait_next(), Err(Cancelled { .. })));
            assert!(matches!(wait_all([&Request::ready(1)]), Ok(_) | Err(WaitError::Cancelled)));
        });
        ends_cancelled(&late);
    });
}

#[test]
fn waits_for_several_have_time_outs() {
    let _out = not_on(Modes::Both, "time is moved by hand");
    on_each_clocked(|runtime, clock| {
        let (mut completers, answers) = promised(runtime, 2);
        let mut set: RequestSet<usize> = answers.into_iter().collect();
        assert!(matches!(set.wait_next_timeout(Duration::ZERO), Err(TimeoutError::TimedOut)));
        let waits = root(runtime).spawn(move || {
            let came = set.wait_next_timeout(Duration::from_secs(1));
            (matches!(came, Err(TimeoutError::TimedOut)), set)
        });
        asleep(&waits);
        clock.advance(Duration::from_secs(2));
        let (timed_out, mut set) = waits.take().unwrap();
        assert!(timed_out && set.len() == 2);
        complete(&mut completers, 1);
        assert_eq!(set.wait_next_timeout(Duration::from_secs(1)).unwrap().unwrap().0, 1);
    });
}

#[test]
fn it_is_refused_by_name_where_it_must_not_suspend() {
    on_each(|runtime| {
        let (completers, answers) = promised(runtime, 1);
        let request = root(runtime)
            .spawn(move || no_suspend("a region", || RequestSet::from_iter(answers).wait_next().map(drop)));
        let Err(WaitError::Failed(failure)) = request.take() else { panic!() };
        assert!(format!("{failure:#}").contains("a region"), "{failure:#}");
        drop(completers);
    });
}

// ---- the first, and all ----------------------------------------------------------------------------------------------

#[test]
fn the_first_that_is_over_is_told_and_the_others_go_on() {
    on_each(|runtime| {
        let (mut completers, answers) = promised(runtime, 3);
        let asked = answers.clone();
        let first = root(runtime).spawn(move || wait_first(&asked));
        asleep(&first);
        complete(&mut completers, 1);
        assert_eq!(first.take().unwrap(), Ok(Some(1)));
        assert!(answers.iter().all(|answer| !answer.is_cancelled()));
        complete(&mut completers, 0);
        assert_eq!(wait_first(&answers), Ok(Some(0)));
        assert_eq!(wait_first::<usize>([]), Ok(None));
    });
}

#[test]
fn all_are_waited_for_in_the_order_given() {
    in_both_worlds(|| {
        let requests: Vec<_> = (0..100).map(|n| spawn(move || n)).collect();
        assert!(wait_all(&requests).unwrap().into_iter().copied().eq(0..100));
        let unsubmitted: Vec<_> = (0..100).map(|n| Request::new(move || n)).collect();
        assert!(wait_all(&unsubmitted).unwrap().into_iter().copied().eq(0..100));
        assert!(wait_all::<u32>([]).unwrap().is_empty());
    });
}

#[test]
fn the_first_failure_is_told_as_soon_as_it_is_known() {
    on_each(|runtime| {
        let (mut completers, answers) = promised(runtime, 3);
        let asked = answers.clone();
        let all = root(runtime).try_build(move || Ok(wait_all(&asked)?.len()));
        all.submit();
        asleep(&all);
        // It waits for the first; the last one fails.
        completers[2].take().unwrap().fail(Error::other("unplugged"));
        let Err(WaitError::Failed(failure)) = all.take() else { panic!() };
        assert!(format!("{failure:#}").contains("unplugged"), "{failure:#}");
        assert!(!answers[0].is_done() && !answers[0].is_cancelled());
        // On a thread, and before it waits.
        assert!(matches!(wait_all(&answers), Err(WaitError::Failed(_))));
        complete(&mut completers, 0);
        answers[1].abort(CancelReason::Asked);
        assert!(matches!(wait_all(&answers[..2]), Err(WaitError::TargetCancelled(_))));
    });
}

#[test]
fn a_cycle_through_a_wait_for_all_is_named() {
    on_each(|runtime| {
        let (give, other) = mpsc::channel::<Request<()>>();
        let first = root(runtime).name("first").try_build(move || {
            let other = other.recv().unwrap();
            wait_all([&Request::ready(()), &other])?;
            Ok(())
        });
        let target = first.clone();
        let second = root(runtime).name("second").try_build(move || {
            wait_all([&target])?;
            Ok(())
        });
        give.send(second.clone()).unwrap();
        first.submit();
        second.submit();
        let told: Vec<_> = [first.wait(), second.wait()].into_iter().filter_map(Result::err).collect();
        let names = told.iter().find_map(|error| error.cycle()).expect("a cycle is named").to_string();
        assert!(names.contains("first") && names.contains("second"), "{names}");
    });
}

#[test]
fn what_waits_for_all_is_cancelled_like_any_wait() {
    on_each(|runtime| {
        let (_completers, answers) = promised(runtime, 2);
        let all = root(runtime).try_build(move || Ok(wait_all(&answers)?.len()));
        all.submit();
        asleep(&all);
        all.abort(CancelReason::Asked);
        ends_cancelled(&all);
    });
}

// ---- a cancel, while a target runs on the waiter's stack ---------------------------------------------------------------

type Told = Request<Result<(), WaitError>>;

/// Unsubmitted requests of the caller's that wait for the gate.
fn gated(gate: &Request<()>) -> [Told; 2] {
    [(); 2].map(|()| {
        let gate = gate.clone();
        Request::new(move || gate.wait().copied())
    })
}

/// A root that waits for all of two children; and the children. The first sleeps by now, with one worker on the waiter's stack.
fn waits_for_both(runtime: &Runtime, gate: &Gate) -> (Request<()>, [Told; 2]) {
    let (gate, (give, given)) = (gate.request(), mpsc::channel());
    let waiter = root(runtime).name("all").try_spawn(move || {
        let both = gated(&gate);
        give.send(both.clone()).unwrap();
        wait_all(&both)?;
        Ok(())
    });
    let both = given.come().unwrap();
    asleep(&both[0]);
    (waiter, both)
}

#[test]
fn who_waits_for_all_continues_at_once_when_it_is_cancelled_and_what_it_alone_wants_with_it() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        for aborts in [false, true] {
            let (waiter, both) = waits_for_both(runtime, &gate);
            let told = if aborts { waiter.abort(CancelReason::Asked) } else { waiter.cancel() };
            assert_eq!(told, Cancellation::Marked);
            ends_cancelled(&waiter);
            for target in &both {
                assert_eq!(ends_cancelled(target), CancelReason::Parent);
            }
        }
    });
    on_each_of(&[1], |runtime| {
        let (gate, before) = (Gate::new(runtime), runtime.metrics().direct);
        let (waiter, _) = waits_for_both(runtime, &gate);
        assert_eq!(runtime.metrics().direct, before + 1, "the first runs on the waiter's stack");
        waiter.abort(CancelReason::Asked);
    });
}

#[test]
fn who_waits_for_all_is_ended_by_its_deadline_and_by_a_region_in_time() {
    let _out = not_on(Modes::Both, "time is moved by hand");
    on_each_clocked(|runtime, clock| {
        let gate = Gate::new(runtime);
        let start = |limited: bool| {
            let (gate, (give, given)) = (gate.request(), mpsc::channel());
            let builder = if limited { root(runtime).timeout(SECOND) } else { root(runtime) };
            let waiter = builder.try_spawn(move || {
                let wait = || {
                    let both = gated(&gate);
                    give.send(both.clone()).unwrap();
                    wait_all(&both).map(drop)
                };
                if limited {
                    wait()?;
                } else {
                    assert!(matches!(timeout(SECOND, wait), Err(WaitError::TimedOut)));
                }
                Ok(())
            });
            let both = given.come().unwrap();
            asleep(&both[0]);
            clock.advance(2 * SECOND);
            both.iter().for_each(|target| _ = ends_cancelled(target));
            waiter
        };
        assert_eq!(ends_cancelled(&start(true)), CancelReason::Deadline);
        start(false).take().unwrap();
    });
}

#[test]
fn who_waits_for_all_is_ended_by_a_failing_sibling() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (gate, first) = (gate.request(), OnceLock::<Told>::new());
        let owner = root(runtime).try_spawn(move || {
            Ok(try_scope(|scope| {
                scope.try_spawn(|| {
                    let both = gated(&gate);
                    first.set(both[0].clone()).unwrap();
                    wait_all(&both)?;
                    Ok(())
                });
                until(|| first.get().is_some());
                asleep(first.get().unwrap());
                scope.try_spawn(|| Ok(_ = "x".parse::<u32>()?));
                Ok(())
            })?)
        });
        assert!(matches!(owner.watch(), Err(WaitError::Failed(_))));
    });
}

#[test]
fn what_others_want_goes_on_when_who_waits_for_all_is_cancelled() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let (all, [here, other]) = waits_for_both(runtime, &gate);
        // While it is not cancelled, it spares both.
        assert_eq!((here.cancel(), other.cancel()), (Cancellation::Vetoed, Cancellation::Vetoed));
        // If the first runs on its stack, it waits for that on.
        let wants = waiter(runtime, &here);
        assert_eq!(all.cancel(), Cancellation::Marked);
        ends_cancelled(&other);
        assert!(!here.is_cancelled());
        gate.open();
        ends_cancelled(&all);
        assert!(wants.take().unwrap().is_ok() && here.get().unwrap().is_ok());
    });
}

#[test]
fn who_waits_for_a_member_of_its_set_continues_at_once_when_it_is_cancelled() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        for nested in [false, true] {
            let (gate, (give, given)) = (gate.request(), mpsc::channel());
            let waiter = root(runtime).try_spawn(move || {
                let [member, _] = gated(&gate);
                let set = RequestSet::from_iter([member.clone()]);
                give.send(member.clone()).unwrap();
                if nested {
                    // It is on the stack below the request that waits.
                    Request::try_new(move || Ok(member.wait()?.clone()?)).wait()?;
                } else {
                    member.wait()?.clone()?;
                }
                drop(set);
                Ok(())
            });
            let member: Told = given.come().unwrap();
            asleep(&member);
            assert_eq!(waiter.cancel(), Cancellation::Marked);
            ends_cancelled(&waiter);
            ends_cancelled(&member);
        }
    });
}

/// A cancelled request waits for nothing. The thread that gets the set from it does.
#[test]
fn what_a_cancelled_request_puts_into_a_set_comes_out_when_it_has_ended() {
    on_each(|runtime| {
        let (mut completers, answers) = promised(runtime, 3);
        complete(&mut completers, 1);
        let (told, sets) = mpsc::channel();
        let maker = root(runtime).spawn(move || {
            Request::current().unwrap().abort(CancelReason::Asked);
            let mut set = RequestSet::from_iter(answers);
            let (number, answer) = set.try_next().expect("one of them has ended");
            assert_eq!((number, answer.get()), (1, Some(&1)));
            assert!(set.try_next().is_none(), "the others have not ended");
            assert!(set.wait_next().is_err());
            told.send(set).unwrap();
        });
        assert!(maker.wait().is_err());
        let mut set = sets.come().unwrap();
        assert!(set.try_next().is_none(), "they still have not");
        for at in [2, 0] {
            complete(&mut completers, at);
            let (number, answer) = set.wait_next().unwrap().unwrap();
            assert_eq!((number, answer.take().unwrap()), (at, at));
        }
        assert!(set.wait_next().unwrap().is_none());
    });
}

#[test]
fn a_waiter_runs_what_only_the_set_of_another_wants() {
    on_each_of(&[1], |runtime| {
        let ran = root(runtime).try_spawn(|| {
            let second = Arc::new(OnceLock::<Request<i32>>::new());
            let of = second.clone();
            let members = [Request::new(move || *of.get().unwrap().wait().unwrap() + 1), Request::new(|| 1)];
            second.set(members[1].clone()).unwrap();
            let before = Runtime::current().metrics().direct;
            let mut set = RequestSet::from_iter(members);
            while set.wait_next()?.is_some() {}
            Ok(Runtime::current().metrics().direct - before)
        });
        assert_eq!(ran.take().unwrap(), 1);
    });
}

// ---- many ------------------------------------------------------------------------------------------------------------

#[test]
fn a_hundred_thousand_in_a_set() {
    on_each_of(&[2], |runtime| {
        let many = fitting(100_000);
        let sum = root(runtime).spawn(move || {
            let set: RequestSet<usize> = (0..many).map(|n| spawn(move || n)).collect();
            set.map(|(number, request)| {
                assert_eq!(request.take().unwrap(), number);
                number
            })
            .sum::<usize>()
        });
        assert_eq!(sum.take().unwrap(), many * (many - 1) / 2);
        let all = root(runtime).try_build(move || {
            let requests: Vec<_> = (0..many).map(|n| spawn(move || n)).collect();
            Ok(wait_all(&requests)?.into_iter().sum::<usize>())
        });
        assert_eq!(all.take().unwrap(), many * (many - 1) / 2);
    });
}

#[test]
fn threads_complete_what_a_set_waits_for() {
    on_each_of(&[1, 2], |runtime| {
        for outside in [false, true] {
            let (mut completers, answers) = promised(runtime, 4_000);
            let last = completers.split_off(2_000);
            let wait = move || {
                RequestSet::from_iter(answers)
                    .map(|(n, request)| {
                        assert_eq!(request.take().unwrap() % 2_000, n % 2_000);
                        n
                    })
                    .sum::<usize>()
            };
            let threads = [completers, last].map(|half| {
                thread::spawn(move || {
                    for (at, completer) in half.into_iter().enumerate() {
                        completer.unwrap().complete(at).unwrap();
                    }
                })
            });
            let sum = if outside { wait() } else { root(runtime).spawn(wait).take().unwrap() };
            assert_eq!(sum, 4_000 * 3_999 / 2);
            threads.into_iter().for_each(|thread| thread.joined().unwrap());
        }
    });
}

#[test]
fn a_set_dropped_while_its_members_end_leaves_nothing() {
    on_each_of(&[1, 2], |runtime| {
        let alive = Arc::new(());
        for _ in 0..20 {
            let mut gate = Gate::new(runtime);
            let members: Vec<_> = (0..50)
                .map(|_| {
                    let (target, here) = (gate.request(), alive.clone());
                    root(runtime).try_build(move || {
                        target.wait()?;
                        Ok(here)
                    })
                })
                .collect();
            let mut set: RequestSet<_> = members.into_iter().collect();
            thread::scope(|scope| {
                let opens = scope.spawn(|| gate.open());
                let _ = set.wait_next_timeout(Duration::from_micros(50));
                drop(set);
                opens.joined().unwrap();
            });
        }
        support::until(|| Arc::strong_count(&alive) == 1);
    });
}

#[test]
fn members_of_a_runtime_that_has_given_up_come_out() {
    let _dog = support::Watchdog::new("");
    let runtime = support::runtime(1);
    let (open, stuck) = mpsc::channel::<()>();
    let started = Flag::new();
    let up = started.clone();
    let laggard = root(&runtime).spawn(move || {
        up.raise();
        let _ = stuck.recv();
    });
    started.wait();
    let kept = laggard.clone();
    let waits = thread::spawn(move || {
        let (number, request) = RequestSet::from_iter([kept]).wait_next().unwrap().unwrap();
        (number, matches!(request.wait(), Err(WaitError::ShutDown)))
    });
    let ended = runtime.shutdown(Duration::from_millis(1));
    assert!(matches!(ended, Err(ShutdownError::Laggards { .. })));
    assert_eq!(waits.join().unwrap(), (0, true));
    drop(open);
}

#[test]
fn of_two_runtimes_of_which_one_has_given_up_all_members_come_out() {
    let _dog = support::Watchdog::new("");
    let (given_up, goes_on) = (support::runtime(1), support::runtime(1));
    let (open, stuck) = mpsc::channel::<()>();
    let started = Flag::new();
    let up = started.clone();
    let laggard = root(&given_up).spawn(move || {
        up.raise();
        let _ = stuck.recv();
        0
    });
    started.wait();
    let (mut completers, mut members) = promised(&goes_on, 2);
    members.insert(1, laggard);
    let (tell, told) = mpsc::channel();
    let waits = thread::spawn(move || {
        let mut set = RequestSet::from_iter(members);
        while let Some((number, request)) = set.wait_next().unwrap() {
            tell.send((
                number,
                request.wait().copied().map_err(|error| matches!(error, WaitError::ShutDown)),
            ))
            .unwrap();
        }
    });
    let ended = given_up.shutdown(Duration::from_millis(1));
    assert!(matches!(ended, Err(ShutdownError::Laggards { .. })));
    assert_eq!(told.recv().unwrap(), (1, Err(true)));
    for at in [1, 0] {
        complete(&mut completers, at);
        assert_eq!(told.recv().unwrap(), (2 * at, Ok(at)));
    }
    waits.join().unwrap();
    drop(open);
}

/// Each wait of the thread is for one end. A look at all members each time would take minutes.
#[test]
fn an_end_costs_the_same_however_many_members_two_runtimes_have() {
    let _dog = support::Watchdog::new("");
    let runtimes = [support::runtime(1), support::runtime(1)];
    let many = fitting(100_000);
    let (mut completers, members): (Vec<_>, Vec<_>) =
        (0..many).map(|at| runtimes[at % 2].enter(|| Request::<usize>::completer("answer"))).unzip();
    let mut set = RequestSet::from_iter(members);
    let (ask, asked) = mpsc::channel();
    let completes = thread::spawn(move || {
        for at in asked {
            let completer: Completer<usize> = completers.pop().unwrap();
            completer.complete(at).unwrap();
        }
    });
    for at in 0..many {
        ask.send(at).unwrap();
        let (number, request) = set.wait_next().unwrap().unwrap();
        assert_eq!((number, request.take().unwrap()), (many - 1 - at, at));
    }
    drop(ask);
    completes.join().unwrap();
}
