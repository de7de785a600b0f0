//! `Once`, `OnceLock` and `LazyLock`: what is made once, by whom, and what the others are told.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use cancelling::{asleep, ends_cancelled, on_each_clocked};
use forebear::sync::{LazyLock, Mutex, Once, OnceLock};
use forebear::{
    Cancellation, Cancelled, Priority, Request, Runtime, TimeoutError, WaitError, no_suspend, spawn,
    yield_now,
};
use support::order::{BY_URGENCY, Gate, on_one, open_beside_a_normal_one, root, wait_by_urgency};
use support::{
    Count, Flag, Joined, Watchdog, again_in_child, in_both_worlds, inside_each, is_child, on_each, until,
};

// ---- once ----------------------------------------------------------------------------------------------------------------------

#[test]
fn it_is_done_once_and_seen_by_all() {
    on_each(|runtime| {
        for _ in 0..20 {
            let shared = Arc::new((Once::new(), Count::new(), OnceLock::new()));
            let come = || {
                let shared = shared.clone();
                move || {
                    shared.0.call_once(|| {
                        let _ = yield_now();
                        shared.1.up();
                    });
                    assert!(shared.0.is_completed());
                    assert!(shared.1.get() >= 1);
                    *shared.2.get_or_init(|| {
                        let _ = yield_now();
                        shared.1.get() + shared.1.up()
                    })
                }
            };
            let requests: Vec<_> = (0..6).map(|_| root(runtime).spawn(come())).collect();
            let threads: Vec<_> = (0..3).map(|_| thread::spawn(come())).collect();
            for request in &requests {
                assert_eq!(request.wait().copied().unwrap(), 2);
            }
            for thread in threads {
                assert_eq!(thread.joined().unwrap(), 2);
            }
        }
    });
}

#[test]
fn nobody_goes_on_before_it_is_done() {
    on_each(|runtime| {
        let once = Arc::new(Once::new());
        let (begun, free, done) = (Flag::new(), Flag::new(), Count::new());
        let runner = {
            let (once, begun, free, done) = (once.clone(), begun.clone(), free.clone(), done.clone());
            root(runtime).spawn(move || {
                once.call_once(|| {
                    begun.raise();
                    free.wait();
                    done.up();
                });
            })
        };
        begun.wait();
        let others: Vec<_> = (0..4)
            .map(|_| {
                let (once, done) = (once.clone(), done.clone());
                let other = root(runtime).spawn(move || {
                    once.call_once(|| unreachable!("it is done once"));
                    done.get()
                });
                asleep(&other);
                other
            })
            .collect();
        assert!(!once.is_completed());
        free.raise();
        runner.wait().unwrap();
        others.iter().for_each(|other| assert_eq!(other.wait().copied().unwrap(), 1));
    });
}

#[test]
fn a_panic_goes_to_whoever_does_it_and_the_next_one_tries() {
    on_each(|runtime| {
        let once = Arc::new(Once::new());
        let tried = Count::new();
        let attempts: Vec<_> = (0..5)
            .map(|_| {
                let (once, tried) = (once.clone(), tried.clone());
                root(runtime).spawn(move || {
                    once.call_once(|| {
                        let before = tried.up();
                        let _ = yield_now();
                        assert!(before >= 2, "the first two fail");
                    });
                })
            })
            .collect();
        let failed = attempts.iter().filter(|attempt| attempt.wait().is_err()).count();
        assert_eq!((failed, tried.get()), (2, 3));
        assert!(once.is_completed());
    });
}

#[test]
fn a_cancelled_request_does_it_all_the_same() {
    on_each(|runtime| {
        let shared = Arc::new((Once::new(), OnceLock::new()));
        let theirs = shared.clone();
        let request = runtime.spawn(move || {
            Request::current().unwrap().cancel();
            theirs.0.call_once(|| ());
            theirs.1.get_or_init(|| 7);
            assert_eq!(theirs.1.wait().err(), Some(Cancelled::new()), "this is a cancellation point");
            assert_eq!(theirs.0.wait_timeout(Duration::MAX), Err(TimeoutError::Cancelled));
        });
        ends_cancelled(&request);
        assert!(shared.0.is_completed());
        assert_eq!(shared.1.get(), Some(&7));
    });
}

