//! Directories in which something else stands than what this crate puts there: pipes, links, directories, copies. No thread waits for them, and no other file is changed.
#![cfg(unix)]

#[path = "../../tests/support/mod.rs"]
mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebear_supervise::{CheckpointError, Checkpoints, Chief, Snapshot, SuperviseError, Supervisor};
use support::Watchdog;
use tempfile::TempDir;

/// Longer than any test goes on.
const LONG: Duration = Duration::from_secs(1_000_000);

fn pipe(path: &Path) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

fn counting(dir: &Path) -> Supervisor<Snapshot<u64>> {
    let builder = Supervisor::builder(Snapshot::new(1, 0)).dir(dir).no_events();
    builder.save_every(LONG).count_steps_every(LONG).build()
}

/// What one may find at a name in place of a file, made there.
fn strange(kind: &str, at: &Path, precious: &Path) {
    match kind {
        "a pipe" => pipe(at),
        "a link" => symlink(precious, at).unwrap(),
        "a link to itself" => symlink(at, at).unwrap(),
        _ => fs::create_dir(at).unwrap(),
    }
}

const KINDS: [&str; 4] = ["a pipe", "a link", "a link to itself", "a directory"];

#[test]
fn what_is_no_checkpoint_is_neither_restored_nor_removed_nor_in_the_way() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let at = |name: &str| dir.path().join(name);
    pipe(&at("checkpoint-000000000008"));
    fs::create_dir(at("checkpoint-000000000007")).unwrap();
    symlink(at("nowhere"), at("checkpoint-000000000006")).unwrap();
    fs::create_dir(at("checkpoint-old")).unwrap();
    fs::write(dir.path().join(OsStr::from_bytes(b"checkpoint-\xff")), "x").unwrap();
    let warned = Arc::new(Mutex::new(Vec::new()));
    let list = warned.clone();
    let checkpoints = Checkpoints::open(dir.path())
        .unwrap()
        .keep(1)
        .on_warning(move |text| list.lock().unwrap().push(text.to_owned()));
    let state = Arc::new(Snapshot::new(1, 0_u64));
    assert_eq!(checkpoints.restore(&state).unwrap(), None, "a job begins there");
    checkpoints.save(1, &state).unwrap();
    // Copies of one's own, which keep their number.
    let copies = ["checkpoint-000000000001.good", "checkpoint-1", "checkpoint-"].map(at);
    for copy in &copies {
        fs::copy(at("checkpoint-000000000001"), copy).unwrap();
    }
    for step in 2..5 {
        state.set(step);
        checkpoints.save(step, &state).unwrap();
        assert_eq!(checkpoints.list().unwrap().iter().map(|one| one.step).collect::<Vec<_>>(), [step]);
    }
    assert!(copies.iter().all(|copy| copy.exists()));
    assert!(at("checkpoint-old").is_dir() && at("checkpoint-000000000007").is_dir());
    assert_eq!(warned.lock().unwrap().len(), 0);
    let copy = checkpoints.restore_from(&copies[0], &state).unwrap();
    assert_eq!((copy.step, state.get()), (1, 0), "by its name it can be restored");
}

