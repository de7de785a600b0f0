//! What users of the framework that this one follows have suffered from, one by one: each is named by what must hold, with the
//! defect's number in `study/requests.md`. Where another file has the test, it is in this table.
//!
//! | defect | test |
//! |---|---|
//! | D1, D3, D5, D6, D27 | `request_pool/`, by number |
//! | D2 | `mutex.rs`: who is cancelled in front of a lock leaves at once, takes nothing along, and hands on what it was given |
//! | D19 | `condvar.rs`: many waiters, counted notifications, limits, and a cancel that leaves the condition as it was |
//! | D4, D11, D17, D26, D28 | `cancel*.rs`, `callbacks/`, by number |
//! | D7 | `workers.rs`; the bench `skynet` |
//! | D8 | `urgency.rs`, `order.rs` |
//! | D9, D10, D23, D24 | `callbacks/`, `failure_and_cancel.rs`, by number |
//! | D12 | refused: a started request stays on its worker (`pinning.rs`) |
//! | D13 to D16, D18, D20 to D22, D25, D29, D31, D32 | here |
//! | D30 | none: no test here is ordered by time, and the lint against `sleep` sees to it |

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::any::Any;
use std::panic::resume_unwind;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use cancelling::{Gate, asleep, ends_cancelled};
use forebear::pool::{FifoQueue, Job, ThreadPool};
use forebear::{
    AnyRequest, CancelReason, Cancellation, Error, Outcome, Request, State, WaitError, spawn, yield_now,
};
use support::order::root;
use support::{
    Come, Count, Flag, Watchdog, again_in_child, in_both_worlds, inside_each, is_child, on_each, on_each_of,
};

/// D13: what is no ordinary error ended the worker, and whoever waited hung.
#[test]
fn d13_whatever_unwinds_is_told_to_who_waits_and_the_worker_goes_on() {
    struct Exit;
    on_each(|runtime| {
        for round in 0..10 {
            let payloads: [fn() -> Box<dyn Any + Send>; 4] =
                [|| Box::new(Exit), || Box::new(()), || Box::new("text"), || Box::new(7_u8)];
            for payload in payloads {
                let ends = runtime.spawn(move || -> u32 { resume_unwind(payload()) });
                let waits = runtime.spawn({
                    let ends = ends.clone();
                    move || matches!(ends.wait(), Err(WaitError::Failed(failure)) if failure.is_panic())
                });
                assert!(waits.take().unwrap() && ends.wait().is_err());
            }
            assert_eq!(runtime.spawn(move || round).take().unwrap(), round);
        }
    });
}

/// D14: requests that wait for requests that have not started overflowed at some two hundred.
#[test]
fn d14_a_deep_nest_of_waits_completes() {
    fn nest(depth: u32) -> u32 {
        if depth == 0 { 0 } else { Request::new(move || nest(depth - 1)).wait().unwrap() + 1 }
    }
    let depth = if cfg!(debug_assertions) { 2_000 } else { 100_000 };
    on_each(|runtime| assert_eq!(runtime.spawn(move || nest(depth)).take().unwrap(), depth));
}

/// D15: requests that wait for each other hung, whether by their callables or by a callback.
#[test]
fn d15_a_cycle_of_two_is_told_instead_of_hanging_also_through_a_callback() {
    /// Where the first one waits: in its callable or in its callback.
    fn told(runtime: &forebear::Runtime, in_callback: bool) -> usize {
        let (tell, answers) = mpsc::channel::<Result<(), WaitError>>();
        let known: Arc<Mutex<Vec<AnyRequest>>> = Arc::default();
        let waits = |at: usize| {
            let (known, tell) = (known.clone(), tell.clone());
            move || {
                let other = known.lock().unwrap()[at].clone();
                tell.send(other.wait()).unwrap();
            }
        };
        let (in_first, in_second) = (waits(1), waits(0));
        let first = match in_callback {
            false => root(runtime).name("first").build(in_first),
            true => {
                let first = root(runtime).name("first").build(|| ());
                first.on_done(move |_| in_first());
                first
            }
        };
        let second = root(runtime).name("second").build(in_second);
        *known.lock().unwrap() = vec![first.to_untyped(), second.to_untyped()];
        drop(tell);
        first.submit();
        second.wait().unwrap();
        first.wait().unwrap();
        let circular = |answer: &Result<(), WaitError>| match answer {
            Err(WaitError::CircularWait(cycle)) => {
                let names: Vec<_> = cycle.names().collect();
                assert!(names.contains(&"first") && names.contains(&"second"), "{cycle}");
                true
            }
            _ => false,
        };
        let answers: Vec<_> = answers.all().collect();
        assert_eq!(answers.len(), 2, "{answers:?}");
        answers.iter().filter(|answer| circular(answer)).count()
    }
    on_each(|runtime| {
        for _ in 0..20 {
            assert_eq!(told(runtime, false), 1);
            assert_eq!(told(runtime, true), 1);
        }
    });
}

