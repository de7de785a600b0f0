//! The file beside a server's path that only one server has at a time.
//!
//! # Vocabulary
//!
//! * **lock file**: `PATH.lock`. A server has it while it holds an exclusive `flock` on it. The kernel releases that when the server's
//!   process ends, in whatever way; the file stays then.
//! * **mark**: the content of a lock file that a server has made.
//!
//! # Why two servers never have it together
//!
//! A server takes the lock of the file that it finds. Where it finds none, it makes one under another name, writes the mark, takes the lock, and
//! links the file to its name; the link fails if another server was faster. So a lock file that a server made appears with its mark, and
//! with its lock held.
//!
//! A server removes its lock file while it holds the lock. So a lock counts only if its file still has that name when the lock has
//! been taken. Else the server tries again.
//!
//! # Why no file of anybody else is removed
//!
//! A server removes a file only if that is the one it has locked, and if the file's content is the mark. It follows no link, and it
//! opens only what is an ordinary file. A file with any other content is left alone, and is an error. A file without content may be another program's, or
//! that of a killed server of an older version. The server locks it and does not remove it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::{Errno, retry_on_intr};

use super::bind_error::BindError;
use super::place::{beside, identity, kind_of};

const MARK: &[u8] = b"forebear timer server\n";

/// A lock file, held. Dropping removes it, if a server made it, and releases the lock.
#[derive(Debug)]
pub(super) struct LockFile {
    path: PathBuf,
    /// Has the lock.
    pub(super) file: File,
}

impl LockFile {
    /// Takes the lock file of this socket, whose path has a name of a file.
    pub(super) fn take(socket: &Path) -> Result<LockFile, BindError> {
        let io = |path: &Path, source| BindError::Io { path: path.into(), source };
        let mut name = socket.file_name().unwrap_or_default().to_owned();
        name.push(".lock");
        let path = socket.with_file_name(name);
        loop {
            let found = match fs::symlink_metadata(&path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    match make(&path).map_err(|error| io(socket, error))? {
                        Some(file) => return Ok(LockFile { path, file }),
                        None => continue,
                    }
                }
                found => found.map_err(|error| io(&path, error))?,
            };
            if !found.is_file() {
                return Err(BindError::LockOccupied { path, found: kind_of(found.file_type()) });
            }
            // What came in its place meanwhile is not followed, and does not block.
            let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
            let flags = flags.bits() as i32;
            let file = match OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path) {
                Ok(file) => file,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) if fs::symlink_metadata(&path).is_ok_and(|now| now.is_file()) => {
                    return Err(io(&path, error));
                }
                Err(_) => continue,
            };
            let opened = file.metadata().map_err(|error| io(&path, error))?;
            if !opened.is_file() {
                continue;
            }
            if opened.len() > 0 && !is_marked(&file).map_err(|error| io(&path, error))? {
                return Err(BindError::LockOccupied {
                    path,
                    found: "a file that no timer server has written",
                });
            }
            match retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive)) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(BindError::InUse { path: socket.into() }),
                Err(error) => return Err(io(&path, error.into())),
            }
            // Its last owner may have removed it between the open and the lock.
            if identity(&path).is_ok_and(|now| now == (opened.dev(), opened.ino())) {
                return Ok(LockFile { path, file });
            }
        }
    }
}

/// Makes the file and takes its lock. `None`: another server was faster.
fn make(path: &Path) -> io::Result<Option<File>> {
    let hidden = beside(path);
    let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&hidden)?;
    let made = (|| {
        (&file).write_all(MARK)?;
        retry_on_intr(|| flock(&file, FlockOperation::NonBlockingLockExclusive))?;
        fs::hard_link(&hidden, path)
    })();
    _ = fs::remove_file(&hidden);
    match made {
        Ok(()) => Ok(Some(file)),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether its content is the mark, and nothing more.
fn is_marked(file: &File) -> io::Result<bool> {
    let mut content = [0; MARK.len()];
    if file.metadata()?.len() != MARK.len() as u64 {
        return Ok(false);
    }
    match file.read_exact_at(&mut content, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        read => read.map(|()| content == MARK),
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        let locked = self.file.metadata().map(|found| (found.dev(), found.ino()));
        let stands = locked.is_ok_and(|locked| identity(&self.path).is_ok_and(|found| found == locked));
        if stands && is_marked(&self.file).unwrap_or(false) {
            _ = fs::remove_file(&self.path);
        }
        // A process that was forked meanwhile has a copy of the descriptor, which would keep the lock. So it
        // is unlocked, not only closed.
        _ = flock(&self.file, FlockOperation::Unlock);
    }
}
