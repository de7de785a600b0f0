//! Dumps: who lives, what each does, whom each waits for, and who holds that.

#[path = "../support/mod.rs"]
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use forebear::channel::{bounded, bounded_named, unbounded};
use forebear::dump::{Dump, Party, Reason, WaitInfo};
use forebear::sync::{Barrier, Condvar, Event, Mutex, OnceLock, RwLock, Semaphore};
use forebear::{Priority, Request, RequestPool, Runtime, State, join, scope, select, spawn};

use support::{Flag, on_each, on_each_of, until};

/// The first dump that is as it should be.
fn dump_when(runtime: &Runtime, so: impl Fn(&Dump) -> bool) -> Dump {
    let mut found = None;
    until_some(|| {
        let dump = runtime.dump();
        let fits = so(&dump);
        found = Some(dump);
        fits
    });
    found.unwrap()
}

fn until_some(mut so: impl FnMut() -> bool) {
    let so = std::cell::RefCell::new(&mut so);
    until(|| (so.borrow_mut())());
}

/// What the request of this name waits for, if it is suspended.
fn wait_of<'a>(dump: &'a Dump, name: &str) -> Option<&'a WaitInfo> {
    dump.find(name).filter(|found| found.state == State::Suspended)?.waits_for.as_ref()
}

/// What the request of this name waits for, when it has come to wait.
fn waits(runtime: &Runtime, name: &str) -> (Dump, WaitInfo) {
    let dump = dump_when(runtime, |dump| wait_of(dump, name).is_some());
    let wait = wait_of(&dump, name).unwrap().clone();
    (dump, wait)
}

fn owners(wait: &WaitInfo) -> Vec<&str> {
    let name = |party| match party {
        &Party::Request { ref name, .. } | &Party::Other { ref name, .. } => &**name,
        _ => "?",
    };
    wait.owners.iter().map(name).collect()
}

fn named(runtime: &Runtime, name: &'static str) -> forebear::RequestBuilder {
    Request::builder().name(name).on(runtime)
}

#[test]
fn two_requests_that_wait_for_each_others_message_are_named() {
    on_each(|runtime| {
        let ((to_left, left), (to_right, right)) = (unbounded::<u32>(), unbounded::<u32>());
        named(runtime, "left").try_spawn(move || Ok(_ = to_right.send(left.recv()?)));
        named(runtime, "right").try_spawn(move || Ok(_ = to_left.send(right.recv()?)));
        for name in ["left", "right"] {
            let (dump, wait) = waits(runtime, name);
            assert_eq!(wait.reason, Reason::Receive);
            assert_eq!(wait.what, "an item from a channel");
            assert!(wait.owners.is_empty() && dump.find(name).unwrap().worker.is_some());
            let line = format!("`{name}` suspended on worker");
            assert!(dump.to_string().contains(&line), "{dump}");
        }
        runtime.shutdown(Duration::from_secs(60)).unwrap();
    });
}

#[test]
fn a_wait_for_a_request_names_it() {
    on_each(|runtime| {
        let go = Arc::new(Event::new());
        let target = named(runtime, "target").spawn({
            let go = go.clone();
            move || go.wait().unwrap()
        });
        waits(runtime, "target");
        let waiter = named(runtime, "waiter").own_stack().spawn(move || target.wait().copied().unwrap());
        let (dump, wait) = waits(runtime, "waiter");
        assert_eq!((wait.reason, &*wait.what), (Reason::Request, "request `target`"));
        assert_eq!(owners(&wait), ["target"]);
        let Party::Request { id, .. } = wait.owners[0] else { panic!("{wait:?}") };
        assert_eq!(dump.request(id).unwrap().name, "target");
        assert_eq!(wait_of(&dump, "target").unwrap().reason, Reason::Event);
        go.set();
        waiter.wait().unwrap();
        assert!(runtime.dump().requests.is_empty(), "all are over");
    });
}

#[test]
fn a_lock_is_told_with_its_name_its_place_and_its_holder() {
    on_each(|runtime| {
        let lock = Arc::new(Mutex::named("cache", 0));
        let go = Arc::new(Event::new());
        named(runtime, "holder").spawn({
            let (lock, go) = (lock.clone(), go.clone());
            move || {
                let _held = lock.lock();
                go.wait().unwrap();
            }
        });
        waits(runtime, "holder");
        let line = line!() + 3;
        let wanting = named(runtime, "wanting").spawn({
            let lock = lock.clone();
            move || *lock.lock() += 1
        });
        let (dump, wait) = waits(runtime, "wanting");
        assert_eq!(wait.reason, Reason::Lock);
        assert_eq!(wait.what, format!("a Mutex \"cache\" (tests/diagnostics/dump.rs:{line})"));
        assert_eq!(owners(&wait), ["holder"]);
        assert!(
            dump.to_string().contains(&format!("(tests/diagnostics/dump.rs:{line}), held by #")),
            "{dump}"
        );
        go.set();
        wanting.wait().unwrap();
    });
}

