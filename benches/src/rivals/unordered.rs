//! tokio, with `FuturesUnordered` of the crate futures-util in the place of `JoinSet`.

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use tokio::runtime::{Builder, Runtime};
use tokio::task::spawn;

use crate::load::Load;
use crate::rival::{Rival, Run};
use crate::work;

/// A runtime of tokio's.
#[derive(Debug)]
pub struct Unordered(Runtime);

impl Unordered {
    /// Starts the runtime.
    ///
    /// # Panics
    ///
    /// If its threads cannot be started.
    #[must_use]
    pub fn start(workers: usize) -> Unordered {
        Unordered(Builder::new_multi_thread().worker_threads(workers).build().expect("tokio's runtime"))
    }
}

impl Rival for Unordered {
    fn run(&self, load: Load) -> Option<Run> {
        let Load::Set { n } = load else { return None };
        let all = Run::timed_async(async move {
            let mut set: FuturesUnordered<_> = (0..n).map(|i| spawn(async move { work::one(i) })).collect();
            let mut sum = 0;
            while let Some(one) = set.next().await {
                sum += one.expect("a task panicked");
            }
            sum
        });
        let task = self.0.spawn(all);
        Some(self.0.block_on(task).expect("a task panicked"))
    }
}
