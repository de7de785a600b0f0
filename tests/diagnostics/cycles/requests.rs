//! Cycles of nothing but requests, and what is none: lengths, instants, limits, who stands outside, long chains.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use forebear::sync::Event;
use forebear::time::try_timeout;
use forebear::{CancelReason, Cycle, OrUnwind, Request, Runtime, State, WaitError, shield, yield_now};

use super::support::{Count, Flag, Watchdog, on_each, on_each_of, until};
use super::{Known, WORKERS, assert_goes_round, cycle, make, names, support};

/// A ring of `n` requests, each of which waits for the next. Runs it to its end; answers what they were told.
fn ring(runtime: &Runtime, n: usize, own_stack: bool) -> Vec<(usize, Cycle)> {
    let (told, known) = (Arc::new(Mutex::new(Vec::new())), Known::new());
    let requests: Vec<_> = (0..n)
        .map(|i| {
            let (told, known) = (told.clone(), known.clone());
            let f = move || {
                if let Some(cycle) = cycle(known.get((i + 1) % n).wait()) {
                    told.lock().unwrap().push((i, cycle));
                }
            };
            let mut builder = Request::builder().name(format!("r{i}"));
            if own_stack {
                builder = builder.own_stack();
            }
            runtime.enter(|| builder.build(f))
        })
        .collect();
    known.set(&requests);
    for request in &requests {
        request.submit();
    }
    for request in &requests {
        request.wait().unwrap();
    }
    std::mem::take(&mut *told.lock().unwrap())
}

#[test]
fn a_cycle_of_any_length_is_found_and_named_and_the_others_go_on() {
    on_each(|runtime| {
        for n in [1, 2, 3, 5, 17, 63, 64] {
            for own_stack in [true, false] {
                let told = ring(runtime, n, own_stack);
                assert_eq!(told.len(), 1, "{n}: {told:?}");
                let (i, cycle) = &told[0];
                let ring: Vec<_> = (0..n).map(|i| format!("r{i}")).collect();
                assert_eq!(names(cycle)[0], ring[*i]);
                assert_goes_round(cycle, &ring.iter().map(String::as_str).collect::<Vec<_>>());
            }
        }
    });
}

#[test]
fn a_cycle_longer_than_a_walk_is_found_by_an_idle_worker() {
    on_each(|runtime| {
        for n in [65, 66, 200, 1000] {
            let told = ring(runtime, n, true);
            assert_eq!(told.len(), 1, "{n}");
            let ring: Vec<_> = (0..n).map(|i| format!("r{i}")).collect();
            assert_goes_round(&told[0].1, &ring.iter().map(String::as_str).collect::<Vec<_>>());
        }
    });
}

/// Only a wait's own limit keeps it out of a cycle.
#[test]
fn a_cycle_is_named_at_once_though_a_deadline_and_a_regions_limit_would_end_it() {
    const HOUR: Duration = Duration::from_secs(3_600);
    on_each(|runtime| {
        let (told, known) = (Arc::new(Mutex::new(Vec::new())), Known::new());
        let requests: Vec<_> = (0..2)
            .map(|i| {
                let (told, known) = (told.clone(), known.clone());
                let f = move || {
                    let answer = try_timeout(HOUR, || {
                        known.get(1 - i).wait()?;
                        Ok(())
                    });
                    told.lock().unwrap().extend(answer.err().and_then(|error| error.cycle().cloned()));
                };
                let builder = Request::builder().name(format!("r{i}")).timeout(HOUR);
                runtime.enter(|| builder.build(f))
            })
            .collect();
        known.set(&requests);
        requests.iter().for_each(|request| _ = request.submit());
        requests.iter().for_each(|request| *request.wait().unwrap());
        let told = std::mem::take(&mut *told.lock().unwrap());
        assert_eq!(told.len(), 1, "{told:?}");
        let names = names(&told[0]);
        assert!(["r0", "r1"].iter().all(|name| names.contains(name)), "{names:?}");
    });
}

/// All of them begin to wait at the same instant, as good as that can be had.
#[test]
fn if_two_close_a_cycle_at_once_one_of_them_is_told() {
    on_each_of(&[2, 4], |runtime| {
        for round in 0..2_000 {
            let n = 2 + round % 2 * (runtime.workers() - 2).min(1);
            let (told, known, ready) = (Arc::new(Mutex::new(Vec::new())), Known::new(), Count::new());
            let requests: Vec<_> = (0..n)
                .map(|i| {
                    let (told, known, ready) = (told.clone(), known.clone(), ready.clone());
                    make(runtime, if i == 0 { "a" } else { "b" }, move || {
                        ready.up();
                        support::hold_thread_until(|| ready.get() == n);
                        if let Some(cycle) = cycle(known.get((i + 1) % n).wait()) {
                            told.lock().unwrap().push(cycle);
                        }
                    })
                })
                .collect();
            known.set(&requests);
            requests.iter().for_each(|request| _ = request.submit());
            requests.iter().for_each(|request| _ = request.wait().unwrap());
            assert_eq!(told.lock().unwrap().len(), 1);
        }
    });
}

