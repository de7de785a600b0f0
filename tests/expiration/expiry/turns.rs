//! What a server makes of what it is told, turn by turn.

use super::*;

use std::collections::VecDeque;

use forebear::timer::{Timer, TimerServer, TimersOf};

#[test]
fn t7_in_time_nothing_happens() {
    let mut bench = Bench::new();
    bench.acquire(1, "block", 2);
    assert_eq!(bench.after(SECOND), [""; 0]);
    bench.release(1, "block");
    assert_eq!(bench.after(10 * SECOND), [""; 0]);
    assert_eq!(bench.events.read(), [""; 0]);
}

#[test]
fn t10_one_expired_timer_ends_its_worker_once_and_drops_all_its_timers() {
    let mut bench = Bench::new();
    bench.acquire(1, "first", 1);
    bench.acquire(1, "second", 2);
    bench.acquire(1, "much later", 100);
    bench.acquire(2, "another", 3);
    assert_eq!(bench.after(2 * SECOND), ["1 first 0"]);
    assert_eq!(bench.after(SECOND), ["2 another 0"]);
    assert_eq!(bench.after(200 * SECOND), [""; 0]);
    assert_eq!(bench.server.stats().reaped, 2);
}

#[test]
fn t11_a_timer_has_expired_at_its_deadline_and_not_before() {
    let mut bench = Bench::new();
    bench.acquire(1, "block", 1);
    assert_eq!(bench.after(SECOND - NANO), [""; 0]);
    assert_eq!(bench.after(NANO), ["1 block 0"]);
}

#[test]
fn t12_a_release_of_what_is_not_there_is_nothing() {
    let mut bench = Bench::new();
    bench.release(1, "never acquired");
    bench.acquire(1, "block", 1);
    bench.release(1, "another");
    bench.release(2, "block");
    assert_eq!(bench.after(SECOND), ["1 block 0"]);
    bench.release(1, "block");
    assert_eq!(bench.turn(), [""; 0]);
}

#[test]
fn t13_a_deadline_that_is_past_is_a_timer_that_has_expired_and_no_release() {
    let mut bench = Bench::new();
    bench.acquire(1, "block", 100);
    let client = bench.client(1);
    client.acquire(&"block".into(), client.now() - SECOND).unwrap();
    assert_eq!(bench.turn(), ["1 block 0"]);
    assert_eq!(bench.events.read(), ["expired 1 block 1", "reaped 1 block 1"]);
}

/// A server that writes down what it is asked.
struct Asked {
    log: Log,
    expired: TimersOf<u32>,
}

impl TimerServer<u32> for Asked {
    fn register(&mut self, requests: Vec<TimerRequest<u32>>) -> Result<(), TimerError> {
        let words = requests.iter().map(|request| match &request.demand {
            Demand::Acquire(timer) => format!("+{}", timer.scope),
            Demand::Release(scope) => format!("-{scope}"),
            Demand::Leave => "left".into(),
        });
        self.log.write(format!("register {}", words.collect::<Vec<_>>().join(" ")));
        Ok(())
    }

    fn clear(&mut self, workers: &[u32]) -> Result<TimersOf<u32>, TimerError> {
        self.log.write(format!("clear {workers:?}"));
        Ok(Vec::new())
    }

    fn expired(&mut self, _: Instant) -> Result<TimersOf<u32>, TimerError> {
        self.log.write("expired");
        Ok(std::mem::take(&mut self.expired))
    }

    fn next_deadline(&mut self, _: Instant) -> Option<Instant> {
        None
    }
}

