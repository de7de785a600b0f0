//! To all that descends from it: through joins, scopes, callbacks, and parents that are over.

use std::cell::RefCell;
use std::sync::mpsc;
use std::thread;

use forebear::{
    AnyRequest, CancelReason, Cancellation, Priority, Request, State, WaitError, join, scope, spawn,
};

use super::cancelling::{Gate, asleep, ends_cancelled, was_cancelled};
use super::support::order::root;
use super::support::{Come, Flag, Watchdog, hold_thread_until, on_each, on_each_of, runtime, until};
use super::{sleeping, spreads_to};

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
                    give.send(spawn(sleeping(&closed)).to_untyped()).unwrap();
                    tell.send(closed.wait().copied()).unwrap();
                },
                || {
                    there.raise();
                    here.wait();
                    also.send(spawn(sleeping(&other)).to_untyped()).unwrap();
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
                    give.send([job.to_untyped(), job_on_its_own.to_untyped()]).unwrap();
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
                give.send(child.submit().to_untyped()).unwrap();
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
                    return child.to_untyped();
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
                tell.send(orphan.to_untyped()).unwrap();
                inside.wait().copied().unwrap();
            });
            give.send(child).unwrap();
            // The others have the rest. Cancelled, and not over.
            hold_thread_until(|| may.is_up());
        });
        let (child, orphan) = (given.come().unwrap(), told.come().unwrap());
        let keeper = crate::cancelling::waiter(runtime, &child);
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
            child.on_finished(move |_| give.send(spawn(sleeping(&gate)).to_untyped()).unwrap());
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