#[test]
fn who_waits_for_another_to_make_it_stays_when_it_is_cancelled() {
    on_each(|runtime| {
        let cell = Arc::new(OnceLock::new());
        let (begun, free) = (Flag::new(), Flag::new());
        let maker = {
            let (cell, begun, free) = (cell.clone(), begun.clone(), free.clone());
            root(runtime).spawn(move || {
                *cell.get_or_init(|| {
                    begun.raise();
                    free.wait();
                    1
                })
            })
        };
        begun.wait();
        let theirs = cell.clone();
        let waiter = root(runtime).spawn(move || *theirs.get_or_init(|| 2));
        let theirs = cell.clone();
        let leaver = root(runtime).spawn(move || theirs.wait().copied());
        asleep(&waiter);
        asleep(&leaver);
        waiter.cancel();
        assert_eq!(leaver.cancel(), Cancellation::Marked);
        ends_cancelled(&leaver);
        assert!(!waiter.is_done());
        free.raise();
        assert_eq!(maker.wait().copied().unwrap(), 1);
        ends_cancelled(&waiter);
    });
}

// ---- waiting for it without doing it -------------------------------------------------------------------------------------------

#[test]
fn who_only_waits_is_told_when_somebody_has_done_it() {
    on_each(|runtime| {
        let shared = Arc::new((Once::new(), OnceLock::new()));
        let waiter = || {
            let shared = shared.clone();
            move || {
                shared.0.wait().unwrap();
                *shared.1.wait().unwrap()
            }
        };
        let requests: Vec<_> = (0..3).map(|_| root(runtime).spawn(waiter())).collect();
        let thread = thread::spawn(waiter());
        requests.iter().for_each(asleep);
        // Attempts that fail change nothing for them.
        assert!(catch_unwind(AssertUnwindSafe(|| shared.0.call_once(|| panic!("in vain")))).is_err());
        assert_eq!(shared.1.get_or_try_init(|| Err("in vain")), Err("in vain"));
        shared.0.call_once(|| ());
        shared.1.set(5).unwrap();
        requests.iter().for_each(|request| assert_eq!(request.wait().copied().unwrap(), 5));
        assert_eq!(thread.joined().unwrap(), 5);
    });
}

#[test]
fn a_wait_times_out_when_its_time_has_come_and_not_before() {
    on_each_clocked(|runtime, clock| {
        let shared = Arc::new((Once::new(), OnceLock::<u32>::new()));
        let (first, second) = (shared.clone(), shared.clone());
        let waiters = [
            root(runtime).spawn(move || first.0.wait_timeout(Duration::from_secs(1))),
            root(runtime).spawn(move || second.1.wait_timeout(Duration::from_secs(1)).map(|_| ())),
        ];
        waiters.iter().for_each(asleep);
        clock.advance(Duration::from_millis(600));
        // An attempt in between does not make it longer.
        assert!(catch_unwind(AssertUnwindSafe(|| shared.0.call_once(|| panic!("in vain")))).is_err());
        clock.advance(Duration::from_millis(399));
        for _ in 0..20 {
            runtime.run(|| yield_now().unwrap());
        }
        assert!(waiters.iter().all(|waiter| !waiter.is_done()));
        clock.advance(Duration::from_millis(1));
        for waiter in &waiters {
            assert_eq!(waiter.wait().copied().unwrap(), Err(TimeoutError::TimedOut));
        }
        // They have left no trace.
        shared.0.call_once(|| ());
        assert_eq!(shared.1.wait_timeout(Duration::ZERO).err(), Some(TimeoutError::TimedOut));
        assert_eq!(*shared.1.get_or_init(|| 1), 1);
        assert_eq!(shared.1.wait_timeout(Duration::ZERO), Ok(&1));
    });
}

// ---- order, urgency, cycles ---------------------------------------------------------------------------------------------------

#[test]
fn the_most_urgent_go_on_first() {
    on_one(|runtime, log| {
        let once = Arc::new(Once::new());
        let theirs = once.clone();
        let waiters = wait_by_urgency(runtime, &log, move || theirs.wait().unwrap());
        once.call_once(|| ());
        waiters.iter().for_each(|waiter| waiter.wait().copied().unwrap());
        log.check(&BY_URGENCY);
    });
}

