//! How waits end: limits, and cancellation.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use forebear::channel::{
    RecvError, RecvTimeoutError, SendError, SendTimeoutError, TryRecvError, TrySendError, bounded,
};
use forebear::sync::Mutex;
use forebear::{CancelReason, Cancellation, Error, Request, shield, yield_now};

use super::cancelling::{asleep, ends_cancelled, on_each_clocked};
use super::support::order::root;
use super::support::{Count, Random, in_both_worlds, on_each};
use super::{LONG, channel, each_capacity};

// ---- limits ---------------------------------------------------------------------------------------------------------

#[test]
fn a_wait_that_times_out_leaves_no_trace() {
    in_both_worlds(|| {
        for limit in [Duration::ZERO, Duration::from_millis(2)] {
            let (sender, receiver) = bounded(0);
            assert_eq!(receiver.recv_timeout(limit), Err(RecvTimeoutError::TimedOut));
            // Nobody is there to be served.
            assert_eq!(sender.try_send(1), Err(TrySendError::Full(1)));
            assert_eq!(sender.send_timeout(2, limit), Err(SendTimeoutError::TimedOut(2)));
            assert_eq!(receiver.try_recv(), Err(TryRecvError::Empty));
            let (sender, receiver) = bounded(1);
            sender.send_timeout(1, limit).unwrap();
            assert_eq!(sender.send_timeout(2, limit), Err(SendTimeoutError::TimedOut(2)));
            assert_eq!(receiver.recv_timeout(limit), Ok(1));
            assert_eq!(receiver.recv_timeout(limit), Err(RecvTimeoutError::TimedOut));
        }
    });
}

#[test]
fn limits_go_by_the_clock_of_the_runtime() {
    on_each_clocked(|runtime, clock| {
        let (sender, receiver) = bounded::<u32>(1);
        sender.send(0).unwrap();
        let theirs = sender.clone();
        let sends = root(runtime).spawn(move || theirs.send_timeout(1, Duration::from_secs(5)));
        asleep(&sends);
        clock.advance(Duration::from_secs(4));
        assert!(!sends.is_done());
        clock.advance(Duration::from_secs(1));
        assert_eq!(sends.wait().unwrap(), &Err(SendTimeoutError::TimedOut(1)));
        receiver.recv().unwrap();
        let receives = root(runtime).spawn(move || receiver.recv_timeout(Duration::from_secs(5)));
        asleep(&receives);
        clock.advance(Duration::from_secs(5));
        assert_eq!(receives.wait().unwrap(), &Err(RecvTimeoutError::TimedOut));
        drop(sender);
    });
}

// ---- cancellation ---------------------------------------------------------------------------------------------------

#[test]
fn a_cancelled_waiter_leaves_at_once_with_what_it_brought() {
    on_each(|runtime| {
        each_capacity(|capacity| {
            let (sender, receiver) = channel::<Request<()>>(capacity);
            let theirs = receiver.clone();
            let receives = root(runtime).spawn(move || theirs.recv().map(drop));
            asleep(&receives);
            assert_eq!(receives.cancel(), Cancellation::Marked);
            ends_cancelled(&receives);
            assert!(capacity != Some(0) || sender.try_send(Request::ready(())).is_err());
            let Some(room) = capacity else { return };
            (0..room).for_each(|_| sender.send(Request::ready(())).unwrap());
            let (theirs, back) = (sender.clone(), Count::new());
            let up = back.clone();
            let sends = root(runtime).spawn(move || {
                let item = Request::ready(());
                if let Err(SendError::Cancelled(item)) = theirs.send(item) {
                    assert!(item.is_done());
                    up.up();
                }
            });
            asleep(&sends);
            assert_eq!(sends.cancel(), Cancellation::Marked);
            ends_cancelled(&sends);
            assert_eq!(back.get(), 1);
            assert_eq!(receiver.try_iter().count(), room);
        });
    });
}

#[test]
fn in_a_cancelled_request_they_answer_so_even_if_they_need_not_wait() {
    on_each(|runtime| {
        let (sender, receiver) = bounded(2);
        let request = root(runtime).spawn(move || {
            sender.send(1).unwrap();
            Request::current().unwrap().abort(CancelReason::Asked);
            assert_eq!(receiver.recv(), Err(RecvError::Cancelled));
            assert_eq!(receiver.recv_timeout(LONG), Err(RecvTimeoutError::Cancelled));
            assert_eq!(sender.send(2), Err(SendError::Cancelled(2)));
            assert_eq!(sender.send_timeout(2, LONG), Err(SendTimeoutError::Cancelled(2)));
            // These do not wait.
            assert_eq!((sender.try_send(3), receiver.try_recv()), (Ok(()), Ok(1)));
            assert_eq!(shield(|| receiver.recv()), Ok(3));
        });
        ends_cancelled(&request);
    });
}

