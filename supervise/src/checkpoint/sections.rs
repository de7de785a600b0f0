//! The named parts of a checkpoint: as they are written, and as they are read.

use std::collections::HashSet;
use std::error::Error as StdError;
use std::fmt;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use forebear::{Chain, Error};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// So many bytes are written and summed up at a time, as many as the file's buffer holds.
pub(super) const AT_ONCE: usize = 1 << 18;

/// The longest table of sections that a file has, in bytes. A reader that allocates the table trusts the file with no more.
pub(super) const LONGEST_TABLE: u64 = 1 << 30;
/// Bytes of an entry beside its name.
pub(super) const ENTRY: u64 = 24;

/// One section, in the table.
pub(super) struct SectionEntry {
    pub(super) name: String,
    pub(super) offset: u64,
    pub(super) length: u64,
    pub(super) checksum: u32,
}

/// The sections of a checkpoint that is being written. Lent to [`State::save`](super::State::save).
///
/// A state may ignore the system's errors: the first one ends the save, whatever the state returns.
///
/// ```
/// use forebear::Error;
/// use forebear_supervise::{SavedSections, Sections};
/// use std::io::Write;
///
/// fn save(out: &mut Sections<'_>) -> Result<(), Error> {
///     out.put("epoch", &3_u32)?; // by serde
///     out.put_bytes("mask", &[1, 0, 1])?;
///     let mut log = out.writer("log")?; // piece by piece
///     for n in 0..3 {
///         writeln!(log, "line {n}")?;
///     }
///     log.close()
/// }
///
/// fn restore(from: &SavedSections) -> Result<u32, Error> {
///     assert!(from.names().eq(["epoch", "mask", "log"]));
///     assert_eq!(from.bytes("mask")?, [1, 0, 1]);
///     assert_eq!(std::io::read_to_string(from.reader("log")?)?, "line 0\nline 1\nline 2\n");
///     from.get("epoch")
/// }
/// # struct Parts;
/// # impl forebear_supervise::State for Parts {
/// #     fn schema(&self) -> u64 { 1 }
/// #     fn save(&self, out: &mut Sections<'_>) -> Result<(), Error> { save(out) }
/// #     fn restore(&self, from: &SavedSections) -> Result<(), Error> { Ok(assert_eq!(restore(from)?, 3)) }
/// # }
/// # let dir = std::env::temp_dir().join(format!("sections-{}", std::process::id()));
/// # let (checkpoints, parts) = (forebear_supervise::Checkpoints::open(&dir)?, std::sync::Arc::new(Parts));
/// # checkpoints.save(1, &parts)?;
/// # checkpoints.restore(&parts)?;
/// # std::fs::remove_dir_all(&dir).unwrap();
/// # Ok::<(), forebear_supervise::CheckpointError>(())
/// ```
pub struct Sections<'a> {
    out: &'a mut dyn Write,
    offset: u64,
    entries: Vec<SectionEntry>,
    names: HashSet<String>,
    /// Bytes of the table of these sections.
    table: u64,
    refused: Option<io::Error>,
}