/// Whoever makes a value is as urgent as whoever waits for it, and so is what it waits for.
#[test]
fn urgency_goes_through_a_value_to_whoever_makes_it() {
    on_one(|runtime, log| {
        let cell = Arc::new(OnceLock::new());
        let gate = Gate::new(runtime);
        let begun = Flag::new();
        let maker = {
            let (cell, log, begun, gate) = (cell.clone(), log.clone(), begun.clone(), gate.request.clone());
            root(runtime).priority(Priority::BACKGROUND).spawn(move || {
                cell.get_or_init(|| {
                    begun.raise();
                    gate.wait().unwrap();
                    log.note("made");
                });
            })
        };
        begun.wait();
        let near = Flag::new();
        let waiter = {
            let (cell, log, near) = (cell.clone(), log.clone(), near.clone());
            root(runtime).priority(Priority::URGENT).spawn(move || {
                near.raise();
                cell.get_or_init(|| ());
                log.note("urgent");
            })
        };
        near.wait();
        open_beside_a_normal_one(runtime, &log, gate, &[&maker, &waiter]);
        log.check(&["made", "urgent", "normal"]);
    });
}

#[test]
fn a_maker_that_comes_back_is_a_cycle_and_named() {
    inside_each(|| {
        let once = Arc::new(Once::new());
        let theirs = once.clone();
        let request = Request::builder().name("maker").own_stack().spawn(move || {
            theirs.call_once(|| theirs.call_once(|| ()));
        });
        let Err(WaitError::Failed(failure)) = request.wait() else { panic!("it is told") };
        let text = failure.panic_message().unwrap();
        for part in ["deadlock", "`maker`", "Once", "tests/locks/once.rs"] {
            assert!(text.contains(part), "{text}");
        }
        // It was not done, so the next one does it.
        assert!(!once.is_completed());
        once.call_once(|| ());
    });
}

/// A thread that no runtime knows has no context of its own.
#[test]
fn a_maker_that_comes_back_is_a_cycle_and_named_on_a_thread_that_no_runtime_knows() {
    let once = Arc::new(Once::new());
    let theirs = once.clone();
    let thread = std::thread::spawn(move || {
        let told = catch_unwind(AssertUnwindSafe(|| theirs.call_once(|| theirs.call_once(|| ()))));
        let text = *told.unwrap_err().downcast::<String>().unwrap();
        for part in ["deadlock", "Once", "tests/locks/once.rs"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!theirs.is_completed());
        theirs.call_once(|| assert!(!theirs.is_completed()));
        theirs.call_once(|| unreachable!("it is done"));
    });
    thread.join().unwrap();
    assert!(once.is_completed());
}

/// As that of a mutex: the message has the kind that the caller uses, and the panic is where it is called.
#[test]
fn a_maker_that_comes_back_is_told_what_it_came_back_to_and_where() {
    let cases: [(_, fn()); 2] = [
        ("a Once (", || {
            let once = Once::new();
            once.call_once(|| once.call_once(|| ()));
        }),
        ("a OnceLock (", || {
            let cell = OnceLock::new();
            cell.get_or_init(|| _ = cell.get_or_init(|| ()));
        }),
    ];
    inside_each(|| {
        for (kind, makes) in cases {
            is_told_here(kind, makes);
        }
        // A thread of its own knows no runtime.
        for (kind, makes) in cases {
            let told = thread::spawn(move || catch_unwind(makes)).join().unwrap();
            let text = *told.unwrap_err().downcast::<String>().unwrap();
            assert!(text.contains(kind), "{text}");
        }
    });
}

#[test]
fn a_lazy_value_that_needs_itself_is_told_so_where_it_is_used() {
    static LAZY: LazyLock<u32> = LazyLock::new(|| *LAZY + 1);
    is_told_here("a LazyLock (", || _ = *LAZY);
    is_told_here("could not be made", || _ = *LAZY);
}

fn is_told_here(what: &str, f: fn()) {
    let request = Request::builder().own_stack().spawn(f);
    let Err(WaitError::Failed(failure)) = request.wait() else { panic!("it is told") };
    let text = failure.panic_message().unwrap();
    assert!(text.contains(what), "{text}");
    let at = failure.location().unwrap();
    assert_eq!(at.file(), file!(), "{what}: {at}");
}

