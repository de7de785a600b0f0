//! The bytes of a checkpoint: see the head of [`super`].

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use super::error::io_at;
use super::sections::{AT_ONCE, LONGEST_TABLE, SavedSections, SectionEntry, Sections};
use super::{CheckpointError, State};

const MAGIC: [u8; 8] = *b"FBCKPT\r\n";
const END: [u8; 8] = *b"\n\rTPKCBF";
const VERSION: u32 = 1;
/// Bytes before the first section.
const HEADER: u64 = 40;
/// Bytes after the table.
const FOOTER: u64 = 24;
/// As much is read at a time.
const CHUNK: usize = 1 << 18;

/// What stands before the sections.
pub(super) struct Header {
    pub(super) schema: u64,
    pub(super) step: u64,
    pub(super) sequence: u64,
}

impl Header {
    /// Reads that of a file, and nothing else.
    pub(super) fn of(path: &Path) -> Result<Header, CheckpointError> {
        let mut file = File::open(path).map_err(io_at(path))?;
        Ok(Header::read(&mut file, path)?.0)
    }

    fn read(file: &mut File, path: &Path) -> Result<(Header, [u8; HEADER as usize]), CheckpointError> {
        let mut bytes = [0; HEADER as usize];
        read_whole(file, &mut bytes, path)?;
        if bytes[..8] != MAGIC {
            return Err(corrupt(path, None));
        }
        let (version, zero) = (u32_at(&bytes, 8), u32_at(&bytes, 12));
        if version > VERSION {
            return Err(CheckpointError::Version { path: path.to_owned(), found: version });
        }
        if version != VERSION || zero != 0 {
            return Err(corrupt(path, None));
        }
        let header =
            Header { schema: u64_at(&bytes, 16), step: u64_at(&bytes, 24), sequence: u64_at(&bytes, 32) };
        Ok((header, bytes))
    }

    fn to_bytes(&self) -> [u8; HEADER as usize] {
        let mut bytes = [0; HEADER as usize];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.schema.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.step.to_le_bytes());
        bytes[32..].copy_from_slice(&self.sequence.to_le_bytes());
        bytes
    }
}

/// Writes a whole file.
pub(super) fn write(
    file: &mut dyn Write,
    path: &Path,
    header: &Header,
    state: &(impl State + ?Sized),
) -> Result<(), CheckpointError> {
    let failed = io_at(path);
    let mut out = BufWriter::with_capacity(AT_ONCE, file);
    let header = header.to_bytes();
    out.write_all(&header).map_err(&failed)?;
    let mut sections = Sections::new(&mut out, HEADER);
    let saved = state.save(&mut sections);
    let (entries, offset, refused) = sections.finish();
    // What the system has refused comes first: the state's error follows from it.
    if let Some(error) = refused {
        return Err(failed(error));
    }
    saved.map_err(|source| CheckpointError::State { path: path.to_owned(), source })?;

    let mut table = Vec::new();
    for entry in &entries {
        table.extend((entry.name.len() as u32).to_le_bytes());
        table.extend(entry.name.as_bytes());
        table.extend(entry.offset.to_le_bytes());
        table.extend(entry.length.to_le_bytes());
        table.extend(entry.checksum.to_le_bytes());
    }
    table.extend(offset.to_le_bytes());
    table.extend((entries.len() as u32).to_le_bytes());
    let checksum = crc32c::crc32c_append(crc32c::crc32c(&header), &table);
    table.extend(checksum.to_le_bytes());
    table.extend(END);
    out.write_all(&table).and_then(|()| out.flush()).map_err(failed)
}

/// Opens a file, and verifies every byte of it.
pub(super) fn open(path: &Path) -> Result<(Header, SavedSections), CheckpointError> {
    let mut file = File::open(path).map_err(io_at(path))?;
    let (header, head) = Header::read(&mut file, path)?;
    let length = file.metadata().map_err(io_at(path))?.len();
    let entries = table(&mut file, path, length, &head)?;
    let mut buffer = vec![0; CHUNK];
    for entry in &entries {
        file.seek(SeekFrom::Start(entry.offset)).map_err(io_at(path))?;
        let (mut left, mut checksum) = (entry.length, 0);
        while left > 0 {
            let now = left.min(CHUNK as u64) as usize;
            read_whole(&mut file, &mut buffer[..now], path)?;
            checksum = crc32c::crc32c_append(checksum, &buffer[..now]);
            left -= now as u64;
        }
        if checksum != entry.checksum {
            return Err(corrupt(path, Some(entry.name.clone())));
        }
    }
    Ok((header, SavedSections::new(path.to_owned(), entries)))
}

/// The table of a file, which must account for every byte between the header and itself.
fn table(
    file: &mut File,
    path: &Path,
    length: u64,
    head: &[u8],
) -> Result<Vec<SectionEntry>, CheckpointError> {
    let bad = || corrupt(path, None);
    let end = length.checked_sub(FOOTER).filter(|end| *end >= HEADER).ok_or_else(bad)?;
    let mut footer = [0; FOOTER as usize];
    file.seek(SeekFrom::Start(end)).map_err(io_at(path))?;
    read_whole(file, &mut footer, path)?;
    let (offset, count, checksum) = (u64_at(&footer, 0), u32_at(&footer, 8), u32_at(&footer, 12));
    let size =
        end.checked_sub(offset).filter(|size| offset >= HEADER && *size <= LONGEST_TABLE).ok_or_else(bad)?;
    if footer[16..] != END {
        return Err(bad());
    }
    let mut bytes = vec![0; size as usize];
    file.seek(SeekFrom::Start(offset)).map_err(io_at(path))?;
    read_whole(file, &mut bytes, path)?;
    let sum = [&bytes[..], &footer[..12]]
        .iter()
        .fold(crc32c::crc32c(head), |sum, part| crc32c::crc32c_append(sum, part));
    if sum != checksum {
        return Err(bad());
    }
    // The checksum holds, so what follows can fail only for a file that was made to deceive.
    let (mut rest, mut next, mut entries) = (&bytes[..], HEADER, Vec::new());
    for _ in 0..count {
        let length = take(&mut rest, 4).map(|bytes| u32_at(bytes, 0)).ok_or_else(bad)?;
        let name = take(&mut rest, length as usize)
            .and_then(|name| String::from_utf8(name.to_vec()).ok())
            .ok_or_else(bad)?;
        let numbers = take(&mut rest, 20).ok_or_else(bad)?;
        let entry = SectionEntry {
            name,
            offset: u64_at(numbers, 0),
            length: u64_at(numbers, 8),
            checksum: u32_at(numbers, 16),
        };
        if entry.offset != next {
            return Err(bad());
        }
        next = next.checked_add(entry.length).filter(|next| *next <= offset).ok_or_else(bad)?;
        entries.push(entry);
    }
    if !rest.is_empty() || next != offset {
        return Err(bad());
    }
    Ok(entries)
}

fn take<'a>(rest: &mut &'a [u8], bytes: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(bytes)?;
    *rest = left;
    Some(taken)
}

fn corrupt(path: &Path, section: Option<String>) -> CheckpointError {
    CheckpointError::Corrupt { path: PathBuf::from(path), section }
}

/// A file that ends too early is damaged; everything else is for the system to say.
fn read_whole(file: &mut File, into: &mut [u8], path: &Path) -> Result<(), CheckpointError> {
    file.read_exact(into).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => corrupt(path, None),
        _ => io_at(path)(error),
    })
}

/// Both are called with places inside of what was read.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..at + 8].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
