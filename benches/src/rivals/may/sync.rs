//! may's lock, which poisons, and its channel, which is unbounded.

use std::hint::black_box;
use std::sync::Arc;
use std::thread;

use may::coroutine::yield_now;
use may::go;
use may::sync::Mutex;
use may::sync::mpsc::{Receiver, Sender, channel};

use super::{sum, value};
use crate::load::Contenders;
use crate::rival::Run;
use crate::work::contend::{Contest, Locked, is_thread};

pub(super) fn alone(n: u64) -> Run {
    let number = Mutex::new(0);
    Run::timed(|| {
        for _ in 0..n {
            *black_box(&number).lock().expect("nobody panics") += 1;
        }
        *number.lock().expect("nobody panics")
    })
}

/// With `yields` the lock is held across one.
pub(super) fn contended(tasks: u64, each: u64, yields: bool) -> Run {
    let number = Arc::new(Mutex::new(0));
    let add = |number: Arc<Mutex<u64>>| {
        go!(move || {
            for _ in 0..each {
                let mut number = number.lock().expect("nobody panics");
                if yields {
                    yield_now();
                }
                *number += 1;
            }
            0
        })
    };
    Run::timed(|| {
        let none = sum((0..tasks).map(|_| add(number.clone())).collect());
        *number.lock().expect("nobody panics") + none
    })
}

impl Locked for Mutex<u64> {
    #[inline(always)]
    fn with(&self, f: impl FnOnce(&mut u64)) {
        f(&mut self.lock().expect("nobody panics"));
    }
}

pub(super) fn contend(of: Contenders, many: u64, sections: u64) -> Run {
    let shared = Arc::new((Contest::new(many, sections), Mutex::new(0)));
    let (mut threads, mut tasks) = (Vec::new(), Vec::new());
    for n in 0..many {
        let shared = shared.clone();
        if is_thread(of, n) {
            threads.push(thread::spawn(move || shared.0.take_part(&shared.1, thread::yield_now)));
        } else {
            tasks.push(go!(move || shared.0.take_part(&shared.1, yield_now)));
        }
    }
    tasks.into_iter().for_each(value);
    threads.into_iter().for_each(|thread| thread.join().expect("nobody panics"));
    let (contest, number) = Arc::into_inner(shared).expect("all have gone");
    contest.run(number.into_inner().expect("nobody panics"))
}

fn serve(n: u64, tokens: &Receiver<u64>, back: &Sender<u64>) {
    (0..n).for_each(|_| {
        let token = tokens.recv().expect("somebody sends");
        back.send(token).expect("somebody receives");
    });
}

pub(super) fn ping_pong(n: u64) -> Run {
    let ((there, tokens), (back, returns)) = (channel(), channel());
    let other = go!(move || serve(n, &tokens, &back));
    let one = |_| {
        there.send(1).expect("somebody receives");
        returns.recv().expect("somebody sends")
    };
    let run = Run::timed(|| (0..n).map(one).sum());
    value(other);
    run
}

pub(super) fn mpsc(senders: u64, each: u64) -> Run {
    let (sender, receiver) = channel();
    let send = |sender: Sender<u64>| {
        go!(move || {
            (0..each).for_each(|_| sender.send(1).expect("somebody receives"));
            0
        })
    };
    Run::timed(|| {
        let senders: Vec<_> = (0..senders).map(|_| send(sender.clone())).collect();
        drop(sender);
        let mut items = 0;
        while let Ok(item) = receiver.recv() {
            items += item;
        }
        items + sum(senders)
    })
}

pub(super) fn oneshots(n: u64, spawned: bool) -> Run {
    let one = |_| {
        let (sender, receiver) = channel();
        if spawned {
            let other = go!(move || sender.send(1).expect("somebody receives"));
            let item: u64 = receiver.recv().expect("somebody sends");
            value(other);
            item
        } else {
            black_box(sender).send(1).expect("somebody receives");
            receiver.recv().expect("it is there")
        }
    };
    Run::timed(|| (0..n).map(one).sum())
}
