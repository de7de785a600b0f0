//! Counts what forebear does under the loads that the model of `simulate` also has, for comparison with
//! the model.
//!
//! ```text
//! observe [REPEATS]
//! ```
//!
//! The loads are short, so that some of them pass undisturbed on a busy machine. Of the repeats (1,000) the fastest twentieth is
//! taken, and of these the mean.

use std::num::NonZeroUsize;
use std::process::ExitCode;

use forebear_benches::load::Arrivals;
use forebear_benches::rival;
use forebear_benches::{Load, Run, rivals, work};

/// The mean of each figure over the fastest twentieth, and of the time.
fn quiet(mut runs: Vec<Run>) -> Vec<(&'static str, f64)> {
    runs.sort_by_key(|run| run.elapsed);
    let best = &runs[..runs.len().div_ceil(20)];
    let mean = |of: &dyn Fn(&Run) -> f64| best.iter().map(of).sum::<f64>() / best.len() as f64;
    let mut all = vec![("us", mean(&|run| run.elapsed.as_secs_f64() * 1e6))];
    for (at, (name, _)) in best[0].figures.iter().enumerate() {
        all.push((name, mean(&|run| run.figures[at].1)));
    }
    all
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let repeats = match args.next().map(|text| text.parse::<NonZeroUsize>()) {
        None => 1_000,
        Some(Ok(number)) if args.next().is_none() => number.get(),
        Some(_) => {
            eprintln!("observe [REPEATS], which is a number, at least 1");
            return ExitCode::from(2);
        }
    };
    work::steps_per_ms();
    for arrivals in [Arrivals::Batch, Arrivals::Poisson(80)] {
        for workers in [1, 2, 4] {
            let load = Load::Forest { roots: 8, arrivals };
            let forebear = rivals::start("forebear", workers).expect("it is built in");
            forebear.run(Load::SETTLING);
            let once = |_| rival::run(&*forebear, load).expect("it has the means");
            println!("{arrivals:?}, {workers} workers");
            for (name, value) in quiet((0..repeats).map(once).collect()) {
                println!("  {name:<20} {value:10.1}");
            }
        }
    }
    ExitCode::SUCCESS
}
