//! Spreading: a cancel goes on to all that descends from the cancelled one, wherever it is, and to nobody else.

#[path = "support/cancelling.rs"]
mod cancelling;
mod support;

use std::cell::RefCell;
use std::sync::mpsc;
use std::thread;

use cancelling::{Gate, asleep, ends_cancelled, sleeper, was_cancelled};
use forebear::{
    AnyRequest, CancelReason, Cancellation, Priority, Request, State, WaitError, check_cancelled,
    is_cancelled, join, scope, spawn, yield_now,
};
use support::order::root;
use support::{Come, Count, Flag, Joined, Watchdog, hold_thread_until, on_each, on_each_of, runtime, until};

/// A wait as long as the gate is shut.
type Sleep = Request<Result<(), WaitError>>;

fn sleeping(gate: &Request<()>) -> impl FnOnce() -> Result<(), WaitError> + Send + 'static {
    let gate = gate.clone();
    move || gate.wait().copied()
}

/// Cancels a parent that has made a request by `make` and waits for something else, and checks that the request ends.
#[track_caller]
fn spreads_to(make: impl Fn(&Request<()>) -> AnyRequest + Send + Copy + 'static) {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let parent = root(runtime).spawn(move || {
            give.send(make(&closed)).unwrap();
            closed.wait().copied()
        });
        let made = given.come().unwrap();
        asleep(&parent);
        assert_eq!(parent.cancel(), Cancellation::Marked);
        assert_eq!(was_cancelled(&made), CancelReason::Parent);
        assert_eq!(ends_cancelled(&parent), CancelReason::Asked);
    });
}

// ---- to whom ------------------------------------------------------------------------------------------------------------

#[test]
fn to_a_child_that_is_queued_or_has_just_started() {
    spreads_to(|gate| spawn(sleeping(gate)).any());
    spreads_to(|gate| {
        let [a, b, c] = [(); 3].map(|()| spawn(sleeping(gate)));
        drop((a, c));
        b.any()
    });
}

#[test]
fn to_a_child_that_sleeps() {
    spreads_to(|gate| {
        let child = spawn(sleeping(gate));
        asleep(&child);
        child.any()
    });
}

#[test]
fn to_a_child_with_a_stack_of_its_own() {
    spreads_to(|gate| Request::builder().own_stack().spawn(sleeping(gate)).any());
    spreads_to(|gate| {
        let child = Request::builder().own_stack().spawn(sleeping(gate));
        asleep(&child);
        child.any()
    });
}

#[test]
fn to_a_child_with_a_priority_of_its_own() {
    for priority in [Priority::URGENT, Priority::BACKGROUND] {
        spreads_to(move |gate| {
            let child = Request::builder().priority(priority).spawn(sleeping(gate));
            assert!(child.any().parent() == Request::current());
            asleep(&child);
            child.any()
        });
    }
    spreads_to(|gate| Request::builder().priority(Priority::BACKGROUND).spawn(sleeping(gate)).any());
}

#[test]
fn to_a_child_on_another_worker() {
    on_each_of(&[2, 4], |runtime| {
        let gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let parent = root(runtime).spawn(move || {
            // Held until another worker has it.
            let started = Flag::new();
            let up = started.clone();
            let sleep = sleeping(&closed);
            let child: Sleep = Request::builder().own_stack().spawn(move || {
                up.raise();
                sleep()
            });
            hold_thread_until(|| started.is_up());
            give.send(child).unwrap();
            closed.wait().copied()
        });
        let child = given.come().unwrap();
        asleep(&child);
        asleep(&parent);
        assert_ne!(child.assigned_worker(), parent.assigned_worker());
        parent.cancel();
        ends_cancelled(&child);
        ends_cancelled(&parent);
    });
}

/// The child was private to its maker, and was claimed by somebody who has a handle, who wants it while it waits.
#[test]
fn to_a_child_that_another_request_runs_when_that_goes() {
    on_each_of(&[2, 4], |runtime| {
        let gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let parent = root(runtime).spawn(move || {
            let started = Flag::new();
            let (up, sleep) = (started.clone(), sleeping(&closed));
            let child: Sleep = spawn(move || {
                up.raise();
                sleep()
            });
            give.send(child).unwrap();
            // Held until somebody else has it.
            hold_thread_until(|| started.is_up());
            closed.wait().copied()
        });
        let child = given.come().unwrap();
        let other = cancelling::waiter(runtime, &child);
        asleep(&child);
        asleep(&parent);
        parent.cancel();
        ends_cancelled(&parent);
        assert!(!child.is_cancelled());
        assert_eq!(other.cancel(), Cancellation::Marked);
        ends_cancelled(&other);
        ends_cancelled(&child);
    });
}

