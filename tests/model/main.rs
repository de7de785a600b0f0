//! Random programs, compared with a sequential reference.
//!
//! What a program is made of is told in [`program`]; what it has to do in [`reference`] and [`cancelling`], which are short enough to be read in one
//! sitting; how it is run and watched in [`actors`], [`choice`] and [`compare`]. Programs are drawn by proptest from a fixed seed,
//! so the same ones each time; `FOREBEAR_MODEL_CASES` asks for more of them, `FOREBEAR_MODEL_SEED` for others. A
//! difference is shrunk to a short program and told with its story: each order, what followed from it, and then what was
//! promised only and seen only.
#![cfg(target_os = "linux")]

mod actors;
mod cancelling;
mod choice;
mod compare;
mod program;
mod reference;
#[path = "../support/mod.rs"]
mod support;

use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use support::Watchdog;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn random_programs_do_what_the_reference_says() {
    for workers in compare::WORKERS {
        let _dog = Watchdog::new(format_args!("{workers} workers"));
        let mut seed = [0; 32];
        seed[..8].copy_from_slice(&number("FOREBEAR_MODEL_SEED").unwrap_or(workers as u64).to_le_bytes());
        let cases = number("FOREBEAR_MODEL_CASES").and_then(|n| n.try_into().ok()).unwrap_or(100);
        let config =
            Config { cases, failure_persistence: None, max_shrink_iters: 2_000, ..Config::default() };
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed);
        let ran = TestRunner::new_with_rng(config, rng).run(&program::programs(), |program| {
            compare::compare(&program, workers).map_err(TestCaseError::fail)
        });
        if let Err(difference) = ran {
            panic!("{difference}");
        }
    }
}
