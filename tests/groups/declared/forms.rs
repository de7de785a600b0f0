//! The forms, and that nothing starts early.

use std::cell::Cell;
use std::sync::Barrier;

use forebear::{CancelReason, Outcome, Request, RequestPool, State, WaitError, scope, then_all};

use crate::support::order::Gate;
use crate::support::{Count, Joined, in_both_worlds, on_each, on_each_of};

#[test]
fn what_is_after_another_starts_when_that_is_over_and_gets_its_value() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let started = Count::new();
        let up = started.clone();
        let doubled = runtime.enter(|| {
            gate.request.then(move |()| {
                up.up();
                7
            })
        });
        assert_eq!(doubled.state(), State::New);
        doubled.submit();
        assert_eq!(doubled.state(), State::Queued, "a record, and no stack");
        assert_eq!(doubled.assigned_worker(), None);
        assert_eq!(started.get(), 0);
        gate.open();
        assert_eq!(doubled.wait().unwrap(), &7);
        assert_eq!(started.get(), 1);
    });
}

#[test]
fn nothing_runs_before_it_is_submitted_or_waited_for() {
    in_both_worlds(|| {
        let a = Request::new(|| 1);
        let b = a.then(|a| a + 1);
        assert_eq!((a.state(), b.state()), (State::New, State::New));
        assert_eq!(b.wait().unwrap(), &2);
        assert_eq!(a.get(), Some(&1));
    });
}

#[test]
fn every_form_gets_what_it_is_after() {
    in_both_worlds(|| {
        let a = Request::new(|| 2);
        let b = Request::new(|| String::from("3"));
        assert_eq!(a.try_then(|a| Ok(a + 1)).wait().unwrap(), &3);
        assert_eq!(a.then_with(|a| matches!(a, Outcome::Finished(2))).wait().unwrap(), &true);
        assert_eq!(then_all((&a, &b), |(a, b)| format!("{a}{b}")).take().unwrap(), "23");
        let many: Vec<_> = (0..100).map(|n| Request::new(move || n)).collect();
        assert_eq!(then_all(&many[..], |all| all.into_iter().sum::<i32>()).take().unwrap(), 4950);
        assert_eq!(then_all(&many[..0], |none| none.len()).take().unwrap(), 0);
        let all = Request::builder().name("all").after_all(&many).after(&b).build(|| 1);
        assert_eq!((all.name(), all.wait().unwrap()), ("all", &1));
        let named = Request::builder().name("named").after(&b).then(&a, |a| a * 10);
        assert_eq!((named.name(), named.wait().unwrap()), ("named", &20));
        // Of a value that is not `Sync`.
        let cell = Request::new(|| Cell::new(5));
        assert_eq!(cell.into_then(Cell::into_inner).take().unwrap(), 5);
        // After what is over, and after what never was queued.
        assert_eq!(a.then(|a| *a).take().unwrap(), 2);
        assert_eq!(Request::ready(4).then(|four| *four).take().unwrap(), 4);
        // After the same one twice.
        assert_eq!(Request::builder().after(&a).after(&a).spawn(|| 6).take().unwrap(), 6);
        // A closure too large for a cell.
        let large = [1_u8; 5000];
        let sum = a.then(move |a| large.iter().map(|b| u32::from(*b)).sum::<u32>() + a);
        assert_eq!(sum.wait().unwrap(), &5002);
        assert!(sum.name().contains("every_form"), "{}", sum.name());
    });
}

#[test]
fn an_edge_holds_a_handle() {
    in_both_worlds(|| {
        let a = Request::new(|| 2);
        let b = a.then(|a| *a);
        assert!(matches!(a.take(), Err(WaitError::Shared)));
        assert_eq!(b.take().unwrap(), 2);
        let c = Request::new(|| 3);
        let d = Request::builder().after(&c).spawn(|| ());
        d.wait().unwrap();
        assert_eq!(c.take().unwrap(), 3, "and gives it back when it has started");
        let e = Request::new(|| 4);
        let other = e.clone();
        let f = e.into_then(|e| e);
        assert!(
            matches!(f.take(), Err(WaitError::Failed(failure)) if failure.downcast_ref::<WaitError>().is_some())
        );
        drop(other);
    });
}

#[test]
fn jobs_of_a_scope_may_be_after_others_and_borrow() {
    in_both_worlds(|| {
        let words = [String::from("a"), String::from("bb"), String::from("ccc")];
        let count = Count::new();
        let letters = scope(|s| {
            let longest = s.spawn(|| words.iter().max_by_key(|w| w.len()).unwrap());
            let twice = s.then(&longest, |longest| longest.len() * words.len());
            Request::builder().after(&twice).spawn_in(s, || count.up());
            // Its end waits for what has not started, too.
            twice
        });
        assert_eq!(letters.take().unwrap(), 9);
        assert_eq!(count.get(), 1);
    });
}

