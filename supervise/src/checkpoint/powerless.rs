//! Saves on a file system that loses power.
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
use std::thread::JoinHandle;

use super::disk::{Disk, Output, Real};
use super::faulty::{on, restored, state};

#[derive(Clone)]
enum DiskStep {
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

type Notes = Arc<Mutex<Vec<DiskStep>>>;

struct Noting(Notes);

struct NotingFile(Box<dyn Output>, u64, Notes);

impl Noting {
    fn note(&self, step: DiskStep) {
        self.0.lock().unwrap().push(step);
    }
}

impl Disk for Noting {
    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        let number = {
            // Two files may be created at once.
            let mut notes = self.0.lock().unwrap();
            let number = notes.len() as u64;
            notes.push(DiskStep::Create(number, path.to_owned()));
            number
        };
        Ok(Box::new(NotingFile(Real.create(path)?, number, self.0.clone())))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.note(DiskStep::Rename(from.to_owned(), to.to_owned()));
        Real.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<Option<JoinHandle<()>>> {
        self.note(DiskStep::Remove(path.to_owned()));
        Real.remove(path)
    }

    fn sync_names(&self, _: &Path) -> io::Result<()> {
        self.note(DiskStep::SyncNames);
        Ok(())
    }
}

impl Write for NotingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.0.write(bytes)?;
        self.2.lock().unwrap().push(DiskStep::Write(self.1, bytes[..written].to_vec()));
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl Output for NotingFile {
    fn sync(&mut self) -> io::Result<()> {
        self.2.lock().unwrap().push(DiskStep::Sync(self.1));
        Ok(())
    }
}

/// What is on disk for certain, and what may be there.
#[derive(Clone, Default)]
struct Remains {
    names: BTreeMap<PathBuf, u64>,
    /// Since the last sync of the names.
    changes: Vec<DiskStep>,
    /// Of each file all that was written, and how much of it is synced.
    files: BTreeMap<u64, (Vec<u8>, usize)>,
}

/// Bytes of a file that come to the disk together.
const BLOCK: usize = 4_096;

impl Remains {
    fn goes_on(&mut self, step: &DiskStep) {
        match step {
            DiskStep::Create(number, _) => {
                self.files.insert(*number, (Vec::new(), 0));
                self.changes.push(step.clone());
            }
            DiskStep::Write(number, bytes) => self.files.get_mut(number).unwrap().0.extend(bytes),
            DiskStep::Sync(number) => {
                let (bytes, synced) = self.files.get_mut(number).unwrap();
                *synced = bytes.len();
            }
            DiskStep::Rename(..) | DiskStep::Remove(_) => self.changes.push(step.clone()),
            DiskStep::SyncNames => {
                for change in std::mem::take(&mut self.changes) {
                    self.changes_names(&change);
                }
            }
            DiskStep::Reported(_) => {}
        }
    }

    fn changes_names(&mut self, change: &DiskStep) {
        match change {
            DiskStep::Create(number, path) => drop(self.names.insert(path.clone(), *number)),
            // Its file may have been made by a change that is lost: then there is nothing to rename.
            DiskStep::Rename(from, to) => {
                if let Some(number) = self.names.remove(from) {
                    self.names.insert(to.clone(), number);
                }
            }
            DiskStep::Remove(path) => drop(self.names.remove(path)),
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
    // With one file, a removal that is on disk before the name of the new file would leave nothing.
    [1, 2].into_iter().for_each(lose_power);
}

fn lose_power(keep: usize) {
    let dir = tempfile::tempdir().unwrap();
    let notes = Notes::default();
    let checkpoints = on(dir.path(), Noting(notes.clone())).keep(keep);
    for step in [1, 2, 3, 4, 5] {
        checkpoints.save(step, &state(step)).unwrap();
        notes.lock().unwrap().push(DiskStep::Reported(step));
    }
    let steps = notes.lock().unwrap().clone();
    let (mut remains, mut reported, mut newer) = (Remains::default(), 0, 0);
    for (at, step) in steps.iter().enumerate() {
        remains.goes_on(step);
        if let DiskStep::Reported(step) = step {
            reported = *step;
        }
        for seed in 0..8 {
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