#[test]
fn a_lock_that_a_plain_thread_holds_is_told_with_the_name_of_that() {
    on_each(|runtime| {
        let lock = Arc::new(Mutex::new(0));
        let (held, go) = (Flag::new(), Flag::new());
        let holder = thread::Builder::new().name("outside".into()).spawn({
            let (lock, held, go, rt) = (lock.clone(), held.clone(), go.clone(), runtime.clone());
            move || {
                rt.enter(|| ()); // else forebear knows nothing of the thread
                let _guard = lock.lock();
                held.raise();
                go.wait();
            }
        });
        held.wait();
        let wanting = named(runtime, "wanting").spawn(move || *lock.lock() += 1);
        let (_, wait) = waits(runtime, "wanting");
        assert_eq!(owners(&wait), ["outside"], "{wait:?}");
        go.raise();
        holder.unwrap().join().unwrap();
        wanting.wait().unwrap();
    });
}

#[test]
fn the_readers_of_a_lock_are_told_to_whom_it_is_that_writes() {
    on_each(|runtime| {
        let lock = Arc::new(RwLock::named("table", 0));
        let go = Arc::new(Event::new());
        for name in ["reader 1", "reader 2"] {
            named(runtime, name).spawn({
                let (lock, go) = (lock.clone(), go.clone());
                move || {
                    let _read = lock.read();
                    go.wait().unwrap();
                }
            });
            waits(runtime, name);
        }
        let writer = named(runtime, "writer").spawn(move || *lock.write() += 1);
        let (_, wait) = waits(runtime, "writer");
        let mut readers = owners(&wait);
        readers.sort_unstable();
        assert_eq!(readers, ["reader 1", "reader 2"], "{wait:?}");
        assert!(wait.what.contains("\"table\""), "{wait:?}");
        go.set();
        writer.wait().unwrap();
    });
}

#[test]
fn every_other_wait_is_told_with_what_it_is_for() {
    on_each(|runtime| {
        let end = Arc::new(Event::new());
        let (full, _items) = bounded_named("tiles", 1);
        full.try_send(0).unwrap();
        let (_kept, empty) = unbounded::<u8>();
        let (permits, barrier) = (Semaphore::named("slots", 0), Barrier::new(2));
        let (lock, condition) = (Mutex::new(()), Condvar::named("filled"));
        named(runtime, "sends").spawn(move || full.send(1).is_ok());
        named(runtime, "permits").spawn(move || permits.acquire().is_ok());
        named(runtime, "barrier").spawn(move || barrier.wait().is_ok());
        named(runtime, "condition").spawn(move || _ = condition.wait(&mut lock.lock()));
        named(runtime, "sleeps").spawn(|| forebear::time::sleep(Duration::from_secs(3_600)));
        let event = end.clone();
        named(runtime, "selects").spawn(move || {
            select! {
                item = &empty => _ = item,
                _ = &*event => {}
            }
        });
        let expected = [
            ("sends", Reason::Send, "room in a channel \"tiles\""),
            ("permits", Reason::Permits, "permits of a semaphore \"slots\""),
            ("barrier", Reason::Barrier, "the others at a barrier"),
            ("condition", Reason::Condition, "a condition \"filled\""),
            ("selects", Reason::Select, "the first of several"),
        ];
        for (name, reason, what) in expected {
            let (_, wait) = waits(runtime, name);
            assert_eq!((wait.reason, &*wait.what), (reason, what), "{name}");
        }
        if runtime.workers() > 0 {
            let (_, wait) = waits(runtime, "sleeps");
            assert_eq!((wait.reason, &*wait.what), (Reason::Sleep, "a time to come"));
            assert!(wait.since.is_some());
        }
        end.set();
        runtime.shutdown(Duration::from_secs(60)).unwrap();
    });
}

