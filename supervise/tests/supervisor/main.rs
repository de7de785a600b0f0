//! The supervisor's behaviours, row by row: `rNN` is the row of `docs/coordination.md`.
#![allow(clippy::unit_arg, reason = "`Ok(assert())` and `Ok(wait()?)` keep a closure to one line")]

#[path = "../again/mod.rs"]
mod again;
#[path = "../broken/mod.rs"]
mod broken_error;
mod chief;
mod disk;
mod ends;
mod hostile;
#[path = "../records/mod.rs"]
mod records;
mod services;
mod sessions;
mod start;
#[path = "../../../tests/support/mod.rs"]
mod support;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use forebear::Error;
use forebear_supervise::{
    Checkpoints, SavedSections, Sections, Snapshot, State, SuperviseError, Supervisor, SupervisorBuilder,
};

use self::broken_error::Broken;

const MS: Duration = Duration::from_millis(1);
/// Longer than any test goes on.
const LONG: Duration = Duration::from_secs(1_000_000);

fn broken(error: &SuperviseError) -> u32 {
    error.failure().unwrap_or_else(|| panic!("{error:?}")).downcast_ref::<Broken>().expect("the same error").0
}

/// Numbers by name, of which some may not be initialised.
#[derive(Debug)]
struct Model(Mutex<BTreeMap<String, Option<i64>>>);

impl Model {
    fn of(names: &[&str]) -> Model {
        Model(Mutex::new(names.iter().map(|name| ((*name).to_owned(), None)).collect()))
    }

    fn set(&self, name: &str, value: i64) {
        self.0.lock().unwrap().insert(name.to_owned(), Some(value));
    }

    fn get(&self, name: &str) -> Option<i64> {
        self.0.lock().unwrap()[name]
    }
}

impl State for Model {
    fn schema(&self) -> u64 {
        3
    }

    fn save(&self, out: &mut Sections<'_>) -> Result<(), Error> {
        let values = self.0.lock().unwrap().clone();
        out.put("values", &values)
    }

    fn restore(&self, from: &SavedSections) -> Result<(), Error> {
        let read: BTreeMap<String, Option<i64>> = from.get("values")?;
        self.0.lock().unwrap().extend(read);
        Ok(())
    }

    fn missing(&self) -> Vec<String> {
        let values = self.0.lock().unwrap();
        values.iter().filter(|(_, value)| value.is_none()).map(|(name, _)| name.clone()).collect()
    }
}

/// What was passed to the hook for warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

impl Warnings {
    fn hook(&self) -> impl Fn(&str) + Send + Sync + 'static {
        let list = self.0.clone();
        move |text| list.lock().unwrap().push(text.to_owned())
    }

    fn have(&self, text: &str) -> bool {
        self.0.lock().unwrap().iter().any(|told| told.contains(text))
    }
}

/// A job that counts, whose services turn at the start and not again.
fn counting(dir: &Path) -> SupervisorBuilder<Snapshot<u64>> {
    quiet(Supervisor::builder(Snapshot::new(1, 0))).dir(dir)
}

fn quiet<S: State>(builder: SupervisorBuilder<S>) -> SupervisorBuilder<S> {
    builder.save_every(LONG).summarise_every(LONG).count_steps_every(LONG)
}

/// Makes a step of a counting job.
fn count(session: &forebear_supervise::Session<Snapshot<u64>>) -> Result<(), Error> {
    Ok(session.step(|sum| sum.update(|sum| *sum += 1))?)
}

/// The steps of the checkpoints in a directory, the newest first.
fn steps(dir: &Path) -> Vec<u64> {
    Checkpoints::open(dir).unwrap().list().unwrap().iter().map(|one| one.step).collect()
}

fn event_files(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> =
        entries.filter(|path| path.to_string_lossy().contains("events.out.tfevents")).collect();
    files.sort();
    files
}
