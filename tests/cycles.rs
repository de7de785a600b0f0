//! Circles of waits: found as they close, of any length and through everything that waits, and named; and nothing else is taken
//! for one.

mod support;

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex, OnceLock};
use std::thread;
use std::time::Duration;

use forebear::{
    AnyRequest, Cycle, OrUnwind, Request, RequestPool, Runtime, State, WaitError, join, scope, shield,
};

use support::{Count, Flag, Random, Watchdog, on_each, on_each_of, runtime, until};

/// For tests whose requests wait for each other to come to a point: without worker threads nothing else runs meanwhile.
const WORKERS: [usize; 3] = [1, 2, 4];

/// What a wait was told, if it was told of a circle; anything else goes on.
fn circle<T>(answer: Result<T, WaitError>) -> Option<Cycle> {
    match answer {
        Err(WaitError::CircularWait(cycle)) => Some(cycle),
        _ => None,
    }
}

fn names(cycle: &Cycle) -> Vec<&str> {
    cycle.names().collect()
}

/// Whether the names go round by `ring`, beginning wherever they like.
#[track_caller]
fn assert_goes_round(cycle: &Cycle, ring: &[&str]) {
    let names = names(cycle);
    assert_eq!(names.len(), ring.len() + 1, "{cycle}");
    let first = ring.iter().position(|name| *name == names[0]).unwrap_or_else(|| panic!("{cycle}"));
    for (place, name) in names.iter().enumerate() {
        assert_eq!(*name, ring[(first + place) % ring.len()], "{cycle}");
    }
}

/// Requests that know each other: a place for their handles.
#[derive(Clone)]
struct Known(Arc<OnceLock<Vec<Request<()>>>>);

impl Known {
    fn new() -> Known {
        Known(Arc::default())
    }

    fn set(&self, requests: &[Request<()>]) {
        assert!(self.0.set(requests.to_vec()).is_ok());
    }

    fn get(&self, index: usize) -> &Request<()> {
        &self.0.get().expect("set before any of them is submitted")[index]
    }
}

/// Makes a request of `runtime` with this name, on a stack of its own.
fn make(runtime: &Runtime, name: &str, f: impl FnOnce() + Send + 'static) -> Request<()> {
    runtime.enter(|| Request::builder().name(name.to_owned()).own_stack().build(f))
}

