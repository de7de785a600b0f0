//! Which arm is taken, and what becomes of those that lose.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use forebear::channel::{
    Receiver, RecvError, Sender, TryRecvError, TrySendError, bounded, oneshot, unbounded, watch,
};
use forebear::select::cancelled;
use forebear::sync::{Event, Mutex};
use forebear::time::after;
use forebear::{CancelReason, Request, no_suspend, select, spawn, yield_now};

use super::LONG;
use super::cancelling::{Gate, asleep, ends_cancelled, on_each_clocked};
use super::support::order::root;
use super::support::{Count, Joined, Random, in_both_worlds, on_each, until};

// ---- which arm ------------------------------------------------------------------------------------------------------

#[test]
fn the_arm_that_is_ready_is_taken_whatever_kind_it_is() {
    in_both_worlds(|| {
        let (never, nothing) = bounded::<u32>(0);
        let (_quiet, mut still) = watch::channel(0);
        let taken = |ready: u32| {
            let (sender, receiver) = bounded(1);
            let (one, single) = oneshot::channel();
            let (values, mut newest) = watch::channel(0);
            let done = Request::ready(4);
            let any = done.to_untyped();
            match ready {
                0 => sender.send(0).unwrap(),
                2 => one.send(2).unwrap(),
                3 => values.send(3).unwrap(),
                _ => {}
            }
            select! {
                n = &receiver => n.unwrap(),
                sent = if ready == 1 { sender.send_arm(1) } else { never.send_arm(1) } => {
                    sent.unwrap();
                    receiver.recv().unwrap()
                }
                n = (ready == 2).then_some(&single) => n.unwrap(),
                n = &mut newest => *n.unwrap(),
                n = (ready == 4).then_some(&done) => *n.unwrap(),
                n = (ready == 5).then_some(&any) => { n.unwrap(); 5 },
                () = after(if ready == 6 { Duration::ZERO } else { Duration::MAX }) => 6,
                n = &nothing => n.unwrap(),
                _ = cancelled() => unreachable!("nobody cancels it"),
            }
        };
        for ready in 0..7 {
            assert_eq!(taken(ready), ready);
        }
        // And they are waited for.
        let (sender, receiver) = bounded(0);
        let request = spawn(move || sender.send(7));
        let n: u32 = select! {
            n = &receiver => n.unwrap(),
            n = &mut still => *n.unwrap(),
            n = &nothing => n.unwrap(),
        };
        assert_eq!(n, 7);
        request.wait().unwrap().as_ref().unwrap();
    });
}

#[test]
fn each_kind_wakes_a_select_that_waits() {
    on_each(|runtime| {
        for kind in 0..7 {
            let (sender, receiver) = bounded::<u32>(0);
            let (to, from) = bounded::<u32>(0);
            let (one, single) = oneshot::channel::<u32>();
            let (values, mut newest) = watch::channel(0);
            let mut gate = Gate::new(runtime);
            let target = gate.request();
            let event = Arc::new(Event::new());
            let happens = event.clone();
            let select = root(runtime).spawn(move || {
                select! {
                    n = &receiver => n.unwrap(),
                    sent = to.send_arm(1) => { sent.unwrap(); 1 }
                    n = &single => n.unwrap_or(12),
                    n = &mut newest => *n.unwrap(),
                    done = &target => { done.unwrap(); 4 }
                    happened = &*happens => { happened.unwrap(); 5 }
                }
            });
            asleep(&select);
            // All but one of them stay to the end: their going would be news.
            match kind {
                0 => sender.send(0).unwrap(),
                1 => assert_eq!(from.recv(), Ok(1)),
                2 => {
                    one.send(2).unwrap();
                    assert_eq!(*select.wait().unwrap(), 2);
                    continue;
                }
                3 => values.send(3).unwrap(),
                4 => gate.open(),
                5 => {
                    // Taken back at once: who has waited goes on all the same.
                    until(|| {
                        event.set();
                        event.reset();
                        select.is_done()
                    });
                }
                // The end of one is news, too.
                _ => {
                    drop(one);
                    assert_eq!(*select.wait().unwrap(), 12);
                    continue;
                }
            }
            assert_eq!(*select.wait().unwrap(), kind);
            drop(one);
        }
    });
}

#[test]
fn a_time_is_waited_for_by_the_clock_of_the_runtime() {
    on_each_clocked(|runtime, clock| {
        let (sender, receiver) = unbounded();
        let select = root(runtime).spawn(move || {
            let late = after(Duration::from_secs(5));
            let mut got = Vec::new();
            loop {
                select! {
                    n = &receiver => got.push(n.unwrap()),
                    () = &late => return got,
                    () = after(LONG) => unreachable!("the other is nearer"),
                }
            }
        });
        asleep(&select);
        clock.advance(Duration::from_secs(4));
        sender.send(1).unwrap();
        asleep(&select);
        assert!(!select.is_done());
        clock.advance(Duration::from_secs(1));
        assert_eq!(select.wait().unwrap(), &[1]);
    });
}

