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
//! * **lock file**: a file beside a given path, `PATH.lock`, which a server has for as long as it has the path
//!   ([`LockFile`]).
//! * **dead**: a socket of this user at which nobody listens. A killed server leaves one.
//!
//! A socket appears at its path complete: the server binds it under another name in the same directory, sets its permissions,
//! listens, and links or renames it. So no client can connect before the permissions are set, or be refused before the server listens.
//!
//! # Why two servers never have one path
//!
//! A server takes the lock file before it looks at the path, and holds it until it has removed its socket. A server of an older version has no lock
//! file, so a server still tries to connect to the socket that it finds.
//!
//! # Why nothing else than a dead socket is replaced
//!
//! The server looks at what stands at the path itself, not at what a link leads to. If it is no socket, if it is another user's, or if anything
//! but `ECONNREFUSED` answers a `connect`, the server leaves it alone and returns an error. Where nothing stands, the server links
//! its socket, which fails if something has come meanwhile. Only a dead socket is replaced, by a rename, after a look whether it is still the same. Between
//! this look and the rename only a program that does not use the lock file could put something there.

use std::collections::hash_map::RandomState;
use std::fs::{self, DirBuilder, FileType, Permissions};
use std::hash::{BuildHasher, Hasher};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::{env, io, process};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with, sockopt,
};
use rustix::process::geteuid;

use super::bind_error::BindError;
use super::lock_file::LockFile;

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

impl Place {
    /// A socket that listens, in a directory of its own.
    pub(crate) fn own() -> Result<(Place, OwnedFd), BindError> {
        let base = env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_dir());
        let base = base.unwrap_or_else(env::temp_dir);
        let directory = base.join(format!("forebear-{}-{:016x}", process::id(), random()));
        let made = DirBuilder::new().mode(0o700).create(&directory);
        made.map_err(|source| BindError::Io { path: directory.clone(), source })?;
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

    /// A socket that listens at this path.
    pub(crate) fn given(path: &Path) -> Result<(Place, OwnedFd), BindError> {
        let io = |source| BindError::Io { path: path.into(), source };
        let refused = |why| Err(io(io::Error::new(io::ErrorKind::InvalidInput, why)));
        if path.file_name().is_none() {
            return refused("it ends without the name of a file");
        }
        if path.as_os_str().as_bytes().contains(&0) {
            return refused("it contains a zero byte");
        }
        // A path that is too long is refused before any file is created.
        SocketAddrUnix::new(path).map_err(|error| io(error.into()))?;
        let lock = LockFile::take(&std::path::absolute(path).map_err(io)?)?;
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

/// What a server may find at its path and still have it.
enum Free {
    Nothing,
    /// A dead socket, by device and inode.
    Dead((u64, u64)),
}

/// Looks at what stands at a path.
fn look(path: &Path) -> Result<Free, BindError> {
    let io = |source| BindError::Io { path: path.into(), source };
    let occupied = |found| Err(BindError::Occupied { path: path.into(), found });
    let found = match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Free::Nothing),
        found => found.map_err(io)?,
    };
    if !found.file_type().is_socket() {
        return occupied(kind_of(found.file_type()));
    }
    if found.uid() != geteuid().as_raw() {
        return occupied("a socket of another user");
    }
    let probe = seqpacket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK).map_err(io)?;
    let address = SocketAddrUnix::new(path).map_err(|error| io(error.into()))?;
    match connect(&probe, &address) {
        // `AGAIN`: a server listens, and its accept queue is full.
        Ok(()) | Err(Errno::AGAIN) => Err(BindError::InUse { path: path.into() }),
        Err(Errno::CONNREFUSED) => Ok(Free::Dead((found.dev(), found.ino()))),
        Err(Errno::NOENT) => Ok(Free::Nothing),
        Err(Errno::PROTOTYPE) => occupied("a socket that another program has"),
        Err(error) => Err(io(error.into())),
    }
}

/// What a user calls such a file.
pub(super) fn kind_of(found: FileType) -> &'static str {
    match () {
        () if found.is_dir() => "a directory",
        () if found.is_symlink() => "a symbolic link",
        () if found.is_fifo() => "a pipe",
        () if found.is_socket() => "a socket",
        () if found.is_file() => "an ordinary file",
        () => "a device",
    }
}

