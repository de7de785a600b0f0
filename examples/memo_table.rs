//! A table of shared requests: each query is computed once, whoever asks, and a cancelled job takes nothing from the others.
//!
//! The values of a compiler, a spreadsheet or a viewer depend on each other, and many jobs want the same ones. The table has a request for each
//! key; who needs a value waits for it. Two obvious forms of such a table are wrong:
//!
//! * An entry that is a child of the request that asked first is cancelled with that request, if no one waits for the entry at that moment. Later readers
//!   find it in the table. So the entries are `detached()`, and an entry that was cancelled is replaced.
//! * A job that submits its entries and then waits for them one by one wants one of them at a time. If the job is cancelled, the entries that it does not wait
//!   for go on, since a detached request has no parent. `wait_all` wants all of them until it returns, so a cancel reaches them all, except those
//!   that others want. A `RequestSet` and `then_all` do the same.
//!
//! All on one worker, so the program prints the same every time.
//!
//! ```text
//! cargo run --example memo_table
//! ```

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use forebear::prelude::*;
use forebear::sync::{Event, Mutex, Semaphore};
use forebear::{CancelReason, wait_all};

/// A query. Its name is that of its request, in errors and dumps.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Key {
    Row(u32),
    /// Of the rows below this one.
    Sum(u32),
    Chicken,
    Egg,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Row(n) => write!(f, "row {n}"),
            Key::Sum(below) => write!(f, "sum below {below}"),
            Key::Chicken => write!(f, "chicken"),
            Key::Egg => write!(f, "egg"),
        }
    }
}

/// It lives as long as the program: an entry that never started holds a reference to it.
struct Table {
    entries: Mutex<HashMap<Key, Request<u32>>>,
    /// Rows are not computed before.
    open: Event,
    begun: Semaphore,
    computed: AtomicU32,
}

impl Table {
    /// The request for this key: the one that there is, unless it was cancelled.
    fn entry(self: &Arc<Table>, key: Key) -> Request<u32> {
        let new = || {
            let table = Arc::clone(self);
            Request::builder().name(key.to_string()).detached().try_build(move || table.compute(key))
        };
        let mut entries = self.entries.lock();
        let entry = entries.entry(key).or_insert_with(new);
        if entry.is_cancelled() {
            *entry = new();
        }
        entry.clone()
    }

    /// The values of these keys, which are computed in parallel.
    fn get_all(self: &Arc<Table>, keys: impl Iterator<Item = Key> + Clone) -> Result<Vec<u32>, WaitError> {
        loop {
            let entries: Vec<_> = keys.clone().map(|key| self.entry(key)).collect();
            match wait_all(&entries) {
                // The entry went with a job that wanted it, before this one did: now there is another. Not so any other reason,
                // as the runtime's shutdown, which a new entry would have as well.
                Err(WaitError::TargetCancelled(CancelReason::Asked)) => {}
                values => return Ok(values?.into_iter().copied().collect()),
            }
        }
    }

    fn get(self: &Arc<Table>, key: Key) -> Result<u32, WaitError> {
        Ok(self.get_all(std::iter::once(key))?[0])
    }

    /// What a query is. It may ask for others.
    fn compute(self: &Arc<Table>, key: Key) -> forebear::Result<u32> {
        Ok(match key {
            Key::Row(n) => {
                self.begun.add_permits(1);
                self.open.wait()?;
                self.computed.fetch_add(1, Relaxed);
                n
            }
            Key::Sum(below) => self.get_all((0..below).map(Key::Row))?.iter().sum(),
            Key::Chicken => self.get(Key::Egg)? + 1,
            Key::Egg => self.get(Key::Chicken)? + 1,
        })
    }

    fn ask(self: &Arc<Table>, key: Key) -> Request<u32> {
        let table = Arc::clone(self);
        Request::builder().name(format!("reader of {key}")).try_spawn(move || Ok(table.get(key)?))
    }

    fn cancelled(&self) -> usize {
        self.entries.lock().values().filter(|entry| entry.is_cancelled()).count()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let rt = Runtime::builder().workers(1).build()?;
    Ok(rt.try_run(jobs)?)
}

fn jobs() -> forebear::Result<()> {
    let table = Arc::new(Table {
        entries: Mutex::default(),
        open: Event::new(),
        begun: Semaphore::new(0),
        computed: AtomicU32::new(0),
    });

    // A reader of one row, and a job that wants a hundred.
    let reader = table.ask(Key::Row(7));
    let job = table.ask(Key::Sum(100));
    table.begun.acquire_many(100)?.forget();
    job.cancel();
    assert!(matches!(job.watch(), Err(WaitError::TargetCancelled(CancelReason::Asked))));
    println!("the job is cancelled, and with it {} entries", table.cancelled());
    assert_eq!(table.cancelled(), 100); // its sum, and the rows but the one that the reader wants

    table.open.set();
    println!("row 7 is spared: {}", reader.wait()?);
    assert_eq!(table.computed.load(Relaxed), 1);

    // Later readers find other entries in place of the cancelled ones.
    let readers = [Key::Sum(100), Key::Row(3), Key::Sum(100)].map(|key| table.ask(key));
    for reader in &readers {
        println!("{}: {}", reader.name(), reader.wait()?);
    }
    println!("{} rows were computed", table.computed.load(Relaxed));
    assert_eq!(table.computed.load(Relaxed), 100);

    // Queries that need each other get an error that names them.
    let error = table.ask(Key::Chicken).take().unwrap_err();
    let cycle = error.cycle().expect("a cycle");
    println!("{cycle}");
    assert!(cycle.names().any(|name| name == "egg"));
    Ok(())
}
