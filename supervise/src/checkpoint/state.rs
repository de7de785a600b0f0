//! [`State`]: what a checkpoint holds.

use forebear::Error;

use super::{SavedSections, Sections};

/// The state of a job, as a checkpoint holds it. [`Snapshot`](super::Snapshot) is one for a value that serde can serialise.
///
/// ```
/// use forebear::Error;
/// use forebear_supervise::{CopiedState, SavedSections, Sections, State};
/// use std::io::{Read, Write};
/// use std::sync::{Arc, Mutex};
///
/// /// Blocks of bytes. A copy shares them, and so does not hold the job up.
/// struct Image(Mutex<Vec<Arc<Vec<u8>>>>);
///
/// fn write(blocks: &[Arc<Vec<u8>>], out: &mut Sections<'_>) -> Result<(), Error> {
///     out.put("blocks", &blocks.len())?;
///     let mut pixels = out.writer("pixels")?; // without a copy of the whole
///     for block in blocks {
///         pixels.write_all(block)?;
///     }
///     pixels.close()
/// }
///
/// impl State for Image {
///     fn schema(&self) -> u64 {
///         1
///     }
///
///     fn save(&self, out: &mut Sections<'_>) -> Result<(), Error> {
///         write(&self.0.lock().unwrap().clone(), out)
///     }
///
///     fn restore(&self, from: &SavedSections) -> Result<(), Error> {
///         let (count, mut pixels) = (from.get::<usize>("blocks")?, from.reader("pixels")?);
///         let length = pixels.section_len() as usize / count;
///         let mut blocks = Vec::new();
///         for _ in 0..count {
///             let mut block = vec![0; length];
///             pixels.read_exact(&mut block)?;
///             blocks.push(Arc::new(block));
///         }
///         *self.0.lock().unwrap() = blocks;
///         Ok(())
///     }
///
///     fn copy(&self) -> Option<Box<dyn CopiedState>> {
///         let blocks = self.0.lock().unwrap().clone();
///         Some(Box::new(move |out: &mut Sections<'_>| write(&blocks, out)))
///     }
/// }
/// # let dir = std::env::temp_dir().join(format!("state-{}", std::process::id()));
/// # let checkpoints = forebear_supervise::Checkpoints::open(&dir)?;
/// # let image = |n: u8| Arc::new(Image(Mutex::new((0..3).map(|_| Arc::new(vec![n; 8])).collect())));
/// # let (saved, restored) = (image(7), image(0));
/// # checkpoints.save(1, &saved)?;
/// # checkpoints.restore(&restored)?;
/// # assert_eq!(*saved.0.lock().unwrap(), *restored.0.lock().unwrap());
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok::<(), forebear_supervise::CheckpointError>(())
/// ```
pub trait State: Send + Sync + 'static {
    /// The meaning of the sections: a number of your choice. Change it when earlier files cannot be read any more. A restore refuses a file of another schema.
    ///
    /// A value that [`Sections::put`] writes has no names of fields. So a field that is added, removed or moved needs another number, also one with
    /// serde's `default`; and [`Snapshot`](super::Snapshot) names attributes of serde that a value must not have.
    fn schema(&self) -> u64;

    /// Writes the state into named sections. Called on a thread outside of the workers while the job runs: lock, copy, unlock, write.
    ///
    /// # Errors
    ///
    /// An error ends the save, and no file is left of it.
    fn save(&self, out: &mut Sections<'_>) -> Result<(), Error>;

    /// Restores the state from a file whose checksums were verified. It should change nothing if it returns an error.
    ///
    /// # Errors
    ///
    /// An error ends the restore. Older files are not tried.
    fn restore(&self, from: &SavedSections) -> Result<(), Error>;

    /// The names of the parts that are not initialised. A [`Supervisor`](crate::Supervisor) does not begin a job while there are any. Default: none.
    fn missing(&self) -> Vec<String> {
        Vec::new()
    }

    /// A copy, which is written while the job continues. Called on a thread outside of the workers, while the steps of a [`Session`](crate::Session) wait. Default: `None`.
    /// Then [`save`](Self::save) is called instead, and the steps wait until the file is written.
    ///
    /// A large state is copied fast if it holds its arrays as blocks behind `Arc`: a copy clones the `Arc`s. A step
    /// that changes a block by [`Arc::make_mut`](std::sync::Arc::make_mut) copies that block alone, and only while a
    /// save writes it.
    fn copy(&self) -> Option<Box<dyn CopiedState>> {
        None
    }
}

/// A copy of a state, from [`State::copy`]. Implemented for closures.
///
/// ```
/// use forebear_supervise::{CopiedState, Sections};
///
/// /// For `State::copy`.
/// fn copy(rows: &[u64]) -> Option<Box<dyn CopiedState>> {
///     let rows = rows.to_vec();
///     Some(Box::new(move |out: &mut Sections<'_>| out.put("rows", &rows)))
/// }
/// assert!(copy(&[1, 2, 3]).is_some());
/// ```
pub trait CopiedState: Send + 'static {
    /// Writes the copy into named sections, as [`State::save`] does.
    ///
    /// # Errors
    ///
    /// As [`State::save`].
    fn save(&self, out: &mut Sections<'_>) -> Result<(), Error>;
}

impl<F: Fn(&mut Sections<'_>) -> Result<(), Error> + Send + 'static> CopiedState for F {
    fn save(&self, out: &mut Sections<'_>) -> Result<(), Error> {
        self(out)
    }
}
