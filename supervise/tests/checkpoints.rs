//! Checkpoints: what was written is read, what was damaged is not, and nothing up to the newest is lost.

mod again;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use again::{kill_saves, kills};
use forebear::{Error, Runtime};
use forebear_supervise::{
    CheckpointError, Checkpoints, SavedSections, SectionError, Sections, Snapshot, State,
};
use serde::{Deserialize, Serialize};
use support::{Come, Random, Watchdog};
use tempfile::TempDir;

/// Sections as bytes.
#[derive(Default)]
struct Blocks(Mutex<BTreeMap<String, Vec<u8>>>);

impl Blocks {
    fn of(blocks: &[(&str, &[u8])]) -> Arc<Blocks> {
        let blocks = blocks.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec()));
        Arc::new(Blocks(Mutex::new(blocks.collect())))
    }

    fn get(&self) -> BTreeMap<String, Vec<u8>> {
        self.0.lock().unwrap().clone()
    }
}

impl State for Blocks {
    fn schema(&self) -> u64 {
        7
    }

    fn save(&self, out: &mut Sections<'_>) -> Result<(), Error> {
        for (name, bytes) in self.get() {
            out.put_bytes(&name, &bytes)?;
        }
        Ok(())
    }

    fn restore(&self, from: &SavedSections) -> Result<(), Error> {
        let read = from.names().map(|name| Ok::<_, Error>((name.to_owned(), from.bytes(name)?)));
        *self.0.lock().unwrap() = read.collect::<Result<_, _>>()?;
        Ok(())
    }
}

fn open(dir: &TempDir) -> (Checkpoints, Arc<Mutex<Vec<String>>>) {
    let warnings = Arc::new(Mutex::new(Vec::new()));
    let hook = warnings.clone();
    let checkpoints = Checkpoints::open(dir.path()).unwrap();
    (checkpoints.on_warning(move |text| hook.lock().unwrap().push(text.to_owned())), warnings)
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

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
fn every_changed_byte_and_every_missing_end_is_found() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let (checkpoints, _) = open(&dir);
    let state = Blocks::of(&[("first", b"some bytes"), ("second", b"and more"), ("empty", b"")]);
    let path = checkpoints.save(3, &state).unwrap().path;
    let whole = fs::read(&path).unwrap();
    let untouched = Blocks::of(&[("mine", b"as it was")]);
    let refused = |what: String| {
        let error = checkpoints.restore(&untouched).expect_err(&what);
        assert!(
            matches!(error, CheckpointError::Corrupt { .. } | CheckpointError::Version { .. }),
            "{what}: {error:?}"
        );
        assert_eq!(untouched.get().len(), 1, "{what}");
    };
    for at in 0..whole.len() {
        for flip in [1, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            fs::write(&path, &bytes).unwrap();
            refused(format!("byte {at} ^ {flip}"));
        }
    }
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        refused(format!("cut to {length}"));
    }
    fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
    refused("a byte too many".into());
    fs::write(&path, &whole).unwrap();
    checkpoints.restore(&untouched).unwrap().unwrap();
}

#[test]
fn a_damaged_section_is_named() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let (checkpoints, _) = open(&dir);
    let path = checkpoints.save(1, &Blocks::of(&[("a", b"aaaa"), ("b", b"bbbb")])).unwrap().path;
    let mut bytes = fs::read(&path).unwrap();
    bytes[45] ^= 1; // the header has 40 bytes, the first section 4
    fs::write(&path, bytes).unwrap();
    let error = checkpoints.restore(&Arc::new(Blocks::default())).unwrap_err();
    let CheckpointError::Corrupt { section, .. } = error else { panic!("{error:?}") };
    assert_eq!(section.as_deref(), Some("b"));
}