/// D16: to await what somebody outside does took private calls, which crashed in a foreign thread, lost a wake-up that came
/// early, and did not hear of a cancel. Here whoever does it may do it as a request, which can be waited for like any other (or set an
/// event, or send: `event.rs`, `channel.rs`).
#[test]
fn d16_what_an_outside_thread_does_can_be_awaited_anywhere_and_given_up() {
    on_each(|runtime| {
        for early in [false, true] {
            let mut outside = Gate::new(runtime);
            let awaits = |target: Request<()>| move || target.wait().copied();
            let in_request = root(runtime).spawn(awaits(outside.request()));
            let inside_direct = root(runtime).spawn({
                let target = outside.request();
                move || Request::new(awaits(target)).take()?
            });
            let gives_up = root(runtime).spawn(awaits(outside.request()));
            if !early {
                asleep(&in_request);
                asleep(&inside_direct);
                asleep(&gives_up);
                assert_eq!(gives_up.cancel(), Cancellation::Marked);
                ends_cancelled(&gives_up);
            }
            // Run by a thread that is no worker's.
            let direct = runtime.enter(|| Request::new(awaits(outside.request())));
            let runs = direct.clone();
            let thread = thread::spawn(move || runs.wait().map(drop));
            if early {
                outside.open();
            } else {
                support::until(|| direct.state() != State::New);
                outside.open();
                assert!(gives_up.is_cancelled());
            }
            for request in [in_request, inside_direct, direct] {
                assert!(request.wait().unwrap().is_ok());
            }
            support::Joined::joined(thread).unwrap().unwrap();
        }
    });
}

/// D18: to stop dropped what was queued, whose waiters hung, and hung itself while anything ran; what was submitted afterwards
/// was accepted and never ran. To replace the default runtime: `builder.rs`, `the_default_runtime_is_replaced_unless_it_has_work`.
#[test]
fn d18_a_shutdown_tells_everybody_who_waits_and_refuses_what_comes_after() {
    fn is_told<T: std::fmt::Debug>(answer: Result<T, WaitError>) {
        assert!(
            matches!(answer, Err(WaitError::TargetCancelled(CancelReason::Shutdown) | WaitError::Cancelled)),
            "{answer:?}"
        );
    }
    on_each(|runtime| {
        let queued = root(runtime).build(|| while yield_now().is_ok() {});
        let running = root(runtime).spawn(|| while yield_now().is_ok() {});
        queued.submit();
        let waits = (running.clone(), queued.clone());
        let waiter = root(runtime).spawn(move || (waits.0.wait().copied(), waits.1.wait().copied()));
        let (first, second) = (running.clone(), queued.clone());
        let threads = [first, second].map(|target| thread::spawn(move || is_told(target.wait().copied())));
        runtime.shutdown(Duration::from_secs(60)).unwrap();
        is_told(running.wait());
        is_told(queued.wait());
        is_told(waiter.wait());
        for thread in threads {
            support::Joined::joined(thread).unwrap();
        }
        let after = runtime.spawn(|| 7);
        assert_eq!(after.state(), State::Cancelled);
        is_told(after.wait());
    });
}

