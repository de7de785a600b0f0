//! The table through which the layers below call this one and what it is made of ([`crate::record::above`]).

use super::{dependents, driver, finish};
use crate::record::above::{self, Above};
use crate::schedule::worker::OnWorker;
use crate::shared::OfRuntime;
use crate::shared::worker::OnRecord;
use crate::shared::{parked, thread};
use crate::{cancel, foreign};

static TABLE: Above = Above {
    fiber: foreign::fiber,
    conclude: finish::conclude,
    admit: dependents::admit,
    drive: driver::wait,
    owns: thread::owns,
    keep_for_later: |fiber, side| match fiber.worker_record() {
        Some(worker) if worker.holds_back(fiber) => {
            worker.drop_later(side);
            None
        }
        None if thread::holds_back() => {
            thread::keep_for_later(side);
            None
        }
        _ => Some(side),
    },
    leave_to_loop: |fiber, side| match fiber.worker_record() {
        Some(worker) => {
            worker.drop_later(side);
            None
        }
        None => Some(side),
    },
    attend_returns: |arena| {
        let shared = arena.shared();
        match arena.is_foreign() {
            // In a forked child the other threads are not there, and may have held its locks.
            _ if shared.is_inherited() => {}
            true if shared.depot.take_in_spare(arena) => {}
            true => parked::nudge_owner(arena),
            false => shared.wake(arena.worker as usize),
        }
    },
    disarm_due: |arena, header, due| arena.shared().deadlines.disarm_due(header, due),
    limit_comes: cancel::limit_comes,
    // SAFETY: by the table, as `abort` asks.
    abort: |header, reason| _ = unsafe { cancel::abort(header, reason) },
    leave_end: cancel::leave_end,
    publish_arms: |fiber| {
        if let Some(worker) = fiber.worker() {
            worker.publish_arms(fiber);
        }
    },
};

/// Before the first runtime is made.
pub(crate) fn provide() {
    above::provide(&TABLE);
}
