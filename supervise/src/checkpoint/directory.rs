//! The files of a directory: how one is added, which are kept, and which one a restore takes. The head of [`super`] has the order of the steps.

use std::fs;
use std::io::{self, Write};
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use super::disk::{Disk, Output};
use super::error::io_at;
use super::file::{self, Header};
use super::{Checkpoint, CheckpointError, State};
use crate::contain::contained;

const PREFIX: &str = "checkpoint-";
/// Of a step in a name, at least.
const DIGITS: usize = 12;
const TEMPORARY: &str = ".checkpoint.tmp";
const INDEX: &str = "checkpoints";
const TEMPORARY_INDEX: &str = ".checkpoints.tmp";

pub(super) type OnWarning = Arc<dyn Fn(&str) + Send + Sync>;

#[derive(Clone)]
pub(super) struct DirectoryShared {
    pub(super) dir: PathBuf,
    pub(super) keep: usize,
    pub(super) on_warning: OnWarning,
    pub(super) disk: Arc<dyn Disk>,
    /// Held for the length of a save, also by handles with other settings. The threads that free the blocks of files that the save before has removed.
    pub(super) saving: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl DirectoryShared {
    pub(super) fn list(&self) -> Result<Vec<Checkpoint>, CheckpointError> {
        let (mut found, _) = self.scan()?;
        found.sort_by_key(|one| std::cmp::Reverse(one.sequence));
        Ok(found)
    }

    /// The files whose headers can be read, and those whose headers are damaged.
    ///
    /// A header that cannot be read for another reason is an error: its file may be the newest. Without it a restore would take an older one,
    /// and a save would give the number of that file again.
    fn scan(&self) -> Result<(Vec<Checkpoint>, Vec<CheckpointError>), CheckpointError> {
        let (mut found, mut damaged) = (Vec::new(), Vec::new());
        for path in self.paths()? {
            match Header::of(&path) {
                Ok(Header { step, sequence, .. }) => found.push(Checkpoint { path, step, sequence }),
                Err(CheckpointError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => {}
                Err(error @ CheckpointError::Corrupt { .. }) => damaged.push(error),
                Err(error) => return Err(error),
            }
        }
        Ok((found, damaged))
    }

    /// The files with a checkpoint's name. The handle of the directory is closed before one of them is opened: one descriptor suffices.
    fn paths(&self) -> Result<Vec<PathBuf>, CheckpointError> {
        let mut paths = Vec::new();
        for entry in fs::read_dir(&self.dir).map_err(io_at(&self.dir))? {
            let path = entry.map_err(io_at(&self.dir))?.path();
            // What else stands there, directories and pipes also, is left alone.
            if is_checkpoint(&path) && !fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
                paths.push(path);
            }
        }
        Ok(paths)
    }

    pub(super) fn save(
        &self,
        step: u64,
        state: &(impl State + ?Sized),
    ) -> Result<Checkpoint, CheckpointError> {
        let mut freeing = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        // This save may need their room.
        freeing.drain(..).for_each(|thread| drop(thread.join()));
        let mut files = self.list()?;
        let sequence = files.first().map_or(0, |newest| newest.sequence.saturating_add(1));
        let header = Header { schema: state.schema(), step, sequence };
        let path = self.dir.join(format!("{PREFIX}{step:0DIGITS$}"));
        let saved = Checkpoint { path: path.clone(), step, sequence };
        // What the directory has after this save.
        files.retain(|one| one.path != path);
        files.insert(0, saved.clone());
        let old =
            if self.keep > 0 && files.len() > self.keep { files.split_off(self.keep) } else { Vec::new() };

        let mut data = self.write_beside(TEMPORARY, |file, at| file::write(file, at, &header, state))?;
        let index = thread::scope(|scope| {
            let index = thread::Builder::new()
                .name("checkpoint: index".into())
                .spawn_scoped(scope, || self.write_index(&files));
            data.sync()?;
            Ok::<_, CheckpointError>(match index {
                Ok(index) => index.join().unwrap_or_else(|payload| resume_unwind(payload)),
                // Without a thread it is written now.
                Err(_) => self.write_index(&files),
            })
        })?;
        data.rename(&path)?;
        if let Err(error) = index.and_then(|index| index.rename(&self.dir.join(INDEX))) {
            self.warn(&format!("{error:#}: the index; the checkpoints themselves are whole"));
        }
        // Only now are the names themselves on disk. No file is removed before.
        self.disk.sync_names(&self.dir).map_err(io_at(&self.dir))?;
        for old in old {
            match self.disk.remove(&old.path) {
                Ok(thread) => freeing.extend(thread),
                Err(error) => self.warn(&format!(
                    "{}: an old checkpoint could not be removed: {error}",
                    old.path.display()
                )),
            }
        }
        Ok(saved)
    }

    /// For human beings and other programs: the files in the order in which they were written, not yet under the index's name. A restore looks at the files
    /// themselves.
    fn write_index(&self, files: &[Checkpoint]) -> Result<Beside<'_>, CheckpointError> {
        let mut index = self.write_beside(TEMPORARY_INDEX, |file, at| {
            for one in files.iter().rev() {
                let name = one.path.file_name().unwrap_or_default().to_string_lossy();
                writeln!(file, "{} {} {name}", one.sequence, one.step).map_err(io_at(at))?;
            }
            Ok(())
        })?;
        index.sync()?;
        Ok(index)
    }

