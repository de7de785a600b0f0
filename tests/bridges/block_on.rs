//! `block_on`: futures awaited by requests and by threads, and what a cancel does to them.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::future::{Future, pending, poll_fn, ready};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread;

use cancelling::{asleep, ends_cancelled, on_each_clocked};
use forebear::{CancelReason, Cancelled, Request, Runtime, block_on, no_suspend, spawn, yield_now};
use support::order::root;
use support::{Count, Flag, Joined, Modes, in_both_worlds, not_on, on_each, on_each_of};

/// A future that somebody else makes ready. Its waker can be had.
#[derive(Clone, Default)]
struct Outside(Arc<Mutex<(Option<u32>, Option<Waker>)>>);

impl Outside {
    fn finish(&self, value: u32) {
        let mut inner = self.0.lock().unwrap();
        inner.0 = Some(value);
        let waker = inner.1.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    fn is_polled(&self) -> bool {
        self.0.lock().unwrap().1.is_some()
    }
}

impl Future for Outside {
    type Output = u32;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<u32> {
        let mut inner = self.0.lock().unwrap();
        inner.1 = Some(task.waker().clone());
        inner.0.map_or(Poll::Pending, Poll::Ready)
    }
}

fn on(runtime: &Runtime, outside: &Outside) -> Request<Result<u32, Cancelled>> {
    let future = outside.clone();
    root(runtime).name("awaits").spawn(move || block_on(future))
}

#[test]
fn a_future_is_awaited_here_and_may_borrow() {
    in_both_worlds(|| {
        let (mut polls, local) = (0, Rc::new(5));
        let ready_at_last = poll_fn(|task| {
            polls += 1;
            task.waker().wake_by_ref();
            if polls < 4 { Poll::Pending } else { Poll::Ready(*local) }
        });
        assert_eq!(block_on(ready_at_last), Ok(5));
        assert_eq!(polls, 4);
        assert_eq!(block_on(ready(1)), Ok(1));
        assert_eq!(block_on(async { block_on(ready(2)) }), Ok(Ok(2)));
    });
}

#[test]
fn the_request_is_suspended_meanwhile() {
    on_each(|runtime| {
        let outside = Outside::default();
        let request = on(runtime, &outside);
        asleep(&request);
        // Its worker goes on.
        assert_eq!(root(runtime).spawn(|| 3).take().unwrap(), 3);
        outside.finish(7);
        assert_eq!(request.take().unwrap(), Ok(7));
    });
}

#[test]
fn a_thread_wakes_what_it_has_finished() {
    on_each(|runtime| {
        for n in 0..200 {
            let outside = Outside::default();
            let request = on(runtime, &outside);
            let thread = thread::spawn(move || outside.finish(n));
            thread.joined().unwrap();
            assert_eq!(request.take().unwrap(), Ok(n));
        }
    });
}

/// Says when it is dropped, and with whom as the current request.
struct Dropped(mpsc::Sender<Option<String>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.send(Request::current().map(|request| request.name().to_owned())).unwrap();
    }
}

#[test]
fn a_cancel_drops_the_future_where_it_was_polled() {
    on_each(|runtime| {
        let (told, dropped) = mpsc::channel();
        let answer = Arc::new(Mutex::new(None));
        let keep = answer.clone();
        let request = root(runtime).name("awaits").spawn(move || {
            let probe = Dropped(told);
            let came = block_on(async move {
                let _probe = probe;
                pending::<()>().await;
            });
            *keep.lock().unwrap() = Some(came);
        });
        asleep(&request);
        request.abort(CancelReason::Asked);
        ends_cancelled(&request);
        assert_eq!(dropped.try_recv().unwrap().as_deref(), Some("awaits"));
        assert_eq!(*answer.lock().unwrap(), Some(Err(Cancelled::new())));
    });
}

#[test]
fn a_cancelled_request_polls_nothing() {
    on_each(|runtime| {
        let polls = Count::new();
        let (counted, started) = (polls.clone(), Flag::new());
        let up = started.clone();
        let request = root(runtime).spawn(move || {
            up.raise();
            while yield_now().is_ok() {}
            let _ = block_on(poll_fn(|_| {
                counted.up();
                Poll::Ready(())
            }));
        });
        started.wait();
        request.abort(CancelReason::Asked);
        ends_cancelled(&request);
        assert_eq!(polls.get(), 0);
    });
}

#[test]
fn what_its_future_waits_for_goes_with_a_cancelled_request() {
    on_each(|runtime| {
        let (give, child) = mpsc::channel();
        let request = root(runtime).spawn(move || {
            let child = spawn(|| while yield_now().is_ok() {});
            give.send(child.to_untyped()).unwrap();
            let _ = block_on(child);
        });
        asleep(&request);
        let child = child.recv().unwrap();
        request.abort(CancelReason::Asked);
        ends_cancelled(&request);
        cancelling::was_cancelled(&child);
    });
}

#[test]
fn a_panic_of_the_future_is_the_callers() {
    on_each(|runtime| {
        let request = root(runtime).spawn(|| block_on(async { panic!("in the future") }));
        let Err(forebear::WaitError::Failed(failure)) = request.take() else { panic!() };
        assert!(failure.is_panic() && format!("{failure:#}").contains("in the future"), "{failure:#}");
    });
}

