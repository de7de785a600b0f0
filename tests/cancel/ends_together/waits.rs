//! Sets, `wait_all` and `select!`: all members or arms leave, and all marks are set, before one request ends.

use super::*;

#[test]
fn a_set_that_is_cancelled_marks_all_before_it_ends_any() {
    in_both_worlds(|| {
        let runtime = Runtime::current();
        let (captures, place, ends) = waits_for();
        let second = endless(&runtime);
        place.set(second.clone()).unwrap();
        let (_completer, first) = unstarted(&runtime, captures);
        RequestSet::from_iter([first.clone(), second.clone()]).cancel();
        assert_eq!(ends.get(), 1);
        ends_cancelled(&first);
        ends_cancelled(&second);
    });
}

/// A cancel of both has been vetoed by this wait alone, which ends now.
fn leaves_together(leave: impl Fn([&Request<()>; 2], &dyn Fn())) {
    let runtime = Runtime::current();
    let (captures, place, ends) = waits_for();
    let second = endless(&runtime);
    place.set(second.clone()).unwrap();
    let (_completer, first) = unstarted(&runtime, captures);
    leave([&first, &second], &|| {
        for request in [&first, &second] {
            assert_eq!(request.cancel(), Cancellation::Vetoed);
        }
    });
    until(|| first.is_done() && second.is_done());
    assert_eq!(ends.get(), 1);
    ends_cancelled(&first);
    ends_cancelled(&second);
}

#[test]
fn a_set_that_is_dropped_leaves_all_before_any_ends() {
    in_both_worlds(|| {
        leaves_together(|both, cancel| {
            let set: RequestSet<()> = both.into_iter().cloned().collect();
            cancel();
            drop(set);
        });
    });
}

#[test]
fn a_wait_for_all_that_fails_leaves_all_before_any_ends() {
    on_each(|runtime| {
        runtime.enter(|| {
            leaves_together(|[first, second], cancel| {
                let (completer, third) = Request::<()>::completer("third");
                let all = [first.clone(), second.clone(), third];
                let waiter = runtime.spawn(move || wait_all(&all).is_err());
                asleep(&waiter);
                cancel();
                completer.fail(Error::other("no"));
                assert!(waiter.take().unwrap());
            });
        });
    });
}

#[test]
fn a_select_that_ends_leaves_all_before_any_ends() {
    on_each(|runtime| {
        runtime.enter(|| {
            leaves_together(|[first, second], cancel| {
                let event = Arc::new(Event::new());
                let (first, second, happens) = (first.clone(), second.clone(), event.clone());
                let waiter = Request::builder().on(runtime).own_stack().spawn(move || {
                    select! {
                        _ = &first => false,
                        _ = &second => false,
                        happened = &*happens => happened.is_ok(),
                    }
                });
                asleep(&waiter);
                cancel();
                event.set();
                assert!(waiter.take().unwrap());
            });
        });
    });
}

/// Calls a closure when it is dropped.
struct OnDrop<F: FnMut()>(F);

impl<F: FnMut()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// A request that nobody runs, whose captures cancel the request that looks at it.
fn cancels_who_looks(runtime: &Runtime) -> Request<()> {
    let made = Arc::new(OnceLock::new());
    let place = made.clone();
    let maker = runtime.spawn(move || {
        let captures = OnDrop(|| _ = Request::current().unwrap().abort(CancelReason::Aborted));
        place.set(Request::new(move || drop(captures))).unwrap();
        until(is_cancelled);
    });
    until(|| made.get().is_some());
    maker.cancel();
    until(|| maker.is_done());
    made.get().unwrap().clone()
}

/// The select has submitted two, and stands in no list, when its request is cancelled.
#[test]
fn a_select_that_is_refused_asks_all_that_it_has_submitted_before_one_of_them_ends() {
    on_each(|runtime| {
        runtime.enter(|| {
            let (captures, place, ends) = waits_for();
            let (_completer, gate) = Request::<()>::completer("gate");
            let first = Request::builder().detached().after(&gate).build(move || drop(captures));
            let second = Request::builder().own_stack().detached().try_build(until_cancelled);
            place.set(second.clone()).unwrap();
            let arms = [first.clone(), second.clone(), cancels_who_looks(runtime)];
            let waiter = Request::builder().own_stack().spawn(move || {
                let [first, second, third] = &arms;
                select! {
                    biased;
                    _ = first => 1,
                    _ = second => 2,
                    answer = third => {
                        assert!(matches!(answer, Err(WaitError::Cancelled)), "{answer:?}");
                        3
                    }
                }
            });
            waiter.submit();
            until(|| waiter.is_done() && first.is_done() && second.is_done());
            assert_eq!(ends.get(), 1);
            ends_cancelled(&first);
            ends_cancelled(&second);
        });
    });
}
