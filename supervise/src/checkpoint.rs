//! [`Checkpoints`]: the state of a job in files, so that the job can go on after a crash.
//!
//! # A file
//!
//! All numbers are little-endian.
//!
//! ```text
//!   offset 0   8 bytes   magic, "FBCKPT\r\n"
//!          8   u32       version of this format, 1
//!         12   u32       0
//!         16   u64       schema: what the sections mean, chosen by the state
//!         24   u64       step
//!         32   u64       sequence: one more than that of any file of the directory when this one was written
//!         40             the sections' bytes, one after another
//!     table              for each section: u32 length of its name, the name, u64 offset, u64 length, u32 CRC-32C of its bytes
//!       end   u64        offset of the table
//!             u32        number of sections
//!             u32        CRC-32C of the header, the table, and the two numbers above
//!             8 bytes    magic again, backwards
//! ```
//!
//! The table stands at the end, since the length of a section that is streamed is known only then. Every byte of the file is under a checksum or under the
//! magic, so a changed or missing byte is found before the state sees anything.
//!
//! # How a file comes to be
//!
//! 1. It is written as `.checkpoint.tmp`, under an exclusive lock of that file: two writers cannot mix their bytes.
//! 2. It is synced, then renamed to `checkpoint-<step>`, then the directory is synced.
//! 3. The index is written and renamed in the same way.
//! 4. Files beyond those to keep are removed, the oldest first, never the one just written.
//!
//! A process that is killed leaves what was complete before, and perhaps a temporary file that the next save overwrites. The sequence, not the step, says which file is
//! the newest: a job that was restored from an old file on purpose goes on from there, and its files are the newer ones though their steps are lower.
//!
//! # Who does it
//!
//! In a request, the file is written by a thread outside of the workers ([`forebear::blocking`]), and the request is suspended. A save whose caller was cancelled goes on
//! to its end. One save at a time: others of the same [`Checkpoints`] wait.

mod disk;
#[cfg(feature = "safetensors")]
mod export;
mod file;
#[cfg(test)]
mod powerless;
mod sections;
mod snapshot;

use std::error::Error as StdError;
use std::fmt;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use forebear::{Error, blocking};

use self::disk::{Disk, Real};
#[cfg(feature = "safetensors")]
pub use self::export::Tensor;
use self::file::Header;
pub use self::sections::{SavedSections, SectionError, SectionReader, SectionWriter, Sections};
pub use self::snapshot::Snapshot;

/// How many files are kept, if nothing else is said.
const KEPT: usize = 5;
const PREFIX: &str = "checkpoint-";
const TEMPORARY: &str = ".checkpoint.tmp";
const INDEX: &str = "checkpoints";

/// What a checkpoint holds. [`Snapshot`] is one for a value that serde knows.
pub trait State: Send + Sync + 'static {
    /// What the sections mean: a number of your choice, to be changed when files of before cannot be read any more. A file of another schema is refused.
    fn schema(&self) -> u64;

    /// Writes the state into named sections. Called on a thread outside of the workers while the job goes on: lock, copy, unlock, write.
    ///
    /// # Errors
    ///
    /// One ends the save; nothing is left of it.
    fn save(&self, out: &mut Sections<'_>) -> Result<(), Error>;

    /// Takes the state from a file, all of whose bytes have been verified. It should change nothing if it returns an error.
    ///
    /// # Errors
    ///
    /// One ends the restore. Older files are not tried.
    fn restore(&self, from: &SavedSections) -> Result<(), Error>;

    /// The parts that are not initialised, by name. A [`Supervisor`](crate::Supervisor) begins no job with a state that misses something. None are, if this is not given.
    fn missing(&self) -> Vec<String> {
        Vec::new()
    }

    /// A copy that can be written while the job goes on. `None`, if this is not given: then [`save`](Self::save) is called instead, and the steps of a
    /// [`Session`](crate::Session) wait until the file is written. Called on a thread outside of the workers.
    fn copy(&self) -> Option<Box<dyn CopiedState>> {
        None
    }
}

/// A copy of a state, from [`State::copy`]. Given for closures.
pub trait CopiedState: Send + 'static {
    /// As [`State::save`].
    ///
    /// # Errors
    ///
    /// As there.
    fn save(&self, out: &mut Sections<'_>) -> Result<(), Error>;
}

