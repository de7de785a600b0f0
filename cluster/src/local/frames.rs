//! What travels between the coordinator and a worker process: frames on a socket. A frame is a length of four bytes, little end first, and a message in the [form](FORM) of this engine.

use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::engine::{Format, Order, Report, WorkerId};

/// How messages are written. A change of one of these types makes the next version.
const FORM: Format = Format::new(b'L', 3);

/// No frame is longer.
pub(crate) const LONGEST: usize = 1 << 30;

/// So many bytes are read at once.
const BUFFER: usize = 64 << 10;

/// The first message to a worker.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
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

/// From the coordinator to a worker, after the welcome.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum ToWorker {
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
    /// The coordinator's process warns of this, and the worker continues.
    Warns {
        text: String,
    },
}

/// Why a message is not put.
#[derive(Debug, PartialEq)]
pub(crate) enum Unput {
    /// It takes so many bytes, which are too many.
    TooLong(usize),
    /// It cannot be encoded.
    Encode(String),
}

impl From<Unput> for io::Error {
    fn from(unput: Unput) -> io::Error {
        match unput {
            Unput::TooLong(bytes) => io::Error::other(format!("a message of {bytes} bytes is too long")),
            Unput::Encode(message) => io::Error::other(message),
        }
    }
}

/// Puts a frame of at most so many bytes behind what is there. Nothing is put if that fails.
pub(crate) fn put<T: Serialize>(frames: &mut Vec<u8>, message: &T, limit: usize) -> Result<(), Unput> {
    let begin = frames.len();
    frames.extend([0; 4]);
    let put = FORM.encode_behind(frames, message).map_err(Unput::Encode);
    let length = frames.len() - begin - 4;
    match put {
        Ok(()) if length <= limit => {
            frames[begin..begin + 4].copy_from_slice(&(length as u32).to_le_bytes());
            Ok(())
        }
        put => {
            frames.truncate(begin);
            put.and(Err(Unput::TooLong(length)))
        }
    }
}

fn decoded<T: DeserializeOwned>(frame: &[u8]) -> io::Result<T> {
    FORM.decode(frame).map_err(|refused| io::Error::new(io::ErrorKind::InvalidData, refused))
}

/// The receiving end of a socket.
pub(crate) struct Inlet(BufReader<UnixStream>);

impl Inlet {
    pub(crate) fn new(socket: UnixStream) -> Inlet {
        Inlet(BufReader::with_capacity(BUFFER, socket))
    }

    /// Reads a frame. Waits for it. `None`: there are no more. What is no message is an error of the kind `InvalidData`; what is torn since the sender has died is not.
    pub(crate) fn receive<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        if self.0.fill_buf()?.is_empty() {
            return Ok(None);
        }
        let mut length = [0; 4];
        self.0.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "it is too long"));
        }
        if let Some(frame) = self.0.buffer().get(..length) {
            let message = decoded(frame);
            self.0.consume(length);
            return message.map(Some);
        }
        // It grows as the bytes come: a wrong length takes no memory.
        let mut frame = Vec::new();
        if (&mut self.0).take(length as u64).read_to_end(&mut frame)? < length {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        decoded(&frame).map(Some)
    }

    /// Whether the next frame is here as a whole: to receive it does not wait.
    pub(crate) fn has_frame(&self) -> bool {
        let length = self.0.buffer().first_chunk().map(|length| u32::from_le_bytes(*length) as usize);
        length.is_some_and(|length| self.0.buffer().len() - 4 >= length)
    }
}