/// Why a section could not be written or read.
///
/// ```
/// use forebear::Error;
/// use forebear_supervise::{SavedSections, SectionError};
///
/// /// Earlier versions have saved no mask.
/// fn mask(from: &SavedSections) -> Result<Vec<u8>, Error> {
///     match from.bytes("mask") {
///         Err(error) if matches!(error.downcast_ref(), Some(SectionError::Missing { .. })) => Ok(Vec::new()),
///         mask => mask,
///     }
/// }
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum SectionError {
    /// The checkpoint has no section of this name.
    #[non_exhaustive]
    Missing {
        /// The name.
        section: String,
    },
    /// The checkpoint already has a section of this name.
    #[non_exhaustive]
    Twice {
        /// The name.
        section: String,
    },
    /// One more section would make the table of names longer than a checkpoint can have: 1 GiB, which is 24 bytes and the name for each section.
    /// Write fewer sections, or shorter names.
    #[non_exhaustive]
    Table {
        /// The first 64 characters of the name.
        section: String,
    },
    /// The bytes are no value of the requested type, or serde could not write the value.
    #[non_exhaustive]
    Decode {
        /// The name.
        section: String,
        /// What is wrong.
        source: postcard::Error,
    },
    /// The format of a section cannot carry the value: serde does not encode it, or does not decode what it has encoded. No restore could read it. See
    /// [`Snapshot`](super::Snapshot) for the attributes that cause this.
    #[non_exhaustive]
    UnsupportedType {
        /// The name.
        section: String,
        /// What serde says.
        source: postcard::Error,
    },
    /// The section should be exported as a tensor, but does not have that type and shape.
    #[non_exhaustive]
    NoTensor {
        /// The name.
        section: String,
        /// What does not fit.
        why: String,
    },
    /// The system refuses an operation.
    #[non_exhaustive]
    Io {
        /// The name.
        section: String,
        /// The system's error.
        source: io::Error,
    },
}

impl fmt::Display for SectionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if f.alternate() {
            return Chain::of(self).fmt(f);
        }
        match self {
            SectionError::Missing { section } => write!(f, "the checkpoint has no section `{section}`"),
            SectionError::Twice { section } => write!(f, "the section `{section}` is there already"),
            SectionError::Table { section } => write!(
                f,
                "the section `{section}` has no room in the checkpoint's table of 1 GiB: write fewer sections, or shorter names"
            ),
            SectionError::Decode { section, .. } => write!(f, "the section `{section}` holds something else"),
            SectionError::UnsupportedType { section, .. } => write!(
                f,
                "the section `{section}` could not be restored, since the format has no names of fields: remove `skip_serializing_if`, `untagged`, `tag` and `flatten` from its type"
            ),
            SectionError::NoTensor { section, why } => {
                write!(f, "the section `{section}` cannot be exported: {why}")
            }
            SectionError::Io { section, .. } => write!(f, "the section `{section}`"),
        }
    }
}

impl StdError for SectionError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        match self {
            SectionError::Decode { source, .. } | SectionError::UnsupportedType { source, .. } => {
                Some(source)
            }
            SectionError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl<'a> Sections<'a> {
    pub(super) fn new(out: &'a mut dyn Write, offset: u64) -> Self {
        Sections { out, offset, entries: Vec::new(), names: HashSet::new(), table: 0, refused: None }
    }

    /// The table, where it begins, and what the system has refused.
    pub(super) fn finish(self) -> (Vec<SectionEntry>, u64, Option<io::Error>) {
        (self.entries, self.offset, self.refused)
    }

    /// Writes a value by serde, in the format of the crate `postcard`. It is not read back: [`Snapshot`](super::Snapshot) names the attributes of serde with which
    /// no restore could read it.
    ///
    /// # Errors
    ///
    /// [`SectionError::Twice`], [`SectionError::Table`], [`SectionError::Decode`], [`SectionError::Io`].
    pub fn put(&mut self, name: &str, value: &impl Serialize) -> Result<(), Error> {
        let mut writer = self.writer(name)?;
        let written = postcard::to_io(value, &mut writer).map(drop);
        writer.close()?;
        written.map_err(|source| SectionError::Decode { section: name.to_owned(), source })?;
        Ok(())
    }

    /// Writes a section of these bytes.
    ///
    /// # Errors
    ///
    /// [`SectionError::Twice`], [`SectionError::Table`], [`SectionError::Io`].
    pub fn put_bytes(&mut self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        let mut writer = self.writer(name)?;
        let _ = writer.write_all(bytes);
        writer.close()
    }

    /// Begins a section that is written piece by piece, without a copy of the whole. It ends when the writer is closed or dropped.
    ///
    /// # Errors
    ///
    /// [`SectionError::Twice`], [`SectionError::Table`].
    pub fn writer<'s>(&'s mut self, name: &str) -> Result<SectionWriter<'s, 'a>, Error> {
        let table = self.table + ENTRY + name.len() as u64;
        if table > LONGEST_TABLE {
            return Err(SectionError::Table { section: name.chars().take(64).collect() }.into());
        }
        if !self.names.insert(name.to_owned()) {
            return Err(SectionError::Twice { section: name.to_owned() }.into());
        }
        self.table = table;
        self.entries.push(SectionEntry {
            name: name.to_owned(),
            offset: self.offset,
            length: 0,
            checksum: 0,
        });
        Ok(SectionWriter { sections: self })
    }
}