    /// Writes a file under a temporary name, which only this writer has.
    fn write_beside(
        &self,
        name: &str,
        write: impl FnOnce(&mut dyn Write, &Path) -> Result<(), CheckpointError>,
    ) -> Result<Beside<'_>, CheckpointError> {
        let at = self.dir.join(name);
        let created = self.disk.create(&at);
        let file = created.map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => CheckpointError::Busy { path: self.dir.clone() },
            _ => io_at(&at)(error),
        })?;
        let mut beside = Beside { disk: &*self.disk, file, at, is_renamed: false };
        write(&mut beside.file, &beside.at)?;
        Ok(beside)
    }

    fn warn(&self, text: &str) {
        contained(|| (self.on_warning)(text));
    }

    pub(super) fn restore(
        &self,
        state: &(impl State + ?Sized),
    ) -> Result<Option<Checkpoint>, CheckpointError> {
        let (mut files, mut damaged) = self.scan()?;
        files.sort_by_key(|one| std::cmp::Reverse(one.sequence));
        for one in files {
            match read(&one.path, state) {
                Ok(restored) => {
                    damaged.iter().for_each(|error| self.warn(&format!("passed over: {error:#}")));
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

/// Whether the name is one that a save gives: the prefix, and nothing but digits behind it. So a copy with another ending is neither restored nor removed.
fn is_checkpoint(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str());
    let step = name.and_then(|name| name.strip_prefix(PREFIX));
    step.is_some_and(|step| step.len() >= DIGITS && step.bytes().all(|byte| byte.is_ascii_digit()))
}

/// A file under a temporary name. It is removed when this is dropped before it was renamed.
struct Beside<'disk> {
    disk: &'disk dyn Disk,
    file: Box<dyn Output>,
    at: PathBuf,
    is_renamed: bool,
}

impl Beside<'_> {
    fn sync(&mut self) -> Result<(), CheckpointError> {
        self.file.sync().map_err(io_at(&self.at))
    }

    /// Gives it its name.
    fn rename(mut self, path: &Path) -> Result<(), CheckpointError> {
        self.disk.rename(&self.at, path).map_err(io_at(path))?;
        self.is_renamed = true;
        Ok(())
    }
}

impl Drop for Beside<'_> {
    fn drop(&mut self) {
        if !self.is_renamed {
            let _ = self.disk.remove(&self.at);
        }
    }
}

/// Has the state taken from this file.
pub(super) fn read(path: &Path, state: &(impl State + ?Sized)) -> Result<Checkpoint, CheckpointError> {
    let (header, sections) = file::open(path)?;
    let want = state.schema();
    if header.schema != want {
        return Err(CheckpointError::Schema { path: path.to_owned(), want, found: header.schema });
    }
    state.restore(&sections).map_err(|source| CheckpointError::State { path: path.to_owned(), source })?;
    Ok(Checkpoint { path: path.to_owned(), step: header.step, sequence: header.sequence })
}
