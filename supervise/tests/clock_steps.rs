//! The wall clock is set, forwards and backwards, while a job runs: nothing but the times in its summaries changes.
//!
//! The library `libfaketime` stands between a child process and its wall clock; the monotonic clock is left as it is. Skipped, by name, where it is not installed.
#![cfg(target_os = "linux")]
#![allow(clippy::unit_arg, reason = "`Ok(assert())` and `Ok(wait()?)` keep a closure to one line")]

#[path = "../../tests/support/mod.rs"]
mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime};

use forebear::time::sleep;
use forebear::timer::expires;
use forebear_supervise::agent::{GroupState, LocalAgent};
use forebear_supervise::{Checkpoints, Coordinator, Every, JoinOptions, Snapshot, Supervisor};
use support::{Come, Watchdog};
use tempfile::TempDir;

const MS: Duration = Duration::from_millis(1);
/// Longer than any test goes on, and shorter than any step of the clock.
const LONG: Duration = Duration::from_secs(10_000);
/// Of a join: longer than the rest of its test, and shorter than the step of the clock during it.
const GRACE: Duration = Duration::from_secs(64);
/// Steps of the clock, in seconds from the true time.
const STEPS: [i64; 6] = [86_400, -86_400, 0, 40_000_000, -40_000_000, 100_000];

/// Runs the test again in a process whose wall clock can be set. There, its directory.
fn with_a_clock_of_its_own(test: &str) -> Option<PathBuf> {
    if support::is_child(test) {
        return Some(std::env::var_os("DIRECTORY").expect("the first process names it").into());
    }
    let places = ["x86_64-linux-gnu/", "aarch64-linux-gnu/", ""];
    let mut libraries =
        places.map(|place| format!("/usr/lib/{place}faketime/libfaketimeMT.so.1")).into_iter();
    let Some(library) = libraries.find(|library| Path::new(library).exists()) else {
        println!("skipped: {test}: there is no libfaketime");
        return None;
    };
    let dir = TempDir::new().unwrap();
    let clock = dir.path().join("clock");
    fs::write(&clock, "+0").unwrap();
    let set = format!(
        "export FAKETIME_TIMESTAMP_FILE={} FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1 LD_PRELOAD={library};",
        clock.display()
    );
    let (ok, told) = support::again_in_child(test, ("DIRECTORY", dir.path().to_str().unwrap()), &set);
    assert!(ok, "{told}");
    None
}

/// Sets the wall clock, and sees that it is set.
fn set_clock(dir: &Path, seconds: i64) {
    let before = SystemTime::now();
    // As a whole: a reader finds the old offset or the new one.
    fs::write(dir.join("clock.new"), format!("{seconds:+}")).unwrap();
    fs::rename(dir.join("clock.new"), dir.join("clock")).unwrap();
    let moved = SystemTime::now().duration_since(before).unwrap_or_else(|error| error.duration());
    assert!(moved > LONG, "the clock was moved by {moved:?}");
}

#[test]
fn a_step_of_the_wall_clock_moves_no_looper_no_wait_and_no_grace() {
    const TEST: &str = "a_step_of_the_wall_clock_moves_no_looper_no_wait_and_no_grace";
    let _dog = Watchdog::new("");
    let Some(dir) = with_a_clock_of_its_own(TEST) else { return };
    let coordinator = Coordinator::new();
    let (tell, turns) = mpsc::channel();
    let (begun, counted) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    for name in ["in a request", "in a thread"] {
        let (tell, counted) = (tell.clone(), counted.clone());
        let turn = move || {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(tell.send(name)?)
        };
        match name {
            "in a request" => drop(coordinator.every(name, Every::CatchUp(MS), turn)),
            _ => coordinator.every_on_thread(name, Every::CatchUp(MS), turn).unwrap(),
        }
    }
    // Would end by a step forwards.
    let waits = coordinator.clone();
    coordinator.spawn_thread("waits", move |_| Ok(assert!(waits.wait_for_stop_timeout(LONG)?))).unwrap();
    coordinator.spawn("sleeps", |_| Ok(sleep(LONG)?));
    for seconds in STEPS {
        set_clock(&dir, seconds);
        // It would hang here after a step backwards.
        for _ in 0..20 {
            turns.come().unwrap();
        }
        // And make up for a day of turns after a step forwards. Each of both loopers is on a grid that begins with its first turn.
        let made = counted.load(Ordering::SeqCst);
        let most = begun.elapsed().as_millis() as u64 + 1;
        assert!(made <= 2 * most, "{made} turns of both in {most} ms");
        assert!(!coordinator.should_stop());
    }
    let (ends, end) = mpsc::channel::<()>();
    coordinator.spawn_thread("ends late", move |_| Ok(end.recv().unwrap_or_default())).unwrap();
    coordinator.request_stop();
    let joins = coordinator.clone();
    let joined = std::thread::spawn(move || joins.join_with(JoinOptions::new().grace(GRACE)));
    support::until(|| {
        coordinator.workers() == ["ends late"] && format!("{coordinator:?}").contains("joins: 1")
    });
    // Forwards: it stood at the last of the steps above.
    set_clock(&dir, 40_000_000);
    // A join looks at a clock in steps of a 64th of its grace: there it would find the grace over.
    let moved = Instant::now();
    support::until(|| moved.elapsed() > GRACE / 50);
    set_clock(&dir, -86_400);
    drop(ends);
    joined.join().unwrap().unwrap();
}