impl fmt::Debug for Sections<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.entries.iter().map(|entry| &entry.name).collect();
        f.debug_struct("Sections").field("names", &names).finish_non_exhaustive()
    }
}

/// A section of a checkpoint that is being written, from [`Sections::writer`].
///
/// ```
/// use forebear::Error;
/// use forebear_supervise::Sections;
/// use std::io::Write;
///
/// fn save(out: &mut Sections<'_>, lines: &[String]) -> Result<(), Error> {
///     let mut log = out.writer("log")?;
///     for line in lines {
///         writeln!(log, "{line}")?;
///     }
///     log.close() // the next section can begin
/// }
/// ```
#[derive(Debug)]
pub struct SectionWriter<'s, 'a> {
    sections: &'s mut Sections<'a>,
}

impl SectionWriter<'_, '_> {
    /// Ends the section.
    ///
    /// # Errors
    ///
    /// [`SectionError::Io`]: the system has refused a write.
    pub fn close(self) -> Result<(), Error> {
        match (&self.sections.refused, self.sections.entries.last()) {
            (Some(error), Some(entry)) => {
                let source = io::Error::from(error.kind());
                Err(SectionError::Io { section: entry.name.clone(), source }.into())
            }
            _ => Ok(()),
        }
    }
}

impl Write for SectionWriter<'_, '_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sections = &mut *self.sections;
        if let Some(error) = &sections.refused {
            return Err(error.kind().into());
        }
        // So little at a time that the checksum finds it in the processor's cache, and up to a multiple of that in the file, so that all writes but the last are of whole pages.
        let room = AT_ONCE - (sections.offset % AT_ONCE as u64) as usize;
        let bytes = &bytes[..bytes.len().min(room)];
        let written = match sections.out.write(bytes) {
            Ok(written) => written,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                let kind = error.kind();
                sections.refused = Some(error);
                return Err(kind.into());
            }
        };
        sections.offset += written as u64;
        if let Some(entry) = sections.entries.last_mut() {
            entry.length += written as u64;
            entry.checksum = crc32c::crc32c_append(entry.checksum, &bytes[..written]);
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The sections of a checkpoint that has been verified. Lent to [`State::restore`](super::State::restore).
///
/// ```
/// use forebear::Error;
/// use forebear_supervise::SavedSections;
///
/// fn rows(from: &SavedSections) -> Result<Vec<u64>, Error> {
///     if from.names().any(|name| name == "rows") {
///         return from.get("rows"); // by serde
///     }
///     Ok(from.bytes("old rows")?.into_iter().map(u64::from).collect())
/// }
/// ```
pub struct SavedSections {
    path: PathBuf,
    entries: Vec<SectionEntry>,
}

impl SavedSections {
    pub(super) fn new(path: PathBuf, entries: Vec<SectionEntry>) -> Self {
        SavedSections { path, entries }
    }

    /// The names, in the order in which they were written.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    /// A value that [`Sections::put`] has written.
    ///
    /// # Errors
    ///
    /// [`SectionError::Missing`], [`SectionError::Decode`], [`SectionError::Io`].
    pub fn get<T: DeserializeOwned>(&self, name: &str) -> Result<T, Error> {
        let bytes = self.bytes(name)?;
        let decoded = postcard::take_from_bytes(&bytes);
        let failed = |source| SectionError::Decode { section: name.to_owned(), source };
        let (value, rest) = decoded.map_err(failed)?;
        if !rest.is_empty() {
            return Err(failed(postcard::Error::SerdeDeCustom).into());
        }
        Ok(value)
    }

    /// The bytes of a section.
    ///
    /// # Errors
    ///
    /// [`SectionError::Missing`], [`SectionError::Io`].
    pub fn bytes(&self, name: &str) -> Result<Vec<u8>, Error> {
        let mut bytes = Vec::new();
        let read = self.reader(name)?.read_to_end(&mut bytes);
        read.map_err(|source| SectionError::Io { section: name.to_owned(), source })?;
        Ok(bytes)
    }

    /// Opens a section that is read piece by piece, without a copy of the whole.
    ///
    /// ```
    /// use forebear::Error;
    /// use forebear_supervise::SavedSections;
    /// use std::io::{BufRead, BufReader};
    ///
    /// fn count_lines(from: &SavedSections) -> Result<usize, Error> {
    ///     Ok(BufReader::new(from.reader("log")?).lines().count())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`SectionError::Missing`], [`SectionError::Io`].
    pub fn reader(&self, name: &str) -> Result<SectionReader, Error> {
        let Some(entry) = self.entries.iter().find(|entry| entry.name == name) else {
            return Err(SectionError::Missing { section: name.to_owned() }.into());
        };
        let open = || {
            let mut file = File::open(&self.path)?;
            file.seek(SeekFrom::Start(entry.offset))?;
            Ok(BufReader::new(file).take(entry.length))
        };
        let from = open().map_err(|source| SectionError::Io { section: name.to_owned(), source })?;
        Ok(SectionReader { from, length: entry.length })
    }
}

impl fmt::Debug for SavedSections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SavedSections")
            .field("path", &self.path)
            .field("names", &self.names().collect::<Vec<_>>())
            .finish()
    }
}

