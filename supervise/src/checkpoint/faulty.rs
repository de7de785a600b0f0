//! Saves on a file system that refuses a step or tears a write, also while the process is killed.

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use super::again::{kill_saves, kills};
use super::directory::Shared;
use super::disk::{Disk, Output, Real};
use super::{CheckpointError, Checkpoints, Snapshot};

pub(super) fn on(dir: &Path, disk: impl Disk + 'static) -> Checkpoints {
    let checkpoints = Checkpoints::open(dir).unwrap().keep(2).on_warning(|_| {});
    let shared = Shared { disk: Arc::new(disk), ..Shared::clone(&checkpoints.0) };
    Checkpoints(Arc::new(shared))
}

/// Of different sizes, some of which take several writes.
fn value(save: u64) -> Vec<u64> {
    vec![save; 1 + (save as usize * 7_919) % 100_000]
}

pub(super) fn state(save: u64) -> Arc<Snapshot<Vec<u64>>> {
    Arc::new(Snapshot::new(1, value(save)))
}

/// The step that a restore from there begins with, whose state is checked; 0 if nothing is there.
pub(super) fn restored(dir: &Path) -> Result<u64, CheckpointError> {
    let into = Arc::new(Snapshot::new(1, Vec::<u64>::new()));
    let Some(found) = Checkpoints::open(dir)?.on_warning(|_| {}).restore(&into)? else { return Ok(0) };
    assert!(into.get() == value(found.step), "the state is not that of step {}", found.step);
    Ok(found.step)
}

// ---- the faulting layer --------------------------------------------------------------------------------------------------

/// Says of each step whether it is refused.
type Refuses = Arc<Mutex<dyn FnMut() -> bool + Send>>;

/// Passes each step on to the system, unless it is refused. Of a write that is refused half is done.
struct Faulty(Refuses);

struct FaultyFile {
    file: Box<dyn Output>,
    refuses: Refuses,
}

fn refused(refuses: &Refuses) -> bool {
    (refuses.lock().unwrap())()
}

/// As a full disk says it.
fn no_room<T>() -> io::Result<T> {
    Err(io::ErrorKind::StorageFull.into())
}

impl Faulty {
    fn step<T>(&self, f: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if refused(&self.0) { no_room() } else { f() }
    }
}

