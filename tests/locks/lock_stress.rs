//! Locks in the patterns that users of the original suffered from, with requests and threads mixed and half of them cancelled.

#[path = "../support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use forebear::sync::Mutex;
use forebear::{Request, WaitError, spawn, try_spawn, yield_now};
use support::{Joined, Modes, Random, not_on, on_each};

/// As the reference's test of its lock does: many append to one list, and each one's numbers come in order.
#[test]
fn ordered_appenders_of_both_kinds_each_find_their_own_in_order() {
    on_each(|runtime| {
        let list = Arc::new(Mutex::new(Vec::new()));
        let appender = |who: usize| {
            let list = list.clone();
            move || {
                for n in 0..100 {
                    let mut held = list.lock();
                    held.push((who, n));
                    if n % 7 == who % 7 {
                        let _ = yield_now();
                    }
                }
            }
        };
        let requests: Vec<_> = (0..6).map(|who| runtime.spawn(appender(who))).collect();
        let threads: Vec<_> = (6..8).map(|who| thread::spawn(appender(who))).collect();
        threads.into_iter().for_each(|thread| thread.joined().unwrap());
        requests.iter().for_each(|request| _ = request.wait().unwrap());
        let list = list.lock();
        for who in 0..8 {
            let own: Vec<_> = list.iter().filter(|(by, _)| *by == who).map(|(_, n)| *n).collect();
            assert!(own.iter().copied().eq(0..100), "{who}: {own:?}");
        }
    });
}

#[derive(Default)]
struct Cache {
    cells: Mutex<HashMap<usize, Arc<Mutex<Option<usize>>>>>,
    computed: [AtomicUsize; 8],
}

impl Cache {
    fn get(self: &Arc<Cache>, key: usize) -> Result<usize, WaitError> {
        let cell = self.cells.lock().entry(key).or_default().clone();
        let mut slot = cell.lock_or_cancelled()?;
        if let Some(block) = &*slot {
            return Ok(*block);
        }
        let cache = self.clone();
        let block = try_spawn(move || {
            yield_now()?;
            // Under the block's lock: whoever counts stores what it has counted, or was cancelled before.
            Ok(cache.computed[key].fetch_add(1, Ordering::Relaxed) + key * 10)
        });
        // From here on it cannot be cancelled and have been computed.
        let block = forebear::shield(|| block.take())?;
        Ok(*slot.insert(block))
    }
}

/// D2 of the study, in its real shape: one lock a block, held across the wait for it.
#[test]
fn readers_of_a_block_cache_cancelled_at_random_never_hang_nor_compute_a_block_twice() {
    on_each(|runtime| {
        for seed in 0..20 {
            let mut random = Random::new(seed);
            let cache = Arc::new(Cache::default());
            let readers: Vec<Request<_>> = (0..24)
                .map(|_| {
                    let (cache, mut random) = (cache.clone(), Random::new(random.next()));
                    runtime.spawn(move || -> Result<usize, WaitError> {
                        (0..6).map(|_| cache.get(random.below(8))).sum()
                    })
                })
                .collect();
            let keeper = {
                let cache = cache.clone();
                thread::spawn(move || (0..8).map(|key| cache.get(key).unwrap()).sum::<usize>())
            };
            for reader in &readers {
                if random.below(2) == 0 {
                    reader.cancel();
                }
            }
            keeper.joined().unwrap();
            for reader in &readers {
                if let Ok(sum) = reader.wait() {
                    assert!(sum.is_ok(), "{sum:?}");
                }
            }
            for computed in &cache.computed {
                assert_eq!(computed.load(Ordering::Relaxed), 1);
            }
            assert!(cache.cells.lock().values().all(|cell| cell.try_lock().is_some()));
        }
    });
}

/// A hundred thousand that wait for one lock come and go without anybody being lost, and in linear time.
#[test]
fn very_many_waiters_of_one_lock_all_get_it_or_leave() {
    let _out = not_on(Modes::Both, "they are held up by a worker that holds the lock meanwhile");
    on_each(|runtime| {
        const WAITERS: usize = if cfg!(debug_assertions) { 5_000 } else { 30_000 };
        let (lock, had) = (Arc::new(Mutex::new(0)), Arc::new(AtomicUsize::new(0)));
        let held = lock.lock();
        let waiters: Vec<_> = (0..WAITERS)
            .map(|_| {
                let (lock, had) = (lock.clone(), had.clone());
                runtime.spawn(move || {
                    lock.lock_or_cancelled().map(|mut count| {
                        *count += 1;
                        had.fetch_add(1, Ordering::Relaxed);
                    })
                })
            })
            .collect();
        for waiter in waiters.iter().step_by(3) {
            waiter.cancel();
        }
        drop(held);
        for waiter in &waiters {
            let _ = waiter.wait();
        }
        let count = *lock.lock();
        assert_eq!(count, had.load(Ordering::Relaxed));
        assert!(count >= WAITERS - WAITERS.div_ceil(3), "{count}");
    });
}

/// Whatever the order in which locks are taken: nobody hangs; who would is told.
#[test]
fn two_locks_taken_in_either_order_by_requests_never_hang() {
    on_each(|runtime| {
        for round in 0..20 {
            let locks = [Arc::new(Mutex::new(0)), Arc::new(Mutex::new(0))];
            let players: Vec<_> = (0..4)
                .map(|n| {
                    let (one, two) = (locks[(n + round) % 2].clone(), locks[(n + round + 1) % 2].clone());
                    runtime.spawn(move || {
                        let mut first = one.lock();
                        *first += 1;
                        let below = spawn(|| yield_now().is_ok());
                        let _ = below.take();
                        *two.lock() += 1;
                    })
                })
                .collect();
            let lost = players.iter().filter(|player| player.wait().is_err()).count();
            assert!(lost < players.len(), "somebody gets through");
            assert!(locks.iter().all(|lock| lock.try_lock().is_some()));
        }
    });
}
