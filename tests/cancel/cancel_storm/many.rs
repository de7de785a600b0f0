//! By the hundred thousand: of queued ones, of waiters, of children, of generations.

use std::sync::mpsc;
use std::thread;

use forebear::{AnyRequest, Cancellation, Request, Runtime, State, WaitError, spawn};

use crate::cancelling::{self, Gate, asleep, ends_cancelled};
use crate::support::order::root;
use crate::support::{self, Come, Count, on_each, on_each_of, until};

const MANY: usize = support::fitting(if cfg!(debug_assertions) { 20_000 } else { 100_000 });

#[test]
fn very_many_cancels_of_queued_requests() {
    let _not = support::not_on(support::Modes::Both, "it holds its workers");
    on_each(|runtime| {
        let held = support::hold_workers(runtime);
        let drops = Count::new();
        let requests: Vec<_> = (0..MANY)
            .map(|_| {
                let probe = drops.probe();
                runtime.spawn(move || drop(probe))
            })
            .collect();
        for request in requests.iter().rev() {
            assert_eq!(request.cancel(), Cancellation::Marked);
        }
        assert_eq!(drops.get(), MANY);
        held.release();
        requests.iter().for_each(|request| assert_eq!(request.state(), State::Cancelled));
        assert_eq!(runtime.run(|| 7), 7);
    });
}

#[test]
fn very_many_cancels_of_one_request() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let one = cancelling::sleeper(runtime, &gate);
        let waiter = cancelling::waiter(runtime, &one);
        for _ in 0..MANY {
            assert_eq!(one.cancel(), Cancellation::Vetoed);
        }
        waiter.cancel();
        for _ in 0..MANY {
            assert_ne!(one.cancel(), Cancellation::Vetoed);
        }
        ends_cancelled(&one);
    });
}

/// `MANY / 2` children of the caller wait for a request, and get no value. They count themselves when they come, and when they are
/// answered.
fn wait_in_vain<T: Send + Sync + 'static>(one: &Request<T>, begun: &Count, over: &Count) {
    for _ in 0..MANY / 2 {
        let (one, over, begun) = (one.clone(), over.clone(), begun.clone());
        drop(spawn(move || {
            begun.up();
            assert!(one.wait().is_err());
            over.up();
        }));
    }
}

/// All wait for one request, which nobody else wants; the one that made them is cancelled.
#[test]
fn very_many_waiters_of_one_request_are_cancelled() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let closed = gate.request();
        let (ended, waiting) = (Count::new(), Count::new());
        let (over, begun) = (ended.clone(), waiting.clone());
        let top = root(runtime).spawn(move || {
            let inner = closed.clone();
            let one = Request::builder().own_stack().build(move || inner.wait().copied());
            wait_in_vain(&one, &begun, &over);
            begun.wait_for(MANY / 2);
            let told = one.to_untyped();
            drop(one);
            (told, closed.wait().copied())
        });
        waiting.wait_for(MANY / 2);
        asleep(&top);
        assert_eq!(top.cancel(), Cancellation::Marked);
        ends_cancelled(&top);
        ended.wait_for(MANY / 2);
    });
}

/// The same where somebody lives who wants it, and stands last in the list.
#[test]
fn very_many_waiters_of_a_spared_request_are_cancelled() {
    on_each(|runtime| {
        let mut gate = Gate::new(runtime);
        let one = cancelling::sleeper(runtime, &gate);
        let (ended, waiting) = (Count::new(), Count::new());
        let (over, begun, target) = (ended.clone(), waiting.clone(), one.clone());
        let closed = gate.request();
        let top = root(runtime).spawn(move || {
            wait_in_vain(&target, &begun, &over);
            closed.wait().copied()
        });
        waiting.wait_for(MANY / 2);
        asleep(&top);
        let last = cancelling::waiter(runtime, &one);
        assert_eq!(one.cancel(), Cancellation::Vetoed);
        top.cancel();
        ends_cancelled(&top);
        ended.wait_for(MANY / 2);
        assert!(!one.is_cancelled());
        gate.open();
        assert!(last.take().unwrap().is_ok());
    });
}

#[test]
fn very_many_children_are_cancelled_with_their_parent() {
    on_each(|runtime| {
        let gate = Gate::new(runtime);
        let closed = gate.request();
        let ended = Count::new();
        let over = ended.clone();
        let parent = root(runtime).spawn(move || {
            for n in 0..MANY {
                let over = over.clone();
                let child = Request::new(|| ());
                child.on_done(move |_| _ = over.up());
                if n % 2 == 0 {
                    child.submit();
                }
            }
            closed.wait().copied()
        });
        until(|| ended.get() > 0);
        parent.cancel();
        ends_cancelled(&parent);
        ended.wait_for(MANY);
    });
}

