//! What stands in an event file.

use std::fs;
use std::path::Path;

/// The bytes of the records of a file, as far as they are whole. Checksums are looked at by the real reader.
pub(crate) fn records(path: &Path) -> Vec<Vec<u8>> {
    let bytes = fs::read(path).unwrap();
    let (mut rest, mut records) = (&bytes[..], Vec::new());
    while let Some((length, after)) = rest.split_first_chunk::<8>() {
        let length = u64::from_le_bytes(*length) as usize;
        let Some(record) = after.get(4..4 + length) else { break };
        records.push(record.to_vec());
        let Some(next) = after.get(8 + length..) else { break };
        rest = next;
    }
    records
}

pub(crate) fn holds(record: &[u8], text: &str) -> bool {
    record.windows(text.len()).any(|window| window == text.as_bytes())
}
