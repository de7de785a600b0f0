//! Storms: cancels by the hundred thousand, and in the middle of everything.
//!
//! A program is a tree drawn from a seed, of requests in scopes, joins, and under each other, that spawn, wait, take, yield,
//! shield and panic, while others cancel them: requests of the same program, and a foreign thread. Nobody can say what such a
//! program comes to; but every request ends, once, as it was told to.

#[path = "support/cancelling.rs"]
mod cancelling;
mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use cancelling::{Gate, asleep, ends_cancelled};
use forebear::{
    AnyRequest, CancelReason, Cancellation, Error, OrUnwind, Outcome, Priority, Request, Runtime, State,
    WaitError, check_cancelled, is_cancelled, join, shield, spawn, try_scope, yield_now,
};
use support::order::root;
use support::{
    Come, Count, Flag, Random, Watchdog, hold_thread_until, kinds, on_each, on_each_of, soaking, until,
};

// ---- random families ----------------------------------------------------------------------------------------------------

/// What all requests of one program know.
struct Program {
    /// Callables that began, and those that returned or unwound.
    began: Count,
    ended: Count,
    /// Probes that were made, and dropped: one captured by each callable, one in each value.
    made: Count,
    dropped: Count,
    /// Outcomes told to callbacks, and requests they were asked of.
    told: Count,
    asked: Count,
    /// Outcomes that do not fit the mark.
    wrong: Count,
    /// Everybody who may be cancelled, or waited for.
    known: Mutex<Vec<(AnyRequest, Arc<AtomicBool>)>>,
    /// What never ends by itself.
    gate: Request<()>,
}

/// A handle of the family, whose value is counted.
type Member = Request<(u64, support::Probe)>;

impl Program {
    fn new(gate: &Gate) -> Arc<Program> {
        let [began, ended, made, dropped, told, asked, wrong] = [(); 7].map(|()| Count::new());
        Arc::new(Program {
            began,
            ended,
            made,
            dropped,
            told,
            asked,
            wrong,
            known: Mutex::default(),
            gate: gate.request(),
        })
    }

    fn probe(&self) -> support::Probe {
        self.made.up();
        self.dropped.probe()
    }

    /// Makes a member whose body goes on by `seed`, and tells callbacks.
    fn member(self: &Arc<Program>, seed: u64, depth: usize) -> Member {
        let mut random = Random::new(seed);
        let builder = match random.below(6) {
            0 => Request::builder().own_stack(),
            1 => Request::builder().priority([Priority::URGENT, Priority::BACKGROUND][random.below(2)]),
            2 if random.below(4) == 0 => Request::builder().detached(),
            _ => Request::builder(),
        };
        let (program, captured) = (self.clone(), self.probe());
        let body = move || program.body(captured, random, depth);
        let member = match depth % 2 {
            0 => builder.try_build(body),
            _ => Request::try_new(body),
        };
        self.know(&member);
        member
    }

    fn know(&self, member: &Member) {
        self.asked.up();
        let (told, aborted) = (self.told.clone(), Arc::new(AtomicBool::new(false)));
        let marked = member.any();
        let wrong = self.wrong.clone();
        member.any().on_done(move |how| {
            // A panic in here would be told to the hook only.
            let fits = match how {
                Outcome::Finished(()) => !marked.is_cancelled(),
                Outcome::Cancelled(_) => marked.is_cancelled(),
                Outcome::Failed(_) => true,
            };
            if !fits {
                wrong.up();
            }
            told.up();
        });
        self.known.lock().unwrap().push((member.any(), aborted));
    }

