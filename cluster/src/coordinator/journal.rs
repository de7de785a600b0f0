//! [`Journal`]: the results of tasks that have a key, in a file. A coordinator that is started again finds there what the one before it has not fetched.
//!
//! # The file
//!
//! A head of eight bytes, and records one after the other. A record is the length of its body, the body's hash (both of eight bytes, little end first), and the body: a [`Record`] in postcard. Records are only ever
//! added, each by one write, so a process that is killed loses none that was written. If the machine loses power, the last ones may be missing or torn: the file is cut behind the last one whose hash is right.
//!
//! Of several records with one key the last one counts. One coordinator at a time has the file: it holds a lock, which the system takes away when it ends.
//!
//! # What a record is of
//!
//! It answers a task of the same key, name, [signature](crate::Tasks::signatures) and arguments. If one of these is another one, the task runs, and its result is the key's next record.

use std::collections::HashMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use crate::error::ClusterError;

/// What a file begins with. The last byte is the version.
const HEAD: [u8; 8] = *b"FBJRNL\0\x01";

/// A record's length and hash take so many bytes.
const PREFIX: usize = 16;

/// No record is longer: results above [`INLINE`](crate::engine::INLINE) are not kept.
const LONGEST: u64 = 1 << 30;

/// What says which result is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) key: Arc<str>,
    /// The hash of name, signature and arguments.
    pub(super) call: u64,
}

#[derive(Serialize, Deserialize)]
struct Record<'a> {
    key: &'a str,
    call: u64,
    result: &'a [u8],
}

pub(crate) struct Journal {
    path: PathBuf,
    state: Mutex<JournalState>,
}

struct JournalState {
    /// `None`: it is closed.
    file: Option<File>,
    /// Where the next record goes.
    end: u64,
    /// Of each key: the call, and where its record is, of which length.
    known: HashMap<Box<str>, (u64, u64, usize)>,
    /// Nothing is written any more, since that failed.
    failed: Option<String>,
}

impl Journal {
    /// Opens the file, or makes it, and reads which results it has.
    pub(super) fn open(path: &Path) -> io::Result<Journal> {
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        lock(&file)?;
        let length = file.metadata()?.len();
        let mut known = HashMap::new();
        let mut end = HEAD.len() as u64;
        if length < end {
            // A new one, or one whose head was not written as a whole.
            let mut head = Vec::new();
            (&file).read_to_end(&mut head)?;
            if !HEAD.starts_with(&head) {
                return Err(stranger());
            }
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&HEAD)?;
        } else {
            let mut reader = io::BufReader::new(&file);
            let mut head = [0; HEAD.len()];
            reader.read_exact(&mut head)?;
            if head != HEAD {
                return Err(stranger());
            }
            while let Some(body) = next(&mut reader, length - end)? {
                let Ok(record) = postcard::from_bytes::<Record<'_>>(&body) else { break };
                known.insert(record.key.into(), (record.call, end + PREFIX as u64, body.len()));
                end += (PREFIX + body.len()) as u64;
            }
            file.set_len(end)?;
        }
        let state = Mutex::new(JournalState { file: Some(file), end, known, failed: None });
        Ok(Journal { path: path.to_owned(), state })
    }

    /// Nothing that is done under the lock can leave it half done, so a panic there changes nothing.
    fn lock(&self) -> MutexGuard<'_, JournalState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The result that is kept, if there is one.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or an earlier result could not be written.
    pub(super) fn find(&self, wanted: &Wanted) -> Result<Option<Arc<[u8]>>, ClusterError> {
        let JournalState { file, known, failed, .. } = &mut *self.lock();
        if let Some(why) = failed {
            return Err(self.failure(why));
        }
        let file = file.as_mut().ok_or(ClusterError::Closed)?;
        let Some(&(call, at, length)) = known.get(&*wanted.key) else { return Ok(None) };
        if call != wanted.call {
            return Ok(None);
        }
        let mut body = vec![0; length];
        let read = file.seek(SeekFrom::Start(at)).and_then(|_| file.read_exact(&mut body));
        read.map_err(|error| self.failure(error))?;
        match postcard::from_bytes::<Record<'_>>(&body) {
            Ok(record) if record.key == &*wanted.key && record.call == call => Ok(Some(record.result.into())),
            _ => Err(self.failure("it was changed by somebody else")),
        }
    }

    /// Keeps a result. If that fails, the next [`find`](Self::find) says so.
    pub(super) fn keep(&self, wanted: &Wanted, result: &[u8]) {
        let record = Record { key: &wanted.key, call: wanted.call, result };
        let encoded = postcard::to_extend(&record, vec![0; PREFIX]).map_err(|error| error.to_string());
        let JournalState { file, end, known, failed } = &mut *self.lock();
        let (Some(file), None) = (file, &*failed) else { return };
        let written = encoded.and_then(|mut bytes| {
            let length = bytes.len() - PREFIX;
            let hash = hash([&bytes[PREFIX..]]);
            bytes[..8].copy_from_slice(&(length as u64).to_le_bytes());
            bytes[8..PREFIX].copy_from_slice(&hash.to_le_bytes());
            let put = file.seek(SeekFrom::Start(*end)).and_then(|_| file.write_all(&bytes));
            put.map(|()| length).map_err(|error| error.to_string())
        });
        match written {
            Ok(length) => {
                let at = *end + PREFIX as u64;
                known.insert((*wanted.key).into(), (wanted.call, at, length));
                *end = at + length as u64;
            }
            Err(why) => *failed = Some(why),
        }
    }

    /// Another coordinator may have the file.
    pub(super) fn close(&self) {
        self.lock().file = None;
    }

    fn failure(&self, why: impl fmt::Display) -> ClusterError {
        ClusterError::Store { message: format!("the journal {}: {why}", self.path.display()) }
    }
}