/// One of the waits watches, one is shielded, and one of the requests is nobody's child.
#[test]
fn to_watch_to_be_shielded_and_to_be_detached_makes_no_difference() {
    on_each(|runtime| {
        let known = Known::new();
        let (told, answers) = channel();
        let (a, b, c) = ((known.clone(), told.clone()), (known.clone(), told.clone()), (known.clone(), told));
        let requests = [
            make(runtime, "watching", move || a.1.send(cycle(a.0.get(1).watch())).unwrap()),
            make(runtime, "shielded", move || {
                b.1.send(cycle(shield(|| b.0.get(2).to_untyped().wait()))).unwrap()
            }),
            runtime.enter(|| {
                let builder = Request::builder().name("detached").detached().own_stack();
                builder.build(move || c.1.send(cycle(c.0.get(0).wait())).unwrap())
            }),
        ];
        known.set(&requests);
        requests.iter().for_each(|request| _ = request.submit());
        requests.iter().for_each(|request| _ = request.wait().unwrap());
        let told: Vec<_> = answers.iter().flatten().collect();
        assert_eq!(told.len(), 1, "{told:?}");
        assert_goes_round(&told[0], &["watching", "shielded", "detached"]);
    });
}

/// A wait with a limit ends by itself, so nobody needs to be told.
#[test]
fn a_wait_with_a_limit_is_in_no_cycle() {
    on_each(|runtime| {
        let known = Known::new();
        let (told, answers) = channel();
        let requests: Vec<_> = (0..3)
            .map(|i| {
                let (known, told) = (known.clone(), told.clone());
                make(runtime, "r", move || {
                    let next = known.get((i + 1) % 3);
                    let limit = Duration::from_millis(20);
                    let answer = if i == 0 { next.wait_timeout(limit) } else { next.wait() };
                    told.send(answer.map(drop)).unwrap();
                })
            })
            .collect();
        known.set(&requests);
        requests.iter().for_each(|request| _ = request.submit());
        requests.iter().for_each(|request| _ = request.wait().unwrap());
        let mut answers: Vec<_> = answers.iter().take(3).collect();
        assert!(matches!(answers.remove(0), Err(WaitError::TimedOut)));
        assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    });
}

/// Each begins to wait while its target can go on, and stands on the same worker perhaps, and has waited for something else before: such
/// a wait need not look for a cycle. The last of them does.
#[test]
fn a_cycle_of_waits_each_for_one_that_could_go_on_is_found_by_the_last() {
    on_each_of(&WORKERS, |runtime| {
        for n in [2, 3, 7] {
            for _ in 0..50 {
                let (told, known, there) = (Arc::new(Mutex::new(Vec::new())), Known::new(), Count::new());
                let requests: Vec<_> = (0..n)
                    .map(|i| {
                        let (told, known, there) = (told.clone(), known.clone(), there.clone());
                        make(runtime, &format!("r{i}"), move || {
                            Request::builder().own_stack().spawn(yield_now).wait().unwrap();
                            there.up();
                            until(|| there.get() == n);
                            if let Some(cycle) = cycle(known.get((i + 1) % n).wait()) {
                                told.lock().unwrap().push(cycle);
                            }
                        })
                    })
                    .collect();
                known.set(&requests);
                requests.iter().for_each(|request| _ = request.submit());
                requests.iter().for_each(|request| _ = request.wait().unwrap());
                let told = told.lock().unwrap();
                assert_eq!(told.len(), 1, "{n}");
                let ring: Vec<_> = (0..n).map(|i| format!("r{i}")).collect();
                assert_goes_round(&told[0], &ring.iter().map(String::as_str).collect::<Vec<_>>());
            }
        }
    });
}

