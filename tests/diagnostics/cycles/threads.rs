//! Cycles through foreign threads and several runtimes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use forebear::sync::{Event, Mutex, RwLock};
use forebear::{Request, State, WaitError, try_scope};

use super::support::{Count, Watchdog, on_each_of, runtime, until};
use super::{Known, WORKERS, assert_goes_round, cycle, make};

/// One request is run by a foreign thread, which blocks; the other by a worker.
#[test]
fn a_cycle_through_a_foreign_thread_is_found_whoever_closes_it() {
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
                    told.send((me, cycle(known.get(1 - me).wait()))).unwrap();
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
fn a_cycle_of_foreign_threads_only_is_found() {
    on_each_of(&WORKERS, |runtime| {
        for _ in 0..50 {
            let (known, barrier, n) = (Known::new(), Arc::new(Barrier::new(3)), 3);
            let (told, answers) = channel();
            let requests: Vec<_> = (0..n)
                .map(|i| {
                    let (known, barrier, told) = (known.clone(), barrier.clone(), told.clone());
                    let f = move || {
                        barrier.wait();
                        told.send(cycle(known.get((i + 1) % n).wait())).unwrap();
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
fn a_cycle_through_two_runtimes_is_found() {
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
                        told.send(cycle(known.get((i + 1) % n).wait())).unwrap();
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

/// And a runtime may go as soon as its part in a cycle is over.
#[test]
fn runtimes_and_threads_come_and_go_while_others_look_for_cycles() {
    let _dog = Watchdog::new("");
    let lasting = runtime(2);
    for seed in 0..30 {
        let passing = runtime(1 + seed % 2);
        let (known, told) = (Known::new(), Count::new());
        let requests: Vec<_> = (0..6)
            .map(|i| {
                let (known, told) = (known.clone(), told.clone());
                make(if i % 2 == 0 { &passing } else { &lasting }, "r", move || {
                    // Some close a cycle, some lead to it from outside.
                    let next = if i < 4 { (i + 1) % 4 } else { i - 4 };
                    if cycle(known.get(next).wait()).is_some() {
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

/// Has the thread known to the library: what a thread took before is nobody's.
fn be_known() {
    let _ = Event::new().wait_timeout(Duration::ZERO);
}

/// A thread that runs no request holds a lock and ends a scope, whose job waits for that lock.
#[test]
fn a_cycle_through_a_lock_and_the_end_of_a_threads_scope_is_found_whoever_closes_it() {
    on_each_of(&WORKERS, |runtime| {
        be_known();
        for (job_last, jobs) in [(true, 1), (false, 1), (false, 3)] {
            let lock = Mutex::named("held", ());
            let guard = lock.lock();
            let ended = AtomicBool::new(false);
            let answer = runtime.enter(|| {
                try_scope(|s| {
                    let waiting: Vec<_> = (0..jobs)
                        .map(|_| {
                            let (lock, ended) = (&lock, &ended);
                            Request::builder().name("job").spawn_in(s, move || {
                                if job_last {
                                    until(|| ended.load(Ordering::Acquire));
                                }
                                drop(lock.lock());
                            })
                        })
                        .collect();
                    until(|| job_last || waiting.iter().all(|job| job.state() == State::Suspended));
                    ended.store(true, Ordering::Release);
                    Ok(())
                })
            });
            let Err(WaitError::Failed(failure)) = answer else { panic!("{answer:?}") };
            let text = failure.panic_message().unwrap();
            for part in ["deadlock", "`job`", "held"] {
                assert!(text.contains(part), "{text}");
            }
            drop(guard);
            assert!(!lock.is_locked());
        }
    });
}

/// The thread holds a lock, and waits for a request of a runtime. A job of that request waits for the lock before the request waits for its job.
#[test]
fn a_cycle_through_a_lock_of_a_thread_and_the_request_that_it_runs_is_found() {
    on_each_of(&WORKERS, |runtime| {
        be_known();
        let lock = Mutex::named("held", ());
        let guard = lock.lock();
        let answer = runtime.try_run(|| {
            try_scope(|s| {
                let job = Request::builder().name("job").spawn_in(s, || drop(lock.lock()));
                until(|| job.state() == State::Suspended);
                Ok(())
            })?;
            Ok(())
        });
        let text = format!("{:#}", answer.unwrap_err());
        assert!(text.contains("deadlock") && text.contains("`job`"), "{text}");
        drop(guard);
        assert!(!lock.is_locked());
    });
}

/// One reads and waits for what the other holds, who waits to write. None of them runs a request, and perhaps there is no runtime any more: the first
/// that a process makes has its threads known.
#[test]
fn a_cycle_of_threads_through_a_reader_is_found_whoever_closes_it() {
    let _dog = Watchdog::new("");
    drop(runtime(1));
    for writer_last in [true, false] {
        let (lock, other) = (RwLock::new(()), Mutex::new(()));
        let (reads, waits) = (Barrier::new(2), AtomicBool::new(false));
        // A thread cannot be seen to wait for a lock; what comes after the flag takes no time.
        let come = |last: bool| {
            if last {
                until(|| waits.load(Ordering::Acquire));
                (0..20_000).for_each(|_| std::thread::yield_now());
            } else {
                waits.store(true, Ordering::Release);
            }
        };
        let told = thread::scope(|s| {
            let reader = s.spawn(|| {
                be_known();
                let _reading = lock.read();
                reads.wait();
                come(!writer_last);
                catch_unwind(AssertUnwindSafe(|| drop(other.lock()))).is_err()
            });
            let writer = s.spawn(|| {
                be_known();
                let _holding = other.lock();
                reads.wait();
                come(writer_last);
                catch_unwind(AssertUnwindSafe(|| drop(lock.write()))).is_err()
            });
            [reader, writer].map(|thread| thread.join().unwrap())
        });
        assert_eq!(told.iter().filter(|told| **told).count(), 1, "{told:?}");
    }
}

/// Runs requests of these names, each on the stack of the one before. The one at `holder` takes the lock, and so does the innermost.
fn nest(names: &'static [&'static str], holder: usize, lock: &Arc<Mutex<()>>) -> Result<(), WaitError> {
    let Some((name, inner)) = names.split_first() else {
        drop(lock.lock());
        return Ok(());
    };
    let lock = lock.clone();
    let request = Request::builder().name(*name).try_build(move || {
        let _guard = (holder == 0).then(|| lock.lock());
        Ok(nest(inner, holder.wrapping_sub(1), &lock)?)
    });
    request.wait().map(drop)
}

/// By the thread itself, or by a request: a lock knows the stack of its holder only.
#[test]
fn a_lock_that_is_held_further_down_on_the_waiters_stack_is_said_to_be_held_by_one_of_those_on_it() {
    let _dog = Watchdog::new("");
    const THREAD: usize = usize::MAX;
    for (on_worker, names, holder, shown) in [
        (false, &["r"][..], THREAD, "plain > r, on one stack"),
        (false, &["a", "r"], 0, "plain > a > r, on one stack"),
        (true, &["outer", "inner"], 0, "outer > inner, on one stack"),
        (true, &["a", "b", "r"], 1, "a > b > r, on one stack"),
        (true, &["a request with a name of its own", "r"], 0, "a request with a na… > r, on one stack"),
        (
            true,
            &["the::path::of::some::function::{{closure}}", "r"],
            0,
            "…:of::some::function > r, on one stack",
        ),
        (
            true,
            &["the request at the bottom", "the one between them", "the request on top"],
            1,
            "the request at the … > … > the request on top, on one stack",
        ),
        (true, &["alone"], 0, "alone"),
    ] {
        let plain = move || {
            let runtime = forebear::Runtime::builder().workers(1).run_on_caller(!on_worker).build().unwrap();
            let lock = Arc::new(Mutex::named("L", ()));
            be_known();
            let guard = (holder == THREAD).then(|| lock.lock());
            let told = runtime.enter(|| nest(names, holder, &lock)).unwrap_err();
            drop(guard);
            format!("{told:#}")
        };
        let told = thread::Builder::new().name("plain".into()).spawn(plain).unwrap().join().unwrap();
        let (waiter, lock) = (names.last().unwrap(), "a Mutex \"L\"");
        assert!(told.contains(&format!("deadlock: `{waiter}` waits for `{lock} (")), "{told}");
        let end = match shown == *waiter {
            true => format!("`, which waits for `{waiter}`"),
            false => format!("`, which waits for `{shown}`, which waits for `{waiter}`"),
        };
        assert!(told.contains(&end), "{told}");
    }
}
