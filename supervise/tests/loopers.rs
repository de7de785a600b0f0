//! Loopers, row by row: `rNN` is the row of `docs/coordination.md`.

#[path = "../../tests/support/mod.rs"]
mod support;

use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use forebear::sync::Event;
use forebear::time::{ManualClock, now};
use forebear::{Error, Failure, Runtime, check_cancelled};
use forebear_supervise::{Coordinator, Every, Looper};
use support::{Come, Watchdog};

const SECOND: Duration = Duration::from_secs(1);

/// A coordinator on a runtime whose clock is moved by hand.
struct ByHand {
    clock: Arc<ManualClock>,
    runtime: Runtime,
    coordinator: Coordinator,
}

fn by_hand() -> ByHand {
    let clock = Arc::new(ManualClock::new());
    let runtime = Runtime::builder().workers(1).clock(clock.clone()).build().unwrap();
    let coordinator = Coordinator::builder().runtime(&runtime).build().unwrap();
    ByHand { clock, runtime, coordinator }
}

impl ByHand {
    /// Moves the clock once the looper waits for its next turn.
    fn advance(&self, by: Duration) {
        self.until_it_waits();
        self.clock.advance(by);
    }

    fn until_it_waits(&self) {
        let waits = || self.runtime.dump().find("looper").is_some_and(|looper| looper.waits_for.is_some());
        support::until(waits);
    }
}

#[test]
fn r30_a_looper_turns_at_once_and_then_every_so_often_until_the_stop() {
    let _dog = Watchdog::new("");
    let by_hand = by_hand();
    let (tell, turns) = mpsc::channel();
    by_hand.coordinator.every("looper", Every::CatchUp(SECOND), move || Ok(tell.send(now())?));
    let first = turns.come().unwrap();
    for n in 1..4 {
        by_hand.advance(SECOND / 2);
        by_hand.advance(SECOND / 2);
        assert_eq!(turns.come().unwrap(), first + SECOND * n);
    }
    by_hand.until_it_waits();
    by_hand.coordinator.request_stop();
    by_hand.coordinator.join().unwrap();
    assert_eq!(turns.iter().count(), 0, "none after the stop");
}

#[test]
fn r31_after_a_slow_turn_those_that_were_missed_follow_without_a_pause() {
    let _dog = Watchdog::new("");
    let by_hand = by_hand();
    let (tell, turns) = mpsc::channel();
    let (mut n, slow) = (0, by_hand.clock.clone());
    by_hand.coordinator.every("looper", Every::CatchUp(SECOND), move || {
        n += 1;
        if n == 2 {
            slow.advance(SECOND * 3); // the turn of second 1 takes until second 4
        }
        Ok(tell.send(now())?)
    });
    let first = turns.come().unwrap();
    by_hand.advance(SECOND);
    for turn in ["the slow one", "that of second 2", "that of second 3", "that of second 4"] {
        assert_eq!(turns.come().unwrap(), first + SECOND * 4, "{turn}");
    }
    by_hand.until_it_waits();
    assert!(turns.try_recv().is_err());
    by_hand.advance(SECOND);
    assert_eq!(turns.come().unwrap(), first + SECOND * 5, "and on the grid again");
    by_hand.coordinator.request_stop();
    by_hand.coordinator.join().unwrap();
}

#[test]
fn r31_or_are_left_out_if_one_asks_for_that() {
    let _dog = Watchdog::new("");
    let by_hand = by_hand();
    let (tell, turns) = mpsc::channel();
    let (mut n, slow) = (0, by_hand.clock.clone());
    by_hand.coordinator.every("looper", Every::Skip(SECOND), move || {
        n += 1;
        if n == 2 {
            slow.advance(SECOND * 3 + SECOND / 2);
        }
        Ok(tell.send(now())?)
    });
    let first = turns.come().unwrap();
    by_hand.advance(SECOND);
    assert_eq!(turns.come().unwrap(), first + SECOND * 9 / 2);
    by_hand.advance(SECOND / 2);
    assert_eq!(turns.come().unwrap(), first + SECOND * 5);
    by_hand.coordinator.request_stop();
    by_hand.coordinator.join().unwrap();
}

#[test]
fn r32_without_a_period_or_with_one_of_zero_turns_follow_one_another() {
    let _dog = Watchdog::new("");
    for every in [Every::BackToBack, Every::CatchUp(Duration::ZERO), Every::Skip(Duration::ZERO)] {
        let ByHand { coordinator, .. } = by_hand(); // time stands still
        let (stop, mut turns) = (coordinator.clone(), 0);
        coordinator.every("looper", every, move || {
            turns += 1;
            if turns == 1_000 {
                stop.request_stop();
            }
            Ok(())
        });
        coordinator.join().unwrap();
    }
}

