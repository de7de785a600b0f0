//! Runs the candidates in rounds, and prints the results as Markdown.
//!
//! In each round each candidate of a row runs once, in a process of its own, which prints its figures. A candidate that cannot run is named, with the reason, and the others continue. Tables have
//! the median of all rounds, with the smallest and the largest value in brackets.

use std::collections::BTreeMap;
use std::process::{Command, ExitCode, Stdio};

use forebear_benches::machine;

use crate::Whether;
use crate::candidates::{ALL, Candidate, Needs};
use crate::goals::{self, median};

/// The rows to measure, and the programs that are available for it.
#[derive(Debug)]
pub(crate) struct Options {
    rows: Vec<String>,
    rounds: usize,
    quick: bool,
    /// The program of a rival in Python, called with row, candidate and load; and the interpreter.
    python: Option<(String, String)>,
    nats: bool,
    /// The programs that the script could not get, with the reasons.
    skipped: Vec<String>,
    facts: Vec<String>,
}

impl Options {
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Whether<Options> {
        let rows = ["many", "alone", "killed", "growth"];
        let mut options = Options {
            rows: rows.map(str::to_owned).to_vec(),
            rounds: goals::ROUNDS,
            quick: false,
            python: None,
            nats: cfg!(feature = "nats") && std::env::var_os("FOREBEAR_NATS_URL").is_some(),
            skipped: Vec::new(),
            facts: Vec::new(),
        };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                "--quick" => (options.quick, options.rounds) = (true, 1),
                "--row" => options.rows = value()?.split(',').map(str::to_owned).collect(),
                "--rounds" => options.rounds = value()?.parse()?,
                "--python" => options.python = Some((value()?, value()?)),
                "--skipped" => options.skipped.push(value()?),
                "--fact" => options.facts.push(value()?),
                _ => return Err(format!("`{arg}` is unknown").into()),
            }
        }
        match options.rows.iter().find(|row| !rows.contains(&row.as_str())) {
            Some(row) => Err(format!("there is no row `{row}`").into()),
            None => Ok(options),
        }
    }

    /// The command of a candidate. `None`: what it needs is not there.
    fn command(&self, candidate: &Candidate) -> Option<Command> {
        let load = if self.quick { candidate.load.div_ceil(10) } else { candidate.load }.to_string();
        let mut command = match (candidate.needs, &self.python) {
            (Needs::Nats, _) if !self.nats => return None,
            (Needs::Python, None) => return None,
            (Needs::Python, Some((interpreter, program))) => {
                let mut command = Command::new(interpreter);
                command.arg(program);
                command
            }
            _ => {
                let mut command = Command::new(std::env::current_exe().ok()?);
                command.arg("one");
                command
            }
        };
        command.args([candidate.row, candidate.name, &load]).stdin(Stdio::null()).stderr(Stdio::inherit());
        Some(command)
    }
}

/// What a candidate printed in each round: by figure, with the round.
type Figures = BTreeMap<(&'static str, &'static str, String), BTreeMap<usize, f64>>;

/// Runs a candidate. Output lines that are no figures are ignored.
fn figures(mut command: Command) -> Result<Vec<(String, f64)>, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(output.status.to_string());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let figure = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    let all: Vec<_> = text.lines().filter_map(figure).collect();
    if all.is_empty() { Err("it has printed no figure".into()) } else { Ok(all) }
}

pub(crate) fn run(options: &Options) -> ExitCode {
    let (mut all, mut order, mut loads) = (Figures::new(), Vec::new(), Vec::new());
    let mut skipped = options.skipped.clone();
    for round in 0..options.rounds {
        let watch = machine::Watch::start();
        loads.push(format!("{:.1}", watch.load()));
        for candidate in ALL.iter().filter(|one| options.rows.iter().any(|row| row == one.row)) {
            let Some(command) = options.command(candidate) else { continue };
            eprintln!("cluster: round {}: {}: {}", round + 1, candidate.row, candidate.name);
            match figures(command) {
                Ok(printed) => {
                    for (name, value) in printed {
                        if !order.contains(&(candidate.row, name.clone())) {
                            order.push((candidate.row, name.clone()));
                        }
                        all.entry((candidate.row, candidate.name, name)).or_default().insert(round, value);
                    }
                }
                Err(why) => {
                    skipped.push(format!("{}, {}, round {}: {why}", candidate.row, candidate.name, round + 1))
                }
            }
        }
    }
    print_head(options, &loads, &skipped);
    for row in &options.rows {
        print_row(row, &order, &all);
    }
    match print_goals(options, &all) {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

fn print_head(options: &Options, loads: &[String], skipped: &[String]) {
    println!("| | |\n|---|---|");
    for (name, value) in machine::facts() {
        if name != "versions" {
            println!("| {name} | {value} |");
        }
    }
    for fact in &options.facts {
        let (name, value) = fact.split_once('=').unwrap_or((fact, ""));
        println!("| {name} | {value} |");
    }
    println!(
        "| rounds | {}{} |",
        options.rounds,
        if options.quick { ", a tenth of the load: no figures to go by" } else { "" }
    );
    println!("| load average before each | {} |", loads.join(", "));
    for why in skipped {
        println!("| skipped | {why} |");
    }
}

fn print_row(row: &str, order: &[(&'static str, String)], all: &Figures) {
    let names: Vec<_> = order.iter().filter(|(its, _)| *its == row).map(|(_, name)| name).collect();
    if names.is_empty() {
        return;
    }
    println!(
        "\n## {row}\n\n| |{}\n|---|{}",
        names.iter().map(|name| format!(" {name} |")).collect::<String>(),
        "--:|".repeat(names.len())
    );
    for candidate in ALL.iter().filter(|one| one.row == row) {
        let cell = |name: &&String| all.get(&(candidate.row, candidate.name, (*name).clone()));
        let cells: Vec<_> = names.iter().map(cell).collect();
        if cells.iter().any(Option::is_some) {
            let cells: String =
                cells.iter().map(|cell| format!(" {} |", cell.map_or("-".into(), spread))).collect();
            println!("| {} |{cells}", candidate.name);
        }
    }
}

/// The median, with the smallest and the largest value of the rounds.
fn spread(rounds: &BTreeMap<usize, f64>) -> String {
    let values: Vec<f64> = rounds.values().copied().collect();
    let (least, most) = values.iter().fold((f64::MAX, f64::MIN), |(a, b), v| (a.min(*v), b.max(*v)));
    format!("{} ({}-{})", short(median(&values).unwrap_or(f64::NAN)), short(least), short(most))
}

/// Three significant digits.
fn short(value: f64) -> String {
    match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

/// Prints the verdicts. How many goals fall short.
fn print_goals(options: &Options, all: &Figures) -> usize {
    let mut falls = 0;
    println!("\n## Goals\n\n| goal | measured | |\n|---|--:|---|");
    for goal in goals::ALL.iter().filter(|goal| options.rows.iter().any(|row| row == goal.row)) {
        let of = |name| all.get(&(goal.row, name, goal.figure.to_owned())).cloned().unwrap_or_default();
        let mine = of(goal.of);
        // A ratio is of one round.
        let values: BTreeMap<usize, f64> = match goal.against.map(of) {
            Some(its) => mine.iter().filter_map(|(round, v)| Some((*round, v / its.get(round)?))).collect(),
            None => mine,
        };
        let (verdict, short) = goal.judge(&values.values().copied().collect::<Vec<_>>());
        let measured = if values.is_empty() { "-".into() } else { spread(&values) };
        println!("| {} | {measured} | {verdict} |", goal.says);
        falls += usize::from(short);
    }
    falls
}
