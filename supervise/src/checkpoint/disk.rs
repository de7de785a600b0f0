//! What a save asks of the file system: five steps, in one place.
//!
//! # Large files
//!
//! A write puts bytes into the system's cache; the sync at the end sends them to the disk. The disk would be idle until then. So every 8 MiB the system is asked to begin sending what
//! was written since. And a file that is removed costs the time to free its blocks and its cache, when its last handle closes. A thread closes the last handle of a large one.
//!
//! # Tests
//!
//! The promise of a save rests on their order ([`super`], "How a file comes to be"). The tests put another [`Disk`]
//! under the same code. It refuses a step, tears a write, or records all steps. So the tests build and read each state
//! of the directory that a loss of power may leave.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::thread::{self, JoinHandle};

use crate::ordinary;

/// So many bytes are sent to the disk at a time. Files of as many are large.
const AHEAD: u64 = 8 << 20;

/// Where files are written. Restores read the files themselves.
pub(super) trait Disk: Send + Sync {
    /// Opens a file that only this handle may write, and empties it. [`WouldBlock`](io::ErrorKind::WouldBlock): another handle has it.
    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>>;

    /// Gives a file another name, and removes the file that had it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file. The thread that frees its blocks, if there is one: they are free when it has ended.
    fn remove(&self, path: &Path) -> io::Result<Option<JoinHandle<()>>>;

    /// Returns when all names of a directory are on disk.
    fn sync_names(&self, dir: &Path) -> io::Result<()>;
}

/// A file that is being written.
pub(super) trait Output: Write + Send {
    /// Returns when all its bytes are on disk.
    fn sync(&mut self) -> io::Result<()>;
}

/// The system's.
pub(super) struct Real;

impl Disk for Real {
    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        Ok(Box::new(Ahead::create(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<Option<JoinHandle<()>>> {
        let is_large = |file: &File| cfg!(unix) && file.metadata().is_ok_and(|found| found.len() >= AHEAD);
        let held = File::open(path).ok().filter(is_large);
        fs::remove_file(path)?;
        // Without a thread it is closed here.
        let free =
            |file| thread::Builder::new().name("checkpoint: free".into()).spawn(move || drop::<File>(file));
        Ok(held.and_then(|file| free(file).ok()))
    }

    fn sync_names(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }
}

/// A file whose bytes the system begins to send to the disk while more are written.
struct Ahead {
    file: File,
    written: u64,
    /// How many of them the system was asked to send.
    sent: u64,
}

impl Ahead {
    fn create(path: &Path) -> io::Result<Ahead> {
        let ahead = loop {
            let file = ordinary::open(File::options().write(true).create(true).truncate(false), path)?;
            lock(&file)?;
            let ahead = Ahead { file, written: 0, sent: 0 };
            // Between the two, another writer may have renamed the file that was opened: then it is a checkpoint now.
            if ordinary::is_at(&ahead.file, path)? {
                break ahead;
            }
        };
        ahead.file.set_len(0)?;
        Ok(ahead)
    }
}

impl Drop for Ahead {
    /// Releases the lock. A child that another thread is just starting has a copy of the handle until it executes its
    /// program. So after a mere close the file would stay locked for that time.
    fn drop(&mut self) {
        unlock(&self.file);
    }
}

impl Write for Ahead {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.file.write(bytes)?;
        self.written += count as u64;
        if self.written - self.sent >= AHEAD {
            send(&self.file, self.sent, self.written - self.sent);
            self.sent = self.written;
        }
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Output for Ahead {
    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_all()
    }
}

/// Has the system begin to send these bytes. On Linux the advice that they are not needed in the cache does that, without waiting for its end. It is advice: the sync does not rest on it.
#[cfg(target_os = "linux")]
fn send(file: &File, from: u64, length: u64) {
    let _ = rustix::fs::fadvise(file, from, std::num::NonZeroU64::new(length), rustix::fs::Advice::DontNeed);
}

#[cfg(not(target_os = "linux"))]
fn send(_: &File, _: u64, _: u64) {}

/// Keeps other processes off the temporary file while this handle of it is open.
#[cfg(unix)]
fn lock(file: &File) -> io::Result<()> {
    use rustix::fs::{FlockOperation, flock};
    Ok(flock(file, FlockOperation::NonBlockingLockExclusive)?)
}

#[cfg(not(unix))]
fn lock(_: &File) -> io::Result<()> {
    Ok(())
}

#[cfg(unix)]
fn unlock(file: &File) {
    use rustix::fs::{FlockOperation, flock};
    // Without it the close gives the lock back.
    let _ = flock(file, FlockOperation::Unlock);
}

#[cfg(not(unix))]
fn unlock(_: &File) {}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_was_written_is_free_though_a_child_that_starts_has_its_handle() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("one");
        let written = Ahead::create(&path).unwrap();
        let of_the_child = written.file.try_clone().unwrap();
        assert_eq!(Real.create(&path).err().unwrap().kind(), io::ErrorKind::WouldBlock);
        drop(written);
        drop(Real.create(&path).unwrap());
        drop(of_the_child);
    }
}
