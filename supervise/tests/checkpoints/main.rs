//! Checkpoints: what was written is read, what was damaged is not, and nothing up to the newest is lost.

#[path = "../again/mod.rs"]
mod again;
mod damaged;
mod saved;
mod snapshots;
#[path = "../../../tests/support/mod.rs"]
mod support;
mod unreadable;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Mutex};

use forebear::Error;
use forebear_supervise::{Checkpoints, SavedSections, Sections, State};
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