fn listen_at(path: &Path) -> Result<(PathBuf, (u64, u64), OwnedFd), BindError> {
    let io = |source| BindError::Io { path: path.into(), source };
    let path = std::path::absolute(path).map_err(io)?;
    SocketAddrUnix::new(&path).map_err(|error| io(error.into()))?;
    // Before any file is created; what counts is the look below.
    look(&path)?;
    let hidden = beside(&path);
    let made = (|| {
        let socket = seqpacket(SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)?;
        bind(&socket, &SocketAddrUnix::new(&hidden)?)?;
        Ok(socket)
    })();
    let socket = made.map_err(io)?;
    let made = (|| {
        fs::set_permissions(&hidden, Permissions::from_mode(0o600)).map_err(io)?;
        // Accepted connections inherit it, so the first message already has its sender's
        // credentials.
        sockopt::set_socket_passcred(&socket, true).map_err(|error| io(error.into()))?;
        listen(&socket, BACKLOG).map_err(|error| io(error.into()))?;
        let file = identity(&hidden).map_err(io)?;
        appear(&hidden, &path)?;
        Ok(file)
    })();
    match made {
        Ok(file) => Ok((path, file, socket)),
        Err(error) => {
            _ = fs::remove_file(&hidden);
            Err(error)
        }
    }
}

/// Gives the socket its path.
fn appear(hidden: &Path, path: &Path) -> Result<(), BindError> {
    let io = |source| BindError::Io { path: path.into(), source };
    loop {
        match look(path)? {
            Free::Nothing => match fs::hard_link(hidden, path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                linked => {
                    linked.map_err(io)?;
                    _ = fs::remove_file(hidden);
                    return Ok(());
                }
            },
            Free::Dead(dead) => {
                if identity(path).is_ok_and(|now| now == dead) {
                    return fs::rename(hidden, path).map_err(io);
                }
            }
        }
    }
}

/// Device and inode of what stands at a path itself.
pub(super) fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|found| (found.dev(), found.ino()))
}

/// Another name in the same directory, for what is not complete.
pub(super) fn beside(path: &Path) -> PathBuf {
    path.with_file_name(format!(".{:x}", random() & 0xffff_ffff))
}

