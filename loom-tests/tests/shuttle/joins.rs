//! Trees of joins, and what is older: it goes first at the next join (decision 0145).

use std::sync::Arc;
use std::time::Duration;

use forebear_context::shim::thread;
use forebear_loom_tests::roam;
use forebear_runtime::{CancelReason, Priority, Request, Runtime, WaitError, join, spawn};
use forebear_sync::{Event, sleep};

use crate::support::{Count, LONG, Ledger, Probe, draw, finish, pause, runtime, steps, thread as foreign};

const LEAVES: usize = 8;

/// What counts the leaves of a tree as they begin, and drops what each was given.
type Leaf<'a> = &'a (dyn Fn(usize) + Sync);

/// A tree of joins over so many leaves, the first of which has that number. Answers how many there were; each closure has a probe.
fn tree(first: usize, leaves: usize, probes: &Ledger, leaf: Leaf<'_>) -> usize {
    if leaves == 1 {
        leaf(first);
        return 1;
    }
    let half = leaves / 2;
    let (one, other) = (probes.probe(), probes.probe());
    let of = |first, leaves, probe: Probe| {
        let sum = tree(first, leaves, probes, leaf);
        drop(probe);
        sum
    };
    let (a, b) = join(move || of(first, half, one), move || of(first + half, leaves - half, other));
    a + b
}

/// A request of that priority that waits for the event, and then does this.
fn waits(
    runtime: &Runtime,
    priority: Priority,
    event: &Arc<Event>,
    then: impl FnOnce() + Send + 'static,
) -> Request<()> {
    let event = event.clone();
    Request::builder().on(runtime).priority(priority).spawn(move || {
        event.wait().unwrap();
        then();
    })
}

/// Until so many leaves have begun, or the request is over.
fn until_begun(begun: &Count, leaves: usize, of: &Request<()>) {
    while begun.get() < leaves && !of.is_done() {
        thread::yield_now();
    }
}

/// Waits without running it in this thread.
fn ends(request: &Request<()>) {
    request.wait_timeout(LONG).expect("it ends by itself");
}

/// On one worker: another thread wakes or submits an older request while a tree runs, and wakes a younger one. Two more leaves begin at most before the older one
/// runs: the two of the innermost join, if it was told after the look of that join. The younger one runs when the tree is over.
#[test]
fn an_older_request_runs_before_the_next_join_and_a_younger_one_after_the_tree() {
    roam(2, &["woken", "has come", "in the tree", "before or after"], |answers| {
        let (runtime, probes) = (runtime(1), Ledger::default());
        let (begun, told, ran, late) =
            (Count::default(), Count::default(), Count::default(), Count::default());
        let (wakes, wakes_younger) = (Arc::new(Event::new()), Arc::new(Event::new()));
        let its = (ran.clone(), begun.clone());
        let begun_before = Count::default();
        let noted = begun_before.clone();
        let runs = move || {
            its.0.up();
            (0..its.1.get()).for_each(|_| _ = noted.up());
        };
        let is_woken = draw(2) == 0;
        answers.note(if is_woken { "woken" } else { "has come" });
        let (waiting, comes) = match is_woken {
            true => (Some(waits(&runtime, Priority::URGENT, &wakes, runs)), None),
            false => (None, Some(runs)),
        };
        let of = begun.clone();
        let younger = waits(&runtime, Priority::BACKGROUND, &wakes_younger, move || {
            assert_eq!(of.get(), LEAVES, "what is younger has passed over the tree");
        });
        let trees = runtime.spawn({
            let (begun, told, ran, late, probes) =
                (begun.clone(), told.clone(), ran.clone(), late.clone(), probes.clone());
            move || {
                let sum = tree(0, LEAVES, &probes, &|_| {
                    begun.up();
                    if told.get() > ran.get() {
                        late.up();
                    }
                    steps(10);
                });
                assert_eq!(sum, LEAVES);
            }
        });
        let teller = foreign({
            let (runtime, begun, told, trees) = (runtime.clone(), begun.clone(), told.clone(), trees.clone());
            move || {
                until_begun(&begun, draw(4), &trees);
                pause(100);
                let came = match comes {
                    None => {
                        wakes.set();
                        None
                    }
                    Some(runs) => {
                        Some(Request::builder().on(&runtime).priority(Priority::URGENT).spawn(runs))
                    }
                };
                told.up();
                until_begun(&begun, 1, &trees);
                wakes_younger.set();
                came
            }
        });
        let older =
            waiting.or(teller.join().unwrap()).unwrap_or_else(|| unreachable!("it is woken or comes"));
        [&trees, &older, &younger].into_iter().for_each(ends);
        assert!(late.get() <= 2, "{} leaves have begun before it", late.get());
        assert_eq!((begun.get(), ran.get()), (LEAVES, 1));
        answers.note(match begun_before.get() {
            0 | LEAVES => "before or after",
            _ => "in the tree",
        });
        drop((trees, older, younger));
        finish(&runtime);
        assert_eq!(probes.alive(), 0);
    });
}

