//! Work through data as it comes, with a condition variable: the example that the request framework documents for its own.
//!
//! Three requests fetch a chunk of data each, and tell the condition. A fourth processes what there is, and waits when there is
//! nothing. The original allows one waiter, no count, no time-out, and is unusable after its waiter was cancelled; here a thread processes
//! along with the request, both may wait at once, and the second act cancels a request that waits: it has the lock again when it
//! learns of that, gives it back, and the others continue.
//!
//! ```text
//! cargo run --example condition
//! ```

use std::sync::Arc;
use std::thread;

use forebear::prelude::*;
use forebear::sync::{Condvar, Mutex};

const CHUNKS: u32 = 3;

#[derive(Default)]
struct Data {
    ready: Vec<u32>,
    processed: Vec<u32>,
}

#[derive(Default)]
struct Desk {
    data: Mutex<Data>,
    news: Condvar,
}

impl Desk {
    fn retrieve(&self, chunk: u32) {
        self.data.lock().ready.push(chunk);
        self.news.notify_all();
    }

    /// Processes chunks until all have been, by whomever. How many it has done itself.
    fn process_all(&self) -> Result<u32, Cancelled> {
        let mut data = self.data.lock();
        let mut own = 0;
        while data.processed.len() < CHUNKS as usize {
            match data.ready.pop() {
                Some(chunk) => {
                    data.processed.push(chunk);
                    own += 1;
                    self.news.notify_all(); // whoever waits for the end
                }
                None => self.news.wait(&mut data)?, // unlocked meanwhile, and locked again on every return
            }
        }
        Ok(own)
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let desk = Arc::new(Desk::default());
    let processor = || {
        let desk = desk.clone();
        try_spawn(move || Ok(desk.process_all()?))
    };
    let (first, cancelled) = (processor(), processor());
    let helper = {
        let desk = desk.clone();
        thread::spawn(move || desk.process_all())
    };
    cancelled.cancel();
    assert!(matches!(cancelled.wait(), Err(WaitError::TargetCancelled(_))));
    drop(desk.data.lock()); // it took no lock along
    println!("one was cancelled while it waited");

    for chunk in 0..CHUNKS {
        let desk = desk.clone();
        spawn(move || desk.retrieve(chunk));
    }
    let by_request = *first.wait()?;
    let by_thread = helper.join().expect("the helper does not panic")?;
    println!("a request and a thread have processed {} chunks", by_request + by_thread);

    let mut processed = desk.data.lock().processed.clone();
    processed.sort_unstable();
    assert_eq!(processed, (0..CHUNKS).collect::<Vec<_>>());
    Ok(())
}
