//! Included requests that others want while the pool holds them back.

use std::sync::{Arc, Mutex};

use crate::support::{Flag, in_both_worlds, on_each, until};
use crate::{Gauge, yields};
use forebear::{Request, RequestPool, Runtime, State, scope, spawn};

fn over_bound() -> u64 {
    Runtime::current().metrics().over_bound
}

/// Until `asker`, which has said so before, waits.
fn until_asked(asking: &Flag, asker: &Request<()>) {
    until(|| asking.is_up() && asker.state() == State::Suspended);
}

#[test]
fn a_member_that_is_held_back_is_not_claimable_and_a_wait_moves_it_to_the_front() {
    in_both_worlds(|| {
        let order = Arc::new(Mutex::new(Vec::new()));
        let note = |name| {
            let order = order.clone();
            Request::new(move || order.lock().unwrap().push(name))
        };
        let (first, wanted, last) = (note("first"), note("wanted"), note("last"));
        let (go, asking) = (Flag::new(), Flag::new());
        let asker = spawn({
            let (go, asking, wanted) = (go.clone(), asking.clone(), wanted.clone());
            move || {
                go.wait();
                asking.raise();
                wanted.wait().copied().unwrap();
            }
        });
        let mut pool = RequestPool::new().max_active(1);
        pool.add(|| {
            go.raise();
            until_asked(&asking, &asker);
            yields(100);
            assert!(order.lock().unwrap().is_empty());
        });
        pool.include(first).include(wanted).include(last);
        pool.wait().unwrap();
        asker.wait().unwrap();
        assert_eq!(*order.lock().unwrap(), ["wanted", "first", "last"]);
        assert_eq!(over_bound(), 0);
    });
}

#[test]
fn a_member_that_waits_for_one_that_is_held_back_admits_it_over_the_bound_counted() {
    in_both_worlds(|| {
        let (members, both) = (Gauge::default(), Arc::new(Gauge::default()));
        let gauge = both.clone();
        let wanted = Request::new(move || {
            let _inside = gauge.enter();
            yields(20);
        });
        let mut pool = RequestPool::new().max_active(2);
        for n in 0..20 {
            let (wanted, members, both) = (wanted.clone(), &members, &both);
            pool.add(move || {
                let _inside = (members.enter(), both.enter());
                match n {
                    // Not by itself: by a request that it has made.
                    0 => {
                        until(|| members.now() == 2);
                        scope(|s| _ = s.spawn(|| wanted.wait().copied().unwrap()));
                    }
                    1 => until(|| wanted.is_done()),
                    _ => yields(2),
                }
            });
        }
        pool.include(wanted.clone());
        pool.wait().unwrap();
        assert_eq!(over_bound(), 1);
        // The one over the bound takes a place.
        assert!(members.most() <= 2 && both.most() <= 3, "{} {}", members.most(), both.most());
    });
}

/// Not by itself, and not by a child: by a request from outside the pool, which it runs on its own stack.
#[test]
fn what_a_member_runs_inline_may_wait_for_one_that_is_held_back() {
    in_both_worlds(|| {
        let wanted = Request::new(|| ());
        let inline = Request::new({
            let wanted = wanted.clone();
            move || *wanted.wait().unwrap()
        });
        let began = Flag::new();
        let mut pool = RequestPool::new().max_active(2);
        pool.add(|| {
            until(|| began.is_up());
            *inline.wait().unwrap()
        });
        // As long as this one goes on by itself, nobody is admitted for want of others.
        pool.add(|| {
            began.raise();
            until(|| wanted.is_done());
        });
        pool.include(wanted.clone());
        pool.wait().unwrap();
        assert_eq!(over_bound(), 1);
    });
}

#[test]
fn the_receiver_of_results_may_wait_for_one_that_is_held_back() {
    in_both_worlds(|| {
        let wanted: Vec<_> = (0..4).map(|n| Request::new(move || n)).collect();
        let mut pool = RequestPool::new().max_active(1);
        for _ in &wanted {
            pool.add(|| ());
        }
        for request in &wanted {
            pool.include(request.clone());
        }
        let mut sum = 0;
        pool.wait_each(|n, ()| sum += *wanted[wanted.len() - 1 - n].wait().unwrap()).unwrap();
        assert_eq!((sum, over_bound()), (6, 4));
    });
}