#[test]
fn a_damaged_file_is_passed_over_for_an_older_one_and_that_is_told() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let (checkpoints, warnings) = open(&dir);
    for step in 1..=3 {
        checkpoints.save(step, &Arc::new(Snapshot::new(1, step))).unwrap();
    }
    for (step, length) in [(3, 10), (2, 60)] {
        let path = dir.path().join(format!("checkpoint-{step:012}"));
        fs::File::options().write(true).open(path).unwrap().set_len(length).unwrap();
    }
    let state = Arc::new(Snapshot::new(1, 0_u64));
    assert_eq!(checkpoints.restore(&state).unwrap().unwrap().step, 1);
    assert_eq!(state.get(), 1);
    assert_eq!(warnings.lock().unwrap().len(), 2, "{warnings:?}");
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

#[test]
fn another_schema_and_what_the_state_misses_are_errors_that_say_so() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let (checkpoints, _) = open(&dir);
    checkpoints.save(1, &Arc::new(Snapshot::new(1, 5_u8))).unwrap();
    let error = checkpoints.restore(&Arc::new(Snapshot::new(2, 5_u8))).unwrap_err();
    assert!(matches!(error, CheckpointError::Schema { want: 2, found: 1, .. }), "{error:?}");
    let decoded = checkpoints.restore(&Arc::new(Snapshot::new(1, vec![String::new()]))).unwrap_err();
    let CheckpointError::State { source, .. } = &decoded else { panic!("{decoded:?}") };
    assert!(matches!(source.downcast_ref(), Some(SectionError::Decode { .. })), "{source:?}");

    struct Wants(&'static str);
    impl State for Wants {
        fn schema(&self) -> u64 {
            1
        }
        fn save(&self, out: &mut Sections<'_>) -> Result<(), Error> {
            out.put("twice", &1)?;
            out.put(self.0, &2)
        }
        fn restore(&self, from: &SavedSections) -> Result<(), Error> {
            from.bytes(self.0).map(drop)
        }
    }
    let missing = checkpoints.restore(&Arc::new(Wants("weights"))).unwrap_err();
    let source = missing.source().unwrap().downcast_ref::<SectionError>();
    assert!(matches!(source, Some(SectionError::Missing { section, .. }) if section == "weights"));
    let before = names(dir.path());
    let twice = checkpoints.save(2, &Arc::new(Wants("twice"))).unwrap_err();
    let source = twice.source().unwrap().downcast_ref::<SectionError>();
    assert!(matches!(source, Some(SectionError::Twice { .. })));
    assert_eq!(names(dir.path()), before, "nothing is left of a save that failed");
}

#[test]
fn a_file_of_a_later_format_is_refused_as_such() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let (checkpoints, _) = open(&dir);
    let path = checkpoints.save(1, &Arc::new(Snapshot::new(1, 5_u8))).unwrap().path;
    let mut bytes = fs::read(&path).unwrap();
    bytes[8] = 2;
    fs::write(&path, bytes).unwrap();
    let error = checkpoints.restore_from(&path, &Arc::new(Snapshot::new(1, 0_u8))).unwrap_err();
    assert!(matches!(error, CheckpointError::Version { found: 2, .. }), "{error:?}");
}

#[test]
fn a_directory_that_cannot_be_written_is_an_error_with_its_path() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let error = Checkpoints::open(file.join("below")).unwrap_err();
    assert!(matches!(&error, CheckpointError::Io { path, .. } if path.starts_with(&file)), "{error:?}");
    let checkpoints = Checkpoints::open(dir.path().join("soon gone")).unwrap();
    fs::remove_dir(checkpoints.dir()).unwrap();
    let state = Arc::new(Snapshot::new(1, 0));
    assert!(matches!(checkpoints.save(1, &state), Err(CheckpointError::Io { .. })));
    assert!(matches!(checkpoints.restore(&state), Err(CheckpointError::Io { .. })));
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

// ---- killed, and full --------------------------------------------------------------------------------------------------------

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
    const TEST: &str = "a_process_that_is_killed_goes_on_at_the_newest_step";
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