#[test]
fn who_makes_a_value_is_told_to_whom_it_is_that_waits_for_it() {
    on_each(|runtime| {
        let value = Arc::new(OnceLock::new());
        let go = Arc::new(Event::new());
        named(runtime, "maker").spawn({
            let (value, go) = (value.clone(), go.clone());
            move || {
                value.get_or_init(|| go.wait().is_ok());
            }
        });
        waits(runtime, "maker");
        let user = named(runtime, "user").spawn(move || *value.get_or_init(|| false));
        let (_, wait) = waits(runtime, "user");
        assert_eq!((wait.reason, owners(&wait)), (Reason::Once, vec!["maker"]));
        go.set();
        user.wait().unwrap();
    });
}

#[test]
fn a_scope_waits_for_those_of_its_jobs_that_are_left() {
    on_each(|runtime| {
        let go = Arc::new(Event::new());
        let event = go.clone();
        let outer = named(runtime, "outer").own_stack().spawn(move || {
            scope(|s| {
                for name in ["job 1", "job 2"] {
                    Request::builder().name(name).own_stack().spawn_in(s, || event.wait().unwrap());
                }
                Request::builder().name("over").spawn_in(s, || ()).wait().unwrap();
            });
        });
        let dump = dump_when(runtime, |dump| {
            ["job 1", "job 2"].iter().all(|job| wait_of(dump, job).is_some())
                && wait_of(dump, "outer").is_some_and(|wait| wait.reason == Reason::Scope)
        });
        let mut jobs = owners(wait_of(&dump, "outer").unwrap());
        jobs.sort_unstable();
        assert_eq!(jobs, ["job 1", "job 2"], "{dump}");
        let outer_id = dump.find("outer").unwrap().id;
        assert_eq!(dump.find("job 1").unwrap().parent, Some(outer_id));
        go.set();
        outer.wait().unwrap();
    });
}

#[test]
fn who_has_lent_its_stack_waits_for_who_runs_on_it() {
    on_each_of(&[1, 2, 4], |runtime| {
        let go = Arc::new(Event::new());
        let event = go.clone();
        let lender = named(runtime, "lender").spawn(move || {
            Request::builder().name("guest").build(move || event.wait().unwrap()).wait().copied().unwrap();
        });
        let (dump, wait) = waits(runtime, "guest");
        assert_eq!(wait.reason, Reason::Event);
        let below = wait_of(&dump, "lender").expect("it is suspended too");
        assert_eq!(owners(below), ["guest"]);
        assert_eq!(dump.find("guest").unwrap().parent, Some(dump.find("lender").unwrap().id));
        go.set();
        lender.wait().unwrap();
    });
}

#[test]
fn a_pool_waits_for_its_members() {
    on_each_of(&[1, 2, 4], |runtime| {
        let go = Arc::new(Event::new());
        let event = go.clone();
        let owner = named(runtime, "owner").spawn(move || {
            let mut pool = RequestPool::new().max_active(2);
            for _ in 0..2 {
                let event = event.clone();
                pool.add(move || event.wait().unwrap());
            }
            pool.wait().unwrap();
        });
        let (dump, wait) = waits(runtime, "owner");
        assert_eq!(wait.reason, Reason::Pool, "{dump}");
        assert!(dump.find("lane of a pool").is_some(), "{dump}");
        go.set();
        owner.wait().unwrap();
    });
}

#[test]
fn what_is_queued_and_what_runs_is_told_with_its_worker() {
    on_each_of(&[1], |runtime| {
        let (started, go) = (Flag::new(), Arc::new(AtomicBool::new(false)));
        let up = (started.clone(), go.clone());
        let runs = named(runtime, "runs").priority(Priority::URGENT).spawn(move || {
            let child = Request::builder().name("private").spawn(|| ());
            up.0.raise();
            while !up.1.load(Ordering::Acquire) {
                let _ = spawn(|| ()).take();
            }
            child.wait().copied()
        });
        started.wait();
        let root = named(runtime, "root").priority(Priority::BACKGROUND).spawn(|| ());
        // The worker comes to a scheduling point soon, and on a busy machine perhaps not within the time that a dump waits.
        let dump = dump_when(runtime, |dump| dump.workers[0].answered);
        assert_eq!(dump.workers[0].runs, Some(dump.find("runs").unwrap().id));
        let [runs_info, private, queued] = ["runs", "private", "root"].map(|name| dump.find(name).unwrap());
        assert_eq!((runs_info.state, runs_info.worker), (State::Running, Some(0)));
        assert_eq!(
            (private.state, private.worker, private.parent),
            (State::Queued, Some(0), Some(runs_info.id))
        );
        assert_eq!((queued.state, queued.worker, queued.parent), (State::Queued, None, None));
        assert_eq!(runs_info.priority, Priority::URGENT);
        assert_eq!(queued.priority, Priority::BACKGROUND);
        assert_eq!(dump.requests[0].name, "runs", "the most urgent root first");
        assert!(runs_info.made_at.as_ref().unwrap().file().ends_with("dump.rs"));
        go.store(true, Ordering::Release);
        runs.wait().unwrap().as_ref().unwrap();
        root.wait().unwrap();
    });
}