#[test]
fn a_cycle_through_a_maker_and_a_request_is_named() {
    inside_each(|| {
        let cell = Arc::new(OnceLock::new());
        let theirs = cell.clone();
        let maker = Request::builder().name("maker").own_stack().spawn(move || {
            let again = theirs.clone();
            theirs
                .get_or_try_init(move || {
                    let child = Request::builder().name("child").own_stack().spawn(move || {
                        again.get_or_init(|| ());
                    });
                    child.wait().copied()
                })
                .copied()
        });
        let Err(error) = maker.wait().unwrap() else { panic!("somebody is told") };
        let text = format!("{error:#}");
        assert!(text.contains("`child`") && text.contains("maker"), "{text}");
    });
}

/// A maker on a plain thread that no runtime has known before waits for a request that needs what it makes.
fn is_told_of_its_cycle(what: &str, f: impl FnOnce() + Send + 'static) {
    let thread = thread::Builder::new().name("plain".into()).spawn(f).unwrap();
    let told = *thread.join().unwrap_err().downcast::<String>().unwrap();
    for part in ["deadlock", what, "`plain`", "`needs it`"] {
        assert!(told.contains(part), "{told}");
    }
}

/// Waits for such a request on a stack of its own, and panics with what it is told: the wait that begins last finds the cycle.
fn need(on: &Runtime, f: impl FnOnce() + Send + 'static) {
    let request = Request::builder().on(on).name("needs it").own_stack().spawn(f);
    match request.take() {
        Err(WaitError::Failed(failure)) => panic!("{}", failure.panic_message().unwrap()),
        Err(circular) => panic!("deadlock: {circular}"),
        Ok(_) => unreachable!("it is told"),
    }
}

fn cycles_of_new_threads(runtime: impl Fn() -> Runtime + Clone + Send + 'static) {
    let _dog = Watchdog::new("makers on threads that no runtime has known before");
    let on = runtime.clone();
    is_told_of_its_cycle("a Once (", move || {
        let once = Arc::new(Once::new());
        let again = once.clone();
        once.call_once(|| need(&on(), move || again.call_once(|| ())));
    });
    let on = runtime.clone();
    is_told_of_its_cycle("a OnceLock (", move || {
        let cell = Arc::new(OnceLock::new());
        let again = cell.clone();
        cell.get_or_init(|| need(&on(), move || _ = again.get_or_init(|| ())));
    });
    is_told_of_its_cycle("a LazyLock (", move || {
        type Make = Box<dyn FnOnce() + Send>;
        let lazy = Arc::new_cyclic(|lazy: &Weak<LazyLock<(), Make>>| {
            let lazy = lazy.clone();
            let make = move || {
                let again = lazy.upgrade().unwrap();
                need(&runtime(), move || *LazyLock::force(&again));
            };
            LazyLock::new(Box::new(make) as Make)
        });
        LazyLock::force(&lazy);
    });
}

#[test]
fn a_cycle_through_a_maker_on_a_thread_that_no_runtime_knew_is_named() {
    let runtime = support::runtime(2);
    let theirs = runtime.clone();
    cycles_of_new_threads(move || theirs.clone());
}

/// The makers begin before there is any runtime: each makes its own.
#[test]
fn a_cycle_through_a_maker_that_began_before_there_was_a_runtime_is_named() {
    const NAME: &str = "a_cycle_through_a_maker_that_began_before_there_was_a_runtime_is_named";
    if is_child(NAME) {
        // A maker that is told drops its handle before the request can go on. So that must not be the last.
        return cycles_of_new_threads(|| {
            let runtime = support::runtime(2);
            std::mem::forget(runtime.clone());
            runtime
        });
    }
    let (ok, told) = again_in_child(NAME, ("ALONE", "1"), "");
    assert!(ok, "{told}");
}

