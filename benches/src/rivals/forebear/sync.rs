//! Locks and channels.

use std::hint::black_box;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Barrier};
use std::thread;

use forebear::channel::{Receiver, Sender, bounded, oneshot};
use forebear::sync::{Mutex, RwLock, Semaphore};
use forebear::{Request, Runtime, spawn};

use super::{pause, sum, taken};
use crate::load::{Across, Contenders, Handed};
use crate::rival::Run;
use crate::work::contend::{Contest, Locked, append, is_thread, spin};

pub(super) fn alone(n: u64) -> Run {
    let number = Mutex::new(0);
    Run::timed(|| {
        for _ in 0..n {
            *black_box(&number).lock() += 1;
        }
        *number.lock()
    })
}

pub(super) fn alone_reading(n: u64) -> Run {
    let number = RwLock::new(1);
    Run::timed(|| (0..n).map(|_| *black_box(&number).read()).sum())
}

/// `between` is called with the lock.
pub(super) fn contended(tasks: u64, each: u64, between: impl Fn() + Copy + Send + 'static) -> Run {
    let number = Arc::new(Mutex::new(0));
    let add = |number: Arc<Mutex<u64>>| {
        spawn(move || {
            for _ in 0..each {
                let mut number = number.lock();
                between();
                *number += 1;
            }
            0
        })
    };
    Run::timed(|| {
        let none = sum((0..tasks).map(|_| add(number.clone())).collect());
        *number.lock() + none
    })
}

impl Locked for Mutex<u64> {
    #[inline(always)]
    fn with(&self, f: impl FnOnce(&mut u64)) {
        f(&mut self.lock());
    }
}

pub(super) fn contend(rt: &Runtime, of: Contenders, many: u64, sections: u64) -> Run {
    let shared = Arc::new((Contest::new(many, sections), Mutex::new(0)));
    let (mut threads, mut requests) = (Vec::new(), Vec::new());
    for n in 0..many {
        let shared = shared.clone();
        if is_thread(of, n) {
            threads.push(thread::spawn(move || shared.0.take_part(&shared.1, thread::yield_now)));
        } else {
            requests.push(rt.spawn(move || shared.0.take_part(&shared.1, pause)));
        }
    }
    requests.into_iter().for_each(taken);
    threads.into_iter().for_each(|thread| thread.join().expect("nobody panics"));
    let (contest, number) = Arc::into_inner(shared).expect("all have gone");
    contest.run(number.into_inner())
}

pub(super) fn append_in_order(rt: &Runtime, of: Contenders, many: u64) -> Run {
    let last = Arc::new(Mutex::new(0));
    let (mut threads, mut requests) = (Vec::new(), Vec::new());
    Run::timed(move || {
        for n in (1..=many).rev() {
            let last = last.clone();
            if is_thread(of, n) {
                threads.push(thread::spawn(move || append(&*last, n)));
            } else {
                requests.push(rt.spawn(move || append(&*last, n)));
            }
        }
        requests.into_iter().for_each(taken);
        threads.into_iter().for_each(|thread| thread.join().expect("nobody panics"));
        *last.lock()
    })
}

fn serve(n: u64, tokens: &Receiver<u64>, back: &Sender<u64>) -> u64 {
    (0..n).for_each(|_| {
        let token = tokens.recv().expect("somebody sends");
        back.send(token).expect("somebody receives");
    });
    n
}

fn play(n: u64, there: &Sender<u64>, back: &Receiver<u64>) -> u64 {
    let one = |_| {
        there.send(1).expect("somebody receives");
        back.recv().expect("somebody sends")
    };
    (0..n).map(one).sum()
}

pub(super) fn ping_pong(n: u64) -> Run {
    let ((there, tokens), (back, returns)) = (bounded(1), bounded(1));
    let other = spawn(move || serve(n, &tokens, &back));
    let run = Run::timed(|| play(n, &there, &returns));
    taken(other);
    run
}

