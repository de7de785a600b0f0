//! A set of requests as an arm: what comes out of it, and beside what.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use forebear::channel::{bounded, unbounded};
use forebear::select::cancelled;
use forebear::time::after;
use forebear::{
    Cancelled, Completer, Error, Priority, Request, RequestSet, ShutdownError, WaitError, select, spawn,
};

use super::cancelling::{asleep, ends_cancelled};
use super::support::order::{self, on_one, open_beside_a_normal_one, root};
use super::support::{Flag, in_both_worlds, on_each};
use super::{LONG, support};

fn promised(n: usize) -> (Vec<Completer<usize>>, Vec<Request<usize>>) {
    (0..n).map(|_| Request::completer("answer")).unzip()
}

#[test]
fn a_set_beside_a_channel_gives_its_requests_as_they_end() {
    in_both_worlds(|| {
        let (completers, answers) = promised(4);
        let mut set: RequestSet<usize> = answers.into_iter().collect();
        let (sender, receiver) = unbounded();
        let mut order = Vec::new();
        for (at, completer) in completers.into_iter().enumerate().rev() {
            if at % 2 == 0 {
                sender.send(at).unwrap();
                select! {
                    biased;
                    next = &mut set => panic!("nothing has ended, but {next:?}"),
                    n = &receiver => order.push(n.unwrap() + 10),
                }
            }
            completer.complete(at).unwrap();
            select! {
                biased;
                _ = &receiver => panic!("nothing was sent"),
                next = &mut set => {
                    let (number, request) = next.unwrap().unwrap();
                    assert_eq!(request.take().unwrap(), number);
                    order.push(number);
                }
            }
        }
        assert_eq!(order, [3, 12, 2, 1, 10, 0]);
        select! {
            _ = &receiver => panic!("nothing was sent"),
            next = &mut set => assert!(next.unwrap().is_none(), "an empty set is ready"),
        }
        select! {
            next = &mut set => assert!(next.unwrap().is_none()),
            else => panic!("an empty set is ready"),
        }
    });
}

#[test]
fn an_end_wakes_a_select_that_waits_for_a_set() {
    on_each(|runtime| {
        let (completers, answers) = runtime.enter(|| promised(3));
        let mut completers: Vec<_> = completers.into_iter().map(Some).collect();
        let (told, numbers) = mpsc::channel();
        let request = root(runtime).spawn(move || {
            let (_sender, receiver) = bounded::<u32>(0);
            let mut set = RequestSet::from_iter(answers);
            while !set.is_empty() {
                select! {
                    next = &mut set => told.send(next.unwrap().unwrap().0).unwrap(),
                    _ = &receiver => unreachable!(),
                    () = after(LONG) => unreachable!(),
                }
            }
        });
        for at in [2, 0, 1] {
            asleep(&request);
            completers[at].take().unwrap().complete(at).unwrap();
            assert_eq!(support::Come::come(&numbers).unwrap(), at);
        }
        request.take().unwrap();
    });
}

#[test]
fn what_is_not_taken_stays_in_the_set() {
    in_both_worlds(|| {
        let (completers, answers) = promised(2);
        let mut set = RequestSet::from_iter(answers);
        let (sender, receiver) = unbounded();
        sender.send(7).unwrap();
        completers.into_iter().enumerate().for_each(|(at, completer)| completer.complete(at).unwrap());
        // Both are ready: one arm is taken, and nothing of the other.
        let mut came = (0, 0);
        while came != (1, 2) {
            select! {
                n = &receiver => { assert_eq!(n, Ok(7)); came.0 += 1 }
                next = (!set.is_empty()).then_some(&mut set) => {
                    assert_eq!(next.unwrap().unwrap().0, came.1);
                    came.1 += 1;
                }
            }
        }
        assert!(set.is_empty() && receiver.is_empty());
    });
}

