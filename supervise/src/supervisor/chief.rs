//! Which process is the chief of a directory: a lock that the kernel releases when its holder dies, and a record of what the holder does.
//!
//! # The files
//!
//! * `chief.lock`: the chief holds an exclusive lock of it (`flock`). It also holds the *record*, one line: the *epoch*, which is one more for each
//!   chief, the chief's process, and its state (`starting`, `ready`, `stopped`). The file is never removed: a lock belongs to a file and not to
//!   a name. If someone removes it nevertheless, the chief finds another file at the name and saves no more ([`Place::is_replaced`]).
//! * `.chief.guard`: a process that becomes chief, changes the record, or gives the lock up holds an exclusive lock of
//!   it meanwhile. A process that reads which process is chief holds a shared lock. So it never sees the lock of one
//!   chief with the record of the previous one. And although it takes the lock of `chief.lock` for a moment, it never
//!   prevents a process from becoming chief. The guard is held for a few system calls, which do not block.
//!
//! A lock belongs to an open file, of which a child has a second handle from its fork to its exec. So each lock is
//! released by a call, which holds for all handles, and not by closing one handle. Otherwise a program that starts
//! processes would see locks that no process of the job holds.
//!
//! A chief that dies gives up the lock alone, and leaves its record. So a lock that is free beside a record that says `ready` means: it has died.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::ordinary;

const LOCK: &str = "chief.lock";
const GUARD: &str = ".chief.guard";
/// Bytes of a record, with its end of line.
const RECORD: usize = 64;

/// What a chief says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// It initialises or restores the state.
    Starting,
    /// The others may begin.
    Ready,
    /// It has ended its job well.
    Stopped,
}

impl Phase {
    fn word(self) -> &'static str {
        match self {
            Phase::Starting => "starting",
            Phase::Ready => "ready",
            Phase::Stopped => "stopped",
        }
    }

    fn of(word: &str) -> Option<Phase> {
        [Phase::Starting, Phase::Ready, Phase::Stopped].into_iter().find(|phase| phase.word() == word)
    }
}

/// What stands in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChiefRecord {
    pub(super) epoch: u64,
    pub(super) pid: u32,
    pub(super) phase: Phase,
}

/// What a look finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ChiefView {
    /// A process holds the lock.
    pub(super) held: bool,
    /// The record of that one, or of the last one. `None`: there has been no chief.
    pub(super) record: Option<ChiefRecord>,
}

/// The place of a chief. Dropped, it is given up, and the record stays as it is.
#[derive(Debug)]
pub(super) struct Place {
    dir: PathBuf,
    /// Holds the lock. `None` once it has been given up.
    file: Option<File>,
    record: ChiefRecord,
    /// What the record said before.
    before: Option<Phase>,
}

/// An error of the system, and the file it is about.
pub(super) type AtFile = (PathBuf, io::Error);

/// Takes the place. `None`: another process has it.
pub(super) fn take(dir: &Path) -> Result<Option<Place>, AtFile> {
    let path = dir.join(LOCK);
    let at = |error| (path.clone(), error);
    ordinary::make_dir(dir).map_err(|error| (dir.to_owned(), error))?;
    let _guard = guard(dir, true)?;
    let mut file = open(&path).map_err(at)?;
    if !system::try_lock(&file, true).map_err(at)? {
        return Ok(None);
    }
    let written = read(&mut file).map_err(at).and_then(|before| {
        let epoch = before.map_or(0, |before| before.epoch).wrapping_add(1);
        let record = ChiefRecord { epoch, pid: std::process::id(), phase: Phase::Starting };
        let before = before.map(|before| before.phase);
        let place = Place { dir: dir.to_owned(), file: None, record, before };
        place.write().map(|()| place)
    });
    match written {
        Ok(mut place) => {
            place.file = Some(file);
            Ok(Some(place))
        }
        Err(error) => {
            system::unlock(&file);
            Err(error)
        }
    }
}

