//! Where the files of a run are: `<place>/<run id>/attempt_<n>/<local rank>/`.
//!
//! In each of the last directories are `stdout.log` and `stderr.log`, if logs are kept, and what the worker writes for its agent: `result` and `error.json`. Without a
//! directory for logs the place is a [`Scratch`] in the system's temporary directory, which is removed after the run.
//!
//! A worker may put anything there, also a pipe or a link to a device. So a file is read only if it is an ordinary one, and only so much of it.

use std::env;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::SystemTime;

use super::scratch::Scratch;

/// So much of a worker's error is read, in bytes.
const ERROR_LIMIT: u64 = 64 * 1024;
/// So much of the end of a log is shown where a worker gave no error, in bytes.
const TAIL: u64 = 1024;
/// Names that are tried, if there is one already.
const TRIES: u32 = 100_000;

/// The directory of a run.
#[derive(Debug)]
pub(super) struct Places {
    run: PathBuf,
    /// Without logs: the directory, which goes with this.
    scratch: Option<Scratch>,
}

impl Places {
    /// Makes the directory of a run. One of the same name is left alone: this one then gets a number behind its name.
    pub(super) fn new(logs: Option<&Path>, run_id: &str) -> io::Result<Places> {
        let Some(logs) = logs else {
            let scratch = Scratch::new(&env::temp_dir())?;
            return Ok(Places { run: scratch.path().to_owned(), scratch: Some(scratch) });
        };
        let of_logs = |error: io::Error| {
            at(error, format_args!("the directory {logs:?} for logs cannot be made or used"))
        };
        fs::create_dir_all(logs).map_err(of_logs)?;
        // Absolute, since workers may have another directory.
        let parent = fs::canonicalize(logs).map_err(of_logs)?;
        for n in 0..TRIES {
            let run = parent.join(if n == 0 { run_id.to_owned() } else { format!("{run_id}.{n}") });
            match fs::create_dir(&run) {
                Ok(()) => return Ok(Places { run, scratch: None }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(at(error, format_args!("the directory {run:?} cannot be made"))),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Where it is, if it stays.
    pub(super) fn kept(&self) -> Option<&Path> {
        self.scratch.is_none().then_some(&self.run)
    }

    fn attempt(&self, attempt: u32) -> PathBuf {
        self.run.join(format!("attempt_{attempt}"))
    }

    pub(super) fn worker(&self, attempt: u32, local_rank: usize) -> PathBuf {
        self.attempt(attempt).join(local_rank.to_string())
    }

    /// Makes the directories of an attempt. What is there of an attempt of this number is removed.
    pub(super) fn begin(&self, attempt: u32, workers: usize) -> io::Result<()> {
        let place = self.attempt(attempt);
        match fs::remove_dir_all(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(at(error, format_args!("the directory {place:?} cannot be removed")));
            }
            _ => {}
        }
        (0..workers).try_for_each(|local_rank| {
            let place = self.worker(attempt, local_rank);
            let made = fs::create_dir_all(&place);
            made.map_err(|error| at(error, format_args!("the directory {place:?} cannot be made")))
        })
    }

    /// Where a worker writes to.
    pub(super) fn output(&self, attempt: u32, local_rank: usize) -> io::Result<(Stdio, Stdio)> {
        if self.scratch.is_some() {
            return Ok((Stdio::inherit(), Stdio::inherit()));
        }
        let place = self.worker(attempt, local_rank);
        let open = |name| {
            let opened = OpenOptions::new().create(true).append(true).open(place.join(name));
            let named = |error| at(error, format_args!("the file {:?} cannot be opened", place.join(name)));
            opened.map(Stdio::from).map_err(named)
        };
        Ok((open("stdout.log")?, open("stderr.log")?))
    }

    /// What a worker says about its failure, and when it was written. Without that, the end of what it has written to its standard error, if there is a log.
    pub(super) fn error(&self, attempt: u32, local_rank: usize) -> (Option<String>, Option<SystemTime>) {
        let place = self.worker(attempt, local_rank);
        let text = |bytes: Vec<u8>| {
            let text = String::from_utf8_lossy(&bytes).trim().to_owned();
            (!text.is_empty()).then_some(text)
        };
        if let Ok((file, _)) = ordinary(&place.join("error.json")) {
            let written = file.metadata().and_then(|meta| meta.modified()).ok();
            let mut bytes = Vec::new();
            if file.take(ERROR_LIMIT).read_to_end(&mut bytes).is_ok()
                && let Some(text) = text(bytes)
            {
                return (Some(text), written);
            }
        }
        let tail = ordinary(&place.join("stderr.log")).and_then(|(mut file, len)| {
            file.seek(SeekFrom::Start(len.saturating_sub(TAIL)))?;
            let mut bytes = Vec::new();
            file.take(TAIL).read_to_end(&mut bytes)?;
            Ok(bytes)
        });
        (tail.ok().and_then(text), None)
    }

    /// What a worker gives as its result. Empty if it wrote none.
    pub(super) fn result(&self, attempt: u32, local_rank: usize, limit: u64) -> io::Result<Vec<u8>> {
        let (file, len) = match ordinary(&self.worker(attempt, local_rank).join("result")) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            found => found?,
        };
        let mut bytes = Vec::new();
        file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            return Err(io::Error::other(format!("the result has {len} bytes, more than {limit}")));
        }
        Ok(bytes)
    }
}

/// The error with what it is about, which the system does not name.
pub(super) fn at(error: io::Error, what: fmt::Arguments<'_>) -> io::Error {
    io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Opens what a worker has left, and answers how long it is.
fn ordinary(path: &Path) -> io::Result<(File, u64)> {
    let file = crate::ordinary::open(File::options().read(true), path)?;
    let length = file.metadata()?.len();
    Ok((file, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_worker_leaves_is_read_only_if_it_is_an_ordinary_file_and_not_too_long() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places::new(Some(dir.path()), "run").unwrap();
        places.begin(0, 1).unwrap();
        assert_eq!(places.result(0, 0, 10).unwrap(), b"");
        let result = places.worker(0, 0).join("result");
        fs::write(&result, "0123456789").unwrap();
        assert_eq!(places.result(0, 0, 10).unwrap(), b"0123456789");
        assert!(places.result(0, 0, 9).unwrap_err().to_string().contains("10 bytes"));
        fs::remove_file(&result).unwrap();
        std::os::unix::fs::symlink("/dev/zero", &result).unwrap();
        places.result(0, 0, 10).unwrap_err();
        fs::remove_file(&result).unwrap();
        fs::create_dir(&result).unwrap();
        places.result(0, 0, 10).unwrap_err();
        // A plain open of a pipe without a writer would block.
        let pipe = places.worker(0, 0).join("error.json");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert_eq!(places.error(0, 0).0, None);
        fs::write(places.worker(0, 0).join("stderr.log"), "x".repeat(2_000) + "the end\n").unwrap();
        let (tail, _) = places.error(0, 0);
        assert!(tail.is_some_and(|tail| tail.ends_with("the end") && tail.len() == TAIL as usize - 1));
    }

    #[test]
    fn a_run_of_the_same_name_gets_a_directory_of_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let one = Places::new(Some(dir.path()), "run").unwrap();
        let other = Places::new(Some(dir.path()), "run").unwrap();
        assert_ne!(one.kept(), other.kept());
        let temporary = Places::new(None, "run").unwrap();
        let path = temporary.run.clone();
        assert!(temporary.kept().is_none() && path.is_dir());
        drop(temporary);
        assert!(!path.exists() && one.run.is_dir());
    }
}