#[test]
fn to_a_child_that_runs_on_its_stack() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let parent = root(runtime).spawn(move || {
            let child = Request::new(sleeping(&closed));
            give.send(child.clone()).unwrap();
            child.wait().cloned()
        });
        let child = given.come().unwrap();
        asleep(&child);
        parent.cancel();
        assert_eq!(ends_cancelled(&child), CancelReason::Parent);
        ends_cancelled(&parent);
    });
}

/// A parent that sleeps on the worker that its child computes on: the child asks in vain unless asking looks.
#[test]
fn to_a_child_that_computes_and_asks() {
    let _not = support::not_on(support::Modes::Both, "its requests hold the thread, which alone could go on");
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let parent = root(runtime).spawn(move || {
            let child = spawn(move || hold_thread_until(is_cancelled));
            give.send(child).unwrap();
            closed.wait().copied()
        });
        let child = given.come().unwrap();
        until(|| child.state() == State::Running);
        assert_eq!(parent.cancel(), Cancellation::Marked);
        ends_cancelled(&child);
        ends_cancelled(&parent);
    });
}

#[test]
fn to_a_child_that_computes_on_its_stack_and_asks() {
    let _not = support::not_on(support::Modes::Both, "its requests hold the thread, which alone could go on");
    on_each(|runtime| {
        let started = Flag::new();
        let up = started.clone();
        let parent = root(runtime).spawn(move || {
            let child = Request::new(move || {
                up.raise();
                hold_thread_until(|| check_cancelled().is_err());
            });
            child.wait().copied()
        });
        started.wait();
        assert_eq!(parent.cancel(), Cancellation::Marked);
        ends_cancelled(&parent);
    });
}

#[test]
fn to_both_arms_of_a_join_and_what_they_made() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let (other, also) = (closed.clone(), give.clone());
        let (answer, answers) = mpsc::channel();
        let (tell, tell_too) = (answer.clone(), answer);
        let parent = root(runtime).spawn(move || {
            // Each waits for the other to have begun: so both sleep.
            let (here, there) = (Flag::new(), Flag::new());
            join(
                || {
                    here.raise();
                    there.wait();
                    give.send(spawn(sleeping(&closed)).any()).unwrap();
                    tell.send(closed.wait().copied()).unwrap();
                },
                || {
                    there.raise();
                    here.wait();
                    also.send(spawn(sleeping(&other)).any()).unwrap();
                    tell_too.send(other.wait().copied()).unwrap();
                },
            );
        });
        let made: Vec<_> = [(); 2].map(|()| given.come().unwrap()).into();
        asleep(&parent);
        parent.cancel();
        ends_cancelled(&parent);
        made.iter().for_each(|made| _ = was_cancelled(made));
        let answers: Vec<_> = answers.iter().collect();
        assert!(
            matches!(&answers[..], [Err(WaitError::Cancelled), Err(WaitError::Cancelled)]),
            "{answers:?}"
        );
    });
}

#[test]
fn to_the_jobs_of_a_scope() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let parent = root(runtime).spawn(move || {
            let closed = &closed;
            scope(|s| {
                for _ in 0..3 {
                    let job = s.spawn(move || closed.wait().copied());
                    let job_on_its_own =
                        Request::builder().own_stack().spawn_in(s, move || closed.wait().copied());
                    give.send([job.any(), job_on_its_own.any()]).unwrap();
                }
            });
        });
        let jobs: Vec<_> = [(); 3].map(|()| given.come().unwrap()).into();
        asleep(&parent);
        parent.cancel();
        jobs.iter().flatten().for_each(|job| _ = was_cancelled(job));
        // What the scope answers is another matter; it has ended.
        until(|| parent.is_done());
    });
}

#[test]
fn to_grandchildren() {
    fn family(gate: Request<()>, depth: usize, give: mpsc::Sender<AnyRequest>) -> Result<(), WaitError> {
        for n in 0..3 {
            if depth > 0 {
                let (gate, tell) = (gate.clone(), give.clone());
                let child = match n {
                    0 => Request::new(move || family(gate, depth - 1, tell)),
                    1 => Request::builder().own_stack().build(move || family(gate, depth - 1, tell)),
                    _ => Request::builder()
                        .priority(Priority::BACKGROUND)
                        .build(move || family(gate, depth - 1, tell)),
                };
                give.send(child.submit().any()).unwrap();
            }
        }
        drop(give);
        gate.wait().copied()
    }
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let top = root(runtime).spawn(move || family(closed, 3, give));
        let family: Vec<_> = given.all().collect();
        assert_eq!(family.len(), 3 + 9 + 27);
        top.cancel();
        ends_cancelled(&top);
        family.iter().for_each(|member| _ = was_cancelled(member));
    });
}

