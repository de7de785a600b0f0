//! What was saved is restored: which checkpoint is the newest, how many are kept, and what a kill leaves.

use std::fs;
use std::io::Read as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use forebear::{Error, Runtime};
use forebear_supervise::{Checkpoints, SavedSections, Sections, Snapshot, State};
use tempfile::TempDir;

use crate::again::{kill_saves, kills};
use crate::support::{self, Come, Random, Watchdog};
use crate::{Blocks, names, open};

#[test]
fn what_was_saved_is_restored() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let (checkpoints, _) = open(&dir);
    let nobody = Arc::new(Blocks::default());
    assert!(checkpoints.restore(&nobody).unwrap().is_none());
    let state = Blocks::of(&[("empty", b""), ("one", b"1"), ("many", &[7; 1_000_000]), ("", b"no name")]);
    let saved = checkpoints.save(42, &state).unwrap();
    assert_eq!(
        (saved.step, saved.path.file_name().unwrap().to_str().unwrap()),
        (42, "checkpoint-000000000042")
    );
    let restored = checkpoints.restore(&nobody).unwrap().unwrap();
    assert_eq!(restored, saved);
    assert_eq!(nobody.get(), state.get());
    assert_eq!(checkpoints.list().unwrap(), std::slice::from_ref(&saved));
    let alone = Arc::new(Blocks::default());
    assert_eq!(checkpoints.restore_from(&saved.path, &alone).unwrap().step, 42);
    assert_eq!(names(dir.path()), ["checkpoint-000000000042", "checkpoints"]);
}

/// A value goes through serde; big arrays are streamed both ways.
#[test]
fn values_and_streams_are_sections_of_one_file() {
    struct Mixed(Mutex<(Vec<String>, Vec<u64>)>);
    impl State for Mixed {
        fn schema(&self) -> u64 {
            1
        }
        fn save(&self, out: &mut Sections<'_>) -> Result<(), Error> {
            let (words, numbers) = self.0.lock().unwrap().clone();
            out.put("words", &words)?;
            let mut writer = out.writer("numbers")?;
            for number in numbers {
                writer.write_all(&number.to_le_bytes())?;
            }
            writer.close()
        }
        fn restore(&self, from: &SavedSections) -> Result<(), Error> {
            let mut reader = from.reader("numbers")?;
            let mut numbers = Vec::with_capacity(reader.section_len() as usize / 8);
            let mut bytes = [0; 8];
            while reader.read_exact(&mut bytes).is_ok() {
                numbers.push(u64::from_le_bytes(bytes));
            }
            *self.0.lock().unwrap() = (from.get("words")?, numbers);
            Ok(())
        }
    }
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let (checkpoints, _) = open(&dir);
    let value = (vec!["a".to_owned(), "b".to_owned()], (0..100_000).collect::<Vec<u64>>());
    checkpoints.save(1, &Arc::new(Mixed(Mutex::new(value.clone())))).unwrap();
    let restored = Arc::new(Mixed(Mutex::default()));
    checkpoints.restore(&restored).unwrap().unwrap();
    assert_eq!(*restored.0.lock().unwrap(), value);
}

#[test]
fn handles_with_other_settings_warn_alike_and_save_one_after_the_other() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let (checkpoints, warnings) = open(&dir);
    let few = checkpoints.clone().keep(2);
    let threads: Vec<_> = [checkpoints.clone(), few.clone()]
        .into_iter()
        .enumerate()
        .map(|(n, saver)| {
            std::thread::spawn(move || {
                let state = Arc::new(Snapshot::new(1, n));
                (0..20).for_each(|step| drop(saver.save(step * 2 + n as u64, &state).unwrap()));
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let newest = few.save(100, &Arc::new(Snapshot::new(1, 7_usize))).unwrap();
    assert_eq!(few.list().unwrap().len(), 2);
    fs::File::options().write(true).open(newest.path).unwrap().set_len(50).unwrap();
    few.restore(&Arc::new(Snapshot::new(1, 0_usize))).unwrap().unwrap();
    assert_eq!(warnings.lock().unwrap().len(), 1, "{warnings:?}");
}

#[test]
fn the_newest_is_what_was_written_last_and_not_what_has_the_highest_step() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let (checkpoints, _) = open(&dir);
    let old = checkpoints.save(100, &Arc::new(Snapshot::new(1, "old".to_owned()))).unwrap();
    checkpoints.save(200, &Arc::new(Snapshot::new(1, "bad idea".to_owned()))).unwrap();
    let state = Arc::new(Snapshot::new(1, String::new()));
    checkpoints.restore_from(old.path, &state).unwrap();
    state.set("another way".into());
    checkpoints.save(150, &state).unwrap();
    assert_eq!(checkpoints.restore(&state).unwrap().unwrap().step, 150);
    assert_eq!(state.get(), "another way");
}

#[test]
fn so_many_files_are_kept_also_over_restarts_and_never_less_than_the_newest() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let state = Arc::new(Snapshot::new(1, 0));
    for run in 0..4_u64 {
        let checkpoints = open(&dir).0.keep(3);
        (0..2).for_each(|n| drop(checkpoints.save(run * 2 + n, &state).unwrap()));
    }
    let steps = |checkpoints: &Checkpoints| {
        checkpoints.list().unwrap().iter().map(|one| one.step).collect::<Vec<_>>()
    };
    assert_eq!(steps(&open(&dir).0), [7, 6, 5]);
    // One of a lower step is the newest nevertheless.
    let one = open(&dir).0.keep(1);
    one.save(2, &state).unwrap();
    assert_eq!(steps(&one), [2]);
    let all = open(&dir).0.keep(0);
    (10..30).for_each(|step| drop(all.save(step, &state).unwrap()));
    assert_eq!(all.list().unwrap().len(), 21);
    let index = fs::read_to_string(dir.path().join("checkpoints")).unwrap();
    assert_eq!((index.lines().count(), index.lines().last().unwrap().split(' ').nth(1)), (21, Some("29")));
}

/// Of a size at which bytes are sent to the disk while more are written, and blocks are freed by a thread.
#[test]
fn a_large_checkpoint_is_restored_and_the_one_before_is_removed() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let checkpoints = open(&dir).0.keep(1);
    for step in 1..=3_u8 {
        let bytes: Vec<u8> = (0..20_000_000_u32).map(|n| (n >> 9) as u8 ^ step).collect();
        checkpoints
            .save(step.into(), &Blocks::of(&[("small", &[step]), ("large", &bytes), ("last", b"1")]))
            .unwrap();
        assert_eq!(names(dir.path()), [format!("checkpoint-{step:012}"), "checkpoints".into()]);
        let restored = Arc::new(Blocks::default());
        checkpoints.restore(&restored).unwrap().unwrap();
        assert!(restored.get()["large"] == bytes && restored.get()["small"] == [step]);
    }
}

