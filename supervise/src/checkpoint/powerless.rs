//! Saves on a file system that refuses a step, tears a write, or loses power.
//!
//! # The faulting layer
//!
//! [`Faulty`] passes each step on to the system, and counts it. At the step that a test names it does half of it, if it can be halved, and answers with an error.
//!
//! # Power
//!
//! [`Noting`] notes all steps of some saves. [`Remains`] goes through them up to any moment, and makes a directory as a loss of power at that moment may leave it:
//!
//! * of a file, what was synced is there. Of the bytes that were written since, each block of the file may be there, or be zeros, and the file may be shorter;
//! * of the names, those are there that the last sync of the directory has covered. Of the changes since, each may be there or not.
//!
//! That is less than any file system promises that is in use. A restore from there must answer the newest step that was reported as saved, or the one that was being
//! saved, without an error.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::disk::{Disk, Output, Real};
use super::{CheckpointError, Checkpoints, Shared, Snapshot};

fn on(dir: &Path, disk: impl Disk + 'static) -> Checkpoints {
    let checkpoints = Checkpoints::open(dir).unwrap().keep(2).on_warning(|_| {});
    let shared = Shared { disk: Arc::new(disk), ..Shared::clone(&checkpoints.0) };
    Checkpoints(Arc::new(shared))
}

/// Of different sizes, some of which take several writes.
fn value(save: u64) -> Vec<u64> {
    vec![save; 1 + (save as usize * 7_919) % 100_000]
}

fn state(save: u64) -> Arc<Snapshot<Vec<u64>>> {
    Arc::new(Snapshot::new(1, value(save)))
}

/// The step that a restore from there begins with, whose state is checked; 0 if nothing is there.
fn restored(dir: &Path) -> Result<u64, CheckpointError> {
    let into = Arc::new(Snapshot::new(1, Vec::<u64>::new()));
    let Some(found) = Checkpoints::open(dir)?.on_warning(|_| {}).restore(&into)? else { return Ok(0) };
    assert!(into.get() == value(found.step), "the state is not that of step {}", found.step);
    Ok(found.step)
}

// ---- a step that is refused ----------------------------------------------------------------------------------------------

struct Faulty {
    count: Arc<Mutex<Count>>,
}

struct Count {
    done: u64,
    /// This step and all that follow are refused; or it alone.
    fails_at: u64,
    for_good: bool,
}

impl Count {
    fn fails(&mut self) -> bool {
        self.done += 1;
        self.done == self.fails_at || self.for_good && self.done > self.fails_at
    }
}

impl Faulty {
    fn step(&self, f: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        if self.count.lock().unwrap().fails() { Err(io::ErrorKind::StorageFull.into()) } else { f() }
    }
}

struct FaultyFile {
    file: Box<dyn Output>,
    count: Arc<Mutex<Count>>,
}

