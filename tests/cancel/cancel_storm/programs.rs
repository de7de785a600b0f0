//! In the middle of everything. A program is a tree drawn from a seed, of requests in scopes, joins, and under each other, that spawn,
//! wait, take, yield, shield and panic, while others cancel them: requests of the same program, and a foreign thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use forebear::{
    AnyRequest, CancelReason, Cancellation, Error, OrUnwind, Outcome, Priority, Request, Runtime, State,
    WaitError, check_cancelled, join, shield, try_scope, yield_now,
};

use crate::cancelling::Gate;
use crate::support::locked::Locked;
use crate::support::{self, Count, Flag, Random, Watchdog, kinds, soaking, until};

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
    known: Locked<Vec<(AnyRequest, Arc<AtomicBool>)>>,
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
            known: Locked::default(),
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
        let marked = member.to_untyped();
        let wrong = self.wrong.clone();
        member.to_untyped().on_done(move |how| {
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
        let member = member.to_untyped();
        self.known.with(|known| known.push((member, aborted)));
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
                        let known_as = job.to_untyped();
                        program.known.with(|known| known.push((known_as, Arc::default())));
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
            9 => Ok(self.member(random.next(), depth - 1).to_untyped().is_done().into()),
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
        self.known.with(|known| (!known.is_empty()).then(|| known[random.below(known.len())].clone()))
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
        let known = self.known.with(std::mem::take);
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
            let is_over = |member: &AnyRequest| member.is_done() || member.state() == State::New;
            program.known.with(|known| known.iter().all(|(member, _)| is_over(member)))
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
        let runtime = kind.builder().on_unhandled_failure(|_| ()).build().unwrap();
        let gate = Gate::new(&runtime);
        for seed in 0..seeds {
            let _dog = Watchdog::over(&runtime, format_args!("{kind:?}, seed {seed}"));
            run_program(&runtime, &gate, seed);
        }
    }
}
