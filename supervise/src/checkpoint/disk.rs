//! What a save asks of the file system: five steps, in one place.
//!
//! Their order is what a save promises by ([`super`], "How a file comes to be"). The tests put another [`Disk`] under the same code: one that refuses a step, tears a
//! write, or notes all steps, so that each state of the directory that a loss of power may leave is built and read.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Where files are written. Restores read the files themselves.
pub(super) trait Disk: Send + Sync {
    /// Opens a file that only this handle may write, and empties it. [`WouldBlock`](io::ErrorKind::WouldBlock): another handle has it.
    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>>;

    /// Gives a file another name, and removes the file that had it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Returns when all names of a directory are on disk.
    fn sync_names(&self, dir: &Path) -> io::Result<()>;
}

/// A file that is being written.
pub(super) trait Output: Write {
    /// Returns when all its bytes are on disk.
    fn sync(&mut self) -> io::Result<()>;
}

/// The system's.
pub(super) struct Real;

impl Disk for Real {
    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        let file = loop {
            let file = File::options().write(true).create(true).truncate(false).open(path)?;
            lock(&file)?;
            // Between the two, another writer may have renamed the file that was opened: then it is a checkpoint now.
            if is_at(&file, path)? {
                break file;
            }
        };
        file.set_len(0)?;
        Ok(Box::new(file))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn sync_names(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }
}

impl Output for File {
    fn sync(&mut self) -> io::Result<()> {
        self.sync_all()
    }
}

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

/// Whether the path still leads to this file.
#[cfg(unix)]
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let opened = file.metadata()?;
    match fs::metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (opened.dev(), opened.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(not(unix))]
fn is_at(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}
