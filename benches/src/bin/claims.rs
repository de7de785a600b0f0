//! Runs the claims in rounds and judges the goals.
//!
//! ```text
//! claims [--bench NAME]... [--only RUNTIME]... [--workers 1,2] [--rounds N] [--quick]
//!        [--unordered PATH] [--natural PATH] [--onetbb PATH] [--go PATH] [--out FILE] [--keep FILE] [--fact NAME=VALUE]... [--draw DIR] [--list]
//! ```
//!
//! A round runs every runtime of every row once, each in a process of its own, the next round beginning with the next
//! runtime. `NAME` is a claim or `claim/row`; lists may be separated by commas. `--quick` makes the loads small and one round the default. It is for
//! trials: its figures mean nothing. `--unordered` names this binary built with `--cfg forebear_unordered`, the other side of the claim `order`.
//! `--natural` names it built with the plain release profile: it runs the second driver of forebear, which is left out without the option.
//! `--onetbb` names `benches/tbb/graph.cpp` built, `--go` `benches/go/main.go`. A row that bounds the spread over processes has thirty rounds, the others seven; `--rounds` sets
//! both. The exit code is 1 if a goal falls short.
//!
//! `--keep` writes the raw figures into a file. Figures that the file has already are not measured again, and count. `--fact`
//! adds a fact that only the caller knows. `--draw` makes the page `table.md` and its plots from all kept figures; with
//! `--rounds 0` the program does nothing else. A name or a number of workers that no row has is an error.
//!
//! A child gets the parent's calibration of a millisecond of computing. Its malloc is set to keep freed
//! memory.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use forebear_benches::kept::{Kept, Place};
use forebear_benches::machine::{self, Watch};
use forebear_benches::measure::{Effort, Sample, sample};
use forebear_benches::report::{self, Verdict};
use forebear_benches::rivals::outside;
use forebear_benches::{Claim, NATURAL, Row, Runner, claims, page, rivals, work};

/// How long one process may take: the slowest, a million suspended coroutines, takes some ten seconds.
const PATIENCE: Duration = Duration::from_secs(180);

/// glibc returns large blocks to the system at once, and the next task faults them in again; the largest block that
/// it can be set to keep has 32 MiB.
const KEEP_MEMORY: &str = "glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=4294967296";

#[derive(Debug, Default)]
struct Options {
    benches: Vec<String>,
    only: Vec<String>,
    workers: Vec<usize>,
    rounds: Option<usize>,
    quick: bool,
    unordered: Option<PathBuf>,
    natural: Option<PathBuf>,
    onetbb: Option<PathBuf>,
    go: Option<PathBuf>,
    out: Option<PathBuf>,
    keep: Option<PathBuf>,
    facts: Vec<(String, String)>,
    draw: Option<PathBuf>,
    list: bool,
    child: Option<[String; 4]>,
}

impl Options {
    fn parse(mut args: impl Iterator<Item = String>) -> Result<Options, String> {
        let mut options = Options::default();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} needs a value"));
            let split = |list: String| list.split(',').map(String::from).collect::<Vec<_>>();
            match &*arg {
                "--bench" => options.benches.extend(split(value()?)),
                "--only" => options.only.extend(split(value()?)),
                "--workers" => {
                    for number in split(value()?) {
                        options.workers.push(number.parse().map_err(|_| format!("not a number: {number}"))?);
                    }
                }
                "--rounds" => {
                    let number = value()?;
                    options.rounds = Some(number.parse().map_err(|_| format!("not a number: {number}"))?);
                }
                "--quick" => options.quick = true,
                "--unordered" => options.unordered = Some(value()?.into()),
                "--natural" => options.natural = Some(value()?.into()),
                "--onetbb" => options.onetbb = Some(value()?.into()),
                "--go" => options.go = Some(value()?.into()),
                "--out" => options.out = Some(value()?.into()),
                "--keep" => options.keep = Some(value()?.into()),
                "--fact" => {
                    let fact = value()?;
                    let (name, value) = fact.split_once('=').ok_or(format!("not NAME=VALUE: {fact}"))?;
                    options.facts.push((name.into(), value.into()));
                }
                "--draw" => options.draw = Some(value()?.into()),
                "--list" => options.list = true,
                "--child" => options.child = Some([value()?, value()?, value()?, value()?]),
                _ => return Err(format!("unknown: {arg}")),
            }
        }
        Ok(options)
    }

    /// The arguments that name nothing. They are refused at the start, and not after an hour of
    /// measuring.
    fn check(&self) -> Result<(), String> {
        let rows = || claims::ALL.iter().flat_map(|claim| claim.rows.iter().map(move |row| (claim, row)));
        if let Some(name) = self.benches.iter().find(|name| !rows().any(|(claim, row)| is(name, claim, row)))
        {
            return Err(format!("no such claim or claim/row: {name}; see --list"));
        }
        let runs =
            |name: &str| rows().any(|(_, row)| row.all_runners().iter().any(|runner| runner.name == name));
        if let Some(name) = self.only.iter().find(|name| !runs(name)) {
            return Err(format!("no such runtime: {name}; see --list"));
        }
        if self.rounds == Some(0) && self.draw.is_none() {
            return Err("no rounds, and nothing to --draw: at least one is needed".into());
        }
        Ok(())
    }

    fn wants(&self, claim: &Claim, row: &Row) -> bool {
        self.benches.is_empty() || self.benches.iter().any(|name| is(name, claim, row))
    }

    fn wants_runner(&self, runner: &Runner) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| *name == runner.name)
    }

    /// Which binary runs a runtime; `None` if there is none.
    fn program(&self, name: &str) -> Option<PathBuf> {
        match name {
            rivals::UNORDERED => self.unordered.clone(),
            NATURAL => self.natural.clone(),
            outside::ONETBB => self.onetbb.clone(),
            outside::GO => self.go.clone(),
            _ => rivals::is_built_in(name).then(|| std::env::current_exe().ok()).flatten(),
        }
    }
}

