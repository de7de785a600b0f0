//! The server of expiration timers, as it ships, against those who wake it: clients, a clock that jumps, and who stops it; and its
//! queue in memory.
#![cfg(loom)]

use std::sync::PoisonError;
use std::time::Duration;

use forebear_context::clock::{Clock, ManualClock};
use forebear_context::shim::{Arc, Condvar, Mutex, thread};
use forebear_loom_tests::{exhaust, explore};
use forebear_timer::expiry::{
    Overdue, Reap, RequestQueue, TimerClient, TimerError, TimerReceiver, TimerRequest, Watchdog,
    WatchdogHandle, channel,
};

const SECOND: Duration = Duration::from_secs(1);

/// What the reaper tells the test.
#[derive(Default)]
struct Reaped {
    worker: Mutex<Option<u32>>,
    told: Condvar,
}

impl Reaped {
    fn wait(&self) -> u32 {
        let mut worker = self.worker.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match *worker {
                Some(worker) => return worker,
                None => worker = self.told.wait(worker).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }
}

fn start(queue: TimerReceiver<u32>, clock: &ManualClock) -> (WatchdogHandle, Arc<Reaped>) {
    let reaped = Arc::new(Reaped::default());
    let told = reaped.clone();
    let reaper = move |overdue: &Overdue<'_, u32>| {
        *told.worker.lock().unwrap_or_else(PoisonError::into_inner) = Some(*overdue.worker);
        told.told.notify_one();
        Reap::Reaped
    };
    let server = Watchdog::new(queue, reaper).clock(clock.clone());
    let server = server.max_interval(Duration::MAX).on_event(|_| ()).start();
    (server.expect("a model has threads"), reaped)
}

#[test]
fn a_request_reaches_a_receiver_that_goes_to_wait() {
    exhaust(&["empty at first", "there"], |answers| {
        let (timers, mut queue) = channel::<u32>();
        let sender = thread::spawn(move || timers.send(TimerRequest::release(1, "scope")));
        answers.note(if queue.size() == 0 { "empty at first" } else { "there" });
        assert_eq!(queue.get(1, Duration::MAX).unwrap().len(), 1);
        sender.join().unwrap().unwrap();
    });
}

#[test]
fn a_wake_up_reaches_a_receiver_that_goes_to_wait() {
    exhaust(&[], |_| {
        let (_timers, mut queue) = channel::<u32>();
        let waker = queue.waker().unwrap();
        let other = thread::spawn(move || waker.wake());
        assert!(queue.get(1, Duration::MAX).unwrap().is_empty());
        other.join().unwrap();
    });
}

#[test]
fn a_stop_reaches_a_server_wherever_it_is() {
    explore(&["in its first turn", "asleep", "before its first turn"], |answers| {
        let (timers, queue) = channel();
        let (server, _) = start(queue, &ManualClock::new());
        let turns = server.stats().turns;
        server.stop().unwrap();
        assert!(!server.is_running());
        answers.note(match (turns, server.stats().turns) {
            (_, 0) => "before its first turn",
            (0, _) => "in its first turn",
            _ => "asleep",
        });
        let refused = timers.send(TimerRequest::release(1, "scope"));
        assert!(matches!(refused, Err(TimerError::ServerGone)));
    });
}

#[test]
fn a_request_reaches_a_server_that_goes_to_sleep() {
    explore(&[], |_| {
        let (clock, (timers, queue)) = (ManualClock::new(), channel());
        let (server, reaped) = start(queue, &clock);
        timers.client(7).acquire(&"scope".into(), clock.now()).unwrap();
        assert_eq!(reaped.wait(), 7);
        server.stop().unwrap();
    });
}

#[test]
fn a_jump_of_the_clock_reaches_a_server_that_goes_to_sleep() {
    explore(&[], |_| {
        let (clock, (timers, queue)) = (ManualClock::new(), channel());
        timers.client(7).acquire(&"scope".into(), clock.now() + SECOND).unwrap();
        let (server, reaped) = start(queue, &clock);
        clock.advance(SECOND);
        assert_eq!(reaped.wait(), 7);
        server.stop().unwrap();
    });
}
