//! A name of a worker whose methods do their worst.

use super::*;

use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A worker's name whose methods make requests, and panic once each if they are told to.
struct Tricky {
    number: u32,
    does: Arc<Does>,
}

#[derive(Default)]
struct Does {
    /// Which method; 0: none.
    which: AtomicU32,
    panics: AtomicBool,
    calls: AtomicU32,
}

const CLONE: u32 = 1;
const EQ: u32 = 2;
const HASH: u32 = 3;
const DEBUG: u32 = 4;

impl Tricky {
    fn called(&self, which: u32) {
        if self.does.which.load(Ordering::Relaxed) != which {
            return;
        }
        self.does.calls.fetch_add(1, Ordering::Relaxed);
        assert_eq!(forebear::spawn(|| 7).take().unwrap(), 7, "it may make requests and wait");
        assert!(!self.does.panics.swap(false, Ordering::Relaxed), "a method of a name panics on purpose");
    }
}

impl Clone for Tricky {
    fn clone(&self) -> Tricky {
        self.called(CLONE);
        Tricky { number: self.number, does: self.does.clone() }
    }
}

impl PartialEq for Tricky {
    fn eq(&self, other: &Tricky) -> bool {
        self.called(EQ);
        self.number == other.number
    }
}

impl Eq for Tricky {}

impl Hash for Tricky {
    /// All have one hash, so that they are compared.
    fn hash<H: Hasher>(&self, _: &mut H) {
        self.called(HASH);
    }
}

impl fmt::Debug for Tricky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.called(DEBUG);
        write!(f, "tricky {}", self.number)
    }
}

#[test]
fn a_name_of_a_worker_may_wait_in_its_methods_and_a_panic_there_costs_one_turn() {
    for which in [CLONE, EQ, HASH, DEBUG] {
        for panics in [false, true] {
            let (clock, reaped, does) = (ManualClock::new(), Log::default(), Arc::new(Does::default()));
            let (timers, queue) = channel();
            let asked = reaped.clone();
            let reaper = move |overdue: &Overdue<'_, Tricky>| {
                asked.write(overdue.worker.number.to_string());
                Reap::Reaped
            };
            let mut server =
                Watchdog::new(queue, reaper).clock(clock.clone()).on_event(|event| drop(event.to_string()));
            let clients: Vec<_> = [1, 2]
                .map(|number| timers.client(Tricky { number, does: does.clone() }).with_clock(clock.clone()))
                .into();
            let acquire = || {
                for client in &clients {
                    client.acquire(&"block".into(), clock.now() + SECOND).unwrap();
                }
            };
            acquire();
            does.which.store(which, Ordering::Relaxed);
            does.panics.store(panics, Ordering::Relaxed);
            let mut failed = 0;
            for _ in 0..3 {
                match server.turn(Duration::ZERO) {
                    Ok(()) => {}
                    Err(TimerError::Panicked(_)) => failed += 1,
                    Err(other) => panic!("{other}"),
                }
                clock.advance(SECOND);
            }
            // What prints an event is a hook.
            assert_eq!(failed, u32::from(panics && which != DEBUG), "{which}");
            assert!(does.calls.load(Ordering::Relaxed) > 0, "{which} was not called");
            does.which.store(0, Ordering::Relaxed);
            reaped.read();
            acquire();
            clock.advance(2 * SECOND);
            server.turn(Duration::ZERO).unwrap();
            let mut now = reaped.read();
            now.sort();
            assert_eq!(now, ["1", "2"], "{which}, {panics}: it goes on as before");
        }
    }
}
