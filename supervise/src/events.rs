//! [`EventWriter`]: files that TensorBoard shows.
//!
//! # A file
//!
//! A sequence of records, each of a length (u64), the masked CRC-32C of the length, the bytes, and the masked CRC-32C of the bytes; numbers are little-endian. The bytes
//! are a protocol buffer, `Event`. Its first record says `brain.Event:2`. A reader stops at the first record that is damaged, so a tail that a crash has torn costs
//! that tail, and nothing is ever appended to a file of before: each writer makes a file of its own, with a name that no other has.
//!
//! # Who does it
//!
//! Who writes encodes the event and puts it into a queue of limited length. A thread of the writer's own writes to the file, and flushes when the queue is empty. What the system
//! refuses that thread comes out of the next call.
//!
//! # Source
//!
//! The formats are those of TensorFlow: `tensorflow/core/lib/io/record_writer.h`, and `event.proto`, `summary.proto`, `tensor.proto`.

mod proto;

use std::error::Error as StdError;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use forebear::channel::{self, Receiver, RecvError, SendError, Sender};

use self::proto::Message;

/// So many events may wait for the thread.
const QUEUE: usize = 1 << 12;
const BUFFER: usize = 1 << 16;

/// Writes one file that TensorBoard shows.
///
/// There should be one writer to a directory at a time: TensorBoard shows only one of several. Give each process a directory of its own below a common one.
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

/// What the system has refused the thread.
type Refused = Arc<Mutex<Option<Arc<io::Error>>>>;

enum Order {
    Write(Vec<u8>),
    /// All that came before is in the file; then the sender goes.
    Flush(channel::oneshot::Sender<()>),
}

/// Why events could not be written.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum EventError {
    /// The system has refused the thread that writes. Nothing is written from then on.
    #[non_exhaustive]
    Io {
        /// The file.
        path: PathBuf,
        /// What it says.
        source: Arc<io::Error>,
    },
    /// Who writes has been cancelled, before the event had a place in the queue.
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

/// What happens to a job, for TensorBoard.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionLog {
    /// A run begins, at a step: what an earlier run has written for this step and later ones is not shown any more.
    Start,
    /// A checkpoint was written to this file.
    Checkpoint(PathBuf),
    /// The run ends.
    Stop,
}

/// What is known at a step, under names.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    values: Message,
}

impl Summary {
    /// One without values.
    #[must_use]
    pub fn new() -> Summary {
        Summary::default()
    }

    /// Adds a number. TensorBoard keeps it as a `f32`.
    #[must_use]
    pub fn scalar(self, tag: &str, value: f64) -> Self {
        self.value(tag, |message| message.float(2, value as f32))
    }

    /// Adds the distribution of these numbers. Of no numbers it is empty; those that are no finite number count nowhere.
    #[must_use]
    pub fn histogram(self, tag: &str, values: &[f64]) -> Self {
        self.value(tag, |message| message.message(5, &proto::histogram(values)))
    }

    /// Adds a picture, as the bytes of a PNG file, of `size` (width, height) in pixels.
    #[must_use]
    pub fn image_png(self, tag: &str, size: (u32, u32), png: &[u8]) -> Self {
        let image = Message::default()
            .integer(1, size.1.into())
            .integer(2, size.0.into())
            .integer(3, 3)
            .bytes(4, png);
        self.value(tag, |message| message.message(4, &image))
    }

    /// Adds a text, which TensorBoard reads as Markdown.
    #[must_use]
    pub fn text(self, tag: &str, text: &str) -> Self {
        let plugin = Message::default().bytes(1, b"text");
        let metadata = Message::default().message(1, &plugin);
        let shape = Message::default().message(2, &Message::default().integer(1, 1));
        let tensor = Message::default().integer(1, 7).message(2, &shape).bytes(8, text.as_bytes());
        self.value(tag, |message| message.message(9, &metadata).message(8, &tensor))
    }

    /// Whether it has no values.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    fn value(mut self, tag: &str, add: impl FnOnce(Message) -> Message) -> Self {
        let value = add(Message::default().bytes(1, tag.as_bytes()));
        self.values = self.values.message(1, &value);
        self
    }
}

impl EventWriter {
    /// Makes a file in `dir`, which is made if it is not there, and starts the thread that writes to it.
    ///
    /// # Errors
    ///
    /// What the system says.
    pub fn create(dir: impl AsRef<Path>) -> io::Result<EventWriter> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let dir = dir.as_ref();
        fs::create_dir_all(dir)?;
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let (path, file) = loop {
            let n = COUNT.fetch_add(1, Ordering::Relaxed);
            let path =
                dir.join(format!("events.out.tfevents.{seconds:010}.{}.{}.{n}", host(), std::process::id()));
            match File::options().write(true).create_new(true).open(&path) {
                Ok(file) => break (path, file),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        };
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

    /// Writes what is known at a step.
    ///
    /// Suspends while the queue is full. A cancellation point then.
    ///
    /// # Errors
    ///
    /// [`EventError`]: what the system has refused the thread since then, perhaps for an event of before.
    pub fn write(&self, step: u64, summary: impl Into<Summary>) -> Result<(), EventError> {
        self.put(event(Some(step)).message(5, &summary.into().values))
    }

    /// Writes what happens to the job; `step` is known for a start and a checkpoint.
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

    /// Waits until all that was written before is in the file.
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

    /// The same, and nothing is written any more. Without it the thread writes what is in the queue and ends, but no caller waits for that.
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

/// The life of the thread. An error comes with the order that it has come of.
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

fn write_record(out: &mut impl Write, bytes: &[u8]) -> io::Result<()> {
    let length = (bytes.len() as u64).to_le_bytes();
    out.write_all(&length)?;
    out.write_all(&masked_checksum(&length).to_le_bytes())?;
    out.write_all(bytes)?;
    out.write_all(&masked_checksum(bytes).to_le_bytes())
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