#[test]
fn t14_a_turn_takes_what_is_there_registers_it_finds_what_has_expired_reaps_and_clears() {
    let (log, clock) = (Log::default(), ManualClock::new());
    let (timers, queue) = channel();
    let timer = Timer::new("scope", clock.now());
    let server =
        Asked { log: log.clone(), expired: [1, 2, 3].map(|worker| (worker, vec![timer.clone()])).into() };
    let asked = log.clone();
    let reaper = move |overdue: &Overdue<'_, u32>| {
        asked.write(format!("reap {}", overdue.worker));
        if *overdue.worker == 3 { Reap::Retry(TimerError::other("not now")) } else { Reap::Reaped }
    };
    let mut server = Watchdog::new(queue, reaper).clock(clock).on_event(|_| ()).server(server);
    timers.send(TimerRequest::acquire(1, timer)).unwrap();
    timers.send(TimerRequest::release(1, "scope")).unwrap();
    timers.send(TimerRequest::leave(9)).unwrap();
    timers.send(TimerRequest::release(9, "again")).unwrap();
    server.turn(Duration::ZERO).unwrap();
    // One request ends the wait, the rest is taken after it; who leaves is cleared between what is said before and after.
    let registered = ["register +scope", "register -scope", "clear [9]", "register -again"];
    let dealt_with = ["expired", "reap 1", "reap 2", "reap 3", "clear [1, 2]"];
    assert_eq!(log.read(), [&registered[..], &dealt_with].concat());
}

#[test]
fn t15_what_could_not_be_reaped_keeps_its_timers_and_is_tried_again_after_a_pause() {
    let mut bench = Bench::with(|overdue| match (overdue.worker, overdue.attempt) {
        (1, 0..2) => Reap::Retry(TimerError::other("not now")),
        _ => Reap::Reaped,
    });
    bench.acquire(1, "block", 1);
    bench.acquire(2, "block", 1);
    assert_eq!(bench.after(SECOND), ["1 block 0", "2 block 0"]);
    assert_eq!(bench.after(SECOND - NANO), [""; 0], "not in every turn");
    assert_eq!(bench.server.next_turn(), Some(bench.clock.now() + NANO));
    assert_eq!(bench.after(NANO), ["1 block 1"]);
    assert_eq!(bench.after(SECOND), ["1 block 2"]);
    assert_eq!(bench.after(100 * SECOND), [""; 0]);
    let events = [
        "expired 1 block 0",
        "failed 1 not now 0 1",
        "expired 2 block 0",
        "reaped 2 block 0",
        "failed 1 not now 1 1",
        "reaped 1 block 2",
    ];
    assert_eq!(bench.events.read(), events, "and a timer is told once");
    assert_eq!((bench.server.stats().failed_reaps, bench.server.stats().reaped), (2, 2));
}

#[test]
fn t15_a_reaper_that_panics_counts_as_having_reaped() {
    let mut bench = Bench::with(|overdue| match overdue.worker {
        1 => std::panic::panic_any("the reaper's"),
        _ => Reap::Reaped,
    });
    bench.acquire(1, "block", 1);
    bench.acquire(1, "later", 9);
    bench.acquire(2, "block", 1);
    assert_eq!(bench.after(SECOND), ["1 block 0", "2 block 0"], "the others are reaped");
    assert_eq!(bench.after(10 * SECOND), [""; 0]);
    assert_eq!(bench.events.read()[1], "panicked 1 the reaper's");
    assert_eq!(bench.server.stats().panicked_reaps, 1);
}

#[test]
fn a_worker_that_saves_itself_is_let_go_and_its_attempts_begin_anew() {
    let mut bench = Bench::with(|_| Reap::Retry(TimerError::other("not now")));
    bench.acquire(1, "block", 1);
    assert_eq!(bench.after(SECOND), ["1 block 0"]);
    assert_eq!(bench.after(SECOND), ["1 block 1"]);
    bench.release(1, "block");
    assert_eq!(bench.after(SECOND), [""; 0]);
    assert_eq!(bench.server.next_turn(), None);
    bench.acquire(1, "block", 1);
    assert_eq!(bench.after(SECOND), ["1 block 0"]);
    // Moved, it is another timer, also if no turn has seen it without one.
    bench.clock.advance(NANO);
    bench.acquire(1, "block", 0);
    assert_eq!(bench.turn(), ["1 block 0"]);
}