/// On one worker that is about to sleep: a tree and an older request come from two threads. Two leaves begin at most after it has come, as above.
#[test]
fn an_older_request_that_comes_as_the_worker_goes_to_sleep_is_not_passed_over() {
    const FEW: usize = 6;
    roam(2, &["first", "in the tree", "last"], |answers| {
        let (runtime, probes) = (runtime(1), Ledger::default());
        let (begun, told, ran, late) =
            (Count::default(), Count::default(), Count::default(), Count::default());
        let before = Count::default();
        let older = foreign({
            let (runtime, begun, told) = (runtime.clone(), begun.clone(), told.clone());
            let (ran, before) = (ran.clone(), before.clone());
            move || {
                pause(60);
                let urgent = Request::builder().on(&runtime).priority(Priority::URGENT).spawn(move || {
                    ran.up();
                    (0..begun.get()).for_each(|_| _ = before.up());
                });
                told.up();
                urgent
            }
        });
        pause(60);
        let trees = runtime.spawn({
            let (begun, late, probes) = (begun.clone(), late.clone(), probes.clone());
            move || {
                tree(0, FEW, &probes, &|_| {
                    begun.up();
                    if told.get() > ran.get() {
                        late.up();
                    }
                    steps(5);
                })
            }
        });
        let older = older.join().unwrap();
        assert_eq!(trees.wait_timeout(LONG).ok(), Some(&FEW));
        ends(&older);
        assert!(late.get() <= 2, "{} leaves have begun before it", late.get());
        answers.note(match before.get() {
            0 => "first",
            FEW => "last",
            _ => "in the tree",
        });
        drop((trees, older));
        finish(&runtime);
        assert_eq!(probes.alive(), 0);
    });
}

/// On one worker and on two, each of which has a part of the tree: joins follow each other until three older requests have run, which are woken, come, or sleep
/// meanwhile. One that was missed is never run.
#[test]
fn joins_that_go_on_until_older_requests_have_run_come_to_their_end() {
    const OLDER: usize = 3;

    fn until_they_have_run(ran: &Count) {
        let leaf = || thread::yield_now();
        while ran.get() < OLDER {
            join(leaf, leaf);
        }
    }
    roam(6, &["one worker", "two workers", "woken", "has come", "slept"], |answers| {
        let workers = 1 + draw(2);
        answers.note(["one worker", "two workers"][workers - 1]);
        let (runtime, ran) = (runtime(workers), Count::default());
        let (mut waiting, mut to_come, mut events) = (Vec::new(), 0, Vec::new());
        for _ in 0..OLDER {
            let (ran, how) = (ran.clone(), draw(3));
            answers.note(["woken", "has come", "slept"][how]);
            match how {
                0 => {
                    let event = Arc::new(Event::new());
                    waiting.push(waits(&runtime, Priority::URGENT, &event, move || _ = ran.up()));
                    events.push(event);
                }
                1 => to_come += 1,
                _ => {
                    let time = Duration::from_micros(draw(600) as u64);
                    waiting.push(Request::builder().on(&runtime).priority(Priority::URGENT).spawn(
                        move || {
                            sleep(time).unwrap();
                            ran.up();
                        },
                    ));
                }
            }
        }
        let joins = runtime.spawn({
            let ran = ran.clone();
            // Children, so that each worker picks several times before it has nothing but joins.
            move || {
                let joins = [(); 3].map(|()| {
                    let ran = ran.clone();
                    spawn(move || until_they_have_run(&ran))
                });
                joins.iter().for_each(ends);
            }
        });
        let teller = foreign({
            let (runtime, ran) = (runtime.clone(), ran.clone());
            move || {
                for event in events {
                    pause(200);
                    event.set();
                }
                let comes = |_| {
                    pause(200);
                    let ran = ran.clone();
                    Request::builder().on(&runtime).priority(Priority::URGENT).spawn(move || _ = ran.up())
                };
                (0..to_come).map(comes).collect::<Vec<_>>()
            }
        });
        let came = teller.join().unwrap();
        ends(&joins);
        waiting.iter().chain(&came).for_each(ends);
        drop((joins, waiting, came));
        finish(&runtime);
    });
}

