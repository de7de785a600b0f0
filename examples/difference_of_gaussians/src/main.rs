//! The difference of two Gaussians, block by block: a picture is smoothed at two scales and the results are subtracted.
//!
//! ```text
//! cargo run --release -p difference_of_gaussians
//! cargo run --release -p difference_of_gaussians -- --scale 8 --threads 2 --output stars.png photo.jpg
//! ```
//!
//! This is the quick start grown up. There, one picture is smoothed twice; here it is cut into blocks, and every
//! block is three layers of requests:
//!
//! ```text
//!   difference      waits for      fine, coarse           (its own: it takes them)
//!   fine, coarse    wait for       input, input, input …  (shared with the neighbours, and with each other)
//!   input           decodes        a piece of the picture (once, however many wait for it)
//! ```
//!
//! Nobody plans the order and no request knows how many threads there are: each one says what it needs and waits for it.
//!
//! The same picture is then computed again by `plain.rs`, on one thread and without a request in sight. The two must
//! agree in every bit; if they do not, nothing is written and the exit code is 1.
//!
//! Ctrl-C cancels one request, the one that orders all the others. They are cancelled with it, whether they compute, wait or
//! have not begun, since nobody else wants them; and the program says how far it came and leaves no file behind.
//!
//! | file | what it knows |
//! |---|---|
//! | `cli.rs` | the arguments, and what is wrong with them |
//! | `picture.rs` | files: reading the input, writing the output whole or not at all |
//! | `blocks.rs` | rectangles, the grid, and blocks that are counted while they live |
//! | `smooth.rs` | the kernel, and smoothing one padded tile |
//! | `plain.rs` | the whole picture on one thread |
//! | `pipeline.rs` | the requests |
//! | `interrupt.rs` | Ctrl-C |
//!
//! Exit codes: 0 done, 1 it could not be done (one line on stderr says why), 2 the arguments are wrong (likewise), 130 it
//! was interrupted.

mod blocks;
mod cli;
mod interrupt;
mod picture;
mod pipeline;
mod plain;
mod smooth;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use blocks::Grid;
use cli::Options;
use forebear::prelude::*;
use indicatif::{ProgressBar, ProgressStyle};
use interrupt::{Interrupts, Written};
use picture::{Output, Source};
use pipeline::Job;

fn main() -> ExitCode {
    let options = match cli::parse() {
        Ok(options) => options,
        Err(code) => return code,
    };
    let interrupts = Interrupts::listen().context("cannot listen for Ctrl-C");
    match interrupts.and_then(|interrupts| run(&options, &interrupts)) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {}", one_line(&error));
            ExitCode::FAILURE
        }
    }
}

/// The whole chain on one line. Some libraries put line breaks into a message, or their cause's words.
fn one_line(error: &anyhow::Error) -> String {
    let mut line = String::new();
    for cause in error.chain() {
        let words = cause.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        if !line.contains(&words) {
            line.push_str(if line.is_empty() { "" } else { ": " });
            line.push_str(words.trim_end_matches(':'));
        }
    }
    line
}

/// Everything after the arguments.
fn run(options: &Options, interrupts: &Interrupts) -> anyhow::Result<ExitCode> {
    // The cheap ways to fail come first: nobody wants to learn after a minute that the output cannot be written.
    let output = interrupts.undisturbed(|_| Output::prepare(&options.output))?;
    let source = Arc::new(Source::open(options.input.as_deref(), options.scale)?);
    check_memory(source.width(), source.height())?;
    let kernels = options.kernels().map(Arc::new);
    let grid = Grid::new(source.width(), source.height(), options.block);
    let rt = Runtime::builder()
        .workers(options.threads)
        .build()
        .with_context(|| format!("cannot start {} threads", options.threads))?;

    let job = Job::new(source.clone(), grid, kernels.clone(), rt.workers());
    let bar = progress_bar(grid.len());
    interrupts.begin(grid.len());
    let began = Instant::now();
    let one_more = || {
        bar.inc(1);
        interrupts.count_block();
    };
    let values = interrupts.compute(&rt, || Ok(job.run(one_more)?));
    let time = began.elapsed();
    bar.finish_and_clear();
    let Some(values) = values.context("the computation failed")? else { return Ok(interrupted(interrupts)) };
    let counts = Counts::of(&rt);

    let spinner = ProgressBar::new_spinner().with_message("on one thread, for comparison");
    spinner.tick();
    let began = Instant::now();
    let expected = interrupts.compute(&rt, || Ok(plain::difference(&source, &kernels[0], &kernels[1])?));
    let one_thread = began.elapsed();
    spinner.finish_and_clear();
    let Some(expected) = expected.context("the comparison failed")? else {
        return Ok(interrupted(interrupts));
    };

    if let Some(at) = plain::first_difference(&values, &expected) {
        let (x, y) = (at % grid.width, at / grid.width);
        bail!("at ({x}, {y}) the blocks give {}, the plain computation {}", values[at], expected[at]);
    }
    let png = picture::encode(&picture::grey(&values, grid.width, grid.height))?;
    write(&output, &png, interrupts)?;
    Ok(print(&report(options, &job, &counts, [time, one_thread])))
}