    fn body(
        self: &Arc<Program>,
        captured: support::Probe,
        mut random: Random,
        depth: usize,
    ) -> Result<(u64, support::Probe), Error> {
        struct Ends<'a>(&'a Count);
        impl Drop for Ends<'_> {
            fn drop(&mut self) {
                self.0.up();
            }
        }
        self.began.up();
        let _ended = Ends(&self.ended);
        let _captured = captured;
        let mut sum = 0;
        for _ in 0..2 + random.below(4) {
            sum += self.step(&mut random, depth, false)?;
        }
        Ok((sum, self.probe()))
    }

    /// One thing that a member may do. In a shielded region it waits for nothing that only a cancel ends.
    fn step(self: &Arc<Program>, random: &mut Random, depth: usize, shielded: bool) -> Result<u64, Error> {
        if depth == 0 {
            return self.small_step(random, shielded);
        }
        match random.below(14) {
            // A child, waited for by reference, by value, by unwinding, watched, or let go.
            0 | 1 => {
                let (seed, depth) = (random.next(), depth - 1);
                let member = self.member(seed, depth);
                match random.below(5) {
                    0 => Ok(member.wait()?.0),
                    1 => Ok(member.take()?.0),
                    2 => Ok(member.wait().or_unwind().0),
                    3 => Ok(member.watch()?.0),
                    _ => {
                        member.submit();
                        Ok(1)
                    }
                }
            }
            2 => {
                let members = [(); 3].map(|()| self.member(random.next(), depth - 1));
                members.iter().for_each(|member| _ = member.submit());
                let mut sum = 0;
                for member in members {
                    sum += member.wait().map_or(0, |value| value.0);
                }
                Ok(sum)
            }
            3 | 4 => {
                let (a, b) = (random.next(), random.next());
                let of = |seed| self.step(&mut Random::new(seed), depth - 1, shielded).unwrap_or(1);
                let (a, b) = join(|| of(a), || of(b));
                Ok(a + b)
            }
            5 | 6 => {
                let seeds = [random.next(), random.next()];
                let program = &self;
                let sum = try_scope(|s| {
                    let jobs = seeds.map(|seed| {
                        let captured = program.probe();
                        let job = s.try_spawn(move || program.body(captured, Random::new(seed), depth - 1));
                        program.known.lock().unwrap().push((job.any(), Arc::default()));
                        job
                    });
                    let mut sum = 0;
                    for job in jobs {
                        sum += job.take()?.0;
                    }
                    Ok(sum)
                })?;
                Ok(sum)
            }
            7 => shield(|| self.step(random, depth - 1, true)),
            8 => {
                // What unwinds may be caught.
                let caught = catch_unwind(AssertUnwindSafe(|| self.step(random, depth - 1, shielded)));
                Ok(caught.unwrap_or(Ok(3)).unwrap_or(4))
            }
            // Left unsubmitted.
            9 => Ok(self.member(random.next(), depth - 1).any().is_done().into()),
            _ => self.small_step(random, shielded),
        }
    }

    fn small_step(&self, random: &mut Random, shielded: bool) -> Result<u64, Error> {
        match random.below(12) {
            0..3 => yield_now()?,
            3 => check_cancelled()?,
            4 => self.gate.wait_timeout(std::time::Duration::ZERO).map_or((), |()| ()),
            5..8 => self.cancel_one(random),
            8 if random.below(6) == 0 => std::panic::resume_unwind(Box::new("on purpose")),
            9 if random.below(6) == 0 => return Err(Error::other("on purpose")),
            10 if random.below(4) == 0 => {
                // Whoever it is, older or younger: not waited for here, since nobody knows what it waits for.
                let me = Request::current();
                let one = self.one(random);
                let _ = one
                    .filter(|(one, _)| me.as_ref() != Some(one))
                    .map(|(one, _)| one.wait_timeout(std::time::Duration::ZERO));
            }
            11 if !shielded && random.below(3) == 0 => self.gate.wait().copied()?,
            _ => {}
        }
        Ok(1)
    }

    fn one(&self, random: &mut Random) -> Option<(AnyRequest, Arc<AtomicBool>)> {
        let known = self.known.lock().unwrap();
        (!known.is_empty()).then(|| known[random.below(known.len())].clone())
    }

    /// Cancels or aborts somebody, perhaps oneself.
    fn cancel_one(&self, random: &mut Random) {
        let Some((one, marked)) = self.one(random) else { return };
        let came = match random.below(4) {
            0 => one.abort(CancelReason::Other(1)),
            _ => one.cancel(),
        };
        if came == Cancellation::Marked {
            marked.store(true, Ordering::Relaxed);
            assert!(one.is_cancelled());
        }
    }

    /// Everybody has ended, as they were told to.
    fn check(&self, seed: u64) {
        let known = std::mem::take(&mut *self.known.lock().unwrap());
        for (member, marked) in known {
            // What was never submitted is nobody's to run now.
            if member.state() == State::New {
                member.cancel();
            }
            let answer = member.watch();
            let (state, marked) = (member.state(), marked.load(Ordering::Relaxed));
            match answer {
                Ok(()) => assert!(
                    state == State::Finished && !marked && !member.is_cancelled(),
                    "{seed}: {member:?}"
                ),
                Err(WaitError::TargetCancelled(_)) => {
                    assert!(state == State::Cancelled && member.is_cancelled(), "{seed}: {member:?}");
                }
                Err(WaitError::Failed(_)) => assert_eq!(state, State::Failed, "{seed}: {member:?}"),
                Err(other) => panic!("{seed}: {other:?} of {member:?}"),
            }
        }
        until(|| self.dropped.get() == self.made.get());
        until(|| self.ended.get() == self.began.get());
        until(|| self.told.get() == self.asked.get());
        assert_eq!(self.wrong.get(), 0, "{seed}: outcomes that do not fit");
    }
}

