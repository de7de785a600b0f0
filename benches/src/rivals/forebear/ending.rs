//! Requests that are cancelled, and requests that call back.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use forebear::{Request, WaitError, spawn, try_scope};

use super::pause;
use crate::load::Run;
use crate::work::{self, Over};

/// A request that is over when it is told so; whoever waits for it is suspended. On a stack of its own, so that nobody who
/// waits lends it one: a lender is over only when it is.
fn gate(open: &Arc<AtomicU64>) -> Request<()> {
    let open = open.clone();
    let gate = Request::builder().own_stack().build(move || {
        while open.load(Acquire) == 0 {
            pause();
        }
    });
    gate.submit();
    gate
}

/// A child that stands before the gate until it is cancelled.
fn stand(gate: &Request<()>, parked: &AtomicU64, over: Over) {
    parked.fetch_add(1, AcqRel);
    match gate.wait() {
        Err(WaitError::Cancelled) => drop(over),
        _ => over.forget(),
    }
}

/// A parent with children that wait and children that have not begun cancels itself, and is over when they are.
pub(super) fn cancel_all(suspended: u64, queued: u64) -> Run {
    let (open, over, parked) = (Arc::default(), Over::counter(), Arc::new(AtomicU64::new(0)));
    let gate = gate(&open);
    let elapsed = Arc::new(OnceLock::new());
    let parent = {
        let (gate, over, parked, elapsed) = (gate.clone(), over.clone(), parked.clone(), elapsed.clone());
        spawn(move || {
            let mut start = Instant::now();
            let ended = try_scope(|s| {
                for _ in 0..suspended {
                    let (gate, over) = (&gate, Over::new(&over));
                    let parked = &parked;
                    s.spawn(move || stand(gate, parked, over));
                }
                while parked.load(Acquire) < suspended {
                    pause();
                }
                for _ in 0..queued {
                    let (gate, over) = (&gate, Over::new(&over));
                    let parked = &parked;
                    s.spawn(move || stand(gate, parked, over));
                }
                start = Instant::now();
                Request::current().expect("this is one").cancel();
                Ok(())
            });
            let _ = elapsed.set(start.elapsed());
            assert!(matches!(ended, Err(WaitError::Cancelled)));
        })
    };
    // Who waits would be demand, for which it would be spared.
    parent.watch().expect_err("it is cancelled");
    open.store(1, std::sync::atomic::Ordering::Release);
    gate.wait().expect("nobody cancels the gate");
    Run {
        elapsed: *elapsed.get().expect("the parent has run"),
        value: over.load(Relaxed),
        figures: Vec::new(),
    }
}

/// Of many that wait, `victims` are cancelled one after the other, each waited for before the next.
pub(super) fn cancel_some(among: u64, victims: u64) -> Run {
    let (open, over, parked) = (Arc::default(), Over::counter(), Arc::new(AtomicU64::new(0)));
    let gate = gate(&open);
    let crowd: Vec<Request<()>> = (0..among)
        .map(|_| {
            let (gate, over, parked) = (gate.clone(), Over::new(&over), parked.clone());
            spawn(move || stand(&gate, &parked, over))
        })
        .collect();
    while parked.load(Acquire) < among {
        pause();
    }
    let apart = (among / victims) as usize;
    let start = Instant::now();
    for victim in crowd.iter().step_by(apart).take(victims as usize) {
        victim.cancel();
        victim.wait().expect_err("it is cancelled");
    }
    let run = Run { elapsed: start.elapsed(), value: over.load(Relaxed), figures: Vec::new() };
    open.store(1, std::sync::atomic::Ordering::Release);
    for request in crowd {
        let _ = request.wait();
    }
    run
}

/// Requests that are each made, subscribed to, submitted and waited for; a callback adds the value to what is returned.
pub(super) fn callbacks(n: u64, each: u64) -> Run {
    let sum = Arc::new(AtomicU64::new(0));
    Run::timed(|| {
        let mut values = 0;
        for i in 0..n {
            let request = Request::new(move || work::one(i));
            for _ in 0..each {
                let sum = sum.clone();
                request.on_finished(move |value| _ = sum.fetch_add(*value, Relaxed));
            }
            request.submit();
            values += request.wait().expect("nobody cancels, nothing panics");
        }
        values + sum.load(Relaxed)
    })
}
