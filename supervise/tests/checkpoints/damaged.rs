//! Damage is found and named, and what does not fit the state is an error.

use std::error::Error as _;
use std::fs;
use std::sync::Arc;

use forebear::Error;
use forebear_supervise::{CheckpointError, SavedSections, SectionError, Sections, Snapshot, State};
use tempfile::TempDir;

use crate::support::Watchdog;
use crate::{Blocks, names, open};

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
