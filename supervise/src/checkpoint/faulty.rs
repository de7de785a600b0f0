//! Saves on a file system that refuses a step or tears a write, also while the process is killed.

use std::io::{self, Write};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tempfile::TempDir;

use super::again::{kill_saves, kills};
use super::directory::DirectoryShared;
use super::disk::{Disk, Output, Real};
use super::{Checkpoint, CheckpointError, Checkpoints, Snapshot};

pub(super) fn on(dir: &Path, disk: impl Disk + 'static) -> Checkpoints {
    let checkpoints = Checkpoints::open(dir).unwrap().keep(2).on_warning(|_| {});
    let shared = DirectoryShared { disk: Arc::new(disk), ..DirectoryShared::clone(&checkpoints.0) };
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

/// Says of each step whether it is refused. A step is a word and the file's name; the steps of the index come at any time between the others.
type Refuses = Arc<Mutex<dyn FnMut(String) -> bool + Send>>;

/// Passes each step on to the system, unless it is refused. Of a write that is refused half is done.
struct Faulty(Refuses);

struct FaultyFile {
    file: Box<dyn Output>,
    name: String,
    refuses: Refuses,
}

fn refused(refuses: &Refuses, word: &str, name: &str) -> bool {
    (refuses.lock().unwrap())(format!("{word} {name}"))
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

/// As a full disk says it.
fn no_room<T>() -> io::Result<T> {
    Err(io::ErrorKind::StorageFull.into())
}

impl Faulty {
    fn step<T>(&self, word: &str, path: &Path, f: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        if refused(&self.0, word, &name_of(path)) { no_room() } else { f() }
    }
}

impl Disk for Faulty {
    fn create(&self, path: &Path) -> io::Result<Box<dyn Output>> {
        let file = self.step("create", path, || Real.create(path))?;
        Ok(Box::new(FaultyFile { file, name: name_of(path), refuses: self.0.clone() }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.step("rename", from, || Real.rename(from, to))
    }

    fn remove(&self, path: &Path) -> io::Result<Option<JoinHandle<()>>> {
        self.step("remove", path, || Real.remove(path))
    }

    fn sync_names(&self, dir: &Path) -> io::Result<()> {
        self.step("sync names", dir, || Real.sync_names(dir))
    }
}

impl Write for FaultyFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if refused(&self.refuses, "write", &self.name) {
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
        if refused(&self.refuses, "sync", &self.name) { no_room() } else { self.file.sync() }
    }
}

/// A directory with three checkpoints, of which two are kept, and a fourth save on a faulty disk.
fn fourth_save(
    refuses: impl FnMut(String) -> bool + Send + 'static,
) -> (TempDir, Result<Checkpoint, CheckpointError>) {
    let dir = tempfile::tempdir().unwrap();
    let sound = on(dir.path(), Real);
    (1..=3).for_each(|step| drop(sound.save(step, &state(step)).unwrap()));
    let saved = on(dir.path(), Faulty(Arc::new(Mutex::new(refuses)))).save(4, &state(4));
    (dir, saved)
}

#[test]
fn a_step_that_is_refused_and_a_write_that_is_torn_leave_what_was_saved() {
    let steps = Arc::new(Mutex::new(Vec::new()));
    let notes = steps.clone();
    let (dir, saved) = fourth_save(move |step| {
        notes.lock().unwrap().push(step);
        false
    });
    saved.unwrap();
    let names = name_of(dir.path());
    let steps = steps.lock().unwrap().clone();
    for step in &steps {
        for for_good in [false, true] {
            let (fails_at, mut fails) = (step.replace(&names, ""), false);
            let refuses = move |step: String| {
                let is_it = step.starts_with(&fails_at);
                fails |= is_it;
                is_it || for_good && fails
            };
            let (dir, saved) = fourth_save(refuses);
            let newest = restored(dir.path()).unwrap();
            // Old files that stay and an index that is old are warnings.
            let is_fatal = !step.starts_with("remove") && !step.contains(".checkpoints.tmp");
            match &saved {
                Ok(saved) => assert_eq!((saved.step, newest), (4, 4), "refused: {step}"),
                Err(CheckpointError::Io { .. }) => assert!(newest == 3 || newest == 4, "refused: {step}"),
                Err(other) => panic!("refused: {step}: {other:?}"),
            }
            if !for_good || is_fatal {
                assert_eq!(saved.is_err(), is_fatal, "refused: {step}");
            }
            // A later save finds nothing in its way.
            on(dir.path(), Real).save(5, &state(5)).unwrap();
            assert_eq!(restored(dir.path()).unwrap(), 5, "refused: {step}");
        }
    }
    let kinds = ["create", "write", "sync", "rename"].map(|word| format!("{word} .checkpoint.tmp"));
    let all = kinds.iter().all(|kind| steps.contains(kind));
    assert!(all && steps.iter().any(|step| step.starts_with("sync names")), "{steps:?}");
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
    let refuses = move |_| {
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

/// `kill -9` at random moments, on a disk that is full now and then, and tears writes. The next process begins with the
/// newest step that was reported saved, or with one that was tried after it. 40 times; 500 with `FOREBEAR_SOAK=1`.
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
