//! [`EventWriter`]: files that TensorBoard shows.
//!
//! # A file
//!
//! A sequence of records, each of a length (u64), the masked CRC-32C of the length, the bytes, and the masked CRC-32C of the bytes; numbers are little-endian. The bytes
//! are a protocol buffer, `Event`. Its first record says `brain.Event:2`. A reader stops at the first record that is damaged. So a torn tail costs only
//! that tail, and nothing is appended to an existing file: each writer makes a file of its own.
//!
//! # Threads
//!
//! The caller of `write` encodes the event and puts it into a bounded queue. The writer's own thread writes to the file, and flushes when the queue is empty. If the system
//! refuses a write, the next call returns that error.
//!
//! # Source
//!
//! The formats are those of TensorFlow: `tensorflow/core/lib/io/record_writer.h`, and `event.proto`, `summary.proto`, `tensor.proto`.

mod file;
mod proto;
mod summary;

use std::error::Error as StdError;
use std::fmt;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use forebear::channel::{self, Receiver, RecvError, SendError, Sender};

use self::file::write_record;
use self::proto::Message;
pub use self::summary::Summary;

/// So many events may wait for the thread.
const QUEUE: usize = 1 << 12;
const BUFFER: usize = 1 << 16;

/// Writes one file that TensorBoard shows.
///
/// A directory should have one writer at a time: TensorBoard shows only one of several. Give each process a directory of its own below a common one.
///
/// ```
/// use forebear_supervise::{EventWriter, SessionLog, Summary};
///
/// # let dir = std::env::temp_dir().join(format!("events-{}", std::process::id()));
/// let events = EventWriter::create(&dir)?;
/// events.session(Some(0), SessionLog::Start)?;
/// for step in 0..100 {
///     let loss = 1.0 / (1.0 + step as f64);
///     events.write(step, Summary::new().scalar("loss", loss))?;
/// }
/// events.close()?; // on disk
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct EventWriter {
    path: PathBuf,
    queue: Sender<Order>,
    refused: Refused,
}

/// The error that the system returned to the thread.
type Refused = Arc<Mutex<Option<Arc<io::Error>>>>;

enum Order {
    Write(Vec<u8>),
    /// Everything before is in the file when the sender is used.
    Flush(channel::oneshot::Sender<()>),
}

/// Why events could not be written.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum EventError {
    /// The system has refused a write. Nothing is written from then on.
    #[non_exhaustive]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: Arc<io::Error>,
    },
    /// The calling request was cancelled before the event had a place in the queue.
    Cancelled,
}

impl fmt::Display for EventError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            EventError::Io { path, .. } => write!(f, "{}: events could not be written", path.display()),
            EventError::Cancelled => f.write_str("the writing of an event was cut short"),
        }
    }
}

impl StdError for EventError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            EventError::Io { source, .. } => Some(source),
            EventError::Cancelled => Some(&crate::CANCELLED),
        }
    }
}

/// An event in the life of a job, for TensorBoard.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionLog {
    /// A run begins at a step. TensorBoard no longer shows what an earlier run has written for this step and later ones.
    Start,
    /// A checkpoint was written to this file.
    Checkpoint(PathBuf),
    /// The run ends.
    Stop,
}

impl EventWriter {
    /// Creates a file in `dir`, and `dir` if it does not exist, and starts the thread that writes to the file.
    ///
    /// # Errors
    ///
    /// The system refuses the directory, the file or the thread.
    pub fn create(dir: impl AsRef<Path>) -> io::Result<EventWriter> {
        let (path, file) = file::create(dir.as_ref())?;
        let mut out = BufWriter::with_capacity(BUFFER, file);
        write_record(&mut out, event(None).bytes(3, b"brain.Event:2").as_bytes())?;
        out.flush()?;
        let (queue, orders) = channel::bounded_named("events", QUEUE);
        let refused = Refused::default();
        let tell = refused.clone();
        thread::Builder::new().name("events".into()).spawn(move || {
            // A caller that waits for a flush learns of the error from what is stored here, so the order goes after that.
            if let Err((error, _order)) = write_all(&mut out, &orders) {
                *tell.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(error));
            }
        })?;
        Ok(EventWriter { path, queue, refused })
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a summary for a step.
    ///
    /// Suspends while the queue is full. A cancellation point then.
    ///
    /// # Errors
    ///
    /// [`EventError`]: the system has refused a write, perhaps of an earlier event; or the caller was cancelled.
    pub fn write(&self, step: u64, summary: impl Into<Summary>) -> Result<(), EventError> {
        self.put(event(Some(step)).message(5, &summary.into().values))
    }

    /// Writes an event in the life of the job. A start and a checkpoint have a step.
    ///
    /// Suspends while the queue is full. A cancellation point then.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn session(&self, step: Option<u64>, log: SessionLog) -> Result<(), EventError> {
        let log = match log {
            SessionLog::Start => Message::default().integer(1, 1),
            SessionLog::Stop => Message::default().integer(1, 2),
            SessionLog::Checkpoint(path) => {
                Message::default().integer(1, 3).bytes(2, path.to_string_lossy().as_bytes())
            }
        };
        self.put(event(step).message(7, &log))
    }

    /// Waits until everything that was written before is in the file.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn flush(&self) -> Result<(), EventError> {
        let (done, is_done) = channel::oneshot::channel();
        self.order(Order::Flush(done))?;
        match is_done.recv() {
            Ok(()) => Ok(()),
            Err(RecvError::Cancelled) => Err(EventError::Cancelled),
            Err(_) => Err(self.failed()),
        }
    }

    /// Ends the writer after a [`flush`](Self::flush). If a writer is dropped instead, its thread still writes what is in the queue, but no caller waits for that.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// As [`flush`](Self::flush).
    pub fn close(self) -> Result<(), EventError> {
        self.flush()
    }

    fn put(&self, event: Message) -> Result<(), EventError> {
        self.order(Order::Write(event.into_bytes()))
    }

    fn order(&self, order: Order) -> Result<(), EventError> {
        match self.queue.send(order) {
            Ok(()) => Ok(()),
            Err(SendError::Cancelled(_)) => Err(EventError::Cancelled),
            Err(_) => Err(self.failed()),
        }
    }

    /// Why the thread has ended.
    fn failed(&self) -> EventError {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let source =
            refused.unwrap_or_else(|| Arc::new(io::Error::other("the thread that writes has ended")));
        EventError::Io { path: self.path.clone(), source }
    }
}

impl fmt::Debug for EventWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventWriter").field("path", &self.path).finish_non_exhaustive()
    }
}

/// What every event begins with: the time, and the step.
fn event(step: Option<u64>) -> Message {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    let message = Message::default().double(1, now);
    match step {
        Some(step) => message.integer(2, step),
        None => message,
    }
}

/// The loop of the thread. An error is returned with its order.
fn write_all(out: &mut impl Write, orders: &Receiver<Order>) -> Result<(), (io::Error, Option<Order>)> {
    while let Ok(order) = orders.recv() {
        let mut next = Some(order);
        while let Some(order) = next {
            let written = match &order {
                Order::Write(bytes) => write_record(out, bytes),
                Order::Flush(_) => out.flush(),
            };
            match (written, order) {
                (Err(error), order) => return Err((error, Some(order))),
                (Ok(()), Order::Flush(done)) => drop(done.send(())),
                (Ok(()), Order::Write(_)) => {}
            }
            next = orders.try_recv().ok();
        }
        out.flush().map_err(|error| (error, None))?;
    }
    Ok(())
}