/// Children that outlive their parent pass to the nearest unfinished ancestor.
#[test]
fn through_parents_that_are_over() {
    // The parent, its parent, and so on, end before what they have made.
    for generations in 1..5 {
        spreads_to(move |gate| {
            fn make(gate: Request<()>, generations: usize) -> AnyRequest {
                if generations == 0 {
                    let child = spawn(sleeping(&gate));
                    asleep(&child);
                    return child.any();
                }
                let way = generations % 3;
                let make = move || make(gate, generations - 1);
                match way {
                    0 => spawn(make).take().unwrap(),
                    1 => Request::new(make).wait().unwrap().clone(),
                    _ => Request::builder().own_stack().build(make).take().unwrap(),
                }
            }
            make(gate.clone(), generations)
        });
    }
}

/// A line of requests, each of which makes the next and ends: which takes its parent's place.
#[test]
fn through_a_long_line_of_parents_that_are_over() {
    fn next(gate: Request<()>, rest: usize, give: mpsc::Sender<AnyRequest>) {
        if rest == 0 {
            give.send(Request::current().unwrap()).unwrap();
            let _ = gate.wait();
        } else {
            drop(spawn(move || next(gate, rest - 1, give)));
        }
    }
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let parent = root(runtime).spawn(move || {
            let line = closed.clone();
            drop(spawn(move || next(line, 1_000, give)));
            closed.wait().copied()
        });
        let last = given.come().unwrap();
        assert!(!last.is_cancelled());
        parent.cancel();
        ends_cancelled(&parent);
        assert!(was_cancelled(&last) == CancelReason::Parent);
    });
}

/// A runtime whose last handle has gone lets its work end; a worker with nothing left goes at once, and leaves families behind.
#[test]
fn through_a_parent_that_was_over_before_its_worker_went() {
    thread_local! {
        static GONE: RefCell<Option<mpsc::Sender<()>>> = const { RefCell::new(None) };
    }
    let _dog = Watchdog::new("two workers, of which one goes");
    let runtime = runtime(2);
    let mut gate = Gate::new(&runtime);
    let (closed, (give, given)) = (gate.request(), mpsc::channel());
    let (gone, is_gone) = mpsc::channel();
    let first = root(&runtime).spawn(move || {
        let (begun, on_a) = (Flag::new(), Flag::new());
        let (start, up, inner) = (begun.clone(), on_a.clone(), closed.clone());
        let parent = spawn(move || {
            // The sender goes with the thread.
            GONE.with(|keep| keep.replace(Some(gone)));
            up.raise();
            let child = spawn(move || {
                start.raise();
                inner.wait().copied()
            });
            // Each spawn looks whether the other worker is hungry; nothing else is given up.
            while !begun.is_up() {
                drop(spawn(|| ()));
            }
            give.send(child).unwrap();
        });
        while !on_a.is_up() {
            drop(spawn(|| ()));
        }
        drop(parent);
        closed.wait().copied()
    });
    let child = given.recv().unwrap();
    asleep(&child);
    asleep(&first);
    let dropper = thread::spawn(move || drop(runtime));
    assert!(is_gone.recv().is_err(), "nothing is sent; the thread has gone");
    assert_eq!(first.cancel(), Cancellation::Marked);
    assert_eq!(ends_cancelled(&child), CancelReason::Parent);
    ends_cancelled(&first);
    gate.open();
    dropper.join().unwrap();
}

/// A spared child is not told; but what it leaves behind when it ends passes to an ancestor that is cancelled.
#[test]
fn to_the_orphans_of_a_spared_child_when_it_ends() {
    on_each_of(&[2, 4], |runtime| {
        let (mut gate, shut) = (Gate::new(runtime), Gate::new(runtime));
        let (inside, closed) = (gate.request(), shut.request());
        let ((give, given), (tell, told)) = (mpsc::channel(), mpsc::channel());
        let free = Flag::new();
        let may = free.clone();
        let parent = root(runtime).spawn(move || {
            let child = Request::builder().own_stack().spawn(move || {
                let orphan = Request::builder().own_stack().spawn(sleeping(&closed));
                asleep(&orphan);
                tell.send(orphan.any()).unwrap();
                inside.wait().copied().unwrap();
            });
            give.send(child).unwrap();
            // The others have the rest. Cancelled, and not over.
            hold_thread_until(|| may.is_up());
        });
        let (child, orphan) = (given.come().unwrap(), told.come().unwrap());
        let keeper = cancelling::waiter(runtime, &child);
        assert_eq!(parent.cancel(), Cancellation::Marked);
        assert!(!orphan.is_cancelled());
        gate.open();
        assert!(keeper.take().unwrap().is_ok());
        assert_eq!(was_cancelled(&orphan), CancelReason::Parent);
        free.raise();
        ends_cancelled(&parent);
        assert_eq!(child.state(), State::Finished);
    });
}

