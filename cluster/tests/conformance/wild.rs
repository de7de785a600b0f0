//! Tasks that do their worst in safe code. Each one ends, with its cause, and the worker goes on.

use std::fmt;
use std::time::Duration;

use forebear::Error;
use forebear_cluster::{FailureKind, FetchError, RemoteState, TaskFailure, TaskFn, TaskOptions};
use serde::{Deserialize, Serialize};

use crate::bed::{Bed, Field, field, field_of};
use crate::desk::{ADD, STUCK};
use crate::until;

/// An error that panics when its text is written.
#[derive(Debug)]
struct Mute;

impl fmt::Display for Mute {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("there is no text")
    }
}

impl std::error::Error for Mute {}

/// A payload that panics when it is dropped.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

/// What cannot be written, or panics when it is.
#[derive(Deserialize)]
pub(crate) struct Unwritten(bool);

impl Serialize for Unwritten {
    fn serialize<S: serde::Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        if self.0 {
            panic!("it is not written");
        }
        Err(serde::ser::Error::custom("it cannot be written"))
    }
}

/// What cannot be read.
#[derive(Serialize)]
pub(crate) struct Unread;

impl<'de> Deserialize<'de> for Unread {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("it is not read")
    }
}

/// What an error of `SPEAK` is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Speech {
    Mute,
    /// So many bytes.
    Long(usize),
    LongPanic(usize),
    Bomb,
}

pub(crate) const SPEAK: TaskFn<Speech, ()> = TaskFn::new("speak", |_, speech| match speech {
    Speech::Mute => Err(Mute.into()),
    Speech::Long(bytes) => Err(Error::other("x".repeat(bytes))),
    Speech::LongPanic(bytes) => panic!("{}", "x".repeat(bytes)),
    Speech::Bomb => std::panic::panic_any(Bomb),
});

pub(crate) const UNWRITTEN: TaskFn<bool, Unwritten> =
    TaskFn::new("unwritten", |_, panics| Ok(Unwritten(panics)));

pub(crate) const UNREAD: TaskFn<Unread, ()> = TaskFn::new("unread", |_, _| Ok(()));

/// What the task fails with. The job goes on.
fn failure<B: Bed, A: Serialize, R: serde::de::DeserializeOwned + fmt::Debug>(
    field: &Field<B>,
    task: &TaskFn<A, R>,
    args: A,
) -> TaskFailure {
    let options = TaskOptions::new().raise(false);
    let value = field.cluster.schedule_with(&options, task, args).unwrap();
    match value.fetch() {
        Err(FetchError::Task(failure)) => failure,
        other => panic!("no failure of the task, but {other:?}"),
    }
}

impl fmt::Debug for Unwritten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("it")
    }
}

pub(crate) fn an_error_whose_text_panics_is_a_failure<B: Bed>() {
    let field = field::<B>(1);
    for speech in [Speech::Mute, Speech::Bomb] {
        let failure = failure(&field, &SPEAK, speech);
        match (speech, failure.kind()) {
            (Speech::Mute, FailureKind::Error { message, .. }) => assert!(message.contains("panicked")),
            (Speech::Bomb, FailureKind::Panic { .. }) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(field.cluster.schedule(&ADD, (1, 2)).unwrap().fetch().unwrap(), 3);
}

pub(crate) fn an_error_with_a_text_of_megabytes_is_cut<B: Bed>() {
    let field = field::<B>(1);
    for speech in [Speech::Long(3 << 20), Speech::LongPanic(3 << 20)] {
        let text = failure(&field, &SPEAK, speech).kind().to_string();
        assert!(text.ends_with("xxx…") && text.len() < 10_000, "{} bytes", text.len());
    }
    // Several together.
    let options = TaskOptions::new().raise(false);
    let values: Vec<_> = (0..200)
        .map(|_| field.cluster.schedule_with(&options, &SPEAK, Speech::Long(3 << 20)).unwrap())
        .collect();
    assert!(values.iter().all(|value| value.fetch().is_err()));
    assert_eq!(field.cluster.schedule(&ADD, (1, 2)).unwrap().fetch().unwrap(), 3);
}

pub(crate) fn what_cannot_be_written_or_read_is_a_failure_that_says_so<B: Bed>() {
    let field = field::<B>(1);
    let kinds = [
        failure(&field, &UNWRITTEN, false),
        failure(&field, &UNWRITTEN, true),
        failure(&field, &UNREAD, Unread),
    ];
    assert!(matches!(kinds[0].kind(), FailureKind::Codec { .. }), "{:?}", kinds[0]);
    assert!(matches!(kinds[1].kind(), FailureKind::Panic { message } if message == "it is not written"));
    assert!(matches!(kinds[2].kind(), FailureKind::Panic { message } if message == "it is not read"));
    assert_eq!(field.cluster.schedule(&ADD, (1, 2)).unwrap().fetch().unwrap(), 3);
}

/// Over an engine that cannot end a worker the task keeps its slot until it ends by itself.
pub(crate) fn a_task_that_goes_on_beyond_its_time_and_the_grace_ends_with_its_worker<B: Bed>() {
    let field = field_of::<B>(B::engine_of_grace(1, Duration::from_millis(1)), 1, |builder| builder);
    let options = TaskOptions::new().timeout(Duration::from_secs(1)).raise(false);
    // On a busy machine its time may be over before it has begun.
    let value = loop {
        let value = field.cluster.schedule_with(&options, &STUCK, field.at("stuck")).unwrap();
        let has_begun = || field.desk.count("started stuck") > 0;
        until(|| has_begun() || matches!(value.state(), RemoteState::Failed(_)));
        if has_begun() {
            break value;
        }
    };
    if B::ENDS_WORKERS {
        let Err(FetchError::Task(failure)) = value.fetch() else { panic!("its time is over") };
        assert_eq!(*failure.kind(), FailureKind::TimedOut);
    } else {
        field.desk.open("stuck");
    }
    assert_eq!(field.cluster.schedule(&ADD, (1, 2)).unwrap().fetch().unwrap(), 3);
    assert_eq!(field.desk.count("started stuck"), 1);
}
