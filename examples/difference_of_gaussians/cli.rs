//! The arguments: what may be given, within which limits, and what a user reads who gave something else.
//!
//! clap would answer a mistake with a paragraph. This program answers with one line, as it does to every other
//! mistake, and exits with 2; `--help` and `--version` go to stdout and exit with 0.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, value_parser};

use crate::smooth::Kernel;

/// Smooth a picture at two scales, block by block and on several threads, and write the difference.
#[derive(Debug, Parser)]
#[command(version)]
pub(crate) struct Options {
    /// PNG or JPEG file to read [default: the Hubble eXtreme Deep Field]
    pub(crate) input: Option<PathBuf>,

    /// PNG file to write
    #[arg(short, long, value_name = "FILE", default_value = "difference_of_gaussians.png")]
    pub(crate) output: PathBuf,

    /// Tile the picture N times in both directions, to make the work last
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = value_parser!(u32).range(1..=10_000))]
    pub(crate) scale: u32,

    /// Worker threads, 1 to 1024 [default: one per processor]
    #[arg(long, value_name = "N", default_value_t = default_threads(), value_parser = threads, hide_default_value = true)]
    pub(crate) threads: usize,

    /// Edge of a block in pixels, 8 to 65536
    #[arg(long, value_name = "PIXELS", default_value_t = 128, value_parser = block)]
    pub(crate) block: usize,

    /// Standard deviations of the two Gaussians in pixels, 0.1 to 100
    #[arg(
        long,
        num_args = 2,
        value_names = ["FINE", "COARSE"],
        default_values_t = [1.0, 3.0],
        allow_negative_numbers = true,
        value_parser = sigma
    )]
    sigma: Vec<f64>,
}

impl Options {
    /// The fine and the coarse kernel. clap has seen to it that there are two, or none.
    pub(crate) fn kernels(&self) -> [Kernel; 2] {
        match self.sigma[..] {
            [fine, coarse] => [Kernel::gaussian(fine), Kernel::gaussian(coarse)],
            _ => [Kernel::gaussian(1.0), Kernel::gaussian(3.0)],
        }
    }
}

/// Reads the arguments of the process. What is not a set of options has been answered already: exit with the code.
pub(crate) fn parse() -> Result<Options, ExitCode> {
    Options::try_parse().map_err(|error| match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => match error.print() {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        _ => {
            let text = error.to_string();
            // The first line says what is wrong; the rest is usage, which --help gives to whoever wants it.
            eprintln!("{} (try --help)", text.lines().next().unwrap_or("error: wrong arguments"));
            ExitCode::from(2)
        }
    })
}

fn default_threads() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get().min(1024))
}

fn threads(text: &str) -> Result<usize, String> {
    whole_number(text, 1, 1024)
}

fn block(text: &str) -> Result<usize, String> {
    whole_number(text, 8, 65_536)
}

fn whole_number(text: &str, least: usize, most: usize) -> Result<usize, String> {
    match text.parse() {
        Ok(n) if (least..=most).contains(&n) => Ok(n),
        _ => Err(format!("must be a whole number from {least} to {most}")),
    }
}

fn sigma(text: &str) -> Result<f64, String> {
    match text.parse() {
        // Not a number is in no range.
        Ok(sigma) if (0.1..=100.0).contains(&sigma) => Ok(sigma),
        _ => Err("must be a number from 0.1 to 100".into()),
    }
}