/// A line of generations, each waiting for the next: a loop goes down it, and no recursion.
#[test]
fn very_many_generations_are_cancelled_with_the_first() {
    fn generation(rest: usize, gate: Request<()>, deepest: mpsc::Sender<()>) -> Result<(), WaitError> {
        if rest == 0 {
            deepest.send(()).unwrap();
            return gate.wait().copied();
        }
        let child = spawn(move || generation(rest - 1, gate, deepest));
        child.wait()?.clone()
    }
    on_each(|runtime| {
        let depth = MANY / 10;
        let gate = Gate::new(runtime);
        let (closed, (tell, told)) = (gate.request(), mpsc::channel());
        let first = root(runtime).spawn(move || generation(depth, closed, tell));
        told.come().unwrap();
        asleep(&first);
        assert_eq!(first.cancel(), Cancellation::Marked);
        ends_cancelled(&first);
    });
}

/// Each is made by the last and outlives it; only the first's parent is there to tell them.
#[test]
fn very_many_generations_that_are_over_are_gone_through() {
    fn generation(rest: usize, gate: Request<()>, give: mpsc::Sender<AnyRequest>) {
        // Somebody keeps each, so that nobody can take its place.
        give.send(Request::current().unwrap()).unwrap();
        match rest {
            0 => drop(gate.wait()),
            rest => drop(spawn(move || generation(rest - 1, gate, give))),
        }
    }
    on_each(|runtime| {
        let depth = MANY / 10;
        let gate = Gate::new(runtime);
        let (closed, (give, given)) = (gate.request(), mpsc::channel());
        let first = root(runtime).spawn(move || {
            let line = closed.clone();
            drop(spawn(move || generation(depth, line, give)));
            closed.wait().copied()
        });
        let kept: Vec<_> = given.all().take(depth + 1).collect();
        asleep(&first);
        first.cancel();
        ends_cancelled(&first);
        let last = kept.last().unwrap();
        assert!(matches!(last.watch(), Err(WaitError::TargetCancelled(_))), "{last:?}");
        // Some may still be on their way out.
        assert!(kept[..depth].iter().all(|member| match member.watch() {
            Ok(()) => member.state() == State::Finished,
            Err(_) => member.state() == State::Cancelled,
        }));
    });
}

/// As above, of generations that were run one after the other by somebody else: a thread, which has no loop and goes, so that
/// nobody there goes on from them, or a request. All are kept, for good or until the first is cancelled. Were each to ask its way past
/// all before it whether an ancestor was cancelled, or what for, this would take half an hour.
fn goes_through_generations(
    runtime: &Runtime,
    kept_for_good: bool,
    run: impl FnOnce(Generations) -> Vec<Request<()>>,
) {
    fn generation(
        rest: usize,
        gate: Request<()>,
        give: mpsc::Sender<Request<()>>,
        tell: mpsc::Sender<AnyRequest>,
    ) {
        if rest == 0 {
            return tell.send(spawn(move || gate.wait().copied()).to_untyped()).unwrap();
        }
        let next = give.clone();
        give.send(Request::new(move || generation(rest - 1, gate, next, tell))).unwrap();
    }
    let gate = Gate::new(runtime);
    let (closed, (give, given), (tell, told)) = (gate.request(), mpsc::channel(), mpsc::channel());
    let first = root(runtime).spawn(move || {
        let line = closed.clone();
        let next = give.clone();
        give.send(Request::new(move || generation(MANY * 4, line, next, tell))).unwrap();
        drop(give);
        closed.wait().copied()
    });
    asleep(&first);
    let mut kept = run(Generations(given));
    let last = told.recv().unwrap();
    asleep(&first);
    if !kept_for_good {
        kept.clear();
    }
    first.cancel();
    ends_cancelled(&first);
    assert!(matches!(last.watch(), Err(WaitError::TargetCancelled(_))), "{last:?}");
    drop(kept);
}

/// A line of requests, each of which sends the next.
struct Generations(mpsc::Receiver<Request<()>>);

impl Generations {
    fn run(self) -> Vec<Request<()>> {
        self.0.iter().inspect(|next: &Request<()>| next.wait().copied().unwrap()).collect()
    }
}

#[test]
fn very_many_generations_that_a_thread_ran_are_gone_through() {
    on_each_of(&[1, 2], |runtime| {
        let run = |line: Generations| thread::spawn(move || line.run()).join().unwrap();
        goes_through_generations(runtime, true, run);
    });
}

fn goes_through_what_a_request_ran(kept_for_good: bool) {
    on_each_of(&[1, 2], |runtime| {
        goes_through_generations(runtime, kept_for_good, |line| runtime.run(move || line.run()));
    });
}

#[test]
fn very_many_generations_that_a_request_ran_are_gone_through() {
    goes_through_what_a_request_ran(true);
}

#[test]
fn very_many_generations_that_a_request_ran_and_nobody_keeps_are_gone_through() {
    goes_through_what_a_request_ran(false);
}

/// One callable's destructor cancels the next, and so on: a long line, of which nothing may be put on the stack.
#[test]
fn very_many_whose_ends_cancel_the_next() {
    struct Next(Option<Request<()>>);
    impl Drop for Next {
        fn drop(&mut self) {
            if let Some(next) = self.0.take() {
                next.cancel();
            }
        }
    }
    support::in_both_worlds(|| {
        let drops = Count::new();
        let mut line = Next(None);
        for _ in 0..MANY {
            let (next, probe) = (line, drops.probe());
            line = Next(Some(Request::new(move || drop((next, probe)))));
        }
        drop(line);
        assert_eq!(drops.get(), MANY);
    });
}