/// The system lets no file of this process grow beyond 64 blocks.
#[test]
fn a_save_that_the_disk_has_no_room_for_is_an_error_and_leaves_the_old_files() {
    const TEST: &str = "a_save_that_the_disk_has_no_room_for_is_an_error_and_leaves_the_old_files";
    if !support::is_child(TEST) {
        let dir = TempDir::new().unwrap();
        let mark = ("DIRECTORY", dir.path().to_str().unwrap());
        let (ok, told) = support::again_in_child(TEST, mark, "trap '' XFSZ; ulimit -f 64;");
        assert!(ok, "{told}");
        return;
    }
    let checkpoints = Checkpoints::open(std::env::var_os("DIRECTORY").unwrap()).unwrap();
    checkpoints.save(1, &Arc::new(Snapshot::new(1, vec![1_u64]))).unwrap();
    // Also one that would have replaced the old file.
    for step in [2, 1] {
        let error = checkpoints.save(step, &Arc::new(Snapshot::new(1, vec![u64::MAX; 1 << 20]))).unwrap_err();
        assert!(matches!(error, CheckpointError::Io { .. }), "{error:?}");
    }
    let state = Arc::new(Snapshot::new(1, Vec::<u64>::new()));
    assert_eq!(checkpoints.restore(&state).unwrap().unwrap().step, 1);
    assert_eq!(names(checkpoints.dir()), ["checkpoint-000000000001", "checkpoints"]);
}

/// Makes the file unreadable for a while, in a way that holds for every user. The answer makes it readable again.
#[cfg(unix)]
fn hidden(path: &Path, how: &str) -> Box<dyn FnOnce()> {
    let path = path.to_owned();
    let bytes = fs::read(&path).unwrap();
    if how == "a later format" {
        let mut later = bytes.clone();
        later[8] = 2;
        fs::write(&path, later).unwrap();
        return Box::new(move || fs::write(path, bytes).unwrap());
    }
    fs::remove_file(&path).unwrap();
    // The system refuses to open it: too many links.
    std::os::unix::fs::symlink(&path, &path).unwrap();
    Box::new(move || {
        fs::remove_file(&path).unwrap();
        fs::write(path, bytes).unwrap();
    })
}

#[cfg(unix)]
fn says(how: &str, error: &CheckpointError) -> bool {
    match error {
        CheckpointError::Io { .. } => how == "refused by the system",
        CheckpointError::Version { found: 2, .. } => how == "a later format",
        _ => false,
    }
}

#[cfg(unix)]
const UNREADABLE: [&str; 2] = ["refused by the system", "a later format"];

#[cfg(unix)]
#[test]
fn a_file_that_cannot_be_read_never_makes_the_sequence_go_back() {
    let _dog = Watchdog::new("");
    for how in UNREADABLE {
        let dir = TempDir::new().unwrap();
        let (checkpoints, _) = open(&dir);
        let state = Arc::new(Snapshot::new(1, 7_u64));
        for step in 1..=3 {
            checkpoints.save(step, &state).unwrap();
        }
        let newest = checkpoints.list().unwrap().remove(0);
        let show = hidden(&newest.path, how);
        let error = checkpoints.save(10, &state).expect_err(how);
        assert!(says(how, &error), "{how}: {error:?}");
        show();
        state.set(8);
        let saved = checkpoints.save(10, &state).unwrap();
        assert_eq!(saved.sequence, newest.sequence + 1, "{how}");
        let restored = Arc::new(Snapshot::new(1, 0_u64));
        assert_eq!(checkpoints.restore(&restored).unwrap().unwrap(), saved, "{how}");
        assert_eq!(restored.get(), 8);
    }
}