/// The word of what it makes gets an address while others wait there.
#[test]
fn a_maker_that_a_runtime_learns_of_meanwhile_wakes_those_who_wait() {
    const NAME: &str = "a_maker_that_a_runtime_learns_of_meanwhile_wakes_those_who_wait";
    if is_child(NAME) {
        let _dog = Watchdog::new(NAME);
        let (once, cell) = (Arc::new(Once::new()), OnceLock::new());
        let mut waiters = Vec::new();
        once.call_once(|| {
            let waits = || {
                let once = once.clone();
                move || once.call_once(|| unreachable!("it is done"))
            };
            waiters.push(thread::spawn(waits()));
            assert_eq!(*cell.get_or_init(|| support::runtime(1).run(|| 7)), 7);
            waiters.push(thread::spawn(waits()));
        });
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
        // One that fails leaves no trace either.
        let thread = thread::spawn(|| {
            let once = Once::new();
            let falls = || once.call_once(|| panic!("{}", support::runtime(1).run(|| "on purpose")));
            assert!(catch_unwind(AssertUnwindSafe(falls)).is_err());
            once.call_once(|| ());
        });
        return thread.join().unwrap();
    }
    let (ok, told) = again_in_child(NAME, ("ALONE", "1"), "");
    assert!(ok, "{told}");
}

#[test]
fn a_dump_names_a_maker_on_a_thread_that_no_runtime_knew() {
    let runtime = support::runtime(2);
    let _dog = Watchdog::over(&runtime, "the name of a maker");
    let cell = Arc::new(OnceLock::new());
    let (theirs, begun, free) = (cell.clone(), Flag::new(), Flag::new());
    let (up, down) = (begun.clone(), free.clone());
    let make = move || {
        theirs.get_or_init(|| {
            up.raise();
            while !down.is_up() {
                thread::yield_now();
            }
        });
    };
    let maker = thread::Builder::new().name("plain".into()).spawn(make).unwrap();
    begun.wait();
    let waiter = Request::builder().on(&runtime).spawn(move || _ = cell.get_or_init(|| ()));
    until(|| runtime.dump().to_string().contains("waits for a OnceLock"));
    let dump = runtime.dump().to_string();
    assert!(dump.contains("held by `plain`"), "{dump}");
    free.raise();
    waiter.wait().unwrap();
    maker.join().unwrap();
}

#[test]
fn a_region_that_must_not_suspend_refuses_a_wait_by_name_and_only_that() {
    on_each(|runtime| {
        let once = Arc::new(Once::new());
        no_suspend("a region", || once.call_once(|| ()));
        let (begun, free) = (Flag::new(), Flag::new());
        let cell = Arc::new(OnceLock::new());
        let maker = {
            let (cell, begun, free) = (cell.clone(), begun.clone(), free.clone());
            root(runtime).spawn(move || {
                cell.get_or_init(|| {
                    begun.raise();
                    free.wait();
                });
            })
        };
        begun.wait();
        let theirs = cell.clone();
        let request = root(runtime).spawn(move || {
            no_suspend("a region", || _ = theirs.get_or_init(|| ()));
        });
        let Err(WaitError::Failed(failure)) = request.wait() else { panic!("it has to wait") };
        let text = failure.panic_message().unwrap();
        assert!(text.contains("a region") && text.contains("Once"), "{text}");
        free.raise();
        maker.wait().unwrap();
    });
}

// ---- values --------------------------------------------------------------------------------------------------------------------

#[test]
fn a_cell_is_got_set_made_and_taken() {
    static CELL: OnceLock<i32> = OnceLock::new();
    assert!(CELL.get().is_none());
    thread::spawn(|| assert_eq!(*CELL.get_or_init(|| 92), 92)).joined().unwrap();
    assert_eq!(*CELL.get_or_init(|| panic!("it is made")), 92);
    assert_eq!((CELL.get(), CELL.set(1)), (Some(&92), Err(1)));

    let mut cell = OnceLock::new();
    assert!(cell.get_mut().is_none() && cell.take().is_none());
    cell.set(90).unwrap();
    *cell.get_mut().unwrap() += 2;
    assert_eq!(cell.clone().into_inner(), Some(92));
    assert_eq!((cell.take(), cell.get()), (Some(92), None));
    cell.set(1).unwrap();
    assert_eq!(cell, OnceLock::from(1));
    assert_ne!(cell, OnceLock::from(2));
    assert_ne!(cell, OnceLock::new());
    assert_eq!(OnceLock::<i32>::new().clone(), OnceLock::default());
    assert_eq!(
        (format!("{cell:?}"), format!("{:?}", OnceLock::<()>::new())),
        ("OnceLock(1)".into(), "OnceLock(<none>)".into())
    );
}