#[test]
fn to_what_a_callback_made() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let parent = root(runtime).spawn(move || {
            let child = Request::new(|| 1);
            let gate = closed.clone();
            child.on_finished(move |_| give.send(spawn(sleeping(&gate)).any()).unwrap());
            child.wait().unwrap();
            closed.wait().copied()
        });
        let made = given.come().unwrap();
        asleep(&parent);
        parent.cancel();
        was_cancelled(&made);
    });
}

/// Made before, submitted after: by whoever has a handle.
#[test]
fn to_a_child_that_is_submitted_later() {
    on_each(|runtime| {
        for way in 0..4 {
            let gate = Gate::new(runtime);
            let (closed, (give, given)) = (gate.request(), mpsc::channel());
            let parent = root(runtime).spawn(move || {
                give.send(Request::new(|| -> u32 { unreachable!() })).unwrap();
                closed.wait().copied()
            });
            let child = given.come().unwrap();
            asleep(&parent);
            parent.cancel();
            if way % 2 == 0 {
                ends_cancelled(&parent);
            }
            match way {
                0 | 1 => {
                    assert!(child.submit().is_done());
                }
                2 => assert!(matches!(child.wait(), Err(WaitError::TargetCancelled(CancelReason::Parent)))),
                _ => {
                    let child = child.clone();
                    let waiter = root(runtime).spawn(move || child.wait().is_err());
                    assert!(waiter.take().unwrap());
                }
            }
            assert_eq!(ends_cancelled(&child), CancelReason::Parent);
        }
    });
}

#[test]
fn to_a_child_that_is_submitted_later_through_parents_that_are_over() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let grandparent = root(runtime).spawn(move || {
            let child = spawn(|| spawn(|| Request::new(|| -> u32 { unreachable!() })).take().unwrap());
            give.send(child.take().unwrap()).unwrap();
            closed.wait().copied()
        });
        let child = given.come().unwrap();
        asleep(&grandparent);
        grandparent.cancel();
        ends_cancelled(&grandparent);
        assert!(child.submit().is_done());
        assert_eq!(ends_cancelled(&child), CancelReason::Parent);
    });
}

// ---- to whom not --------------------------------------------------------------------------------------------------------

#[test]
fn not_to_what_is_detached() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let parent = root(runtime).spawn(move || {
            let (sleep, later) = (sleeping(&closed), sleeping(&closed));
            let detached = Request::builder().detached().spawn(move || {
                let child = spawn(sleep);
                asleep(&child);
                child.take().unwrap()
            });
            asleep(&detached);
            give.send((detached, Request::builder().detached().build(later))).unwrap();
            closed.wait().copied()
        });
        let (detached, later) = given.come().unwrap();
        parent.cancel();
        ends_cancelled(&parent);
        later.submit();
        asleep(&later);
        assert!(!detached.is_cancelled() && !later.is_cancelled());
        gate.open();
        assert!(detached.take().unwrap().is_ok() && later.take().unwrap().is_ok());
    });
}

#[test]
fn not_to_a_child_that_somebody_else_waits_for_until_they_go() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let parent = root(runtime).spawn(move || {
            let shared = [(); 2].map(|()| {
                let child = Request::builder().own_stack().spawn(sleeping(&closed));
                asleep(&child);
                child
            });
            give.send(shared).unwrap();
            closed.wait().copied()
        });
        let [kept, dropped] = given.come().unwrap();
        let keeper = cancelling::waiter(runtime, &kept);
        let dropper = cancelling::waiter(runtime, &dropped);
        asleep(&parent);
        parent.cancel();
        ends_cancelled(&parent);
        for _ in 0..10 {
            runtime.run(|| yield_now().unwrap());
        }
        assert!(!kept.is_cancelled() && !dropped.is_cancelled(), "others want them");
        dropper.cancel();
        assert_eq!(ends_cancelled(&dropped), CancelReason::Parent);
        gate.open();
        assert!(keeper.take().unwrap().is_ok() && kept.take().unwrap().is_ok());
    });
}

