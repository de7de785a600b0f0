//! Dependents, and what they are after.

use std::pin::Pin;
use std::task::{Context, Wake, Waker};

use super::*;

/// The dependent is ended by its worker's loop, since its parent is cancelled; what it alone wants goes with it.
#[test]
fn a_dependent_that_ends_leaves_all_that_it_is_after_before_any_of_that_ends() {
    on_each(|runtime| {
        let (captures, place, ends) = waits_for();
        let (_completer, gate) = Request::<()>::completer("gate");
        // Asleep, so that it does not see its mark by itself.
        let second =
            Request::builder().own_stack().detached().on(runtime).try_build(|| Ok(Event::new().wait()?));
        let first = Request::builder().detached().on(runtime).after(&gate).build(move || drop(captures));
        place.set(second.clone()).unwrap();
        let both = [first.clone(), second.clone()];
        let made = Arc::new(OnceLock::new());
        let child = made.clone();
        let parent = runtime.spawn(move || {
            let dependent = then_all((&both[0], &both[1]), |_| ());
            dependent.submit();
            child.set(dependent).unwrap();
            until(is_cancelled);
        });
        until(|| made.get().is_some());
        asleep(&second);
        parent.cancel();
        ends_cancelled(made.get().unwrap());
        until(|| first.is_done() && second.is_done());
        assert_eq!(ends.get(), 1);
        ends_cancelled(&first);
        ends_cancelled(&second);
    });
}

/// The shutdown ends both dependents on this thread. Which of them it finds first is its own affair.
#[test]
fn dependents_of_a_completion_end_together_when_their_runtime_is_shut_down() {
    for (completes, is_first) in [(true, true), (true, false), (false, true), (false, false)] {
        on_each_of(&[1, 2], |runtime| {
            let (captures, place, ends) = waits_for();
            let (completer, answer) = runtime.enter(|| Request::completer("answer"));
            let after = || Request::builder().detached().on(runtime).after(&answer);
            let waits = after().build(move || drop(captures));
            let wanted = after().build(|| ());
            place.set(wanted.clone()).unwrap();
            let both = if is_first { [&waits, &wanted] } else { [&wanted, &waits] };
            both.into_iter().for_each(|dependent| _ = dependent.submit());
            runtime.shutdown(Duration::from_secs(60)).unwrap();
            assert_eq!(ends.get(), 1);
            ends_cancelled(&waits);
            ends_cancelled(&wanted);
            if completes {
                completer.complete(()).unwrap();
            } else {
                drop(completer);
            }
            assert_eq!(ends.get(), 1);
        });
    }
}

/// Up as soon as it is dropped.
struct Raises(Flag);

impl Drop for Raises {
    fn drop(&mut self) {
        self.0.raise();
    }
}

/// A shutdown ends the dependent. Its captures wait for what a thread completes that waits for a set, and hears of what the dependent was after.
#[test]
fn captures_of_an_aborted_dependent_wait_for_what_a_set_hears_of() {
    on_each_of(&[1, 2], |runtime| {
        let (captures, place, ends) = waits_for();
        let (completer, answer) = runtime.enter(|| Request::completer("answer"));
        let (next, wanted) = runtime.enter(|| Request::completer("next"));
        place.set(wanted).unwrap();
        let dropping = Flag::new();
        let raises = Raises(dropping.clone());
        let aborted =
            Request::builder().detached().on(runtime).after(&answer).build(move || drop((raises, captures)));
        aborted.submit();
        let listens = Flag::new();
        thread::scope(|threads| {
            let (answer, up) = (answer.clone(), listens.clone());
            let listener = threads.spawn(move || {
                let mut set = RequestSet::from_iter([answer]);
                up.raise();
                assert!(set.wait_next().unwrap().is_some());
                next.complete(()).unwrap();
            });
            listens.wait();
            let ending = threads.spawn(|| runtime.shutdown(Duration::from_secs(60)));
            dropping.wait();
            completer.complete(()).unwrap();
            listener.joined().unwrap();
            ending.joined().unwrap().unwrap();
        });
        ends_cancelled(&aborted);
        assert_eq!(ends.get(), 1);
    });
}

/// A waker that waits for a request.
struct WaitsInWake(Request<()>);

impl Wake for WaitsInWake {
    fn wake(self: Arc<Self>) {
        assert!(self.0.wait().is_err());
    }
}

/// The same, and what hears of the end is a waker, which waits for the dependent.
#[test]
fn a_waker_waits_for_a_refused_dependent() {
    on_each_of(&[1, 2], |runtime| {
        let (completer, answer) = runtime.enter(|| Request::completer("answer"));
        let refused = Request::builder().detached().on(runtime).after(&answer).build(|| ());
        refused.submit();
        runtime.shutdown(Duration::from_secs(60)).unwrap();
        let waker = Waker::from(Arc::new(WaitsInWake(refused.clone())));
        let mut future = (&answer).into_future();
        assert!(Pin::new(&mut future).poll(&mut Context::from_waker(&waker)).is_pending());
        completer.complete(()).unwrap();
        ends_cancelled(&refused);
    });
}