#[test]
fn a_reaper_may_go_by_steps_as_long_as_the_timer_is_not_released() {
    let steps = |overdue: &Overdue<'_, u32>| match overdue.attempt {
        0 => Reap::Again(2 * SECOND),
        1 => Reap::Again(3 * SECOND),
        _ => Reap::Reaped,
    };
    let mut bench = Bench::with(steps);
    bench.acquire(1, "block", 1);
    bench.acquire(2, "block", 1);
    assert_eq!(bench.after(SECOND), ["1 block 0", "2 block 0"]);
    bench.release(2, "block");
    assert_eq!(bench.after(2 * SECOND), ["1 block 1"]);
    assert_eq!(bench.server.next_turn(), Some(bench.clock.now() + 3 * SECOND));
    assert_eq!(bench.after(3 * SECOND), ["1 block 2"]);
    assert_eq!(bench.after(9 * SECOND), [""; 0]);
    assert_eq!(bench.server.stats().failed_reaps, 0);
    let events = bench.events.read();
    assert_eq!(events[1], "warned 1 0 2");
    assert_eq!(events[5], "reaped 1 block 5");
}

#[test]
fn whom_a_reaper_spares_keeps_the_timers_that_have_not_expired() {
    let mut bench =
        Bench::with(
            |overdue| if overdue.now == overdue.timer.deadline { Reap::Spared } else { Reap::Reaped },
        );
    bench.acquire(1, "one", 1);
    bench.acquire(1, "two", 1);
    bench.acquire(1, "later", 9);
    assert_eq!(bench.after(SECOND), ["1 one 0"]);
    assert_eq!(bench.after(SECOND), [""; 0], "asked once");
    assert_eq!(bench.after(9 * SECOND), ["1 later 0"]);
    assert_eq!((bench.server.stats().expired, bench.server.stats().reaped), (3, 1));
}

#[test]
fn t16_who_is_gone_already_counts_as_reaped() {
    let mut bench = Bench::with(|_| Reap::Gone);
    bench.acquire(1, "block", 1);
    bench.acquire(1, "later", 9);
    assert_eq!(bench.after(SECOND), ["1 block 0"]);
    assert_eq!(bench.after(10 * SECOND), [""; 0]);
    assert_eq!(bench.events.read(), ["expired 1 block 0", "gone 1"]);
    assert_eq!((bench.server.stats().gone, bench.server.stats().reaped), (1, 0));
}

type Step = Box<dyn FnOnce() -> Result<(), TimerError> + Send>;

/// A queue that after each of its first gets does what it was given to do, and fails if that does.
struct Tampered(TimerReceiver<u32>, VecDeque<Step>);

impl RequestQueue<u32> for Tampered {
    fn get(&mut self, n: usize, timeout: Duration) -> Result<Vec<TimerRequest<u32>>, TimerError> {
        let got = self.0.get(n, timeout)?;
        self.1.pop_front().map_or(Ok(()), |step| step())?;
        Ok(got)
    }

    fn size(&mut self) -> usize {
        self.0.size()
    }
}

#[test]
fn t17_an_error_in_a_turn_is_told_and_the_server_goes_on() {
    let (timers, queue) = channel();
    let (clock, reaped, events) = (ManualClock::new(), Log::default(), Log::default());
    let steps: [Step; 2] = [
        Box::new(|| Err(TimerError::other("the queue's"))),
        Box::new(|| std::panic::panic_any("the queue's panic")),
    ];
    let (asked, heard) = (reaped.clone(), events.clone());
    let reaper = move |overdue: &Overdue<'_, u32>| {
        asked.write(format!("{}", overdue.worker));
        Reap::Reaped
    };
    let mut server = Watchdog::new(Tampered(queue, steps.into()), reaper)
        .clock(clock.clone())
        .on_event(move |event| heard.write(short(event)));
    assert!(matches!(server.turn(Duration::ZERO), Err(TimerError::Other(_))));
    assert!(matches!(server.turn(Duration::ZERO), Err(TimerError::Panicked(_))));
    let told = events.read();
    assert_eq!(told[0], "turn failed the queue's");
    assert!(told[1].contains("the queue's panic"), "{told:?}");
    timers.client(1).acquire(&"block".into(), clock.now()).unwrap();
    server.turn(Duration::ZERO).unwrap();
    assert_eq!(reaped.read(), ["1"]);
    assert_eq!((server.stats().turns, server.stats().failed_turns), (3, 2));
}