#[test]
fn a_worker_without_a_scheduling_point_is_told_with_what_it_runs_and_how_much_is_private() {
    on_each_of(&[1, 2], |runtime| {
        let (started, go) = (Flag::new(), Arc::new(AtomicBool::new(false)));
        let up = (started.clone(), go.clone());
        let computes = named(runtime, "computes").spawn(move || {
            let before = Request::builder().name("suspended").own_stack().spawn(forever);
            forebear::yield_now().unwrap();
            let children: Vec<_> = (0..5).map(|n| spawn(move || n)).collect();
            up.0.raise();
            while !up.1.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            drop(before);
            children.into_iter().map(|child| child.take().unwrap()).sum::<i32>()
        });
        started.wait();
        let dump = runtime.dump();
        let computes_info = dump.find("computes").expect("it runs");
        let worker = &dump.workers[computes_info.worker.unwrap()];
        assert!(!worker.answered, "{dump}");
        assert_eq!(worker.runs, Some(computes_info.id));
        assert_eq!(computes_info.state, State::Running);
        // With two workers some may have been shown to the other before.
        assert!(worker.private <= 5 && (runtime.workers() > 1 || worker.private == 5), "{dump}");
        assert!(dump.to_string().contains("no scheduling point for 10 ms"), "{dump}");
        if runtime.workers() == 1 {
            assert_eq!(dump.requests.len(), 2, "what is private is not listed: {dump}");
            assert_eq!(wait_of(&dump, "suspended").unwrap().reason, Reason::Event);
        }
        go.store(true, Ordering::Release);
        assert_eq!(computes.wait().copied().unwrap(), 10);
        runtime.shutdown(Duration::from_secs(60)).unwrap();
    });

    fn forever() {
        let _ = Event::new().wait();
    }
}

#[test]
fn threads_that_wait_are_told_and_those_that_run_requests() {
    on_each_of(&[1, 2], |runtime| {
        let go = Arc::new(Event::new());
        let event = go.clone();
        let target = named(runtime, "target").own_stack().spawn(move || event.wait().unwrap());
        waits(runtime, "target");
        let event = go.clone();
        thread::scope(|s| {
            let waiter = thread::Builder::new().name("waiter".into());
            let waiter = waiter.spawn_scoped(s, || target.wait().copied().unwrap()).unwrap();
            let runner = thread::Builder::new().name("runner".into());
            let direct = named(runtime, "direct").build(move || event.wait().unwrap());
            let runner = runner.spawn_scoped(s, move || direct.wait().copied().unwrap()).unwrap();
            let dump = dump_when(runtime, |dump| {
                wait_of(dump, "direct").is_some() && dump.threads.iter().any(|thread| thread.name == "waiter")
            });
            let waiting = dump.threads.iter().find(|thread| thread.name == "waiter").unwrap();
            assert_eq!(owners(&waiting.waits_for), ["target"]);
            assert!(dump.to_string().contains("thread `waiter` waits for request `target`"), "{dump}");
            let direct = dump.find("direct").unwrap();
            if direct.worker.is_none() {
                assert_eq!(direct.thread.as_deref(), Some("runner"));
            }
            go.set();
            support::join_all([waiter, runner]);
        });
    });
}

#[test]
fn a_thread_that_waits_for_a_request_of_another_runtime_is_told_by_that_alone() {
    let [one, other] = [(); 2].map(|()| support::runtime(1));
    let go = Arc::new(Event::new());
    let event = go.clone();
    let target = named(&other, "target").own_stack().spawn(move || event.wait().unwrap());
    thread::scope(|s| {
        let waiter = thread::Builder::new().name("waiter".into());
        let waiter = waiter.spawn_scoped(s, || target.wait().copied().unwrap()).unwrap();
        let is_waiter = |thread: &forebear::dump::ThreadInfo| thread.name == "waiter";
        dump_when(&other, |dump| dump.threads.iter().any(is_waiter));
        let dump = one.dump();
        assert!(!dump.threads.iter().any(is_waiter), "{dump}");
        go.set();
        support::join_all([waiter]);
    });
}

