//! Cancels, ends and waits at one time, over and over.

use std::sync::Arc;
use std::thread;

use forebear::{AnyRequest, CancelReason, Request, State, WaitError, is_cancelled, spawn};

use crate::cancelling::{Gate, ends_cancelled};
use crate::support::locked::Locked;
use crate::support::order::root;
use crate::support::{self, Flag, Random, hold_thread_until, on_each, until};

/// The waiter's cancel, the target's cancel and the target's end, all at once, many times.
#[test]
fn a_race_of_waiter_target_and_end() {
    on_each(|runtime| {
        for round in 0..300 {
            let mut random = Random::new(round);
            let free = Flag::new();
            let may = free.clone();
            let target = root(runtime).spawn(move || {
                until(|| may.is_up() || is_cancelled());
                7
            });
            let waiters: Vec<_> = (0..3)
                .map(|_| {
                    let target = target.clone();
                    root(runtime).spawn(move || target.wait().copied())
                })
                .collect();
            let turns = [(); 3].map(|()| random.below(200));
            thread::scope(|threads| {
                let (target, waiters, free) = (&target, &waiters, &free);
                let spin = |turns| (0..turns).for_each(|_| std::hint::spin_loop());
                support::join_all([
                    threads.spawn(move || {
                        spin(turns[0]);
                        target.cancel();
                    }),
                    threads.spawn(move || {
                        spin(turns[1]);
                        waiters.iter().for_each(|waiter| _ = waiter.cancel());
                    }),
                    threads.spawn(move || {
                        spin(turns[2]);
                        free.raise();
                    }),
                ]);
            });
            let _ = target.watch();
            assert_eq!(target.is_cancelled(), target.state() == State::Cancelled, "{target:?}");
            for waiter in waiters {
                match (waiter.watch(), target.state()) {
                    (Ok(Ok(7)), State::Finished) => {}
                    (Ok(Err(WaitError::TargetCancelled(_))), State::Cancelled) => {}
                    (Err(WaitError::TargetCancelled(_)), _) => assert!(waiter.is_cancelled()),
                    other => panic!("{other:?}"),
                }
            }
        }
    });
}

/// Cancels from many threads while the family spreads over all workers.
#[test]
fn everybody_cancels_everybody() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        for _ in 0..20 {
            let closed = gate.request();
            let everybody: Arc<Locked<Vec<AnyRequest>>> = Arc::default();
            let list = everybody.clone();
            let top = root(runtime).spawn(move || {
                fn member(list: &Arc<Locked<Vec<AnyRequest>>>, gate: &Request<()>, depth: usize) {
                    let me = Request::current().unwrap();
                    list.with(|list| list.push(me));
                    for _ in 0..depth {
                        let (list, gate) = (list.clone(), gate.clone());
                        drop(spawn(move || member(&list, &gate, depth - 1)));
                    }
                    let _ = gate.wait();
                }
                member(&list, &closed, 4);
            });
            thread::scope(|threads| {
                let cancellers = [(); 3].map(|()| {
                    threads.spawn(|| {
                        hold_thread_until(|| {
                            let list = everybody.with(|list| list.clone());
                            list.iter().rev().for_each(|member| _ = member.cancel());
                            top.is_done()
                        });
                    })
                });
                support::join_all(cancellers);
            });
            ends_cancelled(&top);
            let list = everybody.with(|list| list.clone());
            list.iter().for_each(|member| until(|| member.is_done()));
        }
    });
}

/// The cancel of a request comes to its worker with the next spawn, and ends the child that is just being spawned: once.
#[test]
fn a_child_that_is_ended_while_it_is_spawned_leaves_its_list_once() {
    on_each(|runtime| {
        for _ in 0..20 {
            let parent = root(runtime).spawn(|| {
                let me = Request::current().unwrap();
                thread::scope(|threads| _ = threads.spawn(move || me.abort(CancelReason::Other(1))).join());
                let children: Vec<_> = (0..3).map(|_| spawn(|| ())).collect();
                children.iter().for_each(|child| _ = child.watch());
            });
            ends_cancelled(&parent);
            assert_eq!(root(runtime).spawn(|| spawn(|| 7).take()).take().unwrap().unwrap(), 7);
        }
    });
}
