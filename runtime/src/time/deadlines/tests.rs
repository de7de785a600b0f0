//! The promises of the module head, on clocks of both kinds, with contexts of all three: a probe, which only notes that it
//! was woken; foreign threads; requests.

use std::cell::RefCell;
use std::ptr::{self, NonNull};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::Duration;

use forebear_context::clock::{ManualClock, MonotonicClock};
use forebear_context::context::{
    Alarm, Cause, Context, ForeignContext, Reason, Table, Ticket, unpark, with_foreign,
};
use forebear_context::lineage::NO_KEY;
use forebear_context::shim::Mutex;
use forebear_context::shim::atomic::{AtomicBool, AtomicU64, Ordering};

use super::firing::let_go;
use super::keeping::BATCH;
use super::*;
use crate::record::header::Header;
use crate::schedule::above;
use crate::schedule::worker::OnWorker;
use crate::state::alarms::Sleep;
use crate::state::attention::{LIMITS, OLDER};
use crate::{Request, Runtime, foreign, spawn};

mod firing;
mod keeping;
mod requests;
mod waits;

const HOUR: Duration = Duration::from_secs(3600);
const TICK: Duration = Duration::from_millis(1);

/// On the system's clock.
fn on_its_own() -> Deadlines {
    by(Time::Estimated)
}

fn on(clock: impl Clock + 'static) -> Deadlines {
    by(Time::User(Arc::new(clock)))
}

fn by(time: Time) -> Deadlines {
    // A foreign thread that waits calls by the table, and there may be no runtime yet.
    above::provide();
    Deadlines::new(time, "test", 2, false)
}

/// Waits for other threads. What never comes is a failure and not a hang.
#[track_caller]
fn eventually(mut done: impl FnMut() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(60), "it never came to that");
        thread::yield_now();
    }
}

/// A context that nobody is on. Waking it writes its name down.
#[repr(C)]
struct Probe {
    context: Context,
    name: u32,
    log: Arc<Mutex<Vec<u32>>>,
    /// Nobody may touch it any more.
    gone: AtomicBool,
}

const GONE: u32 = u32::MAX;

static PROBE: Table = Table {
    prepare: |_, _| unreachable!("nobody is on a probe"),
    finish: |_| {},
    unpark: probed,
    in_request: |_| false,
    urgency: |_| NO_KEY,
    word: |_| ptr::null(),
    name: |_, with| with("probe"),
    ..ForeignContext::TABLE
};

unsafe fn probed(context: NonNull<Context>, ticket: Ticket, cause: Cause) -> bool {
    // SAFETY: the first field of a probe; the log keeps its probes.
    let this = unsafe { context.cast::<Probe>().as_ref() };
    let won = this.context.settle(ticket, cause);
    // So that a thread that does not wait for this is seen not to.
    thread::yield_now();
    this.log.lock().unwrap().push(if this.gone.load(Ordering::Relaxed) { GONE } else { this.name });
    won
}

/// What was written down, and the probes, which stay as long. To be made before the deadlines, hence dropped after them.
#[derive(Default)]
#[expect(clippy::vec_box, reason = "they stay where they are when it grows")]
struct Log(Arc<Mutex<Vec<u32>>>, RefCell<Vec<Box<Probe>>>);

impl Log {
    fn probe(&self, name: u32) -> &Probe {
        let gone = AtomicBool::new(false);
        // SAFETY: the table is for probes, which is where this context comes to lie.
        let context = unsafe { Context::new(&PROBE) };
        let made = Box::new(Probe { context, name, log: self.0.clone(), gone });
        let at = ptr::from_ref(&*made);
        self.1.borrow_mut().push(made);
        // SAFETY: boxed, and dropped with `self` only.
        unsafe { &*at }
    }

    fn read(&self) -> Vec<u32> {
        self.0.lock().unwrap().clone()
    }
}

impl Probe {
    fn begin(&self, reason: Reason) -> Ticket {
        // SAFETY: C2: a probe has no stack, and its tests stand for its owner; C4: for nothing that is followed.
        unsafe { self.context.begin(reason, ptr::null_mut()) }
    }

    fn arm(&self, deadlines: &Deadlines, at: Instant) -> Alarm {
        let ticket = self.begin(Reason::None);
        // SAFETY: the log keeps its probes until the deadlines are over.
        unsafe { deadlines.arm(at, NonNull::from(self).cast(), ticket) }
    }

    fn timed_out(&self) -> bool {
        !self.context.is_waiting() && self.context.cause() == Cause::TimedOut
    }
}

/// The caller waits until `at`; its ticket goes to `give` first.
fn wait_until(
    deadlines: &Deadlines,
    at: Option<Instant>,
    give: impl FnOnce(NonNull<Context>, Ticket),
) -> Cause {
    let fiber = foreign::fiber().unwrap();
    if let Some(worker) = fiber.worker() {
        worker.reserve_coroutine().unwrap();
    }
    let context = fiber.context();
    // SAFETY: C2: this is the fiber's own stack; C4: for nothing that is followed, and it is parked below.
    let ticket = unsafe { context.begin(Reason::None, ptr::null_mut()) };
    give(NonNull::from(context), ticket);
    // SAFETY: on the context's own stack, after `begin`.
    unsafe { park_until(deadlines, None, context, ticket, at) }
}

fn to_nobody(_: NonNull<Context>, _: Ticket) {}

fn has_thread(deadlines: &Deadlines) -> bool {
    deadlines.record().lock_thread().handle.is_some()
}

/// Waits for more and more ticks: on a busy machine a time may be over before it is armed, and that takes no thread.
#[track_caller]
fn until_it_has_a_thread(deadlines: &Deadlines, wait: impl Fn(u32)) {
    let waited = (0..10).find(|power| {
        wait(2 << power);
        has_thread(deadlines)
    });
    assert!(waited.is_some(), "no thread was started");
}

/// Takes back what a probe has armed.
fn disarm(deadlines: &Deadlines, alarm: Alarm) -> bool {
    with_foreign(|context| deadlines.disarm(context, alarm))
}

fn sleeps(deadlines: &Deadlines) -> Sleep {
    deadlines.record().shards().sleep()
}

fn until(deadlines: &Deadlines, at: Instant) -> Sleep {
    Sleep::Until(deadlines.record().shards().nanos(at))
}

fn armed(deadlines: &Deadlines) -> usize {
    deadlines.record().shards().armed()
}
