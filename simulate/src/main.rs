//! Prints what the model says.
//!
//! ```text
//! simulate check      the loads of `observe` in benches, on as many workers and two cores
//! simulate trees      trees of requests on more and more workers, a core each
//! simulate variants   the same with other ways to pick and to wake
//! simulate roots      roots from outside, short ones
//! simulate sleep      all workers sleep, and there is work for all
//! simulate letters    requests that wake each other
//! simulate fan        64 consumers that are after one input
//! ```

use std::process::ExitCode;

use forebear_simulate::costs::Nanos;
use forebear_simulate::random::Random;
use forebear_simulate::result::{Load, Outcome};
use forebear_simulate::work::{Burst, EACH, Fan, Forest, Letters, Queue, Roots};
use forebear_simulate::world::{Machine, run};

/// As `observe` has.
const ROOTS: u64 = 8;

/// So many a worker, that the last of them count for little.
const ROOTS_EACH: u64 = 8;

const WORKERS: [usize; 8] = [1, 2, 4, 8, 16, 64, 128, 256];

fn percent(share: f64) -> String {
    format!("{:.1}", share * 100.0)
}

fn line(load: Load) -> String {
    format!("{} ({:.0})", percent(load.share), load.wait)
}

fn micros(nanos: Nanos) -> String {
    format!("{:.1}", nanos as f64 / 1e3)
}

fn check() {
    let mut rows = Vec::new();
    for (name, batch) in [("batch", true), ("by chance", false)] {
        for (workers, cores) in [(1, 1), (2, 1), (4, 1), (2, 2), (4, 2)] {
            let gap = (!batch).then(|| (EACH * 8_000) as f64 / (cores as f64 * 0.8));
            // The bench lets its workers go one after the other.
            let machine = Machine { cores, skew: 30_000, ..Machine::new(workers) };
            let outcome = run(machine, &mut Forest { roots: ROOTS, micros: 8, gap, by: 1 });
            let ((between, within), counts) = (outcome.inversions(), outcome.counts);
            rows.push(vec![
                format!("{name}, {workers}, {cores}"),
                micros(outcome.end),
                percent(between),
                percent(within),
                micros(outcome.latencies[0]),
                micros(outcome.mean_latency() as Nanos),
                percent(counts.moved as f64 / (ROOTS * (EACH - 1)) as f64),
                counts.published.to_string(),
                counts.steals.to_string(),
                counts.sleeps.to_string(),
            ]);
        }
    }
    let head = [
        "roots, workers, cores",
        "us",
        "between roots %",
        "within a root %",
        "oldest us",
        "mean us",
        "moved %",
        "published",
        "steals",
        "sleeps",
    ];
    table("Eight trees of 85 requests", &head, rows);
}

fn table(title: &str, head: &[&str], rows: impl IntoIterator<Item = Vec<String>>) {
    println!("\n### {title}\n\n| {} |\n|{}", head.join(" | "), "--:|".repeat(head.len()));
    for row in rows {
        println!("| {} |", row.join(" | "));
    }
}

fn forest(machine: Machine, micros: u64, load: f64) -> Outcome {
    let roots = (machine.workers as u64 * ROOTS_EACH).max(64);
    let gap = (EACH * micros * 1000) as f64 / (machine.workers as f64 * load);
    run(machine, &mut Forest { roots, micros, gap: Some(gap), by: 4 })
}

/// What could be done otherwise, by name.
fn variants(workers: usize) -> Vec<(&'static str, Machine)> {
    let as_is = Machine::new(workers);
    let before =
        Machine { rotates: false, samples: usize::MAX, fills: false, heirs: 1, apart: usize::MAX, ..as_is };
    let rotates = Machine { rotates: true, ..before };
    let four = Machine { samples: 4, ..rotates };
    vec![
        ("before decision 0025", before),
        ("settles", Machine { settles: true, ..before }),
        ("looks at every 8th", Machine { look_every: 8, ..before }),
        ("rotates", rotates),
        ("rotates, the next of 8", Machine { candidates: 8, ..rotates }),
        ("spreads over 8", Machine { candidates: 8, spreads: true, ..rotates }),
        ("8 workers a root", Machine { share: 8, candidates: 8, ..rotates }),
        ("rotates, 2 words", Machine { samples: 2, ..rotates }),
        ("rotates, 4 words", four),
        ("4 words, hunger stands", Machine { fills: true, ..four }),
        ("4 words, two heirs, any number", Machine { heirs: 2, apart: 4, widest: usize::MAX, ..four }),
        ("4 words, two heirs, up to 8", Machine { heirs: 2, apart: 4, ..four }),
        ("4 words, two heirs, up to 4", Machine { heirs: 2, apart: 4, widest: 4, ..four }),
        ("as it is: all three", as_is),
        ("the same, settles", Machine { settles: true, ..as_is }),
        ("the same, peeks", Machine { peeks: true, ..as_is }),
    ]
}