/// The wait of `early` leads nowhere until `late` has begun, and `late` begins with a wait for one that can go on.
#[test]
fn a_cycle_through_a_wait_from_before_its_target_began_is_found() {
    on_each_of(&WORKERS, |runtime| {
        for _ in 0..50 {
            let (told, answers) = channel();
            let (known, there, begun) = (Known::new(), Flag::new(), Flag::new());
            let all = || (known.clone(), told.clone(), there.clone(), begun.clone());
            let (early, late, going_on) = (all(), all(), all());
            let requests = [
                make(runtime, "early", move || {
                    let (known, told, there, _) = early;
                    until(|| there.is_up());
                    known.get(1).submit();
                    told.send(cycle(known.get(1).wait())).unwrap();
                }),
                make(runtime, "late", move || {
                    let (known, told, _, begun) = late;
                    begun.raise();
                    told.send(cycle(known.get(2).wait())).unwrap();
                }),
                make(runtime, "going on", move || {
                    let (known, told, there, begun) = going_on;
                    there.raise();
                    until(|| begun.is_up());
                    told.send(cycle(known.get(0).wait())).unwrap();
                }),
            ];
            known.set(&requests);
            requests[2].submit();
            requests[0].submit();
            requests.iter().for_each(|request| _ = request.wait().unwrap());
            let told: Vec<_> = answers.iter().take(3).flatten().collect();
            assert_eq!(told.len(), 1, "{told:?}");
            assert_goes_round(&told[0], &["early", "late", "going on"]);
        }
    });
}

/// What stands in no cycle and waits for one goes on when that is broken.
#[test]
fn who_waits_for_a_cycle_from_outside_is_not_told() {
    on_each(|runtime| {
        let known = Known::new();
        let (told, answers) = channel();
        let requests: Vec<_> = (0..20)
            .map(|i| {
                let (known, told) = (known.clone(), told.clone());
                // The first three are the cycle; the others lead there in chains.
                make(runtime, "r", move || {
                    let next = if i < 3 { (i + 1) % 3 } else { i - 3 };
                    told.send((i, cycle(known.get(next).wait()).is_some())).unwrap();
                })
            })
            .collect();
        known.set(&requests);
        requests.iter().rev().for_each(|request| _ = request.submit());
        requests.iter().for_each(|request| _ = request.wait().unwrap());
        let told: Vec<_> = answers.iter().take(20).filter(|told| told.1).collect();
        assert!(matches!(told[..], [(0..3, true)]), "{told:?}");
    });
}

/// From the far end: each finds its target waiting already. Were every wait to walk the chain, this would not end.
#[test]
#[cfg_attr(debug_assertions, ignore = "a million stacks, without optimisation")]
fn a_chain_of_a_million_waits_made_from_its_far_end_is_no_cycle() {
    let _dog = Watchdog::new("");
    let runtime = Runtime::builder().workers(1).stack_size(48 << 10).max_stacks(1_100_000).build().unwrap();
    let (open, gate): (Sender<()>, Receiver<()>) = channel();
    let gate = runtime.enter(|| Request::new(move || gate.recv().unwrap()));
    // A thread runs it, and blocks in it.
    let keeper = thread::spawn({
        let gate = gate.clone();
        move || gate.wait().map(drop).unwrap()
    });
    until(|| gate.state() == State::Running);
    let mut last = gate;
    for _ in 0..1_000_000 {
        let target = last;
        last = make(&runtime, "link", move || target.wait().map(drop).unwrap());
        last.submit();
    }
    until(|| last.state() == State::Suspended);
    open.send(()).unwrap();
    last.wait().unwrap();
    keeper.join().unwrap();
}

/// Calls the function as it is dropped.
struct AtEnd<F: Fn()>(F);

impl<F: Fn()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A cancel does not end the wait of a destructor that its own unwind runs.
#[test]
fn a_cycle_through_a_destructor_that_the_unwind_of_a_cancel_runs_is_found() {
    on_each_of(&WORKERS, |runtime| {
        let (known, told) = (Known::new(), Count::new());
        let waits_for = |index| {
            let (known, told) = (known.clone(), told.clone());
            move || {
                if cycle(known.get(index).wait()).is_some() {
                    told.up();
                }
            }
        };
        let at_end = waits_for(1);
        let cancelled = make(runtime, "cancelled", move || {
            let _at_end = AtEnd(at_end);
            Event::new().wait().or_unwind();
        });
        let other = make(runtime, "other", waits_for(0));
        known.set(&[cancelled.clone(), other.clone()]);
        for request in [&cancelled, &other] {
            request.submit();
            until(|| request.state() == State::Suspended);
        }
        cancelled.abort(CancelReason::Other(1));
        other.wait().unwrap();
        assert!(matches!(cancelled.wait(), Err(WaitError::TargetCancelled(_))));
        assert_eq!(told.get(), 1);
    });
}