/// A ring of `n` requests, each of which waits for the next. Runs it to its end; answers what they were told.
fn ring(runtime: &Runtime, n: usize, own_stack: bool) -> Vec<(usize, Cycle)> {
    let (told, known) = (Arc::new(Mutex::new(Vec::new())), Known::new());
    let requests: Vec<_> = (0..n)
        .map(|i| {
            let (told, known) = (told.clone(), known.clone());
            let f = move || {
                if let Some(cycle) = circle(known.get((i + 1) % n).wait()) {
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
fn a_circle_of_any_length_is_found_and_named_and_the_others_go_on() {
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
fn a_circle_longer_than_a_walk_is_found_by_an_idle_worker() {
    on_each(|runtime| {
        for n in [65, 66, 200, 1000] {
            let told = ring(runtime, n, true);
            assert_eq!(told.len(), 1, "{n}");
            let ring: Vec<_> = (0..n).map(|i| format!("r{i}")).collect();
            assert_goes_round(&told[0].1, &ring.iter().map(String::as_str).collect::<Vec<_>>());
        }
    });
}

/// All of them begin to wait at the same instant, as good as that can be had.
#[test]
fn if_two_close_a_circle_at_once_one_of_them_is_told() {
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
                        if let Some(cycle) = circle(known.get((i + 1) % n).wait()) {
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

/// `low` runs `high` on its own stack, and `other` waits for `low`.
#[test]
fn a_lent_stack_is_blocked_as_a_whole() {
    on_each_of(&WORKERS, |runtime| {
        let (known, waits) = (Known::new(), Flag::new());
        let (told, answers) = channel();
        let other = make(runtime, "other", {
            let (known, told) = (known.clone(), told.clone());
            move || told.send(circle(known.get(0).wait())).unwrap()
        });
        let low = make(runtime, "low", {
            let (known, waits) = (known.clone(), waits.clone());
            move || {
                let high = Request::builder().name("high").build(move || {
                    known.get(1).submit();
                    until(|| known.get(1).state() == State::Suspended);
                    waits.raise();
                    told.send(circle(known.get(1).wait())).unwrap();
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
                        Request::builder().name("high").build(move || told.send(circle(me.wait())).unwrap());
                    high.wait().unwrap();
                });
                middle.wait().unwrap();
            })
        });
        low.wait().unwrap();
        let cycle = answers.recv().unwrap().expect("a circle");
        assert_eq!(names(&cycle), ["high", "low", "middle", "high"]);
    });
}

/// The end of a join cannot give up: somebody else's wait is ended.
#[test]
fn a_circle_through_a_stolen_arm_is_found_whoever_closes_it() {
    on_each_of(&[2, 4], |runtime| {
        for maker_last in [true, false] {
            let (known, stolen, asked) = (Known::new(), Flag::new(), Flag::new());
            let (told, answers) = channel();
            let helper = make(runtime, "helper", {
                let (known, told) = (known.clone(), told.clone());
                move || told.send(circle(known.get(0).wait())).unwrap()
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
                            told.send(circle(known.get(1).wait())).unwrap();
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
fn a_circle_through_a_scope_is_found_whoever_closes_it() {
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
                            || (me == "opener" || is_suspended(known.get(0).any()))
                                && (me == "other" || is_suspended(known.get(1).any()))
                                && (me == "job" || job.get().cloned().is_some_and(is_suspended))
                    });
                }
            };
            let other = make(runtime, "other", {
                let (known, told, after_the_rest) = (known.clone(), told.clone(), after_the_rest.clone());
                move || {
                    after_the_rest("other");
                    told.send(circle(known.get(0).wait())).unwrap();
                }
            });
            let opener = make(runtime, "opener", {
                let known = known.clone();
                move || {
                    scope(|s| {
                        let after_the_rest = &after_the_rest;
                        let handle = Request::builder().name("job").own_stack().spawn_in(s, move || {
                            after_the_rest("job");
                            told.send(circle(known.get(1).wait())).unwrap();
                        });
                        s.spawn(|| ());
                        job.set(handle.any()).unwrap();
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
fn a_circle_through_two_scopes_is_found() {
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
                            told.send(circle(known.get(1 - me).wait())).unwrap();
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
                    let Err(WaitError::Failed(failure)) = pool.wait() else {
                        panic!("a circle is a failure")
                    };
                    let Some(WaitError::CircularWait(cycle)) = failure.downcast_ref() else {
                        panic!("{failure:?}")
                    };
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

/// One request is run by a foreign thread, which blocks; the other by a worker.
#[test]
fn a_circle_through_a_foreign_thread_is_found_whoever_closes_it() {
    on_each_of(&WORKERS, |runtime| {
        for thread_last in [true, false] {
            let (known, ready) = (Known::new(), Count::new());
            let (told, answers) = channel();
            let request = |me: usize| {
                let (known, told, ready) = (known.clone(), told.clone(), ready.clone());
                move || {
                    ready.up();
                    ready.wait_for(2);
                    if (me == 0) == thread_last {
                        until(|| known.get(1 - me).state() == State::Suspended || me == 1);
                    }
                    told.send((me, circle(known.get(1 - me).wait()))).unwrap();
                }
            };
            let on_thread = runtime.enter(|| Request::builder().name("on a thread").build(request(0)));
            let on_worker = make(runtime, "on a worker", request(1));
            known.set(&[on_thread.clone(), on_worker.clone()]);
            on_worker.submit();
            let thread = thread::spawn({
                let runtime = runtime.clone();
                move || runtime.enter(|| on_thread.wait().map(drop).unwrap())
            });
            on_worker.wait().unwrap();
            thread.join().unwrap();
            let told: Vec<_> =
                answers.iter().take(2).filter_map(|(me, told)| told.map(|told| (me, told))).collect();
            assert_eq!(told.len(), 1, "{told:?}");
            assert_goes_round(&told[0].1, &["on a thread", "on a worker"]);
        }
    });
}

/// Three of them, each run by a thread that waits for the next.
#[test]
fn a_circle_of_foreign_threads_only_is_found() {
    on_each_of(&WORKERS, |runtime| {
        for _ in 0..50 {
            let (known, barrier, n) = (Known::new(), Arc::new(Barrier::new(3)), 3);
            let (told, answers) = channel();
            let requests: Vec<_> = (0..n)
                .map(|i| {
                    let (known, barrier, told) = (known.clone(), barrier.clone(), told.clone());
                    let f = move || {
                        barrier.wait();
                        told.send(circle(known.get((i + 1) % n).wait())).unwrap();
                    };
                    runtime.enter(|| Request::builder().name(format!("t{i}")).build(f))
                })
                .collect();
            known.set(&requests);
            let threads: Vec<_> = requests
                .into_iter()
                .map(|request| {
                    let runtime = runtime.clone();
                    thread::spawn(move || runtime.enter(|| request.wait().map(drop).unwrap()))
                })
                .collect();
            threads.into_iter().for_each(|thread| thread.join().unwrap());
            let told: Vec<_> = answers.iter().take(n).flatten().collect();
            assert_eq!(told.len(), 1, "{told:?}");
            assert_goes_round(&told[0], &["t0", "t1", "t2"]);
        }
    });
}

#[test]
fn a_circle_through_two_runtimes_is_found() {
    on_each_of(&WORKERS, |one| {
        let two = runtime(one.workers());
        for round in 0..200 {
            let (known, ready) = (Known::new(), Count::new());
            let (told, answers) = channel();
            let n = 2 + round % 3;
            let names: Vec<_> = (0..n).map(|i| format!("r{i}")).collect();
            let requests: Vec<_> = (0..n)
                .map(|i| {
                    let (known, told, ready) = (known.clone(), told.clone(), ready.clone());
                    make(if i % 2 == 0 { one } else { &two }, &names[i], move || {
                        ready.up();
                        ready.wait_for(n);
                        told.send(circle(known.get((i + 1) % n).wait())).unwrap();
                    })
                })
                .collect();
            known.set(&requests);
            requests.iter().for_each(|request| _ = request.submit());
            requests.iter().for_each(|request| _ = request.wait().unwrap());
            let told: Vec<_> = answers.iter().take(n).flatten().collect();
            assert_eq!(told.len(), 1, "{told:?}");
            assert_goes_round(&told[0], &names.iter().map(String::as_str).collect::<Vec<_>>());
        }
    });
}

/// And a runtime may go as soon as its part in a circle is over.
#[test]
fn runtimes_and_threads_come_and_go_while_others_look_for_circles() {
    let _dog = Watchdog::new("");
    let lasting = runtime(2);
    for seed in 0..30 {
        let passing = runtime(1 + seed % 2);
        let (known, told) = (Known::new(), Count::new());
        let requests: Vec<_> = (0..6)
            .map(|i| {
                let (known, told) = (known.clone(), told.clone());
                make(if i % 2 == 0 { &passing } else { &lasting }, "r", move || {
                    // Some close a circle, some lead to it from outside.
                    let next = if i < 4 { (i + 1) % 4 } else { i - 4 };
                    if circle(known.get(next).wait()).is_some() {
                        told.up();
                    }
                })
            })
            .collect();
        known.set(&requests);
        requests.iter().for_each(|request| _ = request.submit());
        let threads: Vec<_> = requests
            .into_iter()
            .map(|request| thread::spawn(move || request.wait().map(drop).unwrap()))
            .collect();
        drop((passing, known));
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(told.get(), 1);
    }
}

/// One of the waits watches, one is shielded, and one of the requests is nobody's child.
#[test]
fn to_watch_to_be_shielded_and_to_be_detached_makes_no_difference() {
    on_each(|runtime| {
        let known = Known::new();
        let (told, answers) = channel();
        let (a, b, c) = ((known.clone(), told.clone()), (known.clone(), told.clone()), (known.clone(), told));
        let requests = [
            make(runtime, "watching", move || a.1.send(circle(a.0.get(1).watch())).unwrap()),
            make(runtime, "shielded", move || b.1.send(circle(shield(|| b.0.get(2).any().wait()))).unwrap()),
            runtime.enter(|| {
                let builder = Request::builder().name("detached").detached().own_stack();
                builder.build(move || c.1.send(circle(c.0.get(0).wait())).unwrap())
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
fn a_wait_with_a_limit_is_in_no_circle() {
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

/// What stands in no circle and waits for one goes on when that is broken.
#[test]
fn who_waits_for_a_circle_from_outside_is_not_told() {
    on_each(|runtime| {
        let known = Known::new();
        let (told, answers) = channel();
        let requests: Vec<_> = (0..20)
            .map(|i| {
                let (known, told) = (known.clone(), told.clone());
                // The first three are the circle; the others lead there in chains.
                make(runtime, "r", move || {
                    let next = if i < 3 { (i + 1) % 3 } else { i - 3 };
                    told.send((i, circle(known.get(next).wait()).is_some())).unwrap();
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

// ---- storms -------------------------------------------------------------------------------------------------------------

/// A program drawn from a seed: requests that wait for later ones, in any order and on any stack, from threads too; and rings
/// among them, whose members wait for each other at the end.
struct Storm {
    known: Known,
    /// By request: which it waits for, in this order, and by which ring it ends.
    waits: Vec<(Vec<usize>, Option<usize>)>,
    rings: Vec<Vec<usize>>,
    told: Mutex<Vec<(usize, Cycle)>>,
}

impl Storm {
    fn draw(random: &mut Random) -> Storm {
        let n = 10 + random.below(60);
        let mut free: Vec<_> = (0..n).collect();
        let mut waits: Vec<_> = (0..n)
            .map(|i| {
                let later = n - i - 1;
                let waits = (0..random.below(4)).filter(|_| later > 0).map(|_| i + 1 + random.below(later));
                (waits.collect::<Vec<_>>(), None)
            })
            .collect();
        let mut rings = Vec::new();
        for _ in 0..random.below(4) {
            let length = (1 + random.below(6)).min(free.len());
            let ring: Vec<_> = (0..length).map(|_| free.swap_remove(random.below(free.len()))).collect();
            for &member in &ring {
                // A member of a ring that waits for something else too might close another circle.
                waits[member] = (Vec::new(), Some(rings.len()));
            }
            rings.push(ring);
        }
        Storm { known: Known::new(), waits, rings, told: Mutex::default() }
    }

    fn run(&self, me: usize) {
        let (waits, ring) = &self.waits[me];
        let ring = ring.map(|ring| &self.rings[ring]);
        let next = ring.and_then(|ring| {
            let place = ring.iter().position(|member| *member == me)?;
            Some(ring[(place + 1) % ring.len()])
        });
        for &target in waits.iter().chain(&next) {
            if let Some(cycle) = circle(self.known.get(target).wait()) {
                self.told.lock().unwrap().push((me, cycle));
            }
        }
    }
}

#[test]
fn in_a_storm_of_waits_each_circle_is_told_of_and_nothing_else() {
    on_each(|runtime| storms(runtime, false));
}

/// A thread without a loop of workers behind it takes its requests with it when it exits, so these are for workers.
#[test]
fn in_a_storm_of_waits_in_threads_too_each_circle_is_told_of_and_nothing_else() {
    on_each_of(&WORKERS, |runtime| storms(runtime, true));
}

fn storms(runtime: &Runtime, with_threads: bool) {
    for seed in 0..if support::soaking() { 10_000 } else { 300 } {
        let mut random = Random::new(seed);
        let storm = Arc::new(Storm::draw(&mut random));
        let requests: Vec<_> = (0..storm.waits.len())
            .map(|i| {
                let builder = Request::builder().name(i.to_string());
                let builder = if random.below(3) == 0 { builder.own_stack() } else { builder };
                let storm = storm.clone();
                runtime.enter(|| builder.build(move || storm.run(i)))
            })
            .collect();
        storm.known.set(&requests);
        thread::scope(|threads| {
            let (mut workers, mut of_threads) = (Vec::new(), Vec::new());
            for request in &requests {
                match random.below(8) {
                    0 if with_threads => of_threads.push(request),
                    _ => workers.push(request),
                }
            }
            let mut started = Vec::new();
            for request in of_threads {
                started.push(threads.spawn(move || request.wait().map(drop).unwrap()));
            }
            while !workers.is_empty() {
                workers.swap_remove(random.below(workers.len())).submit();
            }
            support::join_all(started);
        });
        requests.iter().for_each(|request| _ = request.wait().unwrap());
        let told = storm.told.lock().unwrap();
        for (me, cycle) in &*told {
            let ring = storm.waits[*me].1.unwrap_or_else(|| panic!("seed {seed}: {me} is told of {cycle}"));
            let ring: Vec<_> = storm.rings[ring].iter().map(usize::to_string).collect();
            assert_goes_round(cycle, &ring.iter().map(String::as_str).collect::<Vec<_>>());
        }
        let mut rings: Vec<_> = told.iter().filter_map(|(me, _)| storm.waits[*me].1).collect();
        rings.sort_unstable();
        rings.dedup();
        assert_eq!(rings.len(), storm.rings.len(), "seed {seed}: {told:?}");
    }
}

// ---- chains -------------------------------------------------------------------------------------------------------------

/// From the far end: each finds its target waiting already. Were every wait to walk the chain, this would not end.
#[test]
#[cfg_attr(debug_assertions, ignore = "a million stacks, without optimisation")]
fn a_chain_of_a_million_waits_made_from_its_far_end_is_no_circle() {
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