/// A table that can do nothing when it is told so.
struct Fails(forebear::timer::TimerTable<u32>, Arc<Mutex<bool>>);

impl Fails {
    fn check(&self) -> Result<(), TimerError> {
        if *self.1.lock() { Err(TimerError::other("the table's")) } else { Ok(()) }
    }
}

impl TimerServer<u32> for Fails {
    fn register(&mut self, requests: Vec<TimerRequest<u32>>) -> Result<(), TimerError> {
        self.0.register(requests)?;
        self.check()
    }

    fn clear(&mut self, workers: &[u32]) -> Result<TimersOf<u32>, TimerError> {
        self.0.clear(workers)
    }

    fn expired(&mut self, now: Instant) -> Result<TimersOf<u32>, TimerError> {
        self.0.expired(now)
    }

    fn next_deadline(&mut self, looked: Instant) -> Option<Instant> {
        self.0.next_deadline(looked)
    }
}

#[test]
fn t17_after_a_turn_that_failed_half_way_the_next_is_due_at_once() {
    let bench = Bench::new();
    let fails = Arc::new(Mutex::new(false));
    let mut server = bench.server.server(Fails(Default::default(), fails.clone()));
    server.turn(Duration::ZERO).unwrap();
    assert_eq!(server.next_turn(), None);
    *fails.lock() = true;
    let client = bench.timers.client(1).with_clock(bench.clock.clone());
    client.acquire(&"block".into(), bench.clock.now()).unwrap();
    server.turn(Duration::ZERO).unwrap_err();
    assert_eq!(bench.reaped.read(), [""; 0], "a release may be in what was not registered");
    // The timer is in the table, its deadline is past: a server that slept to the next deadline would sleep for ever.
    assert_eq!(server.next_turn(), Some(bench.clock.now()));
    *fails.lock() = false;
    server.turn(Duration::ZERO).unwrap();
    assert_eq!(bench.reaped.read(), ["1 block 0"]);
}

#[test]
fn t18_a_turn_without_requests_works_and_leaves_nothing_to_do() {
    let mut bench = Bench::new();
    assert_eq!(bench.server.next_turn(), Some(bench.clock.now()), "there was none yet");
    for _ in 0..3 {
        assert_eq!(bench.turn(), [""; 0]);
        assert_eq!(bench.server.next_turn(), None);
    }
    assert_eq!((bench.server.stats().turns, bench.server.stats().requests), (3, 0));
}

#[test]
fn t18_the_next_turn_is_due_at_the_earliest_deadline_exactly() {
    let mut bench = Bench::new();
    bench.acquire(1, "late", 9);
    bench.acquire(2, "early", 4);
    bench.acquire(3, "earliest", 2);
    let start = bench.clock.now();
    bench.turn();
    assert_eq!(bench.server.next_turn(), Some(start + 2 * SECOND));
    bench.release(3, "earliest");
    bench.turn();
    assert_eq!(bench.server.next_turn(), Some(start + 4 * SECOND));
    bench.after(4 * SECOND);
    assert_eq!(bench.server.next_turn(), Some(start + 9 * SECOND));
}

#[test]
fn who_released_in_time_is_not_reaped_however_late_the_server_looks() {
    let mut bench = Bench::new();
    bench.acquire(1, "block", 1);
    bench.acquire(2, "block", 1);
    bench.turn();
    bench.release(1, "block");
    // Hours in which the server's process was stopped.
    assert_eq!(bench.after(3600 * SECOND), ["2 block 0"]);
}