/// The system gives this process 64 descriptors, of which the test leaves only a few.
#[cfg(unix)]
#[test]
fn a_save_that_is_answered_ok_is_the_newest_however_few_descriptors_there_are() {
    const TEST: &str = "a_save_that_is_answered_ok_is_the_newest_however_few_descriptors_there_are";
    if !support::is_child(TEST) {
        let dir = TempDir::new().unwrap();
        let mark = ("DIRECTORY", dir.path().to_str().unwrap());
        let (ok, told) = support::again_in_child(TEST, mark, "ulimit -n 64;");
        assert!(ok, "{told}");
        return;
    }
    let checkpoints = Checkpoints::open(std::env::var_os("DIRECTORY").unwrap()).unwrap().on_warning(|_| {});
    let state = Arc::new(Snapshot::new(1, 0_u64));
    let mut newest = 0;
    for step in 1..=3 {
        checkpoints.save(step, &state).unwrap();
        newest = step;
    }
    for left in 0..8 {
        let mut held = Vec::new();
        while let Ok(file) = fs::File::open("/dev/null") {
            held.push(file);
        }
        held.truncate(held.len() - left);
        let step = 10 + left as u64;
        let saved = checkpoints.save(step, &state);
        drop(held);
        match saved {
            Ok(saved) => newest = saved.step,
            Err(error) => {
                assert!(matches!(error, CheckpointError::Io { .. }), "{left} descriptors: {error:?}");
            }
        }
        assert_eq!(checkpoints.restore(&state).unwrap().unwrap().step, newest, "{left} descriptors");
    }
    assert_eq!(newest, 17, "with enough of them it is saved");
    assert_eq!(checkpoints.list().unwrap().len(), 5, "as many as are kept");
}

#[cfg(unix)]
#[test]
fn only_a_damaged_file_is_passed_over_and_one_that_cannot_be_read_now_ends_the_restore() {
    let _dog = Watchdog::new("");
    for how in UNREADABLE {
        let dir = TempDir::new().unwrap();
        let (checkpoints, warnings) = open(&dir);
        for step in 1..=3 {
            checkpoints.save(step, &Arc::new(Snapshot::new(1, step))).unwrap();
        }
        let newest = checkpoints.list().unwrap().remove(0);
        let show = hidden(&newest.path, how);
        let state = Arc::new(Snapshot::new(1, 0_u64));
        let error = checkpoints.restore(&state).expect_err(how);
        assert!(says(how, &error) && state.get() == 0, "{how}: {error:?}");
        let error = checkpoints.list().expect_err(how);
        assert!(says(how, &error), "{how}: {error:?}");
        assert!(warnings.lock().unwrap().is_empty(), "{warnings:?}");
        show();
        assert_eq!(checkpoints.restore(&state).unwrap(), Some(newest), "{how}");
    }
}

#[test]
fn a_warning_about_the_index_says_what_the_system_has_refused() {
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let (checkpoints, warnings) = open(&dir);
    fs::create_dir(dir.path().join("checkpoints")).unwrap();
    checkpoints.save(1, &Arc::new(Snapshot::new(1, 0_u64))).unwrap();
    let refused = fs::rename(dir.path().join("checkpoint-000000000001"), dir.path().join("checkpoints"));
    let (told, why) = (warnings.lock().unwrap().join("\n"), refused.unwrap_err().to_string());
    assert!(told.contains(&why), "{told} does not say: {why}");
}

