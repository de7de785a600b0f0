//! Expiration timers, as far as they need no process: what a block of code says by its guard, what a server makes of it, and how the
//! server runs and stops. Nothing here waits for time to pass: clocks are moved by hand, and threads tell what they do.

mod guards;
mod names;
mod queues;
#[path = "../../support/mod.rs"]
mod support;
mod threads;
mod turns;

use std::sync::Arc;
use std::time::{Duration, Instant};

use forebear::sync::Mutex;
use forebear::time::{Clock, ManualClock};
use forebear::timer::{
    ChannelClient, Demand, Overdue, Reap, RequestQueue, Scope, Signal, TimerClient, TimerError, TimerEvent,
    TimerGuard, TimerReceiver, TimerRequest, TimerSender, Watchdog, channel,
};

const SECOND: Duration = Duration::from_secs(1);
const NANO: Duration = Duration::from_nanos(1);

/// Lines that somebody writes and the test reads. Clones are the same.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn write(&self, line: impl Into<String>) {
        self.0.lock().push(line.into());
    }

    /// What was written since the last time.
    fn read(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock())
    }
}

/// Made anew for each answer, since errors are not cloned.
type Refusal = fn() -> TimerError;

/// A client that writes down what it is told, and answers as it is told to.
#[derive(Clone, Default)]
struct Recorder {
    clock: ManualClock,
    log: Log,
    refuse: Arc<Mutex<Option<Refusal>>>,
}

impl Recorder {
    fn refuse(&self, answer: Option<Refusal>) {
        *self.refuse.lock() = answer;
    }

    fn answer(&self, line: String) -> Result<(), TimerError> {
        self.log.write(line);
        self.refuse.lock().map_or(Ok(()), |error| Err(error()))
    }
}

/// Hears how many seconds are left; signals are beyond it.
impl TimerClient for Recorder {
    fn acquire(&self, scope: &Scope, deadline: Instant) -> Result<(), TimerError> {
        let left = deadline.saturating_duration_since(self.clock.now()).as_secs();
        self.answer(format!("acquire {scope} {left}"))
    }

    fn release(&self, scope: &Scope) -> Result<(), TimerError> {
        self.answer(format!("release {scope}"))
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }
}

/// How the reaper answers.
type Answer = Box<dyn FnMut(&Overdue<'_, u32>) -> Reap + Send>;
type Server = Watchdog<u32, TimerReceiver<u32>, Answer>;

/// A server on a clock that is moved by hand, which takes a turn when it is told to.
struct Bench {
    clock: ManualClock,
    timers: TimerSender<u32>,
    server: Server,
    /// The workers that were to be reaped: worker, scope of the timer that decides, attempt.
    reaped: Log,
    events: Log,
}

impl Bench {
    /// With a reaper that succeeds.
    fn new() -> Bench {
        Bench::with(|_| Reap::Reaped)
    }

    fn with(mut answer: impl FnMut(&Overdue<'_, u32>) -> Reap + Send + 'static) -> Bench {
        let (clock, reaped, events) = (ManualClock::new(), Log::default(), Log::default());
        let (timers, queue) = channel();
        let asked = reaped.clone();
        let reaper: Answer = Box::new(move |overdue| {
            asked.write(format!("{} {} {}", overdue.worker, overdue.timer.scope, overdue.attempt));
            answer(overdue)
        });
        let heard = events.clone();
        let server = Watchdog::new(queue, reaper)
            .clock(clock.clone())
            .retry_after(SECOND)
            .on_event(move |event| heard.write(short(event)));
        Bench { clock, timers, server, reaped, events }
    }

    fn client(&self, worker: u32) -> ChannelClient<u32> {
        self.timers.client(worker).with_clock(self.clock.clone())
    }

    /// The worker has this timer, which expires after so many seconds.
    fn acquire(&self, worker: u32, scope: &str, seconds: u64) {
        self.acquire_with(worker, scope, seconds, Signal::Default);
    }

    fn acquire_with(&self, worker: u32, scope: &str, seconds: u64, signal: Signal) {
        let client = self.client(worker);
        let deadline = client.now() + Duration::from_secs(seconds);
        client.acquire_with(&scope.into(), deadline, signal).unwrap();
    }

    fn release(&self, worker: u32, scope: &str) {
        self.client(worker).release(&scope.into()).unwrap();
    }

    /// Time passes, and then the server takes a turn; answers who was to be reaped in it.
    fn after(&mut self, time: Duration) -> Vec<String> {
        self.clock.advance(time);
        self.turn()
    }

    fn turn(&mut self) -> Vec<String> {
        self.server.turn(Duration::ZERO).unwrap();
        self.reaped.read()
    }
}

/// An event in few words.
fn short<W: std::fmt::Debug>(event: &TimerEvent<'_, W>) -> String {
    match event {
        TimerEvent::Started => "started".into(),
        TimerEvent::Stopped => "stopped".into(),
        TimerEvent::Expired { worker, timer, late, .. } => {
            format!("expired {worker:?} {} {}", timer.scope, late.as_secs())
        }
        TimerEvent::Reaped { worker, timer, late, .. } => {
            format!("reaped {worker:?} {} {}", timer.scope, late.as_secs())
        }
        TimerEvent::Gone { worker, .. } => format!("gone {worker:?}"),
        TimerEvent::Warned { worker, attempt, again_in, .. } => {
            format!("warned {worker:?} {attempt} {}", again_in.as_secs())
        }
        TimerEvent::ReapFailed { worker, error, attempt, again_in, .. } => {
            format!("failed {worker:?} {error} {attempt} {}", again_in.as_secs())
        }
        TimerEvent::ReaperPanicked { worker, failure, .. } => {
            format!("panicked {worker:?} {}", failure.panic_message().unwrap_or_default())
        }
        TimerEvent::Orphaned { worker, timers, .. } => format!("orphaned {worker:?} {}", timers.len()),
        TimerEvent::TurnFailed { error, .. } => format!("turn failed {error}"),
        other => format!("{other}"),
    }
}