#[test]
fn a_value_is_dropped_once_by_whoever_has_the_cell_last() {
    let drops = Count::new();
    let cell = OnceLock::new();
    let probe = drops.probe();
    thread::spawn(move || {
        cell.get_or_init(|| probe);
        drop(cell);
    })
    .joined()
    .unwrap();
    assert_eq!(drops.get(), 1);
    drop(OnceLock::<String>::new());
    // What it borrows may go before it.
    let cell = OnceLock::new();
    {
        let short = String::new();
        assert!(cell.set(&short).is_ok());
    }
}

#[test]
fn who_fails_leaves_no_value() {
    in_both_worlds(|| {
        let cell = OnceLock::<String>::new();
        let told = catch_unwind(AssertUnwindSafe(|| cell.get_or_try_init(|| -> Result<_, ()> { panic!() })));
        assert!(told.is_err() && cell.get().is_none());
        assert_eq!(cell.get_or_try_init(|| Err(1)), Err(1));
        assert_eq!(cell.get_or_try_init(|| Ok::<_, ()>("made".to_owned())).unwrap(), "made");
        assert_eq!(cell.get().unwrap(), "made");
    });
}

#[test]
fn readers_see_the_whole_of_what_one_of_several_has_set() {
    on_each(|runtime| {
        let cell = Arc::new(OnceLock::<String>::new());
        let readers: Vec<_> = (0..4)
            .map(|_| {
                let cell = cell.clone();
                root(runtime).spawn(move || {
                    until(|| cell.get().is_some());
                    cell.get().cloned()
                })
            })
            .collect();
        let writers = [(); 3].map(|()| {
            let cell = cell.clone();
            thread::spawn(move || cell.set("whole".to_owned()).is_ok())
        });
        let set = writers.map(|writer| writer.joined().unwrap());
        assert_eq!(set.iter().filter(|set| **set).count(), 1);
        for reader in readers {
            assert_eq!(reader.take().unwrap().as_deref(), Some("whole"));
        }
    });
}

#[test]
fn a_lazy_value_is_made_when_it_is_first_wanted() {
    static MADE: LazyLock<Count> = LazyLock::new(Count::new);
    static LAZY: LazyLock<usize> = LazyLock::new(|| MADE.up() + 92);
    assert!(LazyLock::get(&LAZY).is_none());
    assert_eq!(format!("{LAZY:?}"), "LazyLock(<not made>)");
    thread::spawn(|| assert_eq!(*LAZY, 92)).joined().unwrap();
    assert_eq!((*LAZY, MADE.get(), LazyLock::get(&LAZY)), (92, 1, Some(&92)));
    assert_eq!(spawn(|| *LAZY).wait().copied().unwrap(), 92);

    let lazy: LazyLock<Mutex<u8>> = LazyLock::default();
    *lazy.lock() += 1;
    assert_eq!(*lazy.lock(), 1);
    // It borrows what it is made of.
    let text = "abc".to_owned();
    let mut lazy = LazyLock::new(|| text.clone());
    LazyLock::force_mut(&mut lazy).clear();
    lazy.push('d');
    assert_eq!(*LazyLock::force(&lazy), "d");
}

#[test]
fn a_lazy_value_that_could_not_be_made_panics_each_time() {
    in_both_worlds(|| {
        let tries = Cell::new(0);
        let mut lazy = LazyLock::new(|| -> String {
            tries.set(tries.get() + 1);
            panic!("the message of the maker")
        });
        for expected in
            ["the message of the maker", "has panicked before, or was unwound", "has panicked before"]
        {
            let told = catch_unwind(AssertUnwindSafe(|| lazy.len())).unwrap_err();
            assert!(told.downcast_ref::<&str>().unwrap().contains(expected));
        }
        let told = catch_unwind(AssertUnwindSafe(|| LazyLock::force_mut(&mut lazy).len())).unwrap_err();
        assert!(told.downcast_ref::<&str>().unwrap().contains("has panicked before"));
        assert_eq!(tries.get(), 1);
    });
}

#[test]
fn they_are_shared_if_what_they_hold_may_be() {
    fn shared<T: Send + Sync>() {}
    shared::<OnceLock<String>>();
    shared::<LazyLock<String>>();
    shared::<Once>();
}