/// The only place is taken by one who waits for who asks: through a request, or a flag in a foreign thread's hand.
#[test]
fn what_those_who_have_a_place_wait_for_through_others_is_admitted_too() {
    in_both_worlds(|| {
        for asked_first in [false, true] {
            let wanted = Request::new(|| ());
            let (go, asking) = (Flag::new(), Flag::new());
            let other = {
                let (go, asking, wanted) = (go.clone(), asking.clone(), wanted.clone());
                spawn(move || {
                    go.wait();
                    asking.raise();
                    wanted.wait().copied().unwrap();
                })
            };
            let mut pool = RequestPool::new().max_active(1);
            pool.add(|| {
                if asked_first {
                    go.raise();
                    until_asked(&asking, &other);
                    other.wait().copied().unwrap();
                } else {
                    let late = go.clone();
                    let opens = spawn(move || {
                        yields(5);
                        late.raise();
                    });
                    other.wait().copied().unwrap();
                    drop(opens);
                }
            });
            pool.include(wanted);
            pool.wait().unwrap();
        }
        assert_eq!(over_bound(), 2);
    });
}

#[test]
fn two_pools_may_hold_back_what_the_other_waits_for() {
    in_both_worlds(|| {
        for bound in [1, 2] {
            let requests: Vec<_> = (0..6).map(|n| Request::new(move || yields(n))).collect();
            let run = |order: Vec<Request<()>>| {
                spawn(move || {
                    let mut pool = RequestPool::new().max_active(bound);
                    for request in &order {
                        let request = request.clone();
                        pool.add(move || request.wait().copied().unwrap());
                    }
                    for request in order {
                        pool.include(request);
                    }
                    pool.wait().unwrap();
                })
            };
            let pools =
                [run(requests.clone()), run(requests.iter().rev().cloned().collect()), run(requests.clone())];
            for pool in pools {
                pool.wait().unwrap();
            }
        }
    });
}

#[test]
fn what_runs_already_takes_its_place_at_once() {
    in_both_worlds(|| {
        let go = Flag::new();
        let running = crate::support::spawn_running(&go);
        let over = running.clone();
        let mut pool = RequestPool::new().max_active(1);
        pool.add(|| assert!(over.is_done()));
        pool.include(running);
        let opens = spawn(move || {
            yields(50);
            go.raise();
        });
        pool.wait().unwrap();
        opens.wait().unwrap();
    });
}

#[test]
fn what_is_held_back_when_its_pool_is_cancelled_with_its_waiter_is_let_go() {
    on_each(|runtime| {
        let began = Flag::new();
        let make = || runtime.enter(|| Request::new(|| 7));
        let (left, submitted, wanted) = (make(), make(), make());
        let operator = runtime.spawn({
            let (included, up) = ([left.clone(), submitted.clone(), wanted.clone()], began.clone());
            move || {
                let mut pool = RequestPool::new().max_active(1);
                pool.try_add(move || {
                    up.raise();
                    crate::until_cancelled()
                });
                for request in included {
                    pool.include(request);
                }
                pool.wait().unwrap_err().is_cancelled()
            }
        });
        began.wait();
        submitted.submit();
        let (asking, wants) = (Flag::new(), wanted.clone());
        let up = asking.clone();
        let asker = runtime.spawn(move || {
            up.raise();
            wants.wait().copied().unwrap();
        });
        until_asked(&asking, &asker);
        assert_eq!([left.state(), submitted.state(), wanted.state()], [State::Queued; 3]);
        operator.cancel();
        asker.wait().unwrap();
        until(|| submitted.is_done() && operator.is_done());
        assert_eq!(left.state(), State::New);
        assert_eq!(left.take().unwrap(), 7);
    });
}

/// Each level includes requests that run the next level's pool, and each member waits for the last of them.
#[test]
fn members_wait_for_what_is_held_back_to_any_depth_on_any_number_of_workers() {
    fn level(depth: usize) -> usize {
        if depth == 0 {
            return 1;
        }
        let requests: Vec<_> = (0..2).map(|_| Request::new(move || level(depth - 1))).collect();
        let mut pool = RequestPool::new().max_active(1);
        for request in requests.iter().rev() {
            pool.add(|| *request.wait().unwrap());
        }
        for request in &requests {
            pool.include(request.clone());
        }
        pool.collect().unwrap().into_iter().sum()
    }
    in_both_worlds(|| assert_eq!(level(7), 128));
}
