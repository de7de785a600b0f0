//! A disk of its own, small enough to be full, and read-only when the test says so: a tmpfs in a mount namespace. Skipped, by name, where a process may not have one; the faulting layer in
//! `supervise/src/checkpoint/faulty.rs` needs none.
#![cfg(target_os = "linux")]
#![allow(clippy::unit_arg, reason = "`Ok(assert())` and `Ok(wait()?)` keep a closure to one line")]

mod again;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use again::{kill_saves, kills};
use forebear::Error;
use forebear_supervise::{
    CheckpointError, Checkpoints, EventError, EventWriter, SavedSections, Sections, Snapshot, State, Summary,
    SuperviseError, Supervisor,
};
use support::{Random, Watchdog, is_child};
use tempfile::TempDir;

/// Longer than any test goes on.
const LONG: Duration = Duration::from_secs(1_000_000);

/// Runs the test again in a process with a disk of 2 MiB. There, the directory that it is mounted at.
fn with_own_disk(test: &str) -> Option<PathBuf> {
    if is_child(test) {
        return Some(std::env::var_os("DIRECTORY").expect("the first process names it").into());
    }
    let may = Command::new("unshare").args(["-rm", "mount", "-t", "tmpfs", "none", "/tmp"]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        println!("skipped: {test}: this process may not mount a disk of its own");
        return None;
    }
    let dir = TempDir::new().unwrap();
    let mount = "exec unshare -rm sh -c 'mount -t tmpfs -o size=2m none \"$DIRECTORY\" && exec \"$0\" \"$@\"' \"$0\" \"$@\";";
    let (ok, told) = support::again_in_child(test, ("DIRECTORY", dir.path().to_str().unwrap()), mount);
    assert!(ok, "{told}");
    None
}

fn make_read_only(dir: &Path, read_only: bool) {
    let options = if read_only { "remount,ro" } else { "remount,rw" };
    let done = Command::new("mount").args(["-o", options]).arg(dir).status();
    assert!(done.unwrap().success());
}

fn kind(error: &CheckpointError) -> io::ErrorKind {
    let CheckpointError::Io { source, .. } = error else { panic!("{error:?}") };
    source.kind()
}