fn variants_of_trees() {
    let rows = [16, 32, 64, 128, 256].into_iter().flat_map(|workers| {
        variants(workers).into_iter().map(move |(name, machine)| {
            let outcome = forest(machine, 8, 0.8);
            let (between, within) = outcome.inversions();
            let each = |count: u64| percent(count as f64 / outcome.counts.run as f64);
            vec![
                format!("{workers}, {name}"),
                percent(outcome.utilization(workers)),
                format!("{:.0}", outcome.mean_latency() / 1e3),
                percent(between),
                percent(within),
                format!("{:.0}", outcome.overhead),
                each(outcome.counts.steals),
                each(outcome.counts.late),
                line(outcome.signals),
            ]
        })
    });
    let head = [
        "workers",
        "busy %",
        "mean us",
        "between %",
        "within %",
        "overhead ns",
        "steals %",
        "late %",
        "signals % (wait)",
    ];
    table("Trees of 8 us, and what could be done otherwise", &head, rows);
}

fn trees() {
    for micros_each in [8, 100] {
        table(
            &format!("Trees of 85 requests of {micros_each} us each, by chance, 80 % busy"),
            &[
                "workers",
                "busy %",
                "mean us",
                "p99 us",
                "between %",
                "within %",
                "overhead ns",
                "published %",
                "steals %",
                "late %",
                "sleeps %",
                "shared queue % (wait)",
                "roots' lock % (wait)",
                "signals % (wait)",
                "post % (wait)",
                "group % (wait)",
            ],
            WORKERS.map(|workers| {
                let outcome = forest(Machine::new(workers), micros_each, 0.8);
                let (between, within) = outcome.inversions();
                let counts = outcome.counts;
                let each = |count: u64| percent(count as f64 / counts.run as f64);
                let mut latencies = outcome.latencies.clone();
                latencies.sort_unstable();
                vec![
                    workers.to_string(),
                    percent(outcome.utilization(workers)),
                    format!("{:.0}", outcome.mean_latency() / 1e3),
                    format!("{:.0}", latencies[latencies.len() * 99 / 100] as f64 / 1e3),
                    percent(between),
                    percent(within),
                    format!("{:.0}", outcome.overhead),
                    each(counts.published),
                    each(counts.steals),
                    each(counts.late),
                    each(counts.sleeps),
                    line(outcome.shared_queue),
                    line(outcome.roots),
                    line(outcome.signals),
                    line(outcome.post),
                    line(outcome.group),
                ]
            }),
        );
    }
}

fn roots() {
    for second in [false, true] {
        roots_taken(second);
    }
}

fn roots_taken(second: bool) {
    table(
        &format!(
            "Roots of 20 us each from four threads, 80 % busy; {}",
            if second { "up to the second best" } else { "only what was seen" }
        ),
        &[
            "workers",
            "busy %",
            "mean us",
            "overhead ns",
            "submitted late %",
            "roots' lock % (wait)",
            "inbox % (wait)",
            "signals % (wait)",
            "post % (wait)",
            "sleeps %",
        ],
        WORKERS.map(|workers| {
            let (mean, roots) = (20_000.0, 100 * workers.max(8) as u64);
            let gap = mean / (workers as f64 * 0.8);
            let mut queue = Queue { roots, gap, mean, by: 4, by_chance: true, random: Random::new(5) };
            let outcome = run(Machine { second, ..Machine::new(workers) }, &mut queue);
            vec![
                workers.to_string(),
                percent(outcome.utilization(workers)),
                format!("{:.1}", outcome.mean_latency() / 1e3),
                format!("{:.0}", outcome.overhead),
                percent(outcome.submitted as f64 / (gap * roots as f64) - 1.0),
                line(outcome.roots),
                line(outcome.inbox),
                line(outcome.signals),
                line(outcome.post),
                percent(outcome.counts.sleeps as f64 / outcome.counts.run as f64),
            ]
        }),
    );
}

