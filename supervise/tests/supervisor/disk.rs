//! Directories that cannot be written, and a disk that is full.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use forebear_supervise::{CheckpointError, Chief, Snapshot, SuperviseError, Supervisor};
use tempfile::TempDir;

use crate::support::{Watchdog, again_in_child, is_child};
use crate::{MS, count, counting, quiet, steps};

fn path_of(error: &SuperviseError) -> &Path {
    match error {
        SuperviseError::Io { path, .. } | SuperviseError::Checkpoint(CheckpointError::Io { path, .. }) => {
            path
        }
        error => panic!("{error:?}"),
    }
}

/// `/proc` takes no files, also from root.
#[test]
fn a_directory_that_cannot_be_written_is_an_error_at_the_start() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let mut places = vec![file.clone(), file.join("below")];
    if cfg!(target_os = "linux") {
        places.extend(["/proc".into(), "/proc/none".into()]);
    }
    for place in places {
        for chief in [Chief::Yes, Chief::Elect] {
            let supervisor = counting(&place).chief(chief).build();
            let error = supervisor.run(|_| -> Result<(), _> { panic!("it has begun") }).unwrap_err();
            assert!(path_of(&error).starts_with(&place) || place.starts_with(path_of(&error)), "{error:?}");
            assert!(std::error::Error::source(&error).is_some());
        }
    }
    // A process that only looks gets an error, too.
    let other = counting(&file).chief(Chief::No).wait_for_chief(MS).build();
    assert_eq!(path_of(&other.start().unwrap_err()), file);
}

#[test]
fn a_directory_that_is_taken_away_stops_the_job_at_the_next_save() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let place = dir.path().join("job");
    let supervisor = counting(&place).save_every(MS).build();
    let error = supervisor.run(|session| {
        fs::rename(&place, dir.path().join("elsewhere"))?;
        Ok(session.wait_for_stop()?)
    });
    let error = error.unwrap_err();
    let failure = error.failure().unwrap();
    assert_eq!(failure.request(), "checkpoint");
    assert!(matches!(failure.downcast_ref(), Some(SuperviseError::Checkpoint(_))), "{failure:?}");
}

/// Runs the test again in a process in which the system lets no file grow beyond 64 blocks. There, the directory that the test is to use.
fn with_small_files(test: &str) -> Option<OsString> {
    if is_child(test) {
        return Some(std::env::var_os("DIRECTORY").expect("the first process names it"));
    }
    let dir = TempDir::new().unwrap();
    let mark = ("DIRECTORY", dir.path().to_str().unwrap());
    let (ok, told) = again_in_child(test, mark, "trap '' XFSZ; ulimit -f 64;");
    assert!(ok, "{told}");
    None
}

#[test]
fn a_full_disk_ends_the_job_with_an_error_and_leaves_what_was_saved() {
    const TEST: &str = "disk::a_full_disk_ends_the_job_with_an_error_and_leaves_what_was_saved";
    let _dog = Watchdog::new("");
    let Some(dir) = with_small_files(TEST) else { return };
    let dir: &Path = dir.as_ref();
    let growing = || quiet(Supervisor::builder(Snapshot::new(1, vec![1_u64]))).dir(dir);
    // In the middle, and at the clean stop.
    for save_every in [Some(MS), None] {
        let supervisor = growing().save_every(save_every).build();
        let error = supervisor.run(|session| {
            session.step(|state| state.set(vec![u64::MAX; 1 << 20]))?;
            if save_every.is_some() { Ok(session.wait_for_stop()?) } else { Ok(()) }
        });
        let error = error.unwrap_err();
        match save_every {
            Some(_) => assert_eq!(error.failure().unwrap().request(), "checkpoint"),
            None => assert!(path_of(&error).starts_with(dir)),
        }
        growing().build().run(|session| Ok(assert_eq!(session.state().get(), [1]))).unwrap();
    }
    // By a save of one's own, which the job survives if it wants to.
    let supervisor = growing().save_every(None).save_on_stop(false).build();
    supervisor
        .run(|session| {
            session.state().set(vec![u64::MAX; 1 << 20]);
            assert!(matches!(session.save_now(), Err(SuperviseError::Checkpoint(_))));
            Ok(())
        })
        .unwrap();
}

/// A first checkpoint that cannot be written keeps the job from beginning.
#[test]
fn a_state_that_cannot_be_saved_is_found_at_the_start() {
    const TEST: &str = "disk::a_state_that_cannot_be_saved_is_found_at_the_start";
    let _dog = Watchdog::new("");
    let Some(dir) = with_small_files(TEST) else { return };
    let supervisor = quiet(Supervisor::builder(Snapshot::new(1, vec![u64::MAX; 1 << 20]))).dir(&dir).build();
    let error = supervisor.run(|_| -> Result<(), _> { panic!("it has begun") }).unwrap_err();
    assert!(matches!(error, SuperviseError::Checkpoint(_)), "{error:?}");
    // The place is free again, and the directory can be used.
    let supervisor = counting(dir.as_ref()).build();
    supervisor.run(count).unwrap();
    assert_eq!(steps(dir.as_ref())[0], 1);
}

/// The system lets no file of this process have a byte.
#[test]
fn a_place_that_cannot_be_noted_is_given_up() {
    const TEST: &str = "disk::a_place_that_cannot_be_noted_is_given_up";
    let _dog = Watchdog::new("");
    if !is_child(TEST) {
        let dir = TempDir::new().unwrap();
        let mark = ("DIRECTORY", dir.path().to_str().unwrap());
        let (ok, told) = again_in_child(TEST, mark, "trap '' XFSZ; ulimit -f 0;");
        assert!(ok, "{told}");
        counting(dir.path()).build().run(|_| Ok(())).unwrap();
        return;
    }
    let dir = std::env::var_os("DIRECTORY").unwrap();
    let supervisor = counting(dir.as_ref()).build();
    for _ in 0..2 {
        let error = supervisor.start().unwrap_err();
        assert!(path_of(&error).ends_with("chief.lock"), "{error:?}");
    }
}
