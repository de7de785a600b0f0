//! The main job on a cluster: a picture is smoothed at two scales, and the results are subtracted, by worker processes that may die.
//!
//! ```text
//! cargo run --release -p cluster_dog                                                     two processes on this machine
//! cargo run --release -p cluster_dog --features nats -- --nats nats://127.0.0.1:4222     two, over a server
//! cluster_dog --nats tls://queue.example.org --credentials dog.creds --worker            one more, on another machine
//! cluster_dog --nats tls://queue.example.org --credentials dog.creds --workers 0         with workers elsewhere alone
//! ```
//!
//! `kill -9` any of the workers while it runs: the picture comes out the same, byte for byte. `--kill-at 5,9` has the program do that itself.
//!
//! Each block of the picture is two tasks:
//!
//! ```text
//!   luminance     decodes a block of the picture, which each worker has read once (a resource)
//!   difference    takes the blocks around its own, smooths them twice, and subtracts
//! ```
//!
//! A decoded block is large, so it stays in the engine's store: `stored()` passes it from the worker that has made it to those that need it, and the
//! coordinator never has it. It fetches the differences, puts them together, and compares the picture with the one that it computes itself by `plain.rs`, on one
//! thread. The two must agree in every bit.
//!
//! | file | what it knows |
//! |---|---|
//! | `options.rs` | the arguments |
//! | `tasks.rs` | what runs on workers |
//! | `show.rs` | the table of workers |
//! | `blocks.rs`, `picture.rs`, `plain.rs`, `smooth.rs` | the same files as in `difference_of_gaussians` |
//!
//! Exit codes: 0 done, 1 it could not be done (stderr says why), 2 the arguments are wrong.

#[allow(dead_code, reason = "the main job uses all of it")]
#[path = "../../difference_of_gaussians/src/blocks.rs"]
mod blocks;
mod options;
#[allow(dead_code, reason = "the main job uses all of it")]
#[path = "../../difference_of_gaussians/src/picture.rs"]
mod picture;
#[path = "../../difference_of_gaussians/src/plain.rs"]
mod plain;
mod show;
#[path = "../../difference_of_gaussians/src/smooth.rs"]
mod smooth;
mod tasks;