fn sleep() {
    const FAR: usize = usize::MAX;
    for (heirs, apart, widest, fills) in [
        (1, FAR, FAR, false),
        (1, FAR, FAR, true),
        (2, 4, FAR, false),
        (2, 4, 16, false),
        (2, 4, 8, false),
        (2, 4, 4, false),
        (2, 4, 8, true),
    ] {
        let title = format!(
            "Until all have work that slept, in us; at most {heirs} heirs, {}{}",
            if heirs > 1 {
                format!("one searcher for {apart} sleepers and at most {widest}")
            } else {
                "one searcher".into()
            },
            if fills { ", and hunger stands until as many are shown as sleep" } else { "" }
        );
        let head = [
            "workers",
            "roots from outside",
            "children of 100 us, four a worker: end",
            "of 300 ns, 1,000 a worker",
        ];
        table(
            &title,
            &head,
            WORKERS.map(|workers| {
                let machine = Machine { heirs, apart, widest, fills, ..Machine::new(workers) };
                let roots = run(machine, &mut Roots { roots: workers as u64, takes: 50_000_000 });
                let four = Burst { children: 4 * workers as u64, takes: 100_000, between: 0, awake: false };
                let end = run(machine, &mut { four }).end;
                let tiny = Burst { children: 1_000 * workers as u64, takes: 300, between: 0, awake: false };
                let tiny = run(machine, &mut { tiny }).end;
                let all = roots.all_busy.map_or("never".into(), micros);
                vec![workers.to_string(), all, micros(end), micros(tiny)]
            }),
        );
    }
}

fn letters() {
    let rows = WORKERS.map(|workers| {
        let roots = 4 * workers as u64;
        let mut letters = Letters { roots, takes: 2_000, random: Random::new(9) };
        let machine = Machine { until: 4_000_000, ..Machine::new(workers) };
        let outcome = run(machine, &mut letters);
        vec![
            workers.to_string(),
            percent(outcome.utilization(workers)),
            format!("{:.2}", outcome.counts.resumed as f64 * 1e3 / outcome.end as f64),
            line(outcome.post),
            line(outcome.signals),
            percent(outcome.counts.sleeps as f64 / outcome.counts.resumed.max(1) as f64),
        ]
    });
    let head = ["workers", "busy %", "resumed a us", "post % (wait)", "signals % (wait)", "sleeps %"];
    table("Letters: four requests a worker, each on for 2 us, then it lets another go on", &head, rows);
}

fn fan() {
    let rows = [2, 4, 8, 16, 32, 64].map(|workers| {
        let mut row = vec![workers.to_string(), 64_u64.div_ceil(workers as u64).to_string()];
        for at_the_maker in [true, false] {
            let mut fan = Fan { consumers: 64, input: 5_000_000, takes: 1_000_000, at_the_maker };
            let ideal = fan.ideal(workers);
            let outcome = run(Machine::new(workers), &mut fan);
            let most = outcome.shares.iter().max().copied().unwrap_or(0);
            row.extend([format!("{:.3}", outcome.end as f64 / ideal as f64), most.to_string()]);
        }
        row
    });
    let head = [
        "workers",
        "an even share",
        "the maker's private queue: times the ideal",
        "most of one worker",
        "a shared queue: times the ideal",
        "most of one worker",
    ];
    table("64 consumers of 1 ms that are after one input of 5 ms", &head, rows);
}

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["check"] => check(),
        ["trees"] => trees(),
        ["variants"] => variants_of_trees(),
        ["roots"] => roots(),
        ["sleep"] => sleep(),
        ["letters"] => letters(),
        ["fan"] => fan(),
        _ => {
            eprintln!("simulate check | trees | variants | roots | sleep | letters | fan");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
