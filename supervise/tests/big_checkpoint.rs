//! A checkpoint of 1 GiB. A program of its own: the most memory that the process has had is what is measured.
#![cfg(target_os = "linux")]

#[path = "../../tests/support/mod.rs"]
mod support;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebear::Error;
use forebear_supervise::{CheckpointError, Checkpoints, SavedSections, Sections, State};
use support::Watchdog;
use tempfile::TempDir;

const MIB: usize = 1 << 20;
/// Bytes of the section.
const BIG: usize = 1 << 30;
/// So many are made and compared at a time.
const PIECE: usize = MIB;

/// 1 GiB of numbers that follow from their place and from a seed, which is all that it holds.
struct Numbers {
    seed: AtomicU64,
}

impl Numbers {
    fn new(seed: u64) -> Arc<Numbers> {
        Arc::new(Numbers { seed: AtomicU64::new(seed) })
    }

    fn piece(seed: u64, n: usize, into: &mut [u8]) {
        for (at, bytes) in into.chunks_exact_mut(8).enumerate() {
            let number = (n * PIECE + at) as u64 ^ seed;
            bytes.copy_from_slice(&number.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes());
        }
    }
}

impl State for Numbers {
    fn schema(&self) -> u64 {
        1
    }

    fn save(&self, out: &mut Sections<'_>) -> Result<(), Error> {
        let seed = self.seed.load(Ordering::Relaxed);
        out.put("seed", &seed)?;
        let mut writer = out.writer("numbers")?;
        let mut piece = vec![0; PIECE];
        for n in 0..BIG / PIECE {
            Numbers::piece(seed, n, &mut piece);
            writer.write_all(&piece)?;
        }
        writer.close()
    }

    fn restore(&self, from: &SavedSections) -> Result<(), Error> {
        let seed = from.get("seed")?;
        let mut reader = from.reader("numbers")?;
        assert_eq!(reader.section_len(), BIG as u64);
        let (mut piece, mut read) = (vec![0; PIECE], vec![0; PIECE]);
        for n in 0..BIG / PIECE {
            Numbers::piece(seed, n, &mut piece);
            reader.read_exact(&mut read)?;
            assert!(piece == read, "piece {n}");
        }
        self.seed.store(seed, Ordering::Relaxed);
        Ok(())
    }
}

/// The most memory that this process has had, in bytes.
fn peak() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<usize>().unwrap() * 1_024
}

#[test]
#[cfg_attr(debug_assertions, ignore = "release only")]
fn a_checkpoint_of_a_gibibyte_is_streamed_and_one_wrong_byte_of_it_is_found() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let checkpoints = Checkpoints::open(dir.path()).unwrap().keep(1).on_warning(|_| {});
    let before = peak();
    let saved = checkpoints.save(7, &Numbers::new(11)).unwrap();
    assert!(fs::metadata(&saved.path).unwrap().len() > BIG as u64);
    let restored = Numbers::new(0);
    assert_eq!(checkpoints.restore(&restored).unwrap().as_ref(), Some(&saved));
    assert_eq!(restored.seed.load(Ordering::Relaxed), 11);
    let more = peak() - before;
    assert!(more < 32 * MIB, "{more} bytes of memory for a stream");

    let file = File::options().read(true).write(true).open(&saved.path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, BIG as u64 - 1).unwrap();
    file.write_all_at(&[byte[0] ^ 1], BIG as u64 - 1).unwrap();
    let error = checkpoints.restore(&restored).unwrap_err();
    let CheckpointError::Corrupt { section, .. } = &error else { panic!("{error:?}") };
    assert_eq!(section.as_deref(), Some("numbers"));
}