/// Whether the row has this name: that of its claim, or `claim/row`.
fn is(name: &str, claim: &Claim, row: &Row) -> bool {
    name.strip_prefix(claim.name)
        .is_some_and(|rest| rest.is_empty() || rest.strip_prefix('/') == Some(row.name))
}

/// One row for one number of workers.
#[derive(Clone, Copy)]
struct Cell {
    claim: &'static Claim,
    row: &'static Row,
    workers: usize,
}

fn cells(options: &Options) -> Vec<Cell> {
    let mut cells = Vec::new();
    for claim in claims::ALL {
        for row in claim.rows.iter().filter(|row| options.wants(claim, row)) {
            let wanted = |workers: &&usize| options.workers.is_empty() || options.workers.contains(workers);
            cells.extend(row.workers.iter().filter(wanted).map(|&workers| Cell { claim, row, workers }));
        }
    }
    cells
}

/// In the child: measures and prints.
fn child([claim, row, name, workers]: &[String; 4], quick: bool) -> Result<(), String> {
    let claim = claims::ALL.iter().find(|it| it.name == claim).ok_or("no such claim")?;
    let row = claim.rows.iter().find(|it| it.name == row).ok_or("no such row")?;
    let runner =
        row.all_runners().into_iter().find(|it| it.name == name).ok_or("no such runtime in the row")?;
    let workers = workers.parse().map_err(|_| "not a number of workers")?;
    let (load, effort) =
        if quick { (runner.load.quick(), Effort::QUICK) } else { (runner.load, Effort::ROUND) };
    let rival = rivals::start(name, workers).ok_or("not in this build")?;
    let sample = sample(&*rival, load, effort).ok_or("this runtime has no means for this load")?;
    print!("{}", sample.to_lines());
    Ok(())
}

/// Reads a pipe to its end. After an error it answers what it has read: the exit code shows an early end.
fn read(pipe: Option<impl Read>) -> String {
    let mut text = String::new();
    let _ = pipe.map(|mut pipe| pipe.read_to_string(&mut text));
    text
}

/// In the parent: starts a child and reads what it prints, or how it died.
fn measure(options: &Options, place: &Place, program: &PathBuf) -> Result<Sample, String> {
    let mut command = Command::new(program);
    let Place { claim, row, workers, runner, .. } = place;
    if let Some(words) = outside::words(runner.name, runner.load, *workers, options.quick) {
        command.args(words);
    } else {
        command.args(["--child", claim.name, row.name, runner.name, &workers.to_string()]);
        command.args(options.quick.then_some("--quick"));
    }
    command.env(work::SPIN_VARIABLE, work::steps_per_ms().to_string()).env("GLIBC_TUNABLES", KEEP_MEMORY);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|error| format!("{}: {error}", program.display()))?;
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let complaints = thread::spawn(move || read(stderr));
    let (done, wait) = mpsc::channel();
    let lines = thread::spawn(move || {
        let lines = read(stdout);
        // Nobody listens any more if it took too long.
        let _ = done.send(());
        lines
    });
    let late = wait.recv_timeout(PATIENCE).is_err();
    if late {
        child.kill().map_err(|error| error.to_string())?;
    }
    let status = child.wait().map_err(|error| error.to_string())?;
    let lines = lines.join().map_err(|_| "a reader panicked")?;
    let complaints = complaints.join().map_err(|_| "a reader panicked")?;
    if late {
        return Err(format!("not over after {} s", PATIENCE.as_secs()));
    }
    if !status.success() {
        let said = complaints.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default();
        return Err(format!("{status}: {said}"));
    }
    Sample::from_lines(&lines).ok_or(format!("no sample in {lines:?}"))
}