impl Disk for Faulty {
    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        let file = self.step(|| Real.create(path))?;
        Ok(Box::new(FaultyFile { file, refuses: self.0.clone() }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step(|| Real.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<Option<JoinHandle<()>>> {
        self.step(|| Real.remove(path))
    }

    fn sync_names(&self, dir: &Path) -> io::Result<()> {
        self.step(|| Real.sync_names(dir))
    }
}

impl Write for FaultyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if refused(&self.refuses) {
            self.file.write_all(&bytes[..bytes.len() / 2])?;
            return no_room();
        }
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Output for FaultyFile {
    fn sync(&mut self) -> io::Result<()> {
        if refused(&self.refuses) { no_room() } else { self.file.sync() }
    }
}

#[test]
fn a_step_that_is_refused_and_a_write_that_is_torn_leave_what_was_saved() {
    for for_good in [false, true] {
        let mut refused = 0;
        for fails_at in 1.. {
            let dir = tempfile::tempdir().unwrap();
            let sound = on(dir.path(), Real);
            (1..=3).for_each(|step| drop(sound.save(step, &state(step)).unwrap()));
            let done = Arc::new(AtomicU64::new(0));
            let count = done.clone();
            let fails = move || {
                let step = count.fetch_add(1, Ordering::Relaxed) + 1;
                step == fails_at || for_good && step > fails_at
            };
            let faulty = on(dir.path(), Faulty(Arc::new(Mutex::new(fails))));
            let saved = faulty.save(4, &state(4));
            let newest = restored(dir.path()).unwrap();
            match &saved {
                // Old files that stay and an index that is old are warnings.
                Ok(saved) => assert_eq!((saved.step, newest), (4, 4), "refused step {fails_at}"),
                Err(CheckpointError::Io { .. }) => assert!(newest == 3 || newest == 4),
                Err(other) => panic!("refused step {fails_at}: {other:?}"),
            }
            refused += u64::from(saved.is_err());
            // A later save finds nothing in its way.
            sound.save(5, &state(5)).unwrap();
            assert_eq!(restored(dir.path()).unwrap(), 5, "refused step {fails_at}");
            if done.load(Ordering::Relaxed) < fails_at {
                break;
            }
        }
        assert!(refused >= 5, "{refused}: opening, writing, the sync, the rename and the sync of the names");
    }
}

// ---- kill -9 as well -----------------------------------------------------------------------------------------------------

/// Numbers that look as if they were drawn.
fn drawn(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut number = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    move |below| {
        number ^= number << 13;
        number ^= number >> 7;
        number ^= number << 17;
        (number >> 16) % below
    }
}

/// Saves step after step for as long as it lives, on a disk of which one step in twelve is refused, and sometimes the next ones too. Says what it tries, and what is saved.
fn save_for_ever(dir: &Path, seed: u64) -> ! {
    let newest = restored(dir).unwrap();
    let (mut draw, mut full) = (drawn(seed), 0);
    let refuses = move || {
        full = match full {
            0 if draw(12) > 0 => return false,
            0 => [1, 1, 1, 20][draw(4) as usize],
            more => more,
        } - 1;
        true
    };
    let checkpoints = on(dir, Faulty(Arc::new(Mutex::new(refuses))));
    for step in newest + 1.. {
        println!("tries {step}");
        match checkpoints.save(step, &state(step)) {
            Ok(_) => println!("saved {step}"),
            Err(CheckpointError::Io { .. }) => {}
            Err(other) => panic!("step {step}: {other:?}"),
        }
    }
    unreachable!("it is killed before")
}

/// `kill -9` at random moments, on a disk that is full now and then, and tears writes: the newest step that was reported saved, or one that was tried after it, is what the next
/// process begins with. 40 times; 500 with `FOREBEAR_SOAK=1`.
#[test]
fn a_process_that_is_killed_on_a_disk_that_fails_goes_on_at_the_newest_step() {
    const TEST: &str =
        "checkpoint::faulty::a_process_that_is_killed_on_a_disk_that_fails_goes_on_at_the_newest_step";
    if let Ok(seed) = std::env::var("FOREBEAR_TEST_SEED") {
        save_for_ever(std::env::var_os("DIRECTORY").unwrap().as_ref(), seed.parse().unwrap());
    }
    let (dir, mut draw) = (tempfile::tempdir().unwrap(), drawn(11));
    let (newest, refused) = kill_saves(
        TEST,
        &[("DIRECTORY", dir.path().as_os_str())],
        kills(40),
        || Duration::from_micros(draw(80_000)),
        || restored(dir.path()).unwrap(),
    );
    assert!(newest > 0 && refused > 0, "{newest} steps, of which {refused} were refused, or killed");
}

// ---- several writers -----------------------------------------------------------------------------------------------------

/// Each writer has a handle of its own, as another process has. One that opens the file just before another renames it has opened a checkpoint.
#[test]
fn a_writer_that_comes_as_another_ends_leaves_its_checkpoint_alone() {
    const SAVES: u64 = 100;
    let dir = tempfile::tempdir().unwrap();
    let writer = |first: u64| {
        let checkpoints = Checkpoints::open(dir.path()).unwrap().keep(0).on_warning(|_| {});
        for step in first..first + SAVES {
            while let Err(error) = checkpoints.save(step, &state(step % 7)) {
                assert!(matches!(error, CheckpointError::Busy { .. }), "{error:?}");
                std::thread::yield_now();
            }
        }
    };
    std::thread::scope(|scope| {
        (0..4).for_each(|n| drop(scope.spawn(move || writer(n * SAVES))));
    });
    let saved = Checkpoints::open(dir.path()).unwrap();
    for step in 0..4 * SAVES {
        let into = Arc::new(Snapshot::new(1, Vec::<u64>::new()));
        saved.restore_from(dir.path().join(format!("checkpoint-{step:012}")), &into).unwrap();
        assert!(into.get() == value(step % 7), "step {step}");
    }
}
