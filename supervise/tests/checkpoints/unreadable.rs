//! What the system refuses, now or for good, is an error that says so, and loses no saved step.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use forebear_supervise::{CheckpointError, Checkpoints, Snapshot};
use tempfile::TempDir;

use crate::support::{self, Watchdog};
use crate::{names, open};

#[test]
fn a_directory_that_cannot_be_written_is_an_error_with_its_path() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Checkpoints::open(file.join("below")).unwrap_err();
    assert!(matches!(&error, CheckpointError::Io { path, .. } if path.starts_with(&file)), "{error:?}");
    let checkpoints = Checkpoints::open(dir.path().join("soon gone")).unwrap();
    fs::remove_dir(checkpoints.dir()).unwrap();
    let state = Arc::new(Snapshot::new(1, 0));
    assert!(matches!(checkpoints.save(1, &state), Err(CheckpointError::Io { .. })));
    assert!(matches!(checkpoints.restore(&state), Err(CheckpointError::Io { .. })));
}

/// The system lets no file of this process grow beyond 64 blocks.
#[test]
fn a_save_that_the_disk_has_no_room_for_is_an_error_and_leaves_the_old_files() {
    const TEST: &str =
        "unreadable::a_save_that_the_disk_has_no_room_for_is_an_error_and_leaves_the_old_files";
    if !support::is_child(TEST) {
        let dir = TempDir::new().unwrap();
        let mark = ("DIRECTORY", dir.path().to_str().unwrap());
        let (ok, told) = support::again_in_child(TEST, mark, "trap '' XFSZ; ulimit -f 64;");
        assert!(ok, "{told}");
        return;
    }
    let checkpoints = Checkpoints::open(std::env::var_os("DIRECTORY").unwrap()).unwrap();
    checkpoints.save(1, &Arc::new(Snapshot::new(1, vec![1_u64]))).unwrap();
    // Also one that would have replaced the old file.
    for step in [2, 1] {
        let error = checkpoints.save(step, &Arc::new(Snapshot::new(1, vec![u64::MAX; 1 << 20]))).unwrap_err();
        assert!(matches!(error, CheckpointError::Io { .. }), "{error:?}");
    }
    let state = Arc::new(Snapshot::new(1, Vec::<u64>::new()));
    assert_eq!(checkpoints.restore(&state).unwrap().unwrap().step, 1);
    assert_eq!(names(checkpoints.dir()), ["checkpoint-000000000001", "checkpoints"]);
}

/// Makes the file unreadable for a while, in a way that holds for every user. The answer makes it readable again.
#[cfg(unix)]
fn hidden(path: &Path, how: &str) -> Box<dyn FnOnce()> {
    let path = path.to_owned();
    let bytes = fs::read(&path).unwrap();
    if how == "a later format" {
        let mut later = bytes.clone();
        later[8] = 2;
        fs::write(&path, later).unwrap();
        return Box::new(move || fs::write(path, bytes).unwrap());
    }
    fs::remove_file(&path).unwrap();
    // The system refuses to open it: too many links.
    std::os::unix::fs::symlink(&path, &path).unwrap();
    Box::new(move || {
        fs::remove_file(&path).unwrap();
        fs::write(path, bytes).unwrap();
    })
}

#[cfg(unix)]
fn says(how: &str, error: &CheckpointError) -> bool {
    match error {
        CheckpointError::Io { .. } => how == "refused by the system",
        CheckpointError::Version { found: 2, .. } => how == "a later format",
        _ => false,
    }
}

#[cfg(unix)]
const UNREADABLE: [&str; 2] = ["refused by the system", "a later format"];

#[cfg(unix)]
#[test]
fn a_file_that_cannot_be_read_never_makes_the_sequence_go_back() {
    let _dog = Watchdog::new("");
    for how in UNREADABLE {
        let dir = TempDir::new().unwrap();
        let (checkpoints, _) = open(&dir);
        let state = Arc::new(Snapshot::new(1, 7_u64));
        for step in 1..=3 {
            checkpoints.save(step, &state).unwrap();
        }
        let newest = checkpoints.list().unwrap().remove(0);
        let show = hidden(&newest.path, how);
        let error = checkpoints.save(10, &state).expect_err(how);
        assert!(says(how, &error), "{how}: {error:?}");
        show();
        state.set(8);
        let saved = checkpoints.save(10, &state).unwrap();
        assert_eq!(saved.sequence, newest.sequence + 1, "{how}");
        let restored = Arc::new(Snapshot::new(1, 0_u64));
        assert_eq!(checkpoints.restore(&restored).unwrap().unwrap(), saved, "{how}");
        assert_eq!(restored.get(), 8);
    }
}

