//! [`Checkpoints`]: the state of a job in files, so that the job can continue after a crash.
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
//! # How a file is written
//!
//! 1. It is written as `.checkpoint.tmp`, under an exclusive lock of that file: two writers cannot mix their bytes.
//! 2. It is synced, then renamed to `checkpoint-<step>`.
//! 3. The index is renamed after it. It names the files that are kept. A thread writes it as `.checkpoints.tmp`, and syncs it, while the checkpoint is
//!    synced: the disk does both at once.
//! 4. The directory is synced.
//! 5. Files beyond those to keep are removed, never the one just written.
//!
//! A process that is killed leaves the complete files, and perhaps a temporary file that the next save overwrites. The sequence, not the step, says which file is
//! the newest: after a deliberate restore from an old file, the files that follow are newer though their steps are lower.
//!
//! So a save or a restore has to know the sequence of each file. It skips a damaged file, which is never restored. If a file cannot be read for another reason (the
//! system refuses it, or its format is a later one), the save or the restore is an error.
//!
//! # Threads
//!
//! In a request, a thread outside of the workers writes the file ([`forebear::blocking`]), and the request is suspended. A save whose caller is cancelled
//! continues to its end. Saves of the same [`Checkpoints`] run one at a time.

#[cfg(all(test, unix))]
#[path = "../tests/again/mod.rs"]
mod again;
mod directory;
mod disk;
mod error;
#[cfg(feature = "safetensors")]
mod export;
#[cfg(all(test, unix))]
mod faulty;
mod file;
#[cfg(all(test, unix))]
mod powerless;
mod sections;
mod snapshot;
mod state;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebear::blocking;

use self::directory::{DirectoryShared, OnWarning, read};
use self::disk::Real;
pub use self::error::CheckpointError;
use self::error::io_at;
#[cfg(feature = "safetensors")]
pub use self::export::Tensor;
pub use self::sections::{SavedSections, SectionError, SectionReader, SectionWriter, Sections};
pub use self::snapshot::Snapshot;
pub use self::state::{CopiedState, State};
use crate::contain::print;
use crate::ordinary;

/// How many files are kept, if nothing else is said.
const KEPT: usize = 5;

/// A directory of checkpoints.
///
/// Only one process should write there; see [`CheckpointError::Busy`]. A handle: clone it to share it.
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
pub struct Checkpoints(Arc<DirectoryShared>);

/// A file of a directory of checkpoints. Its header has been read, its sections have not.
///
/// ```
/// use forebear_supervise::{Checkpoints, Snapshot};
/// use std::sync::Arc;
///
/// # let dir = std::env::temp_dir().join(format!("checkpoint-{}", std::process::id()));
/// let checkpoints = Checkpoints::open(&dir)?.keep(2).on_warning(|text| panic!("{text}"));
/// let state = Arc::new(Snapshot::new(1, 0_u64));
/// for step in [10, 20, 30] {
///     state.set(step);
///     checkpoints.save(step, &state)?;
/// }
/// let files = checkpoints.list()?; // the newest first
/// assert_eq!([files[0].step, files[1].step], [30, 20]);
/// assert_eq!(files[1].path, checkpoints.dir().join("checkpoint-000000000020"));
/// checkpoints.restore_from(&files[1].path, &state)?;
/// assert_eq!(state.get(), 20);
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok::<(), forebear_supervise::CheckpointError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Checkpoint {
    /// The file.
    pub path: PathBuf,
    /// The step at which the state was saved.
    pub step: u64,
    /// The number of the save: files with a higher one were written later.
    pub sequence: u64,
}