/// Yields in a loop until the load is over.
fn keep_awake(over: &Arc<AtomicBool>) -> Request<thread::ThreadId> {
    let over = over.clone();
    let round = spawn(move || {
        while !over.load(Relaxed) {
            pause();
        }
        thread::current().id()
    });
    // It starts here, and stays.
    pause();
    round
}

/// Two requests that meet at a barrier which blocks their threads are on two workers, and stay there. The caller takes part, too: if
/// it waited for them before they start, it could run them on its own thread. While one of them makes the request that keeps its
/// worker awake, the other blocks its own worker, or that request would start there.
pub(super) fn ping_pong_across(rt: &Runtime, n: u64, across: Across) -> Run {
    let ((there, tokens), (back, returns)) = (bounded(1), bounded(1));
    let (started, meeting) = (Arc::new(Barrier::new(3)), Arc::new(Barrier::new(2)));
    let over = Arc::<AtomicBool>::default();
    let side = |turn: usize, play: Box<dyn FnOnce() -> Run + Send>| {
        let (started, meeting, over) = (started.clone(), meeting.clone(), over.clone());
        rt.spawn(move || {
            let mut awake = None;
            started.wait();
            for now in 0..2 {
                if now == turn && across == Across::Awake {
                    awake = Some(keep_awake(&over));
                }
                meeting.wait();
            }
            let run = play();
            over.store(true, Relaxed);
            if let Some(awake) = awake {
                assert_eq!(taken(awake), thread::current().id(), "it was to keep this worker awake");
            }
            run
        })
    };
    let other = side(0, Box::new(move || Run::timed(|| serve(n + 1, &tokens, &back))));
    let run = side(
        1,
        Box::new(move || {
            play(1, &there, &returns);
            Run::timed(|| play(n, &there, &returns))
        }),
    );
    started.wait();
    let run = taken(run);
    taken(other);
    run
}

pub(super) fn mpsc(senders: u64, each: u64, capacity: usize) -> Run {
    let (sender, receiver) = bounded(capacity);
    Run::timed(|| {
        let send = |sender: Sender<u64>| {
            spawn(move || {
                (0..each).for_each(|_| sender.send(1).expect("somebody receives"));
                0
            })
        };
        let senders: Vec<_> = (0..senders).map(|_| send(sender.clone())).collect();
        drop(sender);
        let mut items = 0;
        while let Ok(item) = receiver.recv() {
            items += item;
        }
        items + sum(senders)
    })
}

/// Two requests, each of which calls `one` so often.
fn by_two(rt: &Runtime, n: u64, one: impl Fn() -> u64 + Clone + Send + 'static) -> Run {
    Run::timed(|| {
        let both = [one.clone(), one].map(|one| rt.spawn(move || (0..n).map(|_| one()).sum()));
        both.into_iter().map(taken::<u64>).sum()
    })
}

pub(super) fn hand_over(rt: &Runtime, n: u64, of: Handed) -> Run {
    match of {
        Handed::Permit => {
            let only = Arc::new(Semaphore::new(1));
            by_two(rt, n / 2, move || {
                let _permit = only.acquire().expect("nobody cancels");
                spin();
                1
            })
        }
        Handed::Turn => {
            let barrier = Arc::new(forebear::sync::Barrier::new(2));
            by_two(rt, n, move || barrier.wait().expect("nobody cancels").is_leader().into())
        }
        Handed::Item(capacity) => {
            let (sender, receiver) = bounded(capacity);
            Run::timed(|| {
                thread::spawn(move || (0..n).for_each(|_| sender.send(1).expect("somebody receives")));
                std::iter::from_fn(|| receiver.recv().ok()).sum()
            })
        }
    }
}

pub(super) fn oneshots(n: u64, spawned: bool) -> Run {
    let one = |_| {
        let (sender, receiver) = oneshot::channel();
        if spawned {
            let other = spawn(move || sender.send(1).expect("somebody receives"));
            let item = receiver.recv().expect("somebody sends");
            taken(other);
            item
        } else {
            black_box(sender).send(1).expect("somebody receives");
            receiver.recv().expect("it is there")
        }
    };
    Run::timed(|| (0..n).map(one).sum())
}
