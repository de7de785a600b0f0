//! The arguments: what may be given, within which limits, and what a user reads who gave something else.
//!
//! clap would answer a mistake with a paragraph. This program answers with one line, as it does to every other
//! mistake, and exits with 2; `--help` and `--version` go to stdout and exit with 0.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::ValueParser;
use clap::error::ErrorKind;
use clap::{Arg, ArgMatches, Command, value_parser};

use crate::smooth::Kernel;

/// What the program is asked to do.
#[derive(Debug)]
pub(crate) struct Options {
    /// The picture to read; the one that is bundled if there is none.
    pub(crate) input: Option<PathBuf>,
    /// The PNG file to write.
    pub(crate) output: PathBuf,
    /// How often the picture is tiled, in both directions.
    pub(crate) scale: u32,
    /// Worker threads.
    pub(crate) threads: usize,
    /// The edge of a block in pixels.
    pub(crate) block: usize,
    /// The standard deviations of the two Gaussians in pixels.
    sigma: [f64; 2],
}

fn command() -> Command {
    let path = || value_parser!(PathBuf);
    let option = |name: &'static str, value: &'static str, parser: ValueParser, help: &'static str| {
        Arg::new(name).long(name).value_name(value).value_parser(parser).help(help)
    };
    Command::new("difference_of_gaussians")
        .version(env!("CARGO_PKG_VERSION"))
        .about(
            "Smooth a picture at two scales, block by block and on several threads, and write the difference",
        )
        .arg(
            Arg::new("input")
                .value_name("INPUT")
                .value_parser(path())
                .help("PNG or JPEG file to read [default: the Hubble eXtreme Deep Field]"),
        )
        .arg(
            option("output", "FILE", path(), "PNG file to write")
                .short('o')
                .default_value("difference_of_gaussians.png"),
        )
        .arg(
            option(
                "scale",
                "N",
                value_parser!(u32).range(1..=10_000).into(),
                "Tile the picture N times in both directions, to make the work last",
            )
            .default_value("1"),
        )
        .arg(option(
            "threads",
            "N",
            ValueParser::new(threads),
            "Worker threads, 1 to 1024 [default: one per processor]",
        ))
        .arg(
            option("block", "PIXELS", ValueParser::new(block), "Edge of a block in pixels, 8 to 65536")
                .default_value("128"),
        )
        .arg(
            option(
                "sigma",
                "SIGMA",
                ValueParser::new(sigma),
                "Standard deviations of the two Gaussians in pixels, 0.1 to 100",
            )
            .value_names(["FINE", "COARSE"])
            .num_args(2)
            .default_values(["1", "3"])
            .allow_negative_numbers(true),
        )
}

impl Options {
    /// The fine and the coarse kernel.
    pub(crate) fn kernels(&self) -> [Kernel; 2] {
        self.sigma.map(Kernel::gaussian)
    }

    /// What the arguments say. Those without a default, and `--sigma`, may be missing.
    fn read(mut given: ArgMatches) -> Options {
        let sigma: Vec<f64> = given.remove_many("sigma").into_iter().flatten().collect();
        Options {
            input: given.remove_one("input"),
            output: given.remove_one("output").unwrap_or_default(),
            scale: given.remove_one("scale").unwrap_or(1),
            threads: given.remove_one("threads").unwrap_or_else(default_threads),
            block: given.remove_one("block").unwrap_or(128),
            // clap refuses all numbers of values but two.
            sigma: sigma.try_into().unwrap_or([1.0, 3.0]),
        }
    }
}

/// Reads the arguments of the process. What is not a set of options has been answered already: exit with the code.
pub(crate) fn parse() -> Result<Options, ExitCode> {
    command().try_get_matches().map(Options::read).map_err(|error| match error.kind() {
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