impl Checkpoints {
    /// Opens a directory of checkpoints, and creates it if it does not exist. Does not suspend: the calling thread does that.
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`].
    pub fn open(dir: impl Into<PathBuf>) -> Result<Checkpoints, CheckpointError> {
        let dir = ordinary::absolute(dir.into());
        ordinary::make_dir(&dir).map_err(io_at(&dir))?;
        let on_warning: OnWarning = Arc::new(|text| print(format_args!("forebear: {text}")));
        let (disk, saving) = (Arc::new(Real), Arc::default());
        Ok(Checkpoints(Arc::new(DirectoryShared { dir, keep: KEPT, on_warning, disk, saving })))
    }

    /// How many files are kept: the newest ones, also of earlier runs. Default: 5. Zero keeps all.
    ///
    /// ```
    /// use forebear_supervise::{Checkpoints, Snapshot};
    /// use std::sync::Arc;
    ///
    /// # let dir = std::env::temp_dir().join(format!("keep-{}", std::process::id()));
    /// let checkpoints = Checkpoints::open(&dir)?.keep(2).on_warning(|text| eprintln!("{text}"));
    /// let state = Arc::new(Snapshot::new(1, 0_u64));
    /// for step in 1..=5 {
    ///     checkpoints.save(step, &state)?;
    /// }
    /// assert_eq!(checkpoints.list()?.len(), 2);
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), forebear_supervise::CheckpointError>(())
    /// ```
    #[must_use]
    pub fn keep(self, files: usize) -> Self {
        self.with(|shared| shared.keep = files)
    }

    /// Receives a warning, as text for a human reader, if a restore skips a damaged file, an old file cannot be removed, or the index cannot be written. Default: it is
    /// written to standard error.
    #[must_use]
    pub fn on_warning(self, hook: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.with(|shared| shared.on_warning = Arc::new(hook))
    }

    /// Changes a setting, of a handle of its own if there are others.
    fn with(self, change: impl FnOnce(&mut DirectoryShared)) -> Self {
        let mut shared = Arc::unwrap_or_clone(self.0);
        change(&mut shared);
        Checkpoints(Arc::new(shared))
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.0.dir
    }

    /// The files whose headers are not damaged, the newest first. Does not suspend: the calling thread reads the directory and the headers.
    ///
    /// ```
    /// use forebear_supervise::{Checkpoints, Snapshot};
    /// use std::sync::Arc;
    ///
    /// # let dir = std::env::temp_dir().join(format!("list-{}", std::process::id()));
    /// let checkpoints = Checkpoints::open(&dir)?;
    /// checkpoints.save(10, &Arc::new(Snapshot::new(1, 0_u64)))?;
    /// for file in checkpoints.list()? {
    ///     assert_eq!((file.step, file.path.parent()), (10, Some(checkpoints.dir())));
    /// }
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), forebear_supervise::CheckpointError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CheckpointError::Io`], if the directory or a header cannot be read. [`CheckpointError::Version`], if a file has a later format.
    pub fn list(&self) -> Result<Vec<Checkpoint>, CheckpointError> {
        self.0.list()
    }

    /// Writes the state into a new file, which is on disk when this returns. It replaces a file of the same step.
    ///
    /// In a request, a thread outside of the workers writes. Suspends. A cancellation point: a save that has begun continues to its end.
    ///
    /// # Errors
    ///
    /// [`CheckpointError`]: `Io`, `Version`, `State`, `Busy`, `NoThread`, `Cancelled`. Existing files are unchanged. `Io` and `Version` are also answered
    /// if an existing file cannot be read and is not damaged, since the new file has to count as newer than that one.
    pub fn save<S: State + ?Sized>(&self, step: u64, state: &Arc<S>) -> Result<Checkpoint, CheckpointError> {
        let (shared, state) = (self.0.clone(), state.clone());
        blocking(move || shared.save(step, &*state))?
    }

    /// Restores the state from the newest valid file. `None`: there are no files.
    ///
    /// Suspends. A cancellation point.
    ///
    /// # Errors
    ///
    /// [`CheckpointError`]. Only damaged files are skipped: `Corrupt` if there are files, but all are damaged. Any file that cannot be read for another
    /// reason ends the restore, with `Io` or `Version`: it may be the newest, so try again, or move it away. `Schema`, if the newest file has another one.
    pub fn restore<S: State + ?Sized>(&self, state: &Arc<S>) -> Result<Option<Checkpoint>, CheckpointError> {
        let (shared, state) = (self.0.clone(), state.clone());
        blocking(move || shared.restore(&*state))?
    }

    /// Restores the state from this file, which may be in another directory.
    ///
    /// Suspends. A cancellation point.
    ///
    /// ```
    /// use forebear_supervise::{Checkpoints, Snapshot};
    /// use std::sync::Arc;
    ///
    /// # let dir = std::env::temp_dir().join(format!("restore-from-{}", std::process::id()));
    /// let checkpoints = Checkpoints::open(&dir)?;
    /// let state = Arc::new(Snapshot::new(1, 5_u64));
    /// let first = checkpoints.save(1, &state)?;
    /// state.set(6);
    /// checkpoints.save(2, &state)?;
    /// checkpoints.restore_from(first.path, &state)?; // not the newest
    /// assert_eq!(state.get(), 5);
    /// # std::fs::remove_dir_all(&dir).unwrap();
    /// # Ok::<(), forebear_supervise::CheckpointError>(())
    /// ```
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
