//! What two requests of one worker exchange in the short ways: who runs next, and the cases that the short ways leave to the general ones.

use std::sync::Arc;

use forebear::channel::{Receiver, RecvError, RecvTimeoutError, SendError, Sender, TryRecvError, bounded};
use forebear::{CancelReason, Priority, Request, Runtime, shield, spawn};

use super::LONG;
use super::cancelling::{asleep, ends_cancelled};
use super::support::Count;
use super::support::order::{Log, on_one, root};

/// A receiver that waits, and notes its name when it has an item.
fn receiver(runtime: &Runtime, log: &Log, name: &'static str) -> (Sender<()>, Request<()>) {
    let (sender, items) = bounded(1);
    let log = log.clone();
    let request = root(runtime).spawn(move || {
        items.recv().unwrap();
        log.note(name);
    });
    asleep(&request);
    (sender, request)
}

/// A request that does `f` when it is started. It has waited once: a first wait takes the general way.
fn started(runtime: &Runtime, f: impl FnOnce() + Send + 'static) -> (Sender<()>, Request<()>) {
    let (start, begin) = bounded(1);
    let request = root(runtime).spawn(move || {
        begin.recv().unwrap();
        f();
    });
    asleep(&request);
    (start, request)
}

/// Waits for an item that `wakes` sends when all that can run has run.
fn wait_for_the_rest(log: &Log) {
    let (last, end): (Sender<()>, Receiver<()>) = bounded(1);
    let log = log.clone();
    let wakes = Request::builder().priority(Priority::BACKGROUND).spawn(move || last.send(()).unwrap());
    end.recv().unwrap();
    log.note("sender");
    wakes.wait().unwrap();
}

// ---- who runs next --------------------------------------------------------------------------------------------------

#[test]
fn an_urgent_root_starts_before_a_receiver_that_was_given_an_item() {
    on_one(|runtime, log| {
        let (to, waits) = receiver(runtime, &log, "receiver");
        let notes = log.clone();
        let (start, sends) = started(runtime, move || {
            let urgent = notes.clone();
            let urgent = Request::builder().priority(Priority::URGENT).spawn(move || urgent.note("urgent"));
            to.send(()).unwrap();
            wait_for_the_rest(&notes);
            urgent.wait().unwrap();
        });
        start.send(()).unwrap();
        sends.wait().unwrap();
        waits.wait().unwrap();
        log.check(&["urgent", "receiver", "sender"]);
    });
}

#[test]
fn a_child_of_an_older_root_starts_before_a_receiver_that_was_given_an_item() {
    on_one(|runtime, log| {
        let (notes, (to, theirs)) = (log.clone(), bounded::<Sender<()>>(1));
        let (start, sends) = started(runtime, move || {
            let to: Sender<()> = theirs.recv().unwrap();
            let child = notes.clone();
            let child = spawn(move || child.note("child"));
            to.send(()).unwrap();
            wait_for_the_rest(&notes);
            child.wait().unwrap();
        });
        let (younger, waits) = receiver(runtime, &log, "receiver");
        to.send(younger).unwrap();
        start.send(()).unwrap();
        sends.wait().unwrap();
        waits.wait().unwrap();
        log.check(&["child", "receiver", "sender"]);
    });
}

/// Within one root a worker resumes what has started before it starts another.
#[test]
fn a_receiver_of_the_same_root_that_was_given_an_item_runs_before_what_has_not_started() {
    on_one(|runtime, log| {
        let notes = log.clone();
        let sends = root(runtime).spawn(move || {
            let ((to, items), theirs, begun) = (bounded(1), notes.clone(), bounded(1));
            let waits = Request::builder().own_stack().spawn(move || {
                begun.0.send(()).unwrap();
                items.recv().unwrap();
                theirs.note("receiver");
            });
            begun.1.recv().unwrap();
            // The receiver of `begun` may have been resumed before the other waits.
            while waits.state() != forebear::State::Suspended {
                forebear::yield_now().unwrap();
            }
            let theirs = notes.clone();
            let child = spawn(move || theirs.note("unstarted"));
            to.send(()).unwrap();
            wait_for_the_rest(&notes);
            child.wait().unwrap();
            waits.wait().unwrap();
        });
        sends.wait().unwrap();
        log.check(&["receiver", "unstarted", "sender"]);
    });
}

#[test]
fn of_two_receivers_that_were_given_items_the_older_runs_first() {
    on_one(|runtime, log| {
        let (to_old, old) = receiver(runtime, &log, "old");
        let (to_young, young) = receiver(runtime, &log, "young");
        let notes = log.clone();
        let (start, sends) = started(runtime, move || {
            to_young.send(()).unwrap();
            to_old.send(()).unwrap();
            wait_for_the_rest(&notes);
        });
        start.send(()).unwrap();
        for request in [&sends, &old, &young] {
            request.wait().unwrap();
        }
        log.check(&["old", "young", "sender"]);
    });
}

