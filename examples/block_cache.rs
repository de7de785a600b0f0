//! A cache of blocks, one lock a block, held while the block is computed.
//!
//! Readers want blocks; a block is computed by the first who wants it, and whoever wants it meanwhile waits at its lock. The lock is
//! held across a wait: the computation is a request of its own, and its reader is suspended with the lock in its hand. With
//! plain locks that ends in a deadlock of workers; with the locks of the framework that forebear comes from it ended in one as soon as a
//! reader was cancelled. Here readers are cancelled all the time: a reader that holds a lock releases it on the way out, one that waits
//! for one leaves at once, and the rest get their blocks.
//!
//! All on one worker, so the program prints the same every time.
//!
//! ```text
//! cargo run --example block_cache
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use forebear::prelude::*;
use forebear::sync::Mutex;
use forebear::yield_now;

type Key = (u32, u32);
type Block = Arc<Vec<u32>>;

/// What has been computed, and how often anything was.
#[derive(Default)]
struct Cache {
    cells: Mutex<BTreeMap<Key, Arc<Mutex<Option<Block>>>>>,
    computed: Mutex<BTreeMap<Key, u32>>,
}

impl Cache {
    /// The block, computed if nobody has yet.
    fn get(self: &Arc<Cache>, key: Key) -> Result<Block, WaitError> {
        // The outer lock is held for a moment, the block's for as long as it takes.
        let cell = self.cells.lock().entry(key).or_default().clone();
        let mut slot = cell.lock_or_cancelled()?;
        if let Some(block) = &*slot {
            return Ok(block.clone());
        }
        let cache = self.clone();
        let block = try_spawn(move || cache.compute(key)).take()?; // suspended, with the lock
        Ok(slot.insert(block).clone())
    }

    fn compute(self: &Arc<Cache>, (x, y): Key) -> Result<Block, forebear::Error> {
        for _ in 0..4 {
            yield_now()?; // here it would learn that its reader was cancelled
        }
        *self.computed.lock().entry((x, y)).or_default() += 1;
        Ok(Arc::new((0..16).map(|i| x * 100 + y * 10 + i).collect()))
    }
}

/// Reads a row of blocks, and adds something up.
fn reader(cache: &Arc<Cache>, name: String, row: u32) -> Request<u32> {
    let cache = cache.clone();
    Request::builder().name(name).own_stack().try_build(move || {
        let mut sum = 0;
        for x in 0..4 {
            sum += cache.get((x, row))?.iter().sum::<u32>();
        }
        Ok(sum)
    })
}

fn read_and_cancel() -> Result<(), Cancelled> {
    let cache = Arc::new(Cache::default());
    let readers: Vec<_> = (0..12).map(|n| reader(&cache, format!("reader {n}"), n % 3)).collect();
    for reader in &readers {
        reader.submit();
    }
    for _ in 0..6 {
        yield_now()?; // the readers begin meanwhile
    }
    // Every second reader changes its mind, some with a lock in their hands and some in front of one.
    for reader in readers.iter().step_by(2) {
        reader.cancel();
    }
    for (n, reader) in readers.iter().enumerate() {
        match reader.wait() {
            Ok(sum) => println!("reader {n}: {sum}"),
            Err(error) => println!("reader {n}: {error}"),
        }
    }
    let computed = cache.computed.lock();
    println!("{} blocks, each computed {} time", computed.len(), computed.values().max().unwrap_or(&0));
    assert!(computed.values().all(|&times| times == 1));
    assert!(cache.cells.lock().values().all(|cell| !cell.is_locked()));
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = Runtime::builder().workers(1).build()?;
    runtime.run(read_and_cancel)?;
    Ok(())
}
