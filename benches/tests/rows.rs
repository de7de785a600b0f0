//! Every runtime that stands in a row can do the row's load, and does all of it.

use forebear_benches::measure::{Effort, sample};
use forebear_benches::{Bound, Load, claims, rivals};

/// Two, in one process: `may` keeps the number of its first start.
const WORKERS: usize = 2;

#[test]
fn every_runner_does_the_work_of_its_row() {
    for claim in claims::ALL {
        for row in claim.rows {
            for runner in row.all_runners().iter().filter(|runner| rivals::is_built_in(runner.name)) {
                // Most of them die of it, which is what that claim is about.
                if matches!(runner.load, Load::Depth { .. }) {
                    continue;
                }
                let rival = rivals::start(runner.name, WORKERS).expect("it is built in");
                let sample = sample(&*rival, runner.load.quick(), Effort::QUICK);
                assert!(sample.is_some(), "{}/{}: {} has no means", claim.name, row.name, runner.name);
            }
        }
    }
}

#[test]
fn every_row_has_forebear_and_whom_its_goals_name() {
    for claim in claims::ALL {
        for row in claim.rows {
            let runners = row.all_runners();
            let has = |name| runners.iter().filter(|runner| runner.name == name).count() == 1;
            assert!(has("forebear"), "{}/{}", claim.name, row.name);
            for goal in row.all_goals() {
                assert!(has(goal.of), "{}/{}: {}", claim.name, row.name, goal.of);
                if let Bound::Times(_, rival) = goal.bound {
                    assert!(has(rival), "{}/{}: {rival}", claim.name, row.name);
                }
            }
        }
    }
}

#[test]
fn a_load_knows_its_size_and_its_result() {
    assert_eq!(Load::Skynet { leaves: 100, how: forebear_benches::How::Value }.ops(), 111);
    assert_eq!(Load::Skynet { leaves: 100, how: forebear_benches::How::Value }.expected(), 4_950);
    // fib(5) = 5 is made of seven forks.
    let fib = Load::Fib { n: 5, how: forebear_benches::How::Join };
    assert_eq!((fib.ops(), fib.expected()), (7, 5));
}

#[test]
fn work_left_out_is_found_out() {
    #[derive(Debug)]
    struct Lazy;
    impl forebear_benches::Rival for Lazy {
        fn run(&self, _: Load) -> Option<forebear_benches::Run> {
            Some(forebear_benches::Run::timed(|| 0))
        }
    }
    let load = Load::SpawnIn { n: 10, how: forebear_benches::How::Scope };
    let caught = std::panic::catch_unwind(|| sample(&Lazy, load, Effort::QUICK));
    assert!(caught.is_err());
}