#[cfg(test)]
#[path = "../../tests/support/fuzz.rs"]
mod fuzz;

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use super::fuzz::{Decoder, decoder, fuzz};
    use super::*;
    use crate::engine::{Answer, Envelope, ObjectId, Refused, Resource, ResourceId, TaskId};
    use crate::error::FailureKind;

    /// What a reader makes of these bytes.
    fn received(bytes: &[u8]) -> io::Result<Option<Said>> {
        let (here, mut there) = UnixStream::pair().unwrap();
        there.write_all(bytes).unwrap();
        drop(there);
        Inlet::new(here).receive()
    }

    fn whole(said: &Said) -> Vec<u8> {
        let mut whole = Vec::new();
        put(&mut whole, said, LONGEST).unwrap();
        whole
    }

    #[test]
    fn frames_that_are_torn_too_long_or_garbage_are_errors() {
        let report = Said::Report(Report::Progress { task: TaskId(7), thousandths: 250 });
        let whole = whole(&report);
        assert_eq!(received(&whole).unwrap(), Some(report));
        assert_eq!(received(&[]).unwrap(), None);
        for end in 1..whole.len() {
            assert!(received(&whole[..end]).is_err(), "torn at {end}");
        }
        assert!(received(&u32::MAX.to_le_bytes()).is_err());
        assert!(received(&(LONGEST as u32).to_le_bytes()).is_err());
        assert!(received(&[3, 0, 0, 0, b'L', 3, 99]).is_err());
        let mut longer = whole;
        longer[0] += 1;
        longer.push(0);
        assert_eq!(received(&longer).unwrap_err().kind(), io::ErrorKind::InvalidData);
    }

    #[test]
    fn a_frame_of_another_version_is_refused_and_says_which() {
        let mut other = whole(&Said::Report(Report::Ready));
        other[5] += 1;
        let error = received(&other).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        let refused = error.into_inner().unwrap().downcast::<Refused>().unwrap();
        assert_eq!(*refused, Refused::Version { theirs: 4, ours: 3 });
    }

    fn envelope() -> Envelope {
        Envelope {
            job: 1,
            task: TaskId(300),
            generation: 2,
            name: "task".into(),
            args: Arc::from([1, 2, 3]),
            needs: Some(ResourceId(4)),
            max_attempts: 4,
            time_left: Some(Duration::from_millis(1_500)),
        }
    }

    #[test]
    fn decoders_refuse_or_read_back_whatever_the_bytes_are() {
        fn of<T: Serialize + DeserializeOwned>() -> Decoder {
            decoder::<T>(|message| FORM.encode(message).unwrap(), |bytes| FORM.decode(bytes).ok())
        }
        let answer = |answer| {
            let ran = Duration::from_micros(5);
            FORM.encode(&Said::Report(Report::Answer { task: TaskId(1), attempt: 1, answer, ran })).unwrap()
        };
        let message = |order| FORM.encode(&ToWorker::Order(order)).unwrap();
        let resource = Resource { job: 1, id: ResourceId(2), name: "it".into(), args: Arc::from([0]) };
        let failed = FailureKind::Error { message: "no".into(), causes: vec!["so".into()], typed: None };
        let welcome = Welcome {
            id: WorkerId::new("worker", 2),
            index: 1,
            tasks: vec![("task".into(), "task () -> u32".into())],
            grace: Duration::from_secs(1),
            store: "/tmp".into(),
            cache: 1 << 20,
        };
        let samples = [
            FORM.encode(&welcome).unwrap(),
            message(Order::Run { envelope: envelope(), attempt: 2 }),
            message(Order::Make(resource)),
            message(Order::Begin),
            FORM.encode(&ToWorker::Leave).unwrap(),
            message(Order::Dump { inquiry: 3 }),
            FORM.encode(&Said::Report(Report::Dump { inquiry: 3, text: "it waits".into() })).unwrap(),
            answer(Answer::Done(Arc::from([1; 40]))),
            answer(Answer::Stored { object: ObjectId::result(1, TaskId(2), 3), bytes: 1 << 30 }),
            answer(Answer::Failed(failed)),
            FORM.encode(&Said::Refused { why: "it has other tasks".into() }).unwrap(),
            FORM.encode(&Said::Warns { text: "it has no timers".into() }).unwrap(),
        ];
        let decoders = [("Welcome", of::<Welcome>()), ("ToWorker", of::<ToWorker>()), ("Said", of::<Said>())];
        fuzz(&decoders, &samples);
    }
}