#[test]
fn it_is_fair_unless_it_is_told_not_to_be() {
    in_both_worlds(|| {
        let channels: [(Sender<()>, Receiver<()>); 3] = std::array::from_fn(|_| bounded(1));
        let [(_, a), (_, b), (_, c)] = &channels;
        let mut taken = [0; 3];
        for _ in 0..3000 {
            for (sender, _) in &channels {
                let _ = sender.try_send(());
            }
            let at = select! {
                _ = a => 0,
                _ = b => 1,
                _ = c => 2,
            };
            taken[at] += 1;
        }
        assert!(taken.iter().all(|&n| n > 700), "{taken:?}");
        for _ in 0..100 {
            for (sender, _) in &channels {
                let _ = sender.try_send(());
            }
            let at = select! {
                biased;
                _ = b => 1,
                _ = a => 0,
                _ = c => 2,
            };
            assert_eq!(at, 1);
        }
    });
}

#[test]
fn with_else_it_does_not_wait() {
    in_both_worlds(|| {
        let (sender, receiver) = bounded(1);
        let look = || {
            select! {
                n = &receiver => n.unwrap(),
                else => 0
            }
        };
        assert_eq!(look(), 0);
        sender.send(1).unwrap();
        assert_eq!(look(), 1);
        let put = |n| {
            select! {
                biased;
                sent = sender.send_arm(n) => sent.is_ok(),
                else => false,
            }
        };
        assert!(put(2) && !put(3));
        assert_eq!(receiver.try_iter().collect::<Vec<_>>(), [2]);
        // So it may stand where nothing may wait, and where everything is refused.
        let request = Request::builder().own_stack().spawn(move || {
            Request::current().unwrap().abort(CancelReason::Asked);
            assert_eq!(no_suspend("region", || select! { n = &receiver => n.unwrap(), else => 5 }), 5);
            assert!(select! { _ = cancelled() => true, else => false });
        });
        ends_cancelled(&request);
    });
}

#[test]
fn bodies_return_break_and_hand_errors_on() {
    fn first(a: &Receiver<u32>, b: &Receiver<u32>) -> Result<u32, RecvError> {
        let mut sum = 0;
        loop {
            select! {
                biased;
                n = a => match n? {
                    0 => break,
                    1 => continue,
                    n => sum += n,
                },
                n = b => return Ok(n? + 100),
            }
        }
        Ok(sum)
    }
    in_both_worlds(|| {
        let ((to_a, a), (to_b, b)) = (unbounded(), unbounded());
        [1, 2, 3, 0].into_iter().for_each(|n| to_a.send(n).unwrap());
        assert_eq!(first(&a, &b), Ok(5));
        to_b.send(1).unwrap();
        assert_eq!(first(&a, &b), Ok(101));
        drop(to_a);
        assert_eq!(first(&a, &b), Err(RecvError::Disconnected));
        // What waited has been let go of before a body runs.
        let mut both = (a, b);
        select! {
            n = &both.0 => { n.unwrap_err(); both.0 = unbounded().1; }
        }
        drop(to_b);
    });
}

// ---- the arms that lose ---------------------------------------------------------------------------------------------

#[test]
fn arms_that_lose_take_nothing_and_send_nothing() {
    on_each(|runtime| {
        let (to_a, a) = bounded::<u32>(0);
        let (to_b, b) = bounded::<u32>(0);
        let (to_c, c) = bounded::<u32>(0);
        let stay = (a.clone(), to_c.clone());
        let select = root(runtime).spawn(move || {
            let mut sending = to_c.send_arm(3);
            let got = select! {
                n = &a => n.unwrap(),
                n = &b => n.unwrap(),
                sent = &mut sending => { sent.unwrap(); 0 }
            };
            (got, sending.into_inner())
        });
        asleep(&select);
        to_b.send(2).unwrap();
        // It waits nowhere any more, though it may not have run yet.
        assert_eq!(to_a.try_send(1), Err(TrySendError::Full(1)));
        assert_eq!(c.try_recv(), Err(TryRecvError::Empty));
        assert_eq!(select.wait().unwrap(), &(2, Some(3)));
        drop(stay);
        assert_eq!(to_a.try_send(1), Err(TrySendError::Disconnected(1)));
    });
}

