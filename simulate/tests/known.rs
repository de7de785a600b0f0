//! The model against what can be calculated.

use forebear_simulate::costs::Costs;
use forebear_simulate::random::Random;
use forebear_simulate::result::Outcome;
use forebear_simulate::work::{Burst, EACH, Fan, Forest, Letters, Queue, Roots, Step, Work};
use forebear_simulate::world::{Machine, run};

fn free(workers: usize) -> Machine {
    Machine { costs: Costs::free(), ..Machine::new(workers) }
}

fn queue(gap: f64, mean: f64, by_chance: bool) -> Queue {
    Queue { roots: 60_000, gap, mean, by: 1, by_chance, random: Random::new(7) }
}

#[track_caller]
fn about(is: f64, wanted: f64, within: f64) {
    assert!((is / wanted - 1.0).abs() < within, "{is}, not {wanted}");
}

#[test]
fn one_worker_and_chance_are_the_queue_of_the_textbook() {
    for load in [0.5, 0.8, 0.9] {
        let mean = 100_000.0;
        let outcome = run(free(1), &mut queue(mean / load, mean, true));
        about(outcome.mean_latency(), mean / (1.0 - load), 0.07);
        about(outcome.utilization(1), load, 0.02);
    }
}

#[test]
fn several_workers_and_chance_are_the_queue_of_erlang() {
    for workers in [2_u32, 4, 16] {
        let (load, mean) = (0.8, 100_000.0);
        let offered = load * f64::from(workers);
        let outcome = run(free(workers as usize), &mut queue(mean / offered, mean, true));
        let mut term = 1.0;
        let mut sum = 1.0;
        for k in 1..workers {
            term *= offered / f64::from(k);
            sum += term;
        }
        let last = term * offered / f64::from(workers) / (1.0 - load);
        let waits = last / (sum + last);
        about(outcome.mean_latency(), mean + waits * mean / (f64::from(workers) * (1.0 - load)), 0.05);
    }
}

#[test]
fn roots_that_come_evenly_and_take_less_than_their_distance_never_wait() {
    let outcome = run(free(1), &mut queue(100_000.0, 60_000.0, false));
    assert!(outcome.latencies.iter().all(|latency| (60_000..=60_500).contains(latency)));
}

#[test]
fn one_worker_does_all_in_the_exact_order_and_costs_what_its_steps_cost() {
    let outcome = run(Machine::new(1), &mut Forest { roots: 16, micros: 8, gap: None, by: 1 });
    assert_eq!(outcome.counts.run, 16 * EACH);
    assert_eq!(outcome.inversions(), (0.0, 0.0));
    assert_eq!((outcome.counts.moved, outcome.counts.steals, outcome.counts.published), (0, 0, 0));

    let costs = Costs::default();
    let mut flat = Burst { children: 100_000, takes: 0, between: 0, awake: true };
    let outcome = run(Machine::new(1), &mut flat);
    let each = (costs.spawn + costs.run) as f64;
    assert!((each..each + 5.0).contains(&outcome.overhead), "{}", outcome.overhead);
}

#[test]
fn every_request_is_run_once_with_any_number_of_workers_and_cores() {
    for workers in [1, 2, 3, 8, 9, 64] {
        for cores in [1, 2, workers] {
            let machine = Machine { cores, ..Machine::new(workers) };
            for gap in [None, Some(50_000.0)] {
                let outcome = run(machine, &mut Forest { roots: 40, micros: 3, gap, by: 1 });
                assert_eq!(outcome.counts.run, 40 * EACH, "{workers} workers, {cores} cores, {gap:?}");
            }
            let mut burst = Burst { children: 500, takes: 20_000, between: 100, awake: false };
            let outcome = run(machine, &mut burst);
            assert_eq!(outcome.counts.run, 501, "{workers} workers, {cores} cores");
            let outcome = run(machine, &mut Roots { roots: 100, takes: 10_000 });
            assert_eq!(outcome.counts.run, 100, "{workers} workers, {cores} cores");
        }
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    let once = || -> Outcome {
        let mut letters = Letters { roots: 64, takes: 2_000, random: Random::new(3) };
        run(Machine { until: 5_000_000, ..Machine::new(16) }, &mut letters)
    };
    let (one, other) = (once(), once());
    assert_eq!((one.counts, one.end, one.stamps), (other.counts, other.end, other.stamps));
    assert!(one.counts.resumed > 1_000 && one.counts.letters > 500, "{:?}", one.counts);
}

#[test]
fn two_workers_on_one_core_take_as_long_as_one() {
    let takes = 1_000_000;
    let time = |workers, cores| {
        let machine = Machine { cores, ..free(workers) };
        run(machine, &mut Burst { children: 200, takes, between: 0, awake: false }).end as f64
    };
    about(time(2, 1), time(1, 1), 0.01);
    about(time(2, 2), time(1, 1) / 2.0, 0.02);
}

#[test]
fn consumers_of_one_input_are_shared_evenly() {
    for workers in [2, 4, 8] {
        for at_the_maker in [true, false] {
            let mut fan = Fan { consumers: 64, input: 5_000_000, takes: 1_000_000, at_the_maker };
            let ideal = fan.ideal(workers) as f64;
            let outcome = run(Machine::new(workers), &mut fan);
            assert_eq!(outcome.shares.iter().sum::<u64>(), 64);
            let most = outcome.shares.iter().max().copied().unwrap();
            assert!(most <= 64_u64.div_ceil(workers as u64) + 1, "{workers} workers, {:?}", outcome.shares);
            assert!(workers > 2 || outcome.end as f64 <= 1.05 * ideal, "{} ns", outcome.end);
        }
    }
}

/// A request that is let go on before it suspends does not suspend.
#[test]
fn a_letter_that_comes_early_is_not_lost() {
    struct Pair;
    impl Work for Pair {
        fn arrivals(&mut self) -> Vec<forebear_simulate::work::Arrival> {
            let root = |data| forebear_simulate::work::Arrival { at: 0, by: 0, data };
            vec![root(0), root(1)]
        }

        fn step(&mut self, data: u64, step: u32) -> Step {
            match (data, step) {
                (0, 0) => Step::Wake(1),
                (1, 0) => Step::Compute(50_000),
                (1, 1) => Step::Suspend,
                _ => Step::End,
            }
        }
    }
    for workers in [1, 2] {
        assert_eq!(run(Machine::new(workers), &mut Pair).counts.run, 2);
    }
}
