//! A claim under criterion: a group a row and number of workers, a function a runtime.
//!
//! All runtimes run in this one process, one after the other, each started for its own measurements and stopped after
//! them; where that is not good enough, use the binary `claims`. `may` and `forte` keep the number of workers of their
//! first start, so a run is for one number: `FOREBEAR_BENCH_WORKERS`, 1 if it is not set.

use std::time::Duration;

use criterion::{Criterion, SamplingMode, Throughput};
use forebear_benches::{Claim, measure, rivals};

/// Measures the claim's rows; a row that is not meant for this number of workers is passed over.
pub(crate) fn run(claim: &Claim) {
    let workers =
        std::env::var("FOREBEAR_BENCH_WORKERS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    // The command line comes last and wins.
    let mut criterion = Criterion::default()
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(3))
        .configure_from_args();
    for row in claim.rows.iter().filter(|row| row.workers.contains(&workers)) {
        let mut group = criterion.benchmark_group(format!("{}/{}/{workers}", claim.name, row.name));
        group.sampling_mode(SamplingMode::Flat);
        for runner in row.all_runners().iter().filter(|runner| rivals::is_built_in(runner.name)) {
            // Filling the memory once a process is one thing, a hundred times another.
            let load = if runner.load.is_single_shot() { runner.load.quick() } else { runner.load };
            group.throughput(Throughput::Elements(load.ops()));
            // The runtime is started at the first measurement, so that one that is filtered out costs nothing.
            let mut rival = None;
            group.bench_function(runner.name, |bencher| {
                let rival =
                    rival.get_or_insert_with(|| rivals::start(runner.name, workers).expect("it is built in"));
                bencher.iter_custom(|loads| {
                    let once = |_| {
                        let run = measure::once(&**rival, load);
                        run.expect("a row names only runtimes that have the means for it").elapsed
                    };
                    (0..loads).map(once).sum()
                });
            });
        }
        group.finish();
    }
    criterion.final_summary();
}
