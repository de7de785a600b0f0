//! [`Files`]: the store of [`LocalProcesses`](crate::LocalProcesses), a directory that all processes of the job know.
//!
//! An object is a file. It is written under another name and then renamed, so a reader finds all of it or nothing.
//!
//! # Who removes the directory
//!
//! The coordinator holds a lock on the file `lock` in it, which the system takes away when the coordinator ends, however it ends. The coordinator removes the directory with its last handle. If it is killed, a
//! worker that ends afterwards takes the lock and removes the directory; if none does, the next coordinator on this machine does. Nobody removes a directory whose lock is held.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::Arc;

use forebear::timer::local::LocalTimerHandle;
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;

use crate::engine::{ObjectId, ObjectStore, StoreError};

/// Between the name of an object and the process that is writing it.
const NEW: &str = ".new-";
/// What the names of such directories begin with.
const PREFIX: &str = "forebear-cluster-";
const LOCK: &str = "lock";

pub(crate) struct Files {
    dir: PathBuf,
    /// The lock, in the coordinator.
    lock: Option<File>,
    /// The server whose socket stands in the directory.
    timers: Option<LocalTimerHandle>,
}

impl Files {
    /// A new directory, which other users cannot read. Removes what killed coordinators have left beside it.
    pub(crate) fn make(base: &Path) -> io::Result<Files> {
        sweep(base);
        let number = RandomState::new().hash_one(process::id());
        let dir = base.join(format!("{PREFIX}{}-{number:016x}", process::id()));
        DirBuilder::new().mode(0o700).create(&dir)?;
        let locked = || {
            let new = dir.join("lock.new");
            let lock = File::create(&new)?;
            flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
            // A process that finds it under its name finds it locked.
            fs::rename(new, dir.join(LOCK))?;
            Ok(lock)
        };
        match locked() {
            Ok(lock) => Ok(Files { dir, lock: Some(lock), timers: None }),
            Err(error) => {
                let _ = fs::remove_dir_all(&dir);
                Err(error)
            }
        }
    }

    /// The directory of a coordinator, in its worker.
    pub(crate) fn open(dir: PathBuf) -> Files {
        Files { dir, lock: None, timers: None }
    }

    /// The server ends with the directory.
    pub(crate) fn with_timers(&mut self, timers: Option<LocalTimerHandle>) {
        self.timers = timers;
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Removes the directory if its coordinator does not live any more.
    pub(crate) fn remove_if_left(&self) {
        remove_if_left(&self.dir);
    }

    /// Removes what this process, which has ended, was about to put.
    pub(crate) fn forget_process(&self, process: u32) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        let end = format!("{NEW}{process}");
        let its = |name: &OsStr| name.to_str().is_some_and(|name| name.ends_with(&end));
        for entry in entries.flatten().filter(|entry| its(&entry.file_name())) {
            let _ = fs::remove_file(entry.path());
        }
    }

    fn path(&self, object: ObjectId) -> PathBuf {
        self.dir.join(object.to_string())
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        if let Some(timers) = self.timers.take() {
            // A hook that hangs is left to itself.
            let _ = timers.stop();
        }
        if self.lock.is_some() {
            let _ = fs::remove_dir_all(&self.dir);
        }
    }
}

fn remove_if_left(dir: &Path) {
    let Ok(lock) = File::open(dir.join(LOCK)) else { return };
    if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok() {
        let _ = fs::remove_dir_all(dir);
    }
}

/// Removes the directories of this user whose coordinators were killed.
fn sweep(base: &Path) {
    let Ok(entries) = fs::read_dir(base) else { return };
    for entry in entries.flatten() {
        let its = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        // Does not follow links.
        let mine = entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == geteuid().as_raw());
        if its && mine {
            remove_if_left(&entry.path());
        }
    }
}

fn failed(error: io::Error) -> StoreError {
    match error.kind() {
        io::ErrorKind::NotFound => StoreError::Missing,
        _ => StoreError::Failed { message: error.to_string() },
    }
}

