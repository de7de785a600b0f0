//! A snapshot that could not be restored is refused when it is first saved.

use std::sync::Arc;

use forebear_supervise::{CheckpointError, SectionError, Snapshot, State as _};
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use crate::open;
use crate::support::Watchdog;

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
