//! Requests that are cancelled, and requests with callbacks.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebear::channel::{Receiver, SendError, Sender, bounded};
use forebear::sync::{Event, Mutex};
use forebear::time::sleep;
use forebear::{Request, WaitError, is_cancelled, spawn, try_scope, yield_now};

use super::pause;
use crate::load::Stand;
use crate::rival::Run;
use crate::work::{self, Over};

/// A request that ends on demand. It has a stack of its own, so its waiters are suspended. It must not run on a waiter's
/// stack, since that waiter would end only after it.
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

/// A child that waits for the gate until it is cancelled.
fn stand(gate: &Request<()>, parked: &AtomicU64, over: Over) {
    parked.fetch_add(1, AcqRel);
    match gate.wait() {
        Err(WaitError::Cancelled) => drop(over),
        _ => over.forget(),
    }
}

/// A parent with children that wait and children that have not started cancels itself, and is over when they
/// are.
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
    // A wait would be demand, and the cancel would spare the request.
    parent.watch().expect_err("it is cancelled");
    open.store(1, Release);
    gate.wait().expect("nobody cancels the gate");
    Run {
        elapsed: *elapsed.get().expect("the parent has run"),
        value: over.load(Relaxed),
        figures: Vec::new(),
    }
}

/// What the children of [`cancel_at`] wait for.
struct Standing {
    /// Another task holds it until `open`.
    lock: Mutex<()>,
    held: AtomicBool,
    open: AtomicBool,
    /// Full, and never received from.
    channel: (Sender<u8>, Receiver<u8>),
    parked: AtomicU64,
    /// The running children begin their loop when all have started: a yield lets one unstarted request go first, not all of them.
    all_there: Event,
    going: AtomicU64,
}

impl Standing {
    /// A child, until it is cancelled.
    fn stand(&self, stand: Stand, over: Over) {
        self.parked.fetch_add(1, AcqRel);
        let cancelled = match stand {
            Stand::Checks => {
                let _ = self.all_there.wait();
                self.going.fetch_add(1, AcqRel);
                while !is_cancelled() {
                    // The answer is the check's to give.
                    let _ = yield_now();
                }
                true
            }
            Stand::Lock => self.lock.lock_or_cancelled().is_err(),
            Stand::Channel => matches!(self.channel.0.send(1), Err(SendError::Cancelled(_))),
            Stand::Sleep => sleep(Duration::from_secs(3600)).is_err(),
        };
        if cancelled { drop(over) } else { over.forget() }
    }
}

/// A parent with children that are all in the same kind of wait cancels itself, and is over when
/// they are.
pub(super) fn cancel_at(n: u64, stand: Stand) -> Run {
    let (over, elapsed) = (Over::counter(), Arc::new(OnceLock::new()));
    let standing = Arc::new(Standing {
        lock: Mutex::new(()),
        channel: bounded(1),
        parked: AtomicU64::new(0),
        all_there: Event::new(),
        going: AtomicU64::new(if stand == Stand::Checks { 0 } else { n }),
        held: AtomicBool::new(false),
        open: AtomicBool::new(false),
    });
    standing.channel.0.send(0).expect("there is room");
    // Not the parent: who holds a lock and waits for those that stand before it closes a cycle.
    let holder = {
        let standing = standing.clone();
        spawn(move || {
            let guard = standing.lock.lock();
            standing.held.store(true, Release);
            while !standing.open.load(Acquire) {
                pause();
            }
            drop(guard);
        })
    };
    while !standing.held.load(Acquire) {
        pause();
    }
    let parent = {
        let (standing, over, elapsed) = (standing.clone(), over.clone(), elapsed.clone());
        spawn(move || {
            let mut start = Instant::now();
            let ended = try_scope(|s| {
                for _ in 0..n {
                    let (standing, over) = (&standing, Over::new(&over));
                    s.spawn(move || standing.stand(stand, over));
                }
                while standing.parked.load(Acquire) < n {
                    pause();
                }
                standing.all_there.set();
                while standing.going.load(Acquire) < n {
                    pause();
                }
                start = Instant::now();
                Request::current().expect("this is one").cancel();
                Ok(())
            });
            let _ = elapsed.set(start.elapsed());
            assert!(matches!(ended, Err(WaitError::Cancelled)));
        })
    };
    // A wait would be demand, and the cancel would spare the request.
    parent.watch().expect_err("it is cancelled");
    standing.open.store(true, Release);
    holder.wait().expect("nobody cancels the holder");
    let elapsed = *elapsed.get().expect("the parent has run");
    Run { elapsed, value: over.load(Relaxed), figures: Vec::new() }
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
    open.store(1, Release);
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
