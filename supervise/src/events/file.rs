//! An event file: its name, and its records.
//!
//! TensorBoard reads the files of a directory in the order of their names, and never goes back to a name before the one
//! that it reads. A name begins with the time in seconds. So a file that was made after the wall clock was set back, or
//! within the second of the previous file, would sort before that file. TensorBoard would not show it. Therefore the
//! time in a new name is at least one second after that of every file in the directory.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use super::proto::Message;
use crate::ordinary;

const PREFIX: &str = "events.out.tfevents.";
/// Seconds of ten digits, as many as a name has; a later time would stand before all others.
const LAST: u64 = 9_999_999_999;

/// Makes a directory, if it is not there, and in it a file that no other writer has.
pub(super) fn create(dir: &Path) -> io::Result<(PathBuf, File)> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    ordinary::make_dir(dir)?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let names = fs::read_dir(dir)?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let seconds = next_time(now, names);
    loop {
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = dir.join(format!("{PREFIX}{seconds:010}.{}.{}.{n}", host(), std::process::id()));
        match File::options().write(true).create_new(true).open(&path) {
            Ok(file) => return Ok((path, file)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
}

/// The time for the name of a new file, in seconds: now, or one second after the latest file. See the module head.
fn next_time(now: u64, names: impl Iterator<Item = String>) -> u64 {
    let seconds = |name: String| name.strip_prefix(PREFIX)?.split('.').next()?.parse::<u64>().ok();
    let latest = names.filter_map(seconds).filter(|seconds| *seconds < LAST).max();
    latest.map_or(now, |latest| now.max(latest + 1)).min(LAST)
}

/// A record that is being put together: the length, its checksum, the bytes of a message, their checksum.
pub(super) struct FileRecord(Message);

/// Bytes of the length and its checksum.
const HEAD: usize = 12;
/// Bytes of the checksum at the end.
const TAIL: usize = 4;

impl FileRecord {
    pub(super) fn begin() -> FileRecord {
        FileRecord(Message::behind(&[0; HEAD], TAIL))
    }

    /// Adds to its message.
    pub(super) fn with(self, add: impl FnOnce(Message) -> Message) -> FileRecord {
        FileRecord(add(self.0))
    }

    /// Its bytes.
    pub(super) fn end(self) -> Vec<u8> {
        let mut record = self.0.into_bytes();
        let length = ((record.len() - HEAD) as u64).to_le_bytes();
        let checksum = masked_checksum(&record[HEAD..]);
        record[..8].copy_from_slice(&length);
        record[8..HEAD].copy_from_slice(&masked_checksum(&length).to_le_bytes());
        record.extend(checksum.to_le_bytes());
        record
    }
}

/// A checksum of bytes that hold checksums themselves is of little use; so the format adds a constant, after a rotation.
fn masked_checksum(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The name of this machine, as far as a file name can hold it.
fn host() -> String {
    #[cfg(unix)]
    let name = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    let name = String::new();
    let name: String = name.chars().map(|c| if c.is_alphanumeric() || c == '-' { c } else { '_' }).collect();
    if name.is_empty() { "host".into() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_stands_after_those_that_are_there_whatever_the_clock_says() {
        let of = |seconds: &str| format!("{PREFIX}{seconds}.host.1.0");
        let next = |now, names: &[String]| next_time(now, names.iter().cloned());
        assert_eq!(next(1_700_000_000, &[]), 1_700_000_000);
        assert_eq!(next(1_700_000_000, &[of("1600000000"), "checkpoints".into()]), 1_700_000_000);
        assert_eq!(next(1_600_000_000, &[of("1700000000"), of("1500000000")]), 1_700_000_001, "set back");
        assert_eq!(next(1_700_000_000, &[of("1700000000")]), 1_700_000_001, "within a second");
        assert_eq!(next(1_700_000_000, &[of("x"), of("99999999999"), of("9999999999")]), 1_700_000_000);
        assert_eq!(next(LAST, &[of("9999999998")]), LAST);
    }
}