#[test]
fn an_arm_of_a_join_goes_by_its_makers_name() {
    on_each_of(&[2, 4], |runtime| {
        let go = Arc::new(Event::new());
        let event = go.clone();
        let joins = named(runtime, "joins").spawn(move || {
            join(|| event.wait().unwrap(), || event.wait().unwrap());
        });
        let dump = dump_when(runtime, |dump| {
            dump.requests.iter().filter(|one| one.name == "joins" && one.waits_for.is_some()).count() == 2
        });
        assert_eq!(dump.requests.iter().filter(|one| one.is_arm).count(), 1, "{dump}");
        assert!(dump.to_string().contains("`joins` (a branch of its join)"), "{dump}");
        go.set();
        joins.wait().unwrap();
    });
}

#[test]
fn a_dump_is_of_one_runtime_and_names_what_is_of_another() {
    let _dog = support::Watchdog::new("two runtimes");
    let one = Runtime::builder().workers(1).name("one").build().unwrap();
    let other = Runtime::builder().workers(1).name("other").build().unwrap();
    let (lock, go) = (Arc::new(Mutex::new(0)), Arc::new(Event::new()));
    named(&one, "holder").spawn({
        let (lock, go) = (lock.clone(), go.clone());
        move || {
            let _guard = lock.lock();
            go.wait().unwrap();
        }
    });
    let (dump, _) = waits(&one, "holder");
    assert!(other.dump().requests.is_empty() && dump.requests.len() == 1);
    let wanting = named(&other, "wanting").spawn(move || *lock.lock() += 1);
    let (dump, wait) = waits(&other, "wanting");
    assert_eq!(owners(&wait), ["holder"], "{dump}");
    assert!(matches!(wait.owners[0], Party::Other { .. }));
    let (waited, waiter) = (wanting.clone(), wanting.to_untyped());
    let crossing = named(&one, "crossing").own_stack().spawn(move || waiter.wait());
    let (dump, wait) = waits(&one, "crossing");
    assert_eq!((owners(&wait), dump.find("wanting").is_none()), (vec!["wanting"], true));
    go.set();
    waited.wait().unwrap();
    crossing.wait().unwrap().as_ref().unwrap();
}

#[test]
fn a_request_dumps_its_own_runtime_also_when_several_do_at_once() {
    on_each(|runtime| {
        let rt = runtime.clone();
        let all: Vec<_> = (0..8)
            .map(|n| {
                let rt = rt.clone();
                Request::builder().name(format!("dumper {n}")).on(runtime).spawn(move || {
                    let dump = rt.dump();
                    let own = Request::current().unwrap();
                    dump.request(own.id()).is_some_and(|found| found.state == State::Running)
                })
            })
            .collect();
        assert!(all.into_iter().all(|dumper| dumper.wait().copied().unwrap()));
    });
}

/// By the dumps themselves, on the clock of the runtime.
#[test]
fn a_request_is_as_old_as_the_first_dump_that_has_listed_it_or_come_after_its_number_was_asked_for() {
    let runtime = Runtime::builder().seeded(1).build().unwrap();
    let hour = Duration::from_secs(3_600);
    let rt = runtime.clone();
    runtime.run(move || {
        let age = |dump: &Dump, name: &str| dump.find(name).unwrap().known_for;
        let (completer, answer) = Request::<()>::completer("answer");
        let waits = |name: &'static str, answer: Request<()>| {
            named(&rt, name).spawn(move || answer.wait().copied());
            // What is drawn and has not begun is in no dump.
            (0..100).for_each(|_| forebear::yield_now().unwrap());
        };
        waits("old", answer.clone());
        let first = rt.dump();
        assert_eq!(age(&first, "old"), None, "{first}");
        waits("asked", answer.clone());
        // No dump lists it before the third.
        let late = answer.clone();
        let unsubmitted = named(&rt, "numbered").build(move || late.wait().copied());
        let _ = unsubmitted.id();
        forebear::time::sleep(hour).unwrap();
        let second = rt.dump();
        assert_eq!((age(&second, "old"), age(&second, "asked")), (Some(hour), None), "{second}");
        assert!(second.find("numbered").is_none());
        forebear::time::sleep(hour).unwrap();
        unsubmitted.submit();
        waits("new", answer.clone());
        let third = rt.dump();
        let ages = ["old", "asked", "numbered", "new"].map(|name| age(&third, name));
        assert_eq!(ages, [Some(2 * hour), Some(hour), Some(hour), None], "{third}");
        assert!(third.to_string().contains("`asked` suspended on worker 0, child of"), "{third}");
        assert!(third.to_string().contains(", at least 3600.0 s old, waits for request"), "{third}");
        completer.complete(()).unwrap();
    });
}

