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
//! The caller of `write` encodes the event and puts it into a bounded queue. The writer's own thread writes to the file, a millisecond after the event at the latest. If the system
//! refuses a write, the next call returns that error.
//!
//! # Source
//!
//! The formats are those of TensorFlow: `tensorflow/core/lib/io/record_writer.h`, and `event.proto`, `summary.proto`, `tensor.proto`.

mod file;
mod proto;
mod queue;
mod summary;

use std::error::Error as StdError;
use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use forebear::Chain;

use self::file::FileRecord;
use self::proto::Message;
use self::queue::{Queue, Refused};
pub use self::summary::Summary;

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
/// events.close()?; // all of it is in the file
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct EventWriter {
    path: PathBuf,
    queue: Arc<Queue>,
}

/// Why events could not be written.
///
/// ```
/// use forebear_supervise::{EventError, EventWriter, Summary};
///
/// /// Summaries are not worth a failure of the job.
/// fn show(events: &EventWriter, step: u64, loss: f64) {
///     match events.write(step, Summary::new().scalar("loss", loss)) {
///         Err(EventError::Io { path, source, .. }) => eprintln!("{}: {source}", path.display()),
///         Err(_) | Ok(()) => {}
///     }
/// }
/// # let dir = std::env::temp_dir().join(format!("event-error-{}", std::process::id()));
/// # show(&EventWriter::create(&dir)?, 1, 0.5);
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), std::io::Error>(())
/// ```
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
        if f.alternate() {
            return Chain::of(self).fmt(f);
        }
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
///
/// ```
/// use forebear_supervise::{EventWriter, SessionLog, Summary};
///
/// # let dir = std::env::temp_dir().join(format!("session-log-{}", std::process::id()));
/// let events = EventWriter::create(&dir)?;
/// events.session(Some(100), SessionLog::Start)?; // a run that was restored at step 100
/// events.write(101, Summary::new().scalar("loss", 0.5))?;
/// events.session(Some(101), SessionLog::Checkpoint(dir.join("checkpoint-000000000101")))?;
/// events.session(None, SessionLog::Stop)?;
/// events.close()?;
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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
    /// Creates a file in `dir`, and `dir` if it does not exist, and starts the thread that writes to the file. Does not suspend: the calling thread does that.
    ///
    /// # Errors
    ///
    /// The system refuses the directory, the file or the thread.
    pub fn create(dir: impl AsRef<Path>) -> io::Result<EventWriter> {
        let (path, mut file) = file::create(dir.as_ref())?;
        file.write_all(&event(None).with(|message| message.bytes(3, b"brain.Event:2")).end())?;
        let queue = Arc::new(Queue::default());
        let orders = queue.clone();
        thread::Builder::new().name("events".into()).spawn(move || orders.write_to(&mut file))?;
        Ok(EventWriter { path, queue })
    }

    /// The file that it writes.
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
        let summary = summary.into();
        self.put(event(Some(step)).with(|message| message.message(5, &summary.values)))
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
        self.put(event(step).with(|message| message.message(7, &log)))
    }

    /// Waits until everything that was written before is in the file. Other processes can read it then; a crash of the system may still lose it.
    ///
    /// Suspends. A cancellation point.
    ///
    /// ```
    /// use forebear_supervise::{EventWriter, Summary};
    ///
    /// # let dir = std::env::temp_dir().join(format!("flush-{}", std::process::id()));
    /// let events = EventWriter::create(&dir)?;
    /// let before = events.path().metadata()?.len();
    /// events.write(1, Summary::new().scalar("loss", 0.5))?;
    /// events.flush()?;
    /// assert!(events.path().metadata()?.len() > before);
    /// # std::fs::remove_dir_all(&dir)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    pub fn flush(&self) -> Result<(), EventError> {
        self.queue.flush().map_err(|refused| self.failed(refused))
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

    fn put(&self, record: FileRecord) -> Result<(), EventError> {
        self.queue.put(&record.end()).map_err(|refused| self.failed(refused))
    }

    fn failed(&self, refused: Refused) -> EventError {
        match refused {
            Refused::Cancelled => EventError::Cancelled,
            Refused::Ended(source) => EventError::Io { path: self.path.clone(), source },
        }
    }
}

impl Drop for EventWriter {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl fmt::Debug for EventWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventWriter").field("path", &self.path).finish_non_exhaustive()
    }
}

/// What every event begins with: the time, and the step.
fn event(step: Option<u64>) -> FileRecord {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
    let record = FileRecord::begin().with(|message| message.double(1, now));
    match step {
        Some(step) => record.with(|message| message.integer(2, step)),
        None => record,
    }
}