/// D20: a coroutine that was made, waited for and woken by different threads crashed.
#[test]
fn d20_threads_may_make_wait_for_and_wake_the_same_requests() {
    on_each_of(&[1, 2, 4], |runtime| {
        for _ in 0..100 {
            let (first, go) = (runtime.enter(|| Request::new(|| yield_now().is_ok())), Flag::new());
            let middle = {
                let (first, go) = (first.clone(), go.clone());
                runtime.enter(|| {
                    Request::new(move || {
                        go.wait();
                        first.wait().copied()
                    })
                })
            };
            let threads = [(); 3].map(|()| {
                let middle = middle.clone();
                thread::spawn(move || middle.wait().cloned().unwrap().unwrap())
            });
            let waits = runtime.spawn(move || middle.wait().cloned().unwrap().unwrap());
            go.raise();
            for thread in threads {
                assert!(thread.join().unwrap());
            }
            assert!(waits.take().unwrap());
        }
    });
}

/// D21: to ask too early, or for what is not there, was an assertion, or nothing in a build without them.
#[test]
fn d21_who_asks_for_what_is_not_there_gets_an_answer_that_says_so() {
    in_both_worlds(|| {
        let early = Request::new(|| 7);
        assert!(early.get().is_none() && early.outcome().is_none() && !early.is_done());
        assert_eq!(early.state(), State::New);
        let early = early.try_take().unwrap_err();
        assert_eq!(early.wait().unwrap(), &7);

        let failed = Request::try_new(|| Err::<u32, _>(Error::other("no")));
        let Err(WaitError::Failed(failure)) = failed.wait() else { panic!() };
        assert_eq!(failure.error().to_string(), "no");
        assert!(failed.get().is_none() && matches!(failed.outcome(), Some(Outcome::Failed(_))));
        assert!(failed.try_take().is_err());

        let cancelled = Request::new(|| 7);
        cancelled.abort(CancelReason::Other(3));
        assert!(cancelled.get().is_none());
        assert!(matches!(cancelled.outcome(), Some(Outcome::Cancelled(CancelReason::Other(3)))));
        assert!(matches!(cancelled.take(), Err(WaitError::TargetCancelled(CancelReason::Other(3)))));

        let shared = Request::new(|| 7);
        let _other = shared.clone();
        assert!(matches!(shared.take(), Err(WaitError::Shared)));
    });
}

/// D22: an error did not say who had asked for what failed.
#[test]
fn d22_an_error_tells_the_names_it_came_along_and_what_began_it() {
    in_both_worlds(|| {
        let of = |name: &'static str| Request::builder().name(name);
        let view = of("view").try_build(|| {
            let layer = Request::builder().name("layer").try_build(|| {
                let block =
                    Request::builder().name("block").try_build(|| Ok(std::fs::read("no such file")?.len()));
                Ok(*block.wait()?)
            });
            Ok(*layer.wait()?)
        });
        let Err(WaitError::Failed(failure)) = view.wait() else { panic!() };
        assert_eq!(failure.request(), "block");
        assert_eq!(failure.path().collect::<Vec<_>>(), ["block", "layer", "view"]);
        assert!(failure.downcast_ref::<std::io::Error>().is_some());
    });
}

/// D25: a request that is only a value lacked half of what others have.
#[test]
fn d25_a_ready_value_is_a_request_like_any_other() {
    in_both_worlds(|| {
        let ready = Request::ready(7);
        assert_eq!(ready.submit().wait().unwrap(), &7);
        assert_eq!(ready.wait_timeout(Duration::ZERO).unwrap(), &7);
        assert_eq!(ready.watch().unwrap(), &7);
        assert_eq!((ready.get(), ready.state(), ready.is_done()), (Some(&7), State::Finished, true));
        assert_eq!(ready.cancel(), Cancellation::AlreadyDone);
        assert_eq!(ready.abort(CancelReason::Aborted), Cancellation::AlreadyDone);
        assert!(!ready.is_cancelled());
        let (tell, told) = mpsc::channel();
        let tells = |what| {
            let tell = tell.clone();
            move || tell.send(what).unwrap()
        };
        let (finished, done) = (tells("finished"), tells("done"));
        ready.on_finished(move |_| finished()).on_done(move |_| done());
        ready.on_cancelled(tells("cancelled"));
        let failed = tells("failed");
        ready.on_failed(move |_| failed());
        drop(tell);
        assert_eq!(told.try_iter().collect::<Vec<_>>(), ["finished", "done"]);
        assert!(ready.to_untyped().wait().is_ok());
        let waits = ready.clone();
        assert_eq!(spawn(move || *waits.wait().unwrap()).take().unwrap(), 7);
        assert_eq!(ready.take().unwrap(), 7);
    });
}