fn stranger() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is no journal of this version")
}

/// The body of the next record. `None`: there is none, or it is torn.
fn next(reader: &mut impl Read, left: u64) -> io::Result<Option<Vec<u8>>> {
    let mut prefix = [0; PREFIX];
    if left < PREFIX as u64 {
        return Ok(None);
    }
    reader.read_exact(&mut prefix)?;
    let (length, expected) = prefix.split_at(8);
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    let length = number(length);
    if length > LONGEST || length > left - PREFIX as u64 {
        return Ok(None);
    }
    let mut body = vec![0; length as usize];
    reader.read_exact(&mut body)?;
    Ok((hash([&body[..]]) == number(expected)).then_some(body))
}

/// FNV-1a, with the length of each part: the same on each machine.
pub(super) fn hash<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> u64 {
    let add = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
    parts.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, part| {
        let hash = (part.len() as u64).to_le_bytes().iter().fold(hash, add);
        part.iter().fold(hash, add)
    })
}

/// Nobody else has the file.
#[cfg(target_os = "linux")]
fn lock(file: &File) -> io::Result<()> {
    use rustix::fs::{FlockOperation, flock};
    flock(file, FlockOperation::NonBlockingLockExclusive)
        .map_err(|_| io::Error::new(io::ErrorKind::ResourceBusy, "another coordinator has it"))
}

#[cfg(not(target_os = "linux"))]
fn lock(_: &File) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn wanted(key: &str, call: u64) -> Wanted {
        Wanted { key: key.into(), call }
    }

    fn result(journal: &Journal, key: &str, call: u64) -> Option<Vec<u8>> {
        journal.find(&wanted(key, call)).unwrap().map(|result| result.to_vec())
    }

    #[test]
    fn the_last_result_of_a_key_is_found_again_by_the_same_call_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let journal = Journal::open(&path).unwrap();
        assert_eq!(result(&journal, "a", 1), None);
        journal.keep(&wanted("a", 1), &[1, 2]);
        journal.keep(&wanted("b", 1), &[]);
        journal.keep(&wanted("a", 2), &[3]);
        drop(journal);
        for _ in 0..2 {
            let journal = Journal::open(&path).unwrap();
            assert_eq!(result(&journal, "a", 1), None);
            assert_eq!(result(&journal, "a", 2), Some(vec![3]));
            assert_eq!(result(&journal, "b", 1), Some(vec![]));
        }
    }

    /// A machine that has lost its power has written any part of the last record.
    #[test]
    fn a_torn_record_is_cut_off_and_those_before_it_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let journal = Journal::open(&path).unwrap();
        journal.keep(&wanted("a", 1), &[1; 10]);
        let whole = fs::read(&path).unwrap();
        journal.keep(&wanted("b", 1), &[2; 10]);
        drop(journal);
        let both = fs::read(&path).unwrap();
        let check = |bytes: &[u8], first: bool| {
            fs::write(&path, bytes).unwrap();
            let journal = Journal::open(&path).unwrap();
            assert_eq!(result(&journal, "a", 1), first.then(|| vec![1; 10]));
            assert_eq!(result(&journal, "b", 1), None);
            journal.keep(&wanted("c", 1), &[3]);
            drop(journal);
            let journal = Journal::open(&path).unwrap();
            assert_eq!(result(&journal, "c", 1), Some(vec![3]));
            assert_eq!(result(&journal, "a", 1), first.then(|| vec![1; 10]));
        };
        for end in 0..both.len() {
            check(&both[..end], end >= whole.len());
        }
        for at in whole.len()..both.len() {
            let mut flipped = both.clone();
            flipped[at] ^= 0x40;
            check(&flipped, true);
        }
    }

    #[test]
    fn a_file_of_somebody_else_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("letter");
        for text in ["Dear Sir or Madam", "Sir"] {
            fs::write(&path, text).unwrap();
            assert_eq!(Journal::open(&path).map(drop).unwrap_err().kind(), io::ErrorKind::InvalidData);
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn one_coordinator_at_a_time_has_a_journal() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let first = Journal::open(&path).unwrap();
        let error = Journal::open(&path).map(drop).unwrap_err();
        assert!(error.to_string().contains("another coordinator has it"), "{error}");
        drop(first);
        Journal::open(&path).map(drop).unwrap();
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_result_that_cannot_be_written_is_an_error_of_the_next_call() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("journal");
        let journal = Journal::open(&path).unwrap();
        journal.lock().file = Some(File::open(&path).unwrap());
        journal.keep(&wanted("a", 1), &[1]);
        let Err(ClusterError::Store { message }) = journal.find(&wanted("b", 1)) else {
            panic!("it was not kept")
        };
        assert!(message.contains(path.to_str().unwrap()), "{message}");
    }
}
