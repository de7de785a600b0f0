//! The socket's path: only one server has it at a time, and only the same user can connect.
//!
//! # Vocabulary
//!
//! * **path**: the socket is a file, so the permissions of its directory bound who can connect. Linux's abstract socket names would be
//!   open to every user of the machine.
//! * **own directory**: made by the server, with an unpredictable name, for its user alone (mode 0700), and removed when the server
//!   ends. `mkdir` fails if any file has that name, links included.
//! * **given path**: the user has chosen it, so that clients find the next server at the same path. The socket is for the user alone (mode 0600).
//!   The user must choose a directory in which no other user can rename files.
//!
//! * **lock file**: a file beside a given path, `PATH.lock`, on which a server holds an exclusive `flock` for as long as it has the path.
//!
//! A socket appears at its path complete: the server binds it under another name in the same directory, sets its permissions,
//! listens, and renames it. So no client can connect before the permissions are set, or be refused before the server listens.
//! The rename also replaces the socket of a killed server.
//!
//! # Why two servers never have one path
//!
//! A rename of a socket to a path replaces whatever is there. So two servers that both find the path free would both
//! succeed, and the first would get no client. Therefore a server locks the lock file first, and holds the lock until it
//! has removed its socket. The kernel releases the lock when the server's process ends, in whatever way. A server removes
//! its lock file while it holds the lock. So a lock counts only if its file still has that name when the lock has been
//! taken. Else the server tries again with the new file.
//!
//! A server of an older version has no lock file, so a server still tries to connect to the path before it replaces the
//! socket.

use std::collections::hash_map::RandomState;
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::hash::{BuildHasher, Hasher};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::{env, io, process};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with, sockopt,
};

/// The length of the accept queue. Further clients wait in `connect`, for at most their time-out.
const BACKLOG: i32 = 128;

/// A socket in the file system. Dropping removes it, if it is still there.
#[derive(Debug)]
pub(crate) struct Place {
    path: PathBuf,
    /// Device and inode of the socket.
    file: (u64, u64),
    /// The server's own directory.
    directory: Option<PathBuf>,
    /// Held for a given path.
    lock: Option<LockFile>,
}

/// A lock file, held. Dropping removes it and releases the lock.
#[derive(Debug)]
struct LockFile {
    path: PathBuf,
    /// Has the lock.
    file: File,
}

impl LockFile {
    /// Takes the lock file of this socket. `AddrInUse` if another server has it.
    fn take(socket: &Path) -> io::Result<LockFile> {
        let mut name = socket.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        name.push(".lock");
        let path = socket.with_file_name(name);
        loop {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .open(&path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(Errno::WOULDBLOCK) => return Err(io::ErrorKind::AddrInUse.into()),
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let locked = file.metadata()?;
            // Its last owner may have removed it between the open and the lock.
            if identity(&path).is_ok_and(|found| found == (locked.dev(), locked.ino())) {
                return Ok(LockFile { path, file });
            }
        }
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        _ = fs::remove_file(&self.path);
        // A process that was forked meanwhile has a copy of the descriptor, which would keep the lock. So it
        // is unlocked, not only closed.
        _ = flock(&self.file, FlockOperation::Unlock);
    }
}

impl Place {
    /// A socket that listens, in a directory of its own.
    pub(crate) fn own() -> io::Result<(Place, OwnedFd)> {
        let base = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_dir());
        let base = base.unwrap_or_else(env::temp_dir);
        let directory = base.join(format!("forebear-{}-{:016x}", process::id(), random()));
        DirBuilder::new().mode(0o700).create(&directory)?;
        let made = listen_at(&directory.join("timers"));
        match made {
            Ok((path, file, socket)) => {
                Ok((Place { path, file, directory: Some(directory), lock: None }, socket))
            }
            Err(error) => {
                _ = fs::remove_dir(&directory);
                Err(error)
            }
        }
    }

