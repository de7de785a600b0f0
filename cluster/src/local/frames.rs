//! What travels between the coordinator and a worker process: frames on a socket. A frame is a length of four bytes, little end first, and a message in postcard.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::engine::{Order, Report, WorkerId};

/// No frame is longer.
const LONGEST: usize = 1 << 30;

/// The first message to a worker.
#[derive(Serialize, Deserialize)]
pub(crate) struct Welcome {
    pub(crate) id: WorkerId,
    pub(crate) index: usize,
    /// The names and types of the coordinator's tasks.
    pub(crate) tasks: Vec<(String, String)>,
    /// How long what runs may take to end when the orders end.
    pub(crate) grace: Duration,
    /// The directory of the objects, and the limit of the cache.
    pub(crate) store: PathBuf,
    pub(crate) cache: u64,
}

/// What a worker is told, after the welcome.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Told {
    Order(Order),
    /// There are no more orders, since the coordinator wants so. If they end without this, the coordinator is dead.
    Leave,
}

/// What a worker says.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Said {
    Report(Report),
    /// It has other tasks than the coordinator, and ends.
    Refused {
        why: String,
    },
}

/// Writes a frame.
pub(crate) fn send<T: Serialize>(socket: &mut UnixStream, message: &T) -> io::Result<()> {
    let mut frame = postcard::to_extend(message, vec![0; 4]).map_err(io::Error::other)?;
    let length = frame.len() - 4;
    if length > LONGEST {
        return Err(io::Error::other("a message is too long"));
    }
    frame[..4].copy_from_slice(&(length as u32).to_le_bytes());
    socket.write_all(&frame)
}

/// Reads a frame. `None`: there are no more.
pub(crate) fn receive<T: DeserializeOwned>(socket: &mut UnixStream) -> io::Result<Option<T>> {
    let mut length = [0; 4];
    match socket.read(&mut length)? {
        0 => return Ok(None),
        read => socket.read_exact(&mut length[read..])?,
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > LONGEST {
        return Err(io::Error::other("a message is too long"));
    }
    // It grows as the bytes come: a wrong length takes no memory.
    let mut frame = Vec::new();
    if socket.take(length as u64).read_to_end(&mut frame)? < length {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    postcard::from_bytes(&frame).map(Some).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::TaskId;

    /// What a reader makes of these bytes.
    fn received(bytes: &[u8]) -> io::Result<Option<Said>> {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        there.write_all(bytes).unwrap();
        drop(there);
        receive(&mut here)
    }

    #[test]
    fn frames_that_are_torn_too_long_or_garbage_are_errors() {
        let (mut here, mut there) = UnixStream::pair().unwrap();
        let report = Said::Report(Report::Progress { task: TaskId(7), thousandths: 250 });
        send(&mut here, &report).unwrap();
        drop(here);
        let mut whole = Vec::new();
        there.read_to_end(&mut whole).unwrap();
        assert_eq!(received(&whole).unwrap(), Some(report));
        assert_eq!(received(&[]).unwrap(), None);
        for end in 1..whole.len() {
            assert!(received(&whole[..end]).is_err(), "torn at {end}");
        }
        assert!(received(&u32::MAX.to_le_bytes()).is_err());
        assert!(received(&(LONGEST as u32).to_le_bytes()).is_err());
        assert!(received(&[1, 0, 0, 0, 99]).is_err());
    }
}