/// The request of a tree is cancelled, before its tree, in it or after it, while an older request has its turn in between. Each closure runs once, or none if the
/// request has not begun; what the closures were given and what they borrow is there until they have run, and nothing is left behind.
#[test]
fn a_cancel_meets_a_join_that_has_let_something_older_go_first() {
    roam(3, &["before", "in the tree", "after"], |answers| {
        let (runtime, probes) = (runtime(1 + draw(2)), Ledger::default());
        let ran = Count::default();
        let wakes = [(); 2].map(|()| Arc::new(Event::new()));
        let older = wakes.each_ref().map(|event| {
            let ran = ran.clone();
            waits(&runtime, Priority::URGENT, event, move || _ = ran.up())
        });
        let leaves = Arc::new([(); LEAVES].map(|()| Count::default()));
        let (begun, sums, ended) = (Count::default(), Count::default(), Count::default());
        let trees = runtime.spawn({
            let (leaves, begun, sums, ended, probes) =
                (leaves.clone(), begun.clone(), sums.clone(), ended.clone(), probes.clone());
            let probe = probes.probe();
            move || {
                let (_probe, frame) = (probe, [0; LEAVES].map(|_| probes.probe()));
                let sum = tree(0, LEAVES, &probes, &|n| {
                    assert!(format!("{:?}", frame[n]).starts_with("Probe"), "it is lent to the leaf");
                    leaves[n].up();
                    begun.up();
                    steps(2);
                });
                (0..sum).for_each(|_| _ = sums.up());
                ended.up();
            }
        });
        let waker = foreign({
            let (begun, trees) = (begun.clone(), trees.clone());
            move || {
                for event in wakes {
                    until_begun(&begun, draw(4), &trees);
                    pause(100);
                    event.set();
                }
            }
        });
        until_begun(&begun, draw(4), &trees);
        pause(200);
        let (before, over) = (begun.get(), ended.get());
        trees.abort(CancelReason::Asked);
        answers.note(match (before, over) {
            (0, _) => "before",
            (_, 0) => "in the tree",
            _ => "after",
        });
        match trees.wait_timeout(LONG) {
            Ok(()) => assert_eq!(sums.get(), LEAVES),
            Err(WaitError::TargetCancelled(CancelReason::Asked)) => {
                assert!([0, LEAVES].contains(&sums.get()))
            }
            other => panic!("{other:?}"),
        }
        waker.join().unwrap();
        older.iter().for_each(ends);
        assert_eq!(ran.get(), 2);
        let each = leaves.iter().map(Count::get).collect::<Vec<_>>();
        assert_eq!(each, [sums.get() / LEAVES; LEAVES], "each closure runs once, or none");
        drop((trees, older));
        finish(&runtime);
        assert_eq!(probes.alive(), 0);
    });
}