fn names(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

/// Bytes, written as they are.
struct Bytes(Mutex<Vec<u8>>);

impl Bytes {
    fn get(&self) -> Vec<u8> {
        self.0.lock().unwrap().clone()
    }
}

impl State for Bytes {
    fn schema(&self) -> u64 {
        1
    }

    fn save(&self, out: &mut Sections<'_>) -> Result<(), Error> {
        out.put_bytes("bytes", &self.get())
    }

    fn restore(&self, from: &SavedSections) -> Result<(), Error> {
        *self.0.lock().unwrap() = from.bytes("bytes")?;
        Ok(())
    }
}

/// So many bytes, which say of which step they are.
fn value(step: u64, bytes: usize) -> Arc<Bytes> {
    Arc::new(Bytes(Mutex::new(vec![step as u8; bytes])))
}

#[test]
fn a_full_disk_is_an_error_that_leaves_nothing_and_is_over_when_there_is_room_again() {
    const TEST: &str = "a_full_disk_is_an_error_that_leaves_nothing_and_is_over_when_there_is_room_again";
    let _dog = Watchdog::new("");
    let Some(dir) = with_own_disk(TEST) else { return };
    let checkpoints = Checkpoints::open(&dir).unwrap().on_warning(|text| panic!("{text}"));
    checkpoints.save(1, &value(1, 900_000)).unwrap();
    let before = names(&dir);
    let error = checkpoints.save(2, &value(2, 1_500_000)).unwrap_err();
    assert_eq!((kind(&error), names(&dir)), (io::ErrorKind::StorageFull, before));
    let events = EventWriter::create(dir.join("events")).unwrap();
    let text = "x".repeat(3 << 20);
    let _ = events.write(1, Summary::new().text("much", &text));
    let EventError::Io { source, .. } = events.flush().unwrap_err() else { panic!("it was not cancelled") };
    assert_eq!(source.kind(), io::ErrorKind::StorageFull);
    fs::remove_dir_all(dir.join("events")).unwrap();
    checkpoints.save(3, &value(3, 900_000)).unwrap();
    let state = value(0, 0);
    assert_eq!(checkpoints.restore(&state).unwrap().unwrap().step, 3);
    assert!(state.get() == vec![3; 900_000]);
}

#[test]
fn a_disk_that_becomes_read_only_ends_the_job_and_what_is_there_can_be_restored() {
    const TEST: &str = "a_disk_that_becomes_read_only_ends_the_job_and_what_is_there_can_be_restored";
    let _dog = Watchdog::new("");
    let Some(dir) = with_own_disk(TEST) else { return };
    // The chief's lock is elsewhere: a disk on which a file is open for writing cannot become read-only.
    let place = TempDir::new().unwrap();
    let job = || {
        let checkpoints = Checkpoints::open(&dir).unwrap();
        let builder = Supervisor::builder(Snapshot::new(1, 0_u64)).dir(place.path()).checkpoints(checkpoints);
        builder.save_every(Some(LONG)).summarise_every(LONG).count_steps_every(LONG).no_events().build()
    };
    let error = job().run(|session| {
        session.step(|sum| sum.set(7))?;
        session.save_now()?;
        session.step(|sum| sum.set(8))?;
        make_read_only(&dir, true);
        Ok(drop(session.save_now()?))
    });
    let error = error.unwrap_err();
    let Some(SuperviseError::Checkpoint(saved)) = error.failure().unwrap().downcast_ref() else {
        panic!("{error:?}")
    };
    assert_eq!(kind(saved), io::ErrorKind::ReadOnlyFilesystem);
    // A job that starts there continues, and finds out at once that it cannot save.
    let refused = job().run(|session| {
        assert_eq!(session.state().get(), 7);
        Ok(session.wait_for_stop()?)
    });
    let refused = refused.unwrap_err();
    assert_eq!(refused.failure().unwrap().request(), "checkpoint");
    let (checkpoints, state) = (Checkpoints::open(&dir).unwrap(), Arc::new(Snapshot::new(1, 0_u64)));
    assert_eq!((checkpoints.restore(&state).unwrap().unwrap().step, state.get()), (1, 7));
    assert_eq!(kind(&checkpoints.save(9, &state).unwrap_err()), io::ErrorKind::ReadOnlyFilesystem);
    make_read_only(&dir, false);
    job().run(|session| Ok(assert_eq!(session.state().get(), 7))).unwrap();
}

/// Saves step after step for as long as it lives, files of which two or three fill the disk. Says what it tries, and what is saved.
fn save_for_ever(dir: &Path) -> ! {
    let checkpoints = Checkpoints::open(dir).unwrap().keep(2).on_warning(|_| ());
    let state = value(0, 0);
    let newest = checkpoints.restore(&state).unwrap().map_or(0, |restored| restored.step);
    for step in newest + 1.. {
        println!("tries {step}");
        match checkpoints.save(step, &value(step, 1 + (step as usize * 104_729) % 1_200_000)) {
            Ok(_) => println!("saved {step}"),
            Err(error) => assert_eq!(kind(&error), io::ErrorKind::StorageFull, "step {step}"),
        }
    }
    unreachable!("it is killed before")
}

#[test]
fn a_process_that_is_killed_on_a_full_disk_goes_on_at_the_newest_step() {
    const TEST: &str = "a_process_that_is_killed_on_a_full_disk_goes_on_at_the_newest_step";
    let _dog = Watchdog::new("");
    let Some(dir) = with_own_disk(TEST) else { return };
    if std::env::var_os("FOREBEAR_TEST_SEED").is_some() {
        save_for_ever(&dir);
    }
    let mut random = Random::new(23);
    let (newest, refused) = kill_saves(
        TEST,
        &[],
        kills(20),
        || Duration::from_micros(random.below(60_000) as u64),
        || {
            let state = value(0, 0);
            let restored = Checkpoints::open(&dir).unwrap().on_warning(|_| ()).restore(&state).unwrap();
            let step = restored.map_or(0, |restored| restored.step);
            assert!(
                state.get().iter().all(|byte| *byte == step as u8),
                "the state is not that of step {step}"
            );
            step
        },
    );
    assert!(newest > 0 && refused > 0, "{newest} steps; {refused} were refused, or killed");
}