/// Looks which process is chief.
pub(super) fn look(dir: &Path) -> Result<ChiefView, AtFile> {
    let path = dir.join(LOCK);
    let no_chief = ChiefView { held: false, record: None };
    let _guard = match guard(dir, false) {
        Err((_, error)) if error.kind() == io::ErrorKind::NotFound => return Ok(no_chief),
        guard => guard?,
    };
    let mut file = match ordinary::open(File::options().read(true), &path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(no_chief),
        file => file.map_err(|error| (path.clone(), error))?,
    };
    let at = |error| (path.clone(), error);
    let held = !system::try_lock(&file, false).map_err(at)?;
    if !held {
        system::unlock(&file);
    }
    Ok(ChiefView { held, record: read(&mut file).map_err(at)? })
}

/// The process of the chief there, if that can be found out.
pub(super) fn process_at(dir: &Path) -> Option<u32> {
    look(dir).ok()?.record.map(|record| record.pid)
}

impl Place {
    /// Whether the chief before this one has ended its job well.
    pub(super) fn follows_a_clean_stop(&self) -> bool {
        self.before == Some(Phase::Stopped)
    }

    /// Whether another file is at the name of the lock: the one that this process holds was removed, so another process may be chief beside it.
    pub(super) fn is_replaced(&self) -> bool {
        let path = self.dir.join(LOCK);
        let is_at = |file| ordinary::is_at(file, &path).unwrap_or(true);
        self.file.as_ref().is_some_and(|file| !is_at(file)) && path.exists()
    }

    /// Changes what the record says. Leaves that of another chief alone.
    pub(super) fn tell(&mut self, phase: Phase) -> Result<(), AtFile> {
        let _guard = guard(&self.dir, true)?;
        if self.is_replaced() {
            return Ok(());
        }
        self.record.phase = phase;
        self.write()
    }

    /// Writes the record through a handle of its own: its closing wakes the watches of the other processes. The guard is held.
    fn write(&self) -> Result<(), AtFile> {
        let path = self.dir.join(LOCK);
        let ChiefRecord { epoch, pid, phase } = self.record;
        let mut line = format!("chief-1 {epoch} {pid} {}", phase.word());
        line.extend(std::iter::repeat_n(' ', RECORD - 1 - line.len()));
        line.push('\n');
        open(&path).and_then(|mut file| file.write_all(line.as_bytes())).map_err(|error| (path, error))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let Some(file) = self.file.take() else { return };
        let guard = guard(&self.dir, true);
        system::unlock(&file);
        drop(guard);
        // Its closing wakes the watches of the other processes, which find the lock free.
        drop(file);
    }
}

fn open(path: &Path) -> io::Result<File> {
    ordinary::open(File::options().read(true).write(true).create(true).truncate(false), path)
}

/// Given up when this is dropped.
struct RecordGuard(File);

impl Drop for RecordGuard {
    fn drop(&mut self) {
        system::unlock(&self.0);
    }
}

/// Waits for the guard, which others hold for a moment.
fn guard(dir: &Path, exclusive: bool) -> Result<RecordGuard, AtFile> {
    let path = dir.join(GUARD);
    let file = if exclusive { open(&path) } else { ordinary::open(File::options().read(true), &path) };
    file.and_then(|file| system::lock(&file, exclusive).map(|()| RecordGuard(file)))
        .map_err(|error| (path, error))
}

/// A record that was written in part, when there was no room, is none.
fn read(file: &mut File) -> io::Result<Option<ChiefRecord>> {
    let mut line = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    if file.take(RECORD as u64).read_to_end(&mut line)? != RECORD {
        return Ok(None);
    }
    let line = String::from_utf8_lossy(&line);
    let words: Vec<&str> = line.split_whitespace().collect();
    let [magic, epoch, pid, phase] = words[..] else { return Ok(None) };
    let numbers = epoch.parse().ok().zip(pid.parse().ok()).zip(Phase::of(phase));
    Ok(numbers.filter(|_| magic == "chief-1").map(|((epoch, pid), phase)| ChiefRecord { epoch, pid, phase }))
}