/// In a request, the worker does something else meanwhile; there is only one.
#[test]
fn a_save_leaves_the_worker_to_others_and_a_cancel_leaves_the_save() {
    struct Slow(Mutex<mpsc::Sender<()>>, Mutex<mpsc::Receiver<()>>);
    impl State for Slow {
        fn schema(&self) -> u64 {
            1
        }
        fn save(&self, out: &mut Sections<'_>) -> Result<(), Error> {
            self.0.lock().unwrap().send(())?;
            let _ = self.1.lock().unwrap().recv();
            out.put("done", &true)
        }
        fn restore(&self, _: &SavedSections) -> Result<(), Error> {
            Ok(())
        }
    }
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let (checkpoints, _) = open(&dir);
    let runtime = Runtime::builder().workers(1).build().unwrap();
    let (begun, begins) = mpsc::channel();
    let (go, goes) = mpsc::channel();
    let state = Arc::new(Slow(Mutex::new(begun), Mutex::new(goes)));
    let saver = checkpoints.clone();
    let save = runtime.spawn(move || saver.save(1, &state).map(drop));
    begins.come().unwrap();
    assert_eq!(runtime.spawn(|| 7).take().unwrap(), 7);
    save.abort(forebear::CancelReason::Asked);
    let _ = save.wait();
    assert!(checkpoints.list().unwrap().is_empty());
    go.send(()).unwrap();
    support::until(|| checkpoints.list().unwrap().len() == 1);
}

/// Saves step after step for as long as it lives. Says what it tries, and what is saved.
fn save_for_ever(dir: &Path) -> ! {
    let checkpoints = Checkpoints::open(dir).unwrap().keep(3);
    let state = Arc::new(Snapshot::new(1, vec![0_u64]));
    let mut step = checkpoints.restore(&state).unwrap().map_or(0, |restored| restored.step);
    assert!(state.get().iter().all(|value| *value == step), "the state is not that of step {step}");
    loop {
        step += 1;
        println!("tries {step}");
        // Of different sizes, so that a file that is shorter than the one before would show.
        state.set(vec![step; 1 + (step as usize * 7919) % 5_000]);
        checkpoints.save(step, &state).unwrap();
        println!("saved {step}");
    }
}

/// `kill -9` at random moments: the newest step that was reported saved, or a later one, is what the next run begins with.
#[test]
fn a_process_that_is_killed_goes_on_at_the_newest_step() {
    const TEST: &str = "saved::a_process_that_is_killed_goes_on_at_the_newest_step";
    if support::is_child(TEST) {
        save_for_ever(std::env::var_os("DIRECTORY").unwrap().as_ref());
    }
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let mut random = Random::new(9);
    let (newest, _) = kill_saves(
        TEST,
        &[("DIRECTORY", dir.path().as_os_str())],
        kills(40),
        || Duration::from_micros(random.below(60_000) as u64),
        || {
            let state = Arc::new(Snapshot::new(1, vec![0_u64]));
            let step = open(&dir).0.restore(&state).unwrap().map_or(0, |restored| restored.step);
            assert!(state.get().iter().all(|value| *value == step), "the state is not that of step {step}");
            step
        },
    );
    assert!(newest > 0, "not one save came to its end");
}