impl<F: Fn(&mut Sections<'_>) -> Result<(), Error> + Send + 'static> CopiedState for F {
    fn save(&self, out: &mut Sections<'_>) -> Result<(), Error> {
        self(out)
    }
}

/// A directory of checkpoints.
///
/// One process at a time should write there; see [`CheckpointError::Busy`]. A handle: clone it to share it.
///
/// ```
/// use forebear_supervise::{Checkpoints, Snapshot};
/// use std::sync::Arc;
///
/// # let dir = std::env::temp_dir().join(format!("checkpoints-{}", std::process::id()));
/// let checkpoints = Checkpoints::open(&dir)?; // makes the directory
/// let state = Arc::new(Snapshot::new(1, vec![0_u64; 3]));
/// state.update(|values| values[0] = 7);
/// checkpoints.save(10, &state)?;
///
/// let later = Arc::new(Snapshot::new(1, Vec::<u64>::new()));
/// let restored = checkpoints.restore(&later)?.expect("there is one");
/// assert_eq!((restored.step, later.get()), (10, vec![7, 0, 0]));
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok::<(), forebear_supervise::CheckpointError>(())
/// ```
#[derive(Clone)]
pub struct Checkpoints(Arc<Shared>);

type OnWarning = Arc<dyn Fn(&str) + Send + Sync>;

#[derive(Clone)]
struct Shared {
    dir: PathBuf,
    keep: usize,
    on_warning: OnWarning,
    disk: Arc<dyn Disk>,
    /// Held for the length of a save, also by handles with other settings.
    saving: Arc<Mutex<()>>,
}

/// A file of a directory of checkpoints. Its header has been read, its sections have not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checkpoint {
    /// The file.
    pub path: PathBuf,
    /// The step that it was saved for.
    pub step: u64,
    /// Files with a higher one were written later.
    pub sequence: u64,
}

/// Why a checkpoint could not be written or read.
#[derive(Debug)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The system refuses something: no room, no permission, no directory.
    #[non_exhaustive]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
    /// The file is not what was written, or not whole. A restore of the newest file tries older ones first, so then all are.
    #[non_exhaustive]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The section whose checksum is wrong. `None`: the file's own structure is.
        section: Option<String>,
    },
    /// The file was written by a later version of this library.
    #[non_exhaustive]
    Version {
        /// The file.
        path: PathBuf,
        /// The version of its format.
        found: u32,
    },
    /// The file is of another schema than the state. Older files are not tried: their meaning is not known either.
    #[non_exhaustive]
    Schema {
        /// The file.
        path: PathBuf,
        /// What the state asks for.
        want: u64,
        /// What the file has.
        found: u64,
    },
    /// The state could not write itself, or not take itself from the file.
    #[non_exhaustive]
    State {
        /// The file.
        path: PathBuf,
        /// Its error.
        source: Error,
    },
    /// Another save into the same directory is under way, by another process.
    #[non_exhaustive]
    Busy {
        /// The directory.
        path: PathBuf,
    },
    /// The request that waits was cancelled. A save that had begun goes on to its end; a restore may have been done.
    Cancelled,
}

impl fmt::Display for CheckpointError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CheckpointError::Io { path, .. } => {
                write!(f, "{}: no checkpoint could be written or read", path.display())
            }
            CheckpointError::Corrupt { path, section: Some(section) } => {
                write!(f, "{}: the section `{section}` is damaged", path.display())
            }
            CheckpointError::Corrupt { path, section: None } => {
                write!(f, "{}: the checkpoint is damaged or not whole", path.display())
            }
            CheckpointError::Version { path, found } => {
                write!(f, "{}: format {found} is newer than this program, which knows 1", path.display())
            }
            CheckpointError::Schema { path, want, found } => write!(
                f,
                "{}: the checkpoint has schema {found}, the program wants {want}: convert it, or begin in another directory",
                path.display()
            ),
            CheckpointError::State { path, .. } => write!(f, "{}: the state", path.display()),
            CheckpointError::Busy { path } => {
                write!(f, "{}: another process is saving a checkpoint there", path.display())
            }
            CheckpointError::Cancelled => f.write_str("the wait for a checkpoint was cut short"),
        }
    }
}

