//! What each worker answers to a dump. A worker answers on its own thread at its next scheduling point. The dumper
//! answers for a worker that has no thread. It reads a worker from outside if that reaches no scheduling point in time.
//!
//! The head of [`super::sight`] says what may be read from where.

use std::time::Duration;

use forebear_context::shim::{Arc, thread, time};

use super::sight::{self, Seen, StackPlace};
use crate::api::any::RequestId;
use crate::foreign;
use crate::record::fiber;
use crate::schedule::worker::{HasWorkers, Worker};
use crate::shared::Shared;
use crate::shared::post::DumpAnswer;
use crate::shared::worker::{OnRecord, WorkerRecord};
use crate::state::inquiry::Inquiry;

/// How long a dump waits for a worker to reach a scheduling point.
const PATIENCE: Duration = Duration::from_millis(10);
/// How long it sleeps between two looks whether all have answered.
const NAP: Duration = Duration::from_micros(500);
/// More private requests than these are not counted from outside.
const MOST_COUNTED: usize = 1 << 20;

/// What a worker answers. Addresses in it are numbers, to be compared.
pub(super) struct WorkerAnswer {
    pub(super) seen: Vec<Seen>,
    pub(super) private: usize,
    pub(super) runs: Option<RequestId>,
}

/// Answers those who have asked this worker. On the worker's thread.
#[cold]
#[inline(never)]
pub(crate) fn answer_all(record: &WorkerRecord) {
    let worker = Worker::of(record);
    for inquiry in worker.post.asked.take() {
        inquiry.answer(worker.index, || Box::new(on_thread_stack(|| see_own(worker))));
    }
}

/// Calls `f` where there is room for it: a request's stack may be small, and nearly full.
fn on_thread_stack<R>(f: impl FnOnce() -> R) -> R {
    let Some(fiber) = fiber::get().filter(|fiber| fiber.has_worker()) else { return f() };
    let (mut f, mut answer) = (Some(f), None);
    // SAFETY: F2: this is the fiber's stack. What is called neither suspends nor unwinds.
    unsafe { fiber.context().switch().on_thread_stack(&mut || answer = f.take().map(|f| f())) };
    match answer {
        Some(answer) => answer,
        None => unreachable!("it was called"),
    }
}

fn see_own(worker: &Worker) -> WorkerAnswer {
    worker.note_time();
    let mut seen = Vec::new();
    let here = fiber::get().filter(|fiber| worker.owns(fiber));
    let runs = here.and_then(|fiber| fiber.request()).map(|top| crate::api::any::id_of(top.identity()));
    let place = StackPlace::of_worker(worker, worker.shared());
    worker.post.each_coroutine(|coroutine| {
        // SAFETY: K5: the list is locked.
        let coroutine = unsafe { coroutine.as_ref() };
        sight::see_stack(&coroutine.fiber, &place, true, &mut seen);
        // SAFETY: claimed, with the runner's link, and the worker's own.
        if let Some(pending) = unsafe { coroutine.pending.get().as_ref() } {
            seen.push(sight::see_unstarted(pending, &place));
        }
    });
    let mut private = 0;
    worker.list.each(|listed| {
        if sight::is_live_entry(listed) {
            private += 1;
            sight::see_unstarted_and_blocked(listed, &place, &mut seen);
        }
    });
    worker.put_aside.each(|claimed| seen.push(sight::see_unstarted(claimed, &place)));
    WorkerAnswer { seen, private, runs }
}

/// Asks all workers, and waits for as long as they have to answer. `None` for one that has not.
pub(super) fn ask_all(shared: &Arc<Shared>) -> Vec<Option<WorkerAnswer>> {
    let workers = shared.workers();
    let inquiry = Inquiry::<DumpAnswer>::new(workers.len());
    let own = own_worker(shared);
    let gone = shared.ending.workers_left();
    for worker in workers {
        let is_own = own.is_some_and(|own| std::ptr::eq(own, worker));
        let has_nobody = match &shared.driven {
            Some(driven) => !driven.is_taken(worker.index),
            None => gone.get(worker.index).copied().unwrap_or(false),
        };
        if is_own {
            inquiry.answer(worker.index, || Box::new(on_thread_stack(|| see_own(worker))));
        } else if has_nobody {
            // Nothing of it can continue, so nothing stands there.
            inquiry
                .answer(worker.index, || Box::new(WorkerAnswer { seen: Vec::new(), private: 0, runs: None }));
        } else {
            worker.post.asked.ask(&inquiry, &worker.post.attention);
            shared.wake(worker.index);
        }
    }
    let end = time::now() + PATIENCE;
    while !inquiry.is_complete() {
        if let Some(own) = own {
            // Another thread may be making a dump, and wait for this worker's answer.
            own.answer_dumps();
        }
        if time::now() >= end && !inquiry.stop() {
            break;
        }
        thread::park_timeout(NAP);
    }
    workers
        .iter()
        .map(|worker| {
            worker.post.asked.withdraw(&inquiry);
            inquiry.take(worker.index)?.downcast().ok().map(|answer| *answer)
        })
        .collect()
}

/// The worker of the runtime whose thread this is, or whose seat this thread has.
fn own_worker(shared: &Arc<Shared>) -> Option<&Worker> {
    let on_coroutine = fiber::get().and_then(|fiber| fiber.worker_record());
    let index = match on_coroutine {
        Some(worker) => std::ptr::eq(worker.shared(), &**shared).then_some(worker.index),
        None => foreign::seat_taken(shared),
    };
    index.map(|index| &shared.workers()[index])
}

/// A worker that has reached no scheduling point.
pub(super) fn see_from_outside(worker: &Worker) -> WorkerAnswer {
    let mut seen = Vec::new();
    let place = StackPlace::of_worker(worker, worker.shared());
    let current = worker.post.current();
    let mut runs = None;
    worker.post.each_coroutine(|coroutine| {
        // SAFETY: K5: the list is locked.
        let fiber = unsafe { &coroutine.as_ref().fiber };
        let before = seen.len();
        sight::see_stack(fiber, &place, false, &mut seen);
        if std::ptr::eq(fiber, current) {
            runs = seen.get(before).map(|top: &Seen| top.info.id);
        }
    });
    // SAFETY: by a thread that looks.
    let private = unsafe { worker.list.count_from_outside(MOST_COUNTED) };
    WorkerAnswer { seen, private, runs }
}