/// Runs the program of `seed`, with a foreign thread that cancels in the midst.
fn run_program(runtime: &Runtime, gate: &Gate, seed: u64) {
    let program = Program::new(gate);
    let over = Flag::new();
    thread::scope(|threads| {
        let (theirs, stop) = (program.clone(), over.clone());
        let foreign = threads.spawn(move || {
            let mut random = Random::new(!seed);
            while !stop.is_up() {
                theirs.cancel_one(&mut random);
                for _ in 0..random.below(40) {
                    thread::yield_now();
                }
            }
        });
        let roots: Vec<_> = (0..2)
            .map(|n| {
                let member = runtime.enter(|| program.member(seed * 2 + n, 4));
                member.submit();
                member
            })
            .collect();
        // One is wanted by this thread, perhaps run here, the other by nobody.
        let _ = roots[0].wait();
        drop(roots);
        // What they have left goes on until it ends, or is told to.
        until(|| {
            let known = program.known.lock().unwrap();
            known.iter().all(|(member, _)| member.is_done() || member.state() == State::New)
        });
        over.raise();
        support::join_all([foreign]);
    });
    program.check(seed);
}

#[test]
fn in_the_middle_of_everything_every_request_ends_once_as_it_was_told() {
    let seeds = if soaking() { 100_000 } else { support::fitting(1_000) as u64 };
    for kind in kinds() {
        let runtime = kind.builder().on_unseen_failure(|_| ()).build().unwrap();
        let gate = Gate::new(&runtime);
        for seed in 0..seeds {
            let _dog = Watchdog::new(format_args!("{kind:?}, seed {seed}"));
            run_program(&runtime, &gate, seed);
        }
    }
}

// ---- many ---------------------------------------------------------------------------------------------------------------

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
            for _ in 0..MANY / 2 {
                let (one, over, begun) = (one.clone(), over.clone(), begun.clone());
                drop(spawn(move || {
                    begun.up();
                    assert!(one.wait().is_err());
                    over.up();
                }));
            }
            begun.wait_for(MANY / 2);
            let told = one.any();
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
            for _ in 0..MANY / 2 {
                let (one, over, begun) = (target.clone(), over.clone(), begun.clone());
                drop(spawn(move || {
                    begun.up();
                    assert!(one.wait().is_err());
                    over.up();
                }));
            }
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
/// nobody there goes on from them, or a request. All are kept. Each asks before it starts whether an ancestor was cancelled:
/// were it to ask its way past all of them, this would take half an hour.
fn goes_through_generations(runtime: &Runtime, run: impl FnOnce(Generations) -> Vec<Request<()>>) {
    fn generation(
        rest: usize,
        gate: Request<()>,
        give: mpsc::Sender<Request<()>>,
        tell: mpsc::Sender<AnyRequest>,
    ) {
        if rest == 0 {
            return tell.send(spawn(move || gate.wait().copied()).any()).unwrap();
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
    let kept = run(Generations(given));
    let last = told.recv().unwrap();
    asleep(&first);
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
        goes_through_generations(runtime, |line| thread::spawn(move || line.run()).join().unwrap());
    });
}

#[test]
fn very_many_generations_that_a_request_ran_are_gone_through() {
    on_each_of(&[1, 2], |runtime| {
        goes_through_generations(runtime, |line| runtime.run(move || line.run()));
    });
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

// ---- races --------------------------------------------------------------------------------------------------------------

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
            let everybody: Arc<Mutex<Vec<AnyRequest>>> = Arc::default();
            let list = everybody.clone();
            let top = root(runtime).spawn(move || {
                fn member(list: &Arc<Mutex<Vec<AnyRequest>>>, gate: &Request<()>, depth: usize) {
                    list.lock().unwrap().push(Request::current().unwrap());
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
                            let list = everybody.lock().unwrap().clone();
                            list.iter().rev().for_each(|member| _ = member.cancel());
                            top.is_done()
                        });
                    })
                });
                support::join_all(cancellers);
            });
            ends_cancelled(&top);
            let list = everybody.lock().unwrap().clone();
            list.iter().for_each(|member| until(|| member.is_done()));
        }
    });
}