/// A section of a checkpoint that is being read, from [`SavedSections::reader`].
///
/// ```
/// use forebear::Error;
/// use forebear_supervise::SavedSections;
/// use std::io::Read;
///
/// fn pixels(from: &SavedSections) -> Result<Vec<u8>, Error> {
///     let mut reader = from.reader("pixels")?;
///     let mut pixels = Vec::with_capacity(reader.section_len() as usize);
///     reader.read_to_end(&mut pixels)?;
///     Ok(pixels)
/// }
/// ```
#[derive(Debug)]
pub struct SectionReader {
    from: io::Take<BufReader<File>>,
    length: u64,
}

impl SectionReader {
    /// How many bytes the section has.
    #[must_use]
    pub fn section_len(&self) -> u64 {
        self.length
    }
}

impl Read for SectionReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.from.read(into)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file whose table no reader would accept is refused while it is written: the checkpoint before it stays the newest.
    #[test]
    fn a_section_beyond_the_longest_table_is_refused() {
        let mut sink = io::sink();
        let mut sections = Sections::new(&mut sink, 0);
        sections.put_bytes("first", b"1").unwrap();
        assert_eq!(sections.table, ENTRY + 5);

        // As if names of nearly a gibibyte stood before.
        sections.table = LONGEST_TABLE - 2 * (ENTRY + 4);
        sections.put_bytes("fits", b"2").unwrap();
        let error = sections.put_bytes("large", b"3").unwrap_err();
        assert!(
            matches!(error.downcast_ref(), Some(SectionError::Table { section, .. }) if section == "large"),
            "{error}"
        );
        sections.put_bytes("last", b"4").unwrap();
        assert_eq!(sections.table, LONGEST_TABLE);

        let error = sections.put_bytes(&"n".repeat(100), b"").unwrap_err();
        assert!(error.to_string().contains(&format!("`{}`", "n".repeat(64))), "{error}");
        let (entries, ..) = sections.finish();
        assert!(entries.iter().map(|entry| entry.name.as_str()).eq(["first", "fits", "last"]));
    }
}