#[test]
fn a_step_of_the_wall_clock_changes_neither_what_is_kept_nor_the_order_of_event_files() {
    const TEST: &str = "a_step_of_the_wall_clock_changes_neither_what_is_kept_nor_the_order_of_event_files";
    let _dog = Watchdog::new("");
    let Some(dir) = with_a_clock_of_its_own(TEST) else { return };
    let place = dir.join("job");
    let mut files = Vec::new();
    for (n, seconds) in (0_u64..).zip(STEPS) {
        let supervisor = Supervisor::builder(Snapshot::new(1, 0_u64))
            .dir(&place)
            .checkpoints(Checkpoints::open(&place).unwrap().keep(3))
            .save_every(LONG)
            .summarise_every(LONG)
            .count_steps_every(LONG)
            .build();
        supervisor
            .run(|session| {
                assert_eq!((session.state().get(), session.steps().get()), (n, n));
                files.push(session.event_file().unwrap());
                // In the middle of the session, and of a step.
                session.step(|sum| {
                    set_clock(&dir, seconds);
                    sum.update(|sum| *sum += 1);
                })?;
                session.save_now()?;
                Ok(())
            })
            .unwrap();
    }
    let kept: Vec<u64> =
        Checkpoints::open(&place).unwrap().list().unwrap().iter().map(|one| one.step).collect();
    assert_eq!(kept, [6, 5, 4]);
    assert!(files.is_sorted() && files.windows(2).all(|two| two[0] < two[1]), "{files:#?}");
}

#[test]
fn a_step_of_the_wall_clock_expires_no_timer_and_ends_no_wait_of_an_agent() {
    const TEST: &str = "a_step_of_the_wall_clock_expires_no_timer_and_ends_no_wait_of_an_agent";
    let _dog = Watchdog::new("");
    let Some(dir) = with_a_clock_of_its_own(TEST) else { return };
    if std::env::var_os("FOREBEAR_TIMERS").is_some() {
        // The worker: a program of this crate, with a timer.
        forebear::timer::local::configure_from_env().unwrap();
        let _timer = expires(LONG).unwrap();
        fs::write(dir.join("has a timer"), "").unwrap();
        support::until(|| dir.join("may end").exists());
        return;
    }
    let agent = LocalAgent::builder(std::env::current_exe().unwrap())
        .args([TEST, "--exact", "--nocapture", "--test-threads=1"])
        .launcher(env!("CARGO_BIN_EXE_forebear-agent"))
        .logs(dir.join("logs"))
        .start_timeout(LONG)
        .max_restarts(0)
        .build()
        .unwrap();
    let runs = agent.clone();
    let run = std::thread::spawn(move || runs.run().unwrap());
    support::until(|| dir.join("has a timer").exists());
    STEPS.iter().for_each(|seconds| set_clock(&dir, *seconds));
    fs::write(dir.join("may end"), "").unwrap();
    let result = run.join().unwrap();
    assert_eq!((result.state, result.restarts), (GroupState::Succeeded, 0), "{result:?}");
    assert_eq!(agent.metrics().expired, 0);
}