/// D29: what was made was submitted at once, so no batch could be put together first.
#[test]
fn d29_nothing_that_is_only_made_runs() {
    inside_each(|| {
        let ran = Count::new();
        let batch = [(); 8].map(|()| {
            let ran = ran.clone();
            Request::new(move || ran.up())
        });
        for _ in 0..100 {
            yield_now().unwrap();
        }
        assert_eq!(ran.get(), 0);
        assert!(batch.iter().all(|one| one.state() == State::New));
        batch.iter().for_each(|one| _ = one.submit());
        ran.wait_for(8);
    });
}

/// D31: a process did not end while anything was at work.
#[test]
fn d31_the_process_ends_whatever_is_still_at_work() {
    const NAME: &str = "d31_the_process_ends_whatever_is_still_at_work";
    let _dog = Watchdog::new("");
    if !is_child(NAME) {
        let (ok, told) = again_in_child(NAME, ("LEAVE", "1"), "");
        assert!(ok, "{told}");
        return;
    }
    let begun = Count::new();
    // One that computes, one that waits for it, one that polls, more than can run, and a task without requests.
    let up = begun.clone();
    let computes = spawn(move || {
        up.up();
        loop {
            std::hint::spin_loop();
        }
    });
    let waits = computes.clone();
    let up = begun.clone();
    Request::builder().own_stack().spawn(move || {
        up.up();
        waits.wait().map(drop)
    });
    for _ in 0..100 {
        spawn(|| while yield_now().is_ok() {});
    }
    let pool = ThreadPool::new(1, FifoQueue::<Job>::new()).unwrap();
    let up = begun.clone();
    let task = move || {
        up.up();
        loop {
            std::hint::spin_loop();
        }
    };
    assert!(pool.submit(Box::new(task)).is_ok());
    // To drop it would wait for its task.
    std::mem::forget(pool);
    while begun.get() < 2 {
        thread::yield_now();
    }
}

/// D32: to compute a thing once for all who want it took a lock by hand, or a shared request and a retry whenever its first
/// owner was cancelled. A retry is for what was aborted, and nothing else.
#[test]
fn d32_a_shared_request_runs_once_for_all_and_outlives_the_first_who_asked() {
    type Shared = Arc<Mutex<Option<Request<u32>>>>;
    /// Whoever comes first makes it; nobody holds the lock across a wait.
    fn get(shared: &Shared, ran: &Count, closed: Option<Request<()>>) -> Result<u32, WaitError> {
        loop {
            let (ran, closed) = (ran.clone(), closed.clone());
            let compute = move || {
                ran.up();
                if let Some(closed) = closed {
                    closed.wait().unwrap();
                }
                7
            };
            let make = || Request::builder().detached().own_stack().build(compute);
            let one = shared.lock().unwrap().get_or_insert_with(make).clone();
            match one.wait() {
                Err(WaitError::TargetCancelled(_)) => *shared.lock().unwrap() = None,
                answer => return answer.copied(),
            }
        }
    }
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let (ran, shared) = (Count::new(), Shared::default());
        let caller = || {
            let (ran, shared, closed) = (ran.clone(), shared.clone(), gate.request());
            let caller = root(runtime).spawn(move || get(&shared, &ran, Some(closed)));
            asleep(&caller);
            caller
        };
        let first = caller();
        let rest = [(); 20].map(|()| caller());
        assert_eq!(first.cancel(), Cancellation::Marked);
        ends_cancelled(&first);
        gate.open();
        for request in rest {
            assert_eq!(request.take().unwrap().unwrap(), 7);
        }
        assert_eq!(ran.get(), 1);
        let aborted = Request::new(|| 0);
        aborted.abort(CancelReason::Aborted);
        *shared.lock().unwrap() = Some(aborted);
        assert_eq!((runtime.enter(|| get(&shared, &ran, None).unwrap()), ran.get()), (7, 2));
    });
}