#[test]
fn who_released_while_the_server_was_about_to_look_is_not_reaped() {
    let clock = ManualClock::new();
    let (timers, queue) = channel();
    let client = timers.client(1).with_clock(clock.clone());
    client.acquire(&"block".into(), clock.now() + SECOND).unwrap();
    // When the second turn has found nothing new the release is sent, in time, and then time is up.
    let moved = clock.clone();
    let steps: [Step; 2] = [
        Box::new(|| Ok(())),
        Box::new(move || {
            client.release(&"block".into())?;
            moved.advance(SECOND);
            Ok(())
        }),
    ];
    let reaper = |_: &Overdue<'_, u32>| -> Reap { panic!("it was in time") };
    let mut server = Watchdog::new(Tampered(queue, steps.into()), reaper).clock(clock.clone());
    server.turn(Duration::ZERO).unwrap();
    server.turn(Duration::ZERO).unwrap();
    assert_eq!((server.stats().expired, server.stats().requests), (0, 2));
}

#[test]
fn t25_of_several_expired_timers_the_earliest_with_a_signal_decides() {
    let mut bench = Bench::with(|overdue| {
        assert_eq!(overdue.timer.signal.number(), Some(15));
        let scopes: Vec<_> = overdue.expired.iter().map(|timer| timer.scope.name()).collect();
        assert_eq!(scopes, ["term", "kill"]);
        Reap::Reaped
    });
    bench.acquire_with(1, "kill", 3, 9.into());
    bench.acquire_with(1, "term", 2, 15.into());
    bench.acquire_with(1, "log", 1, 0.into());
    assert_eq!(bench.after(3 * SECOND), ["1 term 0"]);
}

#[test]
fn t25_a_timer_without_a_signal_is_told_once_and_forgotten_alone() {
    let mut bench = Bench::new();
    bench.acquire_with(1, "log", 1, Signal::from(-1));
    bench.acquire(1, "block", 3);
    assert_eq!(bench.after(SECOND), [""; 0]);
    assert_eq!(bench.events.read(), ["expired 1 log 0"]);
    assert_eq!(bench.after(SECOND), [""; 0]);
    assert_eq!(bench.events.read(), [""; 0]);
    assert_eq!(bench.after(SECOND), ["1 block 0"], "the other one stays");

    // Nor does it keep a worker from being let go that has saved itself from the other.
    let mut bench = Bench::with(|_| Reap::Retry(TimerError::other("not now")));
    bench.acquire_with(1, "log", 1, Signal::LogOnly);
    bench.acquire(1, "block", 1);
    assert_eq!(bench.after(SECOND), ["1 block 0"]);
    bench.release(1, "block");
    assert_eq!(bench.turn(), [""; 0]);
    assert_eq!(bench.server.next_turn(), None);
}

#[test]
fn t26_who_left_has_no_timers_and_nobody_is_reaped() {
    let mut bench = Bench::new();
    bench.acquire(1, "one", 1);
    bench.acquire(1, "two", 2);
    bench.acquire(2, "other", 1);
    bench.timers.send(TimerRequest::leave(1)).unwrap();
    assert_eq!(bench.after(SECOND), ["2 other 0"]);
    assert_eq!(bench.events.read()[0], "orphaned 1 2");
    assert_eq!(bench.server.stats().orphaned, 2);
    bench.timers.send(TimerRequest::leave(1)).unwrap();
    assert_eq!(bench.after(SECOND), [""; 0]);

    // Also one that could not be reaped.
    let mut bench = Bench::with(|_| Reap::Retry(TimerError::other("not now")));
    bench.acquire(1, "one", 1);
    assert_eq!(bench.after(SECOND), ["1 one 0"]);
    bench.timers.send(TimerRequest::leave(1)).unwrap();
    assert_eq!(bench.after(SECOND), [""; 0]);
    assert_eq!(bench.server.next_turn(), None);
}

