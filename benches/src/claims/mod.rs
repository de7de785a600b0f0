//! The claims, a file each. `docs/performance.md` has the results.

use crate::claim::Claim;

pub mod across;
pub mod append;
pub mod callbacks;
pub mod cancel;
pub mod coarse;
pub mod depth;
pub mod fairness;
pub mod features;
pub mod fib;
pub mod graph;
pub mod growth;
pub mod hand_over;
pub mod idle;
pub mod inversions;
pub mod memory;
pub mod mpsc;
pub mod mutex;
pub mod mutex_yield;
pub mod oneshot;
pub mod order;
pub mod pingpong;
pub mod pool_member;
pub mod set;
pub mod skynet;
pub mod sleepers;
pub mod spawn_in;
pub mod spawn_out;
pub mod spawn_wait_one;
pub mod suspended;
pub mod switch;
pub mod timer;
pub mod tree_dog;
pub mod urgent;

/// All of them, in the order of the table of goals.
pub const ALL: &[&Claim] = &[
    &switch::CLAIM,
    &fib::CLAIM,
    &spawn_in::CLAIM,
    &spawn_out::CLAIM,
    &spawn_wait_one::CLAIM,
    &skynet::CLAIM,
    &coarse::CLAIM,
    &pingpong::CLAIM,
    &across::CLAIM,
    &mutex::CLAIM,
    &mutex_yield::CLAIM,
    &fairness::CLAIM,
    &append::CLAIM,
    &hand_over::CLAIM,
    &mpsc::CLAIM,
    &oneshot::CLAIM,
    &timer::CLAIM,
    &sleepers::CLAIM,
    &urgent::CLAIM,
    &suspended::CLAIM,
    &memory::CLAIM,
    &depth::CLAIM,
    &cancel::CLAIM,
    &callbacks::CLAIM,
    &features::CLAIM,
    &order::CLAIM,
    &inversions::CLAIM,
    &growth::CLAIM,
    &idle::CLAIM,
    &pool_member::CLAIM,
    &graph::CLAIM,
    &set::CLAIM,
    &tree_dog::CLAIM,
];
