//! Timers, and sleepers.

use std::hint::black_box;
use std::ptr;

use forebear::channel::{Receiver, Sender, bounded};
use forebear::time::sleep_until;
use forebear::{Request, Runtime, spawn};
use forebear_context::context::{Alarm, Reason, with_foreign};

use super::{sum, taken};
use crate::rival::Run;
use crate::work::{self, HOUR};

/// What `Context::park_until` does around its park, without the park.
pub(super) fn timers_of_one(each: u64, standing: bool) -> u64 {
    with_foreign(|context| {
        let table = context.table();
        // SAFETY: this is the context's own stack; for nothing that is followed, and it is withdrawn below.
        let ticket = unsafe { context.begin(Reason::Sleep, ptr::null_mut()) };
        let arm = |i| -> Alarm {
            let at = context.deadline(work::far(i)).expect("an hour can be told");
            // SAFETY: the table is this context's, we are on its stack, and each alarm is taken back before it continues.
            black_box(unsafe { (table.arm)(context, ticket, at) })
        };
        // SAFETY: as above.
        let disarm = |alarm| unsafe { (table.disarm)(context, alarm) };
        if standing {
            let all: Vec<Alarm> = (0..each).map(arm).collect();
            all.into_iter().for_each(disarm);
        } else {
            (0..each).for_each(|i| disarm(arm(i)));
        }
        assert!(context.withdraw(ticket), "it was an hour off");
    });
    each
}

pub(super) fn timers(tasks: u64, each: u64, standing: bool) -> Run {
    Run::timed(|| sum((0..tasks).map(|_| spawn(move || timers_of_one(each, standing))).collect()))
}

fn serve(n: u64, tokens: &Receiver<u64>, back: &Sender<u64>) {
    for _ in 0..n {
        let token = tokens.recv_timeout(HOUR).expect("somebody sends in time");
        back.send(token).expect("somebody receives");
    }
}

pub(super) fn met(n: u64) -> Run {
    let ((there, tokens), (back, returns)) = (bounded(1), bounded(1));
    let other = spawn(move || serve(n, &tokens, &back));
    let run = Run::timed(|| {
        let one = |_| {
            there.send(1_u64).expect("somebody receives");
            returns.recv_timeout(HOUR).expect("somebody sends in time")
        };
        (0..n).map(one).sum()
    });
    taken(other);
    run
}

pub(super) fn sleepers(n: u64, spread_ms: u64) -> Run {
    let due = work::instants(n, spread_ms);
    let sleeper = |due| {
        spawn(move || {
            sleep_until(due).expect("nobody cancels");
            work::lateness(due)
        })
    };
    let requests: Vec<Request<u64>> = due.iter().map(|due| sleeper(*due)).collect();
    let late = requests.into_iter().rev().map(taken).collect();
    work::late(&due, late)
}

/// Requests that sleep, made before the one that makes the tree, and so older.
pub(super) fn urgent(rt: &Runtime, n: u64, spread_ms: u64, tree: impl FnOnce() -> u64 + Send) -> Run {
    let due = work::instants(n, spread_ms);
    let sleeper = |due| {
        rt.spawn(move || {
            sleep_until(due).expect("nobody cancels");
            work::lateness(due)
        })
    };
    let requests: Vec<Request<u64>> = due.iter().map(|due| sleeper(*due)).collect();
    let run = rt.run(|| Run::timed(tree));
    work::beside(run, &due, requests.into_iter().map(taken).collect())
}