#[test]
fn not_to_a_child_that_a_foreign_thread_waits_for() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let parent = root(runtime).spawn(move || {
            let child = Request::builder().own_stack().spawn(sleeping(&closed));
            asleep(&child);
            give.send(child).unwrap();
            closed.wait().copied()
        });
        let child = given.come().unwrap();
        asleep(&parent);
        let wants = child.clone();
        let waiter = thread::spawn(move || wants.wait().cloned());
        // A veto shows that it waits.
        until(|| child.cancel() == Cancellation::Vetoed || child.is_cancelled());
        if !child.is_cancelled() {
            parent.cancel();
            ends_cancelled(&parent);
            assert!(!child.is_cancelled());
            gate.open();
            assert!(waiter.joined().unwrap().unwrap().is_ok());
            assert_eq!(child.state(), State::Finished);
        } else {
            drop(waiter.joined());
        }
    });
}

#[test]
fn not_from_a_child_to_its_parent_and_siblings() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let parent = root(runtime).spawn(move || {
            let children = [(); 3].map(|()| {
                let child = spawn(sleeping(&closed));
                asleep(&child);
                child
            });
            give.send(children).unwrap();
            closed.wait().copied()
        });
        let [a, b, c] = given.come().unwrap();
        asleep(&parent);
        // On its own, while its parent lives: which the original refused.
        assert_eq!(b.cancel(), Cancellation::Marked);
        assert_eq!(ends_cancelled(&b), CancelReason::Asked);
        assert!(![parent.is_cancelled(), a.is_cancelled(), c.is_cancelled()].contains(&true));
        gate.open();
        assert!(parent.take().unwrap().is_ok() && a.take().unwrap().is_ok() && c.take().unwrap().is_ok());
    });
}

#[test]
fn not_from_a_request_that_is_over_to_its_children() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let closed = gate.request();
        let parent = root(runtime).spawn(move || {
            let child = spawn(sleeping(&closed));
            asleep(&child);
            child
        });
        let child = parent.watch().unwrap().clone();
        assert_eq!(parent.cancel(), Cancellation::AlreadyDone);
        assert_eq!(parent.abort(CancelReason::Other(1)), Cancellation::AlreadyDone);
        assert!(!child.is_cancelled());
        gate.open();
        assert!(child.wait().unwrap().is_ok());
    });
}

#[test]
fn not_to_strangers_on_the_same_worker() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let strangers: Vec<_> = (0..10).map(|_| sleeper(runtime, &gate)).collect();
        let family: Vec<_> = (0..10).map(|_| sleeper(runtime, &gate)).collect();
        family.iter().for_each(|member| _ = member.cancel());
        family.iter().for_each(|member| _ = ends_cancelled(member));
        assert!(strangers.iter().all(|stranger| !stranger.is_cancelled()));
        gate.open();
        strangers.into_iter().for_each(|stranger| stranger.take().unwrap().unwrap());
    });
}

// ---- while it is being made ----------------------------------------------------------------------------------------------

/// The original let a cancelled parent see a child whose lock did not exist yet.
#[test]
fn d28_a_child_that_is_made_while_its_parent_is_cancelled_is_reached_or_born_so() {
    let _not =
        support::not_on(support::Modes::Synchronous, "its requests hold the thread, which alone could go on");
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let (made, ended) = (Count::new(), Count::new());
        for round in 0..100_u64 {
            let (closed, (give, given)) = (gate.request(), mpsc::channel());
            let started = Flag::new();
            let (up, born, over) = (started.clone(), made.clone(), ended.clone());
            let parent = root(runtime).spawn(move || {
                up.raise();
                for n in 0..500 {
                    let child = match (round + n) % 5 {
                        0 => spawn(sleeping(&closed)),
                        1 => Request::new(sleeping(&closed)),
                        2 => Request::builder().own_stack().spawn(sleeping(&closed)),
                        3 => Request::builder().priority(Priority::URGENT).spawn(sleeping(&closed)),
                        _ => {
                            let sleep = sleeping(&closed);
                            spawn(move || spawn(sleep).take()?)
                        }
                    };
                    born.up();
                    let over = over.clone();
                    child.on_done(move |_| _ = over.up());
                    child.submit();
                    give.send(child).unwrap();
                    if is_cancelled() {
                        break;
                    }
                }
                hold_thread_until(is_cancelled);
            });
            started.wait();
            for _ in 0..round {
                thread::yield_now();
            }
            parent.cancel();
            ends_cancelled(&parent);
            for child in given {
                assert_eq!(ends_cancelled(&child), CancelReason::Parent);
            }
        }
        assert_eq!(made.get(), ended.get());
    });
}