#[test]
fn it_is_refused_by_name_where_it_must_not_suspend() {
    on_each(|runtime| {
        let request = root(runtime).spawn(|| no_suspend("a region", || block_on(pending::<()>())));
        let Err(forebear::WaitError::Failed(failure)) = request.take() else { panic!() };
        assert!(format!("{failure:#}").contains("a region"), "{failure:#}");
        // What is ready does not wait.
        assert_eq!(
            root(runtime).spawn(|| no_suspend("a region", || block_on(ready(1)))).take().unwrap(),
            Ok(1)
        );
    });
}

#[test]
fn a_deadline_ends_it() {
    let _out = not_on(Modes::Both, "time is moved by hand");
    on_each_clocked(|runtime, clock| {
        let request = root(runtime)
            .timeout(std::time::Duration::from_secs(1))
            .spawn(|| block_on(pending::<()>()).map(|_| ()));
        asleep(&request);
        clock.advance(std::time::Duration::from_secs(2));
        assert_eq!(ends_cancelled(&request), CancelReason::Deadline);
    });
}

#[test]
fn a_dump_says_that_a_future_is_awaited() {
    on_each_of(&[1], |runtime| {
        let outside = Outside::default();
        let request = on(runtime, &outside);
        asleep(&request);
        let text = runtime.dump().to_string();
        assert!(text.contains("awaits") && text.contains("a future"), "{text}");
        outside.finish(1);
        request.take().unwrap().unwrap();
    });
}

#[test]
fn thousands_of_requests_await_and_are_cancelled() {
    on_each_of(&[1, 2], |runtime| {
        let all: Vec<_> = (0..2_000)
            .map(|_| {
                let outside = Outside::default();
                (on(runtime, &outside), outside)
            })
            .collect();
        thread::scope(|scope| {
            let finisher = scope.spawn(|| all.iter().for_each(|(_, outside)| outside.finish(1)));
            let canceller = scope.spawn(|| {
                all.iter().step_by(3).for_each(|(request, _)| {
                    request.cancel();
                });
            });
            support::join_all([finisher, canceller]);
        });
        for (n, (request, outside)) in all.iter().enumerate() {
            let over = request.watch();
            assert!(over.is_ok() || n % 3 == 0, "{over:?} {}", outside.is_polled());
        }
    });
}

#[cfg(feature = "tokio")]
mod with_tokio {
    use std::process::Stdio;
    use std::time::Duration;

    use forebear::tokio::block_on as block_on_tokio;
    use tokio::runtime::{Builder, Handle};

    use super::*;

    fn tokio() -> tokio::runtime::Runtime {
        Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    }

    #[test]
    fn tokios_reactor_is_there_in_every_poll_and_not_between_them() {
        on_each_of(&[1, 2], |runtime| {
            let tokio = tokio();
            let requests: Vec<_> = (0..50)
                .map(|n| {
                    let handle = tokio.handle().clone();
                    root(runtime).spawn(move || {
                        block_on_tokio(&handle, async {
                            for _ in 0..3 {
                                tokio::time::sleep(Duration::from_micros(100)).await;
                            }
                            Handle::current();
                            n
                        })
                    })
                })
                .collect();
            let outside = root(runtime).spawn(|| Handle::try_current().is_err());
            assert!(outside.take().unwrap());
            for (n, request) in requests.into_iter().enumerate() {
                assert_eq!(request.take().unwrap(), Ok(n));
            }
            assert!(Handle::try_current().is_err());
        });
    }

    #[test]
    fn a_poll_that_waits_itself_is_refused_by_name() {
        on_each_of(&[1], |runtime| {
            let tokio = tokio();
            let handle = tokio.handle().clone();
            let request = root(runtime).spawn(move || block_on_tokio(&handle, async { yield_now() }));
            let Err(forebear::WaitError::Failed(failure)) = request.take() else { panic!() };
            assert!(format!("{failure:#}").contains("tokio's runtime is entered"), "{failure:#}");
        });
    }

    #[test]
    fn a_child_process_is_killed_by_a_cancel() {
        on_each_of(&[1, 2], |runtime| {
            let tokio = tokio();
            let handle = tokio.handle().clone();
            let (give, id) = mpsc::channel();
            let request = root(runtime).name("child").try_build(move || {
                let run = async move {
                    let mut child = tokio::process::Command::new("sleep")
                        .arg("3600")
                        .stdout(Stdio::null())
                        .kill_on_drop(true)
                        .spawn()?;
                    give.send(child.id().unwrap()).unwrap();
                    child.wait().await
                };
                Ok(block_on_tokio(&handle, run)??.code())
            });
            request.submit();
            let id = id.recv().unwrap();
            asleep(&request);
            request.abort(CancelReason::Asked);
            ends_cancelled(&request);
            // tokio takes in what it has killed before long.
            let there = || std::path::Path::new(&format!("/proc/{id}")).exists();
            let is_zombie = || {
                std::fs::read_to_string(format!("/proc/{id}/stat")).is_ok_and(|stat| stat.contains(") Z "))
            };
            support::hold_thread_until(|| !there() || is_zombie());
        });
    }

    #[test]
    fn the_status_of_a_child_process_is_awaited() {
        on_each_of(&[1], |runtime| {
            let tokio = tokio();
            let handle = tokio.handle().clone();
            let request = root(runtime).try_build(move || {
                let run = async { tokio::process::Command::new("sh").args(["-c", "exit 3"]).status().await };
                Ok(block_on_tokio(&handle, run)??.code())
            });
            assert_eq!(request.take().unwrap(), Some(3));
        });
    }
}