/// Writes the picture, so that Ctrl-C finds it whole or not there. What is no file may block, and is written as it comes.
fn write(output: &Output, png: &[u8], interrupts: &Interrupts) -> anyhow::Result<()> {
    if output.is_device() {
        interrupts.undisturbed(|written| *written = Written::Part);
        output.write(png)?;
        interrupts.undisturbed(|written| *written = Written::All);
        return Ok(());
    }
    interrupts.undisturbed(|written| {
        output.write(png)?;
        *written = Written::All;
        Ok(())
    })
}

fn interrupted(interrupts: &Interrupts) -> ExitCode {
    interrupts.tell();
    ExitCode::from(interrupt::EXIT_CODE)
}

/// What is held at the worst, in pictures of `f32`: the result, and of the plain version the input, one half-smoothed and
/// two smoothed.
const BYTES_PER_PIXEL: u64 = 20;

/// Refuses pictures that would not fit, in words; otherwise the system would end the process without any.
fn check_memory(width: usize, height: usize) -> anyhow::Result<()> {
    let needed = (width as u64).checked_mul(height as u64).and_then(|n| n.checked_mul(BYTES_PER_PIXEL));
    let available = available_memory();
    match needed {
        Some(bytes) if bytes <= available => Ok(()),
        _ => bail!(
            "{width} x {height} pixels do not fit into memory ({} MiB are available); choose a smaller --scale",
            available >> 20
        ),
    }
}

/// Bytes that can be had without swapping, where the system says so (Linux); else a moderate guess.
fn available_memory() -> u64 {
    let guess = 4 << 30;
    let Ok(text) = std::fs::read_to_string("/proc/meminfo") else { return guess };
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kib.map_or(guess, |kib| kib.saturating_mul(1024))
}

/// A bar on stderr, hidden (by indicatif) when stderr is not a terminal.
fn progress_bar(blocks: usize) -> ProgressBar {
    let bar = ProgressBar::new(blocks as u64);
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} blocks, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

/// What the report tells of the runtime.
#[derive(Debug)]
struct Counts {
    threads: usize,
    /// How many requests have run, and how many of them on the stack of the one who waited.
    requests: u64,
    direct: u64,
}

impl Counts {
    fn of(rt: &Runtime) -> Counts {
        let metrics = rt.metrics();
        Counts { threads: rt.workers(), requests: metrics.started, direct: metrics.direct }
    }
}

fn report(options: &Options, job: &Job, counts: &Counts, [time, one_thread]: [Duration; 2]) -> String {
    let (grid, live) = (job.grid(), job.live());
    let speed_up = one_thread.as_secs_f64() / time.as_secs_f64().max(f64::MIN_POSITIVE);
    let lines = [
        format!("picture           {} x {} pixels, {} blocks", grid.width, grid.height, grid.len()),
        format!("threads           {}", counts.threads),
        format!("time              {time:.1?}"),
        format!("one thread        {one_thread:.1?}, plain, with the same result in every bit"),
        format!("speed-up          {speed_up:.2}"),
        format!("requests          {}", counts.requests),
        format!("ran directly      {}", counts.direct),
        format!("peak live blocks  {} (of {}, bound {})", live.peak(), live.made(), job.bound()),
        format!("written           {}", options.output.display()),
    ];
    lines.join("\n")
}

/// Prints the report. A reader who has gone away (`| head`) is no failure: the picture is written.
fn print(report: &str) -> ExitCode {
    match writeln!(io::stdout(), "{report}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("error: cannot print the report: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

#[cfg(test)]
mod tests;