/// An unpredictable number: the keys of std's hash maps come from the system's random numbers.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::expiry::TimerError;
    use rustix::fs::{FlockOperation, flock};
    use rustix::net::{Shutdown, shutdown};
    use std::fs::File;
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

    /// Asks for this path, which has to be refused by a message with these words; the same things stand in the directory afterwards.
    #[track_caller]
    fn is_refused(path: &Path, words: &[&str]) {
        let names = || {
            let entries = fs::read_dir(path.parent().unwrap()).unwrap().map(Result::unwrap);
            let mut names: Vec<_> =
                entries.map(|entry| (entry.file_name(), identity(&entry.path()).unwrap())).collect();
            names.sort();
            names
        };
        let before = names();
        let refused = TimerError::from(Place::given(path).map(|_| ()).expect_err("the path was taken"));
        let message = format!("{refused:#}");
        for word in words {
            assert!(message.contains(word), "{message}: `{word}` is missing");
        }
        assert_eq!(names(), before);
    }

    #[test]
    fn what_is_no_dead_socket_of_this_user_is_left_alone_and_named() {
        let (around, _socket) = Place::own().unwrap();
        let at = |name: &str| around.path().with_file_name(name);
        let all = ["file", "directory", "link", "dangling", "pipe", "stream", "datagram"].map(at);
        let [file, directory, link, dangling, pipe, stream, datagram] = &all;
        fs::write(file, "precious").unwrap();
        is_refused(file, &["file\"", "an ordinary file", "choose another path"]);
        assert_eq!(fs::read(file).unwrap(), b"precious");
        fs::create_dir(directory).unwrap();
        is_refused(directory, &["directory\"", "a directory", "choose another path"]);
        // To what would be replaced, if it stood there itself.
        let dead = at("dead");
        drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
        std::os::unix::fs::symlink(&dead, link).unwrap();
        is_refused(link, &["link\"", "a symbolic link", "choose another path"]);
        std::os::unix::fs::symlink("nothing", dangling).unwrap();
        is_refused(dangling, &["dangling\"", "a symbolic link"]);
        mkfifo(pipe);
        is_refused(pipe, &["pipe\"", "a pipe"]);
        let _stream = std::os::unix::net::UnixListener::bind(stream).unwrap();
        is_refused(stream, &["stream\"", "a socket that another program has", "choose another path"]);
        std::os::unix::net::UnixStream::connect(stream).unwrap();
        let _datagram = std::os::unix::net::UnixDatagram::bind(datagram).unwrap();
        is_refused(datagram, &["datagram\"", "a socket that another program has"]);
        // One at which nobody listens any more, whoever did.
        drop(Place::given(&dead).unwrap());
        assert!(!dead.exists());
        all.iter().for_each(|path| _ = fs::remove_file(path).or_else(|_| fs::remove_dir(path)));
    }

    fn mkfifo(path: &Path) {
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    }

    #[test]
    fn a_lock_file_that_no_server_made_is_never_removed() {
        let (around, _socket) = Place::own().unwrap();
        let (path, lock) =
            (around.path().with_file_name("given"), around.path().with_file_name("given.lock"));
        let foreign = ["given.lock\"", "a file that no timer server has written", "choose another path"];
        for content in ["mine", "4711\n", "forebear timer server\nand more", "forebear timer serve"] {
            fs::write(&lock, content).unwrap();
            is_refused(&path, &foreign);
            assert_eq!(fs::read_to_string(&lock).unwrap(), content);
        }
        fs::remove_file(&lock).unwrap();
        fs::create_dir(&lock).unwrap();
        is_refused(&path, &["given.lock\"", "a directory"]);
        fs::remove_dir(&lock).unwrap();
        mkfifo(&lock);
        is_refused(&path, &["given.lock\"", "a pipe"]);
        fs::remove_file(&lock).unwrap();
        // A link is not followed, neither to a file nor to where there is none.
        let elsewhere = around.path().with_file_name("elsewhere");
        std::os::unix::fs::symlink(&elsewhere, &lock).unwrap();
        is_refused(&path, &["given.lock\"", "a symbolic link"]);
        fs::write(&elsewhere, "").unwrap();
        is_refused(&path, &["given.lock\"", "a symbolic link"]);
        fs::remove_file(&elsewhere).unwrap();
        fs::remove_file(&lock).unwrap();
        // An empty one may be another program's, or an older version's. It is locked, and stays.
        fs::write(&lock, "").unwrap();
        let (place, socket) = Place::given(&path).unwrap();
        is_refused(&path, &["given\"", "another path"]);
        drop((place, socket));
        assert!(lock.exists() && !path.exists());
        // One that is held by whomever.
        let held = File::open(&lock).unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        is_refused(&path, &["given\"", "another path"]);
        drop(held);
        fs::remove_file(&lock).unwrap();
        // Its own goes with the server, unless somebody has written into it meanwhile or put another one there.
        let (place, socket) = Place::given(&path).unwrap();
        fs::write(&lock, "mine").unwrap();
        drop((place, socket));
        assert_eq!(fs::read(&lock).unwrap(), b"mine");
        fs::remove_file(&lock).unwrap();
        let (place, socket) = Place::given(&path).unwrap();
        fs::remove_file(&lock).unwrap();
        fs::write(&lock, "").unwrap();
        drop((place, socket));
        assert!(lock.exists());
        fs::remove_file(&lock).unwrap();
    }

    #[test]
    fn a_path_that_cannot_be_bound_is_named_with_what_to_do() {
        let (around, _socket) = Place::own().unwrap();
        let missing = around.path().with_file_name("missing");
        let said = |path: &Path| TimerError::from(Place::given(path).map(|_| ()).unwrap_err()).to_string();
        let message = said(&missing.join("timers"));
        assert!(message.contains("missing/timers\"") && message.contains("make its directory"), "{message}");
        let message = said(&missing.with_file_name("x".repeat(200)));
        assert!(message.contains("xxx\"") && message.contains("choose a shorter"), "{message}");
        for unnamed in ["", "/", ".."] {
            let message = said(Path::new(unnamed));
            assert!(message.contains(&format!("{unnamed:?}")) && message.contains("name"), "{message}");
        }
        let message = said(Path::new("a\0b"));
        assert!(message.contains(r#""a\0b""#) && message.contains("zero byte"), "{message}");
        let (_place, _socket) = Place::given(&missing).unwrap();
        let taken = Place::given(&missing).unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        let message = TimerError::from(taken).to_string();
        let words = ["missing\"", "stop it, or choose another path"];
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
}
