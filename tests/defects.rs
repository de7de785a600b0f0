//! What users of the framework that this one follows have suffered from, one by one: each is named by what must hold, with the
//! defect's number in `study/requests.md`. Where another file has the test, it is in this table.
//!
//! | defect | test |
//! |---|---|
//! | D1, D3, D5, D6, D27 | `request_pool/`, by number |
//! | D4, D11, D17, D26, D28 | `cancel*.rs`, `callbacks/`, by number |
//! | D7 | `workers.rs`; the bench `skynet` |
//! | D8 | `urgency.rs`, `order.rs` |
//! | D9, D10, D23, D24 | `callbacks/`, `failure_and_cancel.rs`, by number |
//! | D12 | refused: a started request stays on its worker (`pinning.rs`) |
//! | D13, D14, D20, D21, D22, D25, D29 | here |
//! | D30 | none: no test here is ordered by time, and the lint against `sleep` sees to it |

mod support;

use std::any::Any;
use std::panic::resume_unwind;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use forebear::{CancelReason, Cancellation, Error, Outcome, Request, State, WaitError, spawn, yield_now};
use support::{Count, Flag, in_both_worlds, inside_each, on_each, on_each_of};

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
        assert!(ready.any().wait().is_ok());
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
