//! `Barrier`: generations, of exactly as many as are to come.

#[path = "../support/cancelling.rs"]
mod cancelling;
#[path = "../support/mod.rs"]
mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use cancelling::{asleep, ends_cancelled, on_each_clocked};
use forebear::sync::Barrier;
use forebear::{Cancellation, Request, TimeoutError, WaitError, no_suspend, yield_now};
use support::order::{BY_URGENCY, on_one, root, wait_by_urgency};
use support::{Count, Joined, in_both_worlds, on_each, until};

#[test]
fn all_go_on_when_the_last_has_come_and_one_of_them_leads() {
    on_each(|runtime| {
        let barrier = Arc::new(Barrier::new(7));
        let (came, went, leaders) = (Count::new(), Count::new(), Count::new());
        let party = || {
            let (barrier, came) = (barrier.clone(), came.clone());
            let (went, leaders) = (went.clone(), leaders.clone());
            move || {
                came.up();
                if barrier.wait().unwrap().is_leader() {
                    leaders.up();
                }
                went.up();
            }
        };
        let requests: Vec<_> = (0..4).map(|_| root(runtime).spawn(party())).collect();
        let threads: Vec<_> = (0..2).map(|_| thread::spawn(party())).collect();
        came.wait_for(6);
        requests.iter().for_each(asleep);
        assert_eq!((went.get(), leaders.get()), (0, 0));
        party()();
        requests.iter().for_each(|request| request.wait().copied().unwrap());
        threads.into_iter().for_each(|thread| thread.joined().unwrap());
        assert_eq!((went.get(), leaders.get()), (7, 1));
    });
}

/// In each round everybody sees that all the others have come to it, and nobody has gone on from the next.
#[test]
fn it_serves_one_generation_after_the_other() {
    on_each(|runtime| {
        const PARTIES: usize = 5;
        const ROUNDS: usize = 40;
        let barrier = Arc::new(Barrier::new(PARTIES));
        let counts: Arc<[AtomicUsize; ROUNDS]> = Arc::new([const { AtomicUsize::new(0) }; ROUNDS]);
        let leaders = Count::new();
        let party = || {
            let (barrier, counts, leaders) = (barrier.clone(), counts.clone(), leaders.clone());
            move || {
                for round in 0..ROUNDS {
                    counts[round].fetch_add(1, Ordering::Relaxed);
                    if barrier.wait().unwrap().is_leader() {
                        leaders.up();
                    }
                    assert_eq!(counts[round].load(Ordering::Relaxed), PARTIES);
                }
            }
        };
        let requests: Vec<_> = (0..3).map(|_| root(runtime).spawn(party())).collect();
        let threads: Vec<_> = (0..2).map(|_| thread::spawn(party())).collect();
        requests.iter().for_each(|request| request.wait().copied().unwrap());
        threads.into_iter().for_each(|thread| thread.joined().unwrap());
        assert_eq!(leaders.get(), ROUNDS);
    });
}

#[test]
fn at_one_for_none_or_for_one_nobody_waits() {
    in_both_worlds(|| {
        for parties in [0, 1] {
            let barrier = Barrier::new(parties);
            assert_eq!(barrier.parties(), parties);
            for _ in 0..3 {
                assert!(barrier.wait().unwrap().is_leader());
                assert!(barrier.wait_timeout(Duration::ZERO).unwrap().is_leader());
            }
        }
    });
}

#[test]
fn who_leaves_has_not_come() {
    on_each(|runtime| {
        let barrier = Arc::new(Barrier::new(3));
        let come = || {
            let barrier = barrier.clone();
            let request = root(runtime).spawn(move || barrier.wait().map(|result| result.is_leader()));
            asleep(&request);
            request
        };
        let (stays, leaves) = (come(), come());
        assert_eq!(leaves.cancel(), Cancellation::Marked);
        ends_cancelled(&leaves);
        assert_eq!(barrier.wait_timeout(Duration::ZERO).err(), Some(TimeoutError::TimedOut));
        let second = come();
        assert!(!stays.is_done() && !second.is_done());
        assert!(barrier.wait().unwrap().is_leader());
        assert_eq!([stays, second].map(|request| request.wait().copied().unwrap()), [Ok(false); 2]);
        assert_eq!(barrier.wait_timeout(Duration::ZERO).err(), Some(TimeoutError::TimedOut));
    });
}

#[test]
fn a_wait_times_out_when_its_time_has_come_and_not_before() {
    on_each_clocked(|runtime, clock| {
        let barrier = Arc::new(Barrier::new(2));
        let theirs = barrier.clone();
        let waiter =
            root(runtime).spawn(move || theirs.wait_timeout(Duration::from_secs(1)).map(|r| r.is_leader()));
        asleep(&waiter);
        clock.advance(Duration::from_millis(999));
        for _ in 0..20 {
            runtime.run(|| yield_now().unwrap());
        }
        assert!(!waiter.is_done());
        clock.advance(Duration::from_millis(1));
        assert_eq!(waiter.wait().copied().unwrap(), Err(TimeoutError::TimedOut));
        assert_eq!(barrier.wait_timeout(Duration::ZERO).err(), Some(TimeoutError::TimedOut));
    });
}

/// Cancels strike while generations end: as many answer `Ok` as make whole generations, with one leader each.
#[test]
fn a_generation_has_exactly_as_many_as_are_to_come() {
    on_each(|runtime| {
        for round in 0..50 {
            let barrier = Arc::new(Barrier::new(2));
            let (through, leaders) = (Count::new(), Count::new());
            let parties: Vec<_> = (0..7)
                .map(|_| {
                    let (barrier, through, leaders) = (barrier.clone(), through.clone(), leaders.clone());
                    root(runtime).spawn(move || {
                        let result = barrier.wait()?;
                        through.up();
                        if result.is_leader() {
                            leaders.up();
                        }
                        Ok::<(), forebear::Cancelled>(())
                    })
                })
                .collect();
            let canceller = {
                let parties = parties.clone();
                thread::spawn(move || {
                    parties.iter().skip(round % 2).step_by(2).for_each(|party| _ = party.cancel());
                })
            };
            canceller.joined().unwrap();
            // Whoever is left alone is let go.
            until(|| {
                if let Ok(result) = barrier.wait_timeout(Duration::ZERO) {
                    through.up();
                    if result.is_leader() {
                        leaders.up();
                    }
                }
                parties.iter().all(Request::is_done)
            });
            assert_eq!(through.get(), 2 * leaders.get());
        }
    });
}

#[test]
fn the_most_urgent_go_on_first() {
    on_one(|runtime, log| {
        let barrier = Arc::new(Barrier::new(5));
        let theirs = barrier.clone();
        let waiters = wait_by_urgency(runtime, &log, move || _ = theirs.wait().unwrap());
        barrier.wait().unwrap();
        waiters.iter().for_each(|waiter| waiter.wait().copied().unwrap());
        log.check(&BY_URGENCY);
    });
}

#[test]
fn a_region_that_must_not_suspend_refuses_a_wait_by_name() {
    on_each(|runtime| {
        let request = runtime.spawn(|| no_suspend("a region", || Barrier::new(2).wait().map(|_| ())));
        let Err(WaitError::Failed(failure)) = request.wait() else { panic!("it has to wait") };
        let text = failure.panic_message().unwrap();
        assert!(text.contains("a region") && text.contains("Barrier"), "{text}");
    });
}
