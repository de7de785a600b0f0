//! Order among several workers: how late what is older may be, and which worker learns of it.

#[path = "../support/mod.rs"]
mod support;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use forebear::{Request, State, join, spawn, yield_now};
use support::order::root;
use support::{Count, Flag, Random, hold_thread_until, hold_workers, mix, on_each, on_each_of, until};

/// 64 roots are there; every worker picks the oldest. A picked root draws a stamp as the first thing it does, so when
/// a root draws, an older one that has not drawn yet is on its way on another worker: at most one for each.
#[test]
fn of_64_roots_no_younger_one_is_picked_while_an_older_one_is_there() {
    on_each_of(&[1, 2, 4, 16, 20], |runtime| {
        for round in 0..20 {
            let held = hold_workers(runtime);
            let stamps = Arc::new(Mutex::new(Vec::new()));
            let mut roots: Vec<_> = (0..64)
                .map(|n| {
                    let stamps = stamps.clone();
                    root(runtime).build(move || {
                        stamps.lock().unwrap().push(n);
                        // Work of uneven length.
                        std::hint::black_box((0..mix(n) % 2_000).fold(0, |sum, k| mix(sum ^ k)));
                    })
                })
                .collect();
            let mut random = Random::new(round);
            for at in (1..roots.len()).rev() {
                roots.swap(at, random.below(at + 1));
            }
            for root in &roots {
                root.submit();
            }
            held.release();
            for root in &roots {
                root.wait().unwrap();
            }
            let stamps = stamps.lock().unwrap();
            let mut inversions = 0;
            for (at, root) in stamps.iter().enumerate() {
                let older_later = stamps[at..].iter().filter(|other| *other < root).count();
                assert!(older_later < runtime.workers(), "{older_later} older ones after {root}: {stamps:?}");
                inversions += older_later;
            }
            if runtime.workers() == 1 {
                assert_eq!(inversions, 0);
            }
        }
    });
}

/// The same with families, whose children are private until somebody is hungry: when a worker draws for a younger family,
/// what the older ones still have is on its way or private to a worker that is in a request; so it can be at most late by
/// what the workers hold, never by whole families.
#[test]
fn families_end_about_in_the_order_of_their_age() {
    let _not = support::not_on(support::Modes::Both, "it holds its workers");
    const CHILDREN: usize = 16;
    on_each(|runtime| {
        let held = hold_workers(runtime);
        let ends = Arc::new(Mutex::new(Vec::new()));
        let families: Vec<_> = (0..64_usize)
            .map(|n| {
                let ends = ends.clone();
                root(runtime).spawn(move || {
                    let left = Arc::new(AtomicUsize::new(CHILDREN));
                    for _ in 0..CHILDREN {
                        let (left, ends) = (left.clone(), ends.clone());
                        spawn(move || {
                            std::hint::black_box((0..2_000).fold(0, |sum, k| mix(sum ^ k)));
                            if left.fetch_sub(1, Ordering::AcqRel) == 1 {
                                ends.lock().unwrap().push(n);
                            }
                        });
                    }
                })
            })
            .collect();
        held.release();
        for family in &families {
            family.wait().unwrap();
        }
        until(|| ends.lock().unwrap().len() == 64);
        let ends = ends.lock().unwrap();
        if runtime.workers() == 1 {
            assert!(ends.is_sorted(), "{ends:?}");
        }
        // With more workers a family may be overtaken while its last child is under way. Taken over all, few are.
        let overtaken = ends
            .iter()
            .enumerate()
            .map(|(at, n)| ends[at..].iter().filter(|other| *other < n).count())
            .sum::<usize>();
        assert!(overtaken <= 64 * (runtime.workers() - 1) * 2, "{overtaken} inversions: {ends:?}");
    });
}

/// Nobody is ever idle, so nobody is hungry but for the sake of order: the workers pick younger roots, which never end, and
/// pass over what the worker of the oldest keeps private.
#[test]
fn who_keeps_an_older_roots_work_private_is_told_while_others_pick_younger_roots() {
    fn go_on(until: Flag) {
        if !until.is_up() {
            Request::builder().detached().spawn(move || go_on(until));
        }
    }
    on_each_of(&[2, 4, 8, 9, 16, 20, 40], |runtime| {
        let (found, private, go) = (Flag::new(), Flag::new(), Flag::new());
        let owner = {
            let (found, private) = (found.clone(), private.clone());
            root(runtime).build(move || {
                // Whatever the others wanted before they were held: this answers it, and leaves nothing in the shared queue.
                join(|| (), || ());
                yield_now().unwrap();
                let me = Request::current().unwrap().assigned_worker();
                let up = found.clone();
                let child = spawn(move || {
                    assert_ne!(Request::current().unwrap().assigned_worker(), me);
                    up.raise();
                });
                private.raise();
                while !found.is_up() {
                    join(|| (), || ());
                }
                child.take().unwrap();
            })
        };
        let held: Vec<_> = (1..runtime.workers())
            .map(|_| {
                let go = go.clone();
                runtime.spawn(move || hold_thread_until(|| go.is_up()))
            })
            .collect();
        hold_thread_until(|| held.iter().all(|request| request.state() == State::Running));
        owner.submit();
        hold_thread_until(|| private.is_up());
        for _ in 0..2 * runtime.workers() {
            let until = found.clone();
            runtime.spawn(move || go_on(until));
        }
        go.raise();
        owner.wait().unwrap();
        held.iter().for_each(|request| request.wait().copied().unwrap());
    });
}

/// The same while the others take the short way: each has children of one younger root in its own list, one after the other,
/// and does not look about.
#[test]
fn who_keeps_an_older_roots_work_private_is_told_by_who_goes_on_with_its_own_children() {
    fn go_on(found: Flag) {
        if !found.is_up() {
            drop(spawn(move || go_on(found)));
        }
    }
    // Whatever was wanted until now: this answers it, and leaves nothing in the shared queue.
    fn answer() {
        join(|| (), || ());
        yield_now().unwrap();
    }
    on_each_of(&[2, 4, 8, 9, 16, 20, 40], |runtime| {
        let (held, private, found) = (Count::new(), Flag::new(), Flag::new());
        let others = runtime.workers() - 1;
        let owner = {
            let (held, private, found) = (held.clone(), private.clone(), found.clone());
            runtime.spawn(move || {
                hold_thread_until(|| held.get() == others);
                answer();
                let up = found.clone();
                let child = spawn(move || up.raise());
                private.raise();
                while !found.is_up() {
                    join(|| (), || ());
                }
                child.take().unwrap();
            })
        };
        hold_thread_until(|| owner.state() == State::Running);
        let younger = |_| {
            let (held, private, found) = (held.clone(), private.clone(), found.clone());
            runtime.spawn(move || {
                // One on each worker, before any of them goes on.
                held.up();
                hold_thread_until(|| private.is_up());
                answer();
                go_on(found);
            })
        };
        let younger: Vec<_> = (0..others).map(younger).collect();
        owner.wait().unwrap();
        younger.iter().for_each(|request| request.wait().copied().unwrap());
    });
}
