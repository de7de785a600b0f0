//! Random programs, compared with a sequential reference.
//!
//! What a program is made of is told in [`program`]; what it has to do in [`reference`], [`cancelling`] and [`orders`], which are
//! short enough to be read in one sitting; how it is run and watched in [`actors`], [`choice`] and [`compare`]. Programs are drawn
//! by proptest from a fixed seed, so the same ones each time; `FOREBEAR_MODEL_CASES` asks for more of them,
//! `FOREBEAR_MODEL_SEED` for others. A difference is shrunk to a short program and told with its story: each order, what
//! followed from it, and then what was promised only and seen only.
//!
//! One reference does for all kinds of runtimes: which worker does what, when, and in which order cannot be seen in what it
//! tells. The seeded mode draws whether a waiter runs its target itself, which can; there every request has a stack of its
//! own. And time passes there by itself as soon as nothing else goes on, so a timed wait is over by the end of the step in
//! which it began.
#![cfg(target_os = "linux")]

mod actors;
mod cancelling;
mod choice;
mod compare;
mod orders;
mod program;
mod reference;
#[path = "../../support/mod.rs"]
mod support;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use support::{Kind, Modes, Watchdog, kinds, not_on};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Compares so many programs on this kind of runtime.
fn compare_programs(kind: Kind, own_stacks: bool, nth: u64, cases: u32) {
    let _dog = Watchdog::new(format_args!("{kind:?}"));
    let mut seed = [0; 32];
    seed[..8].copy_from_slice(&number("FOREBEAR_MODEL_SEED").unwrap_or(nth).to_le_bytes());
    let cases = number("FOREBEAR_MODEL_CASES").and_then(|n| n.try_into().ok()).unwrap_or(cases);
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
    let ran = TestRunner::new_with_rng(config, rng).run(&program::programs(), |program| {
        compare::compare(&program, kind, own_stacks).map_err(TestCaseError::fail)
    });
    if let Err(difference) = ran {
        panic!("{difference}");
    }
}

#[test]
fn random_programs_do_what_the_reference_says() {
    let _not = not_on(Modes::Seeded, "there it is drawn whether a waiter runs its target itself");
    for (nth, kind) in (0..).zip(kinds()) {
        compare_programs(kind, false, nth, 100);
    }
}

/// Of the seeded mode, with several seeds, all but direct runs.
#[test]
fn random_programs_do_what_the_reference_says_whatever_is_drawn() {
    for seed in 0..8 {
        compare_programs(Kind::Seeded(seed), true, seed, 25);
    }
}
