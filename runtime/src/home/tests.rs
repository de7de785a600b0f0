//! Memory goes home, told by counts.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::foreign::home_for;
use crate::{Request, Runtime, spawn};

/// Each makes so many: more than a home keeps, so that it sheds.
const EACH: usize = 6_000;
const WAVES: usize = 40;

fn chunks(runtime: &Runtime) -> usize {
    runtime.shared().depot.state.lock().unwrap().chunks.len()
}

/// Two roots that hold their threads until both are there, so one lands on each worker; which it is changes.
fn wave(runtime: &Runtime) -> [Vec<Request<usize>>; 2] {
    let met = Arc::new(AtomicUsize::new(0));
    let root = |_| {
        let met = met.clone();
        runtime.spawn(move || {
            met.fetch_add(1, Ordering::AcqRel);
            while met.load(Ordering::Acquire) < 2 {
                std::thread::yield_now();
            }
            (0..EACH).map(|n| spawn(move || n)).collect::<Vec<_>>()
        })
    };
    [0, 1].map(root).map(|root| root.take().unwrap())
}

#[test]
fn a_long_free_list_is_given_away_in_pieces() {
    let runtime = Runtime::builder().workers(1).build().unwrap();
    // This thread's home is not a worker's, so nobody but this thread takes in what comes.
    let make = || runtime.enter(|| Request::new(|| 7));
    let (mut away, at_home): (Vec<_>, Vec<_>) =
        (0..4 * LONG * BATCH as usize).map(|n| (n, make())).partition(|one| one.0 < BATCH as usize);
    let last = away.pop();
    drop(at_home);
    let batches = || runtime.shared().depot.state.lock().unwrap().batches.len();
    let end_elsewhere = |requests| {
        std::thread::scope(|scope| drop(scope.spawn(move || drop(requests))));
        let before = batches();
        // SAFETY: M3: this thread's, and the runtime is there.
        unsafe { home_for(runtime.shared()).unwrap().as_ref() }.drain_returns();
        batches() - before
    };
    assert_eq!(end_elsewhere(last.into_iter().collect::<Vec<_>>()), SHED + 1);
    assert_eq!(end_elsewhere(away), SHED + 1, "nearly a batch has come, and is made up for");
}

#[test]
fn memory_goes_home_when_roots_land_on_changing_workers() {
    let runtime = Runtime::builder().workers(2).foreign_direct(false).build().unwrap();
    for round in 0..WAVES {
        let [a, b] = wave(&runtime);
        match round % 3 {
            // They end here, and come home from here.
            0 => a
                .into_iter()
                .chain(b)
                .enumerate()
                .for_each(|(n, one)| assert_eq!(one.take().unwrap(), n % EACH)),
            // On whichever worker takes them.
            1 => {
                let taken = [a, b].map(|part| {
                    runtime.spawn(move || part.into_iter().map(|one| one.take().unwrap()).sum::<usize>())
                });
                taken.into_iter().for_each(|sum| assert_eq!(sum.take().unwrap(), EACH * (EACH - 1) / 2));
            }
            // Nobody waits for them, and some are not over yet.
            _ => drop([a, b]),
        }
    }
    // What two waves have in use, since one may go on when the next begins, and what each home keeps and has just got:
    // of both workers, and of this thread.
    let cell = STEP * usize::from(class_of(std::alloc::Layout::new::<(Header, usize)>()));
    let kept = 16 * BATCH as usize + CHUNK / cell;
    let most = (4 * EACH + 3 * kept) * cell / CHUNK + 16;
    let made = 2 * EACH * WAVES * cell / CHUNK;
    assert!(most < made / 5, "then nothing would be shown");
    assert!(
        chunks(&runtime) <= most,
        "{} chunks, where {most} are enough; {made} were used",
        chunks(&runtime)
    );
}