impl StdError for CheckpointError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            CheckpointError::Io { source, .. } => Some(source),
            CheckpointError::State { source, .. } => Some(&**source),
            CheckpointError::Cancelled => Some(&crate::CANCELLED),
            _ => None,
        }
    }
}

impl From<forebear::Cancelled> for CheckpointError {
    fn from(_: forebear::Cancelled) -> Self {
        CheckpointError::Cancelled
    }
}

/// An error of the system, with the path it is about.
fn io_at(path: &Path) -> impl Fn(io::Error) -> CheckpointError {
    move |source| CheckpointError::Io { path: path.to_owned(), source }
}

impl Checkpoints {
    /// A directory of checkpoints, which is made if it is not there.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`].
    pub fn open(dir: impl Into<PathBuf>) -> Result<Checkpoints, CheckpointError> {
        let dir = dir.into();
        fs::create_dir_all(&dir).map_err(io_at(&dir))?;
        let on_warning: OnWarning = Arc::new(|text| eprintln!("forebear: {text}"));
        let (disk, saving) = (Arc::new(Real), Arc::default());
        Ok(Checkpoints(Arc::new(Shared { dir, keep: KEPT, on_warning, disk, saving })))
    }

    /// Keeps so many files, the newest ones, also of runs before: 5 if not given. Zero keeps all.
    #[must_use]
    pub fn keep(self, files: usize) -> Self {
        self.with(|shared| shared.keep = files)
    }

    /// Called with a text for a human being when a file was passed over since it is damaged, and when a file or the index could not be removed or written. If not given, it is
    /// written to standard error.
    #[must_use]
    pub fn on_warning(self, hook: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.with(|shared| shared.on_warning = Arc::new(hook))
    }

    /// Changes a setting, of a handle of its own if there are others.
    fn with(self, change: impl FnOnce(&mut Shared)) -> Self {
        let mut shared = Arc::unwrap_or_clone(self.0);
        change(&mut shared);
        Checkpoints(Arc::new(shared))
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// The files whose headers can be read, the newest first.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`], if the directory cannot be read.
    pub fn list(&self) -> Result<Vec<Checkpoint>, CheckpointError> {
        self.0.list()
    }

    /// Writes the state into a new file. On disk when this returns. A file of the same step is replaced.
    ///
    /// In a request, a thread outside of the workers does it. Suspends. A cancellation point: a save that has begun then goes on to its end.
    ///
    /// # Errors
    ///
    /// [`CheckpointError`]: `Io`, `State`, `Busy`, `Cancelled`. The files of before are untouched.
    pub fn save<S: State + ?Sized>(&self, step: u64, state: &Arc<S>) -> Result<Checkpoint, CheckpointError> {
        let (shared, state) = (self.0.clone(), state.clone());
        blocking(move || shared.save(step, &*state))?
    }

    /// Has the state taken from the newest file that is whole. `None`: there are no files.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`CheckpointError`]. `Corrupt` if there are files, but none is whole.
    pub fn restore<S: State + ?Sized>(&self, state: &Arc<S>) -> Result<Option<Checkpoint>, CheckpointError> {
        let (shared, state) = (self.0.clone(), state.clone());
        blocking(move || shared.restore(&*state))?
    }

    /// Has the state taken from this file and no other, wherever it is.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`CheckpointError`].
    pub fn restore_from<S: State + ?Sized>(
        &self,
        file: impl Into<PathBuf>,
        state: &Arc<S>,
    ) -> Result<Checkpoint, CheckpointError> {
        let (path, state) = (file.into(), state.clone());
        blocking(move || read(&path, &*state))?
    }
}

impl fmt::Debug for Checkpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Checkpoints")
            .field("dir", &self.0.dir)
            .field("keep", &self.0.keep)
            .finish_non_exhaustive()
    }
}

impl Shared {
    fn list(&self) -> Result<Vec<Checkpoint>, CheckpointError> {
        let (mut found, _) = self.scan()?;
        found.sort_by_key(|one| std::cmp::Reverse(one.sequence));
        Ok(found)
    }