#[test]
fn what_a_select_does_not_take_goes_to_the_next() {
    on_each(|runtime| {
        for _ in 0..50 {
            let (to_a, a) = bounded(0);
            let (to_b, b) = bounded(0);
            let (first, also) = (a.clone(), b.clone());
            let select = root(runtime).spawn(move || {
                select! {
                    n = &first => n.unwrap(),
                    n = &also => n.unwrap(),
                }
            });
            asleep(&select);
            let next = root(runtime).spawn(move || a.recv());
            asleep(&next);
            let last = root(runtime).spawn(move || b.recv());
            asleep(&last);
            // Whoever comes first has the select; the other's item goes to who stands behind it.
            let (one, two) = (thread::spawn(move || to_a.send(1)), thread::spawn(move || to_b.send(2)));
            let got = *select.wait().unwrap();
            let other = if got == 1 { last.wait() } else { next.wait() };
            assert_eq!(other.unwrap(), &Ok(3 - got));
            one.joined().unwrap().unwrap();
            two.joined().unwrap().unwrap();
            for left in [&next, &last] {
                left.cancel();
            }
        }
    });
}

/// Whatever is sent arrives once, also where selects send to selects, some of which leave.
#[test]
fn nothing_is_lost_or_doubled_between_selects() {
    on_each(|runtime| {
        let mut random = Random::new(11);
        for capacity in [0, 1] {
            for _ in 0..8 {
                let ends: [(Sender<usize>, Receiver<usize>); 3] = std::array::from_fn(|_| bounded(capacity));
                let got = Arc::new(Mutex::new(BTreeSet::new()));
                let back = Arc::new(Mutex::new(BTreeSet::new()));
                let give = |of: usize| {
                    let [a, b, c] = ends.each_ref().map(|(sender, _)| sender.clone());
                    let back = back.clone();
                    move || {
                        for n in 0..20 {
                            let item = of * 20 + n;
                            let sent = select! {
                                sent = a.send_arm(item) => sent,
                                sent = b.send_arm(item) => sent,
                                sent = c.send_arm(item) => sent,
                            };
                            if let Err(error) = sent {
                                back.lock().insert(error.into_inner());
                            }
                        }
                    }
                };
                let take = || {
                    let [a, b, c] = ends.each_ref().map(|(_, receiver)| receiver.clone());
                    let got = got.clone();
                    move || {
                        loop {
                            let item = select! {
                                item = &a => item,
                                item = &c => item,
                                item = &b => item,
                            };
                            match item {
                                Ok(item) => assert!(got.lock().insert(item), "{item} came twice"),
                                Err(_) => break,
                            }
                        }
                    }
                };
                let givers: Vec<_> = (0..3).map(|of| runtime.spawn(give(of))).collect();
                let takers: Vec<_> = (0..3).map(|_| runtime.spawn(take())).collect();
                let thread = thread::spawn(give(3));
                for request in givers.iter().take(2).chain(takers.iter().take(2)) {
                    let _ = yield_now();
                    if random.below(2) == 0 {
                        request.cancel();
                    }
                }
                thread.joined().unwrap();
                let whole: Vec<_> = givers.iter().map(|giver| giver.wait().is_ok()).collect();
                for (_, receiver) in &ends {
                    let left: Vec<_> = receiver.try_iter().collect();
                    let mut got = got.lock();
                    assert!(left.into_iter().all(|item| got.insert(item)));
                }
                drop(ends);
                for taker in &takers {
                    let _ = taker.wait();
                }
                let (got, back) = (got.lock(), back.lock());
                assert!(got.is_disjoint(&back));
                for of in (0..4).filter(|&of| of == 3 || whole[of]) {
                    let all = of * 20..(of + 1) * 20;
                    assert!(all.clone().all(|n| got.contains(&n) || back.contains(&n)), "{all:?}");
                }
            }
        }
    });
}

/// On both sides of one channel it does not serve itself, and does not turn round and round.
#[test]
fn a_select_does_not_hand_anything_to_itself() {
    on_each(|runtime| {
        let (sender, receiver) = bounded(0);
        let (theirs, own) = (sender.clone(), receiver.clone());
        let select = root(runtime).spawn(move || {
            select! {
                n = &own => n.unwrap(),
                sent = theirs.send_arm(1) => { sent.unwrap(); 0 }
                n = &own => n.unwrap(),
            }
        });
        asleep(&select);
        assert_eq!(receiver.recv(), Ok(1));
        assert_eq!(*select.wait().unwrap(), 0);
        // Several of the same kind serve each other, in pairs.
        let (stop, stopped) = bounded::<u32>(0);
        let turns = Count::new();
        let both = || {
            let (sender, receiver) = (sender.clone(), receiver.clone());
            let (stopped, turns) = (stopped.clone(), turns.clone());
            move || {
                loop {
                    select! {
                        n = &receiver => _ = n.unwrap(),
                        sent = sender.send_arm(1) => sent.unwrap(),
                        _ = &stopped => break,
                    }
                    turns.up();
                }
            }
        };
        let requests = [runtime.spawn(both()), runtime.spawn(both())];
        let threads = [thread::spawn(both()), thread::spawn(both())];
        turns.wait_for(200);
        drop(stop);
        for request in &requests {
            request.wait().unwrap();
        }
        for thread in threads {
            thread.joined().unwrap();
        }
        assert_eq!(turns.get() % 2, 0);
    });
}