/// The system gives this process 64 descriptors, of which the test leaves only a few.
#[cfg(unix)]
#[test]
fn a_save_that_is_answered_ok_is_the_newest_however_few_descriptors_there_are() {
    const TEST: &str =
        "unreadable::a_save_that_is_answered_ok_is_the_newest_however_few_descriptors_there_are";
    if !support::is_child(TEST) {
        let dir = TempDir::new().unwrap();
        let mark = ("DIRECTORY", dir.path().to_str().unwrap());
        let (ok, told) = support::again_in_child(TEST, mark, "ulimit -n 64;");
        assert!(ok, "{told}");
        return;
    }
    let checkpoints = Checkpoints::open(std::env::var_os("DIRECTORY").unwrap()).unwrap().on_warning(|_| {});
    let state = Arc::new(Snapshot::new(1, 0_u64));
    let mut newest = 0;
    for step in 1..=3 {
        checkpoints.save(step, &state).unwrap();
        newest = step;
    }
    for left in 0..8 {
        let mut held = Vec::new();
        while let Ok(file) = fs::File::open("/dev/null") {
            held.push(file);
        }
        held.truncate(held.len() - left);
        let step = 10 + left as u64;
        let saved = checkpoints.save(step, &state);
        drop(held);
        match saved {
            Ok(saved) => newest = saved.step,
            Err(error) => {
                assert!(matches!(error, CheckpointError::Io { .. }), "{left} descriptors: {error:?}");
            }
        }
        assert_eq!(checkpoints.restore(&state).unwrap().unwrap().step, newest, "{left} descriptors");
    }
    assert_eq!(newest, 17, "with enough of them it is saved");
    assert_eq!(checkpoints.list().unwrap().len(), 5, "as many as are kept");
}

#[cfg(unix)]
#[test]
fn only_a_damaged_file_is_passed_over_and_one_that_cannot_be_read_now_ends_the_restore() {
    let _dog = Watchdog::new("");
    for how in UNREADABLE {
        let dir = TempDir::new().unwrap();
        let (checkpoints, warnings) = open(&dir);
        for step in 1..=3 {
            checkpoints.save(step, &Arc::new(Snapshot::new(1, step))).unwrap();
        }
        let newest = checkpoints.list().unwrap().remove(0);
        let show = hidden(&newest.path, how);
        let state = Arc::new(Snapshot::new(1, 0_u64));
        let error = checkpoints.restore(&state).expect_err(how);
        assert!(says(how, &error) && state.get() == 0, "{how}: {error:?}");
        let error = checkpoints.list().expect_err(how);
        assert!(says(how, &error), "{how}: {error:?}");
        assert!(warnings.lock().unwrap().is_empty(), "{warnings:?}");
        show();
        assert_eq!(checkpoints.restore(&state).unwrap(), Some(newest), "{how}");
    }
}

#[test]
fn a_warning_about_the_index_says_what_the_system_has_refused() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let (checkpoints, warnings) = open(&dir);
    fs::create_dir(dir.path().join("checkpoints")).unwrap();
    checkpoints.save(1, &Arc::new(Snapshot::new(1, 0_u64))).unwrap();
    let refused = fs::rename(dir.path().join("checkpoint-000000000001"), dir.path().join("checkpoints"));
    let (told, why) = (warnings.lock().unwrap().join("\n"), refused.unwrap_err().to_string());
    assert!(told.contains(&why), "{told} does not say: {why}");
}

#[test]
fn an_empty_path_names_no_directory_and_that_is_told_with_what_to_do() {
    let _dog = Watchdog::new("");
    let error = Checkpoints::open("").unwrap_err();
    assert!(matches!(error, CheckpointError::Io { .. }), "{error:?}");
    let supervisor = forebear_supervise::Supervisor::builder(Snapshot::new(1, 0_u64)).dir("").build();
    for text in [format!("{error:#}"), format!("{:#}", supervisor.run(|_| Ok(())).unwrap_err())] {
        assert!(text.contains("the path is empty") && text.contains("`.`"), "{text}");
    }
}