#[test]
fn a_runtime_that_is_over_has_nobody() {
    on_each(|runtime| {
        runtime.spawn(|| ()).wait().unwrap();
        runtime.finish(Duration::from_secs(60)).unwrap();
        let dump = runtime.dump();
        assert!(dump.requests.is_empty() && dump.threads.is_empty(), "{dump}");
    });
}

#[test]
fn a_dump_may_be_made_while_requests_come_suspend_and_go() {
    on_each_of(&[1, 2, 4], |runtime| {
        let stop = Arc::new(AtomicBool::new(false));
        let lock = Arc::new(Mutex::named("shared", 0_u64));
        let makers: Vec<_> = (0..3)
            .map(|n| {
                let (stop, lock) = (stop.clone(), lock.clone());
                named(runtime, "maker").spawn(move || {
                    let mut turns = 0_u64;
                    while !stop.load(Ordering::Acquire) {
                        churn(n + turns, &lock);
                        turns += 1;
                    }
                    turns
                })
            })
            .collect();
        let dumps = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..support::fitting(300) {
                let dump = runtime.dump();
                let makers = dump.requests.iter().filter(|one| one.name == "maker" && !one.is_arm).count();
                assert!(makers <= 3, "{dump}");
                assert!(dump.to_string().lines().count() > dump.requests.len());
            }
        }));
        stop.store(true, Ordering::Release);
        let turns: u64 = makers.into_iter().map(|maker| maker.wait().copied().unwrap()).sum();
        if let Err(failed) = dumps {
            resume_unwind(failed);
        }
        assert!(turns > 0);
    });

    fn churn(turn: u64, lock: &Arc<Mutex<u64>>) {
        let (send, receive) = bounded::<u64>(1);
        let inner = lock.clone();
        let echo = Request::builder().name(format!("echo {turn}")).own_stack().spawn(move || {
            *inner.lock() += 1;
            receive.recv().unwrap_or(0)
        });
        let (a, b) = join(|| spawn(move || turn).take().unwrap(), || forebear::yield_now().is_ok());
        assert!(b && a == turn);
        scope(|s| {
            let sent = s.spawn(|| send.send(turn).is_ok());
            let guard = lock.lock();
            let _ = forebear::yield_now();
            drop(guard);
            assert!(sent.take().unwrap());
        });
        assert_eq!(echo.take().unwrap(), turn);
        // Large ones, whose memory goes back at once.
        let large = [turn; 400];
        spawn(move || large[7]).cancel();
    }
}

/// The last of a chain alone was submitted. The completion and all between are listed, too, each with what it is after.
#[test]
fn what_is_after_a_completion_is_listed_though_nobody_waits_for_it() {
    on_each(|runtime| {
        let (completer, [first, second, third]) = runtime.enter(|| {
            let (completer, first) = Request::<u32>::completer("first");
            let second = Request::builder().name("second").then(&first, |n| n + 1);
            let third = Request::builder().name("third").after(&first).then(&second, |n| n * 2);
            let unsubmitted = Request::builder().name("unsubmitted").then(&first, |n| n + 1);
            third.submit();
            assert_eq!(unsubmitted.state(), State::New);
            (completer, [first, second, third])
        });
        let dump = runtime.dump();
        let names: Vec<_> = dump.requests.iter().map(|request| &*request.name).collect();
        assert_eq!(names, ["first", "second", "third"]);
        assert!(dump.requests.iter().all(|request| request.state == State::Queued));
        let waits_of = |name: &str| dump.find(name).unwrap().waits_for.clone();
        assert!(waits_of("first").is_none());
        assert_eq!(owners(&waits_of("second").unwrap()), ["first"]);
        let wait = waits_of("third").unwrap();
        assert_eq!(wait.what, "request `first` and 1 more, declared");
        assert_eq!(owners(&wait), ["first", "second"]);
        // In the order of their making each time.
        let again: Vec<_> = runtime.dump().requests.into_iter().map(|request| request.id).collect();
        assert_eq!(again, [first.id(), second.id(), third.id()]);
        completer.complete(20).unwrap();
        assert_eq!(third.wait().unwrap(), &42);
        assert!(runtime.dump().requests.is_empty());
    });
}