#[test]
fn the_question_mark_ends_a_cancelled_request_as_cancelled() {
    on_each(|runtime| {
        let (sender, receiver) = bounded::<u32>(0);
        let ways: [Box<dyn FnOnce() -> Result<(), Error> + Send>; 4] = [
            Box::new({
                let receiver = receiver.clone();
                move || Ok(_ = receiver.recv()?)
            }),
            Box::new({
                let receiver = receiver.clone();
                move || Ok(_ = receiver.recv_timeout(LONG)?)
            }),
            Box::new({
                let sender = sender.clone();
                move || Ok(sender.send_timeout(1, LONG)?)
            }),
            Box::new(move || {
                let item = std::cell::Cell::new(1);
                let (sender, _receiver) = bounded(0);
                Ok(sender.send(item).map_err(SendError::without_item)?)
            }),
        ];
        for way in ways {
            let request = root(runtime).try_spawn(way);
            asleep(&request);
            request.cancel();
            ends_cancelled(&request);
        }
        // The others mean what they say.
        drop(sender);
        let failed = runtime.try_spawn(move || Ok(receiver.recv()?));
        let error = failed.wait().unwrap_err();
        assert_eq!(error.downcast_ref::<RecvError>(), Some(&RecvError::Disconnected), "{error}");
    });
}

#[test]
fn nothing_is_lost_to_those_who_leave() {
    on_each(|runtime| {
        let mut random = Random::new(7);
        for round in 0..40 {
            for capacity in [0, 1] {
                let (sender, receiver) = bounded(capacity);
                let got = Arc::new(Mutex::new(BTreeSet::new()));
                let takers: Vec<_> = (0..4)
                    .map(|_| {
                        let (receiver, got) = (receiver.clone(), got.clone());
                        runtime.spawn(move || {
                            while let Ok(item) = receiver.recv() {
                                assert!(got.lock().insert(item), "{item} came twice");
                            }
                        })
                    })
                    .collect();
                let back = Arc::new(Mutex::new(BTreeSet::new()));
                let givers: Vec<_> = (0..4)
                    .map(|of| {
                        let (sender, back) = (sender.clone(), back.clone());
                        runtime.spawn(move || {
                            for n in 0..6 {
                                if let Err(error) = sender.send(of * 6 + n) {
                                    back.lock().insert(error.into_inner());
                                }
                            }
                        })
                    })
                    .collect();
                for request in takers.iter().take(3).chain(givers.iter().take(3)) {
                    if random.below(3) > 0 {
                        request.cancel();
                    }
                    if round % 2 == 0 {
                        let _ = yield_now();
                    }
                }
                drop(sender);
                for request in &givers {
                    // One that was cancelled before it began has brought nothing.
                    let _ = request.wait();
                }
                drop(receiver);
                for request in &takers {
                    let _ = request.wait();
                }
                let (got, back) = (got.lock(), back.lock());
                assert!(got.is_disjoint(&back), "came, and came back: {:?}", got.intersection(&back));
                for (of, giver) in givers.iter().enumerate() {
                    if giver.wait().is_ok() {
                        let all = of * 6..(of + 1) * 6;
                        assert!(
                            all.clone().all(|n| got.contains(&n) || back.contains(&n)),
                            "{all:?}: {got:?} {back:?}"
                        );
                    }
                }
            }
        }
    });
}

#[test]
fn iteration_ends_with_the_senders_and_unwinds_if_it_is_cancelled() {
    on_each(|runtime| {
        let (sender, receiver) = bounded(1);
        let (theirs, got) = (receiver.clone(), Count::new());
        let counts = got.clone();
        let request = root(runtime).spawn(move || theirs.into_iter().for_each(|()| _ = counts.up()));
        sender.send(()).unwrap();
        got.wait_for(1);
        asleep(&request);
        request.cancel();
        ends_cancelled(&request);
        sender.send(()).unwrap();
        drop(sender);
        assert_eq!((&receiver).into_iter().count(), 1);
        assert_eq!(receiver.iter().next(), None);
    });
}
