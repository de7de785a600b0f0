//! Storms of waits, in which each cycle is told of and nothing else.

use std::sync::{Arc, Mutex};
use std::thread;

use forebear::{Cycle, Request, Runtime};

use super::support::{Random, on_each, on_each_of};
use super::{Known, WORKERS, assert_goes_round, cycle, support};

/// A program drawn from a seed: requests that wait for later ones, in any order and on any stack, from threads too; and rings
/// among them, whose members wait for each other at the end.
struct Storm {
    known: Known,
    /// By request: which it waits for, in this order, and by which ring it ends.
    waits: Vec<(Vec<usize>, Option<usize>)>,
    rings: Vec<Vec<usize>>,
    told: Mutex<Vec<(usize, Cycle)>>,
}

impl Storm {
    fn draw(random: &mut Random) -> Storm {
        let n = 10 + random.below(60);
        let mut free: Vec<_> = (0..n).collect();
        let mut waits: Vec<_> = (0..n)
            .map(|i| {
                let later = n - i - 1;
                let waits = (0..random.below(4)).filter(|_| later > 0).map(|_| i + 1 + random.below(later));
                (waits.collect::<Vec<_>>(), None)
            })
            .collect();
        let mut rings = Vec::new();
        for _ in 0..random.below(4) {
            let length = (1 + random.below(6)).min(free.len());
            let ring: Vec<_> = (0..length).map(|_| free.swap_remove(random.below(free.len()))).collect();
            for &member in &ring {
                // A member of a ring that waits for something else too might close another cycle.
                waits[member] = (Vec::new(), Some(rings.len()));
            }
            rings.push(ring);
        }
        Storm { known: Known::new(), waits, rings, told: Mutex::default() }
    }

    fn run(&self, me: usize) {
        let (waits, ring) = &self.waits[me];
        let ring = ring.map(|ring| &self.rings[ring]);
        let next = ring.and_then(|ring| {
            let place = ring.iter().position(|member| *member == me)?;
            Some(ring[(place + 1) % ring.len()])
        });
        for &target in waits.iter().chain(&next) {
            if let Some(cycle) = cycle(self.known.get(target).wait()) {
                self.told.lock().unwrap().push((me, cycle));
            }
        }
    }
}

#[test]
fn in_a_storm_of_waits_each_cycle_is_told_of_and_nothing_else() {
    on_each(|runtime| storms(runtime, false));
}

/// A thread without a loop of workers behind it takes its requests with it when it exits, so these are for workers.
#[test]
fn in_a_storm_of_waits_in_threads_too_each_cycle_is_told_of_and_nothing_else() {
    on_each_of(&WORKERS, |runtime| storms(runtime, true));
}

fn storms(runtime: &Runtime, with_threads: bool) {
    for seed in 0..if support::soaking() { 10_000 } else { 300 } {
        let mut random = Random::new(seed);
        let storm = Arc::new(Storm::draw(&mut random));
        let requests: Vec<_> = (0..storm.waits.len())
            .map(|i| {
                let builder = Request::builder().name(i.to_string());
                let builder = if random.below(3) == 0 { builder.own_stack() } else { builder };
                let storm = storm.clone();
                runtime.enter(|| builder.build(move || storm.run(i)))
            })
            .collect();
        storm.known.set(&requests);
        thread::scope(|threads| {
            let (mut workers, mut of_threads) = (Vec::new(), Vec::new());
            for request in &requests {
                match random.below(8) {
                    0 if with_threads => of_threads.push(request),
                    _ => workers.push(request),
                }
            }
            let mut started = Vec::new();
            for request in of_threads {
                started.push(threads.spawn(move || request.wait().map(drop).unwrap()));
            }
            while !workers.is_empty() {
                workers.swap_remove(random.below(workers.len())).submit();
            }
            support::join_all(started);
        });
        requests.iter().for_each(|request| _ = request.wait().unwrap());
        let told = storm.told.lock().unwrap();
        for (me, cycle) in &*told {
            let ring = storm.waits[*me].1.unwrap_or_else(|| panic!("seed {seed}: {me} is told of {cycle}"));
            let ring: Vec<_> = storm.rings[ring].iter().map(usize::to_string).collect();
            assert_goes_round(cycle, &ring.iter().map(String::as_str).collect::<Vec<_>>());
        }
        let mut rings: Vec<_> = told.iter().filter_map(|(me, _)| storm.waits[*me].1).collect();
        rings.sort_unstable();
        rings.dedup();
        assert_eq!(rings.len(), storm.rings.len(), "seed {seed}: {told:?}");
    }
}