#[cfg(unix)]
mod system {
    use std::fs::File;
    use std::io;

    use rustix::fs::{FlockOperation, flock};
    use rustix::io::Errno;

    pub(super) fn lock(file: &File, exclusive: bool) -> io::Result<()> {
        let kind = if exclusive { FlockOperation::LockExclusive } else { FlockOperation::LockShared };
        rustix::io::retry_on_intr(|| flock(file, kind)).map_err(io::Error::from)
    }

    pub(super) fn try_lock(file: &File, exclusive: bool) -> io::Result<bool> {
        use FlockOperation::{NonBlockingLockExclusive, NonBlockingLockShared};
        let kind = if exclusive { NonBlockingLockExclusive } else { NonBlockingLockShared };
        match rustix::io::retry_on_intr(|| flock(file, kind)) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn unlock(file: &File) {
        // It can fail only for what is no file.
        let _ = flock(file, FlockOperation::Unlock);
    }
}

/// Without locks: no process finds a chief, and each may become one.
#[cfg(not(unix))]
mod system {
    use std::fs::File;
    use std::io;

    pub(super) fn lock(_: &File, _: bool) -> io::Result<()> {
        Ok(())
    }

    pub(super) fn try_lock(_: &File, _: bool) -> io::Result<bool> {
        Ok(true)
    }

    pub(super) fn unlock(_: &File) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn one_at_a_time_has_the_place_and_each_has_an_epoch() {
        let dir = tempfile::TempDir::new().unwrap();
        assert_eq!(look(dir.path()).unwrap(), ChiefView { held: false, record: None });
        let mut first = take(dir.path()).unwrap().unwrap();
        assert!(take(dir.path()).unwrap().is_none());
        let seen = look(dir.path()).unwrap();
        assert!(seen.held && seen.record.unwrap().phase == Phase::Starting);
        first.tell(Phase::Ready).unwrap();
        drop(first);
        let left = look(dir.path()).unwrap();
        assert!(!left.held && left.record.unwrap().phase == Phase::Ready && left.record.unwrap().epoch == 1);
        assert_eq!(take(dir.path()).unwrap().unwrap().record.epoch, 2);
    }

    /// As a child that has been forked holds it.
    #[cfg(unix)]
    #[test]
    fn a_second_handle_of_a_guard_keeps_nobody() {
        let dir = tempfile::TempDir::new().unwrap();
        let guard = guard(dir.path(), true).unwrap();
        let second = guard.0.try_clone().unwrap();
        drop(guard);
        let place = take(dir.path()).unwrap().unwrap();
        let third = place.file.as_ref().unwrap().try_clone().unwrap();
        drop(place);
        assert!(take(dir.path()).unwrap().is_some());
        drop((second, third));
    }

    #[test]
    fn a_record_that_is_cut_short_or_strange_is_none() {
        let dir = tempfile::TempDir::new().unwrap();
        drop(take(dir.path()).unwrap().unwrap());
        let path = dir.path().join(LOCK);
        let whole = fs::read(&path).unwrap();
        assert_eq!(whole.len(), RECORD);
        for broken in [&whole[..10], b"", &[b'x'; RECORD], &[b'\n'; RECORD], &[0xff; RECORD]] {
            fs::write(&path, broken).unwrap();
            assert_eq!(look(dir.path()).unwrap().record, None);
            assert_eq!(take(dir.path()).unwrap().unwrap().record.epoch, 1);
        }
        fs::write(&path, format!("{:<63}\n", format!("chief-1 {} 1 ready", u64::MAX))).unwrap();
        assert_eq!(take(dir.path()).unwrap().unwrap().record.epoch, 0, "another one than before");
    }
}