#[test]
fn t29_a_hook_that_panics_changes_nothing() {
    let heard = Log::default();
    let mut bench = Bench::new();
    let also = heard.clone();
    bench.server = bench
        .server
        .on_event(|_| std::panic::panic_any("the hook's"))
        .on_event(move |event| also.write(short(event)));
    bench.acquire(1, "block", 1);
    assert_eq!(bench.after(SECOND), ["1 block 0"]);
    assert_eq!(bench.events.read(), ["expired 1 block 0", "reaped 1 block 0"]);
    assert_eq!(heard.read(), ["expired 1 block 0", "reaped 1 block 0"]);
}

#[test]
fn t29_a_name_from_another_process_cannot_repaint_a_log() {
    let (lines, mut bench) = (Log::default(), Bench::new());
    let log = lines.clone();
    bench.server = bench.server.on_event(move |event| log.write(event.to_string()));
    bench.acquire(1, "\u{1b}[2J\nfake line", 0);
    bench.turn();
    let lines = lines.read();
    assert_eq!(lines.len(), 2);
    assert!(lines.iter().all(|line| !line.contains(['\u{1b}', '\n'])), "{lines:?}");
}

#[test]
fn a_worker_that_is_held_with_many_expired_timers_holds_up_nobody() {
    let mut bench = Bench::with(|overdue| match overdue.worker {
        1 => Reap::Again(1_000 * SECOND),
        _ => Reap::Reaped,
    });
    let many = 20_000;
    for number in 0..many {
        bench.acquire(1, &format!("{number}"), 0);
    }
    // A comparison of each with each would take minutes.
    for _ in 0..20 {
        bench.turn();
    }
    assert_eq!(bench.events.read().iter().filter(|line| line.starts_with("expired")).count(), many);
    bench.acquire(2, "another", 0);
    assert_eq!(bench.turn(), ["2 another 0"]);
    assert_eq!(bench.events.read(), ["expired 2 another 0", "reaped 2 another 0"]);
}

#[test]
fn the_queue_is_told_which_timers_the_server_has_dropped() {
    /// Writes down what it is told.
    struct Told(Log, VecDeque<TimerRequest<u32>>);
    impl RequestQueue<u32> for Told {
        fn get(&mut self, n: usize, _: Duration) -> Result<Vec<TimerRequest<u32>>, TimerError> {
            let n = n.min(self.1.len());
            Ok(self.1.drain(..n).collect())
        }
        fn size(&mut self) -> usize {
            self.1.len()
        }
        fn dropped(&mut self, worker: &u32, timers: &[Timer]) {
            let scopes: Vec<&str> = timers.iter().map(|timer| timer.scope.name()).collect();
            self.0.write(format!("{worker} {}", scopes.join(" ")));
        }
    }
    let (log, clock) = (Log::default(), ManualClock::new());
    let timer = |scope: &str, seconds| Timer::new(scope, clock.now() + Duration::from_secs(seconds));
    let requests = VecDeque::from([
        TimerRequest::acquire(1, timer("reaped", 0)),
        TimerRequest::acquire(1, timer("with it", 100)),
        TimerRequest::acquire(2, timer("logged", 0).with_signal(Signal::LogOnly)),
        TimerRequest::acquire(2, timer("goes on", 100)),
        TimerRequest::acquire(3, timer("spared", 0)),
        TimerRequest::acquire(3, timer("goes on", 100)),
        TimerRequest::acquire(4, timer("held", 0)),
        TimerRequest::acquire(5, timer("leaves", 0)),
        TimerRequest::leave(5),
    ]);
    let reaper = |overdue: &Overdue<'_, u32>| match overdue.worker {
        1 => Reap::Reaped,
        3 => Reap::Spared,
        _ => Reap::Again(SECOND),
    };
    let queue: Box<dyn RequestQueue<u32>> = Box::new(Told(log.clone(), requests));
    let mut server = Watchdog::new(queue, reaper).clock(clock).on_event(|_| ());
    server.turn(Duration::ZERO).unwrap();
    let mut told = log.read();
    told.sort();
    assert_eq!(told, ["1 reaped with it", "2 logged", "3 spared"]);
    server.turn(Duration::ZERO).unwrap();
    assert_eq!(log.read(), [""; 0]);
}