#[test]
fn a_snapshot_that_could_not_be_restored_is_refused_at_its_first_save() {
    #[derive(Clone, Default, Serialize, Deserialize)]
    struct Skips {
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>,
        count: u64,
    }
    #[derive(Clone, Serialize, Deserialize)]
    #[serde(untagged)]
    enum Untagged {
        Number(u32),
    }
    #[derive(Clone, Serialize, Deserialize)]
    #[serde(tag = "kind")]
    enum Tagged {
        Line { length: u32 },
    }
    #[derive(Clone, Serialize, Deserialize)]
    #[serde(tag = "kind", content = "of")]
    enum Adjacent {
        Line { length: u32 },
    }
    #[derive(Clone, Serialize, Deserialize)]
    struct Flat {
        #[serde(flatten)]
        skips: Skips,
    }
    fn refused<T: Clone + Send + Serialize + serde::de::DeserializeOwned + 'static>(value: T) {
        let dir = TempDir::new().unwrap();
        let (checkpoints, _) = open(&dir);
        let state = Arc::new(Snapshot::new(1, value));
        // At each save, also by the copy that a session writes.
        for _ in 0..2 {
            let error = checkpoints.save(1, &state).expect_err("it cannot be restored");
            let text = format!("{error:#}");
            let CheckpointError::State { source, .. } = &error else { panic!("{error:?}") };
            assert!(matches!(source.downcast_ref(), Some(SectionError::UnsupportedType { .. })), "{text}");
            assert!(text.contains("skip_serializing_if") && text.contains("untagged"), "{text}");
        }
        assert!(checkpoints.list().unwrap().is_empty());
        let supervisor =
            forebear_supervise::Supervisor::builder(Snapshot::new(1, state.get())).dir(dir.path());
        let error = supervisor.build().run(|_| Ok(())).expect_err("the first checkpoint cannot be restored");
        assert!(format!("{error:#}").contains("skip_serializing_if"), "{error:#}");
    }
    let _dog = Watchdog::new("");
    refused(Skips::default());
    refused(Untagged::Number(7));
    refused(Tagged::Line { length: 7 });
    refused(Adjacent::Line { length: 7 });
    refused(Flat { skips: Skips::default() });
}

/// That attribute the page of `Snapshot` says is right.
#[test]
fn a_snapshot_restores_what_is_beside_fields_that_are_always_skipped() {
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    enum Shape {
        Point,
        Line { length: u32 },
    }
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Drawing {
        #[serde(skip)]
        cache: Vec<u8>,
        shapes: Vec<Shape>,
    }
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let (checkpoints, _) = open(&dir);
    let shapes = vec![Shape::Line { length: 7 }, Shape::Point];
    let state = Arc::new(Snapshot::new(1, Drawing { cache: vec![1], shapes: shapes.clone() }));
    checkpoints.save(1, &state).unwrap();
    checkpoints.restore(&state).unwrap();
    assert_eq!(state.get(), Drawing { cache: Vec::new(), shapes });
}

#[test]
fn a_snapshot_is_decoded_at_its_first_save_and_at_no_later_one() {
    use std::sync::atomic::{AtomicU32, Ordering};
    static DECODED: AtomicU32 = AtomicU32::new(0);
    #[derive(Clone, Serialize)]
    struct Counts(u64);
    impl<'de> Deserialize<'de> for Counts {
        fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            DECODED.fetch_add(1, Ordering::SeqCst);
            Ok(Counts(u64::deserialize(from)?))
        }
    }
    let _dog = Watchdog::new("");
    let dir = TempDir::new().unwrap();
    let (checkpoints, _) = open(&dir);
    let state = Arc::new(Snapshot::new(1, Counts(5)));
    for step in 0..3 {
        checkpoints.save(step, &state).unwrap();
        assert_eq!(DECODED.load(Ordering::SeqCst), 1, "save {step}");
    }
    assert!(state.copy().is_some());
    checkpoints.restore(&state).unwrap();
    assert_eq!(DECODED.load(Ordering::SeqCst), 2);
}

#[test]
fn an_empty_path_names_no_directory_and_that_is_told_with_what_to_do() {
    let _dog = Watchdog::new("");
    let error = Checkpoints::open("").unwrap_err();
    assert!(matches!(error, CheckpointError::Io { .. }), "{error:?}");
    let supervisor = forebear_supervise::Supervisor::builder(Snapshot::new(1, 0_u64)).dir("").build();
    for text in [format!("{error:#}"), format!("{:#}", supervisor.run(|_| Ok(())).unwrap_err())] {
        assert!(text.contains("the path is empty") && text.contains("`.`"), "{text}");
    }
}