impl Disk for Faulty {
    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        self.step(|| Ok(()))?;
        Ok(Box::new(FaultyFile { file: Real.create(path)?, count: self.count.clone() }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step(|| Real.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.step(|| Real.remove(path))
    }

    fn sync_names(&self, dir: &Path) -> io::Result<()> {
        self.step(|| Real.sync_names(dir))
    }
}

impl Write for FaultyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.count.lock().unwrap().fails() {
            self.file.write_all(&bytes[..bytes.len() / 2])?;
            return Err(io::ErrorKind::StorageFull.into());
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Output for FaultyFile {
    fn sync(&mut self) -> io::Result<()> {
        if self.count.lock().unwrap().fails() {
            Err(io::ErrorKind::StorageFull.into())
        } else {
            self.file.sync()
        }
    }
}

#[test]
fn a_step_that_is_refused_and_a_write_that_is_torn_leave_what_was_saved() {
    for for_good in [false, true] {
        let mut refused = 0;
        for fails_at in 1.. {
            let dir = tempfile::tempdir().unwrap();
            let sound = on(dir.path(), Real);
            (1..=3).for_each(|step| drop(sound.save(step, &state(step)).unwrap()));
            let count = Arc::new(Mutex::new(Count { done: 0, fails_at, for_good }));
            let faulty = on(dir.path(), Faulty { count: count.clone() });
            let saved = faulty.save(4, &state(4));
            let newest = restored(dir.path()).unwrap();
            match &saved {
                // Old files that stay and an index that is old are warnings.
                Ok(saved) => assert_eq!((saved.step, newest), (4, 4), "refused step {fails_at}"),
                Err(CheckpointError::Io { .. }) => assert!(newest == 3 || newest == 4),
                Err(other) => panic!("refused step {fails_at}: {other:?}"),
            }
            refused += u64::from(saved.is_err());
            // A later save finds nothing in its way.
            sound.save(5, &state(5)).unwrap();
            assert_eq!(restored(dir.path()).unwrap(), 5, "refused step {fails_at}");
            if count.lock().unwrap().done < fails_at {
                break;
            }
        }
        assert!(refused >= 5, "{refused}: opening, writing, the sync, the rename and the sync of the names");
    }
}

// ---- power ---------------------------------------------------------------------------------------------------------------

#[derive(Clone)]
enum Step {
    /// A file of this number is at this path from now on, empty.
    Create(u64, PathBuf),
    Write(u64, Vec<u8>),
    Sync(u64),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
    SyncNames,
    /// The save of this step has been reported.
    Reported(u64),
}

type Notes = Arc<Mutex<Vec<Step>>>;

struct Noting(Notes);

struct NotingFile(Box<dyn Output>, u64, Notes);

impl Noting {
    fn note(&self, step: Step) {
        self.0.lock().unwrap().push(step);
    }
}

impl Disk for Noting {
    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        let number = self.0.lock().unwrap().len() as u64;
        self.note(Step::Create(number, path.to_owned()));
        Ok(Box::new(NotingFile(Real.create(path)?, number, self.0.clone())))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.note(Step::Rename(from.to_owned(), to.to_owned()));
        Real.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.note(Step::Remove(path.to_owned()));
        Real.remove(path)
    }

    fn sync_names(&self, _: &Path) -> io::Result<()> {
        self.note(Step::SyncNames);
        Ok(())
    }
}

impl Write for NotingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.0.write(bytes)?;
        self.2.lock().unwrap().push(Step::Write(self.1, bytes[..written].to_vec()));
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Output for NotingFile {
    fn sync(&mut self) -> io::Result<()> {
        self.2.lock().unwrap().push(Step::Sync(self.1));
        Ok(())
    }
}

/// What is on disk for certain, and what may be there.
#[derive(Clone, Default)]
struct Remains {
    names: BTreeMap<PathBuf, u64>,
    /// Since the last sync of the names.
    changes: Vec<Step>,
    /// Of each file all that was written, and how much of it is synced.
    files: BTreeMap<u64, (Vec<u8>, usize)>,
}

/// Bytes of a file that come to the disk together.
const BLOCK: usize = 4_096;

impl Remains {
    fn goes_on(&mut self, step: &Step) {
        match step {
            Step::Create(number, _) => {
                self.files.insert(*number, (Vec::new(), 0));
                self.changes.push(step.clone());
            }
            Step::Write(number, bytes) => self.files.get_mut(number).unwrap().0.extend(bytes),
            Step::Sync(number) => {
                let (bytes, synced) = self.files.get_mut(number).unwrap();
                *synced = bytes.len();
            }
            Step::Rename(..) | Step::Remove(_) => self.changes.push(step.clone()),
            Step::SyncNames => {
                for change in std::mem::take(&mut self.changes) {
                    self.changes_names(&change);
                }
            }
            Step::Reported(_) => {}
        }
    }

    fn changes_names(&mut self, change: &Step) {
        match change {
            Step::Create(number, path) => drop(self.names.insert(path.clone(), *number)),
            // Its file may have been made by a change that is lost: then there is nothing to rename.
            Step::Rename(from, to) => {
                if let Some(number) = self.names.remove(from) {
                    self.names.insert(to.clone(), number);
                }
            }
            Step::Remove(path) => drop(self.names.remove(path)),
            _ => {}
        }
    }

    /// A directory as it may be left. `lasts` says of each thing that may last whether it does.
    fn left(&self, lasts: &mut dyn FnMut() -> bool, within: &Path) {
        let mut left = self.clone();
        for change in std::mem::take(&mut left.changes) {
            if lasts() {
                left.changes_names(&change);
            }
        }
        for (path, number) in &left.names {
            let (bytes, synced) = &left.files[number];
            let mut bytes = bytes.clone();
            let mut at = *synced;
            while at < bytes.len() {
                let end = bytes.len().min(at + BLOCK);
                if !lasts() {
                    bytes[at..end].fill(0);
                }
                at = end;
            }
            if !lasts() {
                bytes.truncate(synced + (bytes.len() - synced) / 2);
            }
            fs::write(within.join(path.file_name().unwrap()), bytes).unwrap();
        }
    }
}

/// A choice of what lasts: everything, nothing, or each by the bits of a number that is drawn.
fn chooser(seed: u64) -> impl FnMut() -> bool {
    let mut number = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    move || match seed {
        0 => true,
        1 => false,
        _ => {
            number ^= number << 13;
            number ^= number >> 7;
            number ^= number << 17;
            number >> 32 & 1 == 0
        }
    }
}

#[test]
fn whatever_a_loss_of_power_leaves_the_newest_step_that_was_reported_is_restored() {
    let dir = tempfile::tempdir().unwrap();
    let notes = Notes::default();
    let checkpoints = on(dir.path(), Noting(notes.clone()));
    for step in [1, 2, 3, 4, 5] {
        checkpoints.save(step, &state(step)).unwrap();
        notes.lock().unwrap().push(Step::Reported(step));
    }
    let steps = notes.lock().unwrap().clone();
    let (mut remains, mut reported, mut newer) = (Remains::default(), 0, 0);
    for (at, step) in steps.iter().enumerate() {
        remains.goes_on(step);
        if let Step::Reported(step) = step {
            reported = *step;
        }
        for seed in 0..12 {
            let left = tempfile::tempdir().unwrap();
            let mut lasts = chooser(if seed < 2 { seed } else { seed + 12 * at as u64 });
            remains.left(&mut lasts, left.path());
            let found = restored(left.path());
            let found = found.unwrap_or_else(|error| panic!("after step {at}, by choice {seed}: {error}"));
            assert!(
                found == reported || found == reported + 1,
                "after step {at}, by choice {seed}: {reported} was reported, {found} is there"
            );
            newer += u64::from(found > reported);
        }
    }
    assert!(newer > 0, "nothing came to the disk before it was reported");
}

// ---- several writers ------------------------------------------------------------------------------------------------------

/// Each writer has a handle of its own, as another process has. One that opens the file just before another renames it has opened a checkpoint.
#[test]
fn a_writer_that_comes_as_another_ends_leaves_its_checkpoint_alone() {
    const SAVES: u64 = 100;
    let dir = tempfile::tempdir().unwrap();
    let writer = |first: u64| {
        let checkpoints = Checkpoints::open(dir.path()).unwrap().keep(0).on_warning(|_| {});
        for step in first..first + SAVES {
            while let Err(error) = checkpoints.save(step, &state(step % 7)) {
                assert!(matches!(error, CheckpointError::Busy { .. }), "{error:?}");
                std::thread::yield_now();
            }
        }
    };
    std::thread::scope(|scope| {
        (0..4).for_each(|n| drop(scope.spawn(move || writer(n * SAVES))));
    });
    let saved = Checkpoints::open(dir.path()).unwrap();
    for step in 0..4 * SAVES {
        let into = Arc::new(Snapshot::new(1, Vec::<u64>::new()));
        saved.restore_from(dir.path().join(format!("checkpoint-{step:012}")), &into).unwrap();
        assert!(into.get() == value(step % 7), "step {step}");
    }
}
