//! [`absolute`], [`make_dir`], [`open`], [`is_at`]: directories that a user names, and files at fixed names in directories that other programs may write to.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf, absolute as absolute_of};

/// The path from the root, so that it leads to the same place after the process has changed its directory. Without a current directory it stays as it is.
pub(crate) fn absolute(path: PathBuf) -> PathBuf {
    absolute_of(&path).unwrap_or(path)
}

/// Makes the directory, and those above it, unless it is there. Where something else stands at its name, or it has none, the error says so.
pub(crate) fn make_dir(dir: &Path) -> io::Result<()> {
    if dir.as_os_str().is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "the path is empty: name a directory, or write `.` for the current one",
        ));
    }
    fs::create_dir_all(dir).map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists | io::ErrorKind::NotADirectory => io::Error::new(
            io::ErrorKind::NotADirectory,
            "something that is no directory stands there, or above: name another directory, or move that away",
        ),
        _ => error,
    })
}

/// Opens a file without waiting for another process. An error if anything else is at the name: a link would lead to another file, and a pipe would wait for its other end.
#[cfg(unix)]
pub(crate) fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt;

    use rustix::fs::OFlags;

    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = options.custom_flags(flags.bits() as i32).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other(format!("{} is no ordinary file", path.display())));
    }
    Ok(file)
}

#[cfg(not(unix))]
pub(crate) fn open(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    options.open(path)
}

/// Whether the path still leads to this file.
#[cfg(unix)]
pub(crate) fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    use std::os::unix::fs::MetadataExt;
    let opened = file.metadata()?;
    match fs::metadata(path) {
        Ok(found) => Ok((found.dev(), found.ino()) == (opened.dev(), opened.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(not(unix))]
pub(crate) fn is_at(_: &File, _: &Path) -> io::Result<bool> {
    Ok(true)
}
