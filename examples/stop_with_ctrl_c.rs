//! Ctrl-C ends the work that `main` waits for.
//!
//! `main` waits, so it *wants* the work: [`cancel`](forebear::Request::cancel) spares what somebody wants, and answers `Vetoed`.
//! Whoever presses Ctrl-C means all who wait, `main` too. The handler *aborts*: the work ends, its children with it, and `main`
//! is told so.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use forebear::time::sleep;
use forebear::{CancelReason, Cancellation, WaitError, spawn, try_spawn};

fn main() {
    let (hand_out, begun) = mpsc::channel();
    let work = try_spawn(move || {
        // Children end with it; none of them has to be named.
        let parts = [(); 3].map(|()| spawn(|| sleep(Duration::from_secs(3600))));
        let _ = hand_out.send(());
        for part in parts {
            part.take()??;
        }
        Ok(())
    });

    // Stands for a signal handler's thread (the crate `ctrlc` runs its closure on one).
    let handler = thread::spawn({
        let work = work.to_untyped();
        move || {
            let _ = begun.recv();
            // Spared if `main` waits by now; then this is remembered, and done when `main` waits no more.
            let polite = work.cancel();
            assert!(matches!(polite, Cancellation::Vetoed | Cancellation::Marked));
            // Whoever waits.
            work.abort(CancelReason::Asked);
        }
    });

    match work.wait() {
        Ok(()) => println!("done"),
        Err(WaitError::TargetCancelled(why)) => println!("stopped: {why}"),
        Err(error) => println!("failed: {error}"),
    }
    let _ = handler.join();
}