impl ObjectStore for Files {
    fn put(&self, object: ObjectId, bytes: Arc<[u8]>) -> Result<(), StoreError> {
        let path = self.path(object);
        // Of this object alone: others may be put at the same time.
        let new = self.dir.join(format!("{object}{NEW}{}", process::id()));
        let put = fs::write(&new, &bytes).and_then(|()| fs::rename(&new, path));
        put.map_err(|error| {
            let _ = fs::remove_file(new);
            StoreError::Failed { message: format!("{}: {error}", self.dir.display()) }
        })
    }

    fn get(&self, object: ObjectId) -> Result<Arc<[u8]>, StoreError> {
        fs::read(self.path(object)).map(Arc::from).map_err(failed)
    }

    fn delete(&self, object: ObjectId) {
        let _ = fs::remove_file(self.path(object));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::thread;

    use super::*;

    #[test]
    fn what_a_killed_coordinator_has_left_is_removed_and_what_a_living_one_has_is_not() {
        let base = tempfile::tempdir().unwrap();
        let living = Files::make(base.path()).unwrap();
        let mut killed = Files::make(base.path()).unwrap();
        let object = ObjectId::put(1, 1);
        for files in [&living, &killed] {
            files.put(object, Arc::from([1, 2])).unwrap();
        }
        // The system takes its lock.
        drop(killed.lock.take());
        let in_worker = Files::open(living.dir().to_owned());
        in_worker.remove_if_left();
        assert_eq!(*in_worker.get(object).unwrap(), [1, 2]);
        let next = Files::make(base.path()).unwrap();
        assert_eq!(killed.get(object), Err(StoreError::Missing));
        assert!(!killed.dir().exists() && living.dir().exists());
        assert_eq!(fs::metadata(living.dir()).unwrap().mode() & 0o777, 0o700);
        drop((living, next));
        assert_eq!(fs::read_dir(base.path()).unwrap().count(), 0);
    }

    /// Each thread puts objects of its own, of bytes of its own, as several threads of one program do.
    #[test]
    fn objects_that_threads_put_at_the_same_time_are_whole() {
        let base = tempfile::tempdir().unwrap();
        let files = Files::make(base.path()).unwrap();
        let start = Barrier::new(4);
        thread::scope(|threads| {
            for thread in 0..4_u8 {
                let (files, start) = (&files, &start);
                threads.spawn(move || {
                    start.wait();
                    for round in 0..50_u8 {
                        let byte = thread * 50 + round;
                        let object = ObjectId::put(1, u64::from(byte));
                        files.put(object, vec![byte; 300_000].into()).unwrap();
                        let got = files.get(object).unwrap();
                        assert!(got.len() == 300_000 && got.iter().all(|it| *it == byte), "{object}");
                    }
                });
            }
        });
    }

    #[test]
    fn what_a_process_was_about_to_put_goes_with_it_and_nothing_else() {
        let base = tempfile::tempdir().unwrap();
        let files = Files::make(base.path()).unwrap();
        let whole = ObjectId::put(1, 1);
        files.put(whole, Arc::from([7])).unwrap();
        let half = |process: u32| files.dir().join(format!("{}{NEW}{process}", ObjectId::put(1, 2)));
        fs::write(half(71), [1]).unwrap();
        fs::write(half(171), [1]).unwrap();
        files.forget_process(71);
        assert!(!half(71).exists() && half(171).exists());
        assert_eq!(*files.get(whole).unwrap(), [7]);
    }

    #[test]
    fn an_object_is_there_until_it_is_deleted() {
        let base = tempfile::tempdir().unwrap();
        let files = Files::make(base.path()).unwrap();
        let object = ObjectId::put(1, 1);
        assert_eq!(files.get(object), Err(StoreError::Missing));
        files.put(object, Arc::from([7])).unwrap();
        assert_eq!(*files.get(object).unwrap(), [7]);
        files.delete(object);
        files.delete(object);
        assert_eq!(files.get(object), Err(StoreError::Missing));
        fs::remove_dir_all(files.dir()).unwrap();
        assert!(matches!(files.put(object, Arc::from([7])), Err(StoreError::Failed { .. })));
    }
}