#[test]
fn a_member_of_a_pool_may_be_after_others_of_it_in_any_order() {
    in_both_worlds(|| {
        for bound in [1, 2, 8] {
            let first = Request::new(|| 1);
            let second = first.then(|n| n + 1);
            let third = then_all((&first, &second), |(a, b)| a + b);
            let mut pool: RequestPool<'_> = RequestPool::new().max_active(bound);
            pool.include(third.clone());
            pool.include(second);
            pool.include(first);
            pool.wait().unwrap();
            assert_eq!(third.get(), Some(&3));
        }
    });
}

/// Its dependent submits the second member just when the pool, which has room for one, holds it back.
#[test]
fn a_member_that_a_pool_holds_back_while_its_dependent_submits_it_is_asked_for() {
    let rounds = if crate::support::soaking() { 100_000 } else { 1_000 };
    on_each_of(&[1, 2], |runtime| {
        for round in 0..rounds {
            let (input, dependent) = runtime.enter(|| {
                let input = Request::new(|| ());
                let dependent = input.then(|()| ());
                (input, dependent)
            });
            let start = Barrier::new(2);
            std::thread::scope(|s| {
                let submits = s.spawn(|| {
                    start.wait();
                    (0..round % 97 * 20).for_each(|_| std::hint::spin_loop());
                    dependent.submit();
                });
                runtime.enter(|| {
                    let mut pool = RequestPool::<'_, ()>::new().max_active(1);
                    pool.include(dependent.clone()).include(input.clone());
                    start.wait();
                    (0..round % 89 * 20).for_each(|_| std::hint::spin_loop());
                    pool.wait().unwrap();
                });
                submits.joined().unwrap();
            });
            assert!(dependent.is_done() && input.is_done());
        }
    });
}

/// A value or capture that wants to lie at such an address, and so many bytes long.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Aligned([u8; 192]);

/// Runs, cancels and drops requests after so many others. `capture` is what their callables have, and `value` makes what they return.
fn after_so_many<C: Copy + Send + 'static, V: Send + Sync + 'static>(
    many: usize,
    capture: C,
    value: fn(C, usize) -> V,
    read: fn(&V) -> usize,
) {
    let inputs: Vec<_> = (0..many).map(|n| Request::new(move || n)).collect();
    let builder = Request::builder().after_all(&inputs);
    // Built and dropped.
    drop(builder.build(move || value(capture, 0)));
    // One description for several, some of which have one more.
    let mut all = vec![builder.spawn(move || value(capture, 1)), builder.build(move || value(capture, 1))];
    let one = Request::new(|| 1);
    all.push(builder.then(&one, move |one| value(capture, *one)));
    all.push(then_all(&inputs[..], move |inputs| value(capture, inputs.iter().map(|n| **n).sum())));
    // They want what the next is after.
    all.iter().for_each(|request| _ = request.submit());
    let cancelled = builder.then_all((&one, &one), move |(a, b)| value(capture, a + b));
    cancelled.submit();
    cancelled.abort(CancelReason::Aborted);
    let sum = many * many.saturating_sub(1) / 2;
    for (request, expected) in all.iter().zip([1, 1, 1, sum]) {
        assert_eq!(request.wait().map(read).unwrap(), expected, "{many}");
    }
    // Its edges hold handles until it is over.
    let _ = cancelled.wait();
    assert!(inputs.iter().all(Request::is_done));
    drop((all, builder));
    assert_eq!(inputs.into_iter().map(|input| input.take().unwrap()).sum::<usize>(), sum);
}

#[test]
fn what_is_after_any_number_of_others_may_capture_and_return_anything() {
    in_both_worlds(|| {
        for many in (0..40).chain([100, 1_000]) {
            after_so_many(many, (), |(), n| n, |n| *n);
            after_so_many(many, [1_u8; 600], |capture, n| n * usize::from(capture[599]), |n| *n);
            after_so_many(many, 1_u8, |_, n| [n; 100], |all| all[99]);
            after_so_many(many, Aligned([1; 192]), |capture, n| n * usize::from(capture.0[191]), |n| *n);
            after_so_many(many, 1, |one, n| (Aligned([one; 192]), n), |(a, n)| n * usize::from(a.0[191]));
        }
    });
}