    /// A socket that listens at this path. `AddrInUse` if a server does already.
    pub(crate) fn given(path: &Path) -> io::Result<(Place, OwnedFd)> {
        let address = SocketAddrUnix::new(path)?;
        let lock = LockFile::take(&std::path::absolute(path)?)?;
        let probe = seqpacket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        match connect(&probe, &address) {
            // `AGAIN`: a server listens, and its accept queue is full.
            Ok(()) | Err(Errno::AGAIN) => return Err(io::ErrorKind::AddrInUse.into()),
            Err(_) => {}
        }
        let (path, file, socket) = listen_at(path)?;
        Ok((Place { path, file, directory: None, lock: Some(lock) }, socket))
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // The path may have another server's socket by now.
        if identity(&self.path).is_ok_and(|found| found == self.file) {
            _ = fs::remove_file(&self.path);
        }
        // After the socket: the next holder of the lock finds the path free.
        self.lock = None;
        if let Some(directory) = &self.directory {
            _ = fs::remove_dir(directory);
        }
    }
}

/// A socket of the protocol's type: connected, with message boundaries.
pub(crate) fn seqpacket(flags: SocketFlags) -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

fn listen_at(path: &Path) -> io::Result<(PathBuf, (u64, u64), OwnedFd)> {
    let path = std::path::absolute(path)?;
    // A path that is too long is refused before any file is created.
    SocketAddrUnix::new(&path)?;
    let beside = path.with_file_name(format!(".{:x}", random() & 0xffff_ffff));
    let socket = seqpacket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
    bind(&socket, &SocketAddrUnix::new(&beside)?)?;
    let made = (|| {
        fs::set_permissions(&beside, Permissions::from_mode(0o600))?;
        // Accepted connections inherit it, so the first message already has its sender's
        // credentials.
        sockopt::set_socket_passcred(&socket, true)?;
        listen(&socket, BACKLOG)?;
        let file = identity(&beside)?;
        fs::rename(&beside, &path)?;
        Ok(file)
    })();
    match made {
        Ok(file) => Ok((path, file, socket)),
        Err(error) => {
            _ = fs::remove_file(&beside);
            Err(error)
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// An unpredictable number: the keys of std's hash maps come from the system's random numbers.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{Shutdown, shutdown};
    use std::sync::Barrier; // not modelled: a test
    use std::thread;

    #[test]
    fn a_directory_of_its_own_is_for_its_user_alone_and_goes_with_the_socket() {
        let (place, socket) = Place::own().unwrap();
        let directory = place.path().parent().unwrap().to_owned();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&directory), mode(place.path())), (0o700, 0o600));
        drop((place, socket));
        assert!(!directory.exists());
    }

    #[test]
    fn what_a_killed_server_left_is_replaced_and_a_live_one_is_not() {
        let (around, _socket) = Place::own().unwrap();
        let path = around.path().with_file_name("given");
        let (mut first, listens) = Place::given(&path).unwrap();
        let taken = Place::given(&path).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        // It was killed: nobody listens, and the file is still there. (The end of the descriptor alone would not do: another test may be starting
        // a process just now, which has a copy.)
        shutdown(&listens, Shutdown::Both).unwrap();
        drop(listens);
        // The lock goes with the process, and its file stays.
        let lock = first.lock.take().unwrap();
        flock(&lock.file, FlockOperation::Unlock).unwrap();
        std::mem::forget(lock);
        let (second, _listens) = Place::given(&path).unwrap();
        // The late end of the first does not take the second's away.
        drop(first);
        assert!(path.exists());
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn of_many_servers_that_come_to_one_path_at_once_one_has_it() {
        let (around, _socket) = Place::own().unwrap();
        let path = around.path().with_file_name("given");
        for _ in 0..200 {
            let start = Barrier::new(4);
            let come = || {
                start.wait();
                let came = Place::given(&path);
                // Nobody leaves before all have come.
                start.wait();
                came.map(drop).map_err(|error| error.kind())
            };
            let came: Vec<_> = thread::scope(|s| {
                let threads: Vec<_> = (0..4).map(|_| s.spawn(come)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert_eq!(came.iter().filter(|came| came.is_ok()).count(), 1, "{came:?}");
            assert!(
                came.iter().all(|came| came.is_ok() || *came == Err(io::ErrorKind::AddrInUse)),
                "{came:?}"
            );
        }
        let names = fs::read_dir(path.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["timers"], "no lock file is left");
    }

    #[test]
    fn a_path_that_is_too_long_is_told() {
        assert!(Place::given(Path::new(&format!("/tmp/{}", "x".repeat(200)))).is_err());
    }
}