#[test]
fn r32_a_looper_without_pauses_leaves_its_worker_to_others_and_to_a_cancel() {
    let _dog = Watchdog::new("");
    let ByHand { coordinator, .. } = by_hand();
    let go = Arc::new(Event::new());
    let sets = go.clone();
    coordinator.every("busy", Every::BackToBack, || Ok(check_cancelled()?));
    coordinator.spawn("other", move |_| {
        sets.set();
        Ok(())
    });
    go.wait().unwrap(); // on the one worker that there is
    coordinator.request_stop();
    coordinator.join().unwrap();
}

#[test]
fn r33_an_error_in_a_turn_is_reported_and_ends_the_looper() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    let mut turns = 0;
    coordinator.every("fails", Every::BackToBack, move || {
        turns += 1;
        assert!(turns <= 3, "it goes on after an error");
        if turns == 3 { Err(Error::other("the third turn")) } else { Ok(()) }
    });
    coordinator.spawn("waits", |me| Ok(me.wait_for_stop()?));
    let error = coordinator.join().unwrap_err();
    let failure = error.failure().unwrap();
    assert_eq!((failure.request(), failure.error().to_string().as_str()), ("fails", "the third turn"));
}

/// What a looper was called for.
#[derive(Clone, Default)]
struct Told(Arc<Mutex<Vec<String>>>);

struct Hooks {
    told: Told,
    fail: &'static str,
}

impl Hooks {
    fn tell(&self, what: &'static str) -> Result<(), Error> {
        self.told.0.lock().unwrap().push(what.to_owned());
        match self.fail {
            fail if fail == what => Err(Error::other(what)),
            "panic" if what == "turn" => std::panic::resume_unwind(Box::new("panic")),
            _ => Ok(()),
        }
    }
}

impl Looper for Hooks {
    fn start(&mut self) -> Result<(), Error> {
        self.tell("start")
    }

    fn turn(&mut self) -> Result<(), Error> {
        self.tell("turn")
    }

    fn stop(&mut self, failure: Option<&Failure>) -> Result<(), Error> {
        // It may wait, though a stop has cancelled the request.
        forebear::spawn(|| ()).take()?;
        self.told
            .0
            .lock()
            .unwrap()
            .push(format!("stop({})", failure.map(ToString::to_string).unwrap_or_default()));
        self.tell("stop")
    }
}

/// The hook at the end is called also after an error, with it: a looper that holds something can give it back in one place.
#[test]
fn r34_the_hooks_are_called_once_before_the_first_turn_and_once_at_the_end_however_it_comes() {
    let _dog = Watchdog::new("");
    for (fail, in_thread) in
        ["", "start", "turn", "panic", "stop"].into_iter().flat_map(|fail| [(fail, false), (fail, true)])
    {
        let told = Told::default();
        let coordinator = Coordinator::new();
        let hooks = Hooks { told: told.clone(), fail };
        if in_thread {
            coordinator.every_on_thread("looper", Every::CatchUp(Duration::MAX), hooks).unwrap();
        } else {
            coordinator.every("looper", Every::CatchUp(Duration::MAX), hooks);
        }
        if fail.is_empty() || fail == "stop" {
            support::until(|| told.0.lock().unwrap().iter().any(|what| what == "turn"));
            coordinator.request_stop();
        }
        let answer = coordinator.join_with(forebear_supervise::JoinOptions::new());
        let told = told.0.lock().unwrap().clone();
        let expected: &[&str] = match fail {
            "start" => &["start", "stop(request `looper` failed)", "stop"],
            "turn" => &["start", "turn", "stop(request `looper` failed)", "stop"],
            "panic" => &["start", "turn", "stop(request `looper` panicked)", "stop"],
            _ => &["start", "turn", "stop()", "stop"],
        };
        assert_eq!(told, expected, "{fail}, in a thread: {in_thread}");
        assert_eq!(answer.is_err(), !fail.is_empty() && fail != "stop", "{fail}, in a thread: {in_thread}");
    }
}

#[test]
fn r35_a_looper_is_a_worker_of_its_coordinator() {
    let _dog = Watchdog::new("");
    let coordinator = Coordinator::new();
    coordinator.every("one", Every::CatchUp(Duration::MAX), || Ok(()));
    coordinator.every_on_thread("two", Every::CatchUp(Duration::MAX), || Ok(())).unwrap();
    assert_eq!(coordinator.workers(), ["one", "two"]);
    coordinator.request_stop();
    coordinator.join().unwrap();
}