/// One round: every runtime of every row whose figures are not kept already, and how quiet the
/// machine was.
fn round(
    options: &Options,
    cells: &[Cell],
    kept: &mut Kept,
    round: usize,
    rounds: usize,
) -> Result<(), String> {
    let (watch, mut measured) = (Watch::start(), false);
    for &Cell { claim, row, workers } in cells {
        let mut runners = row.all_runners();
        runners.rotate_left(round % row.all_runners().len());
        let places = runners.into_iter().map(|runner| Place { claim, row, workers, runner, round });
        let mut told = false;
        for place in places.filter(|place| options.wants_runner(&place.runner)) {
            let Some(program) = options.program(place.runner.name) else { continue };
            if kept.has(&place) {
                continue;
            }
            if !told {
                eprintln!("round {}/{rounds}: {}/{}, {workers}", round + 1, claim.name, row.name);
            }
            (told, measured) = (true, true);
            kept.add(place, measure(options, &place, &program))?;
        }
    }
    if measured {
        let noise = watch.stop(round);
        if !noise.is_quiet() {
            eprintln!("{}", page::warning(&[noise]));
        }
        kept.add_noise(noise)?;
    }
    Ok(())
}

/// Writes the page and its plots.
fn draw(kept: &Kept, dir: &PathBuf) -> Result<(), String> {
    let page = page::page(kept);
    let written = std::fs::create_dir_all(dir).and_then(|()| {
        std::fs::write(dir.join("table.md"), &page.text)?;
        page.plots.iter().try_for_each(|(name, drawn)| std::fs::write(dir.join(name), drawn))
    });
    written.map_err(|error| format!("{}: {error}", dir.display()))
}

fn run(options: &Options) -> Result<bool, String> {
    options.check()?;
    let cells = cells(options);
    if let Some(number) =
        options.workers.iter().find(|number| !cells.iter().any(|cell| cell.workers == **number))
    {
        return Err(format!("none of these is measured on {number} workers; see --list"));
    }
    let of_row = |row: &Row| options.rounds.unwrap_or(if options.quick { 1 } else { row.rounds() });
    let rounds = cells.iter().map(|cell| of_row(cell.row)).max().unwrap_or(0);
    let mut kept = options.keep.clone().map_or(Ok(Kept::default()), Kept::open)?;
    if rounds > 0 {
        for (name, value) in machine::facts() {
            kept.add_fact(name, &value)?;
        }
    }
    for (name, value) in &options.facts {
        kept.add_fact(name, value)?;
    }
    for number in 0..rounds {
        let asked: Vec<_> = cells.iter().copied().filter(|cell| of_row(cell.row) > number).collect();
        round(options, &asked, &mut kept, number, rounds)?;
    }
    let (mut text, mut passed, mut short, mut open) = (String::new(), 0, 0, 0);
    for cell in cells {
        let tallies = kept.tallies(cell.claim, cell.row, cell.workers);
        let (table, verdicts) = report::table(cell.claim, cell.row, cell.workers, &tallies);
        text += &table;
        text.push('\n');
        for verdict in verdicts {
            match verdict {
                Verdict::Pass => passed += 1,
                Verdict::FallsShort => short += 1,
                Verdict::Open => open += 1,
            }
        }
    }
    text += &format!("Goals: {passed} reached, {short} fall short, {open} open.\n");
    print!("{text}");
    if let Some(path) = &options.out {
        std::fs::write(path, &text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if let Some(dir) = &options.draw {
        draw(&kept, dir)?;
    }
    Ok(short == 0)
}

fn main() -> ExitCode {
    let done = Options::parse(std::env::args().skip(1)).and_then(|options| {
        if let Some(of) = &options.child {
            return child(of, options.quick).map(|()| true);
        }
        if options.list {
            for cell in cells(&options) {
                let runners = cell.row.all_runners();
                let names: Vec<_> = runners.iter().map(|runner| runner.name).collect();
                println!("{}/{}, {}: {}", cell.claim.name, cell.row.name, cell.workers, names.join(" "));
            }
            return Ok(true);
        }
        run(&options)
    });
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("claims: {error}");
            ExitCode::from(2)
        }
    }
}