    /// The files whose headers can be read, and those whose headers cannot.
    fn scan(&self) -> Result<(Vec<Checkpoint>, Vec<CheckpointError>), CheckpointError> {
        let (mut found, mut damaged) = (Vec::new(), Vec::new());
        for entry in fs::read_dir(&self.dir).map_err(io_at(&self.dir))? {
            let path = entry.map_err(io_at(&self.dir))?.path();
            let is_one =
                path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(PREFIX.as_bytes()));
            if !is_one {
                continue;
            }
            match Header::of(&path) {
                Ok(Header { step, sequence, .. }) => found.push(Checkpoint { path, step, sequence }),
                Err(CheckpointError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                Err(error) => damaged.push(error),
            }
        }
        Ok((found, damaged))
    }

    fn save(&self, step: u64, state: &(impl State + ?Sized)) -> Result<Checkpoint, CheckpointError> {
        let _one_at_a_time = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let sequence = self.list()?.first().map_or(0, |newest| newest.sequence.saturating_add(1));
        let header = Header { schema: state.schema(), step, sequence };
        let path = self.dir.join(format!("{PREFIX}{step:012}"));
        self.replace(&path, |file, at| file::write(file, at, &header, state))?;
        let mut files = self.list()?;
        if self.keep > 0 && files.len() > self.keep {
            for old in files.split_off(self.keep) {
                if let Err(error) = self.disk.remove(&old.path) {
                    (self.on_warning)(&format!(
                        "{}: an old checkpoint could not be removed: {error}",
                        old.path.display()
                    ));
                }
            }
        }
        if let Err(error) = self.write_index(&files) {
            (self.on_warning)(&format!("{error}: the index; the checkpoints themselves are whole"));
        }
        Ok(Checkpoint { path, step, sequence })
    }

    /// For human beings and other programs: the files in the order in which they were written. A restore looks at the files themselves.
    fn write_index(&self, files: &[Checkpoint]) -> Result<(), CheckpointError> {
        self.replace(&self.dir.join(INDEX), |file, at| {
            for one in files.iter().rev() {
                let name = one.path.file_name().unwrap_or_default().to_string_lossy();
                writeln!(file, "{} {} {name}", one.sequence, one.step).map_err(io_at(at))?;
            }
            Ok(())
        })
    }

    /// Writes a file beside, and renames it. Nothing is left of one that could not be written.
    fn replace(
        &self,
        path: &Path,
        write: impl FnOnce(&mut dyn Write, &Path) -> Result<(), CheckpointError>,
    ) -> Result<(), CheckpointError> {
        let beside = self.dir.join(TEMPORARY);
        let created = self.disk.create(&beside);
        let mut file = created.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => CheckpointError::Busy { path: self.dir.clone() },
            _ => io_at(&beside)(error),
        })?;
        let written = write(&mut file, &beside).and_then(|()| {
            file.sync().map_err(io_at(&beside))?;
            self.disk.rename(&beside, path).map_err(io_at(path))
        });
        if written.is_err() {
            let _ = self.disk.remove(&beside);
            return written;
        }
        // Only now is the name itself on disk.
        self.disk.sync_names(&self.dir).map_err(io_at(&self.dir))
    }

    fn restore(&self, state: &(impl State + ?Sized)) -> Result<Option<Checkpoint>, CheckpointError> {
        let (mut files, mut damaged) = self.scan()?;
        files.sort_by_key(|one| std::cmp::Reverse(one.sequence));
        for one in files {
            match read(&one.path, state) {
                Ok(restored) => {
                    damaged.iter().for_each(|error| (self.on_warning)(&format!("passed over: {error}")));
                    return Ok(Some(restored));
                }
                Err(error @ CheckpointError::Corrupt { .. }) => damaged.push(error),
                Err(error) => return Err(error),
            }
        }
        match damaged.pop() {
            Some(error) => Err(error),
            None => Ok(None),
        }
    }
}

fn read(path: &Path, state: &(impl State + ?Sized)) -> Result<Checkpoint, CheckpointError> {
    let (header, sections) = file::open(path)?;
    let want = state.schema();
    if header.schema != want {
        return Err(CheckpointError::Schema { path: path.to_owned(), want, found: header.schema });
    }
    state.restore(&sections).map_err(|source| CheckpointError::State { path: path.to_owned(), source })?;
    Ok(Checkpoint { path: path.to_owned(), step: header.step, sequence: header.sequence })
}
