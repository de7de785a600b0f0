//! [`Scratch`]: a directory that goes with the agent, or else with the next agent of the same user.
//!
//! It holds what no process needs after the agent: the socket of its timers, or the files of a run without logs. The agent removes it at its end. An agent that is killed leaves it.
//! Each new one therefore removes what killed agents of this user have left in the same place.
//!
//! # Why it removes no directory that is in use
//!
//! An agent holds an exclusive `flock` on its directory, which the kernel releases when the process ends, in whatever way. Only a directory whose lock was taken is removed, and while the
//! lock is held. Between `mkdir` and the lock another agent may find the directory, lock it and remove it. So a lock counts only if the directory still stands at its name when the
//! lock has been taken; else its maker makes another one.
//!
//! # Why no other user makes it remove something else
//!
//! It removes only directories of this user, and follows no links. It searches only where no other user can rename
//! them: in a directory of this user alone, or in one with the sticky bit, such as `/tmp`.

use std::collections::hash_map::RandomState;
use std::fs::{self, DirBuilder, File, Metadata, OpenOptions};
use std::hash::{BuildHasher, Hasher};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::{io, process};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::places::at;

const PREFIX: &str = "forebear-agent.";
/// Names that are tried, if there is one already or another agent removes it.
const TRIES: u32 = 1_000;

/// See the module head. Dropping removes it.
#[derive(Debug)]
pub(super) struct Scratch {
    path: PathBuf,
    /// Has the lock.
    _lock: File,
}

/// What became of an attempt to lock a directory.
enum DirectoryClaim {
    Locked(File),
    /// It was opened, but its file system knows no locks: no other agent takes it either.
    Unlockable(File),
    /// Another process has the lock, or the directory is gone.
    No,
}

impl Scratch {
    /// Makes one in `place`, for this user alone, after having removed what is left there of killed agents.
    pub(super) fn new(place: &Path) -> io::Result<Scratch> {
        // Absolute, since workers may have another directory.
        let named =
            |error| at(error, format_args!("the directory {place:?} for temporary files cannot be used"));
        let place = fs::canonicalize(place).map_err(named)?;
        sweep(&place);
        for _ in 0..TRIES {
            let number = RandomState::new().build_hasher().finish() & 0xffff_ffff;
            let path = place.join(format!("{PREFIX}{}.{number:08x}", process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
                made => made.map_err(named)?,
            }
            match take(&path)? {
                DirectoryClaim::Locked(lock) | DirectoryClaim::Unlockable(lock) => {
                    return Ok(Scratch { path, _lock: lock });
                }
                DirectoryClaim::No => {}
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // A process that could not be killed may still write there; then it stays, for the next agent.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Takes the lock of a directory.
fn take(path: &Path) -> io::Result<DirectoryClaim> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW;
    let directory = match OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(DirectoryClaim::No),
        opened => opened?,
    };
    let locked = flock(&directory, FlockOperation::NonBlockingLockExclusive);
    let identity = |found: Metadata| (found.dev(), found.ino());
    let opened = identity(directory.metadata()?);
    if locked == Err(Errno::WOULDBLOCK) || !fs::symlink_metadata(path).is_ok_and(|at| identity(at) == opened)
    {
        return Ok(DirectoryClaim::No);
    }
    Ok(if locked.is_ok() { DirectoryClaim::Locked(directory) } else { DirectoryClaim::Unlockable(directory) })
}

/// Removes what killed agents of this user have left. What cannot be removed stays.
fn sweep(place: &Path) {
    let user = geteuid().as_raw();
    let is_safe =
        |place: Metadata| place.mode() & 0o1000 != 0 || place.uid() == user && place.mode() & 0o022 == 0;
    let Ok(entries) = fs::read_dir(place) else { return };
    if !fs::metadata(place).is_ok_and(is_safe) {
        return;
    }
    for entry in entries.flatten() {
        if !entry.file_name().as_encoded_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        // Of the entry itself, if it is a link.
        let is_ours = entry.metadata().is_ok_and(|found| found.is_dir() && found.uid() == user);
        if let (true, Ok(DirectoryClaim::Locked(_lock))) = (is_ours, take(&entry.path())) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::thread;

    /// As a killed agent leaves it: the lock is gone, the directory is not.
    fn leave(scratch: Scratch) -> PathBuf {
        fs::write(scratch.path.join("result"), "7").unwrap();
        fs::create_dir_all(scratch.path.join("attempt_0/1")).unwrap();
        flock(&scratch._lock, FlockOperation::Unlock).unwrap();
        let path = scratch.path.clone();
        std::mem::forget(scratch);
        path
    }

    #[test]
    fn what_a_killed_agent_has_left_goes_with_the_next_and_what_is_in_use_stays() {
        let place = tempfile::tempdir().unwrap();
        let lives = Scratch::new(place.path()).unwrap();
        assert_eq!(fs::metadata(lives.path()).unwrap().mode() & 0o777, 0o700);
        let left = leave(Scratch::new(place.path()).unwrap());
        // Of the same name, but no directories of an agent.
        let (file, link) = (place.path().join("forebear-agent.1"), place.path().join("forebear-agent.2"));
        let elsewhere = tempfile::tempdir().unwrap();
        fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), &link).unwrap();
        let next = Scratch::new(place.path()).unwrap();
        assert!(!left.exists() && lives.path().exists() && file.exists() && link.exists());
        assert!(elsewhere.path().exists());
        drop((lives, next));
        let names = fs::read_dir(place.path()).unwrap().count();
        assert_eq!(names, 2, "the file and the link");
    }

    #[test]
    fn in_a_place_where_others_may_rename_nothing_is_removed() {
        use std::os::unix::fs::PermissionsExt;
        let place = tempfile::tempdir().unwrap();
        let left = leave(Scratch::new(place.path()).unwrap());
        for (mode, stays) in [(0o777, true), (0o770, true), (0o1777, false)] {
            fs::set_permissions(place.path(), fs::Permissions::from_mode(mode)).unwrap();
            drop(Scratch::new(place.path()).unwrap());
            assert_eq!(left.exists(), stays, "{mode:o}");
        }
    }

    #[test]
    fn of_many_that_begin_and_end_at_once_each_has_its_own_all_the_time() {
        let place = tempfile::tempdir().unwrap();
        let barrier = Barrier::new(4);
        thread::scope(|scope| {
            for n in 0..4 {
                let (place, barrier) = (place.path(), &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    for turn in 0..100 {
                        let scratch = Scratch::new(place).unwrap();
                        let file = scratch.path().join(format!("{n}-{turn}"));
                        fs::write(&file, "mine").unwrap();
                        // Others look for what they can remove meanwhile.
                        thread::yield_now();
                        assert_eq!(fs::read(&file).unwrap(), b"mine");
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 0);
    }
}