#[test]
fn two_sets_of_many_come_out_whole() {
    in_both_worlds(|| {
        let n = support::fitting(500);
        let make = |n: usize| (0..n).map(|at| spawn(move || at)).collect::<RequestSet<usize>>();
        let (mut one, mut two) = (make(n), make(n));
        let (mut sums, mut left) = ((0, 0), 2 * n);
        while left > 0 {
            select! {
                next = (!one.is_empty()).then_some(&mut one) => sums.0 += next.unwrap().unwrap().1.take().unwrap(),
                next = (!two.is_empty()).then_some(&mut two) => sums.1 += next.unwrap().unwrap().1.take().unwrap(),
            }
            left -= 1;
        }
        let sum = n * (n - 1) / 2;
        assert_eq!(sums, (sum, sum));
    });
}

#[test]
fn a_cancelled_select_tells_of_it_by_the_set_and_asks_its_members() {
    on_each(|runtime| {
        for with_arm in [false, true] {
            let (give, completer) = mpsc::channel();
            let request = root(runtime).try_spawn(move || {
                let (completer, answer) = Request::<usize>::completer("never");
                give.send(completer).unwrap();
                let mut set = RequestSet::from_iter([answer]);
                let told = match with_arm {
                    false => select! { next = &mut set => next.map(|_| ()) },
                    true => select! { _ = &mut set => Ok(()), cancelled = cancelled() => Err(cancelled) },
                };
                assert!(matches!(told, Err(Cancelled { .. })), "{told:?}");
                told.map_err(Error::from)
            });
            asleep(&request);
            let completer = completer.recv().unwrap();
            request.cancel();
            ends_cancelled(&request);
            support::until(|| completer.is_cancelled());
        }
    });
}

#[test]
fn who_waits_for_the_select_makes_all_members_more_urgent() {
    on_one(|runtime, log| {
        let gate = order::Gate::new(runtime);
        let targets = ["first", "second"].map(|name| {
            let (log, gate) = (log.clone(), gate.request.clone());
            let target = root(runtime).priority(Priority::BACKGROUND).spawn(move || {
                gate.wait().unwrap();
                log.note(name);
            });
            asleep(&target);
            target
        });
        let selecting = {
            let (log, targets) = (log.clone(), targets.clone());
            root(runtime).priority(Priority::BACKGROUND).spawn(move || {
                let mut set = RequestSet::from_iter(targets);
                for _ in 0..2 {
                    select! {
                        next = &mut set => _ = next.unwrap(),
                        () = after(LONG) => unreachable!(),
                    }
                }
                log.note("select");
            })
        };
        asleep(&selecting);
        let waiter = {
            let (log, selecting) = (log.clone(), selecting.clone());
            root(runtime).priority(Priority::URGENT).spawn(move || {
                selecting.wait().unwrap();
                log.note("urgent");
            })
        };
        asleep(&waiter);
        open_beside_a_normal_one(runtime, &log, gate, &[&waiter, &targets[0], &targets[1]]);
        log.check(&["first", "second", "select", "urgent", "normal"]);
    });
}

#[test]
fn members_of_a_runtime_that_has_given_up_come_out_of_a_select() {
    let _dog = support::Watchdog::new("");
    let runtime = support::runtime(1);
    let (open, stuck) = mpsc::channel::<()>();
    let started = Flag::new();
    let up = started.clone();
    let laggard = root(&runtime).spawn(move || {
        up.raise();
        let _ = stuck.recv();
    });
    started.wait();
    let kept = laggard.clone();
    let waits = thread::spawn(move || {
        let (_sender, receiver) = bounded::<u32>(0);
        let mut set = RequestSet::from_iter([kept]);
        select! {
            next = &mut set => {
                let (number, request) = next.unwrap().unwrap();
                (number, matches!(request.wait(), Err(WaitError::ShutDown)))
            }
            _ = &receiver => unreachable!(),
        }
    });
    let ended = runtime.shutdown(Duration::from_millis(1));
    assert!(matches!(ended, Err(ShutdownError::Laggards { .. })));
    assert_eq!(waits.join().unwrap(), (0, true));
    drop(open);
}