#[test]
fn a_second_receiver_is_served_by_its_urgency() {
    on_one(|runtime, log| {
        let (sender, items) = bounded(1);
        let waits = |name: &'static str, priority| {
            let (items, log) = (items.clone(), log.clone());
            let request = root(runtime).priority(priority).spawn(move || {
                let n: u32 = items.recv().unwrap();
                log.note(format!("{n} {name}"));
            });
            asleep(&request);
            request
        };
        let first = waits("normal", Priority::NORMAL);
        let second = waits("urgent", Priority::URGENT);
        let sends = root(runtime).spawn(move || (0..2).for_each(|n| sender.send(n).unwrap()));
        for request in [&sends, &first, &second] {
            request.wait().unwrap();
        }
        log.check(&["0 urgent", "1 normal"]);
    });
}

/// Two that exchange messages are always ready: a look at the other queues is what lets another run.
#[test]
fn a_request_of_another_thread_runs_while_two_exchange_messages() {
    on_one(|runtime, _| {
        let ((there, tokens), (back, returns)) = (bounded::<bool>(1), bounded::<bool>(1));
        let serves =
            root(runtime).spawn(move || while tokens.recv().is_ok_and(|more| back.send(more).is_ok()) {});
        let ((stop, stopped), rounds) = (bounded::<()>(1), Count::new());
        let counts = rounds.clone();
        let plays = root(runtime).spawn(move || {
            while stopped.try_recv() == Err(TryRecvError::Empty) {
                there.send(true).unwrap();
                returns.recv().unwrap();
                counts.up();
            }
        });
        rounds.wait_for(100);
        root(runtime).priority(Priority::URGENT).spawn(move || stop.send(()).unwrap()).wait().unwrap();
        plays.wait().unwrap();
        serves.wait().unwrap();
    });
}

// ---- what is left to the general ways ----------------------------------------------------------------------------------

#[test]
fn an_item_is_not_given_to_the_only_receiver_if_that_was_cancelled() {
    on_one(|runtime, _| {
        let (sender, items) = bounded(1);
        let theirs = items.clone();
        let waits = root(runtime).spawn(move || theirs.recv().map(drop));
        asleep(&waits);
        let leaver = waits.clone();
        let sends = root(runtime).spawn(move || {
            leaver.cancel();
            sender.send(1).unwrap();
            assert_eq!(sender.len(), 1, "in the channel");
            items.recv()
        });
        assert_eq!(sends.wait().unwrap(), &Ok(1));
        ends_cancelled(&waits);
    });
}

#[test]
fn a_cancelled_sender_serves_no_receiver_and_a_cancelled_receiver_does_not_wait() {
    on_one(|runtime, _| {
        let (sender, items) = bounded(1);
        let waits = root(runtime).spawn(move || items.recv());
        asleep(&waits);
        let cancelled = root(runtime).spawn(move || {
            Request::current().unwrap().abort(CancelReason::Asked);
            assert_eq!(sender.send(1), Err(SendError::Cancelled(1)));
            let (_sender, empty) = bounded::<u32>(1);
            assert_eq!(empty.recv(), Err(RecvError::Cancelled));
            assert_eq!(empty.recv_timeout(LONG), Err(RecvTimeoutError::Cancelled));
            shield(|| sender.send(2).unwrap());
        });
        ends_cancelled(&cancelled);
        assert_eq!(waits.wait().unwrap(), &Ok(2));
    });
}

#[test]
fn a_receiver_that_waits_is_told_of_the_end_and_of_its_own_cancel() {
    on_one(|runtime, _| {
        let (sender, items) = bounded::<u32>(1);
        let waits = root(runtime).spawn(move || items.recv());
        asleep(&waits);
        root(runtime).spawn(move || drop(sender)).wait().unwrap();
        assert_eq!(waits.wait().unwrap(), &Err(RecvError::Disconnected));
        let (_sender, items) = bounded::<u32>(1);
        let waits = root(runtime).spawn(move || items.recv().map(drop));
        asleep(&waits);
        let target = waits.clone();
        root(runtime).spawn(move || _ = target.cancel()).wait().unwrap();
        ends_cancelled(&waits);
    });
}

#[test]
fn each_item_that_two_of_one_worker_exchange_is_dropped_once() {
    on_one(|runtime, _| {
        let item = Arc::new(());
        for capacity in [0, 1, 3] {
            let ((there, tokens), (back, returns)) = (bounded(capacity), bounded(capacity));
            let serves = root(runtime).spawn(move || {
                while let Ok(item) = tokens.recv() {
                    if back.send(item).is_err() {
                        break;
                    }
                }
            });
            let mine = item.clone();
            let plays = root(runtime).spawn(move || {
                for _ in 0..10 {
                    there.send(mine.clone()).unwrap();
                    assert!(Arc::strong_count(&returns.recv().unwrap()) >= 3);
                }
                // Two are left in the channels, or on their way.
                _ = (there.try_send(mine.clone()), there.try_send(mine.clone()));
            });
            plays.wait().unwrap();
            serves.wait().unwrap();
            drop((plays, serves));
            super::support::until(|| Arc::strong_count(&item) == 1);
        }
    });
}
