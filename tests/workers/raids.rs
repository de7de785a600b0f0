//! Raids: that what ends a request and its children finds each child once, while sleeping workers publish what the maker keeps private.

#[path = "../support/mod.rs"]
mod support;

use std::hint::black_box;
use std::time::{Duration, Instant};

use forebear::{
    CancelReason, Request, RequestBuilder, Runtime, WaitError, is_cancelled, scope, spawn, yield_now,
};
use support::{Count, Watchdog, hold_thread_until};

/// What ends the maker, or its children.
#[derive(Clone, Copy, Debug)]
enum End {
    /// Somebody cancels the maker, which nobody waits for.
    Cancel,
    /// Somebody aborts it.
    Abort,
    /// Its deadline comes.
    Deadline,
    /// The runtime is shut down.
    Shutdown,
    /// The maker aborts itself between two spawns, from a thread that it waits for.
    BetweenSpawns,
    /// The maker panics, and its scope unwinds.
    Panic,
}

const ENDS: [End; 6] =
    [End::Cancel, End::Abort, End::Deadline, End::Shutdown, End::BetweenSpawns, End::Panic];

/// What a child has captured: counted when it is made and when it is dropped.
struct Captured(Count);

impl Captured {
    fn new(made: &Count, dropped: &Count) -> Captured {
        made.up();
        Captured(dropped.clone())
    }
}

impl Drop for Captured {
    fn drop(&mut self) {
        self.0.up();
    }
}

/// Keeps the thread busy without a scheduling point.
fn compute(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        black_box(start);
    }
}

/// Makes children of each kind, computes, and does something different with each; again and again, until it is cancelled.
fn make_children(made: &Count, dropped: &Count, round: u64, end: End) -> Result<(), WaitError> {
    for turn in 0.. {
        let job = || {
            let captured = Captured::new(made, dropped);
            move || {
                compute(Duration::from_micros(20));
                drop(captured);
            }
        };
        scope(|s| {
            let mut kept: Vec<Request<()>> = Vec::new();
            for n in 0..12 {
                match n % 3 {
                    0 => kept.push(spawn(job())),
                    1 => kept.push(Request::new(job())),
                    _ => kept.push(s.spawn(job())),
                }
            }
            for child in &kept {
                child.submit();
            }
            compute(Duration::from_micros(300 + round * 41 % 700));
            if turn == 2 {
                match end {
                    End::Panic => panic!("as planned"),
                    End::BetweenSpawns => {
                        let me = Request::current();
                        std::thread::scope(|threads| {
                            threads.spawn(|| me.iter().for_each(|me| _ = me.abort(CancelReason::Other(1))));
                        });
                        kept.extend((0..3).map(|_| spawn(job())));
                    }
                    _ => {}
                }
            }
            for (n, child) in kept.into_iter().enumerate() {
                match (n as u64 + round) % 5 {
                    0 => _ = child.take(),
                    1 => _ = child.wait(),
                    2 => drop(child),
                    3 => _ = child.to_untyped().cancel(),
                    _ => _ = child.to_untyped().abort(CancelReason::Other(2)),
                }
            }
        });
        if is_cancelled() {
            yield_now()?;
        }
    }
    Ok(())
}

/// Ends a maker in this way, in the middle of its work, and looks whether everything that it has made is dropped once.
fn ends_while_it_is_raided(end: End, workers: usize, round: u64) {
    let runtime = Runtime::builder().workers(workers).build().unwrap();
    let (made, dropped) = (Count::new(), Count::new());
    let builder: RequestBuilder = Request::builder().on(&runtime).own_stack();
    let builder = match end {
        End::Deadline => builder.timeout(Duration::from_micros(1_500 + round * 130 % 2_000)),
        _ => builder,
    };
    let maker = builder.try_spawn({
        let (made, dropped) = (made.clone(), dropped.clone());
        move || Ok(make_children(&made, &dropped, round, end)?)
    });
    hold_thread_until(|| made.get() > 0 || maker.is_done());
    compute(Duration::from_micros(round * 170 % 3_000));
    match end {
        End::Cancel => _ = maker.to_untyped().cancel(),
        End::Abort => _ = maker.to_untyped().abort(CancelReason::Other(3)),
        End::Shutdown => runtime.shutdown(Duration::from_secs(100)).unwrap(),
        End::Deadline | End::BetweenSpawns | End::Panic => {}
    }
    match (maker.wait().unwrap_err(), end) {
        (WaitError::Failed(_), End::Panic) => {}
        (WaitError::TargetCancelled(_), _) if !matches!(end, End::Panic) => {}
        (other, _) => panic!("{end:?}: {other:#}"),
    }
    drop(runtime);
    hold_thread_until(|| dropped.get() >= made.get());
    assert_eq!(dropped.get(), made.get(), "{end:?}");
}

#[test]
fn each_child_of_a_raided_maker_ends_once_whatever_ends_the_maker() {
    let _dog = Watchdog::new("");
    for round in 0..12 {
        for end in ENDS {
            for workers in [2, 4] {
                ends_while_it_is_raided(end, workers, round);
            }
        }
    }
}