/// A file under a checkpoint's name that is none is another matter: it may be a damaged one.
#[test]
fn a_link_to_a_checkpoint_elsewhere_is_restored_and_only_the_link_is_removed() {
    let _dog = Watchdog::new("");
    let (dir, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
    let state = Arc::new(Snapshot::new(1, 7_u64));
    let saved = Checkpoints::open(elsewhere.path()).unwrap().save(3, &state).unwrap();
    let link = dir.path().join("checkpoint-000000000003");
    symlink(&saved.path, &link).unwrap();
    let checkpoints = Checkpoints::open(dir.path()).unwrap().keep(1);
    state.set(0);
    assert_eq!(checkpoints.restore(&state).unwrap().map(|one| one.step), Some(3));
    assert_eq!(state.get(), 7);
    checkpoints.save(4, &state).unwrap();
    assert!(!link.exists() && saved.path.exists());
}

#[test]
fn a_save_writes_through_no_link_and_waits_for_no_pipe() {
    let _dog = Watchdog::new("");
    for kind in KINDS {
        let (dir, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let precious = elsewhere.path().join("precious");
        fs::write(&precious, "precious").unwrap();
        let at = dir.path().join(".checkpoint.tmp");
        strange(kind, &at, &precious);
        let checkpoints = Checkpoints::open(dir.path()).unwrap();
        let state = Arc::new(Snapshot::new(1, 7_u64));
        let error = checkpoints.save(1, &state).unwrap_err();
        assert!(matches!(&error, CheckpointError::Io { path, .. } if *path == at), "{kind}: {error:?}");
        assert_eq!(fs::read(&precious).unwrap(), b"precious", "{kind}");
        // The index is for human beings: a checkpoint is saved without it.
        fs::rename(&at, dir.path().join(".checkpoints.tmp")).unwrap();
        let checkpoints = checkpoints.on_warning(|_| ());
        checkpoints.save(1, &state).unwrap();
        assert_eq!(checkpoints.restore(&state).unwrap().map(|one| one.step), Some(1), "{kind}");
        assert_eq!(fs::read(&precious).unwrap(), b"precious", "{kind}");
    }
}

#[test]
fn a_chief_waits_for_no_pipe_and_writes_through_no_link() {
    let _dog = Watchdog::new("");
    for (kind, name) in
        KINDS.into_iter().flat_map(|kind| ["chief.lock", ".chief.guard"].map(|name| (kind, name)))
    {
        let (dir, elsewhere) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let precious = elsewhere.path().join("precious");
        fs::write(&precious, "precious").unwrap();
        let at = dir.path().join(name);
        strange(kind, &at, &precious);
        let others = Supervisor::builder(Snapshot::new(1, 0_u64)).dir(dir.path()).chief(Chief::No).build();
        for error in [counting(dir.path()).start().unwrap_err(), others.start().unwrap_err()] {
            let SuperviseError::Io { path, .. } = &error else { panic!("{kind}, {name}: {error:?}") };
            assert_eq!(*path, at, "{kind}, {name}");
        }
        assert_eq!(fs::read(&precious).unwrap(), b"precious", "{kind}, {name}");
    }
}

/// The lock belongs to the file, whatever leads to it.
#[test]
fn of_two_chiefs_that_come_by_different_paths_the_second_is_refused() {
    let _dog = Watchdog::new("");
    let place = TempDir::new().unwrap();
    let (real, link): (PathBuf, PathBuf) = (place.path().join("job"), place.path().join("link"));
    fs::create_dir(&real).unwrap();
    symlink(&real, &link).unwrap();
    let first = counting(&real);
    first.start().unwrap();
    assert!(matches!(counting(&link).start(), Err(SuperviseError::SecondChief { .. })));
    first.stop().unwrap();
    counting(&link).run(|_| Ok(())).unwrap();
}

/// If the directory of a running job is cleared and another job starts there, there are two jobs; one of them writes.
#[test]
fn a_chief_whose_lock_was_removed_does_not_save_into_the_directory_of_the_next_one() {
    let _dog = Watchdog::new("");
    for all in [true, false] {
        let place = TempDir::new().unwrap();
        let dir = place.path().join("job");
        let (first, second) = (counting(&dir), counting(&dir));
        let session = first.start().unwrap();
        session.step(|sum| sum.set(1)).unwrap();
        if all {
            fs::remove_dir_all(&dir).unwrap();
        } else {
            fs::remove_file(dir.join("chief.lock")).unwrap();
            session.save_now().unwrap();
        }
        second.start().unwrap();
        let record = || fs::read_to_string(dir.join("chief.lock")).unwrap();
        let before = record();
        let error = session.save_now().unwrap_err();
        assert!(matches!(error, SuperviseError::SecondChief { process: Some(_), .. }), "{error:?}");
        assert!(matches!(first.stop(), Err(SuperviseError::SecondChief { .. })));
        assert_eq!(record(), before, "the record of the second one");
        let steps: Vec<_> =
            Checkpoints::open(&dir).unwrap().list().unwrap().iter().map(|one| one.step).collect();
        assert_eq!(steps[0], if all { 0 } else { 1 });
        second.stop().unwrap();
    }
}

#[test]
fn a_directory_at_whose_name_something_else_stands_is_named_with_what_to_do() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let (file, link) = (dir.path().join("file"), dir.path().join("link"));
    fs::write(&file, "precious").unwrap();
    symlink(dir.path().join("nowhere"), &link).unwrap();
    for at in [&file, &link, &file.join("below")] {
        let checkpoints = Checkpoints::open(at).unwrap_err();
        let supervisor = counting(at).run(|_| Ok(())).unwrap_err();
        for error in [forebear::Error::from(checkpoints), forebear::Error::from(supervisor)] {
            let text = format!("{error:#}");
            assert!(text.contains(at.to_str().unwrap()), "{text}");
            assert!(text.contains("no directory stands there"), "{text}");
        }
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), "precious");
}