use std::collections::{BTreeSet, VecDeque};
use std::io::{self, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use blocks::{Grid, Rect};
use forebear_cluster::{ClusterCoordinator, LocalProcesses, PerWorker, RemoteValue, Stored, worker};
use options::Options;
use picture::{Output, Source};
use rustix::process::{Pid, Signal, kill_process};
use show::Table;
use smooth::Kernel;
use tasks::{Made, Pixels, Place, known};

fn main() -> ExitCode {
    // In a worker process these do not return.
    worker::entry(known());
    #[cfg(feature = "nats")]
    forebear_cluster_nats::worker::entry(known());
    let options = Options::checked();
    let ended = if options.worker { work(&options) } else { run(&options) };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs tasks for a coordinator on another machine.
fn work(options: &Options) -> anyhow::Result<()> {
    #[cfg(feature = "nats")]
    if let Some(settings) = options.remote_worker()? {
        return Ok(forebear_cluster_nats::worker::run(settings, known())?);
    }
    bail!("a worker needs --nats{}", options.without_nats())
}

fn start(options: &Options) -> anyhow::Result<ClusterCoordinator> {
    #[cfg(feature = "nats")]
    if let Some(engine) = options.engine()? {
        let elsewhere = options.workers == 0;
        if elsewhere {
            eprintln!("waits for a worker: the same program with --worker, and the same --nats and --job");
        }
        let started = ClusterCoordinator::builder(engine).tasks(known()).start();
        return started.with_context(|| if elsewhere { "no worker elsewhere" } else { "no cluster" });
    }
    if options.nats.is_some() {
        bail!("--nats cannot be used{}", options.without_nats());
    }
    Ok(ClusterCoordinator::builder(LocalProcesses::new(options.workers)).tasks(known()).start()?)
}

fn run(options: &Options) -> anyhow::Result<()> {
    let output = Output::prepare(&options.output)?;
    let cluster = start(options)?;
    let table = Table::show(&cluster);
    let begun = Instant::now();
    let source = Source::open(None, options.scale)?;
    let grid = Grid::new(source.width(), source.height(), options.block);
    let values = compute(&cluster, grid, options)?;
    let time = begun.elapsed();
    table.end();
    let metrics = cluster.metrics();
    cluster.join()?;
    cluster.shutdown()?;

    let [fine, coarse] = tasks::SIGMA.map(Kernel::gaussian);
    let expected = plain::difference(&source, &fine, &coarse)?;
    if let Some(at) = plain::first_difference(&values, &expected) {
        let (x, y) = (at % grid.width, at / grid.width);
        bail!("at ({x}, {y}) the cluster gives {}, the plain computation {}", values[at], expected[at]);
    }
    output.write(&picture::encode(&picture::grey(&values, grid.width, grid.height))?)?;
    print(&[
        format!("picture      {} x {} pixels, {} blocks", grid.width, grid.height, grid.len()),
        format!("time         {time:.1?}, with the same result in every bit as on one thread"),
        format!(
            "tasks        {} done, {} run again since their worker had died",
            metrics.done, metrics.returned
        ),
        format!("written      {}", options.output.display()),
    ])
}

/// Prints the report. A reader who has gone away (`| head`) is no failure: the picture is written.
fn print(lines: &[String]) -> anyhow::Result<()> {
    match writeln!(io::stdout(), "{}", lines.join("\n")) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        printed => printed.context("cannot print the report"),
    }
}

/// The whole picture.
fn compute(cluster: &ClusterCoordinator, grid: Grid, options: &Options) -> anyhow::Result<Vec<f32>> {
    let source = cluster.per_worker(&tasks::picture::RESOURCE, options.scale)?;
    let mut kills = options.kill_at.iter().copied().collect::<BTreeSet<_>>();
    let mut picture = vec![0.0; grid.width * grid.height];
    let mut decoded = Decoded { rows: VecDeque::new(), first: 0 };
    let mut ahead: VecDeque<(Rect, RemoteValue<Made>)> = VecDeque::new();
    let mut done = 0;
    let mut collect = |(rect, value): (Rect, RemoteValue<Made>)| -> anyhow::Result<()> {
        let made = value.fetch().with_context(|| format!("the block at ({}, {})", rect.x, rect.y))?;
        copy(rect, &made.pixels, &mut picture, grid.width);
        done += 1;
        if kills.first().is_some_and(|at| *at <= done) && kill(&made)? {
            kills.pop_first();
        }
        Ok(())
    };
    for row in 0..grid.rows() {
        decoded.advance(cluster, grid, &source, row)?;
        for column in 0..grid.columns() {
            let rect = grid.rect(column, row);
            let args = (Place::from(rect), (grid.width, grid.height), decoded.near(grid, column, row)?);
            ahead.push_back((rect, cluster.schedule(&tasks::difference::TASK, args)?));
            if ahead.len() > 4 * options.workers.max(1)
                && let Some(oldest) = ahead.pop_front()
            {
                collect(oldest)?;
            }
        }
    }
    drop(decoded);
    ahead.into_iter().try_for_each(&mut collect)?;
    match kills.last() {
        Some(block) if *block > grid.len() => {
            bail!("nobody was killed at block {block}: there are {} blocks", grid.len())
        }
        Some(block) => {
            eprintln!(
                "no worker was killed for block {block}: those that made the last blocks had died before"
            )
        }
        None => {}
    }
    Ok(picture)
}

/// The rows of decoded blocks that are still needed. Those above are dropped, and the store drops them then.
struct Decoded {
    rows: VecDeque<Vec<RemoteValue<Pixels>>>,
    /// The row of the grid that `rows` begins with.
    first: usize,
}

impl Decoded {
    fn advance(
        &mut self,
        cluster: &ClusterCoordinator,
        grid: Grid,
        source: &PerWorker<Source>,
        row: usize,
    ) -> anyhow::Result<()> {
        let needed = grid.rows_near(row, tasks::margin());
        while self.first < needed.start {
            self.rows.pop_front();
            self.first += 1;
        }
        for row in self.first + self.rows.len()..needed.end {
            let blocks = (0..grid.columns()).map(|column| {
                let place = Place::from(grid.rect(column, row));
                cluster.schedule(&tasks::luminance::TASK, (source.clone(), place))
            });
            self.rows.push_back(blocks.collect::<Result<_, _>>()?);
        }
        Ok(())
    }

    /// The blocks that lie under a block and its margin: where they are, and their tokens.
    fn near(&self, grid: Grid, column: usize, row: usize) -> anyhow::Result<Vec<(Place, Stored<Pixels>)>> {
        let margin = tasks::margin();
        let mut blocks = Vec::new();
        for row in grid.rows_near(row, margin) {
            for column in grid.columns_near(column, margin) {
                let stored = self.rows[row - self.first][column].stored()?;
                blocks.push((Place::from(grid.rect(column, row)), stored));
            }
        }
        Ok(blocks)
    }
}

/// Puts a finished block in its place.
fn copy(rect: Rect, pixels: &[f32], picture: &mut [f32], width: usize) {
    for (y, row) in (rect.y..).zip(pixels.chunks_exact(rect.width)) {
        picture[y * width + rect.x..][..row.len()].copy_from_slice(row);
    }
}

/// Kills the worker that has made a block, and waits until nobody has its process id any more: it may have begun another block. False if it had died
/// before.
fn kill(made: &Made) -> anyhow::Result<bool> {
    let pid = i32::try_from(made.pid).ok().and_then(Pid::from_raw).context("a worker without a process")?;
    if kill_process(pid, Signal::KILL).is_err() {
        return Ok(false);
    }
    eprintln!("kill -9 {} ({})", made.pid, made.worker);
    while rustix::process::test_kill_process(pid).is_ok() {
        forebear::time::sleep(Duration::from_millis(1))?;
    }
    Ok(true)
}
